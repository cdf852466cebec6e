//! Moves routes away from the most loaded links.
//!
//! Engines choose ways one by one and so at last have little choice left; and when a link comes
//! back, filling it is not enough: routes that gave way while it was gone lie where they are in
//! others' way now. From the link with the most routes one is moved to where it makes none as
//! loaded, again and again. The largest load falls or fewer links have it with each step, so this
//! ends; what it may cost is limited, too ([`Effort`]).

mod fill;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ib_mad::types::Lid;

use super::deal::{Candidate, Ways, list_candidates};
use super::upstream::Upstream;
use super::{Destination, Entries, HopMatrix, Steering, Topology};

/// What that is where routes are to stay where they are.
const ENOUGH: f64 = 1.01;

/// What may be done at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Switches that are asked for another way.
    switches: usize,
    /// Links that are given up as there is no better way, before all others are.
    in_vain: usize,
    /// How often what the worst link has at least is good enough.
    enough: f64,
}

impl Effort {
    /// After such went: routes are to be there soon.
    pub(super) const FEWER_WAYS: Self = Self { switches: 1_500, in_vain: 2, enough: ENOUGH };
    /// Where tables that are kept have to come up to such as were made anew already, which takes their
    /// place if not.
    pub(super) const FOR_KEEPS: Self = Self { switches: 60_000, in_vain: 64, enough: 1.0 };
    /// After everything was routed anew.
    pub(super) const ANEW: Self = Self { switches: 60_000, in_vain: 4, enough: 1.0 };

    /// After links or LIDs came: as much as a fabric of this size can wait for.
    pub(super) fn more_ways(topology: &Topology) -> Self {
        let switches = 400_000_000 / topology.switch_count().max(1);
        Self { switches: switches.min(200_000), in_vain: 8, enough: ENOUGH }
    }

    /// After links or LIDs went, where that alone leaves links more crowded than need be: as much as
    /// a fabric of this size can wait for.
    pub(super) fn beyond(topology: &Topology) -> Self {
        let switches = 30_000_000 / topology.switch_count().max(1);
        Self { switches: switches.min(Self::ANEW.switches), in_vain: 4, enough: ENOUGH }
    }
}

/// What all hosts send to one LID, or to several that take the same ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Its column in the tables.
    pub(super) lid: Lid,
    /// The switch that delivers.
    pub(super) home: u16,
    /// How many LIDs it stands for.
    pub(super) weight: u32,
    /// The first and the number of the LIDs that the same host has: these are to take different
    /// ways.
    pub(super) siblings: (Lid, u16),
}

/// One for each of hosts' LIDs.
pub(super) fn streams_to_hosts(topology: &Topology) -> Vec<Stream> {
    let hosts = topology.destinations().iter().filter(|destination| destination.is_host());
    let stream = |lid, to: &Destination| Stream {
        lid,
        home: to.home,
        weight: 1,
        siblings: (to.base_lid, to.lid_count),
    };
    hosts.flat_map(|to| to.lids().map(move |lid| stream(lid, to))).collect()
}

/// Improves tables that were made anew, but for what operators' choices decide. `hops` have a row a
/// home, `loads` are by link, of hosts' routes to hosts' LIDs; yields what they are then.
pub(super) fn relieve_all<W: Ways>(
    topology: &Topology,
    steering: &Steering,
    hops: &HopMatrix,
    ways: impl Fn(u16) -> W,
    loads: Vec<u32>,
    lfts: &mut [Entries],
) -> Vec<u32> {
    if !steering.port_orders.is_empty() || !steering.ignored_links.is_empty() {
        return loads;
    }
    let streams = streams_to_hosts(topology);
    Relief::new(topology, hops, ways, loads, streams).run(lfts, None, Effort::ANEW, 0)
}

/// What following one LID costs, in switches that are asked for another way.
fn trace_cost(topology: &Topology) -> usize {
    1 + topology.switch_count() / 64
}

/// What is needed to move routes.
pub(super) struct Relief<'a, F> {
    topology: &'a Topology,
    /// Row a home.
    hops: &'a HopMatrix,
    ways: F,
    /// By link.
    loads: Vec<u32>,
    hosts: Vec<u32>,
    streams: Vec<Stream>,
    /// By link: the place of the stream to begin with.
    next: Vec<u32>,
    /// Switches whose routes to the LID at hand may be moved, the nearest to the home first.
    sources: Vec<u16>,
    /// By switch, for these: hosts that send the LID at hand through it, or from it.
    flows: Vec<u32>,
    /// By switch: whether the LID at hand passes the link at hand from there.
    passes: Vec<bool>,
    upstream: Upstream,
    candidates: Vec<Candidate>,
    /// LIDs and switches whose routes may be moved, sorted; `None`: all.
    movable: Option<Vec<(Lid, u16)>>,
    /// Links by their loads or what these were before they fell; what was given up is not here.
    heap: BinaryHeap<(u32, Reverse<usize>)>,
    /// Switches that may still be asked for another way.
    left: usize,
}

impl<'a, W: Ways, F: Fn(u16) -> W> Relief<'a, F> {
    /// `loads` are by link, of hosts' routes to hosts' LIDs.
    pub(super) fn new(
        topology: &'a Topology,
        hops: &'a HopMatrix,
        ways: F,
        loads: Vec<u32>,
        streams: Vec<Stream>,
    ) -> Self {
        Self {
            topology,
            hops,
            ways,
            loads,
            hosts: topology.hosts_on(),
            streams,
            next: vec![0; topology.link_count()],
            sources: Vec::new(),
            flows: vec![0; topology.switch_count()],
            passes: vec![false; topology.switch_count()],
            upstream: Upstream::default(),
            candidates: Vec::new(),
            movable: None,
            heap: BinaryHeap::new(),
            left: 0,
        }
    }

    /// Moves routes until that is of no use any more, those of certain LIDs at certain switches only
    /// if these are told, or until no link has more routes than `goal`. Yields the loads then, by
    /// link.
    pub(super) fn run(
        mut self,
        lfts: &mut [Entries],
        movable: Option<Vec<(Lid, u16)>>,
        effort: Effort,
        goal: u32,
    ) -> Vec<u32> {
        self.movable = movable;
        self.movable.iter_mut().for_each(|pairs| pairs.sort_unstable());
        self.left = effort.switches;
        let senders = self
            .topology
            .switches()
            .flat_map(|switch| self.topology.link_range(switch).map(move |_| switch));
        let senders: Vec<u16> = senders.collect();
        let loads = self.loads.iter().zip(0..).filter(|&(&load, _)| load > 0);
        self.heap = loads.map(|(&load, link)| (load, Reverse(link))).collect();
        let enough = goal.max((f64::from(self.floor()) * effort.enough) as u32);
        let mut in_vain = 0;
        while self.left > 0 && in_vain < effort.in_vain {
            let Some((load, Reverse(link))) = self.heap.pop() else { break };
            let now = self.loads[link];
            if now < load {
                self.heap.push((now, Reverse(link)));
            } else if now == load {
                if now <= enough {
                    break;
                }
                if self.relieve(senders[link], link, lfts) {
                    self.heap.push((self.loads[link], Reverse(link)));
                } else {
                    in_vain += 1;
                }
            }
        }
        self.loads
    }

    /// Takes routes from one way and adds them to another.
    fn shift(&mut self, flow: u32, old: &[usize], new: &[usize]) {
        for &link in old {
            self.loads[link] = self.loads[link].saturating_sub(flow);
        }
        for &link in new {
            self.loads[link] += flow;
            if !old.contains(&link) {
                self.heap.push((self.loads[link], Reverse(link)));
            }
        }
    }

    /// What the worst link has at least: routes of a switch's hosts to others' LIDs have its links to
    /// pass, and so have those back.
    fn floor(&self) -> u32 {
        let mut lids_on = vec![0u64; self.hosts.len()];
        for stream in &self.streams {
            lids_on[usize::from(stream.home)] += u64::from(stream.weight);
        }
        let all_lids: u64 = lids_on.iter().sum();
        let hosts: u64 = self.hosts.iter().copied().map(u64::from).sum();
        let is_whole = |switch: u16| !self.hops.row(switch).contains(&HopMatrix::UNREACHABLE);
        let of_switch = |switch: u16| {
            let (own, lids) =
                (u64::from(self.hosts[usize::from(switch)]), lids_on[usize::from(switch)]);
            let out = own * (all_lids - lids);
            let back = (hosts - own) * lids;
            let links = self.topology.links(switch).len().max(1) as u64;
            out.max(back).div_ceil(links)
        };
        let switches = self.topology.switches();
        let floor = switches.filter(|&switch| is_whole(switch)).map(of_switch).max();
        floor.unwrap_or(0).try_into().unwrap_or(u32::MAX)
    }

    /// Moves a route away from a link, if one can be.
    fn relieve(&mut self, sender: u16, link: usize, lfts: &mut [Entries]) -> bool {
        let port = self.topology.link(link).port;
        // Those before were in vain, and mostly still are.
        let (first, count) = (self.next[link] as usize, self.streams.len());
        for place in (first..count).chain(0..first) {
            let stream = self.streams[place];
            if self.left > 0
                && lfts[usize::from(sender)][stream.lid.index()] == port
                && self.trace(sender, stream, lfts)
                && self.move_one(link, stream, lfts)
            {
                self.next[link] = place as u32;
                return true;
            }
        }
        false
    }

    /// Finds out by which switches a LID comes to a link of the sender, if it is sent by that, and how
    /// often. Yields whether it does at all.
    fn trace(&mut self, sender: u16, stream: Stream, lfts: &[Entries]) -> bool {
        let Stream { lid, home, weight, .. } = stream;
        self.left = self.left.saturating_sub(trace_cost(self.topology));
        let row = self.hops.row(home);
        let port = |switch: u16| lfts[usize::from(switch)][lid.index()];
        self.upstream.find(self.topology, row, &self.hosts, sender, port);
        self.sources.clear();
        for (switch, flow) in self.upstream.all().filter(|&(_, flow)| flow > 0) {
            self.flows[usize::from(switch)] = flow * weight;
            self.sources.push(switch);
        }
        self.sources.sort_unstable_by_key(|&switch| (row[usize::from(switch)], switch));
        !self.sources.is_empty()
    }

    /// Has one of the switches by which a LID comes to a link send elsewhere, the nearest to the
    /// link that has a way on which no link gets as many routes.
    fn move_one(&mut self, link: usize, stream: Stream, lfts: &mut [Entries]) -> bool {
        let Stream { lid, home, .. } = stream;
        let ways = (self.ways)(home);
        let limit = self.loads[link];
        for place in 0..self.sources.len() {
            let switch = self.sources[place];
            let movable = self.movable.as_ref();
            if movable.is_some_and(|pairs| pairs.binary_search(&(lid, switch)).is_err()) {
                continue;
            }
            let Some(left) = self.left.checked_sub(1) else { return false };
            self.left = left;
            let flow = self.flows[usize::from(switch)];
            let hops = self.hops.row(home);
            list_candidates(self.topology, hops, &ways, switch, &mut self.candidates);
            let Some(old) = self.way(switch, None, lid, home, lfts) else { continue };
            let lft = &lfts[usize::from(switch)];
            let (first, count) = stream.siblings;
            let first = first.index();
            let on = |port: u8| {
                lft[first..][..usize::from(count)].iter().filter(|&&other| other == port).count()
            };
            // As many ports as before are to have some of them.
            let is_shared = count > 1 && on(lft[lid.index()]) > 1;
            let fits = |candidate: &&Candidate| {
                self.loads[candidate.link as usize] + flow < limit
                    && (count == 1 || is_shared || on(candidate.port) == 0)
            };
            let ways = self.candidates.iter().filter(fits).filter_map(|candidate| {
                let way = self.way(switch, Some(candidate), lid, home, lfts)?;
                let fuller = way.iter().filter(|link| !old.contains(link));
                let most = fuller.map(|&link| self.loads[link] + flow).max()?;
                (most < limit && !way.contains(&link)).then_some((most, candidate.port, way))
            });
            let Some((_, port, new)) = ways.min_by_key(|(most, port, _)| (*most, *port)) else {
                continue;
            };
            self.shift(flow, &old, &new);
            lfts[usize::from(switch)][lid.index()] = port;
            return true;
        }
        false
    }

    /// The links on the way from a switch to a home, the first of them another if told so.
    fn way(
        &self,
        switch: u16,
        first: Option<&Candidate>,
        lid: Lid,
        home: u16,
        lfts: &[Entries],
    ) -> Option<Vec<usize>> {
        let mut way: Vec<usize> = first.iter().map(|first| first.link as usize).collect();
        let mut at = first.map_or(switch, |first| first.peer);
        while at != home {
            let number = self.topology.link_at(at, lfts[usize::from(at)][lid.index()])?;
            way.push(number);
            at = self.topology.link(number).peer;
            if way.len() > usize::from(HopMatrix::HOPS_MAX) {
                return None;
            }
        }
        Some(way)
    }
}

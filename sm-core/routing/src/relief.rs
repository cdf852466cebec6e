//! Moves routes away from the most loaded links.
//!
//! Engines choose paths one after the other, so the last ones have little choice. When a link comes
//! back, filling it is not sufficient either: routes that moved away while it was down still load
//! links that others need. Each step moves one route from the most loaded link to a path on which
//! no link becomes as loaded. At each step the largest load falls, or fewer links have it, so the
//! process ends; its cost is limited as well ([`Effort`]).

mod fill;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ib_mad::types::Lid;

use super::deal::{Candidate, Dealt, Draft, PathRules, list_candidates};
use super::upstream::Upstream;
use super::{CommonOptions, Destination, Entries, HopMatrix, Topology};

/// Ratio of the largest load to its lower bound at which moving routes stops after a change of the
/// fabric. The last percent would move many times as many routes, and each moved route is a
/// forwarding table block that has to be written to a switch.
const GOOD_ENOUGH: f64 = 1.01;
/// As [`GOOD_ENOUGH`], for tables computed from scratch: all blocks are written in any case, so
/// moving stops only at the lower bound itself.
const OPTIMAL: f64 = 1.0;

// The limits below count searches ([`Effort::searches`]): a search looks on one switch for another
// egress port for one LID. It took 0.4 to 1.2 µs at 216 to 2,016 switches, more where paths are
// long. Measurements behind the limits: docs/benchmarks.md, "Limits of moving routes".

/// Limit of searches after routes were lost: few, as hosts are cut off until the new routes are
/// written. Measured: 2 to 3 ms on a torus of 2,016 switches.
const SEARCHES_FOR_LOST_ROUTES: usize = 1_500;
/// Limit of searches for tables computed from scratch. Balance is the goal here, and the engine
/// takes longer. Measured on a torus of 216 switches: twice as many lower the worst link by another
/// 2 % only, and without a limit the search ends after 159,000. Fat trees need none.
const SEARCHES_FOR_NEW_TABLES: usize = 60_000;
/// Largest limit of searches after links or LIDs came. No traffic waits for these, so more searches
/// are allowed than for new tables. Measured on a fat tree of 1,620 switches, when two cables come
/// back: 116,000 searches until the worst link is within [`GOOD_ENOUGH`].
const SEARCHES_AFTER_GAIN_MAX: usize = 200_000;
/// Limit of searches times switches after links or LIDs came. A search takes longer in a larger
/// fabric (paths are longer, more switches are upstream), so this bounds the time. It is less than
/// [`SEARCHES_AFTER_GAIN_MAX`] above 2,000 switches. Measured there: 0.12 s, while a
/// million searches take 1 s.
const WORK_AFTER_GAIN: usize = 400_000_000;
/// Limit of searches times switches to rebalance after a loss, where routing from scratch for
/// comparison would take too long. Smaller than after a gain, as new routes are written only after
/// it ends. It is less than [`SEARCHES_FOR_NEW_TABLES`] above 500 switches. Measured at 2,016
/// switches: 7 to 8 ms of a rerouting of 0.11 s.
const WORK_AFTER_LOSS: usize = 30_000_000;
/// Number of switches whose entry for one LID is followed in the time of one search.
const SWITCHES_TRACED_PER_SEARCH: usize = 64;

/// Number of links on which relief may fail before the run ends: few after a loss, as time is
/// short; many where tables that miss their goal are discarded together with all kept routes.
mod failed_links_max {
    pub(super) const LOST_ROUTES: usize = 2;
    pub(super) const NEW_TABLES: usize = 4;
    pub(super) const REBALANCE: usize = 4;
    pub(super) const GAIN: usize = 8;
    pub(super) const REACH_GOAL: usize = 64;
}

/// Limits of one run. They affect only how well routes are balanced, never whether tables are
/// correct.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Limit of searches of one switch for another egress port for one LID.
    searches: usize,
    /// Number of links that cannot be relieved before the run ends.
    failed_links_max: usize,
    /// Ratio of the largest load to its lower bound at which the run ends.
    floor_ratio: f64,
}

impl Effort {
    /// Effort after routes were lost, when new routes must be in force soon.
    pub(super) const AFTER_LOSS: Self = Self {
        searches: SEARCHES_FOR_LOST_ROUTES,
        failed_links_max: failed_links_max::LOST_ROUTES,
        floor_ratio: GOOD_ENOUGH,
    };
    /// Effort where kept tables must be as good as tables already computed from scratch, which
    /// replace them otherwise.
    pub(super) const REACH_GOAL: Self = Self {
        searches: SEARCHES_FOR_NEW_TABLES,
        failed_links_max: failed_links_max::REACH_GOAL,
        floor_ratio: OPTIMAL,
    };
    /// Effort for tables computed from scratch.
    pub(super) const NEW_TABLES: Self = Self {
        searches: SEARCHES_FOR_NEW_TABLES,
        failed_links_max: failed_links_max::NEW_TABLES,
        floor_ratio: OPTIMAL,
    };

    /// Effort after links or LIDs came. The larger the fabric, the fewer searches.
    pub(super) fn after_gain(topology: &Topology) -> Self {
        let searches = WORK_AFTER_GAIN / topology.switch_count().max(1);
        Self {
            searches: searches.min(SEARCHES_AFTER_GAIN_MAX),
            failed_links_max: failed_links_max::GAIN,
            floor_ratio: GOOD_ENOUGH,
        }
    }

    /// Effort after a loss that leaves links more loaded than necessary, in a fabric that is too
    /// large to be routed from scratch for comparison. The larger the fabric, the fewer searches.
    pub(super) fn rebalance(topology: &Topology) -> Self {
        let searches = WORK_AFTER_LOSS / topology.switch_count().max(1);
        Self {
            searches: searches.min(SEARCHES_FOR_NEW_TABLES),
            failed_links_max: failed_links_max::REBALANCE,
            floor_ratio: GOOD_ENOUGH,
        }
    }
}

/// The traffic of all hosts to one LID, or to several that take the same paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Its column in the tables.
    pub(super) lid: Lid,
    /// The egress switch.
    pub(super) egress_switch: u16,
    /// Number of LIDs that it represents.
    pub(super) weight: u32,
    /// The first LID of the same host and the number of its LIDs, which should take different
    /// paths.
    pub(super) siblings: (Lid, u16),
}

/// Returns one stream for each LID of a host.
pub(super) fn streams_to_hosts(topology: &Topology) -> Vec<Stream> {
    let hosts = topology.destinations().iter().filter(|destination| destination.is_host());
    let stream = |lid, to: &Destination| Stream {
        lid,
        egress_switch: to.egress_switch,
        weight: 1,
        siblings: (to.base_lid, to.lid_count),
    };
    hosts.flat_map(|to| to.lids().map(move |lid| stream(lid, to))).collect()
}

/// Moves routes of dealt tables away from the most loaded links, for paths by hops alone. The other
/// arguments are those of [`deal`](super::deal::deal).
pub(super) fn relieve_draft<W: PathRules>(
    draft: Draft,
    topology: &Topology,
    common: &CommonOptions,
    hops: &HopMatrix,
    path_rules: impl Fn(u16) -> W,
) -> Dealt {
    let mut dealt = draft.keep();
    // Narrowed candidates all lead to one switch, and its cables have already been used in
    // turn.
    if !W::NARROWS && !dealt.loads.is_empty() {
        let loads = std::mem::take(&mut dealt.loads);
        dealt.loads = relieve_all(topology, common, hops, path_rules, loads, &mut dealt.lfts);
    }
    dealt
}

/// Balances tables that were computed from scratch. Tables that follow operators' port orders or
/// ignored links stay unchanged. `hops` has a row per egress switch; `loads` is by link, of hosts'
/// routes to hosts' LIDs. Returns the resulting loads.
pub(super) fn relieve_all<W: PathRules>(
    topology: &Topology,
    common: &CommonOptions,
    hops: &HopMatrix,
    path_rules: impl Fn(u16) -> W,
    loads: Vec<u32>,
    lfts: &mut [Entries],
) -> Vec<u32> {
    if !common.port_orders.is_empty() || !common.ignored_links.is_empty() {
        return loads;
    }
    let streams = streams_to_hosts(topology);
    Relief::new(topology, hops, path_rules, loads, streams).run(lfts, None, Effort::NEW_TABLES, 0)
}

/// Cost of finding the sources of one LID, in searches.
fn trace_cost(topology: &Topology) -> usize {
    1 + topology.switch_count() / SWITCHES_TRACED_PER_SEARCH
}

/// Tables' loads and sources, and the scratch space for moving routes.
pub(super) struct Relief<'a, F> {
    topology: &'a Topology,
    /// One row per egress switch.
    hops: &'a HopMatrix,
    path_rules: F,
    /// Routes of hosts to hosts' LIDs, by link.
    loads: Vec<u32>,
    hosts: Vec<u32>,
    streams: Vec<Stream>,
    /// By link: index of the stream to start with.
    next: Vec<u32>,
    /// Switches whose routes to the current LID may be moved, nearest to the egress switch first.
    sources: Vec<u16>,
    /// By switch in `sources`: number of hosts on or behind it that send to the current LID.
    flows: Vec<u32>,
    /// By switch: whether its route to the current LID uses the current link.
    passes: Vec<bool>,
    upstream: Upstream,
    candidates: Vec<Candidate>,
    /// LIDs and switches whose routes may be moved, sorted; `None`: all.
    movable: Option<Vec<(Lid, u16)>>,
    /// Links by load. The load may be outdated if it has fallen since. Abandoned links are absent.
    heap: BinaryHeap<(u32, Reverse<usize>)>,
    /// Searches that remain of [`Effort::searches`].
    searches_left: usize,
}

impl<'a, W: PathRules, F: Fn(u16) -> W> Relief<'a, F> {
    /// `loads` is by link, of hosts' routes to hosts' LIDs.
    pub(super) fn new(
        topology: &'a Topology,
        hops: &'a HopMatrix,
        path_rules: F,
        loads: Vec<u32>,
        streams: Vec<Stream>,
    ) -> Self {
        Self {
            topology,
            hops,
            path_rules,
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
            searches_left: 0,
        }
    }

    /// Moves routes until no move helps, until no link has more routes than `goal`, or until
    /// `effort` is spent. With `movable`, only routes of these LIDs at these switches move. Returns
    /// the loads by link.
    pub(super) fn run(
        mut self,
        lfts: &mut [Entries],
        movable: Option<Vec<(Lid, u16)>>,
        effort: Effort,
        goal: u32,
    ) -> Vec<u32> {
        self.movable = movable;
        self.movable.iter_mut().for_each(|pairs| pairs.sort_unstable());
        self.searches_left = effort.searches;
        let senders = self
            .topology
            .switches()
            .flat_map(|switch| self.topology.link_range(switch).map(move |_| switch));
        let senders: Vec<u16> = senders.collect();
        let loads = self.loads.iter().zip(0..).filter(|&(&load, _)| load > 0);
        self.heap = loads.map(|(&load, link)| (load, Reverse(link))).collect();
        let target = goal.max((f64::from(self.floor()) * effort.floor_ratio) as u32);
        let mut failed_links = 0;
        while self.searches_left > 0 && failed_links < effort.failed_links_max {
            let Some((load, Reverse(link))) = self.heap.pop() else { break };
            let now = self.loads[link];
            if now < load {
                self.heap.push((now, Reverse(link)));
            } else if now == load {
                if now <= target {
                    break;
                }
                if self.relieve(senders[link], link, lfts) {
                    self.heap.push((self.loads[link], Reverse(link)));
                } else {
                    failed_links += 1;
                }
            }
        }
        self.loads
    }

    /// Moves the load of a flow from the links of one path to those of another.
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

    /// Lower bound of the largest load: all routes between a switch's hosts and the rest of the
    /// fabric share the switch's links, in each direction.
    fn floor(&self) -> u32 {
        let mut lids_on = vec![0u64; self.hosts.len()];
        for stream in &self.streams {
            lids_on[usize::from(stream.egress_switch)] += u64::from(stream.weight);
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

    /// Moves a route away from a link, if possible.
    fn relieve(&mut self, sender: u16, link: usize, lfts: &mut [Entries]) -> bool {
        let port = self.topology.link(link).port;
        // Streams before this one could not be moved, and most still cannot.
        let (first, count) = (self.next[link] as usize, self.streams.len());
        for place in (first..count).chain(0..first) {
            let stream = self.streams[place];
            if self.searches_left > 0
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

    /// Finds the switches whose routes to a LID pass the sender, and the hosts behind each. Returns
    /// whether there are any.
    fn trace(&mut self, sender: u16, stream: Stream, lfts: &[Entries]) -> bool {
        let Stream { lid, egress_switch, weight, .. } = stream;
        self.searches_left = self.searches_left.saturating_sub(trace_cost(self.topology));
        let row = self.hops.row(egress_switch);
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

    /// Changes the entry of one of the sources: the nearest to the link that has another path on
    /// which no link becomes as loaded.
    fn move_one(&mut self, link: usize, stream: Stream, lfts: &mut [Entries]) -> bool {
        let Stream { lid, egress_switch, .. } = stream;
        let path_rules = (self.path_rules)(egress_switch);
        let limit = self.loads[link];
        for place in 0..self.sources.len() {
            let switch = self.sources[place];
            let movable = self.movable.as_ref();
            if movable.is_some_and(|pairs| pairs.binary_search(&(lid, switch)).is_err()) {
                continue;
            }
            let Some(left) = self.searches_left.checked_sub(1) else { return false };
            self.searches_left = left;
            let flow = self.flows[usize::from(switch)];
            let hops = self.hops.row(egress_switch);
            list_candidates(self.topology, hops, &path_rules, switch, &mut self.candidates);
            let Some(old) = self.path(switch, None, lid, egress_switch, lfts) else { continue };
            let lft = &lfts[usize::from(switch)];
            let (first, count) = stream.siblings;
            let first = first.index();
            let on = |port: u8| {
                lft[first..][..usize::from(count)].iter().filter(|&&other| other == port).count()
            };
            // The host's LIDs must not share fewer ports than before.
            let is_shared = count > 1 && on(lft[lid.index()]) > 1;
            let fits = |candidate: &&Candidate| {
                self.loads[candidate.link as usize] + flow < limit
                    && (count == 1 || is_shared || on(candidate.port) == 0)
            };
            let paths = self.candidates.iter().filter(fits).filter_map(|candidate| {
                let path = self.path(switch, Some(candidate), lid, egress_switch, lfts)?;
                let fuller = path.iter().filter(|link| !old.contains(link));
                let most = fuller.map(|&link| self.loads[link] + flow).max()?;
                (most < limit && !path.contains(&link)).then_some((most, candidate.port, path))
            });
            let Some((_, port, new)) = paths.min_by_key(|(most, port, _)| (*most, *port)) else {
                continue;
            };
            self.shift(flow, &old, &new);
            lfts[usize::from(switch)][lid.index()] = port;
            return true;
        }
        false
    }

    /// The links of the path from a switch to the egress switch, by `first` if given.
    fn path(
        &self,
        switch: u16,
        first: Option<&Candidate>,
        lid: Lid,
        egress_switch: u16,
        lfts: &[Entries],
    ) -> Option<Vec<usize>> {
        let mut path: Vec<usize> = first.iter().map(|first| first.link as usize).collect();
        let mut at = first.map_or(switch, |first| first.peer);
        while at != egress_switch {
            let number = self.topology.link_at(at, lfts[usize::from(at)][lid.index()])?;
            path.push(number);
            at = self.topology.link(number).peer;
            if path.len() > usize::from(HopMatrix::HOPS_MAX) {
                return None;
            }
        }
        Some(path)
    }
}

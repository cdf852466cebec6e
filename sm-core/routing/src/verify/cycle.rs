//! Searches for credit loops: cycles of links whose buffers wait for each other, which can
//! deadlock.
//!
//! A packet holds buffer space of the link it arrived on while it waits for space of the next link.
//! Routes never deadlock if these dependencies have no cycle (Dally, Seitz 1987). Lanes have
//! separate buffers: routes on different lanes do not wait for each other.

use rayon::prelude::*;

use super::super::lanes::{Lanes, Layers};
use super::super::{Routing, Topology};
use super::columns::{self, Column, sources};
use super::hop_lanes::{self, Torus};
use super::loops::{CreditLoops, Traffic};
use super::onward::{self, Onward, Ports};

/// Searches for cycles in a routing with its lanes: in hosts' traffic, if routes keep to lanes,
/// otherwise as [`credit_loops`] does. Takes time proportional to switches times LIDs times lanes.
pub fn credit_loops_on_lanes(topology: &Topology, routing: &Routing) -> CreditLoops {
    let layers = match &routing.lanes {
        Lanes::Free => return credit_loops(topology, &routing.tables()),
        Lanes::Torus(lanes) => {
            return hop_lanes::credit_loops(topology, &routing.tables(), &Torus::new(lanes));
        }
        Lanes::Dragonfly(lanes) => {
            return hop_lanes::credit_loops(topology, &routing.tables(), &**lanes);
        }
        Lanes::Layers(layers) => layers,
    };
    let by_lane = Dependencies::of_layers(topology, &routing.tables(), layers, None);
    loops_by_lane(topology, &by_lane)
}

/// Searches for cycles in hosts' traffic if each request is replied to on its own SL, as Linux
/// replies: the route back counts on the lanes of the SL there, besides those of its own. `None`
/// if that adds no lane to any route. On tori and dragonflies, replies use no other lanes.
pub fn credit_loops_with_replies(
    topology: &Topology,
    lfts: &[&[u8]],
    lanes: &Lanes,
) -> Option<CreditLoops> {
    let Lanes::Layers(layers) = lanes else { return None };
    let replies = ReplyLayers::new(topology, layers)?;
    let by_lane = Dependencies::of_layers(topology, lfts, layers, Some(&replies));
    Some(loops_by_lane(topology, &by_lane))
}

/// The layers on which the hosts of a switch reply to those of another: those of the requests.
pub(super) struct ReplyLayers {
    switches: usize,
    /// By replying switch and requesting switch: layers as bits.
    of: Vec<u16>,
}

impl ReplyLayers {
    /// `None` if each route has only the layer that replies on it have.
    fn new(topology: &Topology, layers: &Layers) -> Option<Self> {
        let switches = topology.switch_count();
        let mut of = vec![0u16; switches * switches];
        let hosts = || topology.destinations().iter().filter(|to| to.is_host());
        let sources = sources(topology);
        for host in hosts() {
            let replying = usize::from(host.egress_switch);
            for &source in &sources {
                let place = &mut of[replying * switches + usize::from(source)];
                for lid in host.lids() {
                    *place |= bit(layers.layer(source, host.egress_switch, lid));
                }
            }
        }
        let this = Self { switches, of };
        let differs = hosts().any(|host| {
            sources.iter().any(|&source| {
                let replies = this.layers(source, host.egress_switch);
                host.lids().any(|lid| {
                    let own = bit(layers.layer(source, host.egress_switch, lid));
                    replies & !own != 0
                })
            })
        });
        differs.then_some(this)
    }

    /// Layers, as bits, of replies from hosts of `source` to hosts of `egress_switch`.
    fn layers(&self, source: u16, egress_switch: u16) -> u16 {
        self.of[usize::from(source) * self.switches + usize::from(egress_switch)]
    }
}

/// The bit of a layer; there are at most 16.
fn bit(layer: u8) -> u16 {
    1 << (layer % 16)
}

/// Searches for cycles lane by lane.
pub(super) fn loops_by_lane(topology: &Topology, by_lane: &[Dependencies]) -> CreditLoops {
    let mut found = Dependencies::none(topology).find_loops(topology, Traffic::Hosts);
    for (dependencies, lane) in by_lane.iter().zip(0u8..) {
        let loops = dependencies.find_loops(topology, Traffic::Hosts);
        found.dependencies += loops.dependencies;
        if found.is_free() && !loops.is_free() {
            (found.example, found.lane) = (loops.example, Some(lane));
        }
        found.looping += loops.looping;
        found.lanes = lane + 1;
    }
    found
}

/// Searches for cycles among the dependencies of all traffic, which is cheap. If there are any,
/// searches again for traffic to hosts only, and then for traffic between hosts only. `lfts` is by
/// switch, as returned by [`Routing::tables`](crate::Routing::tables).
pub fn credit_loops(topology: &Topology, lfts: &[&[u8]]) -> CreditLoops {
    dependencies(topology, lfts).1
}

/// Returns the result of [`credit_loops`], with the dependencies of that traffic.
pub(super) fn dependencies(topology: &Topology, lfts: &[&[u8]]) -> (Dependencies, CreditLoops) {
    let onward = onward::look(topology, lfts);
    let all = Dependencies { next: onward.iter().map(Onward::of_all).collect() };
    let loops = all.find_loops(topology, Traffic::All);
    if loops.is_free() {
        return (all, loops);
    }
    let to_hosts = Dependencies { next: onward.iter().map(|onward| onward.to_hosts).collect() };
    let loops = to_hosts.find_loops(topology, Traffic::ToHosts);
    if loops.is_free() {
        return (to_hosts, loops);
    }
    let of_hosts = Dependencies::of_hosts(topology, lfts);
    let loops = of_hosts.find_loops(topology, Traffic::Hosts);
    (of_hosts, loops)
}

/// Follows a route up to a switch that was `seen` before. Its further dependencies were added then,
/// except for that of the link by which this route arrives.
fn follow(column: &Column<'_>, source: u16, next: &mut [Ports], seen: &mut [bool]) {
    let mut switch = source;
    while let Some((number, link)) = column.next(switch) {
        if std::mem::replace(&mut seen[usize::from(switch)], true) {
            break;
        }
        switch = link.peer;
        if let Some((_, on)) = column.next(switch) {
            next[number][usize::from(on.port / 64)] |= 1 << (on.port % 64);
        }
    }
}

/// Adds the ports of `b` to those of `a`, by link.
fn join(a: &mut [Ports], b: Vec<Ports>) {
    for (a, b) in a.iter_mut().zip(b) {
        a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
    }
}

/// By link: the ports by which packets that arrived over it continue from its far end.
pub(super) struct Dependencies {
    pub(super) next: Vec<Ports>,
}

impl Dependencies {
    /// Collects the dependencies of traffic between hosts.
    pub(super) fn of_hosts(topology: &Topology, lfts: &[&[u8]]) -> Self {
        let sources = sources(topology);
        let targets = columns::targets(topology, lfts, None);
        let none = || vec![Ports::default(); topology.link_count()];
        let portions = targets.par_chunks(columns::PORTION);
        let next = portions.fold(none, |mut next, targets| {
            let mut seen = vec![false; topology.switch_count()];
            columns::each(topology, lfts, targets, |column| {
                seen.fill(false);
                sources.iter().for_each(|&source| follow(&column, source, &mut next, &mut seen));
            });
            next
        });
        let next = next.reduce(none, |mut a, b| {
            join(&mut a, b);
            a
        });
        Self { next }
    }

    /// Creates a graph without dependencies.
    fn none(topology: &Topology) -> Self {
        Self { next: vec![Ports::default(); topology.link_count()] }
    }

    /// Collects the dependencies of traffic between hosts, by layer, with those of replies if
    /// given.
    pub(super) fn of_layers(
        topology: &Topology,
        lfts: &[&[u8]],
        layers: &Layers,
        replies: Option<&ReplyLayers>,
    ) -> Vec<Self> {
        let sources = sources(topology);
        let highest = sources.iter().flat_map(|&source| layers.row(source)).max();
        let count = usize::from(highest.copied().unwrap_or(0)) + 1;
        let switches = topology.switch_count();
        let none = || vec![vec![Ports::default(); topology.link_count()]; count];
        let targets = columns::targets(topology, lfts, Some(layers));
        let portions = targets.par_chunks(columns::PORTION);
        let next = portions.fold(none, |mut next, targets| {
            let mut seen = vec![false; switches * count];
            columns::each(topology, lfts, targets, |column| {
                seen.fill(false);
                for &source in &sources {
                    let egress_switch = column.to.egress_switch;
                    let own = layers.layer(source, egress_switch, column.to.lid);
                    let others = replies.map_or(0, |replies| replies.layers(source, egress_switch));
                    let mut left = bit(own) | others;
                    while left != 0 {
                        let layer = left.trailing_zeros() as usize;
                        left &= left - 1;
                        follow(&column, source, &mut next[layer], &mut seen[layer * switches..]);
                    }
                }
            });
            next
        });
        let next = next.reduce(none, |mut a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| join(a, b));
            a
        });
        next.into_iter().map(|next| Self { next }).collect()
    }

    /// The links on which packets from a link continue.
    pub(super) fn after(&self, topology: &Topology, link: usize) -> impl Iterator<Item = usize> {
        let far = topology.link(link).peer;
        let words = self.next[link].into_iter().zip((0u8..).step_by(64));
        let ports = words.flat_map(|(mut word, first)| {
            std::iter::from_fn(move || {
                let port = (word != 0).then(|| first + word.trailing_zeros() as u8);
                word &= word.wrapping_sub(1);
                port
            })
        });
        ports.filter_map(move |port| topology.link_at(far, port))
    }

    /// Removes links without predecessors until none is left but cycles and links behind them
    /// (Kahn's algorithm).
    fn find_loops(&self, topology: &Topology, traffic: Traffic) -> CreditLoops {
        let links = topology.link_count();
        let mut waiting = vec![0u32; links];
        let mut dependencies = 0;
        for link in 0..links {
            for next in self.after(topology, link) {
                waiting[next] += 1;
                dependencies += 1;
            }
        }
        let mut ready: Vec<usize> = (0..links).filter(|&link| waiting[link] == 0).collect();
        let mut looping = links;
        while let Some(link) = ready.pop() {
            looping -= 1;
            for next in self.after(topology, link) {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(next);
                }
            }
        }
        let example = if looping == 0 { Vec::new() } else { self.example(topology, &waiting) };
        CreditLoops { traffic, links, dependencies, looping, example, lane: None, lanes: 1 }
    }

    /// Finds a cycle among links that still have predecessors. As each has a predecessor among
    /// them, going back from one leads into a cycle.
    fn example(&self, topology: &Topology, waiting: &[u32]) -> Vec<(u16, u8)> {
        let mut before = vec![usize::MAX; waiting.len()];
        let left = (0..waiting.len()).filter(|&link| waiting[link] > 0);
        for link in left.clone() {
            for next in self.after(topology, link) {
                before[next] = link;
            }
        }
        let Some(mut link) = left.clone().next() else { return Vec::new() };
        let mut place = vec![usize::MAX; waiting.len()];
        let mut path = Vec::new();
        while link != usize::MAX && place[link] == usize::MAX {
            place[link] = path.len();
            path.push(link);
            link = before[link];
        }
        let start = if link == usize::MAX { 0 } else { place[link] };
        let hop = |&link: &usize| {
            // The sender's port is the far end's peer.
            let far = topology.link(link);
            let back = topology.link_at(far.peer, far.peer_port);
            back.map(|back| (topology.link(back).peer, far.port))
        };
        path[start..].iter().rev().filter_map(hop).collect()
    }
}

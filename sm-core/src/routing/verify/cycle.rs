//! Cycles of links whose buffers wait for each other: credit loops, which can deadlock.
//!
//! A packet holds buffer space of the link it came by while it waits for space of the link it goes
//! on by. Routes never deadlock if these dependencies have no cycle (Dally, Seitz 1987). Lanes have
//! buffers of their own: routes that keep to different ones do not wait for each other.

use std::fmt;

use rayon::prelude::*;

use super::super::lanes::{Lanes, Layers};
use super::super::{Routing, Topology};
use super::columns::{self, Column};
use super::hop_lanes;
use super::onward::{self, Onward, Ports};

/// Whose packets dependencies were counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// From every switch to every LID: free of loops then means free of loops whatever happens.
    All,
    /// From every switch to hosts' LIDs, which is all traffic between hosts and more: free of loops
    /// for hosts whatever happens, while routes to switches' own LIDs have some.
    ToHosts,
    /// Between hosts only. Routes from and to switches' own LIDs turn where no route between hosts
    /// does: that to a core switch of a fat tree may come down and go up again.
    Hosts,
}

/// What was found about credit loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditLoops {
    /// The traffic that was looked at.
    pub traffic: Traffic,
    /// Links between switches, each direction by itself.
    pub links: usize,
    /// Pairs of links of which one waits for the other.
    pub dependencies: u64,
    /// Links that lie on cycles or behind them, once a lane; 0 means that no deadlock can happen.
    pub looping: usize,
    /// A cycle, as switches and the ports they send by, if there is any.
    pub example: Vec<(u16, u8)>,
    /// The virtual lane of that cycle, or of its first hop; `None` if all traffic was taken to use
    /// one.
    pub lane: Option<u8>,
    /// How many lanes routes were found on.
    pub lanes: u8,
}

impl CreditLoops {
    /// Whether no deadlock can happen.
    pub fn is_free(&self) -> bool {
        self.looping == 0
    }
}

impl fmt::Display for CreditLoops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { traffic, links, dependencies, looping, .. } = self;
        let traffic = match traffic {
            Traffic::All => "all traffic",
            Traffic::ToHosts => "traffic to hosts",
            Traffic::Hosts => "traffic between hosts",
        };
        if self.is_free() {
            return write!(f, "no credit loops for {traffic}: {dependencies} dependencies");
        }
        write!(f, "credit loops for {traffic} on up to {looping} of {links} links, for one ")?;
        let hops = self.example.iter().map(|(switch, port)| format!("{switch}[{port}]"));
        f.write_str(&hops.collect::<Vec<_>>().join(" > "))?;
        self.lane.map_or(Ok(()), |lane| write!(f, " on VL {lane}"))
    }
}

/// Looks for cycles in a routing with its lanes: of hosts' traffic, if routes keep to lanes, and
/// else as [`credit_loops`] does. Takes time in proportion to switches times LIDs, times lanes.
pub fn credit_loops_on_lanes(topology: &Topology, routing: &Routing) -> CreditLoops {
    let layers = match &routing.lanes {
        Lanes::Free => return credit_loops(topology, &routing.tables()),
        Lanes::Torus(lanes) => return hop_lanes::credit_loops(topology, &routing.tables(), lanes),
        Lanes::Layers(layers) => layers,
    };
    loops_by_lane(topology, &Dependencies::of_layers(topology, &routing.tables(), layers))
}

/// Looks for cycles lane by lane.
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

/// Looks for cycles among the dependencies of all traffic, which is cheap to find out; if there are
/// some, among those of all traffic to hosts, and at last of that which hosts send. `lfts` are the
/// tables by switch, such as [`Routing::tables`](crate::routing::Routing::tables).
pub fn credit_loops(topology: &Topology, lfts: &[&[u8]]) -> CreditLoops {
    dependencies(topology, lfts).1
}

/// What [`credit_loops`] tells of, with the dependencies of that traffic.
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

/// Switches with hosts.
pub(super) fn sources(topology: &Topology) -> Vec<u16> {
    let hosts = topology.hosts_on();
    topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0).collect()
}

/// Follows a route up to a switch that was `seen` before: whoever was there has told of the rest of
/// the way, if not of how we came there.
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

/// By link: the ports by which packets that came over it go on from its far end.
pub(super) struct Dependencies {
    pub(super) next: Vec<Ports>,
}

impl Dependencies {
    /// Those between hosts.
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

    /// Nothing waits.
    fn none(topology: &Topology) -> Self {
        Self { next: vec![Ports::default(); topology.link_count()] }
    }

    /// Those between hosts, by layer.
    pub(super) fn of_layers(topology: &Topology, lfts: &[&[u8]], layers: &Layers) -> Vec<Self> {
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
                    let layer = usize::from(layers.layer(source, column.to.home, column.to.lid));
                    follow(&column, source, &mut next[layer], &mut seen[layer * switches..]);
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

    /// The links that packets from a link go on to.
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

    /// Takes links away on which nothing waits, until none is left or only cycles and what lies
    /// behind them (Kahn's algorithm).
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

    /// A cycle among links that something still waits on. Each of them is waited on by another of
    /// them, so that going back from one comes round.
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

//! The search for the least loaded of the shortest ways to one LID, level by level.
//!
//! A link costs its load squared. With the load itself, a way with one crowded link would be as
//! good as one with two at half its load; squares keep the worst links lower (torus 6x6x6 with two
//! hosts a switch: 966 routes instead of 1,036, random graphs 5 % less, fat trees the same).

use ib_mad::types::Lid;

use super::super::deal::Candidate;
use super::super::hops::{First, list_sources};
use super::super::tables::Tables;
use super::super::{Entries, Link, Topology};
use super::distances::ToHome;
use super::order::Group;

/// How much dearer than the cheapest a way may be that takes a lower port, in links of the mean
/// load: what engines try one after the other when lanes are short.
pub(in super::super) const TOLERANCES: [f64; 6] = [0.0, 1.0, 4.0, 16.0, 64.0, f64::INFINITY];

/// Routes LIDs one by one and remembers the load that they put on links.
pub(in super::super) struct Walk<'a> {
    topology: &'a Topology,
    home: u16,
    /// Switches that reach the home, but not itself, the nearest first.
    sources: Vec<u16>,
    /// By place in `sources`: where its candidates end; they begin where those before end.
    ends: Vec<u32>,
    candidates: Vec<Candidate>,
    /// The links of each switch as they are preferred for homes of higher numbers.
    upwards: Vec<u32>,
    /// The same for homes of lower numbers.
    downwards: Vec<u32>,
    /// By link: routes that pass.
    loads: Vec<u32>,
    /// The same when there were none but those to hosts' LIDs; `None` as long as that is so.
    loads_of_hosts: Option<Vec<u32>>,
    total: u64,
    /// Hosts on each switch.
    hosts: Vec<u32>,
    /// By switch: what the way costs that its routes take.
    ahead: Vec<u64>,
    /// By switch: hosts that send through it.
    flows: Vec<u32>,
    /// By switch, for sources: what was chosen.
    steps: Vec<Candidate>,
}

impl<'a> Walk<'a> {
    /// No link has any load.
    pub(in super::super) fn new(topology: &'a Topology) -> Self {
        let switches = topology.switch_count();
        let hosts = topology.hosts_on();
        Self {
            topology,
            home: 0,
            sources: Vec::with_capacity(switches),
            ends: Vec::with_capacity(switches),
            candidates: Vec::new(),
            upwards: (0..topology.link_count() as u32).collect(),
            downwards: (0..topology.link_count() as u32).collect(),
            loads: vec![0; topology.link_count()],
            loads_of_hosts: None,
            total: 0,
            flows: hosts.clone(),
            hosts,
            ahead: vec![0; switches],
            steps: vec![Candidate::default(); switches],
        }
    }

    /// Links of low dimensions are preferred to others, and rings are not closed without need.
    pub(in super::super) fn by_dimensions(topology: &'a Topology) -> Self {
        let upwards = preferred(topology, |link| link.port);
        let downwards = preferred(topology, |link| u8::MAX - link.port);
        Self { upwards, downwards, ..Self::new(topology) }
    }

    /// Turns to a group of LIDs of a home switch.
    pub(in super::super) fn begin(&mut self, distances: &ToHome<'_>, group: &Group) {
        if group.exits.contains(&0) && self.loads_of_hosts.is_none() {
            self.loads_of_hosts = Some(self.loads.clone());
        }
        self.turn_to(distances);
    }

    /// Turns to a home switch.
    pub(in super::super) fn turn_to(&mut self, distances: &ToHome<'_>) {
        self.home = distances.home;
        list_sources(&mut self.sources, distances.levels, First::Nearest);
        self.candidates.clear();
        self.ends.clear();
        for &switch in &self.sources {
            let order = if switch < self.home { &self.upwards } else { &self.downwards };
            for &number in &order[self.topology.link_range(switch)] {
                let Link { peer, port, .. } = self.topology.link(number as usize);
                if distances.is_closer(switch, peer, number as usize) {
                    self.candidates.push(Candidate { link: number, peer, port });
                }
            }
            self.ends.push(self.candidates.len() as u32);
        }
    }

    /// By link: routes of hosts that pass, to hosts' LIDs. These must have been routed first.
    pub(in super::super) fn loads_of_hosts(self) -> Vec<u32> {
        self.loads_of_hosts.unwrap_or(self.loads)
    }

    /// The home switch.
    pub(in super::super) fn home(&self) -> u16 {
        self.home
    }

    /// Switches that the home cannot be reached from.
    pub(in super::super) fn unreached(&self) -> u64 {
        (self.topology.switch_count() - self.sources.len() - 1) as u64
    }

    /// Switches that reach the home, but not itself, each before those that send through it.
    pub(in super::super) fn sources(&self) -> &[u16] {
        &self.sources
    }

    /// Where a source sends the LID routed last.
    #[inline]
    pub(in super::super) fn step(&self, source: u16) -> Candidate {
        self.steps[usize::from(source)]
    }

    /// Routes one more LID of the home by the cheapest ways, or by preferred links whose ways cost
    /// at most `tolerance` links of the mean load more.
    pub(in super::super) fn route(&mut self, tolerance: f64) {
        let tolerance = self.dearer_by(tolerance);
        self.ahead[usize::from(self.home)] = 0;
        let mut first = 0;
        for (&switch, &end) in self.sources.iter().zip(&self.ends) {
            let candidates = &self.candidates[first..end as usize];
            first = end as usize;
            let cost = |candidate: &Candidate| {
                let load = u64::from(self.loads[candidate.link as usize]);
                self.ahead[usize::from(candidate.peer)].saturating_add(load * load)
            };
            let mut chosen = candidates[0];
            let mut least = cost(&chosen);
            for candidate in &candidates[1..] {
                let cost = cost(candidate);
                if cost < least {
                    (chosen, least) = (*candidate, cost);
                }
            }
            if tolerance > 0 {
                let most = least.saturating_add(tolerance);
                let low = candidates.iter().find(|candidate| cost(candidate) <= most);
                chosen = *low.unwrap_or(&chosen);
                least = cost(&chosen);
            }
            self.ahead[usize::from(switch)] = least;
            self.steps[usize::from(switch)] = chosen;
        }
        self.load();
    }

    /// How much more than the cheapest a way may cost, by links of the mean load.
    fn dearer_by(&self, tolerance: f64) -> u64 {
        let mean = self.total as f64 / self.loads.len().max(1) as f64;
        if tolerance.is_infinite() { u64::MAX } else { (mean * mean * tolerance) as u64 }
    }

    /// Takes the routes of a LID of the home from tables.
    pub(in super::super) fn follow(&mut self, lfts: &[Entries], lid: Lid) {
        for &switch in &self.sources {
            let port = lfts[usize::from(switch)][lid.index()];
            let Some(link) = self.topology.link_at(switch, port) else { continue };
            let peer = self.topology.link(link).peer;
            self.steps[usize::from(switch)] = Candidate { link: link as u32, peer, port };
        }
    }

    /// Routes several LIDs of the home by the same ways. As these are not spread over links one by
    /// one, each switch's hosts count before the next switch chooses. `tolerance` is as in
    /// [`Walk::route`].
    pub(in super::super) fn route_together(&mut self, lids: u32, tolerance: f64) {
        let tolerance = self.dearer_by(tolerance);
        let mut first = 0;
        for place in 0..self.sources.len() {
            let (switch, end) = (usize::from(self.sources[place]), self.ends[place] as usize);
            let candidates = &self.candidates[first..end];
            first = end;
            let cost = |candidate: &Candidate| {
                let squared = |link: u32| u64::from(self.loads[link as usize]).pow(2);
                let (mut cost, mut next) = (squared(candidate.link), candidate.peer);
                while next != self.home {
                    let step = self.steps[usize::from(next)];
                    cost = cost.saturating_add(squared(step.link));
                    next = step.peer;
                }
                cost
            };
            let mut chosen = candidates[0];
            if candidates.len() > 1 {
                let least = candidates.iter().map(cost).min().unwrap_or(0);
                let most = least.saturating_add(tolerance);
                chosen = *candidates.iter().find(|c| cost(c) <= most).unwrap_or(&chosen);
            }
            self.steps[switch] = chosen;
            let flow = self.hosts[switch].saturating_mul(lids);
            let mut next = switch as u16;
            while flow > 0 && next != self.home {
                let Candidate { link, peer, .. } = self.steps[usize::from(next)];
                let load = &mut self.loads[link as usize];
                *load = load.saturating_add(flow);
                self.total += u64::from(flow);
                next = peer;
            }
        }
    }

    /// Adds the routes just chosen to the loads.
    fn load(&mut self) {
        for &switch in self.sources.iter().rev() {
            let hosts = self.hosts[usize::from(switch)];
            let flow = std::mem::replace(&mut self.flows[usize::from(switch)], hosts);
            let Candidate { link, peer, .. } = self.steps[usize::from(switch)];
            let load = &mut self.loads[link as usize];
            *load = load.saturating_add(flow);
            self.total += u64::from(flow);
            self.flows[usize::from(peer)] += flow;
        }
        self.flows[usize::from(self.home)] = self.hosts[usize::from(self.home)];
    }

    /// Enters the LID routed last into the tables; `exit` is the home switch's port.
    pub(in super::super) fn enter(&self, tables: &mut Tables, lid: Lid, exit: u8) {
        tables.begin(&[lid]);
        tables.enter(self.home, exit);
        for &switch in &self.sources {
            tables.enter(switch, self.steps[usize::from(switch)].port);
        }
    }
}

/// The links of each switch by the lower of the port numbers at both ends, then by `direction`.
///
/// Where ports are numbered by dimension, the lower port number is that of the dimension. Of two
/// ways round a ring that are equally long, one goes up and the way back goes down, so that
/// neither passes the link that closes the ring: it is passed by fewer routes that could be part
/// of a cycle.
fn preferred(topology: &Topology, direction: impl Fn(&Link) -> u8) -> Vec<u32> {
    let of_switch = |switch| {
        let mut links: Vec<u32> = topology.link_range(switch).map(|link| link as u32).collect();
        links.sort_unstable_by_key(|&link| {
            let link = topology.link(link as usize);
            (link.port.min(link.peer_port), direction(&link), link.port)
        });
        links
    };
    topology.switches().flat_map(of_switch).collect()
}

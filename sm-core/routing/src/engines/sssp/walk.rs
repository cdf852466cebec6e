//! Searches for the least loaded of the shortest paths to one LID, level by level.
//!
//! A link costs its load squared. If it cost its load, a path with one crowded link would be as
//! good as one with two links at half its load; squares keep the worst links lower (torus 6x6x6
//! with two hosts a switch: 966 routes instead of 1,036, random graphs 5 % less, fat trees the
//! same).

use ib_mad::types::Lid;

use super::distances::ToEgressSwitch;
use super::order::Group;
use crate::deal::Candidate;
use crate::hops::{First, list_sources};
use crate::tables::Tables;
use crate::{Entries, Link, Topology};

/// How much more than the cheapest path a path by a lower port may cost, in links of the mean load.
/// Engines try these in turn when lanes are scarce.
pub(crate) const TOLERANCES: [f64; 6] = [0.0, 1.0, 4.0, 16.0, 64.0, f64::INFINITY];

/// Routes LIDs one by one and accumulates the load of links.
pub(crate) struct Walk<'a> {
    topology: &'a Topology,
    egress_switch: u16,
    /// Switches that reach the egress switch, without the egress switch itself, nearest first.
    sources: Vec<u16>,
    /// By index in `sources`: where its candidates end; they start where those of the previous end.
    ends: Vec<u32>,
    candidates: Vec<Candidate>,
    /// The links of each switch in order of preference, for egress switches of higher numbers.
    upwards: Vec<u32>,
    /// As `upwards`, for egress switches of lower numbers.
    downwards: Vec<u32>,
    /// By link: number of routes.
    loads: Vec<u32>,
    /// `loads` when only hosts' LIDs had been routed; `None` as long as that is still so.
    loads_of_hosts: Option<Vec<u32>>,
    total: u64,
    /// Number of hosts per switch.
    hosts: Vec<u32>,
    /// By switch: the cost of the path that its route takes.
    ahead: Vec<u64>,
    /// By switch: number of hosts that send through it.
    flows: Vec<u32>,
    /// By source switch: the chosen next hop.
    steps: Vec<Candidate>,
}

impl<'a> Walk<'a> {
    /// Starts without load on any link.
    pub(crate) fn new(topology: &'a Topology) -> Self {
        let switches = topology.switch_count();
        let hosts = topology.hosts_on();
        Self {
            topology,
            egress_switch: 0,
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

    /// Starts with links of low dimensions preferred, so that rings are not closed unnecessarily.
    pub(crate) fn by_dimensions(topology: &'a Topology) -> Self {
        let upwards = preferred(topology, |link| link.port);
        let downwards = preferred(topology, |link| u8::MAX - link.port);
        Self { upwards, downwards, ..Self::new(topology) }
    }

    /// Starts a group of LIDs of an egress switch.
    pub(crate) fn begin(&mut self, distances: &ToEgressSwitch<'_>, group: &Group) {
        if group.exits.contains(&0) && self.loads_of_hosts.is_none() {
            self.loads_of_hosts = Some(self.loads.clone());
        }
        self.turn_to(distances);
    }

    /// Starts an egress switch.
    pub(crate) fn turn_to(&mut self, distances: &ToEgressSwitch<'_>) {
        self.egress_switch = distances.egress_switch;
        list_sources(&mut self.sources, distances.levels, First::Nearest);
        self.candidates.clear();
        self.ends.clear();
        for &switch in &self.sources {
            let order = if switch < self.egress_switch { &self.upwards } else { &self.downwards };
            for &number in &order[self.topology.link_range(switch)] {
                let Link { peer, port, .. } = self.topology.link(number as usize);
                if distances.is_closer(switch, peer, number as usize) {
                    self.candidates.push(Candidate { link: number, peer, port });
                }
            }
            self.ends.push(self.candidates.len() as u32);
        }
    }

    /// By link: routes from hosts to hosts' LIDs, which must have been routed first.
    pub(crate) fn loads_of_hosts(self) -> Vec<u32> {
        self.loads_of_hosts.unwrap_or(self.loads)
    }

    /// The egress switch.
    pub(crate) fn egress_switch(&self) -> u16 {
        self.egress_switch
    }

    /// Number of switches that cannot reach the egress switch.
    pub(crate) fn unreached(&self) -> u64 {
        (self.topology.switch_count() - self.sources.len() - 1) as u64
    }

    /// Switches that reach the egress switch, without the egress switch itself, each before the
    /// switches that send through it.
    pub(crate) fn sources(&self) -> &[u16] {
        &self.sources
    }

    /// The next hop of a source for the LID routed last.
    #[inline]
    pub(crate) fn step(&self, source: u16) -> Candidate {
        self.steps[usize::from(source)]
    }

    /// Routes one more LID of the egress switch by the cheapest paths, or by preferred links whose
    /// paths cost at most `tolerance` links of the mean load more.
    pub(crate) fn route(&mut self, tolerance: f64) {
        let tolerance = self.dearer_by(tolerance);
        self.ahead[usize::from(self.egress_switch)] = 0;
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

    /// Converts a tolerance, in links of the mean load, to the extra cost that a path may have.
    fn dearer_by(&self, tolerance: f64) -> u64 {
        let mean = self.total as f64 / self.loads.len().max(1) as f64;
        if tolerance.is_infinite() { u64::MAX } else { (mean * mean * tolerance) as u64 }
    }

    /// Adopts the routes of a LID of the egress switch from tables.
    pub(crate) fn follow(&mut self, lfts: &[Entries], lid: Lid) {
        for &switch in &self.sources {
            let port = lfts[usize::from(switch)][lid.index()];
            let Some(link) = self.topology.link_at(switch, port) else { continue };
            let peer = self.topology.link(link).peer;
            self.steps[usize::from(switch)] = Candidate { link: link as u32, peer, port };
        }
    }

    /// Routes several LIDs of the egress switch by the same paths. As these are not spread over
    /// links one by one, each switch's hosts count before the next switch chooses. `tolerance` is
    /// as in [`Walk::route`].
    pub(crate) fn route_together(&mut self, lids: u32, tolerance: f64) {
        let tolerance = self.dearer_by(tolerance);
        let mut first = 0;
        for place in 0..self.sources.len() {
            let (switch, end) = (usize::from(self.sources[place]), self.ends[place] as usize);
            let candidates = &self.candidates[first..end];
            first = end;
            let cost = |candidate: &Candidate| {
                let squared = |link: u32| u64::from(self.loads[link as usize]).pow(2);
                let (mut cost, mut next) = (squared(candidate.link), candidate.peer);
                while next != self.egress_switch {
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
            while flow > 0 && next != self.egress_switch {
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
        self.flows[usize::from(self.egress_switch)] = self.hosts[usize::from(self.egress_switch)];
    }

    /// Writes the LID routed last into the tables; `exit` is the egress switch's port.
    pub(crate) fn enter(&self, tables: &mut Tables, lid: Lid, exit: u8) {
        tables.begin(&[lid]);
        tables.enter(self.egress_switch, exit);
        for &switch in &self.sources {
            tables.enter(switch, self.steps[usize::from(switch)].port);
        }
    }
}

/// Sorts the links of each switch by the lower of the port numbers at both ends, then by
/// `direction`.
///
/// Where ports are numbered by dimension, the lower port number identifies the dimension. Of two
/// equally long paths round a ring, one goes up and its reverse goes down, so that neither uses the
/// link that closes the ring. That link then carries fewer routes that could be part of a cycle.
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

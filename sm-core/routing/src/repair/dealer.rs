//! Computes missing routes, LID by LID.

use ib_mad::types::Lid;

use super::super::deal::{Batch, Candidate, PathRules, list_candidates};
use super::super::hops::{First, list_sources};
use super::super::upstream::Upstream;
use super::super::{Entries, HopMatrix, NO_ROUTE, Topology};
use super::survey::Plan;

/// Fills gaps in forwarding tables.
pub(super) struct Dealer<'a> {
    topology: &'a Topology,
    /// By link: number of routes from hosts to hosts' LIDs.
    loads: Vec<u32>,
    hosts: Vec<u32>,
    /// By switch: the port index at which it continues to distribute LIDs that no host sends
    /// through it.
    idle: Vec<usize>,
    /// Switches that reach the current egress switch, nearest first.
    sources: Vec<u16>,
    /// By switch: number of hosts on or behind it that send to the current LID.
    flows: Vec<u32>,
    /// Switches without a route to the current LID, nearest first.
    gaps: Vec<u16>,
    candidates: Vec<Candidate>,
    upstream: Upstream,
}

impl<'a> Dealer<'a> {
    /// `loads` is by link, of the routes to LIDs that need no new ones.
    pub(super) fn new(topology: &'a Topology, loads: Vec<u32>) -> Self {
        let switches = topology.switch_count();
        Self {
            topology,
            loads,
            hosts: topology.hosts_on(),
            idle: topology.switches().map(usize::from).collect(),
            sources: Vec::with_capacity(switches),
            flows: vec![0; switches],
            gaps: Vec::new(),
            candidates: Vec::new(),
            upstream: Upstream::default(),
        }
    }

    /// Returns the loads of links.
    pub(super) fn finish(self) -> Vec<u32> {
        self.loads
    }

    /// Adds the remaining parts of routes to some LIDs of an egress switch to the loads, each up to
    /// the first gap.
    pub(super) fn load(
        &mut self,
        egress_switch: u16,
        lids: impl Iterator<Item = Lid>,
        hops: &[u8],
        lfts: &[Entries],
    ) {
        list_sources(&mut self.sources, hops, First::Farthest);
        for lid in lids {
            self.flows.copy_from_slice(&self.hosts);
            for &switch in &self.sources {
                let flow = self.flows[usize::from(switch)];
                if flow == 0 {
                    continue;
                }
                let port = lfts[usize::from(switch)][lid.index()];
                let Some(number) = self.topology.link_at(switch, port) else { continue };
                self.loads[number] = self.loads[number].wrapping_add(flow);
                let peer = self.topology.link(number).peer;
                if peer != egress_switch {
                    self.flows[usize::from(peer)] += flow;
                }
            }
        }
    }

    /// Computes the missing routes of a batch. `hops` are to its egress switch.
    pub(super) fn route(
        &mut self,
        batch: &Batch,
        plan: &Plan,
        hops: &[u8],
        path_rules: &impl PathRules,
        lfts: &mut [Entries],
    ) {
        list_sources(&mut self.sources, hops, First::Nearest);
        let mut lost = plan.lost.clone();
        lost.sort_unstable_by_key(|&(place, switch)| (place, hops[usize::from(switch)], switch));
        let mut lost = &lost[..];
        for (place, &lid) in batch.lids.iter().enumerate() {
            let end = lost.partition_point(|pair| usize::from(pair.0) <= place);
            let (of_lid, others) = lost.split_at(end);
            lost = others;
            self.gaps.clear();
            self.flows.fill(0);
            if plan.fresh >> place & 1 == 1 {
                self.gaps.extend_from_slice(&self.sources);
                self.flows.copy_from_slice(&self.hosts);
            } else {
                self.gaps.extend(of_lid.iter().map(|&(_, switch)| switch));
                if place < batch.host_lids {
                    self.find_flows(lid, hops, lfts);
                }
            }
            if self.gaps.is_empty() {
                continue;
            }
            if place < batch.host_lids {
                self.choose(batch.egress_switch, lid, hops, path_rules, lfts);
            } else {
                self.flows.fill(0);
            }
            self.deal_idle(lid, hops, path_rules, lfts);
        }
    }

    /// Counts the hosts whose traffic arrives at each gap, apart from traffic that ends at a gap
    /// before it.
    fn find_flows(&mut self, lid: Lid, hops: &[u8], lfts: &[Entries]) {
        let Self { topology, hosts, upstream, .. } = self;
        for &gap in &self.gaps {
            let port = |switch: u16| lfts[usize::from(switch)][lid.index()];
            upstream.find(topology, hops, hosts, gap, port);
            self.flows[usize::from(gap)] = upstream.flow();
        }
    }

    /// Fills gaps by the least loaded paths. The traffic that arrives at a gap is added to the load
    /// of its path before the next gap is filled, so that gaps avoid each other's paths.
    fn choose(
        &mut self,
        egress_switch: u16,
        lid: Lid,
        hops: &[u8],
        path_rules: &impl PathRules,
        lfts: &mut [Entries],
    ) {
        for place in 0..self.gaps.len() {
            let switch = self.gaps[place];
            list_candidates(self.topology, hops, path_rules, switch, &mut self.candidates);
            let cost = |candidate: &&Candidate| {
                let squared = u64::from(self.loads[candidate.link as usize]).pow(2);
                squared.saturating_add(self.cost(candidate.peer, egress_switch, lid, lfts))
            };
            let chosen = self.candidates.iter().min_by_key(cost);
            let port = chosen.map_or(NO_ROUTE, |chosen| chosen.port);
            lfts[usize::from(switch)][lid.index()] = port;
            let flow = self.flows[usize::from(switch)];
            if flow > 0 {
                self.load_way(switch, flow, egress_switch, lid, lfts);
            }
        }
    }

    /// Adds the traffic that arrives at a switch to the loads of all links on its path.
    fn load_way(&mut self, switch: u16, flow: u32, egress_switch: u16, lid: Lid, lfts: &[Entries]) {
        let mut at = switch;
        for _ in 0..HopMatrix::HOPS_MAX {
            let port = lfts[usize::from(at)][lid.index()];
            let Some(number) = self.topology.link_at(at, port) else { return };
            self.loads[number] = self.loads[number].wrapping_add(flow);
            at = self.topology.link(number).peer;
            if at == egress_switch {
                return;
            }
            self.flows[usize::from(at)] += flow;
        }
    }

    /// The cost of the path that a switch's route takes.
    fn cost(&self, switch: u16, egress_switch: u16, lid: Lid, lfts: &[Entries]) -> u64 {
        let (mut cost, mut at) = (0u64, switch);
        for _ in 0..HopMatrix::HOPS_MAX {
            if at == egress_switch {
                return cost;
            }
            let port = lfts[usize::from(at)][lid.index()];
            let Some(link) = self.topology.link_at(at, port) else { break };
            cost = cost.saturating_add(u64::from(self.loads[link]).pow(2));
            at = self.topology.link(link).peer;
        }
        u64::MAX
    }

    /// Fills gaps that no host sends through, using ports in turn. Hosts may use them after a link
    /// failure elsewhere.
    fn deal_idle(
        &mut self,
        lid: Lid,
        hops: &[u8],
        path_rules: &impl PathRules,
        lfts: &mut [Entries],
    ) {
        for &switch in &self.gaps {
            let index = usize::from(switch);
            if self.flows[index] > 0 {
                continue;
            }
            list_candidates(self.topology, hops, path_rules, switch, &mut self.candidates);
            let turn = self.idle[index] % self.candidates.len().max(1);
            self.idle[index] = turn + 1;
            let chosen = self.candidates.get(turn);
            lfts[index][lid.index()] = chosen.map_or(NO_ROUTE, |chosen| chosen.port);
        }
    }
}

//! Chooses a route to each LID among those found, by load.
//!
//! Each switch takes the link at which the path ahead is loaded least; a link costs its load
//! squared, as in `sssp`. The routes of all hosts then count for the LIDs that follow. Then all
//! LIDs choose once more, with the loads of all others known. LIDs of switches take part in the
//! choice, and do not count, as little is sent to them.

use ib_mad::types::Lid;

use super::paths::Paths;
use crate::engines::sssp::{Group, groups};
use crate::error::DragonflyRefusal;
use crate::hops::{First, list_sources};
use crate::tables::Tables;
use crate::{CommonOptions, Entries, HopMatrix, Topology};

/// How often all LIDs are routed. Further rounds lower the largest load by less than 1 %.
const ROUNDS: usize = 2;

/// Forwarding tables, with what describes them.
pub(super) struct Dealt {
    pub(super) lfts: Vec<Entries>,
    /// Rows are switches, columns egress switches.
    pub(super) hops: HopMatrix,
    pub(super) unreachable: u64,
    /// By link: routes from hosts to hosts' LIDs.
    pub(super) loads: Vec<u32>,
}

/// Routes all LIDs.
pub(super) fn deal(
    topology: &Topology,
    common: &CommonOptions,
    paths: &mut Paths<'_>,
) -> Result<Dealt, DragonflyRefusal> {
    let mut loads = Loads::new(topology);
    let mut dealt = round(topology, common, paths, &mut loads, None)?;
    for _ in 1..ROUNDS {
        dealt = round(topology, common, paths, &mut loads, Some(&dealt.lfts))?;
    }
    Ok(dealt)
}

/// Routes all LIDs once, in place of the routes of `before`, which have been counted.
fn round(
    topology: &Topology,
    common: &CommonOptions,
    paths: &mut Paths<'_>,
    loads: &mut Loads<'_>,
    before: Option<&[Entries]>,
) -> Result<Dealt, DragonflyRefusal> {
    let switches = topology.switch_count();
    let mut hops = HopMatrix::unreachable(switches);
    let mut tables = Tables::new(switches, topology.table_len());
    let mut unreachable = 0;
    for groups in by_egress_switch(topology, common) {
        let egress_switch = groups[0].egress_switch;
        paths.turn_to(egress_switch)?;
        for (switch, &count) in topology.switches().zip(paths.hops()) {
            hops.row_mut(switch)[usize::from(egress_switch)] = count;
        }
        loads.turn_to(paths, egress_switch);
        let missing = switches - 1 - loads.sources.len();
        for (&lid, &exit) in groups.iter().flat_map(|group| group.lids.iter().zip(&group.exits)) {
            unreachable += missing as u64;
            if let Some(before) = before.filter(|_| exit != 0) {
                loads.remove(before, lid, egress_switch);
            }
            loads.route(paths);
            loads.enter(&mut tables, lid, egress_switch, exit);
            if exit != 0 {
                loads.add(egress_switch);
            }
        }
    }
    Ok(Dealt { lfts: tables.finish(), hops, unreachable, loads: loads.loads.clone() })
}

/// All LIDs by egress switch: in the order in which these are routed, hosts' LIDs first.
fn by_egress_switch(topology: &Topology, common: &CommonOptions) -> Vec<Vec<Group>> {
    let mut places = vec![None; topology.switch_count()];
    let mut all: Vec<Vec<Group>> = Vec::new();
    for group in groups(topology, common) {
        let place = &mut places[usize::from(group.egress_switch)];
        match *place {
            Some(place) => all[place as usize].push(group),
            None => {
                *place = Some(all.len() as u32);
                all.push(vec![group]);
            }
        }
    }
    all
}

/// The load of links, and the choice for the current LID.
struct Loads<'a> {
    topology: &'a Topology,
    /// By link: number of routes.
    loads: Vec<u32>,
    /// Number of hosts per switch.
    hosts: Vec<u32>,
    /// Switches that reach the egress switch, nearest first.
    sources: Vec<u16>,
    /// By switch: the cost of the path that its route takes.
    ahead: Vec<u64>,
    /// By switch: the chosen link.
    chosen: Vec<u32>,
    /// By switch: number of hosts that send through it.
    flows: Vec<u32>,
}

impl<'a> Loads<'a> {
    fn new(topology: &'a Topology) -> Self {
        let switches = topology.switch_count();
        Self {
            topology,
            loads: vec![0; topology.link_count()],
            hosts: topology.hosts_on(),
            sources: Vec::with_capacity(switches),
            ahead: vec![0; switches],
            chosen: vec![0; switches],
            flows: vec![0; switches],
        }
    }

    fn turn_to(&mut self, paths: &Paths<'_>, egress_switch: u16) {
        list_sources(&mut self.sources, paths.hops(), First::Nearest);
        self.ahead[usize::from(egress_switch)] = 0;
    }

    fn route(&mut self, paths: &Paths<'_>) {
        for &switch in &self.sources {
            let cost = |link: u32| {
                let load = u64::from(self.loads[link as usize]);
                let peer = self.topology.link(link as usize).peer;
                self.ahead[usize::from(peer)].saturating_add(load * load)
            };
            let costs = paths.links(switch).iter().map(|&link| (cost(link), link));
            // A switch with hops has a link.
            let (cost, link) = costs.min().unwrap_or_default();
            self.ahead[usize::from(switch)] = cost;
            self.chosen[usize::from(switch)] = link;
        }
    }

    fn enter(&self, tables: &mut Tables, lid: Lid, egress_switch: u16, exit: u8) {
        tables.begin(&[lid]);
        tables.enter(egress_switch, exit);
        for &switch in &self.sources {
            let link = self.chosen[usize::from(switch)] as usize;
            tables.enter(switch, self.topology.link(link).port);
        }
    }

    /// Counts the routes chosen.
    fn add(&mut self, egress_switch: u16) {
        self.count(egress_switch, u32::saturating_add);
    }

    /// Counts the routes of tables to a LID no longer.
    fn remove(&mut self, lfts: &[Entries], lid: Lid, egress_switch: u16) {
        for &switch in &self.sources {
            let port = lfts[usize::from(switch)][lid.index()];
            if let Some(link) = self.topology.link_at(switch, port) {
                self.chosen[usize::from(switch)] = link as u32;
            }
        }
        self.count(egress_switch, u32::saturating_sub);
    }

    fn count(&mut self, egress_switch: u16, change: impl Fn(u32, u32) -> u32) {
        self.flows.copy_from_slice(&self.hosts);
        for &switch in self.sources.iter().rev() {
            let flow = self.flows[usize::from(switch)];
            let link = self.chosen[usize::from(switch)] as usize;
            self.loads[link] = change(self.loads[link], flow);
            let peer = self.topology.link(link).peer;
            if peer != egress_switch {
                self.flows[usize::from(peer)] += flow;
            }
        }
    }
}

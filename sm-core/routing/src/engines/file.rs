//! Routes with tables from a file (`lfts_file`), such as another subnet manager's dump.
//!
//! A file is read once ([`Dump::parse`]), resolved to switch numbers of a topology
//! ([`Dump::resolve`]), and passed as its option `lfts`. The engine uses the tables unchanged and
//! adds only the last step, from a destination's switch to its port. OpenSM does not check such
//! tables; this engine rejects tables that would lose packets of hosts or forward them in loops,
//! and another engine routes instead. Hop counts must also fall at each step, equally for all LIDs
//! of an egress switch: tables in which two such LIDs use the same links in opposite directions are
//! rejected too. The previous routing has no influence.
//!
//! Without tables but with hop counts ([`HopDump`], `lid_matrix_dump_file`), LIDs are distributed
//! over the ports that lead closer by these hop counts, as `minhop` does with its own.
//!
//! Takes time proportional to switches times LIDs.

mod matrix;
mod parse;
mod resolve;

use std::sync::Arc;

pub use self::matrix::{HopDump, HopEntry};
pub use self::parse::{Dump, DumpError, Entry, Section};
use crate::deal::{Dealt, Shortest, deal};
use crate::relief::relieve_draft;
use crate::tree::Tree;
use crate::{
    CommonOptions, Destination, Engine, Entries, HopMatrix, Lanes, NO_ROUTE, Previous, Reason,
    Routing, RoutingError, Steering, Topology, verify,
};

/// Options of `file`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// By switch: its table, egress port by LID (`lfts_file`, [`Dump::resolve`]); empty: none.
    pub lfts: Vec<Entries>,
    /// Hops to route by if there are no tables (`lid_matrix_dump_file`, [`HopDump::resolve`]).
    pub hops: Option<Arc<HopMatrix>>,
}

/// The engine `file`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromFile;

impl Engine for FromFile {
    fn name(&self) -> &'static str {
        "file"
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        _: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        super::hops::check_size(self.name(), topology)?;
        if steering.file.lfts.iter().all(|lft| lft.is_empty()) {
            let Some(hops) = &steering.file.hops else {
                return Err(Reason::NoTables.of(self.name()));
            };
            return Ok(by_hops(self.name(), topology, &steering.common, hops));
        }
        let (lfts, unreachable) = tables(topology, &steering.file.lfts);
        let hops = potential(topology, &lfts).map_err(|reason| reason.of(self.name()))?;
        let (engine, lanes) = (self.name(), Lanes::Free);
        let routing =
            Routing { engine, lfts, hops, lanes, unreachable, loads: Vec::new(), tree: None };
        let found = verify::deliveries(topology, &routing);
        match found.defects.first() {
            Some(&first) => {
                let defects = found.defective;
                Err(Reason::DefectiveTables { defects, first }.of(self.name()))
            }
            None => Ok(routing),
        }
    }
}

/// Routes along paths on which `hops`, whose rows are sources, fall by one at each step.
fn by_hops(
    engine: &'static str,
    topology: &Topology,
    common: &CommonOptions,
    hops: &HopMatrix,
) -> Routing {
    // Hop counts of a file need not be symmetric.
    let mut by_egress_switch = hops.clone();
    by_egress_switch.transpose();
    let dealt = match Tree::find(topology, common) {
        Some(tree) => tree.route(topology, &by_egress_switch, None, |_| Shortest),
        None => {
            let draft = deal(topology, common, &by_egress_switch, |_| Shortest);
            relieve_draft(draft, topology, common, &by_egress_switch, |_| Shortest)
        }
    };
    let Dealt { lfts, unreachable, loads, tree: _ } = dealt;
    Routing { engine, lfts, hops: hops.clone(), lanes: Lanes::Free, unreachable, loads, tree: None }
}

/// Returns the given tables, reduced to the LIDs of the topology and with the last steps added, and
/// the number of missing routes.
fn tables(topology: &Topology, given: &[Entries]) -> (Vec<Entries>, u64) {
    let mut unreachable = 0;
    let mut lfts = vec![vec![NO_ROUTE; topology.table_len()]; topology.switch_count()];
    for (switch, lft) in topology.switches().zip(&mut lfts) {
        let given = given.get(usize::from(switch)).map_or(&[][..], |given| given);
        for destination in topology.destinations() {
            for lid in destination.lids() {
                let port = if destination.egress_switch == switch {
                    destination.exit
                } else {
                    given.get(lid.index()).copied().unwrap_or(NO_ROUTE)
                };
                lft[lid.index()] = port;
                unreachable += u64::from(port == NO_ROUTE);
            }
        }
    }
    (lfts.into_iter().map(Entries::from).collect(), unreachable)
}

/// Computes, for each egress switch, the hops of the longest path that any of its LIDs takes.
fn potential(topology: &Topology, lfts: &[Entries]) -> Result<HopMatrix, Reason> {
    let mut by_egress_switch: Vec<Vec<&Destination>> = vec![Vec::new(); topology.switch_count()];
    for destination in topology.destinations() {
        by_egress_switch[usize::from(destination.egress_switch)].push(destination);
    }
    // Indexed by egress switch at first.
    let mut hops = HopMatrix::unreachable(topology.switch_count());
    for (egress_switch, destinations) in topology.switches().zip(&by_egress_switch) {
        let steps = steps(topology, lfts, destinations)?;
        label(hops.row_mut(egress_switch), egress_switch, &steps)?;
    }
    hops.transpose();
    Ok(hops)
}

/// Lists to which switches any of the LIDs is forwarded, as sorted pairs of the next switch and the
/// switch before it.
fn steps(
    topology: &Topology,
    lfts: &[Entries],
    destinations: &[&Destination],
) -> Result<Vec<(u16, u16)>, Reason> {
    let mut steps = Vec::new();
    for destination in destinations {
        for (lid, switch) in
            destination.lids().flat_map(|lid| topology.switches().map(move |switch| (lid, switch)))
        {
            let port = lfts[usize::from(switch)][lid.index()];
            if port == NO_ROUTE || switch == destination.egress_switch {
                continue;
            }
            let link = topology.link_at(switch, port).ok_or(Reason::NoSwitchBehindPort {
                switch,
                lid,
                port,
            })?;
            let next = topology.link(link).peer;
            if lfts[usize::from(next)][lid.index()] == NO_ROUTE {
                return Err(Reason::NoRouteOnward { switch, lid, next });
            }
            steps.push((next, switch));
        }
        steps.sort_unstable();
        steps.dedup();
    }
    Ok(steps)
}

/// Labels switches with the longest path to the egress switch; a switch is labelled once all next
/// switches are.
fn label(hops: &mut [u8], egress_switch: u16, steps: &[(u16, u16)]) -> Result<(), Reason> {
    let mut waiting = vec![0u32; hops.len()];
    steps.iter().for_each(|&(_, switch)| waiting[usize::from(switch)] += 1);
    let mut longest = vec![0u8; hops.len()];
    let mut ready = vec![egress_switch];
    while let Some(next) = ready.pop() {
        hops[usize::from(next)] = longest[usize::from(next)];
        let beyond = longest[usize::from(next)].saturating_add(1);
        if beyond > HopMatrix::HOPS_MAX {
            return Err(Reason::RouteTooLong { egress: egress_switch });
        }
        let first = steps.partition_point(|step| step.0 < next);
        for &(_, switch) in steps[first..].iter().take_while(|step| step.0 == next) {
            let switch_index = usize::from(switch);
            longest[switch_index] = longest[switch_index].max(beyond);
            waiting[switch_index] -= 1;
            if waiting[switch_index] == 0 {
                ready.push(switch);
            }
        }
    }
    match waiting.iter().position(|&waiting| waiting > 0) {
        Some(switch) => Err(Reason::Circular { switch: switch as u16, egress: egress_switch }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;

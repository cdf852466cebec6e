//! Tables from a file (`lfts_file`), such as another subnet manager's dump.
//!
//! A file is read once ([`Dump::parse`]), brought into the numbers of a topology
//! ([`Dump::resolve`]), and handed over as [`Steering::lfts`]. The engine takes tables as they are
//! and adds nothing but the last step, from a destination's switch to its port. Unlike OpenSM,
//! which does not look at them, it declines tables by which hosts' packets would be lost or
//! circle; then another engine routes. Tables must also let hops fall at each step, once for all
//! LIDs of a switch: where two of them take the same links in opposite ways, they are declined, too.
//! What was routed before does not matter.
//!
//! Where there are no tables, but hops ([`HopDump`], `lid_matrix_dump_file`), LIDs are dealt to the
//! ports that lead closer by these, as `minhop` does by its own.
//!
//! Takes time in proportion to switches times LIDs.

mod matrix;
mod parse;
mod resolve;

pub use self::matrix::{HopDump, HopEntry};
pub use self::parse::{Dump, DumpError, Entry, Section};
use super::deal::{Dealt, Shortest, deal};
use super::{
    Destination, Engine, Entries, HopMatrix, Lanes, NO_ROUTE, Previous, Routing, RoutingError,
    Steering, Topology, verify,
};

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
        HopMatrix::check_size(self.name(), topology)?;
        let unsuitable = |reason| RoutingError::Unsuitable { engine: self.name(), reason };
        if steering.lfts.iter().all(|lft| lft.is_empty()) {
            let Some(hops) = &steering.hops else {
                return Err(unsuitable("neither tables (lfts_file) nor hops (lid_matrix_dump_file) can be used: none are given, \
                     or they were refused before this"
                    .to_owned()));
            };
            return Ok(by_hops(self.name(), topology, steering, hops));
        }
        let (lfts, unreachable) = tables(topology, &steering.lfts);
        let hops = potential(topology, &lfts).map_err(unsuitable)?;
        let (engine, lanes) = (self.name(), Lanes::Free);
        let routing = Routing { engine, lfts, hops, lanes, unreachable, loads: Vec::new() };
        let found = verify::deliveries(topology, &routing);
        match found.defects.first() {
            Some(defect) => Err(unsuitable(format!("{} defects, first {defect}", found.defective))),
            None => Ok(routing),
        }
    }
}

/// Routes along ways on which `hops`, which begin at rows, fall by one at each step.
fn by_hops(
    engine: &'static str,
    topology: &Topology,
    steering: &Steering,
    hops: &HopMatrix,
) -> Routing {
    // Those of files need not be the same both ways.
    let mut by_home = hops.clone();
    by_home.transpose();
    let draft = deal(topology, steering, &by_home, |_| Shortest);
    let Dealt { lfts, unreachable, loads } =
        draft.relieve(topology, steering, &by_home, |_| Shortest);
    Routing { engine, lfts, hops: hops.clone(), lanes: Lanes::Free, unreachable, loads }
}

/// What is told of LIDs that are here, and the last steps; and how many routes are missing.
fn tables(topology: &Topology, told: &[Entries]) -> (Vec<Entries>, u64) {
    let mut unreachable = 0;
    let mut lfts = vec![vec![NO_ROUTE; topology.table_len()]; topology.switch_count()];
    for (switch, lft) in topology.switches().zip(&mut lfts) {
        let told = told.get(usize::from(switch)).map_or(&[][..], |told| told);
        for destination in topology.destinations() {
            for lid in destination.lids() {
                let port = if destination.home == switch {
                    destination.exit
                } else {
                    told.get(lid.index()).copied().unwrap_or(NO_ROUTE)
                };
                lft[lid.index()] = port;
                unreachable += u64::from(port == NO_ROUTE);
            }
        }
    }
    (lfts.into_iter().map(Entries::from).collect(), unreachable)
}

/// Hops of the longest way to each home switch that any of its LIDs has; or why there are none.
fn potential(topology: &Topology, lfts: &[Entries]) -> Result<HopMatrix, String> {
    let mut by_home: Vec<Vec<&Destination>> = vec![Vec::new(); topology.switch_count()];
    for destination in topology.destinations() {
        by_home[usize::from(destination.home)].push(destination);
    }
    // By home at first.
    let mut hops = HopMatrix::unreachable(topology.switch_count());
    for (home, destinations) in topology.switches().zip(&by_home) {
        let steps = steps(topology, lfts, destinations)?;
        label(hops.row_mut(home), home, &steps)?;
    }
    hops.transpose();
    Ok(hops)
}

/// Where switches forward any of the LIDs to: pairs of the next switch and one before it, sorted.
fn steps(
    topology: &Topology,
    lfts: &[Entries],
    destinations: &[&Destination],
) -> Result<Vec<(u16, u16)>, String> {
    let mut steps = Vec::new();
    for destination in destinations {
        for (lid, switch) in
            destination.lids().flat_map(|lid| topology.switches().map(move |switch| (lid, switch)))
        {
            let port = lfts[usize::from(switch)][lid.index()];
            if port == NO_ROUTE || switch == destination.home {
                continue;
            }
            let link = topology.link_at(switch, port).ok_or_else(|| {
                format!("switch {switch} sends LID {lid} by port {port}, where no switch is")
            })?;
            let next = topology.link(link).peer;
            if lfts[usize::from(next)][lid.index()] == NO_ROUTE {
                return Err(format!(
                    "switch {switch} sends LID {lid} to switch {next}, which has no route to it"
                ));
            }
            steps.push((next, switch));
        }
        steps.sort_unstable();
        steps.dedup();
    }
    Ok(steps)
}

/// Labels switches by the longest way home, once all that they forward to are labelled.
fn label(hops: &mut [u8], home: u16, steps: &[(u16, u16)]) -> Result<(), String> {
    let mut waiting = vec![0u32; hops.len()];
    steps.iter().for_each(|&(_, switch)| waiting[usize::from(switch)] += 1);
    let mut longest = vec![0u8; hops.len()];
    let mut ready = vec![home];
    while let Some(next) = ready.pop() {
        hops[usize::from(next)] = longest[usize::from(next)];
        let beyond = longest[usize::from(next)].saturating_add(1);
        if beyond > HopMatrix::HOPS_MAX {
            return Err(format!("a way to switch {home} is longer than {}", HopMatrix::HOPS_MAX));
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
        Some(switch) => Err(format!(
            "from switch {switch} on, LIDs of switch {home} circle or take each other's way back"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;

//! Computes hops and forwarding tables from the directions round each ring.

use rayon::prelude::*;

use super::grid::{Grid, NO_SWITCH};
use super::rings::Rings;
use crate::error::Refusal;
use crate::lanes::torus::{DIRECTIONS, Direction};
use crate::{Entries, HopMatrix, NO_ROUTE, Topology};

/// Returns the hops of all routes between switches, or a refusal if a route is missing.
pub(super) fn hops(grid: &Grid, rings: &Rings) -> Result<HopMatrix, Refusal> {
    let switches = grid.at.len();
    let peers = grid.all_next();
    let from: Vec<_> = grid.at.iter().map(|&at| rings.from(grid, at)).collect();
    // Indexed by egress switch at first.
    let mut matrix = HopMatrix::unreachable(switches);
    matrix.rows_mut().enumerate().try_for_each_init(Vec::new, |path, (egress_switch, hops)| {
        let to = grid.at[egress_switch];
        hops[egress_switch] = 0;
        for source in 0..switches {
            let mut at = source;
            path.clear();
            while hops[at] == HopMatrix::UNREACHABLE {
                let refusal = Refusal::NoRoute { from: grid.at[at], to };
                let direction = from[at].direction(to);
                let hop = direction.map(|direction| at * DIRECTIONS + direction.index());
                let next = hop.map_or(NO_SWITCH, |hop| peers[hop]);
                // A route with more hops than switches loops.
                if next == NO_SWITCH || path.len() == switches {
                    return Err(refusal);
                }
                path.push(at);
                at = usize::from(next);
            }
            let mut count = hops[at];
            while let Some(before) = path.pop() {
                count += 1;
                if count > HopMatrix::HOPS_MAX {
                    return Err(Refusal::TooLong);
                }
                hops[before] = count;
            }
        }
        Ok(())
    })?;
    matrix.transpose();
    Ok(matrix)
}

/// A LID and its assignment to parallel links.
struct Target {
    lid: usize,
    egress_switch: u16,
    exit: u8,
    /// Index of the parallel link to use, modulo the number of links.
    turn: u16,
}

/// Returns the forwarding tables of all switches.
pub(super) fn tables(
    topology: &Topology,
    grid: &Grid,
    rings: &Rings,
    port_order: &[u8],
) -> Vec<Entries> {
    let targets = targets(topology, grid, port_order);
    let tables = topology.switches().into_par_iter().map(|switch| {
        let from = rings.from(grid, grid.at[usize::from(switch)]);
        let directions: Vec<_> = grid.at.iter().map(|&to| from.direction(to)).collect();
        let ports: Vec<&[u8]> =
            Direction::all().map(|direction| grid.ports(switch, direction)).collect();
        let mut lft = vec![NO_ROUTE; topology.table_len()];
        for target in &targets {
            lft[target.lid] = match directions[usize::from(target.egress_switch)] {
                None => target.exit,
                Some(direction) => match ports[direction.index()] {
                    [] => NO_ROUTE,
                    [only] => *only,
                    several => several[usize::from(target.turn) % several.len()],
                },
            };
        }
        lft.into()
    });
    tables.collect()
}

/// Returns all LIDs. Those of a switch's hosts are assigned to links in the order of the hosts'
/// ports, starting one link further for each step of the switch along an axis.
fn targets(topology: &Topology, grid: &Grid, port_order: &[u8]) -> Vec<Target> {
    let mut rank: [u16; 256] = std::array::from_fn(|port| 256 + port as u16);
    for (place, &port) in (0..).zip(port_order) {
        rank[usize::from(port)] = place;
    }
    let mut order: Vec<_> = topology.destinations().iter().collect();
    order.sort_by_key(|to| {
        (to.egress_switch, !to.is_host(), rank[usize::from(to.exit)], to.base_lid)
    });
    let mut targets = Vec::new();
    for same in
        order.chunk_by(|a, b| (a.egress_switch, a.is_host()) == (b.egress_switch, b.is_host()))
    {
        let egress_switch = same[0].egress_switch;
        let first: u16 = grid.at[usize::from(egress_switch)].iter().copied().map(u16::from).sum();
        let lids = same.iter().flat_map(|to| to.lids().map(|lid| (lid, to.exit)));
        targets.extend(lids.zip(first..).map(|((lid, exit), turn)| Target {
            lid: lid.index(),
            egress_switch,
            exit,
            turn,
        }));
    }
    targets.sort_unstable_by_key(|target| target.lid);
    targets
}

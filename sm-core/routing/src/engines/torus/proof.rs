//! Proves that routes around missing parts are free of credit loops.
//!
//! The rules for a single missing switch, or for missing links alone, cause none. No rule covers
//! both together, so they are checked: every route is followed with its SL, and the multicast tree
//! with SL 0. The lanes of the upper QoS level have the same dependencies as those of the lower
//! one.

use super::grid::{Grid, NO_SWITCH};
use super::rings::Rings;
use crate::Topology;
use crate::lanes::torus::MasterTree;
use crate::lanes::torus::{DIRECTIONS, Direction};
use crate::lanes::torus::{sl, vl};

/// VLs per link of one QoS level.
const LANES: usize = 4;
/// Number of SLs of one QoS level, which include that of multicast.
const LEVELS: usize = 8;

/// Dependencies between channels. A channel is a direction out of a switch, and a lane.
struct Dependencies {
    /// By channel: a bit for each direction and lane out of the next switch.
    next: Vec<u32>,
    /// By switch and direction.
    peers: Vec<u16>,
}

/// Whether no packets can depend on each other in a cycle.
pub(super) fn is_free_of_loops(
    topology: &Topology,
    grid: &Grid,
    rings: &Rings,
    tree: &MasterTree,
    data_lanes: u8,
) -> bool {
    let peers = grid.all_next();
    let mut dependencies = Dependencies { next: vec![0; peers.len() * LANES], peers };
    dependencies.add_routes(grid, rings, data_lanes);
    dependencies.add_tree(topology, grid, tree, data_lanes);
    dependencies.are_acyclic()
}

impl Dependencies {
    /// Follows all routes. Routes to one switch that arrive at the same switch from the same
    /// direction with the same SL continue alike, and are followed once.
    fn add_routes(&mut self, grid: &Grid, rings: &Rings, data_lanes: u8) {
        let switches = grid.at.len();
        // Includes the source, where packets arrive from no direction.
        let mut seen_for = vec![NO_SWITCH; switches * (DIRECTIONS + 1) * LEVELS];
        let from: Vec<_> = grid.at.iter().map(|&at| rings.from(grid, at)).collect();
        for (egress_switch, &to) in (0u16..).zip(&grid.at) {
            for (source, &start) in grid.at.iter().enumerate() {
                let sl = sl(&grid.shape, start, to);
                let (mut at, mut came): (usize, Option<(Direction, usize)>) = (source, None);
                while let Some(direction) = from[at].direction(to) {
                    let way = came.map_or(DIRECTIONS, |(direction, _)| direction.index());
                    let state = (at * (DIRECTIONS + 1) + way) * LEVELS + usize::from(sl);
                    let before = came.map(|(direction, _)| direction.axis());
                    let lane = usize::from(vl(before, Some(direction.axis()), sl, data_lanes));
                    if let Some((_, channel)) = came {
                        self.next[channel] |= bit(direction, lane);
                    }
                    if std::mem::replace(&mut seen_for[state], egress_switch) == egress_switch {
                        break;
                    }
                    let hop = at * DIRECTIONS + direction.index();
                    came = Some((direction, hop * LANES + lane));
                    at = usize::from(self.peers[hop]);
                }
            }
        }
    }

    /// Adds the dependencies of multicast packets, which arrive at each switch by any branch and
    /// leave by any other.
    fn add_tree(&mut self, topology: &Topology, grid: &Grid, tree: &MasterTree, data_lanes: u8) {
        let branches = branches(topology, grid, tree);
        let lane = |before: Option<Direction>, after: Direction| {
            usize::from(vl(before.map(Direction::axis), Some(after.axis()), 0, data_lanes))
        };
        for (switch, ways) in branches.iter().enumerate() {
            for &out in ways {
                let hop = switch * DIRECTIONS + out.index();
                let far = usize::from(self.peers[hop]);
                // From a host or another branch, as directions of travel.
                let ins = ways.iter().filter(|&&way| way != out).map(|way| Some(way.opposite()));
                for before in ins.chain([None]) {
                    let channel = hop * LANES + lane(before, out);
                    for &on in branches[far].iter().filter(|&&on| on != out.opposite()) {
                        self.next[channel] |= bit(on, lane(Some(out), on));
                    }
                }
            }
        }
    }

    /// Removes channels without predecessors until none is left (Kahn's algorithm).
    fn are_acyclic(&self) -> bool {
        let channels = self.next.len();
        let mut waiting = vec![0u32; channels];
        let after = |channel: usize| {
            let far = usize::from(self.peers[channel / LANES]);
            let bits = self.next[channel];
            let set = (0..DIRECTIONS * LANES).filter(move |&bit| bits >> bit & 1 == 1);
            set.map(move |bit| far * DIRECTIONS * LANES + bit)
        };
        for channel in 0..channels {
            after(channel).for_each(|next| waiting[next] += 1);
        }
        let mut ready: Vec<usize> = (0..channels).filter(|&next| waiting[next] == 0).collect();
        let mut left = channels;
        while let Some(channel) = ready.pop() {
            left -= 1;
            for next in after(channel) {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(next);
                }
            }
        }
        left == 0
    }
}

fn bit(direction: Direction, lane: usize) -> u32 {
    1 << (direction.index() * LANES + lane)
}

/// By switch: the directions of the tree's branches.
fn branches(topology: &Topology, grid: &Grid, tree: &MasterTree) -> Vec<Vec<Direction>> {
    let mut branches = vec![Vec::new(); grid.at.len()];
    for switch in topology.switches() {
        let Some(link) = tree.up(switch) else { continue };
        let (from, to) = (grid.at[usize::from(switch)], grid.at[usize::from(link.peer)]);
        let Some(direction) = grid.shape.direction(from, to) else { continue };
        branches[usize::from(switch)].push(direction);
        branches[usize::from(link.peer)].push(direction.opposite());
    }
    branches
}

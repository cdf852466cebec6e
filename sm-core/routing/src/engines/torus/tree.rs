//! Builds the spanning tree on which multicast trees of a torus are based (torus-2QoS(8),
//! "MULTICAST ROUTING").
//!
//! From the root at the centre a trunk runs along x, from each of its switches a branch along y,
//! and from each of theirs one along z: seen from the root all turns are in the order of axes. No
//! branch crosses a dateline, unless its ring is broken and so cannot form a cycle. Groups use the
//! part of the tree that joins their members to the root.
//!
//! Where switches are missing, the others of their line are leaves, each joined along another axis.
//! OpenSM has a branch there too. Packets that come down such a branch, turn at its foot and go up
//! beside it can wait for unicast that turns behind the missing switch into the top of the branch:
//! a cycle around the hole.

use super::grid::Grid;
use crate::Topology;
use crate::error::Refusal;
use crate::lanes::torus::{AXES, Direction, MasterTree, Place};

/// Builds the tree. Its root is the switch nearest to the centre from which it reaches all
/// switches; a switch beside a missing one is used only if no other will do.
pub(super) fn grow(topology: &Topology, grid: &Grid) -> Result<MasterTree, Refusal> {
    let hole = Hole::find(grid);
    let mut places: Vec<Place> = grid.at.clone();
    // Far from the datelines, which are at both ends of each axis.
    places.sort_unstable_by_key(|place| {
        let away = (0..AXES).map(|axis| place[axis].abs_diff(grid.shape.radix(axis) / 2));
        let is_beside = hole.as_ref().is_some_and(|hole| hole.is_beside(grid, *place));
        (is_beside, away.map(u32::from).sum::<u32>(), *place)
    });
    let roots = places.into_iter().filter_map(|place| grid.switch(place));
    let grown = |root| Some((root, towards(grid, hole.as_ref(), root)?));
    let (root, towards) = roots.filter_map(grown).next().ok_or(Refusal::NoTree)?;
    let up = topology.switches().zip(&towards).map(|(switch, &direction)| {
        let port = grid.ports(switch, direction?).first()?;
        topology.link_at(switch, *port).map(|link| topology.link(link))
    });
    Ok(MasterTree::new(root, up.collect()))
}

/// The missing switches, and the line on which they lie.
struct Hole {
    /// The last axis along which their line still has switches.
    axis: usize,
    /// One of the missing places.
    missing: Place,
}

impl Hole {
    /// `None` if nothing is missing, or if all switches are on one line anyway.
    fn find(grid: &Grid) -> Option<Self> {
        let missing = grid.missing().next()?;
        let is_left = |&axis: &usize| {
            let mut line = grid.shape.ring_places(axis, grid.shape.ring(axis, missing));
            line.any(|place| grid.switch(place).is_some())
        };
        let axis = (0..AXES).rev().find(is_left)?;
        let has_others = (0..axis).any(|axis| grid.shape.radix(axis) > 1);
        has_others.then_some(Self { axis, missing })
    }

    /// Whether a place is on the line, or differs from it only along axes on which all switches are
    /// missing.
    fn is_in_line(&self, place: Place) -> bool {
        (0..self.axis).all(|axis| place[axis] == self.missing[axis])
    }

    /// Whether a place has the same coordinate along the line as a missing one.
    fn is_beside(&self, grid: &Grid, place: Place) -> bool {
        grid.missing().any(|missing| missing[self.axis] == place[self.axis])
    }
}

/// By switch: the direction of the root; `None` if the tree from `root` does not reach all
/// switches.
fn towards(grid: &Grid, hole: Option<&Hole>, root: u16) -> Option<Vec<Option<Direction>>> {
    let mut growth = Growth { grid, root, towards: vec![None; grid.at.len()], joined: vec![root] };
    for axis in 0..AXES {
        for index in 0..growth.joined.len() {
            let from = growth.joined[index];
            let place = grid.at[usize::from(from)];
            if !hole.is_some_and(|hole| hole.axis == axis && hole.is_in_line(place)) {
                growth.branch(from, axis);
            }
        }
    }
    if let Some(hole) = hole {
        growth.add_leaves(hole);
    }
    (growth.joined.len() == grid.at.len()).then_some(growth.towards)
}

struct Growth<'a> {
    grid: &'a Grid,
    root: u16,
    towards: Vec<Option<Direction>>,
    /// Switches of the tree, in the order in which they joined.
    joined: Vec<u16>,
}

impl Growth<'_> {
    /// Extends the tree both ways along an axis up to the dateline, and over it if the ring is
    /// broken.
    fn branch(&mut self, from: u16, axis: usize) {
        let shape = self.grid.shape;
        let here = self.grid.at[usize::from(from)][axis];
        let [down, up] = [false, true].map(|up| Direction::new(axis, up));
        let last = shape.radix(axis) - 1;
        let (low, low_hops) = self.extend(from, down, here);
        let (high, high_hops) = self.extend(from, up, last - here);
        if low_hops < here || high_hops < last - here {
            self.extend(low, down, last);
            self.extend(high, up, last);
        }
    }

    /// Joins up to `hops` more switches in one direction; returns the last one and the number
    /// joined.
    fn extend(&mut self, mut at: u16, direction: Direction, hops: u8) -> (u16, u8) {
        for hop in 0..hops {
            let next = self.grid.next(at, direction).filter(|&next| !self.has(next));
            let Some(next) = next else { return (at, hop) };
            self.towards[usize::from(next)] = Some(direction.opposite());
            self.joined.push(next);
            at = next;
        }
        (at, hops)
    }

    /// Joins the remaining switches of a line with missing ones to the branches beside it.
    fn add_leaves(&mut self, hole: &Hole) {
        let beside = |direction: &Direction| direction.axis() < hole.axis;
        let leaves = (0u16..).zip(&self.grid.at).filter(|&(_, &place)| hole.is_in_line(place));
        let joins: Vec<(u16, Direction)> = leaves
            .filter(|&(leaf, _)| !self.has(leaf))
            .filter_map(|(leaf, _)| {
                let mut ways = Direction::all().filter(beside);
                let way = ways
                    .find(|&way| self.grid.next(leaf, way).is_some_and(|branch| self.has(branch)));
                way.map(|way| (leaf, way))
            })
            .collect();
        for (leaf, way) in joins {
            self.towards[usize::from(leaf)] = Some(way);
            self.joined.push(leaf);
        }
    }

    fn has(&self, switch: u16) -> bool {
        switch == self.root || self.towards[usize::from(switch)].is_some()
    }
}

//! A detected torus: switches, their places, and the ports that lead in each direction.

use crate::Topology;
use crate::error::Refusal;
use crate::lanes::torus::{AXES, DIRECTIONS, Direction, Place, Shape};

/// Represents a missing switch.
pub(super) const NO_SWITCH: u16 = u16::MAX;

/// Switches at their places.
pub(super) struct Grid {
    pub(super) shape: Shape,
    /// By switch.
    pub(super) at: Vec<Place>,
    /// By place number: the switch, or [`NO_SWITCH`].
    there: Vec<u16>,
    /// Ports between switches, by switch and direction, ascending.
    ports: Vec<u8>,
    /// By switch and direction: index of the first port in `ports`; one more entry at the end.
    first_port: Vec<u32>,
}

impl Grid {
    /// Builds the grid. Links that do not lead from one place to a neighbouring one are ignored.
    pub(super) fn new(topology: &Topology, shape: Shape, at: Vec<Place>) -> Self {
        let mut there = vec![NO_SWITCH; shape.len()];
        for (switch, &place) in topology.switches().zip(&at) {
            there[shape.index(place)] = switch;
        }
        let mut ports = Vec::with_capacity(topology.link_count());
        let mut first_port = vec![0];
        for switch in topology.switches() {
            let place = at[usize::from(switch)];
            for direction in Direction::all() {
                let next = shape.step(place, direction).map(|next| there[shape.index(next)]);
                let links = topology.links(switch).iter();
                let links = links.filter(|link| Some(link.peer) == next);
                ports.extend(links.map(|link| link.port));
                first_port.push(ports.len() as u32);
            }
        }
        Self { shape, at, there, ports, first_port }
    }

    /// The switch at a place, if it is not missing.
    pub(super) fn switch(&self, place: Place) -> Option<u16> {
        let switch = self.there[self.shape.index(place)];
        (switch != NO_SWITCH).then_some(switch)
    }

    /// The ports of a switch in one direction.
    pub(super) fn ports(&self, switch: u16, direction: Direction) -> &[u8] {
        let index = usize::from(switch) * DIRECTIONS + direction.index();
        &self.ports[self.first_port[index] as usize..self.first_port[index + 1] as usize]
    }

    /// The neighbour to which a switch is linked in one direction.
    pub(super) fn next(&self, switch: u16, direction: Direction) -> Option<u16> {
        if self.ports(switch, direction).is_empty() {
            return None;
        }
        self.switch(self.shape.step(self.at[usize::from(switch)], direction)?)
    }

    /// By switch and direction: the linked neighbour, or [`NO_SWITCH`].
    pub(super) fn all_next(&self) -> Vec<u16> {
        let switches = 0..self.at.len() as u16;
        let next = |switch| Direction::all().map(move |direction| self.next(switch, direction));
        switches.flat_map(next).map(|next| next.unwrap_or(NO_SWITCH)).collect()
    }

    /// The places without a switch.
    pub(super) fn missing(&self) -> impl Iterator<Item = Place> {
        let places = (0..).zip(&self.there).filter(|&(_, &switch)| switch == NO_SWITCH);
        places.map(|(index, _)| self.shape.place(index))
    }

    /// Whether all switches, and at least one of each set of parallel links, are present.
    pub(super) fn is_whole(&self) -> bool {
        self.missing().next().is_none()
            && self.at.iter().zip(0u16..).all(|(&place, switch)| {
                Direction::all().all(|direction| {
                    self.shape.step(place, direction).is_none()
                        || !self.ports(switch, direction).is_empty()
                })
            })
    }

    /// Refuses a grid without dimension-order routes that are free of credit loops: one that lacks
    /// switches that are not a contiguous run along the last axis, or that has a ring in pieces
    /// (torus-2QoS(8), "UNICAST ROUTING").
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let last = (0..AXES).rev().find(|&axis| self.shape.radix(axis) > 1).unwrap_or(0);
        let mut missing = self.missing();
        if let Some(first) = missing.next() {
            let column = self.shape.ring(last, first);
            if let Some(other) = missing.find(|&other| self.shape.ring(last, other) != column) {
                return Err(Refusal::TooManyMissing { first, other });
            }
        }
        for axis in 0..AXES {
            for ring in 0..self.shape.rings(axis) {
                self.check_ring(axis, ring)?;
            }
        }
        Ok(())
    }

    /// Refuses a ring whose switches are not all connected along it.
    fn check_ring(&self, axis: usize, ring: usize) -> Result<(), Refusal> {
        let up = Direction::new(axis, true);
        let ends = self.shape.ring_places(axis, ring).filter(|&place| {
            self.switch(place).is_some_and(|switch| self.next(switch, up).is_none())
        });
        // The last switch of a piece is followed by the first of the next, with missing ones
        // between them.
        let beyond = |end: Place| {
            let mut place = end;
            for _ in 0..self.shape.radix(axis) {
                place[axis] = (place[axis] + 1) % self.shape.radix(axis);
                if self.switch(place).is_some() {
                    break;
                }
            }
            (end, place)
        };
        let mut cuts = ends.map(beyond);
        let (Some(first), Some(second)) = (cuts.next(), cuts.next()) else { return Ok(()) };
        let is_ring = self.shape.wraps(axis);
        Err(Refusal::Cut { axis, is_ring, cuts: [first, second] })
    }
}

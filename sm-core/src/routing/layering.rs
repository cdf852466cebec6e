//! Routes are put into layers in which no links wait for each other in circles.
//!
//! A packet holds buffer space of the link it came by while it waits for space of the link it goes
//! on by. As long as these dependencies have no cycle within a virtual lane, nothing deadlocks
//! (Dally, Seitz 1987). Here a route is offered to one layer after the other, and the first takes
//! it whose dependencies stay free of cycles with it. Which routes there are, in what order they
//! come, and what becomes of layers that are not needed, is for engines to decide.

mod acyclic;
mod channels;
mod order;

use self::acyclic::{Acyclic, Addition};
use self::channels::Channels;
use super::Topology;

/// Whose packets must not wait in circles, the better first. Switches without hosts send each other
/// none on data lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pairs {
    /// Those between hosts, and between hosts and switches.
    WithHosts,
    /// Those between switches with hosts. In a damaged tree hosts reach some core switch only by
    /// going down and up again, which may take a lane of its own; where there is none, this is what
    /// can be had.
    BothWithHosts,
}

impl Pairs {
    /// What to try, the best first: both are the same where all switches have hosts.
    pub(super) fn choices(topology: &Topology) -> &'static [Self] {
        match topology.hosts_on().contains(&0) {
            true => &[Self::WithHosts, Self::BothWithHosts],
            false => &[Self::WithHosts],
        }
    }

    /// Whether it matters what goes between two switches, given whether they have hosts.
    #[inline]
    pub(super) fn count(self, a: bool, b: bool) -> bool {
        match self {
            Self::WithHosts => a || b,
            Self::BothWithHosts => a && b,
        }
    }
}

/// Layers, opened as they are needed.
#[derive(Debug)]
pub(super) struct Layering {
    channels: Channels,
    layers: Vec<Acyclic>,
    /// The most layers.
    lanes: u8,
    /// Dependencies that the route at hand has added.
    added: Vec<(u32, u32)>,
}

impl Layering {
    /// Up to `lanes` layers, at least one.
    pub(super) fn new(topology: &Topology, lanes: u8) -> Self {
        let channels = Channels::new(topology);
        Self { channels, layers: Vec::new(), lanes: lanes.max(1), added: Vec::new() }
    }

    /// Layers that were opened, at least the first.
    pub(super) fn count(&self) -> u8 {
        self.layers.len().max(1) as u8
    }

    /// Lets packets of a layer go on from a link by another. `false` if that would close a cycle,
    /// or if there is no such layer.
    pub(super) fn add(&mut self, layer: u8, from: u32, to: u32) -> bool {
        self.open(layer) && self.layers[usize::from(layer)].add(&self.channels, from, to).is_in()
    }

    /// Whether packets of a layer go on from a link by another.
    #[inline]
    pub(super) fn has(&self, layer: u8, from: u32, to: u32) -> bool {
        let layer = self.layers.get(usize::from(layer));
        layer.is_some_and(|layer| layer.has(&self.channels, from, to))
    }

    /// Takes back what was added: packets of a layer do not go on from a link by another.
    pub(super) fn remove(&mut self, layer: u8, from: u32, to: u32) {
        if let Some(layer) = self.layers.get_mut(usize::from(layer)) {
            layer.remove(&self.channels, from, to);
        }
    }

    /// The first layer from `first` on that takes all of some routes, given by their dependencies;
    /// `None` if that is none.
    pub(super) fn first_fit(&mut self, first: u8, dependencies: &[(u32, u32)]) -> Option<u8> {
        (first..self.lanes).find(|&layer| self.add_all(layer, dependencies))
    }

    /// Adds all of some dependencies to a layer, or none.
    pub(super) fn add_all(&mut self, layer: u8, dependencies: &[(u32, u32)]) -> bool {
        if !self.open(layer) {
            return false;
        }
        let Self { channels, layers, added, .. } = self;
        let layer = &mut layers[usize::from(layer)];
        if dependencies.iter().any(|&(from, to)| layer.has_refused(channels, from, to)) {
            return false;
        }
        added.clear();
        for &(from, to) in dependencies {
            match layer.add(channels, from, to) {
                Addition::Old => {}
                Addition::New => added.push((from, to)),
                Addition::Refused => {
                    added.iter().for_each(|&(from, to)| layer.remove(channels, from, to));
                    return false;
                }
            }
        }
        true
    }

    fn open(&mut self, layer: u8) -> bool {
        if layer >= self.lanes {
            return false;
        }
        while self.layers.len() <= usize::from(layer) {
            self.layers.push(Acyclic::new(&self.channels));
        }
        true
    }
}

#[cfg(test)]
mod tests;

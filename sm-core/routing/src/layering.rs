//! Divides routes into layers in which no links depend on each other in a cycle.
//!
//! A packet holds buffer space of the link it arrived on while it waits for space of the next link.
//! As long as these dependencies have no cycle within a virtual lane, no deadlock can occur (Dally,
//! Seitz 1987). A route is offered to one layer after the other, and the first layer that stays
//! free of cycles with it accepts it. The engines decide which routes there are, in what order they
//! are placed, and how unused layers are used.

mod acyclic;
mod channels;
mod order;

use self::acyclic::{Acyclic, Addition};
use self::channels::Channels;
use super::Topology;

/// The pairs of switches whose traffic must be free of credit loops, preferred choice first.
/// Switches without hosts send each other nothing on data lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pairs {
    /// Pairs with hosts on at least one of the two switches.
    WithHosts,
    /// Pairs with hosts on both switches. In a damaged tree hosts reach some core switches only by
    /// going down and up again, which may need an extra lane; this is the fallback if there is
    /// none.
    BothWithHosts,
    /// All pairs, also of switches without hosts.
    All,
}

impl Pairs {
    /// The choices to try for traffic of hosts, preferred first. Both are equal if all switches
    /// have hosts.
    pub(super) fn choices(topology: &Topology) -> &'static [Self] {
        match topology.hosts_on().contains(&0) {
            true => &[Self::WithHosts, Self::BothWithHosts],
            false => &[Self::WithHosts],
        }
    }

    /// Whether traffic between two switches counts; `a` and `b` state whether they have hosts.
    #[inline]
    pub(super) fn count(self, a: bool, b: bool) -> bool {
        match self {
            Self::WithHosts => a || b,
            Self::BothWithHosts => a && b,
            Self::All => true,
        }
    }
}

/// Layers, opened as they are needed.
#[derive(Debug)]
pub(super) struct Layering {
    channels: Channels,
    layers: Vec<Acyclic>,
    /// Largest number of layers.
    lanes: u8,
    /// Dependencies that the current route has added.
    added: Vec<(u32, u32)>,
}

impl Layering {
    /// Creates up to `lanes` layers, at least one.
    pub(super) fn new(topology: &Topology, lanes: u8) -> Self {
        let channels = Channels::new(topology);
        Self { channels, layers: Vec::new(), lanes: lanes.max(1), added: Vec::new() }
    }

    /// Number of layers opened so far, at least 1.
    pub(super) fn count(&self) -> u8 {
        self.layers.len().max(1) as u8
    }

    /// Adds a dependency from one link to another in a layer. Returns `false` if that would close a
    /// cycle, or if there is no such layer.
    pub(super) fn add(&mut self, layer: u8, from: u32, to: u32) -> bool {
        self.open(layer) && self.layers[usize::from(layer)].add(&self.channels, from, to).is_in()
    }

    /// Whether a layer has a dependency from one link to another.
    #[inline]
    pub(super) fn has(&self, layer: u8, from: u32, to: u32) -> bool {
        let layer = self.layers.get(usize::from(layer));
        layer.is_some_and(|layer| layer.has(&self.channels, from, to))
    }

    /// Removes a dependency from a layer.
    pub(super) fn remove(&mut self, layer: u8, from: u32, to: u32) {
        if let Some(layer) = self.layers.get_mut(usize::from(layer)) {
            layer.remove(&self.channels, from, to);
        }
    }

    /// Finds the first layer, from `first` on, that accepts all of the dependencies, and adds them;
    /// `None` if no layer does.
    pub(super) fn first_fit(&mut self, first: u8, dependencies: &[(u32, u32)]) -> Option<u8> {
        (first..self.lanes).find(|&layer| self.add_all(layer, dependencies))
    }

    /// Adds all of the dependencies to a layer, or none.
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

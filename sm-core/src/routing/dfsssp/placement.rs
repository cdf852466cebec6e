//! Layers of all routes to one LID after the other.

use ib_mad::types::Lid;

use super::super::lanes::Columns;
use super::super::layering::{Layering, Pairs};
use super::super::sssp::Walk;
use super::super::{Layers, Topology};
use super::share::Shares;

/// Puts routes into layers.
pub(super) struct Placement {
    layering: Layering,
    layers: Layers,
    lanes: u8,
    pairs: Pairs,
    /// By layer: routes between hosts' ports and others.
    routes: Vec<u64>,
    hosts: Vec<u32>,
    /// By switch, for the LID at hand.
    placed: Vec<Placed>,
    /// Scratch.
    dependencies: Vec<(u32, u32)>,
}

/// What is known of the route from a switch.
#[derive(Clone, Copy, Debug, Default)]
struct Placed {
    /// No layer before this takes the route, nor a longer one that ends with it.
    layer: u8,
    /// Whether this layer has taken it.
    is_in: bool,
}

impl Placement {
    pub(super) fn new(topology: &Topology, lanes: u8, pairs: Pairs) -> Self {
        let switches = topology.switch_count();
        Self {
            layering: Layering::new(topology, lanes),
            layers: Layers::new(switches, Columns::Lid, topology.table_len()),
            lanes: lanes.max(1),
            pairs,
            routes: vec![0; lanes.max(1).into()],
            hosts: topology.hosts_on(),
            placed: vec![Placed::default(); switches],
            dependencies: Vec::new(),
        }
    }

    /// Puts the routes to the LID that `walk` has just routed into layers; `None` if there are too
    /// few.
    ///
    /// A route from further away ends with the route from the switch next on the way. Layers that
    /// have refused the shorter one refuse the longer one too, and one that has taken the shorter
    /// one is asked about the first turn only.
    pub(super) fn place(&mut self, walk: &Walk<'_>, lid: Lid, is_host: bool) -> Option<()> {
        let counts = match self.pairs {
            Pairs::WithHosts => is_host,
            Pairs::BothWithHosts => self.hosts[usize::from(walk.home())] > 0,
        };
        for &source in walk.sources() {
            let hosts = self.hosts[usize::from(source)];
            let placed = if walk.step(source).peer == walk.home() {
                // A single link waits for no other.
                Placed { layer: 0, is_in: true }
            } else if self.pairs.count(counts, hosts > 0) {
                Placed { layer: self.fit(walk, source)?, is_in: true }
            } else {
                let next = walk.step(source).peer;
                Placed { is_in: false, ..self.placed[usize::from(next)] }
            };
            self.placed[usize::from(source)] = placed;
            self.routes[usize::from(placed.layer)] += u64::from(hosts);
            if placed.layer > 0 {
                self.layers.row_mut(source)[lid.index()] = placed.layer;
            }
        }
        Some(())
    }

    /// The first layer that takes the route from a source.
    fn fit(&mut self, walk: &Walk<'_>, source: u16) -> Option<u8> {
        let step = walk.step(source);
        let next = self.placed[usize::from(step.peer)];
        let mut first = next.layer;
        if next.is_in {
            if self.layering.add(first, step.link, walk.step(step.peer).link) {
                return Some(first);
            }
            first += 1;
        }
        self.dependencies.clear();
        let (mut link, mut switch) = (step.link, step.peer);
        while switch != walk.home() {
            let step = walk.step(switch);
            self.dependencies.push((link, step.link));
            (link, switch) = (step.link, step.peer);
        }
        // Turns near the destination are shared with more routes, which were placed before.
        self.dependencies.reverse();
        self.layering.first_fit(first, &self.dependencies)
    }

    /// The layers of all routes, with layers that were not needed sharing the routes of the
    /// fullest.
    pub(super) fn finish(mut self) -> Layers {
        let count = self.layering.count();
        let shares = Shares::new(&self.routes[..usize::from(count)], self.lanes);
        shares.apply(&mut self.layers, self.hosts.len());
        self.layers
    }
}

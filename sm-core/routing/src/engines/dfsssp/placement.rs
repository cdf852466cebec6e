//! Places the routes to one LID after another in layers.

use ib_mad::types::Lid;

use super::share::Shares;
use crate::engines::sssp::Walk;
use crate::lanes::Columns;
use crate::layering::{Layering, Pairs};
use crate::{Layers, Topology};

/// Places routes in layers.
pub(super) struct Placement {
    layering: Layering,
    layers: Layers,
    lanes: u8,
    pairs: Pairs,
    /// By layer: number of routes between hosts' ports and others.
    routes: Vec<u64>,
    hosts: Vec<u32>,
    /// By switch, for the current LID.
    placed: Vec<Placed>,
    /// Scratch space.
    dependencies: Vec<(u32, u32)>,
}

/// Placement of the route from one switch.
#[derive(Clone, Copy, Debug, Default)]
struct Placed {
    /// No lower layer accepts this route, or any longer route that ends with it.
    layer: u8,
    /// Whether the route is already in `layer`.
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

    /// Places the routes to the LID that `walk` has just routed in layers; `None` if there are too
    /// few layers.
    ///
    /// A route from farther away ends with the route of the next switch. Layers that refused the
    /// shorter route refuse the longer one too; in the layer that accepted the shorter route, only
    /// the first turn needs checking.
    pub(super) fn place(&mut self, walk: &Walk<'_>, lid: Lid, is_host: bool) -> Option<()> {
        let counts = match self.pairs {
            Pairs::WithHosts => is_host,
            Pairs::BothWithHosts => self.hosts[usize::from(walk.egress_switch())] > 0,
            Pairs::All => true,
        };
        for &source in walk.sources() {
            let hosts = self.hosts[usize::from(source)];
            let placed = if walk.step(source).peer == walk.egress_switch() {
                // A route of a single link has no dependency.
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

    /// Finds the first layer that accepts the route from a source.
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
        while switch != walk.egress_switch() {
            let step = walk.step(switch);
            self.dependencies.push((link, step.link));
            (link, switch) = (step.link, step.peer);
        }
        // Turns near the destination are shared with more routes, which were placed earlier.
        self.dependencies.reverse();
        self.layering.first_fit(first, &self.dependencies)
    }

    /// Returns the layers of all routes. Lanes that no layer needs take a share of the routes of
    /// the fullest layers.
    pub(super) fn finish(mut self) -> Layers {
        let count = self.layering.count();
        let shares = Shares::new(&self.routes[..usize::from(count)], self.lanes);
        shares.apply(&mut self.layers, self.hosts.len());
        self.layers
    }
}

//! Dimension-order routing for meshes, tori and hypercubes: of all shortest paths, the one whose
//! port comes first, so that routes finish one dimension before they turn to the next.
//!
//! Ports must be cabled by dimension, alike on all switches, or `port_search_ordering_file` must
//! assign ports to dimensions. Routes on meshes and hypercubes are then free of deadlock (Dally,
//! Seitz 1987). On tori they can deadlock along each ring; `torus-2QoS` and `lash` avoid this with
//! virtual lanes. On other fabrics routes are still shortest, but badly spread.
//!
//! Parallel links between two switches count as one dimension; LIDs are distributed over them, and
//! previous routes are kept, as in `minhop` ([`deal`](crate::deal), [`repair`](crate::repair)). All
//! LIDs of a port take the same switches, as in OpenSM.

use super::shortest::route_shortest;
use crate::deal::{Candidate, PathRules, port_places};
use crate::{Engine, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `dor`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dor;

impl Engine for Dor {
    fn name(&self) -> &'static str {
        "dor"
    }

    fn keeps_routes(&self, steering: &Steering) -> bool {
        steering.common.hop_weights.is_empty()
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let places = port_places(topology, &steering.common);
        let path_rules = FirstDimension { places: &places };
        route_shortest(self.name(), topology, &steering.common, previous, &path_rules)
    }
}

/// Allows only links to the switch that the first candidate port leads to.
struct FirstDimension<'a> {
    /// By link; if empty, ports are ordered by number.
    places: &'a [u16],
}

impl PathRules for FirstDimension<'_> {
    const NARROWS: bool = true;

    #[inline]
    fn narrow(&self, _: u16, candidates: &mut Vec<Candidate>, first: usize) {
        let place = |candidate: &&Candidate| {
            let place = self.places.get(candidate.link as usize);
            place.copied().unwrap_or(candidate.port.into())
        };
        let Some(chosen) = candidates[first..].iter().min_by_key(place) else { return };
        let peer = chosen.peer;
        let mut kept = first;
        for index in first..candidates.len() {
            if candidates[index].peer == peer {
                candidates[kept] = candidates[index];
                kept += 1;
            }
        }
        candidates.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Lid;
    use proptest::prelude::*;

    use super::*;
    use crate::{testing, verify};

    fn routed(topology: &Topology, steering: &Steering) -> Routing {
        Dor.route(topology, steering, None).unwrap()
    }

    /// Returns the ports by which a route leaves each switch.
    fn ports(topology: &Topology, routing: &Routing, from: u16, lid: Lid) -> Vec<u8> {
        let mut switch = from;
        let mut ports = Vec::new();
        while let Some(link) = topology.link_at(switch, routing.port(switch, lid)) {
            ports.push(routing.port(switch, lid));
            switch = topology.link(link).peer;
        }
        ports
    }

    proptest! {
        /// Each entry leads to the peer of the first port that comes closer.
        #[test]
        fn the_first_port_that_comes_closer_decides(
            topology in testing::any_topology(), backwards in any::<bool>(),
        ) {
            let mut steering = Steering::default();
            if backwards {
                let order = |s| (1..=topology.port_count(s)).rev().collect();
                steering.common.port_orders = topology.switches().map(order).collect();
            }
            let routing = routed(&topology, &steering);
            testing::check_all(&topology, &routing)?;
            for destination in topology.destinations() {
                let row = routing.hops.row(destination.egress_switch);
                let others = topology.switches().filter(|&s| s != destination.egress_switch);
                for switch in others {
                    let closer = |link: &&crate::Link| {
                        row[usize::from(link.peer)] < row[usize::from(switch)]
                    };
                    let links = topology.links(switch);
                    let first = if backwards {
                        links.iter().rev().find(closer)
                    } else {
                        links.iter().find(closer)
                    };
                    for lid in destination.lids() {
                        let link = topology.link_at(switch, routing.port(switch, lid));
                        let peer = link.map(|link| topology.link(link).peer);
                        prop_assert_eq!(peer, first.map(|link| link.peer));
                    }
                }
            }
        }

        #[test]
        fn nothing_moves_while_nothing_changes(topology in testing::any_topology()) {
            let steering = Steering::default();
            let routing = routed(&topology, &steering);
            let previous = Previous::same_switches(&topology, &routing);
            prop_assert_eq!(&Dor.route(&topology, &steering, Some(&previous)).unwrap(), &routing);
        }
    }

    #[test]
    fn meshes_and_hypercubes_are_free_of_loops() {
        use fabric_sim::generate::{Grid, Hypercube, Shape};
        let mesh = Grid { dims: vec![4, 5, 3], wraps: false, hosts_per_switch: 2, radix: None };
        let cube = Hypercube { dimensions: 5, hosts_per_switch: 1, radix: None };
        for shape in [Shape::Grid(mesh), Shape::Hypercube(cube)] {
            let topology = testing::topology(&testing::net(shape), 1);
            let routing = routed(&topology, &Steering::default());
            testing::check_all(&topology, &routing).unwrap();
            let loops = verify::credit_loops(&topology, &routing.tables());
            assert!(loops.is_free(), "{loops}");
        }
    }

    /// Any consistent order of dimensions is free of loops; one that differs between switches is
    /// not.
    #[test]
    fn the_operators_order_of_dimensions_is_kept() {
        let at = |x: u16, y: u16| y * 4 + x;
        let cables = (0..4).flat_map(|a| (0..3).map(move |b| (a, b))).flat_map(|(a, b)| {
            [((at(b, a), 1), (at(b + 1, a), 2)), ((at(a, b), 3), (at(a, b + 1), 4))]
        });
        let topology = testing::cabled(16, cables, 0..16, 1);
        let mut steering = Steering::default();
        let x_first = routed(&topology, &steering);
        assert_eq!(ports(&topology, &x_first, 0, Lid(16)), [1, 1, 1, 3, 3, 3]);
        steering.common.port_orders = vec![vec![3, 4]; 16];
        let y_first = routed(&topology, &steering);
        assert_eq!(ports(&topology, &y_first, 0, Lid(16)), [3, 3, 3, 1, 1, 1]);
        assert!(verify::credit_loops(&topology, &y_first.tables()).is_free());
        for switch in (0..16).step_by(3) {
            steering.common.port_orders[switch].clear();
        }
        let mixed = routed(&topology, &steering);
        assert!(!verify::credit_loops(&topology, &mixed.tables()).is_free());
    }

    #[test]
    fn parallel_links_share_the_lids() {
        // Cables are crossed: the first port of one switch leads to the last port of the other.
        let cables = (1..=40).map(|port| ((0, port), (1, 81 - port)));
        let egress_switches =
            (0..2).flat_map(|egress_switch| std::iter::repeat_n(egress_switch, 20));
        let topology = testing::cabled(2, cables, egress_switches, 4);
        let routing = routed(&topology, &Steering::default());
        let mut used = [0; 41];
        (84..164).for_each(|lid| used[usize::from(routing.port(0, Lid(lid)))] += 1);
        assert_eq!(used[1..], [2; 40]);
    }
}

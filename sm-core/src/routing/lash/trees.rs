//! Shortest paths between all pairs of switches, as a tree for each that they lead to.

use super::super::Topology;
use super::super::sssp::{Distances, Walk};

/// The next link on the path from each switch to each other. Of several cables between two
/// switches, the one with the lowest port stands for all.
pub(super) struct Trees {
    switches: usize,
    /// By home and switch: which of the switch's links it is; `NO_LINK` without a path.
    next: Vec<u8>,
}

/// A switch has at most 254 links.
const NO_LINK: u8 = u8::MAX;

impl Trees {
    /// Chooses paths by load, or by low ports within a tolerance ([`Walk::route_together`]).
    pub(super) fn new(topology: &Topology, distances: &mut Distances<'_>, tolerance: f64) -> Self {
        let switches = topology.switch_count();
        let hosts = topology.hosts_on();
        let mut next = vec![NO_LINK; switches * switches];
        let mut walk = Walk::by_dimensions(topology);
        for (home, next) in topology.switches().zip(next.chunks_mut(switches.max(1))) {
            walk.begin(&distances.to(home));
            walk.route_together(hosts[usize::from(home)].max(1), tolerance);
            for &source in walk.sources() {
                let peer = walk.step(source).peer;
                let first = topology.links(source).iter().position(|link| link.peer == peer);
                next[usize::from(source)] = first.map_or(NO_LINK, |first| first as u8);
            }
        }
        Self { switches, next }
    }

    /// The number of the next link from a switch to a home, if there is a path.
    #[inline]
    pub(super) fn next(&self, topology: &Topology, switch: u16, home: u16) -> Option<u32> {
        let next = self.next[usize::from(home) * self.switches + usize::from(switch)];
        let first = topology.link_range(switch).start as u32;
        (next != NO_LINK).then(|| first + u32::from(next))
    }

    /// The port by which a switch sends the home's LID at `place`: each of several cables in turn.
    pub(super) fn port(
        &self,
        topology: &Topology,
        switch: u16,
        home: u16,
        place: usize,
    ) -> Option<u8> {
        let first = topology.link(self.next(topology, switch, home)? as usize);
        let cables = || topology.links(switch).iter().filter(|link| link.peer == first.peer);
        // Homes begin at different cables, or all that have one LID would share the first.
        let turn = (place + usize::from(home)) % cables().count();
        cables().nth(turn).map(|link| link.port)
    }

    /// Appends which links follow each other on the path from a switch to a home, the last first.
    pub(super) fn push_dependencies(
        &self,
        topology: &Topology,
        switch: u16,
        home: u16,
        dependencies: &mut Vec<(u32, u32)>,
    ) {
        let begin = dependencies.len();
        let mut before = self.next(topology, switch, home);
        while let Some(link) = before {
            before = self.next(topology, topology.link(link as usize).peer, home);
            dependencies.extend(before.map(|next| (link, next)));
        }
        dependencies[begin..].reverse();
    }
}

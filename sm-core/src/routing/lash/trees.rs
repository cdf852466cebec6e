//! Shortest paths between all pairs of switches, as a tree for each that they lead to.

use ib_mad::types::Lid;

use super::super::deal::Ways;
use super::super::hops::{First, list_sources};
use super::super::relief::{Effort, Relief, Stream};
use super::super::sssp::{Distances, Walk};
use super::super::{Entries, HopMatrix, NO_ROUTE, Topology};

/// The next link on the path from each switch to each other. Of several cables between two
/// switches, the one with the lowest port stands for all.
pub(super) struct Trees {
    switches: usize,
    /// By home and switch: which of the switch's links it is; `NO_LINK` without a path.
    next: Vec<u8>,
}

/// What goes to each home, as one.
fn streams(topology: &Topology) -> Vec<Stream> {
    let mut lids = vec![0u32; topology.switch_count()];
    for destination in topology.destinations().iter().filter(|to| to.is_host()) {
        lids[usize::from(destination.home)] += u32::from(destination.lid_count);
    }
    let homes = topology.switches().zip(lids).filter(|&(_, lids)| lids > 0);
    homes
        .map(|(home, weight)| {
            let lid = Lid(home);
            Stream { lid, home, weight, siblings: (lid, 1) }
        })
        .collect()
}

/// The first of several cables to a switch stands for all.
struct FirstCables<'a>(&'a Topology);

impl Ways for FirstCables<'_> {
    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        let first = self.0.links(switch).iter().position(|link| link.peer == peer);
        first.is_some_and(|first| self.0.link_range(switch).start + first == link as usize)
    }
}

/// A switch has at most 254 links.
const NO_LINK: u8 = u8::MAX;

impl Trees {
    /// Chooses paths by load, or by low ports within a tolerance ([`Walk::route_together`]). Yields
    /// the loads of links, too, where that of a cable is all that goes to the switch behind it.
    pub(super) fn new(
        topology: &Topology,
        distances: &mut Distances<'_>,
        tolerance: f64,
    ) -> (Self, Vec<u32>) {
        let switches = topology.switch_count();
        let hosts = topology.hosts_on();
        let mut next = vec![NO_LINK; switches * switches];
        let mut walk = Walk::by_dimensions(topology);
        for (home, next) in topology.switches().zip(next.chunks_mut(switches.max(1))) {
            walk.turn_to(&distances.to(home));
            walk.route_together(hosts[usize::from(home)].max(1), tolerance);
            for &source in walk.sources() {
                let peer = walk.step(source).peer;
                let first = topology.links(source).iter().position(|link| link.peer == peer);
                next[usize::from(source)] = first.map_or(NO_LINK, |first| first as u8);
            }
        }
        let trees = Self { switches, next };
        let loads = trees.loads(topology, distances);
        (trees, loads)
    }

    /// By link: routes of hosts to hosts' LIDs.
    fn loads(&self, topology: &Topology, distances: &mut Distances<'_>) -> Vec<u32> {
        let mut loads = vec![0u32; topology.link_count()];
        let hosts = topology.hosts_on();
        let (mut sources, mut flows) = (Vec::new(), hosts.clone());
        for Stream { home, weight, .. } in streams(topology) {
            list_sources(&mut sources, distances.to(home).levels(), First::Farthest);
            flows.copy_from_slice(&hosts);
            for &source in &sources {
                let Some(link) = self.next(topology, source, home) else { continue };
                let flow = flows[usize::from(source)];
                loads[link as usize] += flow * weight;
                flows[usize::from(topology.link(link as usize).peer)] += flow;
            }
        }
        loads
    }

    /// Routes on the cable with the most, by what [`Self::new`] says of links.
    pub(super) fn most(topology: &Topology, loads: &[u32]) -> u32 {
        let of_switch = |switch| {
            let links = topology.links(switch);
            let cables = |peer: u16| links.iter().filter(|link| link.peer == peer).count() as u32;
            let numbered = links.iter().zip(topology.link_range(switch));
            numbered.map(|(link, number)| loads[number].div_ceil(cables(link.peer))).max()
        };
        topology.switches().filter_map(of_switch).max().unwrap_or(0)
    }

    /// The same with paths moved away from the most loaded links; `hops` as by [`Distances::hops`].
    pub(super) fn relieved(
        &self,
        topology: &Topology,
        hops: &HopMatrix,
        loads: Vec<u32>,
    ) -> (Self, Vec<u32>) {
        // As tables with a column for each home.
        let port = |switch, home| {
            let next = self.next(topology, switch, home);
            next.map_or(NO_ROUTE, |link| topology.link(link as usize).port)
        };
        let table = |switch| topology.switches().map(|home| port(switch, home)).collect();
        let mut tables: Vec<Entries> = topology.switches().map(table).collect();
        let ways = FirstCables(topology);
        let relief = Relief::new(topology, hops, |_| &ways, loads, streams(topology));
        let loads = relief.run(&mut tables, None, Effort::ANEW, 0);
        let mut next = self.next.clone();
        for (home, next) in topology.switches().zip(next.chunks_mut(self.switches.max(1))) {
            for (switch, next) in topology.switches().zip(next) {
                let port = tables[usize::from(switch)][usize::from(home)];
                let link = topology.link_at(switch, port);
                *next =
                    link.map_or(NO_LINK, |link| (link - topology.link_range(switch).start) as u8);
            }
        }
        (Self { next, ..*self }, loads)
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

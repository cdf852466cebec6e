//! Stores shortest paths between all pairs of switches, as one tree per egress switch.

use ib_mad::types::Lid;

use crate::deal::PathRules;
use crate::engines::sssp::{Distances, Walk};
use crate::hops::{First, list_sources};
use crate::relief::{Effort, Relief, Stream};
use crate::{Entries, HopMatrix, NO_ROUTE, Topology};

/// The next link on the path from each switch to each other. Of several cables between two
/// switches, the one with the lowest port represents all.
pub(super) struct Trees {
    switches: usize,
    /// By egress switch and switch: index among the switch's links; `NO_LINK` without a path.
    next: Vec<u8>,
}

/// Returns one stream per egress switch, which represents all its hosts' LIDs.
fn streams(topology: &Topology) -> Vec<Stream> {
    let mut lids = vec![0u32; topology.switch_count()];
    for destination in topology.destinations().iter().filter(|to| to.is_host()) {
        lids[usize::from(destination.egress_switch)] += u32::from(destination.lid_count);
    }
    let egress_switches = topology.switches().zip(lids).filter(|&(_, lids)| lids > 0);
    egress_switches
        .map(|(egress_switch, weight)| {
            let lid = Lid(egress_switch);
            Stream { lid, egress_switch, weight, siblings: (lid, 1) }
        })
        .collect()
}

/// Allows only the first of several cables to a switch.
struct FirstCables<'a>(&'a Topology);

impl PathRules for FirstCables<'_> {
    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        let first = self.0.links(switch).iter().position(|link| link.peer == peer);
        first.is_some_and(|first| self.0.link_range(switch).start + first == link as usize)
    }
}

/// Marks that there is no link; a switch has at most 254 links.
const NO_LINK: u8 = u8::MAX;

impl Trees {
    /// Chooses paths by load, or by low ports within a tolerance ([`Walk::route_together`]). Also
    /// returns the loads of links, where the first cable to a switch carries the load of all cables
    /// to it.
    pub(super) fn new(
        topology: &Topology,
        distances: &mut Distances<'_>,
        tolerance: f64,
    ) -> (Self, Vec<u32>) {
        let switches = topology.switch_count();
        let hosts = topology.hosts_on();
        let mut next = vec![NO_LINK; switches * switches];
        let mut walk = Walk::by_dimensions(topology);
        for (egress_switch, next) in topology.switches().zip(next.chunks_mut(switches.max(1))) {
            walk.turn_to(&distances.to(egress_switch));
            walk.route_together(hosts[usize::from(egress_switch)].max(1), tolerance);
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
        for Stream { egress_switch, weight, .. } in streams(topology) {
            list_sources(&mut sources, distances.to(egress_switch).levels(), First::Farthest);
            flows.copy_from_slice(&hosts);
            for &source in &sources {
                let Some(link) = self.next(topology, source, egress_switch) else { continue };
                let flow = flows[usize::from(source)];
                loads[link as usize] += flow * weight;
                flows[usize::from(topology.link(link as usize).peer)] += flow;
            }
        }
        loads
    }

    /// Routes on the most loaded cable; `loads` are as returned by [`Self::new`].
    pub(super) fn most(topology: &Topology, loads: &[u32]) -> u32 {
        let of_switch = |switch| {
            let links = topology.links(switch);
            let cables = |peer: u16| links.iter().filter(|link| link.peer == peer).count() as u32;
            let numbered = links.iter().zip(topology.link_range(switch));
            numbered.map(|(link, number)| loads[number].div_ceil(cables(link.peer))).max()
        };
        topology.switches().filter_map(of_switch).max().unwrap_or(0)
    }

    /// Returns paths with routes moved away from the most loaded links; `hops` is as in
    /// [`Distances::hops`].
    pub(super) fn relieved(
        &self,
        topology: &Topology,
        hops: &HopMatrix,
        loads: Vec<u32>,
    ) -> (Self, Vec<u32>) {
        // Represented as tables with a column for each egress switch.
        let port = |switch, egress_switch| {
            let next = self.next(topology, switch, egress_switch);
            next.map_or(NO_ROUTE, |link| topology.link(link as usize).port)
        };
        let table =
            |switch| topology.switches().map(|egress_switch| port(switch, egress_switch)).collect();
        let mut tables: Vec<Entries> = topology.switches().map(table).collect();
        let path_rules = FirstCables(topology);
        let relief = Relief::new(topology, hops, |_| &path_rules, loads, streams(topology));
        let loads = relief.run(&mut tables, None, Effort::NEW_TABLES, 0);
        let mut next = self.next.clone();
        for (egress_switch, next) in topology.switches().zip(next.chunks_mut(self.switches.max(1)))
        {
            for (switch, next) in topology.switches().zip(next) {
                let port = tables[usize::from(switch)][usize::from(egress_switch)];
                let link = topology.link_at(switch, port);
                *next =
                    link.map_or(NO_LINK, |link| (link - topology.link_range(switch).start) as u8);
            }
        }
        (Self { next, ..*self }, loads)
    }

    /// The number of the next link from a switch to an egress switch, if there is a path.
    #[inline]
    pub(super) fn next(&self, topology: &Topology, switch: u16, egress_switch: u16) -> Option<u32> {
        let next = self.next[usize::from(egress_switch) * self.switches + usize::from(switch)];
        let first = topology.link_range(switch).start as u32;
        (next != NO_LINK).then(|| first + u32::from(next))
    }

    /// The port by which a switch forwards the egress switch's LID at index `place`; parallel
    /// cables are used in turn.
    pub(super) fn port(
        &self,
        topology: &Topology,
        switch: u16,
        egress_switch: u16,
        place: usize,
    ) -> Option<u8> {
        let first = topology.link(self.next(topology, switch, egress_switch)? as usize);
        let cables = || topology.links(switch).iter().filter(|link| link.peer == first.peer);
        // Egress switches start at different cables. Otherwise all egress switches with a single
        // LID would share the first cable.
        let turn = (place + usize::from(egress_switch)) % cables().count();
        cables().nth(turn).map(|link| link.port)
    }

    /// Appends the dependencies of the path from a switch to an egress switch, last first.
    pub(super) fn push_dependencies(
        &self,
        topology: &Topology,
        switch: u16,
        egress_switch: u16,
        dependencies: &mut Vec<(u32, u32)>,
    ) {
        let begin = dependencies.len();
        let mut before = self.next(topology, switch, egress_switch);
        while let Some(link) = before {
            before = self.next(topology, topology.link(link as usize).peer, egress_switch);
            dependencies.extend(before.map(|next| (link, next)));
        }
        dependencies[begin..].reverse();
    }
}

//! The routing before, as an engine sees it.

use sa_proto::snapshot::Entries;

use crate::hops::HopMatrix;
use crate::routing::Routing;
use crate::topology::Topology;
use crate::tree::TreeTables;

/// The previous routing, from which an engine keeps routes where possible.
#[derive(Clone, Debug)]
pub struct Previous<'a> {
    /// The previous topology.
    pub topology: &'a Topology,
    /// The previous hops ([`Routing::hops`]); `None` if another SM computed the tables: then the
    /// previous topology is assumed to equal the current one.
    pub hops: Option<&'a HopMatrix>,
    /// The previous tables, by switch of the previous topology; empty if there were none.
    pub lfts: Vec<&'a Entries>,
    /// For each switch of the current topology, its number in the previous one.
    pub switches: Vec<Option<u16>>,
    /// The previous link loads ([`Routing::loads`]); empty if they are not known.
    pub loads: &'a [u32],
    /// The previous tables of a tree ([`Routing::tree`]), if there were any.
    pub tree: Option<&'a TreeTables>,
}

impl<'a> Previous<'a> {
    /// Wraps a routing whose switches still have the same numbers.
    pub fn same_switches(topology: &'a Topology, routing: &'a Routing) -> Self {
        Self {
            topology,
            hops: Some(&routing.hops),
            lfts: routing.lfts.iter().collect(),
            switches: topology.switches().map(Some).collect(),
            loads: &routing.loads,
            tree: routing.tree.as_deref(),
        }
    }

    /// Whether switches have kept their numbers and LIDs lead to the same ports.
    pub(crate) fn is_of_same_ports(&self, topology: &Topology) -> bool {
        self.is_of_same_switches(topology)
            && self.topology.destinations() == topology.destinations()
    }

    /// Whether switches have kept their numbers.
    pub(crate) fn is_of_same_switches(&self, topology: &Topology) -> bool {
        self.topology.switch_count() == topology.switch_count()
            && topology.switches().all(|switch| self.switch(switch) == Some(switch))
    }

    /// The number of a switch in the previous topology; `None` if it is new.
    pub fn switch(&self, now: u16) -> Option<u16> {
        let then = self.switches.get(usize::from(now)).copied().flatten();
        then.filter(|&then| usize::from(then) < self.topology.switch_count())
    }

    /// The previous table of a switch, empty if the switch is new.
    pub fn lft(&self, now: u16) -> &'a [u8] {
        self.entries(now).map_or(&[], |lft| lft)
    }

    /// The previous table of a switch, to be shared; `None` if the switch is new.
    pub fn entries(&self, now: u16) -> Option<&'a Entries> {
        self.lfts.get(usize::from(self.switch(now)?)).copied()
    }
}

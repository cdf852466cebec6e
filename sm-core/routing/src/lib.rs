//! Unicast routing engines, multicast trees, and verification of forwarding tables.
//!
//! A routing engine is a pure function of the frozen [`Topology`], the operator's options
//! ([`Steering`]) and the previous tables, so that routes that need not change stay. The crate has
//!
//! - [`engines`]: the engines, a module each, their list by name, and their options;
//! - what they share: [`topology`], [`hops`], [`lanes`], [`error`];
//! - [`verify`], which proves that tables deliver and looks for credit loops, and [`balance`],
//!   which counts routes per link;
//! - [`program`], the order in which tables are written to switches;
//! - [`multicast`], spanning trees of groups.
//!
//! Everything is indices and port numbers. Not here: GUIDs, nodes and the fabric's arenas
//! (`fabric`), LID assignment (`manage`), SMPs (`sweep`).
//!
//! Terms: the *egress switch* of a LID is the switch that delivers to its port (`egress_switch` in
//! code), and the *exit* is the port by which it does. A *route* is the sequence of entries from a
//! switch to a LID, and a *path* a sequence of links. A *turn* is a pair of links that a packet
//! takes one after the other. A *layer* is a set of routes that share a virtual lane.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod balance;
mod deal;
pub mod engines;
pub mod error;
pub mod hops;
pub mod hosts;
pub mod label;
pub mod lanes;
mod layering;
pub mod multicast;
pub mod options;
pub mod program;
mod regions;
mod relief;
mod repair;
mod tables;
#[cfg(test)]
mod testing;
pub mod text;
pub mod topology;
mod upstream;
pub mod verify;

pub use engines::{Dfsssp, Dor, FTree, FromFile, Lash, MinHop, Nue, Sssp, Torus2Qos, UpDown};
pub use engines::{Steering, file, ftree, torus, updn};
pub use error::{Reason, RoutingError};
pub use hops::HopMatrix;
pub use label::DisplayWith;
pub use lanes::{Lanes, Layers};
pub use options::{CommonOptions, Ties};
pub use repair::is_kept_unseen;
pub use topology::{Destination, Link, Topology, TopologyBuilder, TopologyError};

use std::fmt;

use ib_mad::types::Lid;
use sa_proto::snapshot::Entries;

/// The entry of a forwarding table for a LID that has no route.
pub const NO_ROUTE: u8 = 255;
/// Entries of a block of a forwarding table.
pub const BLOCK_LEN: usize = 64;

/// A routing engine. Equal inputs must give equal routings: no clocks, no random seeds, no hash
/// iteration order. Engines do not promise that the result is free of credit loops;
/// [`verify::credit_loops`] checks it.
pub trait Engine: fmt::Debug + Send + Sync {
    /// The name used in `routing_engine`, in logs and as a metric label.
    fn name(&self) -> &'static str;

    /// Whether the engine itself keeps previous routes where possible, with these options.
    fn keeps_routes(&self, _steering: &Steering) -> bool {
        true
    }

    /// Routes all destinations with the options in `steering`. Routes that need not change are kept
    /// from `previous`; without it all are computed from scratch. A LID that cannot be reached gets
    /// [`NO_ROUTE`]; that is not an error.
    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError>;
}

/// Forwarding tables of all switches.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Name of the engine that computed them.
    pub engine: &'static str,
    /// By switch: the egress port by LID, in whole blocks of [`BLOCK_LEN`] entries up to the
    /// topology's last LID; all of the same length. Unchanged tables are shared with the previous
    /// routing.
    pub lfts: Vec<Entries>,
    /// A number that falls at each step of a route, which proves that routes end. Rows are
    /// switches, columns egress switches. Engines with shortest paths store the remaining hops.
    pub hops: HopMatrix,
    /// The virtual lanes that routes take.
    pub lanes: Lanes,
    /// Number of pairs of a switch and a LID without a route.
    pub unreachable: u64,
    /// By link number of the topology: number of routes from hosts to hosts' LIDs. Empty if the
    /// engine has not counted them.
    pub loads: Vec<u32>,
}

/// Loads follow from the tables and are not compared.
impl PartialEq for Routing {
    fn eq(&self, other: &Self) -> bool {
        let Self { engine, lfts, hops, lanes, unreachable, loads: _ } = self;
        (engine, lfts, hops, lanes, unreachable)
            == (&other.engine, &other.lfts, &other.hops, &other.lanes, &other.unreachable)
    }
}

impl Eq for Routing {}

impl Routing {
    /// The tables, by switch.
    pub fn tables(&self) -> Vec<&[u8]> {
        self.lfts.iter().map(|lft| &**lft).collect()
    }

    /// The egress port of a switch for a LID; [`NO_ROUTE`] beyond the tables.
    pub fn port(&self, switch: u16, lid: Lid) -> u8 {
        let lft = self.lfts.get(usize::from(switch));
        lft.and_then(|lft| lft.get(lid.index())).copied().unwrap_or(NO_ROUTE)
    }
}

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

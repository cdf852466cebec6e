//! From a fabric's links to its forwarding tables.
//!
//! A routing engine is a pure function: of the frozen [`Topology`] and of the tables before, so
//! that routes which need not change stay. Here are the engines ([`minhop`], [`updn`], [`ftree`],
//! [`dor`], [`sssp`], [`dfsssp`], [`lash`], [`nue`], [`mod@torus`], [`mod@file`]; all of them:
//! [`catalog`]), what they build on ([`topology`], [`hops`]), what tells whether tables are right
//! ([`verify`]) and good
//! ([`balance`]), the order in which tables are written to switches ([`program`]), and trees for
//! [`multicast`] groups. Everything is indices and port numbers; what is not here: GUIDs, nodes and
//! the fabric's arenas (`fabric`), LID assignment (`manage`), SMPs (`sweep`).

pub mod balance;
pub mod catalog;
mod deal;
pub mod dfsssp;
pub mod dor;
pub mod file;
pub mod ftree;
pub mod hops;
pub mod hosts;
pub mod lanes;
pub mod lash;
mod layering;
pub mod minhop;
pub mod multicast;
pub mod nue;
pub mod program;
mod regions;
mod relief;
mod repair;
pub mod sssp;
pub mod steering;
mod tables;
#[cfg(test)]
mod testing;
pub mod topology;
pub mod torus;
pub mod updn;
mod upstream;
pub mod verify;
pub mod words;

pub use dfsssp::Dfsssp;
pub use dor::Dor;
pub use file::FromFile;
pub use ftree::FTree;
pub use hops::HopMatrix;
pub use lanes::{Lanes, Layers};
pub use lash::Lash;
pub use minhop::MinHop;
pub use nue::Nue;
pub(crate) use repair::is_kept_unseen;
pub use sssp::Sssp;
pub use steering::{Steering, Ties};
pub use topology::{Destination, Link, Topology, TopologyBuilder, TopologyError};
pub use torus::Torus2Qos;
pub use updn::UpDown;

use std::fmt;

use ib_mad::types::Lid;
use sa_proto::snapshot::Entries;

/// The entry of a forwarding table for a LID that has no route.
pub const NO_ROUTE: u8 = 255;
/// Entries of a block of a forwarding table.
pub const BLOCK_LEN: usize = 64;

/// Equal inputs must give equal routings: no clocks, no random seeds, no hash iteration order.
/// Whether the result is free of credit loops is checked by [`verify::credit_loops`], not promised.
pub trait Engine: fmt::Debug + Send + Sync {
    /// The name used in `routing_engine`, in logs and as a metric label.
    fn name(&self) -> &'static str;

    /// Whether, asked like this, it keeps routes from before by itself as far as it can.
    fn keeps_routes(&self, _steering: &Steering) -> bool {
        true
    }

    /// Routes all destinations as `steering` asks. Routes that need not change are kept from
    /// `previous`; without it everything is routed anew. What cannot be reached has [`NO_ROUTE`];
    /// that is no error.
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
    /// Name of the engine that made them.
    pub engine: &'static str,
    /// By switch: the egress port by LID, in whole blocks of [`BLOCK_LEN`] entries up to the
    /// topology's last LID; equally long for all switches. Those that are as before are shared with
    /// the routing before.
    pub lfts: Vec<Entries>,
    /// What falls at each step of every route, which proves that routes end: row a switch, column
    /// the destination's home switch. Hops left, where an engine takes the shortest ways.
    pub hops: HopMatrix,
    /// The virtual lanes that routes take.
    pub lanes: Lanes,
    /// Pairs of a switch and a LID without a route between them.
    pub unreachable: u64,
    /// By link as the topology numbers them: routes of hosts to hosts' LIDs. Empty if the engine has
    /// not counted them.
    pub loads: Vec<u32>,
}

/// Loads follow from the tables and do not count.
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

/// What was routed before, for an engine to keep what it can. The balance, or lack of it, is kept
/// with the routes.
#[derive(Clone, Debug)]
pub struct Previous<'a> {
    /// The topology then.
    pub topology: &'a Topology,
    /// The hops then ([`Routing::hops`]); `None` if another SM made the tables, for a topology that
    /// is taken to have been as it is now.
    pub hops: Option<&'a HopMatrix>,
    /// The tables then, by switch of the topology then; empty if there was none.
    pub lfts: Vec<&'a Entries>,
    /// For each switch of the topology now, which it was then.
    pub switches: Vec<Option<u16>>,
    /// The loads of links then ([`Routing::loads`]); empty if they are not known.
    pub loads: &'a [u32],
}

impl<'a> Previous<'a> {
    /// A routing whose switches still have the same numbers.
    pub fn same_switches(topology: &'a Topology, routing: &'a Routing) -> Self {
        Self {
            topology,
            hops: Some(&routing.hops),
            lfts: routing.lfts.iter().collect(),
            switches: topology.switches().map(Some).collect(),
            loads: &routing.loads,
        }
    }

    /// Whether the switches are those from then, with the same numbers, and LIDs lead to the same ports.
    pub(crate) fn is_of_same_ports(&self, topology: &Topology) -> bool {
        self.is_of_same_switches(topology)
            && self.topology.destinations() == topology.destinations()
    }

    /// Whether the switches are those from then, with the same numbers.
    pub(crate) fn is_of_same_switches(&self, topology: &Topology) -> bool {
        self.topology.switch_count() == topology.switch_count()
            && topology.switches().all(|switch| self.switch(switch) == Some(switch))
    }

    /// What a switch was then; `None` if it is new.
    pub fn switch(&self, now: u16) -> Option<u16> {
        let then = self.switches.get(usize::from(now)).copied().flatten();
        then.filter(|&then| usize::from(then) < self.topology.switch_count())
    }

    /// The table of a switch then, empty if it is new.
    pub fn lft(&self, now: u16) -> &'a [u8] {
        self.entries(now).map_or(&[], |lft| lft)
    }

    /// The table of a switch then, to be shared; `None` if it is new.
    pub fn entries(&self, now: u16) -> Option<&'a Entries> {
        self.lfts.get(usize::from(self.switch(now)?)).copied()
    }
}

/// Why an engine cannot route a fabric. Another engine may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// The fabric is not of the kind that the engine is made for, or the operator's choices do not
    /// fit it.
    #[error("{engine} cannot route this fabric: {reason}")]
    Unsuitable {
        /// The engine.
        engine: &'static str,
        /// What is missing, or in the way.
        reason: String,
    },
    /// Routes without credit loops need more virtual lanes than there are.
    #[error("{engine} needs more than the {lanes} virtual lanes that all ports have")]
    TooFewLanes {
        /// The engine.
        engine: &'static str,
        /// Data VLs that all ports have.
        lanes: u8,
    },
    /// More switches than the engine's tables are made for.
    #[error("{engine} routes up to {max} switches, and there are {switches}")]
    TooManySwitches {
        /// The engine.
        engine: &'static str,
        /// Switches of the topology.
        switches: usize,
        /// The most that it takes.
        max: usize,
    },
}

//! Unicast routing engines, multicast trees, and verification of forwarding tables.
//!
//! A routing engine is a pure function of the frozen [`Topology`], the operator's options
//! ([`Steering`]) and the previous tables, so that routes that need not change stay. The crate has
//!
//! - [`engines`]: the engines, a module each, their list by name, and their options;
//! - what an engine is, takes and returns: [`Engine`], [`Steering`], [`Previous`], [`Routing`];
//! - what they share: [`topology`], [`hops`], [`lanes`], [`error`];
//! - `tree`, which recognises fat trees and routes them for all engines that can;
//! - [`verify`], which proves that tables deliver and looks for credit loops, and [`balance`],
//!   which counts routes per link, and [`measure`], congestion of traffic patterns;
//! - [`program`], the order in which tables are written to switches;
//! - [`multicast`], spanning trees of groups;
//! - [`planes`], which joins the routings of the planes of a planarized fabric.
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
mod inflow;
pub mod label;
pub mod lanes;
mod layering;
pub mod measure;
pub mod multicast;
pub mod options;
pub mod planes;
mod port_mask;
mod previous;
pub mod program;
mod regions;
mod relief;
mod repair;
mod routing;
mod tables;
#[cfg(test)]
mod testing;
pub mod text;
pub mod topology;
mod tree;
mod upstream;
pub mod verify;

pub use engines::{
    Dfsssp, Dla, Dor, Engine, FTree, FromFile, Lash, LayeredPaths, MinHop, Nue, Sssp, Torus2Qos,
    UpDown,
};
pub use engines::{Steering, file, ftree, torus, updn};
pub use error::{Reason, RoutingError};
pub use hops::HopMatrix;
pub use label::DisplayWith;
pub use lanes::{Lanes, Layers};
pub use options::{CommonOptions, Ties};
pub use port_mask::PortMask;
pub use previous::Previous;
pub use repair::is_kept_unseen;
pub use routing::{NO_ROUTE, Routing};
pub use topology::{BLOCK_LEN, Destination, Link, Topology, TopologyBuilder, TopologyError};
pub use tree::{TreeTables, tree_ranks};

use sa_proto::snapshot::Entries;

//! Parses operators' files, and holds the checked settings of `opensm.conf`.
//!
//! - [`Settings`]: the keys of OpenSM's configuration file that ibsm uses, each with its range.
//! - [`mod@file`]: parsing and rendering that file.
//! - [`opafm`][]: virtual fabrics from an `opafm.xml`.
//! - [`qos_policy`][]: `qos-policy.conf`.
//! - [`SitePolicy`]: files that may change while the program runs: [`partitions`],
//!   [`prefix_routes`], [`routing_files`].
//!
//! Nothing here opens a file; the caller passes a function that reads one ([`ReadFile`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod congestion;
mod engine_keys;
mod engines;
mod event_plugin;
pub mod file;
mod key;
mod keys;
pub mod node_names;
pub mod opafm;
pub mod partitions;
mod policy_file;
pub mod prefix_routes;
pub mod qos_policy;
mod qos_tables;
mod qos_values;
pub mod ranges;
mod remarks;
pub mod routing_files;
mod settings;
mod shared;
mod site;
#[cfg(test)]
pub(crate) mod testing;
mod value;
mod verify;

use std::io;
use std::path::Path;

pub use congestion::PortMarking;
pub use engines::instead;
pub use event_plugin::EventCommand;
pub use file::{FileError, Parsed, nearest_of};
pub use key::{Effect, Key};
pub use node_names::NodeNames;
pub use partitions::PartitionConfig;
pub use policy_file::PolicyError;
pub use qos_tables::{PortQos, QosTables};
pub use qos_values::{SlToVl, VL_ARB_ENTRIES, VlArb};
pub use remarks::Remarks;
pub use routing_files::RoutingFiles;
pub use settings::{MAX_WIRE_SMPS_LIMIT, Settings};
pub use shared::SETTINGS;
pub use site::{Reading, SitePolicy};
pub use value::parse_number;
pub use value::{EngineNames, PartEnforce, ValueError};
pub use verify::verify;

/// Reads a whole file of at most the given number of bytes. A longer file fails with
/// [`io::ErrorKind::FileTooLarge`].
pub type ReadFile<'a> = &'a dyn Fn(&Path, u64) -> io::Result<Vec<u8>>;

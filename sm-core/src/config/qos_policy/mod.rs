//! `qos-policy.conf`: which paths get which service level, MTU, rate and P_Key.
//!
//! What is here is what the file says, checked as far as a file can be checked by itself: the
//! grammar of OpenSM's parser, ranges of numbers, names that rules refer to. What ports its groups
//! have depends on the fabric and is `manage::qos`'s business. A file with one bad line is refused
//! as a whole, so that half a policy is never in force; the caller keeps the one it had.
//!
//! - [`parse`] makes a [`QosPolicy`]; [`QosPolicyError`] says where and why not.
//! - [`ulp`]: the simple section `qos-ulps`, whose lines become rules of one criterion.

mod cursor;
mod error;
mod section;
mod setup;
#[cfg(test)]
mod tests;
pub mod ulp;
mod value;

use std::path::Path;

use ib_mad::types::{Lifetime, Mtu, Rate, Sl};

use super::ranges::Ranges;
pub use error::{Others, QosPolicyError, Reason};
pub use ulp::{Criterion, UlpRule};
pub use value::Name;

/// Most rules of a file, `qos-match-rules` and `qos-ulps` together.
pub const RULES_MAX: usize = 8192;

/// Most port groups, and most levels.
pub const GROUPS_MAX: usize = 8192;

/// Name of the level for requests that match no rule.
pub const DEFAULT_LEVEL: &str = "DEFAULT";

/// What a policy file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosPolicy {
    /// `port-groups`, in the order of the file.
    pub port_groups: Vec<PortGroup>,
    /// `qos-levels`, in the order of the file.
    pub levels: Vec<Level>,
    /// `qos-match-rules`, in the order of the file.
    pub rules: Vec<MatchRule>,
    /// `qos-ulps`, in the order of the file. They come after all of `rules`.
    pub ulps: Vec<UlpRule>,
    /// `default` of `qos-ulps`: the SL of what matches nothing, unless there is a level DEFAULT.
    pub default_sl: Option<Sl>,
}

/// A set of ports, to be referred to by rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortGroup {
    /// Name, compared without regard to case.
    pub name: Name,
    /// What it is for; a comment.
    pub usage: String,
    /// Line where it begins.
    pub line: usize,
    /// GUIDs of ports.
    pub port_guids: Ranges,
    /// Ports by the description of their node.
    pub port_names: Vec<PortName>,
    /// Members of partitions with these P_Keys, 15 bits.
    pub pkeys: Ranges,
    /// Members of partitions with these names.
    pub partitions: Vec<Name>,
    /// Ports by the kind of their node.
    pub node_types: NodeTypes,
}

/// `node description/Pnumber`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// NodeDescription of the port's node.
    pub node: Name,
    /// The port's number.
    pub port: u8,
    /// Line where it stands.
    pub line: usize,
}

/// Kinds of nodes whose ports are in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTypes {
    /// Channel adapters.
    pub ca: bool,
    /// Switches.
    pub switch: bool,
    /// Routers.
    pub router: bool,
    /// The port that the SM runs on.
    pub sm: bool,
}

/// What paths get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Name, compared without regard to case.
    pub name: Name,
    /// What it is for; a comment.
    pub usage: String,
    /// Line where it begins.
    pub line: usize,
    /// Service level.
    pub sl: Sl,
    /// Greatest MTU.
    pub mtu_limit: Option<Mtu>,
    /// Greatest rate.
    pub rate_limit: Option<Rate>,
    /// Lifetime of packets, stated as it is.
    pub packet_life: Option<Lifetime>,
    /// Path bits. Like in OpenSM they have no effect.
    pub path_bits: Ranges,
    /// P_Keys allowed, 15 bits; empty allows all.
    pub pkeys: Ranges,
}

/// Requests that get a level. Criteria that are empty do not matter; all others have to be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchRule {
    /// What it is for; a comment.
    pub usage: String,
    /// Line where it begins.
    pub line: usize,
    /// QoS classes, 12 bits.
    pub qos_classes: Ranges,
    /// Groups that the source is in one of, by index.
    pub sources: Vec<usize>,
    /// Groups that the destination is in one of, by index.
    pub destinations: Vec<usize>,
    /// Service IDs.
    pub service_ids: Ranges,
    /// P_Keys, 15 bits.
    pub pkeys: Ranges,
    /// The level, by index.
    pub level: usize,
}

impl QosPolicy {
    /// The level for what matches no rule, if there is one with this name.
    pub fn default_level(&self) -> Option<usize> {
        self.levels.iter().position(|level| level.name.is(DEFAULT_LEVEL))
    }
}

/// Parses the text of a policy file; `path` is for messages.
pub fn parse(path: &Path, text: &str) -> Result<QosPolicy, QosPolicyError> {
    section::policy(text).map_err(|faults| QosPolicyError::new(path, faults))
}

//! Parses `qos-policy.conf`, which assigns service level, MTU, rate and P_Key to paths.
//!
//! The content is checked as far as a file can be checked by itself: the grammar of OpenSM's
//! parser, ranges of numbers, names that rules refer to. The ports of its groups depend on the
//! fabric; `manage::qos` determines them. A file with one bad line is rejected as a whole, so that
//! half a policy is never in force; the caller keeps the previous one.
//!
//! - [`parse`] returns a [`QosPolicy`], or a [`QosPolicyError`] with the line and the reason.
//! - [`ulp`]: the simple section `qos-ulps`, whose lines become rules of one criterion.

mod cursor;
mod error;
mod place;
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

/// Largest number of rules in a file, `qos-match-rules` and `qos-ulps` together.
pub const RULES_MAX: usize = 8192;

/// Largest number of port groups, and of levels.
pub const GROUPS_MAX: usize = 8192;

/// Name of the level for requests that match no rule.
pub const DEFAULT_LEVEL: &str = "DEFAULT";

/// The content of a policy file.
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
    /// `default` of `qos-ulps`: the SL of requests that match no rule, unless there is a level
    /// DEFAULT.
    pub default_sl: Option<Sl>,
}

/// A named set of ports, for use in rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortGroup {
    /// Name, compared without regard to case.
    pub name: Name,
    /// Description; a comment.
    pub usage: String,
    /// Line number of its start, from 1.
    pub line: usize,
    /// GUIDs of ports.
    pub port_guids: Ranges,
    /// Ports by NodeDescription and port number.
    pub port_names: Vec<PortName>,
    /// Ports that are members of partitions with these P_Keys, 15 bits.
    pub pkeys: Ranges,
    /// Ports that are members of partitions with these names.
    pub partitions: Vec<Name>,
    /// Ports by node type.
    pub node_types: NodeTypes,
}

/// `node description/Pnumber`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// NodeDescription of the port's node.
    pub node: Name,
    /// The port's number.
    pub port: u8,
    /// Line number, from 1.
    pub line: usize,
}

/// Node types whose ports are in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTypes {
    /// Channel adapters.
    pub ca: bool,
    /// Switches.
    pub switch: bool,
    /// Routers.
    pub router: bool,
    /// The port on which the SM runs.
    pub sm: bool,
}

/// Properties of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Name, compared without regard to case.
    pub name: Name,
    /// Description; a comment.
    pub usage: String,
    /// Line number of its start, from 1.
    pub line: usize,
    /// Service level.
    pub sl: Sl,
    /// Largest MTU.
    pub mtu_limit: Option<Mtu>,
    /// Largest rate.
    pub rate_limit: Option<Rate>,
    /// Packet lifetime, reported unchanged.
    pub packet_life: Option<Lifetime>,
    /// Path bits. As in OpenSM they have no effect.
    pub path_bits: Ranges,
    /// Allowed P_Keys, 15 bits; if empty, all are allowed.
    pub pkeys: Ranges,
}

/// A rule that assigns a level to requests. Empty criteria match anything; all others must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchRule {
    /// Description; a comment.
    pub usage: String,
    /// Line number of its start, from 1.
    pub line: usize,
    /// QoS classes, 12 bits.
    pub qos_classes: Ranges,
    /// Indices of groups; the source must be in one of them.
    pub sources: Vec<usize>,
    /// Indices of groups; the destination must be in one of them.
    pub destinations: Vec<usize>,
    /// Service IDs.
    pub service_ids: Ranges,
    /// P_Keys, 15 bits.
    pub pkeys: Ranges,
    /// Index of the level.
    pub level: usize,
}

impl QosPolicy {
    /// The level for requests that match no rule, if there is one with this name.
    pub fn default_level(&self) -> Option<usize> {
        self.levels.iter().position(|level| level.name.is(DEFAULT_LEVEL))
    }
}

/// Parses the text of a policy file; `path` is for messages.
pub fn parse(path: &Path, text: &str) -> Result<QosPolicy, QosPolicyError> {
    section::policy(text).map_err(|faults| QosPolicyError::new(path, faults))
}

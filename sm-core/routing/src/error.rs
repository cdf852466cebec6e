//! Reasons why an engine cannot route a fabric, as data that a caller can match on and as text.
//!
//! Errors carry switch numbers; [`label`](super::label) turns them into names.

mod defect;
mod dragonfly;
mod torus;

use std::fmt;

use ib_mad::types::Lid;

use super::HopMatrix;
use super::label::{DisplayWith, SwitchLabel, switch_number};
pub use defect::{Defect, DefectKind};
pub use dragonfly::DragonflyRefusal;
pub use torus::{AXES, AXIS_NAMES, Refusal};

/// Reports that an engine cannot route a fabric. Another engine may be able to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingError {
    /// Name of the engine.
    pub engine: &'static str,
    /// Why the engine cannot route the fabric.
    pub reason: Reason,
}

impl std::error::Error for RoutingError {}

impl fmt::Display for RoutingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_with(f, &switch_number)
    }
}

impl DisplayWith for RoutingError {
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, label: &SwitchLabel<'_>) -> fmt::Result {
        let Self { engine, reason } = self;
        write!(f, "{engine} cannot route this fabric: {}", reason.display_with(label))
    }
}

/// Why an engine cannot route a fabric: a limit, the fabric's shape, or options that do not fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Routes without credit loops need more virtual lanes than exist.
    TooFewLanes {
        /// Number of data VLs that all ports have.
        lanes: u8,
    },
    /// The fabric has more switches than the engine supports.
    TooManySwitches {
        /// Number of switches in the topology.
        switches: usize,
        /// Largest number of switches that the engine supports.
        max: usize,
    },
    /// `updn` found no switch that could be a root.
    NoRoots,
    /// No switch has hosts.
    NoHosts,
    /// The up/down rule leaves two switches with hosts without a route.
    NoUpDownRoute {
        /// Source switch of the missing route.
        from: u16,
        /// Destination switch of the missing route.
        to: u16,
        /// Whether the engine supports `io_guid_file` and `max_reverse_hops`, which allow more
        /// routes.
        takes_io_nodes: bool,
    },
    /// The fabric is too small for a fat tree.
    TooSmallForTree {
        /// Number of switches in the topology.
        switches: usize,
        /// Number of hosts on them.
        hosts: usize,
    },
    /// None of the compute nodes listed in `cn_guid_file` is in the fabric.
    NoComputeNodes,
    /// Switches with compute nodes are at different ranks.
    UnequalLeaves {
        /// A switch with compute nodes, and its rank.
        first: (u16, u16),
        /// A switch at a different rank, and that rank.
        other: (u16, u16),
    },
    /// The tree has too few or too many ranks.
    RankCount {
        /// Number of ranks in the tree.
        ranks: u16,
        /// Smallest number of ranks that `ftree` supports.
        min: u16,
        /// Largest number of ranks that `ftree` supports.
        max: u16,
    },
    /// A link joins two switches of the same rank.
    LinkWithinRank {
        /// Switch at one end of the link.
        switch: u16,
        /// Port of `switch`.
        port: u8,
        /// Switch at the other end.
        peer: u16,
        /// Rank of both switches.
        rank: u16,
    },
    /// The number of hop weights differs from the number of links.
    HopWeights {
        /// Number of weights given.
        weights: usize,
        /// Number of links in the topology.
        links: usize,
    },
    /// `lash_start_vl` leaves no virtual lane to use.
    NoLaneFromStart {
        /// First VL that may be used.
        start: u8,
        /// Number of data VLs that all ports have.
        lanes: u8,
    },
    /// The engine `file` has neither tables nor hops.
    NoTables,
    /// Entries of a table file do not deliver packets.
    DefectiveTables {
        /// Number of wrong entries.
        defects: u64,
        /// The first wrong entry.
        first: Defect,
    },
    /// A table file forwards a LID by a port that does not lead to a switch.
    NoSwitchBehindPort {
        /// The switch.
        switch: u16,
        /// The LID.
        lid: Lid,
        /// The port.
        port: u8,
    },
    /// A table file forwards a LID to a switch that has no route to it.
    NoRouteOnward {
        /// The switch that forwards.
        switch: u16,
        /// The LID.
        lid: Lid,
        /// The next switch, which has no route.
        next: u16,
    },
    /// A route to an egress switch is longer than the largest hop count.
    RouteTooLong {
        /// The egress switch.
        egress: u16,
    },
    /// Routes of a table file form a loop, or routes to two LIDs of an egress switch use the same
    /// links in opposite directions.
    Circular {
        /// A switch on such a route.
        switch: u16,
        /// The egress switch.
        egress: u16,
    },
    /// The fabric has planes, and the engine keeps routes apart by virtual lanes: a path has one
    /// SL, and another route in each plane.
    LanesInPlanes,
    /// The fabric is not the torus that `torus-2QoS.conf` describes, or too much of it is missing.
    Torus(Refusal),
    /// The fabric is no dragonfly or Dragonfly+, or too much of it is missing.
    Dragonfly(DragonflyRefusal),
}

impl Reason {
    /// Creates the error of an engine for this reason.
    pub fn of(self, engine: &'static str) -> RoutingError {
        RoutingError { engine, reason: self }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_with(f, &switch_number)
    }
}

impl DisplayWith for Reason {
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, label: &SwitchLabel<'_>) -> fmt::Result {
        match *self {
            Self::TooFewLanes { lanes } => {
                write!(f, "it needs more than the {lanes} virtual lanes that all ports have")
            }
            Self::TooManySwitches { switches, max } => {
                write!(f, "it routes at most {max} switches, and the fabric has {switches}")
            }
            Self::NoRoots => f.write_str(
                "no root switch found: no switch has nearly all hosts at the same distance; list \
                 the roots in root_guid_file",
            ),
            Self::NoHosts => f.write_str("no switch has hosts"),
            Self::NoUpDownRoute { from, to, takes_io_nodes } => {
                let (from, to) = (label(from), label(to));
                write!(f, "no up/down route joins {from} and {to}, which both have hosts")?;
                if takes_io_nodes {
                    f.write_str("; io_guid_file with max_reverse_hops can allow other routes")?;
                }
                Ok(())
            }
            Self::TooSmallForTree { switches, hosts } => write!(
                f,
                "a fat tree needs at least 2 switches and 2 hosts; found {switches} and {hosts}"
            ),
            Self::NoComputeNodes => {
                f.write_str("none of the compute nodes in cn_guid_file is in the fabric")
            }
            Self::UnequalLeaves { first, other } => write!(
                f,
                "{} and {} have compute nodes but are at ranks {} and {}; all such switches must \
                 be at the same rank",
                label(first.0),
                label(other.0),
                first.1,
                other.1
            ),
            Self::RankCount { ranks, min, max } => {
                write!(f, "the tree has {ranks} ranks of switches; {min} to {max} are supported")
            }
            Self::LinkWithinRank { switch, port, peer, rank } => {
                let (switch, peer) = (label(switch), label(peer));
                write!(f, "port {port} of {switch} leads to {peer} of the same rank {rank}")
            }
            Self::HopWeights { weights, links } => {
                write!(f, "there are {weights} hop weights for {links} links")
            }
            Self::NoLaneFromStart { start, lanes } => write!(
                f,
                "lash_start_vl is {start}, but ports have only {lanes} data VLs, numbered from 0"
            ),
            Self::NoTables => f.write_str(
                "neither lfts_file nor lid_matrix_dump_file provides usable tables: not set, or \
                 the file was rejected (see earlier messages)",
            ),
            Self::DefectiveTables { defects, first } => {
                write!(f, "{defects} wrong entries, the first: {}", first.display_with(label))
            }
            Self::NoSwitchBehindPort { switch, lid, port } => write!(
                f,
                "{} forwards LID {lid} by port {port}, which does not lead to a switch",
                label(switch)
            ),
            Self::NoRouteOnward { switch, lid, next } => write!(
                f,
                "{} forwards LID {lid} to {}, which has no route to it",
                label(switch),
                label(next)
            ),
            Self::RouteTooLong { egress } => {
                let max = HopMatrix::HOPS_MAX;
                write!(f, "a route to {} has more than {max} hops", label(egress))
            }
            Self::Circular { switch, egress } => write!(
                f,
                "routes from {} to LIDs of {} form a loop, or routes to two of these LIDs use \
                 the same links in opposite directions",
                label(switch),
                label(egress)
            ),
            Self::LanesInPlanes => f.write_str(
                "it needs lanes of its own, and a path has one SL for all planes of a planarized \
                 fabric",
            ),
            Self::Torus(ref refusal) => fmt::Display::fmt(refusal, f),
            Self::Dragonfly(ref refusal) => refusal.fmt_with(f, label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::switch_label;

    #[test]
    fn switches_are_shown_by_labels_or_by_number() {
        let reason = Reason::NoRouteOnward { switch: 1, lid: Lid(7), next: 12 };
        let error = reason.of("file");
        assert_eq!(
            error.to_string(),
            "file cannot route this fabric: switch 1 forwards LID 7 to switch 12, which has no \
             route to it"
        );
        let label = |switch| switch_label(switch, (switch == 1).then_some("sw two"));
        assert_eq!(
            error.reason.display_with(&label).to_string(),
            "switch 'sw two' forwards LID 7 to switch 12, which has no route to it"
        );
    }

    #[test]
    fn names_reach_the_defect_inside_a_reason() {
        let first = Defect { switch: 3, lid: Lid(7), port: 2, kind: DefectKind::DeadEnd };
        let reason = Reason::DefectiveTables { defects: 5, first };
        let text = reason.display_with(&|switch| format!("<{switch}>")).to_string();
        assert!(text.starts_with("5 wrong entries, the first: <3>, LID 7, port 2: "), "{text}");
    }
}

//! Why a fabric is not routed as a dragonfly.

use std::fmt;

use crate::label::{DisplayWith, SwitchLabel};

/// Why a fabric is not routed as a dragonfly or Dragonfly+.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DragonflyRefusal {
    /// Switches do not form groups.
    NoGroups {
        /// Number of switches in the topology.
        switches: usize,
    },
    /// Two groups are not linked, and no third group joins them.
    NoTransit {
        /// A switch of one group, with hosts.
        from: u16,
        /// A switch of the other group, with hosts.
        to: u16,
    },
    /// Links are missing within groups.
    NoRoute {
        /// Source of the missing route.
        from: u16,
        /// Destination of the missing route.
        to: u16,
    },
    /// Routes around missing links depend on each other in a cycle.
    CreditLoop,
}

impl DisplayWith for DragonflyRefusal {
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, label: &SwitchLabel<'_>) -> fmt::Result {
        match *self {
            Self::NoGroups { switches } => write!(
                f,
                "its {switches} switches are no dragonfly or Dragonfly+: they do not form groups \
                 of densely linked switches, with links between nearly all pairs of groups"
            ),
            Self::NoTransit { from, to } => write!(
                f,
                "no link is left between the groups of {} and {}, and no third group can be \
                 passed without a credit loop, as every group lacks the link to another one",
                label(from),
                label(to)
            ),
            Self::NoRoute { from, to } => write!(
                f,
                "too many links are missing in the groups of {} and {}: no route without a \
                 credit loop is left",
                label(from),
                label(to)
            ),
            Self::CreditLoop => {
                f.write_str("routes around the missing links would form a credit loop")
            }
        }
    }
}

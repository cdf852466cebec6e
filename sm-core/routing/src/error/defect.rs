//! A wrong entry of a forwarding table.

use std::fmt;

use ib_mad::types::Lid;

use crate::label::{DisplayWith, SwitchLabel, switch_number};

/// How an entry of a forwarding table is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefectKind {
    /// There is no route, although the destination must be reached.
    Missing,
    /// There is a route to a LID that is unassigned or cannot be reached.
    Stray,
    /// The egress switch delivers by a port other than the destination's.
    WrongExit,
    /// The port does not lead to a switch.
    DeadEnd,
    /// The next switch is not closer to the destination, so the route may loop.
    NotCloser,
    /// The route ends early or loops.
    Lost,
}

/// A wrong entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Defect {
    /// The switch.
    pub switch: u16,
    /// The LID.
    pub lid: Lid,
    /// The entry: the egress port.
    pub port: u8,
    /// How it is wrong.
    pub kind: DefectKind,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_with(f, &switch_number)
    }
}

impl DisplayWith for Defect {
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, label: &SwitchLabel<'_>) -> fmt::Result {
        let Self { switch, lid, port, kind } = self;
        let what = match kind {
            DefectKind::Missing => "no route, though one exists",
            DefectKind::Stray => "a route to a LID that is unassigned or unreachable",
            DefectKind::WrongExit => "delivered by the wrong port",
            DefectKind::DeadEnd => "the port does not lead to a switch",
            DefectKind::NotCloser => "the next switch is not closer to the destination",
            DefectKind::Lost => "the route ends before its destination, or loops",
        };
        write!(f, "{}, LID {lid}, port {port}: {what}", label(*switch))
    }
}

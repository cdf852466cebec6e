//! One end of the paths that a MultiPathRecord asks for. `multi_path` fills it in and reads it;
//! `found` keeps memory for many.

use crate::tables::{EndClass, EndPort};

/// An end of the paths asked for, with what does not depend on the other one.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) port: EndPort,
    pub(super) class: EndClass,
    /// Whether it is the requester.
    pub(super) is_own: bool,
    /// Whether the requester may know of it.
    pub(super) is_visible: bool,
    /// Whether it has one LID, and can be reached by it.
    pub(super) has_one_lid: bool,
    /// Whether every path to it has a way back that is no worse.
    pub(super) is_same_back: bool,
}

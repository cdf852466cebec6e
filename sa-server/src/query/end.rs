//! One end of the paths that a MultiPathRecord asks for. `multi_path` fills it in and reads it;
//! `found` keeps memory for many.

use crate::tables::{EndClass, EndPort};

/// An end of the requested paths, with everything that does not depend on the other end.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) port: EndPort,
    pub(super) class: EndClass,
    /// Whether it is the requester.
    pub(super) is_own: bool,
    /// Whether the requester may see it.
    pub(super) is_visible: bool,
    /// Whether it has one LID, and can be reached by it.
    pub(super) has_one_lid: bool,
    /// Whether every path to it has a reverse path that is no worse.
    pub(super) is_same_back: bool,
}

//! Types that state which registrations a new master has: from an imported SA database, or from a
//! copy of the previous master's registry.

use std::collections::BTreeSet;
use std::sync::Arc;

use ib_mad::types::Guid;

/// The SA database of another SM (`-S`), imported at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImportedRegistry {
    /// There is no SA database, or it cannot be used.
    #[default]
    None,
    /// The SA database will be read once LIDs are known.
    Expected,
    /// The SA database was read; these port GUIDs have registrations in it.
    Read(Arc<BTreeSet<Guid>>),
}

/// Whether this SM has all registrations of the previous master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegistryCopy {
    /// The copy is incomplete, or not known to be complete.
    #[default]
    Incomplete,
    /// Whether it is complete is known some time after this SM becomes master; clients wait until
    /// then.
    Pending,
    /// The copy is complete.
    Complete,
}

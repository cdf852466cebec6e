//! The description of a key.

/// Section of keys that OpenSM does not have.
pub(super) const OWN_SECTION: &str = "IBSM OPTIONS";

/// Whether a key has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key has the described effect.
    Acts,
    /// The key is accepted but has no effect, for this reason.
    Idle(&'static str),
    /// Only the default is accepted, for this reason.
    Refused(&'static str),
}

/// The description of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The section of the file that contains it.
    pub section: &'static str,
    /// Its meaning, line by line.
    pub doc: &'static [&'static str],
    /// Whether it has an effect.
    pub effect: Effect,
    /// Whether a SIGHUP reads it again; other keys are read only at start.
    pub is_live: bool,
}

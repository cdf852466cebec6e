//! Why a run ends early.

/// Sweeps with errors after which `--once` gives up.
pub(super) const ONCE_ATTEMPTS: u32 = 5;

/// Why the subnet manager ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The subnet manager cannot do its work.
    #[error("{0}")]
    Fatal(String),
    /// `--once`, and another subnet manager is master.
    #[error(
        "another subnet manager is master, at {at}, and -o/--once does not wait for it to end or \
         to hand over; stop it, or run without -o to stand by"
    )]
    NotMaster {
        /// Its port.
        at: String,
    },
    /// `--once`, and there is a master that this one cannot come to terms with.
    #[error("-o/--once does not become a second master: {0}")]
    Rival(String),
    /// `--once`, and another subnet manager disabled this one.
    #[error("another subnet manager disabled this one; -o/--once does not wait for it")]
    Disabled,
    /// `--once`, and only the own port is up.
    #[error(
        "only this port is up: it has no LID, or no node answers behind its link; see the log above"
    )]
    NothingUp,
    /// `--once`, and the subnet did not come up.
    #[error("the subnet did not come up in {ONCE_ATTEMPTS} sweeps; see the log above")]
    NotUp,
    /// The same, and nodes did not answer as if they had another M_Key.
    #[error(
        "the subnet did not come up in {ONCE_ATTEMPTS} sweeps: nodes do not answer. Another subnet \
         manager may have set an M_Key; set m_key (-F) to it"
    )]
    MKey,
}

impl NodeError {
    /// This reason, or a more specific one if nodes may have another M_Key.
    pub(super) fn or_m_key(self, is_suspected: bool) -> Self {
        match self {
            Self::NotUp if is_suspected => Self::MKey,
            other => other,
        }
    }
}

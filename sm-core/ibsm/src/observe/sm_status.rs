//! State of this SM, as the runtime reports it.

use std::sync::Arc;
use std::time::Duration;

use super::problem::Condition;
use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::RegistryVersion;
use sm_core::sweep::{Peer, SaGuid};

/// State of this SM, as `ibsmctl status` and the live page show it.
#[derive(Clone, Debug, Default)]
pub struct SmStatus {
    /// Its state in the election: `discovering`, `master`, `standby`.
    pub state: String,
    /// Whether it is the master and the subnet is up.
    pub subnet_up: bool,
    /// Totals since it started.
    pub counters: Vec<(String, u64)>,
    /// Problems that need an operator, one line each.
    pub warnings: Vec<String>,
    /// All problems that this SM knows of, those among them.
    pub conditions: Vec<Condition>,
    /// Name of the engine whose routes are in force; empty if there are none.
    pub routing_engine: String,
    /// Why engines listed before it are not used, one line each.
    pub engines_passed_over: Vec<String>,
    /// GUID of its port, once found.
    pub guid: Option<Guid>,
    /// LID of its port; [`Lid::NONE`] until it has one.
    pub lid: Lid,
    /// LMC of end ports.
    pub lmc: u8,
    /// Prefix of the subnet's GIDs.
    pub subnet_prefix: u64,
    /// Its priority among subnet managers.
    pub priority: u8,
    /// The other subnet managers that it has discovered.
    pub peers: Vec<Peer>,
    /// Its copy of the master's registry, while it follows one.
    pub copy: Option<CopyStatus>,
    /// Which process reads SA requests at its port; empty if the transport does not say.
    pub sa_port: String,
    /// State of the store that managers share; empty if there is none.
    pub store: String,
    /// How long a master may be silent before this SM takes over.
    pub takes_over_after: Duration,
    /// Ports of responders that are to have the GUID that stands for the SA, and whether they do.
    pub sa_guids: Vec<(Guid, SaGuid)>,
    /// SMPs queued or on the wire.
    pub smps_outstanding: u64,
    /// Whether sweeps are permitted.
    pub sweeping: bool,
    /// `idle`, or the phase of the current sweep.
    pub phase: String,
    /// Light sweeps that found nothing changed.
    pub quiet_sweeps: u64,
    /// When the last of them ended, milliseconds since 1970.
    pub quiet_sweep_ms: Option<u64>,
}

impl SmStatus {
    /// Adds a warning.
    pub fn warn(&mut self, condition: Condition) {
        self.warnings.push(condition.text());
        self.conditions.push(condition);
    }
}

/// The copy of the master's registry that a standby keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// Whether it is in step: it has everything that the master had published until recently.
    pub in_step: bool,
    /// How long that has been so.
    pub since: Duration,
    /// The stored version.
    pub stored: RegistryVersion,
    /// Changes that the master has published and that are not stored.
    pub lag: u64,
    /// How long ago the master and this SM last reached each other.
    pub contact: Option<Duration>,
    /// Whether the LIDs, M_Keys and links that the master has published are stored.
    pub has_state: bool,
    /// Operators' files that differ from the master's; `None` before they are compared.
    pub files_differ: Option<Arc<[String]>>,
    /// Whether the master's files are used in place of this host's.
    pub follows_config: bool,
}

impl std::fmt::Display for CopyStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { in_step, since, stored, lag, contact, has_state, .. } = self;
        let not = if *in_step { "" } else { "not " };
        let since = since.as_secs();
        write!(f, "{not}in step for {since} s, holds {stored}, {lag} changes behind; ")?;
        if !has_state {
            write!(f, "LIDs and M_Keys not stored yet; ")?;
        }
        match contact {
            Some(contact) => write!(f, "contact {} ms ago", contact.as_millis()),
            None => write!(f, "no contact with a master yet"),
        }
    }
}

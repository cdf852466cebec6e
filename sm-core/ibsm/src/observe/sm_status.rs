//! State of this SM, as the runtime reports it.

use std::time::Duration;

use ib_mad::types::{Guid, Lid};
use sm_core::sweep::Peer;

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
    /// State of its copy of the registry of the master that it follows; empty if it follows none.
    pub following: String,
    /// How long a master may be silent before this SM takes over.
    pub takes_over_after: Duration,
    /// `idle`, or the phase of the current sweep.
    pub phase: String,
    /// Light sweeps that found nothing changed.
    pub quiet_sweeps: u64,
    /// When the last of them ended, milliseconds since 1970.
    pub quiet_sweep_ms: Option<u64>,
}

//! The copy of another manager's registry, as the node sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Session, Version};
use sa_proto::state::StateVersion;

use crate::node::MasterState;
use crate::publish::LEASE;

/// Content of a heartbeat of the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The version published last.
    pub version: Version,
    /// Identities of responders that may have acknowledged writes to clients.
    pub responders: Arc<[u64]>,
    /// Whether writes are acknowledged only once this standby has stored them.
    pub awaited: bool,
    /// The state besides the registry that was published last; `None` if the master sends none.
    pub state: Option<StateVersion>,
}

/// State of the copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// The last version received completely; [`Version::NONE`] before the first.
    pub received: Version,
    /// The fabric in it.
    pub fabric: Option<Arc<FabricPlane>>,
    /// The last version on disk.
    pub stored: Version,
    /// The last heartbeat.
    pub beat: Option<Beat>,
    /// When the last answer was sent that the master has confirmed: at that time master and standby
    /// could reach each other.
    pub contact: Option<Instant>,
    /// Whether a stream is open on which a master publishes.
    pub is_connected: bool,
    /// Whether that state comes from a store that managers share, not from a master's feed.
    pub reads_store: bool,
    /// The state besides the registry that was received last.
    pub master_state: Option<Arc<MasterState>>,
    /// The version of it that is on disk.
    pub state_stored: StateVersion,
    /// How often other managers asked what this SM holds, as they do when they are elected.
    pub elections: u64,
    /// The port of the one that did so last.
    pub elected: Guid,
    /// Operators' files that differ from the master's; `None` before they are compared.
    pub files_differ: Option<Arc<[String]>>,
}

impl Followed {
    /// Whether everything that the master had published at the last contact is on disk, and that
    /// contact is recent.
    pub fn is_in_step(&self, now: Instant) -> bool {
        let is_stored = self.beat.as_ref().is_some_and(|beat| {
            self.stored.registry() >= beat.version.registry()
                && self.stored.session == beat.version.session
        });
        self.is_connected && self.is_recent(now) && is_stored && self.has_state()
    }

    /// GUIDs of the ports in the fabric of the master.
    pub(in crate::node) fn ports(&self) -> Option<BTreeSet<Guid>> {
        let nodes = &self.fabric.as_ref()?.nodes;
        Some(nodes.iter().flat_map(|node| node.ports.iter().map(|port| port.guid)).collect())
    }

    /// Whether master and standby could reach each other until recently.
    fn is_recent(&self, now: Instant) -> bool {
        self.contact.is_some_and(|contact| now <= contact + LEASE)
    }

    /// Whether a master that hands over now has published nothing that is not on disk. A feed that
    /// has been silent may be that of an earlier session: this process may have been stopped.
    pub(in crate::node) fn is_ready_for_handover(&self, now: Instant) -> bool {
        self.has_caught_up() && self.is_recent(now)
    }

    /// Whether the LIDs, M_Keys and links that the master had published at the last heartbeat are
    /// on disk.
    pub fn has_state(&self) -> bool {
        let published = self.beat.as_ref().and_then(|beat| beat.state);
        published.is_none_or(|published| self.state_stored >= published)
    }

    /// Whether everything that the connected master is known to have published is on disk. If so, a
    /// standby accepts a handover; the master ensures that nothing is missing.
    pub(in crate::node) fn has_caught_up(&self) -> bool {
        let published = self.beat.as_ref().map_or(self.received, |beat| beat.version);
        self.is_connected
            && self.stored.session == self.publishing()
            && self.stored.registry() >= published.registry()
            && self.has_state()
    }

    /// The highest session followed so far.
    pub fn publishing(&self) -> Session {
        let beat = self.beat.as_ref().map_or(self.received.session, |beat| beat.version.session);
        beat.max(self.received.session)
    }

    /// The session of the master whose feed is open.
    pub(super) fn connected(&self) -> Option<Session> {
        self.is_connected.then(|| self.publishing())
    }

    /// The session of the master whose feed is alive: it confirmed an answer less than this long
    /// ago.
    pub(super) fn alive(&self, now: Instant, limit: Duration) -> Option<Session> {
        let is_recent = self.contact.is_some_and(|contact| now <= contact + limit);
        self.connected().filter(|_| is_recent)
    }

    /// Changes that the master has published and that are not on disk.
    pub(super) fn lag(&self) -> u64 {
        let published = self.beat.as_ref().map_or(self.received, |beat| beat.version);
        let published = published.max(self.received);
        if self.stored.session != published.session {
            return published.registry_sequence;
        }
        published.registry_sequence.saturating_sub(self.stored.registry_sequence)
    }
}

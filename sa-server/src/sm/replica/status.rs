//! State of the replica: the followed SM, the served version, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use sa_proto::snapshot::Version;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::sessions::SESSIONS_MAX;
use crate::sm::forward::Acknowledged;

/// State of the replica, for metrics and operators. Read from any thread.
#[derive(Debug, Default)]
pub struct ReplicaStatus {
    source: ArcSwap<Source>,
    lanes: [LaneStatus; SESSIONS_MAX],
    /// The lane that the responder's own port is answered from.
    own: AtomicUsize,
    pub(super) counters: Counters,
}

/// State of one session.
#[derive(Debug, Default)]
pub struct LaneStatus {
    version: watch::Sender<Version>,
    pub(super) upstream: watch::Sender<Option<Upstream>>,
    acknowledged: Arc<Acknowledged>,
}

impl LaneStatus {
    /// The version that is answered from; [`Version::NONE`] while the lane has no session.
    pub fn version(&self) -> Version {
        *self.version.borrow()
    }

    /// Notifies of every change of [`version`](Self::version), once queries are answered from it.
    pub fn versions(&self) -> watch::Receiver<Version> {
        self.version.subscribe()
    }

    /// What is, and may be, acknowledged of the session.
    pub fn acknowledged(&self) -> &Arc<Acknowledged> {
        &self.acknowledged
    }

    /// The SM that is followed: the one whose snapshot is served, while it is connected.
    pub fn upstream(&self) -> watch::Receiver<Option<Upstream>> {
        self.upstream.subscribe()
    }
}

/// The SM that is followed, for calls other than the feed.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its URL.
    pub url: String,
    /// The connection to it.
    pub channel: Channel,
    /// Its link.
    pub(super) link: usize,
}

impl Upstream {
    /// The SM at `url`, where `channel` leads.
    pub fn new(url: String, channel: Channel) -> Self {
        Self { url, channel, link: 0 }
    }
}

/// Where the snapshot that is answered from came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// No snapshot is held.
    #[default]
    Nothing,
    /// The cache file, or an SM that is no longer followed: it may be out of date.
    Cache,
    /// The SM at this URL.
    Sm(String),
}

impl ReplicaStatus {
    /// The version that queries at the responder's own port are answered from.
    pub fn version(&self) -> Version {
        self.lanes[self.own.load(Relaxed)].version()
    }

    /// The lane that queries at the responder's own port are answered from.
    pub fn own_lane(&self) -> usize {
        self.own.load(Relaxed)
    }

    /// The state of a lane, by its number below [`SESSIONS_MAX`].
    pub fn lane(&self, lane: usize) -> &LaneStatus {
        &self.lanes[lane]
    }

    /// Sessions that are answered from.
    pub fn sessions(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.version() != Version::NONE).count()
    }

    /// Where the snapshot came from that the own port is answered from.
    pub fn source(&self) -> Source {
        Source::clone(&self.source.load())
    }

    /// SMs connected.
    pub fn connected(&self) -> u64 {
        self.counters.connected.load(Relaxed)
    }

    /// Counters by name, with what they mean.
    pub fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.counters.list()
    }

    /// Queries in `lane` are answered from this version.
    pub(super) fn serve(&self, lane: usize, version: Version) {
        self.lanes[lane].version.send_replace(version);
    }

    /// The own port is answered from `lane`.
    pub(super) fn set_own(&self, lane: usize) {
        self.own.store(lane, Relaxed);
    }

    pub(super) fn set_source(&self, source: Source) {
        if **self.source.load() != source {
            self.source.store(Arc::new(source));
        }
    }
}

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident => $label:literal),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(#[doc = $doc] pub(super) $name: AtomicU64,)*
        }
        impl Counters {
            fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($label, $doc.trim_ascii(), self.$name.load(Relaxed))),*]
            }
        }
    };
}
counters! {
    /// SMs connected now
    connected => "replica_sms_connected",
    /// Connections to SMs that broke or failed
    disconnects => "replica_disconnects",
    /// Snapshots installed, including those from deltas
    installs => "replica_snapshots_installed",
    /// Updates that could not be applied; a full snapshot was requested
    resyncs => "replica_resyncs",
    /// Snapshots from which tables could not be built; the previous one is served
    unusable => "replica_snapshots_unusable",
    /// Updates refused because a session with a higher epoch replaced theirs
    refused => "replica_updates_refused",
    /// Updates refused because as many sessions are held as there is room for
    no_room => "replica_sessions_refused",
    /// Bytes of rows received from SMs
    bytes => "replica_received_bytes",
    /// Connections to SMs dropped because the outbound queue was full
    overflows => "replica_outbound_overflows",
    /// Cache files written
    saves => "replica_cache_saves",
    /// Cache files that failed to be written
    save_errors => "replica_cache_save_errors",
}

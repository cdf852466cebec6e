//! State of the replica: the followed SM, the served version, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use sa_proto::snapshot::Version;
use tokio::sync::watch;
use tonic::transport::Channel;

/// State of the replica, for metrics and operators. Read from any thread.
#[derive(Debug, Default)]
pub struct ReplicaStatus {
    source: ArcSwap<Source>,
    version: watch::Sender<Version>,
    pub(super) upstream: watch::Sender<Option<Upstream>>,
    pub(super) counters: Counters,
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
    /// The version that is answered from.
    pub fn version(&self) -> Version {
        *self.version.borrow()
    }

    /// Notifies of every change of [`version`](Self::version), once queries are answered from it.
    pub fn versions(&self) -> watch::Receiver<Version> {
        self.version.subscribe()
    }

    /// The SM that is followed: the one whose snapshot is served, while it is connected.
    pub fn upstream(&self) -> watch::Receiver<Option<Upstream>> {
        self.upstream.subscribe()
    }

    /// Where it came from.
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

    /// Records that `url` is no longer followed: its snapshot is still served, and becomes
    /// outdated.
    pub(super) fn lose(&self, url: &str) {
        if matches!(&**self.source.load(), Source::Sm(followed) if followed == url) {
            self.source.store(Arc::new(Source::Cache));
        }
    }

    pub(super) fn serve(&self, version: Version, source: Source) {
        self.source.store(Arc::new(source));
        self.version.send_replace(version);
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
    /// Updates refused because their epoch is older than the served one
    refused => "replica_updates_refused",
    /// Bytes of rows received from SMs
    bytes => "replica_received_bytes",
    /// Connections to SMs dropped because the outbound queue was full
    overflows => "replica_outbound_overflows",
    /// Cache files written
    saves => "replica_cache_saves",
    /// Cache files that failed to be written
    save_errors => "replica_cache_save_errors",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the metric still named an SM that had died.
    #[test]
    fn what_a_lost_sm_published_counts_as_cached() {
        let status = ReplicaStatus::default();
        status.lose("http://sm1:1");
        assert_eq!(status.source(), Source::Nothing);
        status.serve(Version::NONE, Source::Sm("http://sm1:1".into()));
        status.lose("http://sm2:1");
        assert_eq!(status.source(), Source::Sm("http://sm1:1".into()), "another is lost");
        status.lose("http://sm1:1");
        assert_eq!(status.source(), Source::Cache);
    }
}

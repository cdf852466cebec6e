//! The subscribing end of the snapshot feed: keeps what this responder answers from up to date
//! with the SMs, and in a file for the next start.
//!
//! One link to each SM runs all the time; [`machine`] decides what becomes of what they send.
//! Building lookup tables is the caller's: [`run`] hands it each new snapshot, and acknowledges
//! once the call returns, which says that queries are answered from it.

mod asked;
mod cache_dir;
mod link;
mod machine;
mod outage;
mod saver;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ib_mad::types::{Guid, Qpn};
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::snapshot::{SCHEMA, Snapshot, Version, cache};
use sa_proto::trust::{ClientTrust, TrustError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use asked::Asked;
pub use asked::Explain;
pub use cache_dir::{CacheDir, CacheDirError, passing_identity};
use link::{Event, EventKind};
use machine::{Machine, Outcome};
use outage::Outage;
use saver::Saver;

/// How often a silent connection is probed, and how long an answer may take: a dead SM is noticed
/// after the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes that an SM may send ahead: four messages.
const WINDOW_LEN: u32 = 1 << 20;
/// Events of all links that were not handled yet.
const EVENTS_MAX: usize = 8;
/// How often counters are reported to the SMs.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// Where an SM publishes, such as `http://127.0.0.1:7471` or `https://sm1:7471`, and why to trust it.
#[derive(Clone, Debug)]
pub struct SmUrl {
    text: String,
    trust: ClientTrust,
}

/// Text that is not the URL of an SM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the URL of an SM; write it like http://127.0.0.1:7471 or https://sm1:7471")]
pub struct ParseSmUrlError(pub String);

impl FromStr for SmUrl {
    type Err = ParseSmUrlError;

    fn from_str(text: &str) -> Result<Self, ParseSmUrlError> {
        let error = || ParseSmUrlError(text.to_owned());
        let endpoint = Endpoint::from_shared(text.to_owned()).map_err(|_| error())?;
        let uri = endpoint.uri();
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let has_port = uri.port_u16().is_some_and(|port| port != 0);
        let has_path = uri.path() != "/" || uri.query().is_some();
        if !is_known || !has_host || !has_port || has_path {
            return Err(error());
        }
        Ok(Self { text: text.to_owned(), trust: ClientTrust::default() })
    }
}

impl SmUrl {
    /// The same, trusted by what `trust` says. Fails if it could never be connected to so.
    pub fn with_trust(self, trust: ClientTrust) -> Result<Self, TrustError> {
        trust.endpoint(&self.text)?;
        Ok(Self { trust, ..self })
    }

    /// What to connect to; certificates are read each time.
    fn endpoint(&self) -> Result<Endpoint, TrustError> {
        Ok(self
            .trust
            .endpoint(&self.text)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_LEN)
            .initial_connection_window_size(WINDOW_LEN)
            .tcp_nodelay(true))
    }
}

/// What this responder tells SMs of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Stable over restarts, not 0; from [`CacheDir::responder_id`] or
    /// [`passing_identity`].
    pub id: u64,
    /// For people.
    pub name: String,
    /// UDP addresses that the front door may send requests to. An unspecified address stands for
    /// this end of the connection to the SM.
    pub front_door: Vec<std::net::SocketAddr>,
    /// GUID of the fabric port and the QP that it answers on, if it has one.
    pub port: Option<(Guid, Qpn)>,
    /// What that port is for.
    pub port_use: proto::PortUse,
}

/// What to subscribe to, and where to keep it.
#[derive(Debug)]
pub struct ReplicaConfig {
    /// The SMs; all are subscribed to, and the one with the highest session counts.
    pub sms: Vec<SmUrl>,
    /// Who we are.
    pub identity: Identity,
    /// Where to keep the last snapshot; it is not kept without.
    pub cache_dir: Option<CacheDir>,
    /// The cache file is written at most once in this time.
    pub cache_interval: Duration,
}

/// What the replica is doing, for metrics and for people. Read from any thread.
#[derive(Debug, Default)]
pub struct ReplicaStatus {
    source: ArcSwap<Source>,
    version: watch::Sender<Version>,
    upstream: watch::Sender<Option<Upstream>>,
    counters: Counters,
}

/// The SM that is followed, for calls besides the feed.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its URL.
    pub url: String,
    /// The connection to it.
    pub channel: Channel,
    /// Its link.
    link: usize,
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
    /// There is none.
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

    /// Tells of every change of [`version`](Self::version), once queries are answered from it.
    pub fn versions(&self) -> watch::Receiver<Version> {
        self.version.subscribe()
    }

    /// Tells which SM is followed: the one whose snapshot is answered from, while it is connected.
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

    /// Takes in that `url` is followed no longer: what it published is held, and grows old.
    fn lose(&self, url: &str) {
        if matches!(&**self.source.load(), Source::Sm(followed) if followed == url) {
            self.source.store(Arc::new(Source::Cache));
        }
    }

    fn serve(&self, version: Version, source: Source) {
        self.source.store(Arc::new(source));
        self.version.send_replace(version);
    }
}

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident => $label:literal),* $(,)?) => {
        #[derive(Debug, Default)]
        struct Counters {
            $(#[doc = $doc] $name: AtomicU64,)*
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
    /// Connections that broke or were not made
    disconnects => "replica_disconnects",
    /// Snapshots installed, deltas applied included
    installs => "replica_snapshots_installed",
    /// Updates that could not be used: a full snapshot is asked for
    resyncs => "replica_resyncs",
    /// Snapshots that no tables could be made of: the one before is answered from
    unusable => "replica_snapshots_unusable",
    /// Updates of SMs that were replaced: their epoch is lower than what is served
    refused => "replica_updates_refused",
    /// Bytes of rows received from SMs
    bytes => "replica_received_bytes",
    /// Messages to an SM dropped, with their link, because its queue was full
    overflows => "replica_outbound_overflows",
    /// Cache files written
    saves => "replica_cache_saves",
    /// Cache files that could not be written
    save_errors => "replica_cache_save_errors",
}

/// Keeps this responder up to date until `shutdown`.
///
/// `on_snapshot` is called on a thread of its own with each new snapshot, the cached one first,
/// and returns once queries are answered from it. `stats` yields what is reported to the SMs.
pub async fn run(
    config: ReplicaConfig,
    status: Arc<ReplicaStatus>,
    on_snapshot: impl FnMut(&Arc<Snapshot>) + Send + 'static,
    stats: impl Fn() -> proto::Stats,
    shutdown: impl Future<Output = ()>,
) {
    run_explaining(config, status, on_snapshot, stats, None, shutdown).await;
}

/// The same; paths that operators ask about are explained by `explain`, on threads of their own.
pub async fn run_explaining(
    config: ReplicaConfig,
    status: Arc<ReplicaStatus>,
    on_snapshot: impl FnMut(&Arc<Snapshot>) + Send + 'static,
    stats: impl Fn() -> proto::Stats,
    explain: Option<Explain>,
    shutdown: impl Future<Output = ()>,
) {
    let cache_file = config.cache_dir.as_ref().map(CacheDir::snapshot_file);
    let cached = cache_file.as_deref().and_then(load);
    let mut replica = Replica {
        machine: Machine::new(
            cached.unwrap_or_else(|| Arc::new(Snapshot::empty())),
            config.sms.len(),
        ),
        links: vec![None; config.sms.len()],
        channels: vec![None; config.sms.len()],
        heard: vec![false; config.sms.len()],
        outages: vec![Outage::default(); config.sms.len()],
        saver: Saver::new(cache_file, config.cache_interval),
        on_snapshot: Some(Box::new(on_snapshot)),
        installed: None,
        status,
        config,
    };
    let held = replica.machine.held().clone();
    if held.version() != Version::NONE && replica.install(&held).await {
        replica.status.serve(held.version(), Source::Cache);
        tracing::info!(version = %held.version(), "serving the cached snapshot; secrets and \
            whatever changed since are missing until an SM is back");
    }
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let mut links = JoinSet::new();
    for (link, sm) in replica.config.sms.iter().enumerate() {
        links.spawn(link::run(link, sm.clone(), events.clone()));
    }
    let mut asked = Asked::new(explain);
    let mut report = tokio::time::interval(STATS_INTERVAL);
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(mut event) = inbox.recv() => match event.take_question() {
                Some(question) => {
                    if let Some(answer) = asked.take(event.link, question) {
                        replica.send(event.link, answer);
                    }
                }
                None => replica.handle(event).await,
            },
            (link, answer) = asked.next() => replica.send(link, answer),
            written = replica.saver.step() => note_saved(&replica.status, written),
            _ = report.tick() => replica.report(&stats()),
        }
    }
    links.abort_all();
    if let Some(written) = replica.saver.finish().await {
        note_saved(&replica.status, written);
    }
}

fn load(file: &Path) -> Option<Arc<Snapshot>> {
    match cache::load(file) {
        Ok(snapshot) => snapshot.map(Arc::new),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, cause, "cached snapshot not used");
            None
        }
    }
}

fn note_saved(status: &ReplicaStatus, written: Result<Version, cache::CacheError>) {
    match written {
        Ok(version) => {
            status.counters.saves.fetch_add(1, Relaxed);
            tracing::debug!(%version, "snapshot cached");
        }
        Err(error) => {
            status.counters.save_errors.fetch_add(1, Relaxed);
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, cause, "snapshot not cached");
        }
    }
}

/// Whether a snapshot follows from the one before by writes alone, so that it takes microseconds to
/// answer from it: less than to wake another thread.
fn is_small_step(last: &Snapshot, next: &Snapshot) -> bool {
    Arc::ptr_eq(last.fabric(), next.fabric())
        && last.registry().alias_guids.is_same(&next.registry().alias_guids)
}

/// Hands a snapshot over, and once more if that panics: what was kept from the one before, and may
/// be to blame, is gone then. Whether it is answered from.
fn attempt(on_snapshot: &mut OnSnapshot, snapshot: &Arc<Snapshot>) -> bool {
    (0..2).any(|_| catch_unwind(AssertUnwindSafe(|| on_snapshot(snapshot))).is_ok())
}

type OnSnapshot = Box<dyn FnMut(&Arc<Snapshot>) + Send>;

/// The one task that decides.
struct Replica {
    machine: Machine,
    /// Where messages to each SM go while it is connected.
    links: Vec<Option<mpsc::Sender<proto::FromResponder>>>,
    /// The connections themselves.
    channels: Vec<Option<Channel>>,
    /// Whether each SM has said anything on its connection.
    heard: Vec<bool>,
    /// What was told of each SM that is not connected.
    outages: Vec<Outage>,
    saver: Saver,
    /// Away while it is called.
    on_snapshot: Option<OnSnapshot>,
    /// What it was called with last.
    installed: Option<Arc<Snapshot>>,
    status: Arc<ReplicaStatus>,
    config: ReplicaConfig,
}

impl Replica {
    async fn handle(&mut self, event: Event) {
        let link = event.link;
        match event.kind {
            EventKind::Connected(outbound, channel) => {
                let held = self.machine.connect(link);
                self.links[link] = Some(outbound);
                self.channels[link] = Some(channel);
                self.status.counters.connected.fetch_add(1, Relaxed);
                let hello = self.hello(held);
                self.send(link, machine::message(Reply::Hello(hello)));
            }
            EventKind::Message(message) => {
                self.heard[link] = true;
                self.take(link, message).await;
            }
            EventKind::Disconnected(reason) => {
                let url = &self.config.sms[link].text;
                if self.links[link].take().is_some() {
                    self.status.counters.connected.fetch_sub(1, Relaxed);
                }
                // Not one line an attempt. An SM that said nothing has refused us, and will again.
                if std::mem::take(&mut self.heard[link]) {
                    tracing::warn!(sm = url, %reason, "lost the SM; answering from what is held");
                    self.outages[link] = Outage::told(Instant::now());
                } else if self.outages[link].is_to_be_told(Instant::now()) {
                    tracing::warn!("cannot follow {url}: {reason}; trying again");
                } else {
                    tracing::debug!(sm = url, %reason, "no SM");
                }
                self.status.counters.disconnects.fetch_add(1, Relaxed);
                self.status.lose(url);
                self.channels[link] = None;
                self.status.upstream.send_if_modified(|upstream| {
                    upstream.take_if(|upstream| upstream.link == link).is_some()
                });
                self.machine.disconnect(link);
            }
        }
    }

    async fn take(&mut self, link: usize, message: proto::FromSm) {
        if let Some(proto::from_sm::Message::Chunk(chunk)) = &message.message {
            self.status.counters.bytes.fetch_add(chunk.data.len() as u64, Relaxed);
        }
        let sm = self.config.sms[link].text.clone();
        match self.machine.handle(link, message) {
            Outcome::Nothing => {}
            Outcome::Install(snapshot) if !self.install(&snapshot).await => {
                // It is held, as what follows from it may be usable again.
                self.follow(link);
                self.send(link, machine::ack(snapshot.version(), self.serving()));
            }
            Outcome::Install(snapshot) => {
                let version = snapshot.version();
                let before = self.status.version();
                // Each generation is told where its tables come into use; here, whose they are.
                if before.session != version.session {
                    tracing::info!(sm, %version, "serving");
                }
                self.status.counters.installs.fetch_add(1, Relaxed);
                self.follow(link);
                self.status.serve(version, Source::Sm(sm));
                self.send(link, machine::ack(version, version));
                self.saver.offer(snapshot);
            }
            Outcome::Confirmed(version) => {
                self.follow(link);
                let serving = self.serving();
                if serving == version {
                    self.status.serve(version, Source::Sm(sm));
                }
                self.send(link, machine::ack(version, serving));
            }
            Outcome::Resync(reason, error) => {
                tracing::warn!(sm, %error, "update not usable; asking for everything");
                self.status.counters.resyncs.fetch_add(1, Relaxed);
                self.send(link, machine::resync(reason));
            }
            Outcome::Refuse { offered, held } => {
                tracing::warn!(
                    sm, %offered, held = %held,
                    "refused an SM whose session is below the one held; if it is the master, it \
                     begins a higher one now"
                );
                self.status.counters.refused.fetch_add(1, Relaxed);
                self.send(link, machine::refused(held));
            }
        }
    }

    /// Writes and events go by this link from now on.
    fn follow(&self, link: usize) {
        let Some(channel) = &self.channels[link] else { return };
        self.status.upstream.send_if_modified(|upstream| {
            let news = upstream.as_ref().is_none_or(|upstream| upstream.link != link);
            if news {
                let url = self.config.sms[link].text.clone();
                *upstream = Some(Upstream { url, channel: channel.clone(), link });
            }
            news
        });
    }

    /// Version of the snapshot that is answered from.
    fn serving(&self) -> Version {
        self.installed.as_ref().map_or(Version::NONE, |snapshot| snapshot.version())
    }

    /// Has the caller answer queries from `snapshot`; whether it does. Otherwise it goes on answering
    /// from the one before: all responders get the same snapshots, and what brings one down would
    /// bring down all, each time they start.
    async fn install(&mut self, snapshot: &Arc<Snapshot>) -> bool {
        let mut on_snapshot = self.on_snapshot.take().expect("it is called by one task only");
        let is_small = self.installed.as_ref().is_some_and(|last| is_small_step(last, snapshot));
        let (on_snapshot, done) = if is_small {
            let done = attempt(&mut on_snapshot, snapshot);
            (on_snapshot, done)
        } else {
            let snapshot = snapshot.clone();
            let called = tokio::task::spawn_blocking(move || {
                let done = attempt(&mut on_snapshot, &snapshot);
                (on_snapshot, done)
            });
            match called.await {
                Ok(called) => called,
                // The runtime is going down, and this task with it.
                Err(_) => std::future::pending().await,
            }
        };
        self.on_snapshot = Some(on_snapshot);
        if done {
            self.installed = Some(snapshot.clone());
        } else {
            self.status.counters.unusable.fetch_add(1, Relaxed);
            tracing::error!(
                version = %snapshot.version(), serving = %self.serving(),
                "internal error: no tables can be made of a snapshot; answering from the one before"
            );
        }
        done
    }

    fn hello(&self, held: Option<proto::Held>) -> proto::Hello {
        let identity = &self.config.identity;
        proto::Hello {
            schema: SCHEMA,
            responder_id: identity.id,
            name: identity.name.clone(),
            software: concat!("ibsa ", env!("CARGO_PKG_VERSION")).into(),
            front_door: identity.front_door.iter().map(ToString::to_string).collect(),
            port: identity.port.map(|(guid, qpn)| proto::FabricPort {
                guid: guid.0,
                qpn: qpn.0,
                r#use: identity.port_use.into(),
            }),
            held,
        }
    }

    fn report(&mut self, stats: &proto::Stats) {
        for link in 0..self.links.len() {
            self.send(link, machine::message(Reply::Stats(stats.clone())));
        }
    }

    fn send(&mut self, link: usize, message: proto::FromResponder) {
        let Some(outbound) = &self.links[link] else { return };
        match outbound.try_send(message) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                // Dropping our end closes the feed, and the link begins anew.
                self.links[link] = None;
                self.status.counters.connected.fetch_sub(1, Relaxed);
                self.status.counters.overflows.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::codec::Encoder;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Subnet};

    use super::*;

    fn snapshot(generation: u64) -> Arc<Snapshot> {
        let session = Session { epoch: 1, sm_guid: Guid(1) };
        let subnet = Subnet { prefix: generation, ..Subnet::default() };
        let fabric = FabricPlane { subnet, ..FabricPlane::default() };
        Arc::new(Snapshot::build(session, generation, fabric, RegistryPlane::default()).unwrap())
    }

    /// A snapshot that the builder of tables stumbled over ended all responders of the subnet, and
    /// again each time they started, since each fetched the same.
    #[tokio::test]
    async fn a_snapshot_that_no_tables_can_be_made_of_leaves_the_one_before() {
        let served = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = served.clone();
        let on_snapshot = move |snapshot: &Arc<Snapshot>| {
            let generation = snapshot.version().fabric_generation;
            assert!(generation != 2, "as the test wants it");
            seen.lock().unwrap().push(generation);
        };
        let status = Arc::new(ReplicaStatus::default());
        let config = ReplicaConfig {
            sms: vec!["http://127.0.0.1:1".parse().unwrap()],
            identity: Identity {
                id: 1,
                name: "r".to_owned(),
                front_door: Vec::new(),
                port: None,
                port_use: proto::PortUse::default(),
            },
            cache_dir: None,
            cache_interval: Duration::from_secs(60),
        };
        let mut replica = Replica {
            machine: Machine::new(Arc::new(Snapshot::empty()), 1),
            links: vec![None],
            channels: vec![None],
            heard: vec![false],
            outages: vec![Outage::default()],
            saver: Saver::new(None, Duration::from_secs(60)),
            on_snapshot: Some(Box::new(on_snapshot)),
            installed: None,
            status: status.clone(),
            config,
        };
        let (outbound, mut said) = mpsc::channel(8);
        replica.links[0] = Some(outbound);
        let mut acked = |generation| {
            let Some(proto::from_responder::Message::Ack(ack)) = said.try_recv().unwrap().message
            else {
                panic!("no acknowledgement")
            };
            assert_eq!(ack.version.unwrap().fabric_generation, generation);
            ack.serving.map(|serving| serving.fabric_generation)
        };
        // Twice the second one: it is confirmed the second time, and still not answered from.
        for (generation, serving) in [(1, None), (2, Some(1)), (2, Some(1)), (3, None)] {
            for message in Encoder::full(snapshot(generation)) {
                replica.take(0, message).await;
            }
            assert_eq!(acked(generation), serving, "generation {generation}");
            let version = status.version().fabric_generation;
            assert_eq!(version, serving.unwrap_or(generation), "what is told to be served");
        }
        assert_eq!(*served.lock().unwrap(), [1, 3]);
        let unusable = status.counters().into_iter().find(|c| c.0 == "replica_snapshots_unusable");
        assert_eq!(unusable.unwrap().2, 1);
    }

    /// The metric went on naming an SM that had died.
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

    #[test]
    fn an_sm_url_has_scheme_host_and_port() {
        assert!("http://127.0.0.1:7471".parse::<SmUrl>().is_ok());
        assert!("https://sm1:7471".parse::<SmUrl>().is_ok());
        for text in [
            "127.0.0.1:7471",
            "http://host",
            "ftp://host:1",
            "",
            "http://",
            "http://:1",
            "http://h:0",
            "http://h:1/x",
        ] {
            let error = text.parse::<SmUrl>().unwrap_err();
            assert!(error.to_string().contains("http://127.0.0.1:7471"), "{error}");
        }
    }
}

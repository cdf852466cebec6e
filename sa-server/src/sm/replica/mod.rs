//! The subscriber's end of the snapshot feed: keeps the served snapshot in sync with the SMs, and a
//! copy in a file for the next start.
//!
//! One link to each SM runs all the time; [`machine`] decides how to handle their messages. The
//! caller builds the tables: [`run`] passes it each new snapshot, and acknowledges the snapshot
//! once the call returns, which means that queries are answered from it.

mod asked;
mod cache_dir;
mod holding;
mod link;
mod machine;
mod outage;
mod saver;
mod sm_url;
mod status;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Qpn};
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::snapshot::{SCHEMA, Snapshot, Version, cache};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use asked::Asked;
pub use asked::Explain;
pub use cache_dir::{CacheDir, CacheDirError, passing_identity};
use link::{Event, EventKind};
use machine::{Machine, Outcome};
use outage::Outage;
use saver::Saver;
pub use sm_url::{ParseSmUrlError, SmUrl};
pub use status::{ReplicaStatus, Source, Upstream};

/// Events of all links that were not handled yet.
const EVENTS_MAX: usize = 8;
/// How often counters are reported to the SMs.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// The identity that a responder announces to SMs.
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
    /// Use of that port.
    pub port_use: proto::PortUse,
}

/// Settings of the subscription: the SMs, and where to store the snapshot.
#[derive(Debug)]
pub struct ReplicaConfig {
    /// The SMs; all are subscribed to, and the one with the highest session counts.
    pub sms: Vec<SmUrl>,
    /// Data about this responder that it announces to SMs.
    pub identity: Identity,
    /// Where to keep the last snapshot; it is not kept without.
    pub cache_dir: Option<CacheDir>,
    /// The cache file is written at most once in this time.
    pub cache_interval: Duration,
}

/// Keeps this responder up to date until `shutdown`.
///
/// `on_snapshot` is called on a separate thread with each new snapshot, the cached one first,
/// and returns once queries are answered from it. `stats` yields the figures reported to the SMs.
pub async fn run(
    config: ReplicaConfig,
    status: Arc<ReplicaStatus>,
    on_snapshot: impl FnMut(&Arc<Snapshot>) + Send + 'static,
    stats: impl Fn() -> proto::Stats,
    shutdown: impl Future<Output = ()>,
) {
    run_explaining(config, status, on_snapshot, stats, None, shutdown).await;
}

/// Like [`run`]; `explain` explains the paths that operators ask about, on separate threads.
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
        tracing::info!(
            version = %held.version(),
            "serving the cached snapshot; until an SM connects, it lacks secrets and all changes \
             since it was saved"
        );
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
            tracing::warn!(
                %error, cause,
                "cannot use the cached snapshot; waiting for one from an SM"
            );
            None
        }
    }
}

fn note_saved(status: &ReplicaStatus, written: Result<Version, cache::CacheError>) {
    match written {
        Ok(version) => {
            status.counters.saves.fetch_add(1, Relaxed);
            tracing::debug!(%version, "snapshot written to the cache directory");
        }
        Err(error) => {
            status.counters.save_errors.fetch_add(1, Relaxed);
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(
                %error, cause,
                "cannot write the snapshot to the cache directory; a restart needs an SM"
            );
        }
    }
}

/// Whether a snapshot follows from the one before by writes alone, so that it takes microseconds to
/// answer from it: less than to wake another thread.
fn is_small_step(last: &Snapshot, next: &Snapshot) -> bool {
    Arc::ptr_eq(last.fabric(), next.fabric())
        && last.registry().alias_guids.is_same(&next.registry().alias_guids)
}

/// Passes a snapshot to the caller, and again if that panics, because the state kept from the
/// previous one may be the cause. Returns whether it is served.
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
    /// Whether each SM has sent a message on its connection.
    heard: Vec<bool>,
    /// Logging state of each SM that is not connected.
    outages: Vec<Outage>,
    saver: Saver,
    /// Away while it is called.
    on_snapshot: Option<OnSnapshot>,
    /// The snapshot that it was last called with.
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
                // Not every attempt is logged. An SM that closed without a message refused us, and
                // will again.
                if std::mem::take(&mut self.heard[link]) {
                    if self.status.source() == Source::Sm(url.clone()) {
                        tracing::warn!(
                            sm = url, %reason,
                            "lost the SM; serving its last snapshot, writes wait for a connection"
                        );
                    } else {
                        tracing::warn!(sm = url, %reason, "lost a standby SM; retrying");
                    }
                    self.outages[link] = Outage::logged(Instant::now());
                } else if self.outages[link].should_log(Instant::now()) {
                    tracing::warn!("cannot connect to SM {url}: {reason}; retrying");
                } else {
                    tracing::debug!(sm = url, %reason, "cannot connect to the SM; retrying");
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
        if let Some(proto::from_sm::Message::Inquiry(inquiry)) = message.message {
            if let Some(outbound) = &self.links[link] {
                holding::answer(inquiry, self.installed.as_ref(), outbound);
            }
            return;
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
                // The builder logs each generation; this logs the SM it comes from.
                if before.session != version.session {
                    tracing::info!(sm, %version, "following this SM");
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
                tracing::warn!(sm, %error, "cannot apply the update; requesting a full snapshot");
                self.status.counters.resyncs.fetch_add(1, Relaxed);
                self.send(link, machine::resync(reason));
            }
            Outcome::Refuse { offered, held } => {
                tracing::warn!(
                    sm, %offered, held = %held,
                    "update refused: the SM's session is below that of the snapshot served; if \
                     that SM is master, it starts a higher session"
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

    /// Lets the caller serve `snapshot`; returns whether it does. If not, the previous one stays in
    /// use: all responders get the same snapshots, and one that fails here would fail everywhere,
    /// at each start.
    async fn install(&mut self, snapshot: &Arc<Snapshot>) -> bool {
        let mut on_snapshot = self.on_snapshot.take().expect("only one task calls this");
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
                "internal error: building tables from a snapshot failed; still serving the \
                 previous one"
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
            sm_guid: 0,
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
                // Dropping our end closes the feed, and the link reconnects.
                self.links[link] = None;
                self.status.counters.connected.fetch_sub(1, Relaxed);
                self.status.counters.overflows.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;

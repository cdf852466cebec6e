//! The subscriber's end of the snapshot feed: keeps the served snapshots in sync with the SMs, and
//! a copy of one in a file for the next start.
//!
//! One link to each SM runs all the time; [`machine`] decides, and this module drives it;
//! `sessions` decides which sessions are held: one as a rule, and one for each part of a split
//! fabric, each in a lane of its own. The caller builds the tables: [`run_serving`] passes it each
//! new snapshot, and acknowledges the snapshot once the call returns, which means that queries are
//! answered from it.

mod asked;
mod cache_dir;
mod holding;
mod link;
pub mod machine;
mod outage;
mod saver;
mod sessions;
mod sm_url;
mod status;
mod updates;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Qpn};
use sa_proto::proto::snapshot as proto;
use sa_proto::snapshot::{SCHEMA, Snapshot, Version, cache};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use asked::Asked;
pub use asked::Explain;
pub use cache_dir::{CacheDir, CacheDirError, passing_identity};
pub use holding::{Answering, replies};
use link::{Event, EventKind};
use machine::{Machine, Output};
use saver::Saver;
pub use sessions::SESSIONS_MAX;
pub use sm_url::{ParseSmUrlError, SmUrl};
pub use status::{LaneStatus, ReplicaStatus, Source, Upstream};

use crate::sm::peers::{self, Peers};

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
    /// The token in envelopes from there; 0 for none.
    pub front_door_token: u64,
    /// UDP address that it passes requests to other responders from, if it is at the SM's port.
    pub spill_from: Option<std::net::SocketAddr>,
    /// The token in envelopes from there; 0 for none.
    pub spill_token: u64,
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

/// A change of the served snapshots.
#[derive(Clone, Debug)]
pub enum Change {
    /// This snapshot is served in this lane.
    Serve(usize, Arc<Snapshot>),
    /// Nothing is served in this lane any more.
    Drop(usize),
    /// Requests at the responder's own port, and all that come through no manager's front door, are
    /// answered from this lane.
    Own(usize),
}

/// The parts that a subscription works with, besides its settings.
pub struct Serving {
    /// Called on a thread of its own with each change, the cached snapshot first. It returns once
    /// queries are answered accordingly.
    pub on_change: Box<dyn FnMut(&Change) + Send>,
    /// Explains the paths that operators ask about, on threads of its own.
    pub explain: Option<Explain>,
    /// Learns the front door of each lane's manager.
    pub peers: Peers,
    /// The port that requests arrive at, if there is one: of several sessions it is answered from
    /// that of its part of the fabric.
    pub own_port: Option<Guid>,
}

/// Keeps this responder up to date until `shutdown`, for a caller that needs nothing but snapshots.
///
/// `on_snapshot` is called on a thread of its own with each new snapshot, the cached one first,
/// and returns once queries are answered from it. `stats` yields the figures reported to the SMs.
pub async fn run(
    config: ReplicaConfig,
    status: Arc<ReplicaStatus>,
    mut on_snapshot: impl FnMut(&Arc<Snapshot>) + Send + 'static,
    stats: impl Fn() -> proto::Stats,
    shutdown: impl Future<Output = ()>,
) {
    let on_change = move |change: &Change| {
        if let Change::Serve(_, snapshot) = change {
            on_snapshot(snapshot);
        }
    };
    let own_port = config.identity.port.map(|(guid, _)| guid);
    let (on_change, peers) = (Box::new(on_change), Peers::default());
    let serving = Serving { on_change, explain: None, peers, own_port };
    run_serving(config, status, serving, stats, shutdown).await;
}

/// Keeps this responder up to date until `shutdown`. `stats` yields the figures for the SMs.
pub async fn run_serving(
    config: ReplicaConfig,
    status: Arc<ReplicaStatus>,
    serving: Serving,
    stats: impl Fn() -> proto::Stats,
    shutdown: impl Future<Output = ()>,
) {
    let ReplicaConfig { sms, identity, cache_dir, cache_interval } = config;
    let Serving { on_change, explain, peers, own_port } = serving;
    let cache_file = cache_dir.as_ref().map(CacheDir::snapshot_file);
    let cached = cache_file.as_deref().and_then(load);
    let urls: Vec<_> = sms.iter().map(|sm| sm.text.clone()).collect();
    let (now, greeting, shared) = (Instant::now(), greeting(&identity), status.clone());
    let mut replica = Replica {
        machine: Machine::new(now, greeting, urls.clone(), own_port, cached, shared),
        urls,
        links: vec![None; sms.len()],
        channels: vec![None; sms.len()],
        saver: Saver::new(cache_file, cache_interval),
        on_change: Some(on_change),
        peers,
        status,
    };
    replica.carry_out().await;
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let mut links = JoinSet::new();
    for (link, sm) in sms.into_iter().enumerate() {
        links.spawn(link::run(link, sm, events.clone()));
    }
    let mut asked = Asked::new(explain);
    let mut report = tokio::time::interval(STATS_INTERVAL);
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(mut event) = inbox.recv() => match event.take_question() {
                Some(question) => {
                    let lane = replica.machine.lane_of(event.link);
                    if let Some(answer) = asked.take((event.link, lane), question) {
                        replica.send(event.link, answer);
                    }
                }
                None => replica.handle(event).await,
            },
            (link, answer) = asked.next() => replica.send(link, answer),
            written = replica.saver.step() => note_saved(&replica.status, written),
            _ = report.tick() => {
                replica.machine.handle_stats(&stats());
                replica.machine.handle_timeout(Instant::now());
                replica.carry_out().await;
            }
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

/// Passes a change to the caller, and again if that panics, because the state kept from the
/// previous one may be the cause. Returns whether it is served.
fn attempt(on_change: &mut OnChange, change: &Change) -> bool {
    (0..2).any(|_| catch_unwind(AssertUnwindSafe(|| on_change(change))).is_ok())
}

type OnChange = Box<dyn FnMut(&Change) + Send>;

/// Moves events, messages and snapshots between the machine and the links, the caller and the
/// cache file.
struct Replica {
    machine: Machine,
    /// By link.
    urls: Vec<String>,
    /// Where messages to each SM go while it is connected.
    links: Vec<Option<mpsc::Sender<proto::FromResponder>>>,
    /// The connections themselves.
    channels: Vec<Option<Channel>>,
    saver: Saver,
    /// Away while it is called.
    on_change: Option<OnChange>,
    peers: Peers,
    status: Arc<ReplicaStatus>,
}

impl Replica {
    async fn handle(&mut self, event: Event) {
        let link = event.link;
        match event.kind {
            EventKind::Connected(outbound, channel) => {
                self.links[link] = Some(outbound);
                self.channels[link] = Some(channel);
                self.machine.handle_connected(link);
            }
            EventKind::Message(message) => {
                self.machine.handle_message(Instant::now(), link, message);
            }
            EventKind::Disconnected(reason) => {
                self.links[link] = None;
                self.channels[link] = None;
                self.machine.handle_disconnected(Instant::now(), link, &reason);
            }
        }
        self.carry_out().await;
    }

    async fn carry_out(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(link, message) => self.send(link, *message),
                Output::Install { lane, snapshot, is_small } => {
                    let is_served = self.call(Change::Serve(lane, snapshot), is_small).await;
                    self.machine.handle_installed(is_served);
                }
                Output::Drop(lane) => {
                    self.peers.forget(lane);
                    self.status.lane(lane).upstream.send_replace(None);
                    self.call(Change::Drop(lane), true).await;
                }
                Output::Own(lane) => {
                    self.call(Change::Own(lane), true).await;
                }
                Output::Follow { lane, link } => self.follow(lane, link),
                Output::Rest(lane) => {
                    self.status.lane(lane).upstream.send_replace(None);
                }
                Output::Leave(link) => {
                    for lane in 0..SESSIONS_MAX {
                        self.status.lane(lane).upstream.send_if_modified(|upstream| {
                            upstream.take_if(|upstream| upstream.link == link).is_some()
                        });
                    }
                }
                Output::Admit { lane, link, front_door } => {
                    let doors = peers::doors(&front_door.address, &self.urls[link]).await;
                    self.peers.set_fed(lane, doors, front_door.token);
                }
                Output::Shut(lane) => self.peers.forget(lane),
                Output::Answer(link, inquiry, serving) => {
                    if let Some(outbound) = &self.links[link] {
                        holding::answer(inquiry, &serving, outbound);
                    }
                }
                Output::Save(snapshot) => self.saver.offer(snapshot),
            }
        }
    }

    /// Writes and events of `lane` go by this link from now on.
    fn follow(&self, lane: usize, link: usize) {
        let Some(channel) = &self.channels[link] else { return };
        self.status.lane(lane).upstream.send_if_modified(|upstream| {
            let news = upstream.as_ref().is_none_or(|upstream| upstream.link != link);
            if news {
                let url = self.urls[link].clone();
                *upstream = Some(Upstream { url, channel: channel.clone(), link });
            }
            news
        });
    }

    /// Has the caller serve a change; returns whether it does.
    async fn call(&mut self, change: Change, is_quick: bool) -> bool {
        let mut on_change = self.on_change.take().expect("only one task calls this");
        let (on_change, done) = if is_quick {
            let done = attempt(&mut on_change, &change);
            (on_change, done)
        } else {
            let called = tokio::task::spawn_blocking(move || {
                let done = attempt(&mut on_change, &change);
                (on_change, done)
            });
            match called.await {
                Ok(called) => called,
                // The runtime is going down, and this task with it.
                Err(_) => std::future::pending().await,
            }
        };
        self.on_change = Some(on_change);
        done
    }

    fn send(&mut self, link: usize, message: proto::FromResponder) {
        let Some(outbound) = &self.links[link] else { return };
        match outbound.try_send(message) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                // Dropping our end closes the feed, and the link reconnects.
                self.links[link] = None;
                self.machine.handle_overflow(link);
            }
        }
    }
}

/// The first message on each connection, without what is held.
pub fn greeting(identity: &Identity) -> proto::Hello {
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
        held: None,
        spill_from: identity.spill_from.map(|address| address.to_string()).unwrap_or_default(),
        front_door_token: identity.front_door_token,
        spill_token: identity.spill_token,
        ..proto::Hello::default()
    }
}

#[cfg(test)]
mod tests;

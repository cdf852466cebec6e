//! Follows the paths of one port: at the responder that is chosen, and at the next when it fails.

use std::pin::Pin;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::node_paths_client::NodePathsClient;
use sa_proto::trust::{self, TrustError};
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{SharedHost, Source, lock};
use crate::agent::choice::Choice;
use crate::agent::ping::Pings;
use crate::agent::port::{Port, STALE_AFTER, State, UpdateError};
use crate::node::{CHANGES_LEN_MAX, CONTACT_MAX};
use crate::sm::sleep_until;

/// How long a responder may take to be connected to, and to begin.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a responder is followed no more.
#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("{}", trust::reason(.0))]
    Connect(tonic::transport::Error),
    #[error("{}", trust::reason_of_status(.0))]
    Refused(Status),
    #[error("{}", trust::reason_of_break(.0))]
    Broken(Status),
    #[error("it did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    NoAnswer,
    #[error("it was not heard for {} ms", STALE_AFTER.as_millis())]
    Stale,
    #[error("it closed the connection")]
    Closed,
    #[error("its data cannot be used: {0}")]
    Update(#[from] UpdateError),
}

/// Pings that the connection has not taken yet. One is under way at a time.
const PINGS_MAX: usize = 2;

/// A stream of a responder that has accepted.
struct Opened {
    messages: Streaming<proto::Update>,
    pings: mpsc::Sender<proto::FollowRequest>,
    /// When the first request was about to be sent.
    asked: Instant,
}

/// An attempt at a responder, by its position.
type Attempt = Pin<Box<dyn Future<Output = (usize, Result<Opened, Reason>)> + Send>>;

/// Follows port `at` for ever.
pub(super) async fn run(at: usize, sources: Vec<Source>, host: SharedHost) {
    let Some((name, guid)) = lock(&host).ports().get(at).map(|(n, p)| (n.to_string(), p.guid()))
    else {
        return;
    };
    let choice = Choice::new(guid, sources.iter().map(|source| &*source.url));
    let logged = vec![String::new(); sources.len()];
    let feed = Feed { at, name, guid, host, sources, choice, followed: None, logged };
    feed.run().await;
}

/// A responder that is followed.
struct Followed {
    source: usize,
    stream: Opened,
    has_been_fresh: bool,
    /// Whether the manager has confirmed its paths lately, as it was logged last.
    is_confirmed: bool,
}

struct Feed {
    at: usize,
    /// Device and number of the port.
    name: String,
    guid: Guid,
    host: SharedHost,
    sources: Vec<Source>,
    choice: Choice,
    followed: Option<Followed>,
    /// Of each responder, what was logged last.
    logged: Vec<String>,
}

impl Feed {
    async fn run(mut self) {
        let mut attempt: Option<Attempt> = None;
        loop {
            let now = Instant::now();
            self.look_at_port(now);
            if attempt.is_none()
                && let Some(next) = self.choice.poll(now)
            {
                attempt = Some(Box::pin(open(next, self.sources[next].clone(), self.guid)));
            }
            let looks_at = self.choice.poll_timeout().filter(|_| attempt.is_none());
            let runs_out = self.with_port(|port| port.confirmed_until()).filter(|at| *at > now);
            let wakes = [looks_at, runs_out].into_iter().flatten().min();
            tokio::select! {
                (source, result) = pending_attempt(&mut attempt) => {
                    attempt = None;
                    self.handle_attempt(source, result);
                }
                message = next_message(&mut self.followed, self.at, &self.host) => {
                    if let Err(reason) = message.and_then(|message| self.handle(message)) {
                        self.leave(&reason);
                    }
                }
                () = sleep_until(wakes) => {}
            }
        }
    }

    fn with_port<T: Default>(&self, ask: impl FnOnce(&mut Port) -> T) -> T {
        lock(&self.host).port_mut(self.at).map(ask).unwrap_or_default()
    }

    /// Notes whether the responder that is followed is of use.
    fn look_at_port(&mut self, now: Instant) {
        let (is_served, is_confirmed) =
            self.with_port(|port| (port.is_served(now), port.is_confirmed(now)));
        let Some(followed) = &mut self.followed else { return };
        // Before all paths were sent it is not known.
        if !followed.has_been_fresh {
            return;
        }
        self.choice.handle_served(now, is_served);
        if std::mem::replace(&mut followed.is_confirmed, is_confirmed) == is_confirmed {
            return;
        }
        let (name, url) = (&self.name, &self.sources[followed.source].url);
        if is_confirmed {
            tracing::info!("port {name}: the SM confirms the paths of {url} again; answering");
        } else {
            tracing::warn!(
                "port {name}: the SM has not confirmed the paths of {url} for {} s; the kernel \
                 asks the SA meanwhile",
                CONTACT_MAX.as_secs()
            );
        }
    }

    /// Follows the responder that accepts, instead of the one before.
    fn handle_attempt(&mut self, source: usize, result: Result<Opened, Reason>) {
        let now = Instant::now();
        match result {
            Ok(stream) => {
                // When it fails again, that is news.
                self.logged[source].clear();
                if let Some(before) = self.followed.take() {
                    let (from, to) = (&self.sources[before.source].url, &self.sources[source].url);
                    tracing::info!("port {}: following {to} instead of {from}", self.name);
                }
                self.with_port(|port| port.handle_connected(now, stream.asked));
                self.choice.handle_followed(now, source);
                let (has_been_fresh, is_confirmed) = (false, true);
                self.followed = Some(Followed { source, stream, has_been_fresh, is_confirmed });
            }
            Err(reason) => {
                self.choice.handle_failed(now, source);
                self.log_failure(source, &reason, false);
            }
        }
    }

    /// The responder can be followed no more.
    fn leave(&mut self, reason: &Reason) {
        let Some(followed) = self.followed.take() else { return };
        self.with_port(Port::handle_disconnected);
        self.choice.handle_failed(Instant::now(), followed.source);
        self.log_failure(followed.source, reason, followed.has_been_fresh);
    }

    fn log_failure(&mut self, source: usize, reason: &Reason, was_followed: bool) {
        let reason = reason.to_string();
        if !was_followed && self.logged[source] == reason {
            return;
        }
        let meanwhile = match self.followed {
            Some(_) => "",
            None => "; the kernel asks the SA meanwhile",
        };
        let (name, url) = (&self.name, &self.sources[source].url);
        tracing::warn!("port {name}: {url} is not followed: {reason}{meanwhile}");
        self.logged[source] = reason;
    }

    fn handle(&mut self, message: proto::Update) -> Result<(), Reason> {
        let Some(followed) = &mut self.followed else { return Ok(()) };
        let now = Instant::now();
        let mut host = lock(&self.host);
        let Some(port) = host.port_mut(self.at) else { return Ok(()) };
        let before = port.state();
        port.handle_update(now, message)?;
        let (state, paths, version) = (port.state(), port.table().len(), port.version());
        let (switch, ping) = (port.switch(), port.poll_ping(now));
        drop(host);
        if let Some(ping) = ping {
            let request = proto::FollowRequest { ping, ..proto::FollowRequest::default() };
            // There is room, as the one before has returned, unless the connection has ended.
            let _ = followed.stream.pings.try_send(request);
        }
        if let Some(switch) = switch {
            self.choice.handle_switch(now, switch);
        }
        if state != before
            && let State::Fresh { is_known } = state
        {
            let is_again = std::mem::replace(&mut followed.has_been_fresh, true);
            let source = followed.source;
            self.choice.handle_fresh();
            self.log_fresh(source, is_known, paths, version, is_again);
        }
        Ok(())
    }

    fn log_fresh(
        &self,
        source: usize,
        is_known: bool,
        paths: usize,
        (session, generation): (u64, u64),
        is_again: bool,
    ) {
        let (name, url) = (&self.name, &self.sources[source].url);
        if !is_known {
            tracing::warn!(
                "port {name}: unknown to {url} in generation {generation} of session {session}; \
                 the kernel asks the SA meanwhile"
            );
        } else if is_again {
            tracing::debug!(
                "port {name}: {paths} paths of generation {generation} of session {session}"
            );
        } else {
            tracing::info!(
                "port {name}: answering from {paths} paths of {url}, generation {generation} of \
                 session {session}"
            );
        }
    }
}

/// Asks a responder for the paths of a port. One that has nothing to offer refuses.
async fn open(at: usize, source: Source, port: Guid) -> (usize, Result<Opened, Reason>) {
    let opened = async {
        let endpoint =
            source.endpoint()?.configure(|endpoint| endpoint.connect_timeout(CONNECT_TIMEOUT));
        let channel = endpoint.connect().await.map_err(Reason::Connect)?;
        let mut client =
            NodePathsClient::new(channel).max_decoding_message_size(2 * CHANGES_LEN_MAX);
        let agent = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (pings, requests) = mpsc::channel(PINGS_MAX);
        let first = proto::FollowRequest { port_guid: port.0, agent, ping: Pings::FIRST };
        // Queued before the call, which the responder answers only after it.
        let _ = pings.try_send(first);
        let asked = Instant::now();
        let call = client.follow(ReceiverStream::new(requests));
        let call = timeout(CONNECT_TIMEOUT, call).await.map_err(|_| Reason::NoAnswer)?;
        let messages = call.map_err(Reason::Refused)?.into_inner();
        Ok(Opened { messages, pings, asked })
    };
    (at, opened.await)
}

/// The result of the attempt. Never completes if there is none.
async fn pending_attempt(attempt: &mut Option<Attempt>) -> (usize, Result<Opened, Reason>) {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

/// The next message of the responder that is followed. Never completes if there is none.
async fn next_message(
    followed: &mut Option<Followed>,
    at: usize,
    host: &SharedHost,
) -> Result<proto::Update, Reason> {
    let Some(followed) = followed else { return std::future::pending().await };
    let due = lock(host).port_mut(at).and_then(|port| port.poll_timeout());
    let due = due.unwrap_or_else(|| Instant::now() + STALE_AFTER);
    let message = timeout_at(due.into(), followed.stream.messages.message()).await;
    let message = message.map_err(|_| Reason::Stale)?.map_err(Reason::Broken)?;
    message.ok_or(Reason::Closed)
}

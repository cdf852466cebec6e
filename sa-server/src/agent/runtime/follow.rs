//! Follows the paths of one port: at one responder, and at the next when it fails.

use std::time::{Duration, Instant};

use sa_proto::proto::node as proto;
use sa_proto::proto::node::node_paths_client::NodePathsClient;
use sa_proto::trust::{self, TrustError};
use tokio::time::{timeout, timeout_at};
use tonic::Status;

use super::{SharedHost, Source, lock};
use crate::agent::port::{STALE_AFTER, State, UpdateError};
use crate::node::CHANGES_LEN_MAX;
use crate::sm::replica::Backoff;

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

/// Follows port `at` for ever.
pub(super) async fn run(at: usize, sources: Vec<Source>, host: SharedHost) {
    let mut feed = Feed { at, name: name(at, &host), host };
    let mut backoff = Backoff::new(at as u64 ^ u64::from(std::process::id()));
    // Of each responder, what was logged last.
    let mut logged = vec![String::new(); sources.len()];
    loop {
        let mut has_followed = false;
        for (source, logged) in sources.iter().zip(&mut logged) {
            let (followed, reason) = feed.follow(source).await;
            if let Some(port) = lock(&feed.host).port_mut(at) {
                port.handle_disconnected();
            }
            has_followed |= followed;
            let reason = reason.to_string();
            if followed || *logged != reason {
                tracing::warn!(
                    "port {}: {} is not followed: {reason}; the kernel asks the SA meanwhile",
                    feed.name,
                    source.url
                );
                *logged = reason;
            }
        }
        if has_followed {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Device and number of a port.
fn name(at: usize, host: &SharedHost) -> String {
    let host = lock(host);
    host.ports().get(at).map(|(name, _)| name.to_string()).unwrap_or_default()
}

struct Feed {
    at: usize,
    name: String,
    host: SharedHost,
}

impl Feed {
    /// Follows one responder. Returns whether it was followed at all, and why no longer.
    async fn follow(&mut self, source: &Source) -> (bool, Reason) {
        let mut has_been_fresh = false;
        let end = self.messages(source, &mut has_been_fresh).await;
        (has_been_fresh, end.err().unwrap_or(Reason::Closed))
    }

    async fn messages(&mut self, source: &Source, has_been_fresh: &mut bool) -> Result<(), Reason> {
        let endpoint =
            source.endpoint()?.configure(|endpoint| endpoint.connect_timeout(CONNECT_TIMEOUT));
        let channel = endpoint.connect().await.map_err(Reason::Connect)?;
        let mut client =
            NodePathsClient::new(channel).max_decoding_message_size(2 * CHANGES_LEN_MAX);
        let Some(port_guid) = lock(&self.host).port_mut(self.at).map(|port| port.guid().0) else {
            return Err(Reason::Closed);
        };
        let agent = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let call = client.follow(proto::FollowRequest { port_guid, agent });
        let call = timeout(CONNECT_TIMEOUT, call).await.map_err(|_| Reason::NoAnswer)?;
        let mut messages = call.map_err(Reason::Refused)?.into_inner();
        if let Some(port) = lock(&self.host).port_mut(self.at) {
            port.handle_connected(Instant::now());
        }
        loop {
            let due = lock(&self.host).port_mut(self.at).and_then(|port| port.poll_timeout());
            let due = due.unwrap_or_else(|| Instant::now() + STALE_AFTER);
            let message = timeout_at(due.into(), messages.message()).await;
            let message = message.map_err(|_| Reason::Stale)?.map_err(Reason::Broken)?;
            let Some(message) = message else { return Ok(()) };
            let mut host = lock(&self.host);
            let Some(port) = host.port_mut(self.at) else { return Ok(()) };
            let before = port.state();
            port.handle_update(Instant::now(), message)?;
            let (now, paths, version) = (port.state(), port.table().len(), port.version());
            drop(host);
            if now != before
                && let State::Fresh { is_known } = now
            {
                self.log_fresh(source, is_known, paths, version, *has_been_fresh);
                *has_been_fresh = true;
            }
        }
    }

    fn log_fresh(
        &self,
        source: &Source,
        is_known: bool,
        paths: usize,
        (session, generation): (u64, u64),
        is_again: bool,
    ) {
        let (name, url) = (&self.name, &source.url);
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

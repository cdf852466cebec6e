//! A standby's end of the master's feed: what clients registered there is kept here, too.
//!
//! We follow as a client of the feed: no queries are led to us. Each snapshot's registry is handed
//! to the registry's thread, which makes it durable; whether that was all the master had is judged
//! by [`RegistryCopy`] when we are about to take over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::resync::Reason;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::proto::snapshot::{self as proto, FromResponder};
use sa_proto::snapshot::codec::Decoder;
use sa_proto::snapshot::{RegistryPlane, SCHEMA, Session, Snapshot, Version};
use sa_proto::trust::{self, ClientTrust};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tracing::{info, warn};

use crate::sweep::RegistryCopy;

/// How often a silent connection is probed, and how long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between attempts to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Replies that the connection has not taken yet.
const OUTBOUND_MAX: usize = 16;

/// Where to follow, and who we are.
#[derive(Clone, Debug)]
pub(super) struct Following {
    /// Addresses of feeds, such as `https://sm1:7471`: those of all other subnet managers.
    pub(super) urls: Vec<String>,
    pub(super) trust: ClientTrust,
    /// Our identity among those that follow, not 0.
    pub(super) id: u64,
    pub(super) name: String,
}

/// What a master said last, for the registry's thread.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) version: Version,
    pub(super) plane: Arc<RegistryPlane>,
}

/// How far we are with a master's registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// The last version that came in whole, [`Version::NONE`] before the first.
    pub(super) received: Version,
    /// The last one that is on disk.
    pub(super) stored: Version,
    /// When the stream that it came by ended; `None` while it goes on.
    pub(super) ended: Option<Instant>,
}

impl Followed {
    /// What that comes to.
    pub(super) fn copy(&self) -> RegistryCopy {
        match self.ended {
            _ if self.received == Version::NONE || self.stored != self.received => {
                RegistryCopy::None
            }
            None => RegistryCopy::Current,
            Some(ended) => RegistryCopy::Ended(ended),
        }
    }
}

/// What the streams, the registry's thread and the loop have in common.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<(Followed, Option<News>)>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, (Followed, Option<News>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far we are.
    pub(super) fn followed(&self) -> Followed {
        self.lock().0
    }

    /// What came in and is not on disk yet; older news nobody needs.
    pub(super) fn take(&self) -> Option<News> {
        self.lock().1.take()
    }

    /// Whether something came in.
    pub(super) fn has_news(&self) -> bool {
        self.lock().1.is_some()
    }

    /// News of this version are on disk.
    pub(super) fn stored(&self, version: Version) {
        self.lock().0.stored = version;
    }

    /// A snapshot came in. `false` if its session is older than one that was followed before: its
    /// master was replaced.
    fn receive(&self, snapshot: &Snapshot) -> bool {
        let (version, mut state) = (snapshot.version(), self.lock());
        if version.session < state.0.received.session {
            return false;
        }
        state.0.received = version;
        state.0.ended = None;
        state.1 = Some(News { version, plane: snapshot.registry().clone() });
        true
    }

    /// A stream ended, by which the session came.
    fn end(&self, session: Session) {
        let mut state = self.lock();
        if state.0.received.session == session {
            state.0.ended.get_or_insert_with(Instant::now);
        }
    }
}

/// Follows for as long as the process lives; `arrived` is called for each news.
pub(super) fn start(
    following: Following,
    progress: Arc<Progress>,
    arrived: impl Fn() + Clone + Send + 'static,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        let streams = tokio::task::LocalSet::new();
        for url in following.urls.clone() {
            let (following, progress) = (following.clone(), progress.clone());
            let arrived = arrived.clone();
            streams.spawn_local(async move {
                let mut told = String::new();
                loop {
                    let reason = follow(&url, &following, &progress, &arrived).await;
                    // One that stands by itself is silent for long; what is new is told.
                    if reason != told {
                        warn!("following {url}: {reason}; trying again");
                        told = reason;
                    }
                    tokio::time::sleep(RECONNECT_INTERVAL).await;
                }
            });
        }
        runtime.block_on(streams);
    };
    std::thread::Builder::new().name("follow".to_owned()).spawn(run)?;
    Ok(())
}

fn endpoint(following: &Following, url: &str) -> Result<Endpoint, String> {
    let endpoint = following.trust.endpoint(url).map_err(|error| error.to_string())?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}

/// One connection, from its beginning to its end, and why it ended.
async fn follow(
    url: &str,
    following: &Following,
    progress: &Progress,
    arrived: &impl Fn(),
) -> String {
    let mut session = None;
    let reason = match stream(url, following, progress, arrived, &mut session).await {
        Ok(()) => "the stream ended".to_owned(),
        Err(reason) => reason,
    };
    if let Some(session) = session {
        progress.end(session);
    }
    reason
}

async fn stream(
    url: &str,
    following: &Following,
    progress: &Progress,
    arrived: &impl Fn(),
    session: &mut Option<Session>,
) -> Result<(), String> {
    let channel =
        endpoint(following, url)?.connect().await.map_err(|error| trust::reason(&error))?;
    let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
    let reply = |message| {
        let sent = outbound.try_send(FromResponder { message: Some(message) });
        sent.map_err(|_| "it does not take our replies".to_owned())
    };
    let hello = proto::Hello {
        schema: SCHEMA,
        responder_id: following.id,
        name: following.name.clone(),
        software: concat!("ibsm ", env!("CARGO_PKG_VERSION")).into(),
        ..proto::Hello::default()
    };
    reply(Reply::Hello(hello))?;
    let call = SnapshotFeedClient::new(channel).subscribe(ReceiverStream::new(messages)).await;
    let mut inbound = call.map_err(|status| trust::reason_of_status(&status))?.into_inner();
    let mut held = Arc::new(Snapshot::empty());
    let mut decoder: Option<Decoder> = None;
    while let Some(message) =
        inbound.message().await.map_err(|status| trust::reason_of_break(&status))?
    {
        let done = match (message.message, decoder.take()) {
            (Some(Message::Begin(begin)), _) => Decoder::new(begin).map(|begun| {
                decoder = Some(begun);
                None
            }),
            (Some(Message::Chunk(chunk)), Some(mut under_way)) => {
                under_way.chunk(&chunk).map(|()| {
                    decoder = Some(under_way);
                    None
                })
            }
            (Some(Message::End(end)), Some(under_way)) => under_way.finish(end, &held).map(Some),
            (_, under_way) => {
                decoder = under_way;
                Ok(None)
            }
        };
        let answer = match done {
            Ok(None) => continue,
            Ok(Some(next)) if !progress.receive(&next) => {
                Reply::Refused(proto::Refused { held: Some(progress.followed().received.into()) })
            }
            Ok(Some(next)) => {
                let version = next.version();
                if session.replace(version.session) != Some(version.session) {
                    info!("following {url}, session {}", version.session);
                }
                held = Arc::new(next);
                arrived();
                Reply::Ack(proto::Ack { version: Some(version.into()), serving: None })
            }
            Err(error) => {
                warn!("following {url}: {error}; asking for everything");
                Reply::Resync(proto::Resync { reason: Reason::Malformed.into() })
            }
        };
        reply(answer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::FabricPlane;

    use super::*;

    fn snapshot(epoch: u64, sequence: u64) -> Snapshot {
        let session = Session { epoch, sm_guid: Guid(1) };
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        Snapshot::build(session, 1, FabricPlane::default(), registry).unwrap()
    }

    #[test]
    fn what_is_not_on_disk_is_not_held() {
        let progress = Progress::default();
        let copy = || progress.followed().copy();
        assert_eq!(copy(), RegistryCopy::None, "nothing came in");
        assert!(progress.receive(&snapshot(5, 1)));
        assert_eq!(copy(), RegistryCopy::None, "it is not on disk");
        let news = progress.take().unwrap();
        progress.stored(news.version);
        assert_eq!(copy(), RegistryCopy::Current);
        progress.end(news.version.session);
        let ended = progress.followed().ended.unwrap();
        assert_eq!(copy(), RegistryCopy::Ended(ended));
        assert!(progress.receive(&snapshot(5, 2)));
        assert_eq!(copy(), RegistryCopy::None, "there are news");
    }

    #[test]
    fn a_master_that_was_replaced_is_not_followed() {
        let progress = Progress::default();
        assert!(progress.receive(&snapshot(6, 3)));
        assert!(!progress.receive(&snapshot(5, 9)));
        assert_eq!(progress.take().unwrap().plane.sequence, 3);
        progress.end(Session { epoch: 5, sm_guid: Guid(1) });
        assert_eq!(progress.followed().ended, None, "the other stream goes on");
    }
}

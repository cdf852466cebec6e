//! The task of one agent: learns of each new generation at once, says so if it may concern the
//! agent's port, has the thread find what changed, and sends it. One that does not read is
//! disconnected.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_proto::snapshot::Version;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};
use tonic::Status;

use super::HEARTBEAT;
use super::finder::{Found, Job, lock};
use super::follower::{Follower, millis};
use super::half::update;
use super::service::Shared;

/// How long an agent may take to read a message, and all messages of an update: other agents wait
/// for the memory.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_OF_UPDATE: Duration = Duration::from_secs(30);

/// Why an agent is not served any more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum End {
    #[error("it left")]
    Left,
    #[error("it did not read within {} s, or {} s for an update", PATIENCE.as_secs(),
        PATIENCE_OF_UPDATE.as_secs())]
    Slow,
    #[error("the thread that finds paths has ended")]
    NoFinder,
}

/// The task of one agent.
pub(super) struct Task {
    shared: Arc<Shared>,
    outbound: mpsc::Sender<Result<proto::Update, Status>>,
    /// The version that its paths are of.
    version: Version,
}

impl Task {
    /// Of an agent that reads the other end of `outbound`.
    pub(super) fn new(
        shared: Arc<Shared>,
        outbound: mpsc::Sender<Result<proto::Update, Status>>,
    ) -> Self {
        Self { shared, outbound, version: Version::NONE }
    }

    /// Keeps the agent up to date until it leaves.
    pub(super) async fn run(mut self, mut follower: Follower) -> End {
        let mut published = self.shared.published.subscribe();
        let mut heartbeats = interval(HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A stream begins so.
        let mut is_outdated = true;
        published.mark_changed();
        let mut reader = lock(&self.shared.publisher).reader();
        let terms = reader.current().map(|generation| follower.greet(generation));
        drop(reader);
        if let Some(terms) = terms
            && let Err(end) = self.send(terms, Instant::now() + PATIENCE).await
        {
            return end;
        }
        loop {
            tokio::select! {
                changed = published.changed() => if changed.is_err() {
                    return End::NoFinder;
                },
                _ = heartbeats.tick() => {
                    let published = *published.borrow();
                    if !is_outdated && follower.is_current(published.number) {
                        self.version = published.version;
                    }
                    self.beat();
                    continue;
                }
                () = self.outbound.closed() => return End::Left,
            }
            if !is_outdated {
                if follower.is_current(published.borrow_and_update().number) {
                    self.shared.counters.spared.fetch_add(1, Relaxed);
                    continue;
                }
                let changing = update(Kind::Changing(proto::Changing {}));
                if let Err(end) = self.send(changing, Instant::now() + PATIENCE).await {
                    return end;
                }
                is_outdated = true;
            }
            // A change from now on is found after this one.
            published.mark_unchanged();
            let found = self.find(follower);
            let (back, messages) = match self.beating(&mut heartbeats, found).await {
                Ok(found) => found,
                Err(end) => return end,
            };
            follower = back;
            let Some((messages, turn)) = messages else { continue };
            let due = Instant::now() + PATIENCE_OF_UPDATE;
            for message in messages.iter() {
                match &message.kind {
                    Some(Kind::Changes(changes)) => {
                        let records = changes.records.len() / 64;
                        self.shared.counters.records.fetch_add(records as u64, Relaxed);
                    }
                    Some(Kind::Current(_)) => {
                        let published = *published.borrow();
                        if !follower.is_current(published.number) {
                            // A newer generation is not current any more.
                            break;
                        }
                        self.version = published.version;
                        is_outdated = false;
                    }
                    _ => {}
                }
                if let Err(end) = self.send(message.clone(), due).await {
                    return end;
                }
            }
            drop((messages, turn));
            self.shared.counters.updates.fetch_add(1, Relaxed);
        }
    }

    /// Has the messages for the latest generation made.
    async fn find(&self, follower: Follower) -> Result<Found, End> {
        let (done, found) = oneshot::channel();
        self.shared.jobs.send(Job { follower, done }).await.map_err(|_| End::NoFinder)?;
        found.await.map_err(|_| End::NoFinder)
    }

    /// Sends heartbeats while something is awaited.
    async fn beating<T>(
        &self,
        heartbeats: &mut Interval,
        awaited: impl Future<Output = Result<T, End>>,
    ) -> Result<T, End> {
        tokio::pin!(awaited);
        loop {
            tokio::select! {
                result = &mut awaited => return result,
                _ = heartbeats.tick() => self.beat(),
                () = self.outbound.closed() => return Err(End::Left),
            }
        }
    }

    /// Shows that the responder lives and how long ago its manager did, unless messages are under
    /// way.
    fn beat(&self) {
        let beat = proto::Heartbeat {
            session: self.version.session.epoch,
            generation: self.version.fabric_generation,
            age_ms: millis(self.shared.age()),
        };
        let _ = self.outbound.try_send(Ok(update(Kind::Heartbeat(beat))));
    }

    /// Sends a message, all of whose update is to be read by `due`.
    async fn send(&self, message: proto::Update, due: Instant) -> Result<(), End> {
        let due = due.min(Instant::now() + PATIENCE);
        match timeout_at(due, self.outbound.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => {
                self.shared.counters.slow.fetch_add(1, Relaxed);
                Err(End::Slow)
            }
        }
    }
}

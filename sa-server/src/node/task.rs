//! The task of one agent: learns of each new generation at once, says so if it may concern the
//! agent's port, has the thread find what changed, and sends it. One that does not read is
//! disconnected.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sa_proto::crowd::Share;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_proto::snapshot::Version;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout_at};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::HEARTBEAT;
use super::finder::{Found, Job};
use super::follower::Follower;
use super::half::update;
use super::service::Shared;
use super::survey::Record;
use super::turns::{Reading, TURN_LEN};

/// How long an agent may take to read a message, and all messages of an update: they are in memory.
/// One that takes longer than a turn may be disconnected earlier.
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
    #[error("it did not read within {} s, as did too many others", TURN_LEN.as_secs())]
    Behind,
    #[error("the thread that finds paths has ended")]
    NoFinder,
}

/// Requests of an agent after the first.
pub(super) type Pings =
    Pin<Box<dyn Stream<Item = Result<proto::FollowRequest, Status>> + Send + Sync>>;

/// The task of one agent.
pub(super) struct Task {
    shared: Arc<Shared>,
    /// Whose agent it is.
    share: Share,
    outbound: mpsc::Sender<Result<proto::Update, Status>>,
    /// `None` when it sends no more.
    pings: Option<Pings>,
    /// The last ping, and when it arrived.
    ping: (u64, Instant),
    /// The version that its paths are of.
    version: Version,
}

impl Task {
    /// Of an agent that reads the other end of `outbound`. Its first ping arrived at this time.
    pub(super) fn new(
        shared: Arc<Shared>,
        share: Share,
        outbound: mpsc::Sender<Result<proto::Update, Status>>,
        ping: (u64, Instant),
        pings: Pings,
    ) -> Self {
        Self { shared, share, outbound, pings: Some(pings), ping, version: Version::NONE }
    }

    /// Keeps the agent up to date until it leaves.
    pub(super) async fn run(mut self, mut follower: Follower) -> End {
        let mut published = self.shared.published.subscribe();
        let mut heartbeats = interval(HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A stream begins so.
        let mut is_outdated = true;
        published.mark_changed();
        let mut reader = self.shared.reader();
        let terms = reader.current().map(|generation| follower.greet(generation));
        drop(reader);
        if let Some(terms) = terms
            && let Err(end) = self.send(terms, Instant::now() + PATIENCE, None).await
        {
            return end;
        }
        // One ping is read between two heartbeats: an agent can cause no more work.
        let mut reads_ping = false;
        loop {
            tokio::select! {
                changed = published.changed() => if changed.is_err() {
                    return End::NoFinder;
                },
                _ = heartbeats.tick() => {
                    self.beat(Some(&follower).filter(|_| !is_outdated));
                    reads_ping = true;
                    continue;
                }
                ping = next_ping(&mut self.pings), if reads_ping => {
                    self.take_ping(ping);
                    reads_ping = false;
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
                if let Err(end) = self.send(changing, Instant::now() + PATIENCE, None).await {
                    return end;
                }
                is_outdated = true;
            }
            // A change from now on is found after this one.
            published.mark_unchanged();
            let shared = Arc::clone(&self.shared);
            let found = find(&shared, follower, self.share);
            let (back, messages) = match self.beating(&mut heartbeats, found).await {
                Ok(found) => found,
                Err(end) => return end,
            };
            follower = back;
            let Some((messages, turn)) = messages else { continue };
            let due = Instant::now() + PATIENCE_OF_UPDATE;
            let mut reading = Reading::new(turn, self.share);
            for message in messages.iter() {
                let sent = match message.kind {
                    Some(Kind::Current(current)) => {
                        let sent = self.send_current(current, &follower, due, &mut reading).await;
                        sent.map(|is_sent| is_outdated = !is_sent)
                    }
                    _ => self.send(message.clone(), due, Some(&mut reading)).await,
                };
                if let Err(end) = sent {
                    return end;
                }
            }
            drop(messages);
            reading.finish();
        }
    }

    /// Sends the end of an update, with what the manager has confirmed by then, unless there are
    /// newer tables. Returns whether it was sent.
    async fn send_current(
        &mut self,
        current: proto::Current,
        follower: &Follower,
        due: Instant,
        reading: &mut Reading,
    ) -> Result<bool, End> {
        let permit = self.reserve(due, Some(reading)).await?;
        let (published, asked) = self.shared.confirmed();
        if !follower.is_current(published.number) {
            return Ok(false);
        }
        let confirmation = asked.map(|asked| self.confirmation(asked));
        permit.send(Ok(update(Kind::Current(proto::Current { confirmation, ..current }))));
        self.version = published.version;
        self.shared.counters.updates.fetch_add(1, Relaxed);
        Ok(true)
    }

    /// Sends heartbeats while something is awaited.
    async fn beating<T>(
        &mut self,
        heartbeats: &mut Interval,
        awaited: impl Future<Output = Result<T, End>>,
    ) -> Result<T, End> {
        tokio::pin!(awaited);
        loop {
            tokio::select! {
                result = &mut awaited => return result,
                _ = heartbeats.tick() => self.beat(None),
                () = self.outbound.closed() => return Err(End::Left),
            }
        }
    }

    /// Shows that the responder lives and when its manager was asked, unless messages are under
    /// way. `follower` is that of an agent that answers from what it holds.
    fn beat(&mut self, follower: Option<&Follower>) {
        let (published, mut asked) = self.shared.confirmed();
        if let Some(follower) = follower {
            if follower.is_current(published.number) {
                self.version = published.version;
            } else {
                // The agent will hear in a moment that its paths may have changed.
                asked = None;
            }
        }
        let beat = proto::Heartbeat {
            session: self.version.session.epoch,
            generation: self.version.fabric_generation,
            confirmation: asked.map(|asked| self.confirmation(asked)),
        };
        let _ = self.outbound.try_send(Ok(update(Kind::Heartbeat(beat))));
    }

    /// When the manager was asked, as the agent can understand it.
    fn confirmation(&self, asked: Instant) -> proto::Confirmation {
        let (ping, arrived) = self.ping;
        let after_ms = match asked.checked_duration_since(arrived) {
            Some(after) => after.as_millis() as i64,
            None => {
                let before = arrived.saturating_duration_since(asked);
                -(before.as_nanos().div_ceil(1_000_000) as i64)
            }
        };
        proto::Confirmation { ping, after_ms }
    }

    fn take_ping(&mut self, ping: Option<proto::FollowRequest>) {
        match ping {
            Some(request) => self.ping = (request.ping, Instant::now()),
            None => self.pings = None,
        }
    }

    /// Sends a message, all of whose update is to be read by `due`.
    async fn send(
        &self,
        message: proto::Update,
        due: Instant,
        reading: Option<&mut Reading>,
    ) -> Result<(), End> {
        let permit = self.reserve(due, reading).await?;
        if let Some(Kind::Changes(changes)) = &message.kind {
            let records = changes.records.len() / size_of::<Record>();
            self.shared.counters.records.fetch_add(records as u64, Relaxed);
        }
        permit.send(Ok(message));
        Ok(())
    }

    /// Waits until there is room for a message. If the turn ends meanwhile, the agent is behind.
    async fn reserve(
        &self,
        due: Instant,
        reading: Option<&mut Reading>,
    ) -> Result<mpsc::Permit<'_, Result<proto::Update, Status>>, End> {
        let due = due.min(Instant::now() + PATIENCE);
        if let Some(reading) = reading
            && let Some(ends) = reading.ends().filter(|ends| *ends < due)
        {
            match timeout_at(ends.into(), self.outbound.reserve()).await {
                Ok(Ok(permit)) => return Ok(permit),
                Ok(Err(_)) => return Err(End::Left),
                Err(_) => {}
            }
            self.shared.counters.behind.fetch_add(1, Relaxed);
            if !reading.fall_behind() {
                self.shared.counters.slow.fetch_add(1, Relaxed);
                return Err(End::Behind);
            }
        }
        match timeout_at(due.into(), self.outbound.reserve()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => {
                self.shared.counters.slow.fetch_add(1, Relaxed);
                Err(End::Slow)
            }
        }
    }
}

/// Has the messages for the latest generation made.
async fn find(shared: &Shared, follower: Follower, share: Share) -> Result<Found, End> {
    let (done, found) = oneshot::channel();
    shared
        .jobs
        .send(Job { follower, share, is_held_back: false, done })
        .await
        .map_err(|_| End::NoFinder)?;
    found.await.map_err(|_| End::NoFinder)
}

/// The next request; `None` if there are no more. Never completes after that.
async fn next_ping(pings: &mut Option<Pings>) -> Option<proto::FollowRequest> {
    match pings {
        Some(pings) => pings.next().await?.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

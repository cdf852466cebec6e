//! The gRPC service of the feed: one task for each responder, which moves messages between its
//! connection and its [`Feed`].

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ib_mad::types::Guid;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm;
use sa_proto::snapshot::{Plan, Version};
use sa_proto::state::StateVersion;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status, Streaming};

use crate::observe::{self, Follower, RESPONDERS_MAX, Reported, Responder};

use super::batches::Batches;
use super::feed::{Event, Feed, FeedError};
use super::heartbeat::Heartbeats;
use super::inquiry::{Inquiry, Recall};
use super::state_feed::StateFeed;
use super::{Shared, same_fabric};

/// Maximum number of message batches that wait in the queue of a connection; together a little more
/// than half a megabyte.
const OUTBOUND_MAX: usize = 2;
/// Bytes of messages after which no other is added to a batch.
const BATCH_LEN: usize = 16 << 10;

#[derive(Clone)]
pub(super) struct FeedService {
    pub(super) shared: Arc<Shared>,
    /// Loses its sender when all feeds must end.
    pub(super) end: watch::Receiver<()>,
}

type Outbound = mpsc::Sender<Result<Vec<proto::FromSm>, Status>>;

#[tonic::async_trait]
impl proto::snapshot_feed_server::SnapshotFeed for FeedService {
    type SubscribeStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<proto::FromSm, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<proto::FromResponder>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let peer = request.remote_addr().map(|address| address.ip());
        let (outbound, stream) = mpsc::channel(OUTBOUND_MAX);
        let subscription = Subscription {
            connection: self.shared.connections.fetch_add(1, Relaxed) + 1,
            shared: self.shared.clone(),
            peer,
            name: "?".into(),
            id: 0,
            sm_guid: Guid(0),
            is_client: false,
            acked: Version::NONE,
            heartbeats: None,
            state: None,
            recall: Recall::default(),
            offered: false,
            has_refused: false,
        };
        tokio::spawn(subscription.run(request.into_inner(), outbound, self.end.clone()));
        Ok(Response::new(Box::pin(Batches::new(stream))))
    }
}

/// The task of one connection.
struct Subscription {
    shared: Arc<Shared>,
    connection: u64,
    peer: Option<IpAddr>,
    /// The responder's name, once it sent its greeting.
    name: Arc<str>,
    /// Its identity; 0 before its greeting.
    id: u64,
    /// GUID of its port, if it is a subnet manager that follows the registry.
    sm_guid: Guid,
    /// Whether it answers no queries, but only follows the snapshot.
    is_client: bool,
    /// The version it acknowledged last.
    acked: Version,
    /// Heartbeats, if it is a subnet manager that follows the registry.
    heartbeats: Option<Heartbeats>,
    /// The state besides the registry, if it takes that.
    state: Option<StateFeed>,
    /// The registry that it is asked for.
    recall: Recall,
    /// Whether it was sent updates of a session that it has not been notified of the end of.
    offered: bool,
    /// Whether it refused the last update.
    has_refused: bool,
}

/// Reason for the end of a connection that the responder closed.
const CLOSED: &str = "responder closed the feed";

/// How a connection ended.
enum End {
    /// The responder disconnected, or the connection broke.
    Left(String),
    /// This SM closed the feed.
    Given(Status),
    /// The SM shuts down.
    Closing,
}

impl From<FeedError> for End {
    fn from(error: FeedError) -> Self {
        let message = error.to_string();
        Self::Given(match error {
            FeedError::Greeting | FeedError::Identity | FeedError::Malformed(_) => {
                Status::invalid_argument(message)
            }
            FeedError::Schema(_) => Status::failed_precondition(message),
            FeedError::Resyncs => Status::aborted(message),
            FeedError::Timeout => Status::deadline_exceeded(message),
        })
    }
}

impl Subscription {
    async fn run(
        mut self,
        inbound: Streaming<proto::FromResponder>,
        outbound: Outbound,
        mut closing: watch::Receiver<()>,
    ) {
        let announced = self.shared.announced.subscribe();
        let end = tokio::select! {
            biased;
            _ = closing.changed() => End::Closing,
            end = self.serve(inbound, &outbound, announced) => end,
        };
        let is_closing = matches!(end, End::Closing);
        match end {
            End::Left(reason) if self.heartbeats.is_some() => {
                tracing::warn!(
                    standby = %self.name, %reason,
                    "a standby that follows the registry disconnected"
                );
            }
            End::Left(reason) if self.is_client => {
                tracing::debug!(client = %self.name, %reason, "snapshot client disconnected");
            }
            End::Left(reason) => {
                tracing::warn!(responder = %self.name, %reason, "responder disconnected");
            }
            End::Given(status) => {
                let reason = status.message();
                tracing::warn!(responder = %self.name, reason, "closing the feed to a responder");
                self.shared.counters.given_up.fetch_add(1, Relaxed);
                // It may not be reading any more: do not wait.
                let _ = outbound.try_send(Err(status));
            }
            End::Closing => {
                tracing::debug!(responder = %self.name, "feed ended");
                let _ = outbound.try_send(Err(Status::unavailable("the SM is shutting down")));
            }
        }
        self.shared.inboxes.close(self.connection);
        if self.shared.leave(self.connection) && !is_closing {
            tracing::warn!("the last responder disconnected; SA queries are not answered");
        }
    }

    async fn serve(
        &mut self,
        mut inbound: Streaming<proto::FromResponder>,
        outbound: &Outbound,
        mut announced: watch::Receiver<Version>,
    ) -> End {
        let mut feed = Feed::new(Instant::now());
        let mut asking = self.shared.inboxes.open(self.connection);
        let mut inquiries = self.shared.inquiries.subscribe();
        // One that connects while the answers are awaited is asked, too.
        if self.shared.inquiries.number() != 0 {
            inquiries.mark_changed();
        }
        let mut writers = self.shared.writers.subscribe();
        let mut states = self.shared.state.subscribe();
        // Between the messages of updates: a question, or a heartbeat.
        let mut question = None;
        loop {
            self.begin_update(&mut feed, &mut announced);
            if question.is_none() {
                question = self.end_of_session(&announced);
            }
            self.begin_state();
            let beat = self.heartbeats.as_ref().filter(|_| question.is_none());
            let retry = feed.ready().and_then(|_| feed.retry_at(announced.borrow().session));
            let retry = retry.filter(|due| *due > Instant::now());
            let deadlines = feed.poll_timeout().into_iter().chain(retry);
            let deadline = deadlines.chain(beat.map(Heartbeats::poll_timeout)).min();
            tokio::select! {
                message = inbound.message() => {
                    let message = match message {
                        Ok(Some(message)) => message,
                        Ok(None) => return End::Left(CLOSED.into()),
                        Err(status) => return End::Left(reason(&status)),
                    };
                    let ours = announced.borrow().session;
                    let noted = match feed.handle_message(Instant::now(), ours, message) {
                        Ok(None) => Ok(()),
                        Ok(Some(Event::Explained(explained))) => {
                            asking.answered(explained);
                            Ok(())
                        }
                        Ok(Some(Event::Rows(rows))) => {
                            self.take_rows(rows);
                            Ok(())
                        }
                        Ok(Some(event)) => self.note(event),
                        Err(error) => Err(End::from(error)),
                    };
                    if let Err(end) = noted {
                        return end;
                    }
                }
                next = asking.next(), if question.is_none() => question = Some(next),
                Ok(()) = inquiries.changed(), if question.is_none() && self.id != 0 => {
                    let inquiry = *inquiries.borrow_and_update();
                    question = Some(self.inquire(inquiry));
                }
                Ok(()) = writers.changed(), if self.heartbeats.is_some() => {
                    let responders = self.shared.acknowledging();
                    if let Some(heartbeats) = &mut self.heartbeats {
                        heartbeats.handle_responders(Instant::now(), &responders);
                    }
                }
                // The next turn of the loop begins to send it.
                Ok(()) = states.changed(), if self.state.is_some() => {}
                permit = outbound.reserve(), if self.is_sending_state() => {
                    let Ok(permit) = permit else { return End::Left(CLOSED.into()) };
                    if let Some(message) = self.state.as_mut().and_then(StateFeed::poll_transmit) {
                        permit.send(Ok(vec![message]));
                    }
                }
                permit = outbound.reserve(), if question.is_some() => {
                    let Ok(permit) = permit else { return End::Left(CLOSED.into()) };
                    if let Some(message) = question.take() {
                        permit.send(Ok(vec![message]));
                    }
                }
                permit = outbound.reserve(), if feed.is_sending() => {
                    let Ok(permit) = permit else { return End::Left(CLOSED.into()) };
                    permit.send(Ok(self.next_messages(&mut feed)));
                }
                result = announced.changed(), if feed.ready().is_some() => {
                    if result.is_err() {
                        return End::Closing;
                    }
                }
                () = sleep_until(deadline) => {
                    let now = Instant::now();
                    if let Err(error) = feed.handle_timeout(now) {
                        return error.into();
                    }
                    if question.is_none() {
                        question = self.next_heartbeat(now);
                    }
                }
            }
        }
    }

    /// Begins an update if the responder is ready for one and there is one.
    fn begin_update(&mut self, feed: &mut Feed, announced: &mut watch::Receiver<Version>) {
        let Some(held) = feed.ready() else { return };
        let version = *announced.borrow_and_update();
        let now = Instant::now();
        // Zero: this SM is not the master, or its first sweep has not ended.
        if version.fabric_generation == 0 || !feed.may_offer(now, version.session) {
            return;
        }
        let (plan, latest) = {
            let history = self.shared.history();
            (history.plan(held), history.latest().clone())
        };
        let counters = &self.shared.counters;
        let counter = match plan {
            Plan::Nothing => &counters.confirmations,
            Plan::Deltas(_) => &counters.deltas,
            Plan::Buckets(..) => &counters.buckets,
            Plan::Full(_) => &counters.fulls,
        };
        if feed.begin(now, plan, &latest) {
            counter.fetch_add(1, Relaxed);
            self.offered = true;
        }
    }

    /// The message that this SM is not master any more, if the responder has to learn of that.
    fn end_of_session(&mut self, announced: &watch::Receiver<Version>) -> Option<proto::FromSm> {
        let is_over = announced.borrow().fabric_generation == 0;
        if !is_over || !std::mem::take(&mut self.offered) || self.heartbeats.is_some() {
            return None;
        }
        Some(proto::FromSm { message: Some(from_sm::Message::Ended(proto::Ended {})) })
    }

    /// Begins to send the state if the follower takes it and has another.
    fn begin_state(&mut self) {
        let Some(state) = &mut self.state else { return };
        let published = *self.shared.announced.borrow();
        // Zero: this SM is not the master, or its first sweep has not ended.
        if published.fabric_generation != 0 {
            let (number, documents) = self.shared.state.latest();
            state.begin(StateVersion { session: published.session, number }, &documents);
        }
    }

    fn is_sending_state(&self) -> bool {
        self.state.as_ref().is_some_and(StateFeed::is_sending)
    }

    fn inquire(&mut self, inquiry: Inquiry) -> proto::FromSm {
        let sm_guid = self.shared.sm.load().guid.unwrap_or_default();
        let inquiry = inquiry.to(self.id, sm_guid);
        self.recall.note_sent(&inquiry);
        proto::FromSm { message: Some(from_sm::Message::Inquiry(inquiry)) }
    }

    /// Takes a part of the registry that the responder was asked for.
    fn take_rows(&mut self, rows: proto::from_responder::Message) {
        match self.recall.handle(rows, &self.shared.inquiries) {
            Ok(true) => {
                self.shared.counters.recalled.fetch_add(1, Relaxed);
                tracing::info!(responder = %self.name, "fetched the registry of a responder");
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(
                    responder = %self.name, %error,
                    "the registry of a responder is unusable"
                );
            }
        }
    }

    /// The heartbeat that is due, if any.
    fn next_heartbeat(&mut self, now: Instant) -> Option<proto::FromSm> {
        let heartbeats = self.heartbeats.as_mut()?;
        let version = *self.shared.announced.borrow();
        // Zero: this SM is not the master, or its first sweep has not ended.
        let message = if version.fabric_generation == 0 {
            heartbeats.skip(now);
            None
        } else {
            let awaited = self.shared.sync.is_awaited(self.sm_guid);
            let number = self.shared.state.number();
            let state = StateVersion { session: version.session, number };
            let state = self.state.as_ref().map(|_| state);
            heartbeats.poll(now, version, state, self.shared.acknowledging(), awaited)
        };
        self.note_step(now, |_| {});
        Some(proto::FromSm { message: Some(from_sm::Message::Heartbeat(message?)) })
    }

    /// Updates the entry of a follower; returns whether this connection is its current one.
    fn note_step(&self, now: Instant, change: impl Fn(&mut Follower)) -> bool {
        let Some(heartbeats) = &self.heartbeats else { return true };
        let in_step = heartbeats.is_in_step(now);
        let awaited = self.shared.sync.is_awaited(self.sm_guid);
        self.shared.responders.update(self.connection, |entry| {
            let Some(follower) = &mut entry.follower else { return };
            change(follower);
            follower.awaited = awaited;
            if follower.in_step != in_step {
                (follower.in_step, follower.since) = (in_step, now);
            }
        })
    }

    /// Carries out an event outside of the feed.
    fn note(&mut self, event: Event) -> Result<(), End> {
        let responders = self.shared.responders.clone();
        let current = match event {
            Event::Hello(hello, serving) => {
                let now = Instant::now();
                let responder = Responder::new(&hello, serving, self.peer, now, self.connection);
                self.name = responder.name.clone();
                self.id = responder.id;
                self.is_client = responder.is_client();
                let sm_guid = responder.follower.map(|follower| follower.sm_guid);
                self.heartbeats = sm_guid.map(|_| Heartbeats::new(now));
                self.sm_guid = sm_guid.unwrap_or_default();
                let takes_state = sm_guid.is_some() && hello.takes_state;
                self.state = takes_state.then(|| StateFeed::new(hello.takes_texts));
                if !responders.enter(&responder) {
                    let message = format!("the limit of {RESPONDERS_MAX} responders is reached");
                    return Err(End::Given(Status::resource_exhausted(message)));
                }
                if let Some(version) = serving
                    && !self.shared.note_held(version.session)
                {
                    return Err(implausible(version));
                }
                let serving = serving.map(|version| version.to_string());
                let serving = serving.as_deref().unwrap_or("nothing yet");
                let id = format_args!("{:#x}", responder.id);
                if let Some(sm_guid) = sm_guid {
                    tracing::info!(
                        standby = %self.name, %id, port = %sm_guid,
                        "a standby that follows the registry connected"
                    );
                } else if self.is_client {
                    tracing::debug!(client = %self.name, %id, serving, "snapshot client connected");
                } else {
                    tracing::info!(
                        responder = %self.name, %id,
                        front_door = ?responder.front_door, serving, "responder connected"
                    );
                }
                true
            }
            // It reports the stored version by another message.
            Event::Acked(version, _) if self.heartbeats.is_some() => {
                self.note_accepted(version);
                self.shared.counters.acks.fetch_add(1, Relaxed);
                true
            }
            Event::Acked(version, Some(serving)) => {
                if !same_fabric(version, self.acked) {
                    tracing::error!(
                        responder = %self.name, %version, %serving,
                        "responder cannot build its tables from the published snapshot; it keeps \
                         answering from the previous one"
                    );
                }
                self.note_accepted(version);
                self.shared.counters.unusable.fetch_add(1, Relaxed);
                let serving = Some(serving).filter(|serving| *serving != Version::NONE);
                responders.update(self.connection, |entry| entry.serving = serving)
            }
            Event::Acked(version, None) => {
                if !same_fabric(version, self.acked) && !self.is_client {
                    tracing::info!(responder = %self.name, %version, "responder serves");
                }
                self.note_accepted(version);
                self.shared.counters.acks.fetch_add(1, Relaxed);
                let lag = self.shared.lag(version, Instant::now());
                responders.update(self.connection, |entry| {
                    entry.serving = Some(version);
                    // It cannot have versions announced before it connected.
                    entry.lag = lag.map(|lag| lag.min(entry.since.elapsed()));
                })
            }
            Event::Resync(reason) => {
                tracing::info!(
                    responder = %self.name, ?reason,
                    "feed resynchronized: responder requested a full update"
                );
                self.shared.counters.resyncs.fetch_add(1, Relaxed);
                true
            }
            Event::Refused(held) => {
                if held == Version::NONE {
                    tracing::warn!(
                        responder = %self.name,
                        "responder refused an update: it holds the sessions of as many other \
                         managers as it has room for"
                    );
                } else {
                    tracing::warn!(
                        responder = %self.name, %held,
                        "responder refused an update: it follows a session with a higher epoch"
                    );
                }
                self.has_refused = true;
                if !self.shared.note_refused(held.session) {
                    return Err(implausible(held));
                }
                self.shared.counters.refusals.fetch_add(1, Relaxed);
                let held = Some(held).filter(|held| *held != Version::NONE);
                responders.update(self.connection, |entry| entry.serving = held)
            }
            Event::Stats(stats) => {
                let figures = stats.figures.map(|figures| Arc::new(Reported::of(figures)));
                let stats = observe::stats(stats.counters);
                responders.update(self.connection, |entry| {
                    (entry.stats, entry.figures) = (stats.clone(), figures.clone());
                })
            }
            Event::Files(files) => {
                let names = observe::file_names(files.names);
                responders.update(self.connection, |entry| entry.files_differ = Some(names.clone()))
            }
            Event::Holding(number, version, state) => {
                if !self.shared.note_held(version.session) {
                    return Err(implausible(version));
                }
                let held = version.registry();
                match &mut self.heartbeats {
                    Some(heartbeats) => {
                        let now = Instant::now();
                        let state = match &mut self.state {
                            Some(feed) => {
                                feed.handle_stored(state);
                                feed.stored()
                            }
                            None => StateVersion::default(),
                        };
                        heartbeats.handle_holding(now, number, held, state);
                        let published = *self.shared.announced.borrow();
                        if number != 0 && published != Version::NONE {
                            let in_step = heartbeats.is_in_step(now);
                            let published = published.registry();
                            self.shared.sync.note_reply(now, self.sm_guid, in_step, published);
                        }
                        self.shared.sync.note_stored(self.sm_guid, held);
                        let has_state = self.state.is_some().then_some(state);
                        self.note_step(now, |follower| {
                            (follower.stored, follower.state) = (Some(held), has_state);
                        })
                    }
                    None => responders.update(self.connection, |entry| {
                        entry.holds = Some((number, held));
                    }),
                }
            }
            Event::Explained(_) | Event::Rows(_) => true,
        };
        if current { Ok(()) } else { Err(End::Left("responder reconnected".into())) }
    }

    /// The responder has this version.
    fn note_accepted(&mut self, version: Version) {
        self.acked = version;
        let again = std::mem::take(&mut self.has_refused);
        self.shared.note_accepted(version.session, again);
    }

    /// The next messages of the current update.
    fn next_messages(&self, feed: &mut Feed) -> Vec<proto::FromSm> {
        use sa_proto::prost::Message;
        let (mut messages, mut len) = (Vec::new(), 0);
        while len < BATCH_LEN
            && let Some(mut message) = feed.poll_transmit(Instant::now())
        {
            match &mut message.message {
                Some(from_sm::Message::Begin(begin)) => {
                    begin.front_door.clone_from(&self.shared.front_door.load());
                }
                Some(from_sm::Message::End(end)) => {
                    let time = self.shared.registry_time(Instant::now()).unwrap_or_default();
                    end.registry_time_ns = time.as_nanos() as u64;
                }
                _ => {}
            }
            len += message.encoded_len();
            messages.push(message);
        }
        self.shared.counters.bytes.fetch_add(len as u64, Relaxed);
        messages
    }
}

/// Ends the feed of a responder that reports an epoch no SM can have taken: a session above it
/// would use up the remaining epochs.
fn implausible(held: Version) -> End {
    End::Given(Status::invalid_argument(format!(
        "session {} has an epoch far beyond any SM's clock; remove the responder's cache, or \
         check which program connects",
        held.session
    )))
}

/// Why no more messages can be received, for the log.
fn reason(status: &Status) -> String {
    // A status with a cause was not sent by the responder: its connection broke.
    match std::error::Error::source(status) {
        Some(_) => "the connection broke".into(),
        None => status.message().into(),
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

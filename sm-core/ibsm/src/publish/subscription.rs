//! One connection to the feed: what is sent on it, and what its messages cause.
//!
//! This module never sends, waits or reads a clock; `feed_service` does. A driver calls
//! [`Subscription::handle_changes`] after anything may have been published or asked, and hands over
//! what [`Subscription::poll_transmit`] yields.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::log_limit::LogLimit;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm;
use sa_proto::snapshot::{Plan, Version};
use sa_proto::state::StateVersion;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::feed::{Event, Feed, FeedError};
use super::heartbeat::Heartbeats;
use super::inquiry::{Inquiry, Recall};
use super::outcomes::Position;
use super::state_feed::StateFeed;
use super::{Shared, same_fabric};
use crate::observe::Holds;
use crate::observe::{self, Follower, Origin, RESPONDERS_MAX, Reported, Responder, SHARE_MAX};

/// Bytes of messages after which no other is added to a batch.
const BATCH_LEN: usize = 16 << 10;

/// Lines about connections, of which each has a few, and all have some after a takeover.
static LINES: LogLimit =
    LogLimit::new("responders", 4 * RESPONDERS_MAX as u32, Duration::from_secs(1));

/// Logs a line about a connection, unless there were too many.
macro_rules! log_line {
    ($level:ident, $($line:tt)+) => {
        if LINES.permits() {
            tracing::$level!($($line)+);
        }
    };
}

/// The feed of one responder, or of a standby.
pub struct Subscription {
    shared: Arc<Shared>,
    connection: u64,
    feed: Feed,
    announced: watch::Receiver<Version>,
    inquiries: watch::Receiver<Inquiry>,
    writers: watch::Receiver<u64>,
    states: watch::Receiver<u64>,
    /// Between the messages of updates: a question, or a heartbeat.
    question: Option<proto::FromSm>,
    /// Whether this SM shuts down.
    is_closing: bool,
    peer: Option<Origin>,
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
    /// Whether a part of that state was sent last.
    sent_state: bool,
    /// How far it got the outcomes of requests, and messages with more of them.
    outcomes: (Position, VecDeque<proto::FromSm>),
    /// The registry that it is asked for.
    recall: Recall,
    /// Whether it was sent updates of a session that it has not been notified of the end of.
    offered: bool,
    /// Whether it refused the last update.
    has_refused: bool,
}

/// How a connection ended.
#[derive(Debug)]
pub enum FeedEnd {
    /// The responder disconnected, or the connection broke.
    Left(String),
    /// Nothing came from its host's process for too long: this SM closes the connection.
    Silent,
    /// This SM closed the feed.
    Given(Status),
    /// The SM shuts down.
    Closing,
}

impl From<FeedError> for FeedEnd {
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
    /// A connection from `peer` whose greeting has not arrived.
    pub(super) fn new(shared: Arc<Shared>, peer: Option<Origin>) -> Self {
        let mut inquiries = shared.inquiries.subscribe();
        // One that connects while the answers are awaited is asked, too.
        if inquiries.borrow().is_open() {
            inquiries.mark_changed();
        }
        Self {
            connection: shared.connections.fetch_add(1, Relaxed) + 1,
            feed: Feed::new(shared.clock.now()),
            announced: shared.announced.subscribe(),
            inquiries,
            writers: shared.writers.subscribe(),
            states: shared.state.subscribe(),
            question: None,
            is_closing: false,
            shared,
            peer,
            name: "?".into(),
            id: 0,
            sm_guid: Guid(0),
            is_client: false,
            acked: Version::NONE,
            heartbeats: None,
            state: None,
            sent_state: false,
            outcomes: Default::default(),
            recall: Recall::default(),
            offered: false,
            has_refused: false,
        }
    }

    /// Number of the connection.
    pub(super) fn connection(&self) -> u64 {
        self.connection
    }

    /// Takes a message of the responder; returns the answer to an operator's question, if it is
    /// one. After an error the connection is to be closed.
    pub fn handle_message(
        &mut self,
        now: Instant,
        message: proto::FromResponder,
    ) -> Result<Option<proto::Explained>, FeedEnd> {
        let ours = self.announced.borrow().session;
        match self.feed.handle_message(now, ours, message)? {
            None => {}
            Some(Event::Explained(explained)) => return Ok(Some(explained)),
            Some(Event::Rows(rows)) => self.take_rows(rows),
            Some(event) => self.note(now, event)?,
        }
        Ok(None)
    }

    /// Begins what is due since something was published, the state changed, a question was put to
    /// all responders, or another responder writes. Spurious calls are allowed.
    pub fn handle_changes(&mut self, now: Instant) {
        self.begin_update(now);
        if self.question.is_none() {
            self.question = self.end_of_session();
        }
        if self.awaits_inquiry() && self.inquiries.has_changed().unwrap_or(false) {
            let inquiry = *self.inquiries.borrow_and_update();
            self.question = inquiry.is_open().then(|| self.inquire(inquiry));
        }
        if let Some(heartbeats) = &mut self.heartbeats
            && self.writers.has_changed().unwrap_or(false)
        {
            self.writers.mark_unchanged();
            heartbeats.handle_responders(now, &self.shared.acknowledging());
        }
        self.begin_state();
    }

    /// Completes when [`handle_changes`](Self::handle_changes) has something to do.
    pub(super) async fn changed(&mut self) -> Result<(), FeedEnd> {
        let is_ready = self.feed.ready().is_some();
        let (awaits_inquiry, beats) = (self.awaits_inquiry(), self.heartbeats.is_some());
        let takes_state = self.state.is_some();
        // What completes counts as seen; `handle_changes` has not seen it.
        tokio::select! {
            changed = self.announced.changed(), if is_ready => {
                changed.map_err(|_| FeedEnd::Closing)?;
                self.announced.mark_changed();
            }
            Ok(()) = self.inquiries.changed(), if awaits_inquiry => self.inquiries.mark_changed(),
            Ok(()) = self.writers.changed(), if beats => self.writers.mark_changed(),
            // Nothing else depends on it: `handle_changes` compares versions.
            Ok(()) = self.states.changed(), if takes_state => {}
            else => std::future::pending().await,
        }
        Ok(())
    }

    fn awaits_inquiry(&self) -> bool {
        self.question.is_none() && self.id != 0
    }

    /// Whether an operator's question can be sent next.
    pub(super) fn takes_question(&self) -> bool {
        self.question.is_none()
    }

    /// Sends an operator's question next.
    pub(super) fn ask(&mut self, question: proto::FromSm) {
        self.question = Some(question);
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has something to send.
    pub fn has_output(&self) -> bool {
        self.question.is_some()
            || self.feed.is_sending()
            || !self.outcomes.1.is_empty()
            || self.is_sending_state()
    }

    /// The next messages for the responder; empty if there are none.
    pub fn poll_transmit(&mut self, now: Instant) -> Vec<proto::FromSm> {
        if let Some(question) = self.question.take() {
            return vec![question];
        }
        // In turns, so that neither delays the other by more than a batch.
        let is_states_turn = !std::mem::replace(&mut self.sent_state, false);
        if (is_states_turn || !self.feed.is_sending())
            && let Some(message) = self.state.as_mut().and_then(StateFeed::poll_transmit)
        {
            self.sent_state = true;
            return vec![message];
        }
        self.next_messages(now)
    }

    /// When [`handle_timeout`](Self::handle_timeout) and [`handle_changes`](Self::handle_changes)
    /// are due.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let session = self.announced.borrow().session;
        let retry = self.feed.ready().and_then(|_| self.feed.retry_at(session));
        let retry = retry.filter(|due| *due > now);
        let beat = self.heartbeats.as_ref().filter(|_| self.question.is_none());
        let beat = beat.map(Heartbeats::poll_timeout);
        self.feed.poll_timeout().into_iter().chain(retry).chain(beat).min()
    }

    /// Whether silence for seconds means that the peer hangs. A standby answers heartbeats, which
    /// are sent during a session.
    pub(super) fn expects_reports(&self) -> bool {
        self.heartbeats.is_none() || self.announced.borrow().fabric_generation != 0
    }

    /// Does what is due. After an error the connection is to be closed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), FeedEnd> {
        self.feed.handle_timeout(now)?;
        if self.question.is_none() {
            self.question = self.next_heartbeat(now);
        }
        Ok(())
    }

    /// Logs how the connection ended.
    pub fn handle_end(&mut self, end: &FeedEnd) {
        self.is_closing = matches!(end, FeedEnd::Closing);
        let is_silent = |status: &Status| status.code() == Code::DeadlineExceeded;
        if matches!(end, FeedEnd::Silent)
            || matches!(end, FeedEnd::Given(status) if is_silent(status))
        {
            self.shared.responders.note_hung(self.connection);
        }
        match end {
            FeedEnd::Silent => log_line!(
                warn,
                peer = %self.name,
                "no answer to keepalives: closing the connection; its process or host hangs"
            ),
            FeedEnd::Left(reason) if self.heartbeats.is_some() => {
                log_line!(
                    warn,
                    standby = %self.name, %reason,
                    "a standby that follows the registry disconnected"
                );
            }
            FeedEnd::Left(reason) if self.is_client => {
                tracing::debug!(client = %self.name, %reason, "snapshot client disconnected");
            }
            FeedEnd::Left(reason) => {
                log_line!(warn, responder = %self.name, %reason, "responder disconnected");
            }
            FeedEnd::Given(status) => {
                let reason = status.message();
                log_line!(warn, responder = %self.name, reason, "closing the feed to a responder");
                self.shared.counters.given_up.fetch_add(1, Relaxed);
            }
            FeedEnd::Closing => tracing::debug!(responder = %self.name, "feed ended"),
        }
    }

    /// Begins an update if the responder is ready for one and there is one.
    fn begin_update(&mut self, now: Instant) {
        let Some(held) = self.feed.ready() else { return };
        let version = *self.announced.borrow_and_update();
        // Zero: this SM is not the master, or its first sweep has not ended. A follower gets the
        // rest of a session that has ended: another master may wait for that.
        let is_over = version.fabric_generation == 0;
        if is_over && self.heartbeats.is_none() {
            return;
        }
        let (plan, latest) = {
            let history = self.shared.history();
            (history.plan(held), history.latest().clone())
        };
        let session = latest.version().session;
        if is_over && held.is_none_or(|held| held.version.session != session) {
            return;
        }
        if !self.feed.may_offer(now, session) {
            return;
        }
        let counters = &self.shared.counters;
        let counter = match plan {
            Plan::Nothing => &counters.confirmations,
            Plan::Deltas(_) => &counters.deltas,
            Plan::Buckets(..) => &counters.buckets,
            Plan::Full(_) => &counters.fulls,
        };
        if self.feed.begin(now, plan, &latest) {
            counter.fetch_add(1, Relaxed);
            self.offered = true;
        }
    }

    /// The message that this SM is not master any more, if the responder has to learn of that.
    fn end_of_session(&mut self) -> Option<proto::FromSm> {
        let is_over = self.announced.borrow().fabric_generation == 0;
        if !is_over || self.heartbeats.is_some() || !std::mem::take(&mut self.offered) {
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
                log_line!(info, responder = %self.name, "fetched the registry of a responder");
            }
            Ok(false) => {}
            Err(error) => {
                log_line!(
                    warn,
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
            let awaited = self.shared.sync.is_awaited(now, self.sm_guid);
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
        let awaited = self.shared.sync.is_awaited(now, self.sm_guid);
        self.shared.responders.update(self.connection, |entry| {
            let Some(follower) = &mut entry.follower else { return };
            change(follower);
            (follower.awaited, follower.stored_at) = (awaited, heartbeats.current_at());
            if follower.in_step != in_step {
                (follower.in_step, follower.since) = (in_step, now);
            }
        })
    }

    /// Carries out an event outside of the feed.
    fn note(&mut self, now: Instant, event: Event) -> Result<(), FeedEnd> {
        let responders = self.shared.responders.clone();
        let current = match event {
            Event::Hello(hello, serving) => {
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
                    let message = format!(
                        "the limit of {RESPONDERS_MAX} responders, or of {SHARE_MAX} of a host or \
                         user, is reached"
                    );
                    return Err(FeedEnd::Given(Status::resource_exhausted(message)));
                }
                if let Some(version) = serving
                    && !self.shared.note_reported(version.session)
                {
                    return Err(implausible(version));
                }
                let serving = serving.map(|version| version.to_string());
                let serving = serving.as_deref().unwrap_or("nothing yet");
                let id = format_args!("{:#x}", responder.id);
                if let Some(sm_guid) = sm_guid {
                    log_line!(
                        info,
                        standby = %self.name, %id, port = %sm_guid,
                        "a standby that follows the registry connected"
                    );
                } else if self.is_client {
                    tracing::debug!(client = %self.name, %id, serving, "snapshot client connected");
                } else {
                    log_line!(
                        info,
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
                    log_line!(
                        error,
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
                    log_line!(info, responder = %self.name, %version, "responder serves");
                }
                self.note_accepted(version);
                self.shared.counters.acks.fetch_add(1, Relaxed);
                let lag = self.shared.lag(version, now);
                responders.update(self.connection, |entry| {
                    entry.serving = Some(version);
                    // It cannot have versions announced before it connected.
                    let connected = now.saturating_duration_since(entry.since);
                    entry.lag = lag.map(|lag| lag.min(connected));
                })
            }
            Event::Resync(reason) => {
                log_line!(
                    info,
                    responder = %self.name, ?reason,
                    "feed resynchronized: responder requested a full update"
                );
                self.shared.counters.resyncs.fetch_add(1, Relaxed);
                true
            }
            Event::Refused(held) => {
                if held == Version::NONE {
                    log_line!(
                        warn,
                        responder = %self.name,
                        "responder refused an update: it already holds sessions of other managers, \
                         and has no room for another"
                    );
                } else {
                    log_line!(
                        warn,
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
            Event::Holding { number, version, state, restarted, acknowledged } => {
                if !self.shared.note_reported(version.session) {
                    return Err(implausible(version));
                }
                let held = version.registry();
                match &mut self.heartbeats {
                    Some(heartbeats) => {
                        let state = match &mut self.state {
                            Some(feed) => {
                                feed.handle_stored(state);
                                feed.stored()
                            }
                            None => StateVersion::default(),
                        };
                        heartbeats.handle_holding(now, number, held, state);
                        let published = || *self.shared.announced.borrow();
                        if number != 0 && published() != Version::NONE {
                            let in_step = heartbeats.is_in_step(now);
                            let published = || published().registry();
                            self.shared.sync.note_reply(now, self.sm_guid, in_step, published);
                        }
                        self.shared.sync.note_stored(self.sm_guid, held);
                        let has_state = self.state.is_some().then_some(state);
                        self.note_step(now, |follower| {
                            (follower.stored, follower.state) = (Some(held), has_state);
                        })
                    }
                    None => responders.update(self.connection, |entry| {
                        entry.holds = Some(Holds { number, held, restarted, acknowledged });
                    }),
                }
            }
            Event::Sealed(number, version) => {
                if !self.shared.note_reported(version.session) {
                    return Err(implausible(version));
                }
                let sealed = Some((number, version.registry()));
                self.note_step(now, |follower| follower.sealed = sealed)
            }
            Event::Explained(_) | Event::Rows(_) => true,
        };
        if current { Ok(()) } else { Err(FeedEnd::Left("responder reconnected".into())) }
    }

    /// The responder has this version.
    fn note_accepted(&mut self, version: Version) {
        self.acked = version;
        let again = std::mem::take(&mut self.has_refused);
        self.shared.note_accepted(version.session, again);
    }

    /// The next message of an update, or one that must come before.
    fn next_message(&mut self, now: Instant) -> Option<proto::FromSm> {
        let (position, messages) = &mut self.outcomes;
        if self.sm_guid != Guid(0) && self.feed.is_sending() && messages.is_empty() {
            // What is published was logged before.
            *messages = self.shared.outcomes().messages_since(position);
        }
        messages.pop_front().or_else(|| self.feed.poll_transmit(now))
    }

    /// The next messages of the current update.
    fn next_messages(&mut self, now: Instant) -> Vec<proto::FromSm> {
        use sa_proto::prost::Message;
        let (mut messages, mut len) = (Vec::new(), 0);
        while len < BATCH_LEN
            && let Some(mut message) = self.next_message(now)
        {
            match &mut message.message {
                Some(from_sm::Message::Begin(begin)) => {
                    let door = self.shared.front_door.load();
                    begin.front_door.clone_from(&door.address);
                    begin.front_door_token = door.token;
                }
                Some(from_sm::Message::End(end)) => {
                    let time = self.shared.registry_time(now).unwrap_or_default();
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

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.shared.leave(self.connection) && !self.is_closing {
            log_line!(warn, "the last responder disconnected; SA queries are not answered");
        }
    }
}

/// Ends the feed of a responder that reports an epoch no SM can have taken: a session above it
/// would use up the remaining epochs.
fn implausible(held: Version) -> FeedEnd {
    FeedEnd::Given(Status::invalid_argument(format!(
        "session {} has an epoch far beyond any SM's clock; remove the responder's cache, or \
         check which program connects",
        held.session
    )))
}

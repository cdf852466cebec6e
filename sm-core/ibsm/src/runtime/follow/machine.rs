//! Decides how a standby handles the feed of one other subnet manager: when to connect, and how to
//! answer each message.
//!
//! This module never sends, waits or reads a clock. Only the registry of each snapshot is kept.
//!
//! Heartbeats of the master are answered with the version on disk. The next heartbeat says which
//! answers arrived: from this the standby knows until when the master counted it as present,
//! however long messages were on their way.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::resync::Reason;
use sa_proto::proto::snapshot::{self as proto, FromResponder, FromSm};
use sa_proto::snapshot::codec::{Decoder, UpdateError};
use sa_proto::snapshot::{Session, Snapshot, Version};
use sa_proto::state;
use sm_core::registry::outcome;
use tracing::{info, warn};

use super::Progress;
use crate::node::{Beat, MasterState};

/// Answers to heartbeats remembered that are not confirmed.
const UNCONFIRMED_MAX: usize = 64;
/// Identities of responders taken from a heartbeat.
const RESPONDERS_MAX: usize = 4096;
/// Time between attempts to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Why a feed is opened again.
const OUTDATED: &str = "the feed was opened before this SM was master";

/// Something for the driver to do.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Send a message.
    Send(Box<FromResponder>),
    /// A snapshot was received: wake the registry's thread.
    News,
    /// Close the connection, for this reason.
    Close(String),
}

/// The feed of one subnet manager.
#[derive(Debug)]
pub struct Stream {
    url: String,
    greeting: proto::Hello,
    state: State,
    outputs: VecDeque<Output>,
    /// Why the last connection ended; logged once until it changes.
    reason: String,
}

#[derive(Debug)]
enum State {
    /// There is no connection; the next attempt is due at this time.
    Waiting(Instant),
    /// The driver connects.
    Connecting,
    /// The feed is open.
    Open(Box<Open>),
}

/// An open feed.
#[derive(Debug)]
struct Open {
    /// The snapshot received last.
    held: Arc<Snapshot>,
    /// The [term](Progress::term) in which it was opened.
    term: u64,
    /// The update that is being received.
    decoder: Option<Decoder>,
    /// The state besides the registry, and what is being received of it.
    state: state::Decoder,
    /// Session of the last snapshot or heartbeat.
    session: Option<Session>,
    /// The session that the log names.
    logged: Option<Session>,
    /// Number of the heartbeat that is to be answered; 0 if only something was stored.
    unsent: Option<u64>,
    /// Numbers of heartbeats that were answered, and when, until the master confirms the answer.
    unconfirmed: VecDeque<(u64, Instant)>,
    /// Number of the last inquiry, which is answered once this SM acknowledges nothing since then,
    /// and of the election that it shows.
    asked: Option<(u64, u64)>,
    /// Operators' files that were reported to differ from the master's.
    reported: Option<Arc<[String]>>,
}

impl Stream {
    /// A feed to which the first attempt to connect is due.
    pub fn new(now: Instant, url: String, greeting: proto::Hello) -> Self {
        Self {
            url,
            greeting,
            state: State::Waiting(now),
            outputs: VecDeque::new(),
            reason: String::new(),
        }
    }

    /// Address of the subnet manager.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether to connect now. Then either [`handle_connected`](Self::handle_connected) or
    /// [`handle_disconnected`](Self::handle_disconnected) follows.
    pub fn poll_connect(&mut self, now: Instant) -> bool {
        let is_due = matches!(self.state, State::Waiting(due) if now >= due);
        if is_due {
            self.state = State::Connecting;
        }
        is_due
    }

    /// When to call [`poll_connect`](Self::poll_connect) next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(due) => Some(due),
            State::Connecting | State::Open(_) => None,
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// There is a connection. The greeting is the first message to send.
    pub fn handle_connected(&mut self, progress: &Progress) {
        self.state = State::Open(Box::new(Open {
            held: Arc::new(Snapshot::empty()),
            term: progress.term(),
            decoder: None,
            state: state::Decoder::default(),
            session: None,
            logged: None,
            unsent: None,
            unconfirmed: VecDeque::new(),
            asked: None,
            reported: None,
        }));
        self.send(Reply::Hello(self.greeting.clone()));
    }

    /// The connection was refused, ended or broke, as it does when the peer is silent for longer
    /// than keepalive allows.
    pub fn handle_disconnected(&mut self, now: Instant, reason: String, progress: &Progress) {
        if let State::Open(open) = &self.state
            && let Some(session) = open.session
        {
            progress.end(session);
        }
        self.outputs.clear();
        self.state = State::Waiting(now + RECONNECT_INTERVAL);
        // A standby peer sends nothing for long; each new reason is logged.
        if reason != OUTDATED && reason != self.reason {
            warn!("cannot follow the registry of {}: {reason}; retrying", self.url);
            self.reason = reason;
        }
    }

    /// Takes a message of the subnet manager.
    pub fn handle_message(&mut self, message: FromSm, progress: &Progress) {
        let State::Open(open) = &mut self.state else { return };
        if open.term != progress.term() {
            return self.outputs.push_back(Output::Close(OUTDATED.to_owned()));
        }
        if let Some(Message::Heartbeat(heartbeat)) = message.message {
            return open.beat(heartbeat, progress);
        }
        if let Some(Message::Inquiry(inquiry)) = &message.message {
            open.asked = Some((inquiry.number, progress.note_elected(Guid(inquiry.sm_guid))));
            return;
        }
        if let Some(Message::State(message)) = message.message {
            return self.take_state(message, progress);
        }
        if let Some(Message::Outcomes(message)) = message.message {
            return self.take_outcomes(&message, progress);
        }
        let time_ns = match &message.message {
            Some(Message::End(end)) => end.registry_time_ns,
            _ => 0,
        };
        let answer = match open.decode(message) {
            Ok(None) => return,
            Ok(Some(next)) if !progress.receive(&next, open.term) => {
                Reply::Refused(proto::Refused { held: Some(progress.latest().into()) })
            }
            Ok(Some(next)) => {
                let version = next.version();
                progress.note_registry_time(version.session, time_ns);
                open.session = Some(version.session);
                if open.logged.replace(version.session) != Some(version.session) {
                    info!("following the registry of {}, session {}", self.url, version.session);
                }
                open.held = Arc::new(next);
                self.outputs.push_back(Output::News);
                Reply::Ack(proto::Ack { version: Some(version.into()), serving: None })
            }
            Err(error) => {
                warn!("update from {} is unusable: {error}; requesting a full update", self.url);
                Reply::Resync(proto::Resync { reason: Reason::Malformed.into() })
            }
        };
        self.send(answer);
    }

    /// Takes outcomes of requests.
    fn take_outcomes(&mut self, message: &proto::Outcomes, progress: &Progress) {
        let mut outcomes = Vec::new();
        let read = outcome::encoding::decode(&message.entries, &mut outcomes);
        match (Version::try_from(message.version), read) {
            (Ok(version), Ok(())) => progress.receive_outcomes(version, outcomes),
            (Err(error), _) | (_, Err(error)) => {
                let reason = format!("its outcomes of requests are unusable: {error}");
                self.outputs.push_back(Output::Close(reason));
            }
        }
    }

    /// Takes a part of the state besides the registry.
    fn take_state(&mut self, message: proto::State, progress: &Progress) {
        let State::Open(open) = &mut self.state else { return };
        match open.state.handle(message) {
            Ok(None) => {}
            Ok(Some((version, documents))) => {
                let (state, unreadable) = MasterState::read(version, &documents);
                if unreadable > 0 {
                    warn!("{unreadable} lines of LIDs, M_Keys or links of {} ignored", self.url);
                }
                progress.receive_state(state);
            }
            Err(error) => {
                self.outputs.push_back(Output::Close(format!("its state is unusable: {error}")));
            }
        }
    }

    /// Something was stored, operators' files were compared, or this SM acknowledges no more: the
    /// other manager is to learn of it.
    pub fn handle_stored(&mut self, progress: &Progress) {
        let State::Open(open) = &mut self.state else { return };
        // At once: an inquiry on this feed would be lost.
        if open.term != progress.term() {
            return self.outputs.push_back(Output::Close(OUTDATED.to_owned()));
        }
        if let Some((version, known)) = progress.sealed()
            && let Some((number, _)) = open.asked.take_if(|(_, election)| *election <= known)
        {
            let version = Some(version.into());
            self.send(Reply::Sealed(proto::Sealed { number, version }));
        }
        let State::Open(open) = &mut self.state else { return };
        if open.session.is_none() {
            return;
        }
        open.unsent.get_or_insert(0);
        let differ = progress.followed().files_differ;
        if differ.is_some() && open.reported != differ {
            let names = differ.iter().flat_map(|names| names.iter().cloned()).collect();
            open.reported = differ;
            self.send(Reply::Files(proto::FileDifferences { names }));
        }
    }

    /// Whether [`holding`](Self::holding) has something to send. It waits for room in the
    /// connection, as only the last version and the last heartbeat count.
    pub fn has_holding(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.unsent.is_some())
    }

    /// The version on disk, as an answer to the last heartbeat if there was one since the last
    /// call.
    pub fn holding(&mut self, now: Instant, progress: &Progress) -> Option<FromResponder> {
        let State::Open(open) = &mut self.state else { return None };
        let number = open.unsent.take()?;
        if number != 0 {
            if open.unconfirmed.len() == UNCONFIRMED_MAX {
                open.unconfirmed.pop_front();
            }
            open.unconfirmed.push_back((number, now));
        }
        let version = Some(progress.last_stored().into());
        let state = Some(progress.last_state().into());
        let holding = proto::Holding { number, version, state, ..proto::Holding::default() };
        Some(FromResponder { message: Some(Reply::Holding(holding)) })
    }

    fn send(&mut self, message: Reply) {
        let message = Box::new(FromResponder { message: Some(message) });
        self.outputs.push_back(Output::Send(message));
    }
}

impl Open {
    /// Takes a heartbeat. One that cannot be read is ignored, as are those of a master that was
    /// replaced.
    fn beat(&mut self, heartbeat: proto::Heartbeat, progress: &Progress) {
        let Ok(version) = Version::try_from(heartbeat.version) else { return };
        if progress.is_replaced(version.session) {
            return;
        }
        self.session = Some(version.session);
        let mut contact = None;
        while let Some(&(number, sent)) = self.unconfirmed.front()
            && number <= heartbeat.confirmed
        {
            contact = Some(sent);
            self.unconfirmed.pop_front();
        }
        self.unsent = Some(heartbeat.number);
        let responders = heartbeat.responders.into_iter().take(RESPONDERS_MAX).collect();
        let (awaited, state) = (heartbeat.awaited, heartbeat.state.map(Into::into));
        progress.beat(Beat { version, responders, awaited, state }, contact);
    }

    /// Takes a part of an update; yields the snapshot at its end. Parts of no update are ignored.
    fn decode(&mut self, message: FromSm) -> Result<Option<Snapshot>, UpdateError> {
        match (message.message, self.decoder.take()) {
            (Some(Message::Begin(begin)), _) => self.decoder = Some(Decoder::new(begin)?),
            (Some(Message::Chunk(chunk)), Some(mut decoder)) => {
                decoder.chunk(&chunk)?;
                self.decoder = Some(decoder);
            }
            (Some(Message::End(end)), Some(decoder)) => {
                return decoder.finish(end, &self.held).map(Some);
            }
            (_, decoder) => self.decoder = decoder,
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use ib_mad::types::Guid;
    use sa_proto::snapshot::codec::Encoder;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Version, delta};
    use sa_proto::state::{Document, Documents, Kind, StateVersion};

    fn snapshot(epoch: u64, sequence: u64) -> Arc<Snapshot> {
        let session = Session { epoch, sm_guid: Guid(1) };
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        Arc::new(Snapshot::build(session, 1, FabricPlane::default(), registry).unwrap())
    }

    fn stream(now: Instant) -> Stream {
        let greeting = proto::Hello { responder_id: 7, ..proto::Hello::default() };
        Stream::new(now, "http://sm1:7471".to_owned(), greeting)
    }

    /// A stream that is connected, its greeting sent.
    fn connected(now: Instant) -> Stream {
        let mut stream = stream(now);
        assert!(stream.poll_connect(now));
        stream.handle_connected(&Progress::default());
        let Some(Reply::Hello(hello)) = sent(&mut stream) else { panic!("no greeting") };
        assert_eq!(hello.responder_id, 7);
        stream
    }

    /// The next message to send, after any news.
    fn sent(stream: &mut Stream) -> Option<Reply> {
        match stream.poll_output()? {
            Output::Send(message) => message.message,
            Output::News => sent(stream),
            Output::Close(reason) => panic!("closed: {reason}"),
        }
    }

    fn feed(stream: &mut Stream, progress: &Progress, update: Encoder) {
        update.for_each(|message| stream.handle_message(message, progress));
    }

    fn acked(reply: Option<Reply>) -> Option<Version> {
        let Some(Reply::Ack(ack)) = reply else { return None };
        Version::try_from(ack.version).ok()
    }

    fn store(progress: &Progress) {
        progress.stored(progress.take().unwrap().version);
    }

    #[test]
    fn each_snapshot_is_handed_over_and_acknowledged() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        assert_eq!((stream.poll_output(), stream.poll_timeout()), (None, None));
        let (first, second) = (snapshot(5, 1), snapshot(5, 2));
        feed(&mut stream, &progress, Encoder::full(first.clone()));
        assert_eq!(stream.poll_output(), Some(Output::News));
        assert_eq!(acked(sent(&mut stream)), Some(first.version()));
        let delta = Arc::new(delta::construct(&first, &second));
        feed(&mut stream, &progress, Encoder::delta(delta));
        assert_eq!(acked(sent(&mut stream)), Some(second.version()));
        assert_eq!(progress.take().unwrap().plane.sequence, 2);
    }

    #[test]
    fn the_registry_time_of_an_update_is_noted_with_it() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        assert_eq!(progress.take_registry_time(), None);
        for (sequence, seconds) in [(1, 5_000), (2, 5_060)] {
            let time = Duration::from_secs(seconds);
            for mut message in Encoder::full(snapshot(5, sequence)) {
                if let Some(Message::End(end)) = &mut message.message {
                    end.registry_time_ns = time.as_nanos() as u64;
                }
                stream.handle_message(message, &progress);
            }
            let of = snapshot(5, sequence).version().session;
            assert_eq!(progress.take_registry_time(), Some((of, time)));
            assert_eq!(progress.take_registry_time(), None, "it would be outdated");
        }
    }

    #[test]
    fn an_unusable_update_is_requested_in_full() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        let delta = delta::construct(&snapshot(5, 1), &snapshot(5, 2));
        feed(&mut stream, &progress, Encoder::delta(Arc::new(delta)));
        assert!(matches!(sent(&mut stream), Some(Reply::Resync(_))));
        assert!(!progress.has_news());
        let full = snapshot(5, 2);
        feed(&mut stream, &progress, Encoder::full(full.clone()));
        assert_eq!(acked(sent(&mut stream)), Some(full.version()));
    }

    #[test]
    fn a_replaced_master_is_refused_and_its_end_does_not_count() {
        let (now, progress) = (Instant::now(), Progress::default());
        let (mut old, mut new) = (connected(now), connected(now));
        feed(&mut old, &progress, Encoder::full(snapshot(5, 1)));
        feed(&mut new, &progress, Encoder::full(snapshot(6, 1)));
        sent(&mut old);
        feed(&mut old, &progress, Encoder::full(snapshot(5, 2)));
        let Some(Reply::Refused(refused)) = sent(&mut old) else { panic!("accepted") };
        assert_eq!(Version::try_from(refused.held).unwrap().session.epoch, 6);
        old.handle_disconnected(now, "the stream ended".to_owned(), &progress);
        assert!(progress.followed().is_connected);
    }

    /// Regression: a standby that had been master answered the heartbeats of the one before it,
    /// which went on without what the standby had acknowledged.
    #[test]
    fn a_master_before_a_session_of_this_sm_is_refused() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        progress.set_ended(snapshot(6, 3).version());
        feed(&mut stream, &progress, Encoder::full(snapshot(5, 9)));
        let Some(Reply::Refused(refused)) = sent(&mut stream) else { panic!("accepted") };
        assert_eq!(Version::try_from(refused.held).unwrap().session.epoch, 6);
        stream.handle_message(heartbeat(1, 0, snapshot(5, 9).version()), &progress);
        assert!(!stream.has_holding() && !progress.followed().is_connected);
        let next = snapshot(7, 1);
        feed(&mut stream, &progress, Encoder::full(next.clone()));
        assert_eq!(acked(sent(&mut stream)), Some(next.version()));
    }

    /// A manager that was elected asks: the master answers once it acknowledges nothing since then.
    #[test]
    fn an_inquiry_is_answered_once_nothing_is_acknowledged() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        let version = snapshot(5, 9).version();
        progress.set_sealed(Some((version, 0)));
        let inquiry = proto::Inquiry { number: 3, rows: false, sm_guid: 2 };
        stream.handle_message(FromSm { message: Some(Message::Inquiry(inquiry)) }, &progress);
        assert_eq!(progress.followed().elections, 1);
        stream.handle_stored(&progress);
        assert!(sent(&mut stream).is_none(), "it did not know of the election");
        progress.set_sealed(Some((version, 1)));
        stream.handle_stored(&progress);
        let Some(Reply::Sealed(sealed)) = sent(&mut stream) else { panic!("no answer") };
        assert_eq!((sealed.number, Version::try_from(sealed.version).unwrap()), (3, version));
        stream.handle_stored(&progress);
        assert!(sent(&mut stream).is_none(), "once");
    }

    /// Regression: an inquiry of the next master came by an outdated feed, and was lost.
    #[test]
    fn a_feed_is_opened_again_when_a_session_of_this_sm_begins() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        stream.handle_stored(&progress);
        assert_eq!(stream.poll_output(), None);
        let notified = progress.subscribe();
        progress.begin_term();
        assert!(notified.has_changed().unwrap());
        stream.handle_stored(&progress);
        assert_eq!(stream.poll_output(), Some(Output::Close(OUTDATED.to_owned())));
    }

    fn heartbeat(number: u64, confirmed: u64, version: Version) -> FromSm {
        let heartbeat = proto::Heartbeat {
            number,
            confirmed,
            version: Some(version.into()),
            responders: vec![0x51],
            awaited: false,
            state: None,
        };
        FromSm { message: Some(Message::Heartbeat(heartbeat)) }
    }

    /// Regression: a standby claimed to be in step until its connection was known to be broken: for
    /// 17 s if packets were dropped silently. Delayed messages do not prove that the master reaches
    /// this SM, either.
    #[test]
    fn contact_is_when_an_answer_was_sent_that_the_master_confirms() {
        let (start, progress) = (Instant::now(), Progress::default());
        let at = |ms| start + Duration::from_millis(ms);
        let mut stream = connected(start);
        let version = snapshot(5, 1).version();
        feed(&mut stream, &progress, Encoder::full(snapshot(5, 1)));
        sent(&mut stream);
        store(&progress);
        stream.handle_stored(&progress);
        let answer = |stream: &mut Stream, now| {
            let message = stream.holding(now, &progress).and_then(|message| message.message);
            let Some(Reply::Holding(holding)) = message else { panic!("no answer") };
            (holding.number, Version::try_from(holding.version).unwrap())
        };
        assert_eq!(answer(&mut stream, start), (0, version));
        assert!(!stream.has_holding());
        stream.handle_message(heartbeat(1, 0, version), &progress);
        assert_eq!(answer(&mut stream, at(0)), (1, version));
        assert_eq!(progress.followed().contact, None);
        stream.handle_message(heartbeat(2, 1, version), &progress);
        answer(&mut stream, at(250));
        assert_eq!(progress.followed().contact, Some(at(0)));
        assert!(progress.followed().is_in_step(at(250)));
        // These were sent long ago, before the answers to them could arrive. One answer is enough.
        stream.handle_message(heartbeat(3, 1, version), &progress);
        stream.handle_message(heartbeat(4, 1, version), &progress);
        stream.handle_stored(&progress);
        assert_eq!(answer(&mut stream, at(9001)), (4, version));
        assert_eq!(progress.followed().contact, Some(at(0)));
        assert!(!progress.followed().is_in_step(at(9001)));
        assert_eq!(progress.followed().beat.unwrap().responders[..], [0x51]);
        stream.handle_message(heartbeat(5, 4, version), &progress);
        assert_eq!(progress.followed().contact, Some(at(9001)));
    }

    #[test]
    fn a_copy_continues_after_a_reconnection() {
        let (start, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(start);
        feed(&mut stream, &progress, Encoder::full(snapshot(5, 1)));
        assert!(progress.followed().is_connected);
        let silent = start + Duration::from_secs(60);
        stream.handle_disconnected(silent, "keep-alive timed out".to_owned(), &progress);
        assert!(!progress.followed().is_connected);

        let due = stream.poll_timeout().unwrap();
        assert!(due > silent && !stream.poll_connect(silent) && stream.poll_connect(due));
        stream.handle_connected(&Progress::default());
        assert!(!progress.followed().is_connected, "it may lack writes");
        feed(&mut stream, &progress, Encoder::full(snapshot(5, 2)));
        assert!(progress.followed().is_connected);
    }

    #[test]
    fn attempts_to_connect_are_spaced() {
        let (start, progress) = (Instant::now(), Progress::default());
        let (mut stream, mut now, mut attempts) = (stream(start), start, 0);
        while now < start + Duration::from_secs(10) {
            if stream.poll_connect(now) {
                attempts += 1;
                assert_eq!(stream.poll_timeout(), None, "while connecting");
                stream.handle_disconnected(now, "connection refused".to_owned(), &progress);
            }
            now += Duration::from_millis(10);
        }
        assert_eq!(attempts, 10);
    }

    #[test]
    fn a_broken_connection_leaves_no_part_of_an_update() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        let mut update: Vec<_> = Encoder::full(snapshot(5, 1)).collect();
        let end = update.pop().unwrap();
        update.into_iter().for_each(|message| stream.handle_message(message, &progress));
        stream.handle_disconnected(now, "reset".to_owned(), &progress);
        let now = stream.poll_timeout().unwrap();
        assert!(stream.poll_connect(now));
        stream.handle_connected(&Progress::default());
        sent(&mut stream);
        stream.handle_message(end, &progress);
        assert!(stream.poll_output().is_none() && !progress.has_news());
    }

    fn lids(version: StateVersion) -> Vec<FromSm> {
        let document = Document::new(Kind::StateFile, "guid2lid", "0x1 0x0004 0x0004");
        let all: Documents = [("guid2lid".to_owned(), Arc::new(document))].into();
        let update = state::Encoder::new(version, &all, &BTreeMap::new(), false);
        update.map(|state| FromSm { message: Some(Message::State(state)) }).collect()
    }

    #[test]
    fn the_state_may_come_between_the_messages_of_an_update() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        let first = snapshot(5, 1);
        let version = StateVersion { session: first.version().session, number: 3 };
        let mut state = lids(version).into_iter();
        for message in Encoder::full(first.clone()) {
            stream.handle_message(message, &progress);
            if let Some(message) = state.next() {
                stream.handle_message(message, &progress);
            }
        }
        state.for_each(|message| stream.handle_message(message, &progress));
        assert_eq!(acked(sent(&mut stream)), Some(first.version()));
        assert_eq!(progress.followed().master_state.unwrap().version, version);
        progress.state_stored(version);
        stream.handle_stored(&progress);
        let Some(Reply::Holding(holding)) = stream.holding(now, &progress).unwrap().message else {
            panic!("no answer")
        };
        assert_eq!(holding.state.map(StateVersion::from), Some(version));
    }

    #[test]
    fn a_state_that_cannot_be_read_ends_the_connection() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        let session = snapshot(5, 1).version().session;
        let end = lids(StateVersion { session, number: 3 }).pop().unwrap();
        stream.handle_message(end, &progress);
        assert!(matches!(stream.poll_output(), Some(Output::Close(_))));
    }

    #[test]
    fn files_that_differ_are_reported_when_that_changes() {
        let (now, progress) = (Instant::now(), Progress::default());
        let mut stream = connected(now);
        feed(&mut stream, &progress, Encoder::full(snapshot(5, 1)));
        sent(&mut stream);
        let reported = |stream: &mut Stream| match stream.poll_output() {
            Some(Output::Send(message)) => match message.message {
                Some(Reply::Files(files)) => Some(files.names),
                _ => None,
            },
            _ => None,
        };
        stream.handle_stored(&progress);
        assert_eq!(reported(&mut stream), None, "they were not compared");
        for names in [vec!["partition_config_file".to_owned()], Vec::new()] {
            progress.compared(&names);
            stream.handle_stored(&progress);
            assert_eq!(reported(&mut stream), Some(names));
            stream.handle_stored(&progress);
            assert_eq!(reported(&mut stream), None, "the master knows");
        }
    }
}

//! One responder's end of the feed, as the SM sees it: which messages are sent to it, and when.
//!
//! This module decides; it never sends, waits or reads a clock. There is one update at a time, and
//! the next begins after the responder has acknowledged it: a slow responder gets fewer and larger
//! updates, never a queue of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message;
use sa_proto::proto::snapshot::from_sm;
use sa_proto::snapshot::codec::Encoder;
use sa_proto::snapshot::encoding::Malformed;
use sa_proto::snapshot::{Checksum, Held, Plan, SCHEMA, Session, Snapshot, Version};
use sa_proto::state::StateVersion;

/// How long a responder may take to send its greeting, to accept the next message, and to build
/// its tables and acknowledge. Keepalive of the connection detects one that is gone.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a session that a responder refused is not offered to it again. The fabric may be split
/// meanwhile, and the responder then holds the session beside the one that replaced it.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// Requests for a full update, in a row, before the feed is closed.
const RESYNCS_MAX: u32 = 3;

/// Why a feed ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FeedError {
    #[error("only the first message must be Hello")]
    Greeting,
    #[error(
        "responder has snapshot layout {0}, this SM has {SCHEMA}; install the same release on both"
    )]
    Schema(u32),
    #[error("responder_id must not be 0")]
    Identity,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("responder requested {RESYNCS_MAX} full updates in a row")]
    Resyncs,
    #[error("responder made no progress for {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// Effect of a responder's message outside its feed.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// The responder sent its greeting.
    Hello(Box<proto::Hello>, Option<Version>),
    /// The responder has this version and answers queries from it, or from the second one if it
    /// could not build tables.
    Acked(Version, Option<Version>),
    /// The responder needs a full update, for this reason.
    Resync(proto::resync::Reason),
    /// The responder refused an update: it holds this version, of a higher session.
    Refused(Version),
    /// The responder reports its counters.
    Stats(proto::Stats),
    /// The responder explains a path.
    Explained(proto::Explained),
    /// The responder holds this version of the registry, and the follower this state.
    Holding {
        number: u64,
        version: Version,
        state: StateVersion,
        restarted: bool,
        acknowledged: u64,
    },
    /// The follower's operators' files that differ from ours.
    Files(proto::FileDifferences),
    /// The follower is a master, and has acknowledged nothing after this version since the inquiry
    /// with this number.
    Sealed(u64, Version),
    /// The responder sends a part of its registry.
    Rows(Message),
}

/// One responder's end of the feed.
pub(super) struct Feed {
    state: State,
    /// The version that the responder holds after it applied everything sent.
    held: Option<Held>,
    /// The session that it refused last, and when.
    refused: Option<(Session, Instant)>,
    /// Whether it has had an update on this connection.
    confirmed: bool,
    resyncs: u32,
    /// When the feed is closed, unless the responder sends the answer that is due.
    deadline: Option<Instant>,
}

enum State {
    /// The responder has not sent its greeting.
    New,
    /// The responder has applied all that was sent.
    Idle,
    /// An update is being sent.
    Sending { encoder: Box<Encoder>, target: Held },
    /// An update was sent.
    Sent { target: Version },
}

impl Feed {
    pub(super) fn new(now: Instant) -> Self {
        let deadline = Some(now + TIMEOUT);
        Self {
            state: State::New,
            held: None,
            refused: None,
            confirmed: false,
            resyncs: 0,
            deadline,
        }
    }

    /// Takes a message of the responder. `ours` is the session of this SM.
    pub(super) fn handle_message(
        &mut self,
        now: Instant,
        ours: Session,
        message: proto::FromResponder,
    ) -> Result<Option<Event>, FeedError> {
        let message = message.message.ok_or(Malformed("an empty message"))?;
        match (message, &self.state) {
            (Message::Hello(hello), State::New) => self.handle_hello(hello).map(Some),
            (Message::Hello(_), _) | (_, State::New) => Err(FeedError::Greeting),
            (Message::Ack(ack), State::Sent { target, .. }) => {
                let version = Version::try_from(ack.version)?;
                if version != *target {
                    return Ok(None);
                }
                self.become_idle();
                (self.refused, self.resyncs) = (None, 0);
                let serving = ack.serving.map(|held| Version::try_from(Some(held))).transpose()?;
                Ok(Some(Event::Acked(version, serving)))
            }
            // It acknowledges an update from before its request.
            (Message::Ack(_), _) => Ok(None),
            (Message::Resync(resync), _) => {
                self.resyncs += 1;
                if self.resyncs > RESYNCS_MAX {
                    return Err(FeedError::Resyncs);
                }
                self.held = None;
                self.become_idle();
                Ok(Some(Event::Resync(resync.reason())))
            }
            (Message::Refused(refused), State::Sending { .. } | State::Sent { .. }) => {
                let held = Version::try_from(refused.held)?;
                self.refused = Some((ours, now));
                // It has that from another SM; its sums are unknown.
                self.held = None;
                self.become_idle();
                Ok(Some(Event::Refused(held)))
            }
            // There is nothing to refuse.
            (Message::Refused(_), _) => Ok(None),
            (Message::Stats(stats), _) => Ok(Some(Event::Stats(stats))),
            (Message::Explained(explained), _) => Ok(Some(Event::Explained(explained))),
            (Message::Holding(holding), _) => {
                let version = Version::try_from(holding.version)?;
                let state = holding.state.map(StateVersion::from).unwrap_or_default();
                let proto::Holding { number, restarted, acknowledged, .. } = holding;
                Ok(Some(Event::Holding { number, version, state, restarted, acknowledged }))
            }
            (Message::Files(files), _) => Ok(Some(Event::Files(files))),
            (Message::Sealed(sealed), _) => {
                let version = Version::try_from(sealed.version)?;
                Ok(Some(Event::Sealed(sealed.number, version)))
            }
            (rows @ (Message::Begin(_) | Message::Chunk(_) | Message::End(_)), _) => {
                Ok(Some(Event::Rows(rows)))
            }
        }
    }

    fn handle_hello(&mut self, mut hello: proto::Hello) -> Result<Event, FeedError> {
        if hello.schema != SCHEMA {
            return Err(FeedError::Schema(hello.schema));
        }
        if hello.responder_id == 0 {
            return Err(FeedError::Identity);
        }
        self.held = match hello.held.take() {
            Some(held) => Some(Held {
                version: Version::try_from(held.version)?,
                checksum: Checksum::try_from(held.checksum)?,
                bucket_sums: held.bucket_sums,
            }),
            None => None,
        };
        self.become_idle();
        Ok(Event::Hello(Box::new(hello), self.held.as_ref().map(|held| held.version)))
    }

    fn become_idle(&mut self) {
        self.state = State::Idle;
        self.deadline = None;
    }

    /// Whether to offer the responder an update of this session. What it holds does not show that
    /// it would refuse it: that may be the session of another part of the fabric.
    pub(super) fn may_offer(&self, now: Instant, session: Session) -> bool {
        self.retry_at(session).is_none_or(|due| now >= due)
    }

    /// When a session that was refused is offered again.
    pub(super) fn retry_at(&self, session: Session) -> Option<Instant> {
        let (refused, at) = self.refused?;
        (session <= refused).then_some(at + REFUSED_PAUSE)
    }

    /// What the responder holds, as the base of the next update, if one can begin; pass the plan to
    /// [`begin`](Self::begin).
    pub(super) fn ready(&self) -> Option<Option<&Held>> {
        matches!(self.state, State::Idle).then_some(self.held.as_ref())
    }

    /// Begins the update that leads to `latest`; `false` if there is nothing to send. The first
    /// one is sent even if it is empty: it confirms to the responder that it is up to date.
    pub(super) fn begin(&mut self, now: Instant, plan: Plan, latest: &Arc<Snapshot>) -> bool {
        let plan = match plan {
            Plan::Nothing if self.confirmed => return false,
            Plan::Nothing => Plan::Buckets(latest.clone(), Box::default()),
            plan => plan,
        };
        let Some(encoder) = plan.encode(self.held.as_ref()) else { return false };
        self.confirmed = true;
        let (version, checksum) = (latest.version(), latest.checksum());
        let target = Held { version, checksum, bucket_sums: Default::default() };
        self.state = State::Sending { encoder: Box::new(encoder), target };
        self.deadline = Some(now + TIMEOUT);
        true
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has something to send.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self.state, State::Sending { .. })
    }

    /// The next message of the current update.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<proto::FromSm> {
        let State::Sending { encoder, target } = &mut self.state else { return None };
        let message = encoder.next();
        if matches!(message.as_ref()?.message, Some(from_sm::Message::End(_))) {
            let version = target.version;
            self.held = Some(target.clone());
            self.state = State::Sent { target: version };
        }
        self.deadline = Some(now + TIMEOUT);
        message
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Closes the feed of a responder that is late.
    pub(super) fn handle_timeout(&self, now: Instant) -> Result<(), FeedError> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(FeedError::Timeout);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::codec::Decoder;
    use sa_proto::snapshot::{FabricPlane, History, HistoryLimits, RegistryPlane, Subnet};

    use super::*;

    /// An SM that publishes, and the time.
    struct Sm {
        history: History,
        now: Instant,
    }

    impl Sm {
        fn new() -> Self {
            let history = History::new(Arc::new(Snapshot::empty()), HistoryLimits::default());
            let mut sm = Self { history, now: Instant::now() };
            sm.publish();
            sm
        }

        fn publish(&mut self) {
            let latest = self.history.latest().clone();
            let version = Version {
                session: Session { epoch: 1, sm_guid: Guid(1) },
                fabric_generation: latest.version().fabric_generation + 1,
                registry_sequence: 0,
            };
            let subnet = Subnet { prefix: version.fabric_generation, ..Subnet::default() };
            let fabric = FabricPlane { subnet, ..FabricPlane::default() };
            let (next, delta) = latest.succeed(version, &fabric, &RegistryPlane::default());
            self.history.push(Arc::new(delta), Arc::new(next));
        }

        /// Sends all messages; returns the snapshot that results.
        fn transmit(&self, feed: &mut Feed, held: &Snapshot) -> Option<Snapshot> {
            let plan = self.history.plan(feed.ready()?);
            if !feed.begin(self.now, plan, self.history.latest()) {
                return None;
            }
            let mut decoder = None;
            while let Some(message) = feed.poll_transmit(self.now) {
                match message.message.unwrap() {
                    from_sm::Message::Begin(begin) => decoder = Some(Decoder::new(begin).unwrap()),
                    from_sm::Message::Chunk(chunk) => {
                        decoder.as_mut().unwrap().chunk(&chunk).unwrap();
                    }
                    from_sm::Message::End(end) => {
                        return Some(decoder.unwrap().finish(end, held).unwrap());
                    }
                    _ => panic!("not of an update"),
                }
            }
            panic!("update without an end");
        }
    }

    const OURS: Session = Session { epoch: 7, sm_guid: Guid(9) };

    fn say(feed: &mut Feed, message: Message) -> Result<Option<Event>, FeedError> {
        say_at(Instant::now(), feed, message)
    }

    fn say_at(now: Instant, feed: &mut Feed, message: Message) -> Result<Option<Event>, FeedError> {
        feed.handle_message(now, OURS, proto::FromResponder { message: Some(message) })
    }

    fn hello(schema: u32) -> Message {
        Message::Hello(proto::Hello { schema, responder_id: 1, ..Default::default() })
    }

    fn ack(version: Version) -> Message {
        Message::Ack(proto::Ack { version: Some(version.into()), serving: None })
    }

    fn greeted(sm: &Sm) -> Feed {
        let mut feed = Feed::new(sm.now);
        assert!(feed.ready().is_none(), "nothing is sent to a stranger");
        say(&mut feed, hello(SCHEMA)).unwrap();
        feed
    }

    #[test]
    fn a_slow_responder_gets_what_it_missed_as_one_update() {
        let mut sm = Sm::new();
        let mut feed = greeted(&sm);
        let first = sm.transmit(&mut feed, &Snapshot::empty()).unwrap();
        for _ in 0..5 {
            sm.publish();
            assert!(sm.transmit(&mut feed, &first).is_none(), "not before it acknowledged");
        }
        assert_eq!(
            say(&mut feed, ack(first.version())),
            Ok(Some(Event::Acked(first.version(), None)))
        );
        let second = sm.transmit(&mut feed, &first).unwrap();
        assert_eq!(&second, &**sm.history.latest());
        say(&mut feed, ack(second.version())).unwrap();
        assert!(sm.transmit(&mut feed, &second).is_none(), "up to date");
    }

    #[test]
    fn a_responder_in_step_is_notified_once() {
        let sm = Sm::new();
        let latest = sm.history.latest();
        let mut feed = Feed::new(sm.now);
        let held = proto::Held {
            version: Some(latest.version().into()),
            checksum: Some(latest.checksum().into()),
            bucket_sums: Default::default(),
        };
        let hello = proto::Hello {
            schema: SCHEMA,
            responder_id: 1,
            held: Some(held),
            ..Default::default()
        };
        say(&mut feed, Message::Hello(hello)).unwrap();
        assert_eq!(&sm.transmit(&mut feed, latest).unwrap(), &**latest);
        say(&mut feed, ack(latest.version())).unwrap();
        assert!(sm.transmit(&mut feed, latest).is_none());
    }

    #[test]
    fn an_acknowledgement_of_another_version_opens_nothing() {
        let mut sm = Sm::new();
        let mut feed = greeted(&sm);
        sm.transmit(&mut feed, &Snapshot::empty()).unwrap();
        sm.publish();
        assert_eq!(say(&mut feed, ack(sm.history.latest().version())), Ok(None));
        assert!(feed.ready().is_none());
    }

    #[test]
    fn a_lost_responder_gets_everything_but_not_for_ever() {
        let sm = Sm::new();
        let mut feed = greeted(&sm);
        let resync = || Message::Resync(proto::Resync { reason: 2 });
        for _ in 0..RESYNCS_MAX {
            assert!(sm.transmit(&mut feed, &Snapshot::empty()).is_some());
            let event = say(&mut feed, resync());
            assert_eq!(event, Ok(Some(Event::Resync(proto::resync::Reason::Checksum))));
        }
        assert_eq!(say(&mut feed, resync()), Err(FeedError::Resyncs));
    }

    #[test]
    fn a_responder_that_does_nothing_is_given_up() {
        let mut sm = Sm::new();
        let fresh = Feed::new(sm.now);
        assert_eq!(fresh.handle_timeout(sm.now + TIMEOUT), Err(FeedError::Timeout));
        let mut feed = greeted(&sm);
        assert_eq!(feed.poll_timeout(), None);
        sm.transmit(&mut feed, &Snapshot::empty()).unwrap();
        sm.now += TIMEOUT - Duration::from_secs(1);
        assert_eq!(feed.handle_timeout(sm.now), Ok(()));
        sm.now += Duration::from_secs(1);
        assert_eq!(feed.handle_timeout(sm.now), Err(FeedError::Timeout));
    }

    #[test]
    fn strangers_are_refused_with_a_reason() {
        let now = Instant::now();
        let mut feed = Feed::new(now);
        assert_eq!(say(&mut feed, ack(Version::NONE)), Err(FeedError::Greeting));
        assert_eq!(say(&mut Feed::new(now), hello(99)), Err(FeedError::Schema(99)));
        let unnamed = Message::Hello(proto::Hello { schema: SCHEMA, ..Default::default() });
        assert_eq!(say(&mut Feed::new(now), unnamed), Err(FeedError::Identity));
        let mut feed = Feed::new(now);
        say(&mut feed, hello(SCHEMA)).unwrap();
        assert_eq!(say(&mut feed, hello(SCHEMA)), Err(FeedError::Greeting));
    }

    #[test]
    fn a_refused_feed_sends_everything_of_a_higher_session_or_after_a_pause() {
        let sm = Sm::new();
        let mut feed = greeted(&sm);
        let session = |epoch| Session { epoch, sm_guid: Guid(9) };
        assert!(feed.may_offer(sm.now, OURS));
        sm.transmit(&mut feed, &Snapshot::empty()).unwrap();
        let held = Version { session: session(8), fabric_generation: 3, registry_sequence: 0 };
        let refused = Message::Refused(proto::Refused { held: Some(held.into()) });
        assert_eq!(say_at(sm.now, &mut feed, refused.clone()), Ok(Some(Event::Refused(held))));
        // Regression: each refusal was logged, also where nothing had been offered.
        assert_eq!(say_at(sm.now, &mut feed, refused), Ok(None));
        assert!(!feed.may_offer(sm.now, OURS) && feed.may_offer(sm.now, session(9)));
        assert_eq!(feed.poll_timeout(), None, "nothing is expected of it");
        assert_eq!(feed.ready(), Some(None), "what it holds is not ours");
        let due = feed.retry_at(OURS).unwrap();
        assert_eq!(due, sm.now + REFUSED_PAUSE);
        assert!(feed.may_offer(due, OURS), "the fabric may be split since");
    }

    /// A responder that had started again in a split fabric got nothing from one of the managers.
    #[test]
    fn a_responder_that_holds_a_higher_session_is_offered_ours() {
        let now = Instant::now();
        let mut feed = Feed::new(now);
        let version = Version { session: Session { epoch: 8, sm_guid: Guid(1) }, ..Version::NONE };
        let held = proto::Held {
            version: Some(version.into()),
            checksum: Some(Snapshot::empty().checksum().into()),
            bucket_sums: Default::default(),
        };
        let hello = proto::Hello {
            schema: SCHEMA,
            responder_id: 1,
            held: Some(held),
            ..Default::default()
        };
        say(&mut feed, Message::Hello(hello)).unwrap();
        assert!(feed.may_offer(now, OURS));
    }
}

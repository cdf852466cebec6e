//! State shared by the publisher and the tasks of all connections.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use sa_proto::snapshot::{FabricPlane, History, HistoryLimits, Session, Snapshot, Version};
use sm_config::{NodeNames, Settings};
use tokio::sync::watch;

use super::baseline::BaselineBoard;
use super::computing::Computing;
use super::events::Readers;
use super::inquiry::Inquiries;
use super::orders::{OrderDesk, Orders, Receipt};
use super::outcomes::OutcomeLog;
use super::{StateBoard, SyncFollowers, Writers, asking, session};
use crate::clock::Clock;
use crate::congestion::CongestionBoard;
use crate::front_door::AnnouncedDoor;
use crate::history::Archive;
use crate::observe::event::EventLog;
use crate::observe::moment::Moment;
use crate::observe::problem::{Condition, Problems};
use crate::observe::topology::Missing;
use crate::observe::{Announcements, Observer, Responders, SmStatus, Sweeps};
use crate::perf::PerfBoard;

/// State shared by the publisher and the tasks of all connections.
pub(super) struct Shared {
    pub(super) clock: Arc<dyn Clock>,
    /// Locked for look-ups and for appending, both short.
    pub(super) history: Mutex<History>,
    /// The version published last in the current session; [`Version::NONE`] before the first, and
    /// without a session.
    pub(super) announced: watch::Sender<Version>,
    /// The fabric plane published last; an empty one before the first.
    pub(super) fabric: watch::Sender<Arc<FabricPlane>>,
    /// The highest session that is known to have been begun.
    pub(super) highest: Mutex<Session>,
    /// The highest session for which responders refused ours; none if they accepted it again.
    pub(super) rival: Mutex<Session>,
    /// The epoch of the last session of this SM that a responder has accepted.
    pub(super) accepted: AtomicU64,
    /// Address and token of the front door; empty if there is none.
    pub(super) front_door: ArcSwap<AnnouncedDoor>,
    /// Operators' names of nodes.
    pub(super) names: ArcSwap<NodeNames>,
    /// Settings in force.
    pub(super) settings: ArcSwap<Settings>,
    pub(super) responders: Responders,
    /// Answers that are being computed.
    pub(super) computing: Computing,
    /// Queues of questions to responders.
    pub(super) inboxes: asking::Inboxes,
    /// Questions about the versions that they hold.
    pub(super) inquiries: Inquiries,
    /// Responders with a stream of writes.
    pub(super) writers: Writers,
    /// Followers that writes wait for.
    pub(super) sync: Arc<SyncFollowers>,
    /// Outcomes of requests, for followers. Locked for moments.
    outcomes: Mutex<OutcomeLog>,
    /// State besides the registry, for followers.
    pub(super) state: Arc<StateBoard>,
    /// Connections ever accepted; numbers them.
    pub(super) connections: AtomicU64,
    pub(super) counters: Counters,
    /// Connections and calls that were refused.
    pub(super) refused: Arc<sa_proto::serve::Counters>,
    pub(super) sm: ArcSwap<SmStatus>,
    /// When that was set, ms since `started`.
    pub(super) sm_stated_ms: AtomicU64,
    /// What is wrong with our certificates.
    pub(super) certificate: ArcSwapOption<Condition>,
    /// Requests of operators that the SM has not taken yet.
    pub(super) orders: OrderDesk,
    /// When versions were announced. Locked for moments, as the others are.
    pub(super) announcements: Mutex<Announcements>,
    pub(super) observer: Mutex<Observer>,
    /// The last result of the observer.
    pub(super) moments: watch::Sender<Arc<Moment>>,
    /// The list of problems as of then.
    pub(super) problems: ArcSwap<Problems>,
    /// What is missing of the fabric as of then.
    pub(super) missing: ArcSwap<Missing>,
    pub(super) sweeps: Sweeps,
    pub(super) events: EventLog,
    pub(super) event_readers: Readers,
    /// What is kept of the past on disk, if anything is.
    pub(super) archive: OnceLock<Arc<dyn Archive>>,
    /// What the fabric is compared with.
    pub(super) baseline: BaselineBoard,
    /// The counters of ports.
    pub(super) perf: Arc<PerfBoard>,
    /// Congestion control.
    pub(super) congestion: Arc<CongestionBoard>,
    pub(super) started: Instant,
    /// Registry time at a moment; `None` before the registry's thread has set it.
    pub(super) registry_time: Mutex<Option<(Instant, Duration)>>,
}

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident => $label:literal),* $(,)?) => {
        #[derive(Default)]
        pub(super) struct Counters {
            $(#[doc = $doc] pub(super) $name: AtomicU64,)*
        }
        impl Counters {
            pub(super) fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($label, $doc.trim_ascii(), self.$name.load(Relaxed))),*]
            }
        }
    };
}
counters! {
    /// Full snapshots sent
    fulls => "feed_full_updates",
    /// Updates sent as the buckets that differ
    buckets => "feed_bucket_updates",
    /// Empty updates, sent to responders that already held the latest snapshot
    confirmations => "feed_confirmations",
    /// Updates sent as a delta
    deltas => "feed_delta_updates",
    /// Bytes sent in all updates
    bytes => "feed_sent_bytes",
    /// Updates acknowledged by responders
    acks => "feed_acks",
    /// Updates that a responder received but could not build its tables from
    unusable => "feed_updates_unusable",
    /// Full updates requested by responders after an unusable update
    resyncs => "feed_resyncs",
    /// Updates refused because the responder follows a session with a higher epoch
    refusals => "feed_updates_refused",
    /// Responders disconnected because they reported an implausible session epoch
    implausible => "feed_epochs_implausible",
    /// Feeds to responders closed by this SM
    given_up => "feed_responders_given_up",
    /// Registries fetched from responders at takeovers
    recalled => "feed_registries_recalled",
    /// Outcomes of requests no longer offered to followers before clients stop repeating
    outcomes_forgotten => "feed_outcomes_forgotten",
}

impl Shared {
    /// The name, the description and the value of each counter.
    pub(super) fn counted(&self) -> Vec<(&'static str, &'static str, u64)> {
        [self.counters.list(), self.refused.list()].concat()
    }

    /// The state before the first publication.
    pub(super) fn new(empty: Arc<Snapshot>, history: HistoryLimits, clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        let fabric = watch::Sender::new(empty.fabric().clone());
        Self {
            clock,
            history: Mutex::new(History::new(empty, history)),
            announced: watch::Sender::new(Version::NONE),
            fabric,
            highest: Mutex::new(Version::NONE.session),
            rival: Mutex::new(Version::NONE.session),
            accepted: AtomicU64::new(0),
            front_door: ArcSwap::default(),
            names: ArcSwap::default(),
            settings: ArcSwap::default(),
            responders: Responders::default(),
            computing: Computing::default(),
            inboxes: asking::Inboxes::default(),
            inquiries: Inquiries::default(),
            writers: Writers::default(),
            sync: Arc::default(),
            outcomes: Mutex::default(),
            state: Arc::default(),
            connections: AtomicU64::new(0),
            counters: Counters::default(),
            refused: Arc::default(),
            sm: ArcSwap::default(),
            sm_stated_ms: AtomicU64::new(0),
            certificate: ArcSwapOption::default(),
            orders: OrderDesk::default(),
            announcements: Mutex::default(),
            observer: Mutex::new(Observer::new(now)),
            moments: watch::Sender::default(),
            problems: ArcSwap::default(),
            missing: ArcSwap::default(),
            sweeps: Sweeps::default(),
            events: EventLog::default(),
            event_readers: Readers::default(),
            archive: OnceLock::new(),
            baseline: BaselineBoard::default(),
            perf: Arc::default(),
            congestion: Arc::default(),
            started: now,
            registry_time: Mutex::default(),
        }
    }

    /// Registry time at `now`; `None` before it is known.
    pub(super) fn registry_time(&self, now: Instant) -> Option<Duration> {
        let set = *self.registry_time.lock().unwrap_or_else(PoisonError::into_inner);
        set.map(|(at, time)| time + now.saturating_duration_since(at))
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outcomes(&self) -> MutexGuard<'_, OutcomeLog> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order to the SM.
    pub(super) fn order(&self, give: impl FnOnce(&mut Orders)) -> Receipt {
        let given = self.orders.give(|orders| {
            give(orders);
            Ok::<_, Infallible>(())
        });
        given.unwrap_or_else(|never| match never {})
    }

    /// Has the baseline in force, or that there is none, passed to the SM.
    pub(super) fn baseline_changed(&self) {
        self.order(|orders| orders.baseline = true);
    }

    pub(super) fn announcements(&self) -> MutexGuard<'_, Announcements> {
        self.announcements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago `version` was announced.
    pub(super) fn lag(&self, version: Version, now: Instant) -> Option<Duration> {
        self.announcements().at(version).map(|at| now.saturating_duration_since(at))
    }

    pub(super) fn highest(&self) -> Session {
        *self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session for which responders refuse ours.
    pub(super) fn rival(&self) -> Session {
        *self.rival.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a responder refused our session for this one; `false` if that is not believed.
    pub(super) fn note_refused(&self, session: Session) -> bool {
        self.note_reported(session) && self.note_rival(session)
    }

    /// Notes a session that a responder reports; `false` if that is not believed.
    pub(super) fn note_reported(&self, session: Session) -> bool {
        let is_known = session.epoch <= self.highest().epoch;
        if !is_known && !session::is_believed(session.epoch, self.clock.time_of_day()) {
            self.counters.implausible.fetch_add(1, Relaxed);
            return false;
        }
        self.note_held(session)
    }

    /// Notes a session that ours must be above; `false` if no SM can have begun it.
    pub(super) fn note_rival(&self, session: Session) -> bool {
        let is_plausible = self.note_held(session);
        if is_plausible {
            let mut rival = self.rival.lock().unwrap_or_else(PoisonError::into_inner);
            *rival = session.max(*rival);
        }
        is_plausible
    }

    /// Notes that a responder accepted a session of ours; `again`: it had refused one.
    pub(super) fn note_accepted(&self, session: Session, again: bool) {
        self.accepted.fetch_max(session.epoch, Relaxed);
        if again {
            let mut rival = self.rival.lock().unwrap_or_else(PoisonError::into_inner);
            *rival = Version::NONE.session;
        }
    }

    /// Identities of responders that may have acknowledged writes to clients, ascending.
    pub(super) fn acknowledging(&self) -> Vec<u64> {
        let mut ids = self.writers.ids();
        let responders = self.responders.load();
        ids.extend(responders.iter().filter(|entry| !entry.is_client()).map(|entry| entry.id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Removes the responder of a connection. Returns whether queries are unanswered because of it.
    pub(super) fn leave(&self, connection: u64) -> bool {
        self.responders.leave(connection) && self.announced.borrow().fabric_generation != 0
    }

    /// Notes a session that was begun; `false` if no SM can have begun it.
    pub(super) fn note_held(&self, session: Session) -> bool {
        if !session::is_plausible(session.epoch, self.clock.time_of_day()) {
            self.counters.implausible.fetch_add(1, Relaxed);
            return false;
        }
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        *highest = session.max(*highest);
        true
    }
}

//! State of the copy of a master's registry, shared by the streams, the registry's thread and the
//! service loop.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::{RegistryPlane, Session, Snapshot, Version};
use sa_proto::state::StateVersion;
use sm_core::registry::{OUTCOMES_MAX, Outcome, OutcomeKey};
use tokio::sync::watch;

use crate::node::{Beat, Followed, MasterState};

/// The last snapshot of a master, for the registry's thread.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Its version.
    pub version: Version,
    /// What was registered.
    pub plane: Arc<RegistryPlane>,
    /// Outcomes of requests up to this version that were not taken before.
    pub outcomes: Vec<(OutcomeKey, Outcome)>,
    /// How many there were beyond the limit.
    pub outcomes_discarded: usize,
}

/// Outcomes of a session that are not on disk yet, in order of their sequence numbers. Holds the
/// last [`OUTCOMES_MAX`].
#[derive(Debug)]
struct Pending {
    session: Session,
    all: VecDeque<(u64, OutcomeKey, Outcome)>,
    /// How many were discarded since [`News`] were taken last.
    discarded: usize,
}

impl Default for Pending {
    fn default() -> Self {
        Self { session: Version::NONE.session, all: VecDeque::new(), discarded: 0 }
    }
}

impl Pending {
    /// Takes those up to a version.
    fn take(&mut self, version: Version) -> Vec<(OutcomeKey, Outcome)> {
        if self.session != version.session {
            return Vec::new();
        }
        let is_due = |&&(sequence, ..): &&(u64, _, _)| sequence <= version.registry_sequence;
        let due = self.all.iter().take_while(is_due).count();
        self.all.drain(..due).map(|(_, key, outcome)| (key, outcome)).collect()
    }

    /// Puts outcomes back that could not be stored with this version.
    fn put_back(&mut self, version: Version, outcomes: Vec<(OutcomeKey, Outcome)>) {
        if self.session == version.session {
            for (key, outcome) in outcomes.into_iter().rev() {
                self.all.push_front((version.registry_sequence, key, outcome));
            }
            self.trim();
        }
    }

    fn trim(&mut self) {
        let excess = self.all.len().saturating_sub(OUTCOMES_MAX);
        self.all.drain(..excess);
        self.discarded += excess;
    }
}

/// The copy, and the snapshot that is not on disk yet. Locked for moments only.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<(Followed, Option<News>)>,
    /// Counts sessions of this SM; changed while `state` is locked.
    term: AtomicU64,
    /// Changes when something is stored, or a feed has something else to do.
    stored: watch::Sender<Version>,
    /// Notified when the state of a master is received.
    state_arrived: Condvar,
    /// Outcomes of requests. Locked after `state`.
    outcomes: Mutex<Pending>,
    /// The version published last by this SM, if it is master and acknowledges nothing, and how
    /// many elections of others it knew then.
    sealed: Mutex<Option<(Version, u64)>>,
    /// The version published last by this SM if it was master and is not; else none. Masters of
    /// earlier sessions are not followed: they lack what was acknowledged in it. Locked after
    /// `state`.
    ended: Mutex<Version>,
    /// Session and registry time of the master in its last update, until they are taken.
    registry_time: Mutex<Option<(Session, Duration)>>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, (Followed, Option<News>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of the copy.
    pub fn followed(&self) -> Followed {
        self.lock().0.clone()
    }

    /// The last version on disk.
    pub fn last_stored(&self) -> Version {
        self.lock().0.stored
    }

    /// Changes when something is stored.
    pub fn subscribe(&self) -> watch::Receiver<Version> {
        self.stored.subscribe()
    }

    /// The last snapshot, if it is not on disk yet; earlier ones are superseded.
    pub fn take(&self) -> Option<News> {
        let mut news = self.lock().1.take()?;
        let mut pending = self.outcomes();
        news.outcomes = pending.take(news.version);
        news.outcomes_discarded = std::mem::take(&mut pending.discarded);
        drop(pending);
        Some(news)
    }

    fn outcomes(&self) -> MutexGuard<'_, Pending> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Outcomes of requests were received, after which the master's registry has this version.
    pub fn receive_outcomes(&self, version: Version, outcomes: Vec<(OutcomeKey, Outcome)>) {
        let is_current = version.session >= self.lock().0.publishing();
        let mut pending = self.outcomes();
        if !is_current || version.session < pending.session {
            return;
        }
        if version.session != pending.session {
            *pending = Pending { session: version.session, ..Pending::default() };
        }
        let sequence = version.registry_sequence;
        pending.all.extend(outcomes.into_iter().map(|(key, outcome)| (sequence, key, outcome)));
        pending.trim();
    }

    /// The snapshot could not be stored. It is due again unless there is a newer one.
    pub fn put_back(&self, mut news: News) {
        self.outcomes().put_back(news.version, std::mem::take(&mut news.outcomes));
        self.lock().1.get_or_insert(news);
    }

    /// Session and registry time of the master, if an update with it was received since the last
    /// call.
    pub fn take_registry_time(&self) -> Option<(Session, Duration)> {
        self.registry_time.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// An update of this session has this registry time; 0: none.
    pub fn note_registry_time(&self, session: Session, time_ns: u64) {
        let time = (time_ns != 0).then(|| (session, Duration::from_nanos(time_ns)));
        *self.registry_time.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }

    /// Whether there is a snapshot to be written.
    pub fn has_news(&self) -> bool {
        self.lock().1.is_some()
    }

    /// The snapshot of this version is on disk.
    pub fn stored(&self, version: Version) {
        self.lock().0.stored = version;
        self.stored.send_replace(version);
    }

    /// Counts sessions of this SM. A feed must be opened again after a change: it may deliver what
    /// was sent before.
    pub fn term(&self) -> u64 {
        self.term.load(Relaxed)
    }

    /// A session of this SM has begun: what was received and not stored is outdated.
    pub fn begin_term(&self) {
        {
            let mut state = self.lock();
            state.1 = None;
            self.term.fetch_add(1, Relaxed);
        }
        self.stored.send_modify(|_| {});
    }

    /// A snapshot was received by a feed that was opened in this [term](Self::term). `false` if
    /// that is over, or if its session is older than one followed before, or than one of this SM
    /// that has ended: its master was replaced.
    pub fn receive(&self, snapshot: &Snapshot, term: u64) -> bool {
        let (version, mut state) = (snapshot.version(), self.lock());
        if version.session < self.newest(&state.0) || term != self.term() {
            return false;
        }
        state.0.is_connected = true;
        // A master whose disk cannot be read publishes the fabric alone. And a responder may have
        // had more of this session than has arrived here.
        let received = state.0.received.registry();
        let is_older = version.session == received.session && version.registry() < received;
        if !version.has_registry() || is_older {
            return true;
        }
        state.0.received = version;
        // At generation 0 it is still that of an earlier session.
        if version.fabric_generation > 0 {
            state.0.fabric = Some(snapshot.fabric().clone());
        }
        state.1 = Some(News { version, plane: snapshot.registry().clone(), ..News::default() });
        true
    }

    /// The registry of a responder, fetched at a takeover. Returns whether it is newer than what
    /// was received.
    pub fn recall(&self, snapshot: &Snapshot) -> bool {
        let (version, mut state) = (snapshot.version(), self.lock());
        if !version.has_registry() || version.registry() <= state.0.received.registry() {
            return false;
        }
        state.0.received = version;
        state.1 = Some(News { version, plane: snapshot.registry().clone(), ..News::default() });
        true
    }

    /// The state of a master was received, if that master was not replaced.
    pub fn receive_state(&self, received: MasterState) {
        let mut state = self.lock();
        if received.version.session >= state.0.publishing() {
            state.0.master_state = Some(Arc::new(received));
            drop(state);
            self.state_arrived.notify_all();
        }
    }

    /// The state of the manager that holds the fence was read in a store that managers share.
    pub fn receive_stored_state(&self, received: MasterState) {
        self.lock().0.reads_store = true;
        self.receive_state(received);
    }

    /// Waits until a state other than `seen` is received, for this time at most.
    pub fn await_state(&self, seen: Option<StateVersion>, limit: Duration) {
        let is_same = |state: &mut (Followed, Option<News>)| {
            state.0.master_state.as_ref().map(|known| known.version) == seen
        };
        let waited = self.state_arrived.wait_timeout_while(self.lock(), limit, is_same);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// This version of the state is on disk.
    pub fn state_stored(&self, version: StateVersion) {
        {
            let followed = &mut self.lock().0;
            if followed.state_stored == version {
                return;
            }
            followed.state_stored = version;
        }
        self.stored.send_modify(|_| {});
    }

    /// The last version of the state on disk.
    pub fn last_state(&self) -> StateVersion {
        self.lock().0.state_stored
    }

    /// Operators' files were compared with the master's: these differ.
    pub fn compared(&self, differ: &[String]) {
        {
            let followed = &mut self.lock().0;
            if followed.files_differ.as_deref() == Some(differ) {
                return;
            }
            followed.files_differ = Some(differ.into());
        }
        self.stored.send_modify(|_| {});
    }

    /// A heartbeat arrived; `contact` is when an answer was sent that this one confirms.
    pub fn beat(&self, beat: Beat, contact: Option<Instant>) {
        let (session, mut state) = (beat.version.session, self.lock());
        let followed = &mut state.0;
        if session < self.newest(followed) {
            return;
        }
        if followed.beat.as_ref().is_none_or(|last| last.version.session != session) {
            followed.contact = None;
        }
        followed.contact = contact.or(followed.contact);
        followed.beat = Some(beat);
        followed.is_connected = true;
    }

    /// The manager at the port with this GUID asks what is held: it was elected. Returns the number
    /// of such elections.
    pub fn note_elected(&self, guid: Guid) -> u64 {
        let mut state = self.lock();
        state.0.elections += 1;
        state.0.elected = guid;
        state.0.elections
    }

    /// How often other managers asked what is held.
    pub fn elections(&self) -> u64 {
        self.lock().0.elections
    }

    /// Sets the version published last by this SM if it was master and is not, or none.
    pub fn set_ended(&self, version: Version) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = version;
    }

    /// See [`set_ended`](Self::set_ended).
    fn ended(&self) -> Version {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session before which a master was replaced: the highest that was followed, or the last
    /// of this SM.
    fn newest(&self, followed: &Followed) -> Session {
        followed.publishing().max(self.ended().session)
    }

    /// Whether the master of a session was replaced.
    pub fn is_replaced(&self, session: Session) -> bool {
        session < self.newest(&self.lock().0)
    }

    /// What a master of an earlier session lacks: the version received last, or published last by
    /// this SM.
    pub fn latest(&self) -> Version {
        let received = self.lock().0.received;
        received.max(self.ended())
    }

    /// Sets the version published last by this SM, if it is master and acknowledges nothing, and
    /// how many elections of others it knew then.
    pub fn set_sealed(&self, now: Option<(Version, u64)>) {
        let before = {
            let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *sealed, now)
        };
        if now.is_some() && before != now {
            self.stored.send_modify(|_| {});
        }
    }

    /// See [`set_sealed`](Self::set_sealed).
    pub fn sealed(&self) -> Option<(Version, u64)> {
        *self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream of a session ended.
    pub fn end(&self, session: Session) {
        let mut state = self.lock();
        if state.0.publishing() == session {
            state.0.is_connected = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ib_mad::wire::mad::Status;
    use sa_proto::snapshot::FabricPlane;
    use sa_proto::state::Documents;
    use sm_core::registry::testing::outcome_key;

    use super::*;
    use crate::publish::LEASE;

    fn snapshot(epoch: u64, sequence: u64) -> Snapshot {
        let session = Session { epoch, sm_guid: Guid(1) };
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        Snapshot::build(session, 1, FabricPlane::default(), registry).unwrap()
    }

    fn beat(epoch: u64, sequence: u64) -> Beat {
        let version = snapshot(epoch, sequence).version();
        Beat { version, responders: Arc::default(), awaited: false, state: None }
    }

    #[test]
    fn a_copy_counts_while_it_is_on_disk_and_the_master_confirms_contact() {
        let (progress, now) = (Progress::default(), Instant::now());
        let in_step = |now| progress.followed().is_in_step(now);
        assert!(progress.receive(&snapshot(5, 1), 0));
        progress.beat(beat(5, 1), None);
        progress.stored(progress.take().unwrap().version);
        assert!(!in_step(now), "nothing shows that the master hears us");
        progress.beat(beat(5, 1), Some(now));
        assert!(in_step(now));
        assert!(!in_step(now + LEASE + Duration::from_millis(1)));
        progress.beat(beat(5, 2), Some(now));
        assert!(!in_step(now), "there is a newer one");
        assert!(progress.receive(&snapshot(5, 2), 0));
        assert!(!in_step(now), "it is not on disk");
        progress.stored(progress.take().unwrap().version);
        assert!(in_step(now));
        progress.end(snapshot(5, 2).version().session);
        assert!(!in_step(now));
    }

    /// Regression: updates that a dead master had sent arrived after its successor had handed over
    /// to a third, and replaced the successor's registry on disk.
    #[test]
    fn what_a_feed_delivers_after_a_term_of_this_sm_is_outdated() {
        let progress = Progress::default();
        assert!(progress.receive(&snapshot(5, 1), progress.term()));
        progress.begin_term();
        assert!(progress.take().is_none());
        assert!(!progress.receive(&snapshot(5, 2), 0));
        assert!(progress.take().is_none());
        assert!(progress.receive(&snapshot(5, 2), progress.term()), "opened again");
    }

    /// Regression: a master whose disk had failed published the fabric without a registry, a
    /// standby stored that, was handed over to, and continued from it.
    #[test]
    fn a_registry_that_its_master_does_not_know_is_not_copied() {
        let (progress, now) = (Progress::default(), Instant::now());
        assert!(progress.receive(&snapshot(5, 4), 0));
        progress.stored(progress.take().unwrap().version);
        assert!(progress.receive(&snapshot(6, 0), 0));
        progress.beat(beat(6, 0), Some(now));
        assert!(progress.take().is_none());
        assert!(!progress.followed().is_in_step(now));
        assert!(!progress.recall(&snapshot(7, 0)));
        assert!(progress.receive(&snapshot(6, 5), 0));
        assert_eq!(progress.take().unwrap().plane.sequence, 5);
    }

    #[test]
    fn a_master_that_was_replaced_is_not_followed() {
        let (progress, now) = (Progress::default(), Instant::now());
        assert!(progress.receive(&snapshot(6, 3), 0));
        progress.beat(beat(6, 3), Some(now));
        assert!(!progress.receive(&snapshot(5, 9), 0));
        progress.beat(beat(5, 9), Some(now));
        assert_eq!(progress.followed().beat, Some(beat(6, 3)));
        assert_eq!(progress.take().unwrap().plane.sequence, 3);
        progress.end(Session { epoch: 5, sm_guid: Guid(1) });
        assert!(progress.followed().is_connected, "the other stream continues");
        progress.beat(beat(7, 0), None);
        assert_eq!(progress.followed().contact, None, "that was another master");
    }

    /// Regression: updates of the feed that waited while the process was stopped replaced the newer
    /// registry that a responder had, on disk too.
    #[test]
    fn an_update_does_not_replace_a_newer_registry_of_its_session() {
        let progress = Progress::default();
        assert!(progress.receive(&snapshot(6, 3), 0));
        assert!(progress.recall(&snapshot(6, 9)));
        assert!(progress.receive(&snapshot(6, 4), 0), "the feed goes on");
        assert_eq!(progress.take().unwrap().plane.sequence, 9);
        assert!(progress.receive(&snapshot(6, 10), 0) && progress.receive(&snapshot(7, 1), 0));
        assert_eq!(progress.take().unwrap().plane.sequence, 1, "of the next session");
    }

    /// Regression: the standby's sequence number in the old session was above that of the new
    /// master.
    #[test]
    fn a_responders_registry_counts_if_it_is_newer_by_session_then_by_sequence() {
        let progress = Progress::default();
        assert!(progress.receive(&snapshot(6, 10), 0));
        assert!(!progress.recall(&snapshot(5, 12)) && !progress.recall(&snapshot(6, 10)));
        assert!(progress.recall(&snapshot(6, 11)));
        assert_eq!(progress.take().unwrap().plane.sequence, 11);
    }

    #[test]
    fn what_could_not_be_stored_is_due_again_unless_there_is_newer() {
        let progress = Progress::default();
        progress.receive(&snapshot(5, 1), 0);
        let first = progress.take().unwrap();
        progress.put_back(first.clone());
        assert!(progress.has_news());
        progress.take();
        progress.receive(&snapshot(5, 2), 0);
        progress.put_back(first);
        assert_eq!(progress.take().unwrap().version.registry_sequence, 2);
    }

    #[test]
    fn outcomes_are_stored_with_the_version_that_they_led_to() {
        let progress = Progress::default();
        let version = |epoch, sequence| snapshot(epoch, sequence).version();
        let outcome =
            |tid| vec![(outcome_key(tid), Outcome { status: Status::OK, data: None, at_s: 100 })];
        let tids = |news: &News| news.outcomes.iter().map(|(key, _)| key.tid).collect::<Vec<_>>();
        for tid in 1..4 {
            progress.receive_outcomes(version(5, tid), outcome(tid));
        }
        progress.receive(&snapshot(5, 2), 0);
        let news = progress.take().unwrap();
        assert_eq!(tids(&news), [1, 2]);
        progress.put_back(news);
        progress.receive(&snapshot(5, 3), 0);
        assert_eq!(tids(&progress.take().unwrap()), [1, 2, 3], "the disk was full");
        // The next master begins with all that it knows.
        progress.receive_outcomes(version(5, 4), outcome(4));
        progress.receive_outcomes(version(6, 1), outcome(7));
        progress.receive(&snapshot(6, 1), 0);
        progress.receive_outcomes(version(5, 5), outcome(5));
        assert_eq!(tids(&progress.take().unwrap()), [7]);
    }

    /// LIDs and M_Keys were lost at a takeover though the standby had counted as in step.
    #[test]
    fn a_copy_counts_only_with_the_state_that_is_published() {
        let (progress, now) = (Progress::default(), Instant::now());
        let session = snapshot(5, 1).version().session;
        let state = |number| StateVersion { session, number };
        assert!(progress.receive(&snapshot(5, 1), 0));
        progress.stored(progress.take().unwrap().version);
        progress.beat(Beat { state: Some(state(3)), ..beat(5, 1) }, Some(now));
        progress.state_stored(state(2));
        assert!(!progress.followed().is_in_step(now) && !progress.followed().has_state());
        let mut news = progress.subscribe();
        progress.state_stored(state(3));
        assert!(news.has_changed().unwrap(), "the master is to learn of it");
        assert!(progress.followed().is_in_step(now));
        news.mark_unchanged();
        progress.state_stored(state(3));
        assert!(!news.has_changed().unwrap());
    }

    #[test]
    fn the_state_of_a_master_that_was_replaced_is_ignored() {
        let progress = Progress::default();
        assert!(progress.receive(&snapshot(6, 3), 0));
        for (epoch, is_received) in [(5, false), (6, true)] {
            let session = snapshot(epoch, 1).version().session;
            let version = StateVersion { session, number: 1 };
            progress.receive_state(MasterState::read(version, &Documents::new()).0);
            assert_eq!(progress.followed().master_state.is_some(), is_received);
        }
    }
}

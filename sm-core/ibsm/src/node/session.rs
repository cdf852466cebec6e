//! The state of the publishing session, and the fabric plane that waits for it.
//!
//! A session takes an epoch, which the driver saves in the state directory: it cannot begin while
//! that cannot be written. The plane then waits here, and is published as soon as a session begins,
//! whether or not the fabric changes meanwhile. `publication` decides when to ask the driver for a
//! session, and publishes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sa_proto::snapshot::{FabricPlane, Session};
use tracing::{debug, error, info, warn};

use super::NewSession;

/// How long to wait after an epoch could not be saved.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of sessions begun above those of responders in [`RAISES_TIME`].
const RAISES_MAX: usize = 8;
const RAISES_TIME: Duration = Duration::from_secs(80);
/// How long the first snapshot of a session waits for the registry.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(5);

/// The state of the session.
#[derive(Debug, Default)]
pub struct SessionState {
    stage: Stage,
    /// The session that the driver is asked to begin.
    asked: Option<Asked>,
    /// Why the last epoch could not be saved, and when the next attempt is due.
    refused: Option<(Instant, String)>,
    /// Epochs that could not be saved, in total.
    failures: u64,
    /// When the last sessions above those of responders began, at most [`RAISES_MAX`].
    raised: VecDeque<Instant>,
    /// The plane that waits to be published; only the latest.
    plane: Option<FabricPlane>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing to do: no session is requested, or the one requested has begun.
    #[default]
    Settled,
    /// A session is requested.
    Requested,
    /// The session has begun. The first snapshot waits for the registry.
    Waiting { session: Session, until: Instant },
}

/// A session that the driver is asked to begin.
#[derive(Clone, Copy, Debug)]
struct Asked {
    new: NewSession,
    /// Whether the driver has taken it, so that its result is to come.
    is_taken: bool,
}

impl SessionState {
    /// Requests a session, in place of the current one if there is one.
    pub(super) fn request(&mut self) {
        self.stage = Stage::Requested;
    }

    /// This SM is no longer master: nothing begins or is published.
    pub(super) fn end(&mut self) {
        let asked = self.asked.filter(|asked| asked.is_taken);
        let raised = std::mem::take(&mut self.raised);
        *self = Self { failures: self.failures, asked, raised, ..Self::default() };
    }

    /// Whether to ask for the requested session now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.stage == Stage::Requested && self.asked.is_none() && self.may_try(now)
    }

    /// Asks the driver for a session, unless it has been asked for one.
    pub(super) fn ask(&mut self, new: NewSession) {
        self.asked.get_or_insert(Asked { new, is_taken: false });
    }

    /// The session to begin now; returned once. Its result is for [`begun`](Self::begun).
    pub(super) fn poll_new(&mut self) -> Option<NewSession> {
        let asked = self.asked.as_mut().filter(|asked| !asked.is_taken)?;
        asked.is_taken = true;
        Some(asked.new)
    }

    /// Whether enough time has passed since an epoch could not be saved.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.refused.as_ref().is_none_or(|(due, _)| now >= *due)
    }

    /// Whether a session above those of responders may be begun now. Each costs a full update of
    /// all responders, and one of them may report a higher epoch again and again.
    pub(super) fn may_raise(&self, now: Instant) -> bool {
        let has_room = match self.raised.front() {
            Some(&first) if self.raised.len() >= RAISES_MAX => now >= first + RAISES_TIME,
            _ => true,
        };
        has_room && self.may_try(now)
    }

    /// A session begins because of what a responder states.
    pub(super) fn note_raise(&mut self, now: Instant) {
        if self.raised.len() >= RAISES_MAX {
            self.raised.pop_front();
        }
        self.raised.push_back(now);
    }

    /// The session that was asked for has begun, or could not. Returns whether it is the one
    /// requested, in which the registry must be published. An unrequested one is ignored.
    pub(super) fn begun(&mut self, now: Instant, result: Result<Session, String>) -> bool {
        let Some(Asked { new, .. }) = self.asked.take() else { return false };
        let is_requested = self.stage == Stage::Requested;
        match (new, result) {
            (NewSession::Master(_), _) if !is_requested => false,
            (NewSession::Master(_), Ok(session)) => {
                self.stage = Stage::Waiting { session, until: now + REGISTRY_PATIENCE };
                self.succeeded();
                true
            }
            (NewSession::Above, Ok(_)) => {
                self.note_raise(now);
                self.succeeded();
                false
            }
            (_, Err(reason)) => {
                self.failed(now, reason);
                false
            }
        }
    }

    /// An epoch was saved.
    fn succeeded(&mut self) {
        if self.refused.take().is_some() {
            info!("session epoch saved; snapshots are published to responders again");
        }
    }

    /// An epoch could not be saved.
    fn failed(&mut self, now: Instant, reason: String) {
        self.failures += 1;
        match &self.refused {
            Some((_, known)) if *known == reason => debug!("session still cannot begin: {reason}"),
            _ => error!("nothing is published to responders: {reason}; retrying"),
        }
        self.refused = Some((now + RETRY_INTERVAL, reason));
    }

    /// Ends the wait for the registry if it is published in this session, or is late. `published`
    /// yields the epoch of the session in which it was published last.
    pub(super) fn settle(&mut self, now: Instant, published: impl FnOnce() -> u64) {
        let Stage::Waiting { session, until } = self.stage else { return };
        if published() >= session.epoch {
            self.stage = Stage::Settled;
        } else if now >= until {
            warn!("the registry is not available yet; publishing the fabric without it");
            self.stage = Stage::Settled;
        }
    }

    /// Whether a session is about to begin, or has begun and waits for the registry.
    pub(super) fn is_waiting(&self) -> bool {
        let begins = |asked: Asked| matches!(asked.new, NewSession::Master(_));
        matches!(self.stage, Stage::Waiting { .. }) || self.asked.is_some_and(begins)
    }

    /// Stores the result of a sweep, to be published as soon as possible.
    pub(super) fn offer(&mut self, plane: FabricPlane) {
        self.plane = Some(plane);
    }

    /// The plane to publish now.
    pub(super) fn poll(&mut self) -> Option<FabricPlane> {
        self.plane.take_if(|_| self.stage == Stage::Settled)
    }

    /// When something is due again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match (&self.stage, &self.refused) {
            (Stage::Waiting { until, .. }, _) => Some(*until),
            (Stage::Requested, Some((due, _))) => Some(*due),
            (Stage::Requested | Stage::Settled, _) => None,
        }
    }

    /// A warning while epochs cannot be saved.
    pub(super) fn warning(&self) -> Option<String> {
        let (_, reason) = self.refused.as_ref()?;
        Some(format!(
            "nothing is published to responders, so that queries get outdated answers or none: \
             {reason}"
        ))
    }

    /// Whether an epoch could not be saved.
    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// How often an epoch could not be saved.
    pub fn failures(&self) -> u64 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::Guid;

    const SESSION: Session = Session { epoch: 7, sm_guid: Guid(1) };

    fn requested() -> (SessionState, Instant) {
        let mut session = SessionState::default();
        session.request();
        session.offer(FabricPlane::default());
        (session, Instant::now())
    }

    /// Has the driver begin the session with this result.
    fn begin(session: &mut SessionState, now: Instant, result: Result<Session, String>) -> bool {
        let new = NewSession::Master(SESSION.sm_guid);
        session.ask(new);
        assert!(!session.is_due(now) && session.is_waiting());
        assert_eq!((session.poll_new(), session.poll_new()), (Some(new), None));
        session.begun(now, result)
    }

    /// Regression: a state directory that was full at a takeover left a master without an SA until
    /// some port's link changed: there was no retry.
    #[test]
    fn a_session_that_could_not_begin_is_retried_and_its_plane_published() {
        let (mut session, now) = requested();
        assert!(session.is_due(now));
        assert!(!begin(&mut session, now, Err("no space left".into())));
        assert!(!session.is_due(now) && session.poll().is_none());
        assert!(session.warning().unwrap().contains("no space left"));
        let due = session.poll_timeout().unwrap();
        assert!(due > now && session.is_due(due));

        assert!(begin(&mut session, due, Ok(SESSION)));
        session.settle(due, || 7);
        assert!(session.poll().is_some() && session.poll().is_none());
        assert_eq!((session.warning(), session.failures()), (None, 1));
        assert_eq!(session.poll_timeout(), None);
    }

    #[test]
    fn the_first_snapshot_waits_for_the_registry_for_a_limited_time() {
        for (published, waited) in [(7, Duration::ZERO), (6, REGISTRY_PATIENCE)] {
            let (mut session, now) = requested();
            assert!(begin(&mut session, now, Ok(SESSION)));
            session.settle(now, || 6);
            assert!(session.is_waiting() && session.poll().is_none());
            assert_eq!(session.poll_timeout(), Some(now + REGISTRY_PATIENCE));
            session.settle(now + waited, || published);
            assert!(!session.is_waiting() && session.poll().is_some());
        }
    }

    #[test]
    fn a_plane_that_waits_is_discarded_when_mastership_ends() {
        let (mut session, now) = requested();
        begin(&mut session, now, Err("no space left".into()));
        session.end();
        assert!(session.poll().is_none() && !session.is_due(now + RETRY_INTERVAL));
        assert_eq!((session.warning(), session.failures()), (None, 1));
    }

    #[test]
    fn a_session_that_begins_after_mastership_ended_does_not_count() {
        for is_taken in [false, true] {
            let (mut session, now) = requested();
            session.ask(NewSession::Master(SESSION.sm_guid));
            if is_taken {
                session.poll_new().unwrap();
            }
            session.end();
            assert_eq!(session.poll_new(), None);
            session.request();
            assert_eq!(session.is_due(now), !is_taken, "one at a time");
            session.end();
            assert!(!session.begun(now, Ok(SESSION)) && !session.is_waiting());
        }
    }

    #[test]
    fn a_session_above_those_of_responders_is_asked_for_once_at_a_time() {
        let (mut session, now) = (SessionState::default(), Instant::now());
        session.ask(NewSession::Above);
        session.ask(NewSession::Above);
        assert_eq!((session.poll_new(), session.poll_new()), (Some(NewSession::Above), None));
        assert!(!session.is_waiting(), "clients are answered meanwhile");
        assert!(!session.begun(now, Err("no space left".into())) && !session.may_try(now));
        let due = now + RETRY_INTERVAL;
        assert!(session.may_try(due));
        session.ask(NewSession::Above);
        session.poll_new();
        assert!(!session.begun(due, Ok(SESSION)) && session.may_try(due));
        assert_eq!((session.warning(), session.failures()), (None, 1));
    }

    /// Regression: a responder that reported a higher epoch again and again kept the manager
    /// beginning sessions, and all responders taking everything.
    #[test]
    fn sessions_above_those_of_responders_are_limited_in_rate() {
        let (mut session, now) = (SessionState::default(), Instant::now());
        let mut raise = |at: Instant| {
            let may = session.may_raise(at);
            if may {
                session.ask(NewSession::Above);
                session.poll_new();
                session.begun(at, Ok(SESSION));
            }
            may
        };
        let seconds = |count| now + Duration::from_secs(count);
        assert_eq!((0..20).filter(|&second| raise(seconds(second))).count(), RAISES_MAX);
        assert_eq!((20..420).filter(|&second| raise(seconds(second))).count(), 5 * RAISES_MAX);
    }
}

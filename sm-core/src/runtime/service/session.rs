//! The session in which we publish as master: begun, waited for, and begun again if it could not be.
//!
//! A session takes an epoch, which is kept in the state directory: it cannot begin while that cannot
//! be written. Then what was found waits here, and goes out as soon as it can, whether or not the
//! fabric changes meanwhile. Deciding only; `service` begins sessions and publishes.

use std::time::{Duration, Instant};

use sa_proto::snapshot::{FabricPlane, Session};
use tracing::{debug, error, info, warn};

/// How long to wait after an epoch could not be taken.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long to wait for what clients registered before a session goes on without it.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(5);

/// How far we are with our session.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    stage: Stage,
    /// Why the last epoch could not be taken, and when the next attempt is due.
    refused: Option<(Instant, String)>,
    /// Epochs that could not be taken, in all.
    failures: u64,
    /// What was found and waits to be published; the latest only.
    plane: Option<FabricPlane>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is to be done: no session is wanted, or the one that was is on.
    #[default]
    Settled,
    /// A session is to begin.
    Wanted,
    /// It has begun. What clients registered is to be part of what is published first.
    Waiting { session: Session, until: Instant },
}

impl SessionState {
    /// A session is to begin, in place of the one that is on if one is.
    pub(super) fn want(&mut self) {
        self.stage = Stage::Wanted;
    }

    /// We are not the master any more: nothing is to be begun or published.
    pub(super) fn end(&mut self) {
        *self = Self { failures: self.failures, ..Self::default() };
    }

    /// Whether a session is to begin now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.stage == Stage::Wanted && self.may_try(now)
    }

    /// Whether enough time has passed since an epoch could not be taken.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.refused.as_ref().is_none_or(|(due, _)| now >= *due)
    }

    /// A session has begun, or could not for a reason.
    pub(super) fn begun(&mut self, now: Instant, result: Result<Session, String>) {
        match result {
            Ok(session) => {
                self.stage = Stage::Waiting { session, until: now + REGISTRY_PATIENCE };
                self.succeeded();
            }
            Err(reason) => self.failed(now, reason),
        }
    }

    /// An epoch was taken.
    pub(super) fn succeeded(&mut self) {
        if self.refused.take().is_some() {
            info!("the session's epoch could be kept at last");
        }
    }

    /// No epoch could be taken.
    pub(super) fn failed(&mut self, now: Instant, reason: String) {
        self.failures += 1;
        match &self.refused {
            Some((_, known)) if *known == reason => debug!("still no session: {reason}"),
            _ => error!("responders are told nothing: {reason}; trying again"),
        }
        self.refused = Some((now + RETRY_INTERVAL, reason));
    }

    /// Takes in the epoch of the session in which the registry was published last.
    pub(super) fn settle(&mut self, now: Instant, published: impl FnOnce() -> u64) {
        let Stage::Waiting { session, until } = self.stage else { return };
        if published() >= session.epoch {
            self.stage = Stage::Settled;
        } else if now >= until {
            warn!("what clients registered is published later than what was found");
            self.stage = Stage::Settled;
        }
    }

    /// Whether a session has begun and what clients registered is not part of it yet.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting { .. })
    }

    /// Puts down what a sweep found, to be published as soon as it can.
    pub(super) fn offer(&mut self, plane: FabricPlane) {
        self.plane = Some(plane);
    }

    /// What is to be published now.
    pub(super) fn poll(&mut self) -> Option<FabricPlane> {
        self.plane.take_if(|_| self.stage == Stage::Settled)
    }

    /// When there is something to be done again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match (&self.stage, &self.refused) {
            (Stage::Waiting { until, .. }, _) => Some(*until),
            (Stage::Wanted, Some((due, _))) => Some(*due),
            (Stage::Wanted | Stage::Settled, _) => None,
        }
    }

    /// What an operator should know.
    pub(super) fn warning(&self) -> Option<String> {
        let (_, reason) = self.refused.as_ref()?;
        Some(format!(
            "responders are told nothing, and so queries find no answer or an old one: {reason}"
        ))
    }

    /// Whether an epoch is wanted and cannot be taken.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// How many times no epoch could be taken.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::Guid;

    const SESSION: Session = Session { epoch: 7, sm_guid: Guid(1) };

    fn wanted() -> (SessionState, Instant) {
        let mut session = SessionState::default();
        session.want();
        session.offer(FabricPlane::default());
        (session, Instant::now())
    }

    /// A state directory that was full at a takeover left a master without an SA until some port's
    /// link changed: nobody tried again.
    #[test]
    fn a_session_that_could_not_begin_is_tried_again_and_what_was_found_goes_out() {
        let (mut session, now) = wanted();
        assert!(session.is_due(now));
        session.begun(now, Err("no space left".into()));
        assert!(!session.is_due(now) && session.poll().is_none());
        assert!(session.warning().unwrap().contains("no space left"));
        let due = session.poll_timeout().unwrap();
        assert!(due > now && session.is_due(due));

        session.begun(due, Ok(SESSION));
        session.settle(due, || 7);
        assert!(session.poll().is_some() && session.poll().is_none());
        assert_eq!((session.warning(), session.failures()), (None, 1));
        assert_eq!(session.poll_timeout(), None);
    }

    #[test]
    fn the_first_snapshot_waits_for_the_registry_but_not_for_ever() {
        for (published, waited) in [(7, Duration::ZERO), (6, REGISTRY_PATIENCE)] {
            let (mut session, now) = wanted();
            session.begun(now, Ok(SESSION));
            session.settle(now, || 6);
            assert!(session.is_waiting() && session.poll().is_none());
            assert_eq!(session.poll_timeout(), Some(now + REGISTRY_PATIENCE));
            session.settle(now + waited, || published);
            assert!(!session.is_waiting() && session.poll().is_some());
        }
    }

    #[test]
    fn who_is_master_no_more_publishes_nothing_that_waited() {
        let (mut session, now) = wanted();
        session.begun(now, Err("no space left".into()));
        session.end();
        assert!(session.poll().is_none() && !session.is_due(now + RETRY_INTERVAL));
        assert_eq!((session.warning(), session.failures()), (None, 1));
    }
}

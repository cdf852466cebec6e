//! Hands the subnet over to a manager that follows our registry: writes wait until it has stored
//! everything, then it gets the handover.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::SmState;
use sa_proto::snapshot::{Session, Version};
use sa_proto::state::StateVersion;
use tracing::{info, warn};

use crate::observe::Responders;
use sm_core::sweep::{Phase, Sweeper};

/// How long writes wait for the follower.
const SEALED_MAX: Duration = Duration::from_secs(5);
/// How often the follower is checked meanwhile.
const INTERVAL: Duration = Duration::from_millis(5);
/// Delay before another attempt after one that failed; doubled for each further one.
const RETRY_DELAY: Duration = Duration::from_secs(10);
const RETRY_DOUBLINGS: u32 = 4;
/// How long a manager whose stream broke still counts as one that follows.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Managers remembered.
const FOLLOWERS_MAX: usize = 256;

/// A handover that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// Whether the other manager may have taken over nevertheless.
    pub(super) may_have_happened: bool,
}

/// What this SM has published, as master.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) session: Session,
    /// The version published last.
    pub(super) version: Version,
    /// The state besides the registry; `None` while a change of it is not published yet.
    pub(super) state: Option<StateVersion>,
    /// Whether all writes wait.
    pub(super) sealed: bool,
}

/// Followers, and the handover to one of them.
#[derive(Debug, Default)]
pub(super) struct PreparedHandover {
    /// Managers that follow, and when their stream was last seen.
    followers: BTreeMap<Guid, Instant>,
    stage: Stage,
    /// Failures in a row, and when the next attempt may begin.
    failures: u32,
    retry_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Writes wait until this follower has stored everything, but no longer than until this time.
    Sealed(Guid, Instant),
    /// This follower was offered the handover.
    Offered(Guid),
}

impl PreparedHandover {
    /// Whether writes wait.
    pub(super) fn holds_writes(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// When to call [`poll`](Self::poll) next.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        match self.stage {
            Stage::Idle => None,
            Stage::Sealed(..) | Stage::Offered(_) => Some(now + INTERVAL),
        }
    }

    /// GUIDs of the ports of managers that follow, or did until recently.
    pub(super) fn followers(&self) -> impl Iterator<Item = Guid> {
        self.followers.keys().copied()
    }

    /// Notes which managers follow.
    pub(super) fn follow(&mut self, now: Instant, sweeper: &mut Sweeper, responders: &Responders) {
        let before = self.followers.len();
        let mut is_new = false;
        for follower in responders.load().iter().filter_map(|entry| entry.follower) {
            if self.followers.len() < FOLLOWERS_MAX
                || self.followers.contains_key(&follower.sm_guid)
            {
                is_new |= self.followers.insert(follower.sm_guid, now).is_none();
            }
        }
        self.followers.retain(|_, seen| now < *seen + REMEMBERED);
        if is_new || self.followers.len() != before {
            sweeper.set_followers(self.followers.keys().copied().collect());
        }
        if sweeper.sm_state() != SmState::Master {
            (self.stage, self.failures, self.retry_at) = (Stage::Idle, 0, None);
        }
    }

    /// Performs due work, as master.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        responders: &Responders,
        ours: Published,
    ) -> Option<Failed> {
        let Published { session, version: published, state, sealed } = ours;
        let follower = |guid| responders.follower(guid);
        if self.stage == Stage::Idle {
            let guid = sweeper.handover_candidate()?;
            let is_ready = sweeper.phase() == Phase::Idle
                && published.session == session
                && state.is_some()
                && self.retry_at.is_none_or(|at| now >= at)
                && follower(guid).is_some_and(|follower| follower.in_step);
            if !is_ready {
                return None;
            }
            info!(
                "handover to {guid}: writes wait until it has stored all registrations, LIDs and \
                 M_Keys"
            );
            self.stage = Stage::Sealed(guid, now + SEALED_MAX);
        }
        match self.stage {
            Stage::Sealed(guid, until) => {
                let has_all = follower(guid).is_some_and(|follower| {
                    // A follower of an earlier release takes no state.
                    let has_state = follower.state.is_none_or(|stored| state == Some(stored));
                    follower.stored == Some(published.registry()) && has_state
                });
                if sealed && has_all && sweeper.hand_over_to(now, guid) {
                    self.stage = Stage::Offered(guid);
                } else if now >= until {
                    let wait = SEALED_MAX.as_secs();
                    return self.fail(now, guid, &format!("not ready within {wait} s"), false);
                }
            }
            Stage::Offered(guid) if sweeper.phase() != Phase::HandOver => {
                return self.fail(now, guid, "not acknowledged", true);
            }
            Stage::Offered(_) | Stage::Idle => {}
        }
        None
    }

    fn fail(
        &mut self,
        now: Instant,
        guid: Guid,
        reason: &str,
        may_have_happened: bool,
    ) -> Option<Failed> {
        let delay = RETRY_DELAY * (1 << self.failures.min(RETRY_DOUBLINGS));
        warn!(
            "handover to {guid} failed: {reason}; this SM stays master and retries in {} s",
            delay.as_secs()
        );
        self.failures += 1;
        self.retry_at = Some(now + delay);
        self.stage = Stage::Idle;
        Some(Failed { may_have_happened })
    }
}

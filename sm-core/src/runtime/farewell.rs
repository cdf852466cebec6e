//! When a run with `--once` ends: as soon as the subnet is another's ([`in_vain`]), or when it is up
//! and the responders have what was published ([`Farewell`]).
//!
//! Whoever waited for this subnet manager is connected by now, or tries again within a moment.

use std::time::{Duration, Instant};

use ib_mad::wire::attribute::SmState;
use tracing::{info, warn};

use super::{ONCE_ATTEMPTS, RunError};

/// How long responders may take to connect, if none has.
const CONNECTING: Duration = Duration::from_secs(1);
/// How long those that are connected may take to serve what was published.
const SERVING: Duration = Duration::from_secs(5);
/// How often to look.
const INTERVAL: Duration = Duration::from_millis(20);

/// The last moments of a run.
#[derive(Debug)]
pub(super) struct Farewell {
    began: Instant,
    due: Instant,
    told: bool,
}

impl Farewell {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, due: now, told: false }
    }

    /// When [`is_over`](Self::is_over) is to be asked next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Whether nothing is left to wait for, with so many responders connected, and so many of them
    /// that do not serve what was published last.
    pub(super) fn is_over(&mut self, now: Instant, connected: usize, behind: usize) -> bool {
        let elapsed = now.saturating_duration_since(self.began);
        self.due = now + INTERVAL;
        match (connected, behind) {
            (0, _) => elapsed >= CONNECTING,
            (_, 0) => true,
            _ if elapsed >= SERVING => {
                warn!("{behind} of {connected} responder(s) do not serve yet; ending all the same");
                true
            }
            _ => {
                if !std::mem::replace(&mut self.told, true) {
                    info!("waiting for {behind} of {connected} responder(s) to serve the subnet");
                }
                false
            }
        }
    }
}

/// Why a run with `--once` whose sweep came through has brought nothing up: its own port got no LID
/// there, or nobody answers behind its link, so that nobody could use the subnet.
pub(super) fn nothing_up(has_lid: bool, found: usize, unanswered: usize) -> Option<RunError> {
    let nobody = found <= 1 && unanswered > 0;
    (!has_lid || nobody).then_some(RunError::NothingUp)
}

/// Why a run with `--once` has nothing left to wait for in this state: whoever is not to be master
/// would stand by until the master goes. `master` is where that one is, if it is known; `fruitless`
/// how many sweeps in a row could not read the fabric.
pub(super) fn in_vain(state: SmState, master: Option<String>, fruitless: u32) -> Option<RunError> {
    match state {
        SmState::Discovering | SmState::Master => {
            (fruitless >= ONCE_ATTEMPTS).then_some(RunError::NotUp)
        }
        SmState::NotActive => Some(RunError::Disabled),
        SmState::Standby => {
            Some(RunError::NotMaster { at: master.unwrap_or_else(|| "an unknown port".into()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It used to stand by, and so to poll the master for ever.
    #[test]
    fn beside_a_master_a_run_ends_and_says_who_that_is() {
        assert!(in_vain(SmState::Discovering, None, 0).is_none());
        assert!(in_vain(SmState::Master, None, ONCE_ATTEMPTS - 1).is_none());
        let reason = in_vain(SmState::Standby, Some("'node1 HCA-1' port 1".into()), 0).unwrap();
        let text = reason.to_string();
        assert!(text.starts_with("another subnet manager comes before us, at 'node1"), "{text}");
        assert!(matches!(in_vain(SmState::NotActive, None, 0), Some(RunError::Disabled)));
    }

    /// Behind a switch with a foreign M_Key it said SUBNET UP, with status 0.
    #[test]
    fn a_subnet_of_the_own_port_alone_is_not_up_if_there_is_somebody_behind_it() {
        assert!(matches!(nothing_up(false, 1, 0), Some(RunError::NothingUp)));
        assert!(matches!(nothing_up(true, 1, 1), Some(RunError::NothingUp)));
        assert!(nothing_up(true, 2, 1).is_none(), "somebody answers");
        assert!(nothing_up(true, 1, 0).is_none(), "nobody is there");
    }

    /// With its own port down it waited for ever, too.
    #[test]
    fn a_fabric_that_cannot_be_read_is_given_up() {
        let reason = in_vain(SmState::Discovering, None, ONCE_ATTEMPTS);
        assert!(matches!(reason, Some(RunError::NotUp)));
    }

    #[test]
    fn a_run_ends_when_all_responders_serve_or_took_too_long() {
        let now = Instant::now();
        let mut farewell = Farewell::new(now);
        assert!(!farewell.is_over(now, 2, 2));
        assert!(!farewell.is_over(now + CONNECTING, 2, 1), "one is not enough");
        assert!(farewell.is_over(now + CONNECTING, 2, 0));
        assert!(farewell.is_over(now + SERVING, 2, 1));
    }

    #[test]
    fn without_responders_it_ends_in_a_moment() {
        let now = Instant::now();
        let mut farewell = Farewell::new(now);
        assert!(!farewell.is_over(now, 0, 0));
        assert!(farewell.is_over(now + CONNECTING, 0, 0));
    }
}

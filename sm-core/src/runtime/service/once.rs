//! When a run with `--once` ends: as soon as the subnet is another's, or when it is up and the
//! responders have what was published. Deciding only.
//!
//! Whoever waited for this subnet manager is connected by now, or tries again within a moment.

use std::time::{Duration, Instant};

use ib_mad::wire::attribute::SmState;
use tracing::{info, warn};

use crate::runtime::{ONCE_ATTEMPTS, RunError};

/// How long responders may take to connect, if none has.
const CONNECTING: Duration = Duration::from_secs(1);
/// How long those that are connected may take to serve what was published.
const SERVING: Duration = Duration::from_secs(5);
/// How often to look.
const INTERVAL: Duration = Duration::from_millis(20);

/// A run with `--once`.
#[derive(Debug, Default)]
pub(super) struct Once {
    /// Sweeps that found nobody but us.
    empty: u32,
    /// What is waited for once the subnet is up.
    serving: Option<AwaitServing>,
}

/// What a sweep came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swept {
    /// Whether it programmed the subnet, but for errors.
    pub(super) up: bool,
    /// Sweeps with errors in a row, this one among them.
    pub(super) failed_in_a_row: u32,
    /// Whether our own port has a LID.
    pub(super) has_lid: bool,
    /// Nodes found, ours among them.
    pub(super) found: usize,
    /// Links behind which nobody answered.
    pub(super) unanswered: usize,
}

/// What follows from that.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing.
    GoOn,
    /// Another heavy sweep.
    Sweep,
    /// The end of the run.
    End(RunError),
}

impl Once {
    /// What follows from a sweep.
    pub(super) fn after_sweep(&mut self, now: Instant, swept: Swept) -> Next {
        let Swept { up, failed_in_a_row, has_lid, found, unanswered } = swept;
        let has_failed = failed_in_a_row >= ONCE_ATTEMPTS;
        if let Some(reason) = nothing_up(has_lid, found, unanswered).filter(|_| up) {
            // Who is silent for a moment answers one of the sweeps that follow.
            self.empty += 1;
            return if self.empty >= ONCE_ATTEMPTS { Next::End(reason) } else { Next::Sweep };
        }
        // What is faulty after so many sweeps stays so.
        if failed_in_a_row == 0 || has_failed && up {
            self.serving.get_or_insert_with(|| AwaitServing::new(now));
        } else if has_failed {
            return Next::End(RunError::NotUp);
        }
        Next::GoOn
    }

    /// Whether the subnet has come up, and responders are waited for.
    pub(super) fn is_up(&self) -> bool {
        self.serving.is_some()
    }

    /// Whether nothing is left to wait for. `responders` tells how many are connected, and how many of
    /// them do not serve what was published last.
    pub(super) fn is_over(
        &mut self,
        now: Instant,
        responders: impl FnOnce() -> (usize, usize),
    ) -> bool {
        self.serving.as_mut().is_some_and(|serving| {
            now >= serving.due && {
                let (connected, behind) = responders();
                serving.is_over(now, connected, behind)
            }
        })
    }

    /// When [`is_over`](Self::is_over) is to be asked next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.serving.as_ref().map(|serving| serving.due)
    }
}

/// The wait for responders to serve the subnet.
#[derive(Debug)]
struct AwaitServing {
    began: Instant,
    due: Instant,
    told: bool,
}

impl AwaitServing {
    fn new(now: Instant) -> Self {
        Self { began: now, due: now, told: false }
    }

    /// Whether nothing is left to wait for, with so many responders connected, and so many of them
    /// that do not serve what was published last.
    fn is_over(&mut self, now: Instant, connected: usize, behind: usize) -> bool {
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
fn nothing_up(has_lid: bool, found: usize, unanswered: usize) -> Option<RunError> {
    let nobody = found <= 1 && unanswered > 0;
    (!has_lid || nobody).then_some(RunError::NothingUp)
}

/// Why a run with `--once` has nothing left to wait for in this state: whoever is not to be master
/// would stand by until the master goes. `master` is where that one is, if it is known; `given_up`
/// how many sweeps in a row could not read the fabric.
pub(super) fn in_vain(state: SmState, master: Option<String>, given_up: u32) -> Option<RunError> {
    match state {
        SmState::Discovering | SmState::Master => {
            (given_up >= ONCE_ATTEMPTS).then_some(RunError::NotUp)
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
        assert!(text.starts_with("another subnet manager is master, at 'node1"), "{text}");
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
        let mut serving = AwaitServing::new(now);
        assert!(!serving.is_over(now, 2, 2));
        assert!(!serving.is_over(now + CONNECTING, 2, 1), "one is not enough");
        assert!(serving.is_over(now + CONNECTING, 2, 0));
        assert!(serving.is_over(now + SERVING, 2, 1));
    }

    #[test]
    fn without_responders_it_ends_in_a_moment() {
        let now = Instant::now();
        let mut serving = AwaitServing::new(now);
        assert!(!serving.is_over(now, 0, 0));
        assert!(serving.is_over(now + CONNECTING, 0, 0));
    }

    /// A sweep that came through with `failed` errors in a row.
    fn swept(up: bool, failed_in_a_row: u32) -> Swept {
        Swept { up, failed_in_a_row, has_lid: true, found: 9, unanswered: 0 }
    }

    #[test]
    fn a_sweep_without_errors_ends_a_run_and_so_do_faults_that_stay() {
        for (failed, is_up) in [(0, true), (1, false), (ONCE_ATTEMPTS, true)] {
            let mut once = Once::default();
            let next = once.after_sweep(Instant::now(), swept(true, failed));
            assert!(matches!(next, Next::GoOn), "{failed} failed");
            assert_eq!(once.is_up(), is_up, "{failed} failed");
        }
        let mut once = Once::default();
        let next = once.after_sweep(Instant::now(), swept(false, ONCE_ATTEMPTS));
        assert!(matches!(next, Next::End(RunError::NotUp)) && !once.is_up());
    }

    #[test]
    fn a_port_that_finds_nobody_is_given_up_after_some_sweeps() {
        let (mut once, now) = (Once::default(), Instant::now());
        let alone = Swept { found: 1, unanswered: 1, ..swept(true, 0) };
        for _ in 1..ONCE_ATTEMPTS {
            assert!(matches!(once.after_sweep(now, alone), Next::Sweep));
        }
        assert!(matches!(once.after_sweep(now, alone), Next::End(RunError::NothingUp)));
        assert!(!once.is_over(now, || (0, 0)) && once.poll_timeout().is_none());
    }
}

//! When a run with `--once` ends: as soon as another subnet manager is master, or when the subnet
//! is up and the responders serve the published snapshot.
//!
//! A responder that waited for this subnet manager is connected by then, or retries in a moment.

use std::time::{Duration, Instant};

use ib_mad::wire::attribute::SmState;
use tracing::{info, warn};

use super::NodeError;
use super::error::ONCE_ATTEMPTS;

/// How long responders may take to connect, if none has.
const CONNECTING: Duration = Duration::from_secs(1);
/// How long those that are connected may take to serve the published snapshot.
const SERVING: Duration = Duration::from_secs(5);
/// How often to check.
const INTERVAL: Duration = Duration::from_millis(20);

/// A run with `--once`.
#[derive(Debug, Default)]
pub(super) struct Once {
    /// Sweeps that found only the own port.
    empty: u32,
    /// The wait for responders once the subnet is up.
    serving: Option<AwaitServing>,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swept {
    /// Whether it configured the subnet, except for errors.
    pub(super) up: bool,
    /// Sweeps with errors in a row, this one among them.
    pub(super) failed_in_a_row: u32,
    /// Whether our own port has a LID.
    pub(super) has_lid: bool,
    /// Nodes found, including the SM's own.
    pub(super) found: usize,
    /// Links behind which no node answered.
    pub(super) unanswered: usize,
}

/// The consequence of a sweep.
#[derive(Debug)]
pub(super) enum Next {
    /// Continue the run.
    GoOn,
    /// Another heavy sweep.
    Sweep,
    /// The end of the run.
    End(NodeError),
}

impl Once {
    /// The consequence of a sweep.
    pub(super) fn after_sweep(&mut self, now: Instant, swept: Swept) -> Next {
        let Swept { up, failed_in_a_row, has_lid, found, unanswered } = swept;
        let has_failed = failed_in_a_row >= ONCE_ATTEMPTS;
        if let Some(reason) = nothing_up(has_lid, found, unanswered).filter(|_| up) {
            // A node that is silent for a moment answers one of the next sweeps.
            self.empty += 1;
            return if self.empty >= ONCE_ATTEMPTS { Next::End(reason) } else { Next::Sweep };
        }
        // Faults that last for so many sweeps are permanent.
        if failed_in_a_row == 0 || has_failed && up {
            self.serving.get_or_insert_with(|| AwaitServing::new(now));
        } else if has_failed {
            return Next::End(NodeError::NotUp);
        }
        Next::GoOn
    }

    /// Whether the subnet has come up, and only responders are waited for.
    pub(super) fn is_up(&self) -> bool {
        self.serving.is_some()
    }

    /// Whether nothing is left to wait for. `responders` yields how many are connected, and how
    /// many of them do not serve the snapshot published last.
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

    /// When to call [`is_over`](Self::is_over) next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.serving.as_ref().map(|serving| serving.due)
    }
}

/// The wait for responders to serve the subnet.
#[derive(Debug)]
struct AwaitServing {
    began: Instant,
    due: Instant,
    logged: bool,
}

impl AwaitServing {
    fn new(now: Instant) -> Self {
        Self { began: now, due: now, logged: false }
    }

    /// Whether nothing is left to wait for, with so many responders connected, and so many of them
    /// that do not serve the snapshot published last.
    fn is_over(&mut self, now: Instant, connected: usize, behind: usize) -> bool {
        let elapsed = now.saturating_duration_since(self.began);
        self.due = now + INTERVAL;
        match (connected, behind) {
            (0, _) => elapsed >= CONNECTING,
            (_, 0) => true,
            _ if elapsed >= SERVING => {
                warn!(
                    "{behind} of {connected} responder(s) do not serve the current snapshot \
                     yet; exiting"
                );
                true
            }
            _ => {
                if !std::mem::replace(&mut self.logged, true) {
                    info!(
                        "waiting for {behind} of {connected} responder(s) to serve the current \
                         snapshot"
                    );
                }
                false
            }
        }
    }
}

/// Why a subnet is not up although the sweep succeeded: the own port got no LID, or no node
/// answers behind its link.
fn nothing_up(has_lid: bool, found: usize, unanswered: usize) -> Option<NodeError> {
    let is_alone = found <= 1 && unanswered > 0;
    (!has_lid || is_alone).then_some(NodeError::NothingUp)
}

/// Why a run with `--once` ends in this state: a standby would wait until the master ends.
/// `master` is the port of the master, if it is known; `given_up` the number of sweeps in a row
/// that could not read the fabric.
pub(super) fn in_vain(state: SmState, master: Option<String>, given_up: u32) -> Option<NodeError> {
    match state {
        SmState::Discovering | SmState::Master => {
            (given_up >= ONCE_ATTEMPTS).then_some(NodeError::NotUp)
        }
        SmState::NotActive => Some(NodeError::Disabled),
        SmState::Standby => {
            Some(NodeError::NotMaster { at: master.unwrap_or_else(|| "an unknown port".into()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with -o, a manager that found another master stood by and polled it
    /// indefinitely.
    #[test]
    fn beside_a_master_a_run_ends_and_names_it() {
        assert!(in_vain(SmState::Discovering, None, 0).is_none());
        assert!(in_vain(SmState::Master, None, ONCE_ATTEMPTS - 1).is_none());
        let reason = in_vain(SmState::Standby, Some("'node1 HCA-1' port 1".into()), 0).unwrap();
        let text = reason.to_string();
        assert!(text.starts_with("another subnet manager is master, at 'node1"), "{text}");
        assert!(matches!(in_vain(SmState::NotActive, None, 0), Some(NodeError::Disabled)));
    }

    /// Regression: with -o, behind a switch with a foreign M_Key, the program logged SUBNET UP and
    /// ended with status 0.
    #[test]
    fn a_subnet_of_the_own_port_alone_is_not_up_if_there_is_a_silent_node_behind_it() {
        assert!(matches!(nothing_up(false, 1, 0), Some(NodeError::NothingUp)));
        assert!(matches!(nothing_up(true, 1, 1), Some(NodeError::NothingUp)));
        assert!(nothing_up(true, 2, 1).is_none(), "a node answers");
        assert!(nothing_up(true, 1, 0).is_none(), "there is no other node");
    }

    /// Regression: with -o and its own port down, the program waited indefinitely.
    #[test]
    fn a_fabric_that_cannot_be_read_is_given_up() {
        let reason = in_vain(SmState::Discovering, None, ONCE_ATTEMPTS);
        assert!(matches!(reason, Some(NodeError::NotUp)));
        assert!(matches!(reason.map(|reason| reason.or_m_key(true)), Some(NodeError::MKey)));
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
        assert!(matches!(next, Next::End(NodeError::NotUp)) && !once.is_up());
    }

    #[test]
    fn a_port_that_finds_no_other_node_is_given_up_after_some_sweeps() {
        let (mut once, now) = (Once::default(), Instant::now());
        let alone = Swept { found: 1, unanswered: 1, ..swept(true, 0) };
        for _ in 1..ONCE_ATTEMPTS {
            assert!(matches!(once.after_sweep(now, alone), Next::Sweep));
        }
        assert!(matches!(once.after_sweep(now, alone), Next::End(NodeError::NothingUp)));
        assert!(!once.is_over(now, || (0, 0)) && once.poll_timeout().is_none());
    }
}

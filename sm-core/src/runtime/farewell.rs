//! How long `--once` stays when the subnet is up: until the responders have what was published.
//!
//! Whoever waited for this subnet manager is connected by now, or tries again within a moment.

use std::time::{Duration, Instant};

use tracing::{info, warn};

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

#[cfg(test)]
mod tests {
    use super::*;

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

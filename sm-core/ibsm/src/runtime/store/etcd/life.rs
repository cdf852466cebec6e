//! Whether the threads work for which the fence is held. A process in which one of them hangs must
//! not keep the fence from the manager that has replaced it in the fabric.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Threads that give no sign of life for so long count as hanging. A turn of the service loop takes
/// less than a tenth of a second at 10,000 hosts.
const HANG_TIME: Duration = Duration::from_secs(4);

/// Counts signs of life.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// A sign of life.
    pub(super) fn beat(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Watches a pulse. One that never beat belongs to a store without such threads, and is not
/// expected to.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pulse: Pulse,
    seen: u64,
    since: Instant,
}

impl Life {
    pub(super) fn new(pulse: Pulse) -> Self {
        Self { pulse, seen: 0, since: Instant::now() }
    }

    /// Whether the pulse has beaten in the last [`HANG_TIME`]. To be asked several times in it.
    pub(super) fn is_there(&mut self) -> bool {
        let seen = self.pulse.0.load(Relaxed);
        if seen != self.seen {
            (self.seen, self.since) = (seen, Instant::now());
        }
        seen == 0 || self.since.elapsed() < HANG_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pulse_that_stops_counts_as_a_hang_until_it_beats_again() {
        let pulse = Pulse::default();
        let mut life = Life::new(pulse.clone());
        let second = Duration::from_secs(1);
        tokio::time::advance(HANG_TIME * 2).await;
        assert!(life.is_there(), "it has not begun");
        for _ in 0..9 {
            pulse.beat();
            tokio::time::advance(second).await;
            assert!(life.is_there());
        }
        tokio::time::advance(HANG_TIME).await;
        assert!(!life.is_there());
        pulse.beat();
        assert!(life.is_there());
    }
}

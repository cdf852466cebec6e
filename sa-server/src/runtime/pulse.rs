//! Whether all threads that answer queries still turn, for the service manager's watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use daemon::manager::Watchdog;

/// How often a worker's loop shows that it turns.
pub(super) const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A worker's end: it counts the turns of its loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Called by the worker's own loop only.
    pub(super) fn beat(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Feeds the watchdog while the main loop and every worker turn.
#[derive(Debug)]
pub(super) struct Vigil {
    watchdog: Watchdog,
    workers: Vec<Worker>,
    /// Whether a standstill is reported.
    is_reported: bool,
}

#[derive(Debug)]
struct Worker {
    name: String,
    pulse: Pulse,
    /// Its count when it was last seen to differ.
    last: u64,
    /// Whether it has turned since the watchdog was fed.
    has_turned: bool,
}

impl Vigil {
    /// Watches these workers, by name.
    pub(super) fn new(watchdog: Watchdog, workers: Vec<(String, Pulse)>) -> Self {
        // A worker that was just started counts as turning.
        let worker = |(name, pulse)| Worker { name, pulse, last: 0, has_turned: true };
        Self { watchdog, workers: workers.into_iter().map(worker).collect(), is_reported: false }
    }

    /// How often to [look](Self::look).
    pub(super) fn interval(&self) -> Duration {
        (self.watchdog.interval() / 2).max(Duration::from_millis(10))
    }

    /// Feeds the watchdog if it is due and each worker has turned since it was last fed. Returns
    /// the workers that have not, once.
    pub(super) fn look(&mut self, now: Instant) -> Option<String> {
        for worker in &mut self.workers {
            let count = worker.pulse.0.load(Relaxed);
            worker.has_turned |= count != worker.last;
            worker.last = count;
        }
        if now < self.watchdog.due() {
            return None;
        }
        let still = self.workers.iter().filter(|worker| !worker.has_turned);
        let still: Vec<&str> = still.map(|worker| &worker.name[..]).collect();
        if still.is_empty() {
            self.watchdog.turn(now);
            self.workers.iter_mut().for_each(|worker| worker.has_turned = false);
            self.is_reported = false;
            return None;
        }
        (!std::mem::replace(&mut self.is_reported, true)).then(|| still.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use daemon::manager::ServiceManager;

    use super::*;

    #[test]
    fn the_watchdog_is_fed_while_every_worker_turns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager =
            ServiceManager::of_variables(path.as_os_str(), Some("30000000"), None, 1).unwrap();
        let start = Instant::now();
        let watchdog = Watchdog::of(Some(&manager), start).unwrap();
        let (one, other) = (Pulse::default(), Pulse::default());
        let workers = vec![("umad".to_owned(), one.clone()), ("udp-0".to_owned(), other.clone())];
        let mut vigil = Vigil::new(watchdog, workers);
        let mut look = |seconds| {
            let still = vigil.look(start + Duration::from_secs(seconds));
            (still, socket.recv(&mut [0; 100]).is_ok())
        };
        assert_eq!(look(0), (None, true), "they have just been started");
        one.beat();
        other.beat();
        assert_eq!(look(5), (None, false), "not due yet");
        assert_eq!(look(10), (None, true), "both have turned since second 0");
        one.beat();
        assert_eq!(look(20), (Some("udp-0".to_owned()), false));
        assert_eq!(look(25), (None, false), "reported once");
        other.beat();
        assert_eq!(look(26), (None, true));
    }
}

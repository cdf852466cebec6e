//! Virtual time, and the clocks of hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ibsm::clock::Clock;
use sm_core::registry::HostTime;

/// How far virtual time lies ahead of the real clock, so that instants that a state machine takes
/// from the real clock when it is created are always earlier: they then have no effect.
const AHEAD: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// The time of day at the beginning of a run, seconds since 1970.
const BEGAN_S: u64 = 1_790_000_000;

/// Time that advances on request only.
#[derive(Debug)]
pub struct Timeline {
    origin: Instant,
    elapsed_ns: AtomicU64,
}

impl Timeline {
    /// Time zero. The instant that stands for it differs from run to run, but only differences of
    /// instants matter.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { origin: Instant::now() + AHEAD, elapsed_ns: AtomicU64::new(0) })
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns.load(Relaxed))
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.origin + self.elapsed()
    }

    /// The first multiple of `tick` since time zero that is not before `at`.
    pub fn tick_from(&self, at: Instant, tick: Duration) -> Instant {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        let rest = (since.next_multiple_of(tick.as_nanos().max(1)) - since) as u64;
        at + Duration::from_nanos(rest)
    }

    /// Advances to `at`; never back.
    pub fn advance_to(&self, at: Instant) {
        let elapsed_ns = at.saturating_duration_since(self.origin).as_nanos() as u64;
        self.elapsed_ns.fetch_max(elapsed_ns, Relaxed);
    }
}

/// The clocks of a host.
#[derive(Debug)]
pub struct HostClock {
    timeline: Arc<Timeline>,
    /// Identity of its boot, and when that was.
    boot: u128,
    booted_ns: AtomicU64,
    boots: AtomicU64,
    /// Error of its time of day.
    wall_error_s: AtomicI64,
    /// How far the time of its process is ahead, which was stopped within a step of the simulation.
    ahead_ns: AtomicU64,
}

impl HostClock {
    /// The clocks of the host with this number.
    pub fn new(timeline: Arc<Timeline>, host: u64) -> Arc<Self> {
        Arc::new(Self {
            timeline,
            boot: u128::from(host + 1) << 64,
            booted_ns: AtomicU64::new(0),
            boots: AtomicU64::new(1),
            wall_error_s: AtomicI64::new(0),
            ahead_ns: AtomicU64::new(0),
        })
    }

    /// The host boots.
    pub fn reboot(&self) {
        self.boots.fetch_add(1, Relaxed);
        self.booted_ns.store(self.timeline.elapsed().as_nanos() as u64, Relaxed);
    }

    /// Sets how far the time of its process is ahead of virtual time.
    pub fn set_ahead(&self, time: Duration) {
        self.ahead_ns.store(time.as_nanos() as u64, Relaxed);
    }

    fn ahead(&self) -> Duration {
        Duration::from_nanos(self.ahead_ns.load(Relaxed))
    }

    /// Sets the time of day wrong by so many seconds.
    pub fn set_wall_error(&self, seconds: i64) {
        self.wall_error_s.store(seconds, Relaxed);
    }
}

impl Clock for HostClock {
    fn now(&self) -> Instant {
        self.timeline.now() + self.ahead()
    }

    fn host(&self) -> HostTime {
        let elapsed = self.timeline.elapsed() + self.ahead();
        let booted = Duration::from_nanos(self.booted_ns.load(Relaxed));
        let began_s = BEGAN_S.saturating_add_signed(self.wall_error_s.load(Relaxed));
        HostTime {
            boot: self.boot | u128::from(self.boots.load(Relaxed)),
            since_boot: elapsed.saturating_sub(booted),
            wall: Duration::from_secs(began_s) + elapsed,
        }
    }
}

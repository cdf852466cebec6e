//! Registry time: the clock of leases, and of how long outcomes are kept.
//!
//! It belongs to the registry, not to the host that runs it. It begins as the time since 1970 of
//! the first host, and from then on only advances: within a boot with the host's time since boot,
//! even if its wall clock is set; from one boot to the next with the wall clock. A standby
//! continues the time of the master that it followed. The caller reads the host's clocks, and
//! stores a [`Stamp`] with the rows.

use std::time::Duration;

/// The longest time that counts as having passed between two boots. A longer one is taken for a
/// wrong wall clock.
pub const GAP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Clocks of a host, read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTime {
    /// Identity of the boot; 0 if it is unknown.
    pub boot: u128,
    /// Time since the boot, including time in which the host was suspended.
    pub since_boot: Duration,
    /// Wall clock: time since 1970.
    pub wall: Duration,
}

/// Registry time at a moment of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Registry time.
    pub time: Duration,
    /// Clocks of the host.
    pub host: HostTime,
}

/// The registry's clock.
#[derive(Clone, Copy, Debug)]
pub struct RegistryClock {
    /// A moment of the current boot.
    anchor: Stamp,
}

impl RegistryClock {
    /// Continues from the stamp that was stored last; without one, from the host's wall clock. A
    /// stamp of the same boot may be later than `now`: another process has stored it since.
    pub fn new(now: HostTime, stored: Option<Stamp>) -> Self {
        let Some(stored) = stored else {
            return Self { anchor: Stamp { time: now.wall, host: now } };
        };
        if now.boot != 0 && now.boot == stored.host.boot {
            return Self { anchor: stored };
        }
        let passed = now.wall.saturating_sub(stored.host.wall).min(GAP_MAX);
        Self { anchor: Stamp { time: stored.time + passed, host: now } }
    }

    /// The stamp of this moment. Between two moments of a boot its time does not decrease.
    pub fn stamp(&self, now: HostTime) -> Stamp {
        let passed = now.since_boot.saturating_sub(self.anchor.host.since_boot);
        Stamp { time: self.anchor.time + passed, host: now }
    }

    /// Continues the time of another registry, whose rows replace ours. `now` is read after `time`
    /// was received: this registry's time may be late, but does not run ahead.
    pub fn follow(&mut self, now: HostTime, time: Duration) {
        self.anchor = Stamp { time, host: now };
    }

    /// Continues from `time` if this registry's time is earlier: something was decided at `time`
    /// after the last stamp was stored.
    pub fn catch_up(&mut self, now: HostTime, time: Duration) {
        if self.stamp(now).time < time {
            self.follow(now, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn host(boot: u128, since_boot_s: u64, wall_s: u64) -> HostTime {
        let (since_boot, wall) = (Duration::from_secs(since_boot_s), Duration::from_secs(wall_s));
        HostTime { boot, since_boot, wall }
    }

    fn restarted(at: HostTime, stored: Stamp) -> u64 {
        RegistryClock::new(at, Some(stored)).stamp(at).time.as_secs()
    }

    #[test]
    fn a_step_of_the_wall_clock_changes_nothing_within_a_boot() {
        let clock = RegistryClock::new(host(1, 100, 5_000), None);
        let stored = clock.stamp(host(1, 130, 9_000));
        assert_eq!(stored.time.as_secs(), 5_030);
        for wall_s in [0, 1_400, 5_060, 90_000] {
            assert_eq!(restarted(host(1, 160, wall_s), stored), 5_060);
        }
    }

    /// Regression: a manager that read the store while another one on its host wrote was ahead by
    /// the time that it took to read: leases ended early.
    #[test]
    fn a_stamp_that_is_later_than_the_start_does_not_put_the_clock_ahead() {
        let stored = RegistryClock::new(host(1, 100, 5_000), None).stamp(host(1, 130, 5_030));
        let clock = RegistryClock::new(host(1, 120, 5_020), Some(stored));
        for since_boot_s in [120, 130] {
            assert_eq!(
                clock.stamp(host(1, since_boot_s, 0)),
                Stamp { host: host(1, since_boot_s, 0), ..stored }
            );
        }
        assert_eq!(clock.stamp(host(1, 140, 0)).time.as_secs(), 5_040);
    }

    #[test]
    fn between_boots_the_wall_clock_counts_within_bounds() {
        let stored = RegistryClock::new(host(1, 100, 5_000), None).stamp(host(1, 130, 5_030));
        assert_eq!(restarted(host(2, 10, 5_100), stored), 5_100);
        assert_eq!(restarted(host(2, 10, 1_000), stored), 5_030, "a clock that was set back");
        let gap_s = GAP_MAX.as_secs();
        assert_eq!(restarted(host(2, 10, 5_030 + 2 * gap_s), stored), 5_030 + gap_s);
        let unknown = Stamp { host: HostTime { boot: 0, ..stored.host }, ..stored };
        assert_eq!(restarted(host(0, 900, 5_040), unknown), 5_040, "the boot is unknown");
    }

    #[test]
    fn the_time_of_another_registry_is_continued() {
        let mut clock = RegistryClock::new(host(1, 100, 5_000), None);
        clock.follow(host(1, 200, 5_100), Duration::from_secs(1_500));
        let stored = clock.stamp(host(1, 203, 5_103));
        assert_eq!(stored.time.as_secs(), 1_503);
        assert_eq!(restarted(host(1, 210, 9_999), stored), 1_510);
    }

    #[test]
    fn time_does_not_stay_behind_what_was_decided_and_never_goes_back() {
        let stored = RegistryClock::new(host(1, 100, 5_000), None).stamp(host(1, 130, 5_030));
        let now = host(2, 10, 1_000);
        let mut clock = RegistryClock::new(now, Some(stored));
        for (decided_s, expected_s) in [(5_031, 5_031), (5_020, 5_031), (5_033, 5_033)] {
            clock.catch_up(now, Duration::from_secs(decided_s));
            assert_eq!(clock.stamp(now).time.as_secs(), expected_s);
        }
    }

    proptest! {
        /// Runs, restarts and boots, with wall clocks set to random times.
        #[test]
        fn stored_time_never_decreases(
            steps in vec((any::<bool>(), any::<bool>(), 0..100_u64, any::<u32>()), 1..40),
        ) {
            let mut now = host(1, 50, 1_000_000);
            let mut clock = RegistryClock::new(now, None);
            let mut stored = clock.stamp(now);
            for (boots, restarts, passed, wall) in steps {
                if boots {
                    now = HostTime { boot: now.boot + 1, since_boot: Duration::ZERO, ..now };
                }
                now.since_boot += Duration::from_secs(passed);
                now.wall = Duration::from_secs(wall.into());
                if boots || restarts {
                    clock = RegistryClock::new(now, Some(stored));
                }
                let next = clock.stamp(now);
                prop_assert!(next.time >= stored.time);
                if !boots {
                    prop_assert_eq!(next.time, stored.time + Duration::from_secs(passed));
                }
                stored = next;
            }
        }
    }
}

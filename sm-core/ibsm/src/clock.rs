//! The clocks that the publisher and the registry read: those of the host, or of a simulation.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use sm_core::registry::HostTime;
use tracing::warn;

/// Where Linux shows the identity of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The time of day of this host, milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Where a program takes the time from.
pub trait Clock: Send + Sync {
    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// The clocks that registry time follows: those that go on over restarts.
    fn host(&self) -> HostTime;

    /// The time of day.
    fn time_of_day(&self) -> SystemTime {
        UNIX_EPOCH + self.host().wall
    }
}

/// The host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    boot: u128,
}

impl HostClock {
    /// The clocks of this host.
    pub fn open() -> Self {
        let boot = fs::read_to_string(BOOT_ID).ok().and_then(|text| parse(&text));
        if boot.is_none() {
            warn!(
                "cannot read {BOOT_ID}; after a restart of this program leases follow the wall \
                 clock"
            );
        }
        Self { boot: boot.unwrap_or(0) }
    }
}

impl Clock for HostClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn host(&self) -> HostTime {
        let since_boot = clock_gettime(ClockId::Boottime);
        HostTime {
            boot: self.boot,
            since_boot: Duration::new(since_boot.tv_sec as u64, since_boot.tv_nsec as u32),
            wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    fn time_of_day(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A UUID as text.
fn parse(text: &str) -> Option<u128> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_boot_and_its_time_advances() {
        let clock = HostClock::open();
        let (first, second) = (clock.host(), clock.host());
        assert_ne!(first.boot, 0);
        assert!(first.since_boot > Duration::ZERO && second.since_boot >= first.since_boot);
        assert_eq!(parse("00000000-0000-0000-0000-0000000000ff\n"), Some(255));
        assert_eq!(parse("none"), None);
    }
}

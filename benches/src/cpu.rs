//! CPU time: of this process while it runs, and of the machine during a benchmark.

use std::fs;
use std::time::Duration;

/// The CPU time of all threads of this process.
pub fn process_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes to it alone.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPU time of the calling thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes to it alone.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures the CPU time of this process in laps. Unlike wall time it does not grow while other
/// processes use the CPU.
pub struct ProcessClock {
    last: Duration,
}

impl ProcessClock {
    /// Begins the first lap.
    pub fn start() -> Self {
        Self { last: process_time() }
    }

    /// Ends a lap and begins the next.
    pub fn lap(&mut self) -> Duration {
        let now = process_time();
        let lap = now - self.last;
        self.last = now;
        lap
    }

    /// The cost of one reading, which is part of every lap.
    pub fn overhead() -> Duration {
        const READINGS: u32 = 10_000;
        let mut clock = Self::start();
        let start = clock.last;
        for _ in 0..READINGS {
            clock.lap();
        }
        (clock.last - start) / READINGS
    }
}

/// The machine's load as `uptime` prints it, to be recorded with a figure.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Binds the calling thread to one core, if that core exists and may be used.
pub fn pin_to_core(core: usize) {
    // SAFETY: all-zero is an empty set, `core` is checked by CPU_SET's own bound, and the call only
    // reads the set. On failure the thread stays where it was.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

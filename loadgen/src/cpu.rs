//! CPU use of a thread and time it waited for a core, which show whether the load generator limited
//! the measurement.

use std::time::{Duration, Instant};

/// Above this share of time busy or waiting for a core, the thread may be the limit.
const BUSY: f64 = 0.9;
/// Size of a CPU set.
const CORES_MAX: usize = libc::CPU_SETSIZE as usize;

/// Measures the thread that creates it.
pub struct Meter {
    start: Instant,
    used: Duration,
    starved: Duration,
}

/// How a thread spent its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Share of the time that it ran, 0 to 1.
    pub cpu: f64,
    /// Share of the time that it was runnable without a core.
    pub starved: f64,
}

impl Share {
    /// Whether the thread may have been too slow.
    pub fn is_limit(&self) -> bool {
        self.cpu + self.starved > BUSY
    }
}

impl Meter {
    /// Starts measuring.
    pub fn start() -> Self {
        Self { start: Instant::now(), used: used(), starved: starved() }
    }

    /// Use of time since the start; must be called on the same thread.
    pub fn share(&self) -> Share {
        let elapsed = self.start.elapsed().as_secs_f64().max(1e-9);
        let share =
            |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / elapsed;
        Share { cpu: share(used(), self.used), starved: share(starved(), self.starved) }
    }
}

/// CPU time of this thread.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec; the clock exists since Linux 2.6.12.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    match done {
        0 => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        _ => Duration::ZERO,
    }
}

/// Time that this thread waited for a core: the second number of schedstat; zero where the kernel
/// does not report it.
fn starved() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// Cores that this process may use; `None` if the kernel does not report them.
pub fn allowed() -> Option<Vec<usize>> {
    // SAFETY: all-zero is a valid cpu_set_t; the kernel writes at most the given size, and
    // CPU_ISSET reads within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let known = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0;
        known.then(|| (0..CORES_MAX).filter(|&core| libc::CPU_ISSET(core, &set)).collect())
    }
}

/// The first core that is not available for `threads` threads on consecutive cores from `first`.
pub fn missing(first: usize, threads: usize, allowed: &[usize]) -> Option<usize> {
    (first..first.saturating_add(threads)).find(|core| !allowed.contains(core))
}

/// Formats core numbers, such as "0-3, 6".
pub fn ranges(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

/// Pins this thread to a core; returns whether that succeeded.
pub fn pin(core: usize) -> bool {
    if core >= CORES_MAX {
        return false; // CPU_SET would write beyond the set.
    }
    // SAFETY: all-zero is an empty cpu_set_t; the core is within the set's size; sched_setaffinity
    // reads the set and affects this thread only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_and_sleeping_threads_are_distinguished() {
        let meter = Meter::start();
        let start = Instant::now();
        // Until it has used some CPU time, however often it is interrupted.
        while used() < meter.used + Duration::from_millis(20) {}
        let share = meter.share();
        let least = 0.019 / start.elapsed().as_secs_f64();
        assert!(share.cpu >= least, "{share:?} {least}");
        assert!(!Share { cpu: 0.5, starved: 0.1 }.is_limit());
        assert!(Share { cpu: 0.5, starved: 0.45 }.is_limit());
    }

    #[test]
    fn a_core_that_is_not_there_is_none_to_be_pinned_to() {
        std::thread::spawn(|| assert!(pin(0) || cfg!(not(target_os = "linux")))).join().unwrap();
        assert!(!pin(1023));
        assert!(!pin(2000), "more than a set has room for: this was a panic");
    }

    /// Regression: a nonexistent core was reported late by kernels that reject it, and not at all
    /// by others.
    #[test]
    fn cores_are_looked_for_before_threads_are_kept_on_them() {
        let allowed = [0, 1, 2, 3, 6];
        assert_eq!(missing(0, 4, &allowed), None);
        assert_eq!((missing(2, 3, &allowed), missing(40, 1, &allowed)), (Some(4), Some(40)));
        assert_eq!([&allowed[..], &[7], &[]].map(ranges), ["0-3, 6", "7", ""]);
        assert!(super::allowed().is_some_and(|cores| !cores.is_empty()));
    }
}

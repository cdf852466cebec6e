//! Measures CPU time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process so far.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `work`; returns its result and the CPU time of all threads meanwhile, which does not
/// include time used by other programs.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = process_time();
    let made = work();
    (made, process_time().saturating_sub(begin))
}

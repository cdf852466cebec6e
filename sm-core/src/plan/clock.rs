//! Time: what the processor spent on something, and how long people have waited.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process so far.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What `work` makes, and the CPU time of all threads while it did. It does not grow while other
/// programs have the CPU.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = process_time();
    let made = work();
    (made, process_time().saturating_sub(begin))
}

//! CPU time of threads and processes, the caller's or others', in nanoseconds.

use std::fs;
use std::time::Duration;

/// Bits of a clock ID: scheduler time, per thread.
const SCHEDULED: libc::clockid_t = 2;
const OF_THREAD: libc::clockid_t = 4;

/// A process or a thread of one, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All threads of a process, ended ones too.
    Process(libc::pid_t),
    /// A thread of this process.
    Thread(libc::pid_t),
}

/// CPU time used so far; zero if the process or thread does not exist.
pub fn cpu(of: Of) -> Duration {
    // How Linux encodes clock IDs (clock_getcpuclockid(3)); 0 is the caller.
    let clock = match of {
        Of::Process(pid) => !pid << 3 | SCHEDULED,
        Of::Thread(tid) => !tid << 3 | OF_THREAD | SCHEDULED,
    };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes to it alone.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    if result == 0 {
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    } else {
        Duration::ZERO
    }
}

/// The calling thread's number.
pub fn this_thread() -> libc::pid_t {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() }
}

/// Threads of a process, with their names.
pub fn threads(pid: u32) -> Vec<(libc::pid_t, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((tid, name.trim_end().to_owned()))
    };
    tasks.filter_map(thread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_at_its_thread_and_process() {
        let of = [Of::Process(std::process::id() as libc::pid_t), Of::Thread(this_thread())];
        let before = of.map(cpu);
        let mut n = 0u64;
        while cpu(of[1]) < before[1] + Duration::from_millis(5) {
            n = std::hint::black_box(n + 1);
        }
        let after = of.map(cpu);
        assert!(after[0] >= before[0] + Duration::from_millis(5), "{before:?} {after:?}");
        assert!(threads(std::process::id()).iter().any(|(tid, _)| *tid == this_thread()));
    }
}

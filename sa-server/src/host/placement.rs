//! CPU affinity and scheduling policy of threads.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The CPUs that the calling thread may run on.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call, which writes no more than its size.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every number is below the size of the set.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_set).collect())
}

/// Keeps the calling thread, and those that it starts from now on, on `cpus`.
pub fn keep_to(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set outlives the call, which only reads it.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Threads that build tables. They run only while workers leave CPU time, so that no query waits
/// for them, but not indefinitely: see [`finish_within`](Self::finish_within).
#[derive(Clone, Debug, Default)]
pub struct Builders {
    threads: Arc<Mutex<Vec<libc::pid_t>>>,
    is_caller: bool,
}

impl Builders {
    /// Creates an empty list of builder threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// No threads: the caller builds, with the rights that it has.
    pub fn caller() -> Self {
        Self { is_caller: true, ..Self::default() }
    }

    /// Makes the calling thread one of them.
    pub fn join(&self) {
        // SAFETY: a system call without arguments.
        let thread = unsafe { libc::gettid() };
        Share::Leftover.give(thread);
        self.threads().push(thread);
    }

    /// Runs work on these threads. If it takes longer than `patience`, the threads get a tenth of a
    /// worker's CPU share until it is done, if the process has the right (CAP_SYS_NICE, or
    /// RLIMIT_NICE of 10).
    pub fn finish_within<T>(&self, patience: Duration, work: impl FnOnce() -> T) -> T {
        if self.is_caller {
            return work();
        }
        let (done, waiting) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                if waiting.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                    self.give_all(Share::Tenth);
                    // Until the other end is dropped.
                    let _ = waiting.recv();
                    self.give_all(Share::Leftover);
                }
            });
            let result = work();
            drop(done);
            result
        })
    }

    fn give_all(&self, share: Share) {
        for &thread in &*self.threads() {
            share.give(thread);
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<libc::pid_t>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU share of a thread relative to always-busy threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// A three-hundredth, and none as soon as another wakes up.
    Leftover,
    Tenth,
}

impl Share {
    /// Gives this share to a thread (0: the calling one). Failure is harmless, as only timing
    /// depends on it; returns whether it succeeded.
    fn give(self, thread: libc::pid_t) -> bool {
        let (policy, nice) = match self {
            Self::Leftover => (libc::SCHED_IDLE, 0),
            Self::Tenth => (libc::SCHED_BATCH, 10),
        };
        // SAFETY: all-zero bytes are a valid structure.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        attributes.size = size_of::<libc::sched_attr>() as u32;
        attributes.sched_policy = policy as u32;
        attributes.sched_nice = nice;
        // SAFETY: a plain system call that reads as many bytes as the structure says it has.
        unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_yield_but_not_for_ever() {
        let may_raise = || Share::Leftover.give(0) && Share::Tenth.give(0);
        if !thread::spawn(may_raise).join().unwrap() {
            eprintln!("skipped: this process may not raise a thread again (CAP_SYS_NICE)");
            return;
        }
        let builders = Builders::new();
        let (ask, asked) = mpsc::channel::<()>();
        let (send, sent) = mpsc::channel();
        let policy = || {
            // SAFETY: a plain system call; 0 is the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        };
        let joining = builders.clone();
        let builder = thread::spawn(move || {
            joining.join();
            send.send(policy()).unwrap();
            asked.iter().for_each(|()| send.send(policy()).unwrap());
        });
        assert_eq!(sent.recv(), Ok(libc::SCHED_IDLE));
        builders.finish_within(Duration::ZERO, || {
            // Another thread raises them.
            let now = || {
                ask.send(()).unwrap();
                sent.recv().unwrap()
            };
            while now() != libc::SCHED_BATCH {}
        });
        ask.send(()).unwrap();
        assert_eq!(sent.recv(), Ok(libc::SCHED_IDLE));
        drop(ask);
        builder.join().unwrap();
    }

    #[test]
    fn a_thread_stays_where_it_is_kept() {
        let last = *allowed().unwrap().last().unwrap();
        let child = thread::spawn(move || {
            keep_to(&[last]).unwrap();
            (allowed().unwrap(), thread::spawn(allowed).join().unwrap().unwrap())
        });
        assert_eq!(child.join().unwrap(), (vec![last], vec![last]));
        assert!(keep_to(&[libc::CPU_SETSIZE as usize]).is_err(), "no such CPU");
    }
}

//! Signals as a descriptor, so that the service loop can wait for them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// HUP: reread the settings and start a heavy sweep.
    HeavySweep,
    /// USR1: reopen the log file.
    ReopenLog,
    /// TERM or INT: end.
    Terminate,
}

/// The signals that arrived for this process.
pub(super) struct Signals {
    descriptor: OwnedFd,
}

impl Signals {
    /// Blocks those of [`blocked`], and receives them by a descriptor. Call before any thread is
    /// started: threads inherit the mask.
    pub(super) fn take() -> io::Result<Self> {
        let set = blocked();
        // SAFETY: the set lives through the calls; signalfd returns a new descriptor, owned here
        // only.
        unsafe {
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { descriptor: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// The next signal that arrived.
    pub(super) fn next(&mut self) -> Option<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: the buffer is as long as said and borrowed for writing.
        let got = unsafe {
            libc::read(self.descriptor.as_raw_fd(), info.as_mut_ptr().cast(), info.len())
        };
        if got != info.len() as isize {
            return None;
        }
        // The signal's number is the structure's first field.
        match i32::from_ne_bytes([info[0], info[1], info[2], info[3]]) {
            libc::SIGHUP => Some(Signal::HeavySweep),
            libc::SIGUSR1 => Some(Signal::ReopenLog),
            _ => Some(Signal::Terminate),
        }
    }
}

/// HUP, USR1, TERM and INT.
fn blocked() -> libc::sigset_t {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Has a command start with the signals unblocked that this process blocks: programs inherit the
/// mask, and could not be ended otherwise.
pub(super) fn unblock_in(command: &mut Command) {
    let set = blocked();
    let unblock = move || {
        // SAFETY: the set lives through the call, and pthread_sigmask may be called after a fork.
        match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: the closure neither allocates nor locks.
    unsafe { command.pre_exec(unblock) };
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

//! Waits for several descriptors at once, with ppoll(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Limit of descriptors per call.
pub const WAIT_MAX: usize = 64;

/// A descriptor and the events to wait for. [`wait`] sets those that occurred.
#[derive(Debug)]
pub struct Interest<'fd> {
    descriptor: BorrowedFd<'fd>,
    write: bool,
    readable: bool,
    writable: bool,
}

impl<'fd> Interest<'fd> {
    /// Waits for readability.
    pub fn read(descriptor: BorrowedFd<'fd>) -> Self {
        Self { descriptor, write: false, readable: false, writable: false }
    }

    /// Waits for readability or, if `write`, also for writability.
    pub fn read_or_write(descriptor: BorrowedFd<'fd>, write: bool) -> Self {
        Self { write, ..Self::read(descriptor) }
    }

    /// Whether the descriptor is readable, which includes errors.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether it is writable; set only if requested.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

/// Sleeps until one of `interests` is ready or `timeout` has passed; `None` waits without limit.
/// Returns how many are ready; 0 also after a signal, so callers must check their clock and call
/// again.
pub fn wait(interests: &mut [Interest<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    if interests.len() > WAIT_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot wait for {} descriptors, at most {WAIT_MAX}", interests.len()),
        ));
    }
    let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; WAIT_MAX];
    for (slot, interest) in polled.iter_mut().zip(interests.iter()) {
        slot.fd = interest.descriptor.as_raw_fd();
        slot.events = libc::POLLIN | if interest.write { libc::POLLOUT } else { 0 };
    }
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polled` outlives the call and holds at least `interests.len()` entries, whose
    // descriptors are borrowed and therefore open; `timeout` is null or points at a time.
    let ready = unsafe {
        let count = interests.len() as libc::nfds_t;
        libc::ppoll(polled.as_mut_ptr(), count, timeout, std::ptr::null())
    };
    for (interest, slot) in interests.iter_mut().zip(&polled) {
        let events = if ready > 0 { slot.revents } else { 0 };
        interest.readable = events & (libc::POLLIN | libc::POLLERR | libc::POLLHUP) != 0;
        interest.writable = interest.write && events & (libc::POLLOUT | libc::POLLERR) != 0;
    }
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Instant;

    #[test]
    fn only_what_is_ready_is_marked() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let (quiet, _other) = UnixDatagram::pair().unwrap();
        b.send(b"x").unwrap();
        let mut interests = [
            Interest::read(a.as_fd()),
            Interest::read(quiet.as_fd()),
            Interest::read_or_write(b.as_fd(), true),
        ];
        assert_eq!(wait(&mut interests, None).unwrap(), 2);
        let [a, quiet, b] = &interests;
        assert!(a.is_readable() && !a.is_writable());
        assert!(!quiet.is_readable());
        assert!(b.is_writable() && !b.is_readable());
    }

    #[test]
    fn a_timeout_is_never_cut_short() {
        let (a, _b) = UnixDatagram::pair().unwrap();
        let timeout = Duration::from_micros(1_500);
        let before = Instant::now();
        assert_eq!(wait(&mut [Interest::read(a.as_fd())], Some(timeout)).unwrap(), 0);
        assert!(before.elapsed() >= timeout);
    }
}

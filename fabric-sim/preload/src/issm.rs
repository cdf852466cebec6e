//! The issm file, which a subnet manager holds open while it runs: IsSM in PortInfo follows it.
//!
//! Programs open it with open(2) by the path that libibumad returns. It is a file in memory that
//! this process reaches under /proc; inotify reports when it is opened and closed. So no function
//! of the C library is replaced, nothing is left behind, and device files of other users do not
//! interfere.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The file, and the inotify descriptor that watches it.
pub(crate) struct Issm {
    file: OwnedFd,
    watch: OwnedFd,
}

/// Length of an event without a name, and offset of its mask (inotify(7)).
const EVENT_LEN: usize = size_of::<libc::inotify_event>();
const MASK: usize = 4;

impl Issm {
    /// Creates the file.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the name is a C string; the descriptor is new and has no other owner.
        let file = unsafe { own(libc::memfd_create(c"issm".as_ptr(), libc::MFD_CLOEXEC)) }?;
        let flags = libc::IN_NONBLOCK | libc::IN_CLOEXEC;
        // SAFETY: no pointers are passed; the descriptor is new and has no other owner.
        let watch = unsafe { own(libc::inotify_init1(flags)) }?;
        let path = format!("{}\0", path_of(&file));
        let events = libc::IN_OPEN | libc::IN_CLOSE;
        // SAFETY: `path` is NUL-terminated and outlives the call.
        let watched =
            unsafe { libc::inotify_add_watch(watch.as_raw_fd(), path.as_ptr().cast(), events) };
        if watched < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { file, watch }) }
    }

    /// Path by which programs open it.
    pub(crate) fn path(&self) -> String {
        path_of(&self.file)
    }

    /// Descriptor that is readable when `poll` has an event.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Whether the file is open, after the latest event; `None` without a new event.
    pub(crate) fn poll(&self) -> Option<bool> {
        let mut events = [0u8; 64 * EVENT_LEN];
        // SAFETY: `events` is writable for its length.
        let len =
            unsafe { libc::read(self.watch.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
        let events = &events[..usize::try_from(len).unwrap_or(0)];
        let last = events.chunks_exact(EVENT_LEN).last()?;
        let mask = u32::from_ne_bytes(last[MASK..MASK + 4].try_into().ok()?);
        Some(mask & libc::IN_OPEN != 0)
    }
}

fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Takes ownership of a descriptor that a system call returned.
///
/// # Safety
///
/// Unless it is negative, the descriptor has no other owner.
unsafe fn own(descriptor: i32) -> io::Result<OwnedFd> {
    match descriptor {
        // SAFETY: guaranteed by the caller.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_and_closing_is_noticed() {
        let issm = Issm::new().unwrap();
        assert_eq!(issm.poll(), None);
        let open = std::fs::File::open(issm.path()).unwrap();
        assert_eq!(issm.poll(), Some(true));
        drop(open);
        assert_eq!(issm.poll(), Some(false));
        assert_eq!(issm.poll(), None);
    }
}

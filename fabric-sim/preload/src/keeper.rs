//! Open device files that outlive the process that opened them, as the kernel's do while any
//! process has a descriptor.
//!
//! Each file opened by a program without libibumad is served by a separate process, a client of
//! the server at the same node. It is forked from the program, keeps nothing of it but the other
//! end of the file, and ends when the last descriptor of the file is closed, or the server ends. So
//! a file that was passed to another process keeps its agents and its queue when the first one
//! dies.
//!
//! The opener registers agents through a second socket; a process that was passed the file
//! registers none.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ib_mad::wire::mad::MgmtClass;

use crate::socket::{self, Socket, pair};
use crate::stack::Registration;
use crate::umad::Errno;

/// How long the new process may take to attach and, later, to register an agent.
const PATIENCE_S: libc::time_t = 10;
/// Length of a registration as it is sent.
const REQUEST_LEN: usize = 24;

/// A file that this process opened.
pub(crate) struct File {
    /// Inode of the program's end.
    inode: u64,
    control: OwnedFd,
}

impl File {
    /// Opens a file at `node`; returns the program's end with it. `serve` runs in the new process,
    /// with the other end and the control socket.
    pub(crate) fn open(node: &str, serve: fn(Socket, &OwnedFd)) -> Result<(OwnedFd, Self), Errno> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let failed = |error: io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
        let (socket, theirs) = Socket::pair().map_err(failed)?;
        socket.set_name(node, COUNT.fetch_add(1, Relaxed)).map_err(failed)?;
        let [control, far] = pair(0).map_err(failed)?;
        let inode = socket::inode(theirs.as_raw_fd()).map_err(failed)?;
        // SAFETY: the child uses memory of this thread only, and the C library's allocator, which
        // is usable after fork(2); it never returns.
        match unsafe { libc::fork() } {
            ..0 => return Err(failed(io::Error::last_os_error())),
            0 => {
                // The program has no child to wait for: the first one ends now.
                // SAFETY: as above; _exit() runs no handlers.
                if unsafe { libc::fork() } == 0 {
                    run(socket, &far, serve);
                }
                // SAFETY: no handlers run.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: a null pointer means that the status is not returned.
            child => unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) },
        };
        drop((socket, far));
        let file = Self { inode, control };
        match file.answer()? {
            0 => Ok((theirs, file)),
            error => Err(Errno(-error)),
        }
    }

    /// Whether this is the file whose end in the program has this inode.
    pub(crate) fn is_of(&self, inode: u64) -> bool {
        self.inode == inode
    }

    /// Whether its process still serves it.
    pub(crate) fn is_served(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.control.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) };
        poll.revents & (libc::POLLHUP | libc::POLLERR) == 0
    }

    /// Registers an agent; returns its id.
    pub(crate) fn register(&self, registration: Registration) -> Result<u32, Errno> {
        let request = encode(registration);
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the request is readable for its length.
        let sent = unsafe {
            libc::send(self.control.as_raw_fd(), request.as_ptr().cast(), request.len(), flags)
        };
        if sent < 0 {
            return Err(Errno(libc::EIO));
        }
        let answer = self.answer()?;
        u32::try_from(answer).map_err(|_| Errno(-answer))
    }

    fn answer(&self) -> Result<i32, Errno> {
        let limit = libc::timeval { tv_sec: PATIENCE_S, tv_usec: 0 };
        let mut answer = [0; 4];
        let control = self.control.as_raw_fd();
        // SAFETY: the limit and the answer are valid for their lengths.
        let got = unsafe {
            let len = size_of::<libc::timeval>() as libc::socklen_t;
            let limit = (&raw const limit).cast();
            libc::setsockopt(control, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit, len);
            libc::recv(control, answer.as_mut_ptr().cast(), answer.len(), 0)
        };
        if got == 4 { Ok(i32::from_ne_bytes(answer)) } else { Err(Errno(libc::EIO)) }
    }
}

/// The process of a file. Never returns.
fn run(socket: Socket, control: &OwnedFd, serve: fn(Socket, &OwnedFd)) -> ! {
    isolate([socket.id(), control.as_raw_fd()]);
    serve(socket, control);
    // SAFETY: no handlers run: they are the program's.
    unsafe { libc::_exit(0) }
}

/// Separates this process from the program that it was forked from: no signals, no terminal, no
/// descriptors but `kept`.
fn isolate(mut kept: [RawFd; 2]) {
    kept.sort_unstable();
    // SAFETY: the set is written before it is read; the path is a C string; only descriptors of
    // this process are closed, and nothing here uses them.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            if !kept.contains(&standard) {
                libc::dup2(null, standard);
            }
        }
        let mut first = 3;
        for kept in kept.into_iter().chain([RawFd::MAX]) {
            if kept > first {
                libc::syscall(libc::SYS_close_range, first, kept - 1, 0);
            }
            first = first.max(kept.saturating_add(1));
        }
    }
}

/// Handles a request on the control socket, if there is one; `false` once its other end is closed.
pub(crate) fn take_request(
    control: &OwnedFd,
    register: impl FnOnce(Registration) -> Result<u32, Errno>,
) -> bool {
    let mut request = [0; REQUEST_LEN];
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the request is writable for its length.
    let got = unsafe {
        libc::recv(control.as_raw_fd(), request.as_mut_ptr().cast(), request.len(), flags)
    };
    if got < 0 {
        return io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
    }
    if usize::try_from(got) != Ok(REQUEST_LEN) {
        return false;
    }
    let done = register(decode(&request));
    answer(control, done.map_or_else(|error| -error.0, |id| id as i32));
    true
}

/// Answers the opener: 0 or an agent's id, or a negative errno value.
pub(crate) fn answer(control: &OwnedFd, answer: i32) {
    let bytes = answer.to_ne_bytes();
    // The opener may be gone. SAFETY: the answer is readable for its length.
    unsafe {
        let flags = libc::MSG_NOSIGNAL;
        libc::send(control.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags);
    }
}

fn encode(registration: Registration) -> [u8; REQUEST_LEN] {
    let Registration { class, class_version, methods, oui, rmpp_version, user_rmpp } = registration;
    let mut request = [0; REQUEST_LEN];
    request[..16].copy_from_slice(&methods.to_ne_bytes());
    request[16..20].copy_from_slice(&oui.to_ne_bytes());
    request[20..].copy_from_slice(&[class.0, class_version, rmpp_version, user_rmpp.into()]);
    request
}

fn decode(request: &[u8; REQUEST_LEN]) -> Registration {
    let mut methods = [0; 16];
    methods.copy_from_slice(&request[..16]);
    let mut oui = [0; 4];
    oui.copy_from_slice(&request[16..20]);
    let [class, class_version, rmpp_version, user_rmpp] =
        [request[20], request[21], request[22], request[23]];
    Registration {
        class: MgmtClass(class),
        class_version,
        methods: u128::from_ne_bytes(methods),
        oui: u32::from_ne_bytes(oui),
        rmpp_version,
        user_rmpp: user_rmpp != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_read_as_it_was_sent() {
        let registration = Registration {
            class: MgmtClass::SUBN_ADM,
            class_version: 2,
            methods: 1 << 127 | 6,
            oui: 0x1405,
            rmpp_version: 1,
            user_rmpp: true,
        };
        assert_eq!(decode(&encode(registration)), registration);
    }

    #[test]
    fn requests_are_answered_until_the_opener_is_gone() {
        let [opener, keeper] = pair(0).unwrap();
        let file = File { inode: 0, control: opener };
        assert!(take_request(&keeper, |_| Ok(1)), "nothing to do");
        let asked = std::thread::spawn(move || {
            let registration = Registration { class_version: 9, ..decode(&[0; REQUEST_LEN]) };
            let done = (file.register(registration), file.register(registration));
            assert!(file.is_served());
            done
        });
        for answer in [Ok(3), Err(Errno(libc::EINVAL))] {
            let mut asked = false;
            while !asked {
                assert!(take_request(&keeper, |registration| {
                    asked = true;
                    assert_eq!(registration.class_version, 9);
                    answer
                }));
                std::thread::yield_now();
            }
        }
        assert_eq!(asked.join().unwrap(), (Ok(3), Err(Errno(libc::EINVAL))));
        assert!(!take_request(&keeper, |_| Ok(1)), "the opener is gone");
    }
}

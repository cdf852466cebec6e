//! libibumad's calls, by the names and with the types of `infiniband/umad.h`.
//!
//! - `message`: headers of messages, no device needed.
//! - `port`: opening, registering, sending, receiving.
//! - `device`: what devices and ports there are.
//! - `file`: the same without libibumad, by the kernel's own interface.
//!
//! A call that takes the device's lock, or may, keeps the calling thread from being cancelled
//! meanwhile: OpenSM cancels its receiver, which must not take the lock with it.

pub mod device;
pub mod file;
pub mod message;
pub mod port;

use std::ffi::{CStr, c_char, c_int};

use crate::umad::Errno;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While it lives, the thread cannot be cancelled.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: `before` is writable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: a null pointer asks for nothing.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

fn set_errno(error: Errno) {
    // SAFETY: it points at this thread's errno.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Fails with errno set; yields its negative.
fn fail(error: Errno) -> c_int {
    set_errno(error);
    -error.0
}

/// Whether a device name means ours; a null pointer means any.
///
/// # Safety
///
/// `name` is null or a C string.
unsafe fn is_ours(name: *const c_char) -> bool {
    // SAFETY: the caller vouches for it.
    name.is_null() || unsafe { CStr::from_ptr(name) }.to_bytes() == crate::info::CA_NAME.as_bytes()
}

/// Copies a string and its end into an array of a C structure, cut to fit.
fn copy_str(text: &str, to: &mut [c_char]) {
    let room = to.len().saturating_sub(1);
    to.fill(0);
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

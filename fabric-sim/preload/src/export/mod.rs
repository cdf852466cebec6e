//! libibumad's functions, with the names and types of `infiniband/umad.h`.
//!
//! - `message`: message headers; no device needed.
//! - `port`: opening, registering, sending, receiving.
//! - `device`: devices and ports.
//! - `file`: the same through the kernel's file interface, for programs without libibumad.
//!
//! A call that may take the device lock disables cancellation of the calling thread: OpenSM cancels
//! its receiver thread, which must not keep the lock.

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

/// Disables cancellation of this thread while it exists.
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
        // SAFETY: a null pointer means that the old state is not returned.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

fn set_errno(error: Errno) {
    // SAFETY: points at this thread's errno.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Sets errno; returns its negative value.
fn fail(error: Errno) -> c_int {
    set_errno(error);
    -error.0
}

/// Whether a device name is ours; a null pointer means any device.
///
/// # Safety
///
/// `name` is null or a C string.
unsafe fn is_ours(name: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    name.is_null() || unsafe { CStr::from_ptr(name) }.to_bytes() == crate::info::CA_NAME.as_bytes()
}

/// Copies a string with its NUL into an array of a C structure, truncated to fit.
fn copy_str(text: &str, to: &mut [c_char]) {
    let room = to.len().saturating_sub(1);
    to.fill(0);
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

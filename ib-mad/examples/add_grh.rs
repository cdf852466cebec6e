//! Preloaded library that adds a GRH to the MADs of programs that address the SA by LID, such as
//! `saquery`, on a port without LIDs (RoCE). It changes writes to umad files without a GRH;
//! `SA_GID` is the destination GID for all LIDs. Used in `scripts/kernel-lab` only.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use ib_mad::transport::Grh;
use ib_mad::transport::umad::{HEADER_LEN, Header};
use ib_mad::types::Gid;

/// Device major number of umad files.
const MAJOR: u32 = 231;

/// write(2); writes to umad files are changed.
///
/// # Safety
///
/// As for write(2): `buffer` is readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, buffer: *const c_void, len: usize) -> isize {
    if len < HEADER_LEN || !is_umad(file) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { system_write(file, buffer, len) };
    }
    // SAFETY: the caller guarantees `len` readable bytes.
    let mut record = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) }.to_vec();
    if let Some(bytes) = record.first_chunk_mut::<HEADER_LEN>() {
        let mut header = Header(*bytes);
        let gid = std::env::var("SA_GID").ok().and_then(|gid| gid.parse::<Gid>().ok());
        if let (false, Some(remote_gid)) = (header.grh_present(), gid) {
            header.set_grh(Some(&Grh { remote_gid, hop_limit: 64, ..Grh::default() }));
            *bytes = header.0;
        }
    }
    // SAFETY: the record is readable for its length.
    unsafe { system_write(file, record.as_ptr().cast(), record.len()) }
}

/// The system call itself.
///
/// # Safety
///
/// As for write(2).
unsafe fn system_write(file: c_int, buffer: *const c_void, len: usize) -> isize {
    // SAFETY: the caller guarantees the arguments.
    unsafe { libc::syscall(libc::SYS_write, file, buffer, len) as isize }
}

fn is_umad(file: c_int) -> bool {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `status` is writable for what fstat writes.
    if unsafe { libc::fstat(file, status.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: all-zero bytes are a valid stat, and fstat has filled them.
    let status = unsafe { status.assume_init() };
    status.st_mode & libc::S_IFMT == libc::S_IFCHR && libc::major(status.st_rdev) == MAJOR
}

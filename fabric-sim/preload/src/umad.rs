//! The header that libibumad puts before a MAD, and the system's error numbers that its calls fail
//! with.

pub use ib_mad::transport::umad::{HEADER_LEN, Header};

/// A system error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

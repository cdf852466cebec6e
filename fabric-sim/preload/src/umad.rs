//! The umad header before each MAD, and the errno values that its calls return.

pub use ib_mad::transport::umad::{HEADER_LEN, Header};

/// An errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

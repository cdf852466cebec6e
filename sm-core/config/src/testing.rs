//! Helpers for the tests of several files.

use std::io::ErrorKind;

use super::ReadFile;

/// Reads from disk, as the programs do.
pub(crate) const DISK: ReadFile = &|path, len_max| {
    let bytes = std::fs::read(path)?;
    let fits = bytes.len() as u64 <= len_max;
    fits.then_some(bytes).ok_or_else(|| ErrorKind::FileTooLarge.into())
};

//! Errors of stores.

use std::io;
use std::path::{Path, PathBuf};

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error("registry {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the library.
        source: Box<redb::Error>,
    },
    /// Another process has it open.
    #[error(
        "registry {} is in use: is another ibsm running? choose another directory with --state-dir",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The content of the file is damaged.
    #[error(
        "registry {} is damaged ({reason}); restore it from a backup, or move it away and start \
         again: clients must then register again", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// Another manager may commit.
    #[error("another manager may have taken the store's fence")]
    Fenced,
    /// What is stored is not what this program wrote.
    #[error("the store's contents are damaged: {0}")]
    Contents(String),
    /// An address of etcd.
    #[error("--store: {endpoint}: {reason}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// The thread that serves the store.
    #[error("cannot start the store's thread")]
    Runtime(#[source] io::Error),
    /// A store that was expected to end at once did not.
    #[error("the store did not finish in time")]
    Late,
    /// The file was written by another release.
    #[error(
        "registry {} has layout {found}, this release reads {known}; run the release that wrote \
         it, or move it away and start again: clients must then register again", path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// The layout that this release reads.
        known: u64,
        /// Its layout.
        found: u64,
    },
}

/// The error for the file at `path`.
pub(super) fn failure(path: &Path, error: redb::Error) -> StoreError {
    let path = path.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
            StoreError::InUse { path }
        }
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            StoreError::Damaged { path, reason: error.to_string() }
        }
        error @ (redb::Error::Io(_) | redb::Error::PreviousIo) => {
            StoreError::Io { path, source: Box::new(error) }
        }
        error => StoreError::Damaged { path, reason: error.to_string() },
    }
}

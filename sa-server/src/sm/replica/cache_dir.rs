//! The directory with a responder's identity and its last snapshot.
//!
//! Each responder needs its own: two responders with one identity would disconnect each other from
//! the feed. So the directory is locked while the process runs.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use daemon::kept;

const SNAPSHOT: &str = "snapshot";
const IDENTITY: &str = "responder-id";
/// More than an identity has, bytes.
const IDENTITY_LEN_MAX: u64 = 64;

/// A locked cache directory.
#[derive(Debug)]
pub struct CacheDir {
    path: PathBuf,
    responder_id: u64,
    /// Locked until it is closed.
    _identity: File,
}

/// Why a cache directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheDirError {
    /// Another responder uses it.
    #[error("{} is in use by another ibsa; give each ibsa its own --cache-dir", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It cannot be made, read or written.
    #[error("cannot use {} as cache directory; choose another --cache-dir", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
}

impl CacheDir {
    /// Opens a directory, making it and an identity if there is none yet.
    pub fn open(path: &Path) -> Result<Self, CacheDirError> {
        let opened = Self::open_locked(path);
        let opened = opened.map_err(|error| CacheDirError::Io { path: path.to_owned(), error })?;
        opened.ok_or_else(|| CacheDirError::InUse { path: path.to_owned() })
    }

    /// The responder's identity, never 0.
    pub fn responder_id(&self) -> u64 {
        self.responder_id
    }

    /// The file of the last snapshot.
    pub fn snapshot_file(&self) -> PathBuf {
        self.path.join(SNAPSHOT)
    }

    /// `None` if another process has it.
    fn open_locked(path: &Path) -> io::Result<Option<Self>> {
        kept::make_directory(path)?;
        kept::check_directory(path)?;
        let file = path.join(IDENTITY);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut identity = kept::open(&file, options)?;
        if !lock(&identity)? {
            return Ok(None);
        }
        let mut text = Vec::new();
        (&identity).take(IDENTITY_LEN_MAX).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let responder_id = match text.trim().parse() {
            Ok(id) if id != 0 => id,
            _ => {
                if !text.is_empty() {
                    tracing::warn!(
                        path = %file.display(),
                        "identity file is damaged; a new responder id is written"
                    );
                }
                let id = passing_identity();
                identity.set_len(0)?;
                identity.rewind()?;
                writeln!(identity, "{id}")?;
                identity.sync_all()?;
                id
            }
        };
        Ok(Some(Self { path: path.to_owned(), responder_id, _identity: identity }))
    }
}

/// An identity for a responder without a cache directory: a new one at every start.
pub fn passing_identity() -> u64 {
    RandomState::new().build_hasher().finish() | 1
}

/// Locks a file for this process; `false` if another one has it.
fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open for as long as the borrow; flock accesses no memory of this
    // process.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Regression: a user who had made the directory could have a snapshot of theirs answered from.
    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let Err(CacheDirError::Io { error, .. }) = CacheDir::open(directory.path()) else {
            panic!("it is used");
        };
        assert!(error.to_string().contains("other users can write to it"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_identity_outlives_its_process_and_damage_costs_no_more_than_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache");
        let id = CacheDir::open(&path).unwrap().responder_id();
        assert_ne!(id, 0);
        assert_eq!(CacheDir::open(&path).unwrap().responder_id(), id);
        for damaged in ["0", "", "1 2"] {
            fs::write(path.join(IDENTITY), damaged).unwrap();
            let other = CacheDir::open(&path).unwrap().responder_id();
            assert_ne!(other, 0);
            assert_eq!(CacheDir::open(&path).unwrap().responder_id(), other);
        }
        assert_ne!(passing_identity(), passing_identity());
    }

    /// Regression: a user who had made the directory could have root empty any file.
    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let precious = directory.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, directory.path().join(IDENTITY)).unwrap();
        let refused = CacheDir::open(directory.path());
        assert!(matches!(refused, Err(CacheDirError::Io { .. })), "{refused:?}");
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }

    #[test]
    fn two_responders_cannot_share_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = CacheDir::open(directory.path()).unwrap();
        let refused = CacheDir::open(directory.path());
        assert!(matches!(refused, Err(CacheDirError::InUse { .. })), "{refused:?}");
        drop(first);
        assert!(CacheDir::open(directory.path()).is_ok());
    }

    #[test]
    fn a_path_that_is_no_directory_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = CacheDir::open(file.path()).unwrap_err();
        assert!(error.to_string().contains(&file.path().display().to_string()), "{error}");
    }
}

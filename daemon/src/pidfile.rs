//! The pid file, by which service managers find the process and a second instance is refused.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::debug;

/// Attempts to open the file, if other processes remove it in between.
const ATTEMPTS_MAX: usize = 16;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PidfileError {
    /// Another process uses it.
    #[error(
        "-J/--pidfile: {}: in use by process {pid}; stop that process, or choose another file",
        path.display()
    )]
    Running {
        /// The file.
        path: PathBuf,
        /// Its contents.
        pid: String,
    },
    /// It cannot be opened or written.
    #[error("-J/--pidfile: {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The process id in a file that is locked until the process ends, and removed then.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    _locked: File,
}

impl Pidfile {
    /// Takes `path`, unless the process that wrote it still runs. The lock, which ends with the
    /// process, decides that: its process ID may have been reused.
    pub fn take(path: &Path) -> Result<Self, PidfileError> {
        let failed = |source| PidfileError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Another user may have put a link there.
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        for _ in 0..ATTEMPTS_MAX {
            let file = options.open(path).map_err(failed)?;
            if let Some(taken) = Self::lock(path, file)? {
                return Ok(taken);
            }
        }
        Err(failed(io::Error::other("other processes removed it each time")))
    }

    /// Takes a file that was opened as `path`; `None` if a process that ended has removed it since:
    /// then the locked file has no name.
    fn lock(path: &Path, mut file: File) -> Result<Option<Self>, PidfileError> {
        let failed = |source| PidfileError::Io { path: path.to_owned(), source };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.take(32).read_to_string(&mut pid);
                let pid = pid.trim().to_owned();
                return Err(PidfileError::Running { path: path.to_owned(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let ours = file.metadata().map_err(failed)?;
        let is_there = match std::fs::metadata(path) {
            Ok(there) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => false,
            Err(source) => return Err(failed(source)),
        };
        if !is_there {
            return Ok(None);
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Some(Self { path: path.to_owned(), _locked: file }))
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        if let Err(failure) = std::fs::remove_file(&self.path) {
            debug!("cannot remove pid file {}: {failure}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a link that another user had made had any file of root overwritten.
    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, link) = (dir.path().join("precious"), dir.path().join("ibsm.pid"));
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        assert!(Pidfile::take(&link).is_err());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }

    /// Regression: the next process opened the file just before it was removed, and locked a file
    /// without a name.
    #[test]
    fn one_that_is_removed_between_opening_and_locking_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ibsm.pid");
        let first = Pidfile::take(&path).unwrap();
        let opened = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (early, another) = (opened(), opened());
        drop(first);
        assert!(Pidfile::lock(&path, early).unwrap().is_none());
        let second = Pidfile::take(&path).unwrap();
        assert!(Pidfile::lock(&path, another).unwrap().is_none(), "there is another by now");
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_second_one_is_refused_and_one_left_behind_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ibsm.pid");
        std::fs::write(&path, "4711 or another process\n").unwrap();
        let first = Pidfile::take(&path).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{own}\n"));
        match Pidfile::take(&path) {
            Err(PidfileError::Running { pid, .. }) => assert_eq!(pid, own),
            other => panic!("{other:?}"),
        }
        drop(first);
        assert!(!path.exists());
        assert!(Pidfile::take(&path).is_ok());
    }
}

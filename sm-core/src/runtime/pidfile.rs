//! The file of our process id, by which service managers find us and a second instance is refused.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tracing::debug;

/// The file cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PidfileError {
    /// Somebody runs with it.
    #[error("--pidfile: {}: process {pid} runs with it; end it, or name another file", path.display())]
    Running {
        /// The file.
        path: PathBuf,
        /// What stands in it.
        pid: String,
    },
    /// It cannot be opened or written.
    #[error("--pidfile: {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Our process id in a file, locked until we end, and removed then.
#[derive(Debug)]
pub(super) struct Pidfile {
    path: PathBuf,
    _locked: File,
}

impl Pidfile {
    /// Takes `path`, unless the process that wrote it still runs. One that a dead process left is
    /// known by its lock, which died with it: its number may be another's by now.
    pub(super) fn take(path: &Path) -> Result<Self, PidfileError> {
        let failed = |source| PidfileError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
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
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { path: path.to_owned(), _locked: file })
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        if let Err(failure) = std::fs::remove_file(&self.path) {
            debug!("{}: {failure}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_refused_and_one_left_behind_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ibsm.pid");
        std::fs::write(&path, "4711 or whoever was here\n").unwrap();
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

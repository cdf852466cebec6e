//! Where the log goes: standard output and, if configured, a file.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// The log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("--log-file {}: {source}", path.display())]
pub struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// A log file, which lines are appended to.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    fn open(path: &Path) -> Result<Self, LogError> {
        Ok(Self { path: path.to_owned(), file: Mutex::new(open(path)?) })
    }

    /// Opens the file by its name again, after log rotation has renamed the old one. If that fails,
    /// the old one is still written to.
    pub(super) fn reopen(&self) -> Result<(), LogError> {
        let file = open(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    let mut options = OpenOptions::new();
    let opened = daemon::kept::open_log(path, options.create(true).append(true));
    opened.map_err(|source| LogError { path: path.to_owned(), source })
}

/// Writes lines; the subscriber writes each in one call.
struct LogWriter(Arc<LogFile>);

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line)?;
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sets logging up for the process. Returns the file, if there is one.
pub(super) fn init(path: Option<&Path>) -> Result<Option<Arc<LogFile>>, LogError> {
    let file = path.map(LogFile::open).transpose()?.map(Arc::new);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // The reader of the log may be gone, or the disk full; that must not end the program.
    let stdout = fmt::layer()
        .with_target(false)
        .with_ansi(io::stdout().is_terminal())
        .log_internal_errors(false);
    let to_file = file.clone().map(|file| {
        fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .log_internal_errors(false)
            .with_writer(move || LogWriter(file.clone()))
    });
    // It fails only if logging was set up before.
    let _ = tracing_subscriber::registry().with(filter).with(stdout).with(to_file).try_init();
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_file_is_appended_to_and_made_again_after_it_was_renamed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("ibsa.log"), directory.path().join("ibsa.log.1"));
        std::fs::write(&path, "before\n").unwrap();
        let log = Arc::new(LogFile::open(&path).unwrap());
        let mut writer = LogWriter(log.clone());
        writer.write_all(b"one\n").unwrap();
        std::fs::rename(&path, &old).unwrap();
        writer.write_all(b"two\n").unwrap();
        log.reopen().unwrap();
        writer.write_all(b"three\n").unwrap();
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&old), read(&path)), ("before\none\ntwo\n".into(), "three\n".into()));
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_named() {
        let error = LogFile::open(Path::new("/nodir/ibsa.log")).unwrap_err().to_string();
        assert!(error.starts_with("--log-file /nodir/ibsa.log: No such file"), "{error}");
    }
}

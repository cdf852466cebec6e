//! A log file, and what settings change of it while it is written.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::{LogError, line_prefix, lock};
use sm_config::Settings;

/// What settings determine of a log file.
pub(super) struct FileRules {
    prefix: String,
    /// Size at which it is emptied, bytes; 0 means no limit.
    limit: u64,
    /// Whether contents are kept when it is opened.
    appends: bool,
    /// Whether only its owner may read it: MADs in it contain keys.
    is_private: bool,
}

impl FileRules {
    /// `is_private`: whether MADs are written to it.
    pub(super) fn of(settings: &Settings, is_private: bool) -> Self {
        Self {
            prefix: line_prefix(settings.log_prefix.as_deref()),
            limit: u64::from(settings.log_max_size) << 20,
            appends: settings.accum_log_file,
            is_private,
        }
    }
}

/// A log file.
pub(in crate::runtime) struct LogFile {
    path: PathBuf,
    open: Mutex<Open>,
}

struct Open {
    file: File,
    len: u64,
    rules: FileRules,
}

impl LogFile {
    pub(super) fn open(path: &Path, rules: FileRules) -> Result<Self, LogError> {
        let (file, len) = open(path, &rules)?;
        Ok(Self { path: path.to_owned(), open: Mutex::new(Open { file, len, rules }) })
    }

    /// Applies other settings; whether contents are kept matters when it is opened again. What only
    /// its owner could read stays so.
    pub(super) fn follow(&self, rules: FileRules) -> Result<(), LogError> {
        let mut open = lock(&self.open);
        let protected = if rules.is_private { protect(&open.file) } else { Ok(()) };
        open.rules = rules;
        protected.map_err(|source| LogError { path: self.path.clone(), source })
    }

    pub(super) fn reopen(&self) -> Result<(), LogError> {
        let mut state = lock(&self.open);
        (state.file, state.len) = open(&self.path, &state.rules)?;
        Ok(())
    }

    fn write_line(&self, line: &[u8]) -> io::Result<()> {
        let mut open = lock(&self.open);
        let len = (open.rules.prefix.len() + line.len()) as u64;
        if open.rules.limit > 0 && open.len + len > open.rules.limit {
            open.file.set_len(0)?;
            open.len = 0;
        }
        open.len += len;
        if open.rules.prefix.is_empty() {
            return open.file.write_all(line);
        }
        let line = [open.rules.prefix.as_bytes(), line].concat();
        open.file.write_all(&line)
    }
}

/// Writes lines; the subscriber writes each in one call.
pub(super) struct LogWriter(pub(super) Arc<LogFile>);

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_line(line)?;
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a file readable by its owner only; that of another user is refused. A terminal or pipe
/// keeps its mode.
fn protect(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() && !daemon::is_ours(&metadata) {
        let text = "it belongs to another user, who could read the keys in MADs; remove it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    match metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        true => file.set_permissions(Permissions::from_mode(0o600)),
        false => Ok(()),
    }
}

/// The file, and its length.
fn open(path: &Path, rules: &FileRules) -> Result<(File, u64), LogError> {
    let open = || -> io::Result<(File, u64)> {
        // Lines are appended at the current end: other programs may truncate the file meanwhile.
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(if rules.is_private { 0o600 } else { 0o666 });
        let file = daemon::kept::open_log(path, &mut options)?;
        if rules.is_private {
            protect(&file)?;
        }
        let metadata = file.metadata()?;
        if metadata.is_file() && !rules.appends {
            file.set_len(0)?;
        }
        let len = if rules.appends { metadata.len() } else { 0 };
        Ok((file, len))
    };
    open().map_err(|source| LogError { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    /// Regression: a link that another user had made led the log to any file of root.
    #[test]
    fn a_link_of_another_user_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (log, link) = (dir.path().join("log"), dir.path().join("link"));
        std::os::unix::fs::symlink(&log, &link).unwrap();
        let rules =
            || FileRules { prefix: String::new(), limit: 0, appends: true, is_private: false };
        assert!(LogFile::open(&link, rules()).is_ok(), "our own is");
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can make a link of another user");
            return;
        }
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert!(LogFile::open(&link, rules()).is_err());
    }

    /// Regression: with log bit 0x20 every user could read M_Keys in the log file.
    #[test]
    fn a_log_with_mads_is_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let rules =
            |is_private| FileRules { prefix: String::new(), limit: 0, appends: true, is_private };
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let log = LogFile::open(&path, rules(false)).unwrap();
        assert_eq!(mode(), 0o644);
        log.follow(rules(true)).unwrap();
        assert_eq!(mode(), 0o600);
        log.follow(rules(false)).unwrap();
        assert_eq!(mode(), 0o600, "the MADs are still in it");
        std::fs::remove_file(&path).unwrap();
        log.follow(rules(true)).unwrap();
        log.reopen().unwrap();
        assert_eq!(mode(), 0o600, "a new file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(LogFile::open(&path, rules(true)).unwrap());
        assert_eq!(mode(), 0o600, "an old one");
    }

    #[test]
    fn a_log_file_restarts_at_its_limit_and_lines_have_a_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "old\n").unwrap();
        let rules =
            FileRules { prefix: "rail1 ".to_owned(), limit: 20, appends: true, is_private: false };
        let log = LogFile::open(&path, rules).unwrap();
        log.write_line(b"one\n").unwrap();
        assert_eq!(read(&path), "old\nrail1 one\n");
        log.write_line(b"two\n").unwrap();
        assert_eq!(read(&path), "rail1 two\n");
    }

    #[test]
    fn a_log_file_that_was_moved_away_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let log = LogFile::open(&path, FileRules::of(&Settings::default(), false)).unwrap();
        log.write_line(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        log.write_line(b"two\n").unwrap();
        log.reopen().unwrap();
        log.write_line(b"three\n").unwrap();
        assert_eq!((read(&moved).as_str(), read(&path).as_str()), ("one\ntwo\n", "three\n"));
    }

    #[test]
    fn prefix_and_size_of_the_log_file_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut settings = Settings::default();
        let file = LogFile::open(&path, FileRules::of(&settings, false)).unwrap();
        let line = [b'x'; 1 << 19];
        (0..3).for_each(|_| file.write_line(&line).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 19, "there is no limit");
        (settings.log_max_size, settings.log_prefix) = (1, Some("rail1".to_owned()));
        file.follow(FileRules::of(&settings, false)).unwrap();
        file.write_line(b"one\n").unwrap();
        assert_eq!(read(&path), "rail1: one\n", "1 MB was exceeded");
    }

    /// As with OpenSM, the key decides when the file is opened, and that is at USR1, too.
    #[test]
    fn whether_the_log_file_is_kept_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut settings = Settings::default();
        let file = LogFile::open(&path, FileRules::of(&settings, false)).unwrap();
        file.write_line(b"one\n").unwrap();
        file.reopen().unwrap();
        assert_eq!(read(&path), "one\n");
        settings.accum_log_file = false;
        file.follow(FileRules::of(&settings, false)).unwrap();
        assert_eq!(read(&path), "one\n");
        file.reopen().unwrap();
        file.write_line(b"two\n").unwrap();
        assert_eq!(read(&path), "two\n");
    }
}

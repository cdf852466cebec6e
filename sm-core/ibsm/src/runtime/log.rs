//! Where the log goes: standard output and, if configured, a file or the system's log.

mod modules;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber, warn};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::cli::SYSLOG;
use sm_config::Settings;
use sm_core::sweep::STATE;

/// The log file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("log file {}: {source}; choose another with -f", path.display())]
pub struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// Target of errors that end the program. They are written to standard error, too.
pub(super) const FATAL: &str = "ibsm::fatal";

/// Whether errors that end the program are logged on standard output: not if its reader probably
/// reads standard error as well, as with a pipe.
fn logs_fatal() -> bool {
    let is_file = || -> io::Result<bool> {
        Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?).metadata()?.is_file())
    };
    reaches_stderr() || is_file().unwrap_or(true)
}

/// Whether the log, on standard output, goes where standard error goes too: to the same terminal,
/// pipe, journal or file.
pub(super) fn reaches_stderr() -> bool {
    let place = |stream: BorrowedFd<'_>| -> io::Result<(u64, u64)> {
        let metadata = File::from(stream.try_clone_to_owned()?).metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    };
    match (place(io::stdout().as_fd()), place(io::stderr().as_fd())) {
        (Ok(stdout), Ok(stderr)) => stdout == stderr,
        _ => false,
    }
}

/// The parts of the log that can change while the program runs.
pub(super) struct Log {
    file: Option<Arc<LogFile>>,
    /// The log bits and their filter; none if RUST_LOG overrides them.
    filter: Option<(u8, reload::Handle<EnvFilter, Registry>)>,
}

impl Log {
    /// Applies the log bits of other settings.
    pub(super) fn follow(&mut self, settings: &Settings) {
        let Some((flags, filter)) = &mut self.filter else { return };
        if std::mem::replace(flags, settings.log_flags) != settings.log_flags {
            let (wanted, _) = filter_of(settings);
            // It fails only if logging was never set up.
            let _ = filter.reload(EnvFilter::new(wanted));
        }
    }

    /// Reopens the log file by its name, after log rotation has renamed the old one.
    pub(super) fn reopen(&self) -> Result<(), LogError> {
        self.file.as_ref().map_or(Ok(()), |file| file.reopen())
    }
}

/// Sets logging up for the process. A second call has no effect on where the log goes.
pub(super) fn init(settings: &Settings) -> Result<Log, LogError> {
    let (own, odd) = filter_of(settings);
    let from_environment = EnvFilter::try_from_default_env().ok();
    let is_ours = from_environment.is_none();
    let (filter, handle) =
        reload::Layer::new(from_environment.unwrap_or_else(|| EnvFilter::new(own)));
    let prefix = line_prefix(settings.log_prefix.as_deref());
    let name = path_of(settings);
    let file = match name.filter(|name| *name != SYSLOG) {
        Some(name) => {
            let limit = u64::from(settings.log_max_size) << 20;
            let file = LogFile::open(name.as_ref(), settings.accum_log_file, limit, &prefix)?;
            Some(Arc::new(file))
        }
        None => None,
    };
    let to_file = file.clone().map(|file| {
        tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .log_internal_errors(false)
            .with_writer(move || LogWriter(file.clone()))
    });
    let is_syslog = name == Some(SYSLOG);
    let syslog = is_syslog.then(|| Syslog::open(SYSLOG_SOCKET.as_ref(), &prefix)).transpose()?;
    let to_syslog = syslog.map(Syslog::into_layer);
    let logs_fatal = logs_fatal();
    let terminal = std::io::IsTerminal::is_terminal(&io::stdout());
    // A closed standard output must not end the subnet manager.
    let stdout = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(terminal)
        .log_internal_errors(false)
        .with_filter(filter_fn(move |metadata| logs_fatal || metadata.target() != FATAL));
    let layers = tracing_subscriber::registry().with(filter).with(stdout);
    let _ = layers.with(to_file).with(to_syslog).try_init();
    odd.iter().for_each(|line| warn!("{line}"));
    Ok(Log { file, filter: is_ours.then_some((settings.log_flags, handle)) })
}

/// Warnings about the file of module levels.
pub(super) fn odd_lines(settings: &Settings) -> Vec<String> {
    filter_of(settings).1
}

/// Directives of the filter, and warnings about the settings for them.
fn filter_of(settings: &Settings) -> (String, Vec<String>) {
    // Libraries log warnings and errors only, unless RUST_LOG says otherwise.
    let level = level_of(settings.log_flags);
    let mut own = format!(
        "warn,ibsm={level},sm_core={level},sm_config={level},sm_routing={level},{STATE}=info"
    );
    let (modules, odd) =
        settings.per_module_logging_file.as_deref().map_or_else(Default::default, modules::read);
    for (module, level) in &modules {
        modules::targets(module).for_each(|target| own += &format!(",{target}={level}"));
    }
    (own, odd)
}

/// The log file in the background if none is configured: standard output is closed.
const DAEMON_LOG: &str = "/var/log/ibsm.log";

/// The log file, if there is one in addition to standard output.
fn path_of(settings: &Settings) -> Option<&str> {
    settings.log_path().or_else(|| settings.daemon.then_some(DAEMON_LOG))
}

/// The beginning of each line; empty without a prefix.
fn line_prefix(prefix: Option<&str>) -> String {
    let prefix = prefix.unwrap_or_default().trim_end();
    if prefix.is_empty() { String::new() } else { format!("{prefix}: ") }
}

/// The level that OpenSM's log bits mean.
fn level_of(flags: u8) -> LevelFilter {
    match flags {
        flags if flags & 0x38 != 0 => LevelFilter::TRACE,
        flags if flags & 0x04 != 0 => LevelFilter::DEBUG,
        flags if flags & 0x02 != 0 => LevelFilter::INFO,
        flags if flags & 0x01 != 0 => LevelFilter::WARN,
        _ => LevelFilter::OFF,
    }
}

/// A log file.
pub(super) struct LogFile {
    path: PathBuf,
    prefix: String,
    /// Size at which it is emptied, bytes; 0 means no limit.
    limit: u64,
    open: Mutex<Open>,
}

struct Open {
    file: File,
    len: u64,
}

impl LogFile {
    fn open(path: &Path, append: bool, limit: u64, prefix: &str) -> Result<Self, LogError> {
        let open = Mutex::new(open(path, append)?);
        Ok(Self { path: path.to_owned(), prefix: prefix.to_owned(), limit, open })
    }

    fn reopen(&self) -> Result<(), LogError> {
        let opened = open(&self.path, true)?;
        *self.lock() = opened;
        Ok(())
    }

    /// Locks the file, also after a panic of another writer.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_line(&self, line: &[u8]) -> io::Result<()> {
        let mut open = self.lock();
        let len = (self.prefix.len() + line.len()) as u64;
        if self.limit > 0 && open.len + len > self.limit {
            open.file.set_len(0)?;
            open.len = 0;
        }
        open.len += len;
        if self.prefix.is_empty() {
            return open.file.write_all(line);
        }
        open.file.write_all(&[self.prefix.as_bytes(), line].concat())
    }
}

/// Writes lines; the subscriber writes each in one call.
struct LogWriter(Arc<LogFile>);

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_line(line)?;
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The system's log, by its datagram socket (RFC 3164, without a time stamp: the daemon adds it).
struct Syslog {
    socket: UnixDatagram,
    tag: String,
}

/// Socket of the system's log.
const SYSLOG_SOCKET: &str = "/dev/log";
/// Facility "daemon" of the system's log.
const DAEMON: u8 = 3 << 3;

impl Syslog {
    fn open(path: &Path, prefix: &str) -> Result<Self, LogError> {
        let failed = |source| LogError { path: path.to_owned(), source };
        let socket = UnixDatagram::unbound().map_err(failed)?;
        socket.connect(path).map_err(failed)?;
        // A log daemon that hangs must not stop the subnet manager; lines that do not fit are lost.
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { socket, tag: format!("ibsm[{}]: {prefix}", std::process::id()) })
    }

    /// The layer that sends lines: the daemon adds the time, and the severity is the level.
    fn into_layer<S>(self) -> impl Layer<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .without_time()
            .with_level(false)
            .log_internal_errors(false)
            .with_writer(self)
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = SyslogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        SyslogLine { syslog: self, severity: 6 }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        let severity = match *metadata.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        SyslogLine { syslog: self, severity }
    }
}

struct SyslogLine<'a> {
    syslog: &'a Syslog,
    severity: u8,
}

impl Write for SyslogLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let head = format!("<{}>{}", DAEMON | self.severity, self.syslog.tag);
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let _ = self.syslog.socket.send(&[head.as_bytes(), text].concat());
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Path, append: bool) -> Result<Open, LogError> {
    let open = || -> io::Result<Open> {
        // Lines are appended at the current end: other programs may truncate the file meanwhile.
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_file() && !append {
            file.set_len(0)?;
        }
        let len = if append { metadata.len() } else { 0 };
        Ok(Open { file, len })
    };
    open().map_err(|source| LogError { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_log_file_restarts_at_its_limit_and_lines_have_a_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "old\n").unwrap();
        let log = LogFile::open(&path, true, 20, "rail1 ").unwrap();
        log.write_line(b"one\n").unwrap();
        assert_eq!(read(&path), "old\nrail1 one\n");
        log.write_line(b"two\n").unwrap();
        assert_eq!(read(&path), "rail1 two\n");
    }

    /// Regression: a log without a file was lost in the background.
    #[test]
    fn in_the_background_there_is_always_a_log() {
        let mut settings = Settings { daemon: true, ..Settings::default() };
        for nowhere in [None, Some("stdout".to_owned())] {
            settings.log_file = nowhere;
            assert_eq!(path_of(&settings), Some("/var/log/ibsm.log"));
        }
        settings.log_file = Some("b.log".into());
        assert_eq!(path_of(&settings), Some("b.log"));
        settings = Settings { log_file: None, ..Settings::default() };
        assert_eq!(path_of(&settings), None);
    }

    /// Regression: a prefix that ends in a digit was not separated from the time.
    #[test]
    fn a_prefix_is_set_off_from_the_line() {
        assert_eq!(line_prefix(Some("rail0")), "rail0: ");
        assert_eq!(line_prefix(Some("rail0 ")), "rail0: ");
        assert_eq!((line_prefix(None), line_prefix(Some(""))), (String::new(), String::new()));
    }

    #[test]
    fn a_log_file_that_was_moved_away_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let log = LogFile::open(&path, false, 0, "").unwrap();
        log.write_line(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        log.write_line(b"two\n").unwrap();
        log.reopen().unwrap();
        log.write_line(b"three\n").unwrap();
        assert_eq!((read(&moved).as_str(), read(&path).as_str()), ("one\ntwo\n", "three\n"));
    }

    #[test]
    fn the_systems_log_gets_each_line_with_its_severity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let syslog = Syslog::open(&path, "rail1 ").unwrap();
        let subscriber = tracing_subscriber::registry().with(syslog.into_layer());
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("no port");
            warn!(lid = 3, "trap");
            tracing::info!("SUBNET UP");
            tracing::debug!("quiet");
        });
        let tag = format!("ibsm[{}]: rail1 ", std::process::id());
        let line = || {
            let mut bytes = [0; 256];
            let len = daemon.recv(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes[..len]).replace(&tag, "")
        };
        assert_eq!(line(), "<27>no port");
        assert_eq!(line(), "<28>trap lid=3");
        assert_eq!((line(), line()), ("<30>SUBNET UP".to_owned(), "<31>quiet".to_owned()));

        let error = Syslog::open(&dir.path().join("none"), "").err().unwrap().to_string();
        assert!(error.contains("none: No such file") && error.contains("-f"), "{error}");
    }
}

//! Where the log goes: standard output and, if configured, a file or the system's log.

mod file;
mod frames;
mod modules;
mod syslog;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing::warn;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::cli::SYSLOG;
use file::{FileRules, LogFile, LogWriter};
use frames::FRAMES;
pub(super) use frames::FrameLog;
use sm_config::Settings;
use sm_core::sweep::STATE;
use syslog::{SYSLOG_SOCKET, Syslog, reach, warn_of_missing};

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
#[derive(Default)]
pub(super) struct Log {
    file: Option<Arc<LogFile>>,
    /// The beginning of lines in the system's log.
    tag: Arc<Mutex<String>>,
    /// Whether lines are copied to the system's log.
    copies: Arc<AtomicBool>,
    /// The log bits and their filter; none if RUST_LOG overrides them.
    filter: Option<(u8, reload::Handle<EnvFilter, Registry>)>,
    /// Whether RUST_LOG may have MADs written.
    frames_by_environment: bool,
}

impl Log {
    /// Applies the log bits, the prefix and the limits of other settings.
    pub(super) fn follow(&mut self, settings: &Settings) {
        *lock(&self.tag) = tag_of(settings);
        let copies = copies_of(settings);
        if !self.copies.swap(copies, Relaxed) && copies {
            warn_of_missing(SYSLOG_SOCKET.as_ref());
        }
        if let Some(file) = &self.file {
            let is_private = self.frames_by_environment || writes_frames(settings);
            if let Err(failure) = file.follow(FileRules::of(settings, is_private)) {
                warn!("{failure}: other users may read keys in it");
            }
        }
        let Some((flags, filter)) = &mut self.filter else { return };
        if std::mem::replace(flags, settings.log_flags) != settings.log_flags {
            let (wanted, _) = filter_of(settings);
            // It fails only if logging was never set up.
            let _ = filter.reload(EnvFilter::new(wanted));
        }
    }

    /// Reopens the log file by its name, after log rotation has renamed the old one. Without
    /// `accum_log_file`, a file that is still there is emptied.
    pub(super) fn reopen(&self) -> Result<(), LogError> {
        self.file.as_ref().map_or(Ok(()), |file| file.reopen())
    }
}

/// Sets logging up for the process. A second call has no effect on where the log goes.
pub(super) fn init(settings: &Settings) -> Result<Log, LogError> {
    let (own, odd) = filter_of(settings);
    let from_environment = EnvFilter::try_from_default_env().ok();
    let is_ours = from_environment.is_none();
    let level = from_environment.as_ref().and_then(EnvFilter::max_level_hint);
    let frames_by_environment = !is_ours && level.is_none_or(|level| level >= LevelFilter::TRACE);
    let is_private = frames_by_environment || (is_ours && writes_frames(settings));
    let (filter, handle) =
        reload::Layer::new(from_environment.unwrap_or_else(|| EnvFilter::new(own)));
    let name = path_of(settings);
    let file = match name.filter(|name| *name != SYSLOG) {
        Some(name) => {
            Some(Arc::new(LogFile::open(name.as_ref(), FileRules::of(settings, is_private))?))
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
    let tag = Arc::new(Mutex::new(tag_of(settings)));
    let is_syslog = name == Some(SYSLOG);
    if is_syslog {
        reach(SYSLOG_SOCKET.as_ref())?;
    }
    let copies = Arc::new(AtomicBool::new(copies_of(settings)));
    let to_syslog = Syslog::new(SYSLOG_SOCKET.as_ref(), &tag)?.into_layer(is_syslog, &copies);
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
    if copies.load(Relaxed) {
        warn_of_missing(SYSLOG_SOCKET.as_ref());
    }
    let filter = is_ours.then_some((settings.log_flags, handle));
    Ok(Log { file, tag, copies, filter, frames_by_environment })
}

/// Sets logging to standard error up, for a program whose result is on standard output: warnings,
/// and more if the log bits ask for more than their default.
pub(super) fn to_stderr(settings: &Settings) {
    let is_default = settings.log_flags == Settings::default().log_flags;
    let own = if is_default { "warn".to_owned() } else { filter_of(settings).0 };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(own));
    let layer = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&io::stderr()))
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
}

/// Warnings about the file of module levels.
pub(super) fn odd_lines(settings: &Settings) -> Vec<String> {
    filter_of(settings).1
}

/// Directives of the filter, and warnings about the settings for them.
fn filter_of(settings: &Settings) -> (String, Vec<String>) {
    // Libraries log warnings and errors only, unless RUST_LOG says otherwise.
    let level = level_of(settings.log_flags);
    let frames = if writes_frames(settings) { "trace" } else { "off" };
    let mut own = format!(
        "warn,ibsm={level},sm_core={level},sm_config={level},sm_routing={level},{STATE}=info,\
         {FRAMES}={frames}"
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

/// The beginning of lines in the system's log.
fn tag_of(settings: &Settings) -> String {
    let prefix = line_prefix(settings.log_prefix.as_deref());
    format!("ibsm[{}]: {prefix}", std::process::id())
}

/// Locks, also after a panic of another writer.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Log bit: each MAD is written in full.
const LOG_FRAMES: u8 = 0x20;
/// Log bit: lines are copied to the system's log.
const LOG_SYS: u8 = 0x80;

/// Whether MADs are written in full.
fn writes_frames(settings: &Settings) -> bool {
    settings.log_flags & LOG_FRAMES != 0
}

/// Whether lines are copied to the system's log; they are not if they go there anyway.
fn copies_of(settings: &Settings) -> bool {
    settings.log_flags & LOG_SYS != 0 && path_of(settings) != Some(SYSLOG)
}

/// The level that OpenSM's log bits mean.
fn level_of(flags: u8) -> LevelFilter {
    match flags {
        flags if flags & 0x18 != 0 => LevelFilter::TRACE,
        flags if flags & 0x04 != 0 => LevelFilter::DEBUG,
        flags if flags & 0x02 != 0 => LevelFilter::INFO,
        flags if flags & 0x01 != 0 => LevelFilter::WARN,
        _ => LevelFilter::OFF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// As with OpenSM, bits can be combined in any way.
    #[test]
    fn log_bit_0x20_is_for_frames_only() {
        let of = |log_flags| filter_of(&Settings { log_flags, ..Settings::default() }).0;
        assert!(of(0x23).contains(",ibsm=info,") && of(0x23).ends_with("ibsm::frames=trace"));
        assert!(of(0x1F).contains(",ibsm=trace,") && of(0x1F).ends_with("ibsm::frames=off"));
        assert_eq!((level_of(0x20), level_of(0x80)), (LevelFilter::OFF, LevelFilter::OFF));
    }
}

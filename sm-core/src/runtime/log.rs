//! Where the log goes: standard output and, if asked for, a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::Settings;

/// The log file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("log file {}: {source}; name another with -f", path.display())]
pub struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// Target of what ends the program. Standard error is told of it besides.
pub(super) const FATAL: &str = "ibsm::fatal";

/// Whether standard output is told what ends the program: not if somebody who reads it is likely to
/// read standard error as well, as with a pipe.
fn tells_fatal() -> bool {
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

/// Sets logging up for the process. A second call has no effect.
pub(super) fn init(settings: &Settings) -> Result<(), LogError> {
    let level = match settings.log_flags {
        flags if flags & 0x38 != 0 => LevelFilter::TRACE,
        flags if flags & 0x04 != 0 => LevelFilter::DEBUG,
        flags if flags & 0x02 != 0 => LevelFilter::INFO,
        flags if flags & 0x01 != 0 => LevelFilter::WARN,
        _ => LevelFilter::OFF,
    };
    // Libraries beneath us speak up only when something is wrong, unless RUST_LOG says otherwise.
    let own = format!("warn,sm_core={level},ibsm={level}");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(own));
    let file = settings.log_path().map(|name| open(name, settings.accum_log_file));
    let file = file.transpose()?.map(|file| {
        tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .log_internal_errors(false)
            .with_writer(Mutex::new(file))
    });
    let tells_fatal = tells_fatal();
    let terminal = std::io::IsTerminal::is_terminal(&io::stdout());
    // Whoever read standard output may have gone; that must not end the subnet manager.
    let stdout = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(terminal)
        .log_internal_errors(false)
        .with_filter(filter_fn(move |metadata| tells_fatal || metadata.target() != FATAL));
    let _ = tracing_subscriber::registry().with(filter).with(stdout).with(file).try_init();
    Ok(())
}

fn open(name: &str, append: bool) -> Result<File, LogError> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .append(append)
        .truncate(!append)
        .open(name)
        .map_err(|source| LogError { path: name.into(), source })
}

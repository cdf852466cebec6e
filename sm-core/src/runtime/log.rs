//! Where the log goes: standard output and, if asked for, a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::Settings;

/// The log file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("log file {}: {source}; name another with -f", path.display())]
pub struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// Whether there is a log, on standard output at least.
pub(super) fn is_on() -> bool {
    tracing::dispatcher::has_been_set()
}

/// Sets logging up for the process. A second call has no effect.
pub(super) fn init(settings: &Settings) -> Result<(), LogError> {
    let level = match settings.log_flags {
        flags if flags & 0x78 != 0 => LevelFilter::TRACE,
        flags if flags & 0x04 != 0 => LevelFilter::DEBUG,
        flags if flags & 0x02 != 0 => LevelFilter::INFO,
        flags if flags & 0x01 != 0 => LevelFilter::WARN,
        _ => LevelFilter::OFF,
    };
    // Libraries beneath us speak up only when something is wrong, unless RUST_LOG says otherwise.
    let own = format!("warn,sm_core={level},ibsm={level}");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(own));
    let file = settings.log_file.as_ref().map(|name| open(name, settings.accum_log_file));
    let file = file.transpose()?.map(|file| {
        tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .log_internal_errors(false)
            .with_writer(Mutex::new(file))
    });
    let terminal = std::io::IsTerminal::is_terminal(&io::stdout());
    // Whoever read standard output may have gone; that must not end the subnet manager.
    let stdout = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(terminal)
        .log_internal_errors(false);
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

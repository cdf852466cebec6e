//! The system's log, by its datagram socket (RFC 3164, without a time stamp: the daemon adds it):
//! as the place of the log (`-f syslog`), or for a copy (log bit 0x80).

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;

use super::{LogError, lock};

/// Sends lines to the system's log.
pub(super) struct Syslog {
    socket: UnixDatagram,
    /// The daemon's socket. It is found again after the daemon has restarted.
    path: PathBuf,
    tag: Arc<Mutex<String>>,
}

/// Socket of the system's log.
pub(super) const SYSLOG_SOCKET: &str = "/dev/log";
/// Facility "daemon" of the system's log.
const DAEMON: u8 = 3 << 3;

/// Fails if there is no system's log.
pub(super) fn reach(path: &Path) -> Result<(), LogError> {
    let reached = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    reached.map_err(|source| LogError { path: path.to_owned(), source })
}

/// Warns if lines are to be copied to a system's log that does not exist.
pub(super) fn warn_of_missing(path: &Path) {
    if let Err(LogError { path, source }) = reach(path) {
        warn!(
            "log flag 0x80: {}: {source}; lines are not copied to the system's log until it is \
             there",
            path.display()
        );
    }
}

impl Syslog {
    pub(super) fn new(path: &Path, tag: &Arc<Mutex<String>>) -> Result<Self, LogError> {
        let path = path.to_owned();
        let socket = UnixDatagram::unbound().and_then(|socket| {
            // A log daemon that hangs must not stop the subnet manager; lines that do not fit are
            // lost.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match socket {
            Ok(socket) => Ok(Self { socket, path, tag: Arc::clone(tag) }),
            Err(source) => Err(LogError { path, source }),
        }
    }

    /// The layer that sends lines: the daemon adds the time, and the severity is the level. It
    /// sends `all`, or, while `copies`, those of information and above.
    pub(super) fn into_layer<S>(self, all: bool, copies: &Arc<AtomicBool>) -> impl Layer<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let copies = Arc::clone(copies);
        let most = if all { LevelFilter::TRACE } else { LevelFilter::INFO };
        let is_sent = move |metadata: &Metadata<'_>| {
            (all || copies.load(Relaxed)) && *metadata.level() <= most
        };
        let is_sent = dynamic_filter_fn(move |metadata, _| is_sent(metadata));
        tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_ansi(false)
            .without_time()
            .with_level(false)
            .log_internal_errors(false)
            .with_writer(self)
            .with_filter(is_sent.with_max_level_hint(most))
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

/// Sends one line.
pub(super) struct SyslogLine<'a> {
    syslog: &'a Syslog,
    severity: u8,
}

impl Write for SyslogLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let head = format!("<{}>{}", DAEMON | self.severity, lock(&self.syslog.tag));
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let datagram = [head.as_bytes(), text].concat();
        let _ = self.syslog.socket.send_to(&datagram, &self.syslog.path);
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::cli::SYSLOG;
    use crate::runtime::log::{Log, copies_of, tag_of};
    use sm_config::Settings;

    /// What arrived at a log daemon so far, without the process id.
    fn arrived(daemon: &UnixDatagram) -> Vec<String> {
        let pid = format!("ibsm[{}]", std::process::id());
        let mut bytes = [0; 256];
        std::iter::from_fn(|| daemon.recv(&mut bytes).ok().map(|len| bytes[..len].to_vec()))
            .map(|line| String::from_utf8_lossy(&line).replace(&pid, "ibsm[]"))
            .collect()
    }

    fn daemon(path: &Path) -> UnixDatagram {
        let daemon = UnixDatagram::bind(path).unwrap();
        daemon.set_nonblocking(true).unwrap();
        daemon
    }

    #[test]
    fn the_systems_log_gets_each_line_with_its_severity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let listening = daemon(&path);
        let mut settings = Settings { log_prefix: Some("rail1".to_owned()), ..Settings::default() };
        let tag = Arc::new(Mutex::new(tag_of(&settings)));
        let syslog = Syslog::new(&path, &tag).unwrap();
        let subscriber =
            tracing_subscriber::registry().with(syslog.into_layer(true, &Arc::default()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("no port");
            warn!(lid = 3, "trap");
            tracing::info!("SUBNET UP");
            tracing::debug!("quiet");
            settings.log_prefix = Some("rail2".to_owned());
            let mut log = Log { tag, copies: Arc::default(), ..Log::default() };
            log.follow(&settings);
            tracing::info!("read again");
            assert_eq!(
                arrived(&listening),
                [
                    "<27>ibsm[]: rail1: no port",
                    "<28>ibsm[]: rail1: trap lid=3",
                    "<30>ibsm[]: rail1: SUBNET UP",
                    "<31>ibsm[]: rail1: quiet",
                    "<30>ibsm[]: rail2: read again"
                ]
            );
            // The daemon is started again.
            std::fs::remove_file(&path).unwrap();
            tracing::info!("lost");
            let listening = daemon(&path);
            tracing::info!("found");
            assert_eq!(arrived(&listening), ["<30>ibsm[]: rail2: found"]);
        });
        let error = reach(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none: No such file") && error.contains("-f"), "{error}");
    }

    #[test]
    fn with_log_bit_0x80_the_systems_log_gets_a_copy_of_what_is_no_debugging() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let listening = daemon(&path);
        let of = |log_flags| Settings { log_flags, ..Settings::default() };
        let mut log = Log {
            file: None,
            tag: Arc::new(Mutex::new(tag_of(&of(0x03)))),
            copies: Arc::new(AtomicBool::new(copies_of(&of(0x03)))),
            ..Log::default()
        };
        let syslog = Syslog::new(&path, &log.tag).unwrap();
        let subscriber = tracing_subscriber::registry().with(syslog.into_layer(false, &log.copies));
        tracing::subscriber::with_default(subscriber, || {
            let all = || {
                tracing::error!("no port");
                tracing::info!("SUBNET UP");
                tracing::debug!("quiet");
                arrived(&listening)
            };
            assert_eq!(all(), [""; 0]);
            log.follow(&of(0x83));
            // A warning, where the test runs without a system's log.
            arrived(&listening);
            assert_eq!(all(), ["<27>ibsm[]: no port", "<30>ibsm[]: SUBNET UP"]);
            log.follow(&of(0x03));
            assert_eq!(all(), [""; 0]);
        });
        let to_syslog = Settings { log_file: Some(SYSLOG.to_owned()), ..of(0x83) };
        assert!(!copies_of(&to_syslog), "it would have each line twice");
    }
}

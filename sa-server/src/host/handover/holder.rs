//! `ibsa hold`: a process that keeps descriptors open on hosts without a service manager for that.
//!
//! It serves one connection at a time on a Unix socket that only its own user can open. A request
//! is one message: `KEEP NAME` with a descriptor, or `TAKE NAME`. The answer is `OK`, with a
//! duplicate of the descriptor if one was requested and is held, or a short error text.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ib_mad::transport::local;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use sa_proto::log_limit::LogLimit;

/// Maximum number of descriptors that are held.
const HELD_MAX: usize = 16;
/// Longest name of one.
const NAME_LEN_MAX: usize = 100;
/// Longest message.
const MESSAGE_LEN_MAX: usize = 128;
/// How long the other end of a connection may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keeps the umad files of `ibsa --holder SOCKET` open while ibsa restarts, so that the kernel does
/// not answer clients that there is no SA. Stop it only when the SA is to go away
#[derive(Debug, Parser)]
#[command(name = "ibsa hold", version = daemon::VERSION)]
pub struct HoldOptions {
    /// Unix socket to listen on; only this user can connect to it
    pub socket: PathBuf,
}

/// Lines about connections that failed.
static LINES: LogLimit = LogLimit::new("connections that failed", 16, Duration::from_secs(1));

/// Holds until a signal ends it.
pub fn main(options: &HoldOptions) -> ExitCode {
    tracing_subscriber::fmt()
        .with_target(false)
        .with_ansi(io::stdout().is_terminal())
        .log_internal_errors(false)
        .init();
    let socket = options.socket.display();
    let ended = Holder::bind(&options.socket).and_then(|holder| {
        tracing::info!(%socket, "listening for descriptors to hold");
        holder.serve(None)
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("cannot hold descriptors at {socket}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A socket, and the held descriptors.
#[derive(Debug)]
pub struct Holder {
    listener: OwnedFd,
    held: BTreeMap<String, OwnedFd>,
}

impl Holder {
    /// Serves at `path`, in place of one that was killed there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener =
            local::listen(path, SocketFlags::empty()).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another holder serves there; leave it, or choose another socket",
                ),
                _ => error,
            })?;
        Ok(Self { listener, held: BTreeMap::new() })
    }

    /// Serves this many connections, or until the socket fails.
    pub fn serve(mut self, connections: Option<usize>) -> io::Result<()> {
        for _ in 0..connections.unwrap_or(usize::MAX) {
            let served = match local::accept(&self.listener, SocketFlags::empty()) {
                Ok((connection, pid)) => self.serve_one(&connection, pid),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
                Err(error) => return Err(error),
            };
            if let Err(error) = served
                && LINES.permits()
            {
                tracing::warn!(%error, "connection from an ibsa failed");
            }
        }
        Ok(())
    }

    fn serve_one(&mut self, connection: &OwnedFd, pid: i32) -> io::Result<()> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(connection, direction, Some(PATIENCE))?;
        }
        let mut buffer = [0; MESSAGE_LEN_MAX];
        let (len, descriptor) = local::receive(connection, &mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        let text = std::str::from_utf8(&buffer[..len]).unwrap_or_default();
        match (text.split_once(' '), descriptor) {
            (Some(("KEEP", name)), Some(descriptor)) => {
                let is_new = !self.held.contains_key(name);
                if name.len() > NAME_LEN_MAX || (is_new && self.held.len() >= HELD_MAX) {
                    return local::send(connection, b"no room", None);
                }
                tracing::info!(name, pid, "holding descriptor");
                self.held.insert(name.to_owned(), descriptor);
                local::send(connection, b"OK", None)
            }
            (Some(("TAKE", name)), None) => {
                tracing::info!(name, pid, "descriptor handed over");
                local::send(connection, b"OK", self.held.get(name).map(AsFd::as_fd))
            }
            _ => local::send(connection, b"not understood", None),
        }
    }
}

/// Stores a duplicate of `descriptor` at the holder at `socket`.
pub(super) fn keep(socket: &Path, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    ask(socket, &format!("KEEP {name}"), Some(descriptor)).map(drop)
}

/// A duplicate of the descriptor that the holder at `socket` has under `name`.
pub(super) fn take(socket: &Path, name: &str) -> io::Result<Option<OwnedFd>> {
    ask(socket, &format!("TAKE {name}"), None)
}

fn ask(
    socket: &Path,
    message: &str,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<Option<OwnedFd>> {
    let connection = local::connect(socket)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&connection, direction, Some(PATIENCE))?;
    }
    local::send(&connection, message.as_bytes(), descriptor)?;
    let mut buffer = [0; MESSAGE_LEN_MAX];
    let (len, descriptor) = local::receive(&connection, &mut buffer)?;
    match &buffer[..len] {
        b"OK" => Ok(descriptor),
        other => Err(io::Error::other(format!(
            "the holder answered '{}' to '{message}'",
            String::from_utf8_lossy(other)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixDatagram;

    /// A holder with its own socket, for a number of connections.
    fn serve(connections: usize) -> (tempfile::TempDir, PathBuf, std::thread::JoinHandle<()>) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("holder");
        let holder = Holder::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || holder.serve(Some(connections)).unwrap());
        (directory, socket, thread)
    }

    #[test]
    fn what_is_held_outlives_its_owner() {
        let (_directory, socket, thread) = serve(4);
        let (file, other) = UnixDatagram::pair().unwrap();
        assert!(take(&socket, "umad").unwrap().is_none());
        keep(&socket, "umad", file.as_fd()).unwrap();
        drop(file);
        other.send(b"waits").unwrap();
        // Twice: one successor may die as well.
        for _ in 0..2 {
            assert!(take(&socket, "umad").unwrap().is_some());
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_successor_reads_on() {
        let (_directory, socket, thread) = serve(2);
        let (file, other) = UnixDatagram::pair().unwrap();
        keep(&socket, "umad", file.as_fd()).unwrap();
        drop(file);
        other.send(b"waits").unwrap();
        let successor = UnixDatagram::from(take(&socket, "umad").unwrap().unwrap());
        thread.join().unwrap();
        let mut buffer = [0; 16];
        assert_eq!(successor.recv(&mut buffer).unwrap(), 5);
    }

    #[test]
    fn only_the_user_can_reach_it_and_there_is_one() {
        let (_directory, socket, thread) = serve(2);
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = Holder::bind(&socket).unwrap_err().to_string();
        assert!(second.contains("another holder serves there"), "{second}");
        assert!(ask(&socket, "WHAT", None).unwrap_err().to_string().contains("not understood"));
        thread.join().unwrap();
        // It has ended and left its file behind.
        Holder::bind(&socket).unwrap();
    }

    #[test]
    fn there_is_an_end_to_what_is_held() {
        let (_directory, socket, thread) = serve(HELD_MAX + 3);
        let (file, _other) = UnixDatagram::pair().unwrap();
        let kept =
            |i: usize| keep(&socket, &format!("umad-{i}"), file.as_fd()).map_err(|e| e.to_string());
        assert!((0..HELD_MAX).all(|i| kept(i).is_ok()));
        assert!(kept(HELD_MAX).unwrap_err().contains("no room"));
        assert_eq!(kept(0), Ok(()), "one in place of another");
        let long = "x".repeat(NAME_LEN_MAX + 1);
        assert!(keep(&socket, &long, file.as_fd()).is_err());
        thread.join().unwrap();
    }
}

//! The SM's port on this host (`--at-sm-port`): its file of SA requests is shared with the manager.
//!
//! A thread keeps a connection to the manager's socket: it offers a descriptor of the file, says
//! when there are tables to answer from, and opens or closes the [`Gate`] as the manager names the
//! reader. Without a manager the port is read as soon as there are tables, unless another responder
//! was named last. See [`sharing`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ib_mad::transport::umad::sharing::{self, FromManager, FromResponder};
use ib_mad::transport::{Interest, local, wait};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::gate::Gate;

/// How long the manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the thread looks for a manager, for tables, and for another file.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The manager whose port this responder shares. Clones are handles to the same connection.
#[derive(Clone, Debug)]
pub(crate) struct SmPort {
    socket: PathBuf,
    offer: FromResponder,
    gate: Arc<Gate>,
    file: Arc<Mutex<File>>,
}

/// The file in use.
#[derive(Debug, Default)]
struct File {
    descriptor: Option<OwnedFd>,
    /// Grows when another takes its place.
    number: u64,
}

impl SmPort {
    /// A responder with this id and name, and the manager's socket.
    pub(crate) fn new(socket: PathBuf, id: u64, name: String) -> io::Result<Self> {
        let offer = FromResponder::Offer { id, name };
        Ok(Self { socket, offer, gate: Gate::new()?, file: Arc::default() })
    }

    /// Whether the port's requests are read.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Asks the manager for the file; `None` if it has none, or does not run.
    pub(crate) fn ask(&self) -> Option<OwnedFd> {
        let ask = || {
            let connection = self.connect()?;
            sharing::send_to_manager(&connection, &self.offer, None)?;
            sharing::receive_from_manager(&connection)
        };
        match ask() {
            Ok(Some((FromManager::File, file))) => file,
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(socket = %self.socket.display(), %error, "cannot reach ibsm");
                None
            }
        }
    }

    /// The file in use from now on.
    pub(crate) fn set_file(&self, descriptor: OwnedFd) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.number += 1;
        file.descriptor = Some(descriptor);
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let connection = local::connect(&self.socket)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&connection, direction, Some(PATIENCE))?;
        }
        Ok(connection)
    }

    /// Starts the thread. `is_ready` returns whether there are tables.
    pub(crate) fn start(self, is_ready: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
        let mut link = Link { port: self, connection: None, is_resting: false, was_found: None };
        let mut is_ready = is_ready;
        let work = move || {
            loop {
                link.turn(&mut is_ready);
            }
        };
        thread::Builder::new().name("ibsa-sm-port".to_owned()).spawn(work).map(drop)
    }
}

/// The connection to the manager, and its state.
struct Link {
    port: SmPort,
    connection: Option<Connection>,
    /// Another responder was named reader after this one.
    is_resting: bool,
    /// What was last logged: whether a manager was found.
    was_found: Option<bool>,
}

struct Connection {
    socket: OwnedFd,
    /// Number of the file that was offered.
    file: u64,
    is_ready: bool,
}

impl Link {
    fn turn(&mut self, is_ready: &mut impl FnMut() -> bool) {
        let begun = Instant::now();
        if let Err(error) = self.follow(is_ready) {
            tracing::debug!(%error, "the connection to ibsm at its port has ended");
            self.connection = None;
        }
        if self.connection.is_none() {
            // Nothing else would name a reader.
            if !self.is_resting && is_ready() {
                self.set_reading(true, "no ibsm shares it");
            }
            thread::sleep(LOOK_INTERVAL.saturating_sub(begun.elapsed()));
        }
    }

    /// Connects, sends this responder's state, and follows the manager's instructions.
    fn follow(&mut self, is_ready: &mut impl FnMut() -> bool) -> io::Result<()> {
        let number = self.port.file.lock().unwrap_or_else(PoisonError::into_inner).number;
        if self.connection.as_ref().is_some_and(|connection| connection.file != number) {
            // The new file is offered by a new connection.
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Some(self.open()?);
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if !connection.is_ready && is_ready() {
            let state = if self.is_resting { FromResponder::Spare } else { FromResponder::Ready };
            sharing::send_to_manager(&connection.socket, &state, None)?;
            connection.is_ready = true;
        }
        let mut interests = [Interest::read(connection.socket.as_fd())];
        wait(&mut interests, Some(LOOK_INTERVAL))?;
        if !interests[0].is_readable() {
            return Ok(());
        }
        match sharing::receive_from_manager(&connection.socket)? {
            Some((FromManager::Read, _)) => {
                self.is_resting = false;
                self.set_reading(true, "named by ibsm");
            }
            Some((FromManager::Rest, _)) => {
                self.is_resting = true;
                self.set_reading(false, "another responder was named by ibsm");
            }
            Some((FromManager::File | FromManager::NoFile, _)) => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn open(&mut self) -> io::Result<Connection> {
        let opened = self.port.connect();
        let is_found = opened.is_ok();
        if self.was_found.replace(is_found) != Some(is_found) {
            let socket = self.port.socket.display();
            match &opened {
                Ok(_) => tracing::info!(%socket, "sharing the SM's port with ibsm"),
                Err(error) => tracing::warn!(
                    %socket, %error,
                    "no ibsm shares the SM's port; trying again. Is --sm-state-dir its directory?"
                ),
            }
        }
        let socket = opened?;
        let file = self.port.file.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = file.descriptor.as_ref().map(AsFd::as_fd);
        sharing::send_to_manager(&socket, &self.port.offer, descriptor)?;
        Ok(Connection { socket, file: file.number, is_ready: false })
    }

    fn set_reading(&self, is_reading: bool, reason: &str) {
        if self.port.gate.set_open(is_reading) {
            let verb = if is_reading { "reading" } else { "no longer reading" };
            tracing::info!(reason, "{verb} SA requests at the SM's port");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    use rustix::net::SocketFlags;

    /// A responder whose file is a socket, and the manager's end.
    struct Bench {
        link: Link,
        listener: OwnedFd,
        _directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(sharing::SOCKET_NAME);
            let listener = local::listen(&path, SocketFlags::empty()).unwrap();
            let port = SmPort::new(path, 7, "r1".to_owned()).unwrap();
            port.set_file(UnixDatagram::unbound().unwrap().into());
            let link = Link { port, connection: None, is_resting: false, was_found: None };
            Self { link, listener, _directory: directory }
        }

        /// The manager's end of a new connection, and whether the file was offered.
        fn accept(&self) -> (OwnedFd, bool) {
            let (manager, _) = local::accept(&self.listener, SocketFlags::empty()).unwrap();
            let (offer, file) = sharing::receive_from_responder(&manager).unwrap().unwrap();
            assert_eq!(offer, FromResponder::Offer { id: 7, name: "r1".to_owned() });
            (manager, file.is_some())
        }

        fn is_reading(&self) -> bool {
            self.link.port.gate.is_open()
        }
    }

    fn said(manager: &OwnedFd) -> FromResponder {
        sharing::receive_from_responder(manager).unwrap().unwrap().0
    }

    fn say(manager: &OwnedFd, message: FromManager) {
        sharing::send_to_responder(manager, message, None).unwrap();
    }

    #[test]
    fn the_port_is_read_once_the_manager_says_so() {
        let mut bench = Bench::new();
        bench.link.turn(&mut || false);
        let (manager, with_file) = bench.accept();
        assert!(with_file);
        bench.link.turn(&mut || true);
        assert_eq!(said(&manager), FromResponder::Ready);
        assert!(!bench.is_reading(), "it is not named yet");
        say(&manager, FromManager::Read);
        bench.link.turn(&mut || true);
        assert!(bench.is_reading());
        say(&manager, FromManager::Rest);
        bench.link.turn(&mut || true);
        assert!(!bench.is_reading());
    }

    #[test]
    fn a_reader_goes_on_without_the_manager() {
        let mut bench = Bench::new();
        bench.link.turn(&mut || true);
        let (manager, _) = bench.accept();
        say(&manager, FromManager::Read);
        bench.link.turn(&mut || true);
        drop(manager);
        bench.link.turn(&mut || true);
        assert!(bench.is_reading());
        bench.link.turn(&mut || true);
        let (manager, with_file) = bench.accept();
        assert!(with_file && said(&manager) == FromResponder::Ready && bench.is_reading());
    }

    /// Regression: after a restart of the manager two processes would read.
    #[test]
    fn a_responder_that_rests_goes_on_resting_without_the_manager() {
        let mut bench = Bench::new();
        bench.link.turn(&mut || true);
        let (manager, _) = bench.accept();
        say(&manager, FromManager::Rest);
        bench.link.turn(&mut || true);
        drop(manager);
        for _ in 0..2 {
            bench.link.turn(&mut || true);
        }
        assert!(!bench.is_reading());
        assert_eq!(said(&bench.accept().0), FromResponder::Spare);
    }

    #[test]
    fn without_a_manager_the_port_is_read_as_soon_as_there_are_tables() {
        let mut bench = Bench::new();
        bench.link.port.socket.set_file_name("none");
        bench.link.turn(&mut || false);
        assert!(!bench.is_reading());
        bench.link.turn(&mut || true);
        assert!(bench.is_reading());
    }

    #[test]
    fn another_file_is_offered_by_another_connection() {
        let mut bench = Bench::new();
        bench.link.turn(&mut || true);
        let (_first, _) = bench.accept();
        bench.link.port.set_file(UnixDatagram::unbound().unwrap().into());
        bench.link.turn(&mut || true);
        assert!(bench.accept().1);
    }

    #[test]
    fn the_managers_file_is_asked_for() {
        let bench = Bench::new();
        let port = bench.link.port.clone();
        let asked = thread::spawn(move || port.ask().is_some());
        let (manager, with_file) = bench.accept();
        assert!(!with_file);
        let (file, _other) = UnixDatagram::pair().unwrap();
        sharing::send_to_responder(&manager, FromManager::File, Some(file.as_fd())).unwrap();
        assert!(asked.join().unwrap());
    }
}

//! The file of SA requests at the SM's port, which responders of this host may share: opens it,
//! passes it to them and takes theirs, over a Unix socket in the state directory, and reads it
//! while no responder does. [`PortReader`] selects the reader.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use ib_mad::transport::umad::sharing::{self, FromManager, FromResponder, SOCKET_NAME};
use ib_mad::transport::umad::{Umad, UmadError, UmadOptions, UmadPort};
use ib_mad::transport::{Packet, Transport, local};
use rustix::net::SocketFlags;
use sa_proto::log_limit::LogLimit;
use sa_proto::snapshot::Session;
use tracing::{debug, info, warn};

use super::attachment::{AttachError, unless_short};
use crate::cli::SaMode;
use crate::front_door::{ConnectionId, PortReader, PortService};
use crate::observe::{Hung, Responder};

/// Limit of connected responders; more are refused.
const CONNECTIONS_MAX: usize = 8;
/// Limit of messages taken from a connection in a turn.
const MESSAGES_MAX: usize = 8;
/// How often the file is opened again, and its port's tables are read.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);
/// How often connections are looked at while the loop never waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Lines about processes that are refused.
static LINES: LogLimit = LogLimit::new("processes at the SM's port", 16, Duration::from_secs(1));

/// The file, and the responders that share it.
pub(super) struct SaPort {
    mode: SaMode,
    port: Option<UmadPort>,
    file: Option<Umad>,
    reader: PortReader,
    /// The socket for responders; `None` in [`SaMode::Internal`].
    listener: Option<OwnedFd>,
    connections: BTreeMap<ConnectionId, Peer>,
    last_connection: ConnectionId,
    reads_here: bool,
    upkeep_due: Instant,
    look_due: Instant,
    /// Whether it was logged that another process has the class.
    is_taken: bool,
}

/// A connected process.
struct Peer {
    connection: OwnedFd,
    pid: i32,
}

impl SaPort {
    /// Opens the file of `port`, unless the mode is external, and listens for responders.
    pub(super) fn start(mode: SaMode, port: UmadPort, state: &Path) -> Result<Self, AttachError> {
        let now = Instant::now();
        let listener = match mode {
            SaMode::Internal => None,
            SaMode::Auto | SaMode::External => Some(listen(&state.join(SOCKET_NAME))?),
        };
        let mut this = Self {
            mode,
            port: Some(port),
            file: None,
            reader: PortReader::new(now, mode),
            listener,
            connections: BTreeMap::new(),
            last_connection: 0,
            reads_here: false,
            upkeep_due: now + UPKEEP_INTERVAL,
            look_due: now,
            is_taken: false,
        };
        this.open()?;
        Ok(this)
    }

    /// The port was found again, possibly as another device; its earlier file is of no use.
    pub(super) fn reattach(&mut self, port: Option<UmadPort>) {
        self.port = port;
        self.lose_file();
    }

    /// The file is of no use. Responders offer theirs, or ask for one, when they connect again.
    fn lose_file(&mut self) {
        let now = Instant::now();
        self.set_file(None);
        self.upkeep_due = now;
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            self.close(now, id);
        }
    }

    /// Accepts connections and messages, and performs due work; `responders` are those of the feed,
    /// `hung` those that it has lost, and `session` is that of this SM.
    pub(super) fn maintain(
        &mut self,
        now: Instant,
        responders: &[Responder],
        hung: &[Hung],
        session: Option<Session>,
    ) {
        if now >= self.look_due {
            self.look_due = now + LOOK_INTERVAL;
            self.accept();
            self.take_messages(now);
        }
        if now >= self.upkeep_due {
            self.upkeep_due = now + UPKEEP_INTERVAL;
            self.upkeep();
        }
        self.reader.set_session(session);
        self.reader.set_hung(now, |id| hung.iter().any(|one| one.id == id));
        self.reads_here = self.reader.reads_here(now, responders);
        self.reader.handle_timeout(now, self.reads_here);
        while let Some((to, message)) = self.reader.poll_message() {
            self.send(now, to, message, false);
        }
    }

    /// Receives requests, if this process reads.
    pub(super) fn receive(&mut self, batch: &mut [Packet]) -> usize {
        let Some(file) = self.file.as_mut().filter(|_| self.reads_here) else { return 0 };
        file.receive(batch).unwrap_or_else(|error| {
            warn!("cannot read SA requests at the SM's port: {error}; reopening its umad file");
            self.lose_file();
            0
        })
    }

    /// Descriptors to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let file = self.file.as_ref().filter(|_| self.reads_here);
        let file = file.and_then(|file| file.descriptor());
        let peers = self.connections.values().map(|peer| peer.connection.as_fd());
        self.listener.iter().map(AsFd::as_fd).chain(peers).chain(file)
    }

    /// One of the descriptors is readable: connections are looked at in the next turn.
    pub(super) fn note_readable(&mut self) {
        self.look_due = Instant::now();
    }

    /// When [`maintain`](Self::maintain) is due.
    pub(super) fn due(&self) -> Instant {
        let decision = self.reader.poll_timeout();
        // The feed's thread does not wake the loop.
        let feed = self.reader.awaits_responder().then(|| Instant::now() + LOOK_INTERVAL);
        [decision, feed].into_iter().flatten().fold(self.upkeep_due, Instant::min)
    }

    /// Id in the feed of the responder that reads, if one does.
    pub(super) fn responder(&self) -> Option<u64> {
        self.reader.responder()
    }

    /// The process that reads.
    pub(super) fn service(&self) -> PortService {
        self.reader.service(self.reads_here)
    }

    /// How often the reader has changed.
    pub(super) fn changes(&self) -> u64 {
        self.reader.changes()
    }

    fn set_file(&mut self, file: Option<Umad>) {
        self.file = file;
        self.reader.set_has_file(self.file.is_some());
    }

    /// Opens the file if this process is to have one. It is no error if another process serves the
    /// class, unless none may: that one is expected to connect.
    fn open(&mut self) -> Result<(), UmadError> {
        let Some(port) = &self.port else { return Ok(()) };
        if self.file.is_some() || self.mode == SaMode::External {
            return Ok(());
        }
        match Umad::open(&UmadOptions::sa_responder(port.clone())) {
            Ok(file) => {
                self.is_taken = false;
                self.set_file(Some(file));
                Ok(())
            }
            Err(UmadError::Taken { .. }) if self.mode == SaMode::Auto => {
                if !std::mem::replace(&mut self.is_taken, true) {
                    info!(
                        "another process serves SA requests at {port}; waiting for it to connect \
                         (ibsa --at-sm-port)"
                    );
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the file if it is missing, otherwise reads the port's P_Keys and GIDs again.
    fn upkeep(&mut self) {
        if let Some(file) = &mut self.file {
            if let Err(error) = unless_short(file.refresh()) {
                debug!("the SM's port is gone: {error}");
                self.lose_file();
            }
        } else if let Err(error) = self.open() {
            debug!("cannot open the umad file for SA requests: {error}");
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..CONNECTIONS_MAX {
            match local::accept(listener, SocketFlags::NONBLOCK) {
                Ok(_) if self.connections.len() >= CONNECTIONS_MAX => {
                    if LINES.permits() {
                        warn!(
                            "more than {CONNECTIONS_MAX} responders at the SM's port; one refused"
                        );
                    }
                }
                Ok((connection, pid)) => {
                    self.last_connection += 1;
                    self.connections.insert(self.last_connection, Peer { connection, pid });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    if LINES.permits() {
                        warn!("a process was refused at the socket of the SM's port: {error}");
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn take_messages(&mut self, now: Instant) {
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            for _ in 0..MESSAGES_MAX {
                let Some(peer) = self.connections.get(&id) else { break };
                match sharing::receive_from_responder(&peer.connection) {
                    Ok(Some((message, file))) => self.take(now, id, message, file),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Ok(None) | Err(_) => self.close(now, id),
                }
            }
        }
    }

    fn take(
        &mut self,
        now: Instant,
        id: ConnectionId,
        message: FromResponder,
        file: Option<OwnedFd>,
    ) {
        match message {
            FromResponder::Offer { id: responder, name } => {
                let pid = self.connections.get(&id).map_or(0, |peer| peer.pid);
                self.reader.handle_offer(id, responder, name, pid);
                if let Some(file) = file {
                    if !self.adopt(file) {
                        self.close(now, id);
                    }
                    return;
                }
                self.upkeep();
                let answer = match self.file {
                    Some(_) => FromManager::File,
                    None => FromManager::NoFile,
                };
                self.send(now, id, answer, true);
            }
            FromResponder::Ready => self.reader.handle_ready(id, false),
            FromResponder::Spare => self.reader.handle_ready(id, true),
        }
    }

    /// Keeps a responder's file in place of one's own: the class belongs to one file at a time.
    /// Returns whether it is the port's.
    fn adopt(&mut self, file: OwnedFd) -> bool {
        let Some(port) = &self.port else { return false };
        match Umad::adopt(file, &UmadOptions::sa_responder(port.clone())) {
            Ok(file) => {
                self.set_file(Some(file));
                true
            }
            Err(error) => {
                if LINES.permits() {
                    warn!(
                        "a responder with --at-sm-port is refused: {error}; start it with \
                         --device {} --port {}",
                        port.device, port.num
                    );
                }
                false
            }
        }
    }

    fn send(&mut self, now: Instant, to: ConnectionId, message: FromManager, with_file: bool) {
        let Some(peer) = self.connections.get(&to) else { return };
        let file = self.file.as_ref().filter(|_| with_file).and_then(|file| file.descriptor());
        if let Err(error) = sharing::send_to_responder(&peer.connection, message, file) {
            debug!("cannot send to a responder at the SM's port: {error}");
            self.close(now, to);
        }
    }

    fn close(&mut self, now: Instant, id: ConnectionId) {
        self.connections.remove(&id);
        self.reader.handle_closed(now, id);
    }
}

fn listen(path: &Path) -> Result<OwnedFd, AttachError> {
    local::listen(path, SocketFlags::NONBLOCK)
        .map_err(|source| AttachError::SaSocket { path: path.to_owned(), source })
}

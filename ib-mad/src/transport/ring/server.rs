//! A responder's end of all rings.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::queue::{Broken, Consumer, Producer, server_ends};
use super::{always_readable, handshake, spin};
use crate::transport::{Malformed, Packet, Transport, local};

/// Receive calls between two checks of the sockets while packets keep arriving.
const LOOK_AROUND: u32 = 1024;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Upper limit of `clients_max`.
const CLIENTS_LIMIT: usize = 256;

/// How to serve rings.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The Unix socket to listen on, accessible to this user only. The socket file of a server that
    /// no longer runs is replaced.
    pub path: PathBuf,
    /// Limit of simultaneous clients.
    pub clients_max: usize,
}

impl RingOptions {
    /// Up to 16 clients, by a socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), clients_max: 16 }
    }
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Clients that were given a ring.
    pub accepted: u64,
    /// Clients refused: too many, or of another user.
    pub refused: u64,
    /// Clients whose ring was closed because of impossible positions.
    pub expelled: u64,
    /// Packets dropped because their client is gone or its queue is full.
    pub dropped: u64,
    /// Packets among them that were dropped because of a full queue.
    pub overflowed: u64,
}

/// The rings of all clients, as one queue.
pub struct RingServer {
    path: PathBuf,
    listener: UnixListener,
    /// Readable when a client connects, wakes the server or disconnects.
    bell: OwnedFd,
    ready: OwnedFd,
    /// Whether this end has announced to clients that it sleeps.
    slept: Cell<bool>,
    clients: Box<[Option<Client>]>,
    /// Clients so far; distinguishes successive clients in the same place.
    generation: u32,
    /// The client to serve first in the next call.
    turn: usize,
    calls: u32,
    counters: RingCounters,
    malformed: Malformed,
}

struct Client {
    stream: UnixStream,
    peer: SocketAddr,
    requests: Consumer,
    answers: Producer,
    /// Whether written responses have not been published.
    is_written: bool,
}

impl RingServer {
    /// Binds and listens.
    pub fn bind(options: &RingOptions) -> io::Result<Self> {
        let listener = listen(&options.path)?;
        // SAFETY: no pointers are passed.
        let bell = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        let server = Self {
            path: options.path.clone(),
            listener,
            // SAFETY: the descriptor is open and has no other owner.
            bell: unsafe { OwnedFd::from_raw_fd(bell) },
            ready: always_readable()?,
            slept: Cell::new(false),
            clients: (0..options.clients_max.min(CLIENTS_LIMIT)).map(|_| None).collect(),
            generation: 0,
            turn: 0,
            calls: 0,
            counters: RingCounters::default(),
            malformed: Malformed::default(),
        };
        server.watch(server.listener.as_fd())?;
        Ok(server)
    }

    /// Counters so far.
    pub fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Adds `descriptor` to the epoll set.
    fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let bell = self.bell.as_raw_fd();
        // SAFETY: both descriptors are open, and the event outlives the call.
        let result = unsafe {
            libc::epoll_ctl(bell, libc::EPOLL_CTL_ADD, descriptor.as_raw_fd(), &mut event)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives packets of all clients, starting with a different one each time.
    fn take(&mut self, batch: &mut [Packet]) -> usize {
        let count = self.clients.len();
        let mut got = 0;
        for place in 0..count {
            let place = (self.turn + place) % count;
            let Some(client) = &mut self.clients[place] else { continue };
            match client.requests.take(&mut batch[got..], Some(client.peer)) {
                Ok(taken) => {
                    got += taken.packets;
                    self.malformed.envelope += taken.malformed;
                }
                Err(Broken) => self.expel(place),
            }
            if got == batch.len() {
                break;
            }
        }
        if got > 0 {
            self.turn = (self.turn + 1) % count;
        }
        got
    }

    /// Whether a client has packets.
    fn is_asked(&self) -> bool {
        self.clients.iter().flatten().any(|client| !client.requests.is_empty())
    }

    fn expel(&mut self, place: usize) {
        self.clients[place] = None;
        self.counters.expelled += 1;
    }

    /// Handles clients that connected, sent a wake-up or disconnected.
    fn look_around(&mut self) {
        for client in &mut self.clients {
            let is_gone =
                client.as_mut().is_some_and(|client| match client.stream.read(&mut [0; 64]) {
                    Ok(0) => true,
                    Ok(_) => false,
                    Err(error) => error.kind() != io::ErrorKind::WouldBlock,
                });
            if is_gone {
                *client = None;
            }
        }
        // At most as many as there are places, so that pending clients do not delay the others.
        for _ in 0..=self.clients.len() {
            let Ok((stream, _)) = self.listener.accept() else { break };
            match self.admit(stream) {
                Ok(true) => self.counters.accepted += 1,
                Ok(false) | Err(_) => self.counters.refused += 1,
            }
        }
    }

    /// Gives a client a ring; `false` if no place is free.
    fn admit(&mut self, stream: UnixStream) -> io::Result<bool> {
        stream.set_nonblocking(true)?;
        let user = handshake::peer_user(&stream)?;
        let place = self.clients.iter().position(Option::is_none);
        let (Some(place), true) = (place, user == handshake::own_user() || user == 0) else {
            handshake::give(&stream, None)?;
            return Ok(false);
        };
        let (memory, descriptor) = handshake::new_memory()?;
        self.watch(stream.as_fd())?;
        handshake::give(&stream, Some(&descriptor))?;
        self.generation = self.generation.wrapping_add(1);
        let port = place as u16 + 1;
        let peer = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, self.generation, 0).into();
        let (requests, answers) = server_ends(memory);
        self.clients[place] = Some(Client { stream, peer, requests, answers, is_written: false });
        Ok(true)
    }
}

/// Key of a client: its place, counted from 1, and the number of the client at that place. No key
/// has place 0.
#[inline]
fn key(peer: Option<SocketAddr>) -> (u16, u32) {
    match peer {
        Some(SocketAddr::V6(peer)) => (peer.port(), peer.flowinfo()),
        _ => (0, 0),
    }
}

/// The client with this key, if it is still connected, and its place.
fn find(clients: &mut [Option<Client>], meant: (u16, u32)) -> Option<(usize, &mut Client)> {
    let place = usize::from(meant.0).checked_sub(1)?;
    let client = clients.get_mut(place)?.as_mut()?;
    (key(Some(client.peer)) == meant).then_some((place, client))
}

impl Transport for RingServer {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        self.calls = self.calls.wrapping_add(1);
        if self.slept.take() {
            self.clients.iter().flatten().for_each(|client| client.requests.wake_up());
            self.look_around();
        } else if self.calls.is_multiple_of(LOOK_AROUND) {
            self.look_around();
        }
        Ok(self.take(batch))
    }

    fn is_drained(&self) -> bool {
        !self.is_asked()
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let mut rest = batch;
        while let Some(first) = rest.first() {
            let meant = key(first.carrier.peer);
            let same = rest.iter().take_while(|packet| key(packet.carrier.peer) == meant);
            let (run, after) = rest.split_at(same.count());
            rest = after;
            let Some((place, client)) = find(&mut self.clients, meant) else {
                self.counters.dropped += run.len() as u64;
                continue;
            };
            let written = client.answers.write(run);
            let lost = (run.len() - written.unwrap_or(0)) as u64;
            self.counters.dropped += lost;
            match written {
                Ok(written) => {
                    client.is_written |= written > 0;
                    self.counters.overflowed += lost;
                }
                Err(Broken) => self.expel(place),
            }
        }
        for client in self.clients.iter_mut().flatten() {
            if std::mem::take(&mut client.is_written) && client.answers.publish() {
                // A full socket has woken the peer already; a closed one is detected when it is
                // read.
                let _ = client.stream.write(&[0]);
            }
        }
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let is_alone = self.clients.iter().all(Option::is_none);
        if !is_alone && spin(|| self.is_asked()) {
            return Some(self.ready.as_fd());
        }
        self.slept.set(true);
        self.clients.iter().flatten().for_each(|client| client.requests.fall_asleep());
        Some(if self.is_asked() { self.ready.as_fd() } else { self.bell.as_fd() })
    }

    /// Responses dropped because of full queues. Requests are not dropped: a client keeps those
    /// that its queue has no room for.
    fn overflowed(&mut self) -> u64 {
        self.counters.overflowed
    }

    fn malformed(&self) -> Malformed {
        self.malformed
    }
}

impl Drop for RingServer {
    fn drop(&mut self) {
        // Another process may have created its own socket there meanwhile; then bind again.
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens at `path`, accessible to this user only.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
    }
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(local::listen_privately(listener, path, BACKLOG)?.into())
}

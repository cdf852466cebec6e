//! Serves a fabric over ibsim's socket protocol, to any number of clients, several per node.
//!
//! One thread polls all sockets, moves packets in batches and never blocks on a client: packets
//! that a client does not read wait in its own queue, and are dropped and counted when that is
//! full. Dead clients are detected and detached.
//!
//! The protocol's message layouts are in `ib_mad`, control requests in `control`, and operators'
//! commands in `console`.

mod client;
pub mod console;
mod control;
mod socket;

pub(crate) use self::socket::{ignore_hangups, raise_descriptor_limit};

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::protocol::{CONTROL_LEN, Control, socket_name};
use ib_mad::types::Lid;

use self::client::{Client, SendError, client_number};
use self::socket::{BATCH_MAX, Epoll, Ready, Received};
use crate::{Delivery, Endpoint, Fabric, RouteCheck};

const CONTROL: u64 = 1 << 32;
const CONSOLE: u64 = 2 << 32;
const OPERATOR: u64 = 3 << 32;
const KEYBOARD: u64 = 4 << 32;

/// Control requests handled in a row before packets are.
const CONTROL_BATCH: usize = 16;
/// Limit of connected operators.
const OPERATORS_MAX: usize = 16;
/// Limit of an operator's line, in bytes.
const LINE_MAX: usize = 1024;
/// The longest that a route check may delay packets at a time.
const CHECK_SLICE: Duration = Duration::from_millis(5);
/// How often silent clients are checked.
const REAP_INTERVAL: Duration = Duration::from_secs(2);

/// Name of the stream socket for operators' commands; ibsim has no such socket.
pub(crate) fn console_name(socket: &str) -> Vec<u8> {
    socket_name(socket, "console")
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another server uses the name.
    #[error(
        "socket name '{0}' is in use by another ibfabric or ibsim; stop it or choose another name \
         with --socket"
    )]
    InUse(String),
    /// The system's error.
    #[error("socket '{name}': {source}")]
    Io {
        /// Base of the socket names.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The server's own counters, beyond those of the fabric.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ServerCounters {
    /// Datagrams that were not valid packets.
    pub bad_datagrams: u64,
    /// Packets dropped because the client's queue was full.
    pub backlog_dropped: u64,
    /// Control requests handled.
    pub control: u64,
    /// Clients attached in total.
    pub connected: u64,
    /// Clients detached because they had died.
    pub died: u64,
}

/// See the [module](self).
pub struct Server {
    fabric: Fabric,
    name: String,
    control: UnixDatagram,
    console: UnixListener,
    operators: Vec<Option<Operator>>,
    clients: Vec<Option<Client>>,
    epoll: Epoll,
    received: Received,
    deliveries: Vec<Delivery>,
    /// Clients with queues to flush.
    listed: Vec<u16>,
    counters: ServerCounters,
    /// Route checks that operators requested, done one after the other.
    checks: VecDeque<(Asker, Option<RouteCheck>)>,
    next_reap: Instant,
    keyboard: Keyboard,
    stopped: bool,
}

/// Use of the terminal on standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyboard {
    /// Input is not read: it is not a terminal, or belongs to another job.
    NotWanted,
    /// Commands are read from it.
    Watched,
    /// Input arrived while another job is in the foreground. Polling resumes when we are.
    LeftAlone,
}

/// An operator's connection.
struct Operator {
    stream: UnixStream,
    line: Vec<u8>,
    /// A check is in progress; further lines are handled after it.
    waits: bool,
}

/// The requester of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    Keyboard,
    /// An operator's connection, by its index.
    Operator(usize),
}

impl Server {
    /// Binds the socket names that begin with `name`.
    pub fn bind(fabric: Fabric, name: &str) -> Result<Self, ServeError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse(name.to_owned()),
            _ => ServeError::Io { name: name.to_owned(), source },
        };
        let open = || {
            let address = SocketAddr::from_abstract_name(socket_name(name, "ctl"))?;
            let control = UnixDatagram::bind_addr(&address)?;
            control.set_nonblocking(true)?;
            let address = SocketAddr::from_abstract_name(console_name(name))?;
            let console = UnixListener::bind_addr(&address)?;
            console.set_nonblocking(true)?;
            let epoll = Epoll::new()?;
            epoll.add(control.as_fd(), CONTROL)?;
            epoll.add(console.as_fd(), CONSOLE)?;
            Ok((control, console, epoll))
        };
        let (control, console, epoll) = open().map_err(failed)?;
        Ok(Self {
            fabric,
            name: name.to_owned(),
            control,
            console,
            operators: Vec::new(),
            clients: Vec::new(),
            epoll,
            received: Received::new(),
            deliveries: Vec::new(),
            listed: Vec::new(),
            counters: ServerCounters::default(),
            checks: VecDeque::new(),
            next_reap: Instant::now() + REAP_INTERVAL,
            keyboard: Keyboard::NotWanted,
            stopped: false,
        })
    }

    /// Also reads commands from standard input if it is a terminal and we are in its foreground.
    pub fn watch_keyboard(&mut self) -> io::Result<()> {
        self.keyboard = Keyboard::Watched;
        self.epoll.add(io::stdin().as_fd(), KEYBOARD)
    }

    /// Serves until an operator sends `quit`.
    pub fn run(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        while !self.stopped {
            let now = Instant::now();
            let due = self.fabric.poll_timeout(now).unwrap_or(self.next_reap).min(self.next_reap);
            let patience = match self.checks.is_empty() {
                true => due.saturating_duration_since(now),
                false => Duration::ZERO,
            };
            self.epoll.wait(&mut ready, Some(patience))?;
            let now = Instant::now();
            for &at in &ready {
                self.handle(now, at)?;
            }
            self.distribute(now);
            self.check(now);
            if now >= self.next_reap {
                self.reap(now);
                self.next_reap = now + REAP_INTERVAL;
                if self.keyboard == Keyboard::LeftAlone && is_in_foreground() {
                    self.watch_keyboard()?;
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, now: Instant, at: Ready) -> io::Result<()> {
        match at.token {
            CONTROL => self.serve_control(now)?,
            CONSOLE => self.accept_operator()?,
            KEYBOARD => self.read_keyboard(now)?,
            token if token >= OPERATOR => self.serve_operator(now, (token - OPERATOR) as usize),
            token => {
                if at.writable {
                    self.list(token as u16);
                }
                if at.readable {
                    self.receive(now, token as u16);
                }
            }
        }
        Ok(())
    }

    /// Reads one batch of packets from a client into the fabric.
    fn receive(&mut self, now: Instant, id: u16) {
        let Some(Some(client)) = self.clients.get(usize::from(id)) else { return };
        let endpoint = client.endpoint;
        // A socket error is reported once and cleared; a dead peer is detected when we send to it.
        let count = client.receive(&mut self.received).unwrap_or(0);
        for i in 0..count.min(BATCH_MAX) {
            match self.received.packet(i) {
                Some(bytes) => self.fabric.send(now, endpoint, &client.decode(bytes)),
                None => self.counters.bad_datagrams += 1,
            }
        }
    }

    /// Sends the fabric's deliveries to the clients.
    fn distribute(&mut self, now: Instant) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        loop {
            self.fabric.poll(now, &mut deliveries, 256);
            if deliveries.is_empty() {
                break;
            }
            for Delivery { endpoint, packet } in deliveries.drain(..) {
                let lid = self.fabric.local_lid(endpoint).unwrap_or(Lid::NONE);
                let Some(client) = self.client_mut(endpoint.id()) else { continue };
                let taken = client.push(&packet, lid);
                let full = client.queued() >= BATCH_MAX && !client.blocked;
                if !taken {
                    self.counters.backlog_dropped += 1;
                }
                self.list(endpoint.id());
                if full {
                    self.flush(now, endpoint.id());
                }
            }
        }
        self.deliveries = deliveries;
        while let Some(id) = self.listed.pop() {
            if let Some(client) = self.client_mut(id) {
                client.listed = false;
                self.flush(now, id);
            }
        }
    }

    fn flush(&mut self, now: Instant, id: u16) {
        let Some(client) = self.clients.get_mut(usize::from(id)).and_then(Option::as_mut) else {
            return;
        };
        let was_blocked = client.blocked;
        match client.flush() {
            Ok(()) if client.blocked == was_blocked => {}
            Ok(()) => {
                // Polling fails only if the socket is gone, which the next flush detects.
                let _ = self.epoll.set_write(client.fd(), u64::from(id), client.blocked);
            }
            Err(SendError::Gone) => {
                self.counters.died += 1;
                self.disconnect(now, id);
            }
            Err(SendError::Io(error)) => {
                tracing::warn!(client = id, %error, "cannot send to client, disconnecting it");
                self.disconnect(now, id);
            }
        }
    }

    fn list(&mut self, id: u16) {
        if let Some(client) = self.client_mut(id).filter(|client| !client.listed) {
            client.listed = true;
            self.listed.push(id);
        }
    }

    fn client_mut(&mut self, id: u16) -> Option<&mut Client> {
        self.clients.get_mut(usize::from(id))?.as_mut()
    }

    /// Detaches a client. Closing its socket removes it from epoll.
    fn disconnect(&mut self, now: Instant, id: u16) {
        if let Some(client) = self.clients.get_mut(usize::from(id)).and_then(Option::take) {
            self.fabric.detach(now, client.endpoint);
            tracing::info!(client = id, number = client.number, "client disconnected");
        }
    }

    /// Detaches the client whose socket names have this number.
    fn disconnect_number(&mut self, now: Instant, number: u32) {
        let old = self.clients.iter().flatten().find(|client| client.number == number);
        if let Some(id) = old.map(|client| client.endpoint.id()) {
            self.counters.died += 1;
            self.disconnect(now, id);
        }
    }

    /// Detaches clients that died without disconnecting.
    fn reap(&mut self, now: Instant) {
        let gone: Vec<u16> = (0u16..)
            .zip(&self.clients)
            .filter(|(_, client)| client.as_ref().is_some_and(|client| client.is_gone(&self.name)))
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            self.counters.died += 1;
            self.disconnect(now, id);
        }
    }

    fn serve_control(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..CONTROL_BATCH {
            let mut bytes = [0; CONTROL_LEN + 1];
            let (length, from) = match self.control.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let Some(request) = Control::from_bytes(&bytes[..length]) else {
                self.counters.bad_datagrams += 1;
                continue;
            };
            self.counters.control += 1;
            let sender = client_number(&self.name, &from);
            let answer = control::serve(self, now, sender, request);
            // Ignore errors: the peer has closed the connection or does not read.
            let _ = self.control.send_to_addr(&answer.to_bytes(), &from);
        }
        Ok(())
    }

    fn accept_operator(&mut self) -> io::Result<()> {
        let stream = match self.console.accept() {
            Ok((stream, _)) => stream,
            Err(_) => return Ok(()),
        };
        let place = match self.operators.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.operators.len() < OPERATORS_MAX => {
                self.operators.push(None);
                self.operators.len() - 1
            }
            None => return Ok(()),
        };
        stream.set_nonblocking(true)?;
        self.epoll.add(stream.as_fd(), OPERATOR + place as u64)?;
        self.operators[place] = Some(Operator { stream, line: Vec::new(), waits: false });
        Ok(())
    }

    fn serve_operator(&mut self, now: Instant, place: usize) {
        let Some(operator) = self.operators.get_mut(place).and_then(Option::as_mut) else { return };
        if operator.waits {
            return;
        }
        let mut bytes = [0; LINE_MAX];
        match operator.stream.read(&mut bytes) {
            Ok(length) if length > 0 => {
                operator.line.extend_from_slice(&bytes[..length]);
                self.obey(now, place);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.operators[place] = None,
        }
    }

    /// Runs an operator's lines, up to one that starts a check.
    fn obey(&mut self, now: Instant, place: usize) {
        while let Some(Some(operator)) = self.operators.get_mut(place)
            && !operator.waits
        {
            let Some(end) = operator.line.iter().position(|&byte| byte == b'\n') else {
                if operator.line.len() >= LINE_MAX {
                    self.operators[place] = None;
                }
                return;
            };
            let line: Vec<u8> = operator.line.drain(..=end).collect();
            let asker = Asker::Operator(place);
            match self.command(now, &String::from_utf8_lossy(&line), asker) {
                Some(reply) => self.reply(asker, &reply),
                None => self.wait_for_check(place, true),
            }
        }
    }

    fn wait_for_check(&mut self, place: usize, waits: bool) {
        if let Some(Some(operator)) = self.operators.get_mut(place) {
            operator.waits = waits;
        }
    }

    fn reply(&mut self, asker: Asker, reply: &str) {
        let Asker::Operator(place) = asker else {
            // Standard error may be closed.
            let _ = io::stderr().write_all(reply.as_bytes());
            return;
        };
        let Some(Some(Operator { stream, .. })) = self.operators.get_mut(place) else { return };
        // A reply longer than the socket's buffer: the operator does not read.
        if stream.set_nonblocking(false).is_err()
            || stream.set_write_timeout(Some(Duration::from_secs(1))).is_err()
            || stream.write_all(reply.as_bytes()).is_err()
            || stream.set_nonblocking(true).is_err()
        {
            self.operators[place] = None;
        }
    }

    /// Continues the check in progress, for a bounded time.
    fn check(&mut self, now: Instant) {
        let Some((asker, check)) = self.checks.front_mut() else { return };
        let asker = *asker;
        let check = check.get_or_insert_with(|| self.fabric.begin_check());
        let end = now + CHECK_SLICE;
        while !check.advance(&self.fabric) {
            if Instant::now() >= end {
                return;
            }
        }
        let Some((_, Some(check))) = self.checks.pop_front() else { return };
        let found = console::check_json(&self.fabric, &check.finish());
        self.reply(asker, &format!("{found}\n"));
        if let Asker::Operator(place) = asker {
            self.wait_for_check(place, false);
            self.obey(now, place);
        }
    }

    fn read_keyboard(&mut self, now: Instant) -> io::Result<()> {
        if !is_in_foreground() {
            // A read in the background would stop the process: the input is for another job.
            self.keyboard = Keyboard::LeftAlone;
            return self.epoll.remove(io::stdin().as_fd());
        }
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            self.stopped = true;
            return Ok(());
        }
        if let Some(reply) = self.command(now, &line, Asker::Keyboard) {
            self.reply(Asker::Keyboard, &reply);
        }
        Ok(())
    }

    /// Runs an operator's line; returns the reply: `ok`, `error` or JSON. `None` if a check was
    /// started, whose reply follows.
    fn command(&mut self, now: Instant, line: &str, asker: Asker) -> Option<String> {
        Some(match console::Command::parse(line) {
            Ok(console::Command::Nothing) => String::new(),
            Ok(console::Command::Quit) => {
                self.stopped = true;
                "ok\n".to_owned()
            }
            Ok(console::Command::Status) => format!("{}\n", console::status(self)),
            Ok(console::Command::Check) => {
                if self.checks.iter().any(|(other, _)| *other == asker) {
                    return Some("error: a check is in progress\n".to_owned());
                }
                self.checks.push_back((asker, None));
                return None;
            }
            Ok(command) => match command.carry_out(&mut self.fabric, now) {
                Ok(reply) => format!("{reply}\n"),
                Err(error) => format!("error: {error}\n"),
            },
            Err(error) => format!("error: {error}\n"),
        })
    }

    /// Attaches the endpoint's client and polls its socket.
    fn add_client(&mut self, endpoint: Endpoint, number: u32) -> io::Result<()> {
        let client = Client::open(&self.name, endpoint, number)?;
        self.epoll.add(client.fd(), u64::from(endpoint.id()))?;
        let place = usize::from(endpoint.id());
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        self.clients[place] = Some(client);
        self.counters.connected += 1;
        Ok(())
    }
}

/// Whether this process may read the terminal on standard input: it is open, and we are in its
/// foreground.
fn is_in_foreground() -> bool {
    let foreground = rustix::termios::tcgetpgrp(io::stdin());
    foreground.is_ok_and(|group| group == rustix::process::getpgrp())
}

//! The management network: streams in order, as TCP carries them, and datagrams, each of which may
//! be lost, repeated or overtaken.
//!
//! A message that cannot pass waits and is repeated. Whichever end hears nothing for
//! [`SILENCE_MAX`] closes its end, as HTTP/2's keepalive does; an end that a process has closed is
//! noticed by the other one as soon as the network lets it through.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use sa_proto::proto::registry::{Outcomes, Writes};
use sa_proto::proto::snapshot::{FromResponder, FromSm};

use crate::random::Random;

/// How long an end hears nothing before it gives the connection up: interval and timeout of
/// keepalive.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often that is checked, and how often a message is repeated.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
const REPEAT_INTERVAL: Duration = Duration::from_millis(200);
/// Messages in one direction of a connection before its sender has to wait.
const WINDOW: usize = 4;

/// A process: a manager or a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proc {
    /// A subnet manager, by its number.
    Manager(usize),
    /// A responder, by its number.
    Responder(usize),
}

/// UDP port of front doors and responders.
const DOOR_PORT: u16 = 7470;

impl Proc {
    /// The address of its envelopes.
    pub fn address(self) -> SocketAddr {
        let host = match self {
            Self::Manager(index) => Ipv4Addr::new(10, 0, 0, 1 + index as u8),
            Self::Responder(index) => Ipv4Addr::new(10, 0, 1, 1 + index as u8),
        };
        (host, DOOR_PORT).into()
    }

    /// The process at an address.
    pub fn at(address: SocketAddr) -> Option<Self> {
        let SocketAddr::V4(address) = address else { return None };
        let [_, _, kind, number] = address.ip().octets();
        let index = usize::from(number).checked_sub(1)?;
        Some(if kind == 0 { Self::Manager(index) } else { Self::Responder(index) })
    }
}

/// Number of a connection.
pub type ConnId = u64;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A responder's feed.
    Feed,
    /// A standby's feed.
    Follow,
    /// A responder's writes.
    Writes,
}

/// A message of a stream.
#[derive(Clone, Debug)]
pub enum Message {
    /// The server has accepted the connection.
    Accepted,
    /// Of a feed, from the manager.
    FromSm(Vec<FromSm>),
    /// Of a feed, to the manager.
    FromResponder(Box<FromResponder>),
    /// Writes to the registry.
    Writes(Writes),
    /// Their outcomes.
    Outcomes(Outcomes),
    /// The other end has closed.
    Closed,
}

/// What the network does next.
#[derive(Debug)]
pub enum NetEvent {
    /// A process asks for a connection.
    Arrives(ConnId),
    /// The first message of this direction is due; 0 leads to the server.
    Message(ConnId, usize),
    /// Keepalive.
    Check(ConnId),
    /// A packet in an envelope.
    Datagram(Proc, Box<Packet>),
}

/// What a process receives.
#[derive(Debug)]
pub enum Received {
    /// A client asks for a connection: `accept` or `refuse` it.
    Asks(ConnId, Kind, Proc),
    /// A message.
    Message(ConnId, Message),
}

#[derive(Debug)]
struct Conn {
    kind: Kind,
    /// Client, then server.
    ends: [Proc; 2],
    is_open: [bool; 2],
    /// Whether the server has accepted or refused it.
    is_decided: bool,
    /// Towards the server, towards the client.
    queues: [VecDeque<Message>; 2],
    /// When the last message of a direction arrives at the earliest.
    last: [Instant; 2],
    silent_since: Option<Instant>,
}

/// The network.
pub struct Network {
    random: Random,
    conns: BTreeMap<ConnId, Conn>,
    next: ConnId,
    /// Directed pairs between which nothing passes.
    cut: BTreeSet<(Proc, Proc)>,
    /// Feeds on which nothing arrives, by manager and responder; other connections go on.
    stalled: BTreeSet<(Proc, Proc)>,
    /// Processes that neither read nor answer keepalive.
    stopped: BTreeSet<Proc>,
    /// Latency from this to that.
    latency: (Duration, Duration),
    /// One in so many datagrams is lost; none if 0.
    pub datagram_loss: usize,
    agenda: Vec<(Instant, NetEvent)>,
}

impl Network {
    /// A network without connections.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 11),
            conns: BTreeMap::new(),
            next: 0,
            cut: BTreeSet::new(),
            stalled: BTreeSet::new(),
            stopped: BTreeSet::new(),
            latency: (Duration::from_micros(40), Duration::from_micros(160)),
            datagram_loss: 0,
            agenda: Vec::new(),
        }
    }

    /// Events to be scheduled.
    pub fn take_events(&mut self) -> Vec<(Instant, NetEvent)> {
        std::mem::take(&mut self.agenda)
    }

    /// Cuts or joins one direction.
    pub fn set_cut(&mut self, from: Proc, to: Proc, is_cut: bool) {
        if is_cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    /// Stalls the feed from a manager to a responder, or not.
    pub fn set_stalled(&mut self, from: Proc, to: Proc, is_stalled: bool) {
        if is_stalled {
            self.stalled.insert((from, to));
        } else {
            self.stalled.remove(&(from, to));
        }
    }

    /// Sets how long messages take.
    pub fn set_latency(&mut self, least: Duration, end: Duration) {
        self.latency = (least, end);
    }

    /// Repairs everything.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.stalled.clear();
        self.datagram_loss = 0;
        self.latency = (Duration::from_micros(40), Duration::from_micros(160));
    }

    /// A process is stopped, or goes on.
    pub fn set_stopped(&mut self, process: Proc, is_stopped: bool) {
        if is_stopped {
            self.stopped.insert(process);
        } else {
            self.stopped.remove(&process);
        }
    }

    fn passes(&self, from: Proc, to: Proc) -> bool {
        !self.cut.contains(&(from, to))
    }

    fn delay(&mut self) -> Duration {
        let (least, end) = self.latency;
        self.random.between(least, end)
    }

    /// Asks for a connection.
    pub fn connect(&mut self, now: Instant, kind: Kind, client: Proc, server: Proc) -> ConnId {
        self.next += 1;
        let id = self.next;
        let due = now + self.delay();
        let conn = Conn {
            kind,
            ends: [client, server],
            is_open: [true, false],
            is_decided: false,
            queues: [VecDeque::new(), VecDeque::new()],
            last: [due, now],
            silent_since: None,
        };
        self.conns.insert(id, conn);
        self.agenda.push((due, NetEvent::Arrives(id)));
        self.agenda.push((now + CHECK_INTERVAL, NetEvent::Check(id)));
        id
    }

    /// The server accepts a connection.
    pub fn accept(&mut self, now: Instant, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.is_open[1], conn.is_decided) = (true, true);
        }
        self.send_to(now, id, 1, Message::Accepted);
    }

    /// The server refuses a connection.
    pub fn refuse(&mut self, now: Instant, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.is_decided = true;
        }
        self.send_to(now, id, 1, Message::Closed);
    }

    /// The process that may wait for room to send in this direction of a connection.
    pub fn waiting_sender(&self, id: ConnId, direction: usize) -> Option<Proc> {
        let conn = self.conns.get(&id)?;
        (conn.queues[direction].len() >= WINDOW).then_some(conn.ends[direction])
    }

    /// Whether a process may send on a connection.
    pub fn has_room(&self, id: ConnId, from: Proc) -> bool {
        let conn = self.conns.get(&id);
        conn.is_some_and(|conn| {
            let direction = usize::from(conn.ends[0] != from);
            conn.is_open[direction] && conn.queues[direction].len() < WINDOW
        })
    }

    /// Sends a message of a process.
    pub fn send(&mut self, now: Instant, id: ConnId, from: Proc, message: Message) {
        let Some(conn) = self.conns.get(&id) else { return };
        let direction = usize::from(conn.ends[0] != from);
        if conn.is_open[direction] {
            self.send_to(now, id, direction, message);
        }
    }

    /// A process closes its end.
    pub fn close(&mut self, now: Instant, id: ConnId, from: Proc) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let direction = usize::from(conn.ends[0] != from);
        conn.is_open[direction] = false;
        self.send_to(now, id, direction, Message::Closed);
    }

    /// A process has ended: the system closes all its ends.
    pub fn end_process(&mut self, now: Instant, process: Proc) {
        let ids: Vec<_> = self.conns.keys().copied().collect();
        for id in ids {
            if self.conns.get(&id).is_some_and(|conn| conn.ends.contains(&process)) {
                self.close(now, id, process);
            }
        }
    }

    fn send_to(&mut self, now: Instant, id: ConnId, direction: usize, message: Message) {
        let delay = self.delay();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.queues[direction].push_back(message);
        let due = conn.last[direction].max(now + delay);
        conn.last[direction] = due;
        self.agenda.push((due, NetEvent::Message(id, direction)));
    }

    /// Sends a packet in an envelope to the process at its peer's address.
    pub fn send_datagram(&mut self, now: Instant, from: Proc, packet: &Packet) {
        let Some(to) = packet.carrier.peer.and_then(Proc::at) else { return };
        if !self.passes(from, to) {
            return;
        }
        let mut packet = packet.clone();
        packet.carrier.peer = Some(from.address());
        if self.datagram_loss > 0 {
            if self.random.one_in(self.datagram_loss) {
                return;
            }
            if self.random.one_in(self.datagram_loss) {
                let due = now + self.delay() * 3;
                self.agenda.push((due, NetEvent::Datagram(to, Box::new(packet.clone()))));
            }
        }
        let due = now + self.delay();
        self.agenda.push((due, NetEvent::Datagram(to, Box::new(packet.clone()))));
    }

    /// Carries out an event; `is_alive` says whether a process runs. Yields who receives what.
    pub fn handle(
        &mut self,
        now: Instant,
        event: NetEvent,
        is_alive: impl Fn(Proc) -> bool,
    ) -> Option<(Proc, Received)> {
        match event {
            NetEvent::Arrives(id) => {
                let conn = self.conns.get(&id)?;
                let [client, server] = conn.ends;
                if !conn.is_open[0] {
                    self.conns.remove(&id);
                    return None;
                }
                if !self.passes(client, server) || self.stopped.contains(&server) {
                    self.agenda.push((now + REPEAT_INTERVAL, NetEvent::Arrives(id)));
                    return None;
                }
                if !is_alive(server) {
                    self.refuse(now, id);
                    return None;
                }
                Some((server, Received::Asks(id, conn.kind, client)))
            }
            NetEvent::Message(id, direction) => {
                let conn = self.conns.get(&id)?;
                let (from, to) = (conn.ends[direction], conn.ends[1 - direction]);
                let is_early = direction == 0 && !conn.is_decided;
                let is_stalled = conn.kind == Kind::Feed && self.stalled.contains(&(from, to));
                if is_early || is_stalled || !self.passes(from, to) || self.stopped.contains(&to) {
                    let due = now + REPEAT_INTERVAL;
                    let conn = self.conns.get_mut(&id)?;
                    conn.last[direction] = conn.last[direction].max(due);
                    self.agenda.push((due, NetEvent::Message(id, direction)));
                    return None;
                }
                let conn = self.conns.get_mut(&id)?;
                let message = conn.queues[direction].pop_front()?;
                let is_open = conn.is_open[1 - direction];
                if matches!(message, Message::Closed) {
                    conn.is_open[1 - direction] = false;
                    if !conn.is_open[direction] {
                        self.conns.remove(&id);
                    }
                }
                is_open.then_some((to, Received::Message(id, message)))
            }
            NetEvent::Check(id) => self.check(now, id, is_alive),
            NetEvent::Datagram(..) => None,
        }
    }

    /// Keepalive of a connection.
    fn check(
        &mut self,
        now: Instant,
        id: ConnId,
        is_alive: impl Fn(Proc) -> bool,
    ) -> Option<(Proc, Received)> {
        let conn = self.conns.get(&id)?;
        let [client, server] = conn.ends;
        let is_heard = |to: Proc| is_alive(to) && !self.stopped.contains(&to);
        let answers = self.passes(client, server)
            && self.passes(server, client)
            && is_heard(client)
            && is_heard(server);
        let is_open = conn.is_open;
        let conn = self.conns.get_mut(&id)?;
        if answers && is_open[0] && is_open[1] {
            conn.silent_since = None;
        }
        let since = *conn.silent_since.get_or_insert(now);
        let mut gone = None;
        if now >= since + SILENCE_MAX {
            // One end at a time; the other one at the next check.
            for (end, process) in [client, server].into_iter().enumerate() {
                if is_open[end] && !self.stopped.contains(&process) {
                    self.conns.get_mut(&id)?.is_open[end] = false;
                    gone = Some((process, Received::Message(id, Message::Closed)));
                    break;
                }
            }
            if gone.is_none() && !is_open[0] && !is_open[1] {
                self.conns.remove(&id);
                return None;
            }
        }
        self.agenda.push((now + CHECK_INTERVAL, NetEvent::Check(id)));
        gone
    }
}

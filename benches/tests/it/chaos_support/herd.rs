//! Clients at several ports, each with one open request at a time, repeated to either responder
//! until it is answered; some are repeated after that, too.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::{Gid, Guid, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::McMemberRecord;
use ib_mad::wire::sa::SaMad;

use super::request;
use super::{Dice, Registered};
use crate::support::Host;

/// How long a client waits before it repeats a request, perhaps at another responder.
const TIMEOUT: Duration = Duration::from_millis(400);
/// Longest time between the requests of a client, milliseconds.
const THINK_MS: u64 = 120;
/// The SM recognises repeats for 10 s; less the error of clocks with one-second resolution.
const RETRY_WINDOW: Duration = Duration::from_secs(8);
/// A request without an answer for this long counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// Kinds of membership: full, non-member, send-only.
const STATES: [u8; 3] = [1, 2, 4];
const FULL: u8 = 1;

#[derive(Clone, Copy, Debug)]
enum Deed {
    Create,
    Join(Gid, u8),
    Leave(Gid, u8),
    Set(u64, u8),
    Delete(u64),
    Subscribe(u16),
    Unsubscribe(u16),
    SetAlias(u8, u64),
    DeleteAlias(u8),
}

struct Open {
    deed: Deed,
    mad: [u8; MAD_LEN],
    /// When it was sent first, and last.
    first: Instant,
    sent: Option<Instant>,
    /// The first answer, if this is a repeat.
    answered: Option<[u8; MAD_LEN]>,
}

struct Client {
    host: Host,
    qpn: Qpn,
    /// Whether this client manages the port's memberships in common groups and its aliases.
    is_first: bool,
    dice: Dice,
    tid: u64,
    left: u64,
    rests_until: Instant,
    open: Option<Open>,
    responder: usize,
    registered: Registered,
}

/// Results of a herd.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: u64,
    pub(crate) repeats_compared: u64,
    pub(crate) sent_again: u64,
    /// Requests that were open for longer than repeats are recognised.
    pub(crate) late: u64,
    /// Groups that may have been created twice for that reason.
    pub(crate) late_creations: usize,
    pub(crate) wrong: Vec<String>,
}

/// All clients, and their socket.
pub(crate) struct Herd {
    transport: Udp,
    responders: Vec<SocketAddr>,
    clients: Vec<Client>,
    pub(crate) seen: Seen,
}

impl Herd {
    /// This number of clients at each host, each with this number of requests.
    pub(crate) fn new(
        seed: u64,
        hosts: &[Host],
        each: u32,
        requests: u64,
        responders: &[SocketAddr],
    ) -> Self {
        let transport = Udp::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        let clients = hosts.iter().flat_map(|&host| (0..each).map(move |n| (host, n)));
        let clients = clients.enumerate().map(|(number, (host, n))| Client {
            host,
            qpn: Qpn(0x40 + n),
            is_first: n == 0,
            dice: Dice::new(seed << 16 | number as u64),
            tid: (number as u64) << 32,
            left: requests,
            rests_until: Instant::now(),
            open: None,
            responder: number % responders.len(),
            registered: Registered::default(),
        });
        Self {
            transport,
            responders: responders.to_vec(),
            clients: clients.collect(),
            seen: Seen::default(),
        }
    }

    /// Continues until every request of every client has been answered.
    pub(crate) fn run(&mut self) {
        let mut batch = vec![Packet::default(); 64];
        while self.clients.iter().any(|client| client.left > 0 || client.open.is_some()) {
            let now = Instant::now();
            for client in &mut self.clients {
                client.act(now, &mut self.transport, &self.responders, &mut self.seen);
            }
            let descriptor = self.transport.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(2))).unwrap();
            let count = self.transport.receive(&mut batch).unwrap();
            for packet in &batch[..count] {
                let from = (packet.address.lid, packet.address.qpn);
                let client = self.clients.iter_mut().find(|c| (c.host.lid, c.qpn) == from);
                client.expect("answers go to their requesters").take(&packet.mad, &mut self.seen);
            }
        }
    }

    /// The records that must be registered now.
    pub(crate) fn registered(&self) -> Registered {
        let mut all = Registered::default();
        self.clients.iter().for_each(|client| all.add(&client.registered));
        all
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, responder: usize, host: Host, mad: [u8; MAD_LEN]) {
        let mut packet = Packet::new(mad, Address::gsi(host.lid));
        packet.carrier.peer = Some(self.responders[responder]);
        self.transport.send(&[packet]).unwrap();
    }

    /// Sends one request to a responder, and repeats it until it answers.
    pub(crate) fn ask(&mut self, responder: usize, host: Host, mad: [u8; MAD_LEN]) -> Status {
        let began = Instant::now();
        let mut answer = [Packet::default()];
        loop {
            assert!(began.elapsed() < PATIENCE, "no answer from responder {responder}");
            self.send(responder, host, mad);
            let descriptor = self.transport.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(TIMEOUT)).unwrap();
            while self.transport.receive(&mut answer).unwrap() > 0 {
                if answer[0].mad[8..16] == mad[8..16] {
                    return SaMad::new(&answer[0].mad).header().status();
                }
            }
        }
    }
}

impl Client {
    fn act(&mut self, now: Instant, to: &mut Udp, responders: &[SocketAddr], seen: &mut Seen) {
        if self.open.is_none() && self.left > 0 && now >= self.rests_until {
            self.left -= 1;
            self.tid += 1;
            let deed = self.choose();
            let mad = self.request(deed);
            self.open = Some(Open { deed, mad, first: now, sent: None, answered: None });
        }
        let Some(open) = &mut self.open else { return };
        if open.sent.is_some_and(|sent| now < sent + TIMEOUT) {
            return;
        }
        assert!(open.first.elapsed() < PATIENCE, "never answered: {:?}", open.deed);
        if open.sent.is_some() {
            seen.sent_again += 1;
            self.responder = (self.responder + 1) % responders.len();
        }
        open.sent = Some(now);
        let address = Address { qpn: self.qpn, ..Address::gsi(self.host.lid) };
        let mut packet = Packet::new(open.mad, address);
        packet.carrier.peer = Some(responders[self.responder]);
        to.send(&[packet]).unwrap();
    }

    fn choose(&mut self) -> Deed {
        let dice = &mut self.dice;
        let mine = &self.registered;
        let number = self.tid >> 32;
        match dice.below(if self.is_first { 12 } else { 9 }) {
            0 => Deed::Create,
            1 | 2 => {
                // A private group, or one that all hosts join; the first membership must keep it.
                let common = self.is_first && dice.below(2) == 0;
                let owner = if common { 0xFFFF } else { number as u16 };
                let mut mgid = [0; 16];
                (mgid[0], mgid[1], mgid[15]) = (0xFF, 0x12, 1 + dice.below(3) as u8);
                mgid[8..10].copy_from_slice(&owner.to_be_bytes());
                let mgid = Gid(mgid);
                let held = mine.members.contains_key(&(mgid, self.host.gid));
                let any = held && !common;
                let way = if any { dice.one(STATES) } else { Some(FULL) };
                Deed::Join(mgid, way.unwrap_or(FULL))
            }
            3 => match dice.one(mine.members.iter()) {
                Some((&(mgid, _), &state)) => {
                    let way = dice.one(STATES.into_iter().filter(|way| way & state != 0));
                    Deed::Leave(mgid, way.expect("a member in some way"))
                }
                None => Deed::Create,
            },
            4 | 5 => Deed::Set(number << 16 | dice.below(12), dice.below(256) as u8),
            6 => match dice.one(mine.services.keys()) {
                Some(&(id, _)) => Deed::Delete(id),
                None => Deed::Set(number << 16, 0),
            },
            7 => Deed::Subscribe(64 + dice.below(4) as u16),
            8 => match dice.one(mine.subscriptions.iter()) {
                Some(&(_, _, trap)) => Deed::Unsubscribe(trap),
                None => Deed::Subscribe(128),
            },
            9 | 10 => Deed::SetAlias(1 + dice.below(7) as u8, 0xA11A_0000_0000_0000 | self.tid),
            _ => match dice.one(mine.aliases.keys()) {
                Some(&(_, index)) => Deed::DeleteAlias(index),
                None => Deed::Create,
            },
        }
    }

    fn request(&self, deed: Deed) -> [u8; MAD_LEN] {
        let (host, tid) = (self.host, self.tid);
        match deed {
            Deed::Create => request::join(host, tid, Gid::ZERO, FULL),
            Deed::Join(mgid, state) => request::join(host, tid, mgid, state),
            Deed::Leave(mgid, state) => request::leave(host, tid, mgid, state),
            Deed::Set(id, content) => request::service(Method::SET, host, tid, id, content),
            Deed::Delete(id) => request::service(Method::DELETE, host, tid, id, 0),
            Deed::Subscribe(trap) => request::subscribe(tid, trap, self.qpn, true),
            Deed::Unsubscribe(trap) => request::subscribe(tid, trap, self.qpn, false),
            Deed::SetAlias(entry, guid) => request::alias(Method::SET, host, tid, entry, guid),
            Deed::DeleteAlias(entry) => request::alias(Method::DELETE, host, tid, entry, 0),
        }
    }

    /// Handles an answer; answers to requests that are no longer open are late repeats.
    fn take(&mut self, mad: &[u8; MAD_LEN], seen: &mut Seen) {
        let header = SaMad::new(mad);
        let tid = header.header().tid();
        let Some(open) = self.open.take_if(|open| SaMad::new(&open.mad).header().tid() == tid)
        else {
            return;
        };
        let is_late = open.first.elapsed() > RETRY_WINDOW;
        if let Some(answered) = open.answered {
            if !is_late && answered != *mad {
                let (first, again) = (&answered[4..128], &mad[4..128]);
                seen.wrong.push(format!("{:?}: {first:02x?}, then {again:02x?}", open.deed));
            }
            seen.repeats_compared += u64::from(!is_late);
        } else {
            seen.answered += 1;
            seen.late += u64::from(is_late);
            let status = header.header().status();
            if status != Status::OK && !is_late {
                seen.wrong.push(format!("{:?} of {:?}: {status:?}", open.deed, self.host));
            }
            if is_late && matches!(open.deed, Deed::Create) {
                seen.late_creations += 1;
            }
            self.note(open.deed, &header.data()[..]);
            // Some are repeated, to either responder.
            if self.dice.below(4) == 0 {
                self.responder += usize::from(self.dice.below(2) == 0);
                self.responder %= 2;
                self.open = Some(Open { answered: Some(*mad), sent: None, ..open });
                return;
            }
        }
        let rest = Duration::from_millis(self.dice.below(THINK_MS));
        self.rests_until = Instant::now() + rest;
    }

    fn note(&mut self, deed: Deed, answer: &[u8]) {
        let (gid, mine) = (self.host.gid, &mut self.registered);
        let guid: Guid = gid.guid();
        match deed {
            Deed::Create => {
                let mgid = McMemberRecord::new(answer).unwrap().mgid();
                mine.members.insert((mgid, gid), FULL);
            }
            Deed::Join(mgid, state) => *mine.members.entry((mgid, gid)).or_default() |= state,
            Deed::Leave(mgid, state) => {
                let held = mine.members.entry((mgid, gid)).or_default();
                *held &= !state;
                // Its own groups are deleted with the membership that keeps them.
                if *held & FULL == 0 {
                    mine.members.remove(&(mgid, gid));
                }
            }
            Deed::Set(id, content) => drop(mine.services.insert((id, gid), content)),
            Deed::Delete(id) => drop(mine.services.remove(&(id, gid))),
            Deed::Subscribe(trap) => drop(mine.subscriptions.insert((gid, self.qpn, trap))),
            Deed::Unsubscribe(trap) => drop(mine.subscriptions.remove(&(gid, self.qpn, trap))),
            Deed::SetAlias(entry, alias) => {
                mine.aliases.insert((guid, entry), Guid(alias));
            }
            Deed::DeleteAlias(entry) => drop(mine.aliases.remove(&(guid, entry))),
        }
    }
}

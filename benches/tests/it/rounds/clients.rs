//! Clients that set and delete services through two responders at a steady rate, and keep what was
//! acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::chaos_support::{Dice, request};
use crate::support::Host;
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::Snapshot;

/// How long a client waits before it repeats a request, at the other responder.
const REPEAT: Duration = Duration::from_millis(300);
/// A request without an answer for this long counts as lost.
const PATIENCE: Duration = Duration::from_secs(90);
/// Services of a host: fewer than a port may register.
const EACH: u64 = 400;

/// A service that a client sets and deletes, one request at a time.
struct Slot {
    host: usize,
    id: u64,
    /// What was acknowledged last: the content, or `None` if it is not registered.
    acknowledged: Option<u8>,
    open: Option<Open>,
    /// Number of requests so far.
    requests: u32,
    /// The last requests that were answered, for messages.
    last: VecDeque<Answered>,
}

/// A request that was answered; times are milliseconds since the clients began.
#[derive(Debug)]
#[expect(dead_code, reason = "shown by messages of failed checks")]
struct Answered {
    content: Option<u8>,
    sent: u128,
    repeats: u32,
    responder: usize,
    answered: u128,
    status: Status,
}

/// Number of requests kept of each service.
const LAST: usize = 5;

struct Open {
    /// The content to be set; `None` to delete.
    content: Option<u8>,
    mad: [u8; MAD_LEN],
    first: Instant,
    sent: Instant,
    repeats: u32,
    responder: usize,
}

/// What clients have seen since it was taken last.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) acknowledged: u64,
    pub(crate) repeats: u64,
    /// Longest time from the first request to its answer.
    pub(crate) longest: Duration,
    /// Deletions that were answered with ERR_NO_RECORDS: after a takeover, also if a responder has
    /// repeated them.
    pub(crate) missing: u64,
    /// Answers that a client takes for final failures.
    pub(crate) failed: Vec<String>,
}

/// What a registry has that it should not have, and the reverse.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// Acknowledged registrations that are missing or outdated.
    pub(crate) lost: Vec<(usize, u64)>,
    /// Registrations whose deletion was acknowledged.
    pub(crate) returned: Vec<(usize, u64)>,
}

/// All clients, and their socket.
pub(crate) struct Clients {
    transport: Udp,
    responders: [SocketAddr; 2],
    hosts: Vec<Host>,
    slots: Vec<Slot>,
    dice: Dice,
    /// Requests a second.
    rate: f64,
    /// Requests that are due, and since when that is known.
    due: (f64, Instant),
    began: Instant,
    pub(crate) seen: Seen,
}

impl Clients {
    pub(crate) fn new(hosts: &[Host], responders: [SocketAddr; 2], rate: f64, seed: u64) -> Self {
        let slots = (0..hosts.len()).flat_map(|host| {
            (0..EACH).map(move |n| Slot {
                host,
                id: (host as u64) << 32 | n,
                acknowledged: None,
                open: None,
                requests: 0,
                last: VecDeque::new(),
            })
        });
        Self {
            transport: Udp::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).expect("loopback"),
            responders,
            hosts: hosts.to_vec(),
            slots: slots.collect(),
            dice: Dice::new(seed),
            rate,
            due: (0.0, Instant::now()),
            began: Instant::now(),
            seen: Seen::default(),
        }
    }

    /// Sends requests and takes answers for a moment.
    pub(crate) fn run(&mut self) {
        let now = Instant::now();
        let (due, since) = self.due;
        // What could not be sent in a second is given up.
        let due = (due + self.rate * (now - since).as_secs_f64()).min(self.rate);
        let count = due as u64;
        self.due = (due - count as f64, now);
        for _ in 0..count {
            let at = self.dice.below(self.slots.len() as u64) as usize;
            let slot = &self.slots[at];
            if slot.open.is_none() {
                let deletes = slot.acknowledged.is_some() && self.dice.below(2) == 0;
                let content = (!deletes).then(|| 1 + self.dice.below(255) as u8);
                self.begin(at, content, now);
            }
        }
        self.progress(now);
    }

    /// Waits until every request is answered.
    pub(crate) fn finish(&mut self) {
        while self.slots.iter().any(|slot| slot.open.is_some()) {
            self.progress(Instant::now());
        }
        self.due = (0.0, Instant::now());
    }

    /// Registers again what these hosts hold, as their clients do when they are asked to.
    pub(crate) fn register_again(&mut self, is_asked: &[bool]) {
        let now = Instant::now();
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            if is_asked[slot.host] && slot.acknowledged.is_some() {
                self.begin(at, slot.acknowledged, now);
            }
        }
        self.finish();
    }

    fn begin(&mut self, at: usize, content: Option<u8>, now: Instant) {
        let slot = &mut self.slots[at];
        slot.requests += 1;
        let tid = (at as u64) << 32 | u64::from(slot.requests);
        let method = if content.is_some() { Method::SET } else { Method::DELETE };
        let host = self.hosts[slot.host];
        let mad = request::service(method, host, tid, slot.id, content.unwrap_or(0));
        let responder = (slot.requests % 2) as usize;
        slot.open = Some(Open { content, mad, first: now, sent: now, repeats: 0, responder });
        self.send(at);
    }

    fn send(&mut self, at: usize) {
        let slot = &self.slots[at];
        let Some(open) = &slot.open else { return };
        let mut packet = Packet::new(open.mad, Address::gsi(self.hosts[slot.host].lid));
        packet.carrier.peer = Some(self.responders[open.responder]);
        // An error of an earlier packet: its responder is not there.
        let _ = self.transport.send(&[packet]);
    }

    /// Repeats what is not answered, and takes answers.
    fn progress(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            let Slot { id, open: Some(open), .. } = &mut self.slots[at] else { continue };
            if now.saturating_duration_since(open.sent) < REPEAT {
                continue;
            }
            let waited = open.first.elapsed();
            assert!(waited < PATIENCE, "service {id:#x}: no answer for {waited:?}");
            open.sent = now;
            open.repeats += 1;
            open.responder = 1 - open.responder;
            self.seen.repeats += 1;
            self.send(at);
        }
        let descriptor = self.transport.descriptor().expect("a socket");
        wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(2))).expect("a socket");
        let mut batch = vec![Packet::default(); 64];
        loop {
            let count = self.transport.receive(&mut batch).unwrap_or(0);
            batch[..count].iter().for_each(|packet| self.take(&packet.mad));
            if count < batch.len() {
                break;
            }
        }
    }

    fn take(&mut self, mad: &[u8; MAD_LEN]) {
        let answer = SaMad::new(mad);
        let (tid, status) = (answer.header().tid(), answer.header().status());
        let slot = &mut self.slots[(tid >> 32) as usize];
        // Answers to repeats that are no longer open are ignored.
        let Some(open) = slot.open.take_if(|_| u64::from(slot.requests) == tid & 0xFFFF_FFFF)
        else {
            return;
        };
        let seen = &mut self.seen;
        seen.longest = seen.longest.max(open.first.elapsed());
        if slot.last.len() == LAST {
            slot.last.pop_front();
        }
        slot.last.push_back(Answered {
            content: open.content,
            sent: (open.first - self.began).as_millis(),
            repeats: open.repeats,
            responder: open.responder,
            answered: self.began.elapsed().as_millis(),
            status,
        });
        match (open.content, status) {
            (_, Status::OK) => seen.acknowledged += 1,
            (None, Status::SA_NO_RECORDS) => seen.missing += 1,
            _ => {
                let (id, what) = (slot.id, open.content);
                seen.failed.push(format!("service {id:#x}, content {what:?}: {status:?}"));
                return;
            }
        }
        slot.acknowledged = open.content;
    }

    /// What differs in a registry from what was acknowledged, while no request is open.
    pub(crate) fn differences(&self, snapshot: &Snapshot) -> Differences {
        let mut differences = Differences::default();
        let services = &snapshot.registry().services;
        let by_id: BTreeMap<_, _> = services
            .iter()
            .map(|row| ((row.rid.service_gid, row.rid.service_id), row.record[127]))
            .collect();
        for slot in &self.slots {
            let there = by_id.get(&(self.hosts[slot.host].gid, slot.id)).copied();
            match slot.acknowledged {
                Some(_) if there != slot.acknowledged => {
                    differences.lost.push((slot.host, slot.id));
                }
                None if there.is_some() => differences.returned.push((slot.host, slot.id)),
                _ => {}
            }
        }
        differences
    }

    /// The last requests of a service, for messages.
    pub(crate) fn history(&self, host: usize, id: u64) -> String {
        let slot = self.slots.iter().find(|slot| (slot.host, slot.id) == (host, id));
        let last = slot.map_or(String::new(), |slot| format!("{:#?}", slot.last));
        format!("service {id:#x}, {} ms now: {last}", self.began.elapsed().as_millis())
    }

    /// Reads some services through both responders; returns those with a wrong answer.
    pub(crate) fn read(&mut self, count: usize) -> Vec<(usize, u64, Status)> {
        let mut wrong = Vec::new();
        for responder in [0, 1] {
            for n in 0..count {
                let slot = &self.slots[self.dice.below(self.slots.len() as u64) as usize];
                let (host, id, is_there) = (slot.host, slot.id, slot.acknowledged.is_some());
                let expected = if is_there { Status::OK } else { Status::SA_NO_RECORDS };
                let tid = 1 << 63 | n as u64;
                let mad = request::service(Method::GET, self.hosts[host], tid, id, 0);
                let status = self.ask(responder, self.hosts[host], mad);
                if status != expected {
                    wrong.push((responder, id, status));
                }
            }
        }
        wrong
    }

    fn ask(&mut self, responder: usize, host: Host, mad: [u8; MAD_LEN]) -> Status {
        let began = Instant::now();
        let mut answer = [Packet::default()];
        loop {
            assert!(began.elapsed() < PATIENCE, "no answer from responder {responder}");
            let mut packet = Packet::new(mad, Address::gsi(host.lid));
            packet.carrier.peer = Some(self.responders[responder]);
            let _ = self.transport.send(&[packet]);
            let descriptor = self.transport.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(REPEAT)).expect("a socket");
            while self.transport.receive(&mut answer).unwrap_or(0) > 0 {
                if answer[0].mad[8..16] == mad[8..16] {
                    return SaMad::new(&answer[0].mad).header().status();
                }
            }
        }
    }
}

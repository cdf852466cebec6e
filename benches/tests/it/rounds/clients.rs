//! Clients that set and delete services through two responders at a steady rate, and keep what was
//! acknowledged. Some services have leases: of half an hour, to which nothing may happen, and of a
//! few seconds, after which they must be gone.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::way::Way;
use crate::chaos_support::{Dice, request};
use crate::support::Host;
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

/// A lease that outlasts the run, but not a clock that is wrong by an hour. Seconds.
const LONG_LEASE_S: u32 = 1_800;
/// A lease that ends during the run, seconds.
const SHORT_LEASE_S: u32 = 4;
/// By how much a lease may be longer: registry time is in whole seconds, a takeover shifts it by
/// the delay of a message, and the master looks when it is up.
const LEASE_SLACK: Duration = Duration::from_millis(2_500);

/// A service that a client sets and deletes, one request at a time.
struct Slot {
    host: usize,
    id: u64,
    /// Of what it sets, seconds.
    lease_s: Option<u32>,
    /// What was acknowledged last: the content, or `None` if it is not registered.
    acknowledged: Option<u8>,
    /// When the lease may have ended, and when it must have.
    ends: Option<(Instant, Instant)>,
    /// A repeated request was refused. The one before may have been accepted.
    is_unknown: bool,
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

impl Slot {
    fn is_short(&self) -> bool {
        self.lease_s == Some(SHORT_LEASE_S)
    }
}

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
    pub(crate) missing: Vec<(usize, u64)>,
    /// Writes that were refused since they could not be stored.
    pub(crate) refused: u64,
    /// Other answers that a client takes for final failures.
    pub(crate) failed: Vec<String>,
}

/// What a registry has that it should not have, and the reverse.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// Acknowledged registrations that are missing or outdated.
    pub(crate) lost: Vec<(usize, u64)>,
    /// Registrations whose deletion was acknowledged, or whose lease has ended.
    pub(crate) returned: Vec<(usize, u64)>,
}

/// All clients, and their socket.
pub(crate) struct Clients {
    way: Way,
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
    pub(super) fn new(hosts: &[Host], way: Way, rate: f64, seed: u64) -> Self {
        let slots = (0..hosts.len()).flat_map(|host| {
            (0..EACH).map(move |n| Slot {
                host,
                id: (host as u64) << 32 | n,
                lease_s: match n % 20 {
                    0 => Some(SHORT_LEASE_S),
                    1..6 => Some(LONG_LEASE_S),
                    _ => None,
                },
                acknowledged: None,
                ends: None,
                is_unknown: false,
                open: None,
                requests: 0,
                last: VecDeque::new(),
            })
        });
        Self {
            way,
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
                let deletes =
                    slot.acknowledged.is_some() && !slot.is_short() && self.dice.below(2) == 0;
                let content = (!deletes).then(|| 1 + self.dice.below(255) as u8);
                self.begin(at, content, now);
            }
        }
        self.progress(now);
    }

    /// Sends one request.
    pub(crate) fn begin_one(&mut self) {
        let at = self.dice.below(self.slots.len() as u64) as usize;
        let content = Some(1 + self.dice.below(255) as u8);
        self.begin(at, content, Instant::now());
    }

    /// Whether every request is answered.
    pub(crate) fn are_answered(&self) -> bool {
        self.slots.iter().all(|slot| slot.open.is_none())
    }

    /// Takes answers for a moment, and repeats what is not answered.
    pub(crate) fn wait(&mut self) {
        self.progress(Instant::now());
        self.due = (0.0, Instant::now());
    }

    /// Waits until every request is answered.
    pub(crate) fn finish(&mut self) {
        while !self.are_answered() {
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
        let host = self.hosts[slot.host];
        let mad = match (content, slot.lease_s) {
            (Some(content), Some(lease_s)) => {
                request::leased_service(host, tid, slot.id, content, lease_s)
            }
            (Some(content), None) => request::service(Method::SET, host, tid, slot.id, content),
            (None, _) => request::service(Method::DELETE, host, tid, slot.id, 0),
        };
        let responder = (slot.requests % 2) as usize;
        slot.open = Some(Open { content, mad, first: now, sent: now, repeats: 0, responder });
        self.send(at);
    }

    fn send(&mut self, at: usize) {
        let slot = &self.slots[at];
        let Some(open) = &slot.open else { return };
        self.way.send(slot.host, self.hosts[slot.host].lid, open.responder, open.mad);
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
        for answer in self.way.receive(Duration::from_millis(2)) {
            self.take(&answer);
        }
    }

    fn take(&mut self, mad: &[u8; MAD_LEN]) {
        let answer = SaMad::new(mad);
        let (tid, status) = (answer.header().tid(), answer.header().status());
        // The simulator overwrites the first 16 bits.
        let Some(slot) = self.slots.get_mut((tid >> 32 & 0xFFFF) as usize) else { return };
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
            (None, Status::SA_NO_RECORDS) => seen.missing.push((slot.host, slot.id)),
            (_, Status::SA_NO_RESOURCES) => {
                seen.refused += 1;
                slot.is_unknown |= open.repeats > 0;
                return;
            }
            _ => {
                let (id, what) = (slot.id, open.content);
                seen.failed.push(format!("service {id:#x}, content {what:?}: {status:?}"));
                return;
            }
        }
        slot.acknowledged = open.content;
        slot.is_unknown = false;
        let lease = slot.lease_s.filter(|_| open.content.is_some());
        slot.ends = lease.map(|lease_s| {
            let lease = Duration::from_secs(lease_s.into());
            (open.first + lease, Instant::now() + lease + LEASE_SLACK)
        });
    }

    /// What differs in a registry, as it was read since `since`, from what was acknowledged, while
    /// no request is open.
    pub(crate) fn differences(&self, snapshot: &Snapshot, since: Instant) -> Differences {
        let now = Instant::now();
        let mut differences = Differences::default();
        let services = &snapshot.registry().services;
        let by_id: BTreeMap<_, _> = services
            .iter()
            .map(|row| ((row.rid.service_gid, row.rid.service_id), row.record[127]))
            .collect();
        for slot in &self.slots {
            let there = by_id.get(&(self.hosts[slot.host].gid, slot.id)).copied();
            if slot.is_unknown {
                continue;
            }
            let may_have_ended = slot.ends.is_some_and(|(first, _)| now >= first);
            let has_ended = slot.ends.is_some_and(|(_, last)| since > last);
            let must_be_gone = slot.acknowledged.is_none() || has_ended;
            if there.is_some() && must_be_gone {
                differences.returned.push((slot.host, slot.id));
            } else if there != slot.acknowledged
                && !must_be_gone
                && !(there.is_none() && may_have_ended)
            {
                differences.lost.push((slot.host, slot.id));
            }
        }
        differences
    }

    /// Whether these services are registered is unknown until they are set or deleted again.
    pub(crate) fn forget(&mut self, services: &[(usize, u64)]) {
        for slot in &mut self.slots {
            slot.is_unknown |= services.contains(&(slot.host, slot.id));
        }
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
                if slot.is_short() || slot.is_unknown {
                    continue;
                }
                let (host, id, is_there) = (slot.host, slot.id, slot.acknowledged.is_some());
                let expected = if is_there { Status::OK } else { Status::SA_NO_RECORDS };
                let tid = u64::from(u16::MAX) << 32 | n as u64;
                let mad = request::service(Method::GET, self.hosts[host], tid, id, 0);
                let status = self.ask(responder, host, mad);
                if status != expected {
                    wrong.push((responder, id, status));
                }
            }
        }
        wrong
    }

    fn ask(&mut self, responder: usize, host: usize, mad: [u8; MAD_LEN]) -> Status {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "no answer from responder {responder}");
            self.way.send(host, self.hosts[host].lid, responder, mad);
            let sent = Instant::now();
            while sent.elapsed() < REPEAT {
                let answers = self.way.receive(REPEAT);
                if let Some(answer) = answers.iter().find(|answer| answer[10..16] == mad[10..16]) {
                    return SaMad::new(answer).header().status();
                }
            }
        }
    }
}

//! Reports of events to subscribers, repeated until acknowledged.
//!
//! [`Reports`] decides; it never sends, waits or reads a clock. Each subscriber has its own queue
//! with at most one report on the wire, so that a subscriber that does not answer delays no other
//! and receives no burst. While a report waits, a later event that makes it obsolete replaces it: a
//! storm of flaps costs one or two reports, and the last state is always reported.
//!
//! The subscription's row names the responder that sends its Reports. When another one takes over,
//! reports that the first had not delivered are lost.

pub(crate) mod follow;
mod follower;
mod matching;
mod ours;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Grh, Packet};
use ib_mad::types::{Gid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::sa::{ComponentMask, SaMad};
use sa_proto::snapshot::{Subscription, SubscriptionRid};

pub use follower::Follower;
pub use matching::Event;
use ours::Ours;

use crate::tables::cell::Generation;

/// How reports are repeated, and how many may wait.
#[derive(Clone, Debug)]
pub struct ReportConfig {
    /// How long an answer may take.
    pub timeout: Duration,
    /// How often a report is sent again; each time the wait is twice as long.
    pub retries: u32,
    /// Reports that wait for one subscription; when there are more, the oldest are lost.
    pub waiting_max: usize,
    /// Maximum number of waiting reports for all subscriptions of one port; a further one replaces
    /// the oldest of its subscription, or is lost.
    pub port_max: usize,
    /// Maximum number of waiting reports in total; further ones are lost.
    pub total_max: usize,
    /// TransactionIDs count up from here.
    pub first_tid: u32,
}

impl Default for ReportConfig {
    /// A second, three repetitions, 64 a subscription, 256 a port, 65,536 in all.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            retries: 3,
            waiting_max: 64,
            port_max: 256,
            total_max: 1 << 16,
            first_tid: 0,
        }
    }
}

/// Counts of events, and of reports by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events taken.
    pub events: u64,
    /// Reports begun, one a subscription that an event concerns.
    pub reports: u64,
    /// Reports answered.
    pub acknowledged: u64,
    /// Repetitions.
    pub repeated: u64,
    /// Given up: never answered.
    pub unanswered: u64,
    /// Not sent because a later event made them obsolete.
    pub superseded: u64,
    /// Lost because too many waited.
    pub overflowed: u64,
    /// Not sent because the subscription ended.
    pub unsubscribed: u64,
}

/// Reports under way.
#[derive(Debug)]
pub struct Reports {
    responder_id: u64,
    config: ReportConfig,
    queues: HashMap<SubscriptionRid, Queue>,
    /// The subscription that each transaction belongs to.
    by_tid: HashMap<u32, SubscriptionRid>,
    /// When the report on the wire is due again, by transaction.
    deadlines: BTreeSet<(Instant, u32)>,
    /// Transactions to send now.
    ready: VecDeque<u32>,
    waiting: usize,
    /// How many wait for each port.
    waiting_for: HashMap<Gid, usize>,
    /// Subscriptions assigned to this responder.
    ours: Ours,
    tid: u32,
    /// Counts of reports by outcome so far.
    pub counters: Counters,
}

/// The reports of one subscription.
#[derive(Debug)]
struct Queue {
    address: Address,
    on_wire: Option<OnWire>,
    /// Notices with their keys, oldest first.
    waiting: VecDeque<(u64, [u8; 80])>,
}

#[derive(Debug)]
struct OnWire {
    tid: u32,
    notice: [u8; 80],
    retries_left: u32,
    timeout: Duration,
    deadline: Option<Instant>,
}

impl Reports {
    /// No reports yet, of responder `responder_id`.
    pub fn new(responder_id: u64, config: ReportConfig) -> Self {
        Self {
            responder_id,
            tid: config.first_tid,
            config,
            queues: HashMap::new(),
            by_tid: HashMap::new(),
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            waiting: 0,
            waiting_for: HashMap::new(),
            ours: Ours::default(),
            counters: Counters::default(),
        }
    }

    /// Handles an event: starts a report for every subscription of this responder that it matches.
    pub fn handle_event(&mut self, now: Instant, generation: &Generation, event: &Event) {
        self.counters.events += 1;
        self.ours.follow(self.responder_id, &generation.registry.subscriptions);
        let concerned: Vec<(SubscriptionRid, Address)> = self
            .ours
            .about(event)
            .filter(|row| matching::concerns(event, row, &generation.tables))
            .map(|row| (row.rid, address_of(row)))
            .collect();
        for (rid, address) in concerned {
            self.counters.reports += 1;
            self.push(now, rid, address, event);
        }
    }

    /// Removes subscriptions that are gone or assigned to another responder.
    pub fn handle_registry(&mut self, now: Instant, generation: &Generation) {
        let rows = &generation.registry.subscriptions;
        let is_ours = |rid: &SubscriptionRid| {
            rows.find(*rid).is_some_and(|row| row.responder == self.responder_id)
        };
        let gone: Vec<_> = self.queues.keys().filter(|rid| !is_ours(rid)).copied().collect();
        for (rid, queue) in &mut self.queues {
            // A subscriber may have moved; what is sent again goes where it is now.
            if let Some(row) = rows.find(*rid) {
                queue.address = address_of(row);
            }
        }
        for rid in gone {
            let Some(queue) = self.queues.get_mut(&rid) else { continue };
            let waited = std::mem::take(&mut queue.waiting).len();
            self.counters.unsubscribed += waited as u64;
            self.forget_waiting(rid, waited);
            let Some(queue) = self.queues.get_mut(&rid) else { continue };
            if let Some(on_wire) = &queue.on_wire {
                self.counters.unsubscribed += 1;
                let tid = on_wire.tid;
                self.end(now, tid);
            }
            self.queues.remove(&rid);
        }
    }

    /// Takes an answer to a report; `false` if it answers none that is on the wire.
    pub fn handle_answer(&mut self, now: Instant, packet: &Packet) -> bool {
        let tid = SaMad::new(&packet.mad).header().tid() as u32;
        let Some(queue) = self.by_tid.get(&tid).and_then(|rid| self.queues.get(rid)) else {
            return false;
        };
        // Only the subscriber that received the report may answer it.
        if queue.address.lid != packet.address.lid {
            return false;
        }
        self.counters.acknowledged += 1;
        self.end(now, tid);
        true
    }

    /// The next report to send. Call until it yields `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        loop {
            let tid = self.ready.pop_front()?;
            let Some(rid) = self.by_tid.get(&tid) else { continue };
            let Some(queue) = self.queues.get_mut(rid) else { continue };
            let Some(on_wire) = &mut queue.on_wire else { continue };
            let deadline = now + on_wire.timeout;
            on_wire.deadline = Some(deadline);
            self.deadlines.insert((deadline, tid));
            return Some(report(tid, &on_wire.notice, &queue.address));
        }
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(due, _)| due)
    }

    /// Repeats reports that were not answered, or gives them up.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, tid)) = self.deadlines.first()
            && due <= now
        {
            self.deadlines.pop_first();
            let Some(queue) = self.by_tid.get(&tid).and_then(|rid| self.queues.get_mut(rid)) else {
                continue;
            };
            let Some(on_wire) = &mut queue.on_wire else { continue };
            on_wire.deadline = None;
            match on_wire.retries_left.checked_sub(1) {
                Some(left) => {
                    on_wire.retries_left = left;
                    on_wire.timeout *= 2;
                    self.counters.repeated += 1;
                    self.ready.push_back(tid);
                }
                None => {
                    self.counters.unanswered += 1;
                    self.end(now, tid);
                }
            }
        }
    }

    /// Reports that wait or are on the wire.
    pub fn len(&self) -> usize {
        self.waiting + self.by_tid.len()
    }

    /// Whether no report is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, _now: Instant, rid: SubscriptionRid, address: Address, event: &Event) {
        let queue = self.queues.entry(rid).or_insert_with(|| Queue {
            address,
            on_wire: None,
            waiting: VecDeque::new(),
        });
        queue.address = address;
        let key = event.supersedes_key;
        let mut freed = 0;
        if key != 0
            && let Some(at) = queue.waiting.iter().position(|&(other, _)| other == key)
        {
            // Its replacement takes the place of the latest event in the order.
            queue.waiting.remove(at);
            freed += 1;
            self.counters.superseded += 1;
        }
        let for_port = self.waiting_for.get(&rid.subscriber_gid).copied().unwrap_or(0) - freed;
        let full = queue.waiting.len() >= self.config.waiting_max
            || for_port >= self.config.port_max
            || self.waiting - freed >= self.config.total_max;
        // The first report of a subscription goes on the wire at once, even if others are behind.
        let lost = if full && queue.on_wire.is_some() {
            self.counters.overflowed += 1;
            queue.waiting.pop_front().map_or(Lost::Newest, |_| Lost::Oldest)
        } else {
            Lost::None
        };
        if lost != Lost::Newest {
            queue.waiting.push_back((key, event.notice));
            *self.waiting_for.entry(rid.subscriber_gid).or_insert(0) += 1;
            self.waiting += 1;
        }
        self.forget_waiting(rid, freed + usize::from(lost == Lost::Oldest));
        self.start(rid);
    }

    /// Subtracts reports of a subscription that no longer wait.
    fn forget_waiting(&mut self, rid: SubscriptionRid, count: usize) {
        self.waiting -= count;
        if let Some(held) = self.waiting_for.get_mut(&rid.subscriber_gid) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.waiting_for.remove(&rid.subscriber_gid);
            }
        }
    }

    /// Puts the next report of a subscription on the wire, unless one is there.
    fn start(&mut self, rid: SubscriptionRid) {
        let Some(queue) = self.queues.get_mut(&rid) else { return };
        if queue.on_wire.is_some() {
            return;
        }
        let Some((_, notice)) = queue.waiting.pop_front() else {
            self.queues.remove(&rid);
            return;
        };
        self.forget_waiting(rid, 1);
        let Some(queue) = self.queues.get_mut(&rid) else { return };
        self.tid = self.tid.wrapping_add(1).max(1);
        let tid = self.tid;
        queue.on_wire = Some(OnWire {
            tid,
            notice,
            retries_left: self.config.retries,
            timeout: self.config.timeout,
            deadline: None,
        });
        self.by_tid.insert(tid, rid);
        self.ready.push_back(tid);
    }

    /// Removes a finished report from the wire and puts the next one there.
    fn end(&mut self, _now: Instant, tid: u32) {
        let Some(rid) = self.by_tid.remove(&tid) else { return };
        if let Some(queue) = self.queues.get_mut(&rid)
            && let Some(on_wire) = queue.on_wire.take()
            && let Some(deadline) = on_wire.deadline
        {
            self.deadlines.remove(&(deadline, tid));
        }
        self.start(rid);
    }
}

/// The report that was discarded because too many wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    None,
    Oldest,
    Newest,
}

/// Where reports of a subscription go (IBA C13-32.1.2).
fn address_of(row: &Subscription) -> Address {
    let grh = row.grh.then(|| Grh {
        remote_gid: row.rid.subscriber_gid,
        hop_limit: 0xFF,
        ..Grh::default()
    });
    Address {
        lid: row.lid,
        qpn: row.qpn,
        local_qpn: Qpn::GSI,
        sl: row.sl,
        pkey: row.pkey,
        grh,
        ..Address::default()
    }
}

/// Report(Notice) as a MAD; all of it is defined.
fn report(tid: u32, notice: &[u8; 80], address: &Address) -> Packet {
    let mut packet = Packet::to(*address);
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(Method::REPORT, AttributeId::NOTICE, tid.into(), ComponentMask::NONE);
    mad.data_mut()[..notice.len()].copy_from_slice(notice);
    packet
}

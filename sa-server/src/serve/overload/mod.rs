//! Overload control: what happens to requests when more arrive than can be answered.
//!
//! A worker that keeps up does not use it. Otherwise requests wait in a [`Backlog`]: each request
//! once, however often it is repeated (`dedupe`). Sources take turns, and when the queue is full,
//! the source with the most waiting requests loses its oldest (`fairness`). A request that has
//! waited so long that its client has repeated it is dropped. While all requests are young, the
//! oldest are answered first, else the newest, whose clients still wait. [`Pace`] limits how many
//! packets are read only to be dropped.
//!
//! Table requests always wait separately, as one can take as long as ten thousand others. They get
//! an eighth of the time while others wait. So do Gets of a path with an open end, and all requests
//! of a source whose plain requests turned out to be equally expensive.
//!
//! All decisions are made without a clock, a socket or an allocation. Every dropped request is
//! passed to the caller with the reason.

mod dedupe;
mod fairness;
mod links;
mod offenders;
mod pace;
mod queue;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use ib_mad::wire::sa::{SaMad, attribute};

use super::transfer;
use crate::stats::DropReason;
use dedupe::Hasher;
use fairness::SourceId;
use offenders::Offenders;
pub(crate) use pace::Pace;
use queue::{Queue, Taken};

/// Bounds of a worker's backlog.
#[derive(Clone, Copy, Debug)]
pub struct BacklogConfig {
    /// Maximum number of waiting requests, apart from those for tables.
    pub light_max: u16,
    /// Maximum number of waiting requests for tables.
    pub heavy_max: u16,
    /// Requests that have waited longer are dropped; shorter than the clients' retry interval.
    pub stale_after: Duration,
    /// Same for requests for tables, whose clients wait longer.
    pub heavy_stale_after: Duration,
}

impl Default for BacklogConfig {
    /// 4,096 and 512 requests; 100 ms, as IPoIB repeats its queries, and 500 ms.
    fn default() -> Self {
        Self {
            light_max: 4096,
            heavy_max: 512,
            stale_after: Duration::from_millis(100),
            heavy_stale_after: Duration::from_millis(500),
        }
    }
}

/// Requests that one source may have outstanding: what a Linux kernel allows per port.
const OUTSTANDING_MAX: usize = 16;
/// While others wait, costly requests get one part of the time, of this many.
const HEAVY_PART: u32 = 8;
/// Maximum of that time that they can accumulate.
const CREDIT_MAX: Duration = Duration::from_millis(2);
/// Time per turn after which a source is delayed by more than one round.
const HEAVY_QUANTUM: Duration = Duration::from_micros(100);

/// Requests that wait to be answered.
pub(crate) struct Backlog {
    config: BacklogConfig,
    /// The greatest LMC in the subnet.
    pub(crate) lmc: u8,
    light: Queue,
    heavy: Queue,
    /// Sources whose plain requests turned out to be costly.
    offenders: Offenders,
    hasher: Hasher,
    /// Nanoseconds of credit of costly requests; negative if exceeded.
    balance: i64,
}

impl Backlog {
    /// An empty backlog; all memory is taken here.
    pub(crate) fn new(config: BacklogConfig) -> Self {
        let hasher = Hasher::default();
        Self {
            config,
            lmc: 0,
            light: Queue::new(config.light_max.max(1), hasher.clone()),
            heavy: Queue::new(config.heavy_max.max(1), hasher.clone()),
            offenders: Offenders::default(),
            hasher,
            balance: 0,
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.light.len() + self.heavy.len()
    }

    /// Whether only table requests wait.
    pub(crate) fn is_light_empty(&self) -> bool {
        self.light.is_empty()
    }

    /// Whether costly requests wait.
    pub(crate) fn has_heavy(&self) -> bool {
        !self.heavy.is_empty()
    }

    /// Whether a source has more requests waiting than it may have outstanding.
    pub(crate) fn has_hog(&self) -> bool {
        self.light.sources().most() > OUTSTANDING_MAX
    }

    /// Adds received packets.
    pub(crate) fn file(
        &mut self,
        packets: &[Packet],
        now: Instant,
        lost: &mut impl FnMut(&Packet, DropReason),
    ) {
        for packet in packets {
            let source = self.source(&packet.address);
            let is_heavy = is_costly(packet) || self.offenders.contains(source, now);
            let queue = if is_heavy { &mut self.heavy } else { &mut self.light };
            queue.file(packet, source, now, lost);
        }
    }

    /// Queues the costly packets of a batch and moves the others to the front; returns how many
    /// these are.
    pub(crate) fn set_heavy_aside(
        &mut self,
        packets: &mut [Packet],
        now: Instant,
        lost: &mut impl FnMut(&Packet, DropReason),
    ) -> usize {
        let has_offenders = self.offenders.any(now);
        let mut kept = 0;
        for i in 0..packets.len() {
            let packet = &packets[i];
            if is_costly(packet)
                || (has_offenders && self.offenders.contains(self.source(&packet.address), now))
            {
                let source = self.source(&packet.address);
                self.heavy.file(packet, source, now, lost);
                continue;
            }
            if kept < i {
                packets.swap(kept, i);
            }
            kept += 1;
        }
        kept
    }

    /// Drops requests that have waited too long.
    pub(crate) fn drop_stale(&mut self, now: Instant, lost: &mut impl FnMut(&Packet, DropReason)) {
        self.light.drop_stale(now, self.config.stale_after, lost);
        self.heavy.drop_stale(now, self.config.heavy_stale_after, lost);
    }

    /// Drops all but the newest, as stale.
    pub(crate) fn keep_newest(&mut self, count: usize, lost: &mut impl FnMut(&Packet, DropReason)) {
        self.light.keep_newest(count, lost);
        self.heavy.keep_newest(count, lost);
    }

    /// Takes the next requests that are not costly; returns their number.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        arrived: &mut [Instant],
    ) -> usize {
        let patience = self.config.stale_after / 4;
        let places = packets.iter_mut().zip(arrived);
        let mut taken = 0;
        for (packet, arrived) in places {
            let Some(next) = self.light.take(now, patience, packet) else { break };
            *arrived = next.arrived;
            taken += 1;
        }
        taken
    }

    /// Takes a costly request, if one is due. `others_wait`: whether requests wait that are not
    /// costly. Report its cost to [`charge`](Self::charge).
    pub(crate) fn take_heavy(
        &mut self,
        now: Instant,
        others_wait: bool,
        packet: &mut Packet,
    ) -> Option<CostlyRequest> {
        if self.heavy.is_empty() || !self.may_spend(others_wait) {
            return None;
        }
        let patience = self.config.heavy_stale_after / 4;
        let Taken { arrived, source } = self.heavy.take(now, patience, packet)?;
        Some(CostlyRequest { arrived, source, others_wait, was_known: is_costly(packet) })
    }

    /// Accounts for the time that a costly request took.
    pub(crate) fn charge(&mut self, costly: CostlyRequest, time: Duration) {
        let rounds = time.as_nanos() / HEAVY_QUANTUM.as_nanos();
        self.heavy.put_off(costly.source, rounds as u64);
        self.spend(costly.others_wait, time);
    }

    /// Whether there is time now for what is costly.
    pub(crate) fn may_spend(&self, others_wait: bool) -> bool {
        !others_wait || self.balance >= 0
    }

    /// Accounts for the time that something costly took.
    pub(crate) fn spend(&mut self, others_wait: bool, time: Duration) {
        if others_wait {
            self.balance -= nanoseconds(time);
        }
    }

    /// Accounts for the time that others took.
    pub(crate) fn credit(&mut self, time: Duration) {
        let earned = nanoseconds(time / (HEAVY_PART - 1));
        self.balance = (self.balance + earned).min(nanoseconds(CREDIT_MAX));
    }

    /// Records that a plain request took `time`: the source's requests count as costly until it has
    /// paid for that.
    pub(crate) fn note_offence(&mut self, address: &Address, now: Instant, time: Duration) {
        let source = self.source(address);
        self.offenders.add(source, now, now + time * HEAVY_PART);
    }

    /// The source as a number: its base LID, or for a GID a number above all unicast LIDs.
    fn source(&self, address: &Address) -> SourceId {
        let gid = address.grh.map(|grh| grh.remote_gid);
        let key = transfer::source(self.lmc, address.lid, gid);
        if address.lid.is_unicast() {
            return key.0.0;
        }
        Lid::UNICAST_LAST.0 + 1 + (self.hasher.hash(&key) & 0x3FFF) as u16
    }
}

/// A costly request that was due and taken from the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostlyRequest {
    pub(crate) arrived: Instant,
    source: SourceId,
    others_wait: bool,
    /// Whether the request itself shows that it is costly. Its source pays with its own turns; the
    /// source's other requests are not affected.
    pub(crate) was_known: bool,
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether a packet shows that answering it may take long.
#[inline]
fn is_costly(packet: &Packet) -> bool {
    is_table(packet) || leaves_an_end_open(packet)
}

/// Whether a packet is a Get() of a path without both ends. If no path matches, this is known only
/// after all pairs of ports have been examined.
#[inline]
fn leaves_an_end_open(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    let (header, mask) = (mad.header(), mad.sa().component_mask());
    header.method() == Method::GET
        && header.attribute_id() == attribute::PATH_RECORD
        && header.mgmt_class() == MgmtClass::SUBN_ADM
        && !(mask.intersects(path::DGID | path::DLID) && mask.intersects(path::SGID | path::SLID))
}

/// Whether a packet asks for a table, which takes as long as it is large. A segment of a longer
/// request does not: it has to stay in order.
#[inline]
fn is_table(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    let method = mad.header().method();
    if method != Method::GET_TABLE && method != Method::GET_MULTI {
        return false;
    }
    let rmpp = mad.rmpp();
    mad.header().mgmt_class() == MgmtClass::SUBN_ADM
        && (!rmpp.is_active()
            || (rmpp.rmpp_type() == RmppType::DATA
                && rmpp.flags().contains(RmppFlags::FIRST | RmppFlags::LAST)))
}

//! Outgoing answers of several segments: a bounded table of RMPP senders.
//!
//! The protocol itself is in [`ib_mad::rmpp`]. This module keeps the receiver and the data of each
//! transfer, the sending order and the timeouts. Memory comes from the [`pool`](crate::query::pool)
//! and returns there when a transfer ends for any reason.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::time::Instant;

use foldhash::fast::RandomState;
use ib_mad::rmpp::{Outcome, Sender, SenderConfig};
use ib_mad::transport::{Origin, Packet};
use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::rmpp::RmppStatus;
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

use crate::query::Parts;
use crate::query::pool::Pool;
use crate::stats::Subject;

/// Share of the table that one source may hold. A source that does not acknowledge holds its
/// transfers until they time out, and must leave slots for the others.
pub(crate) fn source_max(max: usize) -> usize {
    max.div_ceil(16)
}

/// Identity of a transfer: the requester and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    lid: Lid,
    qpn: Qpn,
    gid: Option<Gid>,
    tid: u64,
}

/// By few words: most have no GID.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { lid, qpn, gid, tid } = self;
        state.write_u64(u64::from(lid.0) << 32 | u64::from(qpn.0));
        state.write_u64(*tid);
        if let Some(gid) = gid {
            state.write_u128(u128::from_ne_bytes(gid.0));
        }
    }
}

/// The requester, independent of its QPs and requests, by which shares are counted: its base LID. A
/// GID is what the sender writes, so it counts only where there is no LID, as on RoCE.
pub(crate) type Source = (Lid, Option<Gid>);

/// The source of a packet with this LID, and the GID of its GRH. `lmc` is the greatest LMC in the
/// subnet: a port has 2^LMC LIDs, of which the first is a multiple of that (IBA 4.1.3).
pub(crate) fn source(lmc: u8, lid: Lid, gid: Option<Gid>) -> Source {
    (Lid(lid.0 >> lmc << lmc), gid.filter(|_| !lid.is_unicast()))
}

impl Key {
    /// The requester.
    pub(crate) fn source(&self, lmc: u8) -> Source {
        source(lmc, self.lid, self.gid)
    }

    /// Whether both are of one source.
    pub(crate) fn has_source_of(&self, other: &Self, lmc: u8) -> bool {
        self.source(lmc) == other.source(lmc)
    }

    /// The transfer that a packet belongs to, or would begin.
    pub(crate) fn of(packet: &Packet) -> Self {
        let address = &packet.address;
        Self {
            lid: address.lid,
            qpn: address.qpn,
            gid: address.grh.map(|grh| grh.remote_gid),
            tid: SaMad::new(&packet.mad).header().tid(),
        }
    }
}

/// One answer under way.
struct Transfer {
    key: Key,
    origin: Origin,
    header: [u8; HEADER_LEN],
    /// The data from `acked` on, as far as it was found.
    data: Vec<u8>,
    acked: usize,
    /// The search for the rest of the data.
    growth: Option<Box<Growth>>,
    sender: Sender,
    subject: Subject,
    /// When its request was read.
    begun: Instant,
    /// Whether it is in `Transfers::ready`.
    queued: bool,
}

impl Transfer {
    fn new(
        begun: Instant,
        (key, origin): (Key, Origin),
        (header, data): ([u8; HEADER_LEN], Vec<u8>),
        sender: Sender,
        subject: Subject,
    ) -> Self {
        let (acked, growth, queued) = (0, None, true);
        Self { key, origin, header, data, acked, growth, sender, subject, begun, queued }
    }

    /// When it is due: at once if it should grow.
    fn poll_timeout(&self) -> Option<Instant> {
        match self.growth.is_some() && self.sender.wants_data() {
            true => Some(self.begun),
            false => self.sender.poll_timeout(),
        }
    }

    /// Fills `packets` with those to send next; fewer are all that there are now.
    fn poll_transmit(&mut self, now: Instant, packets: &mut [Packet]) -> Transmitted {
        let room = u32::try_from(packets.len()).unwrap_or(u32::MAX);
        let burst = self.sender.poll_burst(now, room);
        let mut sent = Transmitted { packets: 0, again: burst.again() as usize };
        for (transmit, packet) in burst.zip(packets) {
            match self.acked {
                0 => transmit.write(&self.header, &self.data, &mut packet.mad),
                acked => transmit.behind(acked).write(&self.header, &self.data, &mut packet.mad),
            }
            packet.set_origin(&self.origin);
            sent.packets += 1;
        }
        sent
    }
}

/// A table that is found part by part while it is sent.
pub(crate) struct Growth {
    /// The request.
    pub(crate) packet: Packet,
    /// What remains of it.
    pub(crate) parts: Parts,
}

/// What a search for more of a table has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// There may be more records.
    More,
    /// All records are found.
    All,
    /// The rest cannot be found: a part exceeds the limits of an answer, or memory is short.
    Failed,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Subject of the request.
    pub(crate) subject: Subject,
    /// When it was read.
    pub(crate) begun: Instant,
    /// Whether the receiver has all of the answer; else either side gave up.
    pub(crate) is_complete: bool,
}

/// Packets written for transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transmitted {
    /// Packets filled.
    pub(crate) packets: usize,
    /// Segments among them that were sent before.
    pub(crate) again: usize,
}

/// Maximum number of transfers that grow. Each costs a search as long as it lasts.
const GROWING_MAX: usize = 8;

/// Segments sent per turn, so that transfers share the link evenly.
const TURN_LEN: usize = 8;

/// All answers under way.
pub(crate) struct Transfers {
    config: SenderConfig,
    /// The greatest LMC in the subnet.
    pub(crate) lmc: u8,
    slots: Vec<Option<Transfer>>,
    free: Vec<usize>,
    /// Hashed with a random seed, because clients choose the keys.
    by_key: HashMap<Key, usize, RandomState>,
    /// Slots of transfers that grow.
    growing: Vec<usize>,
    /// Slots that may have something to send, each once; the next to send is in front.
    ready: VecDeque<usize>,
    /// When the first transfer is due; `None` if it has to be looked up.
    next_timeout: Option<Option<Instant>>,
    /// Transfers that ended since they were last asked for; each frees its slot, so there are about
    /// as many as slots at most.
    ended: Vec<Ended>,
}

impl Transfers {
    /// A table of at most `max` transfers.
    pub(crate) fn new(max: usize, config: SenderConfig) -> Self {
        Self {
            config,
            lmc: 0,
            slots: (0..max).map(|_| None).collect(),
            free: (0..max).rev().collect(),
            by_key: HashMap::with_capacity_and_hasher(max, RandomState::default()),
            growing: Vec::with_capacity(GROWING_MAX),
            ready: VecDeque::with_capacity(max),
            next_timeout: Some(None),
            ended: Vec::with_capacity(max),
        }
    }

    /// Number of transfers under way.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether this transfer is under way.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        !self.by_key.is_empty() && self.by_key.contains_key(key)
    }

    /// Whether a source has all the transfers that it may have, or so many bytes under way that it
    /// has to wait for the end of some.
    pub(crate) fn has_share(&self, key: &Key, bytes_max: usize) -> bool {
        if self.by_key.is_empty() {
            return false;
        }
        let (mut held, mut bytes) = (0, 0);
        for (other, &slot) in &self.by_key {
            if other.has_source_of(key, self.lmc) {
                held += 1;
                bytes += self.slots[slot].as_ref().map_or(0, |transfer| transfer.data.capacity());
            }
        }
        held >= source_max(self.slots.len()) || bytes >= bytes_max
    }

    /// Starts to send `data` behind `header`; returns the data if the table, or the source's share
    /// of it, is full.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        key: Key,
        origin: Origin,
        header: [u8; HEADER_LEN],
        data: Vec<u8>,
        subject: Subject,
    ) -> Result<(), Vec<u8>> {
        if self.has_share(&key, usize::MAX) || self.by_key.contains_key(&key) {
            return Err(data);
        }
        let Some(sender) = Sender::new(now, data.len(), self.config) else { return Err(data) };
        let Some(slot) = self.free.pop() else { return Err(data) };
        self.start(slot, Transfer::new(now, (key, origin), (header, data), sender, subject));
        Ok(())
    }

    /// Whether another table of a source may grow.
    pub(crate) fn may_grow(&self, key: &Key) -> bool {
        let mut grown = self.growing.iter().filter_map(|&slot| self.slots[slot].as_ref());
        self.growing.len() < GROWING_MAX
            && !grown.any(|other| other.key.has_source_of(key, self.lmc))
            && !self.by_key.contains_key(key)
            && !self.free.is_empty()
    }

    /// Starts to send a table of which `data` was found so far; returns the data if the table of
    /// transfers is full, or the source has such a transfer already.
    pub(crate) fn begin_growing(
        &mut self,
        now: Instant,
        (header, data): ([u8; HEADER_LEN], Vec<u8>),
        growth: Box<Growth>,
        grown: Grown,
        subject: Subject,
    ) -> Result<(), Vec<u8>> {
        let key = Key::of(&growth.packet);
        if !self.may_grow(&key) {
            return Err(data);
        }
        let Some(slot) = self.free.pop() else { return Err(data) };
        let client = (key, growth.packet.origin());
        let mut sender = Sender::growing(now, self.config);
        sender.grow(data.len(), grown == Grown::All);
        let transfer = Transfer::new(now, client, (header, data), sender, subject);
        let growth = (grown == Grown::More).then_some(growth);
        self.growing.extend(growth.is_some().then_some(slot));
        self.start(slot, Transfer { growth, ..transfer });
        Ok(())
    }

    fn start(&mut self, slot: usize, transfer: Transfer) {
        self.by_key.insert(transfer.key, slot);
        self.slots[slot] = Some(transfer);
        self.ready.push_back(slot);
        self.next_timeout = None;
    }

    /// Whether some transfers grow.
    #[inline]
    pub(crate) fn grows(&self) -> bool {
        !self.growing.is_empty()
    }

    /// The next transfer that should grow. They take turns.
    pub(crate) fn next_hungry(&mut self) -> Option<usize> {
        let at = self.growing.iter().position(|&slot| self.is_hungry(slot))?;
        let slot = self.growing.remove(at);
        self.growing.push(slot);
        Some(slot)
    }

    fn is_hungry(&self, slot: usize) -> bool {
        self.slots[slot]
            .as_ref()
            .is_some_and(|transfer| transfer.growth.is_some() && transfer.sender.wants_data())
    }

    /// The door that the request of a transfer that grows came through.
    pub(crate) fn door(&self, slot: usize) -> Option<SocketAddr> {
        self.slots[slot].as_ref()?.growth.as_ref()?.packet.carrier.peer
    }

    /// Takes the search for the data of a transfer, and its buffer, without the data that was
    /// acknowledged. [`grown`](Self::grown) gives them back.
    pub(crate) fn take_growth(&mut self, slot: usize) -> Option<(Box<Growth>, Vec<u8>)> {
        let transfer = self.slots.get_mut(slot)?.as_mut()?;
        let growth = transfer.growth.take()?;
        let acked = transfer.sender.acked_len();
        transfer.data.drain(..acked - transfer.acked);
        transfer.acked = acked;
        Some((growth, std::mem::take(&mut transfer.data)))
    }

    /// Gives back the buffer of a transfer with more data, and the search.
    pub(crate) fn grown(
        &mut self,
        slot: usize,
        data: Vec<u8>,
        (growth, grown): (Box<Growth>, Grown),
        pool: &mut Pool,
    ) {
        let Some(transfer) = &mut self.slots[slot] else { return pool.give_back(data) };
        let (before, now) = (transfer.sender.data_len(), transfer.acked + data.len());
        transfer.data = data;
        match grown {
            Grown::More => {
                transfer.growth = Some(growth);
                transfer.sender.grow(now - before, false);
            }
            Grown::All => transfer.sender.grow(now - before, true),
            Grown::Failed => transfer.sender.abort(RmppStatus::RESOURCES_EXHAUSTED),
        }
        self.settle(slot, pool);
    }

    /// Handles an ACK, STOP or ABORT; returns whether there is such a transfer.
    pub(crate) fn handle_packet(&mut self, now: Instant, packet: &Packet, pool: &mut Pool) -> bool {
        let Some(&slot) = self.by_key.get(&Key::of(packet)) else { return false };
        if let Some(transfer) = &mut self.slots[slot] {
            transfer.sender.handle_packet(now, &SaMad::new(&packet.mad).rmpp());
        }
        self.settle(slot, pool);
        true
    }

    /// Fills `packets` with those to send next. Transfers take turns. If they do not fill it, there
    /// are no others now.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        pool: &mut Pool,
    ) -> Transmitted {
        let mut all = Transmitted::default();
        while all.packets < packets.len()
            && let Some(slot) = self.ready.pop_front()
        {
            let Some(transfer) = &mut self.slots[slot] else { continue };
            transfer.queued = false;
            let room = &mut packets[all.packets..];
            let turn = room.len().min(TURN_LEN);
            let sent = transfer.poll_transmit(now, &mut room[..turn]);
            all.packets += sent.packets;
            all.again += sent.again;
            if sent.packets == turn {
                transfer.queued = true;
                self.ready.push_back(slot);
            }
            if sent.packets > 0 {
                self.next_timeout = None;
            }
            // This may have been its last packet.
            self.settle_if_over(slot, pool);
        }
        all
    }

    /// When `handle_timeout` is due.
    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        if let Some(known) = self.next_timeout {
            return known;
        }
        // Only slots in use are visited: they are few of many.
        let live = self.by_key.values().filter_map(|&slot| self.slots[slot].as_ref());
        let next = live.filter_map(Transfer::poll_timeout).min();
        self.next_timeout = Some(next);
        next
    }

    /// Lets transfers whose time is up go back or give up.
    pub(crate) fn handle_timeout(&mut self, now: Instant, pool: &mut Pool) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        for slot in 0..self.slots.len() {
            if let Some(transfer) = &mut self.slots[slot] {
                transfer.sender.handle_timeout(now);
                self.settle(slot, pool);
            }
        }
    }

    /// How transfers ended since the last call.
    pub(crate) fn take_ended(&mut self) -> impl Iterator<Item = Ended> + '_ {
        self.ended.drain(..)
    }

    /// Queues a transfer that has something to send, or frees it.
    fn settle(&mut self, slot: usize, pool: &mut Pool) {
        self.next_timeout = None;
        if let Some(transfer) = &mut self.slots[slot]
            && !transfer.queued
        {
            transfer.queued = true;
            self.ready.push_back(slot);
        }
        self.settle_if_over(slot, pool);
    }

    fn settle_if_over(&mut self, slot: usize, pool: &mut Pool) {
        let Some(transfer) = &mut self.slots[slot] else { return };
        if let Some(outcome) = transfer.sender.poll() {
            let is_complete = outcome == Outcome::Complete;
            let Transfer { subject, begun, .. } = *transfer;
            self.ended.push(Ended { subject, begun, is_complete });
        }
        if transfer.sender.is_over() {
            if let Some(over) = self.slots[slot].take() {
                self.by_key.remove(&over.key);
                pool.give_back(over.data);
                self.free.push(slot);
                self.ready.retain(|&other| other != slot);
                self.growing.retain(|&other| other != slot);
            }
            self.next_timeout = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;

    use super::*;

    fn key(lid: u16, tid: u64) -> Key {
        Key { lid: Lid(lid), qpn: Qpn(1), gid: None, tid }
    }

    /// Regression: one client that requested tables and never acknowledged them prevented all
    /// others from getting theirs.
    #[test]
    fn one_source_leaves_room_for_the_others() {
        let mut transfers = Transfers::new(64, SenderConfig::default());
        let now = Instant::now();
        let mut begin = |key| {
            let (origin, header, data) = (Origin::default(), [0; HEADER_LEN], vec![0; 1000]);
            transfers.begin(now, key, origin, header, data, Subject::NONE).is_ok()
        };
        let greedy = (0..64).filter(|&tid| begin(key(1, tid))).count();
        assert_eq!(greedy, source_max(64));
        // Regression: with a GID of its choice in each GRH it had a share for each.
        let with_gid = |tid: u64| Key { gid: Some(Gid::new(tid, Guid(tid))), ..key(1, tid) };
        assert!(!(100..164).any(|tid| begin(with_gid(tid))));
        assert!((2..=16).all(|lid| begin(key(lid, 0))));
        // Without LIDs, as on RoCE, requesters differ by GID.
        let without_lid = |tid: u64| Key { lid: Lid::NONE, ..with_gid(tid) };
        assert!((0..8).all(|tid| begin(without_lid(tid))));
    }

    /// Regression: at a LMC above 0 a port had a share for each of its LIDs.
    #[test]
    fn all_lids_of_a_port_are_one_source() {
        let mut transfers = Transfers::new(64, SenderConfig::default());
        transfers.lmc = 3;
        let now = Instant::now();
        let mut begin = |key| {
            let (origin, header, data) = (Origin::default(), [0; HEADER_LEN], vec![0; 1000]);
            transfers.begin(now, key, origin, header, data, Subject::NONE).is_ok()
        };
        let held = (16..24).flat_map(|lid| (0..8).map(move |tid| (lid, tid)));
        assert_eq!(held.filter(|&(lid, tid)| begin(key(lid, tid))).count(), source_max(64));
        assert!(begin(key(24, 0)) && begin(key(15, 0)));
    }

    /// Regression: four large tables that are never acknowledged took all memory.
    #[test]
    fn one_source_leaves_memory_for_the_others() {
        let mut transfers = Transfers::new(64, SenderConfig::default());
        let now = Instant::now();
        let data = vec![0; 1000];
        let (origin, header) = (Origin::default(), [0; HEADER_LEN]);
        let begun = transfers.begin(now, key(1, 0), origin, header, data, Subject::NONE).is_ok();
        assert!(begun && transfers.has_share(&key(1, 1), 1000));
        assert!(!transfers.has_share(&key(1, 1), 1001) && !transfers.has_share(&key(2, 1), 1000));
    }
}

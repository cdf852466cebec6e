//! The requests of one worker that wait for the SM: stored completely, found by id, and given up
//! when their clients have timed out.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use ib_mad::transport::Packet;
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::sa::SaMad;

use crate::serve::transfer::{self, source_max};

/// Identity of an open request.
type Key = (transfer::Key, AttributeId, Method);

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Open {
    /// The request as it came.
    pub(crate) packet: Packet,
    /// When it was read.
    pub(crate) since: Instant,
    /// The lane of the session whose manager is to decide.
    pub(crate) lane: usize,
    key: Key,
    source: transfer::Source,
    serial: u32,
}

/// Why a request cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The request is a repeat of one that already waits.
    Repeated,
    /// Too many requests wait, in total or from its source.
    TooMany,
}

/// All requests of a worker that wait.
#[derive(Debug)]
pub(crate) struct OpenRequests {
    /// The greatest LMC in the subnet.
    pub(crate) lmc: u8,
    slots: Vec<Option<Open>>,
    free: Vec<u32>,
    by_key: HashMap<Key, u32, RandomState>,
    /// How many wait of each source.
    by_source: HashMap<transfer::Source, u32, RandomState>,
    /// Ids in the order in which their time is up.
    deadlines: VecDeque<(Instant, u64)>,
    patience: Duration,
    id_base: u64,
    serial: u32,
}

impl OpenRequests {
    /// A table for `max` requests, each of which waits at most `patience`. Ids have `id_base` in
    /// the top 16 bits and count from `serial`, which no earlier table of this worker used, so that
    /// a late outcome cannot match a new request.
    pub(crate) fn new(max: usize, patience: Duration, id_base: u64, serial: u32) -> Self {
        Self {
            lmc: 0,
            slots: std::iter::repeat_with(|| None).take(max).collect(),
            free: (0..max as u32).rev().collect(),
            by_key: HashMap::with_capacity_and_hasher(max, RandomState::default()),
            by_source: HashMap::with_capacity_and_hasher(max, RandomState::default()),
            deadlines: VecDeque::with_capacity(max * 2),
            patience,
            id_base,
            serial,
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Keeps a request for the manager of `lane`; its id.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        lane: usize,
        packet: &Packet,
    ) -> Result<u64, Rejected> {
        let header = SaMad::new(&packet.mad);
        let key =
            (transfer::Key::of(packet), header.header().attribute_id(), header.header().method());
        let Entry::Vacant(place) = self.by_key.entry(key) else { return Err(Rejected::Repeated) };
        // One entry per source with a request, so at most one per slot.
        let slot = *self.free.last().ok_or(Rejected::TooMany)?;
        let source = key.0.source(self.lmc);
        let held = self.by_source.entry(source).or_insert(0);
        if *held as usize >= source_max(self.slots.len()) {
            return Err(Rejected::TooMany);
        }
        *held += 1;
        place.insert(slot);
        self.free.pop();
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let open = Open { packet: packet.clone(), since: now, lane, key, source, serial };
        self.slots[slot as usize] = Some(open);
        let id = self.id(slot, serial);
        self.deadlines.push_back((now + self.patience, id));
        Ok(id)
    }

    /// Takes out the request with this id, if it still waits.
    pub(crate) fn end(&mut self, id: u64) -> Option<Open> {
        let (slot, serial) = ((id & 0xFFFF) as usize, (id >> 16) as u32);
        let place = self.slots.get_mut(slot)?;
        if place.as_ref()?.serial != serial || id >> 48 != self.id_base >> 48 {
            return None;
        }
        let open = place.take()?;
        self.free.push(slot as u32);
        self.by_key.remove(&open.key);
        if let Entry::Occupied(mut held) = self.by_source.entry(open.source) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
        Some(open)
    }

    /// When the first request's time is up; may be earlier, never later.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(due, _)| due)
    }

    /// Gives up requests whose time is up; `lost` takes the lane of each.
    pub(crate) fn handle_timeout(&mut self, now: Instant, mut lost: impl FnMut(usize)) {
        while let Some(&(due, id)) = self.deadlines.front()
            && due <= now
        {
            self.deadlines.pop_front();
            if let Some(open) = self.end(id) {
                lost(open.lane);
            }
        }
    }

    /// Slot in the low 16 bits, a number that the slot's next request will not have above them.
    fn id(&self, slot: u32, serial: u32) -> u64 {
        self.id_base | u64::from(serial) << 16 | u64::from(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::Lid;
    use ib_mad::wire::sa::{ComponentMask, attribute};

    const PATIENCE: Duration = Duration::from_secs(2);

    fn request(lid: u16, tid: u64) -> Packet {
        let mut packet = Packet::default();
        packet.address.lid = Lid(lid);
        SaMad::new(&mut packet.mad).write_request(
            Method::SET,
            attribute::MC_MEMBER_RECORD,
            tid,
            ComponentMask::NONE,
        );
        packet
    }

    #[test]
    fn a_request_waits_until_it_is_ended_and_is_found_once() {
        let now = Instant::now();
        let mut open = OpenRequests::new(64, PATIENCE, 5 << 48, 0);
        let id = open.begin(now, 0, &request(3, 9)).unwrap();
        assert_eq!((id >> 48, open.len()), (5, 1));
        assert_eq!(open.begin(now, 0, &request(3, 9)), Err(Rejected::Repeated));
        assert_eq!(open.end(id).unwrap().packet.address.lid, Lid(3));
        assert!(open.end(id).is_none());
        let again = open.begin(now, 0, &request(3, 9)).unwrap();
        assert_ne!(id, again, "a late outcome of the first must not answer the second");
        assert!(open.end(id).is_none() && open.end(again).is_some());
        assert_eq!(open.len(), 0);
    }

    #[test]
    fn an_outcome_for_a_table_that_was_replaced_ends_nothing() {
        let now = Instant::now();
        let mut first = OpenRequests::new(64, PATIENCE, 0, 0);
        let id = first.begin(now, 0, &request(3, 9)).unwrap();
        let mut second = OpenRequests::new(64, PATIENCE, 0, 1 << 24);
        second.begin(now, 0, &request(4, 9)).unwrap();
        assert!(second.end(id).is_none());
        assert_eq!(second.len(), 1);
    }

    #[test]
    fn one_source_leaves_room_for_others() {
        let now = Instant::now();
        let mut open = OpenRequests::new(64, PATIENCE, 0, 0);
        let taken = (0..64).filter(|&tid| open.begin(now, 0, &request(3, tid)).is_ok()).count();
        assert_eq!(taken, 4);
        assert!(open.begin(now, 0, &request(4, 0)).is_ok());
    }

    /// The share is counted by what the LMC was when the request came.
    #[test]
    fn all_lids_of_a_port_are_one_source() {
        let now = Instant::now();
        let mut open = OpenRequests::new(64, PATIENCE, 0, 0);
        open.lmc = 3;
        let id = open.begin(now, 0, &request(17, 1)).unwrap();
        let more = (16..24).filter(|&lid| open.begin(now, 0, &request(lid, 2)).is_ok()).count();
        assert_eq!(more, 3);
        open.lmc = 0;
        assert!(open.end(id).is_some());
        open.lmc = 3;
        assert!(open.begin(now, 0, &request(18, 3)).is_ok());
        assert!(open.begin(now, 0, &request(19, 3)).is_err());
    }

    #[test]
    fn what_waited_too_long_is_given_up() {
        let now = Instant::now();
        let mut open = OpenRequests::new(64, PATIENCE, 0, 0);
        let id = open.begin(now, 0, &request(3, 1)).unwrap();
        open.begin(now + PATIENCE / 2, 0, &request(3, 2)).unwrap();
        let mut lost = Vec::new();
        open.handle_timeout(now + PATIENCE / 2, |lane| lost.push(lane));
        assert!(lost.is_empty());
        open.handle_timeout(open.poll_timeout().unwrap(), |lane| lost.push(lane));
        assert_eq!(lost, [0]);
        assert!(open.end(id).is_none());
        assert_eq!(open.len(), 1);
    }
}

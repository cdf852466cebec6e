//! Detects duplicate requests: a client repeats a request until it is answered.
//!
//! Only waiting requests are known here. A repeat of an answered request is answered again, as the
//! answer may have been lost. The table uses open addressing, has a fixed size and is at most half
//! full.

use std::hash::BuildHasher;
use std::net::SocketAddr;

use foldhash::fast::RandomState;
use ib_mad::transport::Packet;
use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass};
use ib_mad::wire::sa::SaMad;

use super::links::NONE;

/// Identity of a request: equal for a request and its repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    tid: u64,
    lid: Lid,
    qpn: Qpn,
    method: Method,
    attribute: AttributeId,
    gid: Option<Gid>,
    /// Clients behind different front doors are different clients.
    peer: Option<SocketAddr>,
}

impl Identity {
    /// The identity of a request; `None` for packets that are not requests (segments and
    /// acknowledgements of a transfer).
    pub(super) fn of(packet: &Packet) -> Option<Self> {
        let (mad, address) = (SaMad::new(&packet.mad), &packet.address);
        let header = mad.header();
        if header.mgmt_class() != MgmtClass::SUBN_ADM
            || header.method().is_response()
            || mad.rmpp().is_active()
        {
            return None;
        }
        Some(Self {
            tid: header.tid(),
            lid: address.lid,
            qpn: address.qpn,
            method: header.method(),
            attribute: header.attribute_id(),
            gid: address.grh.map(|grh| grh.remote_gid),
            peer: packet.carrier.peer,
        })
    }
}

/// Hashes identities and sources, by seeds that no client knows.
#[derive(Clone, Default)]
pub(super) struct Hasher(RandomState);

impl Hasher {
    pub(super) fn hash(&self, value: &impl std::hash::Hash) -> u32 {
        let hash = self.0.hash_one(value);
        (hash ^ hash >> 32) as u32
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    hash: u32,
    place: u16,
}

/// Places of waiting requests by the hash of their identity.
#[derive(Debug)]
pub(super) struct Known {
    cells: Box<[Cell]>,
}

impl Known {
    /// A table for `places` requests.
    pub(super) fn new(places: u16) -> Self {
        let cells = (usize::from(places) * 2).next_power_of_two();
        Self { cells: vec![Cell::default(); cells].into_boxed_slice() }
    }

    /// The place with this hash that `is_same` accepts.
    pub(super) fn find(&self, hash: u32, is_same: impl Fn(u16) -> bool) -> Option<u16> {
        let mut at = self.home(hash);
        while self.cells[at].place != NONE {
            if self.cells[at].hash == hash && is_same(self.cells[at].place) {
                return Some(self.cells[at].place);
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a place; the number of places must not exceed the size of the table.
    pub(super) fn insert(&mut self, hash: u32, place: u16) {
        let mut at = self.home(hash);
        while self.cells[at].place != NONE {
            at = self.after(at);
        }
        self.cells[at] = Cell { hash, place };
    }

    /// Removes a place. Those after it move up, so that each is still found from its home cell.
    pub(super) fn remove(&mut self, hash: u32, place: u16) {
        let mut gap = self.home(hash);
        while self.cells[gap].place != place {
            if self.cells[gap].place == NONE {
                return;
            }
            gap = self.after(gap);
        }
        let mut at = self.after(gap);
        while self.cells[at].place != NONE {
            let mask = self.cells.len() - 1;
            let from_home = at.wrapping_sub(self.home(self.cells[at].hash)) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.cells[gap] = self.cells[at];
                gap = at;
            }
            at = self.after(at);
        }
        self.cells[gap] = Cell::default();
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.cells.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Hashes of few values, so that chains are long and wrap round the end.
        #[test]
        fn what_was_put_in_is_found_until_it_is_taken_out(
            steps in prop::collection::vec((1u16..=32, 0u32..9), 0..200),
        ) {
            let mut known = Known::new(32);
            let mut model = BTreeMap::new();
            for (place, hash) in steps {
                let hash = hash.wrapping_sub(3).wrapping_mul(7);
                match model.remove(&place) {
                    Some(hash) => known.remove(hash, place),
                    None => {
                        known.insert(hash, place);
                        model.insert(place, hash);
                    }
                }
                for place in 1..=32 {
                    let hash = model.get(&place).copied();
                    let hashes = (0..9).map(|hash: u32| hash.wrapping_sub(3).wrapping_mul(7));
                    let found = hashes.filter(|&hash| {
                        known.find(hash, |other| other == place).is_some()
                    });
                    let wanted = hash.into_iter().collect::<Vec<_>>();
                    prop_assert_eq!(found.collect::<Vec<_>>(), wanted);
                }
            }
        }
    }
}

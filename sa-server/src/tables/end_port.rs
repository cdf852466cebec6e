//! Where an end port is found: by GUID in an open-addressed table, by LID in an array.
//!
//! Both hold the same 16-byte records, four to a cache line, so that a look-up touches one line. An
//! end port is a port with a LID of its own: of a channel adapter, a router, or a switch's port 0.

use ib_mad::types::{Guid, Lid};

use super::build::lid_range;
use super::guid_index::slot;
use crate::prefetch::prefetch;

/// What a query needs to know of an end port before anything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct EndPort {
    /// Port GUID; 0 marks an empty slot.
    pub guid: Guid,
    /// Base LID.
    pub lid: Lid,
    /// Row of the path classes: the switch it is attached to, or is; [`EndPort::DETACHED`] if none.
    pub row: u16,
    /// Column of the path classes of the LID by which it was found.
    pub column: u16,
    /// Its end class.
    pub class: u16,
}

impl EndPort {
    /// The row and column of a port that is attached to no switch.
    pub const DETACHED: u16 = u16::MAX;

    /// Whether two records are of one port, by whichever of its GUIDs and LIDs they were found.
    #[inline]
    pub fn is_same_port(&self, other: &Self) -> bool {
        self.lid == other.lid && (self.lid != Lid::NONE || self.guid == other.guid)
    }

    /// Number of the end class, to index by.
    #[inline]
    pub(super) fn class(&self) -> usize {
        usize::from(self.class)
    }

    /// No port.
    pub(crate) const EMPTY: Self = Self { guid: Guid(0), lid: Lid(0), row: 0, column: 0, class: 0 };
}

/// All end ports, by GUID, by LID, and in order.
#[derive(Clone, Debug)]
pub struct EndPorts {
    /// Open-addressed, linear probing, at most half full, a power of two.
    slots: Box<[EndPort]>,
    by_lid: Box<[EndPort]>,
    /// Each port once under each of its GUIDs, in the order in which OpenSM walks its ports: by the GUID's last byte first.
    all: Box<[EndPort]>,
    /// Ports that have alias GUIDs, once under each GUID, ascending by LID.
    aliased: Box<[EndPort]>,
}

impl EndPorts {
    /// The end port with this port GUID; `column` is that of its base LID.
    #[inline]
    pub fn by_guid(&self, guid: Guid) -> Option<&EndPort> {
        let mask = self.slots.len() - 1;
        let mut at = slot(guid) & mask;
        loop {
            let found = &self.slots[at];
            if found.guid == guid && guid.0 != 0 {
                return Some(found);
            }
            if found.guid.0 == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// The end port that has this LID among its own; `column` is that of this LID.
    #[inline]
    pub fn by_lid(&self, lid: Lid) -> Option<&EndPort> {
        self.by_lid.get(lid.index()).filter(|found| found.guid.0 != 0)
    }

    /// Fetches the line that [`by_guid`](Self::by_guid) begins at.
    #[inline]
    pub(crate) fn prefetch_guid(&self, guid: Guid) {
        prefetch(&self.slots, slot(guid) & (self.slots.len() - 1));
    }

    /// Fetches the line that [`by_lid`](Self::by_lid) reads.
    #[inline]
    pub(crate) fn prefetch_lid(&self, lid: Lid) {
        prefetch(&self.by_lid, lid.index());
    }

    /// Every end port under each of its GUIDs, in a stable order.
    pub fn all(&self) -> &[EndPort] {
        &self.all
    }

    /// Bytes of the two look-up tables.
    pub fn hot_bytes(&self) -> usize {
        (self.slots.len() + self.by_lid.len()) * size_of::<EndPort>()
    }

    /// The end port that has this LID, once under each of its GUIDs.
    #[inline]
    pub fn names_by_lid(&self, lid: Lid) -> &[EndPort] {
        let Some(port) = self.by_lid(lid) else { return &[] };
        if !self.aliased.is_empty() {
            let start = self.aliased.partition_point(|other| other.lid < port.lid);
            let names = &self.aliased[start..];
            let end = names.partition_point(|other| other.lid == port.lid);
            if end > 0 {
                return &names[..end];
            }
        }
        std::slice::from_ref(port)
    }

    /// Takes the ports and, for each alias GUID, its port's record under that GUID, all with the
    /// column of the base LID; and the columns of all LIDs. Of records with equal GUIDs, and of
    /// ports that claim one LID, the first is kept; returns how many such claims were refused.
    pub(super) fn build(
        ports: Vec<EndPort>,
        aliases: Vec<EndPort>,
        lmc_of: impl Fn(&EndPort) -> u8,
        column_of: impl Fn(Lid) -> u16,
    ) -> (Self, usize) {
        let mut refused = 0;
        let lid_range = |port: &EndPort| lid_range(port.lid, lmc_of(port));
        let top = ports.iter().map(|port| *lid_range(port).end()).max().unwrap_or(0);
        let mut by_lid = vec![EndPort::EMPTY; usize::from(top) + 1].into_boxed_slice();
        let mut slots = Slots::new(ports.len() + aliases.len());
        let mut all = Vec::with_capacity(ports.len() + aliases.len());
        for port in &ports {
            if !slots.insert(*port) {
                refused += 1;
                continue;
            }
            all.push(*port);
            for lid in lid_range(port) {
                let entry = &mut by_lid[usize::from(lid)];
                if entry.guid.0 == 0 {
                    *entry = EndPort { column: column_of(Lid(lid)), ..*port };
                } else {
                    refused += 1;
                }
            }
        }
        let mut with_alias: Vec<Lid> = Vec::new();
        for alias in aliases {
            if slots.insert(alias) {
                all.push(alias);
                with_alias.push(alias.lid);
            } else {
                refused += 1;
            }
        }
        with_alias.sort_unstable();
        all.sort_by_key(|port| port.guid.0.swap_bytes());
        let mut aliased: Vec<EndPort> = all
            .iter()
            .filter(|port| with_alias.binary_search(&port.lid).is_ok())
            .copied()
            .collect();
        aliased.sort_by_key(|port| port.lid);
        let (all, aliased) = (all.into_boxed_slice(), aliased.into_boxed_slice());
        (Self { slots: slots.0, by_lid, all, aliased }, refused)
    }
}

/// The open-addressed table while it is filled.
struct Slots(Box<[EndPort]>);

impl Slots {
    fn new(records: usize) -> Self {
        Self(vec![EndPort::EMPTY; (records * 2).next_power_of_two().max(2)].into_boxed_slice())
    }

    /// Whether the GUID is valid and new.
    fn insert(&mut self, port: EndPort) -> bool {
        let mask = self.0.len() - 1;
        let mut at = slot(port.guid) & mask;
        while self.0[at].guid.0 != 0 && self.0[at].guid != port.guid {
            at = (at + 1) & mask;
        }
        let is_new = port.guid.0 != 0 && self.0[at].guid.0 == 0;
        if is_new {
            self.0[at] = port;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(guid: u64, lid: u16) -> EndPort {
        EndPort { guid: Guid(guid), lid: Lid(lid), ..EndPort::EMPTY }
    }

    #[test]
    fn a_record_is_a_quarter_of_a_cache_line() {
        assert_eq!(size_of::<EndPort>(), 16);
    }

    #[test]
    fn every_port_is_found_and_no_other() {
        let ports: Vec<_> =
            (1..=5000u16).map(|i| port(0x0c42_a103_0000_0000 + u64::from(i) * 16, i)).collect();
        let (index, refused) = EndPorts::build(ports.clone(), Vec::new(), |_| 0, |lid| lid.0);
        assert_eq!(refused, 0);
        for want in &ports {
            assert_eq!(index.by_guid(want.guid), Some(want));
            assert_eq!(index.by_lid(want.lid).unwrap().guid, want.guid);
            assert_eq!(index.by_guid(Guid(want.guid.0 + 1)), None);
        }
        assert_eq!(index.by_guid(Guid(0)), None);
        for lid in [0, 5001, 0xBFFF, 0xC000, 0xFFFF] {
            assert_eq!(index.by_lid(Lid(lid)), None, "{lid}");
        }
    }

    #[test]
    fn a_lid_range_leads_to_one_port_by_several_columns() {
        let (index, _) = EndPorts::build(vec![port(7, 8)], Vec::new(), |_| 2, |lid| lid.0 * 10);
        for lid in 8..12 {
            let found = index.by_lid(Lid(lid)).unwrap();
            assert_eq!((found.guid, found.lid, found.column), (Guid(7), Lid(8), lid * 10));
        }
        assert_eq!(index.by_lid(Lid(12)), None);
    }

    #[test]
    fn contradictions_are_refused_and_counted() {
        let ports = vec![port(1, 5), port(1, 6), port(2, 5), port(0, 9)];
        let (index, refused) = EndPorts::build(ports, Vec::new(), |_| 0, |_| 0);
        assert_eq!(refused, 3, "a GUID twice, a LID twice, a GUID of zero");
        assert_eq!(index.by_lid(Lid(5)).unwrap().guid, Guid(1));
    }

    #[test]
    fn a_port_answers_to_its_aliases_too() {
        let aliases = vec![port(9, 5), port(1, 5), port(0, 5)];
        let (index, refused) = EndPorts::build(vec![port(1, 5), port(2, 6)], aliases, |_| 0, |_| 0);
        assert_eq!(refused, 2, "a GUID in use, a GUID of zero");
        assert!(index.by_guid(Guid(9)).unwrap().is_same_port(index.by_guid(Guid(1)).unwrap()));
        assert_eq!(index.by_lid(Lid(5)).unwrap().guid, Guid(1));
        let names = |lid| index.names_by_lid(Lid(lid)).iter().map(|p| p.guid.0).collect::<Vec<_>>();
        assert_eq!((names(5), names(6), names(7)), (vec![1, 9], vec![2], vec![]));
        assert_eq!(index.all().len(), 3);
    }

    #[test]
    fn lids_past_the_unicast_range_are_cut_off() {
        let ports = vec![port(1, 0xBFFE), port(2, 0xC000)];
        let (index, _) = EndPorts::build(ports, Vec::new(), |_| 7, |_| 0);
        assert!(index.by_lid(Lid(0xBFFF)).is_some());
        assert!(index.by_guid(Guid(2)).is_some());
    }
}

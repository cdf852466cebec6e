//! Look-up of end ports: by GUID in an open-addressed table, by LID in an array.
//!
//! Both hold the same 16-byte records, four per cache line, so that a look-up reads one line. An
//! end port is a port with its own LID: of a channel adapter, of a router, or port 0 of a switch.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};

use super::guid_index::slot;
use crate::tables::prefetch::prefetch;

/// Data of an end port that a query needs first.
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

    /// Its place in the order of [`EndPorts::all`].
    pub(crate) fn place(&self) -> u64 {
        in_order(self)
    }

    /// No port.
    pub(crate) const EMPTY: Self = Self { guid: Guid(0), lid: Lid(0), row: 0, column: 0, class: 0 };
}

/// The unicast LIDs of a port.
pub(super) fn lid_range(base: Lid, lmc: u8) -> RangeInclusive<u16> {
    #[allow(clippy::reversed_empty_ranges, reason = "a port without LIDs")]
    const NO_LIDS: RangeInclusive<u16> = 1..=0;
    if !base.is_unicast() {
        return NO_LIDS;
    }
    let last = u32::from(base.0) + (1 << lmc) - 1;
    base.0..=last.min(Lid::UNICAST_LAST.0.into()) as u16
}

/// All end ports, by GUID, by LID, and in order. Clones share them.
#[derive(Clone, Debug)]
pub struct EndPorts {
    /// Open-addressed, linear probing, at most half full, a power of two.
    slots: Arc<[EndPort]>,
    by_lid: Arc<[EndPort]>,
    /// Each port once, by its own GUID, in the order of `all`.
    own: Arc<[EndPort]>,
    /// Each port once under each of its GUIDs, in the order in which OpenSM walks its ports: by the
    /// GUID's last byte first.
    all: Arc<[EndPort]>,
    /// Ports that have alias GUIDs, once under each GUID, ascending by LID.
    aliased: Arc<[EndPort]>,
}

impl EndPorts {
    /// Whether both are the same memory.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slots, &other.slots)
            && Arc::ptr_eq(&self.by_lid, &other.by_lid)
            && Arc::ptr_eq(&self.all, &other.all)
    }

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

    /// The first of [`all`](Self::all) behind a place, or the first of all.
    pub(crate) fn after(&self, place: Option<u64>) -> Option<&EndPort> {
        first_after(&self.all, place)
    }

    /// Same of ports by their own GUIDs.
    pub(crate) fn own_after(&self, place: Option<u64>) -> Option<&EndPort> {
        first_after(&self.own, place)
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

    /// Takes the ports with the column of the base LID, and the columns of all LIDs. Of records
    /// with equal GUIDs, and of ports that claim one LID, the first is kept; returns how many such
    /// claims were refused. No port has aliases yet.
    pub(super) fn build(
        ports: Vec<EndPort>,
        lmc_of: impl Fn(&EndPort) -> u8,
        column_of: impl Fn(Lid) -> u16,
    ) -> (Self, usize) {
        let mut refused = 0;
        let lid_range = |port: &EndPort| lid_range(port.lid, lmc_of(port));
        let top = ports.iter().map(|port| *lid_range(port).end()).max().unwrap_or(0);
        let mut by_lid = vec![EndPort::EMPTY; usize::from(top) + 1];
        let mut slots = Slots::new(ports.len());
        let mut own = Vec::with_capacity(ports.len());
        for port in &ports {
            if !slots.insert(*port) {
                refused += 1;
                continue;
            }
            own.push(*port);
            for lid in lid_range(port) {
                let entry = &mut by_lid[usize::from(lid)];
                if entry.guid.0 == 0 {
                    *entry = EndPort { column: column_of(Lid(lid)), ..*port };
                } else {
                    refused += 1;
                }
            }
        }
        own.sort_by_key(in_order);
        let own: Arc<[EndPort]> = own.into();
        let all = Arc::clone(&own);
        let (slots, by_lid) = (slots.0.into(), by_lid.into());
        (Self { slots, by_lid, own, all, aliased: Arc::default() }, refused)
    }

    /// Same without the aliases `gone` and with those of `come`, each its port's record under that
    /// GUID. An alias whose GUID is in use is refused; also returns how many of `gone` existed, and
    /// how many of `come` were added.
    pub(super) fn with_aliases(&self, gone: &[EndPort], come: &[EndPort]) -> (Self, [usize; 2]) {
        let leaving = gone.len();
        let gone: Vec<EndPort> =
            gone.iter().filter(|alias| self.is_alias(alias)).copied().collect();
        let mut slots = Slots(self.slots.to_vec());
        gone.iter().for_each(|alias| slots.remove(alias.guid));
        let names = self.all.len() + come.len() - gone.len();
        if names * 2 > slots.0.len() {
            let mut larger = Slots::new(names);
            slots
                .0
                .iter()
                .filter(|port| port.guid.0 != 0)
                .for_each(|port| _ = larger.insert(*port));
            slots = larger;
        }
        let taken: Vec<EndPort> =
            come.iter().filter(|alias| slots.insert(**alias)).copied().collect();
        let refused = [leaving - gone.len(), come.len() - taken.len()];
        let all = patched(&self.all, &gone, &taken, in_order);

        // Ports are named together with their aliases, or not at all.
        let mut touched: BTreeMap<Lid, Vec<EndPort>> =
            gone.iter().chain(&taken).map(|alias| (alias.lid, Vec::new())).collect();
        let is_touched = |port: &&EndPort| touched.contains_key(&port.lid);
        let before: Vec<EndPort> = self.aliased.iter().filter(is_touched).copied().collect();
        for port in all.iter() {
            if let Some(names) = touched.get_mut(&port.lid) {
                names.push(*port);
            }
        }
        let after: Vec<EndPort> =
            touched.into_values().filter(|names| names.len() > 1).flatten().collect();
        let aliased = patched(&self.aliased, &before, &after, |port| (port.lid, in_order(port)));
        let by_lid = Arc::clone(&self.by_lid);
        let own = Arc::clone(&self.own);
        (Self { slots: slots.0.into(), by_lid, own, all, aliased }, refused)
    }

    /// Same, where ports with these base LIDs have these classes if they are found by LID.
    pub(super) fn with_lid_classes(mut self, classes: &HashMap<Lid, u16>) -> Self {
        let mut by_lid = self.by_lid.to_vec();
        for entry in by_lid.iter_mut().filter(|entry| entry.guid.0 != 0) {
            if let Some(&class) = classes.get(&entry.lid) {
                entry.class = class;
            }
        }
        self.by_lid = by_lid.into();
        self
    }

    /// Same, where LIDs have these columns.
    pub(super) fn with_columns(&self, column_of: impl Fn(Lid) -> u16) -> Self {
        let is_port = |port: &EndPort| port.guid.0 != 0;
        let differs =
            |(lid, port): (u16, &EndPort)| is_port(port) && column_of(Lid(lid)) != port.column;
        if !(0..).zip(&*self.by_lid).any(differs) {
            return self.clone();
        }
        self.map(|port, lid| EndPort { column: column_of(lid), ..*port })
    }

    /// Same, where ports with these base LIDs have these classes.
    pub(super) fn with_classes(&self, classes: &HashMap<Lid, u16>) -> Self {
        let top = classes.keys().map(|lid| lid.index()).max();
        let Some(top) = top else { return self.clone() };
        let mut class_of = vec![None; top + 1];
        for (lid, &class) in classes {
            class_of[lid.index()] = Some(class);
        }
        let class_of = |port: &EndPort| class_of.get(port.lid.index()).copied().flatten();
        self.map(|port, _| EndPort { class: class_of(port).unwrap_or(port.class), ..*port })
    }

    /// Same with other records: each computed from that before and the LID it is found by, which is
    /// the base LID where it is found by GUID.
    fn map(&self, with: impl Fn(&EndPort, Lid) -> EndPort) -> Self {
        let with = |port: &EndPort, lid: Lid| match port.guid.0 {
            0 => *port,
            _ => with(port, lid),
        };
        let by_lid = (0..).zip(&*self.by_lid).map(|(lid, port)| with(port, Lid(lid))).collect();
        let by_own = |ports: &[EndPort]| -> Arc<[EndPort]> {
            ports.iter().map(|port| with(port, port.lid)).collect()
        };
        let own = by_own(&self.own);
        let all =
            if Arc::ptr_eq(&self.own, &self.all) { Arc::clone(&own) } else { by_own(&self.all) };
        Self { slots: by_own(&self.slots), by_lid, own, all, aliased: by_own(&self.aliased) }
    }

    /// Which classes these ports are of, by number, up to the last.
    pub(super) fn used_classes(&self) -> Vec<bool> {
        let ports = || self.by_lid.iter().filter(|port| port.guid.0 != 0).chain(&*self.all);
        let mut is_used = vec![false; ports().map(|port| port.class() + 1).max().unwrap_or(0)];
        ports().for_each(|port| is_used[port.class()] = true);
        is_used
    }

    /// The port whose own GUID this is.
    pub(crate) fn by_own_guid(&self, guid: Guid) -> Option<&EndPort> {
        let key = guid.0.swap_bytes();
        self.own.binary_search_by_key(&key, in_order).ok().map(|at| &self.own[at])
    }

    /// Whether a port is found by the GUID of `alias`, and it is neither that port's own nor that
    /// of a virtual port, which has another class.
    fn is_alias(&self, alias: &EndPort) -> bool {
        let found = self.by_guid(alias.guid);
        found.is_some_and(|found| (found.lid, found.class) == (alias.lid, alias.class))
            && self.by_own_guid(alias.guid).is_none()
    }
}

/// The order in which OpenSM walks its ports, that of GUIDs in its memory.
fn in_order(port: &EndPort) -> u64 {
    port.guid.0.swap_bytes()
}

fn first_after(ports: &[EndPort], place: Option<u64>) -> Option<&EndPort> {
    let next = place.map_or(0, |place| ports.partition_point(|port| in_order(port) <= place));
    ports.get(next)
}

/// Records in an order, without some and with others. Those that go are there; `come` may be in any
/// order.
fn patched<K: Ord>(
    sorted: &[EndPort],
    gone: &[EndPort],
    come: &[EndPort],
    key: impl Fn(&EndPort) -> K,
) -> Arc<[EndPort]> {
    let mut leaving: Vec<K> = gone.iter().map(&key).collect();
    leaving.sort_unstable();
    let mut coming = come.to_vec();
    coming.sort_by_key(&key);
    let mut next = Vec::with_capacity((sorted.len() + come.len()).saturating_sub(gone.len()));
    let (mut leaving, mut coming) = (leaving.into_iter().peekable(), coming.into_iter().peekable());
    for port in sorted {
        let place = key(port);
        if leaving.next_if(|other| *other == place).is_some() {
            continue;
        }
        while let Some(other) = coming.next_if(|other| key(other) < place) {
            next.push(other);
        }
        next.push(*port);
    }
    next.extend(coming);
    next.into()
}

/// The open-addressed table while it is filled.
struct Slots(Vec<EndPort>);

impl Slots {
    fn new(records: usize) -> Self {
        Self(vec![EndPort::EMPTY; (records * 2).next_power_of_two().max(2)])
    }

    /// Whether the GUID is valid and new.
    fn insert(&mut self, port: EndPort) -> bool {
        let at = self.place(port.guid);
        let is_new = port.guid.0 != 0 && self.0[at].guid.0 == 0;
        if is_new {
            self.0[at] = port;
        }
        is_new
    }

    /// Takes a GUID out; those that were put behind it for its sake move up.
    fn remove(&mut self, guid: Guid) {
        let mask = self.0.len() - 1;
        let mut free = self.place(guid);
        if self.0[free].guid.0 == 0 {
            return;
        }
        let mut at = free;
        loop {
            at = (at + 1) & mask;
            let port = self.0[at];
            if port.guid.0 == 0 {
                break;
            }
            // Its home slot is the free place or before it, cyclically.
            let home = slot(port.guid) & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(free) & mask) {
                self.0[free] = port;
                free = at;
            }
        }
        self.0[free] = EndPort::EMPTY;
    }

    /// Slot of a GUID, or the free slot for it.
    fn place(&self, guid: Guid) -> usize {
        let mask = self.0.len() - 1;
        let mut at = slot(guid) & mask;
        while self.0[at].guid.0 != 0 && self.0[at].guid != guid {
            at = (at + 1) & mask;
        }
        at
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
        let (index, refused) = EndPorts::build(ports.clone(), |_| 0, |lid| lid.0);
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
        let (index, _) = EndPorts::build(vec![port(7, 8)], |_| 2, |lid| lid.0 * 10);
        for lid in 8..12 {
            let found = index.by_lid(Lid(lid)).unwrap();
            assert_eq!((found.guid, found.lid, found.column), (Guid(7), Lid(8), lid * 10));
        }
        assert_eq!(index.by_lid(Lid(12)), None);
    }

    #[test]
    fn contradictions_are_refused_and_counted() {
        let ports = vec![port(1, 5), port(1, 6), port(2, 5), port(0, 9)];
        let (index, refused) = EndPorts::build(ports, |_| 0, |_| 0);
        assert_eq!(refused, 3, "a GUID twice, a LID twice, a GUID of zero");
        assert_eq!(index.by_lid(Lid(5)).unwrap().guid, Guid(1));
    }

    #[test]
    fn a_port_answers_to_its_aliases_too() {
        let aliases = vec![port(9, 5), port(1, 5), port(0, 5)];
        let (index, _) = EndPorts::build(vec![port(1, 5), port(2, 6)], |_| 0, |_| 0);
        let (index, refused) = index.with_aliases(&[], &aliases);
        assert_eq!(refused, [0, 2], "a GUID in use, a GUID of zero");
        assert_eq!(index.with_aliases(&[port(1, 5), port(9, 5)], &[]).1, [1, 0]);
        assert!(index.by_guid(Guid(9)).unwrap().is_same_port(index.by_guid(Guid(1)).unwrap()));
        assert_eq!(index.by_lid(Lid(5)).unwrap().guid, Guid(1));
        let names = |lid| index.names_by_lid(Lid(lid)).iter().map(|p| p.guid.0).collect::<Vec<_>>();
        assert_eq!((names(5), names(6), names(7)), (vec![1, 9], vec![2], vec![]));
        assert_eq!(index.all().len(), 3);
    }

    /// Aliases come and go, some of them next to each other in the table, refused ones among them.
    #[test]
    fn patched_tables_are_what_building_them_would_give() {
        let ports: Vec<EndPort> = (1..=60).map(|i| port(u64::from(i) * 16, i)).collect();
        let alias = |guid: u64| EndPort { guid: Guid(guid), ..ports[guid as usize * 7 % 60] };
        let bare = EndPorts::build(ports.clone(), |_| 0, |lid| lid.0).0;
        let build = |aliases: &[EndPort]| bare.with_aliases(&[], aliases).0;
        let mut held: BTreeMap<u64, EndPort> = BTreeMap::new();
        let mut index = build(&[]);
        let mut number = 1u64;
        for round in 0..300 {
            let mut draw = |below: u64| {
                number =
                    number.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                (number >> 33) % below
            };
            let (mut gone, mut come) = (Vec::new(), Vec::new());
            for _ in 0..draw(8) {
                // Multiples of 16 are ports' own.
                let guid = 1 + draw(if round < 150 { 200 } else { 40 });
                match held.remove(&guid) {
                    Some(alias) => gone.push(alias),
                    None if gone.iter().any(|other: &EndPort| other.guid.0 == guid) => {}
                    None => {
                        held.insert(guid, alias(guid));
                        come.push(alias(guid));
                    }
                }
            }
            come.retain(|alias| held.contains_key(&alias.guid.0));
            gone.retain(|old| come.iter().all(|new| new.guid != old.guid));
            index = index.with_aliases(&gone, &come).0;
            let built = build(&held.values().copied().collect::<Vec<_>>());
            assert_eq!(index.all(), built.all(), "round {round}");
            assert_eq!(index.aliased, built.aliased, "round {round}");
            for guid in 0..=60 * 16 {
                assert_eq!(index.by_guid(Guid(guid)), built.by_guid(Guid(guid)), "round {round}");
            }
        }
    }

    #[test]
    fn lids_past_the_unicast_range_are_cut_off() {
        let ports = vec![port(1, 0xBFFE), port(2, 0xC000)];
        let (index, _) = EndPorts::build(ports, |_| 7, |_| 0);
        assert!(index.by_lid(Lid(0xBFFF)).is_some());
        assert!(index.by_guid(Guid(2)).is_some());
    }
}

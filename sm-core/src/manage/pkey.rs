//! P_Key tables (IBA 10.9, 14.2.5.7): the index of each P_Key of an end port, and what the
//! switch port at the other end of its link checks.
//!
//! Queue pairs name P_Keys by table index. So a P_Key keeps its index,
//! and only new ones get an index. Partition membership is decided in `partition`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::PKey;
use ib_mad::wire::attribute::PKEYS_PER_BLOCK;

use super::by_port::ByPort;
use super::partition::{Memberships, PortKeys};
use crate::fabric::{Fabric, PortIndex, VirtualPort};
use sm_config::Settings;

/// The P_Key tables that all ports should have.
#[derive(Clone, Debug, Default)]
pub struct PKeyPlan {
    tables: ByPort<Arc<[PKey]>>,
    /// Of virtual ports, by the port that has them and their index.
    virtual_tables: BTreeMap<(PortIndex, u16), Arc<[PKey]>>,
    /// The P_Key checks of switches at external ports, where they are configured.
    checks: ByPort<Checks>,
    /// End ports whose tables are too small, with the P_Keys that do not fit.
    pub short: Vec<(PortIndex, Vec<PKey>)>,
    /// Switch ports whose table cannot hold all P_Keys of their neighbour, so that they enforce
    /// nothing.
    pub unchecked: Vec<PortIndex>,
    /// Virtual ports whose tables are too small, with the number of P_Keys that do not fit.
    pub short_virtual: BTreeMap<(PortIndex, u16), usize>,
}

/// The packets that a switch checks at a port (PartitionEnforcementInbound and -Outbound).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Inbound packets.
    pub inbound: bool,
    /// Outbound packets.
    pub outbound: bool,
}

impl PKeyPlan {
    /// The wanted tables, derived from the current ones.
    pub fn new(fabric: &Fabric, memberships: &Memberships, settings: &Settings) -> Self {
        let mut plan = Self::default();
        let mut known = HashSet::new();
        let rules = Rules::of(settings);
        // Most ports have the same tables and are to have the same keys.
        let mut decided: HashMap<_, (Arc<[PKey]>, Vec<PKey>), RandomState> = HashMap::default();
        // Shortages are reported in this order.
        for (port, end_port) in fabric.lid_ports() {
            let Some(wanted) = memberships.shared_keys(end_port) else { continue };
            let capacity = fabric.node_of(port).node_info().partition_cap();
            let current = &fabric.port(port).pkeys;
            let case = (Arc::as_ptr(current), Arc::as_ptr(wanted), capacity);
            let (table, left_out) = decided.entry(case).or_insert_with(|| {
                let (table, left_out) = rules.table(current, wanted, capacity);
                (shared(&mut known, table), left_out)
            });
            if !left_out.is_empty() && port == end_port {
                plan.short.push((port, left_out.clone()));
            }
            plan.tables.insert(port, table.clone());
        }
        for (host, index, port) in fabric.usable_virtual_ports() {
            let Some(wanted) = memberships.virtual_keys(host, index) else { continue };
            let (table, left_out) = rules.table(&port.pkeys, wanted, port.pkey_capacity());
            if !left_out.is_empty() {
                plan.short_virtual.insert((host, index), left_out.len());
            }
            plan.virtual_tables.insert((host, index), shared(&mut known, table));
        }
        plan.check(fabric, settings, &mut known);
        plan
    }

    /// The P_Keys that the switch checks for a port that has virtual ports, or may have some that
    /// were not read yet: those of all of them.
    fn checked_of_all(
        &self,
        fabric: &Fabric,
        settings: &Settings,
        at: PortIndex,
        host: PortIndex,
    ) -> Vec<PKey> {
        let mut all = self.table(host).unwrap_or_default().to_vec();
        for (_, table) in self.virtual_tables.range((host, 0)..=(host, u16::MAX)) {
            all.extend_from_slice(table);
        }
        if awaits_virtual_ports(fabric, settings, host) {
            all.extend_from_slice(&fabric.port(at).pkeys);
        }
        let mut seen = HashSet::new();
        let mut keys = checked(&all);
        keys.retain(|key| seen.insert(*key));
        keys
    }

    /// Tables and enforcement of the switch ports at the far ends of links.
    fn check(&mut self, fabric: &Fabric, settings: &Settings, known: &mut HashSet<Arc<[PKey]>>) {
        let wanted = settings.enforcement();
        let mut of_tables: HashMap<_, Arc<[PKey]>, RandomState> = HashMap::default();
        for (_, switch) in fabric.switches() {
            let info = switch.switch_info();
            let capacity = usize::from(info.partition_enforcement_cap());
            for port in fabric.ports_of(switch.node) {
                let Some(peer) = fabric.port(port).peer() else { continue };
                if fabric.node_of(peer).switch.is_some() {
                    // Between switches all partitions pass.
                    self.checks.insert(port, Checks::default());
                    continue;
                }
                if capacity == 0 {
                    continue;
                }
                let mut checks = Checks {
                    inbound: wanted.inbound() && info.inbound_enforcement_cap(),
                    outbound: wanted.outbound() && info.outbound_enforcement_cap(),
                };
                if wanted.inbound() || wanted.outbound() {
                    let Some(table) = self.tables.get(peer) else { continue };
                    let has_more = fabric.virtual_ports(peer).is_some()
                        || awaits_virtual_ports(fabric, settings, peer);
                    let mut keys = if has_more {
                        shared(known, self.checked_of_all(fabric, settings, port, peer))
                    } else {
                        let of_table = || shared(known, checked(table));
                        of_tables.entry(Arc::as_ptr(table)).or_insert_with(of_table).clone()
                    };
                    if keys.len() > capacity {
                        keys = shared(known, keys[..capacity].to_vec());
                        checks = Checks::default();
                        self.unchecked.push(port);
                    }
                    self.tables.insert(port, keys);
                }
                self.checks.insert(port, checks);
            }
        }
    }

    /// The table that a port should have, up to its last key; `None` if the SM does not manage it.
    pub fn table(&self, port: PortIndex) -> Option<&[PKey]> {
        self.tables.get(port).map(|table| &**table)
    }

    /// The same, to be shared.
    pub(crate) fn shared_table(&self, port: PortIndex) -> Option<&Arc<[PKey]>> {
        self.tables.get(port)
    }

    /// The table that a virtual port should have.
    pub(crate) fn virtual_table(&self, host: PortIndex, index: u16) -> Option<&Arc<[PKey]>> {
        self.virtual_tables.get(&(host, index))
    }

    /// The content of a block of a virtual port's table that should be set, if it is not right.
    pub fn wanted_virtual_block(
        &self,
        (host, index): (PortIndex, u16),
        port: &VirtualPort,
        number: u16,
    ) -> Option<[PKey; PKEYS_PER_BLOCK]> {
        let table = self.virtual_tables.get(&(host, index))?;
        let wanted = block(table, number);
        (block(&port.pkeys, number) != wanted).then_some(wanted)
    }

    /// Blocks of the table of a virtual port that are not right.
    pub fn wrong_virtual_blocks(&self, at: (PortIndex, u16), port: &VirtualPort) -> Vec<u16> {
        let wrong = |number: &u16| self.wanted_virtual_block(at, port, *number).is_some();
        (0..port.pkey_blocks()).filter(wrong).collect()
    }

    /// Ports with virtual ports whose tables are not right.
    pub fn wrong_virtual_hosts(&self, fabric: &Fabric) -> Vec<PortIndex> {
        let mut hosts: Vec<PortIndex> = fabric
            .usable_virtual_ports()
            .filter(|&(host, index, port)| {
                !self.wrong_virtual_blocks((host, index), port).is_empty()
            })
            .map(|(host, ..)| host)
            .collect();
        hosts.dedup();
        hosts
    }

    /// Enforcement to set at a switch port. Unchanged while the port does not hold the table to
    /// enforce.
    pub fn checks(&self, fabric: &Fabric, port: PortIndex) -> Option<Checks> {
        let checks = self.checks.get(port).copied()?;
        let is_ready = checks == Checks::default()
            || self.table(port).is_some_and(|table| is_same(&fabric.port(port).pkeys, table));
        is_ready.then_some(checks)
    }

    /// Ports that should have a table, with the number of its blocks to manage.
    pub fn ports<'a>(&'a self, fabric: &'a Fabric) -> impl Iterator<Item = (PortIndex, u16)> + 'a {
        self.tables.ports().map(move |port| (port, blocks(capacity(fabric, port))))
    }

    /// The content of a block that should be set, if it is not right.
    pub fn wanted_block(
        &self,
        fabric: &Fabric,
        port: PortIndex,
        number: u16,
    ) -> Option<[PKey; PKEYS_PER_BLOCK]> {
        let (table, current) = (self.table(port)?, &*fabric.port(port).pkeys);
        if table == current {
            return None;
        }
        let wanted = block(table, number);
        (block(current, number) != wanted).then_some(wanted)
    }
}

/// Whether a port may have virtual ports that were not read yet. Until they are, the switch keeps
/// admitting the P_Keys that it admits.
fn awaits_virtual_ports(fabric: &Fabric, settings: &Settings, port: PortIndex) -> bool {
    const MANAGED: u8 = 2;
    settings.virt_enabled == MANAGED
        && fabric.virtual_ports(port).is_none()
        && fabric.can_have_virtual_ports(port)
}

fn shared(known: &mut HashSet<Arc<[PKey]>>, table: Vec<PKey>) -> Arc<[PKey]> {
    if let Some(known) = known.get(&table[..]) {
        return known.clone();
    }
    let table: Arc<[PKey]> = table.into();
    known.insert(table.clone());
    table
}

/// How many P_Keys the table of a port holds.
pub fn capacity(fabric: &Fabric, port: PortIndex) -> u16 {
    match fabric.node_of(port).switch {
        Some(switch) if fabric.port(port).num.0 != 0 => {
            fabric.switch(switch).switch_info().partition_enforcement_cap()
        }
        _ => fabric.node_of(port).node_info().partition_cap(),
    }
}

/// How table indices are assigned.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Whether keys keep the places that they have.
    keep: bool,
    /// Whether a port may have a partition's key twice, full and limited.
    allow_both: bool,
}

impl Rules {
    fn of(settings: &Settings) -> Self {
        Self { keep: settings.keep_pkey_indexes, allow_both: settings.allow_both_pkeys }
    }

    /// The table of a port that has `current` and should have `wanted`, and the keys that did not
    /// fit. The first key gets index 0, others stay where they are, and new ones follow the last of
    /// these; gaps are filled only when the end is reached.
    fn table(self, current: &[PKey], wanted: &PortKeys, capacity: u16) -> (Vec<PKey>, Vec<PKey>) {
        let capacity = usize::from(capacity);
        let mut table = vec![PKey::default(); capacity];
        let Some(place) = table.first_mut() else { return (table, wanted.keys.to_vec()) };
        *place = wanted.first;
        let known = if self.keep { self.places(current) } else { HashMap::new() };
        let others = wanted.keys.iter().filter(|key| **key != wanted.first);
        let mut new = Vec::new();
        let mut last = 0;
        for &key in others {
            match known.get(&self.identity(key)) {
                Some(&place) if place != 0 && place < capacity => {
                    table[place] = key;
                    last = last.max(place);
                }
                _ => new.push(key),
            }
        }
        let mut gap = 1;
        let mut left_out = Vec::new();
        for key in new {
            if last + 1 < capacity {
                last += 1;
                table[last] = key;
                continue;
            }
            gap += table.iter().skip(gap).take_while(|key| key.is_valid()).count();
            match table.get_mut(gap) {
                Some(place) => *place = key,
                None => left_out.push(key),
            }
        }
        let used = table.iter().rposition(|key| key.is_valid()).map_or(0, |last| last + 1);
        table.truncate(used);
        (table, left_out)
    }

    /// The identity of an entry: equal entries are the same key.
    fn identity(self, key: PKey) -> u16 {
        if self.allow_both { key.0 } else { key.base() }
    }

    /// Where each key stands. Of several entries for one partition the full member's counts, then
    /// the first.
    fn places(self, current: &[PKey]) -> HashMap<u16, usize> {
        let mut places: HashMap<u16, usize> = HashMap::new();
        for (place, key) in current.iter().enumerate().filter(|(_, key)| key.is_valid()) {
            let known = places.entry(self.identity(*key)).or_insert(place);
            if key.is_full() && !current[*known].is_full() {
                *known = place;
            }
        }
        places
    }
}

/// The table that a switch port enforces for the port at its far end: that port's keys without
/// gaps; if it has both memberships, the full one, which admits all members.
fn checked(table: &[PKey]) -> Vec<PKey> {
    let full: HashSet<u16> =
        table.iter().filter(|key| key.is_full()).map(|key| key.base()).collect();
    let keys = table.iter().copied().filter(|key| key.is_valid());
    keys.filter(|key| key.is_full() || !full.contains(&key.base())).collect()
}

/// Block `number` of a table.
fn block(table: &[PKey], number: u16) -> [PKey; PKEYS_PER_BLOCK] {
    let start = usize::from(number) * PKEYS_PER_BLOCK;
    std::array::from_fn(|i| table.get(start + i).copied().unwrap_or_default())
}

fn is_same(a: &[PKey], b: &[PKey]) -> bool {
    let at = |table: &[PKey], i: usize| table.get(i).copied().unwrap_or_default();
    a == b || (0..a.len().max(b.len())).all(|i| at(a, i) == at(b, i))
}

/// Maximum number of blocks of a table that are read: 4,096 entries. Adapters have 128. A node that
/// reports the largest PartitionCap must not cost 2,048 requests for each of its ports.
const BLOCKS_MAX: u16 = 128;

/// Blocks of a table of `capacity` entries, as far as they are read.
pub fn blocks(capacity: u16) -> u16 {
    capacity.div_ceil(PKEYS_PER_BLOCK as u16).min(BLOCKS_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEEP: Rules = Rules { keep: true, allow_both: false };
    const BOTH: Rules = Rules { keep: true, allow_both: true };

    fn keys(keys: &[u16]) -> Vec<PKey> {
        keys.iter().copied().map(PKey).collect()
    }

    fn wanted(list: &[u16], first: u16) -> PortKeys {
        PortKeys { keys: keys(list), first: PKey(first) }
    }

    fn table(rules: Rules, current: &[u16], wanted: &PortKeys, capacity: u16) -> (Vec<u16>, usize) {
        let (table, left_out) = rules.table(&keys(current), wanted, capacity);
        (table.iter().map(|key| key.0).collect(), left_out.len())
    }

    #[test]
    fn new_keys_follow_in_order_behind_the_first() {
        let wanted = wanted(&[0x8001, 2, 0x8003, 0xffff], 0xffff);
        for current in [&[][..], &[0xffff], &[0x7fff, 9, 8, 7]] {
            let expected = vec![0xffff, 0x8001, 2, 0x8003];
            assert_eq!(table(KEEP, current, &wanted, 64), (expected, 0));
        }
    }

    #[test]
    fn keys_keep_their_places_when_others_come_go_and_change_membership() {
        let wanted = wanted(&[1, 0x8003, 0x8004, 0xffff], 0xffff);
        let current = [0xffff, 2, 0x8001, 0x8003];
        let expected = vec![0xffff, 0, 1, 0x8003, 0x8004];
        assert_eq!(table(KEEP, &current, &wanted, 64), (expected, 0));
        let moving = Rules { keep: false, ..KEEP };
        let expected = vec![0xffff, 1, 0x8003, 0x8004];
        assert_eq!(table(moving, &current, &wanted, 64), (expected, 0));
    }

    #[test]
    fn the_key_that_is_to_stand_first_does_and_the_other_moves() {
        let wanted = wanted(&[0x8001, 0x8002, 0x7fff], 0x8002);
        let (table, _) = table(KEEP, &[0x7fff, 0x8001, 0x8002], &wanted, 64);
        assert_eq!(table, [0x8002, 0x8001, 0x7fff], "the place it left is free");
    }

    #[test]
    fn gaps_are_filled_when_the_end_is_reached_and_what_is_left_is_counted() {
        let current = [0xffff, 0, 0, 0x8001];
        let wanted = wanted(&[0x8001, 0x8002, 0x8003, 0x8004, 0xffff], 0xffff);
        let expected = vec![0xffff, 0x8002, 0x8003, 0x8001];
        assert_eq!(table(KEEP, &current, &wanted, 4), (expected, 1));
        assert_eq!(KEEP.table(&keys(&current), &wanted, 4).1, keys(&[0x8004]), "the last");
        assert_eq!(table(KEEP, &[], &wanted, 1), (vec![0xffff], 4));
    }

    #[test]
    fn with_both_memberships_a_partition_has_two_places() {
        let wanted = wanted(&[1, 0x8001, 0xffff], 0xffff);
        let expected = vec![0xffff, 0x8001, 1];
        assert_eq!(table(BOTH, &[0xffff, 0x8001], &wanted, 64), (expected, 0));
    }

    /// Proves IBA 10.9.3.1.3.
    #[test]
    fn a_switch_checks_for_the_full_member_where_a_port_is_both() {
        assert_eq!(checked(&keys(&[0xffff, 1, 0, 2, 0x8001])), keys(&[0xffff, 2, 0x8001]));
    }

    proptest! {
        /// Each key is in the table once, as far as there is room; keys that may stay keep their
        /// places (IBA 10.9.2).
        #[test]
        fn a_table_has_exactly_its_keys(
            current in proptest::collection::vec(0u16..24, 0..40),
            bases in proptest::collection::btree_set(1u16..24, 0..30),
            full in any::<u32>(),
            capacity in 1u16..40,
        ) {
            let member = |base: u16| if full >> base & 1 != 0 { base | 0x8000 } else { base };
            let mut list: Vec<u16> = bases.iter().copied().map(member).collect();
            list.push(0xffff);
            let wanted = wanted(&list, 0xffff);
            let (made, left_out) = table(KEEP, &current, &wanted, capacity);
            prop_assert!(made.len() <= usize::from(capacity));
            prop_assert_eq!(made[0], 0xffff);
            let mut found: Vec<u16> = made.iter().copied().filter(|key| *key != 0).collect();
            prop_assert_eq!(found.len() + left_out, list.len());
            prop_assert_eq!(left_out > 0, list.len() > usize::from(capacity));
            found.sort_unstable();
            found.dedup();
            prop_assert_eq!(found.len() + left_out, list.len());
            prop_assert!(found.iter().all(|key| list.contains(key)));
            for base in bases {
                let stood = current.iter().position(|key| *key == base);
                if let Some(place) = stood.filter(|&place| place != 0 && place < capacity.into()) {
                    prop_assert_eq!(made[place], member(base));
                }
            }
            let (again, _) = table(KEEP, &made, &wanted, capacity);
            if left_out == 0 {
                prop_assert_eq!(again, made, "what is right stays");
            }
        }
    }
}

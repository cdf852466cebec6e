//! LID assignment (IBA 14.4.4): every end port gets 2^LMC consecutive LIDs, and keeps
//! them for as long as it can.
//!
//! In order of precedence a port has the LIDs it had before (over restarts, by its GUID), those
//! that its PortInfo holds, or the lowest free ones. The table is pure data; the file it is kept
//! in is read and written by `runtime`, in the format of OpenSM's `guid2lid`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;

use ib_mad::types::{Guid, Lid};

use sm_routing::text::leading_number;

/// LIDs of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LidRange {
    /// The first.
    pub first: Lid,
    /// The last.
    pub last: Lid,
}

/// Ports that got new LIDs because LMC changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Number of ports.
    pub ports: usize,
    /// LMC of the first of them before.
    pub was: u32,
    /// Its LMC now.
    pub now: u32,
}

impl LidRange {
    fn len(self) -> u16 {
        self.last.0 - self.first.0 + 1
    }

    /// Whether a LID is one of them.
    pub fn contains(self, lid: Lid) -> bool {
        (self.first..=self.last).contains(&lid)
    }

    fn is_valid(self) -> bool {
        self.first.is_unicast() && self.last.is_unicast() && self.first <= self.last
    }
}

/// An end port that needs LIDs.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Port GUID.
    pub guid: Guid,
    /// Base LID that its PortInfo holds; `Lid::NONE` if none.
    pub held: Lid,
    /// 2^LMC: the number of LIDs it needs, a power of two.
    pub count: u16,
}

/// All unicast LIDs are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "port {guid} gets no LID: no {count} consecutive unicast LIDs are free (of 49151); reduce lmc \
     (-l)"
)]
pub struct OutOfLids {
    /// The port that got none.
    pub guid: Guid,
    /// How many it needed.
    pub count: u16,
}

/// The LIDs of each port GUID, including ports that left the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LidTable {
    by_guid: BTreeMap<Guid, LidRange>,
}

/// A line that [`LidTable::parse`] rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Line, from 1.
    pub line: usize,
    /// The reason, for the log.
    pub reason: &'static str,
}

impl LidTable {
    /// Number of ports with LIDs, absent ones included.
    pub fn len(&self) -> usize {
        self.by_guid.len()
    }

    /// Whether no port has LIDs.
    pub fn is_empty(&self) -> bool {
        self.by_guid.is_empty()
    }

    /// Number of LIDs that no port has, present or not.
    pub fn free_count(&self) -> usize {
        let taken = self.by_guid.values().map(|range| usize::from(range.len()));
        usize::from(Lid::UNICAST_LAST.0).saturating_sub(taken.sum())
    }

    /// The LIDs of a port.
    pub fn get(&self, guid: Guid) -> Option<LidRange> {
        self.by_guid.get(&guid).copied()
    }

    /// The GUIDs of all ports with LIDs, absent ones included.
    pub fn guids(&self) -> impl Iterator<Item = Guid> {
        self.by_guid.keys().copied()
    }

    /// Ports that had other LIDs in `before`, since they had another number of them: how many, and
    /// the LMC of the first, before and now.
    pub fn resized_since(&self, before: &Self) -> Option<Resized> {
        let mut resized = self.by_guid.iter().filter_map(|(&guid, now)| {
            let was = before.get(guid)?;
            let is_resized = was.len() != now.len() && was.first != now.first;
            is_resized.then(|| (was.len().ilog2(), now.len().ilog2()))
        });
        let (was, now) = resized.next()?;
        Some(Resized { ports: 1 + resized.count(), was, now })
    }

    /// Clears the table (`reassign_lids`).
    pub fn clear(&mut self) {
        self.by_guid.clear();
    }

    /// Assigns these LIDs to a port; no other port may have them.
    pub fn set(&mut self, guid: Guid, range: LidRange) {
        debug_assert!(range.is_valid());
        self.by_guid.insert(guid, range);
    }

    /// Gives a port that is there as many free LIDs in place of those it has; one that is not loses
    /// them. `false` if it has none, or there are no free ones: then nothing changes.
    pub fn relocate(&mut self, guid: Guid, is_there: bool) -> bool {
        let Some(range) = self.get(guid) else { return false };
        if !is_there {
            self.by_guid.remove(&guid);
            return true;
        }
        let mut used = Used::default();
        for range in self.by_guid.values() {
            used.take(*range);
        }
        let free = used.find(range.len());
        free.map(|free| self.by_guid.insert(guid, free)).is_some()
    }

    /// Adopts the LIDs that another subnet manager assigned: present ports keep the LIDs that they
    /// hold even if the table differs, and absent ports lose those held by others. Of several that
    /// hold the same, the one that has it in the table keeps it.
    /// [`assign`](Self::assign) resolves the rest. Returns whether the table changed.
    pub fn adopt(&mut self, ports: &[Request]) -> bool {
        let before = self.clone();
        let mut held = Used::default();
        let mut present: BTreeMap<Guid, LidRange> = BTreeMap::new();
        // Of several ports that report one LID, the one that has it here: the others may never have
        // been given it.
        let has_it = |port: &Request, range| self.get(port.guid) == Some(range);
        for is_known in [true, false] {
            for port in ports {
                let range = held_range(port).filter(|&range| has_it(port, range) == is_known);
                if let Some(range) = range.filter(|range| held.take(*range)) {
                    present.insert(port.guid, range);
                }
            }
        }
        self.by_guid.retain(|guid, range| !present.contains_key(guid) && held.is_free(*range));
        self.by_guid.append(&mut present);
        *self != before
    }

    /// Takes over the table of the master. Ports that the master does not know keep their LIDs, as
    /// long as no other port has them. Returns whether the table changed.
    pub fn follow(&mut self, master: &Self) -> bool {
        let mut used = Used::default();
        master.by_guid.values().for_each(|range| _ = used.take(*range));
        let mut followed = master.by_guid.clone();
        for (guid, range) in &self.by_guid {
            if let Entry::Vacant(entry) = followed.entry(*guid)
                && used.take(*range)
            {
                entry.insert(*range);
            }
        }
        let changed = self.by_guid != followed;
        self.by_guid = followed;
        changed
    }

    /// Assigns LIDs to all of `ports`, in that order where several want the same.
    /// Ports that are not among them keep theirs unless there are too few. Returns whether the
    /// table changed. Ports that get none are listed; the others have theirs nevertheless.
    pub fn assign(&mut self, ports: &[Request]) -> (bool, Vec<OutOfLids>) {
        if self.is_settled(ports) { (false, Vec::new()) } else { self.give(ports) }
    }

    fn give(&mut self, ports: &[Request]) -> (bool, Vec<OutOfLids>) {
        let before = self.clone();
        let mut used = Used::default();
        let mut waiting: Vec<&Request> = Vec::new();

        // Ports with a range of the right size and alignment keep it.
        let mut settled: BTreeMap<Guid, LidRange> = BTreeMap::new();
        for port in ports {
            match self.get(port.guid).filter(|range| fits(*range, port.count)) {
                Some(range) => {
                    let range = shortened(range, port.count);
                    if used.take(range) {
                        settled.insert(port.guid, range);
                        continue;
                    }
                    waiting.push(port);
                }
                None => waiting.push(port),
            }
            self.by_guid.remove(&port.guid);
        }
        // Absent ports keep theirs unless a present port holds them.
        let absent: Vec<(Guid, LidRange)> = self
            .by_guid
            .iter()
            .filter(|(guid, _)| !settled.contains_key(guid))
            .map(|(guid, range)| (*guid, *range))
            .collect();
        let mut reserved = used.clone();
        let mut kept = Vec::new();
        for (guid, range) in absent {
            if reserved.take(range) {
                kept.push((guid, range));
            }
        }
        // Then those whose PortInfo holds a usable LID, then the rest.
        waiting.retain(|port| {
            let Some(range) = held_range(port) else { return true };
            let free = reserved.take(range);
            if free {
                used.take(range);
                settled.insert(port.guid, range);
            }
            !free
        });
        let mut out = Vec::new();
        kept.sort_unstable_by_key(|&(_, range)| range.first);
        for port in waiting {
            let mut range = reserved.find(port.count);
            // Absent ports lose their LIDs to present ports, one after the other, those with the
            // highest first: LIDs are given out from the lowest on, so these appeared last.
            while range.is_none()
                && let Some((_, lost)) = kept.pop()
            {
                reserved.release(lost);
                range = reserved.find(port.count);
            }
            match range {
                Some(range) => {
                    reserved.take(range);
                    used.take(range);
                    settled.insert(port.guid, range);
                }
                None => out.push(OutOfLids { guid: port.guid, count: port.count }),
            }
        }
        settled.extend(kept);
        self.by_guid = settled;
        (*self != before, out)
    }

    /// Whether all of `ports` have LIDs, as many as they need, and no two of the table have the
    /// same: there is nothing to be given out then.
    fn is_settled(&self, ports: &[Request]) -> bool {
        let has_as_many = |port: &Request| {
            let range = self.get(port.guid).filter(|range| fits(*range, port.count));
            range.is_some_and(|range| shortened(range, port.count) == range)
        };
        let mut used = Used::default();
        ports.iter().all(has_as_many) && self.by_guid.values().all(|range| used.take(*range))
    }

    /// Reads `guid2lid`: a GUID, the first and the last LID per line. Invalid lines are skipped and
    /// listed, with one reason each.
    pub fn parse(text: &str) -> (Self, Vec<Rejected>) {
        let mut table = Self::default();
        let mut rejected = Vec::new();
        let mut used = Used::default();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default();
            let mut words = content.split_whitespace();
            let Some(guid) = words.next() else { continue };
            let mut reject = |reason| rejected.push(Rejected { line: index + 1, reason });
            // As C parses numbers: trailing text is ignored.
            let lid = |word: Option<&str>| -> Option<Lid> {
                let word = word?;
                let (number, rest) = leading_number(word);
                let number = number.filter(|_| rest.len() < word.len())?;
                u16::try_from(number).ok().map(Lid)
            };
            let (Ok(guid), Some(first), Some(last)) =
                (guid.parse::<Guid>(), lid(words.next()), lid(words.next()))
            else {
                reject("expected a GUID and two LIDs");
                continue;
            };
            let range = LidRange { first, last };
            if guid.0 == 0 || !range.is_valid() {
                reject("not a valid range of unicast LIDs");
            } else {
                match table.by_guid.entry(guid) {
                    Entry::Occupied(_) => reject("duplicate GUID"),
                    Entry::Vacant(_) if !used.take(range) => reject("LIDs belong to another GUID"),
                    Entry::Vacant(entry) => {
                        entry.insert(range);
                    }
                }
            }
        }
        (table, rejected)
    }

    /// The table as `guid2lid`.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(self.by_guid.len() * 34);
        for (guid, range) in &self.by_guid {
            let _ = writeln!(text, "{guid} {:#06x} {:#06x}\n", range.first.0, range.last.0);
        }
        text
    }
}

/// Whether a range can serve a port that needs `count` LIDs: long enough and aligned to it.
fn fits(range: LidRange, count: u16) -> bool {
    range.is_valid() && range.len() >= count && range.first.0.is_multiple_of(count)
}

fn shortened(range: LidRange, count: u16) -> LidRange {
    LidRange { first: range.first, last: Lid(range.first.0 + count - 1) }
}

/// The range that a port's PortInfo holds, if it may have it.
fn held_range(port: &Request) -> Option<LidRange> {
    let last = port.held.0.checked_add(port.count - 1)?;
    let range = LidRange { first: port.held, last: Lid(last) };
    fits(range, port.count).then_some(range)
}

/// A bit for every LID.
#[derive(Clone)]
struct Used {
    words: [u64; 1024],
    /// No LID below this is free, so far as [`find`](Self::find) knows.
    search_from: u16,
}

impl Default for Used {
    fn default() -> Self {
        let mut words = [0; 1024];
        words[0] = 1; // LID 0 is reserved.
        Self { words, search_from: 1 }
    }
}

impl Used {
    fn is_free(&self, range: LidRange) -> bool {
        (range.first.0..=range.last.0)
            .all(|lid| self.words[lid as usize / 64] >> (lid % 64) & 1 == 0)
    }

    /// Takes a range if all of it is free.
    fn take(&mut self, range: LidRange) -> bool {
        let free = self.is_free(range);
        if free {
            for lid in range.first.0..=range.last.0 {
                self.words[lid as usize / 64] |= 1 << (lid % 64);
            }
        }
        free
    }

    /// Makes a range free that was taken.
    fn release(&mut self, range: LidRange) {
        for lid in range.first.0..=range.last.0 {
            self.words[lid as usize / 64] &= !(1 << (lid % 64));
        }
        self.search_from = self.search_from.min(range.first.0);
    }

    /// The lowest free range of `count` LIDs, aligned to their number.
    fn find(&mut self, count: u16) -> Option<LidRange> {
        let mut first = self.search_from.next_multiple_of(count);
        loop {
            let range = LidRange { first: Lid(first), last: Lid(first.checked_add(count - 1)?) };
            if !range.last.is_unicast() {
                return None;
            }
            if range.first.0 != 0 && self.is_free(range) {
                if count == 1 {
                    self.search_from = first;
                }
                return Some(range);
            }
            first += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(guid: u64, held: u16, count: u16) -> Request {
        Request { guid: Guid(guid), held: Lid(held), count }
    }

    fn first(table: &LidTable, guid: u64) -> u16 {
        table.get(Guid(guid)).unwrap().first.0
    }

    #[test]
    fn a_port_keeps_its_lid_over_a_restart_and_an_absence() {
        let mut table = LidTable::default();
        table.assign(&[request(10, 0, 1), request(11, 0, 1)]);
        assert_eq!((first(&table, 10), first(&table, 11)), (1, 2));
        let (mut table, rejected) = LidTable::parse(&table.render());
        assert!(rejected.is_empty());
        table.assign(&[request(12, 0, 1), request(11, 9, 1)]);
        assert_eq!((first(&table, 11), first(&table, 12)), (2, 3), "1 waits for port 10");
        let (changed, _) = table.assign(&[request(10, 0, 1), request(11, 2, 1), request(12, 3, 1)]);
        assert_eq!((first(&table, 10), changed), (1, false));
    }

    /// Regression: when one port found no LID, all absent ports lost theirs, such as hosts that
    /// were off while another port made up nodes.
    #[test]
    fn absent_ports_lose_only_as_many_lids_as_are_needed_the_last_first() {
        const ALL: u64 = 49_151;
        let mut table = LidTable::default();
        let ports: Vec<Request> = (1..=ALL).map(|guid| request(guid, 0, 1)).collect();
        table.assign(&ports);
        // The first ten are off, and five that came last.
        let mut present = ports[10..ports.len() - 5].to_vec();
        present.extend([ALL + 1, ALL + 2, ALL + 3].map(|guid| request(guid, 0, 1)));
        let (changed, out) = table.assign(&present);
        assert!(changed && out.is_empty());
        assert!((1..=10).all(|guid| table.get(Guid(guid)).is_some()));
        let lost: Vec<u64> = (1..=ALL).filter(|&guid| table.get(Guid(guid)).is_none()).collect();
        assert_eq!(lost, [ALL - 2, ALL - 1, ALL]);
    }

    #[test]
    fn what_portinfo_holds_is_kept_unless_two_hold_it() {
        let mut table = LidTable::default();
        table.assign(&[request(1, 7, 1), request(2, 7, 1), request(3, 0, 1)]);
        assert_eq!((first(&table, 1), first(&table, 2), first(&table, 3)), (7, 1, 2));
    }

    /// LIDs of an earlier run would be taken from ports that have those of another master.
    #[test]
    fn what_another_gave_out_goes_before_what_was_known() {
        let (mut table, _) = LidTable::parse("0x1 1 1\n0x2 2 2\n0x3 3 3\n0x4 4 4\n0x5 9 9");
        let ports = [request(1, 2, 1), request(2, 4, 1), request(3, 0, 1), request(6, 2, 1)];
        assert!(table.adopt(&ports));
        assert!(!table.clone().adopt(&ports));
        table.assign(&ports);
        assert_eq!((first(&table, 1), first(&table, 2), first(&table, 3)), (2, 4, 3));
        assert_eq!(table.get(Guid(4)), None, "its LID belongs to another");
        assert_eq!((first(&table, 5), first(&table, 6)), (9, 1), "absent, and held twice");
    }

    /// Regression: a port that reported another's LID, and came first, got it from a new master.
    #[test]
    fn what_two_hold_stays_with_the_one_that_had_it() {
        let (mut table, _) = LidTable::parse("0x2 2 2\n0x3 3 3");
        let ports = [request(1, 2, 1), request(3, 2, 1), request(2, 2, 1)];
        assert!(!table.adopt(&ports));
        table.assign(&ports);
        assert_eq!((first(&table, 1), first(&table, 2), first(&table, 3)), (1, 2, 3));
    }

    #[test]
    fn a_larger_lmc_moves_what_is_not_aligned() {
        let mut table = LidTable::default();
        table.assign(&[request(1, 0, 1), request(2, 0, 1)]);
        let before = table.clone();
        table.assign(&[request(1, 1, 4), request(2, 2, 4), request(3, 0, 1)]);
        assert_eq!(table.resized_since(&before), Some(Resized { ports: 2, was: 0, now: 2 }));
        assert_eq!(table.resized_since(&table.clone()), None);
        assert_eq!((first(&table, 1), first(&table, 2)), (4, 8), "LID 0 is never assigned");
        assert_eq!(table.get(Guid(2)).unwrap().last, Lid(11));
        assert_eq!(first(&table, 3), 1, "a base switch port fills the gap");
    }

    #[test]
    fn ports_that_are_gone_give_way_when_lids_run_out() {
        let all: Vec<Request> = (1..=0xBFFF).map(|guid| request(guid, 0, 1)).collect();
        let mut table = LidTable::default();
        assert_eq!(table.assign(&all).1, []);
        assert_eq!(first(&table, 0xBFFF), 0xBFFF);
        let mut next = all.clone();
        next[4] = request(0x1_0000, 0, 1);
        assert_eq!(table.assign(&next).1, []);
        assert_eq!((first(&table, 0x1_0000), table.get(Guid(5))), (5, None));
        next.push(request(0x1_0001, 0, 1));
        assert_eq!(table.assign(&next).1, [OutOfLids { guid: Guid(0x1_0001), count: 1 }]);
    }

    #[test]
    fn impossible_lines_are_left_out_and_listed() {
        let (table, rejected) = LidTable::parse(
            "0x0000000000000001 0x0001 0x0001\n\nnonsense\n0x2 0x0001 0x0001\n0x3 0xc000 0xc000\n",
        );
        assert_eq!(table.len(), 1);
        let lines: Vec<usize> = rejected.iter().map(|r| r.line).collect();
        assert_eq!(lines, [3, 4, 5]);
    }

    #[test]
    fn a_relocated_port_gets_lids_that_were_never_assigned() {
        let mut table = LidTable::default();
        table.assign(&[request(1, 0, 2), request(2, 0, 2), request(3, 0, 1)]);
        let (before, absent) = (table.get(Guid(1)).unwrap(), table.get(Guid(2)).unwrap());
        assert!(table.relocate(Guid(1), true));
        let after = table.get(Guid(1)).unwrap();
        assert!(after.first.0.is_multiple_of(2) && after.len() == 2);
        assert!(after != before && after != absent);
        assert!(table.relocate(Guid(2), false));
        assert_eq!(table.get(Guid(2)), None);
        assert!(!table.relocate(Guid(9), true));
    }

    proptest! {
        /// Proves IBA 14.4.4.
        #[test]
        fn ranges_are_aligned_disjoint_and_stable(
            ports in proptest::collection::btree_map(1u64..40, (0u16..60, 0u32..3), 1..30),
            later in proptest::collection::btree_map(1u64..40, (0u16..60, 0u32..3), 1..30),
        ) {
            let requests = |ports: &std::collections::BTreeMap<u64, (u16, u32)>| -> Vec<Request> {
                ports.iter().map(|(g, (held, lmc))| request(*g, *held, 1 << lmc)).collect()
            };
            let mut table = LidTable::default();
            for ports in [&ports, &later] {
                let requests = requests(ports);
                let (is_settled, mut given) = (table.is_settled(&requests), table.clone());
                prop_assert!(!is_settled || given.give(&requests) == (false, vec![]));
                prop_assert_eq!(table.assign(&requests).1, vec![]);
                let mut owner = [0u64; 0x1_0000];
                for (guid, range) in &table.by_guid {
                    for lid in range.first.0..=range.last.0 {
                        prop_assert_eq!(owner[lid as usize], 0);
                        owner[lid as usize] = guid.0;
                    }
                }
                for port in &requests {
                    let range = table.get(port.guid).unwrap();
                    prop_assert_eq!(range.len(), port.count);
                    prop_assert!(range.first.0 != 0 && range.first.0.is_multiple_of(port.count));
                }
                let settled = table.clone();
                prop_assert!(table.is_settled(&requests));
                prop_assert_eq!(table.give(&requests), (false, vec![]));
                prop_assert_eq!(&table, &settled);
            }
        }
    }

    /// A standby had a table of its own: a host that was off at the takeover got other LIDs when it
    /// came back, and a new host had taken its old ones.
    #[test]
    fn a_standby_has_the_masters_lids_and_of_its_own_those_that_do_not_contradict() {
        let table = |text| LidTable::parse(text).0;
        let mut ours = table("0x1 1 1\n0x2 2 2\n0x3 3 3\n0x4 9 9\n0x5 6 6");
        let master = table("0x1 1 1\n0x2 3 3\n0x6 6 7");
        assert!(ours.follow(&master));
        assert_eq!(ours, table("0x1 1 1\n0x2 3 3\n0x6 6 7\n0x4 9 9"));
        assert!(!ours.follow(&master), "nothing is new");
    }
}

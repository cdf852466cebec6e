//! The paths of one port: PathRecords as the responder answers them, 64 bytes each, in one array
//! that is sorted by destination GUID and P_Key. Both are read from the record itself.

use ib_mad::types::{Guid, PKey};
use ib_mad::wire::record::PathRecord;

use super::netlink::RECORD_LEN;
use crate::node::RECORDS_MAX;

/// A PathRecord as in an answer.
pub type Record = [u8; RECORD_LEN];

/// Records that room is made for at a time, beyond those that are there: 64 KiB.
const ROOM_STEP: usize = 1 << 10;

/// The paths of one port.
#[derive(Debug, Default)]
pub struct Table {
    records: Vec<Record>,
}

/// Why changes are not possible: the responder does not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Records are cut off.
    #[error("the records are not a multiple of {RECORD_LEN} bytes")]
    Length,
    /// Destinations or records are out of order, or a record has no destination.
    #[error("destinations or records are not in order")]
    Order,
    /// There are too many.
    #[error("there are more than {RECORDS_MAX} records")]
    TooMany,
}

/// Where a record belongs: destination, and P_Key without its membership bit.
type Key = (u64, u16);

fn key(record: &Record) -> Key {
    let view = PathRecord::of(record);
    (view.dgid().guid().0, view.pkey().base())
}

impl Table {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.records.capacity() * RECORD_LEN
    }

    /// Forgets all paths and frees their memory.
    pub fn clear(&mut self) {
        self.records = Vec::new();
    }

    /// The path to a destination in the partition of `pkey`, whose membership bit is ignored.
    pub fn find(&self, destination: Guid, pkey: PKey) -> Option<&Record> {
        let wanted = (destination.0, pkey.base());
        let at = self.records.binary_search_by_key(&wanted, key).ok()?;
        self.records.get(at)
    }

    /// Replaces the paths to `destinations`, GUIDs in ascending order, by `records`, ascending.
    /// Nothing is changed if there is an error.
    pub fn replace(&mut self, destinations: &[u64], records: &[u8]) -> Result<(), TableError> {
        let (records, rest) = records.as_chunks::<RECORD_LEN>();
        if !rest.is_empty() {
            return Err(TableError::Length);
        }
        let is_ascending = destinations.windows(2).all(|pair| pair[0] < pair[1])
            && records.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]));
        let mut of = destinations.iter().peekable();
        let has_destination = |record: &Record| {
            let (guid, _) = key(record);
            while of.next_if(|&&destination| destination < guid).is_some() {}
            of.peek() == Some(&&guid)
        };
        if !is_ascending || !records.iter().all(has_destination) {
            return Err(TableError::Order);
        }
        if self.records.len() + records.len() > RECORDS_MAX {
            return Err(TableError::TooMany);
        }
        let is_behind = match (self.records.last(), destinations.first()) {
            (Some(last), Some(&first)) => key(last).0 < first,
            _ => true,
        };
        if !is_behind {
            let mut gone = destinations.iter().peekable();
            self.records.retain(|record| {
                let (guid, _) = key(record);
                while gone.next_if(|&&destination| destination < guid).is_some() {}
                gone.peek() != Some(&&guid)
            });
        }
        self.merge(records);
        Ok(())
    }

    /// Adds records none of which is there, from the end on, so that each is moved once.
    fn merge(&mut self, records: &[Record]) {
        let room = self.records.capacity() - self.records.len();
        if room < records.len() {
            self.records.reserve_exact(records.len().next_multiple_of(ROOM_STEP));
        }
        let mut left = self.records.len();
        let len = left + records.len();
        self.records.resize(len, [0; RECORD_LEN]);
        let mut free = len;
        for record in records.iter().rev() {
            let end = left;
            while left > 0 && key(&self.records[left - 1]) > key(record) {
                left -= 1;
            }
            let moved = end - left;
            self.records.copy_within(left..end, free - moved);
            free -= moved + 1;
            self.records[free] = *record;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::Gid;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn record(guid: u64, pkey: u16, mark: u16) -> Record {
        let mut record = [0; RECORD_LEN];
        PathRecord::of_mut(&mut record)
            .set_dgid(Gid::new(0xfe80 << 48, Guid(guid)))
            .set_pkey(PKey(pkey | 0x8000))
            .set_dlid(ib_mad::types::Lid(mark));
        record
    }

    fn find(table: &Table, guid: u64, pkey: u16) -> Option<u16> {
        let record = table.find(Guid(guid), PKey(pkey))?;
        Some(PathRecord::of(record).dlid().0)
    }

    #[test]
    fn a_path_is_found_by_destination_and_partition() {
        let mut table = Table::default();
        let records = [record(5, 1, 10), record(5, 0x7fff, 11), record(9, 1, 12)].concat();
        table.replace(&[5, 7, 9], &records).unwrap();
        assert_eq!(find(&table, 5, 0xffff), Some(11));
        assert_eq!(find(&table, 5, 0x7fff), Some(11), "limited members ask, too");
        assert_eq!(find(&table, 9, 1), Some(12));
        assert_eq!(find(&table, 9, 0xffff), None);
        assert_eq!(find(&table, 7, 1), None);
        table.replace(&[5], &record(5, 2, 13)).unwrap();
        assert_eq!((find(&table, 5, 1), find(&table, 5, 2), table.len()), (None, Some(13), 2));
    }

    #[test]
    fn what_breaks_the_protocol_changes_nothing() {
        let mut table = Table::default();
        table.replace(&[5], &record(5, 1, 10)).unwrap();
        let two = |a, b| [record(a, 1, 0), record(b, 1, 0)].concat();
        assert_eq!(table.replace(&[5], &[0; 65]), Err(TableError::Length));
        assert_eq!(table.replace(&[6, 5], &[]), Err(TableError::Order));
        assert_eq!(table.replace(&[5, 6], &two(6, 5)), Err(TableError::Order));
        assert_eq!(table.replace(&[5], &two(5, 6)), Err(TableError::Order));
        assert_eq!(table.replace(&[5], &two(5, 5)), Err(TableError::Order));
        assert_eq!((find(&table, 5, 1), table.len()), (Some(10), 1));
    }

    /// 40,000 destinations with one P_Key have to fit in 4 MB.
    #[test]
    fn forty_thousand_destinations_take_little_more_than_their_records() {
        let mut table = Table::default();
        let guids: Vec<u64> = (1..=40_000).map(|i| i * 16).collect();
        for guids in guids.chunks(3000) {
            let records: Vec<u8> = guids.iter().flat_map(|&guid| record(guid, 1, 1)).collect();
            table.replace(guids, &records).unwrap();
        }
        assert_eq!(table.len(), 40_000);
        assert!(table.bytes() < 2_700_000, "{}", table.bytes());
        let all: Vec<u8> = guids.iter().flat_map(|&guid| record(guid, 1, 2)).collect();
        table.replace(&guids, &all).unwrap();
        assert!(table.bytes() < 2_700_000, "{} after changes", table.bytes());
    }

    proptest! {
        /// The table is a map.
        #[test]
        fn replacing_equals_replacing_in_a_map(
            steps in prop::collection::vec(
                prop::collection::btree_map(
                    0u64..40,
                    prop::collection::btree_map(1u16..5, any::<u16>(), 0..4),
                    0..20,
                ),
                1..8,
            )
        ) {
            let mut table = Table::default();
            let mut map: BTreeMap<Key, u16> = BTreeMap::new();
            for step in steps {
                let destinations: Vec<u64> = step.keys().copied().collect();
                let mut records = Vec::new();
                for (&guid, paths) in &step {
                    map.retain(|&(other, _), _| other != guid);
                    for (&pkey, &mark) in paths {
                        map.insert((guid, pkey), mark);
                        records.extend_from_slice(&record(guid, pkey, mark));
                    }
                }
                prop_assert_eq!(table.replace(&destinations, &records), Ok(()));
                let held: Vec<_> = table.records.iter().map(key).collect();
                prop_assert_eq!(held, map.keys().copied().collect::<Vec<_>>());
                for (&(guid, pkey), &mark) in &map {
                    prop_assert_eq!(find(&table, guid, pkey), Some(mark));
                }
            }
        }
    }
}

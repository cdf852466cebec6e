//! The records of a history: events, fabrics, and loads of links.
//!
//! The first byte is the kind; what follows is JSON, compressed for fabrics (gzip), or loads in
//! their own format.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::frame::NUMBER_END;
use super::layout::Layout;
use super::loads::KeptLoads;
use crate::observe::event::Event;
use crate::observe::ports::KeptFabric;

const EVENT: u8 = 1;
const WHOLE: u8 = 2;
const CHANGE: u8 = 3;
const LOADS: u8 = 4;
/// Longest text of a fabric that is read, bytes.
const TEXT_LEN_MAX: u64 = 64 << 20;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An event.
    Event(Event),
    /// The fabric at a time, whole.
    Whole(Shape),
    /// How it differs from the one before.
    Change(Shape),
    /// Loads of links, by their places in the topology of then.
    Loads(KeptLoads),
}

/// A fabric, or a change of one, at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Since when the fabric is so, milliseconds since 1970.
    pub time_ms: u64,
    /// Nodes, links and ports, or how they change.
    pub layout: Layout,
}

impl Record {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Event(event) => {
                let mut bytes = vec![EVENT];
                bytes.extend_from_slice(event.to_json().as_bytes());
                bytes
            }
            Self::Whole(shape) => packed(WHOLE, shape),
            Self::Change(shape) => packed(CHANGE, shape),
            Self::Loads(loads) => {
                let mut bytes = vec![LOADS];
                loads.encode(&mut bytes);
                bytes
            }
        }
    }

    /// Reads it; `None` if it is of a kind that this release does not know, or damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            EVENT => {
                let event = serde_json::from_slice::<Event>(rest).ok();
                event.filter(|event| event.number < NUMBER_END).map(Self::Event)
            }
            WHOLE => unpacked(rest).map(Self::Whole),
            CHANGE => unpacked(rest).map(Self::Change),
            LOADS => KeptLoads::decode(rest).map(Self::Loads),
            _ => None,
        }
    }

    /// Whether the bytes are of an event, which [`decode`](Self::decode) need not read to know.
    pub fn is_event(bytes: &[u8]) -> bool {
        bytes.first() == Some(&EVENT)
    }

    /// Whether the bytes are of a fabric, or of a change of one.
    pub fn is_fabric(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&WHOLE | &CHANGE))
    }

    /// The time of the bytes, if they are of loads.
    pub fn time_of_loads(bytes: &[u8]) -> Option<u64> {
        let (&kind, rest) = bytes.split_first()?;
        (kind == LOADS).then(|| KeptLoads::time_of(rest)).flatten()
    }
}

fn packed(kind: u8, shape: &Shape) -> Vec<u8> {
    let text = serde_json::to_vec(shape).expect("the value serializes to JSON");
    let mut encoder = GzEncoder::new(vec![kind], Compression::fast());
    let written = encoder.write_all(&text).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail")
}

fn unpacked(bytes: &[u8]) -> Option<Shape> {
    let mut text = Vec::new();
    GzDecoder::new(bytes).take(TEXT_LEN_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Follows the fabric through the records of a segment.
#[derive(Clone, Debug, Default)]
pub struct FabricReader {
    /// The fabric, and since when it is so; none before the first whole one.
    pub now: Option<(u64, KeptFabric)>,
}

impl FabricReader {
    /// Takes a record. A change without a fabric before it is skipped.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Event(_) | Record::Loads(_) => {}
            Record::Whole(Shape { time_ms, layout }) => {
                let mut fabric = KeptFabric::default();
                layout.apply(&mut fabric);
                self.now = Some((time_ms, fabric));
            }
            Record::Change(Shape { time_ms, layout }) => {
                if let Some((since, fabric)) = &mut self.now {
                    *since = time_ms;
                    layout.apply(fabric);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    fn fabric(links: &[(u64, u8, u64, u8)]) -> KeptFabric {
        KeptFabric::of(&plane(links, 0, 0))
    }

    #[test]
    fn records_read_back_and_unknown_or_damaged_ones_are_skipped() {
        let fabric = fabric(&[(1, 1, 8, 1), (1, 2, 100, 1)]);
        let shape = Shape { time_ms: 7, layout: Layout::of(&fabric) };
        let event = Event { number: 3, time_ms: 5, kind: "trap".into(), ..Event::default() };
        let loads = KeptLoads { time_ms: 8, directions: vec![(1, 9)], ..KeptLoads::default() };
        let records = [
            Record::Event(event),
            Record::Whole(shape.clone()),
            Record::Change(shape),
            Record::Loads(loads),
        ];
        for record in records {
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Some(record.clone()));
            assert_eq!(Record::is_event(&bytes), matches!(record, Record::Event(_)));
            let is_fabric = matches!(record, Record::Whole(_) | Record::Change(_));
            assert_eq!(Record::is_fabric(&bytes), is_fabric);
            let time = matches!(record, Record::Loads(_)).then_some(8);
            assert_eq!(Record::time_of_loads(&bytes), time);
            for len in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..len]), None, "{len}");
            }
        }
        assert_eq!(Record::decode(&[9, 1, 2]), None);
    }

    /// Regression: the number after such a one was beyond 64 bits, and each start ended in a panic.
    #[test]
    fn an_event_without_a_number_behind_it_is_damaged() {
        for (number, is_read) in [(NUMBER_END - 1, true), (NUMBER_END, false), (u64::MAX, false)] {
            let event = Event { number, kind: "trap".into(), ..Event::default() };
            let bytes = Record::Event(event).encode();
            assert_eq!(Record::decode(&bytes).is_some(), is_read, "{number}");
        }
    }

    #[test]
    fn the_fabric_follows_from_the_last_whole_one_and_the_changes_since() {
        let links = [(1, 1, 8, 1), (1, 2, 100, 1)];
        let (first, second) = (fabric(&links), fabric(&links[..1]));
        let change = || Shape { time_ms: 9, layout: Layout::between(&first, &second) };
        let mut reader = FabricReader::default();
        reader.take(Record::Change(change()));
        assert!(reader.now.is_none(), "there is nothing that it could change");
        reader.take(Record::Whole(Shape { time_ms: 7, layout: Layout::of(&first) }));
        assert_eq!(reader.now, Some((7, first.clone())));
        reader.take(Record::Change(change()));
        assert_eq!(reader.now, Some((9, second)));
    }
}

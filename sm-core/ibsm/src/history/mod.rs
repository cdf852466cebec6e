//! The history of a subnet: events, and the fabric as it changed, in files that grow by
//! appending. This module has their format; `runtime::history` writes and reads the files.
//!
//! A history consists of *segments*. Each begins with the whole fabric, if one was known, so that
//! the oldest can be removed. Nothing here does I/O or reads a clock.
//!
//! - `frame`: the bytes of a segment. `record`: what is in its frames. `layout`: fabrics. `loads`:
//!   loads of links.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod frame;
pub mod layout;
pub mod loads;
pub mod record;

use std::io;

use crate::observe::event::Event;
use crate::observe::ports::KeptFabric;
use crate::perf::loads::Loads;
use record::Record;

/// For how long loads that were kept are shown, milliseconds, unless others follow.
pub const LOADS_AGE_MAX_MS: u64 = 30 * 60 * 1000;

/// What was kept of the past, for those that ask for it. Calls read files: not for a thread that
/// others wait for.
pub trait Archive: Send + Sync {
    /// Events from a place on, as many as one call reads. `None` if there are none: what happened
    /// later is in memory.
    fn events(&self, from: Place) -> io::Result<Option<Page>>;

    /// The fabric at a time, and since when it was so; `None` if none was kept of then.
    fn fabric(&self, time_ms: u64) -> io::Result<Option<(u64, KeptFabric)>>;

    /// The loads of links read last before a time; `None` if none were kept in the
    /// [`LOADS_AGE_MAX_MS`] before it.
    fn loads(&self, time_ms: u64) -> io::Result<Option<Loads>>;

    /// The segments, oldest first.
    fn list(&self) -> io::Result<Vec<SegmentSummary>>;

    /// How far back each kind of data goes. Reads files until one of each kind is found.
    fn reach(&self) -> io::Result<Reach>;
}

/// The oldest data of each kind, milliseconds since 1970; `None` if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Events.
    pub events_ms: Option<u64>,
    /// Nodes and links.
    pub topology_ms: Option<u64>,
    /// States, LIDs and GUIDs of ports.
    pub ports_ms: Option<u64>,
    /// Loads of links.
    pub loads_ms: Option<u64>,
}

impl Reach {
    /// Labels and times, for people and programs.
    pub fn by_kind(&self) -> [(&'static str, Option<u64>); 4] {
        [
            ("events", self.events_ms),
            ("topology", self.topology_ms),
            ("ports", self.ports_ms),
            ("loads", self.loads_ms),
        ]
    }

    /// Takes a record, of one that follows those before.
    pub fn take(&mut self, bytes: &[u8]) {
        let is_wanted = (self.events_ms.is_none() && Record::is_event(bytes))
            || (self.ports_ms.is_none() && Record::is_fabric(bytes));
        if let Some(time_ms) = Record::time_of_loads(bytes) {
            self.loads_ms.get_or_insert(time_ms);
        } else if is_wanted {
            match Record::decode(bytes) {
                Some(Record::Event(event)) => {
                    self.events_ms.get_or_insert(event.time_ms);
                }
                Some(Record::Whole(shape)) => {
                    self.topology_ms.get_or_insert(shape.time_ms);
                    let mut fabric = KeptFabric::default();
                    shape.layout.apply(&mut fabric);
                    if !fabric.ports.is_empty() {
                        self.ports_ms = Some(shape.time_ms);
                    }
                }
                Some(Record::Change(_) | Record::Loads(_)) | None => {}
            }
        }
    }

    /// Whether nothing older can follow.
    pub fn is_complete(&self) -> bool {
        self.by_kind().iter().all(|(_, since)| since.is_some())
    }
}

/// A place in the events of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The event with this number, or the first after it.
    Number(u64),
    /// The first event at this time or later, milliseconds since 1970.
    Time(u64),
    /// Where a page ended.
    After {
        /// Number of the first event of the segment.
        segment: u64,
        /// Bytes of the segment that were read.
        read: u64,
    },
}

/// A part of the events of an archive.
#[derive(Clone, Debug)]
pub struct Page {
    /// Events, oldest first.
    pub events: Vec<Event>,
    /// Where the next page begins.
    pub next: Place,
}

/// A segment in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Number of the first event.
    pub first: u64,
    /// When it was begun, milliseconds since 1970.
    pub begun_ms: u64,
    /// Time of the last event in it; that of its beginning if there is none.
    pub ended_ms: u64,
    /// Number of events.
    pub events: u64,
    /// Its length, bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ports::Ports;
    use crate::observe::problem::testing::plane;
    use layout::Layout;
    use record::Shape;

    #[test]
    fn each_kind_of_data_has_its_own_beginning() {
        let of_ports = KeptFabric::of(&plane(&[(1, 1, 8, 1), (1, 2, 100, 1)], 0, 0));
        let plain = KeptFabric { ports: Ports::default(), ..of_ports.clone() };
        let whole = |time_ms, fabric: &KeptFabric| {
            Record::Whole(Shape { time_ms, layout: Layout::of(fabric) }).encode()
        };
        let event = |time_ms| Record::Event(Event { time_ms, ..Event::default() }).encode();
        let loads =
            |time_ms| Record::Loads(loads::KeptLoads { time_ms, ..<_>::default() }).encode();
        let mut reach = Reach::default();
        for bytes in [&[][..], &[99, 1], &whole(3, &plain), &event(5), &event(6)] {
            reach.take(bytes);
        }
        let expected = Reach { events_ms: Some(5), topology_ms: Some(3), ..Reach::default() };
        assert_eq!((reach, reach.is_complete()), (expected, false));
        for bytes in [&whole(7, &of_ports)[..], &loads(8), &loads(9), &whole(10, &of_ports)] {
            reach.take(bytes);
        }
        assert_eq!(reach, Reach { ports_ms: Some(7), loads_ms: Some(8), ..expected });
        assert!(reach.is_complete());
    }
}

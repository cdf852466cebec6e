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

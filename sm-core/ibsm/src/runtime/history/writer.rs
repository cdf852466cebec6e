//! What is appended to the history, and where: events in order, the fabric as it changes, loads of
//! links, and new segments.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use sa_proto::snapshot::FabricPlane;
use tracing::warn;

use super::budget::Budget;
use super::files::{Files, Segment};
use crate::clock::unix_ms;
use crate::history::frame::{HEAD_LEN, Head, append};
use crate::history::layout::Layout;
use crate::history::loads::KeptLoads;
use crate::history::record::{Record, Shape};
use crate::observe::event::{Draft, EventLog, FabricChanges};
use crate::observe::ports::{KeptFabric, Ports};
use crate::observe::topology::Topology;
use crate::perf::loads::Loads;

/// Events taken from memory at once.
const EVENTS_AT_ONCE: usize = 1000;
/// Length of a segment without its first record, bytes.
const SEGMENT_LEN_MIN: u64 = 64 << 10;
const SEGMENT_LEN_MAX: u64 = 16 << 20;

/// What is written, besides events.
#[derive(Clone, Copy)]
pub(super) struct Present<'a> {
    /// The published fabric.
    pub(super) plane: &'a Arc<FabricPlane>,
    /// Name of the engine whose routes are in force.
    pub(super) engine: &'a str,
    /// Loads in the last sweep of the performance manager.
    pub(super) loads: &'a Loads,
}

/// Appends to the last segment.
pub(super) struct Writer {
    files: Files,
    /// Largest length of all segments but the last, and of one, bytes.
    bytes_max: u64,
    segment_len: u64,
    /// Number of the next event to write.
    next: u64,
    lost: u64,
    bytes: u64,
    current: Option<Current>,
    /// The fabric as written last, and since when it is so.
    fabric: Option<(u64, KeptFabric)>,
    /// What it was derived from.
    plane: Option<Arc<FabricPlane>>,
    /// Time of the last reading of loads that was considered, milliseconds since 1970.
    loads_ms: u64,
    /// What loads may take.
    budget: Budget,
    /// Readings of loads that are not kept: they would take too much.
    skipped: u64,
    is_opened: bool,
}

/// The segment that is written.
struct Current {
    segment: Segment,
    file: File,
    /// Its length; what lies behind is not valid.
    len: u64,
    /// Length of its head and first record.
    base_len: u64,
}

impl Writer {
    /// A writer of events from number `next` on.
    pub(super) fn new(files: Files, bytes_max: u64, next: u64) -> Self {
        Self {
            files,
            bytes_max,
            segment_len: (bytes_max / 8).clamp(SEGMENT_LEN_MIN, SEGMENT_LEN_MAX),
            next,
            lost: 0,
            bytes: 0,
            current: None,
            fabric: None,
            plane: None,
            loads_ms: 0,
            budget: Budget::for_loads(bytes_max),
            skipped: 0,
            is_opened: false,
        }
    }

    /// Bytes in all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Events that memory had no room left for before they could be written.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Readings of loads that are not kept: they would have taken too much.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Writes all events that have not been, the fabric if it has changed, and loads that are new.
    /// After an error, a later call tries again.
    pub(super) fn write(&mut self, events: &EventLog, now: Present<'_>) -> io::Result<()> {
        if !self.is_opened {
            self.open()?;
            self.is_opened = true;
        }
        loop {
            let batch = events.since(self.next, EVENTS_AT_ONCE);
            let mut out = Vec::new();
            for event in &batch.events {
                append(&mut out, &Record::Event((**event).clone()).encode());
            }
            if out.is_empty() {
                break;
            }
            self.append(&out)?;
            self.lost += batch.missed;
            self.next = batch.next;
        }
        self.write_fabric(events, now.plane, now.engine)?;
        self.write_loads(now.loads)
    }

    /// Has the system write to disk what was appended.
    pub(super) fn sync(&self) {
        if let Some(current) = &self.current {
            // The history is complete without: this is for a host that crashes.
            let _ = current.file.sync_data();
        }
    }

    /// Continues the last segment, without what a crash left incomplete.
    fn open(&mut self) -> io::Result<()> {
        let segments = self.files.segments()?;
        self.bytes = 0;
        for &segment in &segments {
            self.bytes += self.files.len(segment)?;
        }
        let Some(&segment) = segments.last() else { return Ok(()) };
        if self.files.head(segment)?.is_none() {
            warn!("the last file of the history is damaged: its events are lost");
            return Ok(());
        }
        let (reader, len) = self.files.last_fabric(segment)?;
        let file = self.files.append(segment)?;
        let torn = self.files.len(segment)?.saturating_sub(len);
        if torn > 0 {
            warn!("the last {torn} bytes of the history are incomplete, and are cut off");
            file.set_len(len)?;
            self.bytes -= torn;
        }
        self.fabric = reader.now;
        self.current = Some(Current { segment, file, len, base_len: HEAD_LEN as u64 });
        Ok(())
    }

    fn write_fabric(
        &mut self,
        events: &EventLog,
        plane: &Arc<FabricPlane>,
        engine: &str,
    ) -> io::Result<()> {
        let is_same = self.plane.as_ref().is_some_and(|known| Arc::ptr_eq(known, plane));
        let has_engine = self.fabric.as_ref().is_some_and(|(_, is)| is.routing_engine == engine);
        if is_same && has_engine || plane.nodes.is_empty() {
            return Ok(());
        }
        if self.current.is_none() {
            // A fabric is looked for in files that were begun before it.
            self.begin()?;
        }
        let fabric = self.kept(plane, engine);
        let time_ms = unix_ms();
        let known = self.fabric.as_ref().filter(|_| self.plane.is_none());
        let changes = known.map(|(_, known)| FabricChanges::of(&known.topology, &fabric.topology));
        let record = match &self.fabric {
            Some((_, known)) => {
                let layout = Layout::between(known, &fabric);
                (!layout.is_empty()).then_some(Record::Change(Shape { time_ms, layout }))
            }
            None => {
                let layout = Layout::of(&fabric);
                Some(Record::Whole(Shape { time_ms, layout }))
            }
        };
        if let Some(record) = record {
            let mut out = Vec::new();
            if append(&mut out, &record.encode()) {
                self.append(&out)?;
            }
            self.fabric = Some((time_ms, fabric));
        }
        self.plane = Some(plane.clone());
        changes.iter().for_each(|changes| note_between(events, time_ms, changes));
        Ok(())
    }

    /// Writes loads, if they are new and do not take too much.
    fn write_loads(&mut self, loads: &Loads) -> io::Result<()> {
        let Some((_, fabric)) = &self.fabric else { return Ok(()) };
        if loads.time_ms == self.loads_ms {
            return Ok(());
        }
        if self.budget.has_any(loads.time_ms) {
            let mut out = Vec::new();
            append(&mut out, &Record::Loads(KeptLoads::of(loads, &fabric.topology)).encode());
            self.append(&out)?;
            self.budget.spend(out.len());
        } else {
            self.skipped += 1;
        }
        self.loads_ms = loads.time_ms;
        Ok(())
    }

    /// What is kept of a published fabric. Nodes that are as in the one before are not read again.
    fn kept(&self, plane: &FabricPlane, engine: &str) -> KeptFabric {
        let ports = match (&self.plane, &self.fabric) {
            (Some(before), Some((_, known))) => Ports::after(plane, before, &known.ports),
            _ => Ports::of(plane),
        };
        KeptFabric { topology: Topology::of(plane), ports, routing_engine: engine.to_owned() }
    }

    /// Appends frames to the last segment, or to a new one.
    fn append(&mut self, frames: &[u8]) -> io::Result<()> {
        let is_full = self
            .current
            .as_ref()
            .is_none_or(|current| current.len - current.base_len >= self.segment_len);
        if is_full {
            self.begin()?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if let Err(error) = current.file.write_all_at(frames, current.len) {
            // What was written in part is cut off, now or when the next write succeeds.
            let _ = current.file.set_len(current.len);
            return Err(error);
        }
        current.len += frames.len() as u64;
        self.bytes += frames.len() as u64;
        self.remove_oldest()
    }

    /// Begins a segment with the fabric.
    fn begin(&mut self) -> io::Result<()> {
        let last = self.files.segments()?.last().map_or(0, |segment| segment.0);
        let segment = Segment(last + 1);
        let head = Head { number: self.next, time_ms: unix_ms() };
        let mut out = head.encode().to_vec();
        if let Some((time_ms, fabric)) = &self.fabric {
            let shape = Shape { time_ms: *time_ms, layout: Layout::of(fabric) };
            append(&mut out, &Record::Whole(shape).encode());
        }
        let file = self.files.create(segment, &out)?;
        let len = out.len() as u64;
        self.bytes += len;
        self.current = Some(Current { segment, file, len, base_len: len });
        Ok(())
    }

    /// Removes the oldest segments while all together are too long.
    fn remove_oldest(&mut self) -> io::Result<()> {
        if self.bytes <= self.bytes_max {
            return Ok(());
        }
        let current = self.current.as_ref().map(|current| current.segment);
        for segment in self.files.segments()? {
            if self.bytes <= self.bytes_max || Some(segment) == current {
                break;
            }
            let len = self.files.len(segment)?;
            self.files.remove(segment)?;
            self.bytes = self.bytes.saturating_sub(len);
        }
        Ok(())
    }
}

/// Notes what changed while this manager was not running, or not master.
fn note_between(events: &EventLog, time_ms: u64, changes: &FabricChanges) {
    for draft in &changes.listed {
        let text = format!("{}, since this manager last knew the fabric", draft.text);
        events.note(time_ms, Draft { text, ..draft.clone() }.with("earlier", true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::frame::Frames;
    use crate::history::{Archive, LOADS_AGE_MAX_MS, Place};
    use crate::observe::event::{EVENTS_MAX, EventKind};
    use crate::observe::problem::testing::plane;
    use crate::perf::loads::Direction;
    use ib_mad::types::{Guid, PortNum};

    const LINKS: [(u64, u8, u64, u8); 3] = [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1)];

    struct Bed {
        directory: tempfile::TempDir,
        files: Files,
        events: EventLog,
        writer: Writer,
        time_ms: u64,
    }

    impl Bed {
        fn new(bytes_max: u64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let files = Files::open(&directory.path().join("history")).unwrap();
            let events = EventLog::default();
            let writer = Writer::new(files.clone(), bytes_max, 1);
            Self { directory, files, events, writer, time_ms: 0 }
        }

        /// Ends this run and begins another.
        fn restart(&mut self, bytes_max: u64) {
            let (earlier, next) = self.files.last_events(EVENTS_MAX).unwrap();
            self.events = EventLog::default();
            self.events.restore(earlier, next);
            let first = *self.events.next().borrow();
            self.writer = Writer::new(self.files.clone(), bytes_max, first);
        }

        fn note(&mut self, count: usize) {
            for _ in 0..count {
                self.time_ms += 1000;
                self.events.note(self.time_ms, Draft::new(EventKind::NodeCame, "a node came"));
            }
        }

        fn write(&mut self, links: usize) {
            self.write_plane(&plane(&LINKS[..links], 0, 0));
        }

        fn write_plane(&mut self, plane: &Arc<FabricPlane>) {
            self.write_now(Present { plane, engine: "minhop", loads: &Loads::default() });
        }

        fn write_now(&mut self, now: Present<'_>) {
            self.writer.write(&self.events, now).unwrap();
        }

        /// Numbers of all events in the files.
        fn numbers(&self, from: Place) -> Vec<u64> {
            let (mut place, mut all) = (from, Vec::new());
            while let Some(page) = self.files.events(place).unwrap() {
                all.extend(page.events.iter().map(|event| event.number));
                place = page.next;
            }
            all
        }
    }

    #[test]
    fn what_was_missing_is_known_with_the_last_topology_after_a_restart() {
        let mut bed = Bed::new(64 << 20);
        let known = |bed: &Bed| bed.files.all_that_was_known().unwrap();
        assert_eq!(known(&bed), None);
        bed.write(2);
        let (all, left) = (plane(&LINKS, 0, 0), plane(&LINKS[..2], 0, 0));
        let (all, left) = (Topology::of(&all), Topology::of(&left));
        bed.files.keep_missing(&all.absent_from(&left)).unwrap();
        bed.restart(64 << 20);
        assert_eq!(known(&bed).unwrap().0, all);
        // What a crash damaged is nothing.
        std::fs::write(bed.directory.path().join("history/missing"), "{\"nodes\":[").unwrap();
        let (with_missing, (_, last)) = known(&bed).unwrap();
        assert_eq!((with_missing, last.topology), (left.clone(), left));
    }

    #[test]
    fn numbers_and_the_fabric_continue_over_restarts() {
        let mut bed = Bed::new(64 << 20);
        bed.note(2500);
        bed.write(3);
        bed.restart(64 << 20);
        bed.note(3);
        bed.write(3);
        assert_eq!(bed.numbers(Place::Number(1)), (1..=2503).collect::<Vec<_>>());
        assert_eq!(bed.numbers(Place::Number(2400)).first(), Some(&2400));
        assert_eq!(bed.numbers(Place::Time(2_000_500)).first(), Some(&2001));
        assert_eq!(bed.files.segments().unwrap().len(), 1);
        let list = bed.files.list().unwrap();
        assert_eq!((list[0].first, list[0].events), (1, 2503));
        let fabric = bed.writer.fabric.clone().unwrap().1;
        assert_eq!((&fabric.routing_engine[..], fabric.ports.0.len()), ("minhop", 4));
        let (since, read) = bed.files.fabric(u64::MAX).unwrap().unwrap();
        assert_eq!((read, bed.files.fabric(since - 1).unwrap()), (fabric, None));
    }

    #[test]
    fn what_a_crash_left_incomplete_is_cut_off() {
        let mut bed = Bed::new(1 << 20);
        bed.note(5);
        bed.write(3);
        let segment = bed.files.segments().unwrap()[0];
        let len = bed.files.len(segment).unwrap();
        bed.files.append(segment).unwrap().write_all_at(b"\x40\0\0\0torn", len).unwrap();
        bed.restart(1 << 20);
        bed.note(1);
        bed.write(2);
        assert_eq!(bed.numbers(Place::Number(0)), [1, 2, 3, 4, 5, 6]);
        let (_, read) = bed.files.fabric(u64::MAX).unwrap().unwrap();
        assert_eq!(read.topology, Topology::of(&plane(&LINKS[..2], 0, 0)));
    }

    #[test]
    fn a_segment_appears_with_its_first_bytes() {
        let mut bed = Bed::new(1 << 20);
        bed.note(5);
        bed.write(3);
        let new = bed.directory.path().join("history/segment.new");
        std::fs::create_dir(&new).unwrap();
        let error = bed.writer.begin().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        assert_eq!(bed.files.segments().unwrap(), [Segment(1)]);
        // A run that was killed before it had written them is without effect.
        std::fs::remove_dir(&new).unwrap();
        std::fs::write(&new, b"half a").unwrap();
        bed.restart(1 << 20);
        bed.note(1);
        bed.write(3);
        bed.writer.begin().unwrap();
        assert_eq!(bed.numbers(Place::Number(0)), [1, 2, 3, 4, 5, 6]);
        assert_eq!(bed.files.segments().unwrap(), [Segment(1), Segment(2)]);
        assert!(bed.files.head(Segment(2)).unwrap().is_some());
    }

    #[test]
    fn a_port_in_another_state_is_a_change_although_the_topology_is_the_same() {
        let mut bed = Bed::new(1 << 20);
        bed.write_plane(&plane(&LINKS, 0, 1));
        let (since, initialized) = bed.files.fabric(u64::MAX).unwrap().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        bed.write_plane(&plane(&LINKS, 0, 0));
        bed.restart(1 << 20);
        bed.write_plane(&plane(&LINKS, 0, 0));
        let (_, active) = bed.files.fabric(u64::MAX).unwrap().unwrap();
        let is_active = |of: &KeptFabric| of.ports.at((Guid(1), PortNum(1))).unwrap().is_active();
        assert_eq!((is_active(&initialized), is_active(&active)), (false, true));
        assert_eq!(bed.files.fabric(since).unwrap().unwrap().1, initialized);
        let segment = bed.files.segments().unwrap()[0];
        let bytes = bed.files.frames(segment, 0).unwrap().unwrap();
        assert_eq!(Frames::new(&bytes).count(), 2, "what is the same is not written again");
    }

    /// Loads read at a time, in which the host sends at a part of the capacity.
    fn loads(time_ms: u64, share: f64) -> Loads {
        let end = |guid, port| (Guid(guid), PortNum(port));
        let direction = Direction {
            from: end(100, 1),
            to: end(1, 9),
            rate: share * 4e9,
            capacity: 4e9,
            from_errors: 0.0,
            to_errors: 0.0,
        };
        Loads { sweep: 1, time_ms, directions: vec![direction], unlisted: 0 }
    }

    #[test]
    fn loads_of_a_time_are_known_over_a_restart_and_a_change_of_the_fabric() {
        let mut bed = Bed::new(64 << 20);
        let start = unix_ms();
        let write = |bed: &mut Bed, links: usize, loads: &Loads| {
            let plane = plane(&LINKS[3 - links..], 0, 0);
            bed.write_now(Present { plane: &plane, engine: "minhop", loads });
        };
        // The link has another place in the topology when a switch is gone.
        write(&mut bed, 3, &loads(start, 0.5));
        write(&mut bed, 1, &loads(start + 60_000, 0.1));
        bed.restart(64 << 20);
        write(&mut bed, 1, &loads(start + 120_000, 0.9));
        write(&mut bed, 1, &loads(start + 120_000, 0.9));
        let share = |time_ms| {
            let loads = bed.files.loads(time_ms).unwrap()?;
            let [one] = loads.directions[..] else { panic!("{loads:?}") };
            assert_eq!((one.from.0, one.to.0), (Guid(100), Guid(1)));
            Some(((one.share() * 10.0).round() / 10.0, loads.time_ms - start))
        };
        assert_eq!(share(start - 1), None);
        assert_eq!(share(start + 59_999), Some((0.5, 0)));
        assert_eq!(share(start + 60_000), Some((0.1, 60_000)));
        let last = start + 120_000;
        assert_eq!(share(last + LOADS_AGE_MAX_MS), Some((0.9, 120_000)));
        assert_eq!(share(last + LOADS_AGE_MAX_MS + 1), None, "they are too old");
        let segment = bed.files.segments().unwrap()[0];
        let bytes = bed.files.frames(segment, 0).unwrap().unwrap();
        let kept = Frames::new(&bytes).filter_map(Record::time_of_loads).count();
        assert_eq!((kept, bed.writer.skipped()), (3, 0), "each reading is written once");
    }

    #[test]
    fn loads_take_no_more_than_their_part_and_what_is_skipped_is_counted() {
        let mut bed = Bed::new(1 << 20);
        let (start, plane) = (unix_ms(), plane(&LINKS, 0, 0));
        // One a second for an hour and a half.
        let seconds = 5400;
        for second in 0..seconds {
            let loads = loads(start + second * 1000, 0.5);
            bed.write_now(Present { plane: &plane, engine: "minhop", loads: &loads });
        }
        let part = (1 << 20) / 16 / 24;
        let used = bed.writer.bytes();
        assert!((2 * part..3 * part).contains(&used), "{used}");
        let skipped = bed.writer.skipped();
        assert!((seconds / 2..seconds).contains(&skipped), "{skipped}");
    }

    #[test]
    fn another_routing_engine_is_a_change() {
        let mut bed = Bed::new(1 << 20);
        let plane = plane(&LINKS, 0, 0);
        for engine in ["ftree", "updn"] {
            bed.write_now(Present { plane: &plane, engine, loads: &Loads::default() });
            let (_, now) = bed.files.fabric(u64::MAX).unwrap().unwrap();
            assert_eq!(now.routing_engine, engine);
        }
    }

    #[test]
    fn what_changed_between_two_runs_is_noted() {
        let mut bed = Bed::new(1 << 20);
        bed.write(3);
        assert_eq!(bed.events.first(), 1, "the first fabric is no change");
        bed.restart(1 << 20);
        bed.write(3);
        bed.restart(1 << 20);
        bed.write(2);
        let batch = bed.events.since(1, 9);
        let texts: Vec<_> = batch.events.iter().map(|event| &event.text[..]).collect();
        let host = "host 'n100' 0x0000000000000064 is gone";
        assert_eq!(texts, [format!("{host}, since this manager last knew the fabric")]);
        bed.write(3);
        assert_eq!(bed.events.since(1, 9).events.len(), 1, "sweeps note what they find");
    }

    #[test]
    fn the_oldest_segments_are_removed_and_each_begins_with_the_fabric() {
        let max = 8 * SEGMENT_LEN_MIN;
        let mut bed = Bed::new(max);
        for _ in 0..20 {
            bed.note(1000);
            bed.write(3);
        }
        let segments = bed.files.segments().unwrap();
        assert!((3..=9).contains(&segments.len()) && segments[0] > Segment(1), "{segments:?}");
        let total: u64 = segments.iter().map(|&segment| bed.files.len(segment).unwrap()).sum();
        assert_eq!(total, bed.writer.bytes());
        assert!(total <= max, "{total}");
        for segment in segments {
            assert!(bed.files.last_fabric(segment).unwrap().0.now.is_some());
        }
        let numbers = bed.numbers(Place::Number(1));
        assert_eq!((numbers.last(), bed.writer.lost()), (Some(&20_000), 0));
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    }

    #[test]
    fn only_the_owner_may_read_it_and_a_failed_write_is_tried_again() {
        use std::os::unix::fs::PermissionsExt;
        let mut bed = Bed::new(1 << 20);
        let directory = bed.directory.path().join("history");
        let mode =
            |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        bed.note(1);
        std::fs::remove_dir(&directory).unwrap();
        let (plane, loads) = (plane(&LINKS, 0, 0), Loads::default());
        let now = Present { plane: &plane, engine: "", loads: &loads };
        assert!(bed.writer.write(&bed.events, now).is_err());
        std::fs::create_dir(&directory).unwrap();
        bed.write(3);
        assert_eq!(bed.numbers(Place::Number(1)), [1]);
        assert_eq!(mode(&directory.join("00000001.history")), 0o600);
    }

    #[test]
    fn events_that_could_not_be_written_in_time_are_counted() {
        let mut bed = Bed::new(1 << 20);
        bed.note(EVENTS_MAX + 7);
        bed.write(3);
        assert_eq!(bed.writer.lost(), 7);
        assert_eq!(bed.numbers(Place::Number(1)).first(), Some(&8));
    }
}

//! The segments of a history as files: `DIR/NNNNNNNN.history`, with the format of
//! [`history`](crate::history). Only their owner may read them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use daemon::kept;

use crate::history::frame::{Frames, HEAD_LEN, Head, NUMBER_END};
use crate::history::layout::Layout;
use crate::history::record::{FabricReader, Record};
use crate::history::{Archive, LOADS_AGE_MAX_MS, Page, Place, Reach, SegmentSummary};
use crate::observe::event::Event;
use crate::observe::ports::KeptFabric;
use crate::observe::topology::Topology;
use crate::perf::loads::Loads;

const SUFFIX: &str = ".history";
/// A segment before its first bytes are written.
const SEGMENT_NEW: &str = "segment.new";
/// The file of what is missing of the fabric.
const MISSING: &str = "missing";
const MISSING_NEW: &str = "missing.new";
/// Longest file that is read, bytes. A segment has at most 16 MiB besides a fabric.
const FILE_LEN_MAX: u64 = 64 << 20;
/// Events in a page.
const PAGE_EVENTS_MAX: usize = 1000;

/// The files of a history. Reading is possible while they are written.
#[derive(Clone, Debug)]
pub(super) struct Files {
    directory: PathBuf,
}

/// A segment, by its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment(pub(super) u64);

impl Files {
    /// The files in `directory`, which is created if need be.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        kept::check_directory(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// The segments, oldest first.
    pub(super) fn segments(&self) -> io::Result<Vec<Segment>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let segment = number.and_then(|number| number.parse().ok()).map(Segment);
            // Others are not ours, such as a copy that somebody made.
            let is_ours = |segment: &Segment| {
                segment.0 < NUMBER_END && self.path(*segment).file_name() == Some(name.as_os_str())
            };
            all.extend(segment.filter(is_ours));
        }
        all.sort_unstable();
        Ok(all)
    }

    fn path(&self, Segment(number): Segment) -> PathBuf {
        self.directory.join(format!("{number:08}{SUFFIX}"))
    }

    /// Creates a segment with its first bytes. No reader and no later run finds it without them.
    pub(super) fn create(&self, segment: Segment, start: &[u8]) -> io::Result<File> {
        let file = self.replace(SEGMENT_NEW, start)?;
        fs::rename(self.directory.join(SEGMENT_NEW), self.path(segment))?;
        Ok(file)
    }

    /// Writes a file under a name that no reader knows.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<File> {
        let path = self.directory.join(name);
        let mut file = kept::draft(&path, 0o600)?;
        if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_data()) {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(file)
    }

    /// Opens a segment to append to it.
    pub(super) fn append(&self, segment: Segment) -> io::Result<File> {
        kept::open(&self.path(segment), OpenOptions::new().write(true))
    }

    /// Removes a segment.
    pub(super) fn remove(&self, segment: Segment) -> io::Result<()> {
        fs::remove_file(self.path(segment))
    }

    /// Length of a segment, bytes.
    pub(super) fn len(&self, segment: Segment) -> io::Result<u64> {
        Ok(fs::symlink_metadata(self.path(segment))?.len())
    }

    /// Head of a segment; `None` if it is damaged, or the file is gone.
    pub(super) fn head(&self, segment: Segment) -> io::Result<Option<Head>> {
        let bytes = self.read(segment, 0, HEAD_LEN as u64)?;
        Ok(bytes.and_then(|bytes| Head::decode(&bytes)))
    }

    /// The frames of a segment, from an offset on. `None` if the file is gone: it was the oldest.
    pub(super) fn frames(&self, segment: Segment, offset: u64) -> io::Result<Option<Vec<u8>>> {
        self.read(segment, offset.max(HEAD_LEN as u64), FILE_LEN_MAX)
    }

    fn read(&self, segment: Segment, offset: u64, len_max: u64) -> io::Result<Option<Vec<u8>>> {
        let mut file = match kept::open(&self.path(segment), OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(len_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Keeps what is missing of the fabric, which the topologies do not have.
    pub(super) fn keep_missing(&self, missing: &Topology) -> io::Result<()> {
        let missing = KeptFabric { topology: missing.clone(), ..KeptFabric::default() };
        self.replace(MISSING_NEW, &serde_json::to_vec(&Layout::of(&missing))?)?;
        fs::rename(self.directory.join(MISSING_NEW), self.directory.join(MISSING))
    }

    /// What was missing of the fabric; nothing if the file is damaged.
    fn missing(&self) -> io::Result<Layout> {
        let path = self.directory.join(MISSING);
        let file = match kept::open(&path, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Layout::default()),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(FILE_LEN_MAX).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// The last topology, with what was missing of it, and the last fabric without that and since
    /// when it was so; `None` if there is none.
    pub(super) fn all_that_was_known(&self) -> io::Result<Option<(Topology, (u64, KeptFabric))>> {
        let Some((since_ms, fabric)) = self.fabric(u64::MAX)? else { return Ok(None) };
        let mut all = fabric.clone();
        self.missing()?.apply(&mut all);
        Ok(Some((all.topology, (since_ms, fabric))))
    }

    /// The last events, oldest first, and the number of the next one.
    pub(super) fn last_events(&self, most: usize) -> io::Result<(Vec<Event>, u64)> {
        let mut next = 1;
        let mut pages: Vec<Vec<Event>> = Vec::new();
        let mut left = most;
        for segment in self.segments()?.into_iter().rev() {
            let Some(head) = self.head(segment)? else { continue };
            next = next.max(head.number);
            if left == 0 {
                break;
            }
            let Some(bytes) = self.frames(segment, 0)? else { continue };
            let records: Vec<_> =
                Frames::new(&bytes).filter(|record| Record::is_event(record)).collect();
            let skip = records.len().saturating_sub(left);
            let events: Vec<_> =
                records[skip..].iter().filter_map(|record| event(record)).collect();
            left -= events.len().min(left);
            pages.push(events);
        }
        let events: Vec<_> = pages.into_iter().rev().flatten().collect();
        // Numbers are consecutive; what lies behind a gap is left to the files.
        let gap = events.windows(2).rposition(|pair| pair[0].number + 1 != pair[1].number);
        let events = events.into_iter().skip(gap.map_or(0, |at| at + 1)).collect();
        Ok((events, next))
    }

    /// The last fabric, and the number of bytes of the segment that are intact.
    pub(super) fn last_fabric(&self, segment: Segment) -> io::Result<(FabricReader, u64)> {
        let mut reader = FabricReader::default();
        let bytes = self.frames(segment, 0)?.unwrap_or_default();
        let mut frames = Frames::new(&bytes);
        for record in frames.by_ref().filter(|record| Record::is_fabric(record)) {
            Record::decode(record).into_iter().for_each(|record| reader.take(record));
        }
        Ok((reader, (HEAD_LEN + frames.read()) as u64))
    }

    /// The segments with heads, oldest first.
    fn heads(&self) -> io::Result<Vec<(Segment, Head)>> {
        let mut all = Vec::new();
        for segment in self.segments()? {
            all.extend(self.head(segment)?.map(|head| (segment, head)));
        }
        Ok(all)
    }
}

fn event(record: &[u8]) -> Option<Event> {
    match Record::decode(record)? {
        Record::Event(event) => Some(event),
        Record::Whole(_) | Record::Change(_) | Record::Loads(_) => None,
    }
}

/// The loads of a record, by the topology of the records before it.
fn loads_of(before: &[&[u8]], record: &[u8]) -> Option<Loads> {
    let Some(Record::Loads(loads)) = Record::decode(record) else { return None };
    let mut reader = FabricReader::default();
    for record in before.iter().filter(|record| Record::is_fabric(record)) {
        Record::decode(record).into_iter().for_each(|record| reader.take(record));
    }
    loads.loads(&reader.now?.1.topology)
}

impl Archive for Files {
    fn events(&self, from: Place) -> io::Result<Option<Page>> {
        let (first, mut offset) = match from {
            Place::After { segment, read } => (Segment(segment), read),
            Place::Number(number) => {
                let heads = self.heads()?;
                let at = heads.iter().rposition(|(_, head)| head.number <= number).unwrap_or(0);
                (heads.get(at).map_or(Segment(0), |(segment, _)| *segment), 0)
            }
            Place::Time(time_ms) => {
                let heads = self.heads()?;
                let at = heads.iter().rposition(|(_, head)| head.time_ms <= time_ms).unwrap_or(0);
                (heads.get(at).map_or(Segment(0), |(segment, _)| *segment), 0)
            }
        };
        let is_wanted = |event: &Event| match from {
            Place::Number(number) => event.number >= number,
            Place::Time(time_ms) => event.time_ms >= time_ms,
            Place::After { .. } => true,
        };
        for segment in self.segments()?.into_iter().filter(|segment| *segment >= first) {
            // Another one replaces it if it is gone.
            let from = if segment == first { offset.max(HEAD_LEN as u64) } else { HEAD_LEN as u64 };
            offset = 0;
            let Some(bytes) = self.frames(segment, from)? else { continue };
            let mut frames = Frames::new(&bytes);
            let events: Vec<_> =
                frames.by_ref().filter_map(event).filter(is_wanted).take(PAGE_EVENTS_MAX).collect();
            if !events.is_empty() {
                let read = from + frames.read() as u64;
                return Ok(Some(Page { events, next: Place::After { segment: segment.0, read } }));
            }
        }
        Ok(None)
    }

    fn fabric(&self, time_ms: u64) -> io::Result<Option<(u64, KeptFabric)>> {
        let heads = self.heads()?;
        for (segment, _) in heads.iter().rev().filter(|(_, head)| head.time_ms <= time_ms) {
            let bytes = self.frames(*segment, 0)?.unwrap_or_default();
            let mut reader = FabricReader::default();
            let shapes = Frames::new(&bytes).filter(|record| Record::is_fabric(record));
            for record in shapes.filter_map(Record::decode) {
                if let Record::Whole(shape) | Record::Change(shape) = &record
                    && shape.time_ms > time_ms
                {
                    break;
                }
                reader.take(record);
            }
            if reader.now.is_some() {
                return Ok(reader.now);
            }
        }
        Ok(None)
    }

    fn loads(&self, time_ms: u64) -> io::Result<Option<Loads>> {
        let oldest_ms = time_ms.saturating_sub(LOADS_AGE_MAX_MS);
        for (segment, head) in self.heads()?.iter().rev().filter(|(_, of)| of.time_ms <= time_ms) {
            let bytes = self.frames(*segment, 0)?.unwrap_or_default();
            let records: Vec<_> = Frames::new(&bytes).collect();
            let time = |record: &&[u8]| Record::time_of_loads(record);
            let is_before = |record| time(record).is_some_and(|of| of <= time_ms);
            if let Some(at) = records.iter().rposition(is_before) {
                let is_recent = time(&records[at]).is_some_and(|of| of >= oldest_ms);
                return Ok(loads_of(&records[..at], records[at]).filter(|_| is_recent));
            }
            if head.time_ms < oldest_ms {
                break;
            }
        }
        Ok(None)
    }

    fn list(&self) -> io::Result<Vec<SegmentSummary>> {
        let heads = self.heads()?;
        let mut list = Vec::new();
        for (at, &(segment, head)) in heads.iter().enumerate() {
            let (ended_ms, next) = match heads.get(at + 1) {
                Some((_, next)) => (next.time_ms, next.number),
                None => {
                    let bytes = self.frames(segment, 0)?.unwrap_or_default();
                    let events = Frames::new(&bytes).filter(|record| Record::is_event(record));
                    let last = events.last().and_then(event);
                    last.map_or((head.time_ms, head.number), |last| (last.time_ms, last.number + 1))
                }
            };
            list.push(SegmentSummary {
                first: head.number,
                begun_ms: head.time_ms,
                ended_ms: ended_ms.max(head.time_ms),
                events: next.saturating_sub(head.number),
                bytes: self.len(segment).unwrap_or(0),
            });
        }
        Ok(list)
    }

    fn reach(&self) -> io::Result<Reach> {
        let mut reach = Reach::default();
        for (segment, _) in self.heads()? {
            let bytes = self.frames(segment, 0)?.unwrap_or_default();
            Frames::new(&bytes).for_each(|record| reach.take(record));
            if reach.is_complete() {
                break;
            }
        }
        Ok(reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a file with a number of another length stopped the history for ever, since it
    /// was looked for under the name that it would have.
    #[test]
    fn files_with_other_names_are_not_segments() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::open(directory.path()).unwrap();
        files.create(Segment(7), b"start").unwrap();
        for name in ["5", "+0000005", "000000009", "18446744073709551615", "00000008.copy"] {
            fs::write(directory.path().join(format!("{name}{SUFFIX}")), b"start").unwrap();
        }
        files.create(Segment(123_456_789), b"start").unwrap();
        assert_eq!(files.segments().unwrap(), [Segment(7), Segment(123_456_789)]);
    }

    /// Regression: with links in the directory, segments and what was missing were written to any
    /// file, and a pipe had the start wait for ever.
    #[test]
    fn links_and_pipes_in_the_directory_are_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::open(&directory.path().join("history")).unwrap();
        let at = |name: &str| directory.path().join("history").join(name);
        let precious = directory.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        for name in [SEGMENT_NEW, MISSING_NEW, "00000002.history"] {
            std::os::unix::fs::symlink(&precious, at(name)).unwrap();
        }
        files.create(Segment(1), b"start").unwrap();
        files.keep_missing(&Topology::default()).unwrap();
        assert!(files.append(Segment(2)).is_err() && files.head(Segment(2)).is_err());
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        crate::runtime::state::tests::pipe(&at("00000003.history"));
        assert!(files.append(Segment(3)).is_err() && files.head(Segment(3)).is_err());
    }
}

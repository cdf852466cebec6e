//! Running totals of all threads: gathered from their ledgers during the storm, for progress lines,
//! the log and the steps of a ramp.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{
    IntervalLogWriter, IntervalLogWriterBuilder, IntervalLogWriterError, Tag,
};

use crate::histogram::{Counts, Entry, Latencies, Ledger, Timings};
use crate::scenario::ramp::Measured;

/// Gathers the threads' counts and latencies.
pub struct Tally {
    ledgers: Vec<Arc<Ledger>>,
    counts: Vec<Counts>,
    spare: Entry,
    interval: Timings,
    /// Whether the storm has steps.
    steps: bool,
    step: Timings,
    total: Timings,
}

impl Tally {
    /// A tally of these threads' ledgers.
    pub fn new(ledgers: Vec<Arc<Ledger>>) -> Self {
        let counts = vec![Counts::default(); ledgers.len()];
        let (spare, interval) = (Entry::default(), Timings::default());
        let (step, total) = (Timings::default(), Timings::default());
        Self { ledgers, counts, spare, interval, steps: false, step, total }
    }

    /// Adds up the tallies that the threads have handed over.
    pub fn gather(&mut self) {
        for (ledger, counts) in self.ledgers.iter().zip(&mut self.counts) {
            ledger.take(&mut self.spare);
            *counts = self.spare.counts;
            self.interval.add(&self.spare.recent);
            if self.steps {
                self.step.add(&self.spare.recent);
            }
            self.spare.recent.clear();
        }
    }

    /// Counts of all threads, since the start.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.counts.iter().for_each(|counts| sum.add(counts));
        sum
    }

    /// Latencies of the current interval.
    pub fn interval(&self) -> &Timings {
        &self.interval
    }

    /// Ends an interval.
    pub fn end_interval(&mut self) {
        self.total.add(&self.interval);
        self.interval.clear();
    }

    /// Starts a step of a ramp.
    pub fn begin_step(&mut self) {
        self.step.clear();
        self.steps = true;
    }

    /// Latencies since the step began, and counts since `before`.
    pub fn step(&self, before: &Counts, time: Duration) -> Measured {
        let (counts, due) = (self.counts(), self.step.due());
        Measured {
            time,
            queries: counts.queries - before.queries,
            resolved: counts.resolved - before.resolved,
            no_path: counts.no_path - before.no_path,
            sent: counts.sent - before.sent,
            latencies: [50.0, 99.0, 99.9].map(|percentile| due.percentile(percentile)),
            lag: self.step.lag.percentile(99.0),
        }
    }

    /// All latencies, at the end.
    pub fn into_total(mut self) -> Timings {
        self.end_interval();
        self.total
    }
}

/// A HdrHistogram log of version 2. Values are in nanoseconds, the column of maxima in
/// milliseconds. Lines tagged with a kind of query count from the scheduled time, KIND.service from
/// the send time; `lag` is how late queries were sent.
pub struct Log<'a, W: Write> {
    writer: IntervalLogWriter<'a, 'a, W, V2DeflateSerializer>,
}

impl<'a, W: Write> Log<'a, W> {
    /// Starts the log of a storm that begins at `start`.
    pub fn begin(
        out: &'a mut W,
        serializer: &'a mut V2DeflateSerializer,
        start: SystemTime,
    ) -> io::Result<Self> {
        let writer = IntervalLogWriterBuilder::new()
            .add_comment("ibstorm: latencies in nanoseconds, tagged by kind of query")
            .with_start_time(start)
            .with_max_value_divisor(1e6)
            .begin_log_with(out, serializer)?;
        Ok(Self { writer })
    }

    /// Writes the latencies of an interval, by its start since the beginning of the storm.
    pub fn write(
        &mut self,
        began: Duration,
        length: Duration,
        timings: &Timings,
    ) -> io::Result<()> {
        for (kind, measured) in timings.kinds() {
            self.write_one(began, length, kind.name(), &measured.due)?;
            self.write_one(began, length, &format!("{kind}.service"), &measured.service)?;
        }
        self.write_one(began, length, "lag", &timings.lag)
    }

    fn write_one(
        &mut self,
        began: Duration,
        length: Duration,
        tag: &str,
        latencies: &Latencies,
    ) -> io::Result<()> {
        if latencies.is_empty() {
            return Ok(());
        }
        let tag = Tag::new(tag);
        let written = self.writer.write_histogram(latencies.histogram(), began, length, tag);
        written.map_err(|error| match error {
            IntervalLogWriterError::IoError(error) => error,
            other => io::Error::other(format!("{other:?}")),
        })
    }
}

/// Start of a measurement, and the counts at that time.
pub struct Since {
    /// The time.
    pub at: Instant,
    /// The counts.
    pub counts: Counts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Kind;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn steps_and_intervals_are_parts_of_the_whole() {
        let ledger = Arc::new(Ledger::default());
        let mut tally = Tally::new(vec![Arc::clone(&ledger)]);
        let hand_over = |ms: u32, queries: u64, tally: &mut Tally| {
            let mut timings = Timings::default();
            timings.record(Kind::PathByGid, ms * MS, MS);
            let (resolved, no_path) = (queries - 1, queries / 10);
            let counts = Counts { queries, resolved, no_path, ..Counts::default() };
            ledger.hand_over(Instant::now(), &counts, &mut timings);
            tally.gather();
        };
        hand_over(1, 10, &mut tally);
        tally.begin_step();
        let before = tally.counts();
        hand_over(2, 20, &mut tally);
        assert_eq!(tally.interval().due().len(), 2);
        tally.end_interval();
        assert!(tally.interval().due().is_empty());
        hand_over(3, 30, &mut tally);
        let measured = tally.step(&before, MS);
        assert_eq!((measured.queries, measured.resolved, measured.no_path), (20, 20, 2));
        assert_eq!(measured.latencies[0].as_millis(), 2);
        assert_eq!(tally.into_total().due().len(), 3);
    }

    /// Any reader of the format decodes the measured values.
    #[test]
    fn a_log_can_be_read_again() {
        let mut timings = Timings::default();
        (1..=100).for_each(|ms| timings.record(Kind::Join, ms * MS, MS));
        let (mut text, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
        let mut log = Log::begin(&mut text, &mut serializer, SystemTime::now()).unwrap();
        log.write(Duration::ZERO, 1000 * MS, &timings).unwrap();
        log.write(1000 * MS, 1000 * MS, &timings).unwrap();
        assert!(text.starts_with(b"#"));
        let entries: Vec<_> = IntervalLogIterator::new(&text).map(|entry| entry.unwrap()).collect();
        let mut tags = Vec::new();
        for entry in &entries {
            let LogEntry::Interval(interval) = entry else { continue };
            tags.push(interval.tag().unwrap().as_str().to_owned());
            let bytes = base64(interval.encoded_histogram());
            let mut deserializer = Deserializer::new();
            let histogram: hdrhistogram::Histogram<u64> =
                deserializer.deserialize(&mut &bytes[..]).unwrap();
            assert_eq!(histogram.len(), 100);
        }
        assert_eq!(tags, ["join", "join.service", "join", "join.service"]);
    }

    /// Decodes the standard base64 alphabet.
    fn base64(text: &str) -> Vec<u8> {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digit = |byte| digits.iter().position(|&digit| digit == byte).unwrap() as u32;
        let text = text.trim_end_matches('=').as_bytes();
        text.chunks(4)
            .flat_map(|chunk| {
                let bits = chunk.iter().fold(0, |bits, &byte| bits << 6 | digit(byte));
                let bits = bits << (6 * (4 - chunk.len()));
                bits.to_be_bytes()[1..chunk.len()].to_vec()
            })
            .collect()
    }
}

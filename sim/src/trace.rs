//! What happened in a run: a hash of all of it, and the last lines for people.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

/// Lines kept.
const LINES_MAX: usize = 4000;

/// The trace of a run. Two runs are the same if their hashes are.
pub struct Trace {
    hash: Xxh3,
    lines: VecDeque<(Duration, String)>,
    count: u64,
    /// Memory for text that is not kept.
    buffer: String,
    /// Whether lines are printed as they come.
    prints: bool,
}

impl Trace {
    /// Nothing has happened.
    pub fn new(prints: bool) -> Self {
        Self { hash: Xxh3::new(), lines: VecDeque::new(), count: 0, buffer: String::new(), prints }
    }

    /// Adds bytes that are not shown.
    pub fn bytes(&mut self, at: Duration, bytes: &[u8]) {
        self.hash.update(&(at.as_nanos() as u64).to_le_bytes());
        self.hash.update(bytes);
        self.count += 1;
    }

    /// Adds text that is not shown.
    pub fn text(&mut self, at: Duration, text: fmt::Arguments<'_>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        // A string has room for any text.
        let _ = buffer.write_fmt(text);
        self.bytes(at, buffer.as_bytes());
        self.buffer = buffer;
    }

    /// Adds a line.
    pub fn line(&mut self, at: Duration, text: fmt::Arguments<'_>) {
        let is_full = self.lines.len() == LINES_MAX;
        let oldest = if is_full { self.lines.pop_front() } else { None };
        let (_, mut line) = oldest.unwrap_or_default();
        line.clear();
        let _ = line.write_fmt(text);
        self.bytes(at, line.as_bytes());
        if self.prints {
            print(&shown(at, &line));
        }
        self.lines.push_back((at, line));
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash.digest()
    }

    /// Events so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last lines.
    pub fn tail(&self, count: usize) -> impl Iterator<Item = String> {
        let skipped = self.lines.len().saturating_sub(count);
        self.lines.iter().skip(skipped).map(|(at, text)| shown(*at, text))
    }
}

/// A line as people see it, with its time in seconds.
fn shown(at: Duration, text: &str) -> String {
    format!("{:>12.6} {text}", at.as_secs_f64())
}

#[expect(clippy::print_stdout, reason = "the user asked for the trace")]
fn print(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let mut trace = Trace::new(false);
        let last = LINES_MAX + 10;
        (0..=last).for_each(|number| trace.line(Duration::ZERO, format_args!("{number}")));
        let lines: Vec<_> = trace.tail(2).map(|line| line.trim().to_owned()).collect();
        assert_eq!(lines, [format!("0.000000 {}", last - 1), format!("0.000000 {last}")]);
        assert_eq!((trace.tail(usize::MAX).count(), trace.count()), (LINES_MAX, last as u64 + 1));
    }

    #[test]
    fn text_counts_as_its_bytes() {
        let [mut one, mut other] = [Trace::new(false), Trace::new(false)];
        for number in [1_000_000, 7] {
            one.text(Duration::ZERO, format_args!("{number}"));
            other.bytes(Duration::ZERO, number.to_string().as_bytes());
        }
        assert_eq!((one.hash(), one.count()), (other.hash(), other.count()));
    }
}

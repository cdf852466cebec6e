//! What happened in a run: a hash of all of it, and the last lines for people.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

/// Lines kept.
const LINES_MAX: usize = 4000;

/// The trace of a run. Two runs are the same if their hashes are.
pub struct Trace {
    hash: Xxh3,
    lines: VecDeque<String>,
    count: u64,
    /// Whether lines are printed as they come.
    prints: bool,
}

impl Trace {
    /// Nothing has happened.
    pub fn new(prints: bool) -> Self {
        Self { hash: Xxh3::new(), lines: VecDeque::new(), count: 0, prints }
    }

    /// Adds bytes that are not shown.
    pub fn bytes(&mut self, at: Duration, bytes: &[u8]) {
        self.hash.update(&(at.as_nanos() as u64).to_le_bytes());
        self.hash.update(bytes);
        self.count += 1;
    }

    /// Adds a line.
    pub fn line(&mut self, at: Duration, text: fmt::Arguments<'_>) {
        let line = format!("{:>12.6} {text}", at.as_secs_f64());
        self.hash.update(line.as_bytes());
        self.count += 1;
        if self.prints {
            print(&line);
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
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
    pub fn tail(&self, count: usize) -> impl Iterator<Item = &str> {
        let skipped = self.lines.len().saturating_sub(count);
        self.lines.iter().skip(skipped).map(String::as_str)
    }
}

#[expect(clippy::print_stdout, reason = "the user asked for the trace")]
fn print(line: &str) {
    println!("{line}");
}

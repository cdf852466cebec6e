//! What both daemons need to be watched: numbers that one thread counts and others read, the
//! process itself, and the text that a monitoring system reads.
//!
//! What is counted, and what it is called, is each daemon's own business.

mod histogram;
mod process;
mod text;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use histogram::Histogram;
pub use process::Process;
pub use text::{Family, Format, Samples, Value};

/// A number that one thread counts up and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one. The only writer needs no read-modify-write instruction.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed) + count, Relaxed);
    }

    /// Sets it to what is there now, for what goes down, too.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The count so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

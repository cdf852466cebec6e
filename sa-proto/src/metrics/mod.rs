//! Metrics of both daemons: counters with a single writer, process metrics, and the text formats
//! for monitoring systems.
//!
//! Each daemon defines its own metrics and their names.

mod histogram;
#[cfg(feature = "rpc")]
mod process;
#[cfg(feature = "rpc")]
mod text;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use histogram::Histogram;
#[cfg(feature = "rpc")]
pub use process::Process;
#[cfg(feature = "rpc")]
pub use text::{Family, Format, Samples, Value, registry_of};

/// A counter with one writing thread and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one. With a single writer this needs no read-modify-write instruction.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed) + count, Relaxed);
    }

    /// Sets the value; for gauges.
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

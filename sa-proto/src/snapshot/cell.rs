//! A shared value, replaced by one writer and read by many threads without locks.
//!
//! Used for snapshots and for the tables that a responder builds from them. The writer keeps a
//! replaced value until no reader holds it, so that no reader has to free one within a batch of
//! queries.

use std::sync::Arc;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;

use super::state::Snapshot;
use super::version::Version;

/// Limit of retired values that a publisher keeps; further ones are freed by their last reader.
pub const RETIRED_MAX: usize = 16;

/// A value derived from one version of the state.
pub trait Versioned {
    /// The version of this value.
    fn version(&self) -> Version;
}

impl Versioned for Snapshot {
    fn version(&self) -> Version {
        self.version
    }
}

/// Rejected: a lower version than the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("version {offered} is older than the current {current}")]
pub struct StaleVersion {
    /// The current version.
    pub current: Version,
    /// The rejected version.
    pub offered: Version,
}

/// The writing end. One per process, owned by the task that applies updates. Not `Clone`.
#[derive(Debug)]
pub struct Publisher<T> {
    cell: Arc<ArcSwap<T>>,
    retired: Vec<Arc<T>>,
    abandoned: u64,
}

impl<T: Versioned> Publisher<T> {
    /// Starts with `first`.
    pub fn new(first: T) -> Self {
        Self { cell: Arc::new(ArcSwap::from_pointee(first)), retired: Vec::new(), abandoned: 0 }
    }

    /// Makes `next` current. Running queries finish on the value they started with.
    pub fn publish(&mut self, next: Arc<T>) -> Result<(), StaleVersion> {
        let (current, offered) = (self.cell.load().version(), next.version());
        if offered < current {
            return Err(StaleVersion { current, offered });
        }
        self.reclaim();
        if self.retired.len() == RETIRED_MAX {
            self.retired.remove(0);
            self.abandoned += 1;
        }
        self.retired.push(self.cell.swap(next));
        Ok(())
    }

    /// Frees retired values that no reader holds any more; returns how many are still held. Call it
    /// periodically: otherwise the last ones stay until the next [`publish`](Self::publish).
    pub fn reclaim(&mut self) -> usize {
        // After a swap no reader can load the old value, so a reference count of one is final.
        self.retired.retain(|value| Arc::strong_count(value) > 1);
        self.retired.len()
    }

    /// Retired values left to their last reader, because readers held more than [`RETIRED_MAX`].
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// The current value.
    pub fn current(&self) -> Arc<T> {
        self.cell.load_full()
    }

    /// Creates a reading end.
    pub fn reader(&self) -> Reader<T> {
        Reader { cache: Cache::new(self.cell.clone()) }
    }
}

/// The reading end. One per thread: it keeps the value it read last, so an idle thread must call
/// [`current`](Self::current) periodically to release it.
#[derive(Clone, Debug)]
pub struct Reader<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Reader<T> {
    /// The value for one batch of queries. Costs one load if nothing has changed.
    #[inline]
    pub fn current(&mut self) -> &Arc<T> {
        self.cache.load()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// Records the thread that frees it.
    struct Value {
        generation: u64,
        freed_by_reader: Arc<AtomicUsize>,
        writer: std::thread::ThreadId,
    }

    impl Versioned for Value {
        fn version(&self) -> Version {
            Version { fabric_generation: self.generation, ..Version::NONE }
        }
    }

    impl Drop for Value {
        fn drop(&mut self) {
            if std::thread::current().id() != self.writer {
                self.freed_by_reader.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn no_reader_frees_a_value() {
        let freed = Arc::new(AtomicUsize::new(0));
        let writer = std::thread::current().id();
        let value = |generation| Value { generation, freed_by_reader: freed.clone(), writer };
        let mut publisher = Publisher::new(value(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (mut reader, stop) = (publisher.reader(), &stop);
                scope.spawn(move || {
                    let mut last = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let now = reader.current().generation;
                        assert!(now >= last);
                        last = now;
                    }
                });
            }
            for generation in 1..=2_000 {
                // A stalled reader would hold many; wait, as a real publisher is much slower.
                while publisher.reclaim() >= RETIRED_MAX - 1 {
                    std::thread::yield_now();
                }
                publisher.publish(Arc::new(value(generation))).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(freed.load(Ordering::Relaxed), 0);
        assert_eq!(publisher.reclaim(), 0, "readers are gone");
    }

    #[test]
    fn an_older_version_is_refused_and_an_equal_one_is_not() {
        let snapshot = |generation| {
            let session = super::super::Session { epoch: 1, ..Default::default() };
            let built =
                Snapshot::build(session, generation, Default::default(), Default::default());
            Arc::new(built.unwrap())
        };
        let mut publisher = Publisher::new(Snapshot::empty());
        publisher.publish(snapshot(5)).unwrap();
        publisher.publish(snapshot(5)).unwrap();
        let error = publisher.publish(snapshot(4)).unwrap_err();
        assert_eq!(error.current.fabric_generation, 5);
        assert_eq!(publisher.current().version().fabric_generation, 5);
    }

    #[test]
    fn what_readers_hold_for_ever_is_bounded_for_the_writer() {
        let session = super::super::Session { epoch: 1, ..Default::default() };
        let mut publisher = Publisher::new(Snapshot::empty());
        let mut readers = Vec::new();
        for generation in 1..=RETIRED_MAX as u64 + 5 {
            let mut reader = publisher.reader();
            reader.current();
            readers.push(reader);
            let next = Snapshot::build(session, generation, Default::default(), Default::default());
            publisher.publish(Arc::new(next.unwrap())).unwrap();
        }
        assert_eq!((publisher.reclaim(), publisher.abandoned()), (RETIRED_MAX, 5));
    }
}

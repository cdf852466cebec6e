//! Passes new tables to the workers: one atomic store by the publisher, one load per batch by a
//! worker.
//!
//! A worker never frees a generation, which takes milliseconds on a large fabric: the publisher
//! keeps retired generations until no worker uses them.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Cache};
use sa_proto::snapshot::{RegistryPlane, Version};

use crate::tables::fabric::Tables;
use crate::tables::index::RegistryIndex;

/// One generation: a snapshot in the forms that queries need.
#[derive(Debug)]
pub struct Generation {
    /// The snapshot's version.
    pub version: Version,
    /// The fabric plane and alias GUIDs, as tables; shared by generations that differ in neither.
    pub tables: Arc<Tables>,
    /// The registry plane, sorted as it is.
    pub registry: Arc<RegistryPlane>,
    /// Look-ups in the registry plane.
    pub index: RegistryIndex,
}

impl Generation {
    /// A generation that has nothing to do with those before.
    pub fn new(version: Version, tables: Arc<Tables>, registry: Arc<RegistryPlane>) -> Self {
        let index = RegistryIndex::new(&registry);
        Self { version, tables, registry, index }
    }
}

/// The writing end. One per process, owned by the task that receives snapshots. Not `Clone`.
pub struct Publisher {
    cell: Arc<ArcSwapOption<Generation>>,
    /// Generations that some reader may still hold.
    retired: Vec<Arc<Generation>>,
}

/// The reading end. One per worker.
#[derive(Clone)]
pub struct Reader {
    cache: Cache<Arc<ArcSwapOption<Generation>>, Option<Arc<Generation>>>,
}

impl Default for Publisher {
    fn default() -> Self {
        Self::new()
    }
}

impl Publisher {
    /// An empty cell: readers see no generation until the first is published.
    pub fn new() -> Self {
        Self { cell: Arc::new(ArcSwapOption::empty()), retired: Vec::new() }
    }

    /// A reading end.
    pub fn reader(&self) -> Reader {
        Reader { cache: Cache::new(Arc::clone(&self.cell)) }
    }

    /// Makes `next` current. Batches already being answered finish on the tables they began with.
    pub fn publish(&mut self, next: Arc<Generation>) {
        self.retired.extend(self.cell.swap(Some(next)));
        self.reclaim();
    }

    /// Frees retired generations that no reader holds any more; returns how many are left. A
    /// retired generation can only lose holders, so a count of one is final.
    pub fn reclaim(&mut self) -> usize {
        self.retired.retain(|generation| Arc::strong_count(generation) > 1);
        self.retired.len()
    }
}

impl Reader {
    /// The generation to answer one batch from. Costs one load when nothing changed.
    #[inline]
    pub fn current(&mut self) -> Option<&Arc<Generation>> {
        self.cache.load().as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sa_proto::snapshot::FabricPlane;

    fn generation() -> Arc<Generation> {
        let registry = RegistryPlane::default();
        let tables = Tables::build(&FabricPlane::default(), &registry);
        Arc::new(Generation::new(Version::NONE, Arc::new(tables), Arc::new(registry)))
    }

    #[test]
    fn a_generation_is_freed_by_its_publisher_once_readers_moved_on() {
        let mut publisher = Publisher::new();
        let mut reader = publisher.reader();
        assert!(reader.current().is_none());
        let first = generation();
        let weak = Arc::downgrade(&first);
        publisher.publish(first);
        assert!(reader.current().is_some());
        publisher.publish(generation());
        assert_eq!(publisher.reclaim(), 1, "the reader still holds it");
        assert!(weak.upgrade().is_some());
        reader.current();
        assert!(weak.upgrade().is_some(), "and does not free it");
        assert_eq!(publisher.reclaim(), 0);
        assert!(weak.upgrade().is_none());
    }
}

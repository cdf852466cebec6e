//! Passes new tables to the workers: one atomic store by the publisher, one load per batch by a
//! worker.
//!
//! As a rule there is one session, with one generation at a time. While a fabric is split there is
//! one for each part, in a lane of its own; the generations of all lanes are loaded together.
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

/// The generations of all sessions that are served.
#[derive(Clone, Debug, Default)]
struct Sessions {
    /// Of the session that is answered from unless a request came through another manager's front
    /// door.
    own: Option<Arc<Generation>>,
    own_lane: usize,
    /// The others, with their lanes.
    others: Vec<(usize, Arc<Generation>)>,
}

impl Sessions {
    fn get(&self, lane: usize) -> Option<&Arc<Generation>> {
        if lane == self.own_lane {
            return self.own.as_ref();
        }
        self.others.iter().find(|(other, _)| *other == lane).map(|(_, generation)| generation)
    }

    fn set(&mut self, lane: usize, next: Option<Arc<Generation>>) {
        if lane == self.own_lane {
            self.own = next;
            return;
        }
        self.others.retain(|(other, _)| *other != lane);
        self.others.extend(next.map(|next| (lane, next)));
    }

    fn set_own(&mut self, lane: usize) {
        if lane == self.own_lane {
            return;
        }
        let (before, own) = (self.own_lane, self.own.take());
        let next = self.get(lane).cloned();
        self.others.retain(|(other, _)| *other != lane);
        (self.own, self.own_lane) = (next, lane);
        self.set(before, own);
    }
}

/// The writing end. One per process, owned by the task that receives snapshots. Not `Clone`.
pub struct Publisher {
    cell: Arc<ArcSwapOption<Sessions>>,
    now: Sessions,
    /// Generations that some reader may still hold.
    retired: Vec<Arc<Sessions>>,
}

/// The reading end. One per worker.
#[derive(Clone)]
pub struct Reader {
    cache: Cache<Arc<ArcSwapOption<Sessions>>, Option<Arc<Sessions>>>,
}

/// Sequence numbers of the registries of all lanes, at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences {
    own: Option<(usize, u64)>,
    others: Vec<(usize, u64)>,
}

impl Sequences {
    /// That of a lane, if it had one.
    pub(crate) fn of(&self, lane: usize) -> Option<u64> {
        let mut all = self.own.iter().chain(&self.others);
        all.find(|(other, _)| *other == lane).map(|(_, sequence)| *sequence)
    }
}

/// What a batch is answered from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The generation, unless a request came through the front door of another lane's manager.
    pub(crate) generation: Option<&'a Generation>,
    /// Its lane.
    pub(crate) lane: usize,
    /// Whether there are generations of several sessions.
    pub(crate) is_split: bool,
}

impl Default for Publisher {
    fn default() -> Self {
        Self::new()
    }
}

impl Publisher {
    /// An empty cell: readers see no generation until the first is published.
    pub fn new() -> Self {
        let cell = Arc::new(ArcSwapOption::empty());
        Self { cell, now: Sessions::default(), retired: Vec::new() }
    }

    /// A reading end.
    pub fn reader(&self) -> Reader {
        Reader { cache: Cache::new(Arc::clone(&self.cell)) }
    }

    /// Makes `next` current in the first lane. Batches already being answered finish on the tables
    /// they began with.
    pub fn publish(&mut self, next: Arc<Generation>) {
        self.set(0, Some(next));
    }

    /// Makes `next` current in a lane, or takes away what was.
    pub fn set(&mut self, lane: usize, next: Option<Arc<Generation>>) {
        self.now.set(lane, next);
        self.store();
    }

    /// Sets the lane that is answered from unless a request came through the front door of another
    /// lane's manager.
    pub fn set_own(&mut self, lane: usize) {
        self.now.set_own(lane);
        self.store();
    }

    fn store(&mut self) {
        self.retired.extend(self.cell.swap(Some(Arc::new(self.now.clone()))));
        self.reclaim();
    }

    /// Frees retired generations that no reader holds any more; returns how many are left. A
    /// retired generation can only lose holders, so a count of one is final.
    pub fn reclaim(&mut self) -> usize {
        self.retired.retain(|sessions| Arc::strong_count(sessions) > 1);
        self.retired.len()
    }
}

impl Reader {
    /// The generation to answer one batch from, unless requests come through the front doors of
    /// several managers. Costs one load when nothing changed.
    #[inline]
    pub fn current(&mut self) -> Option<&Arc<Generation>> {
        self.cache.load().as_ref()?.own.as_ref()
    }

    /// What to answer from, by one load.
    #[inline]
    pub(crate) fn view(&mut self) -> View<'_> {
        match self.cache.load() {
            Some(sessions) => View {
                generation: sessions.own.as_deref(),
                lane: sessions.own_lane,
                is_split: !sessions.others.is_empty(),
            },
            None => View { generation: None, lane: 0, is_split: false },
        }
    }

    /// Reads the sequence numbers of all registries.
    #[inline]
    pub(crate) fn sequences(&mut self, into: &mut Sequences) {
        into.others.clear();
        let Some(sessions) = self.cache.load() else {
            into.own = None;
            return;
        };
        let of = |generation: &Arc<Generation>| generation.registry.sequence;
        into.own = sessions.own.as_ref().map(|own| (sessions.own_lane, of(own)));
        into.others.extend(sessions.others.iter().map(|(lane, it)| (*lane, of(it))));
    }

    /// The generation of a lane.
    pub fn lane(&mut self, lane: usize) -> Option<&Arc<Generation>> {
        self.cache.load().as_ref()?.get(lane)
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

    #[test]
    fn each_lane_has_its_generation_whichever_is_the_own_one() {
        let mut publisher = Publisher::new();
        let mut reader = publisher.reader();
        let (first, second) = (generation(), generation());
        publisher.set(0, Some(Arc::clone(&first)));
        assert!(!reader.view().is_split);
        publisher.set(1, Some(Arc::clone(&second)));
        for own in [0, 1, 1, 0] {
            publisher.set_own(own);
            assert!(reader.view().is_split);
            assert!(Arc::ptr_eq(reader.lane(0).unwrap(), &first), "{own}");
            assert!(Arc::ptr_eq(reader.lane(1).unwrap(), &second), "{own}");
            let current = if own == 0 { &first } else { &second };
            assert!(Arc::ptr_eq(reader.current().unwrap(), current), "{own}");
            assert_eq!(reader.view().lane, own);
        }
        publisher.set_own(1);
        publisher.set(0, None);
        assert!(!reader.view().is_split && reader.lane(0).is_none());
        assert!(Arc::ptr_eq(reader.current().unwrap(), &second));
    }
}

//! Growth of counters, from the thread that reads them to those that follow it.
//!
//! At 10,000 hosts a sweep finds growth at some 40,000 ports. It is not in the event log, whose
//! last events it would displace, nor in the history: each reader has what happens while it reads.
//! A reader that falls behind by [`GROWTHS_MAX`] misses the oldest, counted. Nothing is made of
//! groups that no reader wants.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use sm_core::perf::Group;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{Receiver, Sender};

use crate::observe::event::{Event, PortGrowth};

/// Readings by which a reader may be behind, about 200 bytes each.
pub(crate) const GROWTHS_MAX: usize = 65_536;

/// Counters by number of their group.
type Groups = [bool; Group::ALL.len()];

/// The sending end, and what it counts.
#[derive(Debug, Default)]
pub(crate) struct GrowthFeed {
    /// Made for the first reader.
    sender: OnceLock<Sender<Arc<PortGrowth>>>,
    /// Readers of each group.
    readers: [AtomicUsize; Group::ALL.len()],
    sent: AtomicU64,
    missed: AtomicU64,
}

impl GrowthFeed {
    /// The groups that have readers.
    pub(crate) fn wanted(&self) -> Groups {
        [0, 1, 2].map(|group: usize| self.readers[group].load(Relaxed) > 0)
    }

    /// Passes growth to all readers. Waits for none.
    pub(crate) fn send(&self, growth: PortGrowth) {
        if let Some(sender) = self.sender.get()
            && sender.send(Arc::new(growth)).is_ok()
        {
            self.sent.fetch_add(1, Relaxed);
        }
    }

    /// Readings passed on, and readings that readers missed.
    pub(crate) fn totals(&self) -> [u64; 2] {
        [self.sent.load(Relaxed), self.missed.load(Relaxed)]
    }

    /// A reader of these groups, from now on; `None` if there are none.
    pub(crate) fn follow(self: Arc<Self>, groups: Groups) -> Option<GrowthReader> {
        if groups == [false; 3] {
            return None;
        }
        let sender = self.sender.get_or_init(|| Sender::new(GROWTHS_MAX));
        let receiver = sender.subscribe();
        self.count(groups, |readers| readers.fetch_add(1, Relaxed));
        Some(GrowthReader { feed: self, receiver, groups, missed: 0 })
    }

    fn count(&self, groups: Groups, change: impl Fn(&AtomicUsize) -> usize) {
        let wanted = self.readers.iter().zip(groups).filter(|(_, is_wanted)| *is_wanted);
        for (readers, _) in wanted {
            change(readers);
        }
    }
}

/// A reader.
pub(crate) struct GrowthReader {
    feed: Arc<GrowthFeed>,
    receiver: Receiver<Arc<PortGrowth>>,
    groups: Groups,
    /// Readings missed since the last event.
    missed: u64,
}

impl GrowthReader {
    /// Waits for growth: at least one event, and at most `most`. `None` at the end. A call that is
    /// cancelled loses nothing.
    pub(crate) async fn next(&mut self, most: usize) -> Option<Vec<Arc<Event>>> {
        loop {
            let first = match self.receiver.recv().await {
                Ok(growth) => self.event(&growth),
                Err(RecvError::Lagged(count)) => self.miss(count),
                Err(RecvError::Closed) => return None,
            };
            let mut events: Vec<_> = first.into_iter().collect();
            events.extend(self.ready(most.saturating_sub(events.len())));
            if !events.is_empty() {
                return Some(events);
            }
        }
    }

    /// Up to `most` events that need no waiting.
    pub(crate) fn ready(&mut self, most: usize) -> Vec<Arc<Event>> {
        let mut events = Vec::new();
        while events.len() < most {
            let event = match self.receiver.try_recv() {
                Ok(growth) => self.event(&growth),
                Err(TryRecvError::Lagged(count)) => self.miss(count),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
            events.extend(event);
        }
        events
    }

    fn event(&mut self, growth: &PortGrowth) -> Option<Arc<Event>> {
        let is_wanted = self.groups[growth.growth.group as usize];
        is_wanted.then(|| Arc::new(growth.event(std::mem::take(&mut self.missed))))
    }

    fn miss<T>(&mut self, count: u64) -> Option<T> {
        self.missed += count;
        self.feed.missed.fetch_add(count, Relaxed);
        None
    }
}

impl Drop for GrowthReader {
    fn drop(&mut self) {
        self.feed.count(self.groups, |readers| readers.fetch_sub(1, Relaxed));
    }
}

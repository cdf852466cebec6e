//! Who can have acknowledged writes to clients: those with an open stream of writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Streams listed; there is one for each responder.
pub(crate) const STREAMS_MAX: usize = 1024;

/// The identities of those with a stream of writes, by the number of the stream. Clones share it.
#[derive(Clone, Debug)]
pub struct Writers {
    streams: Arc<Mutex<BTreeMap<u64, u64>>>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

impl Default for Writers {
    fn default() -> Self {
        Self { streams: Arc::default(), changed: watch::Sender::new(0) }
    }
}

impl Writers {
    /// A stream has opened; returns whether there was room to list it.
    pub fn enter(&self, stream: u64, id: u64) -> bool {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= STREAMS_MAX && !streams.contains_key(&stream) {
            return false;
        }
        if streams.insert(stream, id) != Some(id) {
            self.changed.send_modify(|changes| *changes += 1);
        }
        true
    }

    /// A stream has ended.
    pub fn leave(&self, stream: u64) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.remove(&stream).is_some() {
            self.changed.send_modify(|changes| *changes += 1);
        }
    }

    /// All identities, with repetitions.
    pub(super) fn ids(&self) -> Vec<u64> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.values().copied().collect()
    }

    /// Changes when a stream opens or ends.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_listed_from_its_first_message_to_its_end() {
        let writers = Writers::default();
        let mut changes = writers.subscribe();
        assert!(writers.enter(1, 0x51) && writers.enter(1, 0x51) && writers.enter(2, 0x52));
        assert!(changes.has_changed().unwrap());
        assert_eq!(*changes.borrow_and_update(), 2, "each is news once");
        writers.leave(1);
        assert!(changes.has_changed().unwrap());
        assert_eq!(writers.ids(), [0x52]);
    }

    #[test]
    fn the_list_is_bounded() {
        let writers = Writers::default();
        assert!((0..STREAMS_MAX as u64).all(|stream| writers.enter(stream, 1)));
        assert!(!writers.enter(u64::MAX, 1) && writers.enter(0, 1));
    }
}

//! Estimates which requesters ask most: one random request per batch stands for the whole batch.
//!
//! A worker has one counter per LID and updates one counter per batch, without look-ups, evictions
//! or locks. Under load, when the estimate matters, batches are full and the cost is a sixty-fourth
//! of a store per request. Once a second `top_requesters` takes the differences of all counters and
//! selects the largest.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ib_mad::transport::Packet;
use ib_mad::types::Lid;

/// Counters: one a unicast LID.
pub const LIDS: usize = Lid::UNICAST_LAST.0 as usize + 1;

/// One worker's estimate of requests per LID. One writer, any number of readers.
#[derive(Debug)]
pub struct Requesters {
    /// Requests by source LID, estimated; they wrap.
    by_lid: Box<[AtomicU32]>,
    /// State of the choice of samples.
    seed: AtomicU64,
}

impl Default for Requesters {
    fn default() -> Self {
        Self { by_lid: (0..LIDS).map(|_| AtomicU32::new(0)).collect(), seed: AtomicU64::new(0) }
    }
}

impl Requesters {
    /// Requests from `lid` so far, estimated; the count wraps.
    #[inline]
    pub fn count(&self, lid: u16) -> u32 {
        self.by_lid.get(usize::from(lid)).map_or(0, |count| count.load(Relaxed))
    }

    /// Samples a received batch.
    #[inline]
    pub fn sample(&self, batch: &[Packet]) {
        // A Weyl sequence visits all places of a batch alike; its upper half scales to the length.
        let seed = self.seed.load(Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.seed.store(seed, Relaxed);
        let at = ((seed >> 32) * batch.len() as u64) >> 32;
        let Some(packet) = batch.get(at as usize) else { return };
        if let Some(count) = self.by_lid.get(usize::from(packet.address.lid.0)) {
            count.store(count.load(Relaxed).wrapping_add(batch.len() as u32), Relaxed);
        }
    }
}

//! Who asks most, at next to no cost: one request of each batch, chosen at random, stands for all of
//! the batch.
//!
//! A worker keeps a counter a LID and touches one of them a batch; nothing is looked up, evicted or
//! locked. Under load, where it matters who asks, batches are full, and what is left of the cost is
//! a sixty-fourth of one store. Reading is the watcher's work, once a second: [`TopRequesters`]
//! takes differences of all counters and picks the largest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ib_mad::transport::Packet;
use ib_mad::types::Lid;
use sa_proto::proto::snapshot as proto;

use crate::stats::Stats;

/// Counters: one a unicast LID.
const LIDS: usize = Lid::UNICAST_LAST.0 as usize + 1;

/// Requesters told of at a time.
pub const TOP_MAX: usize = 32;

/// What one worker knows of who asks. One writer, any number of readers.
#[derive(Debug)]
pub struct Requesters {
    /// Requests by source LID, estimated; they wrap.
    by_lid: Box<[AtomicU32]>,
    /// Where the choice of samples stands.
    seed: AtomicU64,
}

impl Default for Requesters {
    fn default() -> Self {
        Self { by_lid: (0..LIDS).map(|_| AtomicU32::new(0)).collect(), seed: AtomicU64::new(0) }
    }
}

impl Requesters {
    /// Takes in a batch that arrived.
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

/// Finds the top of what workers count, time after time.
#[derive(Debug)]
pub struct TopRequesters {
    workers: Vec<(Arc<Stats>, Box<[u32]>)>,
}

impl TopRequesters {
    /// Begins to watch.
    pub fn new(workers: impl IntoIterator<Item = Arc<Stats>>) -> Self {
        let read =
            |stats: &Stats| stats.requesters.by_lid.iter().map(|n| n.load(Relaxed)).collect();
        let workers = workers.into_iter().map(|stats| (Arc::clone(&stats), read(&stats)));
        Self { workers: workers.collect() }
    }

    /// Who asked most since the last call, those first that asked more.
    pub fn take(&mut self) -> Vec<proto::Requester> {
        let mut top: Vec<(u64, u16)> = Vec::new();
        for lid in 0..LIDS {
            let mut requests = 0;
            for (stats, seen) in &mut self.workers {
                let count = stats.requesters.by_lid[lid].load(Relaxed);
                requests += u64::from(count.wrapping_sub(seen[lid]));
                seen[lid] = count;
            }
            if requests > 0 {
                top.push((requests, lid as u16));
            }
        }
        // Of equal ones the lower LID comes first, so that the list is calm.
        let order = |&(requests, lid): &(u64, u16)| (std::cmp::Reverse(requests), lid);
        if top.len() > TOP_MAX {
            top.select_nth_unstable_by_key(TOP_MAX, order);
            top.truncate(TOP_MAX);
        }
        top.sort_unstable_by_key(order);
        let requester =
            |(requests, lid): (u64, u16)| proto::Requester { lid: lid.into(), requests };
        top.into_iter().map(requester).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lids: &[u16]) -> Vec<Packet> {
        let packet = |&lid: &u16| {
            let mut packet = Packet::default();
            packet.address.lid = Lid(lid);
            packet
        };
        lids.iter().map(packet).collect()
    }

    #[test]
    fn shares_are_those_of_all_requests_though_few_are_looked_at() {
        let stats = Arc::new(Stats::default());
        let mut top = TopRequesters::new([Arc::clone(&stats)]);
        // LID 7 sends half of all, 8 a quarter, the rest is spread.
        for round in 0..4000u16 {
            let lids: Vec<u16> = (0..64)
                .map(|at| match at % 4 {
                    0 | 2 => 7,
                    1 => 8,
                    _ => 100 + (round * 16 + at / 4) % 1000,
                })
                .collect();
            stats.requesters.sample(&batch(&lids));
        }
        let told = top.take();
        assert_eq!(told.len(), TOP_MAX);
        assert_eq!((told[0].lid, told[1].lid), (7, 8));
        let all = 4000.0 * 64.0;
        assert!((told[0].requests as f64 / all - 0.5).abs() < 0.05, "{told:?}");
        assert!((told[1].requests as f64 / all - 0.25).abs() < 0.05, "{told:?}");
        assert!(told.is_sorted_by_key(|requester| std::cmp::Reverse(requester.requests)));
    }

    #[test]
    fn a_batch_of_one_is_exact_and_the_next_call_begins_anew() {
        let stats = [Arc::new(Stats::default()), Arc::new(Stats::default())];
        stats[0].requesters.sample(&batch(&[5]));
        let mut top = TopRequesters::new(stats.clone());
        for stats in &stats {
            stats.requesters.sample(&batch(&[9]));
        }
        stats[0].requesters.sample(&batch(&[4]));
        let told: Vec<_> = top.take().iter().map(|one| (one.lid, one.requests)).collect();
        assert_eq!(told, [(9, 2), (4, 1)], "and nothing of what was before");
        assert_eq!(top.take(), []);
        stats[1].requesters.sample(&batch(&[0xFFFF]));
        stats[1].requesters.sample(&[]);
        assert_eq!(top.take(), [], "no unicast LID, and no request");
    }
}

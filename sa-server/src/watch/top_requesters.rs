//! The requesters that ask most, found once a second from the counters of all workers.

use std::sync::Arc;

use sa_proto::proto::snapshot as proto;

use crate::stats::Stats;
use crate::stats::requesters::LIDS;

/// Requesters reported at a time.
pub const TOP_MAX: usize = 32;

/// Computes the top requesters from the workers' counters, repeatedly.
#[derive(Debug)]
pub struct TopRequesters {
    workers: Vec<(Arc<Stats>, Box<[u32]>)>,
}

impl TopRequesters {
    /// Begins to watch.
    pub fn new(workers: impl IntoIterator<Item = Arc<Stats>>) -> Self {
        let read =
            |stats: &Stats| (0..LIDS).map(|lid| stats.requesters.count(lid as u16)).collect();
        let workers = workers.into_iter().map(|stats| (Arc::clone(&stats), read(&stats)));
        Self { workers: workers.collect() }
    }

    /// Requesters with the most requests since the last call, in descending order.
    pub fn take(&mut self) -> Vec<proto::Requester> {
        let mut top: Vec<(u64, u16)> = Vec::new();
        for lid in 0..LIDS {
            let mut requests = 0;
            for (stats, seen) in &mut self.workers {
                let count = stats.requesters.count(lid as u16);
                requests += u64::from(count.wrapping_sub(seen[lid]));
                seen[lid] = count;
            }
            if requests > 0 {
                top.push((requests, lid as u16));
            }
        }
        // Ties are ordered by LID, so that the list is stable.
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
    use ib_mad::transport::Packet;
    use ib_mad::types::Lid;

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
        let top_now = top.take();
        assert_eq!(top_now.len(), TOP_MAX);
        assert_eq!((top_now[0].lid, top_now[1].lid), (7, 8));
        let all = 4000.0 * 64.0;
        assert!((top_now[0].requests as f64 / all - 0.5).abs() < 0.05, "{top_now:?}");
        assert!((top_now[1].requests as f64 / all - 0.25).abs() < 0.05, "{top_now:?}");
        assert!(top_now.is_sorted_by_key(|requester| std::cmp::Reverse(requester.requests)));
    }

    #[test]
    fn a_batch_of_one_is_exact_and_the_next_call_restarts() {
        let stats = [Arc::new(Stats::default()), Arc::new(Stats::default())];
        stats[0].requesters.sample(&batch(&[5]));
        let mut top = TopRequesters::new(stats.clone());
        for stats in &stats {
            stats.requesters.sample(&batch(&[9]));
        }
        stats[0].requesters.sample(&batch(&[4]));
        let top_now: Vec<_> = top.take().iter().map(|one| (one.lid, one.requests)).collect();
        assert_eq!(top_now, [(9, 2), (4, 1)], "and nothing of what was before");
        assert_eq!(top.take(), []);
        stats[1].requesters.sample(&batch(&[0xFFFF]));
        stats[1].requesters.sample(&[]);
        assert_eq!(top.take(), [], "no unicast LID, and no request");
    }
}

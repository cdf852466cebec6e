//! Closed loop: each response allows the next query.

use std::time::Instant;

use super::pace::Bounds;
use super::{Outcome, Patience, Query, Scenario};
use crate::ask::Ask;
use crate::workload::Workload;
use std::sync::Arc;

/// Cycles through the pairs.
pub(super) struct Pairs {
    workload: Arc<Workload>,
    next: u32,
    patience: Patience,
}

impl Pairs {
    /// Starts at the pair with index `first`, or one as far from the first.
    pub(super) fn new(workload: Arc<Workload>, first: usize, patience: Patience) -> Self {
        let next = (first % workload.len()) as u32;
        Self { workload, next, patience }
    }

    #[inline]
    pub(super) fn next(&mut self, due: Instant) -> Query {
        let pair = self.next;
        self.next = if pair as usize + 1 == self.workload.len() { 0 } else { pair + 1 };
        let ask = Ask::Path { pair, by: self.workload.by() };
        Query { ask, port: self.workload.pair(pair).source, due, patience: self.patience }
    }
}

/// A constant number of outstanding queries.
pub struct Closed {
    pairs: Pairs,
    concurrency: usize,
    bounds: Bounds,
}

impl Closed {
    /// Starts at the pair with index `first`.
    pub fn new(
        workload: Arc<Workload>,
        first: usize,
        concurrency: usize,
        patience: Patience,
        bounds: Bounds,
    ) -> Self {
        Self { pairs: Pairs::new(workload, first, patience), concurrency, bounds }
    }
}

impl Scenario for Closed {
    #[inline]
    fn poll_query(&mut self, now: Instant, outstanding: usize) -> Option<Query> {
        if outstanding >= self.concurrency || self.bounds.is_over(now) {
            return None;
        }
        self.bounds.take();
        Some(self.pairs.next(now))
    }

    fn handle_outcome(&mut self, _: Instant, _: &Query, _: &Outcome<'_>) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn is_over(&self, now: Instant) -> bool {
        self.bounds.is_over(now)
    }

    fn capacity(&self) -> usize {
        self.concurrency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::scenario::tests::{MS, due};
    use crate::workload::{By, Draw};

    #[test]
    fn a_closed_loop_keeps_its_queries_outstanding() {
        let start = Instant::now();
        let workload = Arc::new(workload(By::Gid, Draw::Any(3)));
        let bounds = Bounds::new(start, None, Some(3));
        let mut closed = Closed::new(workload, 2, 2, Patience::RDMA_CM, bounds);
        let first = due(&mut closed, start);
        let pairs: Vec<_> = first.iter().map(|query| query.ask).collect();
        let path = |pair| Ask::Path { pair, by: By::Gid };
        assert_eq!(pairs, [path(2), path(0)], "round and round");
        assert!(closed.poll_query(start + MS, 2).is_none());
        let next = closed.poll_query(start + MS, 1).unwrap();
        assert_eq!((next.ask, next.due), (path(1), start + MS), "meant to be sent at once");
        assert!(closed.is_over(start) && closed.poll_query(start, 0).is_none());
    }
}

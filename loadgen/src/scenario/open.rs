//! Open loop: queries by a schedule, independent of responses.

use std::sync::Arc;
use std::time::Instant;

use super::closed::Pairs;
use super::pace::{Bounds, Schedule};
use super::{Outcome, Patience, Query, Scenario};
use crate::workload::Workload;

/// Limit of outstanding queries; later ones wait, and their latency includes that.
pub(super) const OUTSTANDING_MAX: usize = 1 << 17;

/// Queries by a schedule.
pub struct Open {
    pairs: Pairs,
    schedule: Schedule,
    bounds: Bounds,
}

impl Open {
    /// Starts at the pair with index `first`.
    pub fn new(
        workload: Arc<Workload>,
        first: usize,
        schedule: Schedule,
        patience: Patience,
        bounds: Bounds,
    ) -> Self {
        Self { pairs: Pairs::new(workload, first, patience), schedule, bounds }
    }
}

impl Scenario for Open {
    #[inline]
    fn poll_query(&mut self, now: Instant, _: usize) -> Option<Query> {
        if self.bounds.is_over(now) {
            return None;
        }
        let due = self.schedule.take(now)?;
        self.bounds.take();
        Some(self.pairs.next(due))
    }

    fn handle_outcome(&mut self, _: Instant, _: &Query, _: &Outcome<'_>) {}

    fn poll_timeout(&self) -> Option<Instant> {
        self.schedule.next_due()
    }

    fn is_over(&self, now: Instant) -> bool {
        self.bounds.is_over(now)
    }

    fn capacity(&self) -> usize {
        OUTSTANDING_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::scenario::pace::Arrivals;
    use crate::scenario::tests::{MS, due};
    use crate::workload::{By, Draw};

    #[test]
    fn an_open_loop_asks_when_its_schedule_says() {
        let start = Instant::now();
        let workload = Arc::new(workload(By::Gid, Draw::Any(3)));
        let schedule = Schedule::new(Arrivals::Constant, 1000.0, start, 1);
        let bounds = Bounds::new(start, Some(10 * MS), None);
        let mut open = Open::new(workload, 0, schedule, Patience::RDMA_CM, bounds);
        let late = due(&mut open, start + 4 * MS);
        let times: Vec<_> = late.iter().map(|query| query.due).collect();
        assert_eq!(times, [0, 1, 2, 3, 4].map(|n| start + n * MS));
        assert_eq!(open.poll_timeout(), Some(start + 5 * MS));
        assert!(open.is_over(start + 10 * MS) && due(&mut open, start + 10 * MS).is_empty());
    }
}

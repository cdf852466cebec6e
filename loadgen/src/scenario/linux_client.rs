//! Model of ports as Linux drives them: each queries its own paths, has a window of outstanding
//! queries and a queue of callers, retries unanswered queries and gives up at the deadline.
//!
//! With a rate, callers arrive by a schedule, each at a random port; without, every window is
//! always full. The measure is goodput, paths resolved within their deadline per second, and its
//! cost: packets sent per path. A responder that answers queries whose clients have already retried
//! has a high response rate and no goodput.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fleet::Fleet;
use super::pace::{Bounds, Schedule};
use super::{Outcome, Part, Patience, Query, Scenario, Summary};
use crate::ask::Ask;
use crate::workload::Workload;

/// Limit of callers queued at one port; further ones count as never sent.
const CALLERS_MAX: usize = 1024;

/// See the [module](self).
pub struct LinuxClient {
    workload: Arc<Workload>,
    fleet: Fleet,
    /// For each member, arrival times of the queued callers.
    callers: Vec<VecDeque<Instant>>,
    /// For each member, the index of its next pair.
    next: Vec<u32>,
    schedule: Option<Schedule>,
    bounds: Bounds,
    patience: Patience,
    random: SmallRng,
    unsent: u64,
    /// Queued callers of all ports.
    waiting: usize,
}

impl LinuxClient {
    /// `workload` must have been drawn by port.
    pub fn new(
        workload: Arc<Workload>,
        part: Part,
        (ports, window): (usize, u16),
        schedule: Option<Schedule>,
        patience: Patience,
        bounds: Bounds,
        seed: u64,
    ) -> Self {
        let mut fleet = Fleet::new(part, ports, window);
        let members = fleet.len();
        if schedule.is_none() {
            (0..members as u32).for_each(|member| fleet.wake(member));
        }
        Self {
            workload,
            fleet,
            callers: vec![VecDeque::new(); members],
            next: vec![0; members],
            schedule,
            bounds,
            patience,
            random: SmallRng::seed_from_u64(seed),
            unsent: 0,
            waiting: 0,
        }
    }

    /// Queues the callers that are due.
    fn line_up(&mut self, now: Instant) {
        let Some(schedule) = &mut self.schedule else { return };
        while !self.bounds.is_over(now)
            && let Some(due) = schedule.take(now)
        {
            self.bounds.take();
            let member = self.random.random_range(0..self.callers.len());
            if self.callers[member].len() == CALLERS_MAX {
                self.unsent += 1;
                continue;
            }
            self.callers[member].push_back(due);
            self.waiting += 1;
            self.fleet.wake(member as u32);
        }
    }

    fn next_query(&mut self, member: u32, due: Instant) -> Query {
        let port = self.fleet.port(member);
        let each = self.workload.each() as u32;
        let next = &mut self.next[member as usize];
        let pair = port * each + *next;
        *next = (*next + 1) % each;
        let ask = Ask::Path { pair, by: self.workload.by() };
        Query { ask, port, due, patience: self.patience }
    }
}

impl Scenario for LinuxClient {
    fn poll_query(&mut self, now: Instant, _: usize) -> Option<Query> {
        if self.callers.is_empty() {
            return None;
        }
        self.line_up(now);
        while let Some(member) = self.fleet.poll(now) {
            let due = if self.schedule.is_some() {
                let Some(due) = self.callers[member as usize].pop_front() else { continue };
                self.waiting -= 1;
                due
            } else if self.bounds.is_over(now) {
                continue;
            } else {
                self.bounds.take();
                now
            };
            self.fleet.begin(member);
            return Some(self.next_query(member, due));
        }
        None
    }

    fn handle_outcome(&mut self, _: Instant, query: &Query, _: &Outcome<'_>) {
        self.fleet.end(self.fleet.member(query.port));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.schedule.as_ref()?.next_due()
    }

    fn is_over(&self, now: Instant) -> bool {
        self.callers.is_empty() || self.bounds.is_over(now) && self.waiting == 0
    }

    fn capacity(&self) -> usize {
        self.fleet.capacity()
    }

    fn summary(&self) -> Summary {
        Summary { unsent: self.unsent + self.waiting as u64, ..Summary::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::scenario::pace::Arrivals;
    use crate::scenario::tests::{MS, RESOLVED, due};
    use crate::workload::{By, Draw, Pattern};
    use std::time::Duration;

    fn client(window: u16, rate: Option<f64>, start: Instant) -> LinuxClient {
        let workload = Arc::new(workload(By::Gid, Draw::PerPort(2, Pattern::Ring)));
        let schedule = rate.map(|rate| Schedule::new(Arrivals::Constant, rate, start, 1));
        let bounds = Bounds::new(start, Some(Duration::from_secs(1)), None);
        let patience = Patience::RDMA_CM;
        LinuxClient::new(workload, Part::ALL, (3, window), schedule, patience, bounds, 1)
    }

    #[test]
    fn every_window_is_full_where_no_rate_is_asked_for() {
        let start = Instant::now();
        let mut client = client(16, None, start);
        let first = due(&mut client, start);
        assert_eq!(first.len(), 48);
        for port in 0..3 {
            let own: Vec<_> = first.iter().filter(|query| query.port == port).collect();
            assert_eq!(own.len(), 16);
            assert!(own.iter().all(|query| {
                let Ask::Path { pair, .. } = query.ask else { return false };
                client.workload.pair(pair).source == port
            }));
        }
        client.handle_outcome(start + MS, &first[7], &RESOLVED);
        let next = due(&mut client, start + MS);
        assert_eq!((next.len(), next[0].port), (1, first[7].port));
        client.handle_outcome(start + MS, &first[7], &RESOLVED);
        assert!(
            client.is_over(start + 1000 * MS) && due(&mut client, start + 1000 * MS).is_empty()
        );
    }

    /// A caller that finds the window full is queued, and its latency includes the wait.
    #[test]
    fn callers_wait_for_room_in_their_ports_window() {
        let start = Instant::now();
        let mut client = client(1, Some(1000.0), start);
        let begun = due(&mut client, start + 99 * MS);
        assert_eq!(begun.len(), 3, "one a port");
        assert_eq!(client.waiting, 97);
        let later = start + 200 * MS;
        client.handle_outcome(later, &begun[0], &RESOLVED);
        let next = due(&mut client, later);
        assert_eq!((next.len(), next[0].port), (1, begun[0].port));
        assert!(next[0].due < start + 99 * MS, "since when it waits: {:?}", next[0].due - start);
        assert!(!client.is_over(start + 1000 * MS), "some still wait");
        assert!(client.summary().unsent > 0);
    }
}

//! Job start: every port queries paths to its peers within a short time, as when the processes of a
//! parallel job connect. Measures the time from the start of the storm until half, 99 % and all of
//! the paths are resolved, and until as many of the ports have all their paths.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fleet::Fleet;
use super::pace::Bounds;
use super::{Milestone, Outcome, Part, Patience, Query, Scenario, Summary};
use crate::ask::Ask;
use crate::workload::Workload;

/// Time before a failed query is repeated by its process.
const PAUSE: Duration = Duration::from_millis(100);

/// Settings of the model.
#[derive(Clone, Copy, Debug)]
pub struct JobStartOptions {
    /// Ports that take part.
    pub ports: usize,
    /// Time within which they start, evenly at random.
    pub within: Duration,
    /// Outstanding queries per port.
    pub window: u16,
    /// Whether failed queries are sent again, until the storm ends.
    pub persist: bool,
    /// Timeout and retries.
    pub patience: Patience,
}

/// See the [module](self).
pub struct JobStart {
    workload: Arc<Workload>,
    options: JobStartOptions,
    fleet: Fleet,
    members: Vec<Member>,
    /// Pairs to query again, and when.
    failed: VecDeque<(Instant, u32)>,
    start: Instant,
    bounds: Bounds,
    paths: Milestone,
    ports: Milestone,
}

#[derive(Clone, Copy)]
struct Member {
    begins: Instant,
    /// Pairs not yet queried start here.
    next: u32,
    unresolved: u32,
}

impl JobStart {
    /// `workload` must have been drawn by port.
    pub fn new(
        workload: Arc<Workload>,
        part: Part,
        options: JobStartOptions,
        start: Instant,
        bounds: Bounds,
        seed: u64,
    ) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut fleet = Fleet::new(part, options.ports, options.window);
        let each = workload.each() as u32;
        let members: Vec<Member> = (0..fleet.len() as u32)
            .map(|member| {
                let begins = start + options.within.mul_f64(random.random());
                fleet.wake_at(member, begins);
                Member { begins, next: 0, unresolved: each }
            })
            .collect();
        let paths = members.len() * each as usize;
        Self {
            failed: VecDeque::new(),
            paths: Milestone::new("paths resolved", paths),
            ports: Milestone::new("ports with all their paths", members.len()),
            workload,
            options,
            fleet,
            members,
            start,
            bounds,
        }
    }

    fn query(&self, member: u32, pair: u32, due: Instant) -> Query {
        let ask = Ask::Path { pair, by: self.workload.by() };
        Query { ask, port: self.fleet.port(member), due, patience: self.options.patience }
    }
}

impl Scenario for JobStart {
    fn poll_query(&mut self, now: Instant, _: usize) -> Option<Query> {
        if self.bounds.is_over(now) {
            return None;
        }
        if let Some(&(due, pair)) = self.failed.front()
            && due <= now
        {
            self.failed.pop_front();
            let member = self.fleet.member(self.workload.pair(pair).source);
            self.fleet.begin(member);
            return Some(self.query(member, pair, due));
        }
        let each = self.workload.each() as u32;
        while let Some(member) = self.fleet.poll(now) {
            let state = &mut self.members[member as usize];
            if state.next == each {
                continue;
            }
            let pair = self.fleet.port(member) * each + state.next;
            // The job needs all paths at once; queries delayed by the window count as late.
            let due = state.begins;
            state.next += 1;
            self.fleet.begin(member);
            return Some(self.query(member, pair, due));
        }
        None
    }

    fn handle_outcome(&mut self, now: Instant, query: &Query, outcome: &Outcome<'_>) {
        let member = self.fleet.member(query.port);
        self.fleet.end(member);
        if outcome.is_settled() {
            let took = now.saturating_duration_since(self.start);
            self.paths.record(took, outcome);
            let state = &mut self.members[member as usize];
            state.unresolved -= 1;
            if state.unresolved == 0 {
                self.ports.at.record(took);
            }
        } else if self.options.persist
            && let Ask::Path { pair, .. } = query.ask
        {
            self.failed.push_back((now + PAUSE, pair));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let again = self.failed.front().map(|&(due, _)| due);
        [again, self.fleet.poll_timeout()].into_iter().flatten().min()
    }

    fn is_over(&self, now: Instant) -> bool {
        self.bounds.is_over(now) || self.failed.is_empty() && self.fleet.is_asleep()
    }

    fn capacity(&self) -> usize {
        // A retry does not wait for the window.
        self.fleet.capacity() * 2
    }

    fn summary(&self) -> Summary {
        let milestones = vec![self.paths.clone(), self.ports.clone()];
        Summary { milestones, ..Summary::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::scenario::tests::{MS, REFUSED, RESOLVED, due};
    use crate::workload::{By, Draw, Pattern};

    fn job(persist: bool, start: Instant) -> JobStart {
        let workload = Arc::new(workload(By::Gid, Draw::PerPort(2, Pattern::Ring)));
        let options = JobStartOptions {
            ports: 3,
            within: 10 * MS,
            window: 1,
            persist,
            patience: Patience::RDMA_CM,
        };
        let bounds = Bounds::new(start, Some(1000 * MS), None);
        JobStart::new(workload, Part::ALL, options, start, bounds, 1)
    }

    #[test]
    fn all_ports_ask_for_all_their_peers_and_milestones_are_counted_from_the_start() {
        let start = Instant::now();
        assert!(due(&mut job(false, start), start).len() < 3, "ports begin one after the other");
        let mut job = job(false, start);
        let first = due(&mut job, start + 10 * MS);
        assert_eq!(first.len(), 3);
        assert!(first.iter().all(|query| query.due >= start && query.due <= start + 10 * MS));
        for query in &first {
            job.handle_outcome(start + 20 * MS, query, &RESOLVED);
        }
        let second = due(&mut job, start + 20 * MS);
        assert_eq!(second.len(), 3);
        assert!(second.iter().all(|query| query.due <= start + 10 * MS), "wanted from the start");
        job.handle_outcome(start + 30 * MS, &second[0], &RESOLVED);
        job.handle_outcome(start + 40 * MS, &second[1], &RESOLVED);
        assert!(job.poll_query(start + 40 * MS, 1).is_none() && job.is_over(start + 40 * MS));
        let [paths, ports] = &job.summary().milestones[..] else { panic!() };
        assert_eq!(paths.reached(50.0).unwrap().as_millis(), 20);
        assert_eq!((paths.reached(100.0), ports.reached(100.0)), (None, None));
        job.handle_outcome(start + 50 * MS, &second[2], &RESOLVED);
        let [paths, ports] = &job.summary().milestones[..] else { panic!() };
        assert_eq!(paths.reached(100.0).unwrap().as_millis(), 50);
        assert_eq!(ports.reached(30.0).unwrap().as_millis(), 30);
    }

    #[test]
    fn who_persists_asks_again_for_what_failed() {
        for persist in [false, true] {
            let start = Instant::now();
            let mut job = job(persist, start);
            let begun = due(&mut job, start + 10 * MS);
            let failed = begun[0];
            job.handle_outcome(start + 20 * MS, &failed, &REFUSED);
            job.handle_outcome(start + 20 * MS, &begun[1], &Outcome::Silent);
            let asks_again = |queries: Vec<Query>| queries.iter().any(|q| q.ask == failed.ask);
            assert!(!asks_again(due(&mut job, start + 20 * MS)), "not at once");
            assert_eq!(asks_again(due(&mut job, start + 120 * MS)), persist);
        }
    }
}

//! Model of ports that run `ibacm`. Each joins the multicast group for address resolution, then
//! queries the paths to its destinations, one at a time (`sa_depth`), each destination once: the
//! results are cached.
//!
//! Addresses themselves (`addr_prot acm`) are resolved by multicast among the ports, without the
//! SA; they determine the form of the path query: [`By::Acm`], or, where the client gives GIDs or a
//! LID, [`By::AcmGid`] and [`By::AcmLid`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fleet::Fleet;
use super::pace::Bounds;
use super::{Milestone, Outcome, Part, Patience, Query, Scenario, Summary};
use crate::ask::Ask;
use crate::ask::registration::Group;
use crate::workload::{By, Workload};

/// Interval at which a port retries to join.
const JOIN_PAUSE: Duration = Duration::from_secs(1);

/// Settings of the model.
#[derive(Clone, Debug)]
pub struct AcmOptions {
    /// Ports that take part.
    pub ports: usize,
    /// Time within which they start, evenly at random.
    pub within: Duration,
    /// Outstanding queries per port.
    pub depth: u16,
    /// Forms of the path queries, in turn.
    pub by: Vec<By>,
    /// Timeout and retries.
    pub patience: Patience,
}

/// See the [module](self).
pub struct Acm {
    workload: Arc<Workload>,
    options: AcmOptions,
    fleet: Fleet,
    members: Vec<Member>,
    start: Instant,
    bounds: Bounds,
    joined: Milestone,
    paths: Milestone,
}

#[derive(Clone, Copy)]
struct Member {
    state: State,
    due: Instant,
    /// Pairs not yet queried start here.
    next: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Down,
    Joining,
    Joined,
}

impl Acm {
    /// `workload` must have been drawn by port.
    pub fn new(
        workload: Arc<Workload>,
        part: Part,
        options: AcmOptions,
        start: Instant,
        bounds: Bounds,
        seed: u64,
    ) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut fleet = Fleet::new(part, options.ports, options.depth);
        let members: Vec<Member> = (0..fleet.len() as u32)
            .map(|member| {
                let due = start + options.within.mul_f64(random.random());
                fleet.wake_at(member, due);
                Member { state: State::Down, due, next: 0 }
            })
            .collect();
        let paths = members.len() * workload.each();
        let joined = Milestone::new("ports in ibacm's group", members.len());
        let paths = Milestone::new("paths resolved", paths);
        Self { workload, options, fleet, members, start, bounds, joined, paths }
    }
}

impl Scenario for Acm {
    fn poll_query(&mut self, now: Instant, _: usize) -> Option<Query> {
        if self.bounds.is_over(now) {
            return None;
        }
        let each = self.workload.each() as u32;
        while let Some(number) = self.fleet.poll(now) {
            let port = self.fleet.port(number);
            let member = &mut self.members[number as usize];
            let ask = match member.state {
                State::Down if member.due <= now => {
                    member.state = State::Joining;
                    Ask::Join(Group::Acm, None)
                }
                State::Joined if member.next < each => {
                    let by = self.options.by[member.next as usize % self.options.by.len()];
                    member.next += 1;
                    Ask::Path { pair: port * each + member.next - 1, by }
                }
                _ => continue,
            };
            let due = member.due;
            self.fleet.begin(number);
            return Some(Query { ask, port, due, patience: self.options.patience });
        }
        None
    }

    fn handle_outcome(&mut self, now: Instant, query: &Query, outcome: &Outcome<'_>) {
        let number = self.fleet.member(query.port);
        self.fleet.end(number);
        let took = now.saturating_duration_since(self.start);
        let member = &mut self.members[number as usize];
        // The next query was due as soon as the window had room for it.
        member.due = now;
        match (query.ask, outcome.is_settled()) {
            (Ask::Join(..), true) => {
                member.state = State::Joined;
                self.joined.at.record(took);
            }
            (Ask::Join(..), false) => {
                member.state = State::Down;
                member.due = now + JOIN_PAUSE;
                let due = member.due;
                self.fleet.wake_at(number, due);
            }
            _ => self.paths.record(took, outcome),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.fleet.poll_timeout()
    }

    fn is_over(&self, now: Instant) -> bool {
        self.bounds.is_over(now) || self.fleet.is_asleep()
    }

    fn capacity(&self) -> usize {
        self.fleet.capacity()
    }

    fn summary(&self) -> Summary {
        let milestones = vec![self.joined.clone(), self.paths.clone()];
        Summary { milestones, ..Summary::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::workload;
    use crate::scenario::tests::{MS, REFUSED, RESOLVED, due};
    use crate::workload::{Draw, Pattern};

    #[test]
    fn a_port_joins_and_then_asks_for_each_destination_once() {
        let start = Instant::now();
        let workload = Arc::new(workload(By::Acm, Draw::PerPort(2, Pattern::Ring)));
        let options = AcmOptions {
            ports: 1,
            within: MS,
            depth: 1,
            by: vec![By::Acm, By::AcmLid],
            patience: Patience::ACM,
        };
        let bounds = Bounds::new(start, None, None);
        let mut acm = Acm::new(workload, Part::ALL, options, start, bounds, 1);
        let mut now = start + MS;
        let join = due(&mut acm, now);
        assert_eq!((join.len(), join[0].ask), (1, Ask::Join(Group::Acm, None)));
        acm.handle_outcome(now, &join[0], &REFUSED);
        assert!(due(&mut acm, now + 999 * MS).is_empty());
        now += JOIN_PAUSE;
        let join = due(&mut acm, now);
        acm.handle_outcome(now, &join[0], &RESOLVED);
        for ask in [Ask::Path { pair: 0, by: By::Acm }, Ask::Path { pair: 1, by: By::AcmLid }] {
            let query = due(&mut acm, now);
            assert_eq!((query.len(), query[0].ask), (1, ask));
            acm.handle_outcome(now, &query[0], &RESOLVED);
        }
        assert!(due(&mut acm, now).is_empty() && acm.is_over(now), "it keeps what it knows");
        assert_eq!(acm.summary().milestones[1].at.len(), 2);
    }
}

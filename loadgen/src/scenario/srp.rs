//! Model of ports that run `srp_daemon`, each sending one query at a time. It subscribes to traps
//! 64 and 144 and queries ClassPortInfo. It then gets the list of targets: all ports with device
//! management, or all nodes if the SA cannot select by capability. For each of them it queries the
//! node and whether they share a P_Key. After an interval it searches again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fleet::Fleet;
use super::pace::Bounds;
use super::{Milestone, Outcome, Part, Patience, Query, Scenario, Summary};
use crate::ask::Ask;
use crate::ask::inventory::{finds_by_capability, lids};
use crate::ask::registration::{TRAP_GID_IN_SERVICE, TRAP_LOCAL_CHANGES};

/// The list to request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Listing {
    /// Ports with device management if the SA can select them, else all nodes.
    #[default]
    Auto,
    /// Ports with device management.
    Targets,
    /// All nodes.
    Nodes,
}

/// Settings of the model.
#[derive(Clone, Copy, Debug)]
pub struct SrpOptions {
    /// Ports that take part.
    pub ports: usize,
    /// Time within which they start, evenly at random.
    pub within: Duration,
    /// The list to request.
    pub listing: Listing,
    /// Searches per port.
    pub scans: u32,
    /// Time between two searches (`-R`).
    pub rescan: Duration,
    /// Timeout and retries.
    pub patience: Patience,
}

/// See the [module](self).
pub struct Srp {
    options: SrpOptions,
    fleet: Fleet,
    members: Vec<Member>,
    start: Instant,
    bounds: Bounds,
    scans: Milestone,
}

struct Member {
    due: Instant,
    scans_left: u32,
    /// Queries left in this search.
    program: VecDeque<Ask>,
}

impl Srp {
    /// Starts from `start` on, at random times determined by `seed`.
    pub fn new(part: Part, options: SrpOptions, start: Instant, bounds: Bounds, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut fleet = Fleet::new(part, options.ports, 1);
        let members: Vec<Member> = (0..fleet.len() as u32)
            .map(|member| {
                let due = start + options.within.mul_f64(random.random());
                fleet.wake_at(member, due);
                Member { due, scans_left: options.scans, program: VecDeque::new() }
            })
            .collect();
        let scans = Milestone::new("searches done", members.len() * options.scans as usize);
        Self { options, fleet, members, start, bounds, scans }
    }
}

impl Scenario for Srp {
    fn poll_query(&mut self, now: Instant, _: usize) -> Option<Query> {
        if self.bounds.is_over(now) {
            return None;
        }
        while let Some(number) = self.fleet.poll(now) {
            let member = &mut self.members[number as usize];
            if member.due > now {
                continue;
            }
            if member.program.is_empty() {
                if member.scans_left == 0 {
                    continue;
                }
                member.scans_left -= 1;
                member.program.extend([
                    Ask::Subscribe(TRAP_GID_IN_SERVICE),
                    Ask::Subscribe(TRAP_LOCAL_CHANGES),
                    Ask::ClassPortInfo,
                ]);
            }
            let Some(ask) = member.program.pop_front() else { continue };
            let due = member.due;
            self.fleet.begin(number);
            let port = self.fleet.port(number);
            return Some(Query { ask, port, due, patience: self.options.patience });
        }
        None
    }

    fn handle_outcome(&mut self, now: Instant, query: &Query, outcome: &Outcome<'_>) {
        let number = self.fleet.member(query.port);
        self.fleet.end(number);
        let member = &mut self.members[number as usize];
        member.due = now;
        match query.ask {
            Ask::ClassPortInfo => {
                let by_capability = match self.options.listing {
                    Listing::Auto => outcome.mad().is_some_and(finds_by_capability),
                    Listing::Targets => true,
                    Listing::Nodes => false,
                };
                member.program.push_back(if by_capability { Ask::Targets } else { Ask::Nodes });
            }
            Ask::Targets | Ask::Nodes => {
                let Outcome::Answered { message, .. } = *outcome else {
                    return self.done(now, number);
                };
                let is_full = query.ask == Ask::Nodes;
                let about = |lid: Lid| match is_full {
                    true => [Ask::PathTo(lid), Ask::Port(lid)],
                    false => [Ask::Node(lid), Ask::PathTo(lid)],
                };
                member.program.extend(lids(message).into_iter().flatten().flat_map(about));
            }
            _ => {}
        }
        if self.members[number as usize].program.is_empty() {
            self.done(now, number);
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
        Summary { milestones: vec![self.scans.clone()], ..Summary::default() }
    }
}

impl Srp {
    /// Ends a search.
    fn done(&mut self, now: Instant, number: u32) {
        self.scans.at.record(now.saturating_duration_since(self.start));
        let member = &mut self.members[number as usize];
        if member.scans_left > 0 {
            member.due = now + self.options.rescan;
            let due = member.due;
            self.fleet.wake_at(number, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use crate::scenario::tests::{MS, RESOLVED, due};
    use ib_mad::wire::MAD_LEN;
    use ib_mad::wire::attribute::ClassPortInfo;

    fn srp(scans: u32, start: Instant) -> Srp {
        let options = SrpOptions {
            ports: 1,
            within: MS,
            listing: Listing::Auto,
            scans,
            rescan: 60 * MS,
            patience: Patience::SRP,
        };
        Srp::new(Part::ALL, options, start, Bounds::new(start, None, None), 1)
    }

    /// Answers all queries until none is due; returns them.
    fn run(srp: &mut Srp, now: Instant, can_match: bool) -> Vec<Ask> {
        let mut info = [0; MAD_LEN];
        let capability = if can_match { 1 << 13 } else { 0 };
        ClassPortInfo::new(&mut info[56..128]).unwrap().set_capability_mask(capability);
        // Two records of eight bytes, of LIDs 4 and 9.
        let mut table = vec![0; 56 + 16];
        (table[45], table[57], table[65]) = (1, 4, 9);
        let mut asks = Vec::new();
        while let Some(query) = srp.poll_query(now, 0) {
            asks.push(query.ask);
            let message: &[u8] = match query.ask {
                Ask::ClassPortInfo => &info,
                ask if ask.is_table() => &table,
                _ => {
                    srp.handle_outcome(now, &query, &RESOLVED);
                    continue;
                }
            };
            let verdict = Verdict::Resolved;
            srp.handle_outcome(now, &query, &Outcome::Answered { verdict, message });
        }
        asks
    }

    #[test]
    fn targets_are_looked_for_as_the_sa_can() {
        let start = Instant::now();
        let head = [Ask::Subscribe(64), Ask::Subscribe(144), Ask::ClassPortInfo];
        let (four, nine) = (Lid(4), Lid(9));
        let asks = run(&mut srp(1, start), start + MS, true);
        let tail = [Ask::Node(four), Ask::PathTo(four), Ask::Node(nine), Ask::PathTo(nine)];
        assert_eq!(asks, [&head[..], &[Ask::Targets], &tail].concat());
        let asks = run(&mut srp(1, start), start + MS, false);
        let tail = [Ask::PathTo(four), Ask::Port(four), Ask::PathTo(nine), Ask::Port(nine)];
        assert_eq!(asks, [&head[..], &[Ask::Nodes], &tail].concat());
    }

    #[test]
    fn a_search_is_repeated_after_a_while() {
        let start = Instant::now();
        let mut srp = srp(2, start);
        let now = start + MS;
        assert_eq!(run(&mut srp, now, true).len(), 8);
        assert!(!srp.is_over(now) && due(&mut srp, now + 59 * MS).is_empty());
        assert_eq!(run(&mut srp, now + 60 * MS, true).len(), 8);
        assert!(srp.is_over(now + 60 * MS));
        assert_eq!(srp.summary().milestones[0].at.len(), 2);
    }
}

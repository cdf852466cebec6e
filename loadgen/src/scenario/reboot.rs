//! Reboot: ports come up within a short time and register again, as after a power cut or a change
//! of subnet manager. Each queries ClassPortInfo as `ib_sa` does; joins IPoIB's broadcast group,
//! then, with the parameters from that response, the other groups; subscribes as srp_daemon does;
//! registers services. After a while it removes all registrations.
//!
//! Failed requests are retried after 1 s, 2 s and so on up to 16 s, as IPoIB does.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fleet::Fleet;
use super::pace::Bounds;
use super::{Milestone, Outcome, Part, Patience, Query, Scenario, Summary};
use crate::ask::Ask;
use crate::ask::registration::{Group, Like, TRAP_GID_IN_SERVICE, TRAP_LOCAL_CHANGES};

/// Limit of services per port: the steps of one stage are bits.
pub const SERVICES_MAX: u16 = 48;
/// Time before IPoIB retries a join, doubled each time.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(16);

/// Settings of the model.
#[derive(Clone, Copy, Debug)]
pub struct RebootOptions {
    /// Ports that take part.
    pub ports: usize,
    /// Time within which they come up, evenly at random.
    pub within: Duration,
    /// Outstanding requests per port.
    pub window: u16,
    /// Services per port.
    pub services: u16,
    /// How long a port stays registered.
    pub stay: Duration,
    /// Whether it removes its registrations.
    pub leave: bool,
    /// Timeout and retries, except for joins and leaves.
    pub patience: Patience,
}

/// See the [module](self).
pub struct Reboot {
    options: RebootOptions,
    stages: Vec<Vec<Step>>,
    fleet: Fleet,
    members: Vec<Member>,
    start: Instant,
    bounds: Bounds,
    joined: Milestone,
    registered: Milestone,
    gone: Milestone,
}

/// The request of one step of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    ClassPortInfo,
    Join(Group),
    Leave(Group),
    Subscribe(u16),
    Unsubscribe(u16),
    SetService(u16),
    DeleteService(u16),
}

/// Stages, in order.
const BROADCAST: usize = 1;
const REGISTER: usize = 2;
const LEAVE: usize = 3;

#[derive(Clone, Copy)]
struct Member {
    stage: usize,
    /// Steps of the stage not started, or failed, as bits.
    pending: u64,
    /// Number of steps not done.
    undone: u64,
    /// When the pending steps became due.
    due: Instant,
    /// Parameters in the response for the broadcast group.
    like: Option<Like>,
    backoff: Duration,
}

impl Reboot {
    /// Ports come up from `start` on, at random times determined by `seed`.
    pub fn new(
        part: Part,
        options: RebootOptions,
        start: Instant,
        bounds: Bounds,
        seed: u64,
    ) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut fleet = Fleet::new(part, options.ports, options.window);
        let stages = stages(&options);
        let members: Vec<Member> = (0..fleet.len() as u32)
            .map(|member| {
                let due = start + options.within.mul_f64(random.random());
                fleet.wake_at(member, due);
                let all = all_of(&stages[0]);
                let (pending, undone) = (all, all);
                Member { stage: 0, pending, undone, due, like: None, backoff: BACKOFF }
            })
            .collect();
        let count = members.len();
        Self {
            options,
            stages,
            fleet,
            members,
            start,
            bounds,
            joined: Milestone::new("ports in the broadcast group", count),
            registered: Milestone::new("ports registered", count),
            gone: Milestone::new("ports gone", if options.leave { count } else { 0 }),
        }
    }

    fn ask(&self, member: &Member, step: Step) -> (Ask, Patience) {
        let patience = self.options.patience;
        match step {
            Step::ClassPortInfo => (Ask::ClassPortInfo, patience),
            Step::Join(group) => (Ask::Join(group, member.like), Patience::JOIN),
            Step::Leave(group) => (Ask::Leave(group), Patience::JOIN),
            Step::Subscribe(trap) => (Ask::Subscribe(trap), patience),
            Step::Unsubscribe(trap) => (Ask::Unsubscribe(trap), patience),
            Step::SetService(number) => (Ask::SetService(number), patience),
            Step::DeleteService(number) => (Ask::DeleteService(number), patience),
        }
    }

    /// Advances to the next stage with steps.
    fn advance(&mut self, now: Instant, number: u32) {
        let took = now.saturating_duration_since(self.start);
        let member = &mut self.members[number as usize];
        match member.stage {
            BROADCAST => self.joined.at.record(took),
            REGISTER => self.registered.at.record(took),
            LEAVE => self.gone.at.record(took),
            _ => {}
        }
        member.stage += 1;
        let Some(stage) = self.stages.get(member.stage) else { return };
        member.due = if member.stage == LEAVE { now + self.options.stay } else { now };
        member.backoff = BACKOFF;
        (member.pending, member.undone) = (all_of(stage), all_of(stage));
        let due = member.due;
        if member.stage == LEAVE {
            self.fleet.wake_at(number, due);
        } else {
            self.fleet.wake(number);
        }
    }
}

impl Scenario for Reboot {
    fn poll_query(&mut self, now: Instant, _: usize) -> Option<Query> {
        if self.bounds.is_over(now) {
            return None;
        }
        while let Some(number) = self.fleet.poll(now) {
            let member = &mut self.members[number as usize];
            if member.pending == 0 || member.due > now {
                continue;
            }
            let step = member.pending.trailing_zeros();
            member.pending &= member.pending - 1;
            let member = *member;
            let (ask, patience) = self.ask(&member, self.stages[member.stage][step as usize]);
            self.fleet.begin(number);
            let port = self.fleet.port(number);
            return Some(Query { ask, port, due: member.due, patience });
        }
        None
    }

    fn handle_outcome(&mut self, now: Instant, query: &Query, outcome: &Outcome<'_>) {
        let number = self.fleet.member(query.port);
        self.fleet.end(number);
        let member = &mut self.members[number as usize];
        let Some(stage) = self.stages.get(member.stage) else { return };
        let is_asked = |step: &Step| is_step(step, &query.ask);
        let Some(step) = stage.iter().position(is_asked) else { return };
        if outcome.is_settled() {
            if let (Ask::Join(Group::Broadcast, _), Some(mad)) = (query.ask, outcome.mad()) {
                member.like = Like::of(mad);
            }
            member.undone &= !(1 << step);
            if member.undone == 0 {
                self.advance(now, number);
            }
        } else {
            member.pending |= 1 << step;
            member.due = now + member.backoff;
            member.backoff = (member.backoff * 2).min(BACKOFF_MAX);
            let due = member.due;
            self.fleet.wake_at(number, due);
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
        let milestones = [&self.joined, &self.registered, &self.gone];
        let milestones = milestones.into_iter().filter(|milestone| milestone.expected > 0);
        Summary { milestones: milestones.cloned().collect(), ..Summary::default() }
    }
}

fn stages(options: &RebootOptions) -> Vec<Vec<Step>> {
    let groups = [Group::AllHosts, Group::AllNodes, Group::SolicitedNode];
    let traps = [TRAP_GID_IN_SERVICE, TRAP_LOCAL_CHANGES];
    let services = 0..options.services.min(SERVICES_MAX);
    let mut register: Vec<Step> = groups.map(Step::Join).into();
    register.extend(traps.map(Step::Subscribe));
    register.extend(services.clone().map(Step::SetService));
    let mut stages = vec![vec![Step::ClassPortInfo], vec![Step::Join(Group::Broadcast)], register];
    if options.leave {
        let mut leave: Vec<Step> = services.map(Step::DeleteService).collect();
        leave.extend(traps.map(Step::Unsubscribe));
        leave.extend(groups.map(Step::Leave));
        leave.push(Step::Leave(Group::Broadcast));
        stages.push(leave);
    }
    stages
}

/// All steps of a stage, as bits.
fn all_of(stage: &[Step]) -> u64 {
    (1 << stage.len()) - 1
}

fn is_step(step: &Step, ask: &Ask) -> bool {
    match (*step, *ask) {
        (Step::ClassPortInfo, Ask::ClassPortInfo) => true,
        (Step::Join(group), Ask::Join(asked, _)) => group == asked,
        (Step::Leave(group), Ask::Leave(asked)) => group == asked,
        (Step::Subscribe(trap), Ask::Subscribe(asked)) => trap == asked,
        (Step::Unsubscribe(trap), Ask::Unsubscribe(asked)) => trap == asked,
        (Step::SetService(number), Ask::SetService(asked)) => number == asked,
        (Step::DeleteService(number), Ask::DeleteService(asked)) => number == asked,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use crate::scenario::tests::{MS, REFUSED, RESOLVED, due};
    use ib_mad::types::{Mtu, Rate};
    use ib_mad::wire::MAD_LEN;
    use ib_mad::wire::record::McMemberRecord;

    fn reboot(leave: bool, start: Instant) -> Reboot {
        let options = RebootOptions {
            ports: 1,
            within: MS,
            window: 16,
            services: 2,
            stay: 50 * MS,
            leave,
            patience: Patience::RDMA_CM,
        };
        Reboot::new(Part::ALL, options, start, Bounds::new(start, None, None), 1)
    }

    fn broadcast_answer() -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        McMemberRecord::new(&mut mad[56..])
            .unwrap()
            .set_qkey(0xB1B)
            .set_mtu(Mtu::B2048)
            .set_rate(Rate::Gbps10);
        mad
    }

    #[test]
    fn a_port_registers_in_order_and_takes_it_back() {
        let start = Instant::now();
        let mut reboot = reboot(true, start);
        let mut now = start + MS;
        let queries = due(&mut reboot, now);
        assert_eq!(queries.iter().map(|q| q.ask).collect::<Vec<_>>(), [Ask::ClassPortInfo]);
        reboot.handle_outcome(now, &queries[0], &RESOLVED);
        let queries = due(&mut reboot, now);
        assert_eq!(queries[0].ask, Ask::Join(Group::Broadcast, None));
        assert_eq!((queries.len(), queries[0].patience), (1, Patience::JOIN));

        let answer = broadcast_answer();
        let like = Like::of(&answer);
        assert!(like.is_some());
        let outcome = Outcome::Answered { verdict: Verdict::Resolved, message: &answer };
        reboot.handle_outcome(now, &queries[0], &outcome);
        let queries = due(&mut reboot, now);
        let asks: Vec<_> = queries.iter().map(|query| query.ask).collect();
        assert_eq!(asks.len(), 7, "three groups, two traps, two services at once");
        assert_eq!(asks[2], Ask::Join(Group::SolicitedNode, like));
        assert!(asks.contains(&Ask::Subscribe(TRAP_LOCAL_CHANGES)));
        now += 10 * MS;
        queries.iter().for_each(|query| reboot.handle_outcome(now, query, &RESOLVED));

        assert!(due(&mut reboot, now + 49 * MS).is_empty() && !reboot.is_over(now));
        now += 50 * MS;
        let queries = due(&mut reboot, now);
        let asks: Vec<_> = queries.iter().map(|query| query.ask).collect();
        assert_eq!(asks.len(), 8);
        assert!(
            asks.contains(&Ask::Leave(Group::Broadcast)) && asks.contains(&Ask::DeleteService(1))
        );
        assert!(queries.iter().all(|query| query.due == now));
        queries.iter().for_each(|query| reboot.handle_outcome(now, query, &RESOLVED));
        assert!(reboot.poll_query(now, 0).is_none() && reboot.is_over(now));
        let reached: Vec<_> = reboot
            .summary()
            .milestones
            .iter()
            .map(|milestone| milestone.reached(100.0).unwrap().as_millis())
            .collect();
        assert_eq!(reached, [1, 11, 61]);
    }

    #[test]
    fn what_fails_is_tried_again_later_and_later() {
        let start = Instant::now();
        let mut reboot = reboot(false, start);
        let mut now = start + MS;
        for wait in [1, 2, 4, 8, 16, 16] {
            let query = due(&mut reboot, now);
            assert_eq!(query.len(), 1);
            reboot.handle_outcome(now, &query[0], &REFUSED);
            let due_again = now + Duration::from_secs(wait);
            assert!(due(&mut reboot, due_again - MS).is_empty());
            assert_eq!(reboot.poll_timeout(), Some(due_again));
            now = due_again;
        }
        assert_eq!(due(&mut reboot, now).len(), 1);
    }
}

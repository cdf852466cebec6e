//! Ports that send queries independently, each with its own window: selects which may send now.
//!
//! A member is a port of this thread's part, by its index in the list. It is polled after it has
//! been woken, by the clock or an event, as long as its window is open and it has something to
//! send.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use super::Part;

/// See the [module](self).
#[derive(Debug)]
pub struct Fleet {
    part: Part,
    members: Vec<Member>,
    window: u16,
    ready: VecDeque<u32>,
    alarms: BinaryHeap<Reverse<(Instant, u32)>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    outstanding: u16,
    is_ready: bool,
}

impl Fleet {
    /// This thread's part of the first `ports` ports; each may have `window` queries outstanding.
    /// All sleep.
    pub fn new(part: Part, ports: usize, window: u16) -> Self {
        let members = vec![Member::default(); part.ports(ports).count()];
        let count = members.len();
        let alarms = BinaryHeap::with_capacity(count);
        Self { part, members, window, ready: VecDeque::with_capacity(count), alarms }
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether this part has no ports.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Limit of outstanding queries of all members.
    pub fn capacity(&self) -> usize {
        self.members.len() * usize::from(self.window)
    }

    /// The port of a member.
    pub fn port(&self, member: u32) -> u32 {
        member * self.part.of as u32 + self.part.number as u32
    }

    /// The member of a port.
    pub fn member(&self, port: u32) -> u32 {
        port / self.part.of as u32
    }

    /// Wakes a member: it may have something to send.
    pub fn wake(&mut self, member: u32) {
        let state = &mut self.members[member as usize];
        if !state.is_ready && state.outstanding < self.window {
            state.is_ready = true;
            self.ready.push_back(member);
        }
    }

    /// Wakes a member at the given time.
    pub fn wake_at(&mut self, member: u32, when: Instant) {
        self.alarms.push(Reverse((when, member)));
    }

    /// A member whose window is open. It sleeps from now on, unless it starts a query.
    pub fn poll(&mut self, now: Instant) -> Option<u32> {
        while let Some(&Reverse((when, member))) = self.alarms.peek()
            && when <= now
        {
            self.alarms.pop();
            self.wake(member);
        }
        let member = self.ready.pop_front()?;
        self.members[member as usize].is_ready = false;
        Some(member)
    }

    /// Starts a query of a member, which goes to the end of the queue.
    pub fn begin(&mut self, member: u32) {
        self.members[member as usize].outstanding += 1;
        self.wake(member);
    }

    /// Ends a query, which wakes its member.
    pub fn end(&mut self, member: u32) {
        let state = &mut self.members[member as usize];
        state.outstanding = state.outstanding.saturating_sub(1);
        self.wake(member);
    }

    /// Outstanding queries of a member.
    pub fn outstanding(&self, member: u32) -> u16 {
        self.members[member as usize].outstanding
    }

    /// When [`poll`](Self::poll) may next return a member, unless one is woken before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.peek().map(|&Reverse((when, _))| when)
    }

    /// Whether no member is awake or will be woken by the clock.
    pub fn is_asleep(&self) -> bool {
        self.ready.is_empty() && self.alarms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::tests::MS;

    #[test]
    fn members_take_turns_within_their_windows() {
        let now = Instant::now();
        let mut fleet = Fleet::new(Part { number: 1, of: 2 }, 5, 2);
        assert_eq!((fleet.len(), fleet.capacity()), (2, 4));
        assert_eq!([fleet.port(0), fleet.port(1)], [1, 3]);
        assert_eq!(fleet.member(3), 1);
        (0..2).for_each(|member| fleet.wake(member));
        let mut turns = Vec::new();
        while let Some(member) = fleet.poll(now) {
            fleet.begin(member);
            turns.push(member);
        }
        assert_eq!(turns, [0, 1, 0, 1]);
        fleet.end(1);
        assert_eq!((fleet.poll(now), fleet.poll(now)), (Some(1), None));
        assert_eq!(fleet.outstanding(1), 1);
    }

    #[test]
    fn members_sleep_until_they_are_woken() {
        let now = Instant::now();
        let mut fleet = Fleet::new(Part::ALL, 3, 1);
        assert!(fleet.is_asleep());
        fleet.wake_at(2, now + 2 * MS);
        fleet.wake_at(0, now + MS);
        assert_eq!((fleet.poll(now), fleet.poll_timeout()), (None, Some(now + MS)));
        assert_eq!(fleet.poll(now + MS), Some(0));
        assert_eq!(fleet.poll(now + 2 * MS), Some(2));
        assert!(fleet.is_asleep());
        fleet.wake(1);
        fleet.wake(1);
        assert_eq!((fleet.poll(now), fleet.poll(now)), (Some(1), None), "awake only once");
    }
}

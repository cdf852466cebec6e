//! A program that makes partitions: an operator's, beside those of operators' files. It gives one
//! order at a time to the manager that publishes, and gives it again until it is granted.
//!
//! No manager asks it to order again, so that what was granted must last.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, PKey};
use ibsm::runtime::registry::{Given, OrderFailure};
use sa_proto::snapshot::RegistryPlane;
use sm_core::registry::{Attributes, PartitionAction, PartitionOrder, WantedMember};

use crate::client::Value;
use crate::random::Random;

/// Partitions that it makes.
const PARTITIONS: usize = 3;
/// P_Key of the first.
const FIRST: u16 = 0x100;
/// Members of a partition, at most.
const MEMBERS_MAX: usize = 4;
/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long after an order was given or answered last it is in force.
const IN_FORCE: Duration = Duration::from_secs(6);
/// Time between two orders.
pub const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// An order without an answer.
#[derive(Debug)]
struct Open {
    slot: usize,
    value: Value,
    /// The manager that has it, and when that got it.
    manager: usize,
    since: Instant,
    given: Given,
    before: Vec<Value>,
}

/// What the program knows of a partition.
#[derive(Clone, Debug)]
struct Known {
    /// What it may be like, by the answers so far; one if it is certain.
    may_be: Vec<Value>,
    wanted: Value,
    /// The last value that was wanted, and when an order was given or answered last.
    last: u32,
    since: Option<Instant>,
}

impl Default for Known {
    fn default() -> Self {
        Self { may_be: vec![None], wanted: None, last: 0, since: None }
    }
}

/// The program.
#[derive(Debug)]
pub struct Program {
    known: Vec<Known>,
    open: Option<Open>,
    next_value: u32,
    random: Random,
    /// Ports that become members.
    ports: Vec<Guid>,
    /// Orders granted, and those that were not.
    pub totals: [u64; 2],
}

impl Program {
    /// A program that has made no partition.
    pub fn new(seed: u64, ports: Vec<Guid>) -> Self {
        Self {
            known: vec![Known::default(); PARTITIONS],
            open: None,
            next_value: 0,
            random: Random::new(seed, 3),
            ports,
            totals: [0; 2],
        }
    }

    /// Time until its next order.
    pub fn pause(&mut self) -> Duration {
        self.random.between(PAUSE.0, PAUSE.1)
    }

    /// Whether all its partitions are as it wants them, and none is open.
    pub fn is_settled(&self) -> bool {
        self.open.is_none() && self.known.iter().all(|known| known.may_be == [known.wanted])
    }

    /// The next order and its number, if it has one to give; `invents`: also one that it makes up.
    pub fn next_order(&mut self, invents: bool) -> Option<(usize, PartitionOrder)> {
        if self.open.is_some() {
            return None;
        }
        let unsettled = self.known.iter().position(|known| known.may_be != [known.wanted]);
        let slot = match unsettled {
            Some(slot) => slot,
            None if !invents => return None,
            None => {
                let slot = self.random.below(PARTITIONS);
                self.next_value += 1;
                let is_none = self.known[slot].wanted.is_some() && self.random.one_in(3);
                self.known[slot].wanted = (!is_none).then_some(self.next_value);
                slot
            }
        };
        let action = match self.known[slot].wanted {
            None => PartitionAction::Delete,
            Some(value) => PartitionAction::Replace {
                members: self.members(value).map(member).collect(),
                attributes: Attributes { name: Some(format!("v{value}")), ..Attributes::default() },
            },
        };
        Some((slot, PartitionOrder { pkey: pkey(slot), action }))
    }

    /// The ports that a partition of this value has as members.
    fn members(&self, value: u32) -> impl Iterator<Item = Guid> {
        let count = 1 + value as usize % MEMBERS_MAX;
        let ports = self.ports.iter().cycle().skip(value as usize % self.ports.len().max(1));
        ports.copied().take(count.min(self.ports.len()))
    }

    /// A manager has taken the order, or not.
    pub fn handle_given(
        &mut self,
        now: Instant,
        slot: usize,
        manager: usize,
        given: Result<Given, OrderFailure>,
    ) {
        let Ok(given) = given else {
            self.totals[1] += 1;
            return;
        };
        let known = &mut self.known[slot];
        known.since = Some(now);
        known.last = known.wanted.unwrap_or(known.last);
        let (value, before) = (known.wanted, known.may_be.clone());
        if !known.may_be.contains(&value) {
            known.may_be.push(value);
        }
        self.open = Some(Open { slot, value, manager, since: now, given, before });
    }

    /// The manager that has its order.
    pub fn asked(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.manager)
    }

    /// Looks whether its order has an answer; returns what to note in the trace.
    pub fn poll(&mut self, now: Instant) -> Option<String> {
        let open = self.open.as_mut()?;
        let is_over = now >= open.since + PATIENCE;
        let unknown = is_over.then_some(Err(OrderFailure::Unknown));
        let answer = open.given.poll().or(unknown)?;
        let Open { slot, value, before, .. } = self.open.take()?;
        let known = &mut self.known[slot];
        known.since = Some(now);
        match answer {
            Ok(_) => known.may_be = vec![value],
            Err(OrderFailure::Unknown) => {}
            // It has changed nothing.
            Err(_) => known.may_be = before,
        }
        self.totals[usize::from(answer.is_err())] += 1;
        Some(format!("order {value:?} of partition {slot}: {answer:?}"))
    }

    /// A port for which to ask for a path from `port` in a partition that both are in, or were, or
    /// else for `other`.
    pub fn member_beside(&mut self, port: Guid, other: Guid) -> (Guid, PKey) {
        let slot = self.random.below(PARTITIONS);
        let members: Vec<Guid> = self.members(self.known[slot].last).collect();
        let beside = members.contains(&port).then(|| members[self.random.below(members.len())]);
        (beside.unwrap_or(other), PKey(pkey(slot).0 | 0x8000))
    }

    /// Whether two ports are full members of a partition, if no order about it was given for some
    /// time; `asked`: when that was asked.
    pub fn joins(&self, key: PKey, ports: [Guid; 2], asked: Instant) -> Option<bool> {
        let known = self.known.get(usize::from((key.0 & 0x7FFF).wrapping_sub(FIRST)))?;
        let is_in_force = known.since.is_none_or(|since| asked >= since + IN_FORCE);
        let [value] = known.may_be[..] else { return None };
        let members = value.into_iter().flat_map(|value| self.members(value));
        let members: BTreeSet<Guid> = members.collect();
        is_in_force.then(|| ports.iter().all(|port| members.contains(port)))
    }

    /// Compares what was granted with what is registered.
    pub fn check(&self, plane: &RegistryPlane) -> Result<(), String> {
        for (slot, known) in self.known.iter().enumerate() {
            let found = self.value_in(plane, slot)?;
            if !known.may_be.contains(&found) {
                let may_be = &known.may_be;
                return Err(format!(
                    "partition {slot} is {found:?}, but answers to orders permit {may_be:?}"
                ));
            }
        }
        Ok(())
    }

    /// What was granted may be lost: what is registered counts.
    pub fn accept(&mut self, now: Instant, plane: &RegistryPlane) {
        for slot in 0..PARTITIONS {
            if let Ok(found) = self.value_in(plane, slot)
                && !self.known[slot].may_be.contains(&found)
            {
                self.known[slot].may_be.push(found);
                self.known[slot].since = Some(now);
            }
        }
    }

    fn value_in(&self, plane: &RegistryPlane, slot: usize) -> Result<Value, String> {
        let members: BTreeSet<Guid> = plane
            .partition_members
            .iter()
            .filter(|row| row.rid.pkey == pkey(slot))
            .map(|row| row.rid.guid)
            .collect();
        let Some(partition) = plane.api_partitions.find(pkey(slot)) else {
            return match members.is_empty() {
                true => Ok(None),
                false => Err(format!("partition {slot} has members, and is not there")),
            };
        };
        let value = partition.name.strip_prefix('v').and_then(|text| text.parse().ok());
        let value = value.ok_or_else(|| format!("partition {slot} is named {}", partition.name))?;
        if members != self.members(value).collect() {
            return Err(format!("partition {slot} has other members than were ordered as {value}"));
        }
        Ok(Some(value))
    }
}

fn pkey(slot: usize) -> PKey {
    PKey(FIRST + slot as u16)
}

fn member(guid: Guid) -> WantedMember {
    WantedMember { guid, full: true, limited: false, first: false, host: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_joined_once_an_order_has_been_in_force_for_a_while() {
        let ports: Vec<Guid> = (1..=8).map(Guid).collect();
        let (now, mut program) = (Instant::now(), Program::new(1, ports.clone()));
        let key = PKey(FIRST | 0x8000);
        let joins =
            |program: &Program, after| program.joins(key, [ports[1], ports[2]], now + after);
        assert_eq!(joins(&program, Duration::ZERO), Some(false), "no order was given");
        let known = Known { may_be: vec![Some(1)], wanted: Some(1), last: 1, since: Some(now) };
        program.known[0] = known;
        assert_eq!(joins(&program, IN_FORCE - Duration::from_millis(1)), None);
        assert_eq!(joins(&program, IN_FORCE), Some(true));
        assert_eq!(program.joins(key, [ports[0], ports[1]], now + IN_FORCE), Some(false));
        assert_eq!(program.joins(PKey(0xFFFF), [ports[1], ports[2]], now + IN_FORCE), None);
        program.known[0].may_be.push(None);
        assert_eq!(joins(&program, IN_FORCE), None, "an order has no answer");
    }
}

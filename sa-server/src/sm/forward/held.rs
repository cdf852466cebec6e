//! Outcomes held until this responder's tables contain the write.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;

use sa_proto::snapshot::Version;

use super::Answer;

/// Outcomes in the order of the versions that they wait for.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Ordered by epoch, then sequence number. Nearly all outcomes arrive in this order.
    waiting: VecDeque<(Point, Answer)>,
    /// State of the tables.
    tables: Point,
}

/// A state of the registry and the fabric. Sequence numbers and generations grow within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) epoch: u64,
    sequence: u64,
    /// 0 if the state of the fabric does not matter.
    pub(super) fabric_generation: u64,
}

impl Point {
    /// A state of the registry, with any fabric.
    pub(super) fn new(epoch: u64, sequence: u64) -> Self {
        Self { epoch, sequence, fabric_generation: 0 }
    }

    /// The sequence number of the registry.
    pub(super) fn sequence(self) -> u64 {
        self.sequence
    }

    /// The same state of the registry, with any fabric.
    pub(super) fn of_registry(self) -> Self {
        Self { fabric_generation: 0, ..self }
    }

    /// The same state of the registry, with a generation of the fabric.
    pub(super) fn with_fabric(self, fabric_generation: u64) -> Self {
        Self { fabric_generation, ..self }
    }

    /// Whether tables at this point contain the changes of `other`. Those of another session do
    /// not show that: it may have begun without a write that the previous one decided last.
    pub(super) fn contains(self, other: Self) -> bool {
        self.epoch == other.epoch
            && self.sequence >= other.sequence
            && self.fabric_generation >= other.fabric_generation
    }

    /// Whether tables at this point belong to a later session than `other`.
    pub(super) fn replaces(self, other: Self) -> bool {
        self.epoch > other.epoch
    }
}

impl From<Version> for Point {
    fn from(version: Version) -> Self {
        let Version { session, fabric_generation, registry_sequence } = version;
        Self { epoch: session.epoch, sequence: registry_sequence, fabric_generation }
    }
}

impl Held {
    /// Whether the tables belong to a later session than `point`: they will not reach it.
    pub(super) fn replaces(&self, point: Point) -> bool {
        self.tables.replaces(point)
    }

    /// Holds an outcome until the tables reach `point`; returns it if they have. One of a session
    /// that was replaced is discarded.
    pub(super) fn push(&mut self, point: Point, answer: Answer) -> Option<Answer> {
        if self.tables.contains(point) {
            return Some(answer);
        }
        if self.replaces(point) {
            return None;
        }
        match self.waiting.back() {
            Some((last, _)) if *last > point => {
                let at = self.waiting.partition_point(|(other, _)| *other <= point);
                self.waiting.insert(at, (point, answer));
            }
            _ => self.waiting.push_back((point, answer)),
        }
        None
    }

    /// The tables have reached `point`. Returns how many outcomes of sessions that were replaced
    /// are discarded: their clients repeat the requests.
    pub(super) fn advance(&mut self, point: Point) -> usize {
        let before = self.waiting.len();
        if point.epoch > self.tables.epoch {
            self.waiting.retain(|(waiting, _)| waiting.epoch >= point.epoch);
        }
        self.tables = point;
        before - self.waiting.len()
    }

    /// Takes the next outcome that the tables contain, and the point at which they do.
    pub(super) fn pop(&mut self) -> Option<(Point, Answer)> {
        let (first, _) = self.waiting.front()?;
        if !self.tables.contains(*first) {
            return None;
        }
        self.waiting.pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Discards all outcomes.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sm::forward::Verdict;

    fn answer(id: u64) -> Answer {
        Answer { id, verdict: Verdict::Requery }
    }

    fn popped(held: &mut Held) -> Vec<u64> {
        std::iter::from_fn(|| held.pop()).map(|(_, answer)| answer.id).collect()
    }

    #[test]
    fn an_outcome_waits_for_its_sequence_number() {
        let mut held = Held::default();
        held.advance(Point::new(1, 10));
        assert!(held.push(Point::new(1, 10), answer(1)).is_some());
        for (sequence, id) in [(13, 3), (11, 1), (12, 2)] {
            assert!(held.push(Point::new(1, sequence), answer(id)).is_none());
        }
        assert_eq!(popped(&mut held), [0u64; 0]);
        held.advance(Point::new(1, 12));
        assert_eq!(popped(&mut held), [1, 2]);
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn an_outcome_of_a_new_session_waits_for_that_session() {
        let mut held = Held::default();
        held.advance(Point::new(1, 10));
        assert!(held.push(Point::new(2, 10), answer(1)).is_none());
        held.advance(Point::new(2, 10));
        assert_eq!(popped(&mut held), [1]);
    }

    /// Regression: a client got an answer to a write that the master had not passed on when another
    /// took over: the greater sequence number of the new session was accepted for it.
    #[test]
    fn an_outcome_of_a_replaced_session_is_discarded() {
        let mut held = Held::default();
        held.advance(Point::new(1, 10));
        assert!(held.push(Point::new(1, 12), answer(1)).is_none());
        assert!(held.push(Point::new(2, 3), answer(2)).is_none());
        assert_eq!(held.advance(Point::new(2, 20)), 1);
        assert_eq!(popped(&mut held), [2]);
        assert!(held.push(Point::new(1, 9), answer(3)).is_none());
        assert_eq!(held.len(), 0);
    }
}

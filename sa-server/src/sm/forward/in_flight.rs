//! Writes sent to the SM that have no outcome yet, and whether another message may be sent now.
//!
//! The SM commits all waiting writes at once, and a message that arrives during a commit waits for
//! its end. So at most two messages are in flight: one being committed, one waiting. Writes that
//! arrive meanwhile form one large message instead of many small ones, without losing time.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Request, Submission};

/// Writes without an outcome; further ones stay in the queue of submissions.
pub(super) const WRITES_MAX: usize = 16_384;
/// Messages of which no write has an outcome yet.
const MESSAGES_MAX: usize = 2;
/// How long a message without an outcome delays the next one. The SM never answers some writes.
const STALL: Duration = Duration::from_millis(50);

/// A write that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    /// Id of the submission.
    pub(super) id: u64,
    /// Further submissions with the same outcome: any number for a barrier, none for a write.
    pub(super) others: Vec<u64>,
    /// The request; `None` is a barrier.
    pub(super) request: Option<Request>,
    /// When its client asked.
    pub(super) asked: Instant,
    /// When it was sent first.
    pub(super) since: Instant,
}

/// Writes without an outcome, numbered in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// The first has the number `first`; `None` is a write that has an outcome.
    writes: VecDeque<Option<Sent>>,
    first: u64,
    /// Writes without an outcome.
    len: usize,
    /// Messages without an outcome: the numbers of their writes, and when they were sent.
    messages: VecDeque<(Range<u64>, Instant)>,
    /// Number of the first write that is in no message yet.
    unsent: u64,
}

impl InFlight {
    /// Writes without an outcome.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether another message may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.len < WRITES_MAX && self.messages.len() < MESSAGES_MAX
    }

    /// Adds a write that is about to be sent; returns its number.
    pub(super) fn note(&mut self, now: Instant, submission: Submission) -> u64 {
        let Submission { id, at: asked, request } = submission;
        self.writes.push_back(Some(Sent { id, others: Vec::new(), request, asked, since: now }));
        self.len += 1;
        self.next() - 1
    }

    /// All writes noted since the last call are sent as one message.
    pub(super) fn note_message(&mut self, now: Instant) {
        let next = self.next();
        self.messages.push_back((self.unsent..next, now));
        self.unsent = next;
    }

    /// The stream of all messages so far has ended; their writes belong to the next message.
    pub(super) fn forget_messages(&mut self) {
        self.messages.clear();
        self.unsent = self.first;
    }

    /// Forgets all writes; their numbers are not used again.
    pub(super) fn clear(&mut self) {
        self.first = self.next();
        (self.unsent, self.len) = (self.first, 0);
        self.writes.clear();
        self.messages.clear();
    }

    /// When [`handle_stall`](Self::handle_stall) is due.
    pub(super) fn poll_stall(&self) -> Option<Instant> {
        self.messages.front().map(|(_, sent)| *sent + STALL)
    }

    /// Messages without an outcome for [`STALL`] delay the next one no longer. Spurious calls are
    /// allowed.
    pub(super) fn handle_stall(&mut self, now: Instant) {
        while self.poll_stall().is_some_and(|due| due <= now) {
            self.messages.pop_front();
        }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Sent> {
        let index = self.index(number)?;
        self.writes.get_mut(index)?.as_mut()
    }

    /// Removes a write that has an outcome. Its message and all before it count as answered.
    pub(super) fn answered(&mut self, number: u64) -> Option<Sent> {
        let index = self.index(number)?;
        let sent = self.writes.get_mut(index)?.take()?;
        self.len -= 1;
        self.trim();
        if let Some(of) = self.messages.iter().position(|(numbers, _)| numbers.contains(&number)) {
            self.messages.drain(..=of);
        }
        Some(sent)
    }

    /// Removes writes whose clients asked before `before`; returns their number.
    pub(super) fn remove_older(&mut self, before: Instant) -> usize {
        let is_old = |sent: &mut Sent| sent.asked < before;
        let old = self.writes.iter_mut().filter_map(|write| write.take_if(is_old)).count();
        self.len -= old;
        self.trim();
        old
    }

    /// Numbers of barriers without an outcome.
    pub(super) fn barriers(&self) -> Vec<u64> {
        let barriers = self.iter().filter(|(_, sent)| sent.request.is_none());
        barriers.map(|(number, _)| number).collect()
    }

    /// Writes without an outcome and their numbers, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Sent)> {
        let numbered = (self.first..).zip(&self.writes);
        numbered.filter_map(|(number, sent)| Some((number, sent.as_ref()?)))
    }

    fn next(&self) -> u64 {
        self.first + self.writes.len() as u64
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    fn trim(&mut self) {
        while let Some(None) = self.writes.front() {
            self.writes.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(sent: &mut InFlight, now: Instant, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            sent.note(now, Submission { id, at: now, request: None });
        }
        sent.note_message(now);
    }

    fn waiting(sent: &InFlight) -> Vec<u64> {
        sent.iter().map(|(_, sent)| sent.id).collect()
    }

    #[test]
    fn writes_are_found_by_number_whatever_the_order_of_answers() {
        let now = Instant::now();
        let mut sent = InFlight::default();
        send(&mut sent, now, 10..15);
        assert_eq!(sent.answered(3).unwrap().id, 13);
        assert!(sent.answered(3).is_none(), "once");
        assert_eq!(sent.answered(0).unwrap().id, 10);
        assert_eq!((waiting(&sent), sent.len()), (vec![11, 12, 14], 3));
        assert!(sent.answered(0).is_none() && sent.answered(99).is_none());
        send(&mut sent, now, [15]);
        assert_eq!(sent.get_mut(5).unwrap().id, 15);
    }

    #[test]
    fn two_messages_are_under_way_until_one_has_an_answer() {
        let now = Instant::now();
        let mut sent = InFlight::default();
        assert!(sent.may_send());
        send(&mut sent, now, 0..3);
        assert!(sent.may_send());
        send(&mut sent, now, 3..5);
        assert!(!sent.may_send());
        sent.answered(1);
        assert!(sent.may_send(), "the first is being answered");
        send(&mut sent, now, 5..6);
        assert!(!sent.may_send());
        sent.answered(0);
        assert!(!sent.may_send(), "that was of the first, too");
        sent.answered(5);
        send(&mut sent, now, 6..7);
        assert!(sent.may_send(), "those before the third are answered, if at all");
    }

    #[test]
    fn what_is_sent_again_is_one_message() {
        let now = Instant::now();
        let mut sent = InFlight::default();
        send(&mut sent, now, 0..3);
        send(&mut sent, now, 3..5);
        sent.forget_messages();
        sent.note_message(now);
        send(&mut sent, now, 5..6);
        assert!(!sent.may_send());
        sent.answered(4);
        assert!(sent.may_send());
    }

    #[test]
    fn silence_holds_nothing_back_for_long() {
        let now = Instant::now();
        let mut sent = InFlight::default();
        send(&mut sent, now, [0]);
        send(&mut sent, now + STALL / 2, [1]);
        sent.handle_stall(now);
        assert!(!sent.may_send());
        sent.handle_stall(sent.poll_stall().unwrap());
        assert!(sent.may_send());
        assert_eq!(waiting(&sent), [0, 1], "their answers may still come");
    }

    #[test]
    fn what_waited_too_long_is_taken_out() {
        let now = Instant::now();
        let mut sent = InFlight::default();
        send(&mut sent, now, 0..2);
        send(&mut sent, now + STALL, 2..3);
        send(&mut sent, now, 3..4);
        sent.answered(0);
        assert_eq!(sent.remove_older(now + STALL), 2);
        assert_eq!(sent.remove_older(now + STALL), 0);
        assert_eq!((waiting(&sent), sent.len()), (vec![2], 1));
    }
}

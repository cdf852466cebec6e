//! Packets that the transport has not taken yet: answers to clients, then SMPs of this SM.

use std::time::Instant;

use ib_mad::transport::Packet;

use super::BATCH;
use super::ring::Ring;
use sm_core::sweep::Sweeper;

/// Answers that wait for the transport; more are dropped, and their requesters retry.
const ANSWERS_MAX: usize = 4096;

/// Packets for the fabric.
pub(super) struct TransmitQueue {
    /// Answers to requests of other nodes; they leave first.
    answers: Ring,
    requests: Requests,
    /// Whether the last packets yielded were answers.
    yielded_answers: bool,
}

impl Default for TransmitQueue {
    fn default() -> Self {
        Self {
            answers: Ring::new(ANSWERS_MAX),
            requests: Requests::default(),
            yielded_answers: false,
        }
    }
}

impl TransmitQueue {
    /// Queues an answer. If the queue is full it is dropped and counted, and its requester retries.
    pub(super) fn push_answer(&mut self, packet: &Packet) {
        self.answers.push(packet);
    }

    /// Number of answers that fit into the queue.
    pub(super) fn answer_room(&self) -> usize {
        self.answers.room()
    }

    /// Number of answers dropped because the queue was full.
    pub(super) fn answers_dropped(&self) -> u64 {
        self.answers.dropped()
    }

    /// Discards requests.
    pub(super) fn clear_requests(&mut self) {
        self.requests.packets.clear();
    }

    /// The packets to send now.
    pub(super) fn poll(&mut self, now: Instant, sweeper: &mut Sweeper) -> &[Packet] {
        self.yielded_answers = !self.answers.is_empty();
        if self.yielded_answers { self.answers.front() } else { self.requests.fill(sweeper, now) }
    }

    /// Records that `count` packets were sent. Returns whether to offer the transport more.
    pub(super) fn handle_transmitted(&mut self, count: usize) -> bool {
        if self.yielded_answers {
            self.answers.consume(count);
            return count > 0;
        }
        self.requests.consume(count) == 0
    }
}

/// SMPs that were written. They are discarded when the exchange that they belong to ends: a Set()
/// that left after another subnet manager took over would overwrite what that one configured.
#[derive(Default)]
struct Requests {
    packets: Vec<Packet>,
    /// [`Sweeper::generation`] when they were written.
    generation: u64,
}

impl Requests {
    /// The packets to send now, up to a batch.
    fn fill(&mut self, sweeper: &mut Sweeper, now: Instant) -> &[Packet] {
        self.expire(sweeper);
        while self.packets.len() < BATCH {
            let mut packet = Packet::default();
            if !sweeper.poll_transmit(now, &mut packet) {
                break;
            }
            // Writing one can end the exchange, as when the own port is found to be down.
            self.expire(sweeper);
            self.packets.push(packet);
        }
        &self.packets
    }

    fn expire(&mut self, sweeper: &Sweeper) {
        if std::mem::replace(&mut self.generation, sweeper.generation()) != self.generation {
            self.packets.clear();
        }
    }

    /// The first `count` were sent; returns how many are left.
    fn consume(&mut self, count: usize) -> usize {
        self.packets.drain(..count);
        self.packets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_config::Settings;
    use sm_core::manage::lid::LidTable;

    /// Regression: requests that the transport did not accept while this SM was master were sent
    /// later, when another SM was master.
    #[test]
    fn queued_requests_are_not_sent_after_the_sweep_was_aborted() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let now = Instant::now();
        let mut queue = TransmitQueue::default();
        sweeper.request_heavy_sweep(now);
        let first = queue.poll(now, &mut sweeper).to_vec();
        assert_eq!(first.len(), 1);
        assert!(!queue.handle_transmitted(0), "the transport is full");
        assert_eq!(queue.poll(now, &mut sweeper).len(), 1, "it is still queued");
        sweeper.restart(now);
        let next = queue.poll(now, &mut sweeper);
        assert_eq!(next.len(), 1);
        assert_ne!(next[0].mad[8..16], first[0].mad[8..16], "another transaction");
        assert!(queue.handle_transmitted(1));
    }

    #[test]
    fn answers_leave_before_requests() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let now = Instant::now();
        let mut queue = TransmitQueue::default();
        sweeper.request_heavy_sweep(now);
        let answer = Packet { mad: [7; 256], ..Packet::default() };
        queue.push_answer(&answer);
        assert_eq!(queue.poll(now, &mut sweeper)[0].mad, answer.mad);
        assert!(!queue.handle_transmitted(0));
        assert_eq!(queue.poll(now, &mut sweeper)[0].mad, answer.mad);
        assert!(queue.handle_transmitted(1));
        assert_ne!(queue.poll(now, &mut sweeper)[0].mad, answer.mad);
    }
}

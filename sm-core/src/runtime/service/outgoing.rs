//! SMPs that were written and that the transport has not taken yet.

use std::time::Instant;

use ib_mad::transport::Packet;

use crate::runtime::BATCH;
use crate::sweep::Sweeper;

/// The queue. It ends with the exchange that its packets belong to: a Set() of ours that was held up
/// and leaves after another subnet manager took over would spoil what that one writes.
#[derive(Default)]
pub(super) struct Outgoing {
    packets: Vec<Packet>,
    /// [`Sweeper::generation`] when they were written.
    generation: u64,
}

impl Outgoing {
    /// What is to be sent now, filled up to a batch.
    pub(super) fn fill(&mut self, sweeper: &mut Sweeper, now: Instant) -> &[Packet] {
        self.expire(sweeper);
        while self.packets.len() < BATCH {
            let mut packet = Packet::default();
            if !sweeper.poll_transmit(now, &mut packet) {
                break;
            }
            // Writing one can end it all, as when our own port turns out to be down.
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

    /// The first `count` were sent; how many are left.
    pub(super) fn consume(&mut self, count: usize) -> usize {
        self.packets.drain(..count);
        self.packets.len()
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::manage::lid::LidTable;

    /// What the transport did not take while we were master went out when it did, though somebody
    /// else was master by then.
    #[test]
    fn what_was_held_up_is_not_sent_once_the_sweep_is_given_up() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let now = Instant::now();
        let mut outgoing = Outgoing::default();
        sweeper.request_heavy_sweep(now);
        let first = outgoing.fill(&mut sweeper, now).to_vec();
        assert_eq!(first.len(), 1);
        assert_eq!(outgoing.fill(&mut sweeper, now).len(), 1, "it waits on");
        sweeper.begin_anew(now);
        let next = outgoing.fill(&mut sweeper, now);
        assert_eq!(next.len(), 1);
        assert_ne!(next[0].mad[8..16], first[0].mad[8..16], "another transaction");
        assert_eq!(outgoing.consume(1), 0);
    }
}

//! State machines that query agents of nodes with general management packets (QP1), beside sweeps.

use std::time::Instant;

use ib_mad::packet::Packet;

/// Such a state machine. It does no I/O: the caller carries packets and has the clock.
pub trait Querier {
    /// What the caller logs.
    type Event;

    /// The next event.
    fn poll_event(&mut self) -> Option<Self::Event>;

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Begins what is due, and handles queries that were not answered. Spurious calls are allowed.
    fn handle_timeout(&mut self, now: Instant);

    /// The next packet to send. Call until there is none, or while packets can be sent.
    fn poll_transmit(&mut self, now: Instant) -> Option<Packet>;

    /// Handles a received packet.
    fn handle_packet(&mut self, now: Instant, packet: &Packet);

    /// Handles received packets and due work, and appends packets to send until there are
    /// `packets_max`. Returns the events.
    fn turn(
        &mut self,
        now: Instant,
        received: &[Packet],
        unsent: &mut Vec<Packet>,
        packets_max: usize,
    ) -> Vec<Self::Event> {
        for packet in received {
            self.handle_packet(now, packet);
        }
        self.handle_timeout(now);
        while unsent.len() < packets_max {
            let Some(packet) = self.poll_transmit(now) else { break };
            unsent.push(packet);
        }
        std::iter::from_fn(|| self.poll_event()).collect()
    }
}

//! Packets that wait for a socket to take them, in the order in which they came.

use std::collections::VecDeque;

use ib_mad::transport::Packet;

/// A queue of packets with a limit. Taking from its front moves nothing.
#[derive(Debug)]
pub(super) struct Ring {
    packets: VecDeque<Packet>,
    limit: usize,
    dropped: u64,
}

impl Ring {
    /// An empty ring, with capacity for `limit` packets.
    pub(super) fn new(limit: usize) -> Self {
        Self { packets: VecDeque::with_capacity(limit), limit, dropped: 0 }
    }

    /// Copies a packet to the end, or counts it as dropped if the ring is full.
    pub(super) fn push(&mut self, packet: &Packet) {
        if self.room() > 0 {
            self.packets.push_back(packet.clone());
        } else {
            self.dropped += 1;
        }
    }

    /// Number of packets dropped because the ring was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Packets from the front on: all, unless they lie around the end of the memory.
    pub(super) fn front(&self) -> &[Packet] {
        self.packets.as_slices().0
    }

    /// Forgets `count` packets from the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.packets.drain(..count);
    }

    /// Number of free places.
    pub(super) fn room(&self) -> usize {
        self.limit - self.packets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::Lid;

    fn packet(number: u16) -> Packet {
        let mut packet = Packet::default();
        packet.address.lid = Lid(number);
        packet
    }

    #[test]
    fn packets_leave_in_order_from_where_they_lie() {
        let mut ring = Ring::new(8);
        (0..8).for_each(|number| ring.push(&packet(number)));
        let memory = ring.front().as_ptr();
        ring.consume(3);
        assert_eq!(ring.front().as_ptr(), memory.wrapping_add(3));
        let (mut came, mut left) = (8, 3);
        for step in 1..200 {
            while ring.room() > 0 {
                ring.push(&packet(came));
                came += 1;
            }
            let count = ring.front().len().min(step % 5 + 1);
            for packet in &ring.front()[..count] {
                assert_eq!(packet.address.lid, Lid(left));
                left += 1;
            }
            ring.consume(count);
        }
        assert_eq!(usize::from(came - left), 8 - ring.room());
        assert!(ring.packets.capacity() < 16, "it never grew");
        assert_eq!(ring.dropped(), 0);
    }

    /// Regression: answers for which there was no room were dropped and not counted.
    #[test]
    fn what_finds_no_room_is_counted() {
        let mut ring = Ring::new(2);
        (0..5).for_each(|number| ring.push(&packet(number)));
        assert_eq!((ring.front().len(), ring.dropped()), (2, 3));
        ring.consume(1);
        ring.push(&packet(5));
        assert_eq!((ring.room(), ring.dropped()), (0, 3));
    }
}

//! Packets that wait for a socket to take them, in the order in which they came.

use std::collections::VecDeque;

use ib_mad::transport::Packet;

/// A queue of packets with a limit. Taking from its front moves nothing.
#[derive(Debug)]
pub(super) struct Ring {
    packets: VecDeque<Packet>,
    limit: usize,
}

impl Ring {
    /// An empty one, with room for all the packets that it may ever hold.
    pub(super) fn new(limit: usize) -> Self {
        Self { packets: VecDeque::with_capacity(limit), limit }
    }

    /// Copies a packet to the end; `false` if there is no room.
    pub(super) fn push(&mut self, packet: &Packet) -> bool {
        let fits = self.room() > 0;
        if fits {
            self.packets.push_back(packet.clone());
        }
        fits
    }

    /// Packets from the front on: all, unless they lie around the end of the memory.
    pub(super) fn front(&self) -> &[Packet] {
        self.packets.as_slices().0
    }

    /// Forgets `count` packets from the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.packets.drain(..count);
    }

    /// Packets for which there is room.
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
        let memory = (0..8).all(|number| ring.push(&packet(number))).then(|| ring.front().as_ptr());
        assert!(!ring.push(&packet(8)), "there is a limit");
        ring.consume(3);
        assert_eq!(Some(ring.front().as_ptr()), memory.map(|first| first.wrapping_add(3)));
        let (mut came, mut left) = (8, 3);
        for step in 1..200 {
            while ring.push(&packet(came)) {
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
    }
}

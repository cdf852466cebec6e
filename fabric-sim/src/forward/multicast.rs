//! Multicast forwarding: packets are copied by the switches' multicast forwarding tables.

use ib_mad::types::Lid;
use ib_mad::wire::attribute::MFT_POSITION_PORTS;

use super::{Arrival, Lane, Target, Traveller};
use crate::counters::DropReason;
use crate::subnet::{PortCounter, PortIndex};

/// Limit of copies of one packet; tables with a loop would copy it without end.
const COPIES_MAX: usize = 1 << 16;

impl Traveller<'_> {
    /// Sends a packet from `origin` to a multicast LID; calls `arrived` for every end port it
    /// reaches and `dropped` for every copy that is lost. The sender receives no copy.
    pub(crate) fn by_mlid(
        &mut self,
        origin: PortIndex,
        mlid: Lid,
        mut arrived: impl FnMut(Arrival),
        mut dropped: impl FnMut(DropReason),
    ) {
        let mut copies = 0;
        let mut left = Vec::new();
        if self.subnet.node_of(origin).is_switch() {
            left.push((origin, self.latency, 0));
        } else {
            match self.cross_multicast(origin) {
                Ok(entry) => left.push((entry, self.latency, 1)),
                Err(reason) => return dropped(reason),
            }
        }
        while let Some((entry, latency, hops)) = left.pop() {
            self.latency = latency;
            self.hops = hops;
            let node = self.subnet[entry].node;
            if self.subnet.switch(node).is_none() {
                arrived(self.arrive(entry, Target::ByClass));
                continue;
            }
            let ports = usize::from(self.subnet[node].num_ports);
            for position in 0..=ports / MFT_POSITION_PORTS {
                let mut mask =
                    self.subnet.switch(node).map_or(0, |at| at.multicast_mask(position, mlid));
                while mask != 0 {
                    let bit = mask.trailing_zeros() as usize;
                    mask &= mask - 1;
                    let number = (position * MFT_POSITION_PORTS + bit) as u8;
                    let Some(out) = self.subnet.port(node, number) else { continue };
                    if out == entry {
                        continue;
                    }
                    copies += 1;
                    if copies > COPIES_MAX {
                        return dropped(DropReason::MulticastLimit);
                    }
                    (self.latency, self.hops) = (latency, hops);
                    if number == 0 {
                        arrived(self.arrive(out, Target::ByClass));
                        continue;
                    }
                    match self.cross_multicast(out) {
                        Ok(next) => left.push((next, self.latency, self.hops)),
                        Err(reason) => dropped(reason),
                    }
                }
            }
        }
    }

    /// Crosses a link as [`cross`](Self::cross) does, and counts a multicast packet.
    fn cross_multicast(&mut self, out: PortIndex) -> Result<PortIndex, DropReason> {
        let result = self.cross(out, Lane::Data);
        if matches!(result, Ok(_) | Err(DropReason::Lost)) {
            self.subnet.count(out, PortCounter::PortMulticastXmitPkts, 1);
        }
        if let Ok(entry) = result {
            self.subnet.count(entry, PortCounter::PortMulticastRcvPkts, 1);
        }
        result
    }
}

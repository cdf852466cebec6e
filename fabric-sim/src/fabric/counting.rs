//! Counters of ports, and faults that show in counters: errors, and cables that train below their
//! rate.

use std::time::Instant;

use ib_mad::netlist::{LinkRate, LinkSpeed};

use super::control::ControlError;
use super::{CounterSupport, Fabric};
use crate::subnet::{NodeIndex, PortCounter};

impl Fabric {
    /// The value of a port's counter, which may exceed what a field of an attribute can show.
    pub fn port_counter(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        counter: PortCounter,
    ) -> Result<u64, ControlError> {
        let port = self.find_port(node, port)?;
        self.subnet.accrue(now, port);
        Ok(self.subnet.counter(port, counter))
    }

    /// Increases a port's counter.
    pub fn count(
        &mut self,
        node: NodeIndex,
        port: u8,
        counter: PortCounter,
        by: u64,
    ) -> Result<(), ControlError> {
        let port = self.find_port(node, port)?;
        self.subnet.count(port, counter, by);
        Ok(())
    }

    /// Makes a port's counter count up by itself; a rate of 0 ends this.
    pub fn set_count_rate(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        counter: PortCounter,
        per_second: f64,
    ) -> Result<(), ControlError> {
        let port = self.find_port(node, port)?;
        self.subnet.set_rate(now, port, counter, per_second);
        Ok(())
    }

    /// Limits the width and speed of the link at a port, as a bad cable does, and trains it again;
    /// `None` removes the limit.
    pub fn degrade(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        rate: Option<LinkRate>,
    ) -> Result<(), ControlError> {
        let (port, peer) = self.find_link(node, port)?;
        for end in [port, peer] {
            match rate {
                Some(rate) => self.subnet.degraded.insert(end, rate),
                None => self.subnet.degraded.remove(&end),
            };
        }
        self.subnet.drop_link(port);
        self.subnet.settle(port);
        self.run_effects(now);
        Ok(())
    }

    /// Sets which counters the performance management agents of all nodes offer.
    pub fn set_counter_support(&mut self, support: CounterSupport) {
        self.subnet.counter_support = support;
    }
}

/// The bits of PortInfo for a rate and all lower ones: width, speed, and both extended speeds.
pub(crate) fn masks_up_to(rate: LinkRate) -> [u8; 4] {
    let extended2 = if rate.speed == LinkSpeed::Xdr { 0xFF } else { 0 };
    let (speed, extended) = (rate.speed.mask_up_to(), rate.speed.extended_mask_up_to());
    [rate.width.mask_up_to(), speed, extended, extended2]
}

//! The link state machine (IBA 7.2.7): what brings links up and down, and the state at both ends.
//!
//! Training takes no time. Changes of state that a manager may request are in `port_info`.

use ib_mad::wire::attribute::{
    LinkSpeeds, LinkSpeedsExt, LinkSpeedsExt2, LinkWidths, PortPhysState, PortState,
};

use super::trap;
use crate::fabric::masks_up_to;
use crate::subnet::{PortIndex, Subnet};

/// Width and speed that two ports negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Agreed {
    width: LinkWidths,
    speed: LinkSpeeds,
    speed_ext: LinkSpeedsExt,
    speed_ext2: LinkSpeedsExt2,
}

impl Subnet {
    /// Sets the link state at `port` by cable, power and the settings of both ports.
    pub(crate) fn settle(&mut self, port: PortIndex) {
        let Some(peer) = self.peer(port) else { return };
        let up = self.phys_state(port) == PortPhysState::LinkUp;
        let wired = self.wired_peer(port).is_some();
        if up && !wired {
            self.drop_link(port);
        }
        if wired && self.phys_state(port) != PortPhysState::LinkUp {
            self.train(port, peer);
        }
    }

    /// Takes the link at `port` down, at both ends, each to its LinkDownDefaultState.
    pub(crate) fn drop_link(&mut self, port: PortIndex) {
        if self.phys_state(port) != PortPhysState::LinkUp {
            return;
        }
        for end in [Some(port), self.peer(port)].into_iter().flatten() {
            let default = match self.port_info(end).link_down_default_state() {
                code if code == PortPhysState::Sleep.code() => PortPhysState::Sleep,
                _ => PortPhysState::Polling,
            };
            self.port_info_mut(end).set_port_physical_state(default);
            self.set_port_state(end, PortState::Down);
            if let Some(virtual_ports) = self.virtual_ports.get_mut(&end) {
                virtual_ports.link_down();
            }
            let traffic = &mut self[end].traffic;
            traffic.link_downed = traffic.link_downed.saturating_add(1);
            self.state_changed(end);
        }
    }

    /// Handles an incoming data packet: the sender is active, so an armed port becomes active.
    pub(crate) fn data_arrived(&mut self, port: PortIndex) {
        if self.port_state(port) == PortState::Armed {
            self.set_port_state(port, PortState::Active);
        }
    }

    /// Trains the link of two ports, unless one is disabled, both sleep, or no width or speed
    /// matches.
    fn train(&mut self, a: PortIndex, b: PortIndex) {
        use PortPhysState::{Polling, Sleep};
        match (self.phys_state(a), self.phys_state(b)) {
            // A polling port wakes a sleeping neighbour.
            (Polling, Polling | Sleep) | (Sleep, Polling) => {}
            _ => return,
        }
        let Some(agreed) = self.agree(a, b) else { return };
        for end in [a, b] {
            self.port_info_mut(end)
                .set_link_width_active(agreed.width)
                .set_link_speed_active(agreed.speed)
                .set_link_speed_ext_active(agreed.speed_ext)
                .set_link_speed_ext_active2(agreed.speed_ext2)
                .set_port_physical_state(PortPhysState::LinkUp);
            self.set_port_state(end, PortState::Initialize);
            self.state_changed(end);
        }
    }

    fn agree(&self, a: PortIndex, b: PortIndex) -> Option<Agreed> {
        // What a bad cable permits, as masks of width, speed and extended speeds.
        let limit = self.degraded.get(&a).map_or([0xFF; 4], |rate| masks_up_to(*rate));
        let (a, b) = (self.port_info(a), self.port_info(b));
        let widths = a.link_width_enabled().0 & b.link_width_enabled().0 & limit[0];
        let widest =
            [LinkWidths::X12, LinkWidths::X8, LinkWidths::X4, LinkWidths::X2, LinkWidths::X1];
        let width = widest.into_iter().find(|width| widths & width.0 != 0)?;
        let highest = |bits: u8| bits.checked_ilog2().map_or(0, |bit| 1u8 << bit);
        let agreed = Agreed {
            width,
            speed: LinkSpeeds(highest(
                a.link_speed_enabled().0 & b.link_speed_enabled().0 & limit[1],
            )),
            speed_ext: LinkSpeedsExt(highest(
                a.link_speed_ext_enabled().0 & b.link_speed_ext_enabled().0 & limit[2],
            )),
            speed_ext2: LinkSpeedsExt2(highest(
                a.link_speed_ext_enabled2().0 & b.link_speed_ext_enabled2().0 & limit[3],
            )),
        };
        let any = agreed.speed.0 | agreed.speed_ext.0 | agreed.speed_ext2.0;
        (any != 0).then_some(agreed)
    }

    /// Updates a switch whose port went to or from Down: PortStateChange and trap 128.
    fn state_changed(&mut self, port: PortIndex) {
        let node = self[port].node;
        if !self[node].up {
            return;
        }
        let Some(switch) = self.switch_mut(node) else { return };
        switch.info.port_state_change = true;
        trap::link_state_change(self, node);
    }
}

//! What nodes and ports say of themselves, and what is asked next for it.

use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{PortInfo, PortState, SwitchInfo};
use tracing::{debug, info};

use super::super::{Phase, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::pkey;
use crate::smp::{Kind, Request};

impl Sweeper {
    pub(in crate::sweep) fn node_description(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.fabric.node_mut(node).description = *data;
    }

    pub(in crate::sweep) fn switch_info(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        let changed = self.take_switch_info(node, data);
        if changed && self.election.is_master() && !self.subnet.first_as_master {
            // Cleared before the ports are read: what changes after shows in the next light sweep.
            self.exchange.push(Request::new(Kind::ClearPortChange, port));
        } else {
            self.read_ports(node);
        }
    }

    pub(in crate::sweep) fn port_change_cleared(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.take_switch_info(node, data);
        self.go_on_after_clearing(node);
    }

    pub(in crate::sweep) fn go_on_after_clearing(&mut self, node: NodeIndex) {
        if self.sweep.phase == Phase::Discover {
            self.read_ports(node);
        } else {
            self.read_unset_ports(node);
        }
    }

    /// Stores SwitchInfo; returns whether ports changed since that was last cleared. A switch
    /// whose top is not what we set has been reset: its tables are unknown.
    pub(in crate::sweep) fn take_switch_info(&mut self, node: NodeIndex, data: &[u8; 64]) -> bool {
        let Some(index) = self.fabric.node(node).switch else { return false };
        let before = self.fabric.switch(index).switch_info().linear_fdb_top();
        self.fabric.set_switch_info(index, data);
        let switch = self.fabric.switch(index);
        let info = SwitchInfo::new(&switch.info).expect("20 bytes are a SwitchInfo");
        let (top, changed) = (info.linear_fdb_top(), info.port_state_change());
        if before != top {
            self.note_reset(node);
        }
        changed
    }

    /// A switch was reset: nothing is known any more of what it holds.
    pub(in crate::sweep) fn note_reset(&mut self, node: NodeIndex) {
        let Some(index) = self.fabric.node(node).switch else { return };
        self.fabric.lft_mut(index).forget();
        self.fabric.mft_mut(index).forget();
        // Those of port 0 too, which comes up by itself and is never seen in Initialize.
        self.forget_port_tables(node);
        self.sweep.reset.insert(node);
    }

    /// A switch's port 0 was read that had LID `before`. With another one it has been reset, whatever
    /// its top is: that may have been set since, by us who did not know.
    fn look_for_reset(&mut self, port0: PortIndex, before: Lid) {
        let entry = self.fabric.port(port0);
        let node = entry.node;
        if before == Lid::NONE || entry.base_lid() == before || self.sweep.reset.contains(&node) {
            return;
        }
        debug!("{} has lost its LID: it was reset", self.fabric.describe(port0));
        self.note_reset(node);
        // Those of ports that were read before this one.
        for port in self.fabric.ports_of(node).skip(1) {
            if self.fabric.port(port).peer().is_some() {
                self.read_checked_pkeys(node, port, true);
            }
        }
    }

    fn read_ports(&mut self, node: NodeIndex) {
        for port in self.fabric.ports_of(node) {
            self.exchange.push(Request::new(Kind::PortInfo, port));
        }
        let capacity = self.fabric.node(node).node_info().partition_cap();
        if let Some(port0) = self.fabric.ports_of(node).next() {
            for block in 0..pkey::blocks(capacity) {
                self.exchange.push(Request::block(Kind::PKeys, port0, block));
            }
        }
    }

    pub(in crate::sweep) fn port_info(&mut self, now: Instant, request: Request, data: &[u8; 64]) {
        let port = request.port();
        if self.sweep.phase != Phase::Discover {
            return self.port_read_again(now, port, data);
        }
        let was = self.fabric.port(port).state();
        let checks = |info: PortInfo<&[u8; 64]>| {
            (info.partition_enforcement_inbound(), info.partition_enforcement_outbound())
        };
        let checked = checks(self.fabric.port(port).port_info());
        let lid_before = self.fabric.port(port).base_lid();
        self.fabric.set_port_info(port, data);
        let checks_changed = checks(self.fabric.port(port).port_info()) != checked;
        self.learn_m_key(port);
        let state = self.fabric.port(port).state();
        if state != was {
            let name = |state: Option<PortState>| state.map_or("unknown".into(), |s| s.to_string());
            debug!("{} is {}, was {}", self.fabric.describe(port), name(state), name(was));
        }
        self.note_training(port);
        self.note_port_state(port, was, lid_before);
        let node = self.fabric.port(port).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        let external = is_switch && self.fabric.port(port).num.0 != 0;
        if is_switch && !external {
            self.look_for_reset(port, lid_before);
        }
        if !is_switch && Some(port) == self.fabric.home() {
            if state == Some(PortState::Down) && self.expects_others() {
                self.exchange.cancel_all();
                self.sweep.cut_off = true;
                return;
            }
            if self.subnet.own_link_found() {
                info!("the SM's own port has a link again");
            }
        }
        if !external && (is_switch || Some(port) != self.fabric.home()) {
            if !is_switch {
                self.ask_for_fdr10(port);
            }
            return;
        }
        match state {
            Some(PortState::Initialize | PortState::Armed | PortState::Active) => {
                let stayed = was == Some(PortState::Active) && state == was;
                match self.fabric.port(port).peer() {
                    Some(peer) if stayed && !self.sweep.full => {
                        self.fabric.link_seen(port, self.subnet.discovery);
                        self.fabric.link_seen(peer, self.subnet.discovery);
                    }
                    _ => self.probe(port),
                }
                if external {
                    self.read_checked_pkeys(node, port, checks_changed);
                }
                self.ask_for_fdr10(port);
            }
            _ => self.link_is_down(request),
        }
    }

    /// A port was read. In Initialize its link was trained anew, perhaps as the node was reset.
    pub(in crate::sweep) fn note_training(&mut self, port: PortIndex) {
        if self.fabric.port(port).state() == Some(PortState::Initialize) {
            let entry = self.fabric.port_mut(port);
            entry.qos = None;
            let guid = entry.guid;
            self.aliases.forget(guid);
            self.election.unmute(|mute| mute == guid);
        }
    }

    /// The P_Key table of a switch's external port, which nobody but the master changes: read once, and
    /// again when the switch seems to have been reset, or another may have been master.
    fn read_checked_pkeys(&mut self, node: NodeIndex, port: PortIndex, checks_changed: bool) {
        let reset =
            checks_changed || self.sweep.reset.contains(&node) || self.subnet.first_as_master;
        let node = self.fabric.node(node);
        let Some(switch) = node.switch.filter(|_| node.is_new || reset) else { return };
        let capacity = self.fabric.switch(switch).switch_info().partition_enforcement_cap();
        for block in 0..pkey::blocks(capacity) {
            self.exchange.push(Request::block(Kind::PKeys, port, block));
        }
    }

    fn link_is_down(&mut self, request: Request) {
        let port = request.port();
        let Some(peer) = self.fabric.port(port).peer() else { return };
        if self.is_confirmed(port) {
            // The far end has just answered by this link.
            return self.contradicted_by_down(port, peer, request.block);
        }
        self.cut(port, peer);
        self.sweep.routes_changed = true;
        let far = self.fabric.port(peer).node;
        if self.fabric.node(far).switch.is_some() {
            self.visit_all(vec![far]);
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use ib_mad::wire::attribute::{NodeInfo, NodeType};

    use super::*;
    use crate::config::Settings;
    use crate::manage::lid::LidTable;

    /// Port 0 of a switch is never seen in Initialize: what it held was still taken for known.
    #[test]
    fn a_reset_switch_is_not_known_to_hold_tables_at_port_0() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let mut bytes = [0; 40];
        let mut info = NodeInfo::new(&mut bytes[..]).unwrap();
        info.set_node_type(NodeType::Switch).set_num_ports(4);
        info.set_node_guid(Guid(5)).set_port_guid(Guid(5));
        let info = NodeInfo::new(&bytes[..]).unwrap();
        let node = sweeper.fabric.add(&info, NodeType::Switch).unwrap();
        let port0 = sweeper.fabric.ports_of(node).next().unwrap();
        sweeper.fabric.port_mut(port0).qos.get_or_insert_default();
        sweeper.note_reset(node);
        assert!(sweeper.fabric.port(port0).qos.is_none());
    }
}

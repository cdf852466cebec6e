//! Attributes of nodes and ports, and the requests that follow from them.

use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{PortInfo, PortState};
use tracing::{debug, info, warn};

use super::Discovery;
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::pkey;
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;

impl Discovery {
    /// Handles the answer to a Set() that cleared PortStateChange: reads the ports.
    pub(super) fn port_change_cleared(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        data: &[u8; 64],
    ) {
        let node = subnet.fabric.port(port).node;
        self.look_for_other_top(subnet, port, data);
        self.take_switch_info(subnet, node, data);
        subnet.read_ports(node);
    }

    /// Records SwitchInfo. `true` if ports changed since PortStateChange was last cleared.
    fn take_switch_info(&mut self, subnet: &mut Subnet, node: NodeIndex, data: &[u8; 64]) -> bool {
        let Some(index) = subnet.fabric.node(node).switch else { return false };
        if subnet.take_switch_info(node, data) {
            self.reset.insert(node);
            if subnet.fabric.switch(index).switch_info().linear_fdb_top().is_unicast() {
                self.rewritten.insert(node);
            }
        }
        subnet.fabric.switch(index).switch_info().port_state_change()
    }

    fn note_reset(&mut self, subnet: &mut Subnet, node: NodeIndex) {
        subnet.switch_was_reset(node);
        self.reset.insert(node);
    }

    pub(super) fn switch_info(&mut self, subnet: &mut Subnet, port: PortIndex, data: &[u8; 64]) {
        let node = subnet.fabric.port(port).node;
        self.look_for_other_top(subnet, port, data);
        let changed = self.take_switch_info(subnet, node, data);
        if changed && subnet.election.is_master() && !subnet.state.first_as_master {
            // Cleared before the ports are read: the next light sweep sees later changes.
            subnet.exchange.push(Request::new(Kind::ClearPortChange, port));
        } else {
            subnet.read_ports(node);
        }
    }

    /// Detects a reset of a switch: its port 0, which had LID `before`, has another one. The top of
    /// its table does not show the reset if we have set it since.
    fn look_for_reset(&mut self, subnet: &mut Subnet, port0: PortIndex, before: Lid) {
        let entry = subnet.fabric.port(port0);
        let (node, lid) = (entry.node, entry.base_lid());
        if lid == Lid::NONE {
            self.rewritten.remove(&node);
        }
        if before == Lid::NONE || lid == before || self.reset.contains(&node) {
            return;
        }
        if lid != Lid::NONE {
            self.rewritten.insert(node);
        }
        debug!("{} lost its LID: the switch was reset", subnet.fabric.describe(port0));
        self.note_reset(subnet, node);
        // P_Key tables of the ports that were read before port 0.
        for port in subnet.fabric.ports_of(node).skip(1) {
            if subnet.fabric.port(port).peer().is_some() {
                self.read_checked_pkeys(subnet, node, port, true);
            }
        }
    }

    pub(super) fn port_info(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: &[u8; 64],
        now: Instant,
    ) {
        let port = request.port();
        let was = subnet.fabric.port(port).state();
        let checks = |info: PortInfo<&[u8; 64]>| {
            (info.partition_enforcement_inbound(), info.partition_enforcement_outbound())
        };
        let checked = checks(subnet.fabric.port(port).port_info());
        let lid_before = subnet.fabric.port(port).base_lid();
        self.look_for_other_addresses(subnet, port, data);
        subnet.fabric.set_port_info(port, data);
        let checks_changed = checks(subnet.fabric.port(port).port_info()) != checked;
        subnet.learn_m_key(port);
        let state = subnet.fabric.port(port).state();
        if state != was {
            let name = |state: Option<PortState>| state.map_or("unknown".into(), |s| s.to_string());
            debug!("{}: {}, was {}", subnet.fabric.describe(port), name(state), name(was));
        }
        self.note_training(subnet, port);
        self.note_port_state(subnet, port, was, lid_before);
        let node = subnet.fabric.port(port).node;
        let is_switch = subnet.fabric.node(node).switch.is_some();
        let external = is_switch && subnet.fabric.port(port).num.0 != 0;
        if is_switch && !external {
            self.look_for_reset(subnet, port, lid_before);
        }
        let is_own = !is_switch && subnet.fabric.is_own_port(port);
        if is_own {
            if state == Some(PortState::Down) && subnet.expects_others() {
                self.own_down.insert(port);
                if subnet.fabric.own_ports().all(|own| self.own_down.contains(&own)) {
                    subnet.exchange.cancel_all();
                    self.cut_off = true;
                    return;
                }
                if was != state {
                    let place = subnet.fabric.describe(port);
                    warn!(
                        "{place}, by which the SM reaches a plane, is down: its switches keep \
                           their tables, and are not managed; check its cable"
                    );
                }
            } else if subnet.state.own_link_found() {
                info!("the SM's own port has a link again");
            }
        }
        if !external && !is_own {
            if !is_switch {
                subnet.ask_for_fdr10(port);
            }
            return;
        }
        self.read.insert(port);
        match state {
            Some(PortState::Initialize | PortState::Armed | PortState::Active) => {
                let stayed = was == Some(PortState::Active) && state == was;
                match subnet.fabric.port(port).peer() {
                    Some(peer) if stayed && !self.full => {
                        subnet.fabric.link_seen(port, subnet.state.discovery);
                        subnet.fabric.link_seen(peer, subnet.state.discovery);
                    }
                    _ => self.probe(subnet, port),
                }
                if external {
                    self.read_checked_pkeys(subnet, node, port, checks_changed);
                }
                subnet.ask_for_fdr10(port);
            }
            _ => self.link_is_down(subnet, request, now),
        }
    }

    /// Reads the P_Key table of a switch's external port. Only the master changes it, so it is read
    /// once, and again if the switch may have been reset, or another SM may have been master.
    fn read_checked_pkeys(
        &mut self,
        subnet: &mut Subnet,
        node: NodeIndex,
        port: PortIndex,
        checks_changed: bool,
    ) {
        let is_unknown = subnet.state.first_as_master || subnet.overwritten.is_restoring();
        let reset = checks_changed || self.reset.contains(&node) || is_unknown;
        let node = subnet.fabric.node(node);
        let Some(switch) = node.switch.filter(|_| node.is_new || reset) else { return };
        let capacity = subnet.fabric.switch(switch).switch_info().partition_enforcement_cap();
        for block in 0..pkey::blocks(capacity) {
            subnet.exchange.push(Request::block(Kind::PKeys, port, block));
        }
    }

    /// Handles the state of a port that was read. In Initialize its link was retrained, perhaps
    /// because its node was reset: discards its known state.
    pub(in crate::sweep) fn note_training(&mut self, subnet: &mut Subnet, port: PortIndex) {
        if subnet.fabric.port(port).state() != Some(PortState::Initialize) {
            return;
        }
        let entry = subnet.fabric.port_mut(port);
        entry.qos = None;
        let guid = entry.guid;
        subnet.election.mark_responsive(|silent| silent == guid);
        self.retrained.insert(guid);
    }

    fn link_is_down(&mut self, subnet: &mut Subnet, request: Request, now: Instant) {
        let port = request.port();
        let peer = subnet.fabric.port(port).peer();
        if peer.is_none() && request.block != 0 {
            // Read again, because something claims to be linked to it.
            return self.contradicted_by_down(subnet, port, port, request.block, now);
        }
        let Some(peer) = peer else { return };
        if subnet.is_confirmed(port) {
            // The node at the far end has just answered over this link.
            return self.contradicted_by_down(subnet, port, peer, request.block, now);
        }
        self.link_is_gone(subnet, port, peer);
    }
}

impl Subnet {
    /// Records SwitchInfo. `true` if its LinearFDBTop shows that the switch was reset.
    pub(in crate::sweep) fn take_switch_info(&mut self, node: NodeIndex, data: &[u8; 64]) -> bool {
        let Some(index) = self.fabric.node(node).switch else { return false };
        let before = self.fabric.switch(index).switch_info().linear_fdb_top();
        self.fabric.set_switch_info(index, data);
        let was_reset = self.fabric.switch(index).switch_info().linear_fdb_top() != before;
        if was_reset {
            self.switch_was_reset(node);
        }
        was_reset
    }

    /// Forgets the tables of a switch that was reset: their contents are unknown.
    pub(in crate::sweep) fn switch_was_reset(&mut self, node: NodeIndex) {
        let Some(index) = self.fabric.node(node).switch else { return };
        self.fabric.lft_mut(index).forget();
        self.fabric.mft_mut(index).forget();
        // Of port 0 too: it becomes active by itself and is never seen in Initialize.
        self.forget_port_tables(node);
    }

    pub(super) fn node_description(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.fabric.node_mut(node).description = *data;
    }

    pub(super) fn read_ports(&mut self, node: NodeIndex) {
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
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use ib_mad::wire::attribute::{NodeInfo, NodeType};

    use super::*;
    use crate::manage::lid::LidTable;
    use sm_config::Settings;

    /// Regression: Port 0 of a switch is never seen in Initialize, so its tables were still
    /// regarded as known after a reset.
    #[test]
    fn a_reset_switch_is_not_known_to_hold_tables_at_port_0() {
        let mut subnet = Subnet::new(Settings::default(), LidTable::default(), 1);
        let mut bytes = [0; 40];
        let mut info = NodeInfo::new(&mut bytes[..]).unwrap();
        info.set_node_type(NodeType::Switch).set_num_ports(4);
        info.set_node_guid(Guid(5)).set_port_guid(Guid(5));
        let info = NodeInfo::new(&bytes[..]).unwrap();
        let node = subnet.fabric.add(&info, NodeType::Switch).unwrap();
        let port0 = subnet.fabric.ports_of(node).next().unwrap();
        subnet.fabric.port_mut(port0).qos.get_or_insert_default();
        subnet.switch_was_reset(node);
        assert!(subnet.fabric.port(port0).qos.is_none());
    }
}

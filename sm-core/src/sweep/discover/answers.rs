//! What nodes and ports say of themselves, and what is asked next for it.

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{PortInfo, PortState};
use tracing::{debug, info};

use super::Discovery;
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::pkey;
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;

impl Discovery {
    /// Handles SwitchInfo with PortStateChange cleared: now the ports are read.
    pub(super) fn port_change_cleared(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        data: &[u8; 64],
    ) {
        let node = subnet.fabric.port(port).node;
        self.take_switch_info(subnet, node, data);
        subnet.read_ports(node);
    }

    /// Records SwitchInfo; whether ports changed since PortStateChange was last cleared.
    fn take_switch_info(&mut self, subnet: &mut Subnet, node: NodeIndex, data: &[u8; 64]) -> bool {
        let Some(index) = subnet.fabric.node(node).switch else { return false };
        if subnet.take_switch_info(node, data) {
            self.reset.insert(node);
        }
        subnet.fabric.switch(index).switch_info().port_state_change()
    }

    fn note_reset(&mut self, subnet: &mut Subnet, node: NodeIndex) {
        subnet.switch_was_reset(node);
        self.reset.insert(node);
    }

    pub(in crate::sweep) fn switch_info(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        data: &[u8; 64],
    ) {
        let node = subnet.fabric.port(port).node;
        let changed = self.take_switch_info(subnet, node, data);
        if changed && subnet.election.is_master() && !subnet.state.first_as_master {
            // Cleared before the ports are read: what changes after shows in the next light sweep.
            subnet.exchange.push(Request::new(Kind::ClearPortChange, port));
        } else {
            subnet.read_ports(node);
        }
    }

    /// A switch's port 0 was read that had LID `before`. With another one it has been reset,
    /// whatever its top is: that may have been set since, by us who did not know.
    fn look_for_reset(&mut self, subnet: &mut Subnet, port0: PortIndex, before: Lid) {
        let entry = subnet.fabric.port(port0);
        let node = entry.node;
        if before == Lid::NONE || entry.base_lid() == before || self.reset.contains(&node) {
            return;
        }
        debug!("{} has lost its LID: it was reset", subnet.fabric.describe(port0));
        self.note_reset(subnet, node);
        // Those of ports that were read before this one.
        for port in subnet.fabric.ports_of(node).skip(1) {
            if subnet.fabric.port(port).peer().is_some() {
                self.read_checked_pkeys(subnet, node, port, true);
            }
        }
    }

    pub(in crate::sweep) fn port_info(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: &[u8; 64],
    ) {
        let port = request.port();
        let was = subnet.fabric.port(port).state();
        let checks = |info: PortInfo<&[u8; 64]>| {
            (info.partition_enforcement_inbound(), info.partition_enforcement_outbound())
        };
        let checked = checks(subnet.fabric.port(port).port_info());
        let lid_before = subnet.fabric.port(port).base_lid();
        subnet.fabric.set_port_info(port, data);
        let checks_changed = checks(subnet.fabric.port(port).port_info()) != checked;
        subnet.learn_m_key(port);
        let state = subnet.fabric.port(port).state();
        if state != was {
            let name = |state: Option<PortState>| state.map_or("unknown".into(), |s| s.to_string());
            debug!("{} is {}, was {}", subnet.fabric.describe(port), name(state), name(was));
        }
        subnet.note_training(port);
        self.note_port_state(subnet, port, was, lid_before);
        let node = subnet.fabric.port(port).node;
        let is_switch = subnet.fabric.node(node).switch.is_some();
        let external = is_switch && subnet.fabric.port(port).num.0 != 0;
        if is_switch && !external {
            self.look_for_reset(subnet, port, lid_before);
        }
        if !is_switch && Some(port) == subnet.fabric.sm_port() {
            if state == Some(PortState::Down) && subnet.expects_others() {
                subnet.exchange.cancel_all();
                self.cut_off = true;
                return;
            }
            if subnet.state.own_link_found() {
                info!("the SM's own port has a link again");
            }
        }
        if !external && (is_switch || Some(port) != subnet.fabric.sm_port()) {
            if !is_switch {
                subnet.ask_for_fdr10(port);
            }
            return;
        }
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
            _ => self.link_is_down(subnet, request),
        }
    }

    /// The P_Key table of a switch's external port, which only the master changes: read once, and
    /// again if the switch seems to have been reset, or another SM may have been master.
    fn read_checked_pkeys(
        &mut self,
        subnet: &mut Subnet,
        node: NodeIndex,
        port: PortIndex,
        checks_changed: bool,
    ) {
        let reset = checks_changed || self.reset.contains(&node) || subnet.state.first_as_master;
        let node = subnet.fabric.node(node);
        let Some(switch) = node.switch.filter(|_| node.is_new || reset) else { return };
        let capacity = subnet.fabric.switch(switch).switch_info().partition_enforcement_cap();
        for block in 0..pkey::blocks(capacity) {
            subnet.exchange.push(Request::block(Kind::PKeys, port, block));
        }
    }

    fn link_is_down(&mut self, subnet: &mut Subnet, request: Request) {
        let port = request.port();
        let Some(peer) = subnet.fabric.port(port).peer() else { return };
        if subnet.is_confirmed(port) {
            // The far end has just answered by this link.
            return self.contradicted_by_down(subnet, port, peer, request.block);
        }
        self.cut(subnet, port, peer);
        self.routes_changed = true;
        let far = subnet.fabric.port(peer).node;
        if subnet.fabric.node(far).switch.is_some() {
            subnet.visit_all(vec![far]);
        }
    }
}

impl Subnet {
    /// Records SwitchInfo; `true` if the switch was reset, as its LinearFDBTop shows.
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

    /// A switch was reset: the state of its tables is unknown.
    pub(in crate::sweep) fn switch_was_reset(&mut self, node: NodeIndex) {
        let Some(index) = self.fabric.node(node).switch else { return };
        self.fabric.lft_mut(index).forget();
        self.fabric.mft_mut(index).forget();
        // Port 0 included: it comes up by itself and is never seen in Initialize.
        self.forget_port_tables(node);
    }

    /// Handles SwitchInfo with PortStateChange cleared, after the discovery. Ports that are not set
    /// are read again.
    pub(in crate::sweep) fn port_change_cleared(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.take_switch_info(node, data);
        self.read_unset_ports(node);
    }

    /// Whether a port is in Initialize: its link was retrained, perhaps because its node was reset.
    pub(in crate::sweep) fn is_training(&self, port: PortIndex) -> bool {
        self.fabric.port(port).state() == Some(PortState::Initialize)
    }

    /// A port was read. What is known of a retrained port is discarded.
    pub(in crate::sweep) fn note_training(&mut self, port: PortIndex) {
        if self.is_training(port) {
            let entry = self.fabric.port_mut(port);
            entry.qos = None;
            let guid = entry.guid;
            self.election.unmute(|mute| mute == guid);
        }
    }

    pub(in crate::sweep) fn node_description(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.fabric.node_mut(node).description = *data;
    }

    pub(in crate::sweep) fn read_ports(&mut self, node: NodeIndex) {
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

    use crate::manage::lid::LidTable;
    use crate::sweep::Sweeper;
    use sm_config::Settings;

    /// Port 0 of a switch is never seen in Initialize: what it held was still taken for known.
    #[test]
    fn a_reset_switch_is_not_known_to_hold_tables_at_port_0() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let mut bytes = [0; 40];
        let mut info = NodeInfo::new(&mut bytes[..]).unwrap();
        info.set_node_type(NodeType::Switch).set_num_ports(4);
        info.set_node_guid(Guid(5)).set_port_guid(Guid(5));
        let info = NodeInfo::new(&bytes[..]).unwrap();
        let node = sweeper.subnet.fabric.add(&info, NodeType::Switch).unwrap();
        let port0 = sweeper.subnet.fabric.ports_of(node).next().unwrap();
        sweeper.subnet.fabric.port_mut(port0).qos.get_or_insert_default();
        sweeper.subnet.switch_was_reset(node);
        assert!(sweeper.subnet.fabric.port(port0).qos.is_none());
    }
}

//! Takes over the nodes of the fabric.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{CapabilityMask, LinkSpeedsExt, PortInfo, PortState};
use sa_proto::snapshot::Node;

use super::super::agent::Agent;
use super::super::table::PortCounts;
use super::{PerfManager, PerfNode, Port};

impl PerfManager {
    /// Replaces the nodes; ports that were known keep their counts. Those that are new count from
    /// now on, as with OpenSM. No query is outstanding.
    fn replace_nodes(&mut self, now: Instant, rows: Vec<Arc<Node>>) {
        let now_s = self.seconds(now);
        let old_nodes = std::mem::take(&mut self.nodes);
        let mut old_ports: Vec<Option<Port>> =
            std::mem::take(&mut self.ports).into_iter().map(Some).collect();
        let old_agents = std::mem::take(&mut self.agents);
        let mut old = old_nodes.into_iter().peekable();
        for row in rows {
            while let Some(gone) = old.next_if(|old| old.row.guid < row.guid) {
                self.keep_inactive(&gone, &mut old_ports);
            }
            let before = old.next_if(|old| old.row.guid == row.guid);
            if row.switch_info.is_some() || !self.settings.ignore_cas {
                self.add_node(now_s, row, before.as_ref(), &mut old_ports, &old_agents);
            }
        }
        for gone in old {
            self.keep_inactive(&gone, &mut old_ports);
        }
    }

    /// Takes over nodes that were set, and forgets those that left if that was ordered. Between
    /// sweeps: what is under way refers to agents and ports by their positions.
    pub(super) fn take_over_nodes(&mut self, now: Instant) {
        if std::mem::take(&mut self.forgets_inactive) {
            let rows = self.nodes.iter().filter(|node| node.active);
            let rows = rows.map(|node| node.row.clone()).collect();
            let removes = std::mem::replace(&mut self.settings.remove_nodes, true);
            self.replace_nodes(now, rows);
            self.settings.remove_nodes = removes;
        }
        if let Some(nodes) = self.new_nodes.take() {
            self.replace_nodes(now, nodes);
        }
    }

    fn keep_inactive(&mut self, gone: &PerfNode, old_ports: &mut [Option<Port>]) {
        if self.settings.remove_nodes {
            return;
        }
        let first_port = self.ports.len() as u32;
        for port in &mut old_ports[gone.first_port as usize..][..gone.port_count.into()] {
            self.ports.extend(port.take().map(Port::unread));
        }
        self.nodes.push(PerfNode {
            row: gone.row.clone(),
            active: false,
            first_port,
            port_count: gone.port_count,
        });
    }

    fn add_node(
        &mut self,
        now_s: u32,
        row: Arc<Node>,
        before: Option<&PerfNode>,
        old_ports: &mut [Option<Port>],
        old_agents: &[Agent],
    ) {
        let (node, first_port) = (self.nodes.len() as u32, self.ports.len() as u32);
        let is_switch = row.switch_info.is_some();
        let mut known: Vec<Port> = match before {
            None => Vec::new(),
            Some(before) => old_ports[before.first_port as usize..][..before.port_count.into()]
                .iter_mut()
                .filter_map(Option::take)
                .collect(),
        };
        let switch_lid =
            row.ports.first().map_or(Lid::NONE, |port| PortInfo::of(&port.info).base_lid());
        if is_switch {
            self.agents.push(Agent::new(node, first_port, switch_lid));
        }
        let mut known = known.drain(..).peekable();
        for at in row.ports.iter().filter(|at| !is_switch || at.num.0 != 0) {
            while let Some(without_link) = known.next_if(|port| port.number < at.num) {
                self.ports.push(without_link.unread());
            }
            let info = PortInfo::of(&at.info);
            let lid = if is_switch { switch_lid } else { info.base_lid() };
            let is_up = info.port_state() == PortState::Active.code() && lid.is_unicast();
            let port = known.next_if(|port| port.number == at.num);
            if !is_up {
                self.ports.extend(port.map(Port::unread));
                continue;
            }
            let old_agent =
                port.as_ref().and_then(|port| old_agents.get(port.agent as usize)).cloned();
            let index = self.ports.len() as u32;
            if !is_switch {
                self.agents.push(Agent::new(node, index, lid));
            }
            let agent = self.agents.len() as u32 - 1;
            let at_agent = &mut self.agents[agent as usize];
            if let Some(old) = old_agent.filter(|_| at_agent.support.is_none()) {
                at_agent.inherit(&old);
            }
            at_agent.port_count = (index - at_agent.first_port + 1) as u16;
            let link = info.active_link(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED);
            let is_fast = link.speed_ext != LinkSpeedsExt::NONE || link.speed_ext2.0 != 0;
            let port = port.unwrap_or_else(|| Port {
                counts: PortCounts::new(now_s),
                data_at_ms: 0,
                agent,
                number: at.num,
                is_known: false,
                knows_speeds: false,
                speeds_at_s: 0,
                is_fast,
                pending: 0,
            });
            self.ports.push(Port { agent, is_fast, pending: 0, ..port });
        }
        self.ports.extend(known.map(Port::unread));
        let port_count = (self.ports.len() as u32 - first_port) as u16;
        self.nodes.push(PerfNode { row, active: true, first_port, port_count });
    }
}

//! The end of a discovery: removes links that were not seen again and nodes that no route reaches,
//! unless the SM's own link is the one that is missing.

use std::collections::HashSet;
use std::time::Instant;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{NodeType, PortState};
use tracing::{debug, error, info, warn};

use super::Discovery;
use super::notes::CameBack;
use crate::fabric::{Node, NodeIndex, PortIndex};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::report::LINES_MAX;

/// Maximum number of ports with a link and no answer behind it that are probed again soon.
const UNANSWERED_MAX: usize = 1024;

/// Result of a discovery.
pub(in crate::sweep) enum End {
    /// The fabric is read: the election follows.
    Read,
    /// The SM's own port cannot be used: the last known state of the fabric is kept.
    Abandoned,
    /// Routes led to other nodes than known: one of the whole fabric is to follow. What came back
    /// counts there.
    Outdated(CameBack),
}

impl Discovery {
    /// Cuts links that were not seen, and removes nodes that no route reaches.
    pub(in crate::sweep) fn end(mut self, subnet: &mut Subnet, now: Instant) -> End {
        if self.is_outdated {
            return End::Outdated(self.came_back);
        }
        if self.cut_off {
            subnet.report_own_link_down();
            return End::Abandoned;
        }
        if self.is_own_node_unread {
            // What an earlier discovery read of it, if any, says nothing about the fabric now.
            subnet.state.set_own_node_silent(true);
            return End::Abandoned;
        }
        if self.is_secluded(subnet) {
            subnet.report_no_neighbour();
            return End::Abandoned;
        }
        if subnet.state.neighbour_found() {
            info!("the node behind the SM's port answers again");
        }
        self.keep_unread(subnet);
        self.cut_unseen_links(subnet);
        let mut silent = std::mem::take(&mut self.silent);
        let quiet = std::mem::take(&mut self.quiet);
        silent.extend(quiet.into_iter().filter(|&node| subnet.is_unread(node)));
        subnet.remove_unreached(&silent, now);
        subnet.journal.report.appeared =
            subnet.fabric.nodes().filter(|(_, node)| node.is_new).count();
        self.report_returned(subnet, now);
        self.find_unanswered_links(subnet);
        self.report_left_out(subnet);
        subnet.state.is_discovered = true;
        subnet.find_unread_ports();
        self.settle_end_ports(subnet, now);
        self.find_impostors(subnet);
        subnet.state.left_out = self.left_out_links(subnet);
        subnet.forget_admitted();
        subnet.note_links();
        let sm_port = subnet.fabric.sm_port().filter(|&sm_port| subnet.fabric.port(sm_port).known);
        if sm_port.is_some_and(|sm_port| !silent.contains(&subnet.fabric.port(sm_port).node)) {
            subnet.state.set_own_node_silent(false);
            return End::Read;
        }
        if !self.is_fatal {
            subnet.state.set_own_node_silent(true);
            error!("cannot read PortInfo of the SM's port; retrying");
        }
        End::Abandoned
    }

    /// Whether our own port, or each of its planes, has a link but no usable neighbour, and had one
    /// before. All directed routes start there, so nothing is known of the fabric.
    fn is_secluded(&self, subnet: &Subnet) -> bool {
        let own = subnet.fabric.own_ports().filter(|&own| subnet.is_adapter_port(own));
        let has_link = |own: &PortIndex| {
            let port = subnet.fabric.port(*own);
            let state = port.state();
            port.known
                && !self.left_out.contains(own)
                && matches!(
                    state,
                    Some(PortState::Initialize | PortState::Armed | PortState::Active)
                )
        };
        let has_no_neighbour = |own: PortIndex| {
            let port = subnet.fabric.port(own);
            let is_seen = port.link_seen == subnet.state.discovery;
            let peer = port.peer().filter(|_| is_seen).map(|peer| subnet.fabric.port(peer).node);
            peer.is_none_or(|node| self.silent.contains(&node))
        };
        let mut linked = own.filter(has_link).peekable();
        linked.peek().is_some() && subnet.expects_others() && linked.all(has_no_neighbour)
    }

    fn cut_unseen_links(&mut self, subnet: &mut Subnet) {
        let number = subnet.state.discovery;
        let seen: Vec<NodeIndex> = subnet
            .fabric
            .nodes()
            .filter(|(_, node)| node.seen == number)
            .map(|(index, _)| index)
            .collect();
        for node in seen {
            if !self.full && subnet.fabric.node(node).switch.is_none() {
                // Its links are verified from their other ends, which may not have been asked.
                continue;
            }
            for port in subnet.fabric.ports_of(node) {
                if subnet.fabric.port(port).link_seen != number
                    && let Some(peer) = subnet.fabric.port(port).peer()
                {
                    self.cut(subnet, port, peer);
                }
            }
        }
    }

    /// Handles a link that is gone. Logs links between switches only: a host that goes is logged by
    /// its name, and its link goes with it.
    pub(in crate::sweep) fn cut(&mut self, subnet: &mut Subnet, port: PortIndex, peer: PortIndex) {
        let is_switch = |port| subnet.fabric.node_of(port).switch.is_some();
        if !is_switch(port) || !is_switch(peer) {
            subnet.journal.report.detached += 1;
        } else if subnet.state.up {
            subnet.journal.report.cut += 1;
            let (a, b) = (subnet.fabric.describe(port), subnet.fabric.describe(peer));
            match subnet.journal.report.cut {
                n if n <= LINES_MAX => warn!("link down: {a} - {b}"),
                n if n == LINES_MAX + 1 => {
                    warn!("further links that are down are logged at debug level only");
                }
                _ => debug!("link down: {a} - {b}"),
            }
        }
        subnet.fabric.unlink(port);
    }

    /// Reports ports with the GUID that stands for the SA. They have no LIDs.
    fn find_impostors(&mut self, subnet: &mut Subnet) {
        let impostors: Vec<PortIndex> = subnet.fabric.impostors().collect();
        if let Some(first) = impostors.first()
            && self.first_report(subnet, Guid::WELL_KNOWN_SA.0)
        {
            let place = subnet.place(*first);
            let text = format!(
                "{place} reports {} as its port GUID, which stands for the SA. It gets no LID; \
                 change its GUID",
                Guid::WELL_KNOWN_SA
            );
            subnet.journal.duplicate(Guid::WELL_KNOWN_SA, None, text);
        }
    }

    /// Ports of switches whose link is left out, ascending. Those that a partial discovery has not
    /// read, and behind which it found nothing else, stay as they were.
    fn left_out_links(&self, subnet: &Subnet) -> Vec<PortIndex> {
        let found = self.left_out.iter().copied().filter(|port| subnet.is_external(*port));
        let is_unread = |port: &PortIndex| {
            let is_there = subnet.fabric.node_of(*port).present;
            let has_no_peer = subnet.fabric.port(*port).peer().is_none();
            !self.full && is_there && has_no_peer && !self.read.contains(port)
        };
        let before = subnet.state.left_out.iter().copied().filter(is_unread);
        let mut ports: Vec<PortIndex> = found.chain(before).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Finds ports with a link and no answer behind it, which are probed again soon.
    fn find_unanswered_links(&mut self, subnet: &mut Subnet) {
        let up = |state| {
            matches!(state, Some(PortState::Initialize | PortState::Armed | PortState::Active))
        };
        let left_out = self.left_out_links(subnet);
        let unanswered: Vec<PortIndex> = subnet
            .fabric
            .nodes()
            .flat_map(|(index, node)| {
                let first = u8::from(node.switch.is_some());
                subnet.fabric.ports_of(index).skip(usize::from(first))
            })
            .filter(|port| {
                let entry = subnet.fabric.port(*port);
                let expected = entry.known && entry.peer().is_none() && up(entry.state());
                let is_left_out = self.left_out.contains(port)
                    || left_out.binary_search(port).is_ok()
                    || self.new_nodes.is_left_out(*port);
                expected && !is_left_out
            })
            .take(UNANSWERED_MAX)
            .collect();
        let new: Vec<PortIndex> = unanswered
            .iter()
            .copied()
            .filter(|port| !subnet.state.unanswered.contains(port))
            .collect();
        if let [first, others @ ..] = &new[..] {
            let place = subnet.place(*first);
            match others.len() {
                0 => {
                    subnet
                        .anomaly(format_args!("{place} has a link, but no node answers behind it"));
                }
                more => subnet.anomaly(format_args!(
                    "{place} and {more} more ports have a link, but no node answers behind it"
                )),
            }
            subnet.journal.report.anomalies += others.len() as u64;
            for port in others {
                debug!("{} has a link, but no node answers behind it", subnet.place(*port));
            }
        }
        subnet.state.unanswered = unanswered;
    }
}

impl Subnet {
    fn report_own_link_down(&mut self) {
        if self.state.own_link_lost() {
            let port = self.fabric.sm_port().map(|sm_port| self.fabric.describe(sm_port));
            error!(
                "the SM's port is down; check its cable ({}). The fabric keeps its last \
                 configuration",
                port.unwrap_or_default()
            );
        }
    }

    fn report_no_neighbour(&mut self) {
        if self.state.neighbour_lost() {
            let port = self.fabric.sm_port().map(|sm_port| self.fabric.describe(sm_port));
            warn!(
                "no node answers behind the SM's port although its link is up ({}); the fabric \
                 keeps its last configuration",
                port.unwrap_or_default()
            );
        }
    }

    /// Computes directed routes that avoid `silent` nodes, and removes nodes without one.
    fn remove_unreached(&mut self, silent: &HashSet<NodeIndex>, now: Instant) {
        let unreached = self.fabric.trace_routes(|fabric, port| {
            let peer = fabric.port(port).peer();
            !silent.contains(&fabric.port(port).node)
                && peer.is_some_and(|peer| !silent.contains(&fabric.port(peer).node))
        });
        self.log_unreached(&unreached);
        for &node in &unreached {
            if self.fabric.node(node).switch.is_some() {
                self.homes.switch_gone(self.fabric.node(node).guid, now);
            }
            self.fabric.remove(node);
        }
        self.journal.report.vanished = unreached.len();
    }

    /// Logs nodes that are gone, switches first: a switch that vanishes is a fault, and a host that
    /// vanishes may have been shut down.
    fn log_unreached(&self, unreached: &[NodeIndex]) {
        let nodes = || unreached.iter().map(|&node| self.fabric.node(node));
        let is_switch = |node: &&Node| node.kind == NodeType::Switch;
        let (switches, hosts) =
            (nodes().filter(is_switch), nodes().filter(|node| !is_switch(node)));
        for node in switches.clone().take(LINES_MAX) {
            warn!("node disappeared: {} '{}' {}", node.kind, node.name(), node.guid);
        }
        for node in hosts.clone().take(LINES_MAX) {
            info!("node disappeared: {} '{}' {}", node.kind, node.name(), node.guid);
        }
        match switches.count().saturating_sub(LINES_MAX) {
            0 => {}
            more => warn!("{more} more switches disappeared"),
        }
        match hosts.count().saturating_sub(LINES_MAX) {
            0 => {}
            more => info!("{more} more nodes disappeared"),
        }
    }

    /// Whether the fabric has, or had, nodes other than the SM's own.
    pub(super) fn expects_others(&self) -> bool {
        let (hosts, switches) = self.fabric.counts();
        hosts + switches > 1 || self.lids.len() > 1
    }
}

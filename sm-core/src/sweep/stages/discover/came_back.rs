//! Finds links and nodes that came back since the last sweep: new links, retrained links, and nodes
//! that were reset or reappeared. Logs each in one line, so that the log shows every change of the
//! fabric. Links and nodes that disappeared are logged where they are removed.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::PortState;
use tracing::{debug, info};

use super::Discovery;
use super::notes::CameBack;
use crate::fabric::PortIndex;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::report::{LINES_MAX, RETURNED_MAX};

impl Discovery {
    /// Records a new link.
    pub(in crate::sweep) fn note_link(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        ingress: PortIndex,
    ) {
        if subnet.state.up && subnet.fabric.port(egress).peer() != Some(ingress) {
            self.came_back.links.insert((egress.min(ingress), egress.max(ingress)));
        }
    }

    /// Records a port that was read; `was` and `lid` are its previous state and LID.
    pub(in crate::sweep) fn note_port_state(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        was: Option<PortState>,
        lid: Lid,
    ) {
        let entry = subnet.fabric.port(port);
        let is_trained = matches!(entry.state(), Some(PortState::Initialize | PortState::Armed));
        if !subnet.state.up || was != Some(PortState::Active) || !is_trained {
            return;
        }
        self.came_back.trained.insert(port);
        let is_switch = subnet.fabric.node_of(port).switch.is_some();
        if !is_switch && lid != Lid::NONE && entry.base_lid() == Lid::NONE {
            self.came_back.reset.insert(entry.node);
        }
    }

    /// Logs links and nodes that came back, once all nodes have names. The line of a node covers
    /// its links. While another manager writes, and what it wrote is restored, links that are reset
    /// are not counted as returned: they did not fail.
    pub(in crate::sweep) fn report_returned(&mut self, subnet: &mut Subnet, now: Instant) {
        if !subnet.state.up {
            return;
        }
        let CameBack { links, trained, mut reset } = std::mem::take(&mut self.came_back);
        reset.extend(self.reset.difference(&self.rewritten));
        reset.retain(|&node| subnet.fabric.node(node).present && !subnet.fabric.node(node).is_new);
        let found = subnet.fabric.nodes().filter(|(_, node)| node.is_new);
        let mut lines: Vec<String> = found
            .map(|(_, node)| format!("found: {} '{}' {}", node.kind, node.name(), node.guid))
            .collect();
        lines.extend(reset.iter().map(|&node| {
            let node = subnet.fabric.node(node);
            format!("was reset: {} '{}' {}", node.kind, node.name(), node.guid)
        }));
        let is_reported = |port: PortIndex| {
            let node = subnet.fabric.port(port).node;
            reset.contains(&node) || subnet.fabric.node(node).is_new
        };
        let link = |what: &str, a, b| {
            format!("{what}: {} - {}", subnet.fabric.describe(a), subnet.fabric.describe(b))
        };
        let is_link =
            |(a, b)| subnet.fabric.port(a).peer() == Some(b) && !is_reported(a) && !is_reported(b);
        let up = links.iter().copied().filter(|&ends| is_link(ends));
        lines.extend(up.map(|(a, b)| link("link up", a, b)));
        // For most links both ends are listed; one line covers both.
        let pairs: BTreeSet<_> = trained
            .iter()
            .filter_map(|&port| Some((port, subnet.fabric.port(port).peer()?)))
            .map(|(a, b)| (a.min(b), a.max(b)))
            .filter(|&ends| is_link(ends) && !links.contains(&ends))
            .collect();
        lines.extend(pairs.iter().map(|&(a, b)| link("link retrained", a, b)));
        let up = links.iter().copied().filter(|&ends| is_link(ends));
        let nodes =
            subnet.fabric.nodes().filter(|(index, node)| node.is_new || reset.contains(index));
        let of_nodes = nodes
            .flat_map(|(index, _)| subnet.fabric.ports_of(index))
            .filter_map(|port| Some((port, subnet.fabric.port(port).peer()?)));
        let end =
            |port: PortIndex| (subnet.fabric.node_of(port).guid, subnet.fabric.port(port).num);
        // A link between two such nodes is listed from both.
        let returned: BTreeSet<_> =
            up.chain(pairs).chain(of_nodes).map(|(a, b)| end(a).min(end(b))).collect();
        let returned = returned.into_iter().take(RETURNED_MAX).collect();
        lines.iter().take(LINES_MAX).for_each(|line| info!("{line}"));
        if lines.len() > LINES_MAX {
            info!("{} more links and nodes came back", lines.len() - LINES_MAX);
            lines.drain(LINES_MAX..).for_each(|line| debug!("{line}"));
        }
        subnet.journal.report.came_back = lines;
        if !subnet.overwritten.is_reported(now) {
            subnet.journal.report.returned = returned;
        }
    }
}

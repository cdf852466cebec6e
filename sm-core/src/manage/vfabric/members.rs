//! Device groups as ports.

use std::collections::BTreeSet;

use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::PortGroup;

use crate::manage::end_port::EndPort;
use sm_config::opafm::DeviceGroup;

/// Ports of a device group, those of the groups that it includes among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    /// Kinds of nodes all of whose ports are members; bits of [`PortGroup`].
    pub(super) node_types: u8,
    /// Positions of end ports that are also members.
    pub(super) ports: BTreeSet<usize>,
}

/// The bit of a kind of node.
pub(super) fn bit(kind: NodeType) -> u8 {
    match kind {
        NodeType::Switch => PortGroup::NODE_SWITCH,
        NodeType::Router => PortGroup::NODE_ROUTER,
        _ => PortGroup::NODE_CA,
    }
}

/// The members of every group.
pub(super) fn resolve(groups: &[DeviceGroup], ports: &[EndPort]) -> Vec<Members> {
    let own: Vec<Members> = groups.iter().map(|group| named(group, ports)).collect();
    let mut all = Vec::with_capacity(groups.len());
    for start in 0..groups.len() {
        let mut members = Members::default();
        let mut seen = vec![false; groups.len()];
        let mut open = vec![start];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            members.node_types |= own[at].node_types;
            members.ports.extend(&own[at].ports);
            open.extend(&groups[at].includes);
        }
        let kinds = members.node_types;
        members.ports.retain(|&at| kinds & bit(ports[at].kind) == 0);
        all.push(members);
    }
    all
}

/// Members of a group apart from those of included groups.
fn named(group: &DeviceGroup, ports: &[EndPort]) -> Members {
    let select = group.select;
    let kinds = [
        (select.all || select.interfaces, PortGroup::NODE_CA | PortGroup::NODE_ROUTER),
        (select.all || select.switches, PortGroup::NODE_SWITCH),
    ];
    let node_types = kinds.iter().filter(|(on, _)| *on).fold(0, |all, (_, bits)| all | bits);
    let is_member = |port: &EndPort| {
        (select.own && port.is_self)
            || (select.enhanced_port0 && port.is_enhanced_port0)
            || (select.targets && port.has_device_management)
            || (select.direct && port.is_direct)
            || (select.management && (port.is_self || port.has_sm))
            || group.system_images.contains(&port.system_image)
            || group.nodes.contains(&port.node)
            || group.ports.contains(&port.guid)
            || group.descriptions.iter().any(|p| p.matches(&port.description, port.num.0))
    };
    let found = ports.iter().enumerate().filter(|(_, port)| is_member(port));
    Members { node_types, ports: found.map(|(at, _)| at).collect() }
}

//! The published fabric as a net file.

use std::collections::HashMap;

use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::Guid;
use ib_mad::wire::attribute::{NodeInfo, NodeType, SwitchInfo};
use sa_proto::snapshot::{self, FabricPlane};

use crate::observe::links::End;
use crate::observe::node_name;

/// The net of a published fabric. Rates are those at which links run.
pub fn net_of(plane: &FabricPlane) -> Net {
    let mut net = Net::new();
    let mut numbers: HashMap<Guid, u32> = HashMap::new();
    for node in &plane.nodes {
        numbers.insert(node.guid, net.add_node(entry(node)));
    }
    for node in &plane.nodes {
        for port in &node.ports {
            let Some((guid, num)) = port.peer else { continue };
            let (Some(&a), Some(&b)) = (numbers.get(&node.guid), numbers.get(&guid)) else {
                continue;
            };
            let (a, b) = (PortRef { node: a, port: port.num.0 }, PortRef { node: b, port: num.0 });
            // Each cable is at both of its ends. One that cannot be is left out.
            let _ = net.connect(a, b);
        }
    }
    net
}

fn entry(node: &snapshot::Node) -> Node {
    let info = NodeInfo::of(&node.info);
    let kind = match node.switch_info {
        Some(_) => NodeKind::Switch,
        None if info.node_type() == NodeType::Router.code() => NodeKind::Router,
        None => NodeKind::Ca,
    };
    let last = node.ports.iter().map(|port| port.num.0).max().unwrap_or(0);
    let rate = |port: &snapshot::Port| -> Option<LinkRate> {
        port.peer?;
        End::new(node, port)?.active().replace(' ', "").parse().ok()
    };
    let best = node.ports.iter().filter_map(rate).max_by_key(|rate| (rate.speed, rate.width));
    let ports = info.num_ports().max(last);
    let mut entry = Node::new(kind, node.guid, ports, best.unwrap_or_default());
    entry.description = node_name(node);
    entry.system_image_guid = info.system_image_guid();
    entry.vendor_id = info.vendor_id();
    entry.device_id = info.device_id();
    let switch = node.switch_info.as_ref();
    entry.enhanced_port0 = switch.is_some_and(|switch| SwitchInfo::of(switch).enhanced_port0());
    for port in &node.ports {
        let Some(to) = entry.port_mut(port.num.0) else { continue };
        if let Some(end) = End::new(node, port) {
            (to.lid, to.lmc) = (end.info().base_lid().0, end.info().lmc());
        }
        to.guid = port.guid;
        to.rate = rate(port).unwrap_or(to.rate);
    }
    entry
}

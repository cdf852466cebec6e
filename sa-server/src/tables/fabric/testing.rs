//! Ports and nodes of planes for tests.

use std::sync::Arc;

use ib_mad::types::{Guid, Lid, Mtu, PKey, PortNum};
use ib_mad::wire::attribute::{LinkSpeeds, LinkWidths, NodeInfo, NodeType, PortInfo, PortState};
use sa_proto::snapshot::{Node, Port};

/// A port with the default P_Key, active if it has a peer.
pub(super) fn port(num: u8, guid: Guid, lid: Lid, peer: Option<(Guid, PortNum)>) -> Port {
    let mut info = [0; 64];
    PortInfo::of_mut(&mut info)
        .set_base_lid(lid)
        .set_link_width_active(LinkWidths::X4)
        .set_link_speed_active(LinkSpeeds::QDR)
        .set_mtu_cap(Mtu::B4096)
        .set_port_state(if peer.is_some() { PortState::Active } else { PortState::Down });
    Port { num: PortNum(num), guid, info, pkeys: [PKey::DEFAULT_FULL].into(), peer }
}

/// A node, whose description begins with its GUID.
pub(super) fn node(guid: Guid, kind: NodeType, ports: Vec<Port>) -> Arc<Node> {
    let mut info = [0; 40];
    NodeInfo::of_mut(&mut info)
        .set_node_type(kind)
        .set_num_ports(ports.len() as u8)
        .set_node_guid(guid)
        .set_port_guid(ports[0].guid);
    let switch_info = (kind == NodeType::Switch).then_some([0; 20]);
    let mut description = [0; 64];
    description[..8].copy_from_slice(&guid.0.to_be_bytes());
    Arc::new(Node { guid, info, description, switch_info, ports })
}

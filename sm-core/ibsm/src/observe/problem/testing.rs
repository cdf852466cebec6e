//! Small published fabrics for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{LinkSpeeds, LinkWidths, PortInfo, PortPhysState, PortState};
use sa_proto::snapshot::{FabricPlane, Node, Port};

/// A fabric of links between nodes; those from 100 are hosts. `slow` links run at 1x, those of
/// `init` are not Active.
pub(crate) fn plane(links: &[(u64, u8, u64, u8)], slow: usize, init: usize) -> Arc<FabricPlane> {
    let mut ports: BTreeMap<u64, Vec<Port>> = BTreeMap::new();
    for (at, &(a, p, b, q)) in links.iter().enumerate() {
        for (node, num, peer) in [(a, p, (b, q)), (b, q, (a, p))] {
            let mut info = [0; 64];
            let mut view = PortInfo::new(&mut info[..]).unwrap();
            view.set_base_lid(Lid(1));
            view.set_port_state(match at < init {
                true => PortState::Initialize,
                false => PortState::Active,
            });
            view.set_port_physical_state(PortPhysState::LinkUp);
            view.set_link_width_supported(LinkWidths(3));
            view.set_link_width_enabled(LinkWidths(3));
            view.set_link_width_active(LinkWidths(if at < slow { 1 } else { 2 }));
            view.set_link_speed_supported(LinkSpeeds(7));
            view.set_link_speed_enabled(LinkSpeeds(7));
            view.set_link_speed_active(LinkSpeeds::QDR);
            ports.entry(node).or_default().push(Port {
                num: PortNum(num),
                guid: Guid(node),
                info,
                pkeys: Vec::new().into(),
                peer: Some((Guid(peer.0), PortNum(peer.1))),
            });
        }
    }
    let mut plane = FabricPlane::default();
    for (guid, mut ports) in ports {
        ports.sort_by_key(|port| port.num);
        let mut description = [0; 64];
        let name = format!("n{guid}");
        description[..name.len()].copy_from_slice(name.as_bytes());
        let switch_info = (guid < 100).then_some([0; 20]);
        let node = Node { guid: Guid(guid), info: [0; 40], description, switch_info, ports };
        plane.nodes.push(Arc::new(node));
    }
    Arc::new(plane)
}

//! Evaluates the multicast tree of a group that all hosts join, as in every subnet with IPoIB.

use ib_mad::types::Lid;

use sm_routing::multicast::{Chooser, Fault, Orders, Place, Tree, Wanted};
use sm_routing::verify::Unicast;
use sm_routing::{HopMatrix, Routing, Topology};

/// VLs by SL, for links with eight VLs.
const VLS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];

/// Properties of that tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Links from its root to the farthest member.
    pub depth: u32,
    /// A credit loop that its packets can take part in, if any.
    pub fault: Option<Fault>,
}

impl Broadcast {
    /// Builds the tree alongside a routing, for packets of SL 0. `None` without hosts, or with more
    /// switches than a hop matrix supports.
    pub fn of(topology: &Topology, routing: &Routing) -> Option<Self> {
        let hosts = topology.destinations().iter().filter(|to| to.is_host());
        let members: Vec<Place> =
            hosts.map(|to| Place { switch: to.egress_switch, exit: to.exit }).collect();
        let hops = HopMatrix::compute(topology).filter(|_| !members.is_empty())?;
        let unicast = Unicast::find(topology, &routing.tables(), &routing.lanes);
        let orders = Orders::find(topology, &hops, &unicast, &routing.lanes, &VLS);
        let mlid = Lid::MULTICAST_FIRST;
        let wanted = Wanted { mlid, members: &members, sls: 1, before: None };
        let chosen = Chooser::new(topology, &hops, &orders).choose(&wanted);
        Some(Self { depth: depth(topology, &chosen.tree), fault: chosen.fault })
    }
}

/// Links from the root of a tree to the farthest switch.
pub fn depth(topology: &Topology, tree: &Tree) -> u32 {
    let mut deepest = 0;
    let mut waiting: Vec<(u16, Option<u8>, u32)> =
        tree.root.into_iter().map(|root| (root, None, 0)).collect();
    while let Some((switch, came_by, depth)) = waiting.pop() {
        deepest = deepest.max(depth);
        let ports = tree.mask(switch).unwrap_or_default();
        for port in ports.ports().filter(|&port| Some(port) != came_by) {
            if let Some(link) = topology.link_at(switch, port).map(|link| topology.link(link)) {
                waiting.push((link.peer, Some(link.peer_port), depth + 1));
            }
        }
    }
    deepest
}

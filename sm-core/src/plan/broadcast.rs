//! The tree of the group that all hosts are in, as every subnet with IPoIB has it.

use ib_mad::types::Lid;

use crate::routing::multicast::{Chooser, Fault, Orders, Place, Tree, Wanted};
use crate::routing::verify::Unicast;
use crate::routing::{HopMatrix, Routing, Topology};

/// VLs by SL, of links with eight.
const VLS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];

/// What is found out about that tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Links from its root to the member furthest away.
    pub depth: u32,
    /// How its packets can wait for others in a circle, if they can.
    pub fault: Option<Fault>,
}

impl Broadcast {
    /// Plants the tree beside a routing, for packets of SL 0. `None` without hosts, or with more
    /// switches than hops are counted for.
    pub fn of(topology: &Topology, routing: &Routing) -> Option<Self> {
        let hosts = topology.destinations().iter().filter(|to| to.is_host());
        let members: Vec<Place> =
            hosts.map(|to| Place { switch: to.home, exit: to.exit }).collect();
        let hops = HopMatrix::compute(topology).filter(|_| !members.is_empty())?;
        let unicast = Unicast::find(topology, &routing.tables(), &routing.lanes);
        let orders = Orders::find(topology, &hops, &unicast, &routing.lanes, &VLS);
        let mlid = Lid::MULTICAST_FIRST;
        let wanted = Wanted { mlid, members: &members, sls: 1, before: None };
        let planted = Chooser::new(topology, &hops, &orders).plant(&wanted);
        Some(Self { depth: depth(topology, &planted.tree), fault: planted.fault })
    }
}

/// Links from the root of a tree to the switch furthest away.
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

//! Names of nodes and LIDs, and size of the fabric, from the published snapshot.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::PortInfo;
use sa_proto::snapshot::{FabricPlane, Node, Snapshot};
use sm_config::NodeNames;

use super::moment::FabricCounts;

/// Number of LIDs that a port can have.
const LIDS: usize = Lid::UNICAST_LAST.0 as usize + 1;
/// Marks a LID without a node.
const NONE: u32 = u32::MAX;

/// Names derived from one fabric plane.
#[derive(Debug, Default)]
pub(super) struct Names {
    plane: Option<Arc<FabricPlane>>,
    /// By LID: index in the plane's nodes.
    by_lid: Vec<u32>,
    /// The last node of each LID that a node had and none has.
    left: HashMap<u16, LidOwner>,
    counts: FabricCounts,
}

/// The node that has a LID, or had it last. Empty strings if none is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LidOwner {
    pub(super) name: String,
    pub(super) guid: String,
    /// Whether it has left, or has another LID.
    pub(super) has_left: bool,
}

impl Names {
    /// Updates the names if a new fabric plane is published.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        let plane = snapshot.fabric();
        if self.plane.as_ref().is_some_and(|known| Arc::ptr_eq(known, plane)) {
            return;
        }
        let before = std::mem::replace(&mut self.by_lid, vec![NONE; LIDS]);
        let mut ends = 0;
        let mut switches = 0;
        for (at, node) in (0..).zip(&plane.nodes) {
            switches += u32::from(node.switch_info.is_some());
            for port in &node.ports {
                ends += u32::from(port.peer.is_some());
                let Ok(info) = PortInfo::new(&port.info[..]) else { continue };
                // Switch ports other than port 0 have no LID.
                if node.switch_info.is_some() && port.num.0 != 0 {
                    continue;
                }
                let first = usize::from(info.base_lid().0);
                for lid in (first..first + (1 << info.lmc())).filter(|&lid| lid != 0) {
                    if let Some(place) = self.by_lid.get_mut(lid) {
                        *place = at;
                    }
                }
            }
        }
        let nodes = self.plane.as_ref().map_or(&[][..], |before| &before.nodes);
        for ((lid, was), now) in (0..).zip(before).zip(&self.by_lid) {
            if *now != NONE {
                self.left.remove(&lid);
            } else if let Some(node) = nodes.get(was as usize) {
                let (name, guid) = (name(node), node.guid.to_string());
                self.left.insert(lid, LidOwner { name, guid, has_left: true });
            }
        }
        self.counts = FabricCounts {
            etag: etag(snapshot),
            switches,
            hosts: plane.nodes.len() as u32 - switches,
            links: ends / 2,
        };
        self.plane = Some(Arc::clone(plane));
    }

    /// The node that has a LID, or had it last.
    pub(super) fn of_lid(&self, lid: u16) -> LidOwner {
        let at = self.by_lid.get(usize::from(lid)).copied().unwrap_or(NONE);
        let node = self.plane.as_ref().and_then(|plane| plane.nodes.get(at as usize));
        let owner = |node: &Arc<Node>| LidOwner {
            name: name(node),
            guid: node.guid.to_string(),
            has_left: false,
        };
        node.map(owner).or_else(|| self.left.get(&lid).cloned()).unwrap_or_default()
    }

    /// Size of the fabric.
    pub(super) fn counts(&self) -> FabricCounts {
        self.counts.clone()
    }
}

/// The operator's names of nodes (`node_name_map_name`). They are read once, at the start of the
/// process, which manages one subnet; a snapshot does not have them, since SA records show the
/// nodes' own descriptions.
static GIVEN: OnceLock<NodeNames> = OnceLock::new();

/// Sets the operator's names, once: those of later calls are ignored.
pub(crate) fn give_names(names: NodeNames) {
    let _ = GIVEN.set(names);
}

/// The operator's names by node GUID.
pub(crate) fn given_names() -> impl Iterator<Item = (Guid, String)> {
    let names = GIVEN.get().into_iter().flat_map(|names| names.iter());
    names.map(|(&guid, name)| (guid, name.to_string()))
}

/// The operator's name of the node with this GUID.
pub(crate) fn given_name(guid: Guid) -> Option<String> {
    Some(GIVEN.get()?.get(&guid)?.to_string())
}

/// Name of a node, wherever one is shown: the operator's, or its description.
pub(crate) fn name(node: &Node) -> String {
    match GIVEN.get().and_then(|names| names.get(&node.guid)) {
        Some(name) => name.to_string(),
        None => description(node),
    }
}

/// A node's own description.
pub(crate) fn description(node: &Node) -> String {
    ib_mad::text::of_field(&node.description).trim_end().to_owned()
}

/// An ETag of the published fabric: a checksum of all its content.
pub(crate) fn etag(snapshot: &Snapshot) -> String {
    format!("{:032x}", snapshot.checksum().fabric)
}

/// Names that all tests of this process share, with one GUID for each test.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) const OF_TOPOLOGY: Guid = Guid(0xFACE_0001);
    pub(crate) const OF_API: Guid = Guid(0xFACE_0003);

    pub(crate) fn give() {
        let of = |guid, name: &str| (guid, Arc::from(name));
        give_names(
            [of(OF_TOPOLOGY, "rack 7 top"), of(OF_API, "rack 8 host 3")].into_iter().collect(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;
    use crate::observe::topology::Topology;

    /// Regression: requests of a host that had just left were those of an unknown LID.
    #[test]
    fn a_lid_has_the_name_of_the_last_node_that_had_it() {
        use ib_mad::types::PortNum;
        use sa_proto::snapshot::{Port, RegistryPlane, Session};
        let follow = |names: &mut Names, owners: &[(u64, u16)]| {
            let node = |&(guid, lid): &(u64, u16)| {
                let mut info = [0; 64];
                PortInfo::of_mut(&mut info).set_base_lid(Lid(lid));
                let (num, guid) = (PortNum(1), Guid(guid));
                let port = Port { num, guid, info, pkeys: [].into(), peer: None };
                let mut description = [0; 64];
                description[0] = b'a' + guid.0 as u8;
                let (info, switch_info) = ([0; 40], None);
                Arc::new(Node { guid, info, description, switch_info, ports: vec![port] })
            };
            let nodes = owners.iter().map(node).collect();
            let fabric = FabricPlane { nodes, ..FabricPlane::default() };
            let registry = RegistryPlane::default();
            let snapshot = Snapshot::build(Session::default(), 1, fabric, registry);
            names.follow(&snapshot.unwrap());
            let lids = [5, 6].map(|lid| names.of_lid(lid));
            lids.map(|owner| (owner.name, owner.has_left))
        };
        let mut names = Names::default();
        let is = |name: &str, has_left| (name.to_owned(), has_left);
        assert_eq!(follow(&mut names, &[(1, 5)]), [is("b", false), is("", false)]);
        assert_eq!(follow(&mut names, &[(2, 6)]), [is("b", true), is("c", false)]);
        assert_eq!(follow(&mut names, &[(1, 9)]), [is("b", true), is("c", true)]);
        assert_eq!(follow(&mut names, &[(3, 5)]), [is("d", false), is("c", true)]);
    }

    /// Regression: operators' names were in the log only.
    #[test]
    fn the_operators_names_are_shown_in_place_of_descriptions() {
        let (named, other) = (testing::OF_TOPOLOGY.0, 0xFACE_0002);
        testing::give();
        let plane = plane(&[(named, 1, other, 1)], 0, 0);
        let topology = Topology::of(&plane);
        assert_eq!(topology.name(Guid(named)), "rack 7 top");
        assert_ne!(topology.name(Guid(other)), "");
        let node = plane.nodes.iter().find(|node| node.guid == Guid(named)).unwrap();
        assert_ne!(description(node), "rack 7 top", "SA records keep their own");
    }
}

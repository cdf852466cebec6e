//! End ports with the attributes by which policies select them.

use std::collections::HashMap;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{CapabilityMask, NodeType};

use crate::fabric::{Fabric, PortIndex};

/// A port that has LIDs, with the attributes by which policies select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPort {
    /// Port GUID.
    pub guid: Guid,
    /// GUID of its node.
    pub node: Guid,
    /// SystemImageGUID of its node.
    pub system_image: Guid,
    /// Kind of its node.
    pub kind: NodeType,
    /// NodeDescription of its node.
    pub description: String,
    /// Its number; 0 on switches.
    pub num: PortNum,
    /// Ports that its node has.
    pub port_count: u8,
    /// Whether the SM runs on it.
    pub is_self: bool,
    /// Whether an SM of this subnet runs on it: it answered, which IsSM alone, a bit that a host
    /// sets, does not show.
    pub has_sm: bool,
    /// Whether it has a device management agent, as storage targets do.
    pub has_device_management: bool,
    /// Whether it is an enhanced port 0 of a switch.
    pub is_enhanced_port0: bool,
    /// Whether the other end of its link is no switch.
    pub is_direct: bool,
}

/// All end ports of a fabric, ascending by node GUID and port number. `managers`: the ports of the
/// SMs of this subnet.
pub fn end_ports(fabric: &Fabric, managers: &[PortIndex]) -> Vec<EndPort> {
    let end_port = |port| end_port(fabric, port, managers.contains(&port));
    let mut ports: Vec<EndPort> = fabric.end_ports().map(end_port).collect();
    ports.sort_unstable_by_key(|port| (port.node, port.num));
    ports
}

fn end_port(fabric: &Fabric, index: PortIndex, has_sm: bool) -> EndPort {
    let (port, node) = (fabric.port(index), fabric.node_of(index));
    let capabilities = port.port_info().capability_mask();
    let enhanced = |switch| fabric.switch(switch).switch_info().enhanced_port0();
    let no_switch = |peer| fabric.node_of(peer).switch.is_none();
    let end = node.description.iter().position(|&byte| byte == 0).unwrap_or(64);
    EndPort {
        guid: port.guid,
        node: node.guid,
        system_image: node.node_info().system_image_guid(),
        kind: node.kind,
        description: String::from_utf8_lossy(&node.description[..end]).into_owned(),
        num: port.num,
        port_count: node.port_count,
        is_self: fabric.sm_port() == Some(index),
        has_sm,
        has_device_management: capabilities
            .contains(CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED),
        is_enhanced_port0: node.switch.is_some_and(enhanced),
        is_direct: node.switch.is_none() && port.peer().is_some_and(no_switch),
    }
}

/// End ports by the description of their node. Of several nodes with one description the one with
/// the lowest GUID counts, as in OpenSM.
#[derive(Debug)]
pub struct Directory<'a> {
    by_description: HashMap<&'a str, &'a [EndPort]>,
}

impl<'a> Directory<'a> {
    /// Indexes `ports`, which are in the order of [`end_ports`].
    pub fn new(ports: &'a [EndPort]) -> Self {
        let mut by_description = HashMap::new();
        for ports in ports.chunk_by(|a, b| a.node == b.node) {
            by_description.entry(ports[0].description.as_str()).or_insert(ports);
        }
        Self { by_description }
    }

    /// The end ports of the node with that description; none if there is no such node.
    pub fn node(&self, description: &str) -> Option<&'a [EndPort]> {
        self.by_description.get(description).copied()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Port 1 of a channel adapter, whose node GUID is its port GUID.
    pub(crate) fn host(guid: u64, description: &str) -> EndPort {
        EndPort {
            guid: Guid(guid),
            node: Guid(guid),
            system_image: Guid(guid),
            kind: NodeType::Ca,
            description: description.to_owned(),
            num: PortNum(1),
            port_count: 1,
            is_self: false,
            has_sm: false,
            has_device_management: false,
            is_enhanced_port0: false,
            is_direct: false,
        }
    }

    /// Port 0 of a switch.
    pub(crate) fn switch(guid: u64, description: &str) -> EndPort {
        let (kind, num, port_count) = (NodeType::Switch, PortNum(0), 36);
        EndPort { kind, num, port_count, ..host(guid, description) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nodes_with_one_description_the_first_by_guid_counts() {
        let ports = [testing::host(1, "a"), testing::host(2, "b"), testing::host(3, "a")];
        let directory = Directory::new(&ports);
        assert_eq!(directory.node("a").unwrap()[0].guid, Guid(1));
        assert!(directory.node("c").is_none());
    }
}

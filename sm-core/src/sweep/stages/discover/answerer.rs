//! The identity of a node that answered a probe.

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType};

use crate::fabric::Node;

/// A NodeInfo that passed the checks.
#[derive(Clone, Debug)]
pub(in crate::sweep) struct Answerer {
    pub(in crate::sweep) bytes: [u8; 40],
    pub(in crate::sweep) kind: NodeType,
    pub(in crate::sweep) guid: Guid,
    pub(in crate::sweep) port_guid: Guid,
    pub(in crate::sweep) port_count: u8,
    pub(in crate::sweep) local_port: PortNum,
}

impl Answerer {
    /// Checks a NodeInfo; returns the reason if it is invalid.
    pub(in crate::sweep) fn parse(data: &[u8; 64]) -> Result<Self, &'static str> {
        let mut bytes = [0; 40];
        bytes.copy_from_slice(&data[..40]);
        let info = NodeInfo::new(&bytes).map_err(|_| "NodeInfo is too short")?;
        let kind = NodeType::from_code(info.node_type()).ok_or("its NodeType is reserved")?;
        let (port_count, local_port) = (info.num_ports(), info.local_port_num());
        let (guid, port_guid) = (info.node_guid(), info.port_guid());
        if guid.0 == 0 || port_guid.0 == 0 {
            return Err("its GUID is 0");
        }
        if port_count == 0 || port_count == u8::MAX {
            return Err("its NumPorts is invalid");
        }
        let first = u8::from(kind != NodeType::Switch);
        if !(first..=port_count).contains(&local_port.0) {
            return Err("its LocalPortNum is not one of its ports");
        }
        Ok(Self { bytes, kind, guid, port_guid, port_count, local_port })
    }

    /// Whether a node with this GUID may be the one that answered: the kind and the number of ports
    /// of a node do not change.
    pub(in crate::sweep) fn is_like(&self, node: &Node) -> bool {
        (node.kind, node.port_count) == (self.kind, self.port_count)
    }
}

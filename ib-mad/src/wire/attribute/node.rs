//! NodeInfo and NodeDescription.

use std::fmt;

use crate::types::{Guid, PortNum};
use crate::wire::field::{code_field, layout};

/// Node type (IBA 14.2.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum NodeType {
    /// Channel adapter.
    Ca = 1,
    /// Switch.
    Switch = 2,
    /// Router.
    Router = 3,
}

impl NodeType {
    /// The type of a code; `None` if reserved.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Ca),
            2 => Some(Self::Switch),
            3 => Some(Self::Router),
            _ => None,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ca => "CA",
            Self::Switch => "switch",
            Self::Router => "router",
        })
    }
}

code_field!(NodeType);

layout! {
    /// NodeInfo, 40 bytes (IBA 14.2.5.3).
    ///
    /// ```text
    ///  0 BaseVersion  1 ClassVersion  2 NodeType  3 NumPorts
    ///  4 SystemImageGUID (8)         12 NodeGUID (8)        20 PortGUID (8)
    /// 28 PartitionCap (2)            30 DeviceID (2)        32 Revision (4)
    /// 36 LocalPortNum                37 VendorID (3)
    /// ```
    pub struct NodeInfo(NodeInfoRepr): "NodeInfo", 40 bytes {
        /// Version of the MAD base format.
        base_version: u8 [0 .. 8],
        /// Version of the subnet management class.
        class_version: u8 [8 .. 16],
        /// Kind of the node.
        node_type: NodeType [16 .. 24],
        /// Number of physical ports; a switch's port 0 does not count.
        num_ports: u8 [24 .. 32],
        /// SystemImageGUID: common to the nodes of one enclosure; 0 if there is none.
        system_image_guid: Guid [32 .. 96],
        /// NodeGUID.
        node_guid: Guid [96 .. 160],
        /// GUID of the port that responds; on a switch always that of port 0.
        port_guid: Guid [160 .. 224],
        /// Entries of the P_KeyTable: per port of a CA, of port 0 of a switch.
        partition_cap: u16 [224 .. 240],
        /// Device ID, assigned by the vendor.
        device_id: u16 [240 .. 256],
        /// Device revision, assigned by the vendor.
        revision: u32 [256 .. 288],
        /// The port by which the request arrived.
        local_port_num: PortNum [288 .. 296],
        /// IEEE company ID of the vendor.
        vendor_id: u32 [296 .. 320],
    }
}

layout! {
    /// NodeDescription, 64 bytes of UTF-8, not necessarily terminated (IBA 14.2.5.2).
    pub struct NodeDescription(NodeDescriptionRepr): "NodeDescription", 64 bytes {
        /// The text, padded with zeros.
        node_string: [u8; 64] [0 .. 512],
    }
}

impl NodeDescriptionRepr {
    /// A description with as much of `text` as fits, cut between characters.
    pub fn from_text(text: &str) -> Self {
        let mut node_string = [0; 64];
        let text = crate::text::cut(text, node_string.len());
        node_string[..text.len()].copy_from_slice(text.as_bytes());
        Self { node_string }
    }

    /// The text up to the first zero, with invalid UTF-8 replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        let length = self.node_string.iter().position(|&byte| byte == 0).unwrap_or(64);
        String::from_utf8_lossy(&self.node_string[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_descriptions_are_cut_between_characters() {
        let long = format!("{}é", "a".repeat(63));
        assert_eq!(NodeDescriptionRepr::from_text(&long).text(), "a".repeat(63));
        let full = "b".repeat(64);
        assert_eq!(NodeDescriptionRepr::from_text(&full).text(), full);
        assert_eq!(NodeDescriptionRepr::from_text("node1 HCA-1").text(), "node1 HCA-1");
    }

    #[test]
    fn a_switch_says_so() {
        let mut bytes = [0; 40];
        let mut info = NodeInfo::of_mut(&mut bytes);
        info.set_node_type(NodeType::Switch).set_vendor_id(0x0002C9).set_local_port_num(PortNum(7));
        assert_eq!(bytes[2], 2);
        assert_eq!(bytes[36..40], [7, 0x00, 0x02, 0xC9]);
    }
}

//! `opensm-sl2vl.dump`: the virtual lane of each service level, by input and output
//! port.

use std::fmt::Write as _;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::NodeType;

use super::kind;

/// The SL-to-VL maps of an end port's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMaps {
    /// Node type.
    pub kind: NodeType,
    /// Port GUID.
    pub guid: Guid,
    /// Its base LID.
    pub lid: Lid,
    /// NodeDescription.
    pub name: String,
    /// Output ports, each with a map by input port, from 0. A host has
    /// one of each, 0.
    pub maps: Vec<(u8, Vec<[u8; 8]>)>,
}

const HEAD: &str = "#in out : 0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15";
const RULE: &str = "#--------------------------------------------------------";

/// Renders one end port.
pub fn sl2vl(port: &PortMaps) -> String {
    let (kind, guid, lid, name) = (kind(port.kind), port.guid.0, port.lid.0, &port.name);
    let mut text = format!("{kind} {guid:#018x}, base LID {lid}, \"{name}\"\n{HEAD}\n{RULE}\n");
    for (out_port, maps) in &port.maps {
        for (in_port, map) in maps.iter().enumerate() {
            let _ = write!(text, "{in_port:<3} {out_port:<3} :");
            for vls in map {
                let _ = write!(text, " {:<2} {:<2}", vls >> 4, vls & 15);
            }
            text.push('\n');
        }
    }
    text.extend([RULE, "\n\n"]);
    text
}

//! `opensm-subnet.lst`: each link from both ends, with the attributes of their nodes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{
    CapabilityMask, LinkSpeeds, LinkSpeedsExt, LinkWidths, NodeInfo, NodeType, PortInfo, PortState,
};
use sa_proto::snapshot::{Node, Port};

use crate::fabric::description;

/// A published node and its name.
#[derive(Clone, Debug)]
pub struct NamedNode {
    /// The node.
    pub row: Arc<Node>,
    /// The operator's name for it, if any, which replaces its NodeDescription.
    pub label: Option<Arc<str>>,
}

/// All nodes, in the order of the file.
#[derive(Debug)]
pub struct SubnetList<'a> {
    /// Sorted by GUID with its bytes reversed.
    nodes: Vec<&'a NamedNode>,
    by_guid: HashMap<Guid, &'a NamedNode>,
}

impl<'a> SubnetList<'a> {
    /// Sorts nodes.
    pub fn new(nodes: &'a [NamedNode]) -> Self {
        let by_guid = nodes.iter().map(|node| (node.row.guid, node)).collect();
        let mut nodes: Vec<_> = nodes.iter().collect();
        nodes.sort_by_key(|node| node.row.guid.0.swap_bytes());
        Self { nodes, by_guid }
    }

    /// The file in parts, one a node: a line for each of its ports that has a link.
    pub fn parts(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(|node| self.part(node))
    }

    fn part(&self, node: &NamedNode) -> String {
        let mut text = String::new();
        for port in node.row.ports.iter().filter(|port| port.num.0 != 0) {
            let Some((far, num)) = port.peer else { continue };
            let Some(far) = self.by_guid.get(&far) else { continue };
            let Some(far_port) = far.row.port(num) else { continue };
            end(&mut text, node, port, Place::Near);
            text.push(' ');
            end(&mut text, far, far_port, Place::Far);
            let (width, state) = (width(port), state(port));
            let speed = speed(port, port_info(managed(node, port)).capability_mask());
            let _ = writeln!(text, " PHY={width} LOG={state} SPD={speed}");
        }
        text
    }
}

/// Which end of a link. OpenSM formats some numbers of the far end differently, and programs that
/// read the file depend on that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Near,
    Far,
}

fn end(text: &mut String, node: &NamedNode, port: &Port, place: Place) {
    let NamedNode { row, label } = node;
    let info = NodeInfo::of(&row.info);
    let address = port_info(managed(node, port));
    let kind = match NodeType::from_code(info.node_type()) {
        Some(NodeType::Switch) => "SW",
        Some(NodeType::Router) => "Rt",
        _ => "CA",
    };
    let name = label.as_deref().map_or_else(|| description(&row.description), str::to_owned);
    let is_sm = address.base_lid() == address.master_sm_lid();
    let (vendor, device) = (info.vendor_id(), u32::from(info.device_id()));
    let _ = write!(
        text,
        "{{ {kind}{} Ports:{:02X} SystemGUID:{:016x} NodeGUID:{:016x} PortGUID:{:016x}",
        if is_sm { "-SM" } else { "" },
        info.num_ports(),
        info.system_image_guid().0,
        row.guid.0,
        port.guid.0,
    );
    let _ = match place {
        Place::Near => write!(text, " VenID:{vendor:06X} DevID:{device:04X}"),
        Place::Far => write!(text, " VenID:{vendor:08X} DevID:{:04X}", device << 16),
    };
    let _ = write!(
        text,
        " Rev:{:08X} {{{name}}} LID:{:04X} PN:{:02X} }}",
        info.revision(),
        address.base_lid().0,
        port.num.0
    );
}

/// The port whose PortInfo holds the LID and CapabilityMask: port 0 on a switch.
fn managed<'a>(node: &'a NamedNode, port: &'a Port) -> &'a Port {
    node.row.port(PortNum(0)).unwrap_or(port)
}

fn port_info(port: &Port) -> PortInfo<&[u8; 64]> {
    PortInfo::of(&port.info)
}

fn state(port: &Port) -> &'static str {
    match PortState::from_code(port_info(port).port_state()) {
        Some(PortState::Active) => "ACT",
        Some(PortState::Armed) => "ARM",
        Some(PortState::Initialize) => "INI",
        _ => "DWN",
    }
}

fn width(port: &Port) -> &'static str {
    match port_info(port).link_width_active() {
        LinkWidths::X1 => "1x",
        LinkWidths::X2 => "2x",
        LinkWidths::X4 => "4x",
        LinkWidths::X8 => "8x",
        LinkWidths::X12 => "12x",
        _ => "??",
    }
}

/// Gb/s per lane, as text. OpenSM does not know NDR and later speeds.
fn speed(port: &Port, capabilities: CapabilityMask) -> &'static str {
    let link = port_info(port).active_link(capabilities);
    match (link.speed_ext, link.speed) {
        (LinkSpeedsExt::NDR, _) => "100",
        (LinkSpeedsExt::HDR, _) => "50",
        (LinkSpeedsExt::EDR, _) => "25",
        (LinkSpeedsExt::FDR, _) => "14",
        (LinkSpeedsExt::NONE, LinkSpeeds::SDR) => "2.5",
        (LinkSpeedsExt::NONE, LinkSpeeds::DDR) => "5",
        (LinkSpeedsExt::NONE, LinkSpeeds::QDR) => "10",
        _ => "??",
    }
}

//! `opensm-subnet.lst`: each link from both of its ends, with all that their nodes say of themselves.

use std::fmt::Write as _;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::{
    CapabilityMask, LinkSpeeds, LinkSpeedsExt, LinkWidths, NodeType, PortState,
};

use crate::fabric::{Fabric, NodeIndex, Port, PortIndex};

/// One node's part: a line for each of its ports that has a link.
pub fn subnet_lst(fabric: &Fabric, node: NodeIndex) -> String {
    let mut text = String::new();
    for near in fabric.ports_of(node).filter(|port| fabric.port(*port).num.0 != 0) {
        let Some(far) = fabric.port(near).peer() else { continue };
        let (port, managed) = (fabric.port(near), fabric.port(managed(fabric, near)));
        end(&mut text, fabric, near, Place::Near);
        text.push(' ');
        end(&mut text, fabric, far, Place::Far);
        let (width, state) = (width(port), state(port));
        let speed = speed(port, managed.port_info().capability_mask());
        let _ = writeln!(text, " PHY={width} LOG={state} SPD={speed}");
    }
    text
}

/// Nodes in the order of the file: by GUID read from its last byte.
pub fn subnet_lst_order(fabric: &Fabric) -> Vec<NodeIndex> {
    let mut order: Vec<NodeIndex> = fabric.nodes().map(|(index, _)| index).collect();
    order.sort_by_key(|&index| fabric.node(index).guid.0.swap_bytes());
    order
}

/// Which end of a link. OpenSM writes some numbers of the far one otherwise, and who reads the file
/// has learnt that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Near,
    Far,
}

fn end(text: &mut String, fabric: &Fabric, index: PortIndex, place: Place) {
    let (port, node) = (fabric.port(index), fabric.node_of(index));
    let managed = fabric.port(managed(fabric, index));
    let (info, address) = (node.node_info(), managed.port_info());
    let kind = match node.kind {
        NodeType::Switch => "SW",
        NodeType::Ca => "CA",
        NodeType::Router => "Rt",
    };
    let is_sm = address.base_lid() == address.master_sm_lid();
    let (vendor, device) = (info.vendor_id(), u32::from(info.device_id()));
    let _ = write!(
        text,
        "{{ {kind}{} Ports:{:02X} SystemGUID:{:016x} NodeGUID:{:016x} PortGUID:{:016x}",
        if is_sm { "-SM" } else { "" },
        node.port_count,
        info.system_image_guid().0,
        node.guid.0,
        port.guid.0,
    );
    let _ = match place {
        Place::Near => write!(text, " VenID:{vendor:06X} DevID:{device:04X}"),
        Place::Far => write!(text, " VenID:{vendor:08X} DevID:{:04X}", device << 16),
    };
    let _ = write!(
        text,
        " Rev:{:08X} {{{}}} LID:{:04X} PN:{:02X} }}",
        info.revision(),
        node.name(),
        address.base_lid().0,
        port.num.0
    );
}

/// The port whose PortInfo has the LID and the capabilities: port 0 on a switch.
fn managed(fabric: &Fabric, port: PortIndex) -> PortIndex {
    match fabric.node_of(port).switch {
        Some(_) => fabric.port_of(fabric.port(port).node, PortNum(0)).unwrap_or(port),
        None => port,
    }
}

fn state(port: &Port) -> &'static str {
    match port.state() {
        Some(PortState::Active) => "ACT",
        Some(PortState::Armed) => "ARM",
        Some(PortState::Initialize) => "INI",
        _ => "DWN",
    }
}

fn width(port: &Port) -> &'static str {
    match port.port_info().link_width_active() {
        LinkWidths::X1 => "1x",
        LinkWidths::X2 => "2x",
        LinkWidths::X4 => "4x",
        LinkWidths::X8 => "8x",
        LinkWidths::X12 => "12x",
        _ => "??",
    }
}

/// Gigabits a second and lane, by name. NDR and later ones OpenSM does not know.
fn speed(port: &Port, capabilities: CapabilityMask) -> &'static str {
    let link = port.port_info().active_link(capabilities);
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

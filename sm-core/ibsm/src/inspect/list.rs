//! Lists of nodes, ports and links.

use std::fmt;

use ib_mad::types::{Guid, Mtu, PortNum};
use ib_mad::wire::attribute::{
    CapabilityMask, NodeInfo, NodeType, PortInfo, PortPhysState, PortState,
};
use sa_proto::snapshot::{Node, Port};
use serde::Serialize;

use super::{FabricView, hex, info, is_end_port, kind, lids};

/// Nodes, as a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Nodes(Vec<NodeRow>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct NodeRow {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    guid: String,
    /// Base LIDs of its end ports that have one.
    lids: Vec<usize>,
    /// Ports that it has, that have a link, and that are active.
    ports: u8,
    linked: usize,
    active: usize,
    vendor_id: String,
    device_id: String,
}

/// Ports, as a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Ports(Vec<PortRow>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PortRow {
    node: String,
    node_guid: String,
    port: u8,
    /// Its own; external ports of a switch have that of port 0.
    guid: String,
    /// Base LID of an end port.
    lid: Option<usize>,
    lmc: Option<u8>,
    state: &'static str,
    phys_state: &'static str,
    /// Width, speed and rate of its link.
    link: Option<LinkSpeed>,
    /// NeighborMTU, bytes.
    mtu: Option<u16>,
    peer: Option<Place>,
}

/// Links, as a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Links(Vec<LinkRow>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct LinkRow {
    from: Place,
    to: Place,
    state: &'static str,
    link: Option<LinkSpeed>,
}

/// A port by the name of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Place {
    node: String,
    node_guid: String,
    port: u8,
}

/// What a link runs at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct LinkSpeed {
    /// Lanes.
    width: u8,
    speed: &'static str,
    rate_mbps: Option<u32>,
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, speed, rate_mbps } = self;
        write!(f, "{width}x {speed}")?;
        match rate_mbps {
            Some(rate) => write!(f, " {} Gb/s", f64::from(*rate) / 1e3),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/P{}", self.node, self.port)
    }
}

/// The nodes, all or one, of one type unless `only` is empty; `None` if there is no such type.
pub(crate) fn nodes(of: Option<Guid>, only: &str, fabric: &FabricView) -> Option<Nodes> {
    Some(Nodes(selected(of, only, fabric)?.map(|node| node_row(node, fabric)).collect()))
}

/// The ports of these nodes, except port 0 of switches.
pub(crate) fn ports(of: Option<Guid>, only: &str, fabric: &FabricView) -> Option<Ports> {
    let rows = selected(of, only, fabric)?
        .flat_map(|node| external(node).map(move |port| port_row(node, port, fabric)));
    Some(Ports(rows.collect()))
}

/// The links of these nodes, each once.
pub(crate) fn links(of: Option<Guid>, only: &str, fabric: &FabricView) -> Option<Links> {
    let is_selected = |node: &Node| {
        of.is_none_or(|guid| guid == node.guid) && (only.is_empty() || kind_word(node) == only)
    };
    let mut rows = Vec::new();
    for node in selected(of, only, fabric)? {
        for port in external(node) {
            let Some((guid, number)) = port.peer else { continue };
            let peer = fabric.node(guid);
            // It is listed from the end that comes first.
            let is_again = peer.is_some_and(is_selected) && (guid, number) < (node.guid, port.num);
            if is_again {
                continue;
            }
            rows.push(LinkRow {
                from: place(fabric, node, port.num),
                to: peer_place(fabric, guid, number),
                state: state_word(&info(port)),
                link: link_speed(node, port),
            });
        }
    }
    Some(Links(rows))
}

/// The nodes that are listed; `None` if there is no type `only`.
pub(super) fn selected<'a>(
    of: Option<Guid>,
    only: &'a str,
    fabric: &'a FabricView,
) -> Option<impl Iterator<Item = &'a Node>> {
    if !["", "ca", "switch", "router"].contains(&only) {
        return None;
    }
    let is_selected = move |node: &&Node| {
        of.is_none_or(|guid| guid == node.guid) && (only.is_empty() || kind_word(node) == only)
    };
    Some(fabric.nodes().filter(is_selected))
}

/// Ports with a number other than 0.
fn external(node: &Node) -> impl Iterator<Item = &Port> {
    node.ports.iter().filter(|port| port.num != PortNum(0))
}

fn kind_word(node: &Node) -> &'static str {
    match kind(node) {
        NodeType::Switch => "switch",
        NodeType::Router => "router",
        _ => "ca",
    }
}

fn node_row(node: &Node, fabric: &FabricView) -> NodeRow {
    let node_info = NodeInfo::of(&node.info);
    let end_ports = node.ports.iter().filter(|port| is_end_port(node, port));
    let is_active =
        |port: &&Port| PortState::from_code(info(port).port_state()) == Some(PortState::Active);
    NodeRow {
        name: fabric.name(node),
        kind: kind_word(node),
        guid: hex(node.guid),
        lids: end_ports.filter_map(|port| lids(port).next()).collect(),
        ports: node_info.num_ports(),
        linked: external(node).filter(|port| port.peer.is_some()).count(),
        active: external(node).filter(is_active).count(),
        vendor_id: format!("{:#08x}", node_info.vendor_id()),
        device_id: format!("{:#06x}", node_info.device_id()),
    }
}

fn port_row(node: &Node, port: &Port, fabric: &FabricView) -> PortRow {
    let port_info = info(port);
    let is_end = is_end_port(node, port);
    PortRow {
        node: fabric.name(node),
        node_guid: hex(node.guid),
        port: port.num.0,
        guid: hex(port.guid),
        lid: lids(port).next().filter(|_| is_end),
        lmc: is_end.then(|| port_info.lmc()),
        state: state_word(&port_info),
        phys_state: phys_word(&port_info),
        link: link_speed(node, port),
        mtu: port.peer.and_then(|_| Mtu::from_code(port_info.neighbor_mtu())).map(Mtu::bytes),
        peer: port.peer.map(|(guid, number)| peer_place(fabric, guid, number)),
    }
}

/// What its link runs at, if it has one.
fn link_speed(node: &Node, port: &Port) -> Option<LinkSpeed> {
    port.peer?;
    // External ports of a switch have no capabilities of their own.
    let first = node.ports.first().map(|port| info(port).capability_mask());
    let link = info(port).active_link(first.unwrap_or(CapabilityMask::NONE));
    Some(LinkSpeed {
        width: link.width.lanes()?,
        speed: link.speed_name()?,
        rate_mbps: link.rate().map(|rate| rate.mbps()),
    })
}

fn place(fabric: &FabricView, node: &Node, port: PortNum) -> Place {
    Place { node: fabric.name(node), node_guid: hex(node.guid), port: port.0 }
}

fn peer_place(fabric: &FabricView, guid: Guid, port: PortNum) -> Place {
    match fabric.node(guid) {
        Some(node) => place(fabric, node, port),
        None => Place { node: hex(guid), node_guid: hex(guid), port: port.0 },
    }
}

fn state_word(info: &PortInfo<&[u8]>) -> &'static str {
    match PortState::from_code(info.port_state()) {
        Some(PortState::Down) => "down",
        Some(PortState::Initialize) => "init",
        Some(PortState::Armed) => "armed",
        Some(PortState::Active) => "active",
        _ => "unknown",
    }
}

fn phys_word(info: &PortInfo<&[u8]>) -> &'static str {
    const WORDS: [(PortPhysState, &str); 7] = [
        (PortPhysState::Sleep, "sleep"),
        (PortPhysState::Polling, "polling"),
        (PortPhysState::Disabled, "disabled"),
        (PortPhysState::PortConfigurationTraining, "training"),
        (PortPhysState::LinkUp, "link up"),
        (PortPhysState::LinkErrorRecovery, "error recovery"),
        (PortPhysState::PhyTest, "phy test"),
    ];
    let state = info.port_physical_state();
    WORDS.iter().find(|(known, _)| known.code() == state).map_or("unknown", |(_, word)| word)
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|row| {
            let lids: Vec<String> = row.lids.iter().map(ToString::to_string).collect();
            let lids = if lids.is_empty() { "-".to_owned() } else { lids.join(",") };
            let ports = format!("{}/{}", row.active, row.ports);
            [row.name.clone(), row.kind.to_owned(), row.guid.clone(), lids, ports]
        });
        table(f, ["NAME", "TYPE", "GUID", "LID", "ACTIVE PORTS"], rows, "no nodes")
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let rows = self.0.iter().map(|row| {
            let state = match row.state {
                "down" => format!("down ({})", row.phys_state),
                state => state.to_owned(),
            };
            [
                format!("{}/P{}", row.node, row.port),
                or_none(row.lid.map(|lid| lid.to_string())),
                state,
                or_none(row.link.as_ref().map(ToString::to_string)),
                or_none(row.mtu.map(|mtu| mtu.to_string())),
                or_none(row.peer.as_ref().map(ToString::to_string)),
            ]
        });
        table(f, ["PORT", "LID", "STATE", "LINK", "MTU", "PEER"], rows, "no ports")
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|row| {
            let link = row.link.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
            [row.from.to_string(), row.to.to_string(), row.state.to_owned(), link]
        });
        table(f, ["FROM", "TO", "STATE", "LINK"], rows, "no links")
    }
}

/// Writes rows in columns that are as wide as their longest text.
pub(super) fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    empty: &str,
) -> fmt::Result {
    let rows: Vec<[String; N]> = rows.collect();
    if rows.is_empty() {
        return writeln!(f, "{empty}");
    }
    let mut widths = head.map(|text| text.chars().count());
    for row in &rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    let mut line = |texts: [&str; N]| {
        for (at, (text, width)) in texts.into_iter().zip(widths).enumerate() {
            match at + 1 == N {
                true => writeln!(f, "{text}")?,
                false => write!(f, "{text:<width$}  ")?,
            }
        }
        Ok(())
    };
    line(head)?;
    rows.iter().try_for_each(|row| line(std::array::from_fn(|at| &row[at][..])))
}

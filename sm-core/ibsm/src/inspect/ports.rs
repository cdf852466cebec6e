//! The port of a LID, and states, widths and speeds of ports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{
    CapabilityMask, LinkSpeeds, LinkSpeedsExt, LinkWidths, NodeInfo, NodeType, PortInfo,
    PortPhysState, PortState,
};
use regex::RegexSet;
use sa_proto::snapshot::{Node, Port};
use serde::Serialize;

use super::{FabricView, Named, hex, info, is_end_port, kind, kind_name, lids};

/// The port that has a LID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LidReport {
    lid: u16,
    guid: String,
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    num_ports: u8,
    /// By port of the node, whether it could be read and set.
    healthy: BTreeMap<u8, bool>,
}

impl fmt::Display for LidReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line =
            |label: &str, value: &dyn fmt::Display| writeln!(f, "   {label:<20}: {value}");
        line("GUID", &self.guid)?;
        line("Node Desc", &self.name)?;
        line("Node Type", &self.kind)?;
        line("Num Ports", &self.num_ports)?;
        for (port, is_healthy) in &self.healthy {
            // Not padded, as OpenSM's.
            writeln!(
                f,
                "   Port {port} health       : {}",
                if *is_healthy { "OK" } else { "ERROR" }
            )?;
        }
        Ok(())
    }
}

/// The port that has a LID, and the health of its node.
pub(crate) fn query_lid(lid: u16, fabric: &FabricView) -> Option<LidReport> {
    let has = |port: &&Port| lids(port).contains(&usize::from(lid));
    let (node, port) = fabric.nodes().find_map(|node| {
        let mut ports = node.ports.iter().filter(|port| is_end_port(node, port));
        Some((node, ports.find(has)?))
    })?;
    let num_ports = NodeInfo::of(&node.info).num_ports();
    let first = u8::from(kind(node) != NodeType::Switch);
    let health = |num| (num, fabric.is_healthy(node, PortNum(num)));
    Some(LidReport {
        lid,
        guid: hex(port.guid),
        name: fabric.name(node),
        kind: kind_name(kind(node)),
        num_ports,
        healthy: (first..=num_ports).map(health).collect(),
    })
}

/// Speeds as OpenSM's console names them, with our names of them, the slowest first.
const SPEEDS: [(&str, &str); 9] = [
    ("2.5 Gbps", "SDR"),
    ("5.0 Gbps", "DDR"),
    ("10.0 Gbps", "QDR"),
    ("10.0 Gbps (FDR10)", "FDR10"),
    ("14.0625 Gbps", "FDR"),
    ("25.78125 Gbps", "EDR"),
    ("53.125 Gbps", "HDR"),
    ("106.25 Gbps", "NDR"),
    ("212.5 Gbps", "XDR"),
];

/// Widths as OpenSM's console names them.
const WIDTHS: [(&str, LinkWidths); 5] = [
    ("1X", LinkWidths::X1),
    ("2X", LinkWidths::X2),
    ("4X", LinkWidths::X4),
    ("8X", LinkWidths::X8),
    ("12X", LinkWidths::X12),
];

/// What may be wrong with ports, in the order of OpenSM's console.
const ISSUES: [&str; 7] = [
    "disabled",
    "with unenabled speed",
    "with reduced speed",
    "with unknown speed",
    "with unenabled width",
    "with reduced width",
    "with unknown width",
];

/// States, widths and speeds of ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PortStatus {
    #[serde(rename = "type")]
    kind: &'static str,
    nodes: u64,
    ports: u64,
    /// How long the count took.
    us: u64,
    down: u64,
    active: u64,
    /// Numbers of ports by width, the narrowest first, and by speed, the slowest first.
    widths: Vec<(&'static str, u64)>,
    speeds: Vec<(&'static str, u64)>,
    issues: Vec<Issue>,
}

/// Something that may be wrong, and the ports where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Issue {
    issue: &'static str,
    ports: Vec<IssuePort>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct IssuePort {
    #[serde(flatten)]
    node: Named,
    port: u8,
}

impl fmt::Display for PortStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\"{}\" port status:", self.kind)?;
        let Self { ports, nodes, us, .. } = self;
        writeln!(f, "   {ports} port(s) scanned on {nodes} nodes in {us} us")?;
        for (count, words) in [(self.down, "down"), (self.active, "active")] {
            if count > 0 {
                writeln!(f, "   {count} {words}")?;
            }
        }
        for (name, count) in self.widths.iter().chain(&self.speeds) {
            writeln!(f, "   {count} at {name}")?;
        }
        if !self.issues.is_empty() {
            writeln!(f, "\nPossible issues:")?;
        }
        for Issue { issue, ports } in &self.issues {
            writeln!(f, "   {} {issue}", ports.len())?;
            for IssuePort { node: Named { guid, name }, port } in ports {
                writeln!(f, "      {guid} {port} ({name})")?;
            }
        }
        writeln!(f)
    }
}

/// What was counted.
#[derive(Default)]
struct Census {
    nodes: u64,
    ports: u64,
    down: u64,
    active: u64,
    widths: [u64; WIDTHS.len()],
    speeds: [u64; SPEEDS.len()],
    issues: [Vec<IssuePort>; ISSUES.len()],
}

/// States, widths and speeds of all ports, or those of one type of nodes (`ca`, `switch`,
/// `router`); `None` if there is no such type.
pub(crate) fn port_status(of: Option<&str>, fabric: &FabricView) -> Option<PortStatus> {
    let only = match of {
        None => None,
        Some("ca") => Some(NodeType::Ca),
        Some("switch") => Some(NodeType::Switch),
        Some("router") => Some(NodeType::Router),
        Some(_) => return None,
    };
    let begun = Instant::now();
    let mut census = Census::default();
    for node in fabric.nodes().filter(|node| only.is_none_or(|only| kind(node) == only)) {
        census.nodes += 1;
        // External ports of a switch have no capabilities of their own.
        let capabilities = node.ports.first().map(|port| info(port).capability_mask());
        for port in node.ports.iter().filter(|port| port.num != PortNum(0)) {
            census.count(node, port, capabilities.unwrap_or(CapabilityMask::NONE), fabric);
        }
    }
    let issues = ISSUES.into_iter().zip(census.issues);
    let issues = issues.filter(|(_, ports)| !ports.is_empty());
    Some(PortStatus {
        kind: only.map_or("ALL", kind_name),
        nodes: census.nodes,
        ports: census.ports,
        us: begun.elapsed().as_micros() as u64,
        down: census.down,
        active: census.active,
        widths: present(WIDTHS.map(|(name, _)| name), census.widths),
        speeds: present(SPEEDS.map(|(name, _)| name), census.speeds),
        issues: issues.map(|(issue, ports)| Issue { issue, ports }).collect(),
    })
}

/// What was counted at least once.
fn present<const N: usize>(names: [&'static str; N], counts: [u64; N]) -> Vec<(&'static str, u64)> {
    names.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

impl Census {
    fn count(
        &mut self,
        node: &Node,
        port: &Port,
        capabilities: CapabilityMask,
        fabric: &FabricView,
    ) {
        let info = info(port);
        let state = PortState::from_code(info.port_state());
        let mut note = |issue: usize| {
            self.issues[issue].push(IssuePort { node: fabric.named(node), port: port.num.0 });
        };
        self.ports += 1;
        match state {
            Some(PortState::Down) => self.down += 1,
            Some(PortState::Active) => self.active += 1,
            _ => {}
        }
        if info.port_physical_state() == PortPhysState::Disabled.code() {
            note(0);
        }
        if state == Some(PortState::Down) {
            return;
        }
        match speed(&info, capabilities) {
            Use::Unenabled => note(1),
            Use::Reduced => note(2),
            Use::Best => {}
        }
        let link = info.active_link(capabilities);
        let known = |name: &str| SPEEDS.iter().position(|(_, known)| *known == name);
        match link.speed_name().and_then(known) {
            Some(at) => self.speeds[at] += 1,
            None => note(3),
        }
        match width(info.link_width_active(), info.link_width_enabled()) {
            Use::Unenabled => note(4),
            Use::Reduced => note(5),
            Use::Best => {}
        }
        match WIDTHS.iter().position(|(_, width)| *width == link.width) {
            Some(at) => self.widths[at] += 1,
            None => note(6),
        }
    }
}

/// How a link uses what is enabled.
enum Use {
    /// The best that is enabled is active.
    Best,
    /// Better is enabled.
    Reduced,
    /// What is active is not enabled.
    Unenabled,
}

impl Use {
    /// From bits, of which higher ones are better.
    fn of(active: u8, enabled: u8) -> Self {
        match () {
            () if active & enabled == 0 => Self::Unenabled,
            () if enabled ^ active > active => Self::Reduced,
            () => Self::Best,
        }
    }
}

/// How a link uses the widths that are enabled, by lanes: the bit of 2X, which came later, is above
/// that of 12X. (OpenSM compares bits, so that each 4X link of a port with 2X counts as reduced.)
fn width(active: LinkWidths, enabled: LinkWidths) -> Use {
    let lanes = |width: LinkWidths| width.lanes().unwrap_or(0);
    let widths = WIDTHS.into_iter().map(|(_, width)| width);
    let most = widths.filter(|width| enabled.contains(*width)).map(lanes).max().unwrap_or(0);
    match () {
        () if active.0 & enabled.0 == 0 => Use::Unenabled,
        () if most > lanes(active) => Use::Reduced,
        () => Use::Best,
    }
}

/// How a link uses the speeds that are enabled. Extended ones count if the port has and enables
/// some, and its other speed is the fastest.
fn speed(info: &PortInfo<&[u8]>, capabilities: CapabilityMask) -> Use {
    let (active, extended) = (info.link_speed_active(), info.link_speed_ext_enabled());
    let has_extended = capabilities.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED)
        && info.link_speed_ext_supported() != LinkSpeedsExt::NONE
        && extended != LinkSpeedsExt::DISABLE;
    // Ports may report none while an extended speed is active.
    let is_fastest = matches!(active, LinkSpeeds::QDR | LinkSpeeds::NONE);
    if has_extended && is_fastest {
        return Use::of(info.link_speed_ext_active().0, extended.0);
    }
    Use::of(active.0, info.link_speed_enabled().0)
}

/// GUIDs of a node's end ports, their aliases, and those of their virtual ports.
pub(crate) fn guids_of(node: &Node, fabric: &FabricView) -> BTreeSet<Guid> {
    let ports = node.ports.iter().filter(|port| is_end_port(node, port));
    let mut guids: BTreeSet<Guid> = ports.map(|port| port.guid).collect();
    let rows = fabric.snapshot.registry().alias_guids.iter();
    let aliases = rows.filter(|row| guids.contains(&row.port_guid)).map(|row| row.alias);
    let rows = fabric.snapshot.fabric().virtual_ports.iter();
    let rows = rows.filter(|row| guids.contains(&row.port_guid));
    let virtual_ports = rows.flat_map(|row| row.ports.iter().map(|port| port.guid));
    let further: Vec<Guid> = aliases.chain(virtual_ports).collect();
    guids.extend(further);
    guids
}

/// GUIDs of end ports, each with its aliases, whose nodes have names that match an expression.
pub(crate) fn port_guids(set: &RegexSet, fabric: &FabricView) -> Vec<Guid> {
    let mut aliases: HashMap<Guid, Vec<Guid>> = HashMap::new();
    for row in fabric.snapshot.registry().alias_guids.iter() {
        aliases.entry(row.port_guid).or_default().push(row.alias);
    }
    let mut guids = Vec::new();
    for node in fabric.nodes().filter(|node| set.is_match(&fabric.name(node))) {
        for port in node.ports.iter().filter(|port| is_end_port(node, port)) {
            guids.push(port.guid);
            guids.extend(aliases.get(&port.guid).into_iter().flatten());
        }
    }
    guids
}

//! Reports on the published fabric: the port of a LID, states of ports, how evenly forwarding
//! tables use links, in the format of OpenSM's console or as JSON with keys that stay; and lists of
//! nodes, ports and links.

mod balance;
mod find;
mod list;
mod paths;
mod ports;
mod virtual_ports;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use sa_proto::snapshot::{Node, Port, Snapshot};
use serde::Serialize;
use sm_config::NodeNames;

pub(crate) use balance::{of_lids, of_switches};
pub(crate) use find::{FindError, find, switch};
pub(crate) use list::{links, nodes, ports};
pub(crate) use paths::{ListedPort, ListedPorts};
pub(crate) use ports::{guids_of, port_guids, port_status, query_lid};
pub(crate) use virtual_ports::virtual_ports;

use crate::observe::node_name;

/// The fabric as it is published.
#[derive(Clone)]
pub(crate) struct FabricView {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Operators' names of nodes.
    pub(crate) names: Arc<NodeNames>,
    /// Ports that could not be read or set, or behind which nothing answers: node GUID and number.
    pub(crate) unhealthy: Arc<BTreeSet<(Guid, PortNum)>>,
}

impl FabricView {
    /// A node's name: the operator's, or its description.
    fn name(&self, node: &Node) -> String {
        self.names.get(&node.guid).map_or_else(|| node_name(node), |name| name.to_string())
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.snapshot.fabric().nodes.iter().map(|node| &**node)
    }

    /// The node with this GUID.
    fn node(&self, guid: Guid) -> Option<&Node> {
        let nodes = &self.snapshot.fabric().nodes;
        let at = nodes.binary_search_by_key(&guid, |node| node.guid).ok()?;
        Some(&*nodes[at])
    }

    fn is_healthy(&self, node: &Node, port: PortNum) -> bool {
        !self.unhealthy.contains(&(node.guid, port))
    }

    fn named(&self, node: &Node) -> Named {
        Named { guid: hex(node.guid), name: self.name(node) }
    }
}

/// A node in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Named {
    guid: String,
    name: String,
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.guid, self.name)
    }
}

/// A GUID in 16 digits.
fn hex(guid: Guid) -> String {
    format!("0x{:016x}", guid.0)
}

/// The type of a node.
fn kind(node: &Node) -> NodeType {
    NodeType::from_code(NodeInfo::of(&node.info).node_type()).unwrap_or(NodeType::Ca)
}

/// The name of a type of nodes, as OpenSM writes it.
fn kind_name(kind: NodeType) -> &'static str {
    match kind {
        NodeType::Switch => "Switch",
        NodeType::Router => "Router",
        _ => "Channel Adapter",
    }
}

/// Whether a port is an end port: of a switch only port 0 is one, and of the planes of a planarized
/// port only the one that stands for it.
fn is_end_port(node: &Node, port: &Port) -> bool {
    match kind(node) {
        NodeType::Switch => port.num == PortNum(0),
        _ => !node.is_further_plane(port),
    }
}

/// The PortInfo of a port.
fn info(port: &Port) -> PortInfo<&[u8]> {
    PortInfo::new(&port.info[..]).expect("PortInfo has 64 bytes")
}

/// The LIDs of an end port.
fn lids(port: &Port) -> Range<usize> {
    let info = info(port);
    let first = usize::from(info.base_lid().0);
    if first == 0 { 0..0 } else { first..first + (1 << info.lmc()) }
}

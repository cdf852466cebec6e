//! Paths in the format that ibacm reads to fill its cache (`route_preload opensm_full_v1`), that of
//! OpenSM's plug-in `dump_pr`. ibacm reads lines of at most 127 bytes, so names are left out.

use std::fmt::Write as _;

use ib_mad::types::{Guid, Lid, PortNum};
use sa_proto::proto::snapshot::PathList;
use sa_proto::snapshot::{Node, Port};

use super::{FabricView, info, is_end_port, kind, kind_name};

/// The ports of a list of paths.
pub(crate) struct ListedPorts {
    /// Ascending by LID.
    ports: Vec<ListedPort>,
}

/// An end port with a LID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPort {
    kind: &'static str,
    pub(crate) guid: Guid,
    lid: Lid,
    lmc: u8,
    number: PortNum,
    /// Whether its paths are listed, or only its LID.
    pub(crate) is_source: bool,
}

impl ListedPorts {
    /// The end ports of a fabric. Paths are listed of all, or of those of the nodes `sources`.
    pub(crate) fn of(fabric: &FabricView, sources: &[Guid]) -> Self {
        let of_node = |node| {
            let ports = fabric_ports(node);
            let is_source = sources.is_empty() || sources.contains(&node.guid);
            ports.map(move |port| {
                let info = info(port);
                ListedPort {
                    kind: kind_name(kind(node)),
                    guid: port.guid,
                    lid: info.base_lid(),
                    lmc: info.lmc(),
                    number: port.num,
                    is_source,
                }
            })
        };
        let mut ports: Vec<ListedPort> = fabric.nodes().flat_map(of_node).collect();
        ports.sort_unstable_by_key(|port| port.lid);
        Self { ports }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ListedPort> {
        self.ports.iter()
    }

    /// The section of a port: its heading, and its paths if it is a source that has any.
    pub(crate) fn section(&self, port: &ListedPort, paths: Option<&PathList>) -> String {
        let ListedPort { kind, guid, lid, lmc, number, .. } = port;
        let mut text =
            format!("{kind} 0x{:016x}, base LID {}, LMC {lmc}, port {}\n", guid.0, lid.0, number.0);
        let Some(paths) = paths else { return text };
        text += "# LID : SL : MTU : RATE\n";
        for to in &self.ports {
            let _ = match paths.lids.binary_search(&to.lid.0.into()) {
                Ok(at) => {
                    let value = |of: &[u32]| of.get(at).copied().unwrap_or_default();
                    let (sl, mtu) = (value(&paths.sls), value(&paths.mtus));
                    let rate = value(&paths.rates);
                    writeln!(text, "0x{:04X} : {sl} : {mtu} : {rate}", to.lid.0)
                }
                Err(_) => writeln!(text, "0x{:04X} : UNREACHABLE", to.lid.0),
            };
        }
        text.push('\n');
        text
    }
}

fn fabric_ports(node: &Node) -> impl Iterator<Item = &Port> {
    let is_listed = |port: &Port| is_end_port(node, port) && info(port).base_lid().is_unicast();
    node.ports.iter().filter(move |port| is_listed(port))
}

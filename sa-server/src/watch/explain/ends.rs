//! Finds a port by the name, GUID, LID or GID that an operator gives.

use std::convert::Infallible;
use std::str::FromStr;

use ib_mad::types::{Gid, Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType};
use sa_proto::snapshot::{Node, Port};
use serde::Serialize;

use super::ExplainError;
use crate::tables::{EndPort, Tables};

/// A port as an operator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A GID: of this subnet, or for a destination also of another.
    Gid(Gid),
    /// A port GUID, an alias GUID, or the GUID of a node that has one port.
    Guid(Guid),
    /// A LID, any of a port's.
    Lid(Lid),
    /// NodeDescription, with `/P` and a port number where a node has several. Its first word, or
    /// any prefix, is enough where only one port matches.
    Description(String),
}

/// Every text is a valid name, so this error never occurs.
pub type NameError = Infallible;

impl FromStr for Name {
    type Err = NameError;

    /// Numbers up to 0xBFFF are LIDs, larger ones GUIDs; other text is a description.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let text = text.trim();
        let number = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        Ok(match (number, text.parse::<Gid>()) {
            (Some(number), _) => match u16::try_from(number) {
                Ok(lid) if Lid(lid).is_unicast() => Self::Lid(Lid(lid)),
                _ => Self::Guid(Guid(number)),
            },
            (None, Ok(gid)) => Self::Gid(gid),
            (None, Err(_)) => Self::Description(text.to_owned()),
        })
    }
}

/// A port as the explanation reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct End {
    /// NodeDescription.
    pub node: String,
    /// Node GUID.
    pub node_guid: String,
    /// Kind of node: `ca`, `switch` or `router`.
    pub node_type: &'static str,
    /// Port number.
    pub port: u8,
    /// Port GUID, or the alias by which it was named.
    pub port_guid: String,
    /// Base LID.
    pub lid: u16,
    /// LMC: it has 2^LMC LIDs.
    pub lmc: u8,
    /// P_Key table, valid entries, in table order.
    pub pkeys: Vec<String>,
}

/// A port that was found.
pub(super) struct Resolved<'a> {
    pub(super) port: &'a EndPort,
    /// The LID by which it was named.
    pub(super) lid: Option<Lid>,
}

impl<'a> Resolved<'a> {
    pub(super) fn of(port: &'a EndPort) -> Self {
        Self { port, lid: None }
    }
}

pub(super) fn resolve<'a>(tables: &'a Tables, name: &Name) -> Result<Resolved<'a>, ExplainError> {
    let unknown = |name: String| move || ExplainError::Unknown { name, nearest: None };
    match name {
        Name::Lid(lid) => {
            let port = tables.end_ports.by_lid(*lid);
            let port = port.ok_or_else(unknown(format!("LID {lid}")))?;
            Ok(Resolved { port, lid: Some(*lid) })
        }
        Name::Gid(gid) => {
            let port = crate::query::local_port(tables, *gid);
            Ok(Resolved::of(port.ok_or_else(unknown(gid.to_string()))?))
        }
        Name::Guid(guid) => match tables.end_ports.by_guid(*guid) {
            Some(port) => Ok(Resolved::of(port)),
            None => only(guid.to_string(), ports_of(tables, |node, _| node.guid == *guid)),
        },
        Name::Description(text) => {
            for is_match in [is_exact, is_host, is_prefix] {
                let ports = ports_of(tables, |node, _| is_match(&description(node), text));
                if !ports.is_empty() {
                    return only(text.clone(), ports);
                }
                let Some((node_name, num)) = split_port(text) else { continue };
                let ports = ports_of(tables, |node, port| {
                    port == num && is_match(&description(node), node_name)
                });
                if !ports.is_empty() {
                    return only(text.clone(), ports);
                }
            }
            Err(ExplainError::Unknown { name: text.clone(), nearest: nearest(tables, text) })
        }
    }
}

/// Whether `description` is `name`.
fn is_exact(description: &str, name: &str) -> bool {
    description == name
}

/// Whether `description` is `name` with the adapter's suffix: `node1` matches `node1 HCA-1` and
/// not `node10 HCA-1`.
fn is_host(description: &str, name: &str) -> bool {
    description.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')) && !name.is_empty()
}

/// Whether `description` begins with `name`.
fn is_prefix(description: &str, name: &str) -> bool {
    !name.is_empty() && description.starts_with(name)
}

/// The node name nearest to `text` by edits, with or without the adapter's suffix, if at most a
/// third of it differs.
fn nearest(tables: &Tables, text: &str) -> Option<String> {
    let name = split_port(text).map_or(text, |(name, _)| name);
    let limit = (name.len() / 3).clamp(1, 4);
    let distance = |full: &str| {
        let host = full.split(' ').next().unwrap_or(full);
        strsim::levenshtein(name, full).min(strsim::levenshtein(name, host))
    };
    let nodes = tables.end_ports.all().iter().filter_map(|end| tables.node_and_port(end));
    nodes
        .map(|(node, _)| description(node))
        .map(|full| (distance(&full), full))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, full)| full)
}

/// `NAME/P1` or `NAME/1`.
fn split_port(text: &str) -> Option<(&str, PortNum)> {
    let (name, num) = text.rsplit_once('/')?;
    let num = num.strip_prefix(['P', 'p']).unwrap_or(num).parse().ok()?;
    Some((name, PortNum(num)))
}

fn only<'a>(name: String, ports: Vec<&'a EndPort>) -> Result<Resolved<'a>, ExplainError> {
    match ports[..] {
        [port] => Ok(Resolved::of(port)),
        [] => Err(ExplainError::Unknown { name, nearest: None }),
        _ => Err(ExplainError::Ambiguous { name, count: ports.len() }),
    }
}

/// The end ports that `wanted` selects, each once: aliases are left out.
fn ports_of(tables: &Tables, wanted: impl Fn(&Node, PortNum) -> bool) -> Vec<&EndPort> {
    let is_wanted = |end: &&EndPort| {
        tables
            .node_and_port(end)
            .is_some_and(|(node, port)| port.guid == end.guid && wanted(node, port.num))
    };
    tables.end_ports.all().iter().filter(is_wanted).collect()
}

/// NodeDescription as text.
pub(super) fn description(node: &Node) -> String {
    ib_mad::text::of_field(&node.description)
}

pub(super) fn node_type(node: &Node) -> Option<NodeType> {
    NodeType::from_code(NodeInfo::new(&node.info[..]).ok()?.node_type())
}

pub(super) fn describe(tables: &Tables, end: &EndPort) -> End {
    let found: Option<(&Node, &Port)> = tables.node_and_port(end);
    let node = found.map(|(node, _)| node);
    End {
        node: node.map(description).unwrap_or_default(),
        node_guid: node.map(|node| node.guid.to_string()).unwrap_or_default(),
        node_type: match node.and_then(node_type) {
            Some(NodeType::Ca) => "ca",
            Some(NodeType::Switch) => "switch",
            Some(NodeType::Router) => "router",
            _ => "unknown",
        },
        port: found.map_or(0, |(_, port)| port.num.0),
        port_guid: end.guid.to_string(),
        lid: end.lid.0,
        lmc: tables.end_class(end).lmc,
        pkeys: found
            .map(|(_, port)| {
                port.pkeys.iter().filter(|key| key.is_valid()).map(|key| key.to_string()).collect()
            })
            .unwrap_or_default(),
    }
}

//! Finds a node by what an operator calls it.

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::Node;

use super::{FabricView, is_end_port, kind, lids};

/// Why there is no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindError {
    /// No node of that name.
    #[error("no node is named {name}{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// The name nearest to it, if one is near.
        nearest: Option<String>,
    },
    /// Several nodes match that name.
    #[error("{count} nodes match {name}, such as '{first}' and '{second}'; give a longer name")]
    Ambiguous {
        /// The name.
        name: String,
        /// How many match.
        count: usize,
        /// Two of them.
        first: String,
        second: String,
    },
    /// The node is not a switch.
    #[error("{name} is no switch")]
    NoSwitch {
        /// The node's name.
        name: String,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

/// The node with this node or port GUID, LID (0x and decimal numbers up to 0xBFFF), or name: the
/// operator's or its description, with or without the adapter's suffix (`node1` is `node1 HCA-1`,
/// not `node10 HCA-1`), or the beginning of a name if only one node's begins so.
pub(crate) fn find<'a>(name: &str, fabric: &'a FabricView) -> Result<&'a Node, FindError> {
    let name = name.trim();
    if let Some(number) = number(name)
        && let Some(node) = fabric.nodes().find(|node| has_number(node, number))
    {
        return Ok(node);
    }
    let is_exact: fn(&str, &str) -> bool = |full, name| full == name;
    let is_host: fn(&str, &str) -> bool =
        |full, name| full.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
    let is_prefix: fn(&str, &str) -> bool = |full, name| full.starts_with(name);
    let names: Vec<(&Node, String, String)> = fabric
        .nodes()
        .map(|node| (node, fabric.name(node), ib_mad::text::of_field(&node.description)))
        .collect();
    for is_match in [is_exact, is_host, is_prefix] {
        let mut matching = names.iter().filter(|(_, shown, description)| {
            !name.is_empty() && (is_match(shown, name) || is_match(description, name))
        });
        let Some(first) = matching.next() else { continue };
        let Some(second) = matching.next() else { return Ok(first.0) };
        let (name, count) = (name.to_owned(), 2 + matching.count());
        let (first, second) = (first.1.clone(), second.1.clone());
        return Err(FindError::Ambiguous { name, count, first, second });
    }
    let hosts = names.iter().filter_map(|(_, shown, _)| shown.split(' ').next());
    let candidates = names.iter().map(|(_, shown, _)| &shown[..]).chain(hosts);
    let nearest = sm_config::nearest_of(name, candidates).map(str::to_owned);
    Err(FindError::Unknown { name: name.to_owned(), nearest })
}

/// The node with this GUID if it is a switch.
pub(crate) fn switch(guid: Guid, fabric: &FabricView) -> Result<Guid, FindError> {
    match fabric.node(guid) {
        Some(node) if kind(node) != NodeType::Switch => {
            Err(FindError::NoSwitch { name: fabric.name(node) })
        }
        _ => Ok(guid),
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn has_number(node: &Node, number: u64) -> bool {
    if let Ok(lid) = u16::try_from(number)
        && Lid(lid).is_unicast()
    {
        let mut ports = node.ports.iter().filter(|port| is_end_port(node, port));
        return ports.any(|port| lids(port).contains(&usize::from(lid)));
    }
    node.guid == Guid(number) || node.ports.iter().any(|port| port.guid == Guid(number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Snapshot};
    use sm_config::NodeNames;

    use super::*;

    fn view(names: &[&str]) -> FabricView {
        let node = |(at, name): (usize, &&str)| {
            let mut description = [0; 64];
            description[..name.len()].copy_from_slice(name.as_bytes());
            Arc::new(Node {
                guid: Guid(0x1_0000 + at as u64),
                info: [0; 40],
                description,
                switch_info: None,
                ports: Vec::new(),
            })
        };
        let nodes = names.iter().enumerate().map(node).collect();
        let fabric = FabricPlane { nodes, ..FabricPlane::default() };
        let snapshot =
            Snapshot::build(Session::default(), 1, fabric, RegistryPlane::default()).unwrap();
        FabricView {
            snapshot: Arc::new(snapshot),
            names: Arc::new(NodeNames::default()),
            unhealthy: Arc::default(),
        }
    }

    #[test]
    fn a_longer_match_goes_before_the_beginning_of_a_name() {
        let fabric = view(&["node1 HCA-1", "node10 HCA-1", "node2 HCA-1", "leaf"]);
        let found: BTreeMap<&str, Option<u64>> =
            ["node1", "node1 HCA-1", "node10", "node2 H", "l", "node", "0x10003", "7", ""]
                .into_iter()
                .map(|name| (name, find(name, &fabric).ok().map(|node| node.guid.0 - 0x1_0000)))
                .collect();
        let expected = BTreeMap::from([
            ("node1", Some(0)),
            ("node1 HCA-1", Some(0)),
            ("node10", Some(1)),
            ("node2 H", Some(2)),
            ("l", Some(3)),
            ("node", None),
            ("0x10003", Some(3)),
            ("7", None),
            ("", None),
        ]);
        assert_eq!(found, expected);
        let reason = |name: &str| find(name, &fabric).unwrap_err().to_string();
        assert_eq!(reason("nide10"), "no node is named nide10; did you mean 'node10'?");
        assert_eq!(
            reason("node"),
            "3 nodes match node, such as 'node1 HCA-1' and 'node10 HCA-1'; give a longer name"
        );
    }
}

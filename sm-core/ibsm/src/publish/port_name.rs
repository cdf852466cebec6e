//! Finds an end port of a snapshot by the GUID, LID or name that an operator gives, as
//! `ibsmctl explain` has them.

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use sa_proto::snapshot::{FabricPlane, Node, Port};
use sm_config::parse_number;
use tonic::Status;

use crate::observe::{description, node_name};

/// A port with its node.
pub(super) type Found<'a> = (&'a Node, &'a Port);

/// Finds the end port. Numbers up to 0xBFFF are LIDs, larger ones GUIDs of ports or of nodes with
/// one port. Other text is a NodeDescription, the first word of one or its beginning, with `/P` and
/// a port number where several ports match.
pub(super) fn find<'a>(plane: &'a FabricPlane, text: &str) -> Result<Found<'a>, Status> {
    let text = text.trim();
    let number = parse_number(text);
    let lid = number.and_then(|number| u16::try_from(number).ok()).map(Lid);
    let found = match (number, lid.filter(|lid| lid.is_unicast())) {
        (_, Some(lid)) => select(plane, |_, port| has_lid(port, lid)),
        (Some(number), _) => {
            let of_port = select(plane, |_, port| port.guid == Guid(number));
            match of_port.is_empty() {
                true => select(plane, |node, _| node.guid == Guid(number)),
                false => of_port,
            }
        }
        (None, _) => by_description(plane, text),
    };
    match found[..] {
        [port] => Ok(port),
        [] => Err(Status::not_found(format!("no end port '{text}' is in the fabric"))),
        _ => Err(Status::invalid_argument(format!(
            "{} end ports match '{text}'; add /P and the port number, or give a GUID",
            found.len()
        ))),
    }
}

/// Finds ports by their node's description; the strictest comparison that finds some counts.
fn by_description<'a>(plane: &'a FabricPlane, text: &str) -> Vec<Found<'a>> {
    let with_port = text.rsplit_once('/').and_then(|(name, num)| {
        let num = num.strip_prefix(['P', 'p']).unwrap_or(num).parse().ok()?;
        Some((name, PortNum(num)))
    });
    let is_exact = |all: &str, name: &str| all == name;
    let is_host = |all: &str, name: &str| {
        !name.is_empty() && all.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))
    };
    let is_prefix = |all: &str, name: &str| !name.is_empty() && all.starts_with(name);
    for is_match in [&is_exact as &dyn Fn(&str, &str) -> bool, &is_host, &is_prefix] {
        // As it is shown, or as the node describes itself.
        let of_node = |node: &Node, name: &str| {
            is_match(&node_name(node), name) || is_match(&description(node), name)
        };
        let found = select(plane, |node, _| of_node(node, text));
        if !found.is_empty() {
            return found;
        }
        let Some((name, num)) = with_port else { continue };
        let found = select(plane, |node, port| port.num == num && of_node(node, name));
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

fn select(plane: &FabricPlane, is_wanted: impl Fn(&Node, &Port) -> bool) -> Vec<Found<'_>> {
    end_ports(plane).filter(|(node, port)| is_wanted(node, port)).collect()
}

/// Ports with a LID of their own: port 0 of switches, all of other nodes.
fn end_ports(plane: &FabricPlane) -> impl Iterator<Item = Found<'_>> {
    plane.nodes.iter().flat_map(|node| {
        let is_end = |port: &&Port| (port.num == PortNum(0)) == node.switch_info.is_some();
        node.ports.iter().filter(is_end).map(|port| (&**node, port))
    })
}

fn has_lid(port: &Port, lid: Lid) -> bool {
    let info = PortInfo::of(&port.info);
    let first = info.base_lid();
    first.is_unicast() && lid.0.checked_sub(first.0).is_some_and(|nth| nth >> info.lmc() == 0)
}

/// The kind of a node.
pub(super) fn node_type(node: &Node) -> Option<NodeType> {
    NodeType::from_code(NodeInfo::of(&node.info).node_type())
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    /// A channel adapter whose ports have the GUIDs and LIDs 1, 2 … more than the node's GUID.
    pub(in crate::publish) fn adapter(guid: u64, name: &str, ports: u8) -> Arc<Node> {
        let mut node = Node {
            guid: Guid(guid),
            info: [0; 40],
            description: [0; 64],
            switch_info: None,
            ports: Vec::new(),
        };
        NodeInfo::of_mut(&mut node.info).set_node_type(NodeType::Ca);
        node.description[..name.len()].copy_from_slice(name.as_bytes());
        for num in 1..=ports {
            let mut info = [0; 64];
            PortInfo::of_mut(&mut info).set_base_lid(Lid(guid as u16 + u16::from(num)));
            node.ports.push(Port {
                num: PortNum(num),
                guid: Guid(guid + u64::from(num)),
                info,
                pkeys: Arc::from([]),
                peer: None,
            });
        }
        Arc::new(node)
    }

    #[test]
    fn ports_are_found_as_explain_finds_them() {
        let plane = FabricPlane {
            nodes: vec![
                adapter(0xA_0000, "node1 HCA-1", 2),
                adapter(0xA_0010, "node10 HCA-1", 1),
                adapter(0xA_0020, "store/2", 1),
            ],
            ..FabricPlane::default()
        };
        let guid = |text: &str| find(&plane, text).map(|(_, port)| port.guid.0);
        assert_eq!(guid("0xA0002").unwrap(), 0xA_0002, "a port's GUID");
        assert_eq!(guid("0xA0010").unwrap(), 0xA_0011, "a node's GUID");
        assert_eq!(guid("0x21").unwrap(), 0xA_0021, "a LID");
        assert_eq!(guid("33").unwrap(), 0xA_0021);
        assert_eq!(guid("node1/P2").unwrap(), 0xA_0002);
        assert_eq!(guid("node10").unwrap(), 0xA_0011);
        assert_eq!(guid("node10 HCA-1").unwrap(), 0xA_0011);
        assert_eq!(guid("store/2").unwrap(), 0xA_0021, "a name with a slash");
        let message = |text: &str| guid(text).unwrap_err().message().to_owned();
        assert!(message("node1").starts_with("2 end ports match 'node1'"));
        assert_eq!(message("node2"), "no end port 'node2' is in the fabric");
        assert_eq!(message(""), "no end port '' is in the fabric");
        assert!(message("0xA0000").starts_with("2 end ports match"));
    }
}

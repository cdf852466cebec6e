//! List of virtual ports.

use std::fmt;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::PortState;
use sa_proto::snapshot::{Node, Port, VirtualPort, VirtualPorts, find};
use serde::Serialize;

use super::list::{selected, table};
use super::{FabricView, hex, lids};

/// P_Keys of a virtual port that the table shows.
const PKEYS_SHOWN: usize = 6;

/// Virtual ports, as a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct VirtualPortList(Vec<Row>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    node: String,
    node_guid: String,
    port: u8,
    port_guid: String,
    /// Its index at the port.
    index: u16,
    guid: String,
    /// Of the virtual port's node.
    description: String,
    state: &'static str,
    /// The LID by which it is reached: that of the port.
    lid: Option<usize>,
    pkeys: Vec<String>,
    /// Why it is not used.
    problem: Option<&'static str>,
}

/// The virtual ports of these nodes that are not Down.
pub(crate) fn virtual_ports(
    of: Option<Guid>,
    only: &str,
    fabric: &FabricView,
) -> Option<VirtualPortList> {
    let rows = &fabric.snapshot.fabric().virtual_ports;
    let of_port =
        |port: &Port| -> Option<&VirtualPorts> { find(rows, port.guid).map(|row| &**row) };
    let mut list = Vec::new();
    for node in selected(of, only, fabric)?.filter(|_| !rows.is_empty()) {
        for port in node.ports.iter().filter(|_| node.switch_info.is_none()) {
            let ports = of_port(port).into_iter().flat_map(|row| &row.ports);
            list.extend(ports.map(|virtual_port| row(node, port, virtual_port, fabric)));
        }
    }
    Some(VirtualPortList(list))
}

fn row(node: &Node, port: &Port, virtual_port: &VirtualPort, fabric: &FabricView) -> Row {
    let problem = if !virtual_port.is_usable {
        Some("another port has its GUID, or it has none")
    } else if virtual_port.needs_lid {
        Some("it needs a LID of its own")
    } else {
        None
    };
    Row {
        node: fabric.name(node),
        node_guid: hex(node.guid),
        port: port.num.0,
        port_guid: hex(port.guid),
        index: virtual_port.index,
        guid: hex(virtual_port.guid),
        description: virtual_port.description.clone(),
        state: state_word(virtual_port.state),
        lid: lids(port).next().filter(|_| problem.is_none()),
        pkeys: virtual_port.pkeys.iter().filter(|key| key.is_valid()).map(pkey).collect(),
        problem,
    }
}

fn pkey(key: &ib_mad::types::PKey) -> String {
    format!("{:#06x}", key.0)
}

fn state_word(code: u8) -> &'static str {
    match PortState::from_code(code) {
        Some(PortState::Initialize) => "init",
        Some(PortState::Armed) => "armed",
        Some(PortState::Active) => "active",
        _ => "unknown",
    }
}

impl fmt::Display for VirtualPortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|row| {
            let shown = row.pkeys.iter().take(PKEYS_SHOWN).map(String::as_str);
            let mut pkeys = shown.collect::<Vec<_>>().join(",");
            if row.pkeys.len() > PKEYS_SHOWN {
                pkeys.push_str(&format!(" and {} more", row.pkeys.len() - PKEYS_SHOWN));
            }
            [
                format!("{}/P{}", row.node, row.port),
                row.index.to_string(),
                row.guid.clone(),
                row.lid.map_or_else(|| "-".to_owned(), |lid| lid.to_string()),
                row.state.to_owned(),
                match row.problem {
                    Some(problem) => format!("not used: {problem}"),
                    None => pkeys,
                },
            ]
        });
        table(f, ["PORT", "INDEX", "GUID", "LID", "STATE", "P_KEYS"], rows, "no virtual ports")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::{PKey, PortNum};
    use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Snapshot};

    use super::*;

    fn fabric() -> FabricView {
        let mut info = [0; 64];
        PortInfo::of_mut(&mut info).set_base_lid(ib_mad::types::Lid(7));
        let pkeys: Arc<[PKey]> = Arc::from([PKey::DEFAULT_FULL]);
        let port =
            Port { num: PortNum(1), guid: Guid(0x11), info, pkeys: pkeys.clone(), peer: None };
        let mut node = Node {
            guid: Guid(0x10),
            info: [0; 40],
            description: [0; 64],
            switch_info: None,
            ports: vec![port],
        };
        NodeInfo::of_mut(&mut node.info).set_node_type(NodeType::Ca);
        node.description[..5].copy_from_slice(b"host1");
        let virtual_port = |index: u16, is_usable| VirtualPort {
            index,
            state: PortState::Active.code(),
            guid: Guid(0xF0 + u64::from(index)),
            node_guid: Guid(0xF0),
            is_usable,
            needs_lid: false,
            description: format!("host1 vf{index}"),
            pkeys: vec![PKey(0xFFFF), PKey(0x8005)],
        };
        let ports = vec![virtual_port(1, true), virtual_port(2, false)];
        let row = VirtualPorts { port_guid: Guid(0x11), pkeys: pkeys.to_vec(), ports };
        let plane = FabricPlane {
            nodes: vec![Arc::new(node)],
            virtual_ports: vec![Arc::new(row)],
            ..FabricPlane::default()
        };
        let session = Session { epoch: 1, sm_guid: Guid(1) };
        let snapshot = Snapshot::build(session, 1, plane, RegistryPlane::default()).unwrap();
        FabricView {
            snapshot: Arc::new(snapshot),
            names: Arc::default(),
            unhealthy: Arc::default(),
        }
    }

    #[test]
    fn virtual_ports_are_listed_with_the_lid_of_their_port_and_why_they_are_not_used() {
        let list = virtual_ports(None, "", &fabric()).unwrap();
        let text = list.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let first = ["host1/P1", "1", "0x00000000000000f1", "7", "active", "0xffff,0x8005"];
        assert_eq!(lines[1], first);
        assert_eq!(lines[2][3..6], ["-", "active", "not"]);
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json[0]["pkeys"], serde_json::json!(["0xffff", "0x8005"]));
        assert_eq!((&json[0]["lid"], &json[1]["lid"]), (&7.into(), &serde_json::Value::Null));
        assert!(virtual_ports(None, "switch", &fabric()).unwrap().0.is_empty());
        assert_eq!(virtual_ports(None, "host", &fabric()), None);
    }
}

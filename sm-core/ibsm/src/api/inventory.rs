//! Inventory: ports, systems and links of the published snapshot, with the members that clients of
//! UFM read.
//!
//! `system_name`, `node_description` and `dname` are of the node's own description: schedulers
//! match them with names of hosts. The members `…display_name`, which UFM does not have, are the
//! operator's names (`node_name_map_name`), as everywhere else in `ibsm`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::routing::get;
use ib_mad::text;
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo, PortPhysState, PortState};
use sa_proto::snapshot::{Node, Port, Snapshot, VirtualPort, find};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, Shared};
use crate::observe::links::End;
use crate::observe::node_name;

/// Rows of a page, if a client names none.
const PAGE_ROWS: usize = 100;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/resources/ports", get(ports))
        .route("/resources/systems", get(systems))
        .route("/resources/links", get(links))
        .route("/resources/vports", get(virtual_ports))
}

#[derive(Deserialize)]
struct PortsQuery {
    sys_type: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    page_number: Option<usize>,
    rpp: Option<usize>,
}

impl Page {
    /// The rows, or a page of them if the client asked for one.
    fn of(&self, rows: Vec<Value>) -> Value {
        if self.page_number.is_none() && self.rpp.is_none() {
            return rows.into();
        }
        let len = self.rpp.unwrap_or(PAGE_ROWS).max(1);
        let skipped = self.page_number.unwrap_or(1).saturating_sub(1).saturating_mul(len);
        let page: Vec<Value> = rows.into_iter().skip(skipped).take(len).collect();
        json!({ "data": page })
    }
}

/// A document of the published snapshot.
async fn made(served: &Shared, make: impl FnOnce(&Snapshot) -> Value + Send + 'static) -> Answer {
    served.document(|snapshot| Ok(make(snapshot))).await
}

async fn ports(State(served): State<Shared>, Query(wanted): Query<PortsQuery>) -> Answer {
    made(&served, move |snapshot| {
        let nodes = Nodes::of(snapshot);
        let kind = wanted.sys_type.as_deref();
        let is_wanted = |node: &&Arc<Node>| kind.is_none_or(|kind| kind == sys_type(node));
        let nodes_wanted = snapshot.fabric().nodes.iter().filter(is_wanted);
        let rows = nodes_wanted.flat_map(|node| {
            // Port 0 of a switch is not a port of its case.
            let external = node.ports.iter().filter(|port| port.num.0 != 0);
            external.map(|port| nodes.port(node, port)).collect::<Vec<_>>()
        });
        rows.collect::<Vec<_>>().into()
    })
    .await
}

async fn systems(State(served): State<Shared>) -> Answer {
    made(&served, |snapshot| {
        let row = |node: &Arc<Node>| {
            json!({
                "system_name": system_name(node),
                "display_name": node_name(node),
                "name": hex(node.guid),
                "guid": hex(node.guid),
                "system_guid": hex(system_of(node)),
                "ip": "0.0.0.0",
                "type": if sys_type(node) == "Computer" { "host" } else { "switch" },
                "description": text::of_field(&node.description),
                "ports": external(node).map(|port| port_name(node, port)).collect::<Vec<_>>(),
                "severity": "Info",
            })
        };
        snapshot.fabric().nodes.iter().map(row).collect::<Vec<_>>().into()
    })
    .await
}

async fn links(State(served): State<Shared>, Query(page): Query<Page>) -> Answer {
    made(&served, move |snapshot| {
        let nodes = Nodes::of(snapshot);
        let mut rows = Vec::new();
        for node in &snapshot.fabric().nodes {
            for port in external(node) {
                let Some((peer, num)) = port.peer else { continue };
                // Each link once, from its first end.
                if (node.guid, port.num) > (peer, num) {
                    continue;
                }
                let Some((other, far)) = nodes.end(peer, num) else { continue };
                let (speed, width) = active(node, port);
                rows.push(json!({
                    "name": format!("{}:{}", port_name(node, port), port_name(other, far)),
                    "source_guid": hex(node.guid),
                    "source_port": port.num.0.to_string(),
                    "source_port_dname": dname(node, port),
                    "source_system_name": system_name(node),
                    "source_display_name": node_name(node),
                    "destination_guid": hex(other.guid),
                    "destination_port": far.num.0.to_string(),
                    "destination_port_dname": dname(other, far),
                    "destination_system_name": system_name(other),
                    "destination_display_name": node_name(other),
                    "speed": speed,
                    "width": width,
                    "severity": "Info",
                }));
            }
        }
        page.of(rows)
    })
    .await
}

/// Virtual ports that are not Down; none unless they are managed (`virt_enabled`).
async fn virtual_ports(State(served): State<Shared>) -> Answer {
    made(&served, |snapshot| {
        let virtual_ports = &snapshot.fabric().virtual_ports;
        let mut rows = Vec::new();
        for node in snapshot.fabric().nodes.iter().filter(|_| !virtual_ports.is_empty()) {
            for port in external(node).filter(|_| node.switch_info.is_none()) {
                let Some(of_port) = find(virtual_ports, port.guid) else { continue };
                let lid = PortInfo::of(&port.info).base_lid().0;
                rows.extend(of_port.ports.iter().map(|row| virtual_port(node, port, lid, row)));
            }
        }
        rows.into()
    })
    .await
}

fn virtual_port(node: &Node, port: &Port, lid: u16, row: &VirtualPort) -> Value {
    let is_reached = row.is_usable && !row.needs_lid;
    let pkeys: Vec<String> = row.pkeys.iter().map(|key| format!("{:#x}", key.base())).collect();
    json!({
        "virtual_port_guid": hex(row.guid),
        "virtual_port_state": match PortState::from_code(row.state) {
            Some(state) => state.to_string(),
            None => "unknown".to_owned(),
        },
        "virtual_port_lid": if is_reached { lid } else { 0 },
        "virtual_port_index": row.index,
        "virtual_node_guid": hex(row.node_guid),
        "virtual_node_description": row.description,
        "pkeys": pkeys,
        "port_guid": hex(port.guid),
        "port_name": port_name(node, port),
        "system_guid": hex(system_of(node)),
        "system_name": system_name(node),
        "display_name": node_name(node),
        "system_ip": "0.0.0.0",
    })
}

/// Nodes by GUID.
struct Nodes<'a>(HashMap<Guid, &'a Node>);

impl<'a> Nodes<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        Self(snapshot.fabric().nodes.iter().map(|node| (node.guid, &**node)).collect())
    }

    fn end(&self, node: Guid, num: PortNum) -> Option<(&'a Node, &'a Port)> {
        let node = *self.0.get(&node)?;
        Some((node, node.port(num)?))
    }

    fn port(&self, node: &Node, port: &Port) -> Value {
        let info = PortInfo::of(&port.info);
        let far = port.peer.and_then(|(peer, num)| self.end(peer, num));
        // External ports of a switch have the LID of port 0.
        let with_lid = if node.switch_info.is_some() { node.ports.first() } else { Some(port) };
        let lid = with_lid.map_or(0, |port| PortInfo::of(&port.info).base_lid().0);
        let (speed, width) = active(node, port);
        json!({
            "guid": hex(port.guid),
            "name": port_name(node, port),
            "number": port.num.0,
            "label": port.num.0.to_string(),
            "lid": lid,
            "systemID": hex(system_of(node)),
            "system_name": system_name(node),
            "display_name": node_name(node),
            "dname": dname(node, port),
            "description": format!("{} IB Port", sys_type(node)),
            "node_description": text::of_field(&node.description),
            "physical_state": match PortPhysState::from_code(info.port_physical_state()) {
                Some(PortPhysState::LinkUp) => "Link Up".to_owned(),
                Some(state) => state.to_string(),
                None => "unknown".to_owned(),
            },
            "logical_state": match PortState::from_code(info.port_state()) {
                Some(state) => state.to_string(),
                None => "unknown".to_owned(),
            },
            "active_speed": speed,
            "active_width": width,
            "tier": if node.switch_info.is_some() { 1 } else { 0 },
            "severity": "Info",
            "peer": far.map(|(node, port)| port_name(node, port)),
            "peer_guid": far.map(|(node, _)| hex(node.guid)),
            "peer_node_name": far.map(|(node, _)| system_name(node)),
            "peer_display_name": far.map(|(node, _)| node_name(node)),
            "peer_port_dname": far.map(|(node, port)| dname(node, port)),
        })
    }
}

fn external(node: &Node) -> impl Iterator<Item = &Port> {
    node.ports.iter().filter(|port| port.num.0 != 0)
}

fn hex(guid: Guid) -> String {
    format!("{:016x}", guid.0)
}

/// The GUID of the system that a node belongs to.
fn system_of(node: &Node) -> Guid {
    match NodeInfo::of(&node.info).system_image_guid() {
        Guid(0) => node.guid,
        guid => guid,
    }
}

fn sys_type(node: &Node) -> &'static str {
    match NodeType::from_code(NodeInfo::of(&node.info).node_type()) {
        Some(NodeType::Switch) => "Switch",
        Some(NodeType::Router) => "Router",
        _ => "Computer",
    }
}

/// The name of a host is the first word of its NodeDescription; that of a switch is all of it.
fn system_name(node: &Node) -> String {
    let description = text::of_field(&node.description);
    match node.switch_info {
        Some(_) => description,
        None => description.split(' ').next().unwrap_or_default().to_owned(),
    }
}

fn port_name(node: &Node, port: &Port) -> String {
    let guid = if node.switch_info.is_some() { node.guid } else { port.guid };
    format!("{}_{}", hex(guid), port.num.0)
}

/// The port as people name it: `HCA-1/1`, and the number for a switch.
fn dname(node: &Node, port: &Port) -> String {
    let description = text::of_field(&node.description);
    match (&node.switch_info, description.split_once(' ')) {
        (None, Some((_, device))) => format!("{device}/{}", port.num.0),
        _ => port.num.0.to_string(),
    }
}

/// Active speed and width.
fn active(node: &Node, port: &Port) -> (String, String) {
    let active = End::new(node, port).filter(|_| port.peer.is_some()).map(|end| end.active());
    let active = active.unwrap_or_default();
    match active.split_once(' ') {
        Some((width, speed)) => (speed.to_owned(), width.to_owned()),
        None => (String::new(), String::new()),
    }
}

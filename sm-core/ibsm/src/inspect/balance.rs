//! How evenly forwarding tables use links.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::{Lft, Node, Port};
use serde::Serialize;

use super::{FabricView, Named, kind, lids};

/// Entry of a forwarding table without a route.
const NO_ROUTE: u8 = 255;

/// How many LIDs of hosts leave a switch by each of its links to other switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SwitchBalance {
    switch: Named,
    /// Whether the numbers differ by at most 1.
    is_balanced: bool,
    /// By port.
    ports: BTreeMap<u8, u32>,
}

impl fmt::Display for SwitchBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_balanced { "Switch" } else { "Unbalanced Switch" };
        writeln!(f, "{word}: {}", self.switch)?;
        self.ports.iter().try_for_each(|(port, count)| writeln!(f, "Port {port}: {count}"))
    }
}

/// A port with several LIDs of which a switch forwards more than others by one of its ports or to
/// one neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LidBalance {
    switch: Named,
    #[serde(rename = "type")]
    kind: &'static str,
    node: Named,
    /// The LIDs by neighbour, in the order of the LIDs.
    neighbours: Vec<(Named, u32)>,
    /// The LIDs by port.
    ports: BTreeMap<u8, u32>,
}

impl fmt::Display for LidBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { switch, kind, node, neighbours, ports } = self;
        if is_uneven(neighbours.iter().map(|(_, count)| *count)) {
            write!(f, "Unbalanced Remote Forwarding: Switch {switch}: {kind} {node}: ")?;
            for (Named { guid, name }, count) in neighbours {
                write!(f, "Dest {guid}({name}) - {count} ")?;
            }
            writeln!(f)?;
        }
        if is_uneven(ports.values().copied()) {
            write!(f, "Unbalanced Port Forwarding: Switch {switch}: {kind} {node}: ")?;
            for (port, count) in ports {
                write!(f, "Port {port} - {count}: ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Whether numbers differ by more than 1.
fn is_uneven(counts: impl Iterator<Item = u32> + Clone) -> bool {
    let (least, most) = (counts.clone().min(), counts.max());
    most.unwrap_or(0) - least.unwrap_or(0) > 1
}

/// Switches with their tables: all, or the one with this node GUID.
fn switches(only: Option<Guid>, fabric: &FabricView) -> Vec<(&Node, &Lft)> {
    let lfts = fabric.snapshot.fabric().lfts.iter();
    let found = lfts.filter(|lft| only.is_none_or(|only| lft.switch == only));
    found.filter_map(|lft| Some((fabric.node(lft.switch)?, &**lft))).collect()
}

/// Ports of hosts and routers, with their nodes.
fn hosts(fabric: &FabricView) -> impl Iterator<Item = (&Node, &Port)> {
    let hosts = fabric.nodes().filter(|node| kind(node) != NodeType::Switch);
    hosts.flat_map(|node| node.ports.iter().map(move |port| (node, port)))
}

fn exit(lft: &Lft, lid: usize) -> Option<u8> {
    lft.ports.get(lid).copied().filter(|&port| port != NO_ROUTE)
}

/// Switches where the numbers of LIDs by link differ by more than 1; with `verbose` all. `None` if
/// there is no such switch as `only`.
pub(crate) fn of_switches(
    verbose: bool,
    only: Option<Guid>,
    fabric: &FabricView,
) -> Option<Vec<SwitchBalance>> {
    let found = switches(only, fabric);
    if found.is_empty() && only.is_some() {
        return None;
    }
    let kinds: HashMap<Guid, NodeType> =
        fabric.nodes().map(|node| (node.guid, kind(node))).collect();
    let all: Vec<usize> = hosts(fabric).flat_map(|(_, port)| lids(port)).collect();
    let balance = |(node, lft): (&Node, &Lft)| {
        let mut counts = [0u32; 256];
        for exit in all.iter().filter_map(|&lid| exit(lft, lid)) {
            counts[usize::from(exit)] += 1;
        }
        let leads_to_switch = |port: &&Port| {
            let peer = port.peer.and_then(|(guid, _)| kinds.get(&guid));
            port.num != PortNum(0)
                && peer == Some(&NodeType::Switch)
                && fabric.is_healthy(node, port.num)
        };
        let links = node.ports.iter().filter(leads_to_switch).map(|port| port.num.0);
        let ports: BTreeMap<u8, u32> =
            links.map(|port| (port, counts[usize::from(port)])).collect();
        let is_balanced = !is_uneven(ports.values().copied());
        SwitchBalance { switch: fabric.named(node), is_balanced, ports }
    };
    let balances = found.into_iter().map(balance);
    Some(balances.filter(|switch| verbose || !switch.is_balanced).collect())
}

/// Ports whose LIDs switches forward unevenly. `None` if there is no such switch as `only`.
pub(crate) fn of_lids(only: Option<Guid>, fabric: &FabricView) -> Option<Vec<LidBalance>> {
    let found = switches(only, fabric);
    if found.is_empty() && only.is_some() {
        return None;
    }
    let nodes: HashMap<Guid, &Node> = fabric.nodes().map(|node| (node.guid, node)).collect();
    let mut uneven = Vec::new();
    for (switch, lft) in found {
        let neighbour = |exit: u8| {
            let port = switch.port(PortNum(exit)).filter(|_| exit != 0)?;
            let (peer, _) = port.peer.filter(|_| fabric.is_healthy(switch, port.num))?;
            Some(peer)
        };
        // Ports with one LID cannot be unbalanced.
        for (node, port) in hosts(fabric).filter(|(_, port)| lids(port).len() > 1) {
            let mut ports: BTreeMap<u8, u32> = BTreeMap::new();
            let mut neighbours: Vec<(Guid, u32)> = Vec::new();
            for exit in lids(port).filter_map(|lid| exit(lft, lid)) {
                let Some(peer) = neighbour(exit) else { continue };
                *ports.entry(exit).or_default() += 1;
                match neighbours.iter_mut().find(|(known, _)| *known == peer) {
                    Some((_, count)) => *count += 1,
                    None => neighbours.push((peer, 1)),
                }
            }
            let counts = neighbours.iter().map(|(_, count)| *count);
            if is_uneven(counts) || is_uneven(ports.values().copied()) {
                let named = |(guid, count)| Some((fabric.named(nodes.get(&guid)?), count));
                uneven.push(LidBalance {
                    switch: fabric.named(switch),
                    kind: if kind(node) == NodeType::Router { "Router" } else { "CA" },
                    node: fabric.named(node),
                    neighbours: neighbours.into_iter().filter_map(named).collect(),
                    ports,
                });
            }
        }
    }
    Some(uneven)
}

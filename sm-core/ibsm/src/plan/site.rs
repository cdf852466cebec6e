//! A subnet from a net file as routing engines see it, with the names of its switches and ports.
//!
//! The topology follows the same rules as in a sweep: cables between switches are links, end ports
//! with a LID are destinations, adapters connected back to back are omitted.

use std::collections::{HashMap, HashSet};

use ib_mad::netlist::{Net, NodeKind, PortRef};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{NodeType, data_vls};

use crate::host_order::{HostOrder, HostPort};
use sm_core::dump::{EndName, Roster, SwitchName};
use sm_core::manage::lid::{LidTable, OutOfLids, Request};
use sm_routing::label::switch_label;
use sm_routing::measure::Groups;
use sm_routing::{Destination, Topology, TopologyBuilder, TopologyError};

/// A topology with the names of its parts.
#[derive(Clone, Debug)]
pub struct Site {
    /// The engines' input. Switches are numbered by node GUID, as in a sweep.
    pub topology: Topology,
    /// The names of its switches and destinations.
    pub roster: Roster,
    /// Number of data VLs that all ports between switches have; `None` if the file does not contain
    /// it.
    pub data_lanes: Option<u8>,
    /// Number of end ports with another LID than in the file, because an earlier port has that LID
    /// or because it is not a multiple of 2^LMC.
    pub moved: usize,
    /// Names of switches that are not connected to most of the others, and of hosts on these or on
    /// no switch. Empty for a site after a failure.
    pub apart: (Vec<String>, Vec<String>),
}

/// Why no engine can route a net.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// There is no switch.
    #[error("the fabric has no switch")]
    NoSwitch,
    /// Two ports have the same GUID, by which LIDs are assigned.
    #[error("duplicate port GUID {guid}: \"{first}\" and \"{second}\"")]
    GuidTwice {
        /// The GUID.
        guid: Guid,
        /// A node with such a port.
        first: String,
        /// Another such node.
        second: String,
    },
    /// There are more end ports than LIDs.
    #[error(transparent)]
    Lids(#[from] OutOfLids),
    /// The fabric exceeds the limits of a topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// A port that needs LIDs.
struct EndPort<'a> {
    node: &'a ib_mad::netlist::Node,
    /// Where it is attached: itself, or for adapters the switch port at the other end of the cable.
    at: PortRef,
    request: Request,
}

impl Site {
    /// Builds the site of a net. LIDs in the file are kept where possible; others are assigned by
    /// port GUID as in a first sweep. Each adapter port has 2^`lmc` LIDs, or as many as in the file
    /// if `lmc` is `None`.
    pub fn new(net: &Net, lmc: Option<u8>) -> Result<Self, SiteError> {
        let mut builder = TopologyBuilder::new();
        let mut numbers = HashMap::new();
        let mut roster = Roster::default();
        let nodes = net.nodes().iter().zip(0u32..);
        let mut switches: Vec<_> =
            nodes.filter(|(node, _)| node.kind == NodeKind::Switch).collect();
        switches.sort_by_key(|(node, _)| node.guid);
        for (node, index) in switches {
            numbers.insert(index, builder.add_switch(node.port_count())?);
            let name = node.description.clone();
            roster.switches.push(SwitchName { guid: node.guid, name });
        }
        if numbers.is_empty() {
            return Err(SiteError::NoSwitch);
        }
        let mut lanes = Some(u8::MAX);
        for (a, b) in net.links() {
            let (Some(&x), Some(&y)) = (numbers.get(&a.node), numbers.get(&b.node)) else {
                continue;
            };
            builder.add_link((x, a.port), (y, b.port))?;
            for end in [a, b] {
                let stated = net.port(end).and_then(|port| data_vls(port.vl_cap));
                lanes = stated.and_then(|stated| lanes.map(|lanes| lanes.min(stated)));
            }
        }
        let mut ends = end_ports(net, lmc)?;
        // The order in which a sweep assigns LIDs; see `sweep::configure`.
        ends.sort_by_key(|end| end.request.guid.0.swap_bytes());
        let requests: Vec<Request> = ends.iter().map(|end| end.request).collect();
        let mut lids = LidTable::default();
        if let Some(shortage) = lids.assign(&requests).1.first() {
            return Err((*shortage).into());
        }
        let mut moved = 0;
        let mut named = Vec::with_capacity(ends.len());
        for EndPort { node, at, request } in ends {
            let Some(range) = lids.get(request.guid) else { continue };
            let Some(&egress_switch) = numbers.get(&at.node) else { continue };
            moved += usize::from(request.held != Lid::NONE && request.held != range.first);
            builder.add_destination(Destination {
                base_lid: range.first,
                lid_count: request.count,
                egress_switch,
                exit: at.port,
            })?;
            let name = node.description.clone();
            let kind = node_type(node.kind);
            named.push((range.first, EndName { guid: request.guid, kind, name }));
        }
        // In the order of the topology's destinations.
        named.sort_by_key(|(lid, _)| *lid);
        roster.ends = named.into_iter().map(|(_, name)| name).collect();
        let data_lanes = lanes.filter(|&lanes| lanes != u8::MAX);
        let topology = builder.build()?;
        let (rest, parts) = parts(&topology);
        let switches = topology.switches().zip(&roster.switches);
        let switches = switches.filter(|(switch, _)| parts[usize::from(*switch)] != rest);
        let switches = switches.map(|(_, name)| name.name.clone()).collect();
        let is_joined = |node: &ib_mad::netlist::Node| {
            node.ports()
                .filter_map(|(_, port)| numbers.get(&port.peer?.node))
                .any(|&switch| parts[usize::from(switch)] == rest)
        };
        let hosts = net.nodes().iter().filter(|node| node.kind != NodeKind::Switch);
        let hosts = hosts.filter(|node| !is_joined(node)).map(|node| node.description.clone());
        let apart = (switches, hosts.collect());
        Ok(Self { topology, roster, data_lanes, moved, apart })
    }

    /// Number of hosts, that is, of end ports that are not switches.
    pub fn hosts(&self) -> usize {
        self.topology.destinations().iter().filter(|to| to.is_host()).count()
    }

    /// A port of a switch, as text.
    pub fn port_name(&self, switch: u16, port: u8) -> String {
        let name = self.roster.switches.get(usize::from(switch)).map_or("?", |s| s.name.as_str());
        format!("'{name}' port {port}")
    }
}

impl Site {
    /// The hosts in an order, and remarks on lines of the file of hosts, whose content is `listed`.
    pub fn traffic(&self, order: &HostOrder, listed: &str) -> (Groups, Vec<String>) {
        let ends = self.topology.destinations().iter().zip(&self.roster.ends).zip(0..);
        let ports = ends.filter(|((to, _), _)| to.is_host()).map(|((_, end), index)| HostPort {
            index,
            guid: end.guid,
            name: &end.name,
        });
        order.groups(ports.collect(), listed)
    }

    /// A switch of the topology, as text.
    pub fn switch_label(&self, switch: u16) -> String {
        let known = self.roster.switches.get(usize::from(switch));
        switch_label(switch, known.map(|known| known.name.as_str()))
    }
}

/// Port 0 of switches, and adapter and router ports that are cabled to a switch.
fn end_ports(net: &Net, lmc: Option<u8>) -> Result<Vec<EndPort<'_>>, SiteError> {
    let mut ends = Vec::new();
    let mut owners: HashMap<Guid, &str> = HashMap::new();
    for (node, index) in net.nodes().iter().zip(0u32..) {
        let is_switch = node.kind == NodeKind::Switch;
        for (number, port) in node.ports().filter(|&(number, _)| !is_switch || number == 0) {
            let at =
                if is_switch { Some(PortRef { node: index, port: number }) } else { port.peer };
            let at = at.filter(|at| {
                net.nodes().get(at.node as usize).is_some_and(|node| node.kind == NodeKind::Switch)
            });
            let Some(at) = at else { continue };
            if let Some(first) = owners.insert(port.guid, &node.id) {
                // A further plane of a planarized port: the first plane is planned.
                if first == node.id && !is_switch {
                    continue;
                }
                let (first, second) = (first.to_owned(), node.id.clone());
                return Err(SiteError::GuidTwice { guid: port.guid, first, second });
            }
            let stated = if port.lid == 0 { 0 } else { port.lmc };
            // The LMC option does not apply to port 0 of a switch, not even an enhanced one: it
            // keeps its LMC.
            let lmc = if is_switch { stated } else { lmc.unwrap_or(stated) };
            let request = Request { guid: port.guid, held: Lid(port.lid), count: 1 << lmc };
            ends.push(EndPort { node, at, request });
        }
    }
    Ok(ends)
}

/// By switch: a number that is equal within a connected part; and the number of the largest part.
fn parts(topology: &Topology) -> (u16, Vec<u16>) {
    let parts = super::survey::parts(topology);
    let mut sizes: HashMap<u16, usize> = HashMap::new();
    parts.iter().for_each(|&part| *sizes.entry(part).or_default() += 1);
    let largest = sizes.into_iter().max_by_key(|&(part, size)| (size, u16::MAX - part));
    (largest.map_or(0, |(part, _)| part), parts)
}

fn node_type(kind: NodeKind) -> NodeType {
    match kind {
        NodeKind::Ca => NodeType::Ca,
        NodeKind::Switch => NodeType::Switch,
        NodeKind::Router => NodeType::Router,
    }
}

/// An element that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The cable at a switch's port, which leads to another switch.
    Link(u16, u8),
    /// A switch, with everything cabled to it.
    Switch(u16),
}

impl Site {
    /// The site after a failure, and for each of its switches its previous number.
    pub fn without(&self, failure: Failure) -> Result<(Self, Vec<Option<u16>>), TopologyError> {
        let Self { topology, roster, data_lanes, moved, .. } = self;
        let gone = |switch: u16| failure == Failure::Switch(switch);
        let mut builder = TopologyBuilder::new();
        let mut now = vec![None; topology.switch_count()];
        let mut before = Vec::with_capacity(topology.switch_count());
        let mut names = Roster::default();
        for switch in topology.switches().filter(|&switch| !gone(switch)) {
            now[usize::from(switch)] = Some(builder.add_switch(topology.port_count(switch))?);
            before.push(Some(switch));
            names.switches.push(roster.switches[usize::from(switch)].clone());
        }
        let cut = |switch: u16, port: u8| failure == Failure::Link(switch, port);
        for switch in topology.switches() {
            for link in topology.links(switch) {
                let ends = (now[usize::from(switch)], now[usize::from(link.peer)]);
                let (Some(a), Some(b)) = ends else { continue };
                if !cut(switch, link.port) && !cut(link.peer, link.peer_port) {
                    builder.add_link((a, link.port), (b, link.peer_port))?;
                }
            }
        }
        for (to, name) in topology.destinations().iter().zip(&roster.ends) {
            if let Some(egress_switch) = now[usize::from(to.egress_switch)] {
                builder.add_destination(Destination { egress_switch, ..*to })?;
                names.ends.push(name.clone());
            }
        }
        let (data_lanes, moved) = (*data_lanes, *moved);
        let apart = Default::default();
        Ok((Self { topology: builder.build()?, roster: names, data_lanes, moved, apart }, before))
    }

    /// A failure, as text.
    pub fn describe(&self, failure: Failure) -> String {
        match failure {
            Failure::Link(switch, port) => {
                let here = self.port_name(switch, port);
                let there =
                    self.topology.link_at(switch, port).map(|link| self.topology.link(link));
                let there = there.map(|link| self.port_name(link.peer, link.peer_port));
                format!("{here} - {}", there.unwrap_or_default())
            }
            Failure::Switch(switch) => {
                let name = self.roster.switches.get(usize::from(switch));
                name.map_or_else(String::new, |switch| format!("'{}'", switch.name))
            }
        }
    }

    /// All cables between switches, each once, or all switches.
    pub fn failures(&self, of_switches: bool) -> Vec<Failure> {
        if of_switches {
            return self.topology.switches().map(Failure::Switch).collect();
        }
        let mut seen = HashSet::new();
        let switches = self.topology.switches();
        let links = switches
            .flat_map(|switch| self.topology.links(switch).iter().map(move |link| (switch, *link)));
        links
            .filter(|&(switch, link)| {
                seen.insert((switch, link.port)) && seen.insert((link.peer, link.peer_port))
            })
            .map(|(switch, link)| Failure::Link(switch, link.port))
            .collect()
    }
}

#[cfg(test)]
mod tests;

//! A subnet from a net file as routing engines see it, and what its switches and ports are called.
//!
//! The rules are those by which a sweep makes a topology of the fabric it found: cables between
//! switches are links, end ports with a LID are destinations, adapters back to back are left out.

use std::collections::{HashMap, HashSet};

use ib_mad::netlist::{Net, NodeKind, PortRef};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{NodeType, data_vls};

use crate::dump::{EndName, Roster, SwitchName};
use crate::manage::lid::{LidTable, OutOfLids, Request};
use crate::routing::{Destination, Topology, TopologyBuilder, TopologyError, words};

/// A topology, and who is who in it.
#[derive(Clone, Debug)]
pub struct Site {
    /// What engines are given. Switches are numbered as they come in the file.
    pub topology: Topology,
    /// The names of its switches and destinations.
    pub roster: Roster,
    /// Data VLs that all ports between switches have; `None` if the file does not tell.
    pub data_lanes: Option<u8>,
    /// End ports that have another LID than the file tells, because a port before them has it or
    /// because it is no multiple of 2^LMC.
    pub moved: usize,
    /// Switches that no links join to most of the others, and hosts that are on these or on none, by
    /// name; not told of what a failure leaves.
    pub apart: (Vec<String>, Vec<String>),
}

/// Why a net cannot be routed by anybody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// Nothing forwards.
    #[error("there is no switch, so there is nothing to route")]
    NoSwitch,
    /// LIDs are given by port GUID.
    #[error("port GUID {guid} is that of \"{first}\" and of \"{second}\"; give each its own")]
    GuidTwice {
        /// The GUID.
        guid: Guid,
        /// A node with such a port.
        first: String,
        /// Another.
        second: String,
    },
    /// More end ports than LIDs.
    #[error(transparent)]
    Lids(#[from] OutOfLids),
    /// What engines' tables have no room for.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// A port that needs LIDs.
struct EndPort<'a> {
    node: &'a ib_mad::netlist::Node,
    /// Where it is: itself, or for adapters the switch port at the other end of the cable.
    at: PortRef,
    request: Request,
}

impl Site {
    /// The site of a net. LIDs that the file tells are kept where they can be, and others given by
    /// port GUIDs as a first sweep gives them; 2^`lmc` to each adapter port, or as many as the file
    /// tells if `lmc` is `None`.
    pub fn new(net: &Net, lmc: Option<u8>) -> Result<Self, SiteError> {
        let mut builder = TopologyBuilder::new();
        let mut numbers = HashMap::new();
        let mut roster = Roster::default();
        for (node, index) in net.nodes().iter().zip(0u32..) {
            if node.kind == NodeKind::Switch {
                numbers.insert(index, builder.add_switch(node.port_count())?);
                roster
                    .switches
                    .push(SwitchName { guid: node.guid, name: node.description.clone() });
            }
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
                let told = net.port(end).and_then(|port| data_vls(port.vl_cap));
                lanes = told.and_then(|told| lanes.map(|lanes| lanes.min(told)));
            }
        }
        let mut ends = end_ports(net, lmc)?;
        // The order in which a sweep serves them; see `sweep::configure`.
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
            let Some(&home) = numbers.get(&at.node) else { continue };
            moved += usize::from(request.held != Lid::NONE && request.held != range.first);
            builder.add_destination(Destination {
                base_lid: range.first,
                lid_count: request.count,
                home,
                exit: at.port,
            })?;
            let name = node.description.clone();
            let kind = node_type(node.kind);
            named.push((range.first, EndName { guid: request.guid, kind, name }));
        }
        // As the topology has its destinations.
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

    /// Hosts: end ports that are no switches.
    pub fn hosts(&self) -> usize {
        self.topology.destinations().iter().filter(|to| to.is_host()).count()
    }

    /// A port of a switch, for people.
    pub fn port_name(&self, switch: u16, port: u8) -> String {
        let name = self.roster.switches.get(usize::from(switch)).map_or("?", |s| s.name.as_str());
        format!("'{name}' port {port}")
    }
}

impl Site {
    /// An engine's words with switches by their names instead of the topology's numbers.
    pub fn with_names(&self, text: &str) -> String {
        words::with_names(text, |number| Some(self.roster.switches.get(number)?.name.as_str()))
    }
}

/// Switches' ports 0, and adapters' and routers' ports that are cabled to a switch.
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
                let (first, second) = (first.to_owned(), node.id.clone());
                return Err(SiteError::GuidTwice { guid: port.guid, first, second });
            }
            let told = if port.lid == 0 { 0 } else { port.lmc };
            // Without an option of its own a switch's port 0 has one LID, even an enhanced one.
            let lmc = if is_switch { told } else { lmc.unwrap_or(told) };
            let request = Request { guid: port.guid, held: Lid(port.lid), count: 1 << lmc };
            ends.push(EndPort { node, at, request });
        }
    }
    Ok(ends)
}

/// By switch a number that is equal for those that links join, and the number of the largest part.
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

/// What may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The cable at a switch's port, which leads to another switch.
    Link(u16, u8),
    /// A switch, and with it what is cabled to it.
    Switch(u16),
}

impl Site {
    /// The site after a failure, and for each of its switches the number it had before.
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
            if let Some(home) = now[usize::from(to.home)] {
                builder.add_destination(Destination { home, ..*to })?;
                names.ends.push(name.clone());
            }
        }
        let (data_lanes, moved) = (*data_lanes, *moved);
        let apart = Default::default();
        Ok((Self { topology: builder.build()?, roster: names, data_lanes, moved, apart }, before))
    }

    /// A failure in words.
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

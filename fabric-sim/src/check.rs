//! Checks whether the programmed tables carry packets from every end port to every LID.
//!
//! Reads the tables and port states as a data packet would use them, without sending any: no
//! counter changes and no fault applies.
//!
//! In a planarized fabric each port of an adapter sends in its own plane, so delivery is checked in
//! each plane to every LID that has a port there. Planes are switches that cables connect, cut or
//! not: a plane that a cut divides is still one.

use std::collections::HashMap;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::PortState;

use crate::counters::DropReason;
use crate::fabric::Fabric;
use crate::forward::HOPS_MAX;
use crate::subnet::{NodeIndex, PortIndex, Subnet};

/// Limit of lost routes reported individually.
const EXAMPLES_MAX: usize = 16;

/// Result of a check: delivery from every end port that has a LID to every LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteReport {
    /// End ports with a LID: active ports of adapters, and switches' port 0.
    pub sources: usize,
    /// LIDs of end ports.
    pub lids: usize,
    /// End ports with a link that have no LID yet or are not active; switches' port 0 included.
    pub unconfigured: usize,
    /// Pairs whose packets arrive.
    pub delivered: u64,
    /// Pairs of a port and a LID without a port in its plane, which need not arrive; only in
    /// planarized fabrics.
    pub apart: u64,
    /// Pairs whose packets are lost, by reason.
    pub lost: Vec<(DropReason, u64)>,
    /// Some of the lost pairs.
    pub examples: Vec<LostRoute>,
    /// Links on the longest route.
    pub hops_max: u32,
}

/// A source whose packets to a LID are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRoute {
    /// Node of the source.
    pub from: NodeIndex,
    /// Destination.
    pub lid: Lid,
    /// Why they are lost.
    pub reason: DropReason,
}

impl RouteReport {
    /// Whether every end port with a link is configured, and all pairs are connected.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.unconfigured == 0
    }
}

/// Fate of a packet from a given switch on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    /// Being followed: if reached again, the tables loop.
    Open,
    /// Arrives after this many links.
    Arrives(u32),
    Lost(DropReason),
}

/// A check in progress, done in slices: the tables are read for one LID after the other.
pub struct RouteCheck {
    report: RouteReport,
    lids: Vec<Lid>,
    /// LIDs checked so far.
    done: usize,
    groups: Vec<Group>,
    /// Owner of each LID: its group, and its port.
    owners: Vec<Option<(usize, PortIndex)>>,
    /// The further owners of LIDs of planarized ports.
    further: HashMap<(usize, Lid), PortIndex>,
    /// In a planarized fabric: the planes in which a LID has a port.
    planes: Option<HashMap<Lid, Vec<u32>>>,
    losses: [u64; DropReason::ALL.len()],
    fates: Vec<Fate>,
}

impl Fabric {
    /// Follows the tables from every end port to every LID.
    pub fn check_routes(&self) -> RouteReport {
        let mut check = self.begin_check();
        while !check.advance(self) {}
        check.finish()
    }

    /// Starts a check of the present end ports and LIDs.
    pub fn begin_check(&self) -> RouteCheck {
        let subnet = &self.subnet;
        let has_lid = |port: PortIndex| subnet.port_info(port).base_lid() != Lid::NONE;
        let sources: Vec<PortIndex> = end_ports(subnet)
            .filter(|&port| has_lid(port) && subnet.port_state(port) == PortState::Active)
            .collect();
        let mut lids: Vec<Lid> = end_ports(subnet).flat_map(|port| lids_of(subnet, port)).collect();
        lids.sort_unstable();
        lids.dedup();
        let report = RouteReport {
            sources: sources.len(),
            lids: lids.len(),
            unconfigured: end_ports(subnet).count() - sources.len(),
            ..RouteReport::default()
        };
        let parts = subnet.nodes().any(|(_, node)| node.has_planes).then(|| parts(subnet));
        let groups = groups(subnet, &sources, parts.as_deref());
        let mut owners = vec![None; usize::from(Lid::UNICAST_LAST.0) + 1];
        let mut further = HashMap::new();
        for (place, group) in groups.iter().enumerate() {
            for &source in &group.sources {
                for lid in lids_of(subnet, source) {
                    let before = owners[lid.index()].replace((place, source));
                    if let Some((place, source)) = before.filter(|_| parts.is_some()) {
                        further.insert((place, lid), source);
                    }
                }
            }
        }
        let planes = parts.map(|parts| {
            let mut planes: HashMap<Lid, Vec<u32>> = HashMap::new();
            for port in end_ports(subnet) {
                for lid in lids_of(subnet, port) {
                    planes.entry(lid).or_default().extend(part_of(subnet, port, &parts));
                }
            }
            planes
        });
        let fates = vec![Fate::Unknown; subnet.nodes().len()];
        let losses = [0; DropReason::ALL.len()];
        RouteCheck { report, lids, done: 0, groups, owners, further, planes, losses, fates }
    }
}

impl RouteCheck {
    /// Follows the tables of `fabric`, which must be the fabric the check began with, to the next
    /// LID. Returns whether that was the last.
    pub fn advance(&mut self, fabric: &Fabric) -> bool {
        let subnet = &fabric.subnet;
        let Some(&lid) = self.lids.get(self.done) else { return true };
        self.done += 1;
        let report = &mut self.report;
        self.fates.fill(Fate::Unknown);
        let planes = self.planes.as_ref().map(|planes| planes.get(&lid));
        for (place, group) in self.groups.iter().enumerate() {
            let is_apart = planes.is_some_and(|planes| {
                planes.is_none_or(|planes| group.part.is_none_or(|part| !planes.contains(&part)))
            });
            if is_apart {
                report.apart += group.sources.len() as u64;
                continue;
            }
            let fate = match group.entry {
                Some(entry) => follow(subnet, entry, lid, &mut self.fates),
                None => Fate::Lost(DropReason::PortDown),
            };
            // The port that has the LID needs no route to it.
            let owner = self.owners[lid.index()].filter(|&(at, _)| at == place).map(|(_, at)| at);
            let owner = owner.or_else(|| self.further.get(&(place, lid)).copied());
            match fate {
                Fate::Arrives(hops) => {
                    report.delivered += group.sources.len() as u64;
                    report.hops_max = report.hops_max.max(hops + group.hops);
                }
                Fate::Lost(reason) => {
                    let owned = usize::from(owner.is_some());
                    report.delivered += owned as u64;
                    self.losses[reason as usize] += (group.sources.len() - owned) as u64;
                    let from = group.sources.iter().find(|&&at| Some(at) != owner);
                    if let Some(&from) = from
                        && report.examples.len() < EXAMPLES_MAX
                    {
                        let from = subnet[from].node;
                        report.examples.push(LostRoute { from, lid, reason });
                    }
                }
                Fate::Unknown | Fate::Open => {}
            }
        }
        self.done == self.lids.len()
    }

    /// The result so far.
    pub fn finish(self) -> RouteReport {
        let mut report = self.report;
        report.lost = DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.losses[reason as usize]))
            .filter(|&(_, count)| count != 0)
            .collect();
        report
    }
}

/// Ports of powered nodes that a manager assigns LIDs to: adapter ports with a link, and switches'
/// port 0.
fn end_ports(subnet: &Subnet) -> impl Iterator<Item = PortIndex> + '_ {
    subnet
        .nodes()
        .filter(|(_, node)| node.up)
        .flat_map(|(index, node)| {
            let ports = subnet.ports_of(index);
            ports.take(if node.is_switch() { 1 } else { usize::MAX })
        })
        .filter(|&port| subnet.port_state(port) != PortState::Down)
}

/// All LIDs of a port.
fn lids_of(subnet: &Subnet, port: PortIndex) -> impl Iterator<Item = Lid> + use<> {
    let info = subnet.port_info(port);
    let base = info.base_lid().0;
    (base..=base | ((1 << info.lmc()) - 1)).map(Lid).filter(|lid| lid.is_unicast())
}

/// Sources whose packets use the same tables: those behind one switch, and the switch itself.
struct Group {
    /// Where their packets enter; `None` if their links are not active.
    entry: Option<PortIndex>,
    /// Links that a packet has crossed before.
    hops: u32,
    /// The plane, in a planarized fabric.
    part: Option<u32>,
    sources: Vec<PortIndex>,
}

/// By node: a number that is equal for all switches that cables connect, cut or not.
fn parts(subnet: &Subnet) -> Vec<u32> {
    let mut parts = vec![u32::MAX; subnet.nodes().len()];
    let switches = subnet.nodes().filter(|(_, node)| node.is_switch());
    for (start, _) in switches {
        let mut left = vec![start];
        while let Some(at) = left.pop() {
            if parts[at.0 as usize] != u32::MAX {
                continue;
            }
            parts[at.0 as usize] = start.0;
            let peers = subnet.ports_of(at).filter_map(|port| subnet.peer(port));
            let peers = peers.map(|peer| subnet[peer].node);
            left.extend(
                peers
                    .filter(|&peer| subnet[peer].is_switch() && parts[peer.0 as usize] == u32::MAX),
            );
        }
    }
    parts
}

/// The part of a switch, or of the switch that an adapter's port is cabled to.
fn part_of(subnet: &Subnet, port: PortIndex, parts: &[u32]) -> Option<u32> {
    let at = if subnet.node_of(port).is_switch() { Some(port) } else { subnet.peer(port) };
    let part = parts[subnet[at?].node.0 as usize];
    (part != u32::MAX).then_some(part)
}

/// Whether the tables lead a packet from an adapter's port to a LID.
pub(crate) fn leads_to(subnet: &Subnet, from: PortIndex, lid: Lid) -> bool {
    if subnet.owns_lid(from, lid) {
        return true;
    }
    let mut at = from;
    for _ in 0..HOPS_MAX {
        let out = match subnet.switch(subnet[at].node) {
            Some(switch) => match subnet.port(subnet[at].node, switch.out_port(lid)) {
                Some(out) if subnet[out].number == 0 => return subnet.owns_lid(out, lid),
                Some(out) => out,
                None => return false,
            },
            None if at == from => from,
            None => return subnet.owns_lid(at, lid),
        };
        match crossed(subnet, out) {
            Some(next) => at = next,
            None => return false,
        }
    }
    false
}

fn groups(subnet: &Subnet, sources: &[PortIndex], parts: Option<&[u32]>) -> Vec<Group> {
    let mut places = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for &source in sources {
        let is_switch = subnet.node_of(source).is_switch();
        let (entry, hops) =
            if is_switch { (Some(source), 0) } else { (crossed(subnet, source), 1) };
        // An adapter port has LIDs of its own; all ports of a switch share those of port 0.
        let tables = entry.map(|entry| match subnet.node_of(entry).is_switch() {
            true => subnet.management_port(entry),
            false => entry,
        });
        let part = parts.and_then(|parts| part_of(subnet, source, parts));
        let key = (tables, hops, part);
        let place = *places.entry(key).or_insert_with(|| {
            groups.push(Group { entry, hops, part, sources: Vec::new() });
            groups.len() - 1
        });
        groups[place].sources.push(source);
    }
    groups
}

/// Fate of a packet that enters by `entry`; records it for every switch on the way.
fn follow(subnet: &Subnet, entry: PortIndex, lid: Lid, fates: &mut [Fate]) -> Fate {
    let mut way = Vec::new();
    let mut at = entry;
    let mut fate = loop {
        let node = subnet[at].node;
        let place = node.0 as usize;
        let Some(switch) = subnet.switch(node) else {
            break owned(subnet, at, lid);
        };
        match fates[place] {
            Fate::Unknown => {}
            Fate::Open => break Fate::Lost(DropReason::HopLimit),
            known => break known,
        }
        fates[place] = Fate::Open;
        way.push(place);
        let number = switch.out_port(lid);
        let Some(out) = subnet.port(node, number) else {
            break Fate::Lost(DropReason::NoRoute);
        };
        if number == 0 {
            // Record the fate from this switch, not from one before it.
            way.pop();
            fates[place] = owned(subnet, out, lid);
            break fates[place];
        }
        match crossed(subnet, out) {
            Some(next) => at = next,
            None => break Fate::Lost(DropReason::PortDown),
        }
    };
    for place in way.into_iter().rev() {
        fate = one_more(fate);
        fates[place] = fate;
    }
    fate
}

fn owned(subnet: &Subnet, port: PortIndex, lid: Lid) -> Fate {
    if subnet.owns_lid(port, lid) { Fate::Arrives(0) } else { Fate::Lost(DropReason::WrongLid) }
}

fn one_more(fate: Fate) -> Fate {
    match fate {
        Fate::Arrives(hops) => Fate::Arrives(hops + 1),
        other => other,
    }
}

/// The far end of an active link.
fn crossed(subnet: &Subnet, out: PortIndex) -> Option<PortIndex> {
    let peer = subnet.wired_peer(out)?;
    let open = subnet.port_state(out) == PortState::Active
        && matches!(subnet.port_state(peer), PortState::Armed | PortState::Active);
    open.then_some(peer)
}

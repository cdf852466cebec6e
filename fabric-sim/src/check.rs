//! Checks whether the programmed tables carry packets from every end port to every LID.
//!
//! Reads the tables and port states as a data packet would use them, without sending any: no
//! counter changes and no fault applies.

use std::collections::HashMap;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::PortState;

use crate::counters::DropReason;
use crate::fabric::Fabric;
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
        let groups = groups(subnet, &sources);
        let mut owners = vec![None; usize::from(Lid::UNICAST_LAST.0) + 1];
        for (place, group) in groups.iter().enumerate() {
            for &source in &group.sources {
                for lid in lids_of(subnet, source) {
                    owners[lid.index()] = Some((place, source));
                }
            }
        }
        let fates = vec![Fate::Unknown; subnet.nodes().len()];
        let losses = [0; DropReason::ALL.len()];
        RouteCheck { report, lids, done: 0, groups, owners, losses, fates }
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
        for (place, group) in self.groups.iter().enumerate() {
            let fate = match group.entry {
                Some(entry) => follow(subnet, entry, lid, &mut self.fates),
                None => Fate::Lost(DropReason::PortDown),
            };
            // The port that has the LID needs no route to it.
            let owner = self.owners[lid.index()].filter(|&(at, _)| at == place).map(|(_, at)| at);
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
    sources: Vec<PortIndex>,
}

fn groups(subnet: &Subnet, sources: &[PortIndex]) -> Vec<Group> {
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
        let key = (tables, hops);
        let place = *places.entry(key).or_insert_with(|| {
            groups.push(Group { entry, hops, sources: Vec::new() });
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

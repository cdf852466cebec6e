//! Whether the tables that were programmed carry every end port's packets to every LID.
//!
//! Looks at tables and port states as data packets meet them, without sending any: no counter
//! moves and no fault strikes.

use std::collections::HashMap;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::PortState;

use crate::counters::DropReason;
use crate::fabric::Fabric;
use crate::subnet::{NodeIndex, PortIndex, Subnet};

/// Lost routes that are named one by one.
const EXAMPLES_MAX: usize = 16;

/// What became of a packet from every end port that has a LID to every LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteReport {
    /// End ports with a LID: adapters' active ports, and switches' port 0.
    pub sources: usize,
    /// LIDs of end ports.
    pub lids: usize,
    /// End ports that are linked but have no LID yet or are not active; switches' port 0 as well.
    pub unconfigured: usize,
    /// Pairs whose packet arrives.
    pub delivered: u64,
    /// Pairs whose packet is lost, by reason.
    pub lost: Vec<(DropReason, u64)>,
    /// Some of the lost ones.
    pub examples: Vec<LostRoute>,
    /// Links that the longest route crosses.
    pub hops_max: u32,
}

/// A pair of which the one's packets do not reach the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRoute {
    /// Node of the sender.
    pub from: NodeIndex,
    /// Destination.
    pub lid: Lid,
    /// What becomes of them.
    pub reason: DropReason,
}

impl RouteReport {
    /// Whether every end port that is linked is configured, and every pair connected.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.unconfigured == 0
    }
}

/// What becomes of a packet from a switch on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    /// Being looked at: seen again, the tables loop.
    Open,
    /// Arrives after so many links.
    Arrives(u32),
    Lost(DropReason),
}

/// A check under way, in slices: each LID's tables are looked at as they are when its turn comes.
pub struct RouteCheck {
    report: RouteReport,
    lids: Vec<Lid>,
    /// LIDs looked at so far.
    done: usize,
    groups: Vec<Group>,
    /// Who has each LID: its group, and its port.
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

    /// Begins a check of the end ports and LIDs that there are now.
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
    /// Follows the tables of `fabric`, which must be the one the check began with, to the next
    /// LID. Whether there are no more.
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
            // Whoever has the LID needs no way to it.
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

    /// What was found so far.
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

/// Ports of powered nodes that a manager gives LIDs to: linked ones of adapters, port 0 of
/// switches.
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

/// Sources whose packets all meet the same tables: those behind one switch, and it itself.
struct Group {
    /// Where their packets come in; `None` if their links are not active.
    entry: Option<PortIndex>,
    /// Links that a packet has crossed by then.
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
        // An adapter's tables are its port's LIDs, a switch's are the same for all ports.
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

/// What becomes of a packet that came in by `entry`, and of those at every switch on its way.
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
            // The fate of this switch itself, not of one before it.
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

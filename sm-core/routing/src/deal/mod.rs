//! Distributes LIDs over the ports that lead closer, choosing among equal paths by the number of
//! routes that actually pass.
//!
//! Destinations are routed per egress switch: all LIDs that one switch delivers form a batch. The
//! other switches, farthest first, distribute these LIDs over their ports that are one hop closer,
//! so that the number of hosts that send through a switch is known when its turn comes. Fat trees
//! are balanced because routes are counted, not table entries: a leaf deals LIDs to its spines in
//! turn, so a spine sees every n-th of them, and dealing these by position in the table would put
//! all of them on one port. A port gets a second LID of a batch only when all ports have one, the
//! least loaded port first. Egress switches are visited in breadth-first order, which keeps those
//! of a pod together: LIDs that a switch spreads evenly upwards are then also spread evenly
//! downwards.
//!
//! LIDs of switches, which carry management traffic, are assigned to ports in turn, so that they do
//! not disturb the balance of hosts' LIDs. Each switch starts at a different port.
//!
//! As in OpenSM, operators can choose which LIDs are routed first, which of several equal ports is
//! preferred, and which links are not counted and so never appear loaded. Options can break ties
//! pseudo-randomly or from a rotating start port ([`Ties`]); load takes precedence.
//!
//! All engines whose routes get one hop shorter at each step share this module. The engine defines
//! "closer" and which ports may be used ([`PathRules`]). Keeping previous routes is done in
//! [`repair`](super::repair), not here.

mod candidates;
mod hand;
mod order;

use ib_mad::types::Lid;

use std::sync::Arc;

pub(super) use self::candidates::{Candidate, Candidates, PathRules, Shortest, list_candidates};
use self::hand::Hand;
pub(super) use self::order::{Batch, batches, batches_of};
use super::hops::{First, list_sources};
use super::tables::Tables;
use super::tree::TreeTables;
use super::{CommonOptions, Entries, HopMatrix, Link, Ties, Topology};

/// Forwarding tables before relief.
pub(super) struct Draft {
    dealt: Dealt,
}

/// Forwarding tables, the number of missing entries, and the resulting link loads.
pub(super) struct Dealt {
    pub(super) lfts: Vec<Entries>,
    /// Pairs of a switch and a LID without a route between them.
    pub(super) unreachable: u64,
    /// By link: number of routes from hosts to hosts' LIDs; empty if they were not counted.
    pub(super) loads: Vec<u32>,
    /// The tables of a tree, with what they were computed from.
    pub(super) tree: Option<Arc<TreeTables>>,
}

/// Routes all destinations by `hops`, whose rows are egress switches. `path_rules` returns the
/// rules for an egress switch. Takes time proportional to switches times links plus switches times
/// LIDs.
pub(super) fn deal<W: PathRules>(
    topology: &Topology,
    common: &CommonOptions,
    hops: &HopMatrix,
    mut path_rules: impl FnMut(u16) -> W,
) -> Draft {
    let mut dealer = Dealer::new(topology, common);
    for batch in batches(topology, &common.routing_order) {
        let takes_turns = batch.is_ordered && common.ordered_take_turns;
        let ties = if takes_turns { Ties::InTurn } else { common.ties };
        dealer.route(&batch, hops.row(batch.egress_switch), &path_rules(batch.egress_switch), ties);
    }
    let Dealer { tables, unreachable, mut loads, has_parallel, .. } = dealer;
    if W::NARROWS && !has_parallel || !common.ignored_links.is_empty() {
        // Some routes were not counted.
        loads.clear();
    }
    Draft { dealt: Dealt { lfts: tables.finish(), unreachable, loads, tree: None } }
}

impl Draft {
    /// Returns the tables unchanged.
    pub(super) fn keep(self) -> Dealt {
        self.dealt
    }
}

/// By link: the rank of its port in its switch's order (`port_search_ordering_file`). Ports that
/// the operator does not list follow the listed ones. Empty if no switch has an order.
pub(super) fn port_places(topology: &Topology, common: &CommonOptions) -> Vec<u16> {
    let mut places = Vec::new();
    if common.port_orders.iter().all(Vec::is_empty) {
        return places;
    }
    places.reserve(topology.link_count());
    for switch in topology.switches() {
        let order = common.port_orders.get(usize::from(switch)).map_or(&[][..], Vec::as_slice);
        let place = |port: u8| {
            let named = (0..).zip(order).find(|&(_, &named)| named == port);
            named.map_or(256 + u16::from(port), |(place, _)| place)
        };
        places.extend(topology.links(switch).iter().map(|link| place(link.port)));
    }
    places
}

struct Dealer<'a> {
    topology: &'a Topology,
    /// By link: whether its routes are not counted; may be empty.
    ignored: &'a [bool],
    tables: Tables,
    unreachable: u64,
    /// By link: number of routes from hosts to hosts' LIDs.
    loads: Vec<u32>,
    /// Number of hosts per switch.
    hosts: Vec<u32>,
    /// By switch and index in the batch: number of hosts farther away that send through the switch.
    inflow: Vec<u32>,
    /// By switch: the port index at which it continues to distribute LIDs that no host sends
    /// through it.
    idle: Vec<u8>,
    /// Switches by hops, farthest first; scratch space.
    sources: Vec<u16>,
    /// Candidates for the current batch.
    candidates: Candidates,
    /// Scratch space.
    ranks: Vec<u64>,
    listed: Vec<Candidate>,
    /// Whether any two switches are joined by more than one link.
    has_parallel: bool,
}

impl<'a> Dealer<'a> {
    fn new(topology: &'a Topology, common: &'a CommonOptions) -> Self {
        let switches = topology.switch_count();
        Self {
            topology,
            ignored: &common.ignored_links,
            tables: Tables::new(switches, topology.table_len()),
            unreachable: 0,
            loads: vec![0; topology.link_count()],
            hosts: topology.hosts_on(),
            inflow: vec![0; switches * Batch::LIDS_MAX],
            idle: vec![0; switches],
            sources: Vec::with_capacity(switches),
            candidates: Candidates::in_order(port_places(topology, common)),
            ranks: Vec::new(),
            listed: Vec::new(),
            has_parallel: has_parallel(topology),
        }
    }

    /// Routes a batch from all switches. `hops` are to its egress switch.
    fn route<W: PathRules>(&mut self, batch: &Batch, hops: &[u8], path_rules: &W, ties: Ties) {
        self.tables.begin(&batch.lids);
        if W::NARROWS && !self.has_parallel {
            self.pass_on(batch, hops, path_rules);
            return;
        }
        list_sources(&mut self.sources, hops, First::Farthest);
        let is_plain = self.candidates.are_by_port() && ties == Ties::InTurn;
        if batch.host_lids == 0 && !W::NARROWS && is_plain {
            self.pass_round(batch, hops, path_rules);
        } else {
            let Self { topology, candidates, sources, loads, .. } = self;
            candidates.set_ties(ties, batch.lids.first().copied().unwrap_or(Lid::NONE));
            candidates.find(topology, batch.egress_switch, hops, sources, loads, path_rules);
            for place in 0..self.sources.len() {
                self.deal(place, batch);
            }
        }
        let egress_switch = usize::from(batch.egress_switch);
        self.tables.entries(egress_switch).copy_from_slice(&batch.exits);
        self.inflow[egress_switch * Batch::LIDS_MAX..][..batch.host_lids].fill(0);
        let reached = self.sources.len() + 1;
        self.unreachable += ((hops.len() - reached) * batch.lids.len()) as u64;
    }

    /// Distributes the LIDs of a batch over the candidates of the source at index `place`.
    fn deal(&mut self, place: usize, batch: &Batch) {
        let (switch, candidates) = (self.sources[place], self.candidates.of(place));
        let index = usize::from(switch);
        let (entries, own) = self.tables.entries(index).split_at_mut(batch.host_lids);
        for (entry, turn) in own.iter_mut().zip(first_turn(switch, batch.egress_switch)..) {
            *entry = candidates[turn % candidates.len()].port;
        }
        if entries.is_empty() {
            return;
        }
        let mut flows = [0; Batch::LIDS_MAX];
        let flows = &mut flows[..entries.len()];
        let arrived = &mut self.inflow[index * Batch::LIDS_MAX..][..flows.len()];
        for (flow, arrived) in flows.iter_mut().zip(arrived) {
            *flow = self.hosts[index] + std::mem::take(arrived);
        }
        let mut hand = Hand {
            flows,
            candidates,
            ignored: self.ignored,
            ranks: &mut self.ranks,
            idle: &mut self.idle[index],
            entries,
            inflow: &mut self.inflow,
        };
        if let &[only] = candidates {
            self.loads[only.link as usize] += hand.give_all(only);
        } else {
            hand.run(self.candidates.loads_of(place), &mut self.loads);
        }
    }

    /// Assigns each switch's LIDs to the only link that remains when paths are narrowed to one
    /// switch. Its load has no influence then and is not counted.
    fn pass_on<W: PathRules>(&mut self, batch: &Batch, hops: &[u8], path_rules: &W) {
        let Self { topology, tables, unreachable, listed, .. } = self;
        tables.entries(usize::from(batch.egress_switch)).copy_from_slice(&batch.exits);
        for (switch, &here) in topology.switches().zip(hops) {
            if here == 0 {
                continue;
            }
            listed.clear();
            let closer = here - 1;
            let links = topology.links(switch).iter().zip(topology.link_range(switch));
            for (&Link { peer, port, .. }, number) in links {
                let (there, link) = (hops[usize::from(peer)], number as u32);
                if path_rules.is_closer(closer, there, switch, link, peer)
                    && path_rules.allow(switch, link, peer)
                {
                    listed.push(Candidate { link, peer, port });
                }
            }
            path_rules.narrow(switch, listed, 0);
            match listed.first() {
                Some(only) if here != HopMatrix::UNREACHABLE => {
                    tables.entries(usize::from(switch)).fill(only.port);
                }
                _ => *unreachable += batch.lids.len() as u64,
            }
        }
    }

    /// Distributes the LIDs of an egress switch without hosts.
    fn pass_round(&mut self, batch: &Batch, hops: &[u8], path_rules: &impl PathRules) {
        let mut ports = [0; 256];
        for &switch in &self.sources {
            let closer = hops[usize::from(switch)] - 1;
            let mut count = 0;
            let links = self.topology.links(switch).iter().zip(self.topology.link_range(switch));
            for (link, number) in links {
                ports[count] = link.port;
                let (there, number) = (hops[usize::from(link.peer)], number as u32);
                let may = path_rules.is_closer(closer, there, switch, number, link.peer)
                    && path_rules.allow(switch, number, link.peer);
                count += usize::from(may);
            }
            let entries = self.tables.entries(usize::from(switch)).iter_mut();
            for (entry, turn) in entries.zip(first_turn(switch, batch.egress_switch)..) {
                *entry = ports[turn % count];
            }
        }
    }
}

/// Whether any switch has two links to the same neighbour.
fn has_parallel(topology: &Topology) -> bool {
    let mut last = vec![None; topology.switch_count()];
    topology.switches().any(|switch| {
        let mut links = topology.links(switch).iter();
        links.any(|link| last[usize::from(link.peer)].replace(switch) == Some(switch))
    })
}

/// The index at which a switch starts to distribute LIDs of another.
fn first_turn(switch: u16, egress_switch: u16) -> usize {
    usize::from(switch) + usize::from(egress_switch)
}

//! Dealing LIDs to the ports that lead closer, ties spread by the routes that really pass.
//!
//! Destinations are routed switch by switch: all LIDs that one home switch delivers at once. Each
//! other switch, the farthest first, deals these LIDs to its ports that are one hop closer, so that
//! it knows how many hosts send through it when its turn comes. Counting routes that pass, rather
//! than table entries, is what balances fat trees: of the LIDs a leaf deals in turn to its spines,
//! a spine sees every n-th, and dealing these by their place in the table would send all of them
//! on by one port. A port gets a second LID of a batch only after all have got one, the least
//! loaded first. Home switches are taken in breadth-first order, which keeps those of a pod
//! together: what a switch deals evenly up then also comes down evenly.
//!
//! LIDs of switches, which carry management traffic, go to ports in turn, so that they do not
//! disturb the balance of hosts' LIDs; each switch begins with another port.
//!
//! Operators may say otherwise: which LIDs go first, which ports are preferred among equals, and
//! whose routes are not counted, so that they never seem loaded, as with OpenSM. Who asks for it has
//! ties broken by chance, or from another port on ([`Ties`]): what a port carries comes first even so.
//!
//! Here is what engines share whose routes fall by one hop at each step. What "closer" means, and
//! which ports may be used ([`Ways`]), is the engine's. Keeping routes from before is not done here
//! ([`repair`](super::repair)).

mod candidates;
mod hand;
mod order;
mod shortest;

use ib_mad::types::Lid;

pub(super) use self::candidates::{Candidate, Candidates, Shortest, Ways, list_candidates};
use self::hand::Hand;
pub(super) use self::order::{Batch, batches, batches_of};
pub(super) use self::shortest::deal_shortest;
use super::hops::{First, list_sources};
use super::relief::relieve_all;
use super::tables::Tables;
use super::{Entries, HopMatrix, Link, Steering, Ties, Topology};

/// Tables as they were dealt.
pub(super) struct Draft {
    dealt: Dealt,
}

/// Tables, how many of their entries are missing, and what they make of links.
pub(super) struct Dealt {
    pub(super) lfts: Vec<Entries>,
    /// Pairs of a switch and a LID without a route between them.
    pub(super) unreachable: u64,
    /// By link: how many routes of hosts pass it, to hosts' LIDs; empty if that was not counted.
    pub(super) loads: Vec<u32>,
}

/// Routes all destinations by `hops`, whose rows are home switches. `ways` are those to a home.
/// Takes time in proportion to switches times links, and to switches times LIDs.
pub(super) fn deal<W: Ways>(
    topology: &Topology,
    steering: &Steering,
    hops: &HopMatrix,
    mut ways: impl FnMut(u16) -> W,
) -> Draft {
    let mut dealer = Dealer::new(topology, steering);
    for batch in batches(topology, &steering.routing_order) {
        let takes_turns = batch.is_ordered && steering.ordered_take_turns;
        let ties = if takes_turns { Ties::InTurn } else { steering.ties };
        dealer.route(&batch, hops.row(batch.home), &ways(batch.home), ties);
    }
    let Dealer { tables, unreachable, mut loads, has_parallel, .. } = dealer;
    if W::NARROWS && !has_parallel || !steering.ignored_links.is_empty() {
        // Not all were counted.
        loads.clear();
    }
    Draft { dealt: Dealt { lfts: tables.finish(), unreachable, loads } }
}

impl Draft {
    /// With routes moved away from the most loaded links ([`relief`](super::relief)). Arguments are
    /// those of [`deal`], for ways by hops alone.
    pub(super) fn relieve<W: Ways>(
        self,
        topology: &Topology,
        steering: &Steering,
        hops: &HopMatrix,
        ways: impl Fn(u16) -> W,
    ) -> Dealt {
        let Self { mut dealt } = self;
        // Ways that are narrowed lead to one switch, and its cables have been dealt to in turn.
        if !W::NARROWS && !dealt.loads.is_empty() {
            let loads = std::mem::take(&mut dealt.loads);
            dealt.loads = relieve_all(topology, steering, hops, ways, loads, &mut dealt.lfts);
        }
        dealt
    }

    /// As they are.
    pub(super) fn keep(self) -> Dealt {
        self.dealt
    }
}

/// By link: the place of its port in its switch's order (`port_search_ordering_file`). Ports that the
/// operator does not name follow those named. Empty if nobody has an order.
pub(super) fn port_places(topology: &Topology, steering: &Steering) -> Vec<u16> {
    let mut places = Vec::new();
    if steering.port_orders.iter().all(Vec::is_empty) {
        return places;
    }
    places.reserve(topology.link_count());
    for switch in topology.switches() {
        let order = steering.port_orders.get(usize::from(switch)).map_or(&[][..], Vec::as_slice);
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
    /// By link: how many routes of hosts pass it, to hosts' LIDs.
    loads: Vec<u32>,
    /// Hosts on each switch.
    hosts: Vec<u32>,
    /// By switch and place in the batch: hosts further away that send through the switch.
    inflow: Vec<u32>,
    /// By switch: where it goes on dealing LIDs that no host sends through it.
    idle: Vec<u8>,
    /// Switches by hops, the farthest first; scratch.
    sources: Vec<u16>,
    /// For the batch at hand.
    candidates: Candidates,
    /// Scratch.
    ranks: Vec<u64>,
    listed: Vec<Candidate>,
    /// Whether there are two links between the same switches anywhere.
    has_parallel: bool,
}

impl<'a> Dealer<'a> {
    fn new(topology: &'a Topology, steering: &'a Steering) -> Self {
        let switches = topology.switch_count();
        Self {
            topology,
            ignored: &steering.ignored_links,
            tables: Tables::new(switches, topology.table_len()),
            unreachable: 0,
            loads: vec![0; topology.link_count()],
            hosts: topology.hosts_on(),
            inflow: vec![0; switches * Batch::LIDS_MAX],
            idle: vec![0; switches],
            sources: Vec::with_capacity(switches),
            candidates: Candidates::in_order(port_places(topology, steering)),
            ranks: Vec::new(),
            listed: Vec::new(),
            has_parallel: has_parallel(topology),
        }
    }

    /// Routes a batch from all switches. `hops` are those to its home.
    fn route<W: Ways>(&mut self, batch: &Batch, hops: &[u8], ways: &W, ties: Ties) {
        self.tables.begin(&batch.lids);
        if W::NARROWS && !self.has_parallel {
            self.pass_on(batch, hops, ways);
            return;
        }
        list_sources(&mut self.sources, hops, First::Farthest);
        let is_plain = self.candidates.are_by_port() && ties == Ties::InTurn;
        if batch.host_lids == 0 && !W::NARROWS && is_plain {
            self.pass_round(batch, hops, ways);
        } else {
            let Self { topology, candidates, sources, loads, .. } = self;
            candidates.set_ties(ties, batch.lids.first().copied().unwrap_or(Lid::NONE));
            candidates.find(topology, batch.home, hops, sources, loads, ways);
            for place in 0..self.sources.len() {
                self.deal(place, batch);
            }
        }
        let home = usize::from(batch.home);
        self.tables.entries(home).copy_from_slice(&batch.exits);
        self.inflow[home * Batch::LIDS_MAX..][..batch.host_lids].fill(0);
        let reached = self.sources.len() + 1;
        self.unreachable += ((hops.len() - reached) * batch.lids.len()) as u64;
    }

    /// Deals the LIDs of a batch to the candidates of the source at `place`.
    fn deal(&mut self, place: usize, batch: &Batch) {
        let (switch, candidates) = (self.sources[place], self.candidates.of(place));
        let index = usize::from(switch);
        let (entries, own) = self.tables.entries(index).split_at_mut(batch.host_lids);
        for (entry, turn) in own.iter_mut().zip(first_turn(switch, batch.home)..) {
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

    /// Gives each switch's LIDs to the only link that is left when ways are narrowed to one switch.
    /// What it has to carry then decides nothing, so that it is not counted.
    fn pass_on<W: Ways>(&mut self, batch: &Batch, hops: &[u8], ways: &W) {
        let Self { topology, tables, unreachable, listed, .. } = self;
        tables.entries(usize::from(batch.home)).copy_from_slice(&batch.exits);
        for (switch, &here) in topology.switches().zip(hops) {
            if here == 0 {
                continue;
            }
            listed.clear();
            let closer = here - 1;
            let links = topology.links(switch).iter().zip(topology.link_range(switch));
            for (&Link { peer, port, .. }, number) in links {
                let (there, link) = (hops[usize::from(peer)], number as u32);
                if ways.is_closer(closer, there, switch, link, peer)
                    && ways.allow(switch, link, peer)
                {
                    listed.push(Candidate { link, peer, port });
                }
            }
            ways.narrow(switch, listed, 0);
            match listed.first() {
                Some(only) if here != HopMatrix::UNREACHABLE => {
                    tables.entries(usize::from(switch)).fill(only.port);
                }
                _ => *unreachable += batch.lids.len() as u64,
            }
        }
    }

    /// Deals the LIDs of a home without hosts.
    fn pass_round(&mut self, batch: &Batch, hops: &[u8], ways: &impl Ways) {
        let mut ports = [0; 256];
        for &switch in &self.sources {
            let closer = hops[usize::from(switch)] - 1;
            let mut count = 0;
            let links = self.topology.links(switch).iter().zip(self.topology.link_range(switch));
            for (link, number) in links {
                ports[count] = link.port;
                let (there, number) = (hops[usize::from(link.peer)], number as u32);
                let may = ways.is_closer(closer, there, switch, number, link.peer)
                    && ways.allow(switch, number, link.peer);
                count += usize::from(may);
            }
            let entries = self.tables.entries(usize::from(switch)).iter_mut();
            for (entry, turn) in entries.zip(first_turn(switch, batch.home)..) {
                *entry = ports[turn % count];
            }
        }
    }
}

/// Whether any switch has two links to another.
fn has_parallel(topology: &Topology) -> bool {
    let mut last = vec![None; topology.switch_count()];
    topology.switches().any(|switch| {
        let mut links = topology.links(switch).iter();
        links.any(|link| last[usize::from(link.peer)].replace(switch) == Some(switch))
    })
}

/// Where a switch begins to deal LIDs of another.
fn first_turn(switch: u16, home: u16) -> usize {
    usize::from(switch) + usize::from(home)
}

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
//! LIDs of switches, which carry management traffic, are dealt apart so that they do not disturb
//! the balance of hosts' LIDs, and begin at a different port on each switch.
//!
//! A route stays as it was before if it still is a shortest one, unless the switch has got more
//! ports to choose from for that destination: then it deals anew, so that a link which came back
//! is used.
//!
//! Operators may say otherwise: which LIDs go first, which ports are preferred among equals, and
//! whose routes are not counted, so that they never seem loaded, as with OpenSM.
//!
//! Here is what engines share whose routes fall by one hop at each step. What "closer" means, and
//! which ports may be used ([`Ways`]), is the engine's.

mod candidates;
mod hand;
mod order;
mod shortest;
mod stay;
mod tables;

pub(super) use self::candidates::{Candidate, Candidates, Shortest, Ways};
use self::hand::Hand;
use self::order::batches;
pub(super) use self::order::{Batch, batches_of};
pub(super) use self::shortest::deal_shortest;
use self::stay::Stay;
pub(super) use self::tables::Tables;
use super::{HopMatrix, Previous, Steering, Topology};

/// What engines have of tables before, to keep routes.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) previous: &'a Previous<'a>,
    /// The hops then, row a home switch.
    pub(super) hops: &'a HopMatrix,
}

/// Tables, and how many of their entries are missing.
pub(super) struct Dealt {
    pub(super) lfts: Vec<Vec<u8>>,
    /// Pairs of a switch and a LID without a route between them.
    pub(super) unreachable: u64,
}

/// Routes all destinations by `hops`, whose rows are home switches. `ways` are those to a home.
/// Takes time in proportion to switches times links, and to switches times LIDs.
pub(super) fn deal<W: Ways>(
    topology: &Topology,
    steering: &Steering,
    hops: &HopMatrix,
    before: Option<Before<'_>>,
    mut ways: impl FnMut(u16) -> W,
) -> Dealt {
    let mut dealer = Dealer::new(topology, steering, before);
    for batch in batches(topology, &steering.routing_order) {
        dealer.route(&batch, hops.row(batch.home), &ways(batch.home));
    }
    Dealt { lfts: dealer.tables.finish(), unreachable: dealer.unreachable }
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
    stay: Option<Stay<'a>>,
    tables: Tables,
    unreachable: u64,
    /// By link: how many routes of hosts pass it, to hosts' LIDs.
    host_loads: Vec<u32>,
    /// The same to switches' LIDs.
    switch_loads: Vec<u32>,
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
}

impl<'a> Dealer<'a> {
    fn new(topology: &'a Topology, steering: &'a Steering, before: Option<Before<'a>>) -> Self {
        let switches = topology.switch_count();
        Self {
            topology,
            ignored: &steering.ignored_links,
            stay: before.map(|before| Stay::new(topology, before.previous, before.hops)),
            tables: Tables::new(switches, topology.table_len()),
            unreachable: 0,
            host_loads: vec![0; topology.link_count()],
            switch_loads: vec![0; topology.link_count()],
            hosts: topology.hosts_on(),
            inflow: vec![0; switches * Batch::LIDS_MAX],
            idle: vec![0; switches],
            sources: Vec::with_capacity(switches),
            candidates: Candidates::in_order(port_places(topology, steering)),
            ranks: Vec::new(),
        }
    }

    /// Routes a batch from all switches. `hops` are those to its home.
    fn route(&mut self, batch: &Batch, hops: &[u8], ways: &impl Ways) {
        self.tables.begin(&batch.lids);
        if let Some(stay) = &mut self.stay {
            stay.begin(batch.home, hops);
        }
        sort_sources(&mut self.sources, hops);
        let Self { topology, candidates, sources, host_loads, .. } = self;
        candidates.find(topology, batch.home, hops, sources, host_loads, ways);
        for place in 0..self.sources.len() {
            self.deal(place, batch);
        }
        let home = usize::from(batch.home);
        self.tables.entries(home).copy_from_slice(&batch.exits);
        self.inflow[home * Batch::LIDS_MAX..][..batch.lids.len()].fill(0);
        let reached = self.sources.len() + 1;
        self.unreachable += ((hops.len() - reached) * batch.lids.len()) as u64;
    }

    /// Deals the LIDs of a batch to the candidates of the source at `place`.
    fn deal(&mut self, place: usize, batch: &Batch) {
        let (switch, candidates) = (self.sources[place], self.candidates.of(place));
        let index = usize::from(switch);
        let stay = self.stay.as_ref();
        let before = stay.map_or(&[][..], |stay| stay.table(switch, candidates));
        let mut flows = [0; Batch::LIDS_MAX];
        let flows = &mut flows[..batch.lids.len()];
        let arrived = &mut self.inflow[index * Batch::LIDS_MAX..][..flows.len()];
        for (flow, arrived) in flows.iter_mut().zip(arrived) {
            *flow = self.hosts[index] + std::mem::take(arrived);
        }
        let mut deal = Hand {
            lids: &batch.lids,
            flows,
            before,
            candidates,
            by_port: self.candidates.are_by_port(),
            ignored: self.ignored,
            ranks: &mut self.ranks,
            idle: &mut self.idle[index],
            entries: self.tables.entries(index),
            inflow: &mut self.inflow,
        };
        if let &[only] = candidates {
            let (hosts, switches) = deal.give_all(only, batch.host_lids);
            self.host_loads[only.link as usize] += hosts;
            self.switch_loads[only.link as usize] += switches;
            return;
        }
        if batch.host_lids > 0 {
            let ahead = |peer| self.candidates.ahead(peer);
            deal.run(0..batch.host_lids, 0, &mut self.host_loads, ahead);
        }
        if batch.host_lids < batch.lids.len() {
            let places = batch.host_lids..batch.lids.len();
            deal.run(places, index, &mut self.switch_loads, |_| 0);
        }
    }
}

/// Lists the switches that reach the home switch, but not itself, by hops, the most first.
pub(super) fn sort_sources(sources: &mut Vec<u16>, hops: &[u8]) {
    let mut starts = [0u32; 256];
    for &hops in hops {
        starts[usize::from(hops)] += 1;
    }
    // Those that are not to be listed.
    starts[0] = 0;
    starts[usize::from(HopMatrix::UNREACHABLE)] = 0;
    let mut total = 0;
    for start in starts.iter_mut().rev() {
        total += std::mem::replace(start, total);
    }
    sources.clear();
    sources.resize(total as usize, 0);
    for (switch, &hops) in hops.iter().enumerate() {
        if hops != 0 && hops != HopMatrix::UNREACHABLE {
            let place = &mut starts[usize::from(hops)];
            sources[*place as usize] = switch as u16;
            *place += 1;
        }
    }
}

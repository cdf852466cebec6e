//! Minimum hop: breadth-first distances, ties spread by the routes that really pass. No deadlock
//! avoidance; use `updn` or `dfsssp` where cycles exist.
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

mod candidates;
mod deal;
mod order;
mod stay;
mod tables;

use self::candidates::Candidates;
use self::deal::Deal;
use self::order::{Batch, batches};
use self::stay::Stay;
use self::tables::Tables;
use super::{Engine, HopMatrix, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `minhop`, the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinHop;

impl Engine for MinHop {
    fn name(&self) -> &'static str {
        "minhop"
    }

    fn route(
        &self,
        topology: &Topology,
        _: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let hops = HopMatrix::compute(topology).ok_or_else(|| RoutingError::TooManySwitches {
            engine: self.name(),
            switches: topology.switch_count(),
            max: HopMatrix::SWITCHES_MAX,
        })?;
        let mut router = Router::new(topology, previous);
        for batch in batches(topology) {
            router.route(&batch, hops.row(batch.home));
        }
        let Router { tables, unreachable, .. } = router;
        Ok(Routing {
            engine: self.name(),
            lfts: tables.finish(),
            hops,
            lanes: Lanes::Free,
            unreachable,
        })
    }
}

struct Router<'a> {
    topology: &'a Topology,
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

impl<'a> Router<'a> {
    fn new(topology: &'a Topology, previous: Option<&'a Previous<'a>>) -> Self {
        let switches = topology.switch_count();
        Self {
            topology,
            stay: previous.map(|previous| Stay::new(topology, previous)),
            tables: Tables::new(switches, topology.table_len()),
            unreachable: 0,
            host_loads: vec![0; topology.link_count()],
            switch_loads: vec![0; topology.link_count()],
            hosts: topology.hosts_on(),
            inflow: vec![0; switches * Batch::LIDS_MAX],
            idle: vec![0; switches],
            sources: Vec::with_capacity(switches),
            candidates: Candidates::default(),
            ranks: Vec::new(),
        }
    }

    /// Routes a batch from all switches. `hops` are those to its home.
    fn route(&mut self, batch: &Batch, hops: &[u8]) {
        self.tables.begin(&batch.lids);
        if let Some(stay) = &mut self.stay {
            stay.begin(batch.home, hops);
        }
        sort_sources(&mut self.sources, hops);
        let Self { topology, candidates, sources, host_loads, .. } = self;
        candidates.find(topology, batch.home, hops, sources, host_loads);
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
        let mut deal = Deal {
            lids: &batch.lids,
            flows,
            before,
            candidates,
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
fn sort_sources(sources: &mut Vec<u16>, hops: &[u8]) {
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

#[cfg(test)]
mod tests;

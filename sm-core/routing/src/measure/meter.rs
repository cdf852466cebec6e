//! Measures the congestion of patterns, several at a time: routes to neighbouring LIDs use the same
//! lines of tables, so each line is read once for all of them. No allocation for a pair of hosts,
//! and none once buffers have grown.

use super::super::{Destination, NO_ROUTE, Topology};
use super::cuts::{Crossings, Cuts};
use super::random::Random;
use super::{Groups, Pattern, Plane};

/// Maximum number of patterns that a meter takes at once. Each needs memory for its flows and their
/// links.
pub(super) const PORTION_MAX: u32 = 32;
/// Number of LIDs whose routes are followed for one pattern before the next: a line of a cache.
const LIDS: u16 = 64;
const NONE: u32 = u32::MAX;

/// What one pattern shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) flows: u32,
    pub(super) lost: u32,
    /// Sum of the flows' bandwidths, in links.
    pub(super) bandwidth: f64,
    /// Sum of what they can have at most, with any routing.
    pub(super) bound: f64,
    /// Largest congestion of a flow.
    pub(super) congestion: u32,
    /// Pairs of flows, 2n and 2n + 1, one of which has congestion above 1 or is lost.
    pub(super) bad_pairs: u32,
}

/// Tables, and what all patterns share.
pub(super) struct Meter<'a> {
    topology: &'a Topology,
    lfts: &'a [&'a [u8]],
    groups: &'a Groups,
    plane: Plane,
    cuts: Cuts,
    seed: u64,
    hops: Hops,
    /// Number of destinations to which routes are followed for one pattern before the next.
    block: usize,
}

/// Buffers for the patterns of a portion.
#[derive(Default)]
pub(super) struct Buffers {
    sheets: Vec<Sheet>,
    order: Vec<u32>,
    /// By destination: the place of the next flow to it.
    places: Vec<u32>,
    /// By flow of a pattern: its congestion; 0 if it does not arrive.
    congestion: Vec<u32>,
    crossings: Crossings,
}

/// One pattern.
#[derive(Default)]
struct Sheet {
    flows: Vec<(u32, u32)>,
    /// The flows by ascending LID of their destination, and the number of those followed.
    by_lid: Vec<u32>,
    followed: usize,
    /// By link: flows of the pattern.
    load: Vec<u32>,
    /// The links of the flows that arrive, in the order of their LIDs.
    steps: Vec<u32>,
    /// Each of these flows, and the end of its links in `steps`.
    ends: Vec<(u32, u32)>,
}

/// By switch and port: the link there and the switch behind it.
struct Hops {
    first_port: Vec<u32>,
    hops: Vec<(u32, u16)>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(
        topology: &'a Topology,
        lfts: &'a [&'a [u8]],
        groups: &'a Groups,
        plane: Plane,
        seed: u64,
    ) -> Self {
        let lids = topology.destinations().iter().map(|to| to.lid_count).max().unwrap_or(1);
        Self {
            topology,
            lfts,
            groups,
            plane,
            cuts: Cuts::of(topology, groups),
            seed,
            hops: Hops::of(topology),
            block: usize::from((LIDS / lids.max(1)).max(1)),
        }
    }

    /// Measures the patterns of these numbers, of `count`.
    pub(super) fn run(
        &self,
        pattern: Pattern,
        numbers: std::ops::Range<u32>,
        count: u32,
        buffers: &mut Buffers,
    ) -> Vec<Outcome> {
        let Buffers { sheets, order, places, congestion, crossings } = buffers;
        sheets.resize_with(sheets.len().max(numbers.len()), Sheet::default);
        let sheets = &mut sheets[..numbers.len()];
        for (sheet, number) in sheets.iter_mut().zip(numbers) {
            pattern.fill((number, count), self.groups, self.seed, order, &mut sheet.flows);
            sheet.begin(self.topology, places);
        }
        let hosts = self.topology.destinations();
        for end in (self.block..hosts.len() + self.block).step_by(self.block) {
            sheets.iter_mut().for_each(|sheet| self.follow_up_to(end as u32, sheet));
        }
        let outcome = |sheet: &Sheet| {
            sheet.congestion(congestion);
            let bound = self.cuts.bound(&sheet.flows, hosts, crossings);
            Outcome { bound, ..Outcome::of(congestion) }
        };
        sheets.iter().map(outcome).collect()
    }

    /// Follows the next flows of a pattern, to destinations below `end`, and counts them on their
    /// links.
    fn follow_up_to(&self, end: u32, sheet: &mut Sheet) {
        let all = self.topology.destinations();
        let Sheet { flows, by_lid, followed, load, steps, ends } = sheet;
        while let Some(&flow) = by_lid.get(*followed) {
            let (from, to) = flows[flow as usize];
            if to >= end {
                break;
            }
            *followed += 1;
            let to_host = &all[to as usize];
            let offset = match self.plane {
                Plane::Spread if to_host.lid_count > 1 => {
                    let pair = u64::from(from) << 32 | u64::from(to);
                    Random::new(self.seed, pair).below(to_host.lid_count.into()) as usize
                }
                _ => 0,
            };
            let lid = to_host.base_lid.index() + offset;
            let begin = steps.len();
            let source = all[from as usize].egress_switch;
            let arrives = self.follow(source, to_host, lid, steps);
            steps[begin..].iter().for_each(|&link| load[link as usize] += 1);
            if arrives {
                ends.push((flow, steps.len() as u32));
            } else {
                steps.truncate(begin);
            }
        }
    }

    /// Adds the links of a route; returns whether it arrives. One that does not counts up to where
    /// it ends, and one that loops up to as many links as there are switches.
    fn follow(&self, from: u16, to: &Destination, lid: usize, steps: &mut Vec<u32>) -> bool {
        let mut switch = from;
        for _ in 0..self.topology.switch_count() {
            let lft = self.lfts.get(usize::from(switch));
            let port = lft.and_then(|lft| lft.get(lid)).copied().unwrap_or(NO_ROUTE);
            if switch == to.egress_switch {
                return port == to.exit;
            }
            let Some((link, peer)) = self.hops.at(switch, port) else { return false };
            steps.push(link);
            switch = peer;
        }
        false
    }
}

impl Sheet {
    /// Prepares to follow its flows. `places` is scratch space.
    fn begin(&mut self, topology: &Topology, places: &mut Vec<u32>) {
        let Self { flows, by_lid, followed, load, steps, ends } = self;
        places.clear();
        places.resize(topology.destinations().len() + 1, 0);
        flows.iter().for_each(|&(_, to)| places[to as usize + 1] += 1);
        let mut sum = 0;
        for place in places.iter_mut() {
            sum += *place;
            *place = sum;
        }
        by_lid.clear();
        by_lid.resize(flows.len(), 0);
        for (&(_, to), number) in flows.iter().zip(0..) {
            let place = &mut places[to as usize];
            by_lid[*place as usize] = number;
            *place += 1;
        }
        load.clear();
        load.resize(topology.link_count(), 0);
        steps.clear();
        ends.clear();
        *followed = 0;
    }

    /// Sets `by_flow` to the congestion of each flow; 0 if it does not arrive.
    fn congestion(&self, by_flow: &mut Vec<u32>) {
        by_flow.clear();
        by_flow.resize(self.flows.len(), 0);
        let mut begin = 0;
        for &(flow, end) in &self.ends {
            let links = &self.steps[begin as usize..end as usize];
            begin = end;
            // The links of the two hosts have this flow only.
            let most = links.iter().map(|&link| self.load[link as usize]).max().unwrap_or(1);
            by_flow[flow as usize] = most;
        }
    }
}

impl Outcome {
    /// That of a pattern, by the congestion of its flows.
    pub(super) fn of(by_flow: &[u32]) -> Self {
        let mut outcome = Self { flows: by_flow.len() as u32, ..Self::default() };
        for &congestion in by_flow {
            if congestion > 0 {
                outcome.bandwidth += 1.0 / f64::from(congestion);
                outcome.congestion = outcome.congestion.max(congestion);
            } else {
                outcome.lost += 1;
            }
        }
        let bad = by_flow.chunks_exact(2).filter(|pair| *pair != [1, 1]);
        outcome.bad_pairs = bad.count() as u32;
        outcome
    }
}

impl Hops {
    fn of(topology: &Topology) -> Self {
        let (mut first_port, mut hops) = (vec![0], Vec::new());
        for switch in topology.switches() {
            hops.extend((0..=topology.port_count(switch)).map(|port| {
                let link = topology.link_at(switch, port);
                link.map_or((NONE, 0), |link| (link as u32, topology.link(link).peer))
            }));
            first_port.push(hops.len() as u32);
        }
        Self { first_port, hops }
    }

    /// The link at a port and the switch behind it, if there is one.
    fn at(&self, switch: u16, port: u8) -> Option<(u32, u16)> {
        let [begin, end] = [0, 1].map(|more| self.first_port[usize::from(switch) + more] as usize);
        let hop = *self.hops[begin..end].get(usize::from(port))?;
        (hop.0 != NONE).then_some(hop)
    }
}

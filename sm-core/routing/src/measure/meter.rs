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
/// A whole flow. Each LID of a port takes a whole part of it, since a port has at most 2^7.
const WHOLE: u32 = 128;
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
    /// By flow of a pattern.
    felt: Vec<Felt>,
    crossings: Crossings,
}

/// What a flow gets.
#[derive(Clone, Copy, Default)]
pub(super) struct Felt {
    /// As a share of a link's; 0 if it does not arrive.
    pub(super) bandwidth: f64,
    /// Flows on the most loaded link of its path, or paths, rounded up; 0 if it does not arrive.
    pub(super) congestion: u32,
}

/// One pattern.
#[derive(Default)]
struct Sheet {
    flows: Vec<(u32, u32)>,
    /// The flows by ascending LID of their destination, and the number of those followed.
    by_lid: Vec<u32>,
    followed: usize,
    /// By link: flows of the pattern, in parts of [`WHOLE`].
    load: Vec<u32>,
    /// The links of the flows, or parts of flows, that arrive, in the order of their LIDs.
    steps: Vec<u32>,
    /// Each of these parts.
    parts: Vec<Part>,
}

/// A flow, or the part of a flow to one LID.
struct Part {
    /// Number of the flow.
    flow: u32,
    /// The end of its links in the list of all.
    end: u32,
    /// Its share of the flow, in parts of [`WHOLE`].
    share: u32,
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
        let Buffers { sheets, order, places, felt, crossings } = buffers;
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
            sheet.find_felt(felt);
            let bound = self.cuts.bound(&sheet.flows, hosts, crossings);
            Outcome { bound, ..Outcome::of(felt) }
        };
        sheets.iter().map(outcome).collect()
    }

    /// Follows the next flows of a pattern, to destinations below `end`, and counts them on their
    /// links.
    fn follow_up_to(&self, end: u32, sheet: &mut Sheet) {
        let all = self.topology.destinations();
        let Sheet { flows, by_lid, followed, load, steps, parts } = sheet;
        while let Some(&flow) = by_lid.get(*followed) {
            let (from, to) = flows[flow as usize];
            if to >= end {
                break;
            }
            *followed += 1;
            let to_host = &all[to as usize];
            let lids = to_host.base_lid.index();
            let count = usize::from(to_host.lid_count);
            let lids = match self.plane {
                Plane::Base => lids..lids + 1,
                Plane::Spread => {
                    let drawn = lids + self.drawn(from, to, count);
                    drawn..drawn + 1
                }
                Plane::Divided => lids..lids + count,
            };
            let share = WHOLE / lids.len() as u32;
            let source = all[from as usize].egress_switch;
            for lid in lids {
                let begin = steps.len();
                let arrives = self.follow(source, to_host, lid, steps);
                steps[begin..].iter().for_each(|&link| load[link as usize] += share);
                if arrives {
                    parts.push(Part { flow, end: steps.len() as u32, share });
                } else {
                    steps.truncate(begin);
                }
            }
        }
    }

    /// The place of the LID, among `count` of destination `to`, to which destination `from` sends.
    fn drawn(&self, from: u32, to: u32, count: usize) -> usize {
        let pair = u64::from(from) << 32 | u64::from(to);
        if count > 1 { Random::new(self.seed, pair).below(count as u32) as usize } else { 0 }
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
        let Self { flows, by_lid, followed, load, steps, parts } = self;
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
        parts.clear();
        *followed = 0;
    }

    /// Sets `felt` to what each flow gets. A part of a flow that does not arrive has no bandwidth,
    /// and the flow is lost if no part arrives.
    fn find_felt(&self, felt: &mut Vec<Felt>) {
        felt.clear();
        felt.resize(self.flows.len(), Felt::default());
        let mut begin = 0;
        for &Part { flow, end, share } in &self.parts {
            let links = &self.steps[begin as usize..end as usize];
            begin = end;
            // The links of the two hosts have this flow only, and none has more than a whole link.
            let most = links.iter().map(|&link| self.load[link as usize]).max();
            let most = most.unwrap_or(WHOLE).max(WHOLE);
            let felt = &mut felt[flow as usize];
            felt.bandwidth += f64::from(share) / f64::from(most);
            felt.congestion = felt.congestion.max(most.div_ceil(WHOLE));
        }
    }
}

impl Outcome {
    /// That of a pattern, by what its flows get.
    pub(super) fn of(by_flow: &[Felt]) -> Self {
        let mut outcome = Self { flows: by_flow.len() as u32, ..Self::default() };
        for &Felt { bandwidth, congestion } in by_flow {
            if congestion > 0 {
                outcome.bandwidth += bandwidth;
                outcome.congestion = outcome.congestion.max(congestion);
            } else {
                outcome.lost += 1;
            }
        }
        let is_alone = |flow: &Felt| flow.congestion == 1;
        let bad = by_flow.chunks_exact(2).filter(|pair| !pair.iter().all(is_alone));
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

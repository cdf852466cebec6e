//! Moves routes to further LIDs to paths that share few links with each other.
//!
//! Each plane of LIDs has a number for each pair of a switch and an egress switch, its *potential*:
//! the hops, times a constant, plus a pseudo-random number below that constant. Routes of the plane
//! may lead to any switch of lower potential. That is each switch that is closer, and of those that
//! are equally far, a part that differs from plane to plane. So routes end, which `verify` proves
//! by the same numbers, and each further LID has other detours.
//!
//! The sources of a LID move one by one, those of highest potential first: few others send through
//! these. A switch takes the switches that send through it along, and moves only if the lanes of
//! all of them accept their new routes. The tables are right after each move.

use super::column::Column;
use super::extent::{Extent, Unit, shades};
use super::lanes::PairLanes;
use crate::options::mixed;
use crate::{Entries, HopMatrix, Layers, Topology};

/// Number of times that each source is considered for each column. In the second pass, loads and
/// other paths are those that it has to be chosen beside.
const PASSES: usize = 2;
/// What a link costs in addition that all other LIDs of a host use from the same source, in links
/// of the mean load.
const OVERLAP: f64 = 4.0;
/// How much cheaper a path must be to be taken, so that rounding decides nothing.
const GAIN_MIN: f64 = 1e-6;

/// Tables in which routes to further LIDs are being moved.
pub(super) struct Detours<'a> {
    topology: &'a Topology,
    /// Hops of shortest paths.
    hops: &'a HopMatrix,
    extent: &'a Extent,
    lfts: Vec<Entries>,
    lanes: PairLanes,
    extra_hops: usize,
    /// See [`shades`].
    shades: u8,
    /// Number of hosts by switch.
    hosts: Vec<u32>,
    /// By link: routes of hosts to all LIDs of hosts.
    loads: Vec<u64>,
    /// Sum of `loads`.
    total: u64,
    /// By link: how many other LIDs of the current host the current source reaches over it.
    overlap: Vec<u32>,
    /// The links with an overlap.
    overlapping: Vec<u32>,
    upstream: Vec<u16>,
    choices: Vec<Choice>,
}

/// A next link of a switch, and what the path over it costs.
#[derive(Clone, Copy)]
struct Choice {
    cost: f64,
    link: u32,
}

/// A column whose routes are being moved.
struct Target<'a> {
    unit: &'a Unit,
    column: Column,
    /// Columns of the unit in the other planes.
    others: Vec<Column>,
    /// By switch: hops to the egress switch.
    hops: &'a [u8],
    /// By switch.
    potential: Vec<u8>,
    /// Number of LIDs.
    lids: u64,
}

impl<'a> Detours<'a> {
    pub(super) fn new(
        topology: &'a Topology,
        hops: &'a HopMatrix,
        extent: &'a Extent,
        lfts: Vec<Entries>,
        lanes: PairLanes,
        extra_hops: u8,
    ) -> Self {
        let links = topology.link_count();
        let mut this = Self {
            topology,
            hops,
            extent,
            lfts,
            lanes,
            extra_hops: extra_hops.into(),
            shades: shades(hops),
            hosts: topology.hosts_on(),
            loads: vec![0; links],
            total: 0,
            overlap: vec![0; links],
            overlapping: Vec::new(),
            upstream: Vec::new(),
            choices: Vec::new(),
        };
        this.count_loads();
        this
    }

    /// Moves routes. Returns the tables, hops with a potential for each plane, and the layers.
    pub(super) fn run(mut self) -> (Vec<Entries>, HopMatrix, Layers) {
        let (extent, planes) = (self.extent, self.extent.plane_count());
        if self.shades > 0 {
            for _ in 0..PASSES {
                for plane in 1..planes {
                    let units = extent.units().iter().filter(|unit| unit.has(plane));
                    units.for_each(|unit| self.improve(unit, plane));
                }
            }
        }
        let (hops, shades) = (self.hops, self.shades);
        let potential = |plane, from, to: u16| potential(hops.row(to), shades, plane + 1, from, to);
        let hops = hops.with_planes(planes - 1, potential);
        (self.lfts, hops, self.lanes.finish())
    }

    fn count_loads(&mut self) {
        for to in self.topology.destinations().iter().filter(|to| to.is_host()) {
            for lid in to.lids() {
                let column = Column::read(self.topology, &self.lfts, lid);
                for source in self.topology.switches() {
                    let flow = u64::from(self.hosts[usize::from(source)]);
                    for link in column.path(self.topology, source) {
                        self.loads[link as usize] += flow;
                        self.total += flow;
                    }
                }
            }
        }
    }

    /// Moves the routes to a unit's LIDs of a plane.
    fn improve(&mut self, unit: &'a Unit, plane: usize) {
        let mut target = self.target(unit, plane);
        let is_source = |&source: &u16| {
            let at = usize::from(source);
            self.hosts[at] > 0 && !matches!(target.hops[at], 0 | HopMatrix::UNREACHABLE)
        };
        let mut sources: Vec<u16> = self.topology.switches().filter(is_source).collect();
        sources.sort_by_key(|&source| u8::MAX - target.potential[usize::from(source)]);
        for source in sources {
            self.consider(&mut target, source);
        }
        let planes = (plane, self.extent.plane_count());
        unit.write(self.topology, planes, &target.column, &mut self.lfts);
    }

    fn target(&self, unit: &'a Unit, plane: usize) -> Target<'a> {
        let planes = self.extent.plane_count();
        let read = |plane| Column::read(self.topology, &self.lfts, unit.lid(plane));
        let others = (0..planes).filter(|&other| other != plane && unit.has(other));
        let egress_switch = unit.egress_switch;
        let hops = self.hops.row(egress_switch);
        let of = |switch| potential(hops, self.shades, plane, switch, egress_switch);
        Target {
            unit,
            column: read(plane),
            others: others.map(read).collect(),
            hops,
            potential: self.topology.switches().map(of).collect(),
            lids: unit.lids(plane, planes).count() as u64,
        }
    }

    /// Moves a source to the cheapest path that lanes accept, if it is cheaper than its present
    /// one.
    fn consider(&mut self, target: &mut Target<'_>, source: u16) {
        let mut upstream = std::mem::take(&mut self.upstream);
        target.column.upstream(self.topology, source, &mut upstream);
        let hosts = upstream.iter().map(|&switch| u64::from(self.hosts[usize::from(switch)]));
        let flow = hosts.sum::<u64>() * target.lids;
        self.unload(&target.column, source, flow);
        self.mark_overlap(target, source);
        self.find_choices(target, source, &upstream);
        let choices = std::mem::take(&mut self.choices);
        let before = target.column.next(source);
        let is_moved = choices.iter().any(|choice| {
            target.column.set(source, choice.link);
            self.is_accepted(target, &upstream)
        });
        if let Some(before) = before.filter(|_| !is_moved) {
            target.column.set(source, before);
        }
        self.load(&target.column, source, flow);
        (self.choices, self.upstream) = (choices, upstream);
    }

    fn load(&mut self, column: &Column, source: u16, flow: u64) {
        for link in column.path(self.topology, source) {
            self.loads[link as usize] += flow;
            self.total += flow;
        }
    }

    fn unload(&mut self, column: &Column, source: u16, flow: u64) {
        for link in column.path(self.topology, source) {
            self.loads[link as usize] -= flow;
            self.total -= flow;
        }
    }

    /// Counts the other LIDs that the source reaches over each link.
    fn mark_overlap(&mut self, target: &Target<'_>, source: u16) {
        self.overlapping.drain(..).for_each(|link| self.overlap[link as usize] = 0);
        for other in &target.others {
            for link in other.path(self.topology, source) {
                self.overlap[link as usize] += 1;
                self.overlapping.push(link);
            }
        }
    }

    /// Lists the next links of a source with cheaper paths than the present one, cheapest first.
    fn find_choices(&mut self, target: &Target<'_>, source: u16, upstream: &[u16]) {
        let Self { topology, loads, overlap, .. } = &*self;
        let mean = self.total.max(1) as f64 / loads.len() as f64;
        let others = target.others.len() as f64 + 1.0;
        let of_link = |link: u32| {
            let link = link as usize;
            loads[link] as f64 / mean + OVERLAP * f64::from(overlap[link]) / others
        };
        let path = |switch| target.column.path(topology, switch);
        let most = path(source).map(of_link).sum::<f64>() - GAIN_MIN;
        let hops_max = path(source).count() + self.slack(target, upstream);
        let potential = |switch: u16| target.potential[usize::from(switch)];
        let links = topology.links(source).iter().zip(topology.link_range(source));
        let lower = links.filter(|(link, _)| potential(link.peer) < potential(source));
        let choice = |(to, link): (&crate::Link, usize)| {
            let (hops, cost) = path(to.peer)
                .fold((1, of_link(link as u32)), |(hops, cost), link| {
                    (hops + 1, cost + of_link(link))
                });
            (hops <= hops_max && cost < most).then_some(Choice { cost, link: link as u32 })
        };
        let mut choices: Vec<Choice> = lower.filter_map(choice).collect();
        choices.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.link.cmp(&b.link)));
        self.choices = choices;
    }

    /// By how many hops the routes of all these switches may grow.
    fn slack(&self, target: &Target<'_>, switches: &[u16]) -> usize {
        let slack = |&switch: &u16| {
            let hops = target.column.path(self.topology, switch).count();
            (usize::from(target.hops[usize::from(switch)]) + self.extra_hops).saturating_sub(hops)
        };
        switches.iter().map(slack).min().unwrap_or(0)
    }

    /// Whether lanes accept the routes of all these switches.
    fn is_accepted(&mut self, target: &Target<'_>, switches: &[u16]) -> bool {
        let (topology, egress_switch) = (self.topology, target.unit.egress_switch);
        switches.iter().all(|&switch| {
            let path = target.column.path(topology, switch);
            self.lanes.accepts(switch, egress_switch, path)
        })
    }
}

/// The potential of a switch in a plane: a number that falls along each route to the egress switch.
/// `hops` are those to the egress switch, by switch.
fn potential(hops: &[u8], shades: u8, plane: usize, switch: u16, egress_switch: u16) -> u8 {
    match hops[usize::from(switch)] {
        far @ (0 | HopMatrix::UNREACHABLE) => far,
        far if shades == 0 => far,
        far => {
            let pair = u64::from(egress_switch) << 16 | u64::from(switch);
            let shade = mixed((plane as u64) << 32 | pair) % u64::from(shades);
            far * shades + shade as u8
        }
    }
}

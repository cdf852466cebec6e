//! Measures tables by what applications feel: traffic patterns in, congestion out.
//!
//! The *congestion* of a flow is the largest number of flows of its pattern on any link of its
//! path, and its *bandwidth* the reciprocal, as ORCS defines them (Schneider, Hoefler, Lumsdaine:
//! ORCS: An Oblivious Routing Congestion Simulator, 2009). Nothing is sent and no time is
//! simulated: all follows from the tables. All links count alike, at any rate.
//!
//! - [`patterns`](self::Pattern): matchings, shifts, permutations and tournament rounds of hosts.
//! - `meter`: congestion of one pattern. `statics`: what needs no pattern, that is, all-to-all
//!   loads and contention. `cuts`: the bandwidth that the links allow with any routing.
//!
//! Equal inputs give equal figures, with any number of threads.

mod cuts;
mod meter;
mod pattern;
mod random;
mod statics;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

use super::Topology;
use meter::{Buffers, Meter, Outcome, PORTION_MAX};
pub use pattern::Pattern;
use statics::Statics;

/// Hosts in the order in which patterns number them, as indices of
/// [`Topology::destinations`]. Each group has patterns of its own, all groups at the same time: one
/// group is usual, and one per rail keeps each rail's traffic to itself.
pub type Groups = Vec<Vec<u32>>;

/// The LIDs that flows are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// The first LID of each port.
    Base,
    /// One of the LIDs of the destination, drawn for each pair of hosts.
    Spread,
    /// All LIDs of the destination: each takes an equal part of the flow, whose bandwidth is the
    /// mean over them.
    Divided,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of patterns of each kind; fewer where there are no more.
    pub patterns: u32,
    /// Seed of what is drawn.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { patterns: 100, seed: 0 }
    }
}

/// Figures of the patterns of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Number of patterns.
    pub patterns: u32,
    /// Number of flows in all of them.
    pub flows: u64,
    /// Flows that do not arrive; their bandwidth is 0.
    pub lost: u64,
    /// Mean bandwidth of flows, as a share of a link's; the mean of each pattern, then over
    /// patterns.
    pub bandwidth: f64,
    /// What no routing exceeds: the flows that leave a leaf or pod, or enter it, have at most as
    /// much bandwidth together as there are links, and each at most a link's.
    pub bound: f64,
    /// Largest congestion of a pattern, mean over patterns.
    pub congestion_mean: f64,
    /// Largest congestion in any of the patterns.
    pub congestion_max: u32,
    /// Share of pairs in which a flow has congestion above 1 or is lost. (Flows number 2n and 2n +
    /// 1 of matchings and rounds are a pair.)
    pub bad_pairs: f64,
}

/// What applications feel of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Random perfect matchings, both ways; their bandwidth is the effective bisection bandwidth
    /// (eBB).
    pub matchings: Figures,
    /// Shift permutations: each host sends to the one that is so many places after it. All-to-all
    /// collectives consist of them.
    pub shifts: Figures,
    /// Random permutations.
    pub permutations: Figures,
    /// Rounds of a tournament of all pairs, as ClusterKit of HPC-X tests them; evenly spaced ones
    /// if there are more than patterns.
    pub rounds: Figures,
    /// Bandwidth of a host when all send to all at once, by the busiest link: 1 if no link has more
    /// flows than a host.
    pub all_to_all: f64,
    /// Mean over all links between switches, used or not, of the smaller of the numbers of hosts
    /// that send over the link and that receive over it.
    pub contention: f64,
}

/// [`Quality`] by the LIDs that flows are sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Qualities {
    /// With base LIDs.
    pub base: Quality,
    /// With all LIDs, each flow to one of them; `None` if no port has more than one.
    pub spread: Option<Quality>,
    /// With each flow divided among all LIDs; `None` if no port has more than one.
    pub divided: Option<Quality>,
}

/// All hosts in one group, by ascending LID.
pub fn by_lid(topology: &Topology) -> Groups {
    let all = (0..).zip(topology.destinations());
    vec![all.filter(|(_, to)| to.is_host()).map(|(index, _)| index).collect()]
}

impl Qualities {
    /// Measures tables, given by switch.
    pub fn of(topology: &Topology, lfts: &[&[u8]], hosts: &Groups, effort: Effort) -> Self {
        let all = topology.destinations();
        let has_more = hosts.iter().flatten().any(|&host| all[host as usize].lid_count > 1);
        let quality = |plane| Quality::of(topology, lfts, hosts, plane, effort);
        let further = |plane| has_more.then(|| quality(plane));
        Self {
            base: quality(Plane::Base),
            spread: further(Plane::Spread),
            divided: further(Plane::Divided),
        }
    }
}

impl Quality {
    /// Measures tables, given by switch, with the traffic of these hosts.
    pub fn of(
        topology: &Topology,
        lfts: &[&[u8]],
        hosts: &Groups,
        plane: Plane,
        effort: Effort,
    ) -> Self {
        let figures = |pattern| Figures::measure(topology, lfts, hosts, plane, effort, pattern);
        let statics = Statics::of(topology, lfts, hosts, plane);
        Self {
            matchings: figures(Pattern::Matching),
            shifts: figures(Pattern::Shift),
            permutations: figures(Pattern::Permutation),
            rounds: figures(Pattern::Round),
            all_to_all: statics.all_to_all,
            contention: statics.contention,
        }
    }
}

impl Figures {
    /// Measures tables, given by switch, with patterns of one kind.
    pub fn measure(
        topology: &Topology,
        lfts: &[&[u8]],
        hosts: &Groups,
        plane: Plane,
        effort: Effort,
        pattern: Pattern,
    ) -> Self {
        let meter = Meter::new(topology, lfts, hosts, plane, effort.seed);
        let count = pattern.count(hosts, effort.patterns);
        // Each thread has as many portions as the others.
        let threads = rayon::current_num_threads() as u32;
        let size = count.div_ceil(count.div_ceil(PORTION_MAX * threads).max(1) * threads).max(1);
        let portions = (0..count.div_ceil(size)).into_par_iter();
        let measure = |buffers: &mut Buffers, portion: u32| {
            let numbers = portion * size..((portion + 1) * size).min(count);
            meter.run(pattern, numbers, count, buffers)
        };
        let outcomes: Vec<_> = portions.map_init(Buffers::default, measure).collect();
        Self::of(&outcomes.concat())
    }

    fn of(outcomes: &[Outcome]) -> Self {
        let some: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.flows > 0).collect();
        let count = some.len().max(1) as f64;
        let mean = |figure: &dyn Fn(&Outcome) -> f64| {
            some.iter().map(|outcome| figure(outcome)).sum::<f64>() / count
        };
        let flows = some.iter().map(|outcome| u64::from(outcome.flows)).sum::<u64>();
        let bad: u64 = some.iter().map(|outcome| u64::from(outcome.bad_pairs)).sum();
        Self {
            patterns: some.len() as u32,
            flows,
            lost: some.iter().map(|outcome| u64::from(outcome.lost)).sum(),
            bandwidth: mean(&|outcome| outcome.bandwidth / f64::from(outcome.flows)),
            bound: mean(&|outcome| outcome.bound / f64::from(outcome.flows)),
            congestion_mean: mean(&|outcome| f64::from(outcome.congestion)),
            congestion_max: some.iter().map(|outcome| outcome.congestion).max().unwrap_or(0),
            bad_pairs: bad as f64 / (flows / 2).max(1) as f64,
        }
    }
}

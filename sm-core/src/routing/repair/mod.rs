//! A routing from the one before: what is still right stays, and only the rest is routed.
//!
//! A route stays if the switch still may send by that port. Whether it may can have changed only
//! where a switch's links have, or its hops or those of a neighbour: other pairs of a switch and a
//! home are not looked at ([`survey`]). What routes that are lost put on links is taken from the
//! loads then, so that the load of links by all that stays is known; where loads then are not, what
//! stays is counted ([`flows`]). LIDs are then routed one by one where they have to be, each switch
//! by the least loaded way, where a link weighs its load squared as in `sssp` ([`dealer`]).
//!
//! A link that comes back is given what the most loaded links have too much, and no more: all that
//! may stay does, and then some routes make room for others ([`relief`](super::relief)).
//!
//! This holds for all engines whose routes fall by one hop at each step and may take any of the
//! ports that [`Ways`] allows. The tables before must have been made by the same engine, with the
//! same options: pairs that are not looked at are taken as they are, and what is wrong with
//! them, [`verify`](super::verify) finds.
//!
//! Where that leaves the worst link with more than 2 % more routes than routing anew would, more is
//! moved, or all is routed anew ([`settle`]).
//!
//! Takes time in proportion to switches squared, to routes that hosts use, and to what changes.

mod dealer;
mod flows;
mod survey;

use ib_mad::types::Lid;
use rayon::prelude::*;

use self::dealer::Dealer;
use self::survey::{Counts, Plan, Survey};
use super::balance::LinkLoads;
use super::deal::{Batch, Dealt, Ways, batches};
use super::relief::{Effort, Relief, streams_to_hosts};
use super::{HopMatrix, Previous, Topology};

/// Hops to homes, and what else decides which ways may be taken.
#[derive(Clone, Copy)]
pub(super) struct Labelled<'a> {
    /// Row a home.
    pub(super) hops: &'a HopMatrix,
    /// By home and switch: how ways begin. Empty where hops say all.
    pub(super) phases: &'a [u8],
}

impl<'a> Labelled<'a> {
    /// Hops alone.
    pub(super) fn by_hops(hops: &'a HopMatrix) -> Self {
        Self { hops, phases: &[] }
    }

    /// The phases of all switches on ways to a home.
    fn phases(&self, home: u16) -> &'a [u8] {
        let switches = self.hops.row(home).len();
        self.phases.chunks(switches.max(1)).nth(home.into()).unwrap_or_default()
    }
}

/// Where to look for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Where links or labels differ.
    Changed,
    /// Everywhere: when more has changed than these tell.
    All,
}

/// Routes as before as far as possible; `None` if so little of it is left that all should be
/// routed anew. `ways` are those to a home now.
pub(super) fn repair<W: Ways>(
    topology: &Topology,
    now: Labelled<'_>,
    previous: &Previous<'_>,
    then: Labelled<'_>,
    ways: impl Fn(u16) -> W + Sync,
    scope: Scope,
) -> Option<Repaired> {
    let survey = Survey::new(topology, now, previous, then, scope)?;
    let batches = batches(topology, &[]);
    let portion = batches.len().div_ceil(2 * rayon::current_num_threads()).max(1);
    let found: Vec<(Vec<Plan>, Counts)> = (batches.par_chunks(portion).enumerate())
        .map(|(number, batches)| survey.run(batches, number * portion, &ways))
        .collect();
    let (mut counts, mut plans) = (Counts::default(), Vec::new());
    for (of_portion, its_counts) in found {
        plans.extend(of_portion);
        counts.add(&its_counts);
    }
    let mut loads = survey.loads(&counts);
    loads.resize(topology.link_count(), 0);
    let mut lfts = survey.kept(&batches);
    let mut dealer = Dealer::new(topology, loads);
    for plan in &plans {
        let batch = &batches[plan.batch];
        plan.clear(batch, &mut lfts);
        if !plan.is_counted {
            dealer.load(batch.home, plan.lost_by_hosts(batch), now.hops.row(batch.home), &lfts);
        }
    }
    for plan in &plans {
        let batch = &batches[plan.batch];
        dealer.route(batch, plan, now.hops.row(batch.home), &ways(batch.home), &mut lfts);
    }
    let has_fresh = plans.iter().any(|plan| plan.fresh != 0);
    let has_lost = plans.iter().any(|plan| !plan.lost.is_empty());
    let change = match () {
        () if !survey.new_links.is_empty() || has_fresh => Change::More(survey.new_links),
        () if has_lost => {
            let of_plan = |plan: &Plan| plan.lost_lids(&batches[plan.batch]);
            Change::Fewer(plans.iter().flat_map(of_plan).collect())
        }
        () => Change::None,
    };
    let unreachable = batches.iter().map(|batch| {
        let row = now.hops.row(batch.home).iter();
        (row.filter(|&&hops| hops == HopMatrix::UNREACHABLE).count() * batch.lids.len()) as u64
    });
    let dealt = Dealt { lfts, unreachable: unreachable.sum(), loads: dealer.finish() };
    Some(Repaired { dealt, change })
}

/// Routes as before where they still may be so, and others where there were none.
pub(super) struct Repaired {
    dealt: Dealt,
    change: Change,
}

/// What became of routes.
enum Change {
    /// All stay.
    None,
    /// There may be more ways than before, by links that are new, or there are more LIDs.
    More(Vec<(u16, usize)>),
    /// Those of these LIDs at these switches had to be moved.
    Fewer(Vec<(Lid, u16)>),
}

/// The same where hops say all of which ways there are.
pub(super) fn repair_by_hops<W: Ways>(
    topology: &Topology,
    hops: &HopMatrix,
    previous: &Previous<'_>,
    ways: impl Fn(u16) -> W + Sync,
) -> Option<Repaired> {
    let now = Labelled::by_hops(hops);
    match previous.hops {
        Some(hops) => {
            repair(topology, now, previous, Labelled::by_hops(hops), ways, Scope::Changed)
        }
        None => repair(topology, now, previous, now, ways, Scope::All),
    }
}

/// How many more routes than by routing anew the worst link may have.
const WORSE_MAX: f64 = 1.02;

/// What was repaired, with routes moved away from the most loaded links ([`relief`](super::relief)):
/// until it is as well balanced as what is routed `anew`, which comes in its place if that cannot be
/// had. Large fabrics are not routed twice: there moving routes has to be enough
/// ([`Effort::beyond`]). `hops` have a row a home.
pub(super) fn settle<W: Ways>(
    topology: &Topology,
    previous: Option<&Previous<'_>>,
    hops: &HopMatrix,
    ways: impl Fn(u16) -> W,
    repaired: Option<Repaired>,
    anew: impl FnOnce() -> Dealt,
) -> Dealt {
    let Some(Repaired { mut dealt, change }) = repaired else { return anew() };
    let has_changed =
        previous.is_some_and(|previous| previous.hops.is_some() && previous.topology != topology);
    let most = |loads: &[u32]| loads.iter().copied().max().unwrap_or(0);
    let anew = (has_changed && is_quick(topology)).then(anew).map(|mut anew| {
        if anew.loads.is_empty() {
            anew.loads = LinkLoads::of_tables(topology, &anew.lfts).to_hosts;
        }
        anew
    });
    let goal = anew.as_ref().map_or(0, |anew| (f64::from(most(&anew.loads)) * WORSE_MAX) as u32);
    let mut relieve = |new_links: &[(u16, usize)], movable, effort| {
        let (loads, streams) = (std::mem::take(&mut dealt.loads), streams_to_hosts(topology));
        let mut relief = Relief::new(topology, hops, &ways, loads, streams);
        relief.fill(new_links, &mut dealt.lfts, effort);
        dealt.loads = relief.run(&mut dealt.lfts, movable, effort, goal);
    };
    match change {
        Change::None => {}
        Change::More(new_links) => relieve(&new_links, None, Effort::more_ways(topology)),
        // What need not move for its own sake makes room for others only if that is not enough.
        Change::Fewer(movable) => {
            relieve(&[], Some(movable), Effort::FEWER_WAYS);
            if anew.is_none() {
                relieve(&[], None, Effort::beyond(topology));
            }
        }
    }
    let Some(anew) = anew else { return dealt };
    // If a link cannot be relieved, others are first, below the goal, so that there is room for it.
    for room in [1.0, 0.98, 0.95] {
        if most(&dealt.loads) <= goal {
            break;
        }
        let streams = streams_to_hosts(topology);
        let relief = Relief::new(topology, hops, &ways, dealt.loads, streams);
        let below = (f64::from(goal) * room) as u32;
        dealt.loads = relief.run(&mut dealt.lfts, None, Effort::FOR_KEEPS, below);
    }
    if most(&dealt.loads) > goal { anew } else { dealt }
}

/// Whether routing a fabric anew takes a few milliseconds.
fn is_quick(topology: &Topology) -> bool {
    topology.switch_count() * topology.table_len() <= 1_000_000
}

/// Whether [`settle`] has not compared what it keeps of a fabric's routes with others from nothing.
pub(crate) fn is_kept_unseen(topology: &Topology) -> bool {
    !is_quick(topology)
}

/// The places whose bits are set.
fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        place
    })
}

/// Bits for so many places.
fn first_places(count: usize) -> u64 {
    if count >= Batch::LIDS_MAX { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests;

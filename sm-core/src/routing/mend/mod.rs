//! A routing from the one before: what is still right stays, and only the rest is routed.
//!
//! A route stays if the switch still may send by that port. Whether it may can have changed only
//! where a switch's links have, or its hops or those of a neighbour: other pairs of a switch and a
//! home are not looked at ([`survey`]). LIDs all of whose routes stay are counted, so that the load
//! of links is known ([`flows`]). The others are routed one by one where they have to be, each
//! switch by the least loaded way, where a link weighs its load squared as in `sssp` ([`dealer`]).
//!
//! A switch that may choose among more ports than before deals those LIDs anew that hosts send
//! through it, so that a link which comes back is used, and then some routes make room for others
//! ([`relief`](super::relief)).
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

use rayon::prelude::*;

use self::dealer::Dealer;
use self::survey::{Plan, Survey};
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
pub(super) fn mend<W: Ways>(
    topology: &Topology,
    now: Labelled<'_>,
    previous: &Previous<'_>,
    then: Labelled<'_>,
    ways: impl Fn(u16) -> W + Sync,
    scope: Scope,
) -> Option<Dealt> {
    let survey = Survey::new(topology, now, previous, then, scope)?;
    let batches = batches(topology, &[]);
    let portion = batches.len().div_ceil(2 * rayon::current_num_threads()).max(1);
    let found: Vec<(Vec<Plan>, Vec<u32>)> = (batches.par_chunks(portion).enumerate())
        .map(|(number, batches)| survey.run(batches, number * portion, &ways))
        .collect();
    let mut loads = vec![0u32; topology.link_count()];
    let mut plans = Vec::new();
    for (of_portion, its_loads) in found {
        plans.extend(of_portion);
        loads.iter_mut().zip(its_loads).for_each(|(sum, load)| *sum = sum.wrapping_add(load));
    }
    let mut lfts = survey.kept(&batches);
    let mut dealer = Dealer::new(topology, loads);
    for plan in &plans {
        let batch = &batches[plan.batch];
        plan.clear(batch, &mut lfts);
        dealer.route(batch, plan, now.hops.row(batch.home), &ways(batch.home), &mut lfts);
    }
    if plans.iter().any(|plan| plan.fresh != 0 || !plan.lost.is_empty()) {
        let is_more = survey.has_new_links || plans.iter().any(|plan| plan.fresh != 0);
        let effort = if is_more { Effort::MORE_WAYS } else { Effort::FEWER_WAYS };
        // What need not move for its own sake makes room for others only if there is more of it.
        let of_plan = |plan: &Plan| plan.lost_lids(&batches[plan.batch]);
        let movable = (!is_more).then(|| plans.iter().flat_map(of_plan).collect());
        let relieve = |loads, movable, effort, lfts: &mut [Vec<u8>]| {
            let streams = streams_to_hosts(topology);
            Relief::new(topology, now.hops, &ways, loads, streams).run(lfts, movable, effort)
        };
        let loads = relieve(dealer.finish(), movable, effort, &mut lfts);
        if !is_more && !is_quick(topology) {
            relieve(loads, None, Effort::beyond(topology), &mut lfts);
        }
    }
    let unreachable = batches.iter().map(|batch| {
        let row = now.hops.row(batch.home).iter();
        (row.filter(|&&hops| hops == HopMatrix::UNREACHABLE).count() * batch.lids.len()) as u64
    });
    Some(Dealt { lfts, unreachable: unreachable.sum() })
}

/// The same where hops say all of which ways there are.
pub(super) fn mend_by_hops<W: Ways>(
    topology: &Topology,
    hops: &HopMatrix,
    previous: &Previous<'_>,
    ways: impl Fn(u16) -> W + Sync,
) -> Option<Dealt> {
    let now = Labelled::by_hops(hops);
    match previous.hops {
        Some(hops) => mend(topology, now, previous, Labelled::by_hops(hops), ways, Scope::Changed),
        None => mend(topology, now, previous, now, ways, Scope::All),
    }
}

/// How many more routes than by routing anew the worst link may have.
const WORSE_MAX: f64 = 1.02;

/// What was mended, if it is as well balanced as routing `anew` would be, as far as routes can be
/// moved to that end; else what is routed anew. Large fabrics are not routed twice: there moving
/// routes has to be enough ([`Effort::beyond`]). `hops` have a row a home.
pub(super) fn settle<W: Ways>(
    topology: &Topology,
    previous: Option<&Previous<'_>>,
    hops: &HopMatrix,
    ways: impl Fn(u16) -> W,
    mended: Option<Dealt>,
    anew: impl FnOnce() -> Dealt,
) -> Dealt {
    let Some(mut mended) = mended else { return anew() };
    let has_changed =
        previous.is_some_and(|previous| previous.hops.is_some() && previous.topology != topology);
    if !has_changed || !is_quick(topology) {
        return mended;
    }
    let anew = anew();
    let loads = |dealt: &Dealt| LinkLoads::of_tables(topology, &dealt.lfts).to_hosts;
    let most = |loads: &[u32]| f64::from(loads.iter().copied().max().unwrap_or(0));
    let enough = most(&loads(&anew)) * WORSE_MAX;
    let of_mended = loads(&mended);
    if most(&of_mended) <= enough {
        return mended;
    }
    let relief = Relief::new(topology, hops, ways, of_mended, streams_to_hosts(topology));
    let of_mended = relief.run(&mut mended.lfts, None, Effort::ANEW);
    if most(&of_mended) <= enough { mended } else { anew }
}

/// Whether routing a fabric anew takes a few milliseconds.
fn is_quick(topology: &Topology) -> bool {
    topology.switch_count() * topology.table_len() <= 1_000_000
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

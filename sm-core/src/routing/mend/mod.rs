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
//! ([`relief`]).
//!
//! This holds for all engines whose routes fall by one hop at each step and may take any of the
//! ports that [`Ways`] allows. The tables before must have been made by the same engine, with the
//! same options: pairs that are not looked at are taken as they are, and what is wrong with
//! them, [`verify`](super::verify) finds.
//!
//! Takes time in proportion to switches squared, to routes that hosts use, and to what changes.

mod dealer;
mod flows;
mod relief;
mod survey;

use rayon::prelude::*;

use self::dealer::Dealer;
use self::relief::{Effort, Relief};
use self::survey::{Plan, Survey};
use super::deal::{Batch, Candidate, Dealt, Ways, batches};
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
        let relief = Relief::new(topology, now.hops, &ways, dealer.finish(), &batches);
        relief.run(&mut lfts, movable, effort);
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

/// Lists the links by which a switch may send to a home that `hops` lead to, by ascending port.
fn list_candidates(
    topology: &Topology,
    hops: &[u8],
    ways: &impl Ways,
    switch: u16,
    candidates: &mut Vec<Candidate>,
) {
    candidates.clear();
    let here = hops[usize::from(switch)];
    for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
        let number = number as u32;
        if hops[usize::from(link.peer)].checked_add(1) == Some(here)
            && ways.allow(switch, number, link.peer)
        {
            candidates.push(Candidate { link: number, peer: link.peer, port: link.port });
        }
    }
    ways.narrow(switch, candidates, 0);
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

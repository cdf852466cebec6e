//! Repairs the previous routing: routes that are still valid stay, and only the others are
//! computed.
//!
//! A route stays if the engine's rules still allow the port. That can have changed only where a
//! switch's links changed, or its hops or those of a neighbour; other pairs of a switch and an
//! egress switch are not examined ([`survey`]). The load of lost routes is subtracted from the
//! previous link loads, which gives the load of all routes that stay. If the previous loads are not
//! known, the routes that stay are counted ([`flows`]). LIDs are then routed one by one where
//! necessary, each switch by the least loaded path, where a link costs its load squared as in
//! `sssp` ([`dealer`]).
//!
//! A link that comes back receives the excess of the most loaded links and no more: first all
//! routes that may stay do, and then some are moved to make room for others
//! ([`relief`](super::relief)).
//!
//! This works for all engines whose routes get one hop shorter at each step and may use any port
//! that [`PathRules`] allows. The previous tables must come from the same engine with the same
//! options: pairs that are not examined are taken over unchanged, and [`verify`](super::verify)
//! finds defects in them.
//!
//! If the worst link then has over 2 % more routes than after routing from scratch, more routes are
//! moved, or everything is routed from scratch ([`settle`]).
//!
//! Takes time proportional to switches squared, plus routes that hosts use, plus the size of the
//! change.

mod dealer;
mod flows;
mod survey;

use ib_mad::types::Lid;
use rayon::prelude::*;

use self::dealer::Dealer;
use self::survey::{Counts, Plan, Survey};
use super::balance::{LinkLoads, WORSE_MAX};
use super::deal::{Batch, Dealt, PathRules, batches};
use super::relief::{Effort, Relief, streams_to_hosts};
use super::{HopMatrix, Previous, Topology};

/// Hops to egress switches, and the other labels that decide which paths are allowed.
#[derive(Clone, Copy)]
pub(super) struct Labelled<'a> {
    /// One row per egress switch.
    pub(super) hops: &'a HopMatrix,
    /// By egress switch and switch: how paths start. Empty where hops alone decide.
    pub(super) phases: &'a [u8],
}

impl<'a> Labelled<'a> {
    /// Labels of engines in which hops alone decide.
    pub(super) fn by_hops(hops: &'a HopMatrix) -> Self {
        Self { hops, phases: &[] }
    }

    /// The phases of all switches on paths to an egress switch.
    fn phases(&self, egress_switch: u16) -> &'a [u8] {
        let switches = self.hops.row(egress_switch).len();
        self.phases.chunks(switches.max(1)).nth(egress_switch.into()).unwrap_or_default()
    }
}

/// Where to look for invalid routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Where links or labels differ.
    Changed,
    /// Everywhere: when links and labels do not show all changes.
    All,
}

/// Keeps the previous routes where possible; `None` if so few remain that everything should be
/// routed from scratch. `path_rules` returns the current rules for an egress switch.
pub(super) fn repair<W: PathRules>(
    topology: &Topology,
    now: Labelled<'_>,
    previous: &Previous<'_>,
    then: Labelled<'_>,
    path_rules: impl Fn(u16) -> W + Sync,
    scope: Scope,
) -> Option<Repaired> {
    let survey = Survey::new(topology, now, previous, then, scope)?;
    let batches = batches(topology, &[]);
    let portion = batches.len().div_ceil(2 * rayon::current_num_threads()).max(1);
    let found: Vec<(Vec<Plan>, Counts)> = (batches.par_chunks(portion).enumerate())
        .map(|(number, batches)| survey.run(batches, number * portion, &path_rules))
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
            dealer.load(
                batch.egress_switch,
                plan.lost_by_hosts(batch),
                now.hops.row(batch.egress_switch),
                &lfts,
            );
        }
    }
    for plan in &plans {
        let batch = &batches[plan.batch];
        dealer.route(
            batch,
            plan,
            now.hops.row(batch.egress_switch),
            &path_rules(batch.egress_switch),
            &mut lfts,
        );
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
        let row = now.hops.row(batch.egress_switch).iter();
        (row.filter(|&&hops| hops == HopMatrix::UNREACHABLE).count() * batch.lids.len()) as u64
    });
    let dealt = Dealt { lfts, unreachable: unreachable.sum(), loads: dealer.finish(), tree: None };
    Some(Repaired { dealt, change })
}

/// A routing with the previous routes where these are still valid, and with new routes elsewhere.
pub(super) struct Repaired {
    dealt: Dealt,
    change: Change,
}

/// How the routes changed.
enum Change {
    /// All routes stay.
    None,
    /// New links that may add paths, or new LIDs.
    More(Vec<(u16, usize)>),
    /// The routes of these LIDs at these switches had to be moved.
    Fewer(Vec<(Lid, u16)>),
}

/// Repairs a routing as [`repair`] does, where hops alone decide which paths are allowed.
pub(super) fn repair_by_hops<W: PathRules>(
    topology: &Topology,
    hops: &HopMatrix,
    previous: &Previous<'_>,
    path_rules: impl Fn(u16) -> W + Sync,
) -> Option<Repaired> {
    let now = Labelled::by_hops(hops);
    match previous.hops {
        Some(hops) => {
            repair(topology, now, previous, Labelled::by_hops(hops), path_rules, Scope::Changed)
        }
        None => repair(topology, now, previous, now, path_rules, Scope::All),
    }
}

/// Targets for the largest load as ratios of the goal, tried in turn. A link may have no other path
/// to give routes to until others are below the goal, so the later targets lie below it.
const TARGETS: [f64; 3] = [1.0, 0.98, 0.95];
/// Largest number of forwarding table entries, over all switches, up to which a fabric is also
/// routed from scratch for comparison. That takes milliseconds.
const COMPARED_ENTRIES_MAX: usize = 1_000_000;

/// Balances a repaired routing by moving routes away from the most loaded links
/// ([`relief`](super::relief)) until it is as well balanced as a routing from scratch by `fresh`,
/// which replaces it if that fails. Large fabrics are not routed twice; moving routes has to
/// suffice there ([`Effort::rebalance`]). `hops` has a row per egress switch.
pub(super) fn settle<W: PathRules>(
    topology: &Topology,
    previous: Option<&Previous<'_>>,
    hops: &HopMatrix,
    path_rules: impl Fn(u16) -> W,
    repaired: Option<Repaired>,
    fresh: impl FnOnce() -> Dealt,
) -> Dealt {
    let Some(Repaired { mut dealt, change }) = repaired else { return fresh() };
    let has_changed =
        previous.is_some_and(|previous| previous.hops.is_some() && previous.topology != topology);
    let most = |loads: &[u32]| loads.iter().copied().max().unwrap_or(0);
    let fresh = (has_changed && is_quick(topology)).then(fresh).map(|mut fresh| {
        if fresh.loads.is_empty() {
            fresh.loads = LinkLoads::of_tables(topology, &fresh.lfts).to_hosts;
        }
        fresh
    });
    let goal = fresh.as_ref().map_or(0, |fresh| (f64::from(most(&fresh.loads)) * WORSE_MAX) as u32);
    let mut relieve = |new_links: &[(u16, usize)], movable, effort| {
        let (loads, streams) = (std::mem::take(&mut dealt.loads), streams_to_hosts(topology));
        let mut relief = Relief::new(topology, hops, &path_rules, loads, streams);
        relief.fill(new_links, &mut dealt.lfts, effort);
        dealt.loads = relief.run(&mut dealt.lfts, movable, effort, goal);
    };
    match change {
        Change::None => {}
        Change::More(new_links) => relieve(&new_links, None, Effort::after_gain(topology)),
        // First only routes that had to move anyway are moved; the others only if that does not
        // suffice.
        Change::Fewer(movable) => {
            relieve(&[], Some(movable), Effort::AFTER_LOSS);
            if fresh.is_none() {
                relieve(&[], None, Effort::rebalance(topology));
            }
        }
    }
    let Some(fresh) = fresh else { return dealt };
    for ratio in TARGETS {
        if most(&dealt.loads) <= goal {
            break;
        }
        let streams = streams_to_hosts(topology);
        let relief = Relief::new(topology, hops, &path_rules, dealt.loads, streams);
        let below = (f64::from(goal) * ratio) as u32;
        dealt.loads = relief.run(&mut dealt.lfts, None, Effort::REACH_GOAL, below);
    }
    if most(&dealt.loads) > goal { fresh } else { dealt }
}

/// Whether routing a fabric from scratch takes a few milliseconds.
pub(super) fn is_quick(topology: &Topology) -> bool {
    topology.switch_count() * topology.table_len() <= COMPARED_ENTRIES_MAX
}

/// Whether [`settle`] does not compare kept routes with a routing from scratch in this fabric.
pub fn is_kept_unseen(topology: &Topology) -> bool {
    !is_quick(topology)
}

/// The indices of set bits.
fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        place
    })
}

/// A word with the lowest `count` bits set.
fn first_places(count: usize) -> u64 {
    if count >= Batch::LIDS_MAX { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests;

//! Routes the planes of a planarized fabric, each by itself, and joins the results.

use std::sync::{Arc, OnceLock};

use super::active::{ActiveRouting, PlaneRouting, Proved};
use super::job::{Chosen, Kept, Rejection, RoutingJob, RoutingOutcome};
use sm_routing::hosts::Away;
use sm_routing::verify::CreditLoops;
use sm_routing::{HopMatrix, Lanes, Reason, planes};

/// Runs the jobs of all planes. If one cannot be routed, none is: tables stay as they are.
pub(super) fn run(mut job: RoutingJob) -> RoutingOutcome {
    let (sweep, switches) = (job.sweep, job.switches.clone());
    let mut rejected = Vec::new();
    let mut chosen = Some(Vec::new());
    let mut first = 0;
    for plane in std::mem::take(&mut job.planes) {
        let count = plane.topology.switches().end;
        let outcome = plane.run();
        rejected.extend(outcome.rejected.into_iter().map(|(at, why)| (first + at, why)));
        chosen = chosen.zip(outcome.chosen).map(|(mut all, plane)| {
            all.push((first, plane));
            all
        });
        first += count;
    }
    let chosen = chosen.and_then(|planes| {
        let joined = joined(job, planes);
        if joined.is_none() {
            let max = HopMatrix::SWITCHES_MAX;
            let reason = Reason::TooManySwitches { switches: switches.len(), max };
            rejected.push((0, Rejection::Refused(reason.of("planes"))));
        }
        joined
    });
    RoutingOutcome { sweep, switches, chosen, rejected }
}

/// Joins the routings of planes; `None` if they have too many switches together.
fn joined(job: RoutingJob, planes: Vec<(u16, Chosen)>) -> Option<Chosen> {
    let RoutingJob { topology, switches, asked, .. } = job;
    let hops = HopMatrix::compute(&topology)?;
    let numbers = switches.iter().copied().zip(0..).collect();
    let engine = planes.first().map_or("", |(_, plane)| plane.made.engine);
    let ranks = planes.first().and_then(|(_, plane)| plane.made.tree_ranks);
    let is_like = |(_, plane): &(u16, Chosen)| plane.made.tree_ranks == ranks;
    let tree_ranks = ranks.filter(|_| planes.iter().all(is_like));
    let mut lfts = Vec::with_capacity(switches.len());
    let mut loops: Option<Vec<(u16, CreditLoops)>> = Some(Vec::new());
    let (mut kept, mut unreachable) = (Kept::Nothing, 0);
    let mut routings = Vec::with_capacity(planes.len());
    for (first, plane) in planes {
        lfts.extend(plane.lfts);
        unreachable += plane.unreachable;
        kept = most(kept, plane.kept);
        loops = loops.zip(plane.loops).map(|(mut all, loops)| {
            all.push((first, loops));
            all
        });
        routings.push(PlaneRouting { first, made: Arc::new(plane.made) });
    }
    let loops =
        loops.map(|all| planes::joined_loops(all.iter().map(|(first, loops)| (*first, loops))));
    let made = ActiveRouting {
        engine,
        tree_ranks,
        topology,
        hops,
        loads: Vec::new(),
        tree: None,
        distances: None,
        switches,
        numbers,
        // Engines that select lanes are refused.
        lanes: Lanes::Free,
        proved: Proved::Nothing,
        path_sls: Vec::new(),
        asked,
        away: Away::default(),
        unicast: OnceLock::new(),
        planes: routings,
    };
    Some(Chosen { made, lfts, kept, loops, unreachable })
}

/// Of how much two planes keep, the one that calls for more checks afterwards.
fn most(one: Kept, other: Kept) -> Kept {
    let rank = |kept: Kept| match kept {
        Kept::Nothing => 0,
        Kept::Followed => 1,
        Kept::Repaired => 2,
        Kept::Copied => 3,
    };
    if rank(other) > rank(one) { other } else { one }
}

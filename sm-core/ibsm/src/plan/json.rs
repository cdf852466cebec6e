//! Renders a comparison as JSON. Fields that are 0 or unknown are included; times are in seconds.

use serde::Serialize;

use super::failures::Tally;
use super::site::Site;
use super::trial::{Made, Trial};
use super::{Plan, Tried, recommend};
use sm_routing::measure;

/// Format version. Raised when a field is removed or changes its meaning; fields may be added
/// without.
const FORMAT: u32 = 2;

#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    net: String,
    switches: usize,
    links: usize,
    hosts: usize,
    lids: usize,
    data_vls: u8,
    lids_moved: usize,
    /// Number of traffic patterns of each kind; all there are, if these are fewer.
    patterns: u32,
    remarks: &'a [String],
    recommendations: Vec<Recommendation>,
    engines: Vec<Engine<'a>>,
}

#[derive(Serialize)]
struct Engine<'a> {
    engine: &'a str,
    /// `null` if the engine routes.
    refused: Option<&'a str>,
    route_cpu_s: f64,
    tables: Option<TablesFigures>,
    failures: Vec<Failures>,
}

#[derive(Serialize)]
struct TablesFigures {
    proof_cpu_s: f64,
    wrong_entries: u64,
    routes: u64,
    routes_lost: u64,
    pairs_parted: u64,
    hops_mean: f64,
    hops_max: u32,
    /// Routes with more hops than the shortest path.
    routes_longer: u64,
    busiest_link_routes: u32,
    /// Mean of all links between switches, also of those without routes.
    mean_link_routes: f64,
    links_used: usize,
    /// What applications feel, with flows to the first LID of each port.
    base: Quality,
    /// The same with flows spread over all LIDs; `null` if no port has more than one.
    spread: Option<Quality>,
    /// The same with each flow divided among all LIDs of its destination; `null` likewise.
    divided: Option<Quality>,
    vls: u8,
    vls_needed: u8,
    deadlock_free: bool,
    /// A credit loop, as links by switch and port; each waits for the next and the last for the
    /// first.
    cycle: Vec<Hop>,
    cycle_vl: Option<u8>,
    /// Whether replies that are sent on the SLs of their requests add no credit loop.
    replies_deadlock_free: bool,
    /// A credit loop of requests and such replies, and its VL.
    reply_cycle: Vec<Hop>,
    reply_cycle_vl: Option<u8>,
    /// Links from the root of the broadcast tree to the farthest member.
    broadcast_depth: Option<u32>,
    /// Whether broadcast packets, on SL 0, add no credit loop with each other or with unicast; true
    /// without hosts.
    broadcast_deadlock_free: bool,
    /// A credit loop of broadcast with unicast, if there is one.
    broadcast_cycle: Vec<Hop>,
}

#[derive(Serialize)]
struct Recommendation {
    goal: &'static str,
    /// `null` if no engine is suitable.
    engine: Option<&'static str>,
    reason: String,
}

/// Measures of traffic patterns; bandwidths as shares of a link's.
#[derive(Serialize)]
pub(crate) struct Quality {
    /// Random matchings, both ways: their bandwidth is the effective bisection bandwidth.
    matchings: Figures,
    shifts: Figures,
    permutations: Figures,
    /// Rounds of a tournament, as ClusterKit tests them.
    rounds: Figures,
    all_to_all_bandwidth: f64,
    contention: f64,
}

#[derive(Serialize)]
struct Figures {
    patterns: u32,
    flows: u64,
    flows_lost: u64,
    bandwidth: f64,
    /// What the links allow with any routing.
    bandwidth_bound: f64,
    /// Largest congestion of a pattern.
    congestion_mean: f64,
    congestion_max: u32,
    /// Share of pairs of flows with congestion above 1; only with matchings and rounds.
    bad_pairs: f64,
}

#[derive(Serialize)]
struct Hop {
    guid: String,
    name: String,
    port: u8,
}

#[derive(Serialize)]
struct Failures {
    of: &'static str,
    total: usize,
    tried: usize,
    refused: usize,
    /// The first failure after which the engine refused, and the reason.
    refused_without: Option<String>,
    refused_reason: Option<String>,
    routes_lost: u64,
    routes_lost_max: u64,
    routes_lost_max_without: Option<String>,
    pairs_parted: u64,
    entries_changed_mean: f64,
    entries_changed_max: u64,
    /// Entries that led over what failed.
    entries_forced_mean: f64,
    ebb_mean: f64,
    ebb_min: f64,
    shift_bandwidth_mean: f64,
    shift_bandwidth_min: f64,
    vls_max: u8,
    deadlocking: usize,
    deadlocking_without: Option<String>,
    route_cpu_s: f64,
}

/// Renders the document, with a newline at the end.
pub fn render(plan: &Plan<'_>) -> String {
    let topology = &plan.site.topology;
    let document = Document {
        format: FORMAT,
        net: plan.net.display().to_string(),
        switches: topology.switch_count(),
        links: topology.link_count() / 2,
        hosts: plan.site.hosts(),
        lids: topology.destinations().iter().map(|to| usize::from(to.lid_count)).sum(),
        data_vls: plan.data_lanes,
        lids_moved: plan.site.moved,
        patterns: plan.patterns,
        remarks: &plan.remarks,
        recommendations: recommend::all(plan).into_iter().map(recommendation).collect(),
        engines: plan.trials.iter().map(|tried| engine(&plan.site, tried)).collect(),
    };
    let text = serde_json::to_string_pretty(&document);
    text.expect("the document has string keys and finite numbers") + "\n"
}

fn engine<'a>(site: &Site, Tried { trial, failures }: &'a Tried) -> Engine<'a> {
    let Trial { engine, route_time, outcome } = trial;
    Engine {
        engine,
        refused: outcome.as_ref().err().map(String::as_str),
        route_cpu_s: route_time.as_secs_f64(),
        tables: outcome.as_ref().ok().map(|made| tables(site, made)),
        failures: failures.iter().map(|tally| after(site, tally)).collect(),
    }
}

fn tables(site: &Site, made: &Made) -> TablesFigures {
    let Made { deliveries, loops, survey, spread, broadcast, .. } = made;
    let replies = made.reply_loops.as_ref().unwrap_or(loops);
    let fault = broadcast.as_ref().and_then(|tree| tree.fault.as_ref());
    let hop = |&(switch, port): &(u16, u8)| {
        let switch = &site.roster.switches[usize::from(switch)];
        Hop { guid: switch.guid.to_string(), name: switch.name.clone(), port }
    };
    TablesFigures {
        proof_cpu_s: made.proof_time.as_secs_f64(),
        wrong_entries: deliveries.defective,
        routes: survey.routes,
        routes_lost: survey.lost,
        pairs_parted: survey.parted,
        hops_mean: survey.mean(),
        hops_max: survey.hops_max,
        routes_longer: survey.longer,
        busiest_link_routes: spread.max,
        mean_link_routes: spread.mean,
        links_used: spread.links,
        base: quality(&made.quality.base),
        spread: made.quality.spread.as_ref().map(quality),
        divided: made.quality.divided.as_ref().map(quality),
        vls: made.lanes,
        vls_needed: made.lanes_needed,
        deadlock_free: loops.is_free(),
        cycle: loops.example.iter().map(hop).collect(),
        cycle_vl: loops.lane,
        replies_deadlock_free: replies.is_free(),
        reply_cycle: replies.example.iter().map(hop).collect(),
        reply_cycle_vl: replies.lane,
        broadcast_depth: broadcast.as_ref().map(|tree| tree.depth),
        broadcast_deadlock_free: fault.is_none(),
        broadcast_cycle: fault.into_iter().flat_map(|fault| &fault.cycle).map(hop).collect(),
    }
}

fn recommendation(given: recommend::Recommendation) -> Recommendation {
    let recommend::Recommendation { goal, engine, reason } = given;
    Recommendation { goal: recommend::name(goal), engine, reason }
}

pub(crate) fn quality(quality: &measure::Quality) -> Quality {
    let figures = |figures: &measure::Figures| Figures {
        patterns: figures.patterns,
        flows: figures.flows,
        flows_lost: figures.lost,
        bandwidth: figures.bandwidth,
        bandwidth_bound: figures.bound,
        congestion_mean: figures.congestion_mean,
        congestion_max: figures.congestion_max,
        bad_pairs: figures.bad_pairs,
    };
    Quality {
        matchings: figures(&quality.matchings),
        shifts: figures(&quality.shifts),
        permutations: figures(&quality.permutations),
        rounds: figures(&quality.rounds),
        all_to_all_bandwidth: quality.all_to_all,
        contention: quality.contention,
    }
}

fn after(site: &Site, tally: &Tally) -> Failures {
    Failures {
        of: if tally.of_switches { "switches" } else { "links" },
        total: tally.total,
        tried: tally.tried,
        refused: tally.refused,
        refused_without: tally.refusal.as_ref().map(|(failure, _)| site.describe(*failure)),
        refused_reason: tally.refusal.as_ref().map(|(_, reason)| reason.clone()),
        routes_lost: tally.lost,
        routes_lost_max: tally.worst.map_or(0, |(_, lost)| lost),
        routes_lost_max_without: tally.worst.map(|(failure, _)| site.describe(failure)),
        pairs_parted: tally.parted,
        entries_changed_mean: tally.changed_mean(),
        entries_changed_max: tally.changed_max,
        entries_forced_mean: tally.forced_mean(),
        ebb_mean: tally.matchings.mean(),
        ebb_min: tally.matchings.min,
        shift_bandwidth_mean: tally.shifts.mean(),
        shift_bandwidth_min: tally.shifts.min,
        vls_max: tally.lanes_max,
        deadlocking: tally.looping,
        deadlocking_without: tally.loops.map(|failure| site.describe(failure)),
        route_cpu_s: tally.route_time.as_secs_f64(),
    }
}

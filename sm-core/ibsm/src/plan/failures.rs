//! Evaluates one engine after the failure of single links or switches.

use std::time::Duration;

use super::clock::timed;
use super::progress::Progress;
use super::site::{Failure, Site};
use super::survey::Survey;
use super::trial::{Made, Traffic, in_words, lanes_of};
use sm_routing::measure::Pattern;
use sm_routing::{DisplayWith, Engine, NO_ROUTE, Routing, Steering, TopologyError, verify};

/// The failures of one kind to try, one by one.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Whether switches fail, rather than links between them.
    pub of_switches: bool,
    /// Number of possible failures.
    pub total: usize,
    /// The failures to try.
    pub tried: Vec<Failure>,
}

impl Choice {
    /// Selects up to `max` of a site's links or switches, evenly spaced.
    pub fn of(site: &Site, of_switches: bool, max: usize) -> Self {
        let all = site.failures(of_switches);
        let (total, count) = (all.len(), all.len().min(max));
        let tried = (0..count).map(|index| all[index * total / count]).collect();
        Self { of_switches, total, tried }
    }
}

/// The results of all failures of a kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Whether switches failed, rather than links.
    pub of_switches: bool,
    /// Number of failures tried.
    pub tried: usize,
    /// Number of possible failures.
    pub total: usize,
    /// Number of failures after which the engine computes no tables, or wrong ones.
    pub refused: usize,
    /// The first of these failures, and the reason.
    pub refusal: Option<(Failure, String)>,
    /// Number of routes missing between hosts that are still connected, summed over all failures.
    pub lost: u64,
    /// The failure with the most missing routes, and their number.
    pub worst: Option<(Failure, u64)>,
    /// Number of pairs of a host and a LID that are no longer connected, summed over all failures;
    /// equal for all engines that route.
    pub parted: u64,
    /// Number of changed table entries, summed over all failures.
    pub changed: u64,
    /// Number of changed entries after the failure with the most.
    pub changed_max: u64,
    /// Number of entries that led directly to the failed element, or to LIDs that are out of reach
    /// now, summed over all failures: these had to change.
    pub forced: u64,
    /// Bandwidth of random matchings (eBB) after the failures.
    pub matchings: Range,
    /// Bandwidth of shifts.
    pub shifts: Range,
    /// Largest number of data VLs that routes use.
    pub lanes_max: u8,
    /// Number of failures after which the routing has a credit loop.
    pub looping: usize,
    /// The first of these failures.
    pub loops: Option<Failure>,
    /// CPU time of routing after all failures.
    pub route_time: Duration,
}

/// Mean and minimum of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    sum: f64,
    count: u32,
    /// The smallest value; 1 without any.
    pub min: f64,
}

impl Default for Range {
    fn default() -> Self {
        Self { sum: 0.0, count: 0, min: 1.0 }
    }
}

impl Range {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        self.min = self.min.min(value);
    }

    /// The mean; 0 without any value.
    pub fn mean(&self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }
}

impl Tally {
    /// Mean number of changed entries per failure.
    pub fn changed_mean(&self) -> f64 {
        self.changed as f64 / (self.tried - self.refused).max(1) as f64
    }

    /// Mean number of entries per failure that led over what failed.
    pub fn forced_mean(&self) -> f64 {
        self.forced as f64 / (self.tried - self.refused).max(1) as f64
    }
}

/// Computes the engines' options for a site. Called for each failure, as switch numbers differ.
pub type Steer<'a> = &'a (dyn Fn(&Site) -> Steering + Sync);

/// Removes each chosen element, one at a time, and routes the rest with the engine.
pub fn tally(
    engine: &dyn Engine,
    (site, made): (&Site, &Made),
    choice: &Choice,
    steer: Steer<'_>,
    traffic: &dyn Fn(&Site) -> Traffic,
    progress: &mut Progress,
) -> Result<Tally, TopologyError> {
    let mut tally = Tally {
        of_switches: choice.of_switches,
        tried: choice.tried.len(),
        total: choice.total,
        lanes_max: made.lanes,
        ..Tally::default()
    };
    let what = if choice.of_switches { "switch" } else { "link" };
    for (index, &failure) in choice.tried.iter().enumerate() {
        let count = choice.tried.len();
        progress.show(|| format!("{}: without {what} {} of {count}", engine.name(), index + 1));
        let (rest, numbers) = site.without(failure)?;
        let steering = steer(&rest);
        let before = made.before(site, numbers.clone());
        let (routed, time) = timed(|| engine.route(&rest.topology, &steering, Some(&before)));
        tally.route_time += time;
        match routed {
            Err(reason) => tally.refuse(failure, in_words(&rest, &reason)),
            Ok(routing) => {
                let wrong = verify::deliveries(&rest.topology, &routing);
                match wrong.defects.first() {
                    Some(defect) => {
                        let label = |switch| rest.switch_label(switch);
                        let (count, defect) = (wrong.defective, defect.display_with(&label));
                        let reason = format!("{count} wrong entries, the first: {defect}");
                        tally.refuse(failure, reason);
                    }
                    None => {
                        let traffic = traffic(&rest);
                        let bandwidth =
                            |pattern| traffic.bandwidth(&rest.topology, &routing, pattern);
                        tally.matchings.add(bandwidth(Pattern::Matching));
                        tally.shifts.add(bandwidth(Pattern::Shift));
                        tally.take(failure, (&rest, &routing), made, &numbers);
                    }
                }
            }
        }
    }
    Ok(tally)
}

impl Tally {
    fn refuse(&mut self, failure: Failure, reason: String) {
        self.refused += 1;
        self.refusal.get_or_insert((failure, reason));
    }

    fn take(
        &mut self,
        failure: Failure,
        (rest, routing): (&Site, &Routing),
        made: &Made,
        numbers: &[Option<u16>],
    ) {
        let survey = Survey::of(&rest.topology, routing);
        self.parted += survey.parted;
        self.lost += survey.lost;
        if survey.lost > self.worst.map_or(0, |(_, lost)| lost) {
            self.worst = Some((failure, survey.lost));
        }
        let (changed, forced) = changed(rest, routing, &made.routing, numbers);
        self.changed += changed;
        self.forced += forced;
        self.changed_max = self.changed_max.max(changed);
        let loops = verify::credit_loops_on_lanes(&rest.topology, routing);
        self.lanes_max = self.lanes_max.max(lanes_of(routing, &loops));
        if !loops.is_free() {
            self.looping += 1;
            self.loops.get_or_insert(failure);
        }
    }
}

/// Number of entries that changed, for LIDs and switches that still exist, and of those whose link
/// is gone or that no path replaces.
fn changed(rest: &Site, now: &Routing, before: &Routing, numbers: &[Option<u16>]) -> (u64, u64) {
    let (mut changed, mut forced) = (0, 0);
    for (switch, then) in rest.topology.switches().zip(numbers) {
        let Some(then) = then.and_then(|then| before.lfts.get(usize::from(then))) else { continue };
        let now = &now.lfts[usize::from(switch)];
        for to in rest.topology.destinations() {
            for lid in to.lids() {
                let entry = |lft: &[u8]| lft.get(lid.index()).copied().unwrap_or(NO_ROUTE);
                let (now, then) = (entry(now), entry(then));
                changed += u64::from(now != then);
                let is_home = to.egress_switch == switch;
                let is_link = || rest.topology.link_at(switch, then).is_some();
                let must_change = now == NO_ROUTE || !is_link();
                forced += u64::from(then != NO_ROUTE && !is_home && must_change);
            }
        }
    }
    (changed, forced)
}

//! What one engine does when one link or one switch fails.

use std::time::Duration;

use super::clock::timed;
use super::progress::Progress;
use super::site::{Failure, Site};
use super::survey::Survey;
use super::trial::{Made, in_words, lanes_of};
use crate::routing::{Engine, NO_ROUTE, Routing, Steering, TopologyError, verify};

/// Failures of one kind that are tried, one by one.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Whether switches fail, or links between them.
    pub of_switches: bool,
    /// How many there are.
    pub total: usize,
    /// Those that are tried.
    pub tried: Vec<Failure>,
}

impl Choice {
    /// Up to `max` of a site's links or switches, at equal distances.
    pub fn of(site: &Site, of_switches: bool, max: usize) -> Self {
        let all = site.failures(of_switches);
        let (total, count) = (all.len(), all.len().min(max));
        let tried = (0..count).map(|index| all[index * total / count]).collect();
        Self { of_switches, total, tried }
    }
}

/// What came of all failures of a kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Whether switches failed, or links.
    pub of_switches: bool,
    /// Failures that were tried.
    pub tried: usize,
    /// Failures that there are.
    pub total: usize,
    /// Those after which the engine makes no tables, or wrong ones.
    pub refused: usize,
    /// The first of them, and why.
    pub refusal: Option<(Failure, String)>,
    /// Routes between hosts that links still join but tables do not, all failures together.
    pub lost: u64,
    /// The failure with the most of these, and how many.
    pub worst: Option<(Failure, u64)>,
    /// Pairs of a host and a LID that no links join any more, all failures together; the same for
    /// all engines that route.
    pub parted: u64,
    /// Entries of tables that change, all failures together.
    pub changed: u64,
    /// Entries that change after the failure with the most.
    pub changed_max: u64,
    /// The most data VLs that routes take.
    pub lanes_max: u8,
    /// Failures after which packets can wait for each other in circles.
    pub looping: usize,
    /// The first of them.
    pub loops: Option<Failure>,
    /// CPU time of routing after all failures.
    pub route_time: Duration,
}

impl Tally {
    /// Entries that change on average.
    pub fn changed_mean(&self) -> f64 {
        self.changed as f64 / (self.tried - self.refused).max(1) as f64
    }
}

/// How a site is steered; asked again for each failure, since switches then have other numbers.
pub type Steer<'a> = &'a (dyn Fn(&Site) -> Steering + Sync);

/// Takes away what was chosen, one by one, and has the engine route the rest.
pub fn tally(
    engine: &dyn Engine,
    (site, made): (&Site, &Made),
    choice: &Choice,
    steer: Steer<'_>,
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
        progress.tell(|| format!("{}: without {what} {} of {count}", engine.name(), index + 1));
        let (rest, numbers) = site.without(failure)?;
        let steering = steer(&rest);
        let before = made.before(site, numbers.clone());
        let (routed, time) = timed(|| engine.route(&rest.topology, &steering, Some(&before)));
        tally.route_time += time;
        match routed {
            Err(reason) => tally.refuse(failure, in_words(&rest, &reason, engine)),
            Ok(routing) => {
                let wrong = verify::deliveries(&rest.topology, &routing);
                match wrong.defects.first() {
                    Some(defect) => {
                        let defect = rest.with_names(&defect.to_string());
                        let reason = format!("{} wrong entries, first {defect}", wrong.defective);
                        tally.refuse(failure, reason);
                    }
                    None => tally.take(failure, (&rest, &routing), made, &numbers),
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
        let changed = changed(rest, routing, &made.routing, numbers);
        self.changed += changed;
        self.changed_max = self.changed_max.max(changed);
        let loops = verify::credit_loops_on_lanes(&rest.topology, routing);
        self.lanes_max = self.lanes_max.max(lanes_of(routing, &loops));
        if !loops.is_free() {
            self.looping += 1;
            self.loops.get_or_insert(failure);
        }
    }
}

/// Entries for LIDs that are still there which differ from those before, on switches that are.
fn changed(rest: &Site, now: &Routing, before: &Routing, numbers: &[Option<u16>]) -> u64 {
    let mut changed = 0;
    for (switch, then) in rest.topology.switches().zip(numbers) {
        let Some(then) = then.and_then(|then| before.lfts.get(usize::from(then))) else { continue };
        let now = &now.lfts[usize::from(switch)];
        for lid in rest.topology.destinations().iter().flat_map(|to| to.lids()) {
            let entry = |lft: &[u8]| lft.get(lid.index()).copied().unwrap_or(NO_ROUTE);
            changed += u64::from(entry(now) != entry(then));
        }
    }
    changed
}

//! What is told of a storm: a line a second, a table or JSON at the end. docs/ibstorm.md explains
//! every field.

mod json;
mod text;

use std::fmt::Write;
use std::time::Duration;

use crate::ask::Kind;
use crate::cpu::Share;
use crate::driver::Outcome;
use crate::histogram::{Counts, KindCounts, Latencies, Measured, Timings};
use crate::scenario::Summary;
use crate::scenario::ramp::Ramp;

/// What was done, for the head of a report.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The profile, if one was named.
    pub profile: Option<String>,
    /// The model.
    pub model: &'static str,
    /// What chance was drawn by.
    pub seed: u64,
    /// Threads.
    pub threads: u32,
    /// Queries a second that were due whatever the answers did.
    pub offered: Option<f64>,
    /// Whether queries that were due waited for their port's window.
    pub has_windows: bool,
    /// Where requests went.
    pub to: String,
    /// What was asked.
    pub query: String,
    /// What drove it.
    pub load: String,
    /// What was asked about.
    pub ports: String,
    /// What answers were checked by.
    pub check: String,
}

/// The end of a storm, all threads together.
pub struct Report {
    setting: Setting,
    counts: Counts,
    timings: Timings,
    /// Latencies of all kinds but garbage, from when queries were due and from when they were sent.
    due: Latencies,
    service: Latencies,
    elapsed: Duration,
    begun: Duration,
    shares: Vec<Share>,
    summary: Summary,
    ramp: Option<Ramp>,
    shown: Vec<String>,
    examples: Vec<String>,
    asked: Vec<u16>,
}

/// Wrong answers told in words.
const EXAMPLES_MAX: usize = 5;
/// Queries that are sent late by less than this are not late: schedulers take turns.
const LAG_MAX: Duration = Duration::from_millis(1);
/// A schedule of which less than this was begun was not kept, what is chance aside.
const KEPT: f64 = 0.95;
/// Percentiles that are told.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

impl Report {
    /// Sums up the threads' outcomes.
    pub fn new(
        setting: Setting,
        timings: Timings,
        outcomes: Vec<Outcome>,
        ramp: Option<Ramp>,
        show: usize,
    ) -> Self {
        let mut report = Self {
            setting,
            counts: Counts::default(),
            due: timings.due(),
            service: timings.service(),
            timings,
            elapsed: Duration::ZERO,
            begun: Duration::ZERO,
            shares: Vec::new(),
            summary: Summary::default(),
            ramp,
            shown: Vec::new(),
            examples: Vec::new(),
            asked: Vec::new(),
        };
        for outcome in outcomes {
            report.counts.add(&outcome.counts);
            report.elapsed = report.elapsed.max(outcome.elapsed);
            report.begun = report.begun.max(outcome.begun);
            report.shares.push(outcome.share);
            report.summary.add(outcome.summary);
            report.shown.extend(outcome.shown);
            report.examples.extend(outcome.examples);
            report.asked.extend(outcome.asked.iter().map(|lid| lid.0));
        }
        report.shown.truncate(show);
        report.examples.truncate(EXAMPLES_MAX);
        report
    }

    /// Whether something was answered and nothing wrongly.
    pub fn is_good(&self) -> bool {
        let Counts { answered, answered_garbage, errors, .. } = &self.counts;
        answered > answered_garbage && self.counts.wrong_total() == 0 && errors.total() == 0
    }

    /// So many a second, over the time until the last answer.
    fn a_second(&self, count: u64) -> f64 {
        a_second(count, self.elapsed)
    }

    /// Packets sent for each of so many queries, garbage aside.
    fn packets_per(&self, queries: u64) -> Option<f64> {
        let sent = self.counts.sent - self.counts.kinds[Kind::Malformed as usize].sent;
        (queries > 0).then(|| sent as f64 / queries as f64)
    }

    /// Queries begun a second, over the time until the last one.
    fn achieved(&self) -> f64 {
        a_second(self.counts.queries, self.begun)
    }

    /// Why the figures may be the generator's and not the responder's.
    fn generator_limit(&self) -> Option<String> {
        if let Some(share) = self.shares.iter().find(|share| share.is_limit()) {
            let (cpu, starved) = (share.cpu * 100.0, share.starved * 100.0);
            return Some(format!(
                "a thread of ibstorm was busy {cpu:.0} % of the time and waited for a core \
                 {starved:.0} %: more --threads or more cores may show more"
            ));
        }
        if self.setting.has_windows {
            return None; // What is late has waited for its window, for which ibstorm cannot help.
        }
        let offered = self.setting.offered?;
        let due = offered * self.begun.as_secs_f64();
        // So many that come at random may be fewer by a few times the square root.
        if (self.counts.queries as f64) < KEPT * due - 4.0 * due.sqrt() {
            return Some(format!(
                "the schedule of {} queries a second was not kept, {} were sent",
                grouped(offered.round() as u64),
                grouped(self.achieved().round() as u64)
            ));
        }
        let lag = late(&self.timings)?;
        Some(format!(
            "1 % of the queries were sent more than {} late, where 1 % took more than {}: latencies \
             are mostly ibstorm's; 'service' counts from when queries were sent",
            short(lag),
            short(self.due.percentile(99.0))
        ))
    }

    /// Kinds of queries that were asked.
    fn kinds(&self) -> impl Iterator<Item = (Kind, &KindCounts, Option<&Measured>)> {
        let asked = Kind::ALL.into_iter().zip(&self.counts.kinds);
        asked.filter(|(_, counts)| counts.queries > 0).map(|(kind, counts)| {
            let timed = self.timings.kinds().find(|&(timed, _)| timed == kind);
            (kind, counts, timed.map(|(_, measured)| measured))
        })
    }
}

/// How late 1 % of the queries were sent, if that is most of what 1 % took: then latencies are more
/// the generator's than the responder's.
pub fn late(timings: &Timings) -> Option<Duration> {
    let (lag, due) = (timings.lag.percentile(99.0), timings.due());
    (lag > LAG_MAX && !due.is_empty() && lag * 2 > due.percentile(99.0)).then_some(lag)
}

fn a_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The line of one interval of a storm that is going on.
pub fn progress(
    since_start: Duration,
    interval: Duration,
    before: &Counts,
    counts: &Counts,
    recent: &Timings,
) -> String {
    let rate = a_second(counts.answered - before.answered, interval);
    let mut line = format!(
        "{:>5.0} s {:>13} queries/s",
        since_start.as_secs_f64(),
        grouped(rate.round() as u64)
    );
    let due = recent.due();
    if !due.is_empty() {
        let [p50, p99] = [50.0, 99.0].map(|percentile| short(due.percentile(percentile)));
        let _ = write!(line, "   p50 {p50:>9}   p99 {p99:>9}");
    }
    let _ = write!(
        line,
        "   retries {}   timeouts {}",
        grouped(counts.retries - before.retries),
        grouped(counts.timed_out - before.timed_out)
    );
    let bad = counts.errors.total() + counts.wrong_total();
    if bad > 0 {
        let _ = write!(line, "   wrong {}", grouped(bad));
    }
    line
}

/// 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time to three digits.
pub(crate) fn short(time: Duration) -> String {
    let ns = time.as_nanos() as f64;
    let (value, unit) = match ns {
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    match value {
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value if value < 100.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests;

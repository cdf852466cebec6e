//! Output of a storm: progress lines, and the report as text or JSON. docs/ibstorm.md explains
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

/// The settings of a storm, for the head of a report.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The profile, if one was named.
    pub profile: Option<String>,
    /// The model.
    pub model: &'static str,
    /// Seed of the random choices.
    pub seed: u64,
    /// Threads.
    pub threads: u32,
    /// Queries a second of an open loop.
    pub offered: Option<f64>,
    /// Whether due queries waited for their port's window.
    pub has_windows: bool,
    /// Destination of requests.
    pub to: String,
    /// The queries.
    pub query: String,
    /// The load.
    pub load: String,
    /// Ports and pairs.
    pub ports: String,
    /// How responses were checked.
    pub check: String,
}

/// Result of a storm, over all threads.
pub struct Report {
    setting: Setting,
    counts: Counts,
    timings: Timings,
    /// Latencies of all kinds except malformed, from when queries were scheduled and from when they
    /// were sent.
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

/// Limit of faulty responses printed.
const EXAMPLES_MAX: usize = 5;
/// Delays below this are not reported as late: they may come from the scheduler.
const LAG_MAX: Duration = Duration::from_millis(1);
/// Minimum share of due queries sent; below it, the schedule was not kept.
const KEPT: f64 = 0.95;
/// Percentiles in the report.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

impl Report {
    /// Sums up the results of all threads.
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

    /// Whether there were responses, and none was faulty.
    pub fn is_good(&self) -> bool {
        let Counts { answered, answered_garbage, errors, .. } = &self.counts;
        answered > answered_garbage && self.counts.wrong_total() == 0 && errors.total() == 0
    }

    /// Rate per second, over the time until the last response.
    fn a_second(&self, count: u64) -> f64 {
        a_second(count, self.elapsed)
    }

    /// Packets sent per query of `queries`, malformed ones excluded.
    fn packets_per(&self, queries: u64) -> Option<f64> {
        let sent = self.counts.sent - self.counts.kinds[Kind::Malformed as usize].sent;
        (queries > 0).then(|| sent as f64 / queries as f64)
    }

    /// Queries started per second, over the time until the last one.
    fn achieved(&self) -> f64 {
        a_second(self.counts.queries, self.begun)
    }

    /// Why the figures may reflect the load generator and not the responder.
    fn generator_limit(&self) -> Option<String> {
        if let Some(share) = self.shares.iter().find(|share| share.is_limit()) {
            let (cpu, starved) = (share.cpu * 100.0, share.starved * 100.0);
            return Some(format!(
                "a thread of ibstorm was busy {cpu:.0} % of the time and waited for a core \
                 {starved:.0} %; try more --threads or more cores"
            ));
        }
        if self.setting.has_windows {
            return None; // Late queries waited for their window, not for ibstorm.
        }
        let offered = self.setting.offered?;
        let due = offered * self.begun.as_secs_f64();
        // The number of random arrivals may be lower by a few times its square root.
        if (self.counts.queries as f64) < KEPT * due - 4.0 * due.sqrt() {
            return Some(format!(
                "the schedule of {} queries a second was not kept, {} were sent",
                grouped(offered.round() as u64),
                grouped(self.achieved().round() as u64)
            ));
        }
        let lag = late(&self.timings)?;
        Some(format!(
            "1 % of the queries were sent more than {} late, while 1 % took more than {}: most of \
             the latency is ibstorm's own; 'service' is measured from when queries were sent",
            short(lag),
            short(self.due.percentile(99.0))
        ))
    }

    /// Kinds of queries that were sent.
    fn kinds(&self) -> impl Iterator<Item = (Kind, &KindCounts, Option<&Measured>)> {
        let asked = Kind::ALL.into_iter().zip(&self.counts.kinds);
        asked.filter(|(_, counts)| counts.queries > 0).map(|(kind, counts)| {
            let timed = self.timings.kinds().find(|&(timed, _)| timed == kind);
            (kind, counts, timed.map(|(_, measured)| measured))
        })
    }
}

/// How late 1 % of the queries were sent, if that is most of the 99th percentile of latency, which
/// then reflects the generator rather than the responder.
pub fn late(timings: &Timings) -> Option<Duration> {
    let (lag, due) = (timings.lag.percentile(99.0), timings.due());
    (lag > LAG_MAX && !due.is_empty() && lag * 2 > due.percentile(99.0)).then_some(lag)
}

fn a_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The progress line of one interval.
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

/// Formats 1234567 as 1,234,567.
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

/// Formats a time with three digits.
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

//! What is told of a storm: a line a second, a table or JSON at the end.

use std::fmt::{self, Write};
use std::time::Duration;

use serde::Serialize;
use std::collections::BTreeMap;

use crate::check::Fault;
use crate::driver::Outcome;
use crate::histogram::{Counts, Entry, Latencies};

/// What was done, in words, for the head of a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Setting {
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
    latencies: Latencies,
    elapsed: Duration,
    shown: Vec<String>,
    examples: Vec<String>,
    asked: Vec<u16>,
}

/// Wrong answers told in words.
const EXAMPLES_MAX: usize = 5;

impl Report {
    /// Sums up the threads' outcomes.
    pub fn new(setting: Setting, outcomes: Vec<Outcome>, show: usize) -> Self {
        let mut report = Self {
            setting,
            counts: Counts::default(),
            latencies: Latencies::default(),
            elapsed: Duration::ZERO,
            shown: Vec::new(),
            examples: Vec::new(),
            asked: Vec::new(),
        };
        for outcome in outcomes {
            report.counts.add(&outcome.counts);
            report.latencies.add(&outcome.latencies);
            report.elapsed = report.elapsed.max(outcome.elapsed);
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
        let Counts { answered, errors, .. } = &self.counts;
        *answered > 0 && self.counts.wrong_total() == 0 && errors.total() == 0
    }

    /// Answers a second.
    fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.counts.answered as f64 / seconds } else { 0.0 }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        let us = |latency: Duration| latency.as_nanos() as f64 / 1e3;
        let Counts {
            queries,
            sent,
            retries,
            answered,
            timed_out,
            abandoned,
            resolved,
            no_path,
            errors,
            wrong,
            late,
            strange,
            undelivered,
            redirected,
        } = self.counts;
        let wrong = Fault::ALL.iter().zip(wrong).filter(|&(_, count)| count > 0);
        let json = Json {
            setting: &self.setting,
            elapsed_s: self.elapsed.as_secs_f64(),
            answers_per_s: self.rate(),
            queries,
            sent,
            retries,
            answered,
            timed_out,
            abandoned,
            resolved,
            no_path,
            errors: errors.iter().map(|(status, count)| (status.to_string(), count)).collect(),
            wrong: wrong.map(|(fault, count)| (fault.to_string(), count)).collect(),
            late,
            strange,
            undelivered,
            redirected,
            asked_lids: &self.asked,
            latency_us: JsonLatency {
                mean: us(self.latencies.mean()),
                p50: us(self.latencies.percentile(50.0)),
                p90: us(self.latencies.percentile(90.0)),
                p99: us(self.latencies.percentile(99.0)),
                p99_9: us(self.latencies.percentile(99.9)),
                max: us(self.latencies.max()),
            },
            paths: &self.shown,
            examples: &self.examples,
        };
        serde_json::to_string_pretty(&json).expect("numbers and strings only")
    }
}

#[derive(Serialize)]
struct Json<'a> {
    setting: &'a Setting,
    elapsed_s: f64,
    answers_per_s: f64,
    queries: u64,
    sent: u64,
    retries: u64,
    answered: u64,
    timed_out: u64,
    abandoned: u64,
    resolved: u64,
    no_path: u64,
    errors: BTreeMap<String, u64>,
    wrong: BTreeMap<String, u64>,
    late: u64,
    strange: u64,
    undelivered: u64,
    redirected: u64,
    asked_lids: &'a [u16],
    latency_us: JsonLatency,
    paths: &'a [String],
    examples: &'a [String],
}

#[derive(Serialize)]
struct JsonLatency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    max: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in &self.shown {
            writeln!(f, "{path}")?;
        }
        if !self.shown.is_empty() {
            writeln!(f)?;
        }
        let Setting { to, query, load, ports, check } = &self.setting;
        writeln!(f, "{query} to {to}; {load}")?;
        writeln!(f, "{ports}; {check}\n")?;

        let counts = &self.counts;
        let mut row = |name: &str, count: u64, note: &str| {
            writeln!(f, "  {name:<12}{:>15}   {note}", grouped(count)).map(drop)
        };
        let note = format!(
            "{} packets sent, {} of them retries",
            grouped(counts.sent),
            grouped(counts.retries)
        );
        row("queries", counts.queries, &note)?;
        let note = format!(
            "{} a second over {:.2} s",
            grouped(self.rate().round() as u64),
            self.elapsed.as_secs_f64()
        );
        row("answered", counts.answered, &note)?;
        row("resolved", counts.resolved, "")?;
        let rows = [
            ("no path", counts.no_path, "and rightly so"),
            ("abandoned", counts.abandoned, "outstanding when the storm was broken off"),
            ("late", counts.late, "answers to nobody: after the last retry, or a second one"),
            ("undelivered", counts.undelivered, "requests that the fabric gave back"),
            ("strange", counts.strange, "packets that are no answers to such queries"),
            ("redirected", counts.redirected, "answers that said whom to ask instead"),
        ];
        for (name, count, note) in rows.into_iter().filter(|&(_, count, _)| count > 0) {
            row(name, count, note)?;
        }
        if !self.asked.is_empty() {
            let lids: Vec<String> = self.asked.iter().map(u16::to_string).collect();
            row("asked", self.asked.len() as u64, &format!("LIDs {}", lids.join(", ")))?;
        }
        row("timed out", counts.timed_out, "")?;
        for (status, count) in counts.errors.iter() {
            row("errors", count, &status.to_string())?;
        }
        for (fault, count) in Fault::ALL.iter().zip(counts.wrong).filter(|&(_, count)| count > 0) {
            row("wrong", count, &fault.to_string())?;
        }
        if counts.errors.total() + counts.wrong_total() == 0 {
            row("wrong", 0, "")?;
        }
        writeln!(f)?;
        for example in &self.examples {
            writeln!(f, "  wrong: {example}")?;
        }
        if self.latencies.is_empty() {
            return writeln!(f, "  No answer came.");
        }
        write!(f, "  latency")?;
        for (name, percentile) in [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)] {
            write!(f, "   {name} {}", short(self.latencies.percentile(percentile)))?;
        }
        writeln!(f, "   max {}", short(self.latencies.max()))
    }
}

/// The line of one interval of a storm that is going on.
pub fn progress(since_start: Duration, interval: Duration, before: &Counts, now: &Entry) -> String {
    let Entry { counts, recent } = now;
    let answered = counts.answered - before.answered;
    let rate = answered as f64 / interval.as_secs_f64().max(1e-9);
    let mut line = format!(
        "{:>5.0} s {:>13} queries/s",
        since_start.as_secs_f64(),
        grouped(rate.round() as u64)
    );
    if !recent.is_empty() {
        let [p50, p99] = [50.0, 99.0].map(|percentile| short(recent.percentile(percentile)));
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
fn short(time: Duration) -> String {
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
mod tests {
    use super::*;
    use ib_mad::wire::mad::Status;

    fn outcome(counts: Counts) -> Outcome {
        let mut latencies = Latencies::default();
        (0..counts.answered).for_each(|_| latencies.record(Duration::from_micros(1_234)));
        let elapsed = Duration::from_millis(500);
        Outcome {
            counts,
            latencies,
            elapsed,
            shown: vec!["a → b".to_owned()],
            examples: vec![],
            asked: vec![],
        }
    }

    fn report(counts: &[Counts]) -> Report {
        let setting = Setting {
            to: "127.0.0.1:1".to_owned(),
            query: "PathRecord by gid".to_owned(),
            load: "closed loop of 2".to_owned(),
            ports: "3 ports".to_owned(),
            check: "unchecked".to_owned(),
        };
        Report::new(setting, counts.iter().copied().map(outcome).collect(), 1)
    }

    #[test]
    fn threads_are_summed_up() {
        let counts =
            Counts { queries: 700, sent: 710, answered: 700, resolved: 700, ..Counts::default() };
        let report = report(&[counts, counts]);
        assert!(report.is_good());
        let text = report.to_string();
        for line in [
            "a → b",
            "PathRecord by gid to 127.0.0.1:1; closed loop of 2",
            "  queries               1,400   1,420 packets sent, 0 of them retries",
            "  answered              1,400   2,800 a second over 0.50 s",
            "  latency   p50 1.23 ms   p90 1.23 ms   p99 1.23 ms   p99.9 1.23 ms   max 1.23 ms",
        ] {
            assert!(text.lines().any(|l| l == line), "no line '{line}' in\n{text}");
        }
        assert_eq!(text.matches("a → b").count(), 1, "no more than were to be shown");
    }

    #[test]
    fn wrong_answers_errors_and_silence_are_not_good() {
        let good = Counts { answered: 1, resolved: 1, ..Counts::default() };
        let mut wrong = good;
        wrong.wrong[Fault::Mtu as usize] = 2;
        assert!(!report(&[good, wrong]).is_good());
        let mut error = good;
        error.errors.add(Status::SA_NO_RECORDS, 1);
        assert!(!report(&[error]).is_good());
        assert!(!report(&[Counts::default()]).is_good());
        assert!(report(&[wrong]).to_string().contains("wrong mtu".replace("mtu", "MTU").as_str()));
        assert!(report(&[Counts::default()]).to_string().contains("No answer came."));
    }

    #[test]
    fn json_has_every_count() {
        let mut counts = Counts { answered: 2, retries: 3, late: 4, ..Counts::default() };
        counts.errors.add(Status::BUSY, 1);
        let json: serde_json::Value = serde_json::from_str(&report(&[counts]).to_json()).unwrap();
        assert_eq!(
            (&json["answered"], &json["retries"], &json["late"]),
            (&2.into(), &3.into(), &4.into())
        );
        assert_eq!(json["errors"]["BUSY"], 1);
        assert_eq!(json["answers_per_s"], 4.0);
        let p99 = json["latency_us"]["p99"].as_f64().unwrap();
        assert!((1_230.0..1_240.0).contains(&p99), "{p99}");
    }

    #[test]
    fn numbers_are_grouped_and_times_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let times = [1_500, 123_456, 98_765_432, 5_000_000_000].map(Duration::from_nanos);
        assert_eq!(times.map(short), ["1.50 µs", "123 µs", "98.8 ms", "5.00 s"]);
    }

    #[test]
    fn a_line_tells_of_its_interval_only() {
        let before = Counts { answered: 100, timed_out: 1, ..Counts::default() };
        let counts = Counts { answered: 1_100, timed_out: 3, ..Counts::default() };
        let mut now = Entry { counts, ..Entry::default() };
        now.recent.record(Duration::from_millis(2));
        let second = Duration::from_secs(1);
        let line = progress(4 * second, second, &before, &now);
        assert_eq!(
            line,
            "    4 s         1,000 queries/s   p50   2.00 ms   p99   2.00 ms   retries 0   timeouts 2"
        );
    }
}

//! The report as JSON. Fields are added, never renamed or redefined; `format` is increased where
//! this could not be kept.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{PERCENTILES, Report};
use crate::check::Fault;
use crate::histogram::{Counts, Latencies};
use crate::scenario::ramp::{Finding, Knee, Ramp};

/// 2: `ramp.knee_per_s` is null unless the knee was found; `resolved` has one meaning everywhere,
/// correct refusals are `no_path`.
const FORMAT: u32 = 2;

#[derive(Serialize)]
struct Json<'a> {
    format: u32,
    setting: JsonSetting<'a>,
    elapsed_s: f64,
    answers_per_s: f64,
    goodput_per_s: f64,
    packets_per_resolved: Option<f64>,
    packets_per_settled: Option<f64>,
    offered_per_s: Option<f64>,
    achieved_per_s: f64,
    queries: u64,
    sent: u64,
    retries: u64,
    answered: u64,
    timed_out: u64,
    abandoned: u64,
    unsent: u64,
    resolved: u64,
    no_path: u64,
    errors: BTreeMap<String, u64>,
    wrong: BTreeMap<String, u64>,
    late: u64,
    strange: u64,
    undelivered: u64,
    redirected: u64,
    dropped_tables: u64,
    answered_garbage: u64,
    silent_garbage: u64,
    asked_lids: &'a [u16],
    latency_us: JsonLatency,
    service_us: JsonLatency,
    send_lag_us: JsonLatency,
    kinds: BTreeMap<&'static str, JsonKind>,
    milestones: Vec<JsonMilestone>,
    malformed: Vec<JsonMalformed>,
    ramp: Option<JsonRamp>,
    generator: JsonGenerator,
    paths: &'a [String],
    examples: &'a [String],
}

#[derive(Serialize)]
struct JsonSetting<'a> {
    profile: Option<&'a str>,
    model: &'a str,
    seed: u64,
    threads: u32,
    to: &'a str,
    query: &'a str,
    load: &'a str,
    ports: &'a str,
    check: &'a str,
}

/// Microseconds by percentile, with `mean`, `max` and `count`.
#[derive(Serialize)]
struct JsonLatency {
    count: u64,
    mean: f64,
    #[serde(flatten)]
    percentiles: BTreeMap<&'static str, f64>,
    max: f64,
}

#[derive(Serialize)]
struct JsonKind {
    queries: u64,
    sent: u64,
    resolved: u64,
    no_path: u64,
    failed: u64,
    timed_out: u64,
    latency_us: JsonLatency,
    service_us: JsonLatency,
}

#[derive(Serialize)]
struct JsonMilestone {
    name: &'static str,
    expected: u64,
    no_path: u64,
    reached: u64,
    reached_s: BTreeMap<&'static str, Option<f64>>,
}

#[derive(Serialize)]
struct JsonMalformed {
    form: &'static str,
    sent: u64,
    silent: u64,
    answered: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct JsonRamp {
    /// How the ramp ended.
    outcome: &'static str,
    /// Whether the knee was found, that is, the responder fell behind above it.
    found: bool,
    /// The knee, if found.
    knee_per_s: Option<f64>,
    /// The highest rate that the responder sustained, and the lowest that it did not.
    last_good_per_s: Option<f64>,
    too_much_per_s: Option<f64>,
    steps: Vec<JsonStep>,
}

#[derive(Serialize)]
struct JsonStep {
    rate_per_s: f64,
    measured_s: f64,
    queries: u64,
    resolved: u64,
    no_path: u64,
    sent: u64,
    p50_us: f64,
    p99_us: f64,
    #[serde(rename = "p99.9_us")]
    p99_9_us: f64,
    send_lag_p99_us: f64,
    finding: &'static str,
}

#[derive(Serialize)]
struct JsonGenerator {
    threads: Vec<JsonShare>,
    limit: Option<String>,
}

#[derive(Serialize)]
struct JsonShare {
    cpu: f64,
    starved: f64,
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl JsonLatency {
    fn new(latencies: &Latencies) -> Self {
        let percentiles =
            PERCENTILES.map(|(name, percentile)| (name, us(latencies.percentile(percentile))));
        Self {
            count: latencies.len(),
            mean: us(latencies.mean()),
            percentiles: percentiles.into(),
            max: us(latencies.max()),
        }
    }
}

impl JsonRamp {
    fn new(ramp: &Ramp) -> Self {
        let steps = ramp.steps().iter().map(|step| {
            let measured = &step.measured;
            let [p50_us, p99_us, p99_9_us] = measured.latencies.map(us);
            JsonStep {
                rate_per_s: step.rate,
                measured_s: measured.time.as_secs_f64(),
                queries: measured.queries,
                resolved: measured.resolved,
                no_path: measured.no_path,
                sent: measured.sent,
                p50_us,
                p99_us,
                p99_9_us,
                send_lag_p99_us: us(measured.lag),
                finding: match step.finding {
                    Finding::Kept => "kept",
                    Finding::Goodput => "goodput",
                    Finding::Latency => "latency",
                    Finding::Generator => "generator",
                },
            }
        });
        let (outcome, knee_per_s) = match ramp.knee() {
            Knee::Found(rate) => ("found", Some(rate)),
            Knee::Below(_) => ("below-first-rate", None),
            Knee::Above(_) => ("above-last-rate", None),
            Knee::Generator(_) => ("generator", None),
            Knee::CutShort { .. } => ("cut-short", None),
        };
        Self {
            outcome,
            found: knee_per_s.is_some(),
            knee_per_s,
            last_good_per_s: ramp.kept(),
            too_much_per_s: ramp.too_much(),
            steps: steps.collect(),
        }
    }
}

impl Report {
    /// The report as JSON.
    pub fn to_json(&self) -> String {
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
            dropped_tables,
            answered_garbage,
            silent_garbage,
            kinds: _,
        } = self.counts;
        let wrong = Fault::ALL.iter().zip(wrong).filter(|&(_, count)| count > 0);
        let empty = Latencies::default();
        let kinds = self.kinds().map(|(kind, counts, measured)| {
            let (due, service) =
                measured.map_or((&empty, &empty), |measured| (&measured.due, &measured.service));
            let json = JsonKind {
                queries: counts.queries,
                sent: counts.sent,
                resolved: counts.resolved,
                no_path: counts.no_path,
                failed: counts.failed,
                timed_out: counts.timed_out,
                latency_us: JsonLatency::new(due),
                service_us: JsonLatency::new(service),
            };
            (kind.name(), json)
        });
        let setting = &self.setting;
        let json = Json {
            format: FORMAT,
            setting: JsonSetting {
                profile: setting.profile.as_deref(),
                model: setting.model,
                seed: setting.seed,
                threads: setting.threads,
                to: &setting.to,
                query: &setting.query,
                load: &setting.load,
                ports: &setting.ports,
                check: &setting.check,
            },
            elapsed_s: self.elapsed.as_secs_f64(),
            answers_per_s: self.a_second(answered),
            goodput_per_s: self.a_second(self.counts.settled()),
            packets_per_resolved: self.packets_per(resolved),
            packets_per_settled: self.packets_per(self.counts.settled()),
            offered_per_s: setting.offered,
            achieved_per_s: self.achieved(),
            queries,
            sent,
            retries,
            answered,
            timed_out,
            abandoned,
            unsent: self.summary.unsent,
            resolved,
            no_path,
            errors: errors.iter().map(|(status, count)| (status.to_string(), count)).collect(),
            wrong: wrong.map(|(fault, count)| (fault.to_string(), count)).collect(),
            late,
            strange,
            undelivered,
            redirected,
            dropped_tables,
            answered_garbage,
            silent_garbage,
            asked_lids: &self.asked,
            latency_us: JsonLatency::new(&self.due),
            service_us: JsonLatency::new(&self.service),
            send_lag_us: JsonLatency::new(&self.timings.lag),
            kinds: kinds.collect(),
            milestones: self.json_milestones(),
            malformed: self.json_malformed(),
            ramp: self.ramp.as_ref().map(JsonRamp::new),
            generator: JsonGenerator {
                threads: self
                    .shares
                    .iter()
                    .map(|share| JsonShare { cpu: share.cpu, starved: share.starved })
                    .collect(),
                limit: self.generator_limit(),
            },
            paths: &self.shown,
            examples: &self.examples,
        };
        serde_json::to_string_pretty(&json).expect("the report serializes to JSON")
    }

    fn json_milestones(&self) -> Vec<JsonMilestone> {
        let milestones = self.summary.milestones.iter().map(|milestone| {
            let reached = |percent| milestone.reached(percent).map(|time| time.as_secs_f64());
            let percents = [("50", 50.0), ("99", 99.0), ("100", 100.0)];
            JsonMilestone {
                name: milestone.name,
                expected: milestone.expected,
                no_path: milestone.no_path,
                reached: milestone.at.len(),
                reached_s: percents.map(|(name, percent)| (name, reached(percent))).into(),
            }
        });
        milestones.collect()
    }

    fn json_malformed(&self) -> Vec<JsonMalformed> {
        let forms = self.summary.malformed.iter().map(|form| {
            let refused = form.refused.iter().map(|(status, count)| (status.to_string(), count));
            let accepted = (form.accepted > 0).then(|| ("OK".to_owned(), form.accepted));
            let aborted = (form.aborted > 0).then(|| ("ABORT".to_owned(), form.aborted));
            JsonMalformed {
                form: form.form.name(),
                sent: form.sent,
                silent: form.silent,
                answered: refused.chain(accepted).chain(aborted).collect(),
            }
        });
        forms.collect()
    }
}

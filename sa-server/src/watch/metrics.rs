//! The counters of workers and replica as Prometheus metrics. `docs/metrics.md` describes what to
//! do about each; a test keeps it complete.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use ib_mad::transport::capture::CaptureFile;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sa_proto::log_limit;
use sa_proto::metrics::{Counter, Family, Format, Histogram, Process, Value, registry_of};
use sa_proto::snapshot::Version;

use crate::node::AgentCounters;
use crate::serve::spill::{self, Spill};
use crate::sm::forward;
use crate::sm::replica::{ReplicaStatus, SESSIONS_MAX, Source};
use crate::sm::report;
use crate::stats::{DropReason, Kind, Sessions, Stats, StatusLabel, Subject};
use crate::tables::qos_match::LevelNames;
use crate::watch::http;

/// The served snapshot.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Version of the snapshot.
    pub version: Version,
    /// When its tables came into use.
    pub since: Instant,
    /// How long they took to build, in seconds.
    pub built_in_s: f64,
    /// End ports in them.
    pub end_ports: usize,
    /// Bytes that PathRecord queries read from.
    pub hot_bytes: usize,
}

/// Everything that is measured. Read from any thread.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Counters of each worker, by its name.
    pub workers: Vec<(String, Arc<Stats>)>,
    /// The snapshot being served.
    pub serving: ArcSwapOption<Serving>,
    /// How long snapshots took from their arrival to their use.
    pub applied: Histogram,
    /// The counter of each QoS level.
    pub levels: LevelNames,
    /// The state of the subscription.
    pub replica: Arc<ReplicaStatus>,
    /// Writes passed on to the SM of each lane.
    pub writes: [Arc<forward::Counters>; SESSIONS_MAX],
    /// Reports to subscribers of each lane.
    pub reports: [Arc<ArcSwap<report::Counters>>; SESSIONS_MAX],
    /// Agents on compute nodes.
    pub agents: Arc<AgentCounters>,
    /// Queries at the SM's port passed to other responders, with `--at-sm-port`.
    pub spill: Option<Arc<Spill>>,
    /// The file of `--capture`.
    pub capture: Option<Arc<CaptureFile>>,
    /// Connections of `--http`.
    pub http: Arc<http::Connections>,
    /// Label of all metrics; empty for none.
    pub subnet: String,
}

impl Metrics {
    /// Totals over all workers, by name; for the SM.
    pub fn totals(&self) -> Vec<(String, u64)> {
        let mut totals = vec![
            ("requests".to_owned(), self.sum(Stats::requests)),
            ("responses".to_owned(), self.sum(Stats::responses)),
            ("dropped".to_owned(), self.sum(Stats::dropped_total)),
            ("in_flight".to_owned(), self.sum(Stats::in_flight)),
            ("socket_overflow".to_owned(), self.sum(|stats| stats.socket_overflow.get())),
            ("answers_beyond_limits".to_owned(), self.sum(Stats::beyond_limits)),
        ];
        if self.agents.is_served.load(Relaxed) {
            totals.push(("agents".to_owned(), self.agents.following.load(Relaxed)));
        }
        totals.extend(self.replica.counters().into_iter().map(|(name, _, n)| (name.to_owned(), n)));
        totals
    }

    /// Whether queries are being answered.
    pub fn is_serving(&self) -> bool {
        self.serving.load().is_some()
    }

    /// All metrics as text.
    pub fn render(self: &Arc<Self>, format: Format) -> String {
        let mut registry = registry_of(&self.subnet);
        registry.register_collector(Box::new(Process));
        let ours = registry.sub_registry_with_prefix("ibsa");
        ours.register_collector(Box::new(Arc::clone(self)));
        format.render(&registry)
    }

    pub(crate) fn stats(&self) -> impl Iterator<Item = &Stats> + Clone {
        self.workers.iter().map(|(_, stats)| &**stats)
    }

    fn sum(&self, count: impl Fn(&Stats) -> u64) -> u64 {
        self.stats().map(count).sum()
    }

    fn encode_requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const REQUESTS: Family =
            Family::number("requests", "Requests received; each is answered, dropped or in flight");
        const RESPONSES: Family = Family::number(
            "responses",
            "Requests answered; RMPP answers count once the client has acknowledged all segments",
        );
        const DROPPED: Family = Family::number(
            "requests_dropped",
            "Requests dropped, by reason; clients retry after their timeout",
        );
        const IN_FLIGHT: Family = Family::number(
            "requests_in_flight",
            "Requests in progress: RMPP transfers and forwarded writes",
        );
        const BEYOND: Family = Family::number(
            "answers_beyond_limits",
            "Queries refused with NO_RESOURCES because the answer or the search exceeds its limit",
        );
        const DURATION: Family = Family::seconds(
            "request_duration",
            "Time from reading a request to sending its answer; for RMPP answers, to the last \
             acknowledgement",
        );
        const LEVELS: Family = Family::number("qos_paths", "Paths answered, by QoS level");

        let mut requests = REQUESTS.counter(encoder)?;
        for subject in Subject::all() {
            let count = self.sum(|stats| stats.requests_of(subject));
            if count > 0 {
                let labels = [("attribute", subject.attribute()), ("method", subject.method())];
                requests.with(&labels, count)?;
            }
        }
        let mut responses = RESPONSES.counter(encoder)?;
        for subject in Subject::all() {
            for &status in StatusLabel::ALL {
                let count = self.sum(|stats| stats.responses_of(subject, status));
                if count > 0 {
                    let labels = [
                        ("attribute", subject.attribute()),
                        ("method", subject.method()),
                        ("status", status.label()),
                    ];
                    responses.with(&labels, count)?;
                }
            }
        }
        let mut dropped = DROPPED.counter(encoder)?;
        for &reason in DropReason::ALL {
            let count = self.sum(|stats| stats.dropped(reason));
            dropped.with(&[("reason", reason.label())], count)?;
        }
        IN_FLIGHT.gauge(encoder)?.of(self.sum(Stats::in_flight))?;
        BEYOND.counter(encoder)?.of(self.sum(Stats::beyond_limits))?;
        let mut duration = DURATION.histogram(encoder)?;
        for &kind in Kind::ALL {
            let recorded = self.stats().map(|stats| stats.latency(kind));
            duration.times(&[("kind", kind.label())], recorded)?;
        }
        let mut levels = LEVELS.counter(encoder)?;
        for (name, slot) in self.levels.all() {
            levels.with(&[("level", &name)], self.sum(|stats| stats.levels.get(slot)))?;
        }
        Ok(())
    }

    fn encode_rmpp(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const ACTIVE: Family = Family::number(
            "rmpp_sessions",
            "RMPP transfers in progress; out: answers, in: requests of several segments",
        );
        const BEGUN: Family = Family::number("rmpp_sessions_begun", "RMPP transfers started");
        const ENDED: Family = Family::number(
            "rmpp_sessions_ended",
            "RMPP transfers ended, complete or failed because one side gave up",
        );
        const SENT: Family = Family::number(
            "rmpp_segments_sent",
            "Segments of answers sent, retransmissions included",
        );
        const REPEATED: Family = Family::number(
            "rmpp_segments_repeated",
            "Segments retransmitted because no acknowledgement arrived in time; packets are lost",
        );
        const RECEIVED: Family = Family::number(
            "rmpp_packets_received",
            "Packets received for RMPP transfers in progress: acknowledgements, further segments",
        );

        type Of = fn(&Stats) -> &Sessions;
        let directions: [(&str, Of); 2] =
            [("out", |stats| &stats.rmpp_out), ("in", |stats| &stats.rmpp_in)];
        let mut active = ACTIVE.gauge(encoder)?;
        for (direction, of) in directions {
            active.with(&[("direction", direction)], self.sum(|stats| of(stats).active.get()))?;
        }
        let mut begun = BEGUN.counter(encoder)?;
        for (direction, of) in directions {
            begun.with(&[("direction", direction)], self.sum(|stats| of(stats).begun.get()))?;
        }
        let mut ended = ENDED.counter(encoder)?;
        for (direction, of) in directions {
            let complete = self.sum(|stats| of(stats).complete.get());
            let failed = self.sum(|stats| of(stats).failed.get());
            for (outcome, count) in [("complete", complete), ("failed", failed)] {
                ended.with(&[("direction", direction), ("outcome", outcome)], count)?;
            }
        }
        SENT.counter(encoder)?.of(self.sum(|stats| stats.segments_sent.get()))?;
        REPEATED.counter(encoder)?.of(self.sum(|stats| stats.segments_repeated.get()))?;
        RECEIVED.counter(encoder)?.of(self.sum(|stats| stats.transfer_packets.get()))
    }

    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const REQUESTS: Family =
            Family::number("worker_requests", "Requests received by each worker thread");
        const BATCHES: Family = Family::number(
            "worker_batches",
            "Batches received by each worker; requests per batch show its load, 64 is a full batch",
        );
        const MALFORMED: Family = Family::number(
            "malformed_datagrams",
            "Datagrams ignored: wrong length, no valid envelope, or from an untrusted address \
             (--believe)",
        );

        let mut requests = REQUESTS.counter(encoder)?;
        for (worker, stats) in &self.workers {
            requests.with(&[("worker", worker)], stats.requests())?;
        }
        let mut batches = BATCHES.counter(encoder)?;
        for (worker, stats) in &self.workers {
            batches.with(&[("worker", worker)], stats.batches.get())?;
        }
        let mut malformed = MALFORMED.counter(encoder)?;
        for (worker, stats) in &self.workers {
            let counts = [
                ("length", &stats.malformed_length),
                ("envelope", &stats.malformed_envelope),
                ("stranger", &stats.malformed_stranger),
            ];
            for (wrong, count) in counts {
                malformed.with(&[("worker", worker), ("wrong", wrong)], count.get())?;
            }
        }
        for (family, count) in APART {
            family.counter(encoder)?.of(self.sum(|stats| count(stats).get()))?;
        }
        const WRITTEN: Family =
            Family::number("capture_written", "MADs written to the file of --capture");
        const LEFT_OUT: Family = Family::number(
            "capture_left_out",
            "MADs not written to the file of --capture, because it is full or a write failed",
        );
        let capture = self.capture.as_ref().map(|file| file.counters()).unwrap_or_default();
        WRITTEN.counter(encoder)?.of(capture.written)?;
        LEFT_OUT.counter(encoder)?.of(capture.left_out)
    }

    fn encode_writes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const FORWARDED: Family =
            Family::number("writes_forwarded", "Client writes forwarded to the SM");
        const READS_ASKED: Family = Family::number(
            "reads_asked",
            "Queries that waited for the SM's sequence number: they found nothing registered, or \
             there was no proof that the tables are current",
        );
        const IN_FLIGHT: Family = Family::number(
            "writes_in_flight",
            "Messages to the SM without an outcome yet: writes, and queries that wait for earlier \
             writes",
        );
        const ROUND_TRIP: Family = Family::seconds(
            "write_round_trip",
            "Time from sending a write to the SM to its outcome, including the SM's commit",
        );
        const HELD: Family = Family::number(
            "write_outcomes_held",
            "Outcomes held until the local tables contain the write",
        );
        const SENT: Family = Family::number("writes_sent", "Write messages sent to the SM");
        const OUTCOMES: Family =
            Family::number("write_outcomes", "Write outcomes received from the SM");
        const RESENT: Family = Family::number(
            "writes_resent",
            "Writes sent again on a new stream because the previous one broke before their outcome",
        );
        const GIVEN_UP: Family =
            Family::number("writes_given_up", "Writes given up because no outcome arrived in time");
        const STREAMS: Family = Family::number(
            "write_streams",
            "Write streams opened to an SM; a growing count means that streams break",
        );

        type Of = fn(&forward::Counters) -> &AtomicU64;
        let sum =
            |of: Of| -> u64 { self.writes.iter().map(|writes| of(writes).load(Relaxed)).sum() };
        FORWARDED.counter(encoder)?.of(self.sum(|stats| stats.forwarded.get()))?;
        READS_ASKED.counter(encoder)?.of(self.sum(|stats| stats.reads_asked.get()))?;
        IN_FLIGHT.gauge(encoder)?.of(sum(|writes| &writes.in_flight))?;
        ROUND_TRIP
            .histogram(encoder)?
            .times(&[], self.writes.iter().map(|writes| &writes.round_trip))?;
        HELD.gauge(encoder)?.of(sum(|writes| &writes.held))?;
        let counters: [(Family, Of); 5] = [
            (SENT, |writes| &writes.sent),
            (OUTCOMES, |writes| &writes.outcomes),
            (RESENT, |writes| &writes.resent),
            (GIVEN_UP, |writes| &writes.given_up),
            (STREAMS, |writes| &writes.streams),
        ];
        for (family, of) in counters {
            family.counter(encoder)?.of(sum(of))?;
        }
        Ok(())
    }

    fn encode_agents(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const FOLLOWING: Family = Family::number(
            "agents",
            "Ports of compute nodes whose paths are followed by agents (ibsa agent)",
        );
        const REFUSED: Family = Family::number(
            "agents_refused",
            "Agents refused because there were too many, because the SM had not confirmed lately \
             that this responder is up to date, or because they named no port; they follow another \
             responder",
        );
        const UNKNOWN: Family = Family::number(
            "agents_unknown",
            "Agents refused because the fabric, as this responder knows it, lacks their port",
        );
        const SLOW: Family =
            Family::number("agents_slow", "Agents disconnected because they did not read");
        const BEHIND: Family = Family::number(
            "agents_behind",
            "Times that an agent still read 1 s after its paths had been found: others are served \
             meanwhile, and no agent of its host for 10 s",
        );
        const HELD_BACK: Family = Family::number(
            "agents_held_back",
            "Times that an agent waited because agents of its host had used up their part: one \
             group of agents at a time, two surveys a second, none after one that read slowly",
        );
        const SURVEYS: Family = Family::number(
            "agents_surveys",
            "Times that all paths of a port were found, once for each change and for the agents of \
             all ports like it",
        );
        const UPDATES: Family = Family::number(
            "agents_updates",
            "Times that an agent was sent what a change of the fabric meant for its port",
        );
        const SPARED: Family = Family::number(
            "agents_spared",
            "Times that a change of the fabric did not concern the port of an agent",
        );
        const CONFIRMED: Family = Family::number(
            "agents_confirmed",
            "1 if the SM confirmed within 3 s that this responder is up to date; otherwise its \
             agents leave path queries to the SA",
        );
        const RECORDS: Family = Family::number("agents_paths_sent", "Paths sent to agents");
        let agents = &*self.agents;
        FOLLOWING.gauge(encoder)?.of(agents.following.load(Relaxed))?;
        CONFIRMED.gauge(encoder)?.of(agents.confirmed.load(Relaxed))?;
        let counters = [
            (REFUSED, &agents.refused),
            (UNKNOWN, &agents.unknown),
            (SLOW, &agents.slow),
            (BEHIND, &agents.behind),
            (HELD_BACK, &agents.held_back),
            (SURVEYS, &agents.surveys),
            (UPDATES, &agents.updates),
            (SPARED, &agents.spared),
            (RECORDS, &agents.records),
        ];
        encode_counters(encoder, counters)?;
        const CONNECTIONS: Family = Family::number(
            "agents_connections_refused",
            "Connections and calls of agents that were refused, by reason",
        );
        let mut refused = CONNECTIONS.counter(encoder)?;
        for (reason, _, count) in agents.connections.list() {
            refused.with(&[("reason", reason)], count)?;
        }
        Ok(())
    }

    fn encode_spill(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const PASSED: Family = Family::number(
            "spill_queries",
            "Queries at the SM's port passed to other responders while this one was behind",
        );
        const ANSWERS: Family =
            Family::number("spill_answers", "Answers to these that left by the SM's port");
        const LOST: Family = Family::number(
            "spill_lost",
            "Of these, queries and answers dropped because a socket or a queue was full",
        );
        const STRANGERS: Family = Family::number(
            "spill_strangers",
            "Packets dropped that are no answer of a responder that queries are passed to",
        );
        let none = spill::Counters::default();
        let spill = self.spill.as_ref().map_or(&none, |spill| spill.counters());
        let counters = [
            (PASSED, &spill.passed),
            (ANSWERS, &spill.answered),
            (LOST, &spill.lost),
            (STRANGERS, &spill.strangers),
        ];
        encode_counters(encoder, counters)
    }

    fn encode_reports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const EVENTS: Family =
            Family::number("events", "Events received from the SM: ports, groups, traps");
        const REPORTS: Family = Family::number(
            "reports",
            "Reports to subscribers, by outcome; unanswered ones were repeated first",
        );
        let lanes = self.reports.each_ref().map(|reports| **reports.load());
        let sum = |of: fn(&report::Counters) -> u64| -> u64 { lanes.iter().map(of).sum() };
        EVENTS.counter(encoder)?.of(sum(|reports| reports.events))?;
        let mut family = REPORTS.counter(encoder)?;
        for (became, count) in [
            ("begun", sum(|reports| reports.reports)),
            ("acknowledged", sum(|reports| reports.acknowledged)),
            ("repeated", sum(|reports| reports.repeated)),
            ("unanswered", sum(|reports| reports.unanswered)),
            ("superseded", sum(|reports| reports.superseded)),
            ("overflowed", sum(|reports| reports.overflowed)),
            ("unsubscribed", sum(|reports| reports.unsubscribed)),
        ] {
            family.with(&[("became", became)], count)?;
        }
        Ok(())
    }

    fn encode_snapshot(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const BUILD: Family = Family::number("build", "Version of this program");
        const READY: Family =
            Family::number("ready", "1 if a snapshot is being served, as /healthz reports");
        const SOURCE: Family = Family::number(
            "snapshot_source",
            "1 for the source of the served snapshot: a connected SM, or the cache",
        );
        const SESSIONS: Family = Family::number(
            "sessions",
            "Sessions whose snapshots are answered from; more than 1 while the fabric is split",
        );
        const APPLY: Family = Family::seconds(
            "snapshot_apply",
            "Time to build tables from a snapshot; queries use the previous tables meanwhile",
        );
        const APPLIED_IN: Family =
            Family::seconds("snapshot_applied_in", "Build time of the tables in use");
        const GENERATION: Family = Family::number(
            "snapshot_generation",
            "Generation of the served snapshot: fabric (sweeps) and registry (writes); compare \
             with ibsm",
        );
        const EPOCH: Family = Family::number(
            "snapshot_session_epoch",
            "Session epoch of the SM that published the served snapshot",
        );
        const AGE: Family = Family::seconds(
            "snapshot_age",
            "Time since the tables came into use; a fabric without changes does not produce new \
             ones",
        );
        const END_PORTS: Family = Family::number("end_ports", "End ports in the tables");
        const HOT: Family = Family::bytes(
            "hot_tables",
            "Size of the tables that PathRecord queries read; queries slow down beyond the CPU's \
             cache",
        );

        BUILD.info(encoder, &[("version", env!("CARGO_PKG_VERSION"))])?;
        READY.gauge(encoder)?.of(self.is_serving())?;
        let mut source = SOURCE.gauge(encoder)?;
        let current = self.replica.source();
        for (label, is_current) in [
            ("none", current == Source::Nothing),
            ("cache", current == Source::Cache),
            ("sm", matches!(current, Source::Sm(_))),
        ] {
            source.with(&[("source", label)], is_current)?;
        }
        SESSIONS.gauge(encoder)?.of(self.replica.sessions())?;
        for (name, help, count) in self.replica.counters() {
            let count = Value::from(count);
            if name == "replica_sms_connected" {
                Family::number(name, help).gauge(encoder)?.of(count)?;
            } else {
                Family::of(name, help).counter(encoder)?.of(count)?;
            }
        }
        APPLY.histogram(encoder)?.times(&[], [&self.applied])?;
        let serving = self.serving.load();
        let Some(serving) = serving.as_deref() else { return Ok(()) };
        let Version { fabric_generation, registry_sequence, session } = serving.version;
        let mut generation = GENERATION.gauge(encoder)?;
        for (plane, number) in [("fabric", fabric_generation), ("registry", registry_sequence)] {
            generation.with(&[("plane", plane)], number)?;
        }
        EPOCH.gauge(encoder)?.of(session.epoch)?;
        APPLIED_IN.gauge(encoder)?.of(serving.built_in_s)?;
        AGE.gauge(encoder)?.of(serving.since.elapsed().as_secs_f64())?;
        END_PORTS.gauge(encoder)?.of(serving.end_ports)?;
        HOT.gauge(encoder)?.of(serving.hot_bytes)
    }
}

/// One of a worker's counters.
type Of = fn(&Stats) -> &Counter;

/// Counters other than those of requests.
const APART: [(Family, Of); 8] = [
    (
        Family::number(
            "socket_overflow",
            "Packets lost in the transport's queue: requests not read in time, or answers not \
             read by ring clients",
        ),
        |stats| &stats.socket_overflow,
    ),
    (
        Family::number(
            "direct_answers",
            "Answers sent by the responder's own port instead of the front door",
        ),
        |stats| &stats.direct_answers,
    ),
    (
        Family::number("traps", "Traps received at the responder's port, to be relayed to the SM"),
        |stats| &stats.traps,
    ),
    (
        Family::number(
            "traps_lost",
            "Traps dropped because the relay queue was full; agents repeat them",
        ),
        |stats| &stats.traps_lost,
    ),
    (Family::number("sm_infos", "Get(SMInfo) answered on behalf of the SM"), |stats| {
        &stats.sm_infos
    }),
    (
        Family::number("reports_sent", "Reports sent to subscribers, retransmissions included"),
        |stats| &stats.reports_sent,
    ),
    (Family::number("report_answers", "ReportResp received"), |stats| &stats.report_answers),
    (
        Family::number(
            "report_answers_lost",
            "ReportResp dropped because the queue was full; the Reports are repeated",
        ),
        |stats| &stats.report_answers_lost,
    ),
];

fn encode_counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    counters: [(Family, &AtomicU64); N],
) -> fmt::Result {
    for (family, count) in counters {
        family.counter(encoder)?.of(count.load(Relaxed))?;
    }
    Ok(())
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_requests(&mut encoder)?;
        self.encode_rmpp(&mut encoder)?;
        self.encode_workers(&mut encoder)?;
        self.encode_writes(&mut encoder)?;
        self.encode_reports(&mut encoder)?;
        self.encode_agents(&mut encoder)?;
        self.encode_spill(&mut encoder)?;
        self.http.encode(&mut encoder)?;
        const LEFT_OUT: Family = Family::number(
            "log_lines_left_out",
            "Log lines about agents and refused connections left out because there were too many",
        );
        LEFT_OUT.counter(&mut encoder)?.of(log_limit::left_out())?;
        self.encode_snapshot(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::sa::attribute;

    #[test]
    fn metrics_name_what_they_count() {
        let stats = Arc::new(Stats::default());
        let path = Subject::of(attribute::PATH_RECORD, Method::GET);
        stats.count_requests(path, 1);
        stats.count_responses(path, Status::OK, 1);
        stats.drop_request(DropReason::WrongSmKey);
        stats.record_latency(Kind::Get, std::time::Duration::from_micros(3), 1);
        let serving = Serving {
            version: Version { fabric_generation: 7, ..Version::NONE },
            since: Instant::now(),
            built_in_s: 0.25,
            end_ports: 18,
            hot_bytes: 4096,
        };
        let metrics = Arc::new(Metrics {
            workers: vec![("udp-0".to_owned(), stats)],
            serving: ArcSwapOption::from_pointee(serving),
            ..Metrics::default()
        });
        let text = metrics.render(Format::OpenMetrics);
        for line in [
            r#"ibsa_requests_total{attribute="PathRecord",method="get"} 1"#,
            r#"ibsa_responses_total{attribute="PathRecord",method="get",status="ok"} 1"#,
            r#"ibsa_requests_dropped_total{reason="wrong_sm_key"} 1"#,
            r#"ibsa_snapshot_generation{plane="fabric"} 7"#,
            r#"ibsa_request_duration_seconds_bucket{le="0.000002",kind="get"} 0"#,
            r#"ibsa_request_duration_seconds_bucket{le="0.000003",kind="get"} 1"#,
            r#"ibsa_request_duration_seconds_count{kind="table"} 0"#,
            r#"ibsa_snapshot_source{source="none"} 1"#,
            r#"ibsa_ready 1"#,
            "# TYPE process_cpu_seconds counter",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert!(metrics.is_serving());
    }
}

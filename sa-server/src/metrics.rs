//! What workers and the replica count, in the form that Prometheus reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::attribute;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use sa_proto::snapshot::Version;

use crate::forward;
use crate::replica::{ReplicaStatus, Source};
use crate::report;
use crate::stats::{DropReason, MethodLabel, Stats, StatusLabel};

/// What is being answered from, for whoever watches.
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
    /// What each worker counts, by its name.
    pub workers: Vec<(String, Arc<Stats>)>,
    /// What is being answered from.
    pub serving: ArcSwapOption<Serving>,
    /// The state of the subscription.
    pub replica: Arc<ReplicaStatus>,
    /// Writes passed on to the SM.
    pub writes: Arc<forward::Counters>,
    /// Reports to subscribers.
    pub reports: Arc<ArcSwap<report::Counters>>,
}

impl Metrics {
    /// Totals over all workers, by name; for the SM.
    pub fn totals(&self) -> Vec<(String, u64)> {
        let sum =
            |count: fn(&Stats) -> u64| self.workers.iter().map(|(_, stats)| count(stats)).sum();
        let mut totals = vec![
            ("requests".to_owned(), sum(|stats| stats.requests.get())),
            ("responses".to_owned(), sum(|stats| stats.responses.get())),
            ("dropped".to_owned(), sum(Stats::dropped_total)),
            ("in_flight".to_owned(), sum(Stats::in_flight)),
        ];
        totals.extend(self.replica.counters().into_iter().map(|(name, n)| (name.to_owned(), n)));
        totals
    }

    /// Whether queries are being answered.
    pub fn is_serving(&self) -> bool {
        self.serving.load().is_some()
    }

    /// The text that Prometheus reads.
    pub fn render(self: &Arc<Self>) -> String {
        let mut registry = Registry::with_prefix("ibsa");
        registry.register_collector(Box::new(Arc::clone(self)));
        let mut text = String::new();
        // Writing to a string fails only if a metric does, and none of ours can.
        if encode(&mut text, &registry).is_err() {
            tracing::error!("metrics could not be written");
        }
        text
    }

    fn workers(&self) -> impl Iterator<Item = ([(&str, &str); 1], &Stats)> {
        self.workers.iter().map(|(name, stats)| ([("worker", &name[..])], &**stats))
    }

    fn encode_queries(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut answers = counter(encoder, "answers", "Answers by attribute, method and status")?;
        for id in 0..=u16::from(u8::MAX) {
            for (m, method) in MethodLabel::ALL.iter().enumerate() {
                for (s, status) in StatusLabel::ALL.iter().enumerate() {
                    let of = |stats: &Stats| stats.answers_of(id)[m][s].get();
                    let total: u64 = self.workers.iter().map(|(_, stats)| of(stats)).sum();
                    if total > 0 {
                        let name = attribute::name(AttributeId(id)).unwrap_or("unknown");
                        let labels = [
                            ("attribute", name),
                            ("method", method.label()),
                            ("status", status.label()),
                        ];
                        ConstCounter::new(total).encode(answers.encode_family(&labels)?)?;
                    }
                }
            }
        }
        let mut dropped = counter(encoder, "dropped", "Requests not answered, by reason")?;
        for &reason in DropReason::ALL {
            let total: u64 = self.workers.iter().map(|(_, stats)| stats.dropped(reason)).sum();
            ConstCounter::new(total)
                .encode(dropped.encode_family(&[("reason", reason.label())])?)?;
        }
        Ok(())
    }

    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Count = fn(&Stats) -> u64;
        let counters: [(&str, &str, Count); 13] = [
            ("requests", "Requests received", |stats| stats.requests.get()),
            ("responses", "Requests answered", |stats| stats.responses.get()),
            ("transfer_packets", "RMPP packets received for transfers under way", |stats| {
                stats.transfer_packets.get()
            }),
            ("segments_sent", "RMPP packets sent", |stats| stats.segments_sent.get()),
            ("batches", "Batches received", |stats| stats.batches.get()),
            ("forwarded", "Requests passed on to the SM", |stats| stats.forwarded.get()),
            ("reports_sent", "Reports sent, repeats included", |stats| stats.reports_sent.get()),
            ("traps", "Traps that reached our port, for the SM", |stats| stats.traps.get()),
            ("traps_lost", "Traps dropped since too many waited", |stats| stats.traps_lost.get()),
            ("sm_infos", "Get(SMInfo) answered in the SM's place", |stats| stats.sm_infos.get()),
            ("direct_answers", "Answers sent to the client past the front door", |stats| {
                stats.direct_answers.get()
            }),
            ("report_answers", "Answers to reports", |stats| stats.report_answers.get()),
            ("report_answers_lost", "Answers to reports that found no room", |stats| {
                stats.report_answers_lost.get()
            }),
        ];
        for (name, help, count) in counters {
            let mut family = counter(encoder, name, help)?;
            for (labels, stats) in self.workers() {
                ConstCounter::new(count(stats)).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Datagrams received that were no packets";
        let mut family = counter(encoder, "malformed_datagrams", help)?;
        for ([worker], stats) in self.workers() {
            for (what, count) in
                [("length", &stats.malformed_length), ("envelope", &stats.malformed_envelope)]
            {
                let labels = [worker, ("wrong", what)];
                ConstCounter::new(count.get()).encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family = gauge(encoder, "in_flight", "Requests in work", None)?;
        for (labels, stats) in self.workers() {
            ConstGauge::new(stats.in_flight() as i64).encode(family.encode_family(&labels)?)?;
        }
        let mut family = encoder.encode_descriptor(
            "latency",
            "Time from reading a request to having sent its answer",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (labels, stats) in self.workers() {
            let (buckets, sum) = stats.latency();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut histogram = family.encode_family(&labels)?;
            histogram.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn encode_writes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let writes = &*self.writes;
        let counters = [
            ("writes_sent", "Writes handed to the SM, repeats included", &writes.sent),
            ("write_outcomes", "Outcomes of writes that came back", &writes.outcomes),
            ("writes_resent", "Writes sent again after a broken stream", &writes.resent),
            ("writes_given_up", "Writes without an outcome in time", &writes.given_up),
            ("write_streams", "Streams of writes opened", &writes.streams),
        ];
        for (name, help, count) in counters {
            ConstCounter::new(count.load(Relaxed)).encode(counter(encoder, name, help)?)?;
        }
        let help = "Time from the submission of writes to their outcomes, summed";
        let family = encoder.encode_descriptor(
            "write_round_trip",
            help,
            Some(&Unit::Seconds),
            MetricType::Counter,
        )?;
        let seconds = writes.round_trip_ns.load(Relaxed) as f64 / 1e9;
        ConstCounter::new(seconds).encode(family)?;
        let help = "Outcomes that wait for the tables to hold what they tell of";
        let held = gauge(encoder, "write_outcomes_held", help, None)?;
        ConstGauge::new(writes.held.load(Relaxed) as i64).encode(held)
    }

    fn encode_reports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let reports = **self.reports.load();
        ConstCounter::new(reports.events).encode(counter(
            encoder,
            "events",
            "Events heard of from the SM",
        )?)?;
        let mut family = counter(encoder, "reports", "Reports to subscribers, by what became")?;
        for (what, count) in [
            ("begun", reports.reports),
            ("acknowledged", reports.acknowledged),
            ("repeated", reports.repeated),
            ("unanswered", reports.unanswered),
            ("superseded", reports.superseded),
            ("overflowed", reports.overflowed),
            ("unsubscribed", reports.unsubscribed),
        ] {
            ConstCounter::new(count).encode(family.encode_family(&[("became", what)])?)?;
        }
        Ok(())
    }

    fn encode_snapshot(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut source = gauge(encoder, "source", "Where the snapshot came from", None)?;
        let current = self.replica.source();
        for (label, is_current) in [
            ("none", current == Source::Nothing),
            ("cache", current == Source::Cache),
            ("sm", matches!(current, Source::Sm(_))),
        ] {
            let labels = [("source", label)];
            ConstGauge::new(i64::from(is_current)).encode(source.encode_family(&labels)?)?;
        }
        for (name, value) in self.replica.counters() {
            if name == "replica_sms_connected" {
                let family = gauge(encoder, name, "SMs connected", None)?;
                ConstGauge::new(value as i64).encode(family)?;
            } else {
                let family = counter(encoder, name, "Counted by the subscription")?;
                ConstCounter::new(value).encode(family)?;
            }
        }
        let serving = self.serving.load();
        let Some(serving) = serving.as_deref() else { return Ok(()) };
        let mut generation = gauge(encoder, "generation", "Generation of each plane", None)?;
        let Version { fabric_generation, registry_sequence, session } = serving.version;
        for (plane, number) in [("fabric", fabric_generation), ("registry", registry_sequence)] {
            let labels = [("plane", plane)];
            ConstGauge::new(number as i64).encode(generation.encode_family(&labels)?)?;
        }
        let epoch = gauge(encoder, "session_epoch", "Epoch of the SM's session", None)?;
        ConstGauge::new(session.epoch as i64).encode(epoch)?;
        let seconds = [
            (
                "snapshot_age",
                "Time since the tables came into use",
                serving.since.elapsed().as_secs_f64(),
            ),
            ("tables_built_in", "Time the tables took to build", serving.built_in_s),
        ];
        for (name, help, value) in seconds {
            ConstGauge::new(value).encode(gauge(encoder, name, help, Some(&Unit::Seconds))?)?;
        }
        let end_ports = gauge(encoder, "end_ports", "End ports in the tables", None)?;
        ConstGauge::new(serving.end_ports as i64).encode(end_ports)?;
        let help = "Size of what PathRecord queries read";
        let hot = gauge(encoder, "hot_tables", help, Some(&Unit::Bytes))?;
        ConstGauge::new(serving.hot_bytes as i64).encode(hot)
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_queries(&mut encoder)?;
        self.encode_workers(&mut encoder)?;
        self.encode_writes(&mut encoder)?;
        self.encode_reports(&mut encoder)?;
        self.encode_snapshot(&mut encoder)
    }
}

fn counter<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &'e str,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

fn gauge<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &'e str,
    unit: Option<&'e Unit>,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, unit, MetricType::Gauge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::mad::Status;

    #[test]
    fn metrics_name_what_they_count() {
        let stats = Arc::new(Stats::default());
        stats.answer(0x35, MethodLabel::Get, Status::OK);
        stats.drop_request(DropReason::WrongSmKey);
        stats.record_latency(std::time::Duration::from_micros(3), 1);
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
            writes: Arc::default(),
            reports: Arc::default(),
            replica: Arc::default(),
        });
        let text = metrics.render();
        for line in [
            r#"ibsa_answers_total{attribute="PathRecord",method="get",status="ok"} 1"#,
            r#"ibsa_dropped_total{reason="wrong_sm_key"} 1"#,
            r#"ibsa_generation{plane="fabric"} 7"#,
            r#"ibsa_tables_built_in_seconds 0.25"#,
            r#"ibsa_latency_seconds_count{worker="udp-0"} 1"#,
            r#"ibsa_source{source="none"} 1"#,
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert!(metrics.is_serving());
    }
}

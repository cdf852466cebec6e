//! Metrics for Prometheus.
//!
//! The service loop stores values once a second; the thread that serves them renders them, so that
//! a slow reader does not delay the subnet manager.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sa_proto::metrics::{Family, Format, Histogram, Process, registry_of};

use crate::observe::SweepKind;
use crate::web::RenderMetrics;
use sm_core::sweep::{Phase, Report};

/// A value and what it means. Those of one name follow each other and differ in their labels.
#[derive(Clone, Debug)]
pub(super) struct Metric {
    /// Ends in `_seconds` or `_bytes` if it has a unit.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: Value,
}

impl Metric {
    /// A counter.
    pub(super) fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, labels: Vec::new(), value: Value::Counter(value) }
    }

    /// A gauge.
    pub(super) fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, labels: Vec::new(), value: Value::Gauge(value) }
    }

    /// The metric with one more label.
    pub(super) fn with(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((label, value.into()));
        self
    }
}

/// A value of either kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(f64),
}

/// Metrics of the service loop, shared with the thread that serves them.
pub(super) type Metrics = Arc<Board>;

/// Values as of the last report, and times as they were recorded.
#[derive(Debug)]
pub(super) struct Board {
    values: ArcSwap<Vec<Metric>>,
    light_sweeps: OnceLock<Arc<Histogram>>,
    full_sweeps: Histogram,
    partial_sweeps: Histogram,
    /// By engine, of which there are but a few.
    routing: Mutex<BTreeMap<String, Histogram>>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            values: ArcSwap::default(),
            light_sweeps: OnceLock::new(),
            full_sweeps: Histogram::from_millisecond(),
            partial_sweeps: Histogram::from_millisecond(),
            routing: Mutex::default(),
        }
    }
}

impl Board {
    /// Replaces the values.
    pub(super) fn set(&self, metrics: Vec<Metric>) {
        self.values.store(Arc::new(metrics));
    }

    /// Adds light sweeps, which the sweeper records itself.
    pub(super) fn show_light_sweeps(&self, times: Arc<Histogram>) {
        // Set once, at the start.
        let _ = self.light_sweeps.set(times);
    }

    /// Records a sweep that configured the fabric, routed by `engine`.
    pub(super) fn note_sweep(&self, report: &Report, engine: &str) {
        let sweeps = if report.full { &self.full_sweeps } else { &self.partial_sweeps };
        sweeps.record(report.duration(), 1);
        let took = report.phase(Phase::Route);
        if !took.is_zero() {
            let mut routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
            let times = routing.entry(engine.to_owned());
            times.or_insert_with(Histogram::from_millisecond).record(took, 1);
        }
    }

    /// All metrics as text, in one format.
    fn render(self: &Arc<Self>, subnet: &str, format: Format) -> String {
        let mut registry = registry_of(subnet);
        registry.register_collector(Box::new(Process));
        let ours = registry.sub_registry_with_prefix("ibsm");
        ours.register_collector(Box::new(Arc::clone(self)));
        format.render(&registry)
    }

    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const SWEEPS: Family = Family::seconds(
            "sweep_duration",
            "Duration of sweeps: light ones poll switches only, partial ones read the changed part",
        );
        const ROUTING: Family =
            Family::seconds("routing_duration", "Time to compute forwarding tables, by engine");
        let mut sweeps = SWEEPS.histogram(encoder)?;
        if let Some(light) = self.light_sweeps.get() {
            sweeps.times(&[("kind", SweepKind::Light.label())], [&**light])?;
        }
        sweeps.times(&[("kind", SweepKind::Partial.label())], [&self.partial_sweeps])?;
        sweeps.times(&[("kind", SweepKind::Full.label())], [&self.full_sweeps])?;
        let mut family = ROUTING.histogram(encoder)?;
        let routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
        for (engine, times) in &*routing {
            family.times(&[("engine", engine)], [times])?;
        }
        Ok(())
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        const BUILD: Family = Family::number("build", "Version of this program");
        BUILD.info(&mut encoder, &[("version", env!("CARGO_PKG_VERSION"))])?;
        self.encode_times(&mut encoder)?;
        for metrics in self.values.load().chunk_by(|a, b| a.name == b.name) {
            let family = Family::of(metrics[0].name, metrics[0].help);
            let mut samples = match metrics[0].value {
                Value::Counter(_) => family.counter(&mut encoder)?,
                Value::Gauge(_) => family.gauge(&mut encoder)?,
            };
            for Metric { labels, value, .. } in metrics {
                let labels: Vec<_> =
                    labels.iter().map(|(label, value)| (*label, &value[..])).collect();
                match *value {
                    Value::Counter(count) => samples.with(&labels, count)?,
                    Value::Gauge(measure) => samples.with(&labels, measure)?,
                }
            }
        }
        Ok(())
    }
}

/// Renders the values as text in the format that the client accepts, with a label `subnet` unless
/// that is empty.
pub(super) fn rendering(metrics: Metrics, subnet: String) -> RenderMetrics {
    Box::new(move |accept| {
        let format = Format::accepted_by(accept);
        (format.content_type(), metrics.render(&subnet, format))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_last_values_are_rendered() {
        let metrics = Metrics::default();
        let render = rendering(metrics.clone(), String::new());
        let sent = |attribute: &str, count| {
            Metric::counter("smps_sent", "SMPs sent", count).with("attribute", attribute)
        };
        metrics.set(vec![
            sent("NodeInfo", 7),
            sent("PortInfo", 9),
            Metric::gauge("up", "Whether the subnet is up", 1.0),
            Metric::gauge("last_seconds", "How long it took", 0.5),
        ]);
        let report = Report {
            full: true,
            phases: vec![(Phase::Route, Duration::from_millis(3))],
            ..Report::default()
        };
        metrics.note_sweep(&report, "minhop");
        let (_, text) = render("");
        assert!(text.ends_with("# EOF\n"), "{text}");
        for line in [
            "# TYPE ibsm_smps_sent counter",
            "ibsm_smps_sent_total{attribute=\"NodeInfo\"} 7",
            "ibsm_smps_sent_total{attribute=\"PortInfo\"} 9",
            "ibsm_up 1.0",
            "# UNIT ibsm_last_seconds seconds",
            "ibsm_last_seconds 0.5",
            "ibsm_sweep_duration_seconds_count{kind=\"full\"} 1",
            "ibsm_routing_duration_seconds_bucket{le=\"0.003\",engine=\"minhop\"} 1",
            "# TYPE process_open_fds gauge",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("# TYPE ibsm_smps_sent ").count(), 1);
        let (kind, text) = render("text/plain");
        assert!(kind.starts_with("text/plain") && !text.contains("# EOF"), "{text}");
    }
}

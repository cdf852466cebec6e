//! Metrics as text: OpenMetrics 1.0, or the older Prometheus format for clients that accept only
//! that.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::Histogram;

/// Text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, which ends with `# EOF`.
    OpenMetrics,
    /// Prometheus text format 0.0.4.
    Prometheus,
}

impl Format {
    /// Selects the format for an HTTP request with this `Accept`: OpenMetrics, unless it names only
    /// Prometheus's.
    pub fn accepted_by(accept: &str) -> Self {
        let accepts = |format: &str| accept.to_ascii_lowercase().contains(format);
        if accepts("text/plain") && !accepts("application/openmetrics-text") {
            Self::Prometheus
        } else {
            Self::OpenMetrics
        }
    }

    /// The `Content-Type` of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Formats all metrics of `registry`.
    pub fn render(self, registry: &Registry) -> String {
        let mut text = String::new();
        // Writing to a string fails only if a metric's encoder does, and none here can.
        if text::encode(&mut text, registry).is_err() {
            tracing::error!("metrics: encoding failed; the answer to this scrape is incomplete");
        }
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => older(&text),
        }
    }
}

/// A registry whose metrics have the label `subnet`, unless that is empty: one Prometheus may watch
/// several subnets.
pub fn registry_of(subnet: &str) -> Registry {
    match subnet {
        "" => Registry::default(),
        name => Registry::with_labels(std::iter::once(("subnet".into(), name.to_owned().into()))),
    }
}

/// Converts OpenMetrics to the older format, in which a family has the same name as its samples,
/// and there are neither units nor an end mark.
fn older(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(meaning)) => help = Some((name, meaning)),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                if let Some((_, meaning)) = help.take().filter(|&(of, _)| of == name) {
                    out.push_str(&format!("# HELP {name}{suffix} {meaning}\n"));
                }
                out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// A metric family: name, help text and unit. Labels distinguish its samples.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<&'static Unit>,
}

impl Family {
    /// A metric without unit.
    pub const fn number(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: None }
    }

    /// A metric in seconds; `_seconds` is appended to the name.
    pub const fn seconds(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: Some(&Unit::Seconds) }
    }

    /// A metric in bytes; `_bytes` is appended to the name.
    pub const fn bytes(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: Some(&Unit::Bytes) }
    }

    /// A metric with the unit that its name ends in, if any.
    pub fn of(name: &'static str, help: &'static str) -> Self {
        let with = |unit| move |name| Self { name, help, unit: Some(unit) };
        let seconds = name.strip_suffix("_seconds").map(with(&Unit::Seconds));
        let bytes = || name.strip_suffix("_bytes").map(with(&Unit::Bytes));
        seconds.or_else(bytes).unwrap_or(Self::number(name, help))
    }

    /// Starts the samples of a counter; `_total` is appended to their name.
    pub fn counter<'e>(
        &'e self,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<Samples<'e>, fmt::Error> {
        self.begin(encoder, MetricType::Counter)
    }

    /// Starts the samples of a gauge.
    pub fn gauge<'e>(
        &'e self,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<Samples<'e>, fmt::Error> {
        self.begin(encoder, MetricType::Gauge)
    }

    /// Starts the samples of a histogram.
    pub fn histogram<'e>(
        &'e self,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<Samples<'e>, fmt::Error> {
        self.begin(encoder, MetricType::Histogram)
    }

    /// Writes the only sample of an info metric, 1 with informative labels; `_info` is appended to
    /// its name.
    pub fn info(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        labels: &[(&str, &str)],
    ) -> fmt::Result {
        self.begin(encoder, MetricType::Info)?.to.encode_info(&labels)
    }

    fn begin<'e>(
        &'e self,
        encoder: &'e mut DescriptorEncoder<'_>,
        kind: MetricType,
    ) -> Result<Samples<'e>, fmt::Error> {
        let to = encoder.encode_descriptor(self.name, self.help, self.unit, kind)?;
        Ok(Samples { kind, to })
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Whole(u64),
    /// A floating-point number.
    Real(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Whole(count)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Whole(count as u64)
    }
}

impl From<f64> for Value {
    fn from(measure: f64) -> Self {
        Self::Real(measure)
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Whole(is.into())
    }
}

/// The samples of one metric, being written.
#[derive(Debug)]
pub struct Samples<'e> {
    kind: MetricType,
    to: MetricEncoder<'e>,
}

impl Samples<'_> {
    /// The only sample, without labels.
    pub fn of(&mut self, value: impl Into<Value>) -> fmt::Result {
        encode(self.kind, value.into(), &mut self.to)
    }

    /// The sample with these labels, if any.
    pub fn with(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) -> fmt::Result {
        if labels.is_empty() {
            return self.of(value);
        }
        encode(self.kind, value.into(), &mut self.to.encode_family(&labels)?)
    }

    /// A sum of histograms that several threads have recorded, with these labels.
    pub fn times<'h>(
        &mut self,
        labels: &[(&str, &str)],
        recorded: impl IntoIterator<Item = &'h Histogram>,
    ) -> fmt::Result {
        let (mut buckets, mut sum) = (Vec::new(), 0.0);
        for histogram in recorded {
            histogram.add_to(&mut buckets);
            sum += histogram.sum_s();
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut to = self.to.encode_family(&labels)?;
        to.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

fn encode(kind: MetricType, value: Value, to: &mut MetricEncoder<'_>) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(count)) => {
            to.encode_counter::<NoLabelSet, u64, f64>(&count, None)
        }
        (MetricType::Counter, Value::Real(sum)) => {
            to.encode_counter::<NoLabelSet, f64, f64>(&sum, None)
        }
        (_, Value::Whole(count)) => to.encode_gauge(&count),
        (_, Value::Real(measure)) => to.encode_gauge(&measure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use std::time::Duration;

    #[derive(Debug)]
    struct Sample;

    impl Collector for Sample {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            const SENT: Family = Family::number("sent", "Packets sent");
            const AGE: Family = Family::seconds("age", "Time since the last");
            const TOOK: Family = Family::seconds("took", "Time that each took");
            const BUILD: Family = Family::number("build", "What this is");
            let took = Histogram::new(Duration::from_secs(1), 1);
            took.record(Duration::from_secs(2), 3);
            SENT.counter(&mut encoder)?.with(&[("to", "a \"b\"")], 7u64)?;
            AGE.gauge(&mut encoder)?.of(0.5)?;
            TOOK.histogram(&mut encoder)?.times(&[("kind", "x")], [&took])?;
            BUILD.info(&mut encoder, &[("version", "1")])
        }
    }

    fn rendered(format: Format) -> String {
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("x").register_collector(Box::new(Sample));
        format.render(&registry)
    }

    #[test]
    fn all_metrics_of_a_subnet_have_its_label() {
        let mut registry = registry_of("rail1");
        registry.sub_registry_with_prefix("x").register_collector(Box::new(Sample));
        let text = Format::OpenMetrics.render(&registry);
        assert!(text.contains(r#"x_age_seconds{subnet="rail1"} 0.5"#), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        assert!(samples.clone().all(|line| line.contains(r#"subnet="rail1""#)), "{text}");
    }

    #[test]
    fn open_metrics_names_families_without_the_suffix_of_their_samples() {
        let want = r##"# HELP x_sent Packets sent
# TYPE x_sent counter
x_sent_total{to="a \"b\""} 7
# HELP x_age_seconds Time since the last
# TYPE x_age_seconds gauge
# UNIT x_age_seconds seconds
x_age_seconds 0.5
# HELP x_took_seconds Time that each took
# TYPE x_took_seconds histogram
# UNIT x_took_seconds seconds
x_took_seconds_sum{kind="x"} 6.0
x_took_seconds_count{kind="x"} 3
x_took_seconds_bucket{le="1.0",kind="x"} 0
x_took_seconds_bucket{le="1.5",kind="x"} 0
x_took_seconds_bucket{le="2.0",kind="x"} 3
x_took_seconds_bucket{le="+Inf",kind="x"} 3
# HELP x_build What this is
# TYPE x_build info
x_build_info{version="1"} 1
# EOF
"##;
        assert_eq!(rendered(Format::OpenMetrics), want);
    }

    #[test]
    fn the_older_format_names_families_as_their_samples() {
        let text = rendered(Format::Prometheus);
        for line in [
            "# HELP x_sent_total Packets sent",
            "# TYPE x_sent_total counter",
            "# TYPE x_age_seconds gauge",
            "# HELP x_build_info What this is",
            "# TYPE x_build_info gauge",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn the_older_format_is_for_those_who_accept_nothing_else() {
        assert_eq!(Format::accepted_by(""), Format::OpenMetrics);
        assert_eq!(Format::accepted_by("*/*"), Format::OpenMetrics);
        assert_eq!(Format::accepted_by("Text/plain;version=0.0.4"), Format::Prometheus);
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::accepted_by(prometheus), Format::OpenMetrics);
    }
}

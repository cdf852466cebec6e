//! The agent's metrics. `docs/metrics.md` describes them.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sa_proto::metrics::{Family, Format, Process, registry_of};

use super::{SharedHost, lock};
use crate::agent::port::{Port, Reason};
use crate::watch::http::{Connections, Page};

/// What the agent counts, as metrics.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    host: SharedHost,
    http: Arc<Connections>,
}

impl AgentMetrics {
    /// Of a host.
    pub fn new(host: SharedHost) -> Self {
        Self { host, http: Arc::default() }
    }
}

impl Page for AgentMetrics {
    fn is_serving(&self) -> bool {
        let host = lock(&self.host);
        host.ports().iter().any(|(_, port)| port.is_fresh(Instant::now()))
    }

    fn missing(&self) -> &'static str {
        "no port has current paths"
    }

    fn render(&self, format: Format) -> String {
        let mut registry = registry_of("");
        registry.register_collector(Box::new(Process));
        let ours = registry.sub_registry_with_prefix("ibsa_agent");
        ours.register_collector(Box::new(self.clone()));
        format.render(&registry)
    }

    fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.http)
    }
}

impl Collector for AgentMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (encoder, host, now) = (&mut encoder, lock(&self.host), Instant::now());
        let counters = host.counters();
        BUILD.info(encoder, &[("version", env!("CARGO_PKG_VERSION"))])?;
        ANSWERED.counter(encoder)?.of(counters.answered)?;
        let mut left = LEFT.counter(encoder)?;
        for reason in Reason::ALL {
            left.with(&[("reason", reason.label())], counters.left[reason as usize])?;
        }
        IGNORED.counter(encoder)?.of(counters.ignored)?;
        MALFORMED.counter(encoder)?.of(counters.malformed)?;
        LOST.counter(encoder)?.of(counters.lost)?;
        self.http.encode(encoder)?;
        let figures: [(Family, Figure); 6] = [
            (FRESH, |port, now| Some(f64::from(u8::from(port.is_fresh(now))))),
            (SILENCE, |port, now| Some(now.duration_since(port.heard()?).as_secs_f64())),
            (PATHS, |port, _| Some(port.table().len() as f64)),
            (TABLE, |port, _| Some(port.table().bytes() as f64)),
            (GENERATION, |port, _| Some(port.version().1 as f64)),
            (EPOCH, |port, _| Some(port.version().0 as f64)),
        ];
        for (family, figure) in figures {
            let mut family = family.gauge(encoder)?;
            for (name, port) in host.ports() {
                if let Some(value) = figure(port, now) {
                    let number = name.port.to_string();
                    family.with(&[("device", &name.device), ("port", &number)], value)?;
                }
            }
        }
        Ok(())
    }
}

/// A value of a port now, if it has one.
type Figure = fn(&Port, Instant) -> Option<f64>;

const BUILD: Family = Family::number("build", "Version of this program");
const ANSWERED: Family =
    Family::number("answered", "Path queries of the kernel that were answered with a path");
const LEFT: Family = Family::number(
    "left_to_sa",
    "Path queries of the kernel that it was left to ask the SA about, by reason",
);
const IGNORED: Family =
    Family::number("ignored", "Messages of the kernel that are no path queries, without answer");
const MALFORMED: Family =
    Family::number("malformed", "Datagrams of the kernel that could not be read");
const LOST: Family = Family::number(
    "overruns",
    "Times that the kernel dropped path queries because the agent was too slow; it asks the SA \
     about them after its time limit",
);
const FRESH: Family = Family::number(
    "fresh",
    "1 if the port's paths are those that its responder answers; otherwise the kernel asks the SA",
);
const SILENCE: Family =
    Family::seconds("silence", "Time since the port's responder was heard; it sends every 500 ms");
const PATHS: Family = Family::number("paths", "Paths held for the port");
const TABLE: Family = Family::bytes("table", "Memory for the port's paths");
const GENERATION: Family =
    Family::number("snapshot_generation", "Generation of the fabric that the paths are of");
const EPOCH: Family =
    Family::number("snapshot_session_epoch", "Epoch of the session that the paths are of");

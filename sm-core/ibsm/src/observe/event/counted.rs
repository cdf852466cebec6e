//! Growth of a port's counters, as OpenSM passes it to event plug-ins.

use std::fmt::Write as _;
use std::sync::Arc;

use ib_mad::types::PortNum;
use sa_proto::snapshot::Node;
use sm_core::perf::Growth;

use super::{Draft, Event, EventKind};
use crate::observe::node_name;
use crate::observe::problem::{Severity, Subject};

/// What a reading of a port found.
#[derive(Clone, Debug)]
pub struct PortGrowth {
    /// When, milliseconds since 1970.
    pub time_ms: u64,
    /// The node.
    pub node: Arc<Node>,
    /// The port.
    pub port: PortNum,
    /// The counters that grew.
    pub growth: Growth,
}

impl PortGrowth {
    /// The event, without a number. `missed`: readings before it that the reader has missed.
    pub fn event(&self, missed: u64) -> Event {
        let Self { node, port, growth, .. } = self;
        let (name, seconds) = (node_name(node), growth.seconds);
        let mut text = format!("'{name}' {} port {port}:", node.guid);
        for (at, (counter, by)) in growth.grown().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let _ = write!(text, "{comma} {} {by}", counter.name());
        }
        let _ = write!(text, " in {seconds} s");
        let kind = EventKind::of_group(growth.group);
        let is_fault = growth.grown().any(|(counter, _)| counter.is_fault());
        let mut draft = Draft::new(kind, text)
            .rated(is_fault.then_some(Severity::Notice))
            .about(Subject::port(name, node.guid, *port))
            .with("seconds", u64::from(seconds));
        for (counter, by) in growth.grown() {
            draft = draft.with(counter.name(), by);
        }
        if missed > 0 {
            draft = draft.with("missed_before", missed);
        }
        Event::of(0, self.time_ms, draft)
    }
}

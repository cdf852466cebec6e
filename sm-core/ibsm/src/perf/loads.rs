//! How loaded links are, in either direction, by the readings of the last sweep of the performance
//! manager, or of an earlier one that the history has. Rates of the last sweeps are in `series`.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::str::FromStr;

use ib_mad::types::Guid;
use serde::{Deserialize, Serialize};
use sm_core::perf::{PerfManager, PortView};

use super::{PerfBoard, Selection};
use crate::observe::links::End as LinkEnd;
use crate::observe::node_name;
use crate::observe::topology::{End, Topology};

/// Limit of directions with traffic or errors that are kept; those with the least traffic are
/// counted only.
const DIRECTIONS_MAX: usize = 65_536;
/// Limit of directions that one request lists.
pub(crate) const LISTED_MAX: usize = 1000;
/// Directions listed unless a request states another number.
pub(crate) const LISTED_DEFAULT: usize = 20;

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Direction {
    /// The port that sends.
    pub from: End,
    /// The port that receives.
    pub to: End,
    /// Bytes per second, an average over the time between the last two readings.
    pub rate: f64,
    /// Bytes per second that the link can carry; 0 if unknown.
    pub capacity: f64,
    /// Errors per second that the sending port counted.
    pub from_errors: f64,
    /// Errors per second that the receiving port counted.
    pub to_errors: f64,
}

impl Direction {
    /// Rate as a part of the capacity; 0 if that is unknown.
    pub fn share(&self) -> f64 {
        if self.capacity > 0.0 { self.rate / self.capacity } else { 0.0 }
    }
}

/// The directions with traffic or errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loads {
    /// Number of the sweep of the performance manager.
    pub sweep: u64,
    /// When it ended, milliseconds since 1970.
    pub time_ms: u64,
    /// Those with the most traffic first.
    pub directions: Vec<Direction>,
    /// Number of further ones.
    pub unlisted: usize,
}

impl Loads {
    /// Reads the rates of all links.
    pub(super) fn of(manager: &PerfManager, time_ms: u64) -> Self {
        let ports = (0..manager.node_count()).flat_map(|at| manager.ports_of(at));
        let mut directions: Vec<Direction> = ports
            .filter(is_read)
            .flat_map(|port| directions_at(manager, &port))
            .filter(|one| one.rate > 0.0 || one.from_errors > 0.0 || one.to_errors > 0.0)
            .collect();
        directions.sort_by(|a, b| b.rate.total_cmp(&a.rate).then((a.from).cmp(&b.from)));
        let unlisted = directions.len().saturating_sub(DIRECTIONS_MAX);
        directions.truncate(DIRECTIONS_MAX);
        Self { sweep: manager.status().sweeps, time_ms, directions, unlisted }
    }
}

/// Whether the rates of a port are known.
pub(super) fn is_read(port: &PortView<'_>) -> bool {
    port.active && port.is_known && port.counts.interval_ms > 0
}

/// Bytes per second that a port sent and received, and errors per second.
pub(super) fn rates(port: &PortView<'_>) -> (f64, f64, f64) {
    let seconds = f64::from(port.counts.interval_ms.max(1)) / 1e3;
    let bytes = |words: u64| words as f64 * 4.0 / seconds;
    // Error counters are read more often.
    let of_errors = f64::from(port.counts.recent_faults_s);
    let of_errors = if of_errors > 0.0 { of_errors } else { seconds };
    let errors = f64::from(port.counts.recent_faults) / of_errors;
    (bytes(port.counts.recent_xmit_data), bytes(port.counts.recent_rcv_data), errors)
}

/// What leaves a port and, if the far end is not read, what arrives at it.
fn directions_at(manager: &PerfManager, port: &PortView<'_>) -> Vec<Direction> {
    let row = port.node.port(port.number);
    let Some((row, to)) = row.and_then(|row| Some((row, row.peer?))) else { return Vec::new() };
    let from = (port.node.guid, port.number);
    let capacity = LinkEnd::new(port.node, row).and_then(|end| end.capacity()).unwrap_or(0.0);
    let (sent, received, errors) = rates(port);
    let far = manager.port(to.0, to.1).filter(is_read);
    let out = Direction {
        from,
        to,
        rate: sent,
        capacity,
        from_errors: errors,
        to_errors: far.map_or(0.0, |far| rates(&far).2),
    };
    let back = Direction { from: to, to: from, rate: received, ..out };
    let back = Direction { from_errors: 0.0, to_errors: errors, ..back };
    match far {
        Some(_) => vec![out],
        None => vec![out, back],
    }
}

/// By what directions are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Bytes per second.
    #[default]
    Rate,
    /// Part of the capacity.
    Share,
    /// Errors at both ends.
    Errors,
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "rate" => Ok(Self::Rate),
            "share" => Ok(Self::Share),
            "errors" => Ok(Self::Errors),
            _ => Err(format!("'{text}' is no order of links: rate, share or errors")),
        }
    }
}

/// The links with the most traffic. As JSON its keys stay; more may be added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TopLinks {
    /// Number of the sweep of the performance manager; 0 before the first has ended.
    pub(crate) sweep: u64,
    /// When it ended, milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// Directions of links, in the order that was requested.
    pub(crate) links: Vec<LinkNow>,
}

/// One direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkNow {
    /// The port that sends.
    pub(crate) from: PortName,
    /// The port that receives.
    pub(crate) to: PortName,
    pub(crate) gbps: f64,
    /// What the link can carry after line coding.
    pub(crate) capacity_gbps: Option<f64>,
    /// Percentage of that.
    pub(crate) percent: Option<f64>,
    /// Errors that the sending port counted; none if that is not known, at an earlier time.
    pub(crate) from_errors_per_s: Option<f64>,
    /// Errors that the receiving port counted.
    pub(crate) to_errors_per_s: Option<f64>,
}

/// A port by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PortName {
    pub(crate) name: String,
    pub(crate) guid: String,
    pub(crate) port: u8,
}

impl PortName {
    fn of(known: &dyn Known, (guid, port): End) -> Self {
        let name = known.name(guid).unwrap_or_else(|| guid.to_string());
        Self { name, guid: guid.to_string(), port: port.0 }
    }
}

/// The nodes of the fabric that loads are of.
trait Known {
    /// Name of a node; `None` if it is not known.
    fn name(&self, guid: Guid) -> Option<String>;

    /// GUIDs of the selected nodes.
    fn selected(&self, selection: &Selection) -> HashSet<Guid>;
}

impl Known for PerfManager {
    fn name(&self, guid: Guid) -> Option<String> {
        self.node(guid).map(|node| node_name(node))
    }

    fn selected(&self, selection: &Selection) -> HashSet<Guid> {
        self.rows().filter(|node| selection.takes(node)).map(|node| node.guid).collect()
    }
}

impl Known for Topology {
    fn name(&self, guid: Guid) -> Option<String> {
        Some(Topology::name(self, guid))
    }

    fn selected(&self, selection: &Selection) -> HashSet<Guid> {
        let takes = |(&guid, is_switch): (&Guid, bool)| {
            selection.takes_named(guid, is_switch, || Topology::name(self, guid)).then_some(guid)
        };
        self.nodes.iter().filter_map(|(guid, node)| takes((guid, node.is_switch))).collect()
    }
}

/// Which directions of links are listed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Those of links at these nodes.
    pub(crate) selection: Selection,
    /// Those at this port of them.
    pub(crate) port: Option<u32>,
    pub(crate) order: Order,
    /// The first ones of that order.
    pub(crate) count: usize,
}

/// The wanted directions in the last sweep. `None` if counters are not read.
pub(crate) fn top(board: &PerfBoard, wanted: &Wanted) -> Option<TopLinks> {
    let loads = board.loads();
    let is_named = wanted.is_named();
    // The lock is not held while directions are sorted.
    let selected = board.with(|manager| is_named.then(|| manager.selected(&wanted.selection)))?;
    let found = found(&loads, wanted, selected);
    board.with(|manager| list(&loads, &found, &*manager, true))
}

/// The wanted directions at an earlier time, when the fabric was `then`. Errors are not kept.
pub(crate) fn top_then(loads: &Loads, then: &Topology, wanted: &Wanted) -> TopLinks {
    let selected = wanted.is_named().then(|| then.selected(&wanted.selection));
    list(loads, &found(loads, wanted, selected), then, false)
}

impl Wanted {
    /// Whether only links of certain nodes or ports are listed.
    fn is_named(&self) -> bool {
        self.port.is_some() || !self.selection.is_of_all()
    }
}

/// The wanted directions in their order; `selected`: nodes, all if that is `None`.
fn found<'a>(
    loads: &'a Loads,
    wanted: &Wanted,
    selected: Option<HashSet<Guid>>,
) -> Vec<&'a Direction> {
    let mut found: Vec<&Direction> = loads.directions.iter().collect();
    if let Some(selected) = selected {
        let is_taken = |(guid, number): End| {
            wanted.port.is_none_or(|port| port == u32::from(number.0)) && selected.contains(&guid)
        };
        found.retain(|one| is_taken(one.from) || is_taken(one.to));
    }
    match wanted.order {
        Order::Rate => {}
        Order::Share => found.sort_by(|a, b| b.share().total_cmp(&a.share())),
        Order::Errors => {
            found.retain(|one| one.from_errors + one.to_errors > 0.0);
            let milli = |one: &&Direction| ((one.from_errors + one.to_errors) * 1e3) as u64;
            found.sort_by_key(|one| Reverse(milli(one)));
        }
    }
    found.truncate(wanted.count.min(LISTED_MAX));
    found
}

fn list(loads: &Loads, found: &[&Direction], known: &dyn Known, has_errors: bool) -> TopLinks {
    TopLinks {
        sweep: loads.sweep,
        time_ms: loads.time_ms,
        links: found.iter().map(|one| LinkNow::of(known, one, has_errors)).collect(),
    }
}

impl LinkNow {
    fn of(known: &dyn Known, one: &Direction, has_errors: bool) -> Self {
        let is_known = one.capacity > 0.0;
        Self {
            from: PortName::of(known, one.from),
            to: PortName::of(known, one.to),
            gbps: one.rate * 8.0 / 1e9,
            capacity_gbps: is_known.then_some(one.capacity * 8.0 / 1e9),
            percent: is_known.then_some(one.share() * 100.0),
            from_errors_per_s: has_errors.then_some(one.from_errors),
            to_errors_per_s: has_errors.then_some(one.to_errors),
        }
    }
}

//! The counters of a node's ports, as `ibsmctl perf NODE` lists them, for the page.

use std::collections::BTreeMap;

use ib_mad::types::Guid;
use serde::Serialize;
use sm_core::perf::{Counter, PerfManager, PortView};

use super::loads::{is_read, rates};

/// The counters of a node's ports. As JSON its keys stay; more may be added.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NodeCounts {
    /// Number of the sweep of the performance manager; 0 before the first has ended.
    sweep: u64,
    /// Ports whose counters were read.
    ports: Vec<PortCounts>,
}

/// The totals of a port that are not 0, by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PortCounts {
    port: u8,
    /// Sum of the counters of errors.
    error_count: u64,
    /// Errors between the last two readings; `null` if they are not known.
    errors_per_s: Option<f64>,
    /// When the counters of errors were last read, seconds since 1970; `null` if they were not.
    errors_read_s: Option<u32>,
    /// Counters of errors.
    errors: BTreeMap<&'static str, u64>,
    /// Other counters, without data and packets.
    others: BTreeMap<&'static str, u64>,
    /// Data, in words of 4 bytes, and packets.
    data: BTreeMap<&'static str, u64>,
}

impl NodeCounts {
    /// Those of the node with this GUID.
    pub(super) fn of(manager: &PerfManager, guid: Guid) -> Self {
        let ports = manager.node(guid).into_iter().flat_map(|node| &node.ports);
        let ports = ports.filter_map(|port| manager.port(guid, port.num));
        let known = ports.filter(|port| port.is_known);
        Self { sweep: manager.status().sweeps, ports: known.map(|port| of_port(&port)).collect() }
    }
}

fn of_port(port: &PortView<'_>) -> PortCounts {
    let totals = |is_wanted: &dyn Fn(Counter) -> bool| {
        let all = Counter::ALL.iter().copied().filter(|&counter| is_wanted(counter));
        let all = all.map(|counter| (counter.name(), port.counts.total(counter)));
        all.filter(|(_, total)| *total > 0).collect::<BTreeMap<_, _>>()
    };
    let is_data = |counter| Counter::DATA.contains(counter);
    let errors = totals(&|counter| counter.is_fault());
    PortCounts {
        port: port.number.0,
        error_count: errors.values().fold(0, |sum, total| sum.saturating_add(*total)),
        errors_per_s: is_read(port).then(|| rates(port).2),
        errors_read_s: Some(port.counts.last_error_update_s).filter(|at| *at > 0),
        errors,
        others: totals(&|counter| !counter.is_fault() && !is_data(counter)),
        data: totals(&is_data),
    }
}

//! The rows of the comparison: names, units, and how they are printed.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::time::Duration;

use benches::sandbox::Program;
use serde_json::{Value, json};

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    PathByGids,
    PathUnderRules,
    PathByLids,
    PathsOfSource,
    MultiPath,
    NodeByLid,
    NodeByGuid,
    AllHosts,
    Members,
    Services,
    Start,
    StartCpu,
    Memory,
    LinkFails,
}

/// All rows, in the order in which they are printed.
const ROWS: [Name; 14] = [
    Name::PathByGids,
    Name::PathUnderRules,
    Name::PathByLids,
    Name::PathsOfSource,
    Name::MultiPath,
    Name::NodeByLid,
    Name::NodeByGuid,
    Name::AllHosts,
    Name::Members,
    Name::Services,
    Name::Start,
    Name::StartCpu,
    Name::Memory,
    Name::LinkFails,
];

impl Name {
    /// What is measured.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::PathByGids => "Get(PathRecord) by GID pair, mask of RDMA CM",
            Self::PathUnderRules => "the same under 50 QoS rules",
            Self::PathByLids => "Get(PathRecord) by LID pair",
            Self::PathsOfSource => "GetTable(PathRecord), all from one source",
            Self::MultiPath => "GetMulti(MultiPathRecord) 8x3",
            Self::NodeByLid => "Get(NodeRecord) by LID",
            Self::NodeByGuid => "Get(NodeRecord) by node GUID",
            Self::AllHosts => "GetTable(NodeRecord), all CAs",
            Self::Members => "MCMemberRecord, join or leave",
            Self::Services => "Set(ServiceRecord) among 2,000",
            Self::Start => "start to SUBNET UP",
            Self::StartCpu => "CPU of that",
            Self::Memory => "memory, peak",
            Self::LinkFails => "longest wait for an answer while a link fails",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::PathsOfSource | Self::AllHosts => "records/s",
            Self::Start | Self::StartCpu => "s",
            Self::Memory => "MB",
            Self::LinkFails => "ms",
            _ => "ns",
        }
    }

    /// How many times better ibsm and ibsa are.
    fn ratio(self, opensm: f64, ours: f64) -> f64 {
        let ratio = if self.unit() == "records/s" { ours / opensm } else { opensm / ours };
        assert!(ratio.is_finite() && ratio > 0.0, "{}: {opensm} and {ours}", self.text());
        ratio
    }
}

/// One side's figure of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    /// The subtracted cost of the transport's replacement. Nanoseconds.
    pub(crate) stand_in: f64,
    /// With everything that the programs did meanwhile. Nanoseconds; 0 if not measured.
    pub(crate) whole: f64,
}

impl Figure {
    /// A figure without subtraction.
    pub(crate) fn plain(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

/// CPU time by process, the transport's included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processes<T> {
    /// The threads of `ibsm` that handle writes.
    pub(crate) writing: T,
    /// All threads of `ibsm`.
    pub(crate) ibsm: T,
    /// All threads of `ibsa`.
    pub(crate) ibsa: T,
    /// All members of etcd.
    pub(crate) etcd: T,
}

/// The figures of one side.
#[derive(Debug, Default)]
pub(crate) struct Side {
    figures: Vec<(Name, Figure)>,
    /// Nanoseconds of a write, and the most writes per second.
    processes: Vec<(Name, Processes<f64>, f64)>,
}

impl Side {
    /// Adds a figure.
    pub(crate) fn report(&mut self, name: Name, figure: Figure) {
        self.figures.push((name, figure));
    }

    /// Adds the CPU time of a write by process, nanoseconds, and the writes per second of each
    /// run.
    pub(crate) fn report_processes(
        &mut self,
        name: Name,
        processes: Processes<f64>,
        rates: impl Iterator<Item = f64>,
    ) {
        self.processes.push((name, processes, rates.fold(0.0, f64::max)));
    }

    /// Adds the figures of a start.
    pub(crate) fn start(&mut self, up: Duration, cpu: Duration, program: &Program) {
        self.report(Name::Start, Figure::plain(up.as_secs_f64()));
        self.report(Name::StartCpu, Figure::plain(cpu.as_secs_f64()));
        self.report(Name::Memory, Figure::plain(program.memory_kib().1 as f64 / 1024.0));
    }

    fn figure(&self, name: Name) -> Option<Figure> {
        self.figures.iter().find(|(other, _)| *other == name).map(|(_, figure)| *figure)
    }
}

/// The rows that were measured on both sides.
fn rows(ours: &Side, stock: &Side) -> impl Iterator<Item = (Name, Figure, Figure)> {
    ROWS.into_iter().filter_map(|row| Some((row, ours.figure(row)?, stock.figure(row)?)))
}

/// Prints one row per line.
pub(crate) fn print_table(ours: &Side, stock: &Side) {
    println!("{:<47} {:>14} {:>14} {:<9} {:>8}", "", "opensm", "ours", "", "ratio");
    for (row, ours, stock) in rows(ours, stock) {
        let (whole, ours, stock) = (ours.whole, ours.value, stock.value);
        let digits = if row.unit() == "s" { 2 } else { usize::from(row.unit() == "ms") };
        println!(
            "{:<47} {stock:>14.digits$} {ours:>14.digits$} {:<9} {:>8.2}",
            row.text(),
            row.unit(),
            row.ratio(stock, ours)
        );
        if whole > 0.0 {
            let label = "    with transport, trees and sweeps";
            println!("{label:<47} {:>14} {whole:>14.digits$} {:<9}", "", row.unit());
        }
    }
}

/// Prints the CPU time of our writes by process.
pub(crate) fn print_processes(ours: &Side) {
    println!(
        "\n{:<32} {:>14} {:>14} {:>14} {:>14} {:>10}",
        "CPU of a write", "ibsm, writing", "all of ibsm", "all of ibsa", "all of etcd", "writes/s"
    );
    for (name, Processes { writing, ibsm, ibsa, etcd }, rate) in &ours.processes {
        println!(
            "{:<32} {writing:>11.0} ns {ibsm:>11.0} ns {ibsa:>11.0} ns {etcd:>11.0} ns \
             {rate:>10.0}",
            name.text()
        );
    }
}

/// Same as an array with one object per row.
pub(crate) fn to_json(ours: &Side, stock: &Side) -> Value {
    let row = |(row, ours, stock): (Name, Figure, Figure)| {
        json!({
            "name": row.text(),
            "opensm": stock.value,
            "ours": ours.value,
            "unit": row.unit(),
            "ratio": row.ratio(stock.value, ours.value),
            "stand_in_ns": { "opensm": stock.stand_in, "ours": ours.stand_in },
            "whole_ns": { "ours": ours.whole },
        })
    };
    rows(ours, stock).map(row).collect()
}

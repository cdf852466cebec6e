//! Measures a figure: the same requests repeatedly, the best of several runs.

use std::time::Duration;

use umad_feed::book::Book;
use umad_feed::order::Report;

/// An SA to which requests can be fed.
pub(crate) trait Sa {
    /// The loaded requests.
    type Book;
    /// Loads requests.
    fn load(&mut self, book: &Book) -> Self::Book;
    /// Feeds `total` of them, with at most `window` open.
    fn run(&mut self, book: &Self::Book, total: u64, window: u64) -> Report;
    /// Same without the SA, for the cost of feeding.
    fn echo(&mut self, book: &Self::Book, total: u64, window: u64) -> Report;
    /// Restricts it to one core, or allows all.
    fn set_cores(&mut self, one: bool);
}

/// Duration and number of runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// CPU time of a run.
    pub(crate) run: Duration,
    /// Runs of each combination of window and cores.
    pub(crate) runs: u32,
}

/// The cost of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// CPU time, nanoseconds, less the cost of feeding.
    pub(crate) query_ns: f64,
    /// The cost that was subtracted.
    pub(crate) stand_in_ns: f64,
    /// Records per answer.
    pub(crate) records: f64,
}

impl Cost {
    /// Records per second of CPU time.
    pub(crate) fn records_per_second(&self) -> f64 {
        self.records * 1e9 / self.query_ns
    }
}

/// Open requests at a time; for tables, which are large.
const WINDOWS: [u64; 2] = [64, 256];
const TABLE_WINDOWS: [u64; 2] = [2, 8];

/// The minimum cost of a query of `book`. A run is a multiple of `unit` requests.
///
/// # Panics
///
/// If any answer is wrong.
pub(crate) fn cost<S: Sa>(sa: &mut S, book: &Book, unit: u64, table: bool, effort: Effort) -> Cost {
    let loaded = sa.load(book);
    let windows = if table { TABLE_WINDOWS } else { WINDOWS };
    // The requests that undo a turn must not overtake those that did it.
    let windows =
        windows.map(|window| if unit > 1 { window.min((unit / 4).max(1)) } else { window });
    let mut total = unit;
    let mut best = f64::INFINITY;
    // Until a run takes the intended time.
    let records = loop {
        let report = checked(sa.run(&loaded, total, windows[0]), total);
        if report.query_cpu >= effort.run {
            break report.tally.records as f64 / total as f64;
        }
        let more = effort.run.as_secs_f64() / report.query_cpu.as_secs_f64().max(1e-9);
        let times = (more * 1.1).clamp(1.5, 64.0) * total as f64;
        total = (times as u64).div_ceil(unit) * unit;
    };
    for one_core in [false, true] {
        sa.set_cores(one_core);
        for window in windows {
            for _ in 0..effort.runs {
                let report = checked(sa.run(&loaded, total, window), total);
                best = best.min(report.query_cpu.as_nanos() as f64 / total as f64);
            }
        }
    }
    sa.set_cores(false);
    let echo = |sa: &mut S| {
        let report = sa.echo(&loaded, total, windows[0]);
        report.query_cpu.as_nanos() as f64 / total as f64
    };
    let stand_in_ns = (0..effort.runs).map(|_| echo(sa)).fold(f64::INFINITY, f64::min);
    Cost { query_ns: (best - stand_in_ns).max(0.1), stand_in_ns, records }
}

/// The report, if all answers are correct.
pub(crate) fn checked(report: Report, total: u64) -> Report {
    let tally = &report.tally;
    assert!(
        tally.failed == 0 && tally.answered == total,
        "{} of {total} failed: {}",
        tally.failed,
        tally.failure
    );
    report
}

//! Measuring and printing for benchmarks that criterion does not fit: a few runs, their median and
//! range, and the machine's load.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::fmt;

use crate::cpu::load_average;

/// Whether this is a benchmark run. `cargo test --benches` runs the same programs; a benchmark is
/// not a test and must do nothing then.
pub fn is_benchmark_run() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether to measure a fabric: not if the arguments name others (`-- fat_tree_10000`).
pub fn is_wanted(fabric: &str) -> bool {
    let mut named = std::env::args().filter(|argument| argument.contains("fat_tree")).peekable();
    named.peek().is_none() || named.any(|argument| argument.contains(fabric))
}

/// The figures of several equal runs.
#[derive(Clone, Debug)]
pub struct Runs(Vec<f64>);

impl Runs {
    /// Takes the figures of the runs.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn new(mut figures: Vec<f64>) -> Self {
        assert!(!figures.is_empty(), "at least one run");
        figures.sort_unstable_by(f64::total_cmp);
        Self(figures)
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$}", self.median())?;
        if self.0.len() > 1 {
            write!(f, " ({:.digits$} to {:.digits$})", self.min(), self.max())?;
        }
        Ok(())
    }
}

/// Prints a figure: name, value, unit, and a remark.
pub fn report_figure(name: &str, value: impl fmt::Display, unit: &str) {
    println!("{name:<52} {value} {unit}");
}

/// Prints the load under which the figures were measured.
pub fn report_load() {
    println!("(load average {})", load_average());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_reported_by_median_and_range() {
        assert_eq!(format!("{:.1}", Runs::new(vec![3.0, 1.0, 2.0])), "2.0 (1.0 to 3.0)");
        assert_eq!(format!("{}", Runs::new(vec![1.25])), "1.25");
    }
}

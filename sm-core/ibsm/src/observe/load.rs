//! Represents a load over time: latencies and rates.

use std::time::Duration;

use super::moment::{Load, LoadHistory};
use super::reported::quantile_us;
use super::series::{Fold, Series};

/// A [`Load`] over time.
#[derive(Debug)]
pub(super) struct LoadSeries([Series; 7]);

impl Default for LoadSeries {
    fn default() -> Self {
        use Fold::{Max, Mean};
        Self([Mean, Mean, Mean, Max, Max, Max, Max].map(Series::new))
    }
}

impl LoadSeries {
    /// Appends the load of second `tick`.
    pub(super) fn push(&mut self, tick: u64, load: &Load) {
        let in_flight = load.in_flight.map(|count| count as f64);
        let (p50, p99, p999) = (load.p50_us, load.p99_us, load.p999_us);
        let values =
            [load.answers_per_s, load.dropped_per_s, in_flight, p50, p99, p999, load.lag_ms];
        self.0.iter_mut().zip(values).for_each(|(series, value)| series.push(tick, value));
    }

    /// Reads all its series with `read`.
    pub(super) fn read(&self, read: impl Fn(&Series) -> Vec<Option<f32>>) -> LoadHistory {
        let [answers_per_s, dropped_per_s, in_flight, p50_us, p99_us, p999_us, lag_ms] =
            self.0.each_ref().map(read);
        LoadHistory { answers_per_s, dropped_per_s, in_flight, p50_us, p99_us, p999_us, lag_ms }
    }
}

/// Percentiles of a latency histogram; other fields are unknown.
pub(super) fn latencies(buckets: &[(u64, u64)]) -> Load {
    let quantile = |share| quantile_us(buckets, share).map(|us| (us * 100.0).round() / 100.0);
    Load {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        ..Load::default()
    }
}

/// Rounds to a tenth, which exceeds the accuracy of the figures.
pub(super) fn rounded(value: f64) -> f64 {
    // The sum of no values is -0.0; adding 0.0 makes it positive.
    (value * 10.0).round() / 10.0 + 0.0
}

/// A duration in milliseconds.
pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

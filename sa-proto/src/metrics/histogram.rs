//! Histogram of durations with buckets of half an octave: 1, 1.5, 2, 3, 4, 6, 8 … times the first
//! bound.

use std::time::Duration;

use super::Counter;

/// Limit of buckets per histogram.
const BUCKETS_MAX: usize = 48;

/// Distribution of durations, recorded by one thread. Recording costs a division and two additions,
/// for any number of equal events.
#[derive(Debug)]
pub struct Histogram {
    /// Half of the first bound, in nanoseconds.
    half_ns: u64,
    /// Counts by bound; the last bucket is unbounded. Stored inline, so that histograms of
    /// different threads do not share cache lines.
    buckets: [Counter; BUCKETS_MAX],
    /// Number of buckets in use.
    count: usize,
    sum_ns: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::from_microsecond()
    }
}

impl Histogram {
    /// Buckets from `first` on, for `octaves` doublings, at most 23.
    ///
    /// # Panics
    ///
    /// If there are more.
    pub fn new(first: Duration, octaves: u32) -> Self {
        let half_ns = u64::try_from(first.as_nanos() / 2).unwrap_or(u64::MAX).max(1);
        let count = 2 * octaves as usize + 2;
        assert!(count <= BUCKETS_MAX, "{octaves} doublings are too many");
        let buckets = std::array::from_fn(|_| Counter::default());
        Self { half_ns, buckets, count, sum_ns: Counter::default() }
    }

    /// From 1 µs to 8.4 s, for events such as queries.
    pub fn from_microsecond() -> Self {
        Self::new(Duration::from_micros(1), 23)
    }

    /// From 1 ms to 2,097 s, for operations on a whole fabric.
    pub fn from_millisecond() -> Self {
        Self::new(Duration::from_millis(1), 21)
    }

    /// Counts `events` of duration `time` each.
    #[inline]
    pub fn record(&self, time: Duration, events: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let halves = ns.div_ceil(self.half_ns);
        let bucket = match halves {
            0..=2 => 0,
            // The bound is the smallest of 3, 4, 6, 8, 12, 16 … that is not less.
            _ => {
                let below = halves - 1;
                let octave = below.ilog2();
                (2 * octave - 1) as usize + (below >> (octave - 1) & 1) as usize
            }
        };
        self.buckets[bucket.min(self.count - 1)].add(events);
        self.sum_ns.add(ns.saturating_mul(events));
    }

    /// Number of events counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum()
    }

    /// Sum of their durations in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns.get() as f64 / 1e9
    }

    /// Adds the counts to `buckets`, which is empty or holds counts of a histogram with the same
    /// bounds: pairs of a bound in seconds and a count, the last bound being infinite.
    pub fn add_to(&self, buckets: &mut Vec<(f64, u64)>) {
        if buckets.is_empty() {
            buckets.extend((0..self.count).map(|bucket| (self.bound_s(bucket), 0)));
        }
        for (to, from) in buckets.iter_mut().zip(&self.buckets) {
            to.1 += from.get();
        }
    }

    /// Upper bound of a bucket, in seconds.
    fn bound_s(&self, bucket: usize) -> f64 {
        if bucket + 1 == self.count {
            return f64::INFINITY;
        }
        let mantissa = if bucket.is_multiple_of(2) { 2 } else { 3 };
        (u128::from(self.half_ns) * (mantissa << (bucket / 2))) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_the_first_bucket_that_is_not_below_it() {
        let probe = |ns: u64| {
            let histogram = Histogram::from_microsecond();
            histogram.record(Duration::from_nanos(ns), 1);
            let mut buckets = Vec::new();
            histogram.add_to(&mut buckets);
            let hit = buckets.iter().position(|&(_, count)| count == 1).unwrap();
            let below = hit.checked_sub(1).map_or(-1.0, |below| buckets[below].0);
            (below, buckets[hit].0)
        };
        for ns in (0..40_000).chain([1 << 31, 1 << 32, 8_388_608_000, 8_388_608_001, u64::MAX]) {
            let (below, bound) = probe(ns);
            let s = ns as f64 / 1e9;
            assert!(below < s && s <= bound, "{ns} ns: {below}..{bound}");
        }
        assert_eq!(probe(1000).1, 1e-6);
        assert_eq!(probe(1001).1, 1.5e-6);
        assert_eq!(probe(8_388_608_001).1, f64::INFINITY);
    }

    #[test]
    fn recording_a_batch_counts_each_event() {
        let histogram = Histogram::from_millisecond();
        histogram.record(Duration::from_millis(3), 64);
        assert_eq!((histogram.count(), histogram.sum_s()), (64, 0.192));
    }
}

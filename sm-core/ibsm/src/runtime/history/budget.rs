//! How much of the history loads of links may take.

/// The most that loads take in a day, bytes.
const LOADS_PER_DAY_MAX: u64 = 16 << 20;
/// Part of the whole history that loads take in a day.
const LOADS_PART: u64 = 16;
const DAY_MS: f64 = 24.0 * 3600.0 * 1000.0;
/// What is left over of so much time may be spent at once.
const SAVED_MS: f64 = 3600.0 * 1000.0;

/// Bytes that may be written by and by. What is written last may exceed it; then nothing is for as
/// long.
#[derive(Debug)]
pub(super) struct Budget {
    /// Bytes in a millisecond.
    rate: f64,
    /// Bytes that are left; negative if too much was spent.
    left: f64,
    /// Time of the last look, milliseconds since 1970.
    at_ms: Option<u64>,
}

impl Budget {
    /// That of loads in a history of this length, bytes.
    pub(super) fn for_loads(bytes_max: u64) -> Self {
        let per_day = (bytes_max / LOADS_PART).min(LOADS_PER_DAY_MAX);
        let rate = per_day as f64 / DAY_MS;
        Self { rate, left: rate * SAVED_MS, at_ms: None }
    }

    /// Whether anything may be written at a time, milliseconds since 1970.
    pub(super) fn has_any(&mut self, at_ms: u64) -> bool {
        let since = self.at_ms.replace(at_ms).unwrap_or(at_ms);
        // A clock that is set back gives nothing.
        let passed_ms = at_ms.saturating_sub(since) as f64;
        self.left = (self.left + self.rate * passed_ms).min(self.rate * SAVED_MS);
        self.left > 0.0
    }

    /// Takes what was written, bytes.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.left -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that records of a length take in two days, one a minute.
    fn spent(bytes_max: u64, len: usize) -> usize {
        let mut budget = Budget::for_loads(bytes_max);
        let minutes = (0..2 * 24 * 60).filter(|minute| {
            let has_any = budget.has_any(minute * 60_000);
            if has_any {
                budget.spend(len);
            }
            has_any
        });
        minutes.count() * len
    }

    #[test]
    fn no_more_than_the_part_of_a_day_is_spent() {
        // And what was saved before, and the record that exceeds it.
        let most = |per_day: usize, len: usize| 2 * per_day + per_day / 24 + len;
        for (bytes_max, per_day) in
            [(256 << 20, 16 << 20), (2 << 30, 16 << 20), (16 << 20, 1 << 20)]
        {
            for len in [2000, 30_000, 1 << 20] {
                let spent = spent(bytes_max, len);
                let wanted = (2 * 24 * 60 * len).min(2 * per_day);
                assert!(spent <= most(per_day, len), "{bytes_max} {len} {spent}");
                assert!(spent + len >= wanted, "{bytes_max} {len} {spent}");
            }
        }
    }
}

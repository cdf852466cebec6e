//! Stores a value over time in memory of fixed size: per second for 15 minutes, and per minute for
//! a day.

/// Number of seconds kept.
pub(super) const FINE: usize = 15 * 60;
/// Number of minutes kept.
pub(super) const COARSE: usize = 24 * 60;
/// Seconds in a minute.
const MINUTE: u64 = 60;

/// How the seconds of a minute are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    /// Mean of the seconds.
    Mean,
    /// Largest of the seconds.
    Max,
}

/// One value over time. Unknown values are NaN.
#[derive(Clone, Debug)]
pub(super) struct Series {
    fold: Fold,
    fine: Box<[f32]>,
    coarse: Box<[f32]>,
    /// For the current minute: sum or largest value, and number of values.
    folded: (f32, u16),
}

impl Series {
    pub(super) fn new(fold: Fold) -> Self {
        let unknown = |len| vec![f32::NAN; len].into_boxed_slice();
        Self { fold, fine: unknown(FINE), coarse: unknown(COARSE), folded: (0.0, 0) }
    }

    /// Appends the value of second `tick`, which must be the one after the last.
    pub(super) fn push(&mut self, tick: u64, value: Option<f64>) {
        let value = value.map_or(f32::NAN, |value| value as f32);
        self.fine[(tick % FINE as u64) as usize] = value;
        if !value.is_nan() {
            let (folded, count) = self.folded;
            let folded = match self.fold {
                Fold::Mean => folded + value,
                Fold::Max => folded.max(value),
            };
            self.folded = (folded, count + 1);
        }
        if tick % MINUTE == MINUTE - 1 {
            let (folded, count) = std::mem::take(&mut self.folded);
            self.coarse[(tick / MINUTE % COARSE as u64) as usize] = match (self.fold, count) {
                (_, 0) => f32::NAN,
                (Fold::Mean, count) => folded / f32::from(count),
                (Fold::Max, _) => folded,
            };
        }
    }

    /// The seconds up to `tick`, oldest first, at most `len`.
    pub(super) fn seconds(&self, tick: u64, len: usize) -> Vec<Option<f32>> {
        read(&self.fine, tick + 1, len)
    }

    /// The whole minutes up to second `tick`, oldest first, at most `len`.
    pub(super) fn minutes(&self, tick: u64, len: usize) -> Vec<Option<f32>> {
        read(&self.coarse, (tick + 1) / MINUTE, len)
    }
}

/// The last `len` values of a ring into which `written` values have been written.
fn read(ring: &[f32], written: u64, len: usize) -> Vec<Option<f32>> {
    let len = (len as u64).min(ring.len() as u64).min(written);
    let value = |at: u64| ring[(at % ring.len() as u64) as usize];
    (written - len..written).map(value).map(|value| (!value.is_nan()).then_some(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_kept_for_a_quarter_of_an_hour_and_minutes_for_a_day() {
        let mut series = Series::new(Fold::Mean);
        let last = 100_000u64;
        for tick in 0..=last {
            series.push(tick, (tick != last - 1).then_some(tick as f64));
        }
        let seconds = series.seconds(last, 10_000);
        assert_eq!(seconds.len(), FINE);
        assert_eq!((seconds[FINE - 1], seconds[FINE - 2]), (Some(100_000.0), None));
        assert_eq!(series.seconds(last, 3), [Some(99_998.0), None, Some(100_000.0)]);
        let minutes = series.minutes(last, usize::MAX);
        assert_eq!(minutes.len(), COARSE);
        let last_minute = (last + 1) / 60 * 60;
        assert_eq!(minutes[COARSE - 1], Some((last_minute - 60) as f32 + 29.5));
    }

    #[test]
    fn a_young_series_is_short_and_a_minute_without_values_is_unknown() {
        let mut series = Series::new(Fold::Max);
        for tick in 0..120 {
            series.push(tick, (tick < 60).then_some(f64::from(tick as u32)));
        }
        assert_eq!(series.seconds(119, 900).len(), 120);
        assert_eq!(series.minutes(119, 900), [Some(59.0), None]);
    }
}

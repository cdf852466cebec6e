//! Totals of a port's counters.
//!
//! A total never falls. A reading below the one before it means that somebody else cleared the
//! counter, or that the node started again: what it shows has been counted since.

use super::Counter;

/// What one port counted. Times are seconds since 1970; 0 for never.
#[derive(Clone, Debug)]
pub struct PortCounts {
    totals: [u64; Counter::COUNT],
    /// The last readings of counters that may have 64 bits.
    long: [u64; Counter::LONG_COUNT],
    /// The last readings of the others.
    short: [u32; Counter::COUNT - Counter::LONG_COUNT],
    /// When this manager last cleared counters of the port, or began to count.
    pub last_reset_s: u32,
    /// When error counters were last read.
    pub last_error_update_s: u32,
    /// When data counters were last read.
    pub last_data_update_s: u32,
    /// Time between the two last readings of data counters, milliseconds; 0 before the second,
    /// and while the port is not read.
    pub interval_ms: u32,
    /// Words sent in that time.
    pub recent_xmit_data: u64,
    /// Words received in that time.
    pub recent_rcv_data: u64,
    /// Increase of all counters of [faults](Counter::is_fault) between the two last readings.
    pub recent_faults: u32,
    /// Time between these readings, seconds.
    pub recent_faults_s: u32,
}

/// A port must not cost more than 600 bytes, with its share of the tables of nodes.
const _: () = assert!(size_of::<PortCounts>() <= 552);

/// How a reading changed a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Increase of the total.
    pub(super) by: u64,
    /// The counter was below its last reading.
    pub(super) was_cleared: bool,
}

impl Default for PortCounts {
    fn default() -> Self {
        Self {
            totals: [0; _],
            long: [0; _],
            short: [0; _],
            last_reset_s: 0,
            last_error_update_s: 0,
            last_data_update_s: 0,
            interval_ms: 0,
            recent_xmit_data: 0,
            recent_rcv_data: 0,
            recent_faults: 0,
            recent_faults_s: 0,
        }
    }
}

impl PortCounts {
    /// Nothing counted yet, since a time in seconds since 1970.
    pub(super) fn new(now_s: u32) -> Self {
        Self { last_reset_s: now_s, ..Self::default() }
    }

    /// The total of a counter.
    pub fn total(&self, counter: Counter) -> u64 {
        self.totals[counter as usize]
    }

    /// The last reading of a counter, 0 after it was cleared.
    pub(super) fn last(&self, counter: Counter) -> u64 {
        let at = counter as usize;
        self.long.get(at).copied().unwrap_or_else(|| self.short[at - Counter::LONG_COUNT].into())
    }

    /// Sets the last reading.
    pub(super) fn set_last(&mut self, counter: Counter, value: u64) {
        let at = counter as usize;
        match self.long.get_mut(at) {
            Some(last) => *last = value,
            None => self.short[at - Counter::LONG_COUNT] = u32::try_from(value).unwrap_or(u32::MAX),
        }
    }

    /// Sets the last readings to 0: the counters were cleared.
    pub(super) fn forget(&mut self, counters: &[Counter]) {
        counters.iter().for_each(|&counter| self.set_last(counter, 0));
    }

    /// Adds a reading to the total.
    pub(super) fn add(&mut self, counter: Counter, value: u64) -> Change {
        let last = self.last(counter);
        let was_cleared = value < last;
        let by = if was_cleared { value } else { value - last };
        self.set_last(counter, value);
        let total = &mut self.totals[counter as usize];
        *total = total.saturating_add(by);
        Change { by, was_cleared }
    }

    /// Makes the rates unknown: the port is not read at present.
    pub(super) fn forget_rates(&mut self) {
        (self.interval_ms, self.recent_xmit_data, self.recent_rcv_data) = (0, 0, 0);
        self.recent_faults = 0;
    }

    /// Sets all totals to 0; counting continues.
    pub(super) fn clear_totals(&mut self, now_s: u32) {
        self.totals = [0; _];
        self.last_reset_s = now_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_continues_when_somebody_else_clears_the_counter() {
        let mut counts = PortCounts::default();
        for counter in [Counter::RcvErrors, Counter::LoopingErrors] {
            assert_eq!(counts.add(counter, 10), Change { by: 10, was_cleared: false });
            assert_eq!(counts.add(counter, 10), Change { by: 0, was_cleared: false });
            assert_eq!(counts.add(counter, 4), Change { by: 4, was_cleared: true });
            assert_eq!(counts.add(counter, 9), Change { by: 5, was_cleared: false });
            assert_eq!(counts.total(counter), 19);
        }
    }

    #[test]
    fn a_clear_of_this_manager_is_none_of_others() {
        let mut counts = PortCounts::default();
        counts.add(Counter::SymbolError, 50_000);
        counts.set_last(Counter::SymbolError, 0);
        let change = counts.add(Counter::SymbolError, 3);
        assert_eq!(change, Change { by: 3, was_cleared: false });
        assert_eq!(counts.total(Counter::SymbolError), 50_003);
    }

    #[test]
    fn totals_saturate() {
        let mut counts = PortCounts::default();
        counts.add(Counter::XmitData, u64::MAX);
        counts.add(Counter::XmitData, 7);
        assert_eq!(counts.total(Counter::XmitData), u64::MAX);
    }
}

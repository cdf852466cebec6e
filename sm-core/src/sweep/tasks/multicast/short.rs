//! Record of the switches that were reported for multicast tables that are too small.

use std::collections::BTreeMap;

use ib_mad::types::Guid;

/// Switches that were reported because their multicast table is too small: the number of its MLIDs,
/// by node GUID.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Short(pub(super) BTreeMap<Guid, u16>);

impl Short {
    /// Records a switch; returns whether that is new and should be reported.
    pub(in crate::sweep) fn note(&mut self, switch: Guid, capacity: u16) -> bool {
        self.0.insert(switch, capacity) != Some(capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: two jobs that lacked room alternately were reported each time.
    #[test]
    fn full_tables_are_reported_once_per_switch_and_capacity() {
        let mut short = Short::default();
        let stated = [(1, 0), (2, 512), (1, 0), (2, 512), (1, 64), (1, 64)]
            .map(|(guid, capacity)| short.note(Guid(guid), capacity));
        assert_eq!(stated, [true, true, false, false, true, false]);
    }
}

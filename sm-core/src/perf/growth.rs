//! What a reading added to the counters that OpenSM passes to event plug-ins.

use super::Counter;

/// Largest number of counters in a group.
const COUNTERS_MAX: usize = 12;

/// Counters that are one event of OpenSM's plug-ins (`osm_event_plugin.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Errors: all that OpenSM lists, without XmitWait.
    Errors,
    /// Data and packets.
    Data,
    /// XmitWait.
    Waiting,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 3] = [Self::Errors, Self::Data, Self::Waiting];

    /// The counters, in OpenSM's order.
    pub fn counters(self) -> &'static [Counter] {
        match self {
            Self::Errors => &Counter::OPENSM_ERRORS.all()[..COUNTERS_MAX],
            Self::Data => Counter::DATA.all(),
            Self::Waiting => &[Counter::XmitWait],
        }
    }

    /// The group of a counter and its place there.
    fn of(counter: Counter) -> Option<(Self, usize)> {
        let place = |group: Self| {
            let first = *group.counters().first()? as usize;
            let at = (counter as usize).checked_sub(first)?;
            (at < group.counters().len()).then_some((group, at))
        };
        Self::ALL.into_iter().find_map(place)
    }
}

/// Growth of the counters of a group between two readings of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The group.
    pub group: Group,
    /// Time between the readings, seconds; at least 1.
    pub seconds: u32,
    by: [u64; COUNTERS_MAX],
}

impl Growth {
    /// Growth of counters of a group; others are left out.
    pub fn new(
        group: Group,
        seconds: u32,
        grown: impl IntoIterator<Item = (Counter, u64)>,
    ) -> Self {
        let mut growth = Self { group, seconds: seconds.max(1), by: [0; _] };
        for (counter, by) in grown {
            if let Some((of, at)) = Group::of(counter)
                && of == group
            {
                growth.by[at] = by;
            }
        }
        growth
    }

    /// The counters that grew, and by how much; data in words of 4 bytes.
    pub fn grown(&self) -> impl Iterator<Item = (Counter, u64)> {
        let counters = self.group.counters().iter().copied().zip(self.by);
        counters.filter(|(_, by)| *by > 0)
    }
}

/// Growth found in one answer, by group.
#[derive(Default)]
pub(super) struct Found([[u64; COUNTERS_MAX]; Group::ALL.len()]);

impl Found {
    pub(super) fn add(&mut self, counter: Counter, by: u64) {
        if let Some((group, at)) = Group::of(counter) {
            self.0[group as usize][at] = by;
        }
    }

    /// The growth of a group, if any of its counters grew.
    pub(super) fn of(&self, group: Group, seconds: u32) -> Option<Growth> {
        let by = self.0[group as usize];
        let is_news = by.iter().any(|by| *by > 0);
        is_news.then_some(Growth { group, seconds: seconds.max(1), by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `osm_epi_pe_event_t`, `osm_epi_dc_event_t` and `osm_epi_ps_event_t`.
    #[test]
    fn groups_are_those_of_opensm_and_share_no_counter() {
        let counts = Group::ALL.map(|group| group.counters().len());
        assert_eq!(counts, [12, 8, 1]);
        for group in Group::ALL {
            for (at, &counter) in group.counters().iter().enumerate() {
                assert_eq!(Group::of(counter), Some((group, at)), "{counter:?}");
            }
        }
        assert_eq!(Group::of(Counter::Qp1Dropped), None);
        assert_eq!(Group::of(Counter::FecCorrectedSymbols), None);
    }
}

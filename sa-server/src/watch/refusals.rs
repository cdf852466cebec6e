//! Logs queries that were refused because the answer or the search exceeded its limit. The client
//! only receives NO_RESOURCES, which does not say how to narrow the query.

use std::fmt;
use std::time::{Duration, Instant};

use crate::stats::{Stats, StatusLabel, Subject};

/// Minimum time between two lines.
const PAUSE: Duration = Duration::from_secs(30);

/// Counts logged so far.
#[derive(Debug, Default)]
pub(crate) struct LimitLog {
    logged: u64,
    next: Option<Instant>,
}

impl LimitLog {
    /// The refusals to log now: `None` if there are no new ones or the last line is too recent.
    /// `workers`: their counters.
    pub(crate) fn look<'a>(
        &mut self,
        now: Instant,
        workers: impl Iterator<Item = &'a Stats> + Clone,
    ) -> Option<Refusals> {
        let total: u64 = workers.clone().map(Stats::beyond_limits).sum();
        if total == self.logged || self.next.is_some_and(|next| now < next) {
            return None;
        }
        let refused = total.saturating_sub(self.logged);
        (self.logged, self.next) = (total, Some(now + PAUSE));
        let of = |subject| {
            let count = |stats: &Stats| stats.responses_of(subject, StatusLabel::NoResources);
            workers.clone().map(count).sum::<u64>()
        };
        let is_any = |subject: &Subject| subject.is_query() && of(*subject) > 0;
        let name = |subject: Subject| format!("{} by {}", subject.attribute(), subject.method());
        let subjects: Vec<_> = Subject::all().filter(is_any).map(name).collect();
        Some(Refusals { refused, total, subjects })
    }
}

/// Queries refused, as one line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusals {
    /// Since the last line.
    refused: u64,
    /// Since the start.
    total: u64,
    /// Attributes and methods refused since the start.
    subjects: Vec<String>,
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, total, subjects } = self;
        write!(
            f,
            "refused {refused} queries with NO_RESOURCES since the last report, {total} in all \
             ({}): the limits are 32 MiB for a table answer, 2 million search steps, 65,536 for a \
             Get; clients should query paths by source or destination",
            subjects.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::sa::attribute;

    /// Regression: `saquery -p` on a large fabric failed, and the responder reported no reason.
    #[test]
    fn refusals_are_logged_at_once_and_then_at_most_every_30_seconds() {
        let (stats, start) = (Stats::default(), Instant::now());
        let mut log = LimitLog::default();
        let table = Subject::of(attribute::PATH_RECORD, Method::GET_TABLE);
        let write = Subject::of(attribute::MC_MEMBER_RECORD, Method::SET);
        let mut look =
            |seconds| log.look(start + Duration::from_secs(seconds), std::iter::once(&stats));
        stats.count_responses(write, Status::SA_NO_RESOURCES, 1);
        stats.count_responses(table, Status::OK, 1);
        assert_eq!(look(0), None, "neither is a query that was refused");
        stats.count_responses(table, Status::SA_NO_RESOURCES, 1);
        let refusals = |refused, total| {
            let subjects = vec!["PathRecord by get_table".to_owned()];
            Some(Refusals { refused, total, subjects })
        };
        assert_eq!(look(1), refusals(1, 1));
        stats.count_responses(table, Status::SA_NO_RESOURCES, 7);
        assert_eq!(look(30), None);
        assert_eq!(look(31), refusals(7, 8));
        assert_eq!(look(100), None, "nothing new");
    }
}

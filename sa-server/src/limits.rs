//! Telling the log of queries that were refused since their answers would be too large: the client is
//! told NO_RESOURCES, which says nothing of what to ask for instead.

use std::time::{Duration, Instant};

use crate::stats::{Stats, StatusLabel, Subject};

/// The least time from one line to the next.
const PAUSE: Duration = Duration::from_secs(30);

/// What was told so far.
#[derive(Debug, Default)]
pub(crate) struct LimitLog {
    told: u64,
    next: Option<Instant>,
}

impl LimitLog {
    /// A line for the log, if there is something to tell that was not told and the last line is long
    /// enough ago. `workers`: what they count.
    pub(crate) fn look<'a>(
        &mut self,
        now: Instant,
        workers: impl Iterator<Item = &'a Stats> + Clone,
    ) -> Option<String> {
        let total: u64 = workers.clone().map(Stats::beyond_limits).sum();
        if total == self.told || self.next.is_some_and(|next| now < next) {
            return None;
        }
        let refused = total.saturating_sub(self.told);
        (self.told, self.next) = (total, Some(now + PAUSE));
        let of = |subject| {
            let count = |stats: &Stats| stats.responses_of(subject, StatusLabel::NoResources);
            workers.clone().map(count).sum::<u64>()
        };
        let is_any = |subject: &Subject| subject.is_query() && of(*subject) > 0;
        let name = |subject: Subject| format!("{} by {}", subject.attribute(), subject.method());
        let subjects: Vec<_> = Subject::all().filter(is_any).map(name).collect();
        Some(format!(
            "queries refused with NO_RESOURCES: {refused} since this was last told, {total} in all \
             ({}). A table answer has 32 MiB at most, a search 2 million steps, that of a Get 65,536; \
             ask for paths by source or destination",
            subjects.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::sa::attribute;

    /// `saquery -p` on a large fabric failed, and nothing at the responder said why.
    #[test]
    fn what_is_too_large_is_told_at_once_and_then_now_and_then() {
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
        let line = look(1).unwrap();
        assert!(line.contains("NO_RESOURCES: 1 since this was last told, 1 in all"), "{line}");
        assert!(line.contains("PathRecord by get_table"), "{line}");
        stats.count_responses(table, Status::SA_NO_RESOURCES, 7);
        assert_eq!(look(30), None);
        assert!(look(31).unwrap().contains("7 since this was last told, 8 in all"));
        assert_eq!(look(100), None, "nothing new");
    }
}

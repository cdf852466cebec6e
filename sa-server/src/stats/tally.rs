//! Counts of one batch before they are added to the worker's counters.
//!
//! Most requests of a batch are alike; they are counted in registers and added once.

use ib_mad::wire::mad::Status;

use crate::stats::{Stats, Subject};

/// Counts that are added to [`Stats`] when it is dropped, even by a panic: every request that was
/// begun is then flushed.
pub(crate) struct Tally<'a> {
    stats: &'a Stats,
    /// Subject of the last requests, and how many in a row had it.
    asked: Subject,
    requests: u64,
    /// Status of the last answers, and how many in a row had it.
    said: (Subject, Status),
    responses: u64,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(stats: &'a Stats) -> Self {
        let (asked, said) = (Subject::NONE, (Subject::NONE, Status::OK));
        Self { stats, asked, requests: 0, said, responses: 0 }
    }

    /// Counts a request.
    #[inline]
    pub(crate) fn request(&mut self, subject: Subject) {
        if subject != self.asked {
            self.flush();
            self.asked = subject;
        }
        self.requests += 1;
    }

    /// Counts an answer.
    #[inline]
    pub(crate) fn respond(&mut self, subject: Subject, status: Status) {
        let said = (subject, status);
        if said != self.said {
            self.flush();
            self.said = said;
        }
        self.responses += 1;
    }

    fn flush(&mut self) {
        self.stats.count_requests(self.asked, std::mem::take(&mut self.requests));
        let (subject, status) = self.said;
        self.stats.count_responses(subject, status, std::mem::take(&mut self.responses));
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::StatusLabel;
    use ib_mad::wire::mad::Method;
    use ib_mad::wire::sa::attribute;

    #[test]
    fn alternating_answers_are_counted_separately() {
        let stats = Stats::default();
        let path = Subject::of(attribute::PATH_RECORD, Method::GET);
        let mut tally = Tally::new(&stats);
        tally.request(path);
        for i in 0..7 {
            let status = if i % 3 == 0 { Status::SA_NO_RECORDS } else { Status::OK };
            tally.respond(path, status);
            tally.request(path);
        }
        drop(tally);
        let count = |status| stats.responses_of(path, status);
        assert_eq!((count(StatusLabel::Ok), count(StatusLabel::NoRecords)), (4, 3));
        assert_eq!((stats.requests(), stats.responses()), (8, 7));
    }

    #[test]
    fn equal_answers_are_counted_at_the_end() {
        let stats = Stats::default();
        let path = Subject::of(attribute::PATH_RECORD, Method::GET);
        let mut tally = Tally::new(&stats);
        for _ in 0..3 {
            tally.request(path);
            tally.respond(path, Status::OK);
        }
        assert!(stats.requests() + stats.responses() < 6);
        drop(tally);
        assert_eq!((stats.requests(), stats.responses()), (3, 3));
    }
}

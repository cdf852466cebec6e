//! Counters of a worker: one writer each, any number of readers, no locks.
//!
//! Every request has exactly one result, so that at any moment `requests = responses + dropped + in
//! flight`. A request costs two additions, one on arrival and one with its answer, to counters
//! selected by attribute, method and status. A path costs a third addition, to the counter of its
//! QoS level. Readers compute all sums.

mod label;
pub mod requesters;
mod subject;
pub(crate) mod tally;

use std::time::Duration;

use ib_mad::wire::mad::Status;
pub use sa_proto::metrics::{Counter, Histogram};

use crate::stats::requesters::Requesters;
pub use crate::tables::qos_match::LevelCounts;
pub use label::{DropReason, Kind, StatusLabel};
pub use subject::Subject;

/// Statuses that are counted separately.
const STATUSES: usize = StatusLabel::ALL.len();

/// RMPP transfers of one direction.
#[derive(Debug, Default)]
pub struct Sessions {
    /// Begun.
    pub begun: Counter,
    /// Ended with all data at the receiver.
    pub complete: Counter,
    /// Given up by either side.
    pub failed: Counter,
    /// Under way now.
    pub active: Counter,
}

/// Counters of one worker. They share no cache line with those of another; processors fetch lines
/// in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub struct Stats {
    /// Packets that are part of a transfer under way: ACK, STOP, ABORT, further segments.
    pub transfer_packets: Counter,
    /// Segments sent, repeats included.
    pub segments_sent: Counter,
    /// Segments sent again, since no acknowledgement came.
    pub segments_repeated: Counter,
    /// Answers of several segments.
    pub rmpp_out: Sessions,
    /// Requests of several segments.
    pub rmpp_in: Sessions,
    /// Batches received.
    pub batches: Counter,
    /// Requests passed on to the SM.
    pub forwarded: Counter,
    /// Queries that waited for the SM's sequence number.
    pub reads_asked: Counter,
    /// Answers to reports that came in.
    pub report_answers: Counter,
    /// Answers to reports that were lost because too many waited.
    pub report_answers_lost: Counter,
    /// Reports sent, repeats included.
    pub reports_sent: Counter,
    /// Traps that reached the responder's port, to be passed on to the SM. These and SMInfo are no
    /// requests of the class.
    pub traps: Counter,
    /// Traps dropped because too many were queued.
    pub traps_lost: Counter,
    /// Get(SMInfo) answered in the SM's place.
    pub sm_infos: Counter,
    /// Answers among the responses that left by the responder's own port, though their requests
    /// came by the front door.
    pub direct_answers: Counter,
    /// Datagrams received that were not as long as a packet.
    pub malformed_length: Counter,
    /// Received datagrams without a valid envelope.
    pub malformed_envelope: Counter,
    /// Packets received in envelopes from untrusted addresses.
    pub malformed_stranger: Counter,
    /// Paths answered, by QoS level.
    pub levels: LevelCounts,
    /// Requests by requester, estimated.
    pub requesters: Requesters,
    /// Packets that the transport lost because a queue was full: requests before they were read,
    /// which do not count as requests, and over a ring also answers.
    pub socket_overflow: Counter,
    requests: [Counter; Subject::COUNT],
    responses: [[Counter; STATUSES]; Subject::COUNT],
    dropped: [Counter; DropReason::ALL.len()],
    /// Requests whose answer, or rest, is under way; set by the worker.
    in_flight: Counter,
    latency: [Histogram; Kind::ALL.len()],
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            transfer_packets: Counter::default(),
            segments_sent: Counter::default(),
            segments_repeated: Counter::default(),
            rmpp_out: Sessions::default(),
            rmpp_in: Sessions::default(),
            batches: Counter::default(),
            forwarded: Counter::default(),
            reads_asked: Counter::default(),
            report_answers: Counter::default(),
            report_answers_lost: Counter::default(),
            reports_sent: Counter::default(),
            traps: Counter::default(),
            traps_lost: Counter::default(),
            sm_infos: Counter::default(),
            direct_answers: Counter::default(),
            malformed_length: Counter::default(),
            malformed_envelope: Counter::default(),
            malformed_stranger: Counter::default(),
            levels: LevelCounts::default(),
            requesters: Requesters::default(),
            socket_overflow: Counter::default(),
            requests: std::array::from_fn(|_| Counter::default()),
            responses: std::array::from_fn(|_| Default::default()),
            dropped: Default::default(),
            in_flight: Counter::default(),
            latency: std::array::from_fn(|_| Histogram::from_microsecond()),
        }
    }
}

impl Stats {
    /// Counts requests that came in.
    #[inline]
    pub fn count_requests(&self, subject: Subject, count: u64) {
        self.requests[usize::from(subject.0)].add(count);
    }

    /// Counts requests that were answered.
    #[inline]
    pub fn count_responses(&self, subject: Subject, status: Status, count: u64) {
        self.responses[usize::from(subject.0)][StatusLabel::of(status) as usize].add(count);
    }

    /// Counts a request that is not answered.
    #[inline]
    pub fn drop_request(&self, reason: DropReason) {
        self.dropped[reason as usize].increment();
    }

    /// Requests received, with any result.
    pub fn requests(&self) -> u64 {
        self.requests.iter().map(Counter::get).sum()
    }

    /// Requests received about a subject.
    pub fn requests_of(&self, subject: Subject) -> u64 {
        self.requests[usize::from(subject.0)].get()
    }

    /// Requests answered.
    pub fn responses(&self) -> u64 {
        self.responses.as_flattened().iter().map(Counter::get).sum()
    }

    /// Answers about a subject with a status.
    pub fn responses_of(&self, subject: Subject, status: StatusLabel) -> u64 {
        self.responses[usize::from(subject.0)][status as usize].get()
    }

    /// Queries that were refused since their answer, or the search for it, would have been larger
    /// than any may be: nothing else refuses a query for want of resources.
    pub fn beyond_limits(&self) -> u64 {
        let refused = |subject| self.responses_of(subject, StatusLabel::NoResources);
        Subject::all().filter(|subject| subject.is_query()).map(refused).sum()
    }

    /// Requests dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize].get()
    }

    /// Requests dropped.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().map(Counter::get).sum()
    }

    /// Requests whose answer, or rest, is under way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    pub(crate) fn set_in_flight(&self, count: usize) {
        self.in_flight.set(count as u64);
    }

    /// Counts `requests` that each took `time` from being read to being answered.
    #[inline]
    pub(crate) fn record_latency(&self, kind: Kind, time: Duration, requests: u64) {
        if requests > 0 {
            self.latency[kind as usize].record(time, requests);
        }
    }

    /// How long answers of a kind took.
    pub fn latency(&self, kind: Kind) -> &Histogram {
        &self.latency[kind as usize]
    }

    /// Counts the requests that a failed worker was processing as dropped.
    pub(crate) fn abandon(&self) {
        let ended = self.responses() + self.dropped_total();
        let lost = self.requests().saturating_sub(ended);
        self.dropped[DropReason::WorkerFailed as usize].add(lost);
        self.set_in_flight(0);
        for sessions in [&self.rmpp_in, &self.rmpp_out] {
            sessions.failed.add(sessions.active.get());
            sessions.active.set(0);
        }
    }

    /// Whether every request is accounted for. Exact only while the worker is at rest.
    pub fn balances(&self) -> bool {
        self.requests() == self.responses() + self.dropped_total() + self.in_flight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::mad::{AttributeId, Method};

    /// Regression: workers' counters were adjacent in memory: each worker wrote to cache lines of
    /// its neighbour.
    #[test]
    fn workers_share_no_cache_line() {
        assert_eq!((align_of::<Stats>(), size_of::<Stats>() % 128), (128, 0));
        let counted = size_of::<[[Counter; STATUSES]; Subject::COUNT]>() + size_of::<LevelCounts>();
        assert!(size_of::<Stats>() > counted, "what is counted lies within");
    }

    #[test]
    fn labels_are_distinct_and_in_the_order_of_their_index() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.label()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }

    #[test]
    fn subjects_are_distinguished_by_attribute_and_method() {
        let name = |attribute: u16, method| {
            let subject = Subject::of(AttributeId(attribute), method);
            (subject.attribute(), subject.method())
        };
        assert_eq!(name(0x35, Method::GET), ("PathRecord", "get"));
        assert_eq!(name(0x3A, Method::GET_MULTI), ("MultiPathRecord", "get_multi"));
        assert_eq!(name(0x01, Method::GET), ("ClassPortInfo", "get"));
        assert_eq!(name(0xFFFF, Method::DELETE), ("other", "delete"));
        assert_eq!(name(0x38, Method::GET_RESP), ("MCMemberRecord", "other"));
        assert_eq!(Subject::NONE.attribute(), "other");
        let mut names: Vec<_> =
            Subject::all().map(|subject| (subject.attribute(), subject.method())).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Subject::COUNT);
    }
}

//! What a worker counts. One writer each, any number of readers, no locks.
//!
//! Every request ends in exactly one way, so that at any moment
//! `requests = responses + dropped + in flight`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ib_mad::wire::mad::{Method, Status};

/// A number that one thread counts up and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one. The only writer needs no read-modify-write instruction.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed) + count, Relaxed);
    }

    /// The count so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares an enum whose variants are indices and have names for metrics.
macro_rules! labels {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Name as a metric label.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

labels! {
    /// Why a request was not answered.
    pub enum DropReason {
        /// No snapshot has been received yet.
        NotReady = "not_ready",
        /// Not a MAD of the SA class, or of another base version.
        NotSubnetAdministration = "not_subnet_administration",
        /// A packet of ours that could not be delivered and came back.
        Returned = "returned",
        /// An answer to something that we did not ask.
        UnexpectedResponse = "unexpected_response",
        /// An SM_Key that is neither 0 nor the right one.
        WrongSmKey = "wrong_sm_key",
        /// A method that the SA does not have, or not for this attribute.
        UnsupportedMethod = "unsupported_method",
        /// An attribute that the SA does not have.
        UnsupportedAttribute = "unsupported_attribute",
        /// From a LID that is in nobody's possession.
        UnknownRequester = "unknown_requester",
        /// Repeats a request whose answer is being sent.
        Duplicate = "duplicate",
        /// Waited so long that its sender has given up or asked again.
        Stale = "stale",
        /// No place for another transfer of several segments.
        TooManyTransfers = "too_many_transfers",
        /// No memory left for table answers.
        NoMemory = "no_memory",
        /// The request's RMPP header was malformed.
        MalformedRmpp = "malformed_rmpp",
        /// The transfer of the request or of the answer was given up.
        TransferFailed = "transfer_failed",
        /// A write, and no SM to pass it on to.
        NoSm = "no_sm",
        /// A write, and too many wait for the SM already.
        TooManyWrites = "too_many_writes",
        /// A write whose outcome did not come in time.
        WriteTimedOut = "write_timed_out",
        /// A write that the SM had dropped.
        WriteUnheard = "write_unheard",
        /// In work when a worker failed, which is a bug of ours.
        WorkerFailed = "worker_failed",
    }
}

labels! {
    /// Statuses that answers are counted by.
    pub enum StatusLabel {
        /// All well.
        Ok = "ok",
        /// A redirection.
        Redirect = "redirect",
        /// Method and attribute together not supported.
        Unsupported = "unsupported",
        /// No resources.
        NoResources = "no_resources",
        /// The request is invalid.
        RequestInvalid = "request_invalid",
        /// No records match.
        NoRecords = "no_records",
        /// Several records match a Get().
        TooManyRecords = "too_many_records",
        /// Components are missing.
        InsufficientComponents = "insufficient_components",
        /// Any other.
        Other = "other",
    }
}

impl StatusLabel {
    /// The label of a status.
    #[inline]
    pub const fn of(status: Status) -> Self {
        match status {
            Status::OK => Self::Ok,
            Status::REDIRECT => Self::Redirect,
            Status::UNSUPPORTED_METHOD_ATTRIBUTE => Self::Unsupported,
            Status::SA_NO_RESOURCES => Self::NoResources,
            Status::SA_REQ_INVALID => Self::RequestInvalid,
            Status::SA_NO_RECORDS => Self::NoRecords,
            Status::SA_TOO_MANY_RECORDS => Self::TooManyRecords,
            Status::SA_INSUFFICIENT_COMPONENTS => Self::InsufficientComponents,
            _ => Self::Other,
        }
    }
}

labels! {
    /// Methods that answers are counted by.
    pub enum MethodLabel {
        /// Get().
        Get = "get",
        /// GetTable().
        GetTable = "get_table",
        /// Set().
        Set = "set",
        /// Delete().
        Delete = "delete",
        /// Any other.
        Other = "other",
    }
}

impl MethodLabel {
    /// The label of a method.
    #[inline]
    pub const fn of(method: Method) -> Self {
        match method {
            Method::GET => Self::Get,
            Method::GET_TABLE => Self::GetTable,
            Method::SET => Self::Set,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }
}

/// Attributes that answers are counted by: as many as an id of one byte can name.
const ATTRIBUTES: usize = 256;

/// Answers by method and status.
pub type Answers = [[Counter; StatusLabel::ALL.len()]; MethodLabel::ALL.len()];

/// Time buckets, each twice the one before: less than 2^(n+1) ns.
const BUCKETS: usize = 32;

/// What one worker counts.
#[derive(Debug)]
pub struct Stats {
    /// Requests received, whatever became of them.
    pub requests: Counter,
    /// Requests answered.
    pub responses: Counter,
    /// Packets that are part of a transfer under way: ACK, STOP, ABORT, further segments.
    pub transfer_packets: Counter,
    /// Segments sent, repeats included.
    pub segments_sent: Counter,
    /// Batches received.
    pub batches: Counter,
    /// Requests passed on to the SM.
    pub forwarded: Counter,
    /// Answers to reports that came in.
    pub report_answers: Counter,
    /// Answers to reports that were lost because too many waited.
    pub report_answers_lost: Counter,
    /// Reports sent, repeats included.
    pub reports_sent: Counter,
    /// Traps that reached the responder's port, to be passed on to the SM. These and SMInfo are no
    /// requests of the class.
    pub traps: Counter,
    /// Traps among them that too many others were before.
    pub traps_lost: Counter,
    /// Get(SMInfo) answered in the SM's place.
    pub sm_infos: Counter,
    /// Answers among the responses that left by the responder's own port, though their requests
    /// came by the front door.
    pub direct_answers: Counter,
    /// Datagrams received that were not as long as a packet.
    pub malformed_length: Counter,
    /// Datagrams received that began with no envelope of ours.
    pub malformed_envelope: Counter,
    dropped: [Counter; DropReason::ALL.len()],
    /// Requests whose answer, or rest, is under way; set by the worker.
    in_flight: AtomicU64,
    answers: Box<[Answers; ATTRIBUTES]>,
    latency: [Counter; BUCKETS],
    latency_sum_ns: Counter,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            requests: Counter::default(),
            responses: Counter::default(),
            transfer_packets: Counter::default(),
            segments_sent: Counter::default(),
            batches: Counter::default(),
            forwarded: Counter::default(),
            report_answers: Counter::default(),
            report_answers_lost: Counter::default(),
            reports_sent: Counter::default(),
            traps: Counter::default(),
            traps_lost: Counter::default(),
            sm_infos: Counter::default(),
            direct_answers: Counter::default(),
            malformed_length: Counter::default(),
            malformed_envelope: Counter::default(),
            dropped: Default::default(),
            in_flight: AtomicU64::new(0),
            answers: Box::new(std::array::from_fn(|_| Answers::default())),
            latency: std::array::from_fn(|_| Counter::default()),
            latency_sum_ns: Counter::default(),
        }
    }
}

impl Stats {
    /// Counts a request that is not answered.
    #[inline]
    pub fn drop_request(&self, reason: DropReason) {
        self.dropped[reason as usize].increment();
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
        self.in_flight.load(Relaxed)
    }

    pub(crate) fn set_in_flight(&self, count: usize) {
        self.in_flight.store(count as u64, Relaxed);
    }

    /// Counts what an answer says.
    #[inline]
    pub(crate) fn answer(&self, attribute: u16, method: MethodLabel, status: Status) {
        let attribute = usize::from(attribute) % ATTRIBUTES;
        self.answers[attribute][method as usize][StatusLabel::of(status) as usize].increment();
    }

    /// Answers about an attribute, by its id.
    pub fn answers_of(&self, attribute: u16) -> &Answers {
        &self.answers[usize::from(attribute) % ATTRIBUTES]
    }

    /// Counts `requests` that each took `time` from being read to being answered.
    #[inline]
    pub(crate) fn record_latency(&self, time: Duration, requests: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.latency[(ns.ilog2() as usize).min(BUCKETS - 1)].add(requests);
        self.latency_sum_ns.add(ns.saturating_mul(requests));
    }

    /// Latency so far: pairs of a bucket's upper bound in seconds and its count, and the sum in
    /// seconds.
    pub fn latency(&self) -> (Vec<(f64, u64)>, f64) {
        let bound = |bucket: usize| (2u64 << bucket) as f64 / 1e9;
        let buckets = self.latency.iter().enumerate();
        (
            buckets.map(|(bucket, count)| (bound(bucket), count.get())).collect(),
            self.latency_sum_ns.get() as f64 / 1e9,
        )
    }

    /// Counts what a failed worker had in work as dropped.
    pub(crate) fn abandon(&self) {
        let ended = self.responses.get() + self.dropped_total();
        let lost = self.requests.get().saturating_sub(ended);
        self.dropped[DropReason::WorkerFailed as usize].add(lost);
        self.set_in_flight(0);
    }

    /// Whether every request is accounted for. Exact only while the worker is at rest.
    pub fn balances(&self) -> bool {
        self.requests.get() == self.responses.get() + self.dropped_total() + self.in_flight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn latency_falls_into_the_bucket_above_it() {
        let stats = Stats::default();
        stats.record_latency(Duration::from_nanos(1000), 3);
        stats.record_latency(Duration::from_secs(100), 1);
        let (buckets, sum) = stats.latency();
        assert_eq!(buckets[9], (1024.0 / 1e9, 3));
        assert_eq!(buckets[BUCKETS - 1].1, 1, "beyond the last bound");
        assert!((sum - 100.000_003).abs() < 1e-6);
    }
}

//! What a worker counts. One writer each, any number of readers, no locks.
//!
//! Every request ends in exactly one way, so that at any moment
//! `requests = responses + dropped + in flight`. A request costs two additions, one when it comes
//! and one when it is answered, each to a counter that its attribute, method and status choose; a
//! path costs a third, to that of its QoS level. All sums are made by whoever reads.

use std::time::Duration;

use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::attribute;
pub use sa_proto::metrics::{Counter, Histogram};

pub use crate::qos_match::LevelCounts;
use crate::requesters::Requesters;

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
        /// Repeated by a request that came after it, or repeats one whose answer is being sent.
        Duplicate = "duplicate",
        /// Waited so long that its sender has given up or asked again.
        Stale = "stale",
        /// The oldest of those that waited when there was no room for more.
        QueueFull = "queue_full",
        /// Gave way when there was no room for more: its source had more than its share waiting.
        SourceShare = "source_share",
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
    /// Methods that requests are counted by.
    pub enum MethodLabel {
        /// Get().
        Get = "get",
        /// GetTable().
        GetTable = "get_table",
        /// GetMulti().
        GetMulti = "get_multi",
        /// Set().
        Set = "set",
        /// Delete().
        Delete = "delete",
        /// Any other.
        Other = "other",
    }
}

labels! {
    /// What a request had to wait for, and so how long it may take.
    pub enum Kind {
        /// One MAD that was answered at once by one.
        Get = "get",
        /// GetTable and GetMulti: until the client has acknowledged the last segment, if there are
        /// several.
        Table = "table",
        /// What only the SM could decide: writes, and queries that had to wait for earlier ones.
        Write = "write",
    }
}

/// Methods that are told apart.
const METHODS: usize = MethodLabel::ALL.len();
/// Attributes that are told apart: those of the class, and all others together.
const ATTRIBUTES: usize = attribute::ALL.len() + 1;
/// Statuses that are told apart.
const STATUSES: usize = StatusLabel::ALL.len();

/// What a request is about: attribute and method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(u8);

impl Subject {
    /// What is no request of the class.
    pub const NONE: Self = Self(Self::COUNT as u8 - 1);

    const COUNT: usize = ATTRIBUTES * METHODS;

    /// The subject of a request.
    #[inline]
    pub fn of(attribute: AttributeId, method: Method) -> Self {
        let attribute = usize::from(attribute.0).min(BY_ATTRIBUTE.len() - 1);
        Self(BY_ATTRIBUTE[attribute] + BY_METHOD[usize::from(method.0)])
    }

    /// All there are.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// The attribute; none if it is none of the class.
    pub fn attribute_id(self) -> Option<AttributeId> {
        attribute::ALL.get(usize::from(self.0) / METHODS).copied()
    }

    /// Name of the attribute as a metric label.
    pub fn attribute(self) -> &'static str {
        self.attribute_id().and_then(attribute::name).unwrap_or("other")
    }

    /// Whether it is answered from tables, not by the SM.
    pub fn is_query(self) -> bool {
        let method = MethodLabel::ALL[usize::from(self.0) % METHODS];
        matches!(method, MethodLabel::Get | MethodLabel::GetTable | MethodLabel::GetMulti)
    }

    /// Name of the method as a metric label.
    pub fn method(self) -> &'static str {
        MethodLabel::ALL[usize::from(self.0) % METHODS].label()
    }
}

/// The first subject of each attribute, in the order of `attribute::ALL`; of those that it does not
/// have, behind it.
static BY_ATTRIBUTE: [u8; 257] = {
    let mut places = [((ATTRIBUTES - 1) * METHODS) as u8; 257];
    let mut i = 0;
    while i < attribute::ALL.len() {
        places[attribute::ALL[i].0 as usize] = (i * METHODS) as u8;
        i += 1;
    }
    places
};

static BY_METHOD: [u8; 256] = {
    let mut places = [MethodLabel::Other as u8; 256];
    places[Method::GET.0 as usize] = MethodLabel::Get as u8;
    places[Method::GET_TABLE.0 as usize] = MethodLabel::GetTable as u8;
    places[Method::GET_MULTI.0 as usize] = MethodLabel::GetMulti as u8;
    places[Method::SET.0 as usize] = MethodLabel::Set as u8;
    places[Method::DELETE.0 as usize] = MethodLabel::Delete as u8;
    places
};

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

/// What one worker counts. It shares no cache line with what another one does; processors fetch
/// them in pairs.
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
    /// Packets received in envelopes from addresses that are not believed.
    pub malformed_stranger: Counter,
    /// Paths told, by QoS level.
    pub levels: LevelCounts,
    /// Who asks.
    pub requesters: Requesters,
    /// Packets that the transport lost for want of room: requests before they were read, which are
    /// no requests here, and over a ring answers.
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

    /// Requests received, whatever became of them.
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

    /// Queries that were refused since their answer, or the search for it, would have been larger than
    /// any may be: nothing else refuses a query for want of resources.
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

    /// Counts what a failed worker had in work as dropped.
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

    /// Workers' counters used to lie in boxes side by side: each wrote to lines of its neighbour.
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
    fn subjects_are_told_apart_by_attribute_and_method() {
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

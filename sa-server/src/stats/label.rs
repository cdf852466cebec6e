//! The values of metric labels: drop reasons, statuses and kinds of requests. Those of attributes
//! and methods are in [`ib_mad::wire::sa`].

use ib_mad::wire::mad::Status;

/// Declares an enum whose variants are indices and have names for metrics.
macro_rules! labels {
    (
        $(#[$doc:meta])*
        pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All labels, in order.
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
        /// A sent packet that was returned as undeliverable.
        Returned = "returned",
        /// A response without a matching request.
        UnexpectedResponse = "unexpected_response",
        /// An SM_Key that is neither 0 nor the right one.
        WrongSmKey = "wrong_sm_key",
        /// A method that the SA does not have, or not for this attribute.
        UnsupportedMethod = "unsupported_method",
        /// An attribute that the SA does not have.
        UnsupportedAttribute = "unsupported_attribute",
        /// From a LID that no port has.
        UnknownRequester = "unknown_requester",
        /// Superseded by a later repeat, or a repeat of a request whose answer is being sent.
        Duplicate = "duplicate",
        /// Waited so long that its sender has given up or asked again.
        Stale = "stale",
        /// The oldest waiting request, dropped because the queue was full.
        QueueFull = "queue_full",
        /// Dropped because the queue was full and its source had more than its share waiting.
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
        /// Being processed when a worker failed, which is a bug in ibsa.
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
    /// Kind of work that bounds a request's latency.
    pub enum Kind {
        /// One MAD that was answered at once by one.
        Get = "get",
        /// GetTable and GetMulti: until the client has acknowledged the last segment, if there are
        /// several.
        Table = "table",
        /// Requests that the SM decides: writes, and queries that waited for earlier writes.
        Write = "write",
    }
}

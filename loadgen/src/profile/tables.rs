//! Keys and tables of a profile's file.

use serde::Deserialize;

use super::value::{Factor, Id, Named, Rate, Share, Time, Whole};
use crate::ask::malformed::Form;
use crate::check::CheckKind;
use crate::scenario::pace::Arrivals;
use crate::scenario::reboot::SERVICES_MAX;
use crate::scenario::srp::Listing;
use crate::workload::{By, PAIRS_MAX, Pattern};

/// A profile's file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Profile {
    /// Description, one line.
    pub description: String,
    /// Duration of the storm.
    pub duration: Option<Time>,
    /// Limit of queries.
    pub queries: Option<Whole<1, { u64::MAX }>>,
    /// Seed of the random choices.
    pub seed: Option<u64>,
    /// How thoroughly responses are checked.
    pub check: Option<CheckKind>,
    /// Share of the pairs whose responses are compared with the snapshot.
    pub check_sample: Option<Share>,
    /// The queries.
    pub query: QueryTable,
    /// Timeouts and retries.
    pub retry: RetryTable,
    /// The model, one of these.
    pub closed: Option<ClosedTable>,
    /// See [`open`](crate::scenario::open).
    pub open: Option<OpenTable>,
    /// See [`ramp`](crate::scenario::ramp).
    pub ramp: Option<RampTable>,
    /// See [`linux_client`](crate::scenario::linux_client).
    pub linux_client: Option<LinuxClientTable>,
    /// See [`job_start`](crate::scenario::job_start).
    pub job_start: Option<JobStartTable>,
    /// See [`reboot`](crate::scenario::reboot).
    pub reboot: Option<RebootTable>,
    /// See [`acm`](crate::scenario::acm).
    pub acm: Option<AcmTable>,
    /// See [`srp`](crate::scenario::srp).
    pub srp: Option<SrpTable>,
    /// See [`malformed`](crate::scenario::malformed).
    pub malformed: Option<MalformedTable>,
}

macro_rules! tables {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$field_doc:meta])* $field:ident: $kind:ty, )* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
            pub struct $name {
                $( $(#[$field_doc])* pub $field: Option<$kind>, )*
            }
        )*
    };
}

tables! {
    /// `[query]`: the path queries.
    QueryTable {
        /// How paths are named.
        by: Named<By>,
        /// Service ID, for queries with one.
        service_id: Id,
        /// P_Key, for queries with one.
        pkey: Id,
        /// Number of port pairs to draw.
        pairs: Whole<1, { PAIRS_MAX as u64 }>,
    }
    /// `[retry]`: timeouts and retries.
    RetryTable {
        /// Time before a query is sent again.
        timeout: Time,
        /// Retries.
        retries: Whole<0, 1000>,
        /// Time after which the client gives up.
        deadline: Time,
    }
    /// `[closed]`.
    ClosedTable {
        /// Outstanding queries.
        concurrency: Whole<1, { 1 << 20 }>,
    }
    /// `[open]`.
    OpenTable {
        /// Queries a second.
        rate: Rate,
        /// Distribution over time.
        arrivals: Arrivals,
    }
    /// `[ramp]`.
    RampTable {
        /// First rate.
        from: Rate,
        /// Highest rate.
        to: Rate,
        /// Ratio of each rate to the one before.
        factor: Factor,
        /// Time each rate is measured.
        step: Time,
        /// Time at each rate before measuring.
        settle: Time,
        /// Minimum share of queries resolved.
        goodput: Share,
        /// Maximum 99th percentile of latency.
        p99: Time,
        /// Steps to narrow down the knee.
        refine: Whole<0, 20>,
        /// Distribution over time.
        arrivals: Arrivals,
    }
    /// `[linux-client]`.
    LinuxClientTable {
        /// Ports that send queries.
        ports: Whole<1, 65_536>,
        /// Outstanding queries per port.
        outstanding: Whole<1, 1024>,
        /// Destinations per port.
        destinations: Whole<1, 65_536>,
        /// Selection of destinations.
        pattern: Pattern,
        /// Queries a second of all ports together.
        rate: Rate,
        /// Distribution over time.
        arrivals: Arrivals,
    }
    /// `[job-start]`.
    JobStartTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they start.
        within: Time,
        /// Destinations per port.
        peers: Whole<1, 65_536>,
        /// Selection of destinations.
        pattern: Pattern,
        /// Outstanding queries per port.
        outstanding: Whole<1, 1024>,
        /// Whether failed queries are sent again.
        persist: bool,
    }
    /// `[reboot]`.
    RebootTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they come up.
        within: Time,
        /// Outstanding requests per port.
        outstanding: Whole<1, 64>,
        /// Services that each port registers.
        services: Whole<0, { SERVICES_MAX as u64 }>,
        /// How long each port stays registered.
        stay: Time,
        /// Whether it removes its registrations.
        leave: bool,
    }
    /// `[acm]`.
    AcmTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they start.
        within: Time,
        /// Destinations per port.
        destinations: Whole<1, 65_536>,
        /// Selection of destinations.
        pattern: Pattern,
        /// Outstanding queries per port.
        depth: Whole<1, 1024>,
        /// Forms of the path queries, in turn.
        by: Vec<Named<By>>,
    }
    /// `[srp]`.
    SrpTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they start.
        within: Time,
        /// The list to request.
        listing: Listing,
        /// Searches per port.
        scans: Whole<1, 1_000_000>,
        /// Time between two searches.
        rescan: Time,
    }
    /// `[malformed]`.
    MalformedTable {
        /// Queries a second, malformed ones included.
        rate: Rate,
        /// Distribution over time.
        arrivals: Arrivals,
        /// Share of malformed queries.
        share: Share,
        /// Kinds of malformation.
        forms: Vec<Form>,
    }
}

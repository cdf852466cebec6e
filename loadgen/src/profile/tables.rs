//! What a profile's file says: its keys, and its tables with theirs.

use serde::Deserialize;

use super::value::{Factor, Id, Named, Rate, Share, Time, Whole};
use crate::ask::malformed::Form;
use crate::options::CheckKind;
use crate::scenario::pace::Arrivals;
use crate::scenario::reboot::SERVICES_MAX;
use crate::scenario::srp::Listing;
use crate::workload::{By, PAIRS_MAX, Pattern};

/// What a file says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Profile {
    /// What it is for, in a line.
    pub description: String,
    /// Ends after this time.
    pub duration: Option<Time>,
    /// Ends after so many queries.
    pub queries: Option<Whole<1, { u64::MAX }>>,
    /// What chance is drawn by.
    pub seed: Option<u64>,
    /// How answers are checked.
    pub check: Option<CheckKind>,
    /// Share of the pairs whose answers are compared with the snapshot.
    pub check_sample: Option<Share>,
    /// What is asked.
    pub query: QueryTable,
    /// How long is waited.
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
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$field_doc:meta])* $field:ident: $kind:ty, )* } )*) => {
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
    /// `[query]`: what is asked.
    QueryTable {
        /// How paths are named.
        by: Named<By>,
        /// Service ID, where queries have one.
        service_id: Id,
        /// P_Key, where queries have one.
        pkey: Id,
        /// Pairs of ports to draw.
        pairs: Whole<1, { PAIRS_MAX as u64 }>,
    }
    /// `[retry]`: how long is waited for an answer.
    RetryTable {
        /// Before asking again.
        timeout: Time,
        /// Times that it is asked again.
        retries: Whole<0, 1000>,
        /// When the client gives up.
        deadline: Time,
    }
    /// `[closed]`.
    ClosedTable {
        /// Queries outstanding.
        concurrency: Whole<1, { 1 << 20 }>,
    }
    /// `[open]`.
    OpenTable {
        /// Queries a second.
        rate: Rate,
        /// How they follow each other.
        arrivals: Arrivals,
    }
    /// `[ramp]`.
    RampTable {
        /// First rate.
        from: Rate,
        /// Last rate.
        to: Rate,
        /// Each rate is so many times the one before.
        factor: Factor,
        /// How long each is measured.
        step: Time,
        /// How long is waited before.
        settle: Time,
        /// Least share of queries resolved.
        goodput: Share,
        /// Longest 99th percentile.
        p99: Time,
        /// Steps to close in on the knee.
        refine: Whole<0, 20>,
        /// How queries follow each other.
        arrivals: Arrivals,
    }
    /// `[linux-client]`.
    LinuxClientTable {
        /// Ports that ask.
        ports: Whole<1, 65_536>,
        /// Queries that each has outstanding.
        outstanding: Whole<1, 1024>,
        /// Others that each asks for.
        destinations: Whole<1, 65_536>,
        /// Which ones.
        pattern: Pattern,
        /// Queries a second of all ports together.
        rate: Rate,
        /// How they follow each other.
        arrivals: Arrivals,
    }
    /// `[job-start]`.
    JobStartTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they begin.
        within: Time,
        /// Others that each asks for.
        peers: Whole<1, 65_536>,
        /// Which ones.
        pattern: Pattern,
        /// Queries that each has outstanding.
        outstanding: Whole<1, 1024>,
        /// Whether what failed is asked for again.
        persist: bool,
    }
    /// `[reboot]`.
    RebootTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they come up.
        within: Time,
        /// Requests that each has outstanding.
        outstanding: Whole<1, 64>,
        /// Services that each registers.
        services: Whole<0, { SERVICES_MAX as u64 }>,
        /// How long each stays.
        stay: Time,
        /// Whether it takes back what it registered.
        leave: bool,
    }
    /// `[acm]`.
    AcmTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they begin.
        within: Time,
        /// Others that each asks for.
        destinations: Whole<1, 65_536>,
        /// Which ones.
        pattern: Pattern,
        /// Queries that each has outstanding.
        depth: Whole<1, 1024>,
        /// How paths are asked for, in turn.
        by: Vec<Named<By>>,
    }
    /// `[srp]`.
    SrpTable {
        /// Ports that take part.
        ports: Whole<1, 65_536>,
        /// Time within which they begin.
        within: Time,
        /// Which list is asked for.
        listing: Listing,
        /// Searches that each makes.
        scans: Whole<1, 1_000_000>,
        /// Time between two.
        rescan: Time,
    }
    /// `[malformed]`.
    MalformedTable {
        /// Queries a second, garbage included.
        rate: Rate,
        /// How they follow each other.
        arrivals: Arrivals,
        /// Share of the garbage.
        share: Share,
        /// Its forms.
        forms: Vec<Form>,
    }
}

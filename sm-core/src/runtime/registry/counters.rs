//! What is counted around the registry, and how it is told.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::attribute;

use super::super::metrics::Metric;
use crate::registry::{Reply, Request};

/// A total.
#[derive(Debug, Default)]
pub(super) struct Total(AtomicU64);

impl Total {
    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Raises it to `value`.
    pub(super) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Relaxed);
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident => $label:literal;)*) => {
        /// Totals since the program started.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $($(#[doc = $doc])+ pub(super) $name: Total,)*
            /// Writes in the largest batch so far.
            pub(super) batch_max: Total,
            /// Writes by attribute, method and whether they were granted.
            writes: [Total; WRITES.len()],
        }
        impl Counters {
            /// All of them.
            pub(super) fn list(&self) -> Vec<Metric> {
                let mut list =
                    vec![$(Metric::counter($label, concat!($($doc),+).trim_ascii(), self.$name.get())),*];
                list.extend(WRITES.iter().zip(&self.writes).map(|(kind, total)| {
                    let (attribute, method, is_granted) = *kind;
                    let help = "Writes decided on, by what they are about and whether granted";
                    Metric::counter("registry_writes", help, total.get())
                        .with("attribute", attribute::name(attribute).unwrap_or("other"))
                        .with("method", method_label(method))
                        .with("outcome", if is_granted { "granted" } else { "refused" })
                }));
                list
            }
        }
    };
}
counters! {
    /// Writes taken in, those that only ask for the sequence number included
    received => "registry_writes_received";
    /// Transactions committed
    commits => "registry_commits";
    /// Batches of writes, each at most one transaction
    batches => "registry_batches";
    /// Commits that failed
    failures => "registry_commit_failures";
    /// Panics of the registry, after which it was read back from disk
    panics => "registry_panics";
    /// Writes refused since the file cannot be written
    refused_unstored => "registry_refused_not_stored";
    /// Writes dropped: the file failed, and whether it holds them is not known
    unsettled => "registry_dropped_commit_unknown";
    /// Writes dropped: too many wait already
    overflow => "registry_dropped_overflow";
    /// Writes dropped: this SM is not the master, or has not swept yet
    not_master => "registry_dropped_not_master";
    /// Writes dropped: their responder follows a session above this SM's
    superseded_session => "registry_dropped_session";
    /// Writes dropped: no MAD
    malformed => "registry_dropped_malformed";
    /// Writes dropped: of another class, method or attribute
    unknown => "registry_dropped_unknown";
    /// Writes dropped: wrong SM_Key
    wrong_key => "registry_dropped_wrong_key";
    /// Writes dropped: too many of their source
    unanswered => "registry_dropped_by_rule";
    /// Outcomes dropped: their responder does not take them
    undelivered => "registry_outcomes_undelivered";
    /// Events passed to responders
    notices => "events_sent";
    /// Events that a later one about the same subject replaced before they were sent
    superseded => "events_superseded";
    /// Events dropped: too many wait already
    notices_dropped => "events_dropped_overflow";
    /// Events that a slow responder missed
    notices_missed => "events_missed_by_responders";
    /// Traps that responders relayed
    relayed => "traps_relayed";
    /// Relayed traps dropped: too many, or none
    relayed_dropped => "traps_relayed_dropped";
}

/// Attribute, method, and whether granted.
const WRITES: [(AttributeId, Method, bool); 16] = [
    (attribute::MC_MEMBER_RECORD, Method::SET, true),
    (attribute::MC_MEMBER_RECORD, Method::SET, false),
    (attribute::MC_MEMBER_RECORD, Method::DELETE, true),
    (attribute::MC_MEMBER_RECORD, Method::DELETE, false),
    (attribute::SERVICE_RECORD, Method::SET, true),
    (attribute::SERVICE_RECORD, Method::SET, false),
    (attribute::SERVICE_RECORD, Method::DELETE, true),
    (attribute::SERVICE_RECORD, Method::DELETE, false),
    (AttributeId::INFORM_INFO, Method::SET, true),
    (AttributeId::INFORM_INFO, Method::SET, false),
    (attribute::GUID_INFO_RECORD, Method::SET, true),
    (attribute::GUID_INFO_RECORD, Method::SET, false),
    (attribute::GUID_INFO_RECORD, Method::DELETE, true),
    (attribute::GUID_INFO_RECORD, Method::DELETE, false),
    // What fits none of them.
    (AttributeId(0), Method(0), true),
    (AttributeId(0), Method(0), false),
];

impl Counters {
    /// Counts what a write came to.
    pub(super) fn decided(&self, request: &Request, reply: &Reply) {
        if request.method == Method::GET {
            return;
        }
        if reply.dropped {
            return self.unanswered.add(1);
        }
        let granted = reply.status == Status::OK;
        let kind = (request.attribute, request.method, granted);
        let other = WRITES.len() - 1 - usize::from(granted);
        let at = WRITES.iter().position(|&known| known == kind);
        self.writes[at.unwrap_or(other)].add(1);
    }
}

fn method_label(method: Method) -> &'static str {
    match method {
        Method::SET => "set",
        Method::DELETE => "delete",
        _ => "other",
    }
}

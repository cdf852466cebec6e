//! What is counted around the registry, and how it is told.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::attribute;

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
            /// Writes by attribute, method and whether they were granted.
            writes: [Total; WRITES.len()],
        }
        impl Counters {
            /// Name, meaning and value of each.
            pub(super) fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                let mut list = vec![$(($label, concat!($($doc),+), self.$name.get())),*];
                let writes = WRITES.iter().zip(&self.writes);
                list.extend(writes.map(|(kind, total)| (kind.3, "Writes of this kind", total.get())));
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
    /// Writes in the largest batch so far
    batch_max => "registry_batch_writes_max";
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

/// Attribute, method, whether granted, and what it is called.
const WRITES: [(AttributeId, Method, bool, &str); 16] = [
    (attribute::MC_MEMBER_RECORD, Method::SET, true, "registry_mcmember_set_granted"),
    (attribute::MC_MEMBER_RECORD, Method::SET, false, "registry_mcmember_set_refused"),
    (attribute::MC_MEMBER_RECORD, Method::DELETE, true, "registry_mcmember_delete_granted"),
    (attribute::MC_MEMBER_RECORD, Method::DELETE, false, "registry_mcmember_delete_refused"),
    (attribute::SERVICE_RECORD, Method::SET, true, "registry_service_set_granted"),
    (attribute::SERVICE_RECORD, Method::SET, false, "registry_service_set_refused"),
    (attribute::SERVICE_RECORD, Method::DELETE, true, "registry_service_delete_granted"),
    (attribute::SERVICE_RECORD, Method::DELETE, false, "registry_service_delete_refused"),
    (AttributeId::INFORM_INFO, Method::SET, true, "registry_inform_set_granted"),
    (AttributeId::INFORM_INFO, Method::SET, false, "registry_inform_set_refused"),
    (attribute::GUID_INFO_RECORD, Method::SET, true, "registry_guidinfo_set_granted"),
    (attribute::GUID_INFO_RECORD, Method::SET, false, "registry_guidinfo_set_refused"),
    (attribute::GUID_INFO_RECORD, Method::DELETE, true, "registry_guidinfo_delete_granted"),
    (attribute::GUID_INFO_RECORD, Method::DELETE, false, "registry_guidinfo_delete_refused"),
    // What fits none of them.
    (AttributeId(0), Method(0), true, "registry_other_granted"),
    (AttributeId(0), Method(0), false, "registry_other_refused"),
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
        let is = |kind: &(AttributeId, Method, bool, &str)| {
            (kind.0, kind.1, kind.2) == (request.attribute, request.method, granted)
        };
        let other = WRITES.len() - 1 - usize::from(granted);
        self.writes[WRITES.iter().position(is).unwrap_or(other)].add(1);
    }
}

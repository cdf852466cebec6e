//! Counters of the registry, as metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{attribute, method};

use super::super::metrics::Metric;
use sm_core::registry::{ATTRIBUTES, Reply, Request};

/// A total that several threads add to.
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
            writes: [Total; WRITES],
        }
        impl Counters {
            /// All counters.
            pub(super) fn list(&self) -> Vec<Metric> {
                let mut list = vec![$({
                    let help = concat!($($doc),+).trim_ascii();
                    Metric::counter($label, help, self.$name.get())
                }),*];
                list.extend((0..WRITES).zip(&self.writes).map(|(index, total)| {
                    let (attribute, method, is_granted) = kind(index);
                    let help = "Writes decided, by attribute, method and outcome";
                    Metric::counter("registry_writes", help, total.get())
                        .with("attribute", attribute::name(attribute).unwrap_or("other"))
                        .with("method", method::label(method))
                        .with("outcome", if is_granted { "granted" } else { "refused" })
                }));
                list
            }
        }
    };
}
counters! {
    /// Writes received, including requests for the sequence number only
    received => "registry_writes_received";
    /// Registry transactions committed
    commits => "registry_commits";
    /// Batches of writes, each committed in at most one transaction
    batches => "registry_batches";
    /// Registry commits that failed
    failures => "registry_commit_failures";
    /// Internal errors of the registry, after which it was reloaded from disk
    panics => "registry_panics";
    /// Writes refused because the registry file cannot be written
    refused_unstored => "registry_refused_not_stored";
    /// Writes dropped: the commit failed, and whether they are stored is unknown
    unsettled => "registry_dropped_commit_unknown";
    /// Writes dropped: the store did not take them for 2 s
    store_late => "registry_dropped_store";
    /// Writes dropped: the queue is full
    overflow => "registry_dropped_overflow";
    /// Writes dropped: this SM is not master, or its first sweep has not completed
    not_master => "registry_dropped_not_master";
    /// Writes not answered: this SM ceased to be master before it was certain that it still was
    unvouched => "registry_unanswered_mastership_unknown";
    /// Writes dropped: their responder follows a session with a higher epoch
    superseded_session => "registry_dropped_session";
    /// Orders of programs dropped: given in an earlier session, or no longer awaited
    superseded_orders => "registry_orders_superseded";
    /// Writes dropped: malformed MAD
    malformed => "registry_dropped_malformed";
    /// Writes dropped: unsupported class, method or attribute
    unknown => "registry_dropped_unknown";
    /// Writes dropped: wrong SM_Key
    wrong_key => "registry_dropped_wrong_key";
    /// Writes dropped without an answer, by a rule of the registry
    unanswered => "registry_dropped_by_rule";
    /// Outcomes dropped: their responder does not read them
    undelivered => "registry_outcomes_undelivered";
    /// Outcomes of another master's requests not copied: there were too many
    uncopied => "registry_outcomes_not_copied";
    /// Events sent to responders
    notices => "events_sent";
    /// Events superseded by a later one about the same subject before they were sent
    superseded => "events_superseded";
    /// Events dropped: the queue is full
    notices_dropped => "events_dropped_overflow";
    /// Events missed by responders that read too slowly
    notices_missed => "events_missed_by_responders";
    /// Traps that responders relayed
    relayed => "traps_relayed";
    /// Relayed traps dropped: malformed, or too many
    relayed_dropped => "traps_relayed_dropped";
}

/// Counts of Set() and Delete() of each attribute, granted and refused; then of all other requests.
const WRITES: usize = ATTRIBUTES.len() * 4 + 2;

/// Attribute, method, and whether granted.
fn kind(index: usize) -> (AttributeId, Method, bool) {
    let is_granted = index.is_multiple_of(2);
    match ATTRIBUTES.get(index / 4) {
        Some(&attribute) => {
            (attribute, if index % 4 < 2 { Method::SET } else { Method::DELETE }, is_granted)
        }
        None => (AttributeId(0), Method(0), is_granted),
    }
}

impl Counters {
    /// Counts a write by its result.
    pub(super) fn decided(&self, request: &Request, reply: &Reply) {
        if request.method == Method::GET {
            return;
        }
        if reply.dropped {
            return self.unanswered.add(1);
        }
        let granted = reply.status == Status::OK;
        let attribute = ATTRIBUTES.iter().position(|known| *known == request.attribute);
        let index = match (attribute, request.method) {
            (Some(at), Method::SET) => at * 4,
            (Some(at), Method::DELETE) => at * 4 + 2,
            _ => WRITES - 2,
        };
        self.writes[index + usize::from(!granted)].add(1);
    }
}

//! The registry: clients' registrations with the SA. Multicast groups and their members,
//! services, event subscriptions and alias GUIDs change only here; so do partitions that programs
//! make.
//!
//! It is a state machine: requests and end ports go in; answers, changes and events come out. It
//! has no clock, no file and no thread; `runtime` owns those and makes changes durable before it
//! sends answers. A write costs O(log n) in the number of records; only
//! [`Registry::fabric_changed`] scans all records.
//!
//! Each record family is a module with rows in [`Core`], its own indices and the same few
//! functions. Queries are not handled here: responders answer them from published rows.

mod answer;
mod assign;
mod changes;
mod clock;
pub mod dump;
mod guid_info;
mod inform;
mod lapsed;
#[cfg(test)]
mod laws;
mod membership;
mod mlid;
mod multicast;
pub mod outcome;
mod partitions;
mod pkey_sets;
mod ports;
mod quota;
mod request;
mod service;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{DATA_LEN, attribute};
use sa_proto::snapshot::{
    AliasGuid, ApiPartition, LapsedPort, MulticastGroup, MulticastMember, PartitionMember,
    RegistryChanges, RegistryPlane, Service, Subscription,
};

pub use answer::AnswerRecord;
pub use changes::Changes;
use changes::Tracked;
pub use clock::{GAP_MAX, HostTime, RegistryClock, Stamp};
pub use guid_info::{GUIDS_PER_BLOCK, GuidBlock};
pub use inform::SUBSCRIPTIONS_PER_PORT_MAX;
pub use membership::Members;
pub use multicast::PredefinedGroup;
pub use outcome::{OUTCOMES_MAX, Outcome, OutcomeKey};
pub use partitions::{
    API_PARTITIONS_MAX, Attributes, ORDER_GUIDS_MAX, OrderRefusal, PARTITION_MEMBERS_MAX,
    PARTITION_NAME_MAX, PartitionAction, PartitionOrder, Presence, WantedMember,
};
pub use ports::{EndPort, GroupParameters, Ports, Settings};
pub use request::{Drop, Request, Requester};

/// Maximum number of queued events; beyond it the oldest is dropped and counted.
const EVENTS_MAX: usize = 1 << 16;

/// The answer to a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status of the answer.
    pub status: Status,
    /// The record in the answer; `None` if the answer repeats the request's.
    pub data: Option<AnswerRecord>,
    /// No answer is sent.
    pub dropped: bool,
    /// The answer may be sent only once the change of this sequence number is durable.
    pub sequence: u64,
}

/// The result of a program's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderReply {
    /// Whether it was granted.
    pub result: Result<(), OrderRefusal>,
    /// The answer may be sent only once the change of this sequence number is durable.
    pub sequence: u64,
}

/// A change that may match event subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryEvent {
    /// A group was created: it has its first full or send-only full member (trap 66).
    GroupCreated(Gid),
    /// A group was deleted: its last full or send-only full member left (trap 67).
    GroupDeleted(Gid),
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes granted.
    pub granted: u64,
    /// Writes refused with a status.
    pub refused: u64,
    /// Requests not answered.
    pub dropped: u64,
    /// Repeated requests answered from the stored outcome.
    pub repeated: u64,
    /// Repeats dropped because their record was changed after they were received.
    pub overtaken: u64,
    /// Outcomes discarded before they expired, because the table was full.
    pub outcomes_forgotten_early: u64,
    /// Records refused because the registry is full.
    pub records_refused: u64,
    /// Records refused because their port has reached its quota for the kind.
    pub quota_refused: u64,
    /// Groups refused because no MLID was free.
    pub mlids_exhausted: u64,
    /// Orders refused because there are too many partitions or members.
    pub partitions_refused: u64,
    /// Events dropped because the queue was full.
    pub events_lost: u64,
    /// Ports that left with their registrations and are not remembered, because there are too many.
    pub lapses_forgotten: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        // Destructured, so that the compiler reports a counter missing here.
        let Self {
            granted,
            refused,
            dropped,
            repeated,
            overtaken,
            outcomes_forgotten_early,
            records_refused,
            quota_refused,
            mlids_exhausted,
            partitions_refused,
            events_lost,
            lapses_forgotten,
        } = other;
        self.granted += granted;
        self.refused += refused;
        self.dropped += dropped;
        self.repeated += repeated;
        self.overtaken += overtaken;
        self.outcomes_forgotten_early += outcomes_forgotten_early;
        self.records_refused += records_refused;
        self.quota_refused += quota_refused;
        self.mlids_exhausted += mlids_exhausted;
        self.partitions_refused += partitions_refused;
        self.events_lost += events_lost;
        self.lapses_forgotten += lapses_forgotten;
    }
}

/// How a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// Answered with this status.
    Status(Status),
    /// Answered with this status and data instead of the request's.
    WithData(Status, AnswerRecord),
    /// The request is not answered.
    Silent,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// The record in the answer, from its first byte.
type Answer = Result<AnswerRecord, Refusal>;

macro_rules! core {
    ({} $($(#[$doc:meta])* $table:ident: $row:ident by $field:ident: $key:ident,
        named $($subject:ident).+: $subject_type:ident,
        $variant:ident = $number:literal $name:literal;)*) => {
        /// All rows, and the indices of each record family.
        #[derive(Debug, Default)]
        struct Core {
            $($table: Tracked<$row>,)*
            multicast: multicast::Index,
            service: service::Index,
            guid_info: guid_info::Index,
            events: VecDeque<RegistryEvent>,
            counters: Counters,
            /// Responders that subscriptions can be assigned to.
            responders: Vec<u64>,
            /// GUIDs of newcomers.
            newcomers: HashSet<Guid, RandomState>,
            /// Those that the last change of the fabric brought. What was registered for them is
            /// that of ports that left.
            arrived: HashSet<Guid, RandomState>,
            /// Sequence number of the last change.
            sequence: u64,
        }

        impl Core {
            /// Stored rows; indices are empty.
            fn restore(plane: &RegistryPlane) -> Self {
                Self {
                    sequence: plane.sequence,
                    $($table: Tracked::restore(&plane.$table, plane.sequence),)*
                    ..Self::default()
                }
            }

            /// All rows, shared rather than copied.
            fn plane(&self) -> RegistryPlane {
                RegistryPlane {
                    sequence: self.sequence,
                    $($table: self.$table.rows().clone(),)*
                }
            }

            /// Changes from now on have this sequence number.
            fn begin(&mut self, sequence: u64) {
                $(self.$table.begin(sequence);)*
            }

            /// Takes the changes of rows since the last call.
            fn take_changes(&mut self) -> RegistryChanges {
                RegistryChanges {
                    sequence: self.sequence,
                    $($table: self.$table.take_changes(),)*
                }
            }

            /// Changes whenever a row changes.
            fn version(&self) -> u64 {
                0 $(+ self.$table.version())*
            }

            /// Number of rows.
            fn len(&self) -> usize {
                0 $(+ self.$table.len())*
            }
        }
    };
}
sa_proto::registry_tables!([core] {});

impl Core {
    /// The port with this port GUID, or that of a virtual port, or alias GUID.
    fn owner<'p>(&self, ports: &'p Ports, guid: Guid) -> Option<&'p EndPort> {
        ports
            .by_guid(guid)
            .or_else(|| ports.by_virtual_guid(guid))
            .or_else(|| ports.by_guid(self.alias_guids.get(guid)?.port_guid))
    }

    /// Whether no port has this GUID any more, or only one that has just come with it.
    fn is_gone(&self, ports: &Ports, guid: Guid) -> bool {
        match self.owner(ports, guid) {
            Some(port) => self.arrived.contains(&guid) || self.arrived.contains(&port.guid),
            None => !ports.may_be_virtual(guid),
        }
    }

    /// Finds the newcomers.
    fn note_newcomers(&mut self, ports: &Ports) {
        let newcomers = ports.newcomers();
        self.arrived = newcomers.difference(&self.newcomers).copied().collect();
        self.newcomers.clone_from(newcomers);
    }

    /// Queues an event; drops the oldest if the queue is full.
    fn report(&mut self, event: RegistryEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
            self.counters.events_lost += 1;
        }
        self.events.push_back(event);
    }
}

/// The registry.
#[derive(Debug, Default)]
pub struct Registry {
    core: Core,
    outcomes: outcome::Outcomes,
    retry_window_s: u64,
    /// The sequence number with which this registry began, if it continues that of another manager,
    /// whose outcomes are not known.
    taken_over_at: u64,
}

impl Registry {
    /// Continues the registry of another manager from a copy of its rows, and of the outcomes of
    /// requests as far as they are known.
    pub fn take_over(
        plane: &RegistryPlane,
        outcomes: impl IntoIterator<Item = (OutcomeKey, Outcome)>,
    ) -> Self {
        Self { taken_over_at: plane.sequence, ..Self::restore(plane, outcomes) }
    }

    /// How long outcomes are kept, seconds.
    pub fn retry_window_s(&self) -> u64 {
        self.retry_window_s
    }

    /// Outcomes of granted requests that are kept.
    pub fn granted_outcomes(&self) -> Vec<(OutcomeKey, Outcome)> {
        self.outcomes.granted()
    }

    /// Restores the registry from stored rows. Predefined groups stay as stored until
    /// [`set_predefined`](Self::set_predefined) replaces them.
    pub fn restore(
        plane: &RegistryPlane,
        outcomes: impl IntoIterator<Item = (OutcomeKey, Outcome)>,
    ) -> Self {
        let mut core = Core::restore(plane);
        core.begin(plane.sequence + 1);
        guid_info::restore(&mut core);
        multicast::restore(&mut core);
        service::restore(&mut core);
        if core.version() != 0 {
            core.sequence += 1;
        }
        Self {
            core,
            outcomes: outcome::Outcomes::restore(outcomes),
            retry_window_s: Settings::default().retry_window_s,
            taken_over_at: 0,
        }
    }

    /// Decides on a request and applies the change. `now_s` is in seconds of registry time.
    ///
    /// A repeat gets the answer of the first, as long as it is true: the effect of a granted
    /// request is still there. If it is not, the repeat is decided like a new request if its
    /// responder had seen the change that ended it. Otherwise it may have been sent before that
    /// change, which it would undo; it is dropped, and its client, if it still waits, sends it
    /// again. So is what was read before this registry was [taken over](Self::take_over): the other
    /// manager may have decided on it, and on what its client requested next.
    ///
    /// A request from a LID that no port has is dropped, as a query is: a port has its LID, and
    /// this SM's, for a part of a sweep before the registry knows it.
    pub fn write(&mut self, now_s: u64, ports: &Ports, request: &Request) -> Reply {
        if let Some(reply) = self.repeat(now_s, ports, request) {
            return reply;
        }
        let key = request.key();
        let decided = self.change(|core| decide(core, now_s, ports, request));
        let (status, data) = match decided {
            // Data equal to the request's is not stored again.
            Ok(data) => (Status::OK, Some(data).filter(|data| !data.is(&request.data))),
            Err(Refusal::Status(status)) => (status, None),
            Err(Refusal::WithData(status, data)) => (status, Some(data)),
            Err(Refusal::Silent) => return self.drop_request(),
        };
        let count = match status {
            Status::OK => &mut self.core.counters.granted,
            _ => &mut self.core.counters.refused,
        };
        *count += 1;
        self.outcomes.keep(key, Outcome { status, data: data.clone(), at_s: now_s });
        self.reply(status, data)
    }

    /// The answer to a request that needs no decision, and changes nothing: one that was decided
    /// before, or that asks for the sequence number. `None` if it is to be decided.
    pub fn repeat(&mut self, now_s: u64, ports: &Ports, request: &Request) -> Option<Reply> {
        if request.method == Method::GET {
            return Some(self.reply(Status::OK, None));
        }
        self.retry_window_s = ports.settings.retry_window_s;
        let since_s = now_s.saturating_sub(self.retry_window_s);
        let Some(first) = self.outcomes.find(&request.key(), since_s..=now_s) else {
            let is_overtaken = request.seen != 0 && request.seen < self.taken_over_at;
            self.core.counters.overtaken += u64::from(is_overtaken);
            return is_overtaken.then(|| self.drop_request());
        };
        let (status, data) = (first.status, first.data.clone());
        let ended = match status {
            Status::OK => self.effect_ended(now_s, ports, request, data.as_ref()),
            _ => None,
        };
        match ended {
            None => {
                self.core.counters.repeated += 1;
                Some(self.reply(status, data))
            }
            Some(sequence) if request.seen < sequence => {
                self.core.counters.overtaken += 1;
                Some(self.drop_request())
            }
            Some(_) => None,
        }
    }

    /// Whether a request may have been granted before.
    pub fn may_have_granted(&self, now_s: u64, request: &Request) -> bool {
        let since_s = now_s.saturating_sub(self.retry_window_s);
        let first = self.outcomes.find(&request.key(), since_s..=now_s);
        first.is_some_and(|outcome| outcome.status == Status::OK)
    }

    /// Decides on an order of a program and applies it.
    pub fn order(&mut self, ports: &Ports, order: &PartitionOrder) -> OrderReply {
        let records_max = ports.settings.records_max;
        let result = self.change(|core| partitions::order(core, records_max, order));
        OrderReply { result, sequence: self.core.sequence }
    }

    /// Removes records of ports that left the fabric.
    pub fn fabric_changed(&mut self, ports: &Ports) {
        self.change(|core| {
            core.note_newcomers(ports);
            guid_info::fabric_changed(core, ports);
            multicast::fabric_changed(core, ports);
            service::fabric_changed(core, ports);
            inform::fabric_changed(core, ports);
            core.arrived.clear();
        });
    }

    /// Removes records that expired by `now_s`.
    pub fn expire(&mut self, now_s: u64) {
        self.outcomes.expire(now_s.saturating_sub(self.retry_window_s));
        self.change(|core| service::expire(core, now_s));
        guid_info::expire(&mut self.core, now_s);
    }

    /// When the next record expires (see [`expire`](Self::expire)), in seconds of registry time.
    pub fn next_expiry(&self) -> Option<u64> {
        let outcome = self.outcomes.oldest_s().map(|at_s| at_s + self.retry_window_s + 1);
        let (service, alias) =
            (service::next_expiry(&self.core), guid_info::next_expiry(&self.core));
        [outcome, service, alias].into_iter().flatten().min()
    }

    /// Replaces the predefined groups by `groups`. Groups that are no longer predefined are deleted
    /// unless they have members; client-created ones that become so keep their parameters.
    pub fn set_predefined(&mut self, ports: &Ports, groups: &[PredefinedGroup]) {
        self.change(|core| multicast::set_predefined(core, ports, groups));
    }

    /// These ports were asked to register again, and have answered: they are no longer among those
    /// that have lost registrations. Call it before [`fabric_changed`](Self::fabric_changed) if
    /// ports change, too.
    pub fn ports_asked(&mut self, ports: &[Guid]) {
        self.change(|core| lapsed::asked(core, ports));
    }

    /// Assigns subscriptions to these responders, by their identities.
    pub fn set_responders(&mut self, responders: &[u64]) {
        self.change(|core| {
            core.responders = responders.to_vec();
            assign::all(core);
        });
    }

    /// Takes the changes since the last call, to be stored and published.
    pub fn take_changes(&mut self) -> Changes {
        // These rows are not published yet, so the assignment belongs to the same change.
        assign::changed(&mut self.core);
        let (outcomes_put, outcomes_since_s) = self.outcomes.take_changes();
        let rows = self.core.take_changes();
        Changes { rows, outcomes_put, outcomes_since_s, stamp: None }
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<RegistryEvent> {
        self.core.events.pop_front()
    }

    /// All rows, shared with the registry rather than copied.
    pub fn plane(&self) -> RegistryPlane {
        self.core.plane()
    }

    /// A session begins with this registry: it is known, though it may be empty. The sequence
    /// number is at least 1, since 0 is that of a registry that its manager does not know.
    pub fn begin_session(&mut self) {
        self.core.sequence = self.core.sequence.max(1);
    }

    /// Sequence number of the last change.
    pub fn sequence(&self) -> u64 {
        self.core.sequence
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        Counters { outcomes_forgotten_early: self.outcomes.forgotten_early, ..self.core.counters }
    }

    /// The group with this MGID.
    pub fn group(&self, mgid: Gid) -> Option<&Arc<MulticastGroup>> {
        self.core.groups.get(mgid)
    }

    fn reply(&self, status: Status, data: Option<AnswerRecord>) -> Reply {
        Reply { status, data, dropped: false, sequence: self.core.sequence }
    }

    fn drop_request(&mut self) -> Reply {
        self.core.counters.dropped += 1;
        Reply { dropped: true, ..self.reply(Status::OK, None) }
    }

    /// The sequence number of the change that ended the effect of a granted request, or a later
    /// one; `None` if the effect lasts. `answer` is the data of the answer, if not that of the
    /// request.
    fn effect_ended(
        &self,
        now_s: u64,
        ports: &Ports,
        request: &Request,
        answer: Option<&AnswerRecord>,
    ) -> Option<u64> {
        let core = &self.core;
        let answer = answer.map_or(request.data, AnswerRecord::data);
        let ended = family(request.attribute)
            .and_then(|family| (family.ended)(core, now_s, ports, request, &answer));
        ended.map(|sequence| sequence.min(core.sequence))
    }

    /// Runs `act` and increments the sequence number if any row changed.
    fn change<T>(&mut self, act: impl FnOnce(&mut Core) -> T) -> T {
        let before = self.core.version();
        self.core.begin(self.core.sequence + 1);
        let result = act(&mut self.core);
        if self.core.version() != before {
            self.core.sequence += 1;
        }
        result
    }
}

/// A family of records: the attribute that clients write, and how its writes are decided.
struct Family {
    attribute: AttributeId,
    /// Decides on a write and applies it. The time is in seconds of registry time.
    write: fn(&mut Core, now_s: u64, &Ports, &Request) -> Answer,
    /// See [`Registry::effect_ended`].
    ended: fn(&Core, now_s: u64, &Ports, &Request, answer: &[u8; DATA_LEN]) -> Option<u64>,
}

/// All families that clients write.
const FAMILIES: &[Family] = &[
    Family {
        attribute: attribute::MC_MEMBER_RECORD,
        write: |core, _, ports, request| multicast::write(core, ports, request),
        ended: |core, _, ports, request, answer| multicast::ended(core, ports, request, answer),
    },
    Family {
        attribute: attribute::SERVICE_RECORD,
        write: service::write,
        ended: |core, now_s, _, request, _| service::ended(core, now_s, request),
    },
    Family {
        attribute: AttributeId::INFORM_INFO,
        write: |core, _, ports, request| inform::write(core, ports, request),
        ended: |core, _, ports, request, _| inform::ended(core, ports, request),
    },
    Family {
        attribute: attribute::GUID_INFO_RECORD,
        write: guid_info::write,
        ended: |core, _, ports, request, answer| guid_info::ended(core, ports, request, answer),
    },
];

/// InformInfoRecord is read-only, so its writes are not answered.
const READ_ONLY: &Family = &Family {
    attribute: attribute::INFORM_INFO_RECORD,
    write: |_, _, _, _| Err(Refusal::Silent),
    ended: |_, _, _, _, _| None,
};

/// The attributes that clients write.
pub const ATTRIBUTES: [AttributeId; FAMILIES.len()] = {
    let mut all = [AttributeId(0); FAMILIES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = FAMILIES[i].attribute;
        i += 1;
    }
    all
};

/// The family of an attribute that clients can write or have relayed.
fn family(attribute: AttributeId) -> Option<&'static Family> {
    FAMILIES.iter().chain([READ_ONLY]).find(|family| family.attribute == attribute)
}

fn decide(core: &mut Core, now_s: u64, ports: &Ports, request: &Request) -> Answer {
    match family(request.attribute) {
        Some(family) => (family.write)(core, now_s, ports, request),
        None => Err(Refusal::Silent),
    }
}

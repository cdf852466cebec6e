//! The registry plane: the clients' registrations, and partitions that programs made. Changes with
//! every accepted write.
//!
//! A family of records is described here: its rows, its table, and if its rows answer queries by
//! one record each, what that record shows to whom ([`ShownRecord`]).
//!
//! Its tables are [`Rows`], so that the cost of a write depends on what it changes, not on the
//! number of rows. Rows hold records in wire format; the responder decides which requester may see
//! which fields. The SM's registry executes writes and stores them durably.

use std::fmt;
use std::hash::Hash;
use std::ops::{Range, RangeInclusive};

use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::FieldInfo;
use ib_mad::wire::attribute::InformInfo;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::pattern::Component;
use ib_mad::wire::record::inform_info::component as inform_info;
use ib_mad::wire::record::{InformInfoRecord, InformInfoRecordRepr};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, attribute};

use super::change::Changes;
use super::encoding::canonical;
use super::row::{NoPatch, Row, Side, join, same};
use super::rows::Rows;
use super::sorted::keyed;
use super::tables::Table;

/// Calls a macro with the tables of the registry plane: `$do! { $before rows }`. There is no other
/// list of them. A row has the field, the row's type, its key and the key's type, what requests
/// name it by (see [`Registered`]), the number in checksums and on the wire, and the name for
/// people. The field's name is also the table's name in stores.
#[doc(hidden)]
#[macro_export]
macro_rules! registry_tables {
    ([$($do:tt)*] $before:tt) => {
        $($do)*! { $before
            /// Multicast groups, by MGID.
            groups: MulticastGroup by mgid: Gid, named mgid: Gid,
                MulticastGroups = 16 "Multicast groups";
            /// Members of multicast groups, by MGID and port GID.
            members: MulticastMember by rid: MulticastMemberRid, named rid: MulticastMemberRid,
                MulticastMembers = 17 "Members of multicast groups";
            /// Service records, by RID.
            services: Service by rid: ServiceRid, named rid: ServiceRid,
                Services = 18 "Service records";
            /// Event subscriptions, by RID.
            subscriptions: Subscription by rid: SubscriptionRid, named rid.subscriber_gid: Gid,
                Subscriptions = 19 "Event subscriptions";
            /// Alias GUIDs, by GUID.
            alias_guids: AliasGuid by alias: Guid, named port_guid: Guid,
                AliasGuids = 20 "Alias GUIDs";
            /// Partitions that programs made, by P_Key.
            api_partitions: ApiPartition by pkey: PKey, named pkey: PKey,
                ApiPartitions = 21 "Partitions made by programs";
            /// Members of partitions that programs added, by P_Key and GUID.
            partition_members: PartitionMember by rid: PartitionMemberRid, named rid.pkey: PKey,
                PartitionMembers = 22 "Members of partitions added by programs";
            /// Ports that have lost registrations, by port GUID.
            lapsed_ports: LapsedPort by port_guid: Guid, named port_guid: Guid,
                LapsedPorts = 23 "Ports that have lost registrations";
        }
    };
}

/// Calls a macro with the rows that are [`ShownRecord`]s.
#[doc(hidden)]
#[macro_export]
macro_rules! shown_records {
    ([$($do:tt)*]) => {
        $($do)*! { Subscription }
    };
}

/// A row of the registry plane.
pub trait Registered: Row {
    /// What requests name the row by: its key, or the port that it belongs to.
    type Subject: Hash;

    /// The subject of this row.
    fn subject(&self) -> Self::Subject;

    /// The rows of this type.
    fn rows_of(plane: &RegistryPlane) -> &Rows<Self>;
}

/// A row that answers queries by one record of its own; [`shown_records`](crate::shown_records)
/// lists them.
pub trait ShownRecord: Registered {
    /// The attribute of the record.
    const ATTRIBUTE: AttributeId;
    /// Whether clients write it, by Set() and Delete().
    const IS_WRITABLE: bool;
    /// Its components. A requester searches for what it is shown.
    const COMPONENTS: &'static [Component];
    /// Length of the record, bytes.
    const LEN: usize;
    /// The record in wire format, an array of this length.
    type Record;

    /// The record as a requester may see it.
    fn shown(&self, is_trusted: bool) -> Self::Record;

    /// GUID of the port that it belongs to. Those who share a partition with that port see it;
    /// without the port, no one.
    fn port(&self) -> Guid;

    /// The keys among which a request finds its rows.
    fn keys(mask: ComponentMask, request: &[u8; DATA_LEN]) -> RangeInclusive<Self::Key>;
}

/// Reads the rows of tables one after another, for example from a file.
pub trait ReadRows {
    /// Why a table cannot be read.
    type Error;

    /// The rows of one table.
    fn rows<R: Row>(&mut self) -> Result<Rows<R>, Self::Error>;
}

/// Reads the changes of tables one after another.
pub trait ReadChanges {
    /// Why the changes of a table cannot be read.
    type Error;

    /// The changes of one table.
    fn changes<R: Row>(&mut self) -> Result<Changes<R>, Self::Error>;
}

/// Writes the changes of tables one after another.
pub trait WriteChanges {
    /// Why the changes of a table cannot be written.
    type Error;

    /// Writes the changes of one table.
    fn changes<R: Row>(&mut self, changes: &Changes<R>) -> Result<(), Self::Error>;
}

macro_rules! registry_plane {
    ({} $($(#[$doc:meta])* $table:ident: $row:ident by $field:ident: $key:ident,
        named $($subject:ident).+: $subject_type:ident,
        $variant:ident = $number:literal $name:literal;)*) => {
        /// The clients' registrations up to and including one write. Tables are ascending by key,
        /// without duplicates.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct RegistryPlane {
            /// Sequence number of the last write included.
            pub sequence: u64,
            $($(#[$doc])* pub $table: Rows<$row>,)*
        }

        /// Changes of the registry plane.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct RegistryChanges {
            /// Sequence number of the last write included; not less than that of the plane it
            /// applies to.
            pub sequence: u64,
            $($(#[$doc])* pub $table: Changes<$row>,)*
        }

        impl RegistryChanges {
            /// The changes from `old` to `new`.
            pub fn between(old: &RegistryPlane, new: &RegistryPlane) -> Self {
                Self {
                    sequence: new.sequence,
                    $($table: changes_between(&old.$table, &new.$table),)*
                }
            }

            /// Reads the changes of all tables.
            pub fn read<S: ReadChanges>(sequence: u64, source: &mut S) -> Result<Self, S::Error> {
                Ok(Self { sequence, $($table: source.changes()?,)* })
            }

            /// Writes the changes of all tables, in the order in which [`read`](Self::read) reads
            /// them.
            pub fn write<S: WriteChanges>(&self, sink: &mut S) -> Result<(), S::Error> {
                $(sink.changes(&self.$table)?;)*
                Ok(())
            }

            /// Whether there are no changes.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Number of changed rows.
            pub fn len(&self) -> usize {
                0 $(+ self.$table.len())*
            }

            /// `old` after these changes.
            pub fn applied_to(&self, old: &RegistryPlane) -> RegistryPlane {
                let mut plane = old.clone();
                plane.apply(self);
                plane
            }

            /// Changes with the effect of all of these, one after the other.
            pub fn merged(all: &[Self]) -> Self {
                Self {
                    sequence: all.last().map_or(0, |last| last.sequence),
                    // Of equal keys the last counts.
                    $($table: all.iter().flat_map(|one| one.$table.iter().map(|(&key, row)| {
                        (key, row.clone())
                    })).collect(),)*
                }
            }
        }

        impl RegistryPlane {
            /// Reads the rows of all tables.
            pub fn read<S: ReadRows>(sequence: u64, source: &mut S) -> Result<Self, S::Error> {
                Ok(Self { sequence, $($table: source.rows()?,)* })
            }

            /// Applies `changes`, in time proportional to their number.
            pub fn apply(&mut self, changes: &RegistryChanges) {
                self.sequence = changes.sequence;
                $(for (&key, row) in &changes.$table {
                    match row {
                        Some(row) => self.$table.insert(row.clone()),
                        None => self.$table.remove(key),
                    };
                })*
            }

            /// Number of rows by table: the metric, the name for people, the number.
            pub fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, usize)> {
                [$((concat!("registry_", stringify!($table)), $name, self.$table.len()),)*]
                    .into_iter()
            }
        }

        $(impl Row for $row {
            type Key = $key;
            type Patch = NoPatch;
            const TABLE: Table = Table::$variant;
            fn key(&self) -> $key {
                self.$field
            }
        }

        impl Registered for $row {
            type Subject = $subject_type;
            fn subject(&self) -> $subject_type {
                self.$($subject).+
            }
            fn rows_of(plane: &RegistryPlane) -> &Rows<Self> {
                &plane.$table
            }
        })*
    };
}
crate::registry_tables!([registry_plane] {});

fn changes_between<R: Row>(old: &Rows<R>, new: &Rows<R>) -> Changes<R> {
    if old.is_same(new) {
        return Changes::<R>::new();
    }
    let changes = join(keyed(old), keyed(new)).filter_map(|(key, side)| match side {
        Side::Left(_) => Some((key, None)),
        Side::Both(old, new) if same(old, new) => None,
        Side::Right(row) | Side::Both(_, row) => Some((key, Some(row.clone()))),
    });
    changes.collect()
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// MGID, the key of this row.
    pub mgid: Gid,
    /// MCMemberRecord in wire format, without PortGID, JoinState and ProxyJoin.
    pub record: [u8; 52],
    /// Whether it comes from a configuration file: such a group exists even without members.
    pub predefined: bool,
}

/// Identifies a member of a multicast group: the RID of MCMemberRecord (IBA 15.2.5.17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MulticastMemberRid {
    /// MGID of the group.
    pub mgid: Gid,
    /// GID of the member.
    pub port_gid: Gid,
}

/// A member of a multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastMember {
    /// The key of this row.
    pub rid: MulticastMemberRid,
    /// JoinState, 4 bits: full, non-member, send-only non-member, send-only full member.
    pub join_state: u8,
    /// Whether another port of its partition joined on its behalf (ProxyJoin).
    pub proxy_join: bool,
}

/// Identifies a service: the RID of ServiceRecord (IBA 15.2.5.14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceRid {
    /// ServiceID.
    pub service_id: u64,
    /// GID of the port that offers it.
    pub service_gid: Gid,
    /// P_Key by which to reach the service.
    pub service_pkey: PKey,
}

/// A registered service.
#[derive(Clone, PartialEq, Eq)]
pub struct Service {
    /// The key of this row.
    pub rid: ServiceRid,
    /// ServiceRecord in wire format; ServiceLease is the requested one. ServiceKey is a secret:
    /// never logged, and not in a cache file.
    pub record: [u8; 176],
    /// The first second at which the lease has expired, in registry time, which belongs to the
    /// registry and not to the clock of a host; `None` for never.
    pub expires_s: Option<u64>,
}

impl Service {
    /// Position of ServiceKey in the record.
    pub const KEY: Range<usize> = 32..48;
}

/// Identifies a subscription: the RID of InformInfoRecord (IBA 15.2.5.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionRid {
    /// GID of the subscriber.
    pub subscriber_gid: Gid,
    /// Distinguishes the subscriptions of one port.
    pub enumeration: u16,
}

/// A subscription to events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The key of this row.
    pub rid: SubscriptionRid,
    /// InformInfo in wire format.
    pub inform_info: [u8; 36],
    /// LID that reports are sent to.
    pub lid: Lid,
    /// QP that reports are sent to.
    pub qpn: Qpn,
    /// SL of the subscription request; reports are sent on it.
    pub sl: Sl,
    /// P_Key of the subscription request; reports are sent with it.
    pub pkey: PKey,
    /// Whether the subscription request had a GRH; then reports have one too.
    pub grh: bool,
    /// Whether the subscriber proved by the SM_Key that it may receive reports restricted to
    /// trusted requesters.
    pub trusted: bool,
    /// Identity of the responder that sends the reports; 0 for none.
    pub responder: u64,
}

impl ShownRecord for Subscription {
    const ATTRIBUTE: AttributeId = attribute::INFORM_INFO_RECORD;
    /// Clients write InformInfo.
    const IS_WRITABLE: bool = false;
    const COMPONENTS: &'static [Component] = &{
        const RECORD: &[FieldInfo] = InformInfoRecord::FIELDS;
        const fn of(mask: ComponentMask, field: &str) -> Component {
            Component::of(mask, InformInfo::FIELDS, field, 24)
        }
        [
            Component::of(inform_info::SUBSCRIBER_GID, RECORD, "subscriber_gid", 0),
            Component::of(inform_info::ENUMERATION, RECORD, "enumeration", 0),
            of(inform_info::GID, "gid"),
            of(inform_info::LID_RANGE_BEGIN, "lid_range_begin"),
            of(inform_info::LID_RANGE_END, "lid_range_end"),
            of(inform_info::IS_GENERIC, "is_generic"),
            of(inform_info::SUBSCRIBE, "subscribe"),
            of(inform_info::TYPE, "inform_type"),
            of(inform_info::TRAP_NUMBER, "trap_number"),
            of(inform_info::QPN, "qpn"),
            of(inform_info::RESP_TIME_VALUE, "resp_time_value"),
            of(inform_info::PRODUCER_TYPE, "producer_type"),
        ]
    };
    const LEN: usize = InformInfoRecord::LEN;
    type Record = [u8; Self::LEN];

    /// The QPN is for the trusted (IBA C15-0.2-1.16, C15-0.1.23.4); others find 0.
    fn shown(&self, is_trusted: bool) -> Self::Record {
        let mut inform_info = self.inform_info;
        InformInfo::of_mut(&mut inform_info).set_qpn(if is_trusted { self.qpn } else { Qpn(0) });
        let SubscriptionRid { subscriber_gid, enumeration } = self.rid;
        InformInfoRecordRepr { subscriber_gid, enumeration, inform_info }.to_bytes()
    }

    /// The GUID identifies the subscriber; its prefix may be any.
    fn port(&self) -> Guid {
        self.rid.subscriber_gid.guid()
    }

    fn keys(mask: ComponentMask, request: &[u8; DATA_LEN]) -> RangeInclusive<SubscriptionRid> {
        let request = InformInfoRecord::of(request);
        let rid = |subscriber_gid, enumeration| SubscriptionRid { subscriber_gid, enumeration };
        if !mask.contains(inform_info::SUBSCRIBER_GID) {
            return rid(Gid::ZERO, 0)..=rid(Gid([0xFF; 16]), u16::MAX);
        }
        let enumerations = match mask.contains(inform_info::ENUMERATION) {
            true => request.enumeration()..=request.enumeration(),
            false => 0..=u16::MAX,
        };
        let gid = request.subscriber_gid();
        rid(gid, *enumerations.start())..=rid(gid, *enumerations.end())
    }
}

/// An alias GUID: an additional GUID of a port (GUIDInfo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasGuid {
    /// The alias, the key of this row.
    pub alias: Guid,
    /// GUID of the port.
    pub port_guid: Guid,
    /// Index in the port's GUID table, at least 1.
    pub index: u8,
}

/// A partition that a program made, beside those of `partitions.conf`. Its members are rows of
/// their own. No SA record shows it; the P_Keys of ports that follow from it are in the fabric
/// plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiPartition {
    /// The key of this row: P_Key of limited members.
    pub pkey: PKey,
    /// Name, for people.
    pub name: String,
    /// Whether it has a broadcast group for IP over InfiniBand from the beginning.
    pub ipoib: bool,
    /// MTU of that group as a code (IBA 14.2.5.6); 0 for the default.
    pub mtu: u8,
    /// Rate of that group as a code (IBA 15.2.5.16); 0 for the default.
    pub rate: u8,
    /// SL, used only with QoS.
    pub sl: Sl,
}

/// Identifies a member of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionMemberRid {
    /// The partition: P_Key of limited members.
    pub pkey: PKey,
    /// GUID of a port, or an alias GUID, which stands for its port. It need not be on the fabric.
    pub guid: Guid,
}

/// A member of a partition that a program added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMember {
    /// The key of this row.
    pub rid: PartitionMemberRid,
    /// Whether it is a full member.
    pub full: bool,
    /// Whether it is a limited member; with `full`, it is both.
    pub limited: bool,
    /// Whether the P_Key is to be at index 0 of the port's table.
    pub first: bool,
    /// The host that it was added by, if it was by name: so it is removed by that name, also while
    /// the host is away.
    pub host: String,
}

/// A port whose memberships, aliases or other registrations were removed when it left the fabric. A
/// new master asks it to register again; the row remains until it has registered something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LapsedPort {
    /// GUID of the port, the key of this row.
    pub port_guid: Guid,
}

canonical!(MulticastGroup { mgid, record, predefined });
canonical!(MulticastMemberRid { mgid, port_gid });
canonical!(MulticastMember { rid, join_state, proxy_join });
canonical!(ServiceRid { service_id, service_gid, service_pkey });
canonical!(Service { rid, record, expires_s });
canonical!(SubscriptionRid { subscriber_gid, enumeration });
canonical!(Subscription { rid, inform_info, lid, qpn, sl, pkey, grh, trusted, responder });
canonical!(AliasGuid { alias, port_guid, index });
canonical!(ApiPartition { pkey, name, ipoib, mtu, rate, sl });
canonical!(PartitionMemberRid { pkey, guid });
canonical!(PartitionMember { rid, full, limited, first, host });
canonical!(LapsedPort { port_guid });

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("rid", &self.rid)
            .field("expires_s", &self.expires_s)
            .finish_non_exhaustive()
    }
}

/// Rows for tests. Different keys have different rows; `value` is 0, 1 or 2.
#[cfg(test)]
mod samples {
    use super::*;

    fn gid(key: u64) -> Gid {
        Gid::new(0xFE80_0000_0000_0000, Guid(key))
    }

    impl MulticastGroup {
        pub(crate) fn sample(key: u64, value: u8) -> Self {
            Self { mgid: gid(key), record: [value; 52], predefined: value == 1 }
        }
    }

    impl MulticastMember {
        pub(crate) fn sample(key: u64, value: u8) -> Self {
            let rid = MulticastMemberRid { mgid: gid(key / 3), port_gid: gid(key) };
            Self { rid, join_state: value, proxy_join: value == 1 }
        }
    }

    impl Service {
        pub(crate) fn sample(service_id: u64, value: u8) -> Self {
            let service_gid = gid(service_id);
            let rid = ServiceRid { service_id, service_gid, service_pkey: PKey(0xFFFF) };
            let expires_s = (value == 1).then_some(1_800_000_000);
            Self { rid, record: [value + 1; 176], expires_s }
        }
    }

    impl Subscription {
        pub(crate) fn sample(key: u64, value: u8) -> Self {
            Self {
                rid: SubscriptionRid { subscriber_gid: gid(key), enumeration: 1 },
                inform_info: [value; 36],
                lid: Lid(5),
                qpn: Qpn(1),
                sl: Sl::default(),
                pkey: PKey::DEFAULT_FULL,
                grh: value == 1,
                trusted: value == 2,
                responder: 1,
            }
        }
    }

    impl AliasGuid {
        pub(crate) fn sample(key: u64, value: u8) -> Self {
            Self { alias: Guid(key), port_guid: Guid(u64::from(value)), index: 1 }
        }
    }

    impl ApiPartition {
        pub(crate) fn sample(key: u64, value: u8) -> Self {
            let (pkey, name) = (PKey(key as u16), format!("p{key}"));
            Self { pkey, name, ipoib: value == 1, mtu: value, rate: 0, sl: Sl::default() }
        }
    }

    impl PartitionMember {
        pub(crate) fn sample(key: u64, value: u8) -> Self {
            let rid = PartitionMemberRid { pkey: PKey((key / 3) as u16), guid: Guid(key) };
            let host = if value == 2 { format!("host{key}") } else { String::new() };
            Self { rid, full: value != 1, limited: value > 0, first: value == 2, host }
        }
    }

    impl LapsedPort {
        pub(crate) fn sample(key: u64, _: u8) -> Self {
            Self { port_guid: Guid(key) }
        }
    }
}

//! The registry plane: the clients' registrations. Changes with every accepted write.
//!
//! Its tables are [`Rows`], so that the cost of a write depends on what it changes, not on the
//! number of rows. Rows hold records in wire format; the responder decides which requester may see
//! which fields. The SM's registry executes writes and stores them durably.

use std::fmt;
use std::ops::Range;

use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn, Sl};

use super::change::Changes;
use super::encoding::canonical;
use super::row::{NoPatch, Row, Side, join, same};
use super::rows::Rows;
use super::sorted::keyed;
use super::tables::Table;

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

            /// Appends changes that follow these.
            pub fn merge(&mut self, later: &Self) {
                self.sequence = later.sequence;
                $(self.$table.extend(later.$table.iter().map(|(&key, row)| (key, row.clone())));)*
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
    /// When the lease expires, in seconds of registry time, which belongs to the registry and not
    /// to the clock of a host; `None` for never.
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

canonical!(MulticastGroup { mgid, record, predefined });
canonical!(MulticastMemberRid { mgid, port_gid });
canonical!(MulticastMember { rid, join_state, proxy_join });
canonical!(ServiceRid { service_id, service_gid, service_pkey });
canonical!(Service { rid, record, expires_s });
canonical!(SubscriptionRid { subscriber_gid, enumeration });
canonical!(Subscription { rid, inform_info, lid, qpn, sl, pkey, grh, trusted, responder });
canonical!(AliasGuid { alias, port_guid, index });

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("rid", &self.rid)
            .field("expires_s", &self.expires_s)
            .finish_non_exhaustive()
    }
}

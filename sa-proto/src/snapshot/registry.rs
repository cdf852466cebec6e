//! The registry plane: what clients registered. It changes with every accepted write.
//!
//! Its tables are [`Rows`], so that a write among hundreds of thousands of rows costs what it
//! changes. Rows hold records as they are on the wire; who may see which of their fields is decided where
//! they are answered. The writes themselves, and their durability, are the SM's registry's.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn, Sl};

use super::encoding::canonical;
use super::row::{NoPatch, Row, Side, Table, all_tables, join, keyed, same};
use super::rows::Rows;

/// What clients registered, up to one write.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RegistryPlane {
    /// Sequence number of the last write that is in it.
    pub sequence: u64,
    /// Multicast groups, ascending by MGID, each once.
    pub groups: Rows<MulticastGroup>,
    /// Members of the groups, ascending by MGID and port GID, each once.
    pub members: Rows<MulticastMember>,
    /// Services, ascending by RID, each once.
    pub services: Rows<Service>,
    /// Event subscriptions, ascending by RID, each once.
    pub subscriptions: Rows<Subscription>,
    /// Alias GUIDs, ascending, each once.
    pub alias_guids: Rows<AliasGuid>,
}

/// What becomes of rows of one table, by key: the row that is there now, or `None`.
pub type Changes<R> = BTreeMap<<R as Row>::Key, Option<Arc<R>>>;

/// What becomes of the registry plane.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RegistryChanges {
    /// Sequence number of the last write that is in it; not below that of the plane it applies to.
    pub sequence: u64,
    /// Multicast groups.
    pub groups: Changes<MulticastGroup>,
    /// Members of the groups.
    pub members: Changes<MulticastMember>,
    /// Services.
    pub services: Changes<Service>,
    /// Event subscriptions.
    pub subscriptions: Changes<Subscription>,
    /// Alias GUIDs.
    pub alias_guids: Changes<AliasGuid>,
}

macro_rules! registry_tables {
    (fabric { $($f:ident: $fr:ident,)* } registry { $($r:ident: $rr:ident,)* }) => {
        impl RegistryChanges {
            /// What makes `new` of `old`.
            pub fn between(old: &RegistryPlane, new: &RegistryPlane) -> Self {
                Self { sequence: new.sequence, $($r: changes_between(&old.$r, &new.$r),)* }
            }

            /// Whether no row changes.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// How many rows change.
            pub fn len(&self) -> usize {
                0 $(+ self.$r.len())*
            }

            /// The plane that `old` becomes.
            pub fn applied_to(&self, old: &RegistryPlane) -> RegistryPlane {
                let mut plane = old.clone();
                plane.apply(self);
                plane
            }

            /// Adds what changes after this.
            pub fn merge(&mut self, later: &Self) {
                self.sequence = later.sequence;
                $(self.$r.extend(later.$r.iter().map(|(&key, row)| (key, row.clone())));)*
            }
        }

        impl RegistryPlane {
            /// Makes `changes`, in time that goes with them.
            pub fn apply(&mut self, changes: &RegistryChanges) {
                self.sequence = changes.sequence;
                $(for (&key, row) in &changes.$r {
                    match row {
                        Some(row) => self.$r.insert(row.clone()),
                        None => self.$r.remove(key),
                    };
                })*
            }
        }
    };
}
all_tables!(registry_tables);

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
    /// MCMemberRecord as it is on the wire, without PortGID, JoinState and ProxyJoin.
    pub record: [u8; 52],
    /// Whether it comes from a configuration file: it is there without members, and its last
    /// member does not take it along.
    pub predefined: bool,
}

/// Names a member of a multicast group: the RID of MCMemberRecord (15.2.5.17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MulticastMemberRid {
    /// The group.
    pub mgid: Gid,
    /// The member.
    pub port_gid: Gid,
}

/// A member of a multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastMember {
    /// The key of this row.
    pub rid: MulticastMemberRid,
    /// JoinState, 4 bits: full, non-member, send-only non-member, send-only full member.
    pub join_state: u8,
    /// Whether another port of its partition joined on its behalf.
    pub proxy_join: bool,
}

/// Names a service: the RID of ServiceRecord (15.2.5.14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceRid {
    /// ServiceID.
    pub service_id: u64,
    /// GID of the port that offers it.
    pub service_gid: Gid,
    /// P_Key to reach it by.
    pub service_pkey: PKey,
}

/// A registered service.
#[derive(Clone, PartialEq, Eq)]
pub struct Service {
    /// The key of this row.
    pub rid: ServiceRid,
    /// ServiceRecord as it is on the wire; ServiceLease is what was asked for. ServiceKey is a
    /// secret: never logged, and not in a cache file.
    pub record: [u8; 176],
    /// When the lease ends, in seconds since 1970 by the SM's clock; `None` if it never does.
    pub expires_s: Option<u64>,
}

impl Service {
    /// Where the record holds ServiceKey.
    pub const KEY: Range<usize> = 32..48;
}

/// Names a subscription: the RID of InformInfoRecord (15.2.5.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionRid {
    /// The port that subscribed.
    pub subscriber_gid: Gid,
    /// Tells the subscriptions of one port apart.
    pub enumeration: u16,
}

/// A subscription to events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The key of this row.
    pub rid: SubscriptionRid,
    /// InformInfo as it is on the wire.
    pub inform_info: [u8; 36],
    /// LID that reports go to.
    pub lid: Lid,
    /// QP that reports go to.
    pub qpn: Qpn,
    /// SL that the subscription came on; reports go back on it.
    pub sl: Sl,
    /// P_Key that the subscription came with; reports go back with it.
    pub pkey: PKey,
    /// Whether the subscription came with a GRH; reports then have one, too.
    pub grh: bool,
    /// Whether the subscriber proved with the SM_Key that it may hear of what concerns trust.
    pub trusted: bool,
    /// Identity of the responder that sends the reports; 0 if none does.
    pub responder: u64,
}

/// A GUID that a port answers to besides its own (GUIDInfo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasGuid {
    /// The alias, the key of this row.
    pub alias: Guid,
    /// GUID of the port.
    pub port_guid: Guid,
    /// Index in the port's GUID table, at least 1.
    pub index: u8,
}

macro_rules! rows {
    ($($row:ident by $field:ident: $key:ident in $table:ident;)*) => {$(
        impl Row for $row {
            type Key = $key;
            type Patch = NoPatch;
            const TABLE: Table = Table::$table;
            fn key(&self) -> $key {
                self.$field
            }
        }
    )*};
}
rows! {
    MulticastGroup by mgid: Gid in MulticastGroups;
    MulticastMember by rid: MulticastMemberRid in MulticastMembers;
    Service by rid: ServiceRid in Services;
    Subscription by rid: SubscriptionRid in Subscriptions;
    AliasGuid by alias: Guid in AliasGuids;
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

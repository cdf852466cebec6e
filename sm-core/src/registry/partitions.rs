//! Partitions that programs make, beside those of operators' files.
//!
//! An operator's program orders them by gRPC or HTTP, not by MAD: no SA client can. Orders change
//! rows like writes do, and the same change again changes nothing. Members are GUIDs that need not
//! be on the fabric: a virtual function is announced before it exists. Nothing here depends on the
//! fabric, so that no sweep removes a row.
//!
//! Not here: what the rows mean for ports (`manage::api_partitions`).

use std::collections::{BTreeSet, HashSet};

use ib_mad::types::{Guid, Mtu, PKey, Rate, Sl};
use sa_proto::snapshot::{ApiPartition, PartitionMember, PartitionMemberRid};

use super::Core;

/// Partitions that programs can make.
pub const API_PARTITIONS_MAX: usize = 4_096;
/// Members of all of them together.
pub const PARTITION_MEMBERS_MAX: usize = 131_072;
/// GUIDs in one order.
pub const ORDER_GUIDS_MAX: usize = 16_384;
/// Bytes of a partition's name.
pub const PARTITION_NAME_MAX: usize = 64;

/// An order of a program about one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionOrder {
    /// The partition; the membership bit does not count.
    pub pkey: PKey,
    /// What to do.
    pub action: PartitionAction,
}

/// What an order does to its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionAction {
    /// Makes the partition, or changes attributes of the one that is there.
    Set {
        /// Whether it must be there, or must not.
        presence: Presence,
        /// Attributes.
        attributes: Attributes,
    },
    /// Adds members, or changes their membership. Makes the partition if it is absent.
    Add {
        /// The members.
        members: Vec<WantedMember>,
        /// Attributes.
        attributes: Attributes,
    },
    /// The same, and removes all other members.
    Replace {
        /// The members.
        members: Vec<WantedMember>,
        /// Attributes.
        attributes: Attributes,
    },
    /// Removes members. GUIDs that are not members change nothing.
    Remove {
        /// The members.
        guids: Vec<Guid>,
        /// Hosts: members that were added by these names, wherever the hosts are.
        hosts: Vec<String>,
        /// Whether the partition is deleted if no member is left.
        deletes_empty: bool,
    },
    /// Deletes the partition with its members. One that is absent changes nothing.
    Delete,
}

/// Whether a partition must be there before an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It may or may not.
    Either,
    /// It must be there.
    Present,
    /// It must not.
    Absent,
}

/// Attributes of a partition; those that are `None` stay as they are, or get their default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Name: ASCII letters, digits and `_`, `-`, `.`.
    pub name: Option<String>,
    /// Whether it has a broadcast group for IP over InfiniBand.
    pub ipoib: Option<bool>,
    /// MTU of that group.
    pub mtu: Option<Mtu>,
    /// Rate of that group.
    pub rate: Option<Rate>,
    /// SL, used only with QoS.
    pub sl: Option<Sl>,
}

/// A member that a program adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMember {
    /// GUID of a port, or an alias GUID.
    pub guid: Guid,
    /// Whether it is a full member.
    pub full: bool,
    /// Whether it is a limited member.
    pub limited: bool,
    /// Whether the P_Key is to be at index 0 of the port's table.
    pub first: bool,
    /// The host that it is added by. `None` keeps the one that is known.
    pub host: Option<String>,
}

/// Why an order is refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderRefusal {
    /// It must not be there.
    #[error("partition {0} exists")]
    Exists(PKey),
    /// It must be there.
    #[error("no program has made partition {0}")]
    Unknown(PKey),
    /// Its number is none.
    #[error("{0} is no partition: P_Keys of partitions are 0x1 to 0x7fff")]
    BadPKey(PKey),
    /// Its name cannot be written in `partitions.conf`.
    #[error(
        "the name of a partition has 1 to {PARTITION_NAME_MAX} ASCII letters, digits, '_', '-' \
         and '.', and begins with a letter"
    )]
    BadName,
    /// No port can have the GUID.
    #[error("{0} is not the GUID of a port")]
    BadGuid(Guid),
    /// A member is neither full nor limited.
    #[error("{0} is to be neither a full nor a limited member")]
    NoMembership(Guid),
    /// Too many GUIDs.
    #[error("an order has at most {ORDER_GUIDS_MAX} GUIDs or hosts")]
    TooManyGuids,
    /// Too many partitions.
    #[error("programs have made {API_PARTITIONS_MAX} partitions, which is the limit")]
    TooManyPartitions,
    /// Too many members.
    #[error("partitions made by programs have at most {PARTITION_MEMBERS_MAX} members in all")]
    TooManyMembers,
    /// The registry is full.
    #[error("the registry is full")]
    Full,
}

impl OrderRefusal {
    /// Whether a limit is reached.
    pub fn is_limit(self) -> bool {
        matches!(self, Self::TooManyPartitions | Self::TooManyMembers | Self::Full)
    }
}

/// Decides on an order and applies it. `records_max` limits the records of the registry.
pub(super) fn order(
    core: &mut Core,
    records_max: usize,
    order: &PartitionOrder,
) -> Result<(), OrderRefusal> {
    let decided = decide(core, records_max, order);
    if decided.is_err_and(OrderRefusal::is_limit) {
        core.counters.partitions_refused += 1;
    }
    decided
}

fn decide(core: &mut Core, records_max: usize, order: &PartitionOrder) -> Result<(), OrderRefusal> {
    let pkey = PKey(order.pkey.base());
    if pkey.0 == 0 {
        return Err(OrderRefusal::BadPKey(order.pkey));
    }
    match &order.action {
        PartitionAction::Set { presence, attributes } => {
            // The default partition always is.
            let exists = core.api_partitions.get(pkey).is_some() || pkey == PKey::DEFAULT_LIMITED;
            match presence {
                Presence::Absent if exists => return Err(OrderRefusal::Exists(pkey)),
                Presence::Present if !exists => return Err(OrderRefusal::Unknown(pkey)),
                _ => {}
            }
            let row = changed(core, pkey, attributes)?;
            room(core, records_max, pkey, &BTreeSet::new(), 0)?;
            core.api_partitions.put(row);
        }
        PartitionAction::Add { members, attributes } => {
            let row = changed(core, pkey, attributes)?;
            check(members)?;
            let guids = members.iter().map(|member| member.guid).collect();
            room(core, records_max, pkey, &guids, 0)?;
            core.api_partitions.put(row);
            members.iter().for_each(|member| put(core, pkey, member));
        }
        PartitionAction::Replace { members, attributes } => {
            let row = changed(core, pkey, attributes)?;
            check(members)?;
            let guids: BTreeSet<Guid> = members.iter().map(|member| member.guid).collect();
            let others: Vec<Guid> =
                members_of(core, pkey).filter(|guid| !guids.contains(guid)).collect();
            room(core, records_max, pkey, &guids, others.len())?;
            core.api_partitions.put(row);
            for guid in others {
                core.partition_members.remove(PartitionMemberRid { pkey, guid });
            }
            members.iter().for_each(|member| put(core, pkey, member));
        }
        PartitionAction::Remove { guids, hosts, deletes_empty } => {
            if guids.len().max(hosts.len()) > ORDER_GUIDS_MAX {
                return Err(OrderRefusal::TooManyGuids);
            }
            for guid in guids.iter().copied().chain(added_by(core, pkey, hosts)) {
                core.partition_members.remove(PartitionMemberRid { pkey, guid });
            }
            if *deletes_empty && members_of(core, pkey).next().is_none() {
                core.api_partitions.remove(pkey);
            }
        }
        PartitionAction::Delete => {
            let members: Vec<Guid> = members_of(core, pkey).collect();
            for guid in members {
                core.partition_members.remove(PartitionMemberRid { pkey, guid });
            }
            core.api_partitions.remove(pkey);
        }
    }
    Ok(())
}

/// GUIDs of the members of a partition.
fn members_of(core: &Core, pkey: PKey) -> impl Iterator<Item = Guid> {
    let rid = |guid| PartitionMemberRid { pkey, guid };
    let rows = core.partition_members.range(rid(Guid(0))..=rid(Guid(u64::MAX)));
    rows.map(|row| row.rid.guid)
}

/// GUIDs of the members of a partition that were added by these names of hosts.
fn added_by(core: &Core, pkey: PKey, hosts: &[String]) -> Vec<Guid> {
    let hosts: HashSet<&str> = hosts.iter().map(String::as_str).collect();
    if hosts.is_empty() {
        return Vec::new();
    }
    let rid = |guid| PartitionMemberRid { pkey, guid };
    let rows = core.partition_members.range(rid(Guid(0))..=rid(Guid(u64::MAX)));
    let is_of = |host: &str| !host.is_empty() && hosts.contains(host);
    rows.filter(|row| is_of(&row.host)).map(|row| row.rid.guid).collect()
}

fn put(core: &mut Core, pkey: PKey, member: &WantedMember) {
    let WantedMember { guid, full, limited, first, ref host } = *member;
    let rid = PartitionMemberRid { pkey, guid };
    let known = || core.partition_members.get(rid).map(|row| row.host.clone());
    let host = host.clone().or_else(known).unwrap_or_default();
    core.partition_members.put(PartitionMember { rid, full, limited, first, host });
}

/// The row of a partition with these attributes.
fn changed(core: &Core, pkey: PKey, attributes: &Attributes) -> Result<ApiPartition, OrderRefusal> {
    let known = core.api_partitions.get(pkey);
    let mut row = known.map_or_else(
        || ApiPartition {
            pkey,
            name: String::new(),
            ipoib: false,
            mtu: 0,
            rate: 0,
            sl: Sl::default(),
        },
        |row| (**row).clone(),
    );
    let Attributes { name, ipoib, mtu, rate, sl } = attributes;
    if let Some(name) = name {
        if !is_name(name) {
            return Err(OrderRefusal::BadName);
        }
        row.name.clone_from(name);
    }
    row.ipoib = ipoib.unwrap_or(row.ipoib);
    row.mtu = mtu.map_or(row.mtu, Mtu::code);
    row.rate = rate.map_or(row.rate, Rate::code);
    row.sl = sl.unwrap_or(row.sl);
    Ok(row)
}

/// Whether a name can be written in `partitions.conf` and read back.
fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    name.len() <= PARTITION_NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(is_part)
}

fn check(members: &[WantedMember]) -> Result<(), OrderRefusal> {
    if members.len() > ORDER_GUIDS_MAX {
        return Err(OrderRefusal::TooManyGuids);
    }
    for member in members {
        // The GUID that stands for the SA is among those that Kubernetes hands out: it is kept, and
        // no port has it.
        if [Guid(0), Guid(u64::MAX)].contains(&member.guid) {
            return Err(OrderRefusal::BadGuid(member.guid));
        }
        if !member.full && !member.limited {
            return Err(OrderRefusal::NoMembership(member.guid));
        }
    }
    Ok(())
}

/// Checks the limits for a partition with these members in addition, less `removed` of those that
/// it has.
fn room(
    core: &Core,
    records_max: usize,
    pkey: PKey,
    members: &BTreeSet<Guid>,
    removed: usize,
) -> Result<(), OrderRefusal> {
    let is_new = |guid: &&Guid| {
        core.partition_members.get(PartitionMemberRid { pkey, guid: **guid }).is_none()
    };
    let new_members = members.iter().filter(is_new).count().saturating_sub(removed);
    let new_partitions = usize::from(core.api_partitions.get(pkey).is_none());
    if core.api_partitions.len() + new_partitions > API_PARTITIONS_MAX {
        return Err(OrderRefusal::TooManyPartitions);
    }
    if new_members > 0 && core.partition_members.len() + new_members > PARTITION_MEMBERS_MAX {
        return Err(OrderRefusal::TooManyMembers);
    }
    let new = new_members + new_partitions;
    if new > 0 && core.len() + new > records_max {
        return Err(OrderRefusal::Full);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::RegistryPlane;

    use super::super::Registry;
    use super::super::testing::{GUIDS, ports};
    use super::*;

    fn member(guid: u64) -> WantedMember {
        let guid = Guid(guid);
        WantedMember { guid, full: true, limited: false, first: false, host: None }
    }

    fn act(
        registry: &mut Registry,
        pkey: u16,
        action: PartitionAction,
    ) -> Result<(), OrderRefusal> {
        registry.order(&ports(), &PartitionOrder { pkey: PKey(pkey), action }).result
    }

    fn add(guids: impl IntoIterator<Item = u64>) -> PartitionAction {
        let members = guids.into_iter().map(member).collect();
        PartitionAction::Add { members, attributes: Attributes::default() }
    }

    fn replace(guids: impl IntoIterator<Item = u64>) -> PartitionAction {
        let members = guids.into_iter().map(member).collect();
        PartitionAction::Replace { members, attributes: Attributes::default() }
    }

    fn remove(guids: &[u64], deletes_empty: bool) -> PartitionAction {
        let guids = guids.iter().copied().map(Guid).collect();
        PartitionAction::Remove { guids, hosts: Vec::new(), deletes_empty }
    }

    fn set(presence: Presence) -> PartitionAction {
        PartitionAction::Set { presence, attributes: Attributes::default() }
    }

    fn members(plane: &RegistryPlane) -> Vec<(u16, u64)> {
        plane.partition_members.iter().map(|row| (row.rid.pkey.0, row.rid.guid.0)).collect()
    }

    #[test]
    fn an_order_again_changes_nothing() {
        let mut registry = Registry::default();
        for action in [
            set(Presence::Either),
            add([1, 2]),
            replace([2, 3]),
            remove(&[3, 9], false),
            remove(&[2], true),
            PartitionAction::Delete,
        ] {
            act(&mut registry, 0x8005, action.clone()).unwrap();
            let (plane, sequence) = (registry.plane(), registry.sequence());
            act(&mut registry, 5, action).unwrap();
            assert_eq!((registry.plane(), registry.sequence()), (plane, sequence));
        }
        assert_eq!(registry.sequence(), 5, "the last order found the partition gone");
    }

    #[test]
    fn members_need_not_be_on_the_fabric_and_no_sweep_removes_them() {
        let mut registry = Registry::default();
        act(&mut registry, 5, add([0x0200_0000_0000_0001, GUIDS[0].0])).unwrap();
        registry.fabric_changed(&ports());
        registry.expire(u64::MAX);
        assert_eq!(members(&registry.plane()).len(), 2);
        let restored = Registry::restore(&registry.plane(), []);
        assert_eq!(restored.plane(), registry.plane());
    }

    /// Regression: ib-kubernetes could not add a pod that got this one of its GUIDs, nor the others
    /// in the same call.
    #[test]
    fn the_guid_that_stands_for_the_sa_may_be_listed() {
        let mut registry = Registry::default();
        act(&mut registry, 5, add([Guid::WELL_KNOWN_SA.0, 1])).unwrap();
        assert_eq!(members(&registry.plane()).len(), 2);
    }

    #[test]
    fn members_are_replaced_at_once_and_only_those_of_the_partition() {
        let mut registry = Registry::default();
        act(&mut registry, 5, add([1, 2])).unwrap();
        act(&mut registry, 6, add([1])).unwrap();
        act(&mut registry, 5, replace([2, 3])).unwrap();
        assert_eq!(members(&registry.plane()), [(5, 2), (5, 3), (6, 1)]);
        act(&mut registry, 5, PartitionAction::Delete).unwrap();
        assert_eq!(members(&registry.plane()), [(6, 1)]);
        assert_eq!(registry.plane().api_partitions.len(), 1);
    }

    /// Regression: members that were added by the name of a host could not be removed by it while
    /// the host was away, nor could those of other hosts in the same call.
    #[test]
    fn who_was_added_by_the_name_of_a_host_is_removed_by_it() {
        let mut registry = Registry::default();
        let of = |host: &str, guid| WantedMember { host: Some(host.to_owned()), ..member(guid) };
        let members_added = vec![of("a", 1), of("a", 2), of("b", 3), member(4)];
        let attributes = Attributes::default();
        let action = PartitionAction::Add { members: members_added, attributes };
        act(&mut registry, 5, action).unwrap();
        act(&mut registry, 6, add([1])).unwrap();
        // By GUID it is another membership, of the same host.
        act(&mut registry, 5, add([1])).unwrap();
        let mut remove = |hosts: &[&str], guids: &[u64]| {
            let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
            let guids = guids.iter().copied().map(Guid).collect();
            let action = PartitionAction::Remove { guids, hosts, deletes_empty: true };
            act(&mut registry, 5, action).unwrap();
            members(&registry.plane())
        };
        assert_eq!(remove(&["", "c"], &[]).len(), 5, "no host has an empty name");
        assert_eq!(remove(&["a", "c"], &[4]), [(5, 3), (6, 1)]);
        assert_eq!(remove(&["b"], &[]), [(6, 1)]);
        assert_eq!(remove(&["b"], &[]), [(6, 1)]);
        assert_eq!(registry.plane().api_partitions.len(), 1, "5 went with its last member");
    }

    #[test]
    fn a_partition_goes_with_its_last_member_only_if_that_is_asked_for() {
        let mut registry = Registry::default();
        act(&mut registry, 5, add([1])).unwrap();
        act(&mut registry, 5, remove(&[1], false)).unwrap();
        assert_eq!(registry.plane().api_partitions.len(), 1);
        act(&mut registry, 5, remove(&[1], true)).unwrap();
        assert_eq!(registry.plane().api_partitions.len(), 0);
    }

    #[test]
    fn attributes_that_an_order_does_not_name_stay() {
        let mut registry = Registry::default();
        let named =
            |name: &str| Attributes { name: Some(name.to_owned()), ..Attributes::default() };
        let attributes = Attributes { ipoib: Some(true), mtu: Some(Mtu::B4096), ..named("blue") };
        let presence = Presence::Absent;
        act(&mut registry, 5, PartitionAction::Set { presence, attributes }).unwrap();
        act(&mut registry, 5, add([1])).unwrap();
        let row = registry.plane().api_partitions.find(PKey(5)).unwrap().clone();
        assert_eq!((&row.name[..], row.ipoib, row.mtu), ("blue", true, Mtu::B4096.code()));
        for bad in ["", "a b", "a=b", "5", "x;", &"x".repeat(PARTITION_NAME_MAX + 1)] {
            let action =
                PartitionAction::Set { presence: Presence::Either, attributes: named(bad) };
            assert_eq!(act(&mut registry, 5, action), Err(OrderRefusal::BadName), "{bad:?}");
        }
    }

    #[test]
    fn what_must_or_must_not_be_there_is_checked() {
        let mut registry = Registry::default();
        let unknown = Err(OrderRefusal::Unknown(PKey(5)));
        assert_eq!(act(&mut registry, 5, set(Presence::Present)), unknown);
        act(&mut registry, 5, set(Presence::Absent)).unwrap();
        let exists = Err(OrderRefusal::Exists(PKey(5)));
        assert_eq!(act(&mut registry, 5, set(Presence::Absent)), exists);
        let default = Err(OrderRefusal::Exists(PKey::DEFAULT_LIMITED));
        assert_eq!(act(&mut registry, 0xffff, set(Presence::Absent)), default);
        let none = Err(OrderRefusal::BadPKey(PKey(0x8000)));
        assert_eq!(act(&mut registry, 0x8000, set(Presence::Either)), none);
        assert_eq!(act(&mut registry, 5, add([0])), Err(OrderRefusal::BadGuid(Guid(0))));
    }

    #[test]
    fn what_exceeds_a_limit_is_refused_and_counted_and_changes_nothing() {
        let mut registry = Registry::default();
        let per_order = ORDER_GUIDS_MAX as u64;
        let too_many = Err(OrderRefusal::TooManyGuids);
        assert_eq!(act(&mut registry, 5, add(1..=per_order + 1)), too_many);
        for part in 0..(PARTITION_MEMBERS_MAX / ORDER_GUIDS_MAX) as u64 {
            act(&mut registry, 5, add((1..=per_order).map(|n| part << 32 | n))).unwrap();
        }
        let sequence = registry.sequence();
        let too_many = Err(OrderRefusal::TooManyMembers);
        assert_eq!(act(&mut registry, 6, add([1])), too_many);
        act(&mut registry, 5, add([1])).unwrap();
        assert_eq!(registry.sequence(), sequence, "nothing is new");
        act(&mut registry, 5, replace([1])).unwrap();
        for pkey in 6..5 + API_PARTITIONS_MAX as u16 {
            act(&mut registry, pkey, set(Presence::Absent)).unwrap();
        }
        let too_many = Err(OrderRefusal::TooManyPartitions);
        assert_eq!(act(&mut registry, 0x7001, set(Presence::Absent)), too_many);
        assert_eq!(act(&mut registry, 0x7001, add([1])), too_many);
        act(&mut registry, 6, add([1])).unwrap();
        assert_eq!(registry.counters().partitions_refused, 3);
    }

    #[test]
    fn partitions_are_among_the_records_that_the_registry_holds() {
        let mut ports = ports();
        ports.settings.records_max = 2;
        let mut registry = Registry::default();
        let order = PartitionOrder { pkey: PKey(5), action: add([1, 2]) };
        assert_eq!(registry.order(&ports, &order).result, Err(OrderRefusal::Full));
        let order = PartitionOrder { pkey: PKey(5), action: add([1]) };
        assert_eq!(registry.order(&ports, &order).result, Ok(()));
    }
}

//! The registry as `ibsmctl` lists it: rows of the published snapshot, in messages of bounded size.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ib_mad::text;
use ib_mad::types::{Gid, Guid, PortNum};
use ib_mad::wire::record::ServiceRecord;
use sa_proto::proto::admin;
use sa_proto::snapshot::{MulticastGroup, MulticastMemberRid, Service, Snapshot, Subscription};

use crate::observe::{Responder, node_name};

/// Rows in one message; a row has at most about 300 bytes.
const ROWS_MAX: usize = 1024;

/// Ports by port GUID, GUIDs of virtual ports, and alias GUID.
pub(super) struct Ports {
    by_guid: HashMap<Guid, (usize, PortNum)>,
    /// Names of nodes.
    names: Vec<String>,
}

impl Ports {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let nodes = &snapshot.fabric().nodes;
        let mut by_guid = HashMap::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            for port in &node.ports {
                // All ports of a switch have the GUID of its port 0, which comes first.
                by_guid.entry(port.guid).or_insert((at, port.num));
            }
        }
        for row in &snapshot.fabric().virtual_ports {
            let Some(&port) = by_guid.get(&row.port_guid) else { continue };
            for virtual_port in row.ports.iter().filter(|port| port.is_reached(row.port_guid)) {
                by_guid.entry(virtual_port.guid).or_insert(port);
            }
        }
        for alias in snapshot.registry().alias_guids.iter() {
            if let Some(&port) = by_guid.get(&alias.port_guid) {
                by_guid.entry(alias.alias).or_insert(port);
            }
        }
        let names = nodes.iter().map(|node| node_name(node));
        Self { by_guid, names: names.collect() }
    }

    fn named(&self, gid: Gid) -> admin::Port {
        let port = self.by_guid.get(&gid.guid());
        let (node, number) = port
            .map_or((String::new(), 0), |&(node, num)| (self.names[node].clone(), num.0.into()));
        admin::Port { gid: gid.0.to_vec(), node, number }
    }
}

/// Which groups are listed, and which of their members.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupFilter {
    /// One group.
    pub(super) mgid: Option<Gid>,
    /// Groups with members among these port and alias GUIDs, and only these members.
    pub(super) ports: Option<BTreeSet<Guid>>,
    /// No members.
    pub(super) is_summary: bool,
}

/// Groups with their members; `send` takes a message and returns whether to continue.
pub(super) fn groups(
    snapshot: &Snapshot,
    filter: &GroupFilter,
    mut send: impl FnMut(admin::Groups) -> bool,
) {
    let ports = Ports::of(snapshot);
    let registry = snapshot.registry();
    let mut batch = Vec::new();
    let mut rows = 0;
    let is_wanted = |row: &&Arc<MulticastGroup>| filter.mgid.is_none_or(|only| row.mgid == only);
    for row in registry.groups.iter().filter(is_wanted) {
        let first = MulticastMemberRid { mgid: row.mgid, port_gid: Gid([0; 16]) };
        let last = MulticastMemberRid { mgid: row.mgid, port_gid: Gid([0xFF; 16]) };
        let members = || registry.members.range(first..=last);
        let is_listed =
            |gid: Gid| filter.ports.as_ref().is_none_or(|ports| ports.contains(&gid.guid()));
        if filter.ports.is_some() && !members().any(|member| is_listed(member.rid.port_gid)) {
            continue;
        }
        let mut group = group(row, members().count());
        let listed = members().filter(|member| is_listed(member.rid.port_gid));
        for member in listed.take(if filter.is_summary { 0 } else { usize::MAX }) {
            group.members.push(admin::Member {
                port: Some(ports.named(member.rid.port_gid)),
                join_state: member.join_state.into(),
                proxy_join: member.proxy_join,
            });
            rows += 1;
            if rows >= ROWS_MAX {
                let rest = admin::Group { members: Vec::new(), ..group.clone() };
                batch.push(std::mem::replace(&mut group, rest));
                rows = 0;
                if !send(admin::Groups { groups: std::mem::take(&mut batch) }) {
                    return;
                }
            }
        }
        batch.push(group);
        rows += 1;
        if rows >= ROWS_MAX {
            rows = 0;
            if !send(admin::Groups { groups: std::mem::take(&mut batch) }) {
                return;
            }
        }
    }
    if !batch.is_empty() {
        send(admin::Groups { groups: batch });
    }
}

fn group(row: &MulticastGroup, member_count: usize) -> admin::Group {
    let (record, predefined) = (row.record.to_vec(), row.predefined);
    let member_count = u32::try_from(member_count).unwrap_or(u32::MAX);
    admin::Group { record, predefined, members: Vec::new(), member_count }
}

/// Services, with the rest of their leases at this registry time.
pub(super) fn services(
    snapshot: &Snapshot,
    time: Duration,
    send: impl FnMut(admin::Services) -> bool,
) {
    let ports = Ports::of(snapshot);
    let now_s = time.as_secs();
    let rows = snapshot.registry().services.iter().map(|row| service(row, &ports, now_s));
    in_batches(rows, |services| admin::Services { services }, send);
}

fn service(row: &Service, ports: &Ports, now_s: u64) -> admin::Service {
    // Less than a second after its registration a lease is not shown as longer than requested.
    let lease = ServiceRecord::of(&row.record).service_lease();
    let left_s = row.expires_s.map(|end| end.saturating_sub(now_s).min(lease.into()));
    admin::Service {
        service_id: row.rid.service_id,
        port: Some(ports.named(row.rid.service_gid)),
        pkey: row.rid.service_pkey.0.into(),
        name: text::of_field(&row.record[48..112]),
        left_s,
        has_key: row.record[Service::KEY].iter().any(|&byte| byte != 0),
    }
}

/// Event subscriptions.
pub(super) fn subscriptions(
    snapshot: &Snapshot,
    responders: &[Responder],
    send: impl FnMut(admin::Subscriptions) -> bool,
) {
    let ports = Ports::of(snapshot);
    let rows = snapshot.registry().subscriptions.iter();
    let rows = rows.map(|row| subscription(row, &ports, responders));
    in_batches(rows, |subscriptions| admin::Subscriptions { subscriptions }, send);
}

fn subscription(
    row: &Subscription,
    ports: &Ports,
    responders: &[Responder],
) -> admin::Subscription {
    let responder = match responders.iter().find(|responder| responder.id == row.responder) {
        Some(responder) => responder.name.to_string(),
        None if row.responder == 0 => String::new(),
        None => format!("{:#x}", row.responder),
    };
    admin::Subscription {
        port: Some(ports.named(row.rid.subscriber_gid)),
        enumeration: row.rid.enumeration.into(),
        inform_info: row.inform_info.to_vec(),
        lid: row.lid.0.into(),
        qpn: row.qpn.0,
        trusted: row.trusted,
        responder,
    }
}

fn in_batches<R, M>(
    mut rows: impl Iterator<Item = R>,
    message: impl Fn(Vec<R>) -> M,
    mut send: impl FnMut(M) -> bool,
) {
    loop {
        let batch: Vec<R> = rows.by_ref().take(ROWS_MAX).collect();
        if batch.is_empty() || !send(message(batch)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::PKey;
    use sa_proto::snapshot::{
        AliasGuid, FabricPlane, MulticastMember, Node, Port, RegistryPlane, ServiceRid, Session,
    };

    use super::*;

    const PREFIX: u64 = 0xFE80 << 48;

    fn snapshot(registry: RegistryPlane) -> Snapshot {
        let mut description = [0; 64];
        description[..6].copy_from_slice(b"host-1");
        let port = Port {
            num: PortNum(2),
            guid: Guid(0x11),
            info: [0; 64],
            pkeys: Arc::from([PKey::DEFAULT_FULL]),
            peer: None,
        };
        let node = Node {
            guid: Guid(0x10),
            info: [0; 40],
            description,
            switch_info: None,
            ports: vec![port],
        };
        let fabric = FabricPlane { nodes: vec![Arc::new(node)], ..FabricPlane::default() };
        Snapshot::build(Session::default(), 1, fabric, registry).unwrap()
    }

    fn mgid(last: u8) -> Gid {
        let mut mgid = Gid([0; 16]);
        (mgid.0[0], mgid.0[15]) = (0xFF, last);
        mgid
    }

    fn with_members(counts: &[(u8, u64)]) -> RegistryPlane {
        let mut registry = RegistryPlane::default();
        for &(last, count) in counts {
            let mut record = [0; 52];
            record[..16].copy_from_slice(&mgid(last).0);
            let group = MulticastGroup { mgid: mgid(last), record, predefined: last == 1 };
            registry.groups.insert(Arc::new(group));
            for guid in 0..count {
                let rid = MulticastMemberRid {
                    mgid: mgid(last),
                    port_gid: Gid::new(PREFIX, Guid(0x11 + guid)),
                };
                let member = MulticastMember { rid, join_state: 1, proxy_join: false };
                registry.members.insert(Arc::new(member));
            }
        }
        registry
    }

    fn all_groups(snapshot: &Snapshot, mgid: Option<Gid>) -> Vec<admin::Groups> {
        filtered(snapshot, &GroupFilter { mgid, ..GroupFilter::default() })
    }

    fn filtered(snapshot: &Snapshot, filter: &GroupFilter) -> Vec<admin::Groups> {
        let mut messages = Vec::new();
        groups(snapshot, filter, |message| {
            messages.push(message);
            true
        });
        messages
    }

    #[test]
    fn members_are_listed_by_node_name() {
        let snapshot = snapshot(with_members(&[(1, 2), (2, 0)]));
        let listed = &all_groups(&snapshot, None)[0].groups;
        assert_eq!((listed.len(), listed[0].predefined, listed[1].predefined), (2, true, false));
        let port = |at: usize| listed[0].members[at].port.clone().unwrap();
        assert_eq!((port(0).node.as_str(), port(0).number), ("host-1", 2));
        assert_eq!((port(1).node.as_str(), port(1).number), ("", 0), "a port that is gone");
        let one = all_groups(&snapshot, Some(mgid(2)));
        assert_eq!((one.len(), one[0].groups.len()), (1, 1));
        assert!(all_groups(&snapshot, Some(mgid(9))).is_empty());
    }

    #[test]
    fn groups_of_a_node_and_a_summary_count_all_members() {
        let snapshot = snapshot(with_members(&[(1, 3), (2, 1), (3, 0)]));
        let ports = Some(BTreeSet::from([Guid(0x12)]));
        let of_node = filtered(&snapshot, &GroupFilter { ports, ..GroupFilter::default() });
        let counts = |messages: &[admin::Groups]| -> Vec<(u8, usize, u32)> {
            let groups = messages.iter().flat_map(|message| &message.groups);
            let count =
                |group: &admin::Group| (group.record[15], group.members.len(), group.member_count);
            groups.map(count).collect()
        };
        assert_eq!(counts(&of_node), [(1, 1, 3)]);
        let summary = GroupFilter { is_summary: true, ..GroupFilter::default() };
        assert_eq!(counts(&filtered(&snapshot, &summary)), [(1, 0, 3), (2, 0, 1), (3, 0, 0)]);
    }

    #[test]
    fn many_empty_groups_are_sent_in_messages_of_limited_length() {
        let counts: Vec<(u8, u64)> = (0..=255).map(|last| (last, 5)).collect();
        let snapshot = snapshot(with_members(&counts));
        let messages = all_groups(&snapshot, None);
        let rows = |message: &admin::Groups| {
            message.groups.iter().map(|group| 1 + group.members.len()).sum::<usize>()
        };
        // The group whose members go on in the next message is one more row.
        let is_short = |message: &admin::Groups| rows(message) <= ROWS_MAX + 1;
        assert!(messages.len() >= 2 && messages.iter().all(is_short));
    }

    #[test]
    fn a_large_group_goes_on_in_the_next_message() {
        let count = ROWS_MAX as u64 * 2 + 5;
        let snapshot = snapshot(with_members(&[(1, count), (2, 3)]));
        let messages = all_groups(&snapshot, None);
        assert_eq!(messages.len(), 3);
        let members = |message: &admin::Groups, last: u8| -> usize {
            let of = message.groups.iter().filter(|group| group.record[15] == last);
            of.map(|group| group.members.len()).sum()
        };
        let total = |last| messages.iter().map(|message| members(message, last)).sum::<usize>();
        assert_eq!((total(1), total(2)), (count as usize, 3));
    }

    #[test]
    fn a_service_is_reported_without_its_key() {
        let rid = ServiceRid {
            service_id: 7,
            service_gid: Gid::new(PREFIX, Guid(0xA1)),
            service_pkey: PKey(0xFFFF),
        };
        let mut record = [0; 176];
        record[Service::KEY].copy_from_slice(b"secret secret se");
        record[48..53].copy_from_slice(b"DAPL\0");
        ServiceRecord::of_mut(&mut record).set_service_lease(9);
        let mut registry = RegistryPlane::default();
        registry.services.insert(Arc::new(Service { rid, record, expires_s: Some(105) }));
        let alias = AliasGuid { alias: Guid(0xA1), port_guid: Guid(0x11), index: 1 };
        registry.alias_guids.insert(Arc::new(alias));
        let mut listed = Vec::new();
        services(&snapshot(registry), Duration::from_secs(100), |message| {
            listed.extend(message.services);
            true
        });
        assert_eq!(
            (listed[0].name.as_str(), listed[0].has_key, listed[0].left_s),
            ("DAPL", true, Some(5))
        );
        assert_eq!(listed[0].port.as_ref().unwrap().node, "host-1", "by its alias");
        assert!(!format!("{:?}", listed[0]).contains("secret"));
    }
}

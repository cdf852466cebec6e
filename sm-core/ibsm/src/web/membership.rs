//! What the ports of a node belong to: partitions, multicast groups, and the services that they
//! offer. Q_Keys, keys of services and the like are not shown.

use std::collections::{BTreeMap, HashMap};

use ib_mad::text;
use ib_mad::types::{Gid, Guid, PKey, PortNum};
use ib_mad::wire::record::{JoinState, McMemberRecord};
use sa_proto::snapshot::{Node, Snapshot, find};
use serde::Serialize;

use crate::ctl::mgid::ip_group;

/// Limit of groups, and of services, that are listed of a port.
pub(super) const LISTED_MAX: usize = 256;

/// What a port belongs to.
#[derive(Debug, Default, Serialize)]
pub(super) struct Membership {
    /// In the order of the port's table.
    pkeys: Vec<PartitionKey>,
    /// By MGID.
    groups: Vec<Group>,
    /// By ServiceID.
    services: Vec<Offered>,
    /// Further groups and services, beyond the limit.
    unlisted: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct PartitionKey {
    pkey: String,
    is_full: bool,
    /// The partition; empty if no partition has this key.
    name: String,
}

#[derive(Debug, PartialEq, Serialize)]
struct Group {
    mgid: String,
    /// The IP multicast group, of an MGID of IP over InfiniBand.
    ip: Option<String>,
    mlid: Option<u16>,
    /// The partition of the group.
    partition: PartitionKey,
    /// How the port joined: `full`, `non-member`, `send-only non-member`, `send-only full`.
    join_states: Vec<&'static str>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Offered {
    service_id: String,
    name: String,
    partition: PartitionKey,
}

impl PartitionKey {
    fn of(snapshot: &Snapshot, pkey: PKey) -> Self {
        let base = PKey(pkey.base());
        let partition = find(&snapshot.fabric().partitions, base);
        let by_program = || snapshot.registry().api_partitions.find(base);
        let name = partition
            .map(|row| row.name.clone())
            .or_else(|| by_program().map(|row| row.name.clone()));
        Self { pkey: pkey.to_string(), is_full: pkey.is_full(), name: name.unwrap_or_default() }
    }
}

impl Membership {
    /// That of each port of a node. External ports of a switch have no GUID of their own; they are
    /// listed if they have P_Keys, by which the switch filters.
    pub(super) fn of_node(snapshot: &Snapshot, node: &Node) -> BTreeMap<PortNum, Self> {
        let registry = snapshot.registry();
        let mut all: BTreeMap<PortNum, Self> = BTreeMap::new();
        let mut numbers: HashMap<Guid, PortNum> = HashMap::new();
        for port in &node.ports {
            let valid = port.pkeys.iter().filter(|pkey| pkey.is_valid());
            let pkeys: Vec<_> = valid.map(|&pkey| PartitionKey::of(snapshot, pkey)).collect();
            let is_external = node.switch_info.is_some() && port.num != PortNum(0);
            if !is_external {
                numbers.insert(port.guid, port.num);
            }
            if !is_external || !pkeys.is_empty() {
                all.insert(port.num, Self { pkeys, ..Self::default() });
            }
        }
        for row in &snapshot.fabric().virtual_ports {
            let Some(&number) = numbers.get(&row.port_guid) else { continue };
            let reached = row.ports.iter().filter(|port| port.is_reached(row.port_guid));
            reached.for_each(|port| _ = numbers.insert(port.guid, number));
        }
        let aliases = registry.alias_guids.iter();
        let aliases: Vec<_> =
            aliases.filter_map(|row| Some((row.alias, *numbers.get(&row.port_guid)?))).collect();
        numbers.extend(aliases);
        let number = |gid: Gid| numbers.get(&gid.guid()).copied();
        for row in registry.members.iter() {
            let at = number(row.rid.port_gid).and_then(|number| all.get_mut(&number));
            let Some(of_port) = at else { continue };
            if of_port.groups.len() >= LISTED_MAX {
                of_port.unlisted += 1;
                continue;
            }
            let group = registry.groups.find(row.rid.mgid);
            let record = group.and_then(|group| McMemberRecord::new(&group.record[..]).ok());
            let pkey = record.as_ref().map_or(PKey(0), |record| record.pkey());
            of_port.groups.push(Group {
                mgid: row.rid.mgid.to_string(),
                ip: ip_group(row.rid.mgid),
                mlid: record.map(|record| record.mlid().0),
                partition: PartitionKey::of(snapshot, pkey),
                join_states: join_states(JoinState(row.join_state)),
            });
        }
        for row in registry.services.iter() {
            let at = number(row.rid.service_gid).and_then(|number| all.get_mut(&number));
            let Some(of_port) = at else { continue };
            if of_port.services.len() >= LISTED_MAX {
                of_port.unlisted += 1;
                continue;
            }
            of_port.services.push(Offered {
                service_id: format!("{:#018x}", row.rid.service_id),
                name: text::of_field(&row.record[48..112]),
                partition: PartitionKey::of(snapshot, row.rid.service_pkey),
            });
        }
        all
    }
}

fn join_states(joined: JoinState) -> Vec<&'static str> {
    let states = [
        (JoinState::FULL_MEMBER, "full"),
        (JoinState::NON_MEMBER, "non-member"),
        (JoinState::SEND_ONLY_NON_MEMBER, "send-only non-member"),
        (JoinState::SEND_ONLY_FULL_MEMBER, "send-only full"),
    ];
    states.into_iter().filter(|(state, _)| joined.contains(*state)).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::Sl;
    use sa_proto::snapshot::{
        AliasGuid, FabricPlane, MulticastGroup, MulticastMember, MulticastMemberRid, Partition,
        RegistryPlane, Service, ServiceRid, Session,
    };

    use super::*;
    use crate::observe::problem::testing::plane;

    /// The members of a group: ports of the leaf 1, of the host 100 by an alias, and of another.
    fn snapshot(groups: u64) -> Snapshot {
        let mut fabric = FabricPlane::clone(&plane(&[(1, 9, 100, 1), (1, 10, 101, 1)], 0, 0));
        let mut host = Node::clone(&fabric.nodes[1]);
        host.ports[0].pkeys = [PKey(0xFFFF), PKey(0), PKey(7), PKey(9)].into();
        fabric.nodes[1] = Arc::new(host);
        let partition = Partition { pkey: PKey(7), name: "storage".into(), sl: Sl::default() };
        fabric.partitions = vec![Arc::new(partition)];
        let mut registry = RegistryPlane::default();
        registry.alias_guids.put(AliasGuid {
            alias: Guid(0xA11A5),
            port_guid: Guid(100),
            index: 1,
        });
        for group in 0..groups {
            let mut mgid = "ff12:401b:8007::1".parse::<Gid>().unwrap();
            mgid.0[14] = (group >> 8) as u8;
            mgid.0[15] = (group as u8).wrapping_add(1);
            let mut record = [0; 52];
            McMemberRecord::new(&mut record[..]).unwrap().set_pkey(PKey(0x8007));
            registry.groups.put(MulticastGroup { mgid, record, predefined: false });
            for (guid, join_state) in [(101, 4), (0xA11A5, 1)] {
                let rid = MulticastMemberRid { mgid, port_gid: Gid::new(0xFE80, Guid(guid)) };
                registry.members.put(MulticastMember { rid, join_state, proxy_join: false });
            }
        }
        let mut record = [0; 176];
        record[Service::KEY].fill(b'K');
        record[48..52].copy_from_slice(b"disk");
        let rid = ServiceRid {
            service_id: 5,
            service_gid: Gid::new(0xFE80, Guid(100)),
            service_pkey: PKey(7),
        };
        registry.services.put(Service { rid, record, expires_s: None });
        Snapshot::build(Session::default(), 1, fabric, registry).unwrap()
    }

    fn of(snapshot: &Snapshot, at: usize, port: u8) -> serde_json::Value {
        let node = &snapshot.fabric().nodes[at];
        let all = Membership::of_node(snapshot, node);
        serde_json::to_value(&all[&PortNum(port)]).unwrap()
    }

    #[test]
    fn a_port_has_the_names_of_its_partitions_and_what_it_joined_and_offers() {
        let snapshot = snapshot(1);
        let host = of(&snapshot, 1, 1);
        let limited = serde_json::json!({ "pkey": "0x0007", "is_full": false, "name": "storage" });
        assert_eq!(host["pkeys"].as_array().unwrap().len(), 3, "unused places are not listed");
        assert_eq!((&host["pkeys"][1], &host["pkeys"][2]["name"]), (&limited, &"".into()));
        let group = &host["groups"][0];
        assert_eq!((&group["ip"], &group["join_states"][0]), (&"224.0.0.1".into(), &"full".into()));
        assert_eq!(group["partition"]["name"], "storage");
        let service = serde_json::json!({
            "service_id": "0x0000000000000005", "name": "disk", "partition": limited,
        });
        assert_eq!(host["services"], serde_json::json!([service]));
        let other = of(&snapshot, 2, 1);
        assert_eq!(other["groups"][0]["join_states"], serde_json::json!(["send-only non-member"]));
    }

    #[test]
    fn an_external_port_of_a_switch_is_listed_if_it_has_pkeys() {
        let snapshot = snapshot(1);
        assert!(Membership::of_node(&snapshot, &snapshot.fabric().nodes[0]).is_empty());
        let mut switch = Node::clone(&snapshot.fabric().nodes[0]);
        switch.ports[1].pkeys = [PKey(0x8007)].into();
        let all = Membership::of_node(&snapshot, &switch);
        assert_eq!(all[&switch.ports[1].num].pkeys[0].name, "storage");
    }

    #[test]
    fn groups_beyond_the_limit_are_counted() {
        let host = of(&snapshot(LISTED_MAX as u64 + 3), 1, 1);
        assert_eq!(host["groups"].as_array().unwrap().len(), LISTED_MAX);
        assert_eq!(host["unlisted"], 3);
    }
}

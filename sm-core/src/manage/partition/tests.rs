use std::path::Path;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::NodeInfo;
use proptest::prelude::*;

use super::*;
use sm_config::{Remarks, partitions};

const KINDS: [NodeType; 3] = [NodeType::Ca, NodeType::Switch, NodeType::Router];

/// A switch with port GUID 100, channel adapters 1 to 3 and routers 11 and 12; the SM is on 1.
fn fabric() -> Fabric {
    let mut fabric = Fabric::default();
    let ends = [1, 2, 3].map(|guid| (guid, NodeType::Ca));
    let routers = [11, 12].map(|guid| (guid, NodeType::Router));
    let add = |fabric: &mut Fabric, guid: u64, kind, ports| {
        let mut bytes = [0; 40];
        NodeInfo::new(&mut bytes[..])
            .unwrap()
            .set_node_type(kind)
            .set_num_ports(ports)
            .set_node_guid(Guid(guid))
            .set_port_guid(Guid(guid));
        fabric.add(&NodeInfo::new(&bytes[..]).unwrap(), kind).unwrap()
    };
    let switch = add(&mut fabric, 100, NodeType::Switch, 8);
    for (num, (guid, kind)) in (1..).zip(ends.into_iter().chain(routers)) {
        let node = add(&mut fabric, guid, kind, 1);
        let port = fabric.port_of(node, PortNum(1)).unwrap();
        fabric.link(port, fabric.port_of(switch, PortNum(num)).unwrap());
        fabric.port_mut(port).guid = Guid(guid);
        fabric.port_mut(port).known = true;
        if guid == 1 {
            fabric.set_sm_port(port);
        }
    }
    for port in fabric.ports_of(switch) {
        fabric.port_mut(port).known = true;
    }
    fabric.settle_end_ports(|_, _| crate::fabric::Tenure::Elsewhere);
    fabric
}

fn config(text: &str) -> PartitionConfig {
    partitions::parse(Path::new("p"), text, &mut Remarks::default()).unwrap()
}

fn port(fabric: &Fabric, guid: u64) -> PortIndex {
    fabric.end_ports().find(|&port| fabric.port(port).guid == Guid(guid)).unwrap()
}

/// P_Keys of a port, beginning with the one for index 0.
fn keys(found: &Memberships, fabric: &Fabric, guid: u64) -> Vec<u16> {
    let keys = found.keys(port(fabric, guid)).unwrap();
    let others = keys.keys.iter().filter(|key| **key != keys.first);
    std::iter::once(keys.first.0).chain(others.map(|key| key.0)).collect()
}

fn resolve(fabric: &Fabric, text: &str) -> Memberships {
    Memberships::resolve(fabric, &config(text), false, &[])
}

#[test]
fn rules_are_for_ports_of_a_kind_a_guid_or_the_sm() {
    let fabric = fabric();
    let found = resolve(
        &fabric,
        "A=1:ALL_CAS=full; B=2:ALL_SWITCHES; C=3:ALL_ROUTERS=full,0x2; D=4:SELF=full,0x99=full;",
    );
    assert_eq!(keys(&found, &fabric, 1), [0xffff, 0x8001, 0x8004]);
    assert_eq!(keys(&found, &fabric, 2), [0x7fff, 0x8001, 3]);
    assert_eq!(keys(&found, &fabric, 3), [0x7fff, 0x8001]);
    assert_eq!(keys(&found, &fabric, 11), [0x7fff, 0x8003]);
    assert_eq!(keys(&found, &fabric, 100), [0x7fff, 2]);
}

#[test]
fn without_a_file_all_are_full_members_of_the_default_partition() {
    let fabric = fabric();
    let found = Memberships::resolve(&fabric, &PartitionConfig::default(), false, &[]);
    assert!(fabric.end_ports().all(|port| found.keys(port).unwrap().keys == [PKey::DEFAULT_FULL]));
}

#[test]
fn the_last_rule_about_a_port_holds() {
    let fabric = fabric();
    let found = resolve(&fabric, "A=1:0x2=full,ALL; B=2:ALL=full,0x2; C=3:0x2;C=3:0x2=both;");
    assert_eq!(keys(&found, &fabric, 2), [0x7fff, 1, 2, 0x8003]);
}

#[test]
fn the_sm_and_responders_are_full_members_of_the_default_partition_whatever_rules_say() {
    let fabric = fabric();
    for allow_both in [false, true] {
        let config = config("Default=0x7fff:ALL=limited;A=1,indx0:ALL;");
        let found = Memberships::resolve(&fabric, &config, allow_both, &[Guid(3)]);
        for guid in [1, 3] {
            assert!(keys(&found, &fabric, guid).contains(&0xffff));
        }
        assert!(!keys(&found, &fabric, 2).contains(&0xffff));
        assert_eq!(keys(&found, &fabric, 3)[0], 1, "indx0 is kept");
    }
}

#[test]
fn with_both_memberships_allowed_a_port_can_have_two_keys() {
    let fabric = fabric();
    let config = config("A=1:0x2=both,0x3=full; B=2:0x2=full,0x2=both,0x3=both,0x3=limited;");
    let found = Memberships::resolve(&fabric, &config, true, &[]);
    assert_eq!(keys(&found, &fabric, 2), [0x7fff, 1, 0x8001, 2, 0x8002]);
    assert_eq!(keys(&found, &fabric, 3), [0x7fff, 0x8001, 2]);
}

#[test]
fn the_last_partition_with_indx0_stands_first() {
    let fabric = fabric();
    let text = "A=1,indx0:ALL=full; B=2,indx0:0x2; C=3:ALL; B=2:0x3; A=1:0x3=full;";
    let found = resolve(&fabric, text);
    assert_eq!(keys(&found, &fabric, 11), [0x8001, 3, 0x7fff]);
    assert_eq!(keys(&found, &fabric, 2), [2, 0x8001, 3, 0x7fff]);
    assert_eq!(keys(&found, &fabric, 3), [0x7fff, 0x8001, 2, 3], "a rule without it takes it back");
}

/// OpenSM keeps partitions by their numbers in network order.
#[test]
fn keys_come_in_opensms_order() {
    let fabric = fabric();
    let found = resolve(&fabric, "A=0x102:ALL;B=0x201:ALL;C=3:ALL;D=0x4000:ALL;");
    assert_eq!(keys(&found, &fabric, 2), [0x7fff, 0x4000, 0x201, 0x102, 3]);
}

#[test]
fn partitions_without_members_have_neither_row_nor_group() {
    let fabric = fabric();
    let config = config("A=1,ipoib,sl=3:0x99;B=2,ipoib,sl=4:0x2;");
    let found = Memberships::resolve(&fabric, &config, false, &[]);
    let rows: Vec<_> = found.rows(&config, true).iter().map(|p| (p.pkey.0, p.sl.get())).collect();
    assert_eq!(rows, [(0x7fff, 0), (2, 4)]);
    let groups = groups(&config, &found, &Settings::default(), false);
    assert_eq!(groups.iter().map(|g| g.pkey.0).collect::<Vec<_>>(), [0x8002]);
}

#[test]
fn sls_of_partitions_hold_with_qos_only_and_those_of_groups_always() {
    let fabric = fabric();
    let config = config("A=1,ipoib,sl=3:mgid=ff12::1,sl=5\nmgid=ff15::2,scope=0xe\nALL;");
    let found = Memberships::resolve(&fabric, &config, false, &[]);
    let settings = Settings { subnet_timeout: 17, ..Settings::default() };
    for (qos, sls) in [(false, [0, 5, 0]), (true, [3, 5, 3])] {
        let groups = groups(&config, &found, &settings, qos);
        assert_eq!(groups.iter().map(|g| g.sl.get()).collect::<Vec<_>>(), sls);
        assert_eq!(found.rows(&config, qos)[1].sl.get(), sls[0]);
        let reach: Vec<_> =
            groups.iter().map(|g| (g.scope, g.hop_limit, g.lifetime.code())).collect();
        assert_eq!(reach, [(2, 0, 17), (2, 0, 17), (0xe, 255, 17)]);
    }
}

proptest! {
    /// A direct implementation of the manual: every rule in turn, over all ports.
    #[test]
    fn memberships_are_those_of_the_rules_one_after_another(
        rules in proptest::collection::vec((1u16..4, 0usize..6, 1u64..4, 0usize..3), 0..20),
        allow_both in any::<bool>(),
    ) {
        let fabric = fabric();
        let words = ["ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "SELF"];
        let members = ["limited", "full", "both"];
        let mut text = "Default=0x7fff:ALL;".to_owned();
        let mut expected: BTreeMap<u64, BTreeSet<PKey>> = BTreeMap::new();
        for (base, word, guid, member) in rules {
            let name = words.get(word).map_or_else(|| guid.to_string(), |word| (*word).to_owned());
            text += &format!("P{base}={base}:{name}={};", members[member]);
            for port in fabric.end_ports() {
                let (this, kind) = (fabric.port(port).guid.0, fabric.node_of(port).kind);
                let concerned = match word {
                    0 => true,
                    1..=3 => kind == KINDS[word - 1],
                    4 => this == 1,
                    _ => this == guid,
                };
                if concerned {
                    let keys = expected.entry(this).or_default();
                    let (limited, full) = (PKey(base), PKey(base | 0x8000));
                    let (add, remove) = match member {
                        0 => (limited, full),
                        _ => (full, limited),
                    };
                    if member == 2 && allow_both {
                        keys.insert(limited);
                    } else {
                        keys.remove(&remove);
                    }
                    keys.insert(add);
                }
            }
        }
        let found = Memberships::resolve(&fabric, &config(&text), allow_both, &[]);
        for port in fabric.end_ports() {
            let guid = fabric.port(port).guid.0;
            let keys = &found.keys(port).unwrap().keys;
            let others: BTreeSet<PKey> =
                keys.iter().copied().filter(|key| key.base() != 0x7fff).collect();
            prop_assert_eq!(others, expected.remove(&guid).unwrap_or_default());
            let distinct: BTreeSet<PKey> = keys.iter().copied().collect();
            prop_assert_eq!(distinct.len(), keys.len());
        }
    }
}

/// Regression: a P_Key that a port's table held twice was wanted twice.
#[test]
fn p_keys_that_are_kept_are_kept_once() {
    let mut fabric = fabric();
    let mut block = [PKey::default(); 32];
    block[..6].copy_from_slice(&[0xffff, 0x8005, 5, 0x8005, 1, 5].map(PKey));
    let host = port(&fabric, 2);
    fabric.set_pkey_block(host, 0, &block);
    let config = config("A=1:ALL=full;");
    let mut found = Memberships::resolve(&fabric, &config, false, &[]);
    found.keep_others(&fabric, &config);
    assert_eq!(keys(&found, &fabric, 2), [0x7fff, 0x8001, 0x8005, 5]);
    assert_eq!(keys(&found, &fabric, 3), [0x7fff, 0x8001]);
}

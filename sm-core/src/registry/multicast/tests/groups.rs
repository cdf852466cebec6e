//! Origin of groups' parameters: files, virtual fabrics, broadcast groups, MLIDs.

use std::collections::BTreeSet;

use sa_proto::snapshot::{PortGroup, VirtualFabric};

use super::super::super::testing::port;

use super::*;

#[test]
fn predefined_groups_stay_without_members() {
    let mut registry = Registry::default();
    registry.set_predefined(&ports(), &[predefined(mgid(9), 3), predefined(mgid(1), 0)]);
    assert_eq!((mlid(&registry, mgid(9)), mlid(&registry, mgid(1))), (Some(0xC000), Some(0xC001)));
    let short = About { mask: MEMBER, ..about(1, 1, mgid(9), FULL) };
    let reply = write(&mut registry, short.set());
    assert_eq!((view(&record(&reply)).sl().get(), view(&record(&reply)).qkey()), (3, 0xB1B));
    write(&mut registry, About { mask: MEMBER, ..about(2, 2, mgid(9), NON) }.set());
    write(&mut registry, leave(1, 9, FULL));
    assert!(registry.group(mgid(9)).is_some() && members(&registry).is_empty());
    let both = [RegistryEvent::GroupCreated(mgid(9)), RegistryEvent::GroupDeleted(mgid(9))];
    assert_eq!(events(&mut registry), both);
    registry.set_predefined(&ports(), &[predefined(mgid(1), 0)]);
    assert!(registry.group(mgid(9)).is_none());
}

#[test]
fn a_group_with_members_outlives_its_line_in_the_file() {
    let mut registry = Registry::default();
    registry.set_predefined(&ports(), &[predefined(mgid(1), 3)]);
    write(&mut registry, About { mask: MEMBER, ..about(1, 1, mgid(1), FULL) }.set());
    registry.set_predefined(&ports(), &[]);
    assert!(registry.group(mgid(1)).is_some_and(|group| !group.predefined));
    write(&mut registry, leave(1, 1, FULL));
    assert!(registry.group(mgid(1)).is_none());
}

#[test]
fn a_file_changes_a_group_that_has_no_members() {
    let mut registry = Registry::default();
    let sl = |registry: &Registry| view(&registry.group(mgid(1)).unwrap().record).sl().get();
    write(&mut registry, join(1, 1, FULL));
    registry.set_predefined(&ports(), &[predefined(mgid(1), 3)]);
    assert_eq!(sl(&registry), 0, "existing members use SL 0");
    write(&mut registry, leave(1, 1, FULL));
    registry.set_predefined(&ports(), &[predefined(mgid(1), 3)]);
    assert_eq!((sl(&registry), mlid(&registry, mgid(1))), (3, Some(0xC000)));
    registry.set_predefined(&ports(), &[predefined(mgid(1), 5)]);
    assert_eq!((sl(&registry), mlid(&registry, mgid(1))), (5, Some(0xC000)));
}

#[test]
fn groups_of_one_kind_share_mlids_when_they_run_out() {
    let mut registry = Registry::default();
    let mut ports = ports();
    ports.mlid_last = Lid(0xC001);
    let create = |registry: &mut Registry, ports: &Ports, number, sl| {
        let request = about(1, 1, mgid(number), FULL).with(component::SL, |record| {
            record.set_sl(Sl::from_low_bits(sl));
        });
        registry.write(NOW_S, ports, &request.set()).status
    };
    for number in 1..=3 {
        assert_eq!(create(&mut registry, &ports, number, 0), Status::OK);
    }
    assert_eq!([1, 2, 3].map(|n| mlid(&registry, mgid(n)).unwrap()), [0xC000, 0xC001, 0xC000]);
    assert_eq!(create(&mut registry, &ports, 4, 1), Status::SA_NO_RESOURCES, "of another SL");
    assert_eq!(registry.counters().mlids_exhausted, 1);
    assert!(registry.group(mgid(4)).is_none());
    // An MLID is free when the last group on it is gone.
    registry.write(NOW_S, &ports, &leave(1, 1, FULL));
    assert_eq!(create(&mut registry, &ports, 4, 1), Status::SA_NO_RESOURCES);
    registry.write(NOW_S, &ports, &leave(1, 3, FULL));
    assert_eq!(create(&mut registry, &ports, 4, 1), Status::OK);
    assert_eq!(mlid(&registry, mgid(4)), Some(0xC000));
    ports.settings.share_mlids = false;
    assert_eq!(create(&mut registry, &ports, 5, 0), Status::SA_NO_RESOURCES);
}

#[test]
fn solicited_node_groups_share_an_mlid_if_they_are_to() {
    let mut ports = ports();
    let create = |registry: &mut Registry, ports: &Ports, mgid: &str| {
        let mgid: Gid = mgid.parse().unwrap();
        let reply = registry.write(NOW_S, ports, &about(1, 1, mgid, FULL).set());
        (reply.status == Status::OK).then(|| view(&record(&reply)).mlid().0)
    };
    let broadcast = "ff12:401b:ffff::ffff:ffff";
    let nodes = ["ff12:601b:ffff::1:ff00:1", "ff12:601b:ffff::1:ff00:2", "ff12:601b:ffff::1"];
    for (consolidate, expected) in
        [(false, [0xC001, 0xC002, 0xC003]), (true, [0xC001, 0xC001, 0xC002])]
    {
        ports.settings.consolidate_ipv6_snm_req = consolidate;
        let mut registry = Registry::default();
        assert_eq!(create(&mut registry, &ports, broadcast), Some(0xC000));
        let mlids = nodes.map(|node| create(&mut registry, &ports, node).unwrap());
        assert_eq!(mlids, expected);
    }
}

#[test]
fn ipoib_groups_agree_with_their_broadcast_group() {
    let mut registry = Registry::default();
    let broadcast: Gid = "ff12:401b:ffff::ffff:ffff".parse().unwrap();
    let all_hosts: Gid = "ff12:401b:ffff::1".parse().unwrap();
    let create = |mgid, qkey: u32| {
        about(1, 1, mgid, FULL)
            .with(component::QKEY, |record| {
                record.set_qkey(qkey);
            })
            .set()
    };
    assert_eq!(status(&mut registry, create(all_hosts, 7)), INVALID, "no broadcast group");
    assert_eq!(status(&mut registry, create(broadcast, 7)), OK);
    assert_eq!(status(&mut registry, create(all_hosts, 8)), INVALID, "another Q_Key");
    assert_eq!(status(&mut registry, create(all_hosts, 7)), OK);
}

#[test]
fn virtual_fabrics_give_groups_their_parameters() {
    let mut ports = ports();
    let fabric = VirtualFabric {
        index: 0,
        name: "storage".into(),
        pkey: PKey(1),
        base_sl: Sl::from_low_bits(4),
        multicast_sl: Sl::from_low_bits(5),
        mtu_max: Some(Mtu::B2048),
        rate_max: Some(Rate::Gbps40),
        security: true,
        qos: true,
        mgids: vec![(mgid(1), Gid([0xFF; 16]))],
        members: vec![0],
        ..VirtualFabric::default()
    };
    let all = PortGroup { index: 0, name: String::new(), node_types: 0, ports: GUIDS[1..].into() };
    ports.set_virtual_fabrics(&[fabric], &[all]);
    let mut registry = Registry::default();
    let reply = registry.write(NOW_S, &ports, &join(2, 1, FULL));
    let got = record(&reply);
    let got = view(&got);
    assert_eq!((got.pkey(), got.sl().get()), (PKey(0x8001), 5));
    assert_eq!((got.mtu(), got.rate()), (Mtu::B2048.code(), Rate::Gbps40.code()));
    // The next one asks for the same and joins.
    assert_eq!(registry.write(NOW_S, &ports, &join(4, 1, FULL)).status, Status::OK);
    // Port 3 is of the virtual fabric, not of its partition.
    assert_eq!(registry.write(NOW_S, &ports, &join(3, 1, FULL)).status, Status::SA_REQ_INVALID);
    // More than the virtual fabric grants cannot be had.
    let greedy =
        about(2, 2, mgid(1), FULL).with(component::MTU_SELECTOR | component::MTU, |record| {
            record.set_mtu_selector(Selector::Exactly).set_mtu(Mtu::B4096);
        });
    let mut registry = Registry::default();
    assert_eq!(registry.write(NOW_S, &ports, &greedy.set()).status, Status::SA_REQ_INVALID);
    // Other MGIDs belong to no partition.
    let reply = registry.write(NOW_S, &ports, &join(2, 2, FULL));
    assert_eq!(view(&record(&reply)).sl().get(), 0);
}

#[test]
fn a_stored_group_that_nothing_keeps_is_taken_out() {
    let mut registry = Registry::default();
    write(&mut registry, join(1, 1, FULL));
    let mut plane = registry.plane();
    let rid = plane.members.get(0).unwrap().rid;
    plane.members.remove(rid);
    let mut restored = Registry::restore(&plane, []);
    assert!(restored.plane().groups.is_empty());
    assert_eq!(restored.take_changes().rows.sequence, plane.sequence + 1);
}

/// Proves IBA o15-0.2.3.
#[test]
fn new_groups_have_the_rate_that_is_reported() {
    let mut ports = ports();
    let rate = |ports: &Ports| {
        let mut registry = Registry::default();
        view(&record(&registry.write(NOW_S, ports, &join(2, 1, FULL)))).rate()
    };
    let real = rate(&ports);
    ports.settings.max_rate = real - 1;
    let reported = rate(&ports);
    assert!(
        reported < real && Rate::from_code(reported) < Rate::from_code(real),
        "{reported}, {real}"
    );
}

/// A port neither creates nor joins a group whose MTU its link does not have (IBA o15-0.1.8,
/// o15-0.1.13).
#[test]
fn a_group_beyond_the_mtu_of_a_port_is_refused_to_it() {
    let mut ends = end_ports();
    ends[1].mtu = Mtu::B2048;
    let ports = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], ends);
    let create = |lid| {
        let mtu = component::MTU_SELECTOR | component::MTU;
        let asked = about(lid, lid, mgid(1), FULL).with(mtu, |record| {
            record.set_mtu_selector(Selector::Exactly).set_mtu(Mtu::B4096);
        });
        asked.set()
    };
    let mut registry = Registry::default();
    let mut status = |request: &Request| registry.write(NOW_S, &ports, request).status;
    assert_eq!(status(&create(2)), Status::SA_REQ_INVALID, "it creates none");
    assert_eq!(status(&create(1)), Status::OK);
    assert_eq!(status(&join(2, 1, FULL)), Status::SA_REQ_INVALID, "it joins none");
    assert_eq!(status(&join(3, 1, FULL)), Status::OK);
}

/// `count` ports with LIDs from 1 on, in two partitions, and room for 1,024 MLIDs.
fn many_ports(count: u16) -> Ports {
    let of = |lid: u16| EndPort {
        guid: Guid(0x1000 + u64::from(lid)),
        lid: Lid(lid),
        ..port(1, &[0xFFFF, 0x8001])
    };
    let mut ports = Ports::new(SUBNET_PREFIX_DEFAULT, Guid(0x1001), (1..=count).map(of).collect());
    ports.mlid_last = Lid(0xC000 + 1023);
    ports
}

/// A port creates a group of a partition; the answer, and the number of MLIDs that are then in use.
fn create(registry: &mut Registry, ports: &Ports, lid: u16, group: u16, pkey: u16) -> Status {
    let mut wide = mgid(group as u8);
    (wide.0[13], wide.0[14]) = (lid as u8, (group >> 8) as u8);
    let mut asked = about(1, 1, wide, FULL).with(component::PKEY, |record| {
        record.set_pkey(PKey(pkey));
    });
    asked.by = lid;
    asked.of = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x1000 + u64::from(lid)));
    registry.write(NOW_S, ports, &asked.set()).status
}

fn mlids(registry: &Registry) -> usize {
    let plane = registry.plane();
    let mlid = |row: &Arc<MulticastGroup>| view(&row.record).mlid();
    plane.groups.iter().map(mlid).collect::<BTreeSet<Lid>>().len()
}

/// Regression: a host that made nodes up got 16 MLIDs for each of them, until none was left.
#[test]
fn ports_that_one_link_brought_count_as_one() {
    for is_brought in [false, true] {
        let mut ports = many_ports(70);
        let together = (1..=60).map(|lid| Guid(0x1000 + lid)).collect();
        ports.set_brought([together].into_iter().filter(|_: &Vec<Guid>| is_brought));
        let mut registry = Registry::default();
        for lid in 1..=60 {
            for group in 0..15 {
                assert_eq!(create(&mut registry, &ports, lid, group, 0xFFFF), Status::OK);
            }
        }
        assert_eq!(mlids(&registry), if is_brought { 512 } else { 1024 - 128 });
    }
}

/// Regression: once ports had groups of one kind for all MLIDs, the first group of another
/// partition was refused.
#[test]
fn the_last_mlids_are_for_groups_that_can_share_none() {
    let ports = many_ports(80);
    let mut registry = Registry::default();
    for lid in 1..=70 {
        for group in 0..16 {
            assert_eq!(create(&mut registry, &ports, lid, group, 0xFFFF), Status::OK);
        }
    }
    assert_eq!(mlids(&registry), 1024 - 128, "the others share them");
    assert_eq!(create(&mut registry, &ports, 80, 0, 0x8001), Status::OK);
    assert_eq!(mlids(&registry), 1024 - 127);
    assert_eq!(create(&mut registry, &ports, 80, 1, 0x8001), Status::OK);
    assert_eq!(mlids(&registry), 1024 - 127, "the next one can share that");
}

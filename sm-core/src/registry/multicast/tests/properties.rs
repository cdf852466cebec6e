//! Laws that hold after any sequence of joins, leaves, sweeps and restarts.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sa_proto::snapshot::RegistryPlane;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Join {
        by: u16,
        of: u16,
        group: u8,
        state: u8,
    },
    Leave {
        by: u16,
        of: u16,
        group: u8,
        state: u8,
    },
    /// Only these ports (bits of LIDs) are left.
    Sweep {
        ports: u8,
    },
    /// Only these groups (bits) are in the file.
    Predefine {
        groups: u8,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly of oneself, so that most is granted.
    let port = || prop_oneof![4 => Just(None), 1 => (1..=4u16).prop_map(Some)];
    let member = (1..=4u16, port(), 0..6u8, 1..16u8);
    let member = member.prop_map(|(by, of, group, state)| (by, of.unwrap_or(by), group, state));
    prop_oneof![
        6 => member.clone().prop_map(|(by, of, group, state)| Step::Join { by, of, group, state }),
        4 => member.prop_map(|(by, of, group, state)| Step::Leave { by, of, group, state }),
        1 => (0..16u8).prop_map(|ports| Step::Sweep { ports }),
        1 => (0..64u8).prop_map(|groups| Step::Predefine { groups }),
        1 => Just(Step::Restart),
    ]
}

/// Ports of LIDs whose bits are set; three MLIDs for six groups.
fn some_ports(bits: u8) -> Ports {
    let left = end_ports().into_iter().filter(|port| bits >> (port.lid.0 - 1) & 1 != 0).collect();
    let mut ports = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], left);
    ports.mlid_last = Lid(0xC002);
    ports
}

/// Groups 4 and 5 are of another SL.
fn sl(group: u8) -> u16 {
    u16::from(group >= 4)
}

fn check(registry: &Registry) {
    let plane = registry.plane();
    let mut of_mlid: BTreeMap<Lid, Vec<Class>> = BTreeMap::new();
    for group in &plane.groups {
        let members = plane.members.iter().filter(|member| member.rid.mgid == group.mgid);
        let keepers = members.filter(|member| member.join_state & KEEPERS != 0).count();
        assert!(keepers > 0 || group.predefined, "nothing keeps {}", group.mgid);
        let counted = registry.core.multicast.keepers.get(&group.mgid).copied().unwrap_or(0);
        assert_eq!(counted as usize, keepers);
        let mlid = view(&group.record).mlid();
        assert!(mlid.is_multicast() && mlid <= Lid(0xC002));
        of_mlid.entry(mlid).or_default().push(Class::of(&group.record));
    }
    for (mlid, classes) in &of_mlid {
        assert!(
            classes.iter().all(|class| *class == classes[0]),
            "{mlid} is shared by unlike groups"
        );
    }
    for member in &plane.members {
        assert!(member.join_state != 0 && member.join_state < 16);
        assert!(plane.groups.find(member.rid.mgid).is_some(), "{:?} has no group", member.rid);
        assert!(is_member(&registry.core, member.rid.port_gid.guid()));
    }
    assert_eq!(registry.core.multicast.by_guid.len(), plane.members.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn groups_members_and_changes_hold_together(steps in prop::collection::vec(step(), 1..80)) {
        let mut registry = Registry::default();
        let mut ports = some_ports(15);
        let mut file = Vec::new();
        let mut replica = RegistryPlane::default();
        let mut alive: BTreeMap<Gid, bool> = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            let now_s = NOW_S + 60 * at as u64;
            let before = registry.plane();
            let request = |by, of, group, state| {
                about(by, of, mgid(group), state)
                    .with(component::SL, |r| { r.set_sl(Sl::from_low_bits(sl(group))); })
            };
            match *step {
                Step::Join { by, of, group, state } => {
                    let request = request(by, of, group, state).set();
                    let reply = registry.write(now_s, &ports, &request);
                    prop_assert_eq!(&registry.write(now_s + 1, &ports, &request), &reply);
                    if reply.status == Status::OK && !reply.dropped {
                        let rid = MulticastMemberRid { mgid: mgid(group), port_gid: gid(of) };
                        let member = registry.core.members.get(rid).expect("joined");
                        prop_assert_eq!(member.join_state & state, state);
                        prop_assert_eq!(view(&record(&reply)).join_state().0, member.join_state);
                    } else {
                        prop_assert_eq!(&registry.plane(), &before, "refused and done");
                    }
                }
                Step::Leave { by, of, group, state } => {
                    let request = request(by, of, group, state).delete();
                    let reply = registry.write(now_s, &ports, &request);
                    prop_assert_eq!(&registry.write(now_s + 1, &ports, &request), &reply);
                    if reply.status == Status::OK && !reply.dropped {
                        let rid = MulticastMemberRid { mgid: mgid(group), port_gid: gid(of) };
                        let left = registry.core.members.get(rid).map_or(0, |m| m.join_state);
                        prop_assert_eq!(left & state, 0);
                        prop_assert_eq!(view(&record(&reply)).join_state().0, left);
                    } else {
                        prop_assert_eq!(&registry.plane(), &before, "refused and done");
                    }
                }
                Step::Sweep { ports: bits } => {
                    ports = some_ports(bits);
                    registry.fabric_changed(&ports);
                    let alive = |m: &Arc<MulticastMember>| {
                        ports.by_guid(m.rid.port_gid.guid()).is_some()
                    };
                    prop_assert!(registry.plane().members.iter().all(alive));
                }
                Step::Predefine { groups } => {
                    let chosen = (0..6).filter(|group| groups >> group & 1 != 0);
                    file = chosen.map(|group| predefined(mgid(group), sl(group))).collect();
                    registry.set_predefined(&ports, &file);
                }
                Step::Restart => {
                    let mut restarted = Registry::restore(&registry.plane(), []);
                    prop_assert!(restarted.take_changes().is_empty());
                    prop_assert_eq!(restarted.plane(), registry.plane());
                    restarted.set_predefined(&ports, &file);
                    registry.set_predefined(&ports, &file);
                    prop_assert_eq!(restarted.plane(), registry.plane());
                    replica.apply(&registry.take_changes().rows);
                    while let Some(event) = registry.poll_event() {
                        note(&mut alive, event);
                    }
                    registry = restarted;
                }
            }
            check(&registry);
            let changed = registry.sequence() - before.sequence;
            prop_assert!(changed <= 2 && (changed == 0) == (registry.plane() == before));
            let changes = registry.take_changes();
            replica.apply(&changes.rows);
            prop_assert_eq!(&replica, &registry.plane());
            while let Some(event) = registry.poll_event() {
                note(&mut alive, event);
            }
            for (&mgid, &alive) in &alive {
                prop_assert_eq!(registry.core.multicast.keepers.contains_key(&mgid), alive);
            }
        }
    }
}

/// Created and deleted take turns.
fn note(alive: &mut BTreeMap<Gid, bool>, event: RegistryEvent) {
    let (mgid, now) = match event {
        RegistryEvent::GroupCreated(mgid) => (mgid, true),
        RegistryEvent::GroupDeleted(mgid) => (mgid, false),
    };
    assert_eq!(alive.insert(mgid, now).unwrap_or(false), !now, "{mgid} was already so");
}

/// The cost of a write must not grow with the number of registrations: counted in rows reported as
/// changed and membership entries examined, not in time.
#[test]
fn a_write_among_200_000_members_lists_its_own_rows_only() {
    const GROUPS: u64 = 2_000;
    const PORTS: u16 = 100;
    let port = |lid: u16| EndPort {
        guid: Guid(0x1000 + u64::from(lid)),
        lid: Lid(lid),
        ..end_ports().remove(0)
    };
    let ports = Ports::new(SUBNET_PREFIX_DEFAULT, Guid(0x1001), (1..=PORTS).map(port).collect());
    let of = |lid: u16| Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x1000 + u64::from(lid)));
    let group = |number: u64| {
        let mut bytes = mgid(0).0;
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        Gid(bytes)
    };
    let mut registry = Registry::default();
    let mut sequence = 0;
    for number in 0..GROUPS {
        for lid in 1..=PORTS {
            let join = About { of: of(lid), ..about(lid, 1, group(number), FULL) };
            let reply = registry.write(NOW_S, &ports, &join.set());
            sequence += 1;
            assert_eq!((reply.status, reply.sequence), (Status::OK, sequence));
            let changes = registry.take_changes();
            let new_group = usize::from(lid == 1);
            assert_eq!((changes.rows.len(), changes.rows.groups.len()), (1 + new_group, new_group));
            assert_eq!(changes.outcomes_put.len(), 1);
            registry.poll_event();
        }
    }
    assert_eq!(registry.plane().members.len(), 200_000);
    // One port goes: its rows go, no others.
    let left = (2..=PORTS).map(port).collect();
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, Guid(0x1001), left));
    let rows = registry.take_changes().rows;
    assert_eq!((rows.members.len(), rows.lapsed_ports.len()), (GROUPS as usize, 1));
    assert_eq!(rows.len(), GROUPS as usize + 1);
}

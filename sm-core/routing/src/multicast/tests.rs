mod loops;

use proptest::prelude::*;

use super::*;
use crate::testing::{any_topology, fat_tree, line, topology};

fn mlid(number: u16) -> Lid {
    Lid(0xC000 + number)
}

/// The places of all hosts.
fn hosts(topology: &Topology) -> Vec<Place> {
    let destinations = topology.destinations().iter();
    destinations.map(|to| Place { switch: to.egress_switch, exit: to.exit }).collect()
}

fn chosen(topology: &Topology, members: &[Place], number: u16) -> Tree {
    let hops = HopMatrix::compute(topology).unwrap();
    TreeBuilder::new(topology, &hops).tree(mlid(number), members, None)
}

proptest! {
    #[test]
    fn every_member_hears_every_other_exactly_once(
        topology in any_topology(), picks in proptest::collection::vec(any::<u32>(), 0..20),
        number in 0..100u16,
    ) {
        let all = hosts(&topology);
        prop_assume!(!all.is_empty());
        let members: Vec<_> =
            picks.iter().map(|&pick| all[pick as usize % all.len()]).collect();
        let tree = chosen(&topology, &members, number);
        prop_assert_eq!(check(&topology, &tree, &members), Ok(()));
        let hops = HopMatrix::compute(&topology).unwrap();
        for place in &members {
            let joined = tree.root.is_some_and(|root| {
                hops.row(root)[usize::from(place.switch)] != HopMatrix::UNREACHABLE
            });
            prop_assert_eq!(joined, !tree.unreached.contains(place));
        }
        prop_assert_eq!(&chosen(&topology, &members, number), &tree);
    }

    /// Regression: a switch without room could be the root, or on a path,
    /// and the tree passed the check.
    #[test]
    fn trees_lead_around_switches_without_room(
        topology in any_topology(), picks in proptest::collection::vec(any::<u32>(), 1..20),
        bars in proptest::collection::vec(0..4u8, 64), number in 0..100u16,
    ) {
        let all = hosts(&topology);
        prop_assume!(!all.is_empty());
        let members: Vec<_> =
            picks.iter().map(|&pick| all[pick as usize % all.len()]).collect();
        let capacity = |&bar: &u8| if bar == 0 { number } else { 1024 };
        let room = Room(bars.iter().cycle().take(topology.switch_count()).map(capacity).collect());
        let barred = room.barred(mlid(number));
        prop_assert_eq!(room.class(mlid(number)), barred.contains(&true).then_some(number));
        let hops = hops_around(&topology, &barred).unwrap();
        let mut builder = TreeBuilder::around(&topology, &hops, barred);
        let before = chosen(&topology, &members, number);
        for before in [None, Some(&before)] {
            let tree = builder.tree(mlid(number), &members, before);
            prop_assert_eq!(check(&topology, &tree, &members), Ok(()));
            prop_assert_eq!(room.lacking(&tree, mlid(number)), None);
            for place in &members {
                let joined = tree.root.is_some_and(|root| {
                    hops.row(root)[usize::from(place.switch)] != HopMatrix::UNREACHABLE
                });
                prop_assert_eq!(joined, !tree.unreached.contains(place));
            }
        }
    }

    #[test]
    fn a_member_that_joins_moves_no_other_while_the_root_stays(
        topology in any_topology(), picks in proptest::collection::vec(any::<u32>(), 1..20),
    ) {
        let all = hosts(&topology);
        prop_assume!(!all.is_empty());
        let members: Vec<_> =
            picks.iter().map(|&pick| all[pick as usize % all.len()]).collect();
        let hops = HopMatrix::compute(&topology).unwrap();
        let mut builder = TreeBuilder::new(&topology, &hops);
        let before = builder.tree(mlid(1), &members[1..], None);
        let after = builder.tree(mlid(1), &members, Some(&before));
        if before.root == after.root {
            let masks: BTreeMap<u16, PortMask> = after.masks.iter().copied().collect();
            for (switch, mask) in before.masks {
                prop_assert!(mask.ports().all(|port| masks[&switch].contains(port)));
            }
        }
    }
}

/// Regression: members behind a switch without room are never reached. Each
/// time the fabric was routed from scratch, such trees counted as broken, and all dependencies were
/// computed before anything was repaired.
#[test]
fn a_tree_serves_although_unreachable_members_are_left_out() {
    let topology = topology(&fat_tree(2, 8, 32), 0);
    let mut members: Vec<_> =
        hosts(&topology).into_iter().filter(|place| place.exit != 0).collect();
    members.sort_unstable();
    let shut = members[9].switch;
    let room = |shut: Option<u16>, others| {
        let capacity = |switch| if shut == Some(switch) { 0 } else { others };
        Room(topology.switches().map(capacity).collect())
    };
    let serves =
        |room: &Room, tree: &Tree| Standing::new(&topology, room).serves(mlid(1), tree, &members);
    let barred = room(Some(shut), 1024).barred(mlid(1));
    let hops = hops_around(&topology, &barred).unwrap();
    let tree = TreeBuilder::around(&topology, &hops, barred).tree(mlid(1), &members, None);
    assert_eq!(tree.unreached.len(), 4);
    assert!(serves(&room(Some(shut), 1024), &tree));
    assert!(!serves(&room(None, 1024), &tree), "a path exists now");
    assert!(!serves(&room(Some(shut), 0), &tree), "the tree itself uses a switch without room");
    let mut gone = tree.clone();
    gone.unreached[0].exit = 99;
    assert!(!serves(&room(Some(shut), 1024), &gone), "the unreached port is not a member");
    let mut missing = tree.clone();
    missing.unreached.remove(0);
    assert!(!serves(&room(Some(shut), 1024), &missing));
}

#[test]
fn a_broken_tree_is_found_out() {
    let topology = line(3);
    let members = hosts(&topology);
    let whole = chosen(&topology, &members, 1);
    assert_eq!(check(&topology, &whole, &members), Ok(()));
    for at in 0..whole.masks.len() {
        for port in whole.masks[at].1.ports() {
            let mut broken = whole.clone();
            let mut mask = PortMask::default();
            broken.masks[at].1.ports().filter(|&p| p != port).for_each(|p| mask.insert(p));
            broken.masks[at].1 = mask;
            assert!(check(&topology, &broken, &members).is_err(), "{at} without {port}");
        }
    }
    let mut stray = whole.clone();
    stray.masks[0].1.insert(77);
    assert!(matches!(check(&topology, &stray, &members), Err(Defect::Stray { port: 77, .. })));
}

#[test]
fn groups_of_all_hosts_spread_over_the_spines() {
    let topology = topology(&fat_tree(2, 8, 32), 0);
    let members: Vec<_> = hosts(&topology).into_iter().filter(|place| place.exit != 0).collect();
    let hops = HopMatrix::compute(&topology).unwrap();
    let mut builder = TreeBuilder::new(&topology, &hops);
    let roots: std::collections::BTreeSet<_> =
        (0..40).filter_map(|number| builder.tree(mlid(number), &members, None).root).collect();
    assert_eq!(roots.len(), 4);
}

#[test]
fn masks_are_read_sixteen_ports_at_a_time() {
    let mut mask = PortMask::default();
    for port in [0, 1, 17, 36, 255] {
        mask.insert(port);
    }
    assert_eq!((mask.position(0), mask.position(1), mask.position(2)), (0b11, 0b10, 0b1_0000));
    assert_eq!(mask.position(15), 0x8000);
    assert_eq!(mask.ports().collect::<Vec<_>>(), [0, 1, 17, 36, 255]);
}

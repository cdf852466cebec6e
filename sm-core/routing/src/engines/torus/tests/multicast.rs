//! Tests trees of multicast groups on the master tree.

use super::fixture::{Fabric, routed};
use super::lanes;
use crate::multicast::{Place, Tree, check};

fn hosts(fabric: &Fabric) -> Vec<Place> {
    let destinations = fabric.topology.destinations().iter();
    destinations.map(|to| Place { switch: to.egress_switch, exit: to.exit }).collect()
}

/// The example of torus-2QoS(8): a trunk along x at y=2, and branches up and down y.
#[test]
fn the_manuals_tree_is_grown() {
    let fabric = Fabric::new([6, 5, 1], [true; 3]);
    let routing = routed(&fabric).unwrap();
    let tree = lanes(&routing).tree();
    assert_eq!(fabric.place(tree.root()), [3, 2, 0]);
    for switch in fabric.topology.switches() {
        let [x, y, _] = fabric.place(switch);
        let up = tree.up(switch).map(|link| fabric.place(link.peer));
        let expected = match (x, y) {
            (3, 2) => None,
            (_, 0 | 1) => Some([x, y + 1, 0]),
            (_, 3 | 4) => Some([x, y - 1, 0]),
            _ => Some([if x < 3 { x + 1 } else { x - 1 }, 2, 0]),
        };
        assert_eq!(up, expected);
    }
}

/// The second example of torus-2QoS(8): the link from (2,2) to (3,2) failed, so the trunk crosses
/// the dateline.
#[test]
fn a_broken_trunk_crosses_the_dateline() {
    let fabric = Fabric::new([6, 5, 1], [true; 3]).without_link([2, 2, 0], 0);
    let routing = routed(&fabric).unwrap();
    let tree = lanes(&routing).tree();
    assert_eq!(fabric.place(tree.root()), [3, 2, 0]);
    for switch in fabric.topology.switches().filter(|&switch| fabric.place(switch)[1] == 2) {
        let [x, _, _] = fabric.place(switch);
        let up = tree.up(switch).map(|link| fabric.place(link.peer)[0]);
        assert_eq!(up, (x != 3).then(|| if x == 0 { 5 } else { x - 1 }));
    }
}

/// The third example of torus-2QoS(8): the switch at (3,2) failed. Unlike in the manual, its column
/// is not a branch here: packets that came from (3,3) down to the trunk and went up at x=4 would
/// wait for unicast from (4,2) by (4,3) to (3,3) and further.
#[test]
fn another_switch_is_the_root_if_that_at_the_centre_is_missing() {
    let fabric = Fabric::new([6, 5, 1], [true; 3]).without_switch(3 + 6 * 2);
    let routing = routed(&fabric).unwrap();
    let tree = lanes(&routing).tree();
    let y = fabric.place(tree.root())[1];
    assert_ne!(y, 2);
    for switch in fabric.topology.switches().filter(|&switch| fabric.place(switch)[0] == 3) {
        let [_, here, _] = fabric.place(switch);
        let links = fabric.topology.switches().filter_map(|other| tree.up(other));
        let is_leaf = links.filter(|link| link.peer == switch).count() == 0;
        assert!(is_leaf || here == y);
        if let Some(up) = tree.up(switch) {
            assert_eq!(fabric.place(up.peer)[1], here);
        }
    }
}

#[test]
fn every_member_hears_every_other_exactly_once() {
    for radix in [[4, 3, 1], [3, 3, 3], [5, 2, 3], [7, 1, 1]] {
        let fabric = Fabric::built(radix, [true; 3], 2, 2, 0).without_switch(1);
        let routing = routed(&fabric).unwrap();
        let tree = lanes(&routing).tree();
        let all = hosts(&fabric);
        for step in 1..all.len() {
            let members: Vec<Place> = all.iter().copied().step_by(step).collect();
            let grown = Tree::part_of(tree, &members);
            assert_eq!(grown.root, Some(tree.root()));
            assert_eq!(check(&fabric.topology, &grown, &members), Ok(()), "{radix:?} {step}");
        }
        assert_eq!(Tree::part_of(tree, &[]).root, None);
    }
}

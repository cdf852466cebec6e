//! Tests that graphs stay free of cycles and refuse only dependencies that would close one.

use proptest::prelude::*;

use super::super::testing;
use super::order::Order;
use super::*;

/// Whether a path leads from one link to another.
fn leads(dependencies: &[(u32, u32)], from: u32, to: u32) -> bool {
    let mut reached = vec![from];
    let mut looked = 0;
    while let Some(&link) = reached.get(looked) {
        looked += 1;
        for &(_, next) in dependencies.iter().filter(|&&(before, _)| before == link) {
            if !reached.contains(&next) {
                reached.push(next);
            }
        }
    }
    reached.contains(&to)
}

/// Dependencies of links chosen by `seeds`.
fn chosen(topology: &Topology, seeds: &[(u16, u8)]) -> Vec<(u32, u32)> {
    let choose = |&(link, next): &(u16, u8)| {
        let from = usize::from(link) % topology.link_count();
        let nexts = topology.link_range(topology.link(from).peer);
        (from as u32, (nexts.start + usize::from(next) % nexts.len()) as u32)
    };
    let choices = if topology.link_count() == 0 { &[] } else { seeds };
    choices.iter().map(choose).collect()
}

proptest! {
    #[test]
    fn exactly_the_dependencies_that_would_close_a_cycle_are_refused(
        topology in testing::any_topology(),
        seeds in prop::collection::vec((0u16..200, 0u8..8), 0..300),
    ) {
        let mut layering = Layering::new(&topology, 1);
        let mut taken = Vec::new();
        for (from, to) in chosen(&topology, &seeds) {
            let closes = leads(&taken, to, from);
            prop_assert_eq!(layering.add(0, from, to), !closes);
            if !closes {
                taken.push((from, to));
            }
        }
    }

    #[test]
    fn routes_taken_whole_close_no_cycle(
        topology in testing::any_topology(),
        seeds in prop::collection::vec(prop::collection::vec((0u16..200, 0u8..8), 1..6), 0..40),
    ) {
        let mut layering = Layering::new(&topology, 1);
        let mut taken = Vec::new();
        for seeds in &seeds {
            let route = chosen(&topology, seeds);
            if layering.add_all(0, &route) {
                taken.extend(route);
            }
        }
        for &(from, to) in &taken {
            prop_assert!(!leads(&taken, to, from));
        }
    }

    #[test]
    fn links_are_ordered_as_in_a_plain_list(
        moves in prop::collection::vec((0usize..12, 1usize..5, any::<bool>()), 0..200),
    ) {
        let mut order = Order::new(12);
        let mut list: Vec<u32> = (0..12).collect();
        for (at, count, before) in moves {
            let other = list[at];
            let others = list.iter().copied().filter(|&link| link != other);
            let moved: Vec<u32> = others.take(count).collect();
            list.retain(|link| !moved.contains(link));
            let place = list.iter().position(|&link| link == other).unwrap();
            if before {
                order.move_before(&moved, other);
                list.splice(place..place, moved);
            } else {
                order.move_behind(&moved, other);
                list.splice(place + 1..place + 1, moved);
            }
            prop_assert!(list.is_sorted_by_key(|&link| order.label(link)), "{:?}", list);
        }
    }
}

/// Labels between two neighbours run out after 64 halvings.
#[test]
fn labels_are_spread_again_when_they_run_out() {
    let mut order = Order::new(4);
    for _ in 0..200 {
        order.move_before(&[2], 1);
        order.move_behind(&[3], 0);
        order.move_before(&[3], 2);
        order.move_before(&[2], 1);
        let mut links = [0, 1, 2, 3];
        links.sort_by_key(|&link| order.label(link));
        assert_eq!(links, [0, 3, 2, 1]);
        order.move_behind(&[2], 0);
    }
}

#[test]
fn a_route_goes_to_the_first_layer_that_takes_it_and_there_are_no_more_than_lanes() {
    let ring = testing::topology(&testing::torus(&[3], 1), 0);
    // Around the ring in one direction: each pair of consecutive links is a dependency.
    let next = |switch: u16| ring.link_at(switch, 1).unwrap() as u32;
    let turn = |switch: u16| [(next(switch % 3), next((switch + 1) % 3))];
    let mut layering = Layering::new(&ring, 2);
    assert_eq!(layering.first_fit(0, &turn(0)), Some(0));
    assert_eq!(layering.first_fit(0, &turn(1)), Some(0));
    assert_eq!(layering.count(), 1);
    assert_eq!(layering.first_fit(0, &turn(2)), Some(1));
    assert_eq!(layering.first_fit(0, &[turn(2), turn(0), turn(1)].concat()), None);
    assert_eq!(layering.count(), 2);
    assert!(!layering.add(2, next(0), next(1)), "the number of lanes limits the layers");
}

#[test]
fn a_route_that_is_refused_leaves_nothing_behind() {
    let ring = testing::topology(&testing::torus(&[3], 1), 0);
    let link = |switch: u16, port| ring.link_at(switch, port).unwrap() as u32;
    // Around the ring in both directions: two cycles that share no link.
    let up = [link(0, 1), link(1, 1), link(2, 1)];
    let down = [link(0, 2), link(2, 2), link(1, 2)];
    let mut layering = Layering::new(&ring, 1);
    assert!(layering.add_all(0, &[(up[0], up[1]), (down[0], down[1]), (down[1], down[2])]));
    assert!(!layering.add_all(0, &[(up[1], up[2]), (down[2], down[0])]));
    assert!(layering.add(0, up[2], up[0]), "the first turn of the refused route is not there");
    assert!(!layering.add(0, up[1], up[2]));
}

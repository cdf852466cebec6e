//! Tests of both verifiers against each other and against tables broken on purpose.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{Engine, MinHop, Steering, testing};
use super::*;

fn routed(topology: &Topology) -> Routing {
    MinHop.route(topology, &Steering::default(), None).unwrap()
}

/// The kinds of defects that one wrong entry causes: by proof and by walk.
fn kinds_after(
    topology: &Topology,
    breakage: impl FnOnce(&mut Routing),
) -> (Vec<DefectKind>, Vec<DefectKind>) {
    let mut routing = routed(topology);
    breakage(&mut routing);
    let kinds = |found: Deliveries| found.defects.iter().map(|defect| defect.kind).collect();
    (kinds(deliveries(topology, &routing)), kinds(walk::deliveries(topology, &routing)))
}

#[test]
fn each_kind_of_defect_is_reported() {
    // Switches 0 - 1 - 2, port 2 of each leading on, port 1 back; LID n+1 is switch n.
    let line = testing::line(3);
    let (proof, walk) = kinds_after(&line, |routing| routing.lfts[0][3] = NO_ROUTE);
    assert_eq!((proof, walk), (vec![DefectKind::Missing], vec![DefectKind::Missing]));

    let (proof, walk) = kinds_after(&line, |routing| routing.lfts[0][3] = 1);
    assert_eq!((proof, walk), (vec![DefectKind::DeadEnd], vec![DefectKind::Lost]));

    let (proof, walk) = kinds_after(&line, |routing| routing.lfts[2][3] = 1);
    assert_eq!(proof, [DefectKind::WrongExit]);
    assert_eq!(walk, [DefectKind::Lost; 3], "no switch's packets arrive");

    // 1 sends back what 0 sent on: both are in the loop, one entry is wrong.
    let (proof, walk) = kinds_after(&line, |routing| routing.lfts[1][3] = 1);
    assert_eq!((proof, walk), (vec![DefectKind::NotCloser], vec![DefectKind::Lost; 2]));

    let (proof, _) = kinds_after(&line, |routing| routing.lfts[1][20] = 1);
    assert_eq!(proof, [DefectKind::Stray]);
    let (proof, _) = kinds_after(&line, |routing| routing.lfts[1].resize(128, 1));
    assert_eq!(proof, [DefectKind::Stray; DEFECTS_LISTED_MAX]);
}

/// A ring of four switches, with one host of two LIDs on each. Second LIDs are forwarded upwards
/// all round the ring.
fn second_lids_go_round() -> (Topology, Routing) {
    let cables = (0u16..4).map(|switch| ((switch, 1), ((switch + 1) % 4, 2)));
    let topology = testing::cabled(4, cables, 0..4, 2);
    let mut routing = routed(&topology);
    for to in topology.destinations() {
        for switch in topology.switches().filter(|&switch| switch != to.egress_switch) {
            routing.lfts[usize::from(switch)].set(to.base_lid.index() + 1, 1);
        }
    }
    (topology, routing)
}

#[test]
fn each_plane_of_lids_has_a_number_that_falls() {
    let (topology, mut routing) = second_lids_go_round();
    assert!(walk::deliveries(&topology, &routing).is_whole());
    // Three of four sources are as near or nearer by the other way, one of them by half the ring.
    assert_eq!(deliveries(&topology, &routing).defective, 4);
    let narrow = routing.hops.clone();
    routing.hops = narrow.with_planes(1, |_, from, to| (4 + to - from) as u8 % 4);
    assert_eq!(routing.hops.diameter(), narrow.diameter());
    assert!(deliveries(&topology, &routing).is_whole());
    // The first LID must fall by the hops of plane 0, and the second by those of plane 1.
    for (entry, wrong) in [(8, 1), (9, 2)] {
        let mut broken = routing.clone();
        let entry: usize = entry;
        broken.lfts[usize::from(entry == 9)].set(entry, wrong);
        let kinds: Vec<_> = deliveries(&topology, &broken).defects.iter().map(|d| d.kind).collect();
        assert_eq!(kinds, [DefectKind::NotCloser], "LID {entry}");
    }
}

/// If only a plane of further LIDs differs, entries that have not changed can be wrong.
#[test]
fn a_change_of_one_plane_is_examined() {
    let (topology, mut routing) = second_lids_go_round();
    let narrow = routing.hops.clone();
    routing.hops = narrow.with_planes(1, |_, from, to| (4 + to - from) as u8 % 4);
    let previous = Previous::same_switches(&topology, &routing);
    let mut turned = routing.clone();
    assert!(deliveries_since(&topology, &turned, &previous).is_whole());
    turned.hops = narrow.with_planes(1, |_, from, to| (4 + from - to) as u8 % 4);
    assert_eq!(deliveries_since(&topology, &turned, &previous), deliveries(&topology, &turned));
    assert!(!deliveries(&topology, &turned).is_sound());
}

/// An engine whose rules forbid some routes reports that by hops; pairs with hosts may still not be
/// left out.
#[test]
fn only_pairs_without_hosts_may_be_left_out() {
    let topology = testing::topology(&testing::fat_tree(2, 4, 8), 0);
    let hosts = topology.hosts_on();
    let mut routing = routed(&topology);
    // Each switch in turn has no route to any LID at another one, and its hops say so.
    for from in topology.switches() {
        let whole = routing.clone();
        for egress_switch in topology.switches().filter(|&egress_switch| egress_switch != from) {
            routing.hops.row_mut(from)[usize::from(egress_switch)] = HopMatrix::UNREACHABLE;
        }
        let mut counts = (0usize, 0u64);
        for destination in topology.destinations().iter().filter(|d| d.egress_switch != from) {
            routing.lfts[usize::from(from)][destination.base_lid.index()] = NO_ROUTE;
            let is_missed = hosts[usize::from(from)] > 0 && destination.is_host();
            if is_missed {
                counts.0 += 1;
            } else {
                counts.1 += 1;
            }
        }
        let found = deliveries(&topology, &routing);
        // Packets of others that pass it are lost, which is another defect.
        let missing = found.defects.iter().filter(|defect| defect.kind == DefectKind::Missing);
        assert_eq!((missing.count(), found.unrouted, found.unreachable), (counts.0, counts.1, 0));
        assert_eq!(walk::deliveries(&topology, &routing).unrouted, counts.1);
        routing = whole;
    }
}

/// Hops are a certificate, not an oracle: false ones must not make a wrong table pass.
#[test]
fn a_loop_fails_whatever_the_hops() {
    let line = testing::line(4);
    let longer = testing::line(9);
    let mut routing = routed(&line);
    routing.lfts[1][4] = 1;
    for hops in [HopMatrix::compute(&line).unwrap(), HopMatrix::compute(&longer).unwrap()] {
        routing.hops = hops;
        assert!(!deliveries(&line, &routing).is_sound());
    }
}

#[test]
fn defects_are_all_counted_but_listed_in_part() {
    let topology = testing::topology(&testing::fat_tree(2, 8, 32), 0);
    let mut routing = routed(&topology);
    routing.lfts[0].fill(NO_ROUTE);
    let found = deliveries(&topology, &routing);
    let lids = topology.destinations().len() as u64;
    assert_eq!((found.defective, found.defects.len()), (lids, DEFECTS_LISTED_MAX));
    assert!(found.defects.is_sorted());
}

#[test]
fn fat_trees_are_free_of_loops_for_hosts_and_rings_are_not() {
    let tree = testing::topology(&testing::fat_tree(3, 8, 128), 0);
    let loops = credit_loops(&tree, &routed(&tree).tables());
    assert_eq!(loops.traffic, Traffic::ToHosts);
    assert!(loops.is_free(), "{loops}");

    let ring = testing::topology(&testing::torus(&[6], 1), 0);
    let loops = credit_loops(&ring, &routed(&ring).tables());
    assert_eq!((loops.traffic, loops.links), (Traffic::Hosts, 12));
    assert!(!loops.is_free(), "{loops}");
    // The example is a cycle: each hop's far end is the next hop's switch.
    for (hop, next) in loops.example.iter().zip(loops.example.iter().cycle().skip(1)) {
        let link = ring.link_at(hop.0, hop.1).unwrap();
        assert_eq!(ring.link(link).peer, next.0, "{loops}");
    }
}

/// A ring in which routes over the link between its last switch and its first have a lane of their
/// own, as with a dateline, and one in which they do not.
#[test]
fn lanes_are_examined_separately() {
    use super::super::lanes::{Columns, Lanes, Layers};
    let ring = testing::topology(&testing::torus(&[6], 1), 0);
    let mut routing = routed(&ring);
    let columns = [(Columns::EgressSwitch, 6), (Columns::Lid, ring.table_len())];
    for (by, count) in columns {
        let mut layers = Layers::new(6, by, count);
        routing.lanes = Lanes::Layers(layers.clone());
        let loops = credit_loops_on_lanes(&ring, &routing);
        assert!(!loops.is_free() && loops.lane == Some(0), "{loops}");
        for destination in ring.destinations().iter().filter(|to| to.is_host()) {
            for source in ring.switches() {
                let mut switch = source;
                while let Some(link) =
                    ring.link_at(switch, routing.port(switch, destination.base_lid))
                {
                    let next = ring.link(link).peer;
                    if switch.abs_diff(next) > 1 {
                        let column = match by {
                            Columns::EgressSwitch => usize::from(destination.egress_switch),
                            Columns::Lid => destination.base_lid.index(),
                        };
                        layers.row_mut(source)[column] = 2;
                    }
                    switch = next;
                }
            }
        }
        layers.count = 3;
        routing.lanes = Lanes::Layers(layers.clone());
        let loops = credit_loops_on_lanes(&ring, &routing);
        assert!(loops.is_free() && loops.lane.is_none(), "{loops}");
        // All routes in that lane meet again.
        ring.switches().for_each(|source| layers.row_mut(source).fill(2));
        routing.lanes = Lanes::Layers(layers);
        let loops = credit_loops_on_lanes(&ring, &routing);
        assert_eq!(loops.lane, Some(2));
        assert!(loops.to_string().ends_with(" on VL 2"), "{loops}");
    }
}

/// With one layer for all, the result equals that for hosts' traffic on one lane.
#[test]
fn one_layer_gives_the_same_result_as_no_layers() {
    use super::super::lanes::{Columns, Lanes, Layers};
    for dims in [&[6][..], &[4, 5]] {
        let torus = testing::topology(&testing::torus(dims, 1), 1);
        let mut routing = routed(&torus);
        let free = credit_loops_on_lanes(&torus, &routing);
        let count = torus.switch_count();
        routing.lanes = Lanes::Layers(Layers::new(count, Columns::EgressSwitch, count));
        let layered = credit_loops_on_lanes(&torus, &routing);
        assert_eq!(layered, CreditLoops { lane: Some(0), ..free });
    }
}

#[test]
fn a_line_is_free_of_loops_for_all_traffic() {
    let line = testing::line(5);
    let loops = credit_loops(&line, &routed(&line).tables());
    assert_eq!((loops.traffic, loops.looping, loops.links), (Traffic::All, 0, 8));
    // Three inner switches, in both directions.
    assert_eq!(loops.dependencies, 6);
}

/// By layer: dependencies found by following each route between hosts separately.
fn waits_one_by_one(
    topology: &Topology,
    routing: &Routing,
    on: impl Fn(u16, u16, Lid) -> Vec<u8>,
) -> Vec<BTreeSet<(usize, usize)>> {
    let hosts = topology.hosts_on();
    let mut waits = vec![BTreeSet::new(); 4];
    for to in topology.destinations().iter().filter(|to| to.is_host()) {
        for (lid, source) in to.lids().flat_map(|lid| topology.switches().map(move |s| (lid, s))) {
            if hosts[usize::from(source)] == 0 {
                continue;
            }
            let layers = on(source, to.egress_switch, lid);
            let (mut switch, mut before) = (source, None);
            // Some routes loop.
            for _ in 0..2 * topology.switch_count() {
                let Some(link) = topology.link_at(switch, routing.port(switch, lid)) else { break };
                for &layer in &layers {
                    waits[usize::from(layer)].extend(before.map(|before| (before, link)));
                }
                (switch, before) = (topology.link(link).peer, Some(link));
            }
        }
    }
    waits
}

fn waits_of(topology: &Topology, found: &cycle::Dependencies) -> BTreeSet<(usize, usize)> {
    let links = 0..topology.link_count();
    links.flat_map(|link| found.after(topology, link).map(move |next| (link, next))).collect()
}

proptest! {
    /// Routes that the check treats as alike are alike.
    #[test]
    fn all_that_waits_is_found_whatever_the_tables(
        topology in testing::any_topology(),
        breakages in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 0..40),
        by_lid in any::<bool>(),
        moved in prop::collection::vec((any::<u16>(), any::<u16>(), 0u8..4), 0..40),
    ) {
        use super::super::lanes::{Columns, Layers};
        let mut routing = routed(&topology);
        for (switch, lid, port) in breakages {
            let count = routing.lfts.len();
            let lft = &mut routing.lfts[usize::from(switch) % count];
            let len = lft.len();
            lft[usize::from(lid) % len] = if port > 250 { NO_ROUTE } else { port % 8 };
        }
        let (switches, tables) = (topology.switch_count(), routing.tables());
        let found = waits_of(&topology, &cycle::Dependencies::of_hosts(&topology, &tables));
        prop_assert_eq!(&found, &waits_one_by_one(&topology, &routing, |_, _, _| vec![0])[0]);
        let (by, columns) = if by_lid {
            (Columns::Lid, topology.table_len())
        } else {
            (Columns::EgressSwitch, switches)
        };
        let mut layers = Layers::new(switches, by, columns);
        for (source, column, layer) in moved {
            layers.row_mut(source % switches as u16)[usize::from(column) % columns] = layer;
        }
        let found = cycle::Dependencies::of_layers(&topology, &tables, &layers, None);
        let layer = |source, egress_switch, lid| layers.layer(source, egress_switch, lid);
        let on = |source, egress_switch, lid| vec![layer(source, egress_switch, lid)];
        let expected = waits_one_by_one(&topology, &routing, on);
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert_eq!(&waits_of(&topology, found), expected);
        }
        prop_assert!(expected[found.len()..].iter().all(BTreeSet::is_empty));

        // With replies, each host of the source sends on the layers of requests to it.
        let on = |source, egress_switch, lid| {
            let hosts = topology.destinations().iter().filter(|to| to.is_host());
            let own = hosts.filter(|to| to.egress_switch == source);
            let lids = own.flat_map(|to| to.lids());
            let replies = lids.map(|requested| layer(egress_switch, source, requested));
            replies.chain([layer(source, egress_switch, lid)]).collect()
        };
        let expected = waits_one_by_one(&topology, &routing, on);
        let count: usize = expected.iter().map(BTreeSet::len).sum();
        routing.lanes = crate::Lanes::Layers(layers);
        let found = credit_loops_with_replies(&topology, &routing.tables(), &routing.lanes)
            .unwrap_or_else(|| credit_loops_on_lanes(&topology, &routing));
        prop_assert_eq!(found.dependencies, count as u64);
    }

    /// Tables with some entries replaced at random: the proof passes only if the walk does.
    #[test]
    fn the_proof_never_passes_what_the_walk_rejects(
        topology in testing::any_topology(),
        breakages in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 0..4),
    ) {
        let mut routing = routed(&topology);
        for (switch, lid, port) in breakages {
            let count = routing.lfts.len();
            let lft = &mut routing.lfts[usize::from(switch) % count];
            let len = lft.len();
            lft[usize::from(lid) % len] = if port > 250 { NO_ROUTE } else { port % 8 };
        }
        let proof = deliveries(&topology, &routing);
        let walk = walk::deliveries(&topology, &routing);
        if proof.is_sound() {
            prop_assert!(walk.is_sound(), "{:?}", walk.defects);
            prop_assert_eq!(proof, walk);
        } else {
            let on_lids =
                |found: &Deliveries| found.defects.iter().any(|d| d.kind != DefectKind::Stray);
            // A port that is not nearer may still lead there by chance; nothing else may differ.
            let by_luck =
                |d: &Defect| matches!(d.kind, DefectKind::NotCloser | DefectKind::Stray);
            prop_assert!(!on_lids(&proof) || !walk.is_sound() || proof.defects.iter().all(by_luck));
        }
    }
}

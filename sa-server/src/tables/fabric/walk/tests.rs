//! Walks of small fabrics, and walks of what changed in them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::rewalk::{Limits, patched_columns};
use super::*;

const FAST: Limit = Limit { mtu: 5, rate: 18 };
const SLOW: Limit = Limit { mtu: 4, rate: 9 };
const UNLIMITED: Limits = Limits { entries: usize::MAX, views: usize::MAX };

/// Three switches in a row, a host on each: LIDs 1, 2, 3 on port 1; port 2 leads right, port 3
/// left. The link between the second and the third switch is slow.
fn chain() -> Vec<Vec<Hop>> {
    let host = |lid| Hop::EndPort(Lid(lid), 0);
    vec![
        vec![host(11), host(1), Hop::Switch(1, FAST)],
        vec![host(12), host(2), Hop::Switch(2, SLOW), Hop::Switch(0, FAST)],
        vec![host(13), host(3), Hop::Nothing, Hop::Switch(1, SLOW)],
    ]
}

fn topology<'a>(ports: &[Vec<Hop>], lfts: &'a [Vec<u8>]) -> Topology<'a> {
    let mut switches = Switches::new();
    let rows = ports.iter().zip(1..);
    rows.for_each(|(ports, guid)| switches.push(Guid(guid), ports.iter().copied()));
    let lfts = lfts.iter().map(Vec::as_slice).collect();
    Topology { switches: Arc::new(switches), lfts, sls: Vec::new() }
}

fn walk(ports: &[Vec<Hop>], lfts: &[Vec<u8>], lids: &[u16]) -> Vec<Vec<PathClass>> {
    let topology = topology(ports, lfts);
    let lids: Vec<Lid> = lids.iter().map(|&lid| Lid(lid)).collect();
    let columns = columns(&topology, &lids, None);
    lids.iter()
        .map(|lid| {
            let column = &columns.distinct[usize::from(columns.by_lid[lid.index()])];
            column.iter().map(|view| view.class()).collect()
        })
        .collect()
}

fn class(limit: Limit, hops: u8) -> PathClass {
    PathClass { limit, hops, sl: 0 }
}

#[test]
fn the_slowest_link_between_switches_counts() {
    let lfts = [vec![255, 1, 2, 2], vec![255, 3, 1, 2], vec![255, 3, 3, 1]];
    let views = walk(&chain(), &lfts, &[1, 2, 3]);
    assert_eq!(views[0], [class(Limit::ANY, 1), class(FAST, 2), class(SLOW, 3)]);
    assert_eq!(views[2], [class(SLOW, 3), class(SLOW, 2), class(Limit::ANY, 1)]);
}

#[test]
fn loops_dead_ends_and_wrong_ports_are_no_paths() {
    // LID 1: switches 1 and 2 send it to each other. LID 2: switch 0 has no route, switch 2 an
    // unconnected port. LID 3: switch 0 delivers it to the host with LID 1.
    let lfts = [vec![255, 1, 255, 1], vec![255, 2, 1, 2], vec![255, 3, 2, 1]];
    let views = walk(&chain(), &lfts, &[1, 2, 3]);
    let no = PathClass::UNREACHABLE;
    assert_eq!(views[0], [class(Limit::ANY, 1), no, no]);
    assert_eq!(views[1], [no, class(Limit::ANY, 1), no]);
    assert_eq!(views[2], [no, class(SLOW, 2), class(Limit::ANY, 1)]);
}

#[test]
fn a_short_table_has_no_routes_behind_its_end() {
    let lfts = [vec![255, 1], vec![255, 3], vec![]];
    let views = walk(&chain(), &lfts, &[1, 100]);
    assert_eq!(views[0][1], class(FAST, 2));
    assert_eq!(views[0][2], PathClass::UNREACHABLE);
    assert_eq!(views[1], [PathClass::UNREACHABLE; 3]);
}

#[test]
fn lids_that_all_switches_see_alike_share_a_column() {
    let mut ports = chain();
    ports[0].push(Hop::EndPort(Lid(4), 2));
    let mut lfts = [vec![255; 100], vec![255; 100], vec![255; 100]];
    for (lid, exit) in [(1, 1), (4, 3), (5, 3), (6, 3), (7, 3)] {
        lfts[0][lid] = exit;
        lfts[1][lid] = 3;
        lfts[2][lid] = 3;
    }
    let topology = topology(&ports, &lfts);
    let lids = [1, 4, 5, 6, 7, 90].map(Lid);
    let columns = columns(&topology, &lids, None);
    assert_eq!(columns.distinct.len(), 2, "all of switch 0's LIDs, and the one without routes");
    assert_eq!(columns.by_lid[1], columns.by_lid[7]);
    assert_ne!(columns.by_lid[1], columns.by_lid[90]);
}

#[test]
fn a_switch_is_reached_at_its_port_0() {
    let mut lfts = [vec![255; 12], vec![255; 12], vec![255; 12]];
    (lfts[0][11], lfts[1][11]) = (0, 3);
    let views = walk(&chain(), &lfts, &[11]);
    assert_eq!(views[0][..2], [class(Limit::ANY, 1), class(FAST, 2)]);
}

/// Some switches with up to 5 ports, and tables of up to 140 LIDs, with random entries.
fn any_fabric() -> impl Strategy<Value = (Vec<Vec<Hop>>, Vec<Vec<u8>>)> {
    let limit = prop_oneof![Just(FAST), Just(SLOW)];
    let hop = prop_oneof![
        1 => Just(Hop::Nothing),
        3 => (0u16..5, limit).prop_map(|(row, limit)| Hop::Switch(row, limit)),
        2 => (1u16..140, 0u8..2).prop_map(|(lid, lmc)| Hop::EndPort(Lid(lid), lmc)),
    ];
    let ports = prop::collection::vec(prop::collection::vec(hop, 1..6), 5);
    let lfts = prop::collection::vec(prop::collection::vec(0u8..7, 0..140), 5);
    (ports, lfts)
}

proptest! {
    #[test]
    fn walking_what_changed_is_walking_all(
        (ports, lfts) in any_fabric(),
        (other_ports, other_lfts) in any_fabric(),
        rows in prop::collection::vec(any::<bool>(), 5),
        entries in prop::collection::vec((0usize..5, 0usize..140, 0u8..7), 0..6),
        lids in prop::collection::btree_set(1u16..140, 1..60),
        later in prop::collection::btree_set(1u16..140, 1..60),
        moved in prop::option::of((0usize..5, 0usize..5)),
    ) {
        let (mut now_ports, mut now_lfts) = (ports.clone(), lfts.clone());
        for (row, entry, port) in entries {
            if let Some(entry) = now_lfts[row].get_mut(entry) {
                *entry = port;
            }
        }
        for (row, _) in rows.iter().enumerate().filter(|(_, other)| **other).take(1) {
            now_lfts[row].clone_from(&other_lfts[row]);
        }
        if let Some((row, port)) = moved
            && let Some(hop) = now_ports[row].get_mut(port)
        {
            *hop = other_ports[row][0];
        }
        let ascending = |lids: BTreeSet<u16>| lids.into_iter().map(Lid).collect();
        let (lids, later): (Vec<Lid>, Vec<Lid>) = (ascending(lids), ascending(later));
        let (before, now) = (topology(&ports, &lfts), topology(&now_ports, &now_lfts));
        let walked = columns(&before, &lids, None);
        let before = Before { topology: &before, columns: &walked };
        prop_assert_eq!(columns(&now, &later, Some(before)), columns(&now, &later, None));
        let (patched, fresh) = patched_columns(&now, before, UNLIMITED).unwrap();
        let whole = columns(&now, &lids, None);
        prop_assert!(lids.iter().all(|&lid| patched.of(lid) == whole.of(lid)));
        prop_assert_eq!(patched.by_lid.len(), whole.by_lid.len());
        for (number, column) in (0..).zip(&walked.distinct) {
            let is_kept = patched.distinct.get(usize::from(number)) == Some(column);
            prop_assert!(is_kept || fresh.contains(&number));
        }
    }
}

#[test]
fn only_what_changed_is_walked_again() {
    let lfts = [vec![255, 1, 2, 2], vec![255, 3, 1, 2], vec![255, 3, 3, 1]];
    let before = topology(&chain(), &lfts);
    let mut cut = chain();
    cut[1][2] = Hop::Nothing;
    let now = topology(&cut, &lfts);
    let columns = columns(&before, &[1, 2, 3].map(Lid), None);
    let walked = Before { topology: &before, columns: &columns };
    let stale = now.stale(walked).unwrap();
    let stale: Vec<usize> = (0..stale.len()).filter(|&lid| stale[lid]).collect();
    assert_eq!(stale, [3], "LIDs that the second switch sends over the link");
    let renamed = Topology { switches: Arc::default(), ..topology(&cut, &lfts) };
    assert!(renamed.stale(walked).is_none());
}

/// Regression: only views that differ were limited, and a patch checked all entries of a fabric
/// whose routes had all moved to ports of the same distance.
#[test]
fn entries_that_are_checked_are_limited_even_if_no_view_differs() {
    // Two switches with two cables between them, LIDs 1 to 40 at the second.
    let ports = vec![
        vec![Hop::EndPort(Lid(60), 0), Hop::Switch(1, FAST), Hop::Switch(1, FAST)],
        vec![Hop::EndPort(Lid(61), 0), Hop::EndPort(Lid(1), 6)],
    ];
    let by = |port: u8| [vec![port; 41], vec![1; 41]];
    let (first, second) = (by(1), by(2));
    let (before, now) = (topology(&ports, &first), topology(&ports, &second));
    let lids: Vec<Lid> = (1..=40).map(Lid).collect();
    let walked = columns(&before, &lids, None);
    let before = Before { topology: &before, columns: &walked };
    let patched = |entries| patched_columns(&now, before, Limits { entries, views: 0 });
    assert_eq!(patched(41), Some((walked.clone(), Vec::new())), "the same views");
    assert_eq!(patched(40), None);
}

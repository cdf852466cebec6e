//! Tests tori and meshes with missing switches and links.

use super::fixture::{Fabric, routed};
use super::{check, lanes, shapes};
use crate::engines::torus::Refusal;
use crate::{Reason, Routing, RoutingError};

fn refusal(result: Result<Routing, RoutingError>) -> Refusal {
    match result {
        Err(RoutingError { reason: Reason::Torus(refusal), .. }) => refusal,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

/// Checks that the SLs of all remaining paths are unchanged.
fn check_levels(before: (&Fabric, &Routing), after: (&Fabric, &Routing)) {
    let number = |fabric: &Fabric, place| {
        fabric.topology.switches().find(|&switch| fabric.place(switch) == place).unwrap()
    };
    let then: Vec<u16> =
        after.0.topology.switches().map(|switch| number(before.0, after.0.place(switch))).collect();
    for source in after.0.topology.switches() {
        for egress_switch in after.0.topology.switches() {
            let sl =
                lanes(before.1).sl(then[usize::from(source)], then[usize::from(egress_switch)]);
            assert_eq!(lanes(after.1).sl(source, egress_switch), sl, "{:?}", after.0);
        }
    }
}

/// Checks fabrics in which one switch is missing, for every `step`-th switch.
fn check_switches(radix: [u8; 3], wraps: bool, step: usize) {
    let count: usize = radix.iter().copied().map(usize::from).product();
    let whole = Fabric::new(radix, [wraps; 3]);
    let before = routed(&whole).unwrap();
    for number in (0..count).step_by(step) {
        let fabric = Fabric::new(radix, [wraps; 3]).without_switch(number);
        let place = [
            number % usize::from(radix[0]),
            number / usize::from(radix[0]) % usize::from(radix[1]),
            number / usize::from(radix[0]) / usize::from(radix[1]),
        ];
        let mut seeds = fabric.seeds().iter().map(|seed| seed.switches(&fabric.shape()));
        let is_seed = |switches: &Vec<(ib_mad::types::Guid, [u8; 3])>| {
            switches.iter().any(|(_, at)| at.map(usize::from) == place)
        };
        if seeds.all(|switches| is_seed(&switches)) {
            continue;
        }
        // In a row, only an end may be missing.
        let closes = |axis: usize| {
            let (here, radix) = (place[axis], usize::from(radix[axis]));
            (wraps && radix > 2) || here == 0 || here == radix - 1
        };
        let result = routed(&fabric);
        if (0..3).all(closes) {
            let routing = result.unwrap_or_else(|error| panic!("{fabric:?}: {error}"));
            check(&fabric, &routing);
            check_levels((&whole, &before), (&fabric, &routing));
        } else {
            let refusal = refusal(result);
            // The rest of a small mesh may fit the torus in several ways; then none is chosen.
            let is_expected = matches!(refusal, Refusal::Cut { .. } | Refusal::Misfit { .. });
            assert!(is_expected, "{fabric:?}: {refusal}");
        }
    }
}

/// Checks fabrics in which one link is missing, for every `step`-th link.
fn check_links(radix: [u8; 3], wraps: bool, step: usize) {
    let whole = Fabric::new(radix, [wraps; 3]);
    let before = routed(&whole).unwrap();
    for (from, axis) in whole.links().into_iter().step_by(step) {
        let fabric = Fabric::new(radix, [wraps; 3]).without_link(from, axis);
        let result = routed(&fabric);
        if wraps && radix[axis] > 2 {
            let routing = result.unwrap_or_else(|error| panic!("{fabric:?}: {error}"));
            check(&fabric, &routing);
            check_levels((&whole, &before), (&fabric, &routing));
        } else {
            let refusal = refusal(result);
            // The rest of a small mesh may fit the torus in several ways; then none is chosen.
            let is_expected = matches!(refusal, Refusal::Cut { .. } | Refusal::Misfit { .. });
            assert!(is_expected, "{fabric:?}: {refusal}");
        }
    }
}

const MORE_SHAPES: [[u8; 3]; 4] = [[4, 4, 1], [5, 5, 1], [6, 4, 1], [4, 5, 3]];

#[test]
fn any_one_switch_may_be_missing() {
    shapes(3).for_each(|(radix, wraps)| check_switches(radix, wraps, 1));
    MORE_SHAPES.into_iter().for_each(|radix| check_switches(radix, true, 1));
}

#[test]
fn any_one_link_may_be_missing() {
    shapes(3).for_each(|(radix, wraps)| check_links(radix, wraps, 1));
    MORE_SHAPES.into_iter().for_each(|radix| check_links(radix, true, 1));
}

/// Steps that are coprime to all these radices visit all places of a ring.
#[test]
fn some_one_part_of_larger_ones_may_be_missing() {
    for radix in [[6, 6, 1], [4, 4, 4], [6, 4, 5], [4, 6, 6]] {
        for wraps in [true, false] {
            check_switches(radix, wraps, 13);
            check_links(radix, wraps, 41);
        }
    }
}

/// Numbers of fabrics that were routed without loops, and that were refused.
#[derive(Debug, Default)]
struct Fates {
    routed: u32,
    refused: u32,
}

impl Fates {
    fn take(&mut self, fabric: &Fabric) {
        match routed(fabric) {
            Ok(routing) => {
                check(fabric, &routing);
                self.routed += 1;
            }
            Err(_) => self.refused += 1,
        }
    }
}

/// Links in different rings, chosen by steps through all of them.
#[test]
fn links_may_be_missing_in_many_rings_at_once() {
    let mut fates = Fates::default();
    for radix in [[5, 5, 1], [4, 6, 1], [3, 3, 3], [4, 5, 3], [5, 5, 5]] {
        for step in [1, 3, 7, 11] {
            let mut fabric = Fabric::new(radix, [true; 3]);
            let mut rings = std::collections::BTreeSet::new();
            for (from, axis) in fabric.links().into_iter().step_by(step) {
                let mut ring = from;
                ring[axis] = 0;
                // The first link visited on a ring is cut, so that whole regions lie on rings in
                // use.
                if rings.len() * 2 < fabric.links().len() / 5 && rings.insert((axis, ring)) {
                    let mut at = from;
                    at[axis] = (from[axis] + (step + rings.len()) as u8) % radix[axis];
                    fabric = fabric.without_link(at, axis);
                }
            }
            assert!(rings.len() > 2);
            fates.take(&fabric);
        }
    }
    assert!(fates.routed > fates.refused, "{fates:?}");
}

/// If a switch and links are missing, the fabric is routed without loops, or refused because of
/// loops.
#[test]
fn a_switch_and_links_are_routed_or_refused() {
    let mut fates = Fates::default();
    for radix in [[5, 5, 1], [4, 4, 4], [5, 4, 3]] {
        let count: usize = radix.iter().copied().map(usize::from).product();
        let whole = Fabric::new(radix, [true; 3]);
        for number in (0..count).step_by(7) {
            for (from, axis) in whole.links().into_iter().step_by(5) {
                let fabric =
                    Fabric::new(radix, [true; 3]).without_switch(number).without_link(from, axis);
                fates.take(&fabric);
            }
        }
    }
    assert!(fates.routed > fates.refused, "{fates:?}");
}

#[test]
fn switches_in_a_row_along_the_last_axis_may_be_missing() {
    let at = |[x, y, z]: [usize; 3], [rx, ry, _]: [u8; 3]| {
        x + usize::from(rx) * (y + usize::from(ry) * z)
    };
    for (radix, gone) in [
        ([5, 5, 5], vec![[3, 2, 1], [3, 2, 2]]),
        ([5, 4, 5], vec![[3, 2, 4], [3, 2, 0], [3, 2, 1]]),
        ([6, 6, 1], vec![[3, 1, 0], [3, 2, 0]]),
    ] {
        let fabric = gone.iter().fold(Fabric::new(radix, [true; 3]), |fabric, &place| {
            fabric.without_switch(at(place, radix))
        });
        check(&fabric, &routed(&fabric).unwrap_or_else(|error| panic!("{fabric:?}: {error}")));
    }
    let refused = |radix, gone: [[usize; 3]; 2]| {
        let fabric = gone.iter().fold(Fabric::new(radix, [true; 3]), |fabric, &place| {
            fabric.without_switch(at(place, radix))
        });
        refusal(routed(&fabric))
    };
    assert_eq!(
        refused([6, 6, 1], [[3, 1, 0], [4, 1, 0]]),
        Refusal::TooManyMissing { first: [3, 1, 0], other: [4, 1, 0] }
    );
    assert_eq!(
        refused([5, 5, 5], [[2, 2, 1], [2, 2, 3]]).to_string(),
        "the ring of z at x=2, y=2 is cut in two, between (2,2,0) and (2,2,2) and between (2,2,2) \
         and (2,2,4)"
    );
}

/// Routes around such a hole, multicast included, close cycles.
#[test]
fn a_whole_column_missing_is_refused_for_its_loops() {
    let fabric = [1, 17, 33]
        .into_iter()
        .fold(Fabric::new([4, 4, 3], [true; 3]), |fabric, number| fabric.without_switch(number));
    assert_eq!(refusal(routed(&fabric)), Refusal::CreditLoop);
}

#[test]
fn a_ring_in_two_pieces_is_refused_with_its_place() {
    let fabric =
        Fabric::new([6, 5, 1], [true; 3]).without_link([2, 1, 0], 0).without_link([3, 1, 0], 0);
    assert_eq!(
        refusal(routed(&fabric)).to_string(),
        "the ring of x at y=1, z=0 is cut in two, between (2,1,0) and (3,1,0) and between (3,1,0) \
         and (4,1,0)"
    );
    let fabric = Fabric::new([6, 5, 1], [false; 3]).without_link([2, 1, 0], 0);
    assert_eq!(
        refusal(routed(&fabric)).to_string(),
        "the row of x at y=1, z=0 is cut in two, between (2,1,0) and (3,1,0) and between (5,1,0) \
         and (0,1,0)"
    );
}

/// The routes of the examples in torus-2QoS(8).
#[test]
fn detours_are_those_of_the_manual() {
    let way = |fabric: &Fabric, from: [u8; 2], to: [u8; 2]| {
        let routing = routed(fabric).unwrap();
        let switch = |[x, y]: [u8; 2]| {
            let mut switches = fabric.topology.switches();
            switches.find(|&switch| fabric.place(switch) == [x, y, 0]).unwrap()
        };
        let (mut at, egress_switch) = (switch(from), switch(to));
        let to = fabric
            .topology
            .destinations()
            .iter()
            .find(|to| to.egress_switch == egress_switch)
            .unwrap();
        let mut way = vec![from];
        while at != egress_switch {
            let link = fabric.topology.link_at(at, routing.port(at, to.base_lid)).unwrap();
            at = fabric.topology.link(link).peer;
            let [x, y, _] = fabric.place(at);
            way.push([x, y]);
        }
        way
    };
    let whole = || Fabric::new([6, 5, 1], [true; 3]);
    assert_eq!(way(&whole(), [1, 1], [3, 3]), [[1, 1], [2, 1], [3, 1], [3, 2], [3, 3]]);
    let around = [[1, 1], [0, 1], [5, 1], [4, 1], [3, 1], [3, 2], [3, 3]];
    for cut in [1, 2] {
        assert_eq!(way(&whole().without_link([cut, 1, 0], 0), [1, 1], [3, 3]), around);
    }
    let hole = whole().without_switch(3 + 6);
    assert_eq!(way(&hole, [1, 1], [3, 3]), [[1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]);
    let holes = Fabric::new([6, 6, 1], [true; 3]).without_switch(3 + 6).without_switch(3 + 12);
    assert_eq!(way(&holes, [1, 1], [3, 4]), [[1, 1], [2, 1], [2, 2], [2, 3], [3, 3], [3, 4]]);
}

//! Determines which destinations share a lane.
//!
//! Egress switches that are near each other share a lane: paths to them come from all directions
//! but agree on the direction of most links, so that fewer turns are refused than for scattered
//! egress switches. The paper and OpenSM partition the fabric with METIS for this purpose, or else
//! distribute LIDs at random. Here the fabric is repeatedly cut in two between two egress switches
//! that are far from each other: each half has its share of LIDs, and the egress switches nearer to
//! its end. On a torus 8x8x8, the most loaded link has 1,651 routes with two lanes and 1,395 with
//! four; with egress switches assigned to lanes in turn it had 2,216 and 2,038.

use std::cmp::Reverse;

use super::EgressSwitch;
use crate::HopMatrix;

/// Returns egress switches by layer: at least one layer, and at most `lanes`.
pub(super) fn layers(
    distances: &HopMatrix,
    egress_switches: Vec<EgressSwitch>,
    lanes: u8,
) -> Vec<Vec<EgressSwitch>> {
    let mut layers = Vec::with_capacity(lanes.into());
    cut(distances, egress_switches, lanes.max(1), &mut layers);
    layers
}

/// Cuts a part of the fabric into `lanes` layers.
fn cut(
    distances: &HopMatrix,
    mut part: Vec<EgressSwitch>,
    lanes: u8,
    layers: &mut Vec<Vec<EgressSwitch>>,
) {
    // No lane stays empty.
    let lanes = usize::from(lanes).min(part.len()) as u8;
    if lanes < 2 {
        layers.push(part);
        return;
    }
    let lanes_first = lanes / 2;
    let lanes_rest = lanes - lanes_first;
    let hops = |a: u16, b: u16| i16::from(distances.row(a)[usize::from(b)]);
    let farthest = |from: u16| {
        let egress_switches = part.iter().map(|egress_switch| egress_switch.switch);
        egress_switches.max_by_key(|&to| (hops(from, to), Reverse(to))).unwrap_or(from)
    };
    let one = farthest(part[0].switch);
    let other = farthest(one);
    part.sort_by_key(|egress_switch| {
        (hops(one, egress_switch.switch) - hops(other, egress_switch.switch), egress_switch.switch)
    });
    let weight = |egress_switch: &EgressSwitch| egress_switch.lids().count() as u64;
    let total: u64 = part.iter().map(weight).sum();
    let share = total * u64::from(lanes_first) / u64::from(lanes);
    let mut sum = 0;
    let is_first = |egress_switch: &&EgressSwitch| {
        sum += weight(egress_switch);
        // An egress switch on the cut goes to the side that has more of it.
        2 * sum <= 2 * share + weight(egress_switch)
    };
    let first = part
        .iter()
        .take_while(is_first)
        .count()
        .clamp(lanes_first.into(), part.len() - usize::from(lanes_rest));
    let rest = part.split_off(first);
    cut(distances, part, lanes_first, layers);
    cut(distances, rest, lanes_rest, layers);
}

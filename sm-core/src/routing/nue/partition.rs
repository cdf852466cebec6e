//! Which destinations share a lane.
//!
//! Homes that are near each other do: ways to them come in from all around but agree on the
//! direction of most links, so that fewer turns are refused than for homes scattered all over. The
//! paper and OpenSM cut the fabric with METIS for that, and else deal LIDs out at random. Here it is
//! cut in two, again and again, between two homes that are far from each other: each half has its
//! share of LIDs, and those nearer to the one than to the other. On a torus 8x8x8, the most loaded
//! link has 1,651 routes with two lanes and 1,395 with four; with homes dealt in turn it had 2,216
//! and 2,038.

use std::cmp::Reverse;

use super::super::HopMatrix;
use super::Home;

/// Homes by layer: at least one layer, and at most `lanes`.
pub(super) fn layers(distances: &HopMatrix, homes: Vec<Home>, lanes: u8) -> Vec<Vec<Home>> {
    let mut layers = Vec::with_capacity(lanes.into());
    cut(distances, homes, lanes.max(1), &mut layers);
    layers
}

/// Cuts a part of the fabric into as many as there are lanes for it.
fn cut(distances: &HopMatrix, mut part: Vec<Home>, lanes: u8, layers: &mut Vec<Vec<Home>>) {
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
        let homes = part.iter().map(|home| home.switch);
        homes.max_by_key(|&to| (hops(from, to), Reverse(to))).unwrap_or(from)
    };
    let one = farthest(part[0].switch);
    let other = farthest(one);
    part.sort_by_key(|home| (hops(one, home.switch) - hops(other, home.switch), home.switch));
    let weight = |home: &Home| home.lids().count() as u64;
    let total: u64 = part.iter().map(weight).sum();
    let share = total * u64::from(lanes_first) / u64::from(lanes);
    let mut sum = 0;
    let is_first = |home: &&Home| {
        sum += weight(home);
        // A home in the middle goes where more of it belongs.
        2 * sum <= 2 * share + weight(home)
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

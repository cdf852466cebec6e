//! Puts the routes between two switches, there and back, in one layer.
//!
//! Linux replies on the SL of the request, so a reply takes the lane of the way there. With one
//! layer for both directions, replies add no dependency to any lane. As a layer has to accept the
//! routes between all LIDs of the two switches at once, this can need more layers than LIDs by
//! themselves; the caller then uses those.

use super::share::Shares;
use crate::engines::lash::pairs::closed_rings;
use crate::lanes::Columns;
use crate::layering::{Layering, Pairs};
use crate::{Entries, Layers, Topology};

/// Layers by pair of switches; `None` if they do not fit in `lanes` lanes.
///
/// Takes time proportional to switches with hosts times LIDs times hops, plus at most one search
/// per pair of links and layer.
pub(in crate::engines) fn layers(
    topology: &Topology,
    lfts: &[Entries],
    lanes: u8,
    counted: Pairs,
) -> Option<Layers> {
    let count = topology.switch_count();
    let hosts = topology.hosts_on();
    let mut lids = vec![Vec::new(); count];
    for to in topology.destinations() {
        lids[usize::from(to.egress_switch)].extend(to.lids().map(|lid| lid.index()));
    }
    let tables: Vec<&[u8]> = lfts.iter().map(|lft| &**lft).collect();
    let mut layering = Layering::new(topology, lanes);
    let mut layers = Layers::new(count, Columns::EgressSwitch, count);
    let mut routes = vec![0u64; lanes.max(1).into()];
    let mut dependencies = Vec::new();
    let collect = |(a, b): (u16, u16), dependencies: &mut Vec<(u32, u32)>| {
        dependencies.clear();
        for (from, to) in [(a, b), (b, a)] {
            let lids = lids[usize::from(to)].iter();
            lids.for_each(|&lid| push(topology, &tables, from, lid, dependencies));
        }
    };
    let has_hosts = |switch: u16| hosts[usize::from(switch)] > 0;
    let mut pairs: Vec<(u16, u16)> = Vec::new();
    for b in topology.switches() {
        pairs.extend((0..b).map(|a| (a, b)));
    }
    pairs.retain(|&(a, b)| counted.count(has_hosts(a), has_hosts(b)));
    // As in `lash`: a layer breaks all rings of a dimension at the same place.
    pairs.sort_by_cached_key(|&pair| {
        collect(pair, &mut dependencies);
        let closed = closed_rings(topology, &dependencies);
        (closed.count_ones(), closed)
    });
    for pair in pairs {
        collect(pair, &mut dependencies);
        let layer = layering.first_fit(0, &dependencies)?;
        let (near, far) = (usize::from(pair.0), usize::from(pair.1));
        layers.row_mut(pair.0)[far] = layer;
        layers.row_mut(pair.1)[near] = layer;
        routes[usize::from(layer)] += u64::from(hosts[near]) * lids[far].len() as u64
            + u64::from(hosts[far]) * lids[near].len() as u64;
    }
    let shares = Shares::new(&routes[..usize::from(layering.count())], lanes.max(1));
    shares.apply_to_pairs(&mut layers, count);
    Some(layers)
}

/// Adds the dependencies of the route from a switch to a LID.
fn push(
    topology: &Topology,
    tables: &[&[u8]],
    from: u16,
    lid: usize,
    dependencies: &mut Vec<(u32, u32)>,
) {
    let (mut switch, mut before) = (from, None);
    // Tables are free of loops; the bound is a safeguard.
    for _ in 0..topology.switch_count() {
        let port = tables[usize::from(switch)].get(lid).copied();
        let Some(link) = port.and_then(|port| topology.link_at(switch, port)) else { return };
        let here = link as u32;
        if let Some(before) = before {
            dependencies.push((before, here));
        }
        (before, switch) = (Some(here), topology.link(link).peer);
    }
}

//! Assigns all pairs of switches to layers.

use super::trees::Trees;
use crate::lanes::Columns;
use crate::layering::{Layering, Pairs};
use crate::{Layers, Topology};

/// A pair of switches and the layer of both paths between them.
struct Pair {
    a: u16,
    b: u16,
    layer: u8,
}

/// Assigns all paths to at most `lanes` layers, numbered from `start`; `None` if these do not
/// suffice.
///
/// Paths that close the same rings are placed one after the other, so that a layer breaks all rings
/// of one dimension at the same place. If each ring were broken at a different place, hardly any
/// path through several dimensions would fit.
pub(super) fn layers(
    topology: &Topology,
    trees: &Trees,
    start: u8,
    lanes: u8,
    counted: Pairs,
) -> Option<Layers> {
    let switches = topology.switch_count();
    let hosts = topology.hosts_on();
    let mut layering = Layering::new(topology, lanes);
    let mut pairs = Vec::new();
    let mut dependencies = Vec::new();
    for a in topology.switches() {
        for b in a + 1..switches as u16 {
            let has_hosts = |switch: u16| hosts[usize::from(switch)] > 0;
            let counts = counted.count(has_hosts(a), has_hosts(b));
            if counts && trees.next(topology, a, b).is_some() {
                pairs.push(Pair { a, b, layer: 0 });
            }
        }
    }
    pairs.sort_by_cached_key(|pair| {
        between(topology, trees, pair.a, pair.b, &mut dependencies);
        let closed = closed_rings(topology, &dependencies);
        (closed.count_ones(), closed)
    });
    for pair in &mut pairs {
        between(topology, trees, pair.a, pair.b, &mut dependencies);
        pair.layer = layering.first_fit(0, &dependencies)?;
    }
    level(topology, trees, &mut layering, &mut pairs);
    let mut layers = Layers::new(switches, Columns::EgressSwitch, switches);
    layers.count = start + layering.count();
    for source in topology.switches() {
        layers.row_mut(source).fill(start);
    }
    for Pair { a, b, layer } in pairs {
        layers.row_mut(a)[usize::from(b)] = start + layer;
        layers.row_mut(b)[usize::from(a)] = start + layer;
    }
    Some(layers)
}

/// Moves paths from layers above the average to layers below it that accept them.
fn level(topology: &Topology, trees: &Trees, layering: &mut Layering, pairs: &mut [Pair]) {
    let count = layering.count();
    let share = pairs.len() / usize::from(count);
    let mut filled = vec![0; usize::from(count)];
    pairs.iter().for_each(|pair| filled[usize::from(pair.layer)] += 1);
    let mut dependencies = Vec::new();
    for pair in pairs {
        if filled[usize::from(pair.layer)] <= share {
            continue;
        }
        between(topology, trees, pair.a, pair.b, &mut dependencies);
        let takes = |&layer: &u8| {
            filled[usize::from(layer)] < share && layering.add_all(layer, &dependencies)
        };
        if let Some(layer) = (0..count).find(takes) {
            filled[usize::from(pair.layer)] -= 1;
            filled[usize::from(layer)] += 1;
            pair.layer = layer;
        }
    }
}

/// Collects the dependencies of the paths between two switches, in both directions.
fn between(topology: &Topology, trees: &Trees, a: u16, b: u16, dependencies: &mut Vec<(u32, u32)>) {
    dependencies.clear();
    trees.push_dependencies(topology, a, b, dependencies);
    trees.push_dependencies(topology, b, a, dependencies);
}

/// The dimensions, as bits, in which the paths use the link that closes a ring, that is, the link
/// between the highest and the lowest number. Where neither ports nor switches are numbered by
/// dimension, the result is an arbitrary set of links.
pub(in crate::engines) fn closed_rings(topology: &Topology, dependencies: &[(u32, u32)]) -> u64 {
    let links = dependencies.iter().flat_map(|&(from, to)| [from, to]);
    let closing = links.filter_map(|link| {
        let link = topology.link(link as usize);
        let back = topology.link_at(link.peer, link.peer_port)?;
        let switch = topology.link(back).peer;
        let closes = (link.port < link.peer_port) != (switch < link.peer);
        closes.then(|| 1 << (link.port.min(link.peer_port) % 64))
    });
    closing.fold(0, |rings, ring| rings | ring)
}

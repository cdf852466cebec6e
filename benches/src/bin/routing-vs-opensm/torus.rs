//! A `torus-2QoS.conf` for switches named by their coordinates: `sw-X-Y` or `sw-X-Y-Z`.

use std::collections::HashMap;
use std::fmt::Write as _;

use ib_mad::netlist::{Net, NodeKind, PortRef};
use ib_mad::types::Guid;

use crate::hex;

/// The configuration, with seeds that have all neighbours; `None` if the switches form no grid.
pub(crate) fn config(net: &Net) -> Option<String> {
    let mut places = HashMap::new();
    for node in net.nodes().iter().filter(|node| node.kind == NodeKind::Switch) {
        places.insert(place(&node.description)?, node.guid);
    }
    let mut sizes = [1u16; 3];
    for place in places.keys() {
        sizes.iter_mut().zip(place).for_each(|(size, &at)| *size = (*size).max(at + 1));
    }
    let wraps = |axis: usize| sizes[axis] > 2 && is_cabled_round(net, axis, sizes[axis]);
    let letter = |axis: usize| if sizes[axis] == 1 || wraps(axis) { "t" } else { "m" };
    let mut text = "torus".to_owned();
    for (axis, size) in sizes.iter().enumerate() {
        let _ = write!(text, " {size}{}", letter(axis));
    }
    text.push('\n');
    let mut seeds = 0;
    let mut sorted: Vec<_> = places.iter().collect();
    sorted.sort_unstable_by_key(|(place, _)| **place);
    for (&place, &guid) in sorted {
        let Some(links) = seed(&places, sizes, wraps, place, guid) else { continue };
        if seeds > 0 {
            text.push_str("next_seed\n");
        }
        text.push_str(&links);
        seeds += 1;
        if seeds == SEEDS {
            break;
        }
    }
    (seeds > 0).then_some(text)
}

/// Number of seeds: enough that some are complete.
const SEEDS: u32 = 4;

fn place(name: &str) -> Option<[u16; 3]> {
    let mut place = [0; 3];
    let numbers = name.strip_prefix("sw-")?.split('-');
    let mut count = 0;
    for (number, at) in numbers.zip(0..) {
        *place.get_mut(at)? = number.parse().ok()?;
        count += 1;
    }
    (count > 1).then_some(place)
}

/// Whether any cable leads from the last coordinate of an axis to the first.
fn is_cabled_round(net: &Net, axis: usize, size: u16) -> bool {
    let at = |end: PortRef| place(&net.nodes().get(end.node as usize)?.description);
    net.links().any(|(a, b)| {
        at(a).zip(at(b)).is_some_and(|(a, b)| a[axis].abs_diff(b[axis]) == size - 1 && size > 2)
    })
}

/// Links from a switch up and down all axes; `None` if a switch is missing or at an edge.
fn seed(
    places: &HashMap<[u16; 3], Guid>,
    sizes: [u16; 3],
    wraps: impl Fn(usize) -> bool,
    from: [u16; 3],
    guid: Guid,
) -> Option<String> {
    let mut text = String::new();
    for (axis, name) in ["x", "y", "z"].into_iter().enumerate().filter(|&(axis, _)| sizes[axis] > 1)
    {
        for (sign, step) in [("p", 1), ("m", sizes[axis] - 1)] {
            // A row without wraparound has two ends.
            if !wraps(axis) && (sign == "m" || from[axis] + 1 == sizes[axis]) {
                if sign == "p" {
                    return None;
                }
                continue;
            }
            let mut to = from;
            to[axis] = (to[axis] + step) % sizes[axis];
            let _ = writeln!(text, "{name}{sign}_link {} {}", hex(guid), hex(*places.get(&to)?));
        }
    }
    Some(text)
}

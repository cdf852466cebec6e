//! Numbers the links and hosts of a tree.
//!
//! Numbers must not change with damage elsewhere, so where cabling is regular they follow from
//! ports: all leaves have the same spine at the same uplink port, and all spines the same leaf at
//! the same port. A port that any switch of a rank uses then has a place on all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{NO_RANK, NO_SLOT, PLACES_MIN};
use crate::{CommonOptions, Destination, Topology};

/// By rank and switch: the connected part that the switch is in without switches above this rank.
pub(super) type Parts = Vec<Vec<u16>>;

/// Marks a switch above the rank.
const NO_PART: u16 = u16::MAX;

/// Divides the tree into parts, rank by rank.
pub(super) fn parts(topology: &Topology, ranks: &[u16], highest: u16) -> Parts {
    let mut all = Vec::new();
    for rank in 0..=highest {
        let mut part = vec![NO_PART; ranks.len()];
        for start in topology.switches().filter(|&start| ranks[usize::from(start)] <= rank) {
            if part[usize::from(start)] != NO_PART {
                continue;
            }
            part[usize::from(start)] = start;
            let mut stack = vec![start];
            while let Some(switch) = stack.pop() {
                for link in topology.links(switch) {
                    let peer = usize::from(link.peer);
                    if ranks[peer] <= rank && part[peer] == NO_PART {
                        part[peer] = start;
                        stack.push(link.peer);
                    }
                }
            }
        }
        all.push(part);
    }
    all
}

/// Numbers parts in the order of their first leaves. Parts without leaves have one number.
pub(super) fn in_order(parts: &Parts, leaves: &[u16]) -> Parts {
    let of_rank = |part: &Vec<u16>| {
        let mut numbers = BTreeMap::new();
        for &leaf in leaves {
            let next = numbers.len() as u16;
            numbers.entry(part[usize::from(leaf)]).or_insert(next);
        }
        let none = numbers.len() as u16;
        part.iter().map(|of| numbers.get(of).copied().unwrap_or(none)).collect()
    };
    parts.iter().map(of_rank).collect()
}

/// By switch: whether routes between hosts need it. Others, such as leaves without hosts, join
/// nothing that is not joined below them.
pub(super) fn useful(topology: &Topology, ranks: &[u16], parts: &Parts, highest: u16) -> Vec<bool> {
    let mut useful: Vec<bool> = ranks.iter().map(|&rank| rank == 0).collect();
    for rank in (1..=highest).rev() {
        for switch in topology.switches().filter(|&switch| ranks[usize::from(switch)] == rank) {
            let below = &parts[usize::from(rank) - 1];
            let mut joined = None;
            useful[usize::from(switch)] = topology.links(switch).iter().any(|link| {
                let peer = usize::from(link.peer);
                if ranks[peer] > rank {
                    return useful[peer];
                }
                *joined.get_or_insert(below[peer]) != below[peer]
            });
        }
    }
    useful
}

/// The slots of links, and how many there are by rank of the lower end; `None` if too few of them
/// have links.
pub(super) fn slots(
    topology: &Topology,
    ranks: &[u16],
    is_useful: &[bool],
    highest: u16,
) -> Option<(Vec<u16>, Vec<u16>)> {
    let mut slots = vec![NO_SLOT; topology.link_count()];
    let mut widths = Vec::new();
    for rank in 0..highest {
        let lower = || topology.switches().filter(|&switch| ranks[usize::from(switch)] == rank);
        let ups = |switch: u16| {
            let links = topology.links(switch).iter().zip(topology.link_range(switch));
            links.filter(|(link, _)| {
                let peer = usize::from(link.peer);
                ranks[peer] == rank + 1 && is_useful[peer]
            })
        };
        // By switch above: the group that it shares switches below with, and its lowest port there.
        let groups = groups(topology, ranks, is_useful, rank);
        let mut ports = BTreeMap::new();
        let mut parallel = BTreeMap::new();
        for switch in lower() {
            let mut count = BTreeMap::new();
            for (link, _) in ups(switch) {
                let port = ports.entry(link.peer).or_insert(link.port);
                *port = link.port.min(*port);
                *count.entry(link.peer).or_insert(0u16) += 1;
            }
            for (upper, count) in count {
                let most = parallel.entry(upper).or_insert(0);
                *most = count.max(*most);
            }
        }
        let keys = ports.iter().map(|(&upper, &port)| (groups[usize::from(upper)], port, upper));
        let (places, count) = place(keys.collect());
        // The first links to all switches above have the first slots, then the second ones.
        let mut most = vec![0; count.into()];
        for (upper, &count) in &parallel {
            let most: &mut u16 = &mut most[usize::from(places[upper])];
            *most = count.max(*most);
        }
        let of_place = |place: u16| (0..most[usize::from(place)]).map(move |round| (round, place));
        let all: BTreeSet<(u16, u16)> = (0..count).flat_map(of_place).collect();
        let numbers: BTreeMap<(u16, u16), u16> = all.into_iter().zip(0..).collect();
        let width = numbers.len();
        let (mut links, mut senders) = (0, 0);
        for switch in lower() {
            let mut next = BTreeMap::new();
            for (link, number) in ups(switch) {
                let round = next.entry(link.peer).or_insert(0u16);
                slots[number] = numbers[&(*round, places[&link.peer])];
                *round += 1;
                links += 1;
                if let Some(back) = topology.link_at(link.peer, link.peer_port) {
                    slots[back] = slots[number];
                }
            }
            senders += usize::from(!next.is_empty());
        }
        if links * PLACES_MIN.1 < senders * width * PLACES_MIN.0 {
            return None;
        }
        widths.push(u16::try_from(width).ok()?);
    }
    Some((slots, widths))
}

/// By switch of the rank above `rank`: a number that switches have in common if they share
/// switches below.
fn groups(topology: &Topology, ranks: &[u16], is_useful: &[bool], rank: u16) -> Vec<u16> {
    let mut group = vec![NO_PART; ranks.len()];
    let counts = |switch: u16| {
        let of = ranks[usize::from(switch)];
        of == rank || of == rank + 1 && is_useful[usize::from(switch)]
    };
    for start in topology.switches().filter(|&start| counts(start)) {
        if group[usize::from(start)] != NO_PART {
            continue;
        }
        group[usize::from(start)] = start;
        let mut stack = vec![start];
        while let Some(switch) = stack.pop() {
            for link in topology.links(switch) {
                let peer = usize::from(link.peer);
                if counts(link.peer) && group[peer] == NO_PART {
                    group[peer] = start;
                    stack.push(link.peer);
                }
            }
        }
    }
    group
}

/// Gives each member of a group a place: that of its port among the ports that any group uses, if
/// cabling is regular, or else in the order of ports in its group. Members are groups, ports and
/// what has them. Also returns the number of places.
fn place<T: Copy + Ord>(mut members: Vec<(u16, u8, T)>) -> (BTreeMap<T, u16>, u16) {
    members.sort_unstable();
    let all: BTreeSet<u8> = members.iter().map(|&(_, port, _)| port).collect();
    let groups = || members.chunk_by(|a, b| a.0 == b.0);
    let most = groups().map(<[_]>::len).max().unwrap_or(0);
    let is_unique = members.windows(2).all(|pair| (pair[0].0, pair[0].1) != (pair[1].0, pair[1].1));
    if is_unique && all.len() * 4 <= most * 5 {
        let places: BTreeMap<u8, u16> = all.iter().copied().zip(0..).collect();
        let of = members.iter().map(|&(_, port, member)| (member, places[&port]));
        return (of.collect(), all.len() as u16);
    }
    let of = groups().flat_map(|group| group.iter().map(|&(_, _, member)| member).zip(0..));
    (of.collect(), most as u16)
}

/// Switches with hosts, in tree order.
pub(super) fn leaves(topology: &Topology, ranks: &[u16], slots: &[u16], parts: &Parts) -> Vec<u16> {
    let leaves: Vec<u16> =
        topology.switches().filter(|&switch| ranks[usize::from(switch)] == 0).collect();
    let mut numbers = vec![0u32; leaves.len()];
    let mut factor = 1u32;
    for (rank, part) in parts.iter().enumerate() {
        // By part: the lowest port that switches above have to it.
        let mut ports: BTreeMap<u16, u8> = BTreeMap::new();
        for switch in topology.switches().filter(|&s| usize::from(ranks[usize::from(s)]) == rank) {
            let port = ports.entry(part[usize::from(switch)]).or_insert(u8::MAX);
            let links = topology.links(switch).iter().zip(topology.link_range(switch));
            let ups = links.filter(|(link, number)| {
                ranks[usize::from(link.peer)] != NO_RANK
                    && usize::from(ranks[usize::from(link.peer)]) == rank + 1
                    && slots[*number] != NO_SLOT
            });
            *port = ups.map(|(link, _)| link.peer_port).chain([*port]).min().unwrap_or(*port);
        }
        let above = |of: u16| parts.get(rank + 1).map_or(0, |above| above[usize::from(of)]);
        let of_leaf = leaves.iter().map(|&leaf| part[usize::from(leaf)]);
        let with_hosts: BTreeSet<u16> = of_leaf.collect();
        let keys = with_hosts
            .iter()
            .map(|&of| (above(of), ports.get(&of).copied().unwrap_or(u8::MAX), of));
        let (places, count) = place(keys.collect());
        for (&leaf, number) in leaves.iter().zip(&mut numbers) {
            let place = u32::from(places[&part[usize::from(leaf)]]);
            *number = number.saturating_add(place.saturating_mul(factor));
        }
        factor = factor.saturating_mul(u32::from(count.max(1)));
    }
    let mut leaves: Vec<(u32, u16)> = numbers.into_iter().zip(leaves).collect();
    leaves.sort_unstable();
    leaves.into_iter().map(|(_, leaf)| leaf).collect()
}

/// By destination: the number of a host. `leaves` are in tree order.
///
/// Hosts are counted one after the other. Where leaves have more hosts than uplinks, but not a
/// multiple of them, as when a spine is missing, neighbours share a number instead: they meet at
/// the switch that sends and at the one that receives, instead of different hosts at each.
pub(super) fn numbers(
    topology: &Topology,
    common: &CommonOptions,
    leaves: &[u16],
    uplinks: u16,
) -> Vec<u32> {
    let all = topology.destinations();
    let mut place_of = vec![0; topology.switch_count()];
    leaves.iter().zip(0u32..).for_each(|(&leaf, place)| place_of[usize::from(leaf)] = place);
    let compute: Option<BTreeSet<_>> =
        common.compute_nodes.as_ref().map(|lids| lids.iter().copied().collect());
    let is_compute = |to: &Destination| compute.as_ref().is_none_or(|c| c.contains(&to.base_lid));
    let hosts = all.iter().zip(0usize..).filter(|(to, _)| to.is_host());
    let key = |(to, index): (&Destination, usize)| {
        (!is_compute(to), place_of[usize::from(to.egress_switch)], to.exit, index)
    };
    let mut hosts: Vec<_> = hosts.map(key).collect();
    hosts.sort_unstable();
    let mut numbers = vec![0; all.len()];
    // Compute nodes have numbers of their own, so that other hosts do not disturb them.
    for kind in hosts.chunk_by(|a, b| a.0 == b.0) {
        let on_leaf = || kind.chunk_by(|a, b| a.1 == b.1);
        let most = on_leaf().map(<[_]>::len).max().unwrap_or(0) as u32;
        let uplinks = u32::from(uplinks).max(1);
        if most <= uplinks || most.is_multiple_of(uplinks) {
            kind.iter().zip(0..).for_each(|(&(.., index), number)| numbers[index] = number);
            continue;
        }
        for hosts in on_leaf() {
            for (&(_, leaf, _, index), place) in hosts.iter().zip(0u32..) {
                numbers[index] = leaf * uplinks + place * uplinks / most;
            }
        }
    }
    numbers
}

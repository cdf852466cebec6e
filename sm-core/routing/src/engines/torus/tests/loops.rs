//! Finds credit loops by following every route, entry by entry, through SL2VL.

use super::{QOS_SL, lanes};
use crate::multicast::{Place, Tree};
use crate::{Destination, Routing, Topology};

/// Lanes per link; 15 are data VLs.
const LANES: usize = 16;

/// By channel: the channels that it waits for, each once.
type Waits = Vec<Vec<usize>>;

fn add(waits: &mut Waits, held: usize, wanted: usize) {
    if !waits[held].contains(&wanted) {
        waits[held].push(wanted);
    }
}

/// Number of channels, each a link and a VL, that lie on dependency cycles or behind them: unicast
/// of both levels, and multicast to all hosts.
pub(super) fn looping(topology: &Topology, routing: &Routing) -> usize {
    let mut waits = vec![Vec::new(); topology.link_count() * LANES];
    unicast(topology, routing, &[0, QOS_SL], |_| true, &mut waits);
    let members: Vec<Place> = topology
        .destinations()
        .iter()
        .map(|to| Place { switch: to.egress_switch, exit: to.exit })
        .collect();
    multicast(topology, routing, &Tree::part_of(lanes(routing).tree(), &members), &mut waits);
    left_over(&waits)
}

/// For routes of the lower level to hosts, from all switches: the number of dependencies, and of
/// channels that lie on cycles or lead to one.
pub(super) fn lower_level(topology: &Topology, routing: &Routing) -> (usize, usize) {
    let mut waits = vec![Vec::new(); topology.link_count() * LANES];
    unicast(topology, routing, &[0], Destination::is_host, &mut waits);
    (waits.iter().map(Vec::len).sum(), left_over(&waits))
}

/// Adds the dependencies of routes to some destinations.
fn unicast(
    topology: &Topology,
    routing: &Routing,
    levels: &[u8],
    counts: impl Fn(&Destination) -> bool,
    waits: &mut Waits,
) {
    let lanes = lanes(routing);
    for to in topology.destinations().iter().filter(|to| counts(to)) {
        for (lid, source) in to.lids().flat_map(|lid| topology.switches().map(move |s| (lid, s))) {
            for qos in levels {
                let sl = lanes.sl(source, to.egress_switch) | qos;
                let (mut at, mut in_port, mut held) = (source, 0, None);
                let mut hops = 0;
                while let Some(link) = topology.link_at(at, routing.port(at, lid)) {
                    let out = topology.link(link);
                    let vl = lanes.vl(at, in_port, out.port, sl);
                    let channel = link * LANES + usize::from(vl);
                    if let Some(held) = held {
                        add(waits, held, channel);
                    }
                    (at, in_port, held) = (out.peer, out.peer_port, Some(channel));
                    hops += 1;
                    assert!(hops <= topology.switch_count(), "a circle");
                }
            }
        }
    }
}

/// Adds the dependencies of packets that each switch of a tree forwards by all other branches.
fn multicast(topology: &Topology, routing: &Routing, tree: &Tree, waits: &mut Waits) {
    let lanes = lanes(routing);
    let ports = |switch: u16| {
        let mask = tree.masks.iter().find(|(other, _)| *other == switch);
        mask.into_iter().flat_map(|(_, mask)| mask.ports()).collect::<Vec<u8>>()
    };
    for &(switch, mask) in &tree.masks {
        for (sl, in_port, out) in [0, QOS_SL]
            .into_iter()
            .flat_map(|sl| mask.ports().map(move |p| (sl, p)))
            .flat_map(|(sl, p)| mask.ports().map(move |out| (sl, p, out)))
        {
            let Some(link) = topology.link_at(switch, out).filter(|_| in_port != out) else {
                continue;
            };
            let held = link * LANES + usize::from(lanes.vl(switch, in_port, out, sl));
            let far = topology.link(link);
            for on in ports(far.peer).into_iter().filter(|&on| on != far.peer_port) {
                let Some(next) = topology.link_at(far.peer, on) else { continue };
                let vl = lanes.vl(far.peer, far.peer_port, on, sl);
                add(waits, held, next * LANES + usize::from(vl));
            }
        }
    }
}

/// Removes channels that wait for nothing (Kahn's algorithm, backwards); returns how many remain.
fn left_over(waits: &Waits) -> usize {
    let mut before = vec![Vec::new(); waits.len()];
    for (held, wanted) in waits.iter().enumerate() {
        wanted.iter().for_each(|&wanted| before[wanted].push(held));
    }
    let mut waits_for: Vec<usize> = waits.iter().map(Vec::len).collect();
    let is_free = |&channel: &usize| waits[channel].is_empty();
    let mut free: Vec<usize> = (0..waits.len()).filter(is_free).collect();
    let mut left = waits.len();
    while let Some(channel) = free.pop() {
        left -= 1;
        for &held in &before[channel] {
            waits_for[held] -= 1;
            if waits_for[held] == 0 {
                free.push(held);
            }
        }
    }
    left
}

#[test]
fn cycles_are_found() {
    let left = |pairs: &[(usize, usize)]| {
        let mut waits = vec![Vec::new(); 6];
        pairs.iter().for_each(|&(held, wanted)| add(&mut waits, held, wanted));
        left_over(&waits)
    };
    assert_eq!(left(&[(0, 1), (1, 2), (0, 2)]), 0);
    assert_eq!(left(&[(0, 1), (1, 2), (2, 0), (3, 0), (4, 5)]), 4);
}

//! Looking for a mesh or torus, however it is cabled and numbered.
//!
//! A mesh is the product of paths, a torus that of rings. Which links belong to one dimension shows
//! in squares: two links of a switch either span a square with no other, and then links that lie
//! opposite in it are of one dimension; or they do not, and are of one dimension themselves. A
//! dimension's links left out, the fabric falls into parts, each a coordinate. A ring of four is two
//! dimensions of two by this, which serves as well.
//!
//! What is found is the same fabric, switches numbered by coordinates and ports by dimensions, long
//! ones first: there paths by low ports keep to an order of dimensions, and rings close at the same
//! places. A fabric of which more is missing than squares can do without is no mesh.

use super::super::lanes::Columns;
use super::super::{Destination, Entries, Layers, NO_ROUTE, Topology, TopologyBuilder};

/// Neighbours of a switch of a mesh, and so twice its dimensions.
const NEIGHBOURS_MAX: usize = 16;

/// A topology as a mesh.
pub(super) struct Mesh {
    /// The same, in order.
    pub(super) topology: Topology,
    /// By its switches: which switch that is, and by port which port.
    switches: Vec<(u16, Vec<u8>)>,
}

/// The links of a switch to one other, as their ports at both ends.
struct Cables {
    peer: u16,
    ports: Vec<(u8, u8)>,
}

/// The place of switches along a dimension.
struct Axis {
    size: usize,
    /// By switch.
    places: Vec<usize>,
}

impl Mesh {
    /// Looks for one; `None` if it is none.
    pub(super) fn find(topology: &Topology) -> Option<Self> {
        let cables: Vec<Vec<Cables>> =
            topology.switches().map(|switch| cables(topology, switch)).collect();
        if cables.iter().any(|cables| cables.is_empty() || cables.len() > NEIGHBOURS_MAX) {
            return None;
        }
        let classes = classes(&cables);
        let mut kinds: Vec<usize> = classes.iter().flatten().copied().collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > NEIGHBOURS_MAX {
            return None;
        }
        let mut axes: Vec<Axis> =
            kinds.into_iter().map(|kind| axis(&cables, &classes, kind)).collect::<Option<_>>()?;
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.size));
        let size = axes.iter().try_fold(1usize, |size, axis| size.checked_mul(axis.size));
        let place = |switch: usize| axes.iter().map(|axis| axis.places[switch]).collect::<Vec<_>>();
        let mut order: Vec<(Vec<usize>, u16)> =
            topology.switches().map(|switch| (place(usize::from(switch)), switch)).collect();
        order.sort_unstable();
        let is_product =
            size == Some(order.len()) && order.windows(2).all(|two| two[0].0 < two[1].0);
        let order: Vec<u16> = order.into_iter().map(|(_, switch)| switch).collect();
        is_product.then(|| Self::ordered(topology, &cables, &axes, &order)).flatten()
    }

    /// The topology with switches in this order and ports by axis; `None` if it needs more ports than
    /// switches have.
    fn ordered(
        topology: &Topology,
        cables: &[Vec<Cables>],
        axes: &[Axis],
        order: &[u16],
    ) -> Option<Self> {
        let most = cables.iter().flatten().map(|cables| cables.ports.len()).max()?;
        let first_exit = 1 + axes.len() * 2 * most;
        let mut numbers = vec![0u16; order.len()];
        order.iter().zip(0..).for_each(|(&old, new)| numbers[usize::from(old)] = new);
        let mut exits = vec![Vec::new(); order.len()];
        for to in topology.destinations().iter().filter(|to| to.is_host()) {
            exits[usize::from(to.home)].push(to.exit);
        }
        let mut builder = TopologyBuilder::new();
        let mut switches = Vec::new();
        for &old in order {
            let exits = &mut exits[usize::from(old)];
            exits.sort_unstable();
            exits.dedup();
            let count =
                u8::try_from(first_exit - 1 + exits.len()).ok().filter(|&n| n < NO_ROUTE)?;
            builder.add_switch(count).ok()?;
            let mut ports = vec![0; first_exit];
            ports.extend_from_slice(exits);
            switches.push((old, ports));
        }
        for (old, cables) in topology.switches().zip(cables) {
            for Cables { peer, ports } in cables {
                let (here, there) = (usize::from(old), usize::from(*peer));
                let (rank, is_up) = axes.iter().enumerate().find_map(|(rank, axis)| {
                    let (a, b) = (axis.places[here], axis.places[there]);
                    (a != b).then(|| (rank, (a + 1) % axis.size == b && (axis.size > 2 || a < b)))
                })?;
                let near = 1 + (2 * rank + usize::from(!is_up)) * most;
                let far = 1 + (2 * rank + usize::from(is_up)) * most;
                for (number, (port, _)) in ports.iter().enumerate() {
                    let here = numbers[here];
                    switches[usize::from(here)].1[near + number] = *port;
                    let there = (numbers[there], (far + number) as u8);
                    builder.add_link((here, (near + number) as u8), there).ok()?;
                }
            }
        }
        for to in topology.destinations() {
            let home = numbers[usize::from(to.home)];
            let ports = &switches[usize::from(home)].1;
            let exit = if to.is_host() {
                first_exit + ports[first_exit..].binary_search(&to.exit).ok()?
            } else {
                0
            };
            builder.add_destination(Destination { home, exit: exit as u8, ..*to }).ok()?;
        }
        Some(Self { topology: builder.build().ok()?, switches })
    }

    /// Tables of the mesh as those of the topology that it was found in.
    pub(super) fn tables(&self, tables: Vec<Entries>) -> Vec<Entries> {
        let mut all = vec![Entries::default(); tables.len()];
        for (mut table, (old, ports)) in tables.into_iter().zip(&self.switches) {
            for entry in table.iter_mut().filter(|entry| **entry != NO_ROUTE) {
                *entry = ports[usize::from(*entry)];
            }
            all[usize::from(*old)] = table;
        }
        all
    }

    /// The same with layers of pairs of switches.
    pub(super) fn layers(&self, layers: &Layers) -> Layers {
        let count = self.switches.len();
        let mut all = Layers::new(count, Columns::HomeSwitch, count);
        all.count = layers.count;
        for ((source, _), new) in self.switches.iter().zip(0..) {
            let row = all.row_mut(*source);
            for ((home, _), &layer) in self.switches.iter().zip(layers.row(new)) {
                row[usize::from(*home)] = layer;
            }
        }
        all
    }
}

/// The links of a switch by the switch behind them, ascending. Cables between two switches are in the
/// same order at both.
fn cables(topology: &Topology, switch: u16) -> Vec<Cables> {
    let mut all: Vec<Cables> = Vec::new();
    for link in topology.links(switch) {
        let ports = (link.port, link.peer_port);
        match all.binary_search_by_key(&link.peer, |cables| cables.peer) {
            Ok(at) => all[at].ports.push(ports),
            Err(at) => all.insert(at, Cables { peer: link.peer, ports: vec![ports] }),
        }
    }
    for cables in all.iter_mut().filter(|cables| cables.peer < switch) {
        cables.ports.sort_unstable_by_key(|ports| ports.1);
    }
    all
}

/// By switch and neighbour: links of the same dimension have the same number.
fn classes(cables: &[Vec<Cables>]) -> Vec<Vec<usize>> {
    let mut first = vec![0];
    for cables in cables {
        first.push(first[first.len() - 1] + cables.len());
    }
    let at = |from: u16, to: u16| {
        let behind = cables[usize::from(from)].binary_search_by_key(&to, |cables| cables.peer);
        behind.ok().map(|at| first[usize::from(from)] + at)
    };
    let mut groups = Groups((0..first[cables.len()]).collect());
    for (switch, neighbours) in (0u16..).zip(cables) {
        for (index, a) in neighbours.iter().map(|cables| cables.peer).enumerate() {
            let (Some(to_a), Some(from_a)) = (at(switch, a), at(a, switch)) else { continue };
            groups.join(to_a, from_a);
            for b in neighbours[index + 1..].iter().map(|cables| cables.peer) {
                let Some(to_b) = at(switch, b) else { continue };
                let beyond = cables[usize::from(a)].iter().map(|cables| cables.peer);
                let mut squares = beyond.filter(|&far| far != switch && at(b, far).is_some());
                match (at(a, b), squares.next(), squares.next()) {
                    (None, Some(far), None) => {
                        at(b, far).into_iter().for_each(|other| groups.join(to_a, other));
                        at(a, far).into_iter().for_each(|other| groups.join(to_b, other));
                    }
                    _ => groups.join(to_a, to_b),
                }
            }
        }
    }
    let class = |(switch, cables): (usize, &Vec<Cables>)| {
        (0..cables.len()).map(|at| groups.find(first[switch] + at)).collect()
    };
    cables.iter().enumerate().map(class).collect()
}

/// Sets that grow together, each told by one of its members.
struct Groups(Vec<usize>);

impl Groups {
    /// Halves the way on each look, so that chains do not grow long.
    fn find(&mut self, mut member: usize) -> usize {
        while self.0[member] != member {
            self.0[member] = self.0[self.0[member]];
            member = self.0[member];
        }
        member
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        let (low, high) = (a.min(b), a.max(b));
        self.0[high] = low;
    }
}

/// Where switches are along the dimension of this kind of links; `None` if they are neither a row nor
/// a ring.
fn axis(cables: &[Vec<Cables>], classes: &[Vec<usize>], kind: usize) -> Option<Axis> {
    const NONE: usize = usize::MAX;
    let mut parts = vec![NONE; cables.len()];
    let mut count = 0;
    for start in 0..cables.len() {
        if parts[start] != NONE {
            continue;
        }
        parts[start] = count;
        let mut waiting = vec![start];
        while let Some(at) = waiting.pop() {
            for (next, class) in cables[at].iter().zip(&classes[at]) {
                let next = usize::from(next.peer);
                if *class != kind && parts[next] == NONE {
                    parts[next] = count;
                    waiting.push(next);
                }
            }
        }
        count += 1;
    }
    let mut joined = vec![Vec::new(); count];
    for (at, cables) in cables.iter().enumerate() {
        for (next, _) in cables.iter().zip(&classes[at]).filter(|(_, class)| **class == kind) {
            joined[parts[at]].push(parts[usize::from(next.peer)]);
        }
    }
    for (part, joined) in joined.iter_mut().enumerate() {
        joined.sort_unstable();
        joined.dedup();
        if joined.len() > 2 || joined.contains(&part) {
            return None;
        }
    }
    let mut places = vec![NONE; count];
    let mut at = joined.iter().position(|joined| joined.len() == 1).unwrap_or(0);
    for place in 0..count {
        places[at] = place;
        match joined[at].iter().find(|&&next| places[next] == NONE) {
            Some(&next) => at = next,
            None if place + 1 == count => {}
            None => return None,
        }
    }
    let places = parts.into_iter().map(|part| places[part]).collect();
    Some(Axis { size: count, places })
}

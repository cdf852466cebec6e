//! Detects a mesh or torus, regardless of its cabling and numbering.
//!
//! A mesh is the product of paths, a torus that of rings. Squares show which links belong to one
//! dimension: if two links of a switch span exactly one square, opposite links of it belong to one
//! dimension; otherwise the two links belong to the same dimension. Without the links of one
//! dimension, the fabric splits into parts, one per coordinate. A ring of four then counts as two
//! dimensions of size two, which works as well.
//!
//! The result is the same fabric with switches numbered by coordinates and ports by dimension,
//! longest dimension first: there, paths by low ports follow dimension order, and rings close at
//! the same places. A fabric with too many missing links for this analysis is not detected as a
//! mesh.

use crate::lanes::Columns;
use crate::{Destination, Entries, Layers, NO_ROUTE, Topology, TopologyBuilder};

/// Largest number of neighbours of a switch in a mesh: twice the number of dimensions.
const NEIGHBOURS_MAX: usize = 16;

/// A topology renumbered as a mesh.
pub(super) struct Mesh {
    /// The topology with switches and ports renumbered.
    pub(super) topology: Topology,
    /// By switch of `topology`: the original switch, and by port the original port.
    switches: Vec<(u16, Vec<u8>)>,
}

/// The links from a switch to one neighbour, as pairs of ports at both ends.
struct Cables {
    peer: u16,
    ports: Vec<(u8, u8)>,
}

/// Coordinates of switches along one dimension.
struct Axis {
    size: usize,
    /// By switch: its coordinate.
    places: Vec<usize>,
}

impl Mesh {
    /// Detects a mesh or torus; `None` if the topology is neither.
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

    /// Renumbers switches in this order and ports by axis; `None` if that needs more ports than a
    /// switch has.
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
            exits[usize::from(to.egress_switch)].push(to.exit);
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
            let egress_switch = numbers[usize::from(to.egress_switch)];
            let ports = &switches[usize::from(egress_switch)].1;
            let exit = if to.is_host() {
                first_exit + ports[first_exit..].binary_search(&to.exit).ok()?
            } else {
                0
            };
            builder.add_destination(Destination { egress_switch, exit: exit as u8, ..*to }).ok()?;
        }
        Some(Self { topology: builder.build().ok()?, switches })
    }

    /// Converts tables of the mesh to tables of the original topology.
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

    /// Converts layers of pairs of mesh switches to layers of the original switches.
    pub(super) fn layers(&self, layers: &Layers) -> Layers {
        let count = self.switches.len();
        let mut all = Layers::new(count, Columns::EgressSwitch, count);
        all.count = layers.count;
        for ((source, _), new) in self.switches.iter().zip(0..) {
            let row = all.row_mut(*source);
            for ((egress_switch, _), &layer) in self.switches.iter().zip(layers.row(new)) {
                row[usize::from(*egress_switch)] = layer;
            }
        }
        all
    }
}

/// Groups the links of a switch by neighbour, ascending. Cables between two switches are in the
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

/// By switch and neighbour: a number that is equal for links of the same dimension.
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

/// Disjoint sets, each identified by one of its members.
struct Groups(Vec<usize>);

impl Groups {
    /// Finds the set of a member, halving the path on the way so that chains stay short.
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

/// Determines the coordinates of switches along the dimension of this class of links; `None` if
/// they form neither a row nor a ring.
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

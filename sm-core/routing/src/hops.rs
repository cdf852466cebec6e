//! Computes hop counts between all pairs of switches, by a breadth-first search for 64 of them at a
//! time.

use rayon::prelude::*;

use super::Topology;

/// Hop counts between switches. A computed matrix is symmetric, as links work both ways.
///
/// An engine whose routes to further LIDs of a port are longer than those to the first adds
/// *planes*: each has a number of its own for each pair of switches. Plane 0 is for the first LID
/// of each port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopMatrix {
    switches: usize,
    /// Number of planes, at least 1.
    planes: usize,
    /// By switch, plane and switch.
    hops: Vec<u8>,
}

impl HopMatrix {
    /// Marks pairs that no path of up to [`Self::HOPS_MAX`] hops joins.
    pub const UNREACHABLE: u8 = 255;
    /// The longest path that is counted. Directed routes, by which the SM reaches switches, have up
    /// to 63 hops, so no two switches are more than twice that apart.
    pub const HOPS_MAX: u8 = 253;
    /// Largest number of switches for which a matrix is computed: 256 MB.
    pub const SWITCHES_MAX: usize = 1 << 14;

    /// Computes the matrix; `None` if there are too many switches.
    pub fn compute(topology: &Topology) -> Option<Self> {
        let switches = topology.switch_count();
        if switches > Self::SWITCHES_MAX {
            return None;
        }
        let all: Vec<u16> = topology.switches().collect();
        Some(Self { switches, planes: 1, hops: search(topology, &all) })
    }

    /// Recomputes the matrix after a change, if switches have kept their numbers. `hops` was
    /// computed for the topology `then`; only rows that new or removed links can have changed are
    /// computed.
    pub(super) fn compute_since(topology: &Topology, then: &Topology, hops: &Self) -> Option<Self> {
        let switches = topology.switch_count();
        if (then.switch_count(), hops.switches) != (switches, switches) {
            return Self::compute(topology);
        }
        let changes = Neighbours::compare(then, topology);
        let moved = |&row: &u16| changes.may_change(hops.row(row));
        let moved: Vec<u16> = topology.switches().into_par_iter().filter(moved).collect();
        if moved.len() > switches / 2 {
            return Self::compute(topology);
        }
        let found = search(topology, &moved);
        let mut computed = hops.first_plane();
        for (switch, found) in found.chunks(moved.len().max(1)).enumerate() {
            for (&row, &hops) in moved.iter().zip(found) {
                let row = usize::from(row);
                computed.hops[row * switches + switch] = hops;
                computed.hops[switch * switches + row] = hops;
            }
        }
        Some(computed)
    }

    /// Returns a matrix in which no pair is connected, for at most [`Self::SWITCHES_MAX`] switches.
    /// Engines whose routes are not shortest fill it in themselves; it need not be symmetric.
    pub(super) fn unreachable(switches: usize) -> Self {
        Self { switches, planes: 1, hops: vec![Self::UNREACHABLE; switches * switches] }
    }

    /// Returns all rows, in switch order, to be filled in by several threads.
    pub(super) fn rows_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [u8]> {
        self.hops.par_chunks_mut(self.switches.max(1))
    }

    /// Returns the row of a switch, to be filled in.
    #[inline]
    pub(super) fn row_mut(&mut self, switch: u16) -> &mut [u8] {
        let start = usize::from(switch) * self.switches * self.planes;
        &mut self.hops[start..start + self.switches]
    }

    /// Swaps rows and columns, one cache-sized square at a time.
    pub(super) fn transpose(&mut self) {
        const SIDE: usize = 32;
        let switches = self.switches;
        for top in (0..switches).step_by(SIDE) {
            for left in (top..switches).step_by(SIDE) {
                for row in top..switches.min(top + SIDE) {
                    for column in left.max(row + 1)..switches.min(left + SIDE) {
                        self.hops.swap(row * switches + column, column * switches + row);
                    }
                }
            }
        }
    }

    /// Hops from (and to) a switch, by switch.
    #[inline]
    pub fn row(&self, switch: u16) -> &[u8] {
        &self.wide_row(switch)[..self.switches]
    }

    /// Hops from a switch in all planes, by plane and switch.
    #[inline]
    pub(super) fn wide_row(&self, switch: u16) -> &[u8] {
        let width = self.switches * self.planes;
        &self.hops[usize::from(switch) * width..][..width]
    }

    /// Number of planes.
    pub fn plane_count(&self) -> usize {
        self.planes
    }

    /// The plane of a port's LID, by its offset from the first. More LIDs than planes take these in
    /// turn.
    #[inline]
    pub fn plane_of(&self, offset: u16) -> usize {
        usize::from(offset) % self.planes
    }

    /// Returns the matrix with further planes. `further` gives the number for a plane, of these,
    /// a source and an egress switch.
    pub(super) fn with_planes(
        &self,
        count: usize,
        further: impl Fn(usize, u16, u16) -> u8 + Sync,
    ) -> Self {
        let (switches, planes) = (self.switches, 1 + count);
        let mut hops = vec![Self::UNREACHABLE; switches * switches * planes];
        let rows = hops.par_chunks_mut((switches * planes).max(1)).enumerate();
        rows.for_each(|(source, row)| {
            let source = source as u16;
            let (first, others) = row.split_at_mut(switches);
            first.copy_from_slice(self.row(source));
            for (plane, row) in others.chunks_mut(switches).enumerate() {
                let egress_switches = 0..switches as u16;
                row.iter_mut().zip(egress_switches).for_each(|(hops, egress_switch)| {
                    *hops = further(plane, source, egress_switch);
                });
            }
        });
        Self { switches, planes, hops }
    }

    /// Returns a matrix of plane 0 alone.
    fn first_plane(&self) -> Self {
        if self.planes == 1 {
            return self.clone();
        }
        let rows = self.hops.chunks(self.switches * self.planes);
        let hops = rows.flat_map(|row| &row[..self.switches]).copied().collect();
        Self { switches: self.switches, planes: 1, hops }
    }

    /// Number of rows.
    pub(super) fn switch_count(&self) -> usize {
        self.switches
    }

    /// Largest hop count between any two connected switches.
    pub fn diameter(&self) -> u8 {
        let rows = self.hops.chunks((self.switches * self.planes).max(1));
        let hops = rows.flat_map(|row| &row[..self.switches]).copied();
        hops.filter(|&hops| hops != Self::UNREACHABLE).max().unwrap_or(0)
    }
}

/// Computes hops from some switches to all, indexed by switch, then by position in `from`.
///
/// Each switch has a bit set of the `from` switches within k hops. A level is an OR over its
/// neighbours' sets; the bits it adds are those k+1 hops away.
fn search(topology: &Topology, from: &[u16]) -> Vec<u8> {
    let switches = topology.switch_count();
    let words = from.len().div_ceil(64);
    let mut hops = vec![HopMatrix::UNREACHABLE; switches * from.len()];
    if words == 0 {
        return hops;
    }
    let neighbours: Vec<Vec<u16>> = topology.switches().map(|s| neighbours(topology, s)).collect();
    let mut within = vec![0u64; switches * words];
    for (place, &switch) in from.iter().enumerate() {
        let switch = usize::from(switch);
        within[switch * words + place / 64] |= 1 << (place % 64);
        hops[switch * from.len() + place] = 0;
    }
    let mut next = within.clone();
    for level in 1..=HopMatrix::HOPS_MAX {
        let rows = next.par_chunks_mut(words).zip(hops.par_chunks_mut(from.len())).enumerate();
        let grown = rows
            .map(|(switch, (row, hops))| {
                for &peer in &neighbours[switch] {
                    let peer = usize::from(peer) * words;
                    let reached = &within[peer..peer + words];
                    row.iter_mut().zip(reached).for_each(|(word, &more)| *word |= more);
                }
                let before = &within[switch * words..(switch + 1) * words];
                let mut grown = false;
                for (index, (&word, &before)) in row.iter().zip(before).enumerate() {
                    let mut new = word & !before;
                    grown |= new != 0;
                    while new != 0 {
                        hops[index * 64 + new.trailing_zeros() as usize] = level;
                        new &= new - 1;
                    }
                }
                grown
            })
            .reduce(|| false, |a, b| a | b);
        if !grown {
            break;
        }
        // Sets only grow, so the older one needs no clearing.
        within.copy_from_slice(&next);
    }
    hops
}

/// Pairs of switches that became neighbours, or are no longer neighbours.
struct Neighbours {
    /// New neighbours, each pair once.
    joined: Vec<(u16, u16)>,
    /// Former neighbours, each pair from both sides, with the current neighbours of the first
    /// switch.
    parted: Vec<(u16, u16, Vec<u16>)>,
}

impl Neighbours {
    fn compare(then: &Topology, now: &Topology) -> Self {
        let mut changes = Self { joined: Vec::new(), parted: Vec::new() };
        let changed = now.switches().filter(|&switch| now.links(switch) != then.links(switch));
        for switch in changed {
            let (before, after) = (neighbours(then, switch), neighbours(now, switch));
            let is_new = |peer: &&u16| before.binary_search(peer).is_err() && switch < **peer;
            changes.joined.extend(after.iter().filter(is_new).map(|&peer| (switch, peer)));
            let is_gone = |peer: &&u16| after.binary_search(peer).is_err();
            let gone = before.iter().filter(is_gone);
            changes.parted.extend(gone.map(|&peer| (switch, peer, after.clone())));
        }
        changes
    }

    /// Whether hops from a switch may have changed. They are unchanged if no new link is a shortcut
    /// and every switch that lost its link to a nearer switch has another.
    fn may_change(&self, hops: &[u8]) -> bool {
        let hops = |switch: u16| hops[usize::from(switch)];
        let is_short_cut = |&(a, b): &(u16, u16)| hops(a).abs_diff(hops(b)) > 1;
        let is_stranded = |(far, near, others): &(u16, u16, Vec<u16>)| {
            let is_nearer = |near: u16| hops(near) < hops(*far);
            is_nearer(*near) && !others.iter().any(|&other| is_nearer(other))
        };
        self.joined.iter().any(is_short_cut) || self.parted.iter().any(is_stranded)
    }
}

/// The switches that a list starts with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// Ports with the fewest hops.
    Nearest,
    /// Ports with the most hops.
    Farthest,
}

/// Lists the switches that reach an egress switch, without the egress switch itself, by hops, then
/// by number. `hops` are the hop counts to it, by switch.
pub(super) fn list_sources(sources: &mut Vec<u16>, hops: &[u8], first: First) {
    let rank = |hops: u8| usize::from(if first == First::Nearest { hops } else { !hops });
    let mut starts = [0u32; 256];
    for &hops in hops {
        starts[rank(hops)] += 1;
    }
    // The egress switch and switches that cannot reach it are not listed.
    starts[rank(0)] = 0;
    starts[rank(HopMatrix::UNREACHABLE)] = 0;
    let mut total = 0;
    for start in &mut starts {
        total += std::mem::replace(start, total);
    }
    sources.clear();
    sources.resize(total as usize, 0);
    for (switch, &hops) in hops.iter().enumerate() {
        if hops != 0 && hops != HopMatrix::UNREACHABLE {
            let place = &mut starts[rank(hops)];
            sources[*place as usize] = switch as u16;
            *place += 1;
        }
    }
}

/// Returns the neighbours of a switch, each once.
fn neighbours(topology: &Topology, switch: u16) -> Vec<u16> {
    let mut peers: Vec<u16> = topology.links(switch).iter().map(|link| link.peer).collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::super::testing;
    use super::*;

    /// A textbook breadth-first search from one switch.
    fn search(topology: &Topology, from: u16) -> Vec<u8> {
        let mut hops = vec![HopMatrix::UNREACHABLE; topology.switch_count()];
        hops[usize::from(from)] = 0;
        let mut queue = VecDeque::from([from]);
        while let Some(switch) = queue.pop_front() {
            for link in topology.links(switch) {
                if hops[usize::from(link.peer)] == HopMatrix::UNREACHABLE {
                    hops[usize::from(link.peer)] = hops[usize::from(switch)] + 1;
                    queue.push_back(link.peer);
                }
            }
        }
        hops
    }

    proptest! {
        #[test]
        fn hops_are_those_of_a_breadth_first_search(topology in testing::any_topology()) {
            let hops = HopMatrix::compute(&topology).unwrap();
            for switch in topology.switches() {
                prop_assert_eq!(hops.row(switch), &search(&topology, switch)[..]);
            }
        }
    }

    proptest! {
        /// Cables are added and removed, including cuts that split the fabric.
        #[test]
        fn after_a_change_hops_equal_those_of_a_new_search(
            whole in testing::any_topology(),
            gone in [prop::collection::vec(any::<prop::sample::Index>(), 0..6),
                prop::collection::vec(any::<prop::sample::Index>(), 0..40)],
        ) {
            let [then, now] = gone.map(|gone| {
                let cables = whole.link_count().max(1);
                let gone: Vec<usize> = gone.iter().map(|index| index.index(cables)).collect();
                testing::part(&whole, |_| true, |cable| !gone.contains(&cable), |_| true).0
            });
            for (then, now) in [(&then, &now), (&now, &then)] {
                let hops = HopMatrix::compute(then).unwrap();
                let since = HopMatrix::compute_since(now, then, &hops);
                prop_assert_eq!(since, HopMatrix::compute(now));
            }
        }
    }

    /// If every change invalidated all rows, far more rows than this would be computed.
    #[test]
    fn few_rows_change_in_a_tree() {
        let whole = testing::topology(&testing::fat_tree(3, 8, 128), 0);
        let (cut, _) = testing::part(&whole, |_| true, |cable| cable != 3, |_| true);
        let hops = HopMatrix::compute(&whole).unwrap();
        let changes = Neighbours::compare(&whole, &cut);
        let moved = whole.switches().filter(|&row| changes.may_change(hops.row(row))).count();
        assert!((1..whole.switch_count() / 4).contains(&moved), "{moved}");
    }

    #[test]
    fn rows_and_columns_are_swapped() {
        for switches in [0, 1, 33, 70] {
            let mut matrix = HopMatrix::unreachable(usize::from(switches));
            let value = |row: u16, column: u16| (row * 3 + column * 5) as u8;
            for row in 0..switches {
                let hops = matrix.row_mut(row).iter_mut().zip(0..);
                hops.for_each(|(hops, column)| *hops = value(row, column));
            }
            matrix.transpose();
            for row in 0..switches {
                let swapped: Vec<u8> = (0..switches).map(|column| value(column, row)).collect();
                assert_eq!(matrix.row(row), swapped);
            }
        }
    }

    #[test]
    fn a_path_longer_than_a_word_is_measured() {
        let topology = testing::line(200);
        let hops = HopMatrix::compute(&topology).unwrap();
        assert_eq!((hops.row(0)[199], hops.row(150)[20], hops.diameter()), (199, 130, 199));
        assert_eq!(HopMatrix::compute(&testing::line(300)).unwrap().row(0)[299], 255);
    }
}

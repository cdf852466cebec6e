//! Hops between all pairs of switches, by a breadth-first search for 64 of them at a time.

use rayon::prelude::*;

use super::{RoutingError, Topology};

/// Hops between switches. Links work both ways, so the matrix is symmetric if it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopMatrix {
    switches: usize,
    hops: Vec<u8>,
}

impl HopMatrix {
    /// Stands for pairs that no path joins, or none of [`Self::HOPS_MAX`] hops.
    pub const UNREACHABLE: u8 = 255;
    /// The longest path that is told. Directed routes, by which the SM reaches switches at all,
    /// have up to 63 hops, so no two switches are further apart than twice that.
    pub const HOPS_MAX: u8 = 253;
    /// The most switches that a matrix is computed for: 256 MB.
    pub const SWITCHES_MAX: usize = 1 << 14;

    /// Computes the matrix; `None` if there are too many switches.
    ///
    /// Each switch has a bit set of switches within k hops. A level is an OR over its neighbours'
    /// sets; the bits it adds are those k+1 hops away.
    pub fn compute(topology: &Topology) -> Option<Self> {
        let switches = topology.switch_count();
        if switches > Self::SWITCHES_MAX {
            return None;
        }
        let words = switches.div_ceil(64);
        if words == 0 {
            return Some(Self { switches, hops: Vec::new() });
        }
        let neighbours: Vec<Vec<u16>> =
            topology.switches().map(|s| neighbours(topology, s)).collect();
        let mut hops = vec![Self::UNREACHABLE; switches * switches];
        let mut within = vec![0u64; switches * words];
        for switch in 0..switches {
            within[switch * words + switch / 64] |= 1 << (switch % 64);
            hops[switch * switches + switch] = 0;
        }
        let mut next = within.clone();
        for level in 1..=Self::HOPS_MAX {
            let rows = next.par_chunks_mut(words).zip(hops.par_chunks_mut(switches)).enumerate();
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
        Some(Self { switches, hops })
    }

    /// The same for an engine, which cannot do without.
    pub(super) fn compute_for(
        engine: &'static str,
        topology: &Topology,
    ) -> Result<Self, RoutingError> {
        Self::compute(topology).ok_or_else(|| Self::too_many(engine, topology))
    }

    /// Refuses more switches than a matrix may have, for engines that fill in one of their own.
    pub(super) fn check_size(
        engine: &'static str,
        topology: &Topology,
    ) -> Result<(), RoutingError> {
        let fits = topology.switch_count() <= Self::SWITCHES_MAX;
        if fits { Ok(()) } else { Err(Self::too_many(engine, topology)) }
    }

    fn too_many(engine: &'static str, topology: &Topology) -> RoutingError {
        let switches = topology.switch_count();
        RoutingError::TooManySwitches { engine, switches, max: Self::SWITCHES_MAX }
    }

    /// No pair is joined yet; for engines that count hops otherwise, such as those of routes that
    /// are not the shortest. They need not be symmetric. At most [`Self::SWITCHES_MAX`] switches.
    pub(super) fn unreachable(switches: usize) -> Self {
        Self { switches, hops: vec![Self::UNREACHABLE; switches * switches] }
    }

    /// All rows, from the first switch's on, to be filled in by several threads.
    pub(super) fn rows_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [u8]> {
        self.hops.par_chunks_mut(self.switches.max(1))
    }

    /// Hops from a switch, to be filled in.
    #[inline]
    pub(super) fn row_mut(&mut self, switch: u16) -> &mut [u8] {
        let start = usize::from(switch) * self.switches;
        &mut self.hops[start..start + self.switches]
    }

    /// Swaps rows and columns, a square at a time so that each is touched while it is cached.
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
        let start = usize::from(switch) * self.switches;
        &self.hops[start..start + self.switches]
    }

    /// How many rows there are.
    pub(super) fn switch_count(&self) -> usize {
        self.switches
    }

    /// The most hops between any two switches that a path joins.
    pub fn diameter(&self) -> u8 {
        self.hops.iter().copied().filter(|&hops| hops != Self::UNREACHABLE).max().unwrap_or(0)
    }
}

/// Which switches a list begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// Those with the fewest hops.
    Nearest,
    /// Those with the most.
    Farthest,
}

/// Lists the switches that reach a home switch, but not itself, by hops, equals by number. `hops`
/// are those to it, by switch.
pub(super) fn list_sources(sources: &mut Vec<u16>, hops: &[u8], first: First) {
    let rank = |hops: u8| usize::from(if first == First::Nearest { hops } else { !hops });
    let mut starts = [0u32; 256];
    for &hops in hops {
        starts[rank(hops)] += 1;
    }
    // Those that are not to be listed.
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

/// The switches next to a switch, each once.
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

    /// The textbook's search, one switch at a time.
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

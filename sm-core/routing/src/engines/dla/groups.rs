//! Finds the groups of a dragonfly by how its switches are linked.
//!
//! Within a group links close many short cycles: triangles, where all switches of a group are
//! linked to each other, and squares, where leaves are linked to spines. Links between groups close
//! few. For each of several thresholds, links that close at least so many cycles join switches to
//! groups. Of the results that look like a dragonfly, the most regular one is taken: groups that
//! are nearly complete, and nearly all pairs of groups linked. Missing links and switches change
//! these figures little.

use crate::Topology;
use crate::error::DragonflyRefusal;
use crate::regions::Regions;

/// Largest number of thresholds tried for triangles, and for squares.
const THRESHOLDS_MAX: usize = 16;
/// Largest number of groups.
const GROUPS_MAX: usize = 1 << 12;
/// Part of the pairs of groups that may lack a link, in thousandths.
const MISSING_PAIRS_MAX: u64 = 250;
/// Part of the links within groups that must be present, in thousandths.
const PRESENT_LINKS_MIN: u64 = 500;

/// The groups of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// By switch: its group. Groups are numbered by their lowest switches.
    pub(super) of: Vec<u16>,
    /// By group: its switches, ascending.
    pub(super) members: Vec<Vec<u16>>,
    /// By group: groups to which it has links, ascending.
    pub(super) linked: Vec<Vec<u16>>,
    /// By group: groups of the same part of the fabric to which it has no link, ascending.
    pub(super) unlinked: Vec<Vec<u16>>,
}

impl Groups {
    /// Finds the groups. Takes time proportional to links times ports of a switch.
    pub(super) fn find(topology: &Topology) -> Result<Self, DragonflyRefusal> {
        let graph = Graph::new(topology);
        let counts = graph.cycles();
        let parts = Regions::find(topology, topology.switches(), |_, _| true).starts;
        let mut best: Option<(u64, Self)> = None;
        for cycles in counts {
            for least in thresholds(&cycles) {
                let found = graph.joined(&cycles, least);
                let Some(groups) = Self::new(&graph, found, &parts) else { continue };
                let Some(faults) = groups.faults(&graph) else { continue };
                if best.as_ref().is_none_or(|(least, _)| faults < *least) {
                    best = Some((faults, groups));
                }
            }
        }
        best.map(|(_, groups)| groups)
            .ok_or(DragonflyRefusal::NoGroups { switches: topology.switch_count() })
    }

    /// Whether a link joins switches of the same group.
    #[inline]
    pub(super) fn are_one(&self, a: u16, b: u16) -> bool {
        self.of[usize::from(a)] == self.of[usize::from(b)]
    }

    /// The group of a switch.
    #[inline]
    pub(super) fn group(&self, switch: u16) -> u16 {
        self.of[usize::from(switch)]
    }

    /// `found` has a number by switch, equal within a group.
    fn new(graph: &Graph, mut found: Vec<u16>, parts: &[u16]) -> Option<Self> {
        graph.adopt_singles(&mut found);
        let switches = found.len();
        let mut number = vec![u16::MAX; switches];
        let mut members: Vec<Vec<u16>> = Vec::new();
        let mut of = vec![0; switches];
        for (switch, &start) in (0u16..).zip(&found) {
            let place = &mut number[usize::from(start)];
            if *place == u16::MAX {
                if members.len() == GROUPS_MAX {
                    return None;
                }
                *place = members.len() as u16;
                members.push(Vec::new());
            }
            of[usize::from(switch)] = *place;
            members[usize::from(*place)].push(switch);
        }
        let mut linked = vec![Vec::new(); members.len()];
        for (switch, peers) in graph.peers.iter().enumerate() {
            let own = of[switch];
            let others = peers.iter().map(|&peer| of[usize::from(peer)]);
            linked[usize::from(own)].extend(others.filter(|&other| other != own));
        }
        for groups in &mut linked {
            groups.sort_unstable();
            groups.dedup();
        }
        let part = |group: usize| parts[usize::from(members[group][0])];
        let unlinked = (0..members.len()).map(|group| {
            let others = (0..members.len()).filter(|&other| {
                let is_linked = || linked[group].binary_search(&(other as u16)).is_ok();
                other != group && part(other) == part(group) && !is_linked()
            });
            others.map(|other| other as u16).collect()
        });
        let unlinked = unlinked.collect();
        Some(Self { of, members, linked, unlinked })
    }

    /// How far the groups are from a dragonfly without failures, in thousandths of its links;
    /// `None` if they are none.
    fn faults(&self, graph: &Graph) -> Option<u64> {
        let (mut present, mut possible) = (0, 0);
        for (group, members) in (0u16..).zip(&self.members) {
            let (links, most) = graph.links_within(members, |peer| self.group(peer) == group);
            present += links;
            possible += most;
        }
        let count = |groups: &[Vec<u16>]| groups.iter().map(Vec::len).sum::<usize>() as u64;
        let (linked, unlinked) = (count(&self.linked), count(&self.unlinked));
        if possible == 0 || linked == 0 {
            return None;
        }
        let missing = unlinked * 1000 / (linked + unlinked);
        let density = present * 1000 / possible;
        let is_one = missing <= MISSING_PAIRS_MAX && density >= PRESENT_LINKS_MIN;
        is_one.then_some(missing + 1000 - density)
    }
}

/// Pairs of neighbours. Several links between two switches count as one.
struct Graph {
    /// By switch: its neighbours, ascending.
    peers: Vec<Vec<u16>>,
    /// By switch: index of its first neighbour among those of all switches.
    first: Vec<usize>,
}

impl Graph {
    fn new(topology: &Topology) -> Self {
        let peers = topology.switches().map(|switch| {
            let mut peers: Vec<u16> = topology.links(switch).iter().map(|link| link.peer).collect();
            peers.sort_unstable();
            peers.dedup();
            peers
        });
        let peers: Vec<Vec<u16>> = peers.collect();
        let first = peers.iter().scan(0, |end, peers| {
            *end += peers.len();
            Some(*end - peers.len())
        });
        Self { first: first.collect(), peers }
    }

    /// By switch and neighbour: the number of triangles with both, and the number of squares.
    fn cycles(&self) -> [Vec<u32>; 2] {
        let count = self.peers.iter().map(Vec::len).sum();
        let mut cycles = [vec![0; count], vec![0; count]];
        // By switch: the number of neighbours that it shares with the current one.
        let mut shared = vec![0u32; self.peers.len()];
        for (switch, peers) in self.peers.iter().enumerate() {
            let onward = || peers.iter().flat_map(|&peer| &self.peers[usize::from(peer)]);
            onward().for_each(|&two| shared[usize::from(two)] += 1);
            for (&peer, place) in peers.iter().zip(self.first[switch]..) {
                cycles[0][place] = shared[usize::from(peer)];
                // From the switch over two hops, not by way of this neighbour, to its neighbours.
                let others = self.peers[usize::from(peer)].iter();
                let others = others.filter(|&&other| usize::from(other) != switch);
                cycles[1][place] = others.map(|&other| shared[usize::from(other)] - 1).sum();
            }
            onward().for_each(|&two| shared[usize::from(two)] = 0);
        }
        cycles
    }

    /// By switch: the first of the switches to which links lead that close at least so many cycles.
    fn joined(&self, cycles: &[u32], least: u32) -> Vec<u16> {
        let mut starts = vec![u16::MAX; self.peers.len()];
        let mut stack = Vec::new();
        for start in 0..self.peers.len() as u16 {
            if starts[usize::from(start)] != u16::MAX {
                continue;
            }
            starts[usize::from(start)] = start;
            stack.push(start);
            while let Some(at) = stack.pop() {
                let at = usize::from(at);
                for (&peer, &cycles) in self.peers[at].iter().zip(&cycles[self.first[at]..]) {
                    let of_peer = &mut starts[usize::from(peer)];
                    if cycles >= least && *of_peer == u16::MAX {
                        *of_peer = start;
                        stack.push(peer);
                    }
                }
            }
        }
        starts
    }

    /// Puts switches without a group into the one to which they have the most neighbours.
    fn adopt_singles(&self, starts: &mut [u16]) {
        let mut sizes = vec![0u32; starts.len()];
        starts.iter().for_each(|&start| sizes[usize::from(start)] += 1);
        let mut adopted = Vec::new();
        for (switch, peers) in (0u16..).zip(&self.peers) {
            if sizes[usize::from(starts[usize::from(switch)])] > 1 {
                continue;
            }
            let mut of_peers: Vec<u16> =
                peers.iter().map(|&peer| starts[usize::from(peer)]).collect();
            of_peers.sort_unstable();
            let counts = of_peers.chunk_by(|a, b| a == b).map(|same| (same.len(), same[0]));
            let mut counts: Vec<(usize, u16)> =
                counts.filter(|&(_, start)| sizes[usize::from(start)] > 1).collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            match counts[..] {
                [(most, start), (next, _), ..] if most > next => adopted.push((switch, start)),
                [(_, start)] => adopted.push((switch, start)),
                _ => {}
            }
        }
        for (switch, start) in adopted {
            starts[usize::from(switch)] = start;
        }
    }

    /// The number of pairs of neighbours within a group, in both directions, and how many there are
    /// without failures: all pairs, or all of a leaf and a spine if switches fall into two such
    /// sets.
    fn links_within(&self, members: &[u16], is_own: impl Fn(u16) -> bool) -> (u64, u64) {
        let own =
            |switch: u16| self.peers[usize::from(switch)].iter().filter(|&&peer| is_own(peer));
        let present: u64 = members.iter().map(|&switch| own(switch).count() as u64).sum();
        let place = |switch: u16| members.binary_search(&switch).unwrap_or(0);
        let mut sides = vec![None; members.len()];
        let (mut is_bipartite, mut stack) = (true, Vec::new());
        for &start in members {
            if sides[place(start)].is_none() {
                sides[place(start)] = Some(false);
                stack.push(start);
            }
            while let Some(at) = stack.pop() {
                let side = sides[place(at)] == Some(true);
                for &peer in own(at) {
                    match &mut sides[place(peer)] {
                        Some(other) => is_bipartite &= *other != side,
                        unknown => {
                            *unknown = Some(!side);
                            stack.push(peer);
                        }
                    }
                }
            }
        }
        let all = members.len() as u64;
        let spines = sides.iter().filter(|side| **side == Some(true)).count() as u64;
        let possible =
            if is_bipartite && all > 2 { 2 * spines * (all - spines) } else { all * (all - 1) };
        (present, possible)
    }
}

/// Thresholds that divide the values at the largest gaps, relative to the value below.
fn thresholds(cycles: &[u32]) -> Vec<u32> {
    let mut values: Vec<u32> = cycles.to_vec();
    values.push(0);
    values.sort_unstable();
    values.dedup();
    let mut cuts: Vec<(u64, u32)> = values
        .windows(2)
        .map(|pair| (u64::from(pair[1] - pair[0]) * 1024 / (u64::from(pair[0]) + 1), pair[1]))
        .collect();
    cuts.sort_unstable_by(|a, b| b.cmp(a));
    cuts.into_iter().take(THRESHOLDS_MAX).map(|(_, least)| least).collect()
}

//! Builds trees from a root as far as the allowed turns permit.

use std::collections::{BTreeMap, VecDeque};

use super::{Place, Tree};
use crate::verify::Channels;
use crate::{Link, PortMask, Topology};

/// Largest number of channels visited in a search for trees; turns whose check would need more are
/// left out.
pub(super) const STEPS_MAX: usize = 200_000_000;
/// As [`STEPS_MAX`], where all switches with hosts are already joined: some tens of milliseconds.
pub(super) const STEPS_BESIDE: usize = 1_000_000;

/// A tree over switches, from which groups take the part that joins their members.
#[derive(Clone, Debug)]
pub struct Spanning {
    root: u16,
    /// By switch: the link towards the root.
    up: Vec<Option<Link>>,
    joined: usize,
}

impl Spanning {
    fn new(topology: &Topology, root: u16) -> Self {
        Self { root, up: vec![None; topology.switch_count()], joined: 1 }
    }

    /// Builds a tree from a root, nearest switches first, over switches that are not `barred`, such
    /// that no turn goes back in the order of channels given by `numbers`. `seed` selects the order
    /// in which neighbours are tried. For channels of one lane each.
    pub fn grow(
        topology: &Topology,
        numbers: &[u32],
        (root, seed): (u16, u64),
        barred: &[bool],
    ) -> Self {
        let mut this = Self::new(topology, root);
        // By switch: the largest number of an incoming branch, and the smallest of an outgoing one.
        let mut ends = vec![(0u32, u32::MAX); topology.switch_count()];
        this.spread(topology, seed, |from, out, back, to| {
            if barred.get(usize::from(to)).is_some_and(|&barred| barred) {
                return false;
            }
            let (number_in, number_out) = (numbers[back], numbers[out]);
            let (last_in, first_out) = ends[usize::from(from)];
            if last_in > number_out || number_in > first_out {
                return false;
            }
            ends[usize::from(from)] = (last_in.max(number_in), first_out.min(number_out));
            ends[usize::from(to)] = (number_out, number_in);
            true
        });
        this
    }

    /// Builds a tree from a root that closes no cycle with the dependencies in `unicast`, except
    /// for channels that lie on a cycle already: those of equal `numbers`. Returns the tree and the
    /// resulting dependencies. For channels of one lane each. Each channel visited decrements
    /// `steps`.
    pub fn search(
        topology: &Topology,
        unicast: &Channels,
        numbers: &[u32],
        (root, seed): (u16, u64),
        steps: &mut usize,
    ) -> (Self, Channels) {
        let mut this = Self::new(topology, root);
        let seen = vec![0; unicast.count()];
        let mut search = Search { channels: unicast.clone(), numbers, seen, round: 0, steps };
        // By switch: incoming and outgoing branches.
        let mut ends: Vec<Vec<(usize, usize)>> = vec![Vec::new(); topology.switch_count()];
        this.spread(topology, seed, |from, out, back, to| {
            let at = usize::from(from);
            let turns = ends[at].iter();
            let turns = turns.flat_map(|&(way_in, way_out)| [(way_in, out), (back, way_out)]);
            if !search.add(topology, &turns.collect::<Vec<_>>()) {
                return false;
            }
            ends[at].push((back, out));
            ends[usize::from(to)].push((out, back));
            true
        });
        (this, search.channels)
    }

    /// Returns the turns of the tree that [`search`](Self::search) builds first from a root if no
    /// turn is refused, as pairs of links.
    pub(crate) fn turns(topology: &Topology, root: u16) -> Vec<(u32, u32)> {
        let mut turns = Vec::new();
        // By switch: incoming and outgoing branches.
        let mut ends: Vec<Vec<(u32, u32)>> = vec![Vec::new(); topology.switch_count()];
        Self::new(topology, root).spread(topology, 0, |from, out, back, to| {
            let (out, back, at) = (out as u32, back as u32, usize::from(from));
            let of_branch = |&(way_in, way_out): &(u32, u32)| [(way_in, out), (back, way_out)];
            turns.extend(ends[at].iter().flat_map(of_branch));
            ends[at].push((back, out));
            ends[usize::from(to)].push((out, back));
            true
        });
        turns
    }

    /// Joins one switch after the other where `allows` returns true. Its arguments are a switch of
    /// the tree, the link out of it, the link back, and the switch at the far end.
    fn spread(
        &mut self,
        topology: &Topology,
        seed: u64,
        mut allows: impl FnMut(u16, usize, usize, u16) -> bool,
    ) {
        let mut queue = VecDeque::from([self.root]);
        while let Some(from) = queue.pop_front() {
            let range = topology.link_range(from);
            let count = range.len();
            for number in 0..count {
                let out = range.start + (number + seed as usize % count.max(1)) % count;
                let link = topology.link(out);
                let is_known = link.peer == self.root || self.up[usize::from(link.peer)].is_some();
                if is_known {
                    continue;
                }
                let Some(back) = topology.link_at(link.peer, link.peer_port) else { continue };
                if allows(from, out, back, link.peer) {
                    self.up[usize::from(link.peer)] = Some(topology.link(back));
                    self.joined += 1;
                    queue.push_back(link.peer);
                }
            }
        }
    }

    /// Number of joined switches for which `is_wanted` returns true.
    pub fn joined_of(&self, is_wanted: impl Fn(u16) -> bool) -> usize {
        let is_joined = |switch: u16| switch == self.root || self.up[usize::from(switch)].is_some();
        (0..).zip(&self.up).filter(|&(switch, _)| is_joined(switch) && is_wanted(switch)).count()
    }

    /// Number of joined switches.
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// Returns the part of the tree that joins a group's members, or `None` if not all of them are
    /// joined.
    pub fn tree(&self, members: &[Place]) -> Option<Tree> {
        let mut masks: BTreeMap<u16, PortMask> = BTreeMap::new();
        for place in members {
            let mut at = place.switch;
            let mut is_known = masks.contains_key(&at);
            masks.entry(at).or_default().insert(place.exit);
            while !is_known && at != self.root {
                let link = self.up[usize::from(at)]?;
                is_known = masks.contains_key(&link.peer);
                masks.entry(at).or_default().insert(link.port);
                masks.entry(link.peer).or_default().insert(link.peer_port);
                at = link.peer;
            }
        }
        let mut root = Some(self.root).filter(|_| !members.is_empty());
        // The part between the root of the whole tree and the first branching switch joins no
        // member.
        while let Some(at) = root
            && let Some(link) = self.only_branch(at, &masks)
        {
            masks.remove(&at);
            if let Some(mask) = masks.get_mut(&link.peer) {
                mask.remove(link.port);
            }
            root = Some(link.peer);
        }
        Some(Tree { root, masks: masks.into_iter().collect(), unreached: Vec::new() })
    }

    /// The link to a switch from the next one of a tree, if the switch has no other port in the
    /// tree.
    fn only_branch(&self, at: u16, masks: &BTreeMap<u16, PortMask>) -> Option<Link> {
        let mut ports = masks.get(&at)?.ports();
        let (port, None) = (ports.next()?, ports.next()) else { return None };
        // The branch's own link towards the root, as seen from the next switch.
        let is_it = |(peer, up): (u16, &Option<Link>)| {
            let up = (*up)?;
            let leads_here = up.peer == at && up.peer_port == port;
            leads_here.then_some(Link { peer, port: up.port, peer_port: up.peer_port })
        };
        masks.keys().find_map(|&switch| is_it((switch, &self.up[usize::from(switch)])))
    }
}

/// The dependencies so far, and the state of a search through them.
struct Search<'a> {
    channels: Channels,
    numbers: &'a [u32],
    /// By channel: the last search that visited it.
    seen: Vec<u32>,
    round: u32,
    /// Number of channels that may still be visited.
    steps: &'a mut usize,
}

impl Search<'_> {
    /// Adds dependencies unless one of them closes a cycle.
    fn add(&mut self, topology: &Topology, turns: &[(usize, usize)]) -> bool {
        let before: Vec<bool> = turns.iter().map(|&turn| self.has(topology, turn)).collect();
        for (number, &(from, to)) in turns.iter().enumerate() {
            if before[number] {
                continue;
            }
            let is_in_knot = self.numbers[from] == self.numbers[to];
            if !is_in_knot && self.leads(topology, to, from) {
                for (&(from, to), was_there) in turns[..number].iter().zip(&before) {
                    if !was_there {
                        self.channels.remove(from, Channels::sender(topology, to).1);
                    }
                }
                return false;
            }
            self.channels.insert(from, Channels::sender(topology, to).1, 0);
        }
        true
    }

    fn has(&self, topology: &Topology, (from, to): (usize, usize)) -> bool {
        self.channels.after(topology, from).any(|next| next == to)
    }

    fn leads(&mut self, topology: &Topology, from: usize, to: usize) -> bool {
        self.round += 1;
        let mut stack = vec![from];
        while let Some(at) = stack.pop() {
            if at == to || *self.steps == 0 {
                return true;
            }
            if std::mem::replace(&mut self.seen[at], self.round) == self.round {
                continue;
            }
            *self.steps -= 1;
            stack.extend(self.channels.after(topology, at));
        }
        false
    }
}

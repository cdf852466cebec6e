//! Trees that grow from a root as far as turns are allowed.

use std::collections::{BTreeMap, VecDeque};

use super::{Place, PortMask, Tree};
use crate::routing::verify::Channels;
use crate::routing::{Link, Topology};

/// Channels that may be looked at in all while trees are searched for; turns that would need more are
/// left out.
pub(super) const STEPS_MAX: usize = 200_000_000;
/// The same while all switches with hosts are joined: some tens of milliseconds.
pub(super) const STEPS_BESIDE: usize = 1_000_000;

/// A tree over switches, of which groups take what joins their members.
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

    /// Grows a tree from a root, nearest switches first, none of whose turns goes back in an order
    /// of channels, over switches that are not `barred`. Which of several neighbours comes first
    /// depends on `seed`. For channels of one lane each.
    pub fn grow(
        topology: &Topology,
        numbers: &[u32],
        (root, seed): (u16, u64),
        barred: &[bool],
    ) -> Self {
        let mut this = Self::new(topology, root);
        // By switch: the greatest number of a branch in, and the least of one out.
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

    /// Grows a tree from a root that closes no cycle with what waits already, but for channels that
    /// lie on one anyway: those of equal `numbers`. Yields what waits then. For channels of one lane
    /// each. What it looks at is taken from `steps`.
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
        // By switch: branches in and out.
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

    /// Joins switch after switch as `allows` says, which is given a switch of the tree, the link out
    /// of it, the link back, and the switch behind.
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

    /// Those of some switches that it joins.
    pub fn joined_of(&self, is_wanted: impl Fn(u16) -> bool) -> usize {
        let is_joined = |switch: u16| switch == self.root || self.up[usize::from(switch)].is_some();
        (0..).zip(&self.up).filter(|&(switch, _)| is_joined(switch) && is_wanted(switch)).count()
    }

    /// Switches that it joins.
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// The tree of a group: what joins its members. `None` if not all of them are joined.
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
        // What leads from where the branches meet to the root of all trees joins nobody.
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

    /// The link to a switch from the next one of a tree, if nothing else is there.
    fn only_branch(&self, at: u16, masks: &BTreeMap<u16, PortMask>) -> Option<Link> {
        let mut ports = masks.get(&at)?.ports();
        let (port, None) = (ports.next()?, ports.next()) else { return None };
        // The branch's own link towards the root, seen from there.
        let is_it = |(peer, up): (u16, &Option<Link>)| {
            let up = (*up)?;
            let leads_here = up.peer == at && up.peer_port == port;
            leads_here.then_some(Link { peer, port: up.port, peer_port: up.peer_port })
        };
        masks.keys().find_map(|&switch| is_it((switch, &self.up[usize::from(switch)])))
    }
}

/// What waits so far, and a search in it.
struct Search<'a> {
    channels: Channels,
    numbers: &'a [u32],
    /// By channel: the last search that came by.
    seen: Vec<u32>,
    round: u32,
    /// Channels that may still be looked at.
    steps: &'a mut usize,
}

impl Search<'_> {
    /// Adds turns of channels unless one of them closes a cycle.
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

//! Orders channels such that each comes before the channels that it waits for.
//!
//! Unicast defines a partial order: packets of a channel wait for the channels on which they
//! continue. This is extended to a total order, by which each tree can be judged separately: if
//! none of its turns goes back in the order, it closes no cycle, neither with unicast nor with any
//! other such tree. One look at each turn suffices, and no tree depends on the other trees.
//!
//! Channels that lie on a common cycle of unicast share a number: they can deadlock without any
//! multicast, and a tree that turns among them brings no other channel into a deadlock.

use super::grow::{STEPS_BESIDE, STEPS_MAX, Spanning};
use crate::verify::{Channels, Hops};
use crate::{HopMatrix, PortMask, Topology};

/// Number of roots that are tried for a tree that joins all switches.
const ROOTS_MAX: usize = 16;
/// Number of orders in which neighbours are tried from each root, where turns are checked against
/// the dependencies.
const SEEDS: u64 = 4;

/// The order of the channels of one lane, or of several lanes between which packets change.
#[derive(Debug)]
pub struct Order {
    /// Dependencies of unicast and of the turns of `spanning`.
    channels: Channels,
    /// Dependencies of unicast alone, if turns of `spanning` had to be added.
    unicast: Option<Channels>,
    /// By channel: its number, which never falls from a channel to one that it waits for.
    numbers: Vec<u32>,
    /// A tree that rises in this order and joins as many switches with hosts as any tree that was
    /// tried.
    spanning: Option<Spanning>,
}

impl Order {
    /// Orders channels such that a tree that joins all switches rises in the order, if there is
    /// one, or else a tree that joins all switches with hosts.
    pub fn find(topology: &Topology, hops: &HopMatrix, unicast: Channels) -> Self {
        let roots = central(topology, hops);
        let Some(&centre) = roots.first() else { return Self::plain(topology, unicast, &[]) };
        let distance = hops.row(centre);
        let mut order = Self::plain(topology, unicast, distance);
        if order.channels.lanes() > 1 {
            return order;
        }
        let hosts = topology.hosts_on();
        let has_hosts = |switch: u16| hosts[usize::from(switch)] > 0;
        let is_near = |&switch: &u16| distance[usize::from(switch)] != HopMatrix::UNREACHABLE;
        let near: Vec<u16> = topology.switches().filter(is_near).collect();
        let near_with_hosts = near.iter().filter(|&&switch| has_hosts(switch)).count();
        let joined = |tree: &Spanning| tree.joined_of(has_hosts);
        let mut best: Option<Spanning> = None;
        let is_better = |tree: &Spanning, best: &Option<Spanning>| {
            let rank = |tree: &Spanning| (joined(tree), tree.joined());
            best.as_ref().is_none_or(|best| rank(tree) > rank(best))
        };
        let is_whole =
            |best: &Option<Spanning>| best.as_ref().is_some_and(|best| best.joined() == near.len());
        for &root in roots.iter().take(ROOTS_MAX) {
            let tree = Spanning::grow(topology, &order.numbers, (root, 0), &[]);
            if is_better(&tree, &best) {
                best = Some(tree);
            }
            if is_whole(&best) {
                break;
            }
        }
        if !is_whole(&best) {
            // The total order may exclude trees that the dependencies permit.
            let start = (order.channels.clone(), order.numbers.clone());
            // Most members are on switches with hosts. The roots of a fat tree can hardly be joined
            // as well: the path from one to another goes down and up again.
            let serves = best.as_ref().is_some_and(|best| joined(best) == near_with_hosts);
            let mut steps = if serves { STEPS_BESIDE } else { STEPS_MAX };
            let tries = roots.iter().take(ROOTS_MAX);
            for (&root, seed) in tries.flat_map(|root| (0..SEEDS).map(move |seed| (root, seed))) {
                let (tree, channels) =
                    Spanning::search(topology, &start.0, &start.1, (root, seed), &mut steps);
                if is_better(&tree, &best) {
                    order = Self::plain(topology, channels, distance);
                    order.unicast = Some(start.0.clone());
                    best = Some(tree);
                }
                if steps == 0 || is_whole(&best) {
                    break;
                }
            }
        }
        order.spanning = best;
        order
    }

    fn plain(topology: &Topology, channels: Channels, distance: &[u8]) -> Self {
        let numbers = numbers(topology, &channels, distance);
        Self { channels, unicast: None, numbers, spanning: None }
    }

    /// The number of each channel.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The dependencies, without the tree of any group.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// The tree that groups use if no other is admitted.
    pub fn spanning(&self) -> Option<&Spanning> {
        self.spanning.as_ref()
    }

    /// Whether a tree goes back nowhere in the order; `masks` has its ports, ascending by switch.
    pub fn admits(&self, topology: &Topology, masks: &[(u16, PortMask)], hops: &Hops) -> bool {
        hops.turns(topology, masks, |turn| self.numbers[turn.from] <= self.numbers[turn.to])
    }

    /// A cycle that a tree closes with unicast, as switches and the ports by which they send; empty
    /// if it closes none, or only with other trees.
    pub fn cycle(
        &self,
        topology: &Topology,
        masks: &[(u16, PortMask)],
        hops: &Hops,
    ) -> Vec<(u16, u8)> {
        let mut joined = self.unicast.as_ref().unwrap_or(&self.channels).clone();
        joined.join_tree(topology, masks, hops);
        let mut cycle = Vec::new();
        hops.turns(topology, masks, |turn| {
            if self.numbers[turn.from] > self.numbers[turn.to] {
                cycle = way(topology, &joined, turn.to, turn.from);
            }
            cycle.is_empty()
        });
        cycle.iter().map(|&channel| Channels::sender(topology, channel / joined.lanes())).collect()
    }
}

/// The shortest path from one channel to another along dependencies; empty if there is none.
fn way(topology: &Topology, channels: &Channels, from: usize, to: usize) -> Vec<usize> {
    let mut before = vec![usize::MAX; channels.count()];
    before[from] = from;
    let mut queue = std::collections::VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at == to {
            let mut way = vec![at];
            while *way.last().unwrap_or(&from) != from {
                way.push(before[way[way.len() - 1]]);
            }
            way.reverse();
            return way;
        }
        for next in channels.after(topology, at) {
            if before[next] == usize::MAX {
                before[next] = at;
                queue.push_back(next);
            }
        }
    }
    Vec::new()
}

/// The turns of a tree that joins all switches, as pairs of links. An engine that keeps them free
/// in a lane leaves groups on that lane a tree that closes no cycle.
pub(crate) fn turns_for_groups(topology: &Topology, hops: &HopMatrix) -> Vec<(u32, u32)> {
    let root = central(topology, hops).first().copied();
    root.map_or_else(Vec::new, |root| Spanning::turns(topology, root))
}

/// Switches by the sum of their hops to those with hosts, or to all if there are none; those that
/// reach most come first.
fn central(topology: &Topology, hops: &HopMatrix) -> Vec<u16> {
    const FAR: u64 = 1 << 20;
    let hosts = topology.hosts_on();
    let has_hosts = hosts.iter().any(|&hosts| hosts > 0);
    let mut sums = vec![0u64; topology.switch_count()];
    for egress_switch in topology.switches().filter(|&at| !has_hosts || hosts[usize::from(at)] > 0)
    {
        for (sum, &hops) in sums.iter_mut().zip(hops.row(egress_switch)) {
            *sum += if hops == HopMatrix::UNREACHABLE { FAR } else { hops.into() };
        }
    }
    let mut roots: Vec<u16> = topology.switches().collect();
    roots.sort_by_key(|&root| (sums[usize::from(root)], root));
    roots
}

/// Numbers channels such that numbers do not fall along dependencies. Channels of a knot (a
/// strongly connected component) have equal numbers; other numbers differ.
///
/// A channel comes as early as the channels that wait for it allow. Channels for which this leaves
/// a choice are ordered as if packets went up to the centre and down again: upward channels from
/// far to near, then downward ones. A downward channel for which no other is known to wait comes as
/// late as possible.
fn numbers(topology: &Topology, channels: &Channels, distance: &[u8]) -> Vec<u32> {
    let (knots, knot_count) = knots(topology, channels);
    // A knot leads only to knots with lower numbers.
    let mut members = vec![Vec::new(); knot_count];
    knots.iter().enumerate().for_each(|(channel, &knot)| members[knot as usize].push(channel));
    let mut levels = vec![0u32; knot_count];
    let mut is_awaited = vec![false; knot_count];
    for knot in (0..knot_count).rev() {
        for &channel in &members[knot] {
            for next in channels.after(topology, channel).map(|next| knots[next] as usize) {
                if next != knot {
                    levels[next] = levels[next].max(levels[knot] + 2);
                    is_awaited[next] = true;
                }
            }
        }
    }
    let style = |channel: usize| {
        let link = channel / channels.lanes();
        let (from, to) = (Channels::sender(topology, link).0, topology.link(link).peer);
        let far = |switch: u16| distance.get(usize::from(switch)).copied().unwrap_or(u8::MAX);
        if (far(to), to) < (far(from), from) {
            (false, u8::MAX - far(from), u16::MAX - from)
        } else {
            (true, far(from), from)
        }
    };
    let mut sorted: Vec<_> = (0..knot_count)
        .map(|knot| {
            let style = style(members[knot][0]);
            let mut level = levels[knot];
            if style.0 && !is_awaited[knot] {
                let nexts = members[knot].iter().flat_map(|&from| channels.after(topology, from));
                let nexts = nexts.map(|next| knots[next] as usize).filter(|&next| next != knot);
                level = nexts.map(|next| levels[next] - 1).min().unwrap_or(u32::MAX);
            }
            (level, style, knot)
        })
        .collect();
    sorted.sort_unstable();
    let mut places = vec![0u32; knot_count];
    sorted.iter().zip(0..).for_each(|(&(.., knot), place)| places[knot] = place);
    knots.into_iter().map(|knot| places[knot as usize]).collect()
}

/// By channel: the number of its knot, and the number of knots. The knots that a knot leads to have
/// lower numbers (Tarjan's algorithm, without recursion).
fn knots(topology: &Topology, channels: &Channels) -> (Vec<u32>, usize) {
    const NONE: u32 = u32::MAX;
    let count = channels.count();
    let (mut index, mut low) = (vec![NONE; count], vec![0u32; count]);
    let (mut knots, mut knot_count) = (vec![NONE; count], 0u32);
    let (mut stack, mut seen) = (Vec::new(), 0u32);
    for start in 0..count {
        if index[start] != NONE {
            continue;
        }
        (index[start], low[start]) = (seen, seen);
        seen += 1;
        stack.push(start);
        let mut path = vec![(start, channels.after(topology, start))];
        while let Some((at, nexts)) = path.last_mut() {
            let at = *at;
            match nexts.next() {
                Some(next) if index[next] == NONE => {
                    (index[next], low[next]) = (seen, seen);
                    seen += 1;
                    stack.push(next);
                    path.push((next, channels.after(topology, next)));
                }
                Some(next) => {
                    if knots[next] == NONE {
                        low[at] = low[at].min(index[next]);
                    }
                }
                None => {
                    path.pop();
                    if let Some(&(before, _)) = path.last() {
                        low[before] = low[before].min(low[at]);
                    }
                    if low[at] == index[at] {
                        while let Some(member) = stack.pop() {
                            knots[member] = knot_count;
                            if member == at {
                                break;
                            }
                        }
                        knot_count += 1;
                    }
                }
            }
        }
    }
    (knots, knot_count as usize)
}

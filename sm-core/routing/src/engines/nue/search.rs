//! Searches for paths to the first LID of an egress switch, and computes their hops.

use super::escape::Forest;
use super::fabric::{Fabric, NO_LINK};
use super::lane::Lane;
use super::tree::Tree;
use crate::HopMatrix;

/// Searches for paths to one egress switch after the other.
#[derive(Debug)]
pub(super) struct Search {
    /// The paths found.
    pub(super) tree: Tree,
    /// By switch: hops of its path.
    pub(super) levels: Vec<u8>,
    /// Switches that have a path, nearest first, without the egress switch.
    pub(super) order: Vec<u16>,
    /// By switch: whether its path uses turns that are not allowed. No end sends through it.
    pub(super) is_loose: Vec<bool>,
    /// By hops: switches that have a path.
    waves: Vec<Vec<u16>>,
    /// By switch: whether it is on a shortest path from an end.
    is_useful: Vec<bool>,
    /// Neighbours of a wave that have no path yet.
    next: Vec<u16>,
    /// By switch: whether it is in `next`.
    is_next: Vec<bool>,
}

impl Search {
    pub(super) fn new(fabric: &Fabric<'_>) -> Self {
        let switches = fabric.switch_count();
        Self {
            tree: Tree::new(fabric),
            levels: vec![HopMatrix::UNREACHABLE; switches],
            order: Vec::with_capacity(switches),
            is_loose: vec![false; switches],
            waves: Vec::new(),
            is_useful: vec![false; switches],
            next: Vec::new(),
            is_next: vec![false; switches],
        }
    }

    /// Finds paths from all switches. `distances` are the smallest hop counts to the egress switch.
    pub(super) fn run(
        &mut self,
        lane: &mut Lane<'_>,
        forest: &Forest,
        distances: &[u8],
        egress_switch: u16,
    ) {
        self.tree.begin(egress_switch);
        self.levels.fill(HopMatrix::UNREACHABLE);
        self.levels[usize::from(egress_switch)] = 0;
        self.is_loose.fill(false);
        self.waves.iter_mut().for_each(Vec::clear);
        if self.waves.is_empty() {
            self.waves.push(Vec::new());
        }
        self.waves[0].push(egress_switch);
        if lane.fabric.is_end(egress_switch) {
            self.mark_useful(lane.fabric, distances);
            self.spread(lane);
            self.join_all(lane, forest, distances);
            self.tree.keep_turns(lane);
        }
        self.add_loose(lane);
        self.order.clear();
        self.order.extend(self.waves[1..].iter().flatten());
    }

    /// Gives escape paths to ends that no wave reached.
    fn join_all(&mut self, lane: &mut Lane<'_>, forest: &Forest, distances: &[u8]) {
        let fabric = lane.fabric;
        let is_left = |&switch: &u16| {
            fabric.is_end(switch)
                && !self.tree.has_way(switch)
                && distances[usize::from(switch)] != HopMatrix::UNREACHABLE
        };
        let left: Vec<u16> = fabric.topology.switches().filter(is_left).collect();
        if !left.is_empty() {
            let escape = forest.choices(fabric, self.tree.egress_switch);
            self.tree.fall_back(lane, &escape, left.into_iter());
            self.count_hops(fabric);
        }
    }

    /// Marks ends, and switches on a shortest path from any end.
    fn mark_useful(&mut self, fabric: &Fabric<'_>, distances: &[u8]) {
        let mut order: Vec<u16> = fabric.topology.switches().collect();
        order.sort_by_key(|&switch| u8::MAX - distances[usize::from(switch)]);
        for switch in order {
            let further = distances[usize::from(switch)].checked_add(1);
            let is_on_way = |link: u32| {
                let peer = usize::from(fabric.receiver(link));
                self.is_useful[peer] && Some(distances[peer]) == further
            };
            self.is_useful[usize::from(switch)] =
                fabric.is_end(switch) || fabric.links(switch).any(is_on_way);
        }
    }

    /// Gives paths to useful switches, wave by wave: each by the cheapest link to the previous wave
    /// from which an allowed turn leads on.
    fn spread(&mut self, lane: &mut Lane<'_>) {
        let fabric = lane.fabric;
        let mut level = 0;
        while usize::from(level) < self.waves.len() && level < HopMatrix::HOPS_MAX {
            self.gather(fabric, level);
            let mut wave = Vec::new();
            let mut stuck = Vec::new();
            for switch in std::mem::take(&mut self.next) {
                let is_near =
                    |&link: &u32| self.levels[usize::from(fabric.receiver(link))] == level;
                let links = fabric.links(switch).filter(is_near);
                let is_settled = self.tree.settle(lane, switch, links);
                if is_settled { wave.push(switch) } else { stuck.push(switch) }
            }
            for switch in stuck {
                if self.backtrack(lane, switch, level) {
                    wave.push(switch);
                }
            }
            level += 1;
            wave.into_iter().for_each(|switch| self.enter(switch, level));
        }
    }

    /// Adds a switch to a wave, which may be the one after the last.
    fn enter(&mut self, switch: u16, level: u8) {
        self.levels[usize::from(switch)] = level;
        if self.waves.len() <= usize::from(level) {
            self.waves.push(Vec::new());
        }
        self.waves[usize::from(level)].push(switch);
    }

    /// Lists useful switches without a path that are neighbours of a wave.
    fn gather(&mut self, fabric: &Fabric<'_>, level: u8) {
        self.next.clear();
        for &switch in &self.waves[usize::from(level)] {
            for link in fabric.topology.links(switch) {
                let peer = usize::from(link.peer);
                let is_open = self.is_useful[peer] && !self.tree.has_way(link.peer);
                if is_open && !std::mem::replace(&mut self.is_next[peer], true) {
                    self.next.push(link.peer);
                }
            }
        }
        for &switch in &self.next {
            self.is_next[usize::from(switch)] = false;
        }
    }

    /// Gives a switch a path by replacing that of a neighbour on `level` by another of the same
    /// length, such that the turns from the switch, and from all switches that send to the
    /// neighbour, are allowed.
    fn backtrack(&mut self, lane: &mut Lane<'_>, switch: u16, level: u8) -> bool {
        let Self { tree, levels, .. } = self;
        let fabric = lane.fabric;
        let is_on = |level: u8, link: u32| levels[usize::from(fabric.receiver(link))] == level;
        let Some(before) = level.checked_sub(1) else { return false };
        for link in fabric.links(switch).filter(|&link| is_on(level, link)) {
            let near = fabric.receiver(link);
            let choice = tree.choices[usize::from(near)];
            let others =
                fabric.links(near).filter(|&other| other != choice && is_on(before, other));
            for other in others {
                let onward = tree.choices[usize::from(fabric.receiver(other))];
                let onward = (onward != NO_LINK).then_some((other, onward));
                let arriving = fabric.arriving(&tree.choices, near);
                let into = std::iter::once(link).chain(arriving).map(|link| (link, other));
                if lane.turns.allow_all(into.chain(onward)) {
                    tree.choose(lane, near, other);
                    tree.choose(lane, switch, link);
                    return true;
                }
            }
        }
        false
    }

    /// Counts hops along the paths, up to [`HopMatrix::HOPS_MAX`], and sorts switches into waves
    /// again. Switches that are farther away lose their paths.
    fn count_hops(&mut self, fabric: &Fabric<'_>) {
        self.levels.fill(HopMatrix::UNREACHABLE);
        self.levels[usize::from(self.tree.egress_switch)] = 0;
        self.waves.iter_mut().skip(1).for_each(Vec::clear);
        let mut level = 0;
        while usize::from(level) < self.waves.len() && level < HopMatrix::HOPS_MAX {
            let wave = std::mem::take(&mut self.waves[usize::from(level)]);
            for &switch in &wave {
                let links = fabric.links(switch).map(|link| fabric.reverse(link));
                for link in links {
                    let sender = fabric.sender(link);
                    if self.tree.choices[usize::from(sender)] == link {
                        self.enter(sender, level + 1);
                    }
                }
            }
            self.waves[usize::from(level)] = wave;
            level += 1;
        }
        for (choice, &level) in self.tree.choices.iter_mut().zip(&self.levels) {
            if level == HopMatrix::UNREACHABLE {
                *choice = NO_LINK;
            }
        }
    }

    /// Gives the remaining switches paths to the nearest switch that has one, regardless of turns:
    /// the traffic on these paths need not be free of credit loops. Ends whose paths would be too
    /// long get none.
    fn add_loose(&mut self, lane: &Lane<'_>) {
        let ends = lane.fabric.is_end(self.tree.egress_switch);
        for (switch, is_useful) in (0..).zip(&mut self.is_useful) {
            *is_useful = !(ends && lane.fabric.is_end(switch));
        }
        let mut level = 0;
        while usize::from(level) < self.waves.len() && level < HopMatrix::HOPS_MAX {
            self.gather(lane.fabric, level);
            for switch in std::mem::take(&mut self.next) {
                let levels = &self.levels;
                let near = lane
                    .fabric
                    .links(switch)
                    .filter(|&link| levels[usize::from(lane.fabric.receiver(link))] == level);
                let nearest = near.min_by_key(|&link| (self.tree.cost(lane, link), link));
                if let Some(link) = nearest {
                    self.tree.choose(lane, switch, link);
                    self.is_loose[usize::from(switch)] = true;
                    self.enter(switch, level + 1);
                }
            }
            level += 1;
        }
    }
}

//! Finds paths of an egress switch's LIDs after the first.

use super::fabric::Fabric;
use super::lane::Lane;
use super::search::Search;
use super::tree::Tree;

/// Routes the LIDs of an egress switch after the first. Each hop leads to a switch that is nearer
/// by the first LID's hops, so that these hops are valid for all its LIDs.
#[derive(Debug)]
pub(super) struct Further {
    pub(super) tree: Tree,
    /// Links to nearer switches, grouped by sending switch, in the order of the search.
    candidates: Vec<u32>,
    /// By index in that order: end of the switch's candidates.
    ends: Vec<u32>,
}

impl Further {
    pub(super) fn new(fabric: &Fabric<'_>) -> Self {
        Self { tree: Tree::new(fabric), candidates: Vec::new(), ends: Vec::new() }
    }

    /// Starts the egress switch to which `search` found paths, and adopts the paths of its first
    /// LID.
    pub(super) fn begin(&mut self, fabric: &Fabric<'_>, search: &Search) {
        self.tree.egress_switch = search.tree.egress_switch;
        self.tree.choices.copy_from_slice(&search.tree.choices);
        self.candidates.clear();
        self.ends.clear();
        let level = |switch: u16| search.levels[usize::from(switch)];
        for &switch in &search.order {
            let links = fabric.links(switch);
            let nearer = links.filter(|&link| level(fabric.receiver(link)) < level(switch));
            self.candidates.extend(nearer);
            self.ends.push(self.candidates.len() as u32);
        }
    }

    /// Routes one more LID.
    pub(super) fn route(&mut self, lane: &mut Lane<'_>, search: &Search) {
        let Self { tree, candidates, ends } = self;
        tree.begin(search.tree.egress_switch);
        let mut left = Vec::new();
        let mut first = 0;
        for (&switch, &end) in search.order.iter().zip(ends.iter()) {
            let links = &candidates[first..end as usize];
            first = end as usize;
            if search.is_loose[usize::from(switch)] {
                continue;
            }
            if !tree.settle(lane, switch, links.iter().copied()) && lane.fabric.is_end(switch) {
                left.push(switch);
            }
        }
        if !left.is_empty() {
            tree.fall_back(lane, &search.tree.choices, left.into_iter());
        }
        tree.keep_turns(lane);
        self.add_loose(lane, search);
    }

    /// Gives the remaining switches paths to any nearer switch; the first LID's path is one.
    fn add_loose(&mut self, lane: &Lane<'_>, search: &Search) {
        let mut first = 0;
        for (&switch, &end) in search.order.iter().zip(&self.ends) {
            let links = &self.candidates[first..end as usize];
            first = end as usize;
            if !self.tree.has_way(switch) {
                let has_way = |&link: &u32| self.tree.has_way(lane.fabric.receiver(link));
                let links = links.iter().copied().filter(has_way);
                if let Some(link) = links.min_by_key(|&link| (self.tree.cost(lane, link), link)) {
                    self.tree.choose(lane, switch, link);
                }
            }
        }
    }
}

//! Stores the routes of all switches to one LID.

use super::fabric::{Fabric, NO_LINK};
use super::lane::Lane;

/// The link by which each switch forwards. Each path from an end uses only allowed turns.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) egress_switch: u16,
    /// By switch: its link; `NO_LINK` at the egress switch, and as long as none is chosen.
    pub(super) choices: Vec<u32>,
    /// By switch: the cost of its path if that was [`chosen`](Tree::choose), otherwise larger than
    /// any.
    ahead: Vec<u64>,
    /// By switch, while [`Tree::fall_back`] runs: whether it must use the safe path.
    must: Vec<bool>,
}

/// Why a switch gets another path.
enum Task {
    /// The switch has no other path, or switches that have no other send through it.
    Must(u16),
    /// Its turn is no longer allowed.
    Loose(u16),
}

impl Tree {
    pub(super) fn new(fabric: &Fabric<'_>) -> Self {
        let switches = fabric.switch_count();
        Self {
            egress_switch: 0,
            choices: vec![NO_LINK; switches],
            ahead: vec![0; switches],
            must: vec![false; switches],
        }
    }

    /// Starts a LID of an egress switch; no switch has a path.
    pub(super) fn begin(&mut self, egress_switch: u16) {
        self.egress_switch = egress_switch;
        self.choices.fill(NO_LINK);
        self.ahead.fill(u64::MAX);
        self.ahead[usize::from(egress_switch)] = 0;
    }

    /// Whether a switch has a path. The egress switch always has.
    #[inline]
    pub(super) fn has_way(&self, switch: u16) -> bool {
        self.choices[usize::from(switch)] != NO_LINK || switch == self.egress_switch
    }

    /// The cost of the path that starts with a link.
    #[inline]
    pub(super) fn cost(&self, lane: &Lane<'_>, link: u32) -> u64 {
        let ahead = self.ahead[usize::from(lane.fabric.receiver(link))];
        ahead.saturating_add(lane.loads.cost(link))
    }

    /// Chooses a link whose far end has a path.
    #[inline]
    pub(super) fn choose(&mut self, lane: &Lane<'_>, switch: u16, link: u32) {
        self.ahead[usize::from(switch)] = self.cost(lane, link);
        self.choices[usize::from(switch)] = link;
    }

    /// Chooses the cheapest of some links whose far end has a path into which the turn is allowed;
    /// `false` if there is none.
    #[inline]
    pub(super) fn settle(
        &mut self,
        lane: &mut Lane<'_>,
        switch: u16,
        links: impl Iterator<Item = u32> + Clone,
    ) -> bool {
        let mut refused = None;
        loop {
            // Links are tried by cost and number; those up to `refused` were refused.
            let mut best = (u64::MAX, 0);
            for link in links.clone() {
                let way = (self.cost(lane, link), link);
                if way < best && refused.is_none_or(|last| way > last) {
                    best = way;
                }
            }
            let (cost, link) = best;
            if cost == u64::MAX {
                return false;
            }
            let next = self.choices[usize::from(lane.fabric.receiver(link))];
            if next == NO_LINK || lane.turns.allow(link, next) {
                self.choices[usize::from(switch)] = link;
                self.ahead[usize::from(switch)] = cost;
                return true;
            }
            refused = Some(best);
        }
    }

    /// Gives the switches in `left` the paths of `safe`, a tree whose turns are all allowed, and
    /// does the same with as many others as necessary: switches on these paths, and ends that send
    /// to them by turns that are not allowed. Switches in between that are no ends lose their
    /// paths.
    pub(super) fn fall_back(
        &mut self,
        lane: &mut Lane<'_>,
        safe: &[u32],
        left: impl Iterator<Item = u16>,
    ) {
        let Lane { fabric, turns, .. } = lane;
        self.must.fill(false);
        let mut tasks: Vec<Task> = left.map(Task::Must).collect();
        while let Some(task) = tasks.pop() {
            let (switch, link) = match task {
                Task::Loose(switch) if !fabric.is_end(switch) => (switch, NO_LINK),
                Task::Loose(switch) | Task::Must(switch) => (switch, safe[usize::from(switch)]),
            };
            if switch == self.egress_switch || self.must[usize::from(switch)] {
                continue;
            }
            if link != NO_LINK {
                self.must[usize::from(switch)] = true;
                tasks.push(Task::Must(fabric.receiver(link)));
            }
            self.choices[usize::from(switch)] = link;
            for arriving in fabric.arriving(&self.choices, switch) {
                let sender = fabric.sender(arriving);
                let may_stay = self.must[usize::from(sender)]
                    || (link != NO_LINK && turns.allow(arriving, link));
                if !may_stay {
                    tasks.push(Task::Loose(sender));
                }
            }
        }
    }

    /// Releases turns that the final paths do not use.
    pub(super) fn keep_turns(&self, lane: &mut Lane<'_>) {
        let fabric = lane.fabric;
        let is_chosen = |link| self.choices[usize::from(fabric.sender(link))] == link;
        lane.turns.keep(|from, to| is_chosen(from) && is_chosen(to));
    }
}

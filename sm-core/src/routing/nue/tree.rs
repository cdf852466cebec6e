//! The routes of all switches to one LID.

use super::fabric::{Fabric, NO_LINK};
use super::lane::Lane;

/// By which link each switch sends. Each way from a switch that is an end takes allowed turns.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) home: u16,
    /// By switch: its link; `NO_LINK` at the home, and as long as none is chosen.
    pub(super) choices: Vec<u32>,
    /// By switch: what its way costs, if that was [`chosen`](Tree::choose); else more than any.
    ahead: Vec<u64>,
    /// By switch, while [`Tree::fall_back`] runs: whether it must.
    must: Vec<bool>,
}

/// Why a switch gets another way.
enum Task {
    /// It has none else, or others that do send through it.
    Must(u16),
    /// The turn it takes is not allowed any more.
    Loose(u16),
}

impl Tree {
    pub(super) fn new(fabric: &Fabric<'_>) -> Self {
        let switches = fabric.switch_count();
        Self {
            home: 0,
            choices: vec![NO_LINK; switches],
            ahead: vec![0; switches],
            must: vec![false; switches],
        }
    }

    /// Turns to a LID of a home; no switch has a way.
    pub(super) fn begin(&mut self, home: u16) {
        self.home = home;
        self.choices.fill(NO_LINK);
        self.ahead.fill(u64::MAX);
        self.ahead[usize::from(home)] = 0;
    }

    /// Whether a switch has a way, which the home has by itself.
    #[inline]
    pub(super) fn has_way(&self, switch: u16) -> bool {
        self.choices[usize::from(switch)] != NO_LINK || switch == self.home
    }

    /// What the way costs that begins with a link.
    #[inline]
    pub(super) fn cost(&self, lane: &Lane<'_>, link: u32) -> u64 {
        let ahead = self.ahead[usize::from(lane.fabric.receiver(link))];
        ahead.saturating_add(lane.loads.cost(link))
    }

    /// Sends by a link that leads to where there is a way.
    #[inline]
    pub(super) fn choose(&mut self, lane: &Lane<'_>, switch: u16, link: u32) {
        self.ahead[usize::from(switch)] = self.cost(lane, link);
        self.choices[usize::from(switch)] = link;
    }

    /// Chooses the cheapest of some links that leads to where there is a way that may be turned
    /// into; `false` if there is none.
    #[inline]
    pub(super) fn settle(
        &mut self,
        lane: &mut Lane<'_>,
        switch: u16,
        links: impl Iterator<Item = u32> + Clone,
    ) -> bool {
        let mut refused = None;
        loop {
            // Links are tried by cost and number; those up to the last one were refused.
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

    /// Gives switches `left` without a way those of `safe`, a tree whose turns are all allowed,
    /// and as many others as have to follow: those on these ways, and ends that send to them by
    /// turns which are not allowed. Switches in between that are no ends lose their way.
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
            if switch == self.home || self.must[usize::from(switch)] {
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

    /// Takes turns back that the ways do not take in the end.
    pub(super) fn keep_turns(&self, lane: &mut Lane<'_>) {
        let fabric = lane.fabric;
        let is_chosen = |link| self.choices[usize::from(fabric.sender(link))] == link;
        lane.turns.keep(|from, to| is_chosen(from) && is_chosen(to));
    }
}

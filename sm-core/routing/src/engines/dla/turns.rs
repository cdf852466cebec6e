//! Turns within groups, and the lanes on which packets leave after them.
//!
//! Packets are on lane 0 up to the link between groups, and on lane 1 after it. Only where a link
//! of a group is missing does a route have several hops in a group, or where leaves reach each
//! other by a spine. A table by ports cannot tell on which lane a packet came, so each turn from a
//! link of a group to another one has a lane for all packets:
//!
//! - on the way to a link between groups: lane 0;
//! - from a link between groups on: lane 1;
//! - between hosts of the group: either.
//!
//! Turns of each lane close no cycle. As channels of a group on lane 0 come before links between
//! groups, and these before channels on lane 1, nothing else can close one, except through groups
//! on the way to a third one. The pairs of such a transit group and the group that follows it close
//! no cycle either. A turn that has lane 1 may also be used towards another group: then the group
//! counts as a transit group itself.

use std::collections::{HashMap, HashSet};

use crate::Topology;

/// What a route needs of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// To leave on lane 0.
    First,
    /// To leave on lane 1.
    Second,
    /// To leave on any lane; packets come on lane 0.
    Either,
}

/// The lane of a turn.
#[derive(Clone, Copy, Debug)]
struct State {
    is_second: bool,
    /// Whether lane 0 is needed.
    is_fixed: bool,
}

/// All turns in use.
pub(super) struct Turns {
    /// By link: the link of lowest number between the same switches in the same direction.
    lowest: Vec<u32>,
    states: HashMap<(u32, u32), State>,
    /// By lane: the links that follow a link.
    next: [Successors; 2],
    /// Groups that follow transit groups.
    transits: Successors,
}

impl Turns {
    pub(super) fn new(topology: &Topology) -> Self {
        let lowest = topology.switches().flat_map(|switch| {
            let links = topology.links(switch);
            let first = topology.link_range(switch).start as u32;
            links.iter().map(move |link| {
                let same = links.iter().position(|other| other.peer == link.peer);
                first + same.unwrap_or(0) as u32
            })
        });
        Self {
            lowest: lowest.collect(),
            states: HashMap::new(),
            next: Default::default(),
            transits: Successors::default(),
        }
    }

    /// Uses a turn from one link to another. `false` if it would close a cycle, or has another
    /// lane.
    pub(super) fn admit(&mut self, from: usize, to: usize, need: Need) -> bool {
        let turn = (self.lowest[from], self.lowest[to]);
        let Some(state) = self.states.get_mut(&turn) else {
            let lanes: &[usize] = match need {
                Need::First => &[0],
                Need::Second => &[1],
                Need::Either => &[0, 1],
            };
            let lane = lanes.iter().find(|&&lane| self.next[lane].insert(turn.0, turn.1));
            let Some(&lane) = lane else { return false };
            let state = State { is_second: lane == 1, is_fixed: need == Need::First };
            self.states.insert(turn, state);
            return true;
        };
        match need {
            Need::Either => true,
            Need::First => {
                state.is_fixed |= !state.is_second;
                !state.is_second
            }
            Need::Second => {
                if !state.is_second && !state.is_fixed {
                    state.is_second = self.next[1].insert(turn.0, turn.1);
                }
                state.is_second
            }
        }
    }

    /// Lets routes leave a transit group for another group. `false` if that would close a cycle.
    pub(super) fn admit_transit(&mut self, transit: u16, next: u16) -> bool {
        self.transits.insert(transit.into(), next.into())
    }

    /// Whether a turn leaves on lane 1.
    pub(super) fn is_second(&self, from: usize, to: usize) -> bool {
        let state = self.states.get(&(self.lowest[from], self.lowest[to]));
        state.is_some_and(|state| state.is_second)
    }

    /// Whether any turn leaves on lane 1.
    pub(super) fn has_second(&self) -> bool {
        self.states.values().any(|state| state.is_second)
    }

    /// Whether routes are as in a fabric without failures: no turn depends on its lane, and no
    /// group is passed on the way to another one.
    pub(super) fn are_plain(&self) -> bool {
        let is_bound = |state: &State| state.is_second || state.is_fixed;
        self.transits.0.is_empty() && !self.states.values().any(is_bound)
    }
}

/// A graph without cycles.
#[derive(Default)]
struct Successors(HashMap<u32, Vec<u32>>);

impl Successors {
    /// Adds an edge, unless it closes a cycle.
    fn insert(&mut self, from: u32, to: u32) -> bool {
        let next = |at: u32| self.0.get(&at).map_or(&[][..], |next| next);
        if next(from).contains(&to) {
            return true;
        }
        let (mut stack, mut seen) = (vec![to], HashSet::new());
        while let Some(at) = stack.pop() {
            if at == from {
                return false;
            }
            if seen.insert(at) {
                stack.extend(next(at));
            }
        }
        self.0.entry(from).or_default().push(to);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Links of a line of three switches: 0 to 1, 1 to 0, 1 to 2, 2 to 1.
    fn turns() -> Turns {
        Turns::new(&testing::line(3))
    }

    #[test]
    fn a_turn_has_one_lane_for_all_packets() {
        let mut turns = turns();
        assert!(turns.admit(0, 2, Need::Either) && !turns.is_second(0, 2));
        assert!(turns.admit(0, 2, Need::Second) && turns.is_second(0, 2));
        assert!(turns.admit(0, 2, Need::Either) && !turns.admit(0, 2, Need::First));
        assert!(turns.admit(3, 1, Need::Either) && turns.admit(3, 1, Need::First));
        assert!(!turns.admit(3, 1, Need::Second) && !turns.is_second(3, 1));
    }

    #[test]
    fn turns_of_a_lane_close_no_cycle() {
        let mut turns = turns();
        assert!(turns.admit(0, 2, Need::First) && turns.admit(2, 3, Need::First));
        assert!(!turns.admit(3, 0, Need::First) && turns.admit(3, 0, Need::Second));
        assert!(turns.admit_transit(0, 1) && turns.admit_transit(1, 2));
        assert!(!turns.admit_transit(2, 0) && turns.admit_transit(0, 2));
    }
}

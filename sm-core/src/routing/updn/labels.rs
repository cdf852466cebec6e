//! How many hops lead from each switch to each other one, first up and then down.
//!
//! A switch has one label a destination, whatever the way by which packets come, as its forwarding
//! table has one entry: if a way exists that goes only down, that is taken, even should a shorter
//! one first go up, for what comes from above must not go up again. All others go up to a switch
//! that is one hop closer.
//!
//! Rows of labels are computed from those of neighbours, all destinations at once: down-only hops
//! from the bottom to the top, then the others from the top to the bottom. That is one pass over
//! a row of bytes for each link, and so takes time in proportion to links times switches.

use super::super::deal::Ways;
use super::super::hops::{First, list_sources};
use super::super::{HopMatrix, Topology};
use super::order::Order;

/// Labels of all pairs, by rows of home switches.
pub(in crate::routing) struct Labels {
    switches: usize,
    /// Hops left.
    pub(in crate::routing) hops: HopMatrix,
    /// How the way begins, by home and switch: a [`phase`].
    phases: Vec<u8>,
    /// By link: whether it leads down.
    downward: Vec<bool>,
    /// Whether pairs were joined against the rules.
    pub(in crate::routing) is_connected: bool,
}

/// How the rest of a way may go. Each is a bit.
pub(in crate::routing) mod phase {
    /// Only down.
    pub(in crate::routing) const DOWN: u8 = 1;
    /// First up.
    pub(in crate::routing) const UP: u8 = 2;
    /// Against the rules, as there is no other way; or there is none at all.
    pub(in crate::routing) const ANY: u8 = 4;
}

impl Labels {
    /// Labels of all pairs that may be joined in this order; at most
    /// [`HopMatrix::SWITCHES_MAX`] switches.
    pub(in crate::routing) fn compute(topology: &Topology, order: &Order) -> Self {
        let downward = topology.switches().flat_map(|switch| {
            topology.links(switch).iter().map(move |link| order.is_above(switch, link.peer))
        });
        let downward = downward.collect();
        let mut down = HopMatrix::unreachable(topology.switch_count());
        for &switch in order.switches.iter().rev() {
            let mut row = row_beyond(topology, switch, &down, |peer| order.is_above(switch, peer));
            row[usize::from(switch)] = 0;
            down.row_mut(switch).copy_from_slice(&row);
        }
        let mut hops = HopMatrix::unreachable(topology.switch_count());
        for &switch in &order.switches {
            let mut row = row_beyond(topology, switch, &hops, |peer| order.is_above(peer, switch));
            for (hops, &down) in row.iter_mut().zip(down.row(switch)) {
                *hops = if down == HopMatrix::UNREACHABLE { *hops } else { down };
            }
            hops.row_mut(switch).copy_from_slice(&row);
        }
        down.transpose();
        hops.transpose();
        let mut phases = Vec::with_capacity(topology.switch_count().pow(2));
        for home in topology.switches() {
            let labels = down.row(home).iter().zip(hops.row(home));
            phases.extend(labels.map(|(&down, &hops)| match (down, hops) {
                (HopMatrix::UNREACHABLE, HopMatrix::UNREACHABLE) => phase::ANY,
                (HopMatrix::UNREACHABLE, _) => phase::UP,
                _ => phase::DOWN,
            }));
        }
        Self { switches: topology.switch_count(), hops, phases, downward, is_connected: false }
    }

    /// The phases of all pairs, by home and switch.
    pub(in crate::routing) fn all_phases(&self) -> &[u8] {
        &self.phases
    }

    /// The phases of all switches on ways to a home.
    #[inline]
    pub(in crate::routing) fn phases(&self, home: u16) -> &[u8] {
        let switches = self.switches;
        &self.phases[usize::from(home) * switches..][..switches]
    }

    /// Whether a link leads down.
    #[inline]
    pub(in crate::routing) fn is_downward(&self, link: usize) -> bool {
        self.downward[link]
    }

    /// Ways to a home.
    pub(in crate::routing) fn ways(&self, home: u16) -> UpThenDown<'_> {
        UpThenDown { phases: self.phases(home), downward: &self.downward }
    }

    /// Joins what has no way to a home by going on to any neighbour that has one: routes that go
    /// down and up again, and may close credit loops. `reversals_max` limits how many links up
    /// such a route may have after one that leads down.
    pub(in crate::routing) fn connect(
        &mut self,
        topology: &Topology,
        home: u16,
        reversals_max: u8,
    ) {
        let phases = &self.phases[usize::from(home) * self.switches..][..self.switches];
        let missing = (0u16..).zip(phases).filter(|&(_, &phase)| phase == phase::ANY);
        let mut missing: Vec<u16> = missing.map(|(switch, _)| switch).collect();
        if missing.is_empty() {
            return;
        }
        self.is_connected = true;
        let mut ups = self.ups(topology, home);
        let hops = self.hops.row_mut(home);
        let mut reversals = vec![0; self.switches];
        // The nearest first: what is one hop from a label of this size, until all are labelled.
        for level in 0..HopMatrix::HOPS_MAX {
            let before = hops.to_vec();
            missing.retain(|&switch| {
                let mut next = None;
                for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch))
                {
                    let peer = usize::from(link.peer);
                    if before[peer] == level {
                        let (up, turns) = if self.downward[number] {
                            (ups[peer], ups[peer])
                        } else {
                            (ups[peer].saturating_add(1), reversals[peer])
                        };
                        let (most_up, most_turns) = next.unwrap_or_default();
                        next = Some((up.max(most_up), turns.max(most_turns)));
                    }
                }
                let Some((up, turns)) = next.filter(|&(_, turns)| turns <= reversals_max) else {
                    return true;
                };
                let switch = usize::from(switch);
                (hops[switch], ups[switch], reversals[switch]) = (level + 1, up, turns);
                false
            });
            if missing.is_empty() {
                break;
            }
        }
    }

    /// By switch: the most links up on a way to a home.
    fn ups(&self, topology: &Topology, home: u16) -> Vec<u8> {
        let (hops, ways) = (self.hops.row(home), self.ways(home));
        let mut sources = Vec::new();
        list_sources(&mut sources, hops, First::Nearest);
        let mut ups = vec![0u8; self.switches];
        for &switch in &sources {
            let closer = hops[usize::from(switch)] - 1;
            for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
                let peer = usize::from(link.peer);
                if hops[peer] == closer && ways.allow(switch, number as u32, link.peer) {
                    let up = ups[peer].saturating_add(u8::from(!self.downward[number]));
                    ups[usize::from(switch)] = ups[usize::from(switch)].max(up);
                }
            }
        }
        ups
    }
}

/// Hops by the best of those neighbours of a switch that `takes` likes.
fn row_beyond(
    topology: &Topology,
    switch: u16,
    hops: &HopMatrix,
    takes: impl Fn(u16) -> bool,
) -> Vec<u8> {
    let mut row = vec![HopMatrix::UNREACHABLE; topology.switch_count()];
    let mut before = None;
    for link in topology.links(switch) {
        // Parallel links are mostly next to each other.
        if before.replace(link.peer) != Some(link.peer) && takes(link.peer) {
            for (hops, &beyond) in row.iter_mut().zip(hops.row(link.peer)) {
                *hops = (*hops).min(beyond.saturating_add(1));
            }
        }
    }
    row
}

/// Ways to one home that go up and then down.
pub(in crate::routing) struct UpThenDown<'a> {
    phases: &'a [u8],
    downward: &'a [bool],
}

impl Ways for UpThenDown<'_> {
    #[inline]
    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        use phase::{ANY, DOWN, UP};
        let accepted = match (self.phases[usize::from(switch)], self.downward[link as usize]) {
            (DOWN, true) => DOWN,
            (UP, false) => UP | DOWN,
            (ANY, _) => UP | DOWN | ANY,
            _ => 0,
        };
        accepted & self.phases[usize::from(peer)] != 0
    }
}

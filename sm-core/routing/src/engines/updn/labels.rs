//! Computes the hops from each switch to each other on paths that go first up and then down.
//!
//! A switch has one label per destination, regardless of how packets arrive, as its forwarding
//! table has one entry. If a path exists that only goes down, it is taken, even if a shorter one
//! starts upwards, since packets that arrive from above must not go up again. Otherwise the path
//! goes up to a switch that is one hop closer.
//!
//! Rows of labels are computed from those of neighbours, all destinations at once: down-only hops
//! from the bottom to the top, then the others from the top to the bottom. That is one pass over a
//! row of bytes per link, and so takes time proportional to links times switches.

use super::order::Order;
use crate::deal::PathRules;
use crate::hops::{First, list_sources};
use crate::tree::Tree;
use crate::{CommonOptions, HopMatrix, Topology};

/// Labels of all pairs, in rows by egress switch.
pub(crate) struct Labels {
    switches: usize,
    /// Remaining hops.
    pub(crate) hops: HopMatrix,
    /// By egress switch and switch: how the path starts, a [`phase`].
    phases: Vec<u8>,
    /// By link: whether it leads down.
    downward: Vec<bool>,
    /// Whether pairs were connected against the rule.
    pub(crate) is_connected: bool,
}

/// How the rest of a path may go. Each is a bit.
pub(crate) mod phase {
    /// Only down.
    pub(crate) const DOWN: u8 = 1;
    /// First up.
    pub(crate) const UP: u8 = 2;
    /// Against the rule, as there is no other path; or there is no path.
    pub(crate) const ANY: u8 = 4;
}

impl Labels {
    /// Computes labels of all pairs that may be connected in this order, for at most
    /// [`HopMatrix::SWITCHES_MAX`] switches.
    pub(crate) fn compute(topology: &Topology, order: &Order) -> Self {
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
        for egress_switch in topology.switches() {
            let labels = down.row(egress_switch).iter().zip(hops.row(egress_switch));
            phases.extend(labels.map(|(&down, &hops)| match (down, hops) {
                (HopMatrix::UNREACHABLE, HopMatrix::UNREACHABLE) => phase::ANY,
                (HopMatrix::UNREACHABLE, _) => phase::UP,
                _ => phase::DOWN,
            }));
        }
        Self { switches: topology.switch_count(), hops, phases, downward, is_connected: false }
    }

    /// The phases of all pairs, by egress switch and switch.
    pub(crate) fn all_phases(&self) -> &[u8] {
        &self.phases
    }

    /// The phases of all switches on paths to an egress switch.
    #[inline]
    pub(crate) fn phases(&self, egress_switch: u16) -> &[u8] {
        let switches = self.switches;
        &self.phases[usize::from(egress_switch) * switches..][..switches]
    }

    /// Whether a link leads down.
    #[inline]
    pub(crate) fn is_downward(&self, link: usize) -> bool {
        self.downward[link]
    }

    /// The fabric as a tree, if up and down are the same there.
    pub(crate) fn tree(&self, topology: &Topology, common: &CommonOptions) -> Option<Tree> {
        let tree = Tree::find(topology, common)?;
        let is_alike = |link: usize, switch: u16| {
            tree.is_downward(topology, switch, link) == self.downward[link]
        };
        let mut switches = topology.switches();
        switches
            .all(|switch| topology.link_range(switch).all(|link| is_alike(link, switch)))
            .then_some(tree)
    }

    /// The rules for paths to an egress switch.
    pub(crate) fn path_rules(&self, egress_switch: u16) -> UpThenDown<'_> {
        UpThenDown { phases: self.phases(egress_switch), downward: &self.downward }
    }

    /// Connects switches without a path to an egress switch, by forwarding to any neighbour that
    /// has one. These routes go down and up again, and may close credit loops. `reversals_max`
    /// limits the number of uplinks after a downlink on such a route.
    pub(crate) fn connect(&mut self, topology: &Topology, egress_switch: u16, reversals_max: u8) {
        let phases = &self.phases[usize::from(egress_switch) * self.switches..][..self.switches];
        let missing = (0u16..).zip(phases).filter(|&(_, &phase)| phase == phase::ANY);
        let mut missing: Vec<u16> = missing.map(|(switch, _)| switch).collect();
        if missing.is_empty() {
            return;
        }
        self.is_connected = true;
        let mut ups = self.ups(topology, egress_switch);
        let hops = self.hops.row_mut(egress_switch);
        let mut reversals = vec![0; self.switches];
        // Nearest first: the switches one hop from a label of this level, until all are labelled.
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

    /// By switch: the largest number of uplinks on a path to an egress switch.
    fn ups(&self, topology: &Topology, egress_switch: u16) -> Vec<u8> {
        let (hops, path_rules) = (self.hops.row(egress_switch), self.path_rules(egress_switch));
        let mut sources = Vec::new();
        list_sources(&mut sources, hops, First::Nearest);
        let mut ups = vec![0u8; self.switches];
        for &switch in &sources {
            let closer = hops[usize::from(switch)] - 1;
            for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
                let peer = usize::from(link.peer);
                if hops[peer] == closer && path_rules.allow(switch, number as u32, link.peer) {
                    let up = ups[peer].saturating_add(u8::from(!self.downward[number]));
                    ups[usize::from(switch)] = ups[usize::from(switch)].max(up);
                }
            }
        }
        ups
    }
}

/// Returns hops by the best of the neighbours of a switch that `takes` accepts.
fn row_beyond(
    topology: &Topology,
    switch: u16,
    hops: &HopMatrix,
    takes: impl Fn(u16) -> bool,
) -> Vec<u8> {
    let mut row = vec![HopMatrix::UNREACHABLE; topology.switch_count()];
    let mut before = None;
    for link in topology.links(switch) {
        // Parallel links are mostly adjacent.
        if before.replace(link.peer) != Some(link.peer) && takes(link.peer) {
            for (hops, &beyond) in row.iter_mut().zip(hops.row(link.peer)) {
                *hops = (*hops).min(beyond.saturating_add(1));
            }
        }
    }
    row
}

/// Rules for paths to one egress switch that go up and then down.
pub(crate) struct UpThenDown<'a> {
    phases: &'a [u8],
    downward: &'a [bool],
}

impl PathRules for UpThenDown<'_> {
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

    #[inline]
    fn of_switch(&self, switch: u16) -> u8 {
        self.phases[usize::from(switch)]
    }

    #[inline]
    fn of_link(&self, link: u32) -> u8 {
        self.downward[link as usize].into()
    }
}

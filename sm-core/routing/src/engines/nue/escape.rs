//! Escape paths: a spanning tree whose turns are allowed before all others, so that every switch
//! has a path to fall back on.
//!
//! The best root is the switch with hosts that is nearest to all destinations of the layer. The
//! paper uses the most central of all switches. In a tree of switches that would be a core switch,
//! and paths to other core switches would lead down to a leaf and up again, at many leaves. With a
//! leaf as the root, paths turn like the shortest ones between hosts do, except at the root itself.

use super::EgressSwitch;
use super::fabric::{Fabric, NO_LINK};
use super::turns::Turns;
use crate::HopMatrix;

/// A spanning tree of each connected part of the fabric.
#[derive(Debug)]
pub(super) struct Forest {
    /// By switch: the link towards the root; `NO_LINK` for roots.
    up: Vec<u32>,
    /// All switches, each before the switches below it.
    order: Vec<u16>,
}

/// Numbers of selected switches below a switch, itself included, and in its whole tree.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    below: u32,
    all: u32,
}

impl Forest {
    /// Builds trees of shortest paths from roots. The first root is the one at index `place` in the
    /// ranking, modulo the number of switches with hosts.
    pub(super) fn new(
        fabric: &Fabric<'_>,
        distances: &HopMatrix,
        egress_switches: &[EgressSwitch],
        place: usize,
    ) -> Self {
        let switches = fabric.switch_count();
        let mut is_in = vec![false; switches];
        let (mut up, mut order) = (vec![NO_LINK; switches], Vec::with_capacity(switches));
        let mut roots = roots(fabric, distances, egress_switches);
        // Switches further back in the ranking have no hosts.
        let count =
            egress_switches.iter().filter(|egress_switch| egress_switch.has_hosts()).count().max(1);
        if !roots.is_empty() {
            roots[..=place % count].rotate_right(1);
        }
        for root in roots {
            let mut looked = order.len();
            if !std::mem::replace(&mut is_in[usize::from(root)], true) {
                order.push(root);
            }
            while let Some(&switch) = order.get(looked) {
                looked += 1;
                for link in fabric.links(switch) {
                    let peer = fabric.receiver(link);
                    if !std::mem::replace(&mut is_in[usize::from(peer)], true) {
                        up[usize::from(peer)] = fabric.reverse(link);
                        order.push(peer);
                    }
                }
            }
        }
        Self { up, order }
    }

    /// All switches, those near the roots first.
    pub(super) fn order(&self) -> &[u16] {
        &self.order
    }

    /// Allows all turns of the tree's paths from ends to those egress switches that are ends.
    pub(super) fn mark(
        &self,
        fabric: &Fabric<'_>,
        egress_switches: &[EgressSwitch],
        turns: &mut Turns,
    ) {
        let mut is_egress_switch = vec![false; self.up.len()];
        egress_switches
            .iter()
            .for_each(|egress_switch| is_egress_switch[usize::from(egress_switch.switch)] = true);
        let to = self
            .count(fabric, |switch| is_egress_switch[usize::from(switch)] && fabric.is_end(switch));
        let from = self.count(fabric, |switch| fabric.is_end(switch));
        for &switch in &self.order {
            let up = self.up[usize::from(switch)];
            let (to_here, from_here) = (to[usize::from(switch)], from[usize::from(switch)]);
            let mut allow = |from: u32, to: u32| {
                let is_allowed = turns.allow(from, to);
                debug_assert!(is_allowed, "trees have no cycles");
            };
            let children = || fabric.arriving(&self.up, switch);
            for child in children() {
                let below = usize::from(fabric.sender(child));
                if up != NO_LINK && from[below].below > 0 && to_here.all > to_here.below {
                    allow(child, up);
                }
                if to[below].below == 0 {
                    continue;
                }
                let down = fabric.reverse(child);
                if up != NO_LINK && from_here.all > from_here.below {
                    allow(fabric.reverse(up), down);
                }
                for other in children().filter(|&other| other != child) {
                    if from[usize::from(fabric.sender(other))].below > 0 {
                        allow(other, down);
                    }
                }
            }
        }
        turns.keep(|_, _| true);
    }

    /// By switch: how many switches for which `counts` is true are below it, and in its tree.
    fn count(&self, fabric: &Fabric<'_>, counts: impl Fn(u16) -> bool) -> Vec<Count> {
        let mut found = vec![Count::default(); self.up.len()];
        for &switch in self.order.iter().rev() {
            let below = found[usize::from(switch)].below + u32::from(counts(switch));
            found[usize::from(switch)] = Count { below, all: below };
            let up = self.up[usize::from(switch)];
            if up != NO_LINK {
                found[usize::from(fabric.receiver(up))].below += below;
            }
        }
        for &switch in &self.order {
            let up = self.up[usize::from(switch)];
            if up != NO_LINK {
                found[usize::from(switch)].all = found[usize::from(fabric.receiver(up))].all;
            }
        }
        found
    }

    /// By switch: its link on the tree's path to an egress switch; `NO_LINK` at the egress switch
    /// and where there is no path.
    pub(super) fn choices(&self, fabric: &Fabric<'_>, egress_switch: u16) -> Vec<u32> {
        let mut choices = self.up.clone();
        let (mut switch, mut back) = (egress_switch, NO_LINK);
        loop {
            let up = std::mem::replace(&mut choices[usize::from(switch)], back);
            if up == NO_LINK {
                return choices;
            }
            (switch, back) = (fabric.receiver(up), fabric.reverse(up));
        }
    }
}

/// Ranks all switches as roots, best first.
fn roots(fabric: &Fabric<'_>, distances: &HopMatrix, egress_switches: &[EgressSwitch]) -> Vec<u16> {
    let mut rank = vec![2u8; fabric.switch_count()];
    egress_switches.iter().for_each(|egress_switch| {
        rank[usize::from(egress_switch.switch)] = u8::from(!egress_switch.has_hosts());
    });
    let mut roots: Vec<u16> = fabric.topology.switches().collect();
    roots.sort_by_cached_key(|&switch| {
        let row = distances.row(switch);
        let far = egress_switches.iter().filter(|egress_switch| egress_switch.has_hosts());
        let far: u64 =
            far.map(|egress_switch| u64::from(row[usize::from(egress_switch.switch)])).sum();
        (rank[usize::from(switch)], far)
    });
    roots
}

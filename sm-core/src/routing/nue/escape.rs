//! Escape paths: a spanning tree whose turns are allowed before all others, so that there is always
//! a way to fall back to.
//!
//! The best root is the switch with hosts that is nearest to all destinations of the layer. The paper
//! takes the most central of all switches; but in a tree of switches that would be a core switch,
//! and ways to other core switches then lead down to a leaf and up again, at many leaves. Below a
//! leaf as the root, ways turn like the shortest ones between hosts do, except at the root itself.

use super::super::HopMatrix;
use super::Home;
use super::fabric::{Fabric, NO_LINK};
use super::turns::Turns;

/// A spanning tree of each part of the fabric.
#[derive(Debug)]
pub(super) struct Forest {
    /// By switch: the link towards the root; `NO_LINK` for roots.
    up: Vec<u32>,
    /// All switches, each before what is below it.
    order: Vec<u16>,
}

/// What lies below a switch, itself included, and in its whole tree.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    below: u32,
    all: u32,
}

impl Forest {
    /// Trees of shortest ways from roots; the first is the best one, or so many places behind it.
    pub(super) fn new(
        fabric: &Fabric<'_>,
        distances: &HopMatrix,
        homes: &[Home],
        place: usize,
    ) -> Self {
        let switches = fabric.switch_count();
        let mut is_in = vec![false; switches];
        let (mut up, mut order) = (vec![NO_LINK; switches], Vec::with_capacity(switches));
        let mut roots = roots(fabric, distances, homes);
        // Those behind have no hosts.
        let count = homes.iter().filter(|home| home.has_hosts()).count().max(1);
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

    /// Allows all turns of the ways in the tree from switches that are ends to homes that are.
    pub(super) fn mark(&self, fabric: &Fabric<'_>, homes: &[Home], turns: &mut Turns) {
        let mut is_home = vec![false; self.up.len()];
        homes.iter().for_each(|home| is_home[usize::from(home.switch)] = true);
        let to = self.count(fabric, |switch| is_home[usize::from(switch)] && fabric.is_end(switch));
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

    /// By switch: how many of those that `counts` tells are below it, and in its tree.
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

    /// By switch: its link on the way to a home; `NO_LINK` at the home and where there is no way.
    pub(super) fn choices(&self, fabric: &Fabric<'_>, home: u16) -> Vec<u32> {
        let mut choices = self.up.clone();
        let (mut switch, mut back) = (home, NO_LINK);
        loop {
            let up = std::mem::replace(&mut choices[usize::from(switch)], back);
            if up == NO_LINK {
                return choices;
            }
            (switch, back) = (fabric.receiver(up), fabric.reverse(up));
        }
    }
}

/// All switches, those first that should be roots.
fn roots(fabric: &Fabric<'_>, distances: &HopMatrix, homes: &[Home]) -> Vec<u16> {
    let mut rank = vec![2u8; fabric.switch_count()];
    homes.iter().for_each(|home| rank[usize::from(home.switch)] = u8::from(!home.has_hosts()));
    let mut roots: Vec<u16> = fabric.topology.switches().collect();
    roots.sort_by_cached_key(|&switch| {
        let row = distances.row(switch);
        let far = homes.iter().filter(|home| home.has_hosts());
        let far: u64 = far.map(|home| u64::from(row[usize::from(home.switch)])).sum();
        (rank[usize::from(switch)], far)
    });
    roots
}

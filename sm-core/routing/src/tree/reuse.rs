//! Finds what the next tables of a tree share with those before: routes change where hops do, or
//! links.

use sa_proto::snapshot::Entries;

use super::Tree;
use super::digits::Digits;
use crate::deal::PathRules;
use crate::{HopMatrix, Previous, Topology};

/// The tables of a tree, and all that they were computed from besides the topology and hops.
#[derive(Clone, Debug)]
pub struct TreeTables {
    pub(super) tree: Tree,
    pub(super) digits: Digits,
    pub(super) rules: Rules,
    pub(super) lfts: Vec<Entries>,
    /// By switch: number of LIDs without a route.
    pub(super) unreachable: Vec<u64>,
}

/// What an engine's rules depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// By switch and egress switch; empty if all links are allowed.
    switches: Vec<u8>,
    /// By link number.
    links: Vec<u8>,
}

impl Rules {
    /// The rules for all egress switches.
    pub(super) fn of<W: PathRules>(topology: &Topology, path_rules: impl Fn(u16) -> W) -> Self {
        let count = topology.switch_count();
        if W::ALLOWS_ALL || count == 0 {
            return Self::default();
        }
        let mut switches = vec![0; count * count];
        for egress_switch in topology.switches() {
            let rules = path_rules(egress_switch);
            for switch in topology.switches() {
                let at = usize::from(switch) * count + usize::from(egress_switch);
                switches[at] = rules.of_switch(switch);
            }
        }
        let rules = path_rules(0);
        let links = (0..topology.link_count()).map(|link| rules.of_link(link as u32)).collect();
        Self { switches, links }
    }

    /// By egress switch; empty if all links are allowed.
    fn row(&self, switch: u16, count: usize) -> &[u8] {
        self.switches
            .get(usize::from(switch) * count..)
            .and_then(|from| from.get(..count))
            .unwrap_or(&[])
    }
}

/// What is the same as before.
pub(super) struct Reuse<'a> {
    /// The tables before.
    pub(super) made: &'a TreeTables,
    topology: &'a Topology,
    /// By switch: egress switches to which it has other hops, or for which rules differ there.
    changed: Vec<Vec<u16>>,
    /// By switch: whether its links are the same, and its table is the one that was made.
    is_same: Vec<bool>,
}

impl<'a> Reuse<'a> {
    /// Compares with what was before; `None` if too much differs. `hops` has a row per switch.
    pub(super) fn find(
        topology: &'a Topology,
        tree: &Tree,
        hops: &HopMatrix,
        rules: &Rules,
        previous: &Previous<'a>,
    ) -> Option<Self> {
        let (made, before) = (previous.tree?, previous.hops?);
        let Tree { ranks, slots: _, widths, numbers, leaves, parts } = tree;
        let is_same_tree = (ranks, widths, numbers, leaves, parts)
            == (
                &made.tree.ranks,
                &made.tree.widths,
                &made.tree.numbers,
                &made.tree.leaves,
                &made.tree.parts,
            );
        let then = previous.topology;
        let count = topology.switch_count();
        if !is_same_tree
            || !previous.is_of_same_ports(topology)
            || then.table_len() != topology.table_len()
            || before.switch_count() != count
            || made.lfts.len() != count
            || rules.switches.len() != made.rules.switches.len()
        {
            return None;
        }
        let changed = topology.switches().map(|switch| {
            let (now, then) = (hops.row(switch), before.row(switch));
            let (now_by, then_by) = (rules.row(switch, count), made.rules.row(switch, count));
            if now == then && now_by == then_by {
                return Vec::new();
            }
            let differs = |egress: &u16| {
                let at = usize::from(*egress);
                now[at] != then[at] || now_by.get(at) != then_by.get(at)
            };
            topology.switches().filter(differs).collect()
        });
        let changed = changed.collect();
        let is_same = topology.switches().map(|switch| {
            let (here, there) = (topology.link_range(switch), then.link_range(switch));
            let entries = previous.entries(switch);
            topology.links(switch) == then.links(switch)
                && tree.slots[here.clone()] == made.tree.slots[there.clone()]
                && rules.links.get(here) == made.rules.links.get(there)
                && entries.is_some_and(|it| it.is_shared_with(&made.lfts[usize::from(switch)]))
        });
        let is_same = is_same.collect();
        Some(Self { made, topology, changed, is_same })
    }

    /// The egress switches, ascending, to which the routes of a switch may differ; `None` if all
    /// may. Its routes depend on its links, and on its hops and those of its neighbours.
    pub(super) fn columns(&self, switch: u16) -> Option<Vec<u16>> {
        let at = usize::from(switch);
        if !self.is_same[at] {
            return None;
        }
        let peers = self.topology.links(switch).iter().map(|link| link.peer);
        let near = peers.chain([switch]).flat_map(|near| &self.changed[usize::from(near)]);
        let mut columns: Vec<u16> = near.copied().collect();
        columns.sort_unstable();
        columns.dedup();
        (columns.len() * 4 <= self.changed.len()).then_some(columns)
    }
}

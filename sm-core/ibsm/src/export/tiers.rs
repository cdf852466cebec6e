//! Hosts, and the switches above them as a tree: what schedulers place jobs by.
//!
//! A leaf is a switch with hosts. Above, a tier joins what is connected by switches that many links
//! from a leaf: in a fat tree of three levels the pods, then the core. Where each switch has hosts,
//! as in a torus, one tier joins all.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, find};

use crate::observe::node_name;

/// A switch of the tree: a leaf, or all switches of a tier that join the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Junction {
    pub(super) name: String,
    /// Names of hosts, at a leaf.
    pub(super) hosts: BTreeSet<String>,
    /// Numbers of those below it.
    pub(super) below: Vec<usize>,
    pub(super) above: Option<usize>,
}

/// The tree: leaves first, each before those above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tiers(pub(super) Vec<Junction>);

impl Tiers {
    /// The tree of a fabric.
    pub(super) fn of(plane: &FabricPlane, rails: &[String]) -> Self {
        let leaves = leaves(plane, rails);
        let (level, links) = levels(plane, leaves.keys().copied());
        let names = names(plane);
        let name = |guid: &Guid| names.get(guid).cloned().unwrap_or_else(|| guid.to_string());
        let mut tree = Vec::new();
        // The junction of each connected part so far, by the root of its switches.
        let mut parts = Parts::default();
        let mut tops: BTreeMap<Guid, usize> = BTreeMap::new();
        for (guid, hosts) in leaves {
            tops.insert(guid, tree.len());
            tree.push(Junction { name: name(&guid), hosts, ..Junction::default() });
        }
        let last = level.values().max().copied().unwrap_or(0).max(1);
        for tier in 1..=last {
            let is_joined = |guid: &Guid| level.get(guid).is_some_and(|level| *level <= tier);
            for (a, b) in &links {
                if is_joined(a) && is_joined(b) {
                    parts.join(*a, *b);
                }
            }
            let mut joined: BTreeMap<Guid, Vec<usize>> = BTreeMap::new();
            for (guid, top) in &tops {
                joined.entry(parts.root(*guid)).or_default().push(*top);
            }
            let mut named: HashMap<Guid, String> = HashMap::new();
            for (guid, _) in level.iter().filter(|(_, level)| **level == tier) {
                let (root, name) = (parts.root(*guid), name(guid));
                let first = named.entry(root).or_insert_with(|| name.clone());
                if natural(&name) < natural(first) {
                    *first = name;
                }
            }
            tops.clear();
            for (root, below) in joined {
                if below.len() == 1 && !named.contains_key(&root) {
                    tops.insert(root, below[0]);
                    continue;
                }
                let name = named.remove(&root);
                let name = name.unwrap_or_else(|| format!("tier{tier}-{}", tree[below[0]].name));
                let at = tree.len();
                below.iter().for_each(|&one| tree[one].above = Some(at));
                tree.push(Junction { name, below, ..Junction::default() });
                tops.insert(root, at);
            }
        }
        Self(tree)
    }

    /// The switches above a junction, the nearest first, itself included.
    pub(super) fn way_up(&self, at: usize) -> Vec<&str> {
        let next = |at: &usize| self.0[*at].above;
        std::iter::successors(Some(at), next).map(|at| &self.0[at].name[..]).collect()
    }
}

/// Names of hosts by the switch that the first of their adapters is connected to.
fn leaves(plane: &FabricPlane, rails: &[String]) -> BTreeMap<Guid, BTreeSet<String>> {
    let mut adapters: Vec<(String, &sa_proto::snapshot::Node)> = plane
        .nodes
        .iter()
        .filter(|node| node.switch_info.is_none())
        .map(|node| (node_name(node), &**node))
        .filter(|(name, _)| {
            let rail = name.split_whitespace().nth(1);
            rails.is_empty() || rail.is_some_and(|rail| rails.iter().any(|one| one == rail))
        })
        .collect();
    adapters.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut leaves: BTreeMap<Guid, BTreeSet<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (name, node) in adapters {
        let host = name.split_whitespace().next().map_or_else(|| node.guid.to_string(), clean);
        let is_switch = |guid| find(&plane.nodes, guid).is_some_and(|n| n.switch_info.is_some());
        let peers = node.ports.iter().filter_map(|port| port.peer);
        let leaf = peers.map(|(guid, _)| guid).find(|&guid| is_switch(guid));
        if let Some(leaf) = leaf
            && seen.insert(host.clone())
        {
            leaves.entry(leaf).or_default().insert(host);
        }
    }
    leaves
}

/// How many links each switch is from a leaf, and the links between switches.
fn levels(
    plane: &FabricPlane,
    leaves: impl Iterator<Item = Guid>,
) -> (BTreeMap<Guid, usize>, Vec<(Guid, Guid)>) {
    let mut links = Vec::new();
    let mut peers: HashMap<Guid, Vec<Guid>> = HashMap::new();
    let is_switch = |guid| find(&plane.nodes, guid).is_some_and(|n| n.switch_info.is_some());
    for node in plane.nodes.iter().filter(|node| node.switch_info.is_some()) {
        for (guid, _) in node.ports.iter().filter_map(|port| port.peer) {
            if is_switch(guid) {
                links.push((node.guid, guid));
                peers.entry(node.guid).or_default().push(guid);
            }
        }
    }
    let mut level: BTreeMap<Guid, usize> = leaves.map(|leaf| (leaf, 0)).collect();
    let mut queue: VecDeque<Guid> = level.keys().copied().collect();
    while let Some(at) = queue.pop_front() {
        let next = level[&at] + 1;
        for &peer in peers.get(&at).into_iter().flatten() {
            if let Entry::Vacant(entry) = level.entry(peer) {
                entry.insert(next);
                queue.push_back(peer);
            }
        }
    }
    (level, links)
}

/// Names of switches that differ from each other.
fn names(plane: &FabricPlane) -> HashMap<Guid, String> {
    let switches = plane.nodes.iter().filter(|node| node.switch_info.is_some());
    let named: Vec<(Guid, String)> = switches.map(|n| (n.guid, clean(&node_name(n)))).collect();
    let mut count: HashMap<String, usize> = HashMap::new();
    named.iter().for_each(|(_, name)| *count.entry(name.clone()).or_default() += 1);
    let unique = |(guid, name): (Guid, String)| match count[&name] {
        1 if !name.is_empty() => (guid, name),
        _ => (guid, format!("{name}{}S-{:016x}", if name.is_empty() { "" } else { "-" }, guid.0)),
    };
    named.into_iter().map(unique).collect()
}

/// A name without characters that Slurm takes for syntax.
fn clean(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.trim().chars().map(|c| if is_safe(c) { c } else { '-' }).collect()
}

/// A key by which `sw9` is before `sw10`.
fn natural(name: &str) -> (String, u64, String) {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (prefix.to_owned(), name[prefix.len()..].parse().unwrap_or(0), name.to_owned())
}

/// Connected parts.
#[derive(Debug, Default)]
struct Parts(HashMap<Guid, Guid>);

impl Parts {
    fn root(&self, mut guid: Guid) -> Guid {
        while let Some(&above) = self.0.get(&guid) {
            guid = above;
        }
        guid
    }

    fn join(&mut self, a: Guid, b: Guid) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.0.insert(a.max(b), a.min(b));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    fn shown(tiers: &Tiers) -> Vec<String> {
        let line = |one: &Junction| {
            let below: Vec<_> = one.below.iter().map(|&at| &tiers.0[at].name[..]).collect();
            let hosts: Vec<_> = one.hosts.iter().map(String::as_str).collect();
            format!("{}: {}{}", one.name, hosts.join(" "), below.join(" "))
        };
        tiers.0.iter().map(line).collect()
    }

    #[test]
    fn spines_of_the_same_leaves_are_one() {
        // Leaves 1 and 2, spines 8 and 9, hosts from 100.
        let links = [
            (1, 1, 8, 1),
            (1, 2, 9, 1),
            (2, 1, 8, 2),
            (2, 2, 9, 2),
            (1, 9, 100, 1),
            (2, 9, 101, 1),
            (2, 10, 102, 1),
        ];
        let tiers = Tiers::of(&plane(&links, 0, 0), &[]);
        assert_eq!(shown(&tiers), ["n1: n100", "n2: n101 n102", "n8: n1 n2"]);
        assert_eq!(tiers.way_up(1), ["n2", "n8"]);
        assert_eq!(Tiers::of(&plane(&links, 0, 0), &["HCA-1".to_owned()]).0, []);
    }

    #[test]
    fn pods_are_joined_by_the_core() {
        // Pods of a leaf pair and an aggregation switch: 1 2 under 5, 3 4 under 6; core 9.
        let links = [
            (1, 1, 5, 1),
            (2, 1, 5, 2),
            (3, 1, 6, 1),
            (4, 1, 6, 2),
            (5, 9, 9, 1),
            (6, 9, 9, 2),
            (1, 9, 100, 1),
            (2, 9, 101, 1),
            (3, 9, 102, 1),
            (4, 9, 103, 1),
        ];
        let tiers = Tiers::of(&plane(&links, 0, 0), &[]);
        let expected =
            ["n1: n100", "n2: n101", "n3: n102", "n4: n103", "n5: n1 n2", "n6: n3 n4", "n9: n5 n6"];
        assert_eq!(shown(&tiers), expected);
    }

    #[test]
    fn where_each_switch_has_hosts_one_tier_joins_all() {
        let links = [(1, 1, 2, 1), (2, 2, 3, 1), (1, 9, 100, 1), (2, 9, 101, 1), (3, 9, 102, 1)];
        let tiers = Tiers::of(&plane(&links, 0, 0), &[]);
        assert_eq!(shown(&tiers).last().unwrap(), "tier1-n1: n1 n2 n3");
    }
}

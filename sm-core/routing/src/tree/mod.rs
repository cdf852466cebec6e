//! Recognises fat trees, intact or damaged, and routes them by a closed form.
//!
//! Hosts are numbered in tree order: pods, then the leaves of a pod, then the ports of a leaf. The
//! number decides by which uplink each switch sends to a host, as the digits of a number whose
//! bases are the numbers of uplinks (D-mod-K: Zahavi, Fat-tree routing and node ordering providing
//! contention free traffic for MPI global collectives, 2012). So in an intact tree of full
//! bisection no two flows of a shift pattern meet, and all routes to a host descend by the same
//! links.
//!
//! In a damaged tree a route whose uplink is missing takes another, which depends on the two parts
//! of the tree that it joins, and all other routes stay. So few entries change when a cable fails,
//! and when it returns the tables are the same as before.
//!
//! [`places`] numbers hosts and links, [`digits`] derives the links that routes to each host take,
//! and [`fill`] the entries of all switches. Engines give the hops and rules by which routes may
//! go, so that each keeps what it promises.

mod digits;
mod exits;
mod fill;
mod places;
mod reuse;

pub use reuse::TreeTables;

use super::deal::{Dealt, PathRules};
use super::{CommonOptions, Destination, HopMatrix, Previous, Ties, Topology};

/// Number of ranks that a tree may have.
const RANKS: std::ops::RangeInclusive<usize> = 2..=8;
/// Smallest share of the places of uplinks that exist. Below it the fabric is not a damaged tree,
/// but one with few links by design.
const PLACES_MIN: (usize, usize) = (3, 4);
/// Marks a switch without a path to a host.
const NO_RANK: u16 = u16::MAX;
/// Marks a link that no route between hosts needs.
const NO_SLOT: u16 = u16::MAX;

/// A fat tree: what numbers its hosts and links have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// By switch: hops to the nearest switch with hosts.
    ranks: Vec<u16>,
    /// By link, in both directions alike: its place among the uplinks of its lower end, equal for
    /// all links to one switch above except parallel ones.
    slots: Vec<u16>,
    /// By rank of the lower end: number of slots.
    widths: Vec<u16>,
    /// By index of [`Topology::destinations`]: the number of a host in tree order; 0 for switches.
    numbers: Vec<u32>,
    /// Switches with hosts, in tree order.
    leaves: Vec<u16>,
    /// By rank and switch: the part of the tree that it is in without switches above this rank,
    /// numbered in tree order.
    parts: Vec<Vec<u16>>,
}

impl Tree {
    /// Recognises a tree; `None` if the fabric is none, or if options decide which of several equal
    /// ports is chosen.
    pub(crate) fn find(topology: &Topology, common: &CommonOptions) -> Option<Self> {
        let is_plain = common.ties == Ties::InTurn
            && common.routing_order.is_empty()
            && common.port_orders.is_empty()
            && common.ignored_links.is_empty()
            && common.hop_weights.iter().all(|&weight| weight == 1);
        if !is_plain {
            return None;
        }
        let ranks = ranks(topology)?;
        let highest = ranks.iter().copied().filter(|&rank| rank != NO_RANK).max()?;
        if !RANKS.contains(&(usize::from(highest) + 1)) {
            return None;
        }
        let parts = places::parts(topology, &ranks, highest);
        let is_useful = places::useful(topology, &ranks, &parts, highest);
        let (slots, widths) = places::slots(topology, &ranks, &is_useful, highest)?;
        let leaves = places::leaves(topology, &ranks, &slots, &parts);
        let numbers = places::numbers(topology, common, &leaves, widths[0]);
        let parts = places::in_order(&parts, &leaves);
        Some(Self { ranks, slots, widths, numbers, leaves, parts })
    }

    /// Routes all destinations by `hops`, which has a row per egress switch, and by the rules for
    /// each. Loads are not counted.
    pub(crate) fn route<W: PathRules>(
        &self,
        topology: &Topology,
        hops: &HopMatrix,
        previous: Option<&Previous<'_>>,
        path_rules: impl Fn(u16) -> W + Sync,
    ) -> Dealt {
        fill::route(topology, self, hops, previous, path_rules)
    }

    /// Whether a link of a switch leads down.
    pub(crate) fn is_downward(&self, topology: &Topology, switch: u16, link: usize) -> bool {
        self.ranks[usize::from(topology.link(link).peer)] < self.ranks[usize::from(switch)]
    }

    /// The rank of a switch.
    fn rank(&self, switch: u16) -> usize {
        self.ranks[usize::from(switch)].into()
    }

    /// The part that a switch is in without switches above a rank.
    fn part(&self, rank: usize, switch: u16) -> u16 {
        self.parts.get(rank).map_or(0, |part| part[usize::from(switch)])
    }
}

/// Whether only found routes are known, of another SM or an earlier run. These stay where they are
/// right, and are recomputed later if they are worse.
pub(crate) fn is_found(previous: Option<&Previous<'_>>) -> bool {
    previous.is_some_and(|previous| previous.hops.is_none())
}

/// Engines that route a fat tree by the numbers of its hosts.
const ENGINES: [&str; 7] = ["minhop", "updn", "dnup", "ftree", "sssp", "dfsssp", "nue"];

/// Number of ranks of the fat tree that a fabric is, if an engine routes it as one: then no engine
/// does better. Operators' roots may keep `updn` and `ftree` from it all the same.
pub fn tree_ranks(engine: &str, topology: &Topology, common: &CommonOptions) -> Option<usize> {
    let tree = Tree::find(topology, common).filter(|_| ENGINES.contains(&engine))?;
    let joined = tree.widths.iter().take_while(|&&width| width > 0);
    Some(joined.count() + 1)
}

/// Counts hops of switches from those with hosts; `None` if a link joins two of the same rank.
fn ranks(topology: &Topology) -> Option<Vec<u16>> {
    let mut ranks = vec![NO_RANK; topology.switch_count()];
    let hosts = topology.destinations().iter().filter(|to| to.is_host());
    let mut queue: std::collections::VecDeque<u16> = Default::default();
    for Destination { egress_switch, .. } in hosts {
        if std::mem::replace(&mut ranks[usize::from(*egress_switch)], 0) == NO_RANK {
            queue.push_back(*egress_switch);
        }
    }
    while let Some(switch) = queue.pop_front() {
        for link in topology.links(switch) {
            let here = ranks[usize::from(switch)];
            let there = &mut ranks[usize::from(link.peer)];
            if *there == NO_RANK {
                *there = here + 1;
                queue.push_back(link.peer);
            } else if *there == here {
                return None;
            }
        }
    }
    Some(ranks)
}

#[cfg(test)]
mod tests;

//! The slots that routes to each LID of a host take: the digits of its number.
//!
//! Numbers count the hosts that are there, so a host that leaves changes those of all after it. To
//! move routes for that would be out of proportion. So digits are read from the previous tables
//! where most switches agree on them, as long as these are about as good as new ones.

use sa_proto::snapshot::Entries;

use super::exits::Exits;
use super::{NO_SLOT, Tree};
use crate::{Link, Previous, Topology};

/// Largest share of LIDs, as a fraction, whose digits change at once when links come back, so that
/// all are those of the numbers again.
const CHANGED_MAX: (usize, usize) = (1, 3);
/// How much larger the share of flows of shift patterns that meet may be with previous digits.
const WORSE_MAX: f64 = 0.02;
/// Number of switches of a rank whose tables are read.
const VOTERS_MAX: usize = 16;

/// The slots that routes to each LID prefer, by rank of the link's lower end and index in
/// [`Exits::hosts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digits {
    pub(super) slots: Vec<Vec<u16>>,
}

impl Digits {
    /// The digits of the previous tables, to be used in place of these, which are those of the
    /// hosts' numbers; `None` if there are none, or if these are better or nearly all the same.
    /// `samples` are tables with these digits of [`voters`].
    pub(super) fn or_before(
        &self,
        topology: &Topology,
        tree: &Tree,
        exits: &Exits,
        previous: &Previous<'_>,
        samples: &[(u16, Entries)],
    ) -> Option<Self> {
        let new = self;
        let old = new.as_before(topology, tree, exits, previous, samples)?;
        let differs =
            |&at: &usize| new.slots.iter().zip(&old.slots).any(|(new, old)| new[at] != old[at]);
        let changed = (0..exits.hosts.len()).filter(differs).count();
        let is_small = changed * CHANGED_MAX.1 <= exits.hosts.len() * CHANGED_MAX.0;
        if is_small && has_new_links(topology, previous)
            || old.meeting(tree, exits) > new.meeting(tree, exits) + WORSE_MAX
        {
            return None;
        }
        Some(old)
    }

    /// The digits of the hosts' numbers. The LIDs of a host have different ones.
    pub(super) fn of_numbers(tree: &Tree, exits: &Exits) -> Self {
        let mut slots: Vec<Vec<u16>> =
            tree.widths.iter().map(|_| Vec::with_capacity(exits.hosts.len())).collect();
        for exit in &exits.hosts {
            let mut number = tree.numbers[exit.destination as usize];
            let mut offset = u32::from(exit.offset);
            for (slots, &width) in slots.iter_mut().zip(&tree.widths) {
                let width = u32::from(width).max(1);
                slots.push(((number % width + offset % width) % width) as u16);
                (number, offset) = (number / width, offset / width);
            }
        }
        Self { slots }
    }

    /// These digits with those of the previous tables in place of them, where more than half of the
    /// switches agree on others. `None` if there are none.
    fn as_before(
        &self,
        topology: &Topology,
        tree: &Tree,
        exits: &Exits,
        previous: &Previous<'_>,
        samples: &[(u16, Entries)],
    ) -> Option<Self> {
        let mut slots = self.slots.clone();
        let mut agreed = 0;
        for (rank, slots) in slots.iter_mut().enumerate() {
            let width = usize::from(tree.widths[rank]);
            // A further vote is for the digits as they are.
            let mut votes = vec![0u8; (width + 1) * exits.hosts.len()];
            for (voter, sample) in samples.iter().filter(|&&(voter, _)| tree.rank(voter) == rank) {
                let (voter, lft) = (*voter, previous.lft(*voter));
                let slot_of: Vec<u16> = (0..=topology.port_count(voter))
                    .map(|port| {
                        let link = topology.link_at(voter, port);
                        let ups = link.filter(|&link| !tree.is_downward(topology, voter, link));
                        ups.map_or(NO_SLOT, |link| tree.slots[link])
                    })
                    .collect();
                for (exit, votes) in exits.hosts.iter().zip(votes.chunks_exact_mut(width + 1)) {
                    let port = lft.get(exit.lid).copied().unwrap_or(0);
                    let slot = slot_of.get(usize::from(port)).copied().unwrap_or(NO_SLOT);
                    if usize::from(slot) < width {
                        votes[usize::from(slot)] += 1;
                        votes[width] += u8::from(sample[exit.lid] == port);
                    }
                }
            }
            for (slot, votes) in slots.iter_mut().zip(votes.chunks_exact(width + 1)) {
                let all: usize = votes[..width].iter().copied().map(usize::from).sum();
                let is_most = |vote: u8| usize::from(vote) * 2 > all;
                if is_most(votes[width]) {
                    continue;
                }
                let chosen = votes[..width].iter().position(|&vote| is_most(vote));
                if let Some(chosen) = chosen.and_then(|chosen| u16::try_from(chosen).ok()) {
                    *slot = chosen;
                    agreed += 1;
                }
            }
        }
        (agreed > 0).then_some(Self { slots })
    }

    /// The share of flows of shift patterns over one link with another, in the whole tree. A switch
    /// sends to as many consecutive hosts as are below it, and those whose digits are equal up to
    /// its rank meet.
    fn meeting(&self, tree: &Tree, exits: &Exits) -> f64 {
        let mut worst = 0.0f64;
        let mut keys = vec![0u64; exits.hosts.len()];
        for (rank, slots) in self.slots.iter().enumerate() {
            let width = u64::from(tree.widths[rank]).max(1);
            keys.iter_mut()
                .zip(slots)
                .for_each(|(key, &slot)| *key = *key * width + u64::from(slot));
            // Hosts below a switch of this rank.
            let mut below = std::collections::BTreeMap::new();
            for &leaf in &tree.leaves {
                let hosts = exits.range(leaf).filter(|&at| exits.hosts[at].offset == 0).count();
                *below.entry(tree.part(rank, leaf)).or_insert(0) += hosts;
            }
            let window = below.into_values().max().unwrap_or(0);
            let mut last = std::collections::HashMap::new();
            let (mut met, mut hosts) = (0, 0);
            for (_, &key) in exits.hosts.iter().zip(&keys).filter(|(exit, _)| exit.offset == 0) {
                if let Some(before) = last.insert(key, hosts) {
                    met += window.saturating_sub(hosts - before);
                }
                hosts += 1;
            }
            worst = worst.max(met as f64 / (hosts * window).max(1) as f64);
        }
        worst
    }
}

/// Switches whose tables show which digits they were computed with.
pub(super) fn voters(topology: &Topology, tree: &Tree) -> Vec<u16> {
    let of_rank = |rank| {
        let all = topology.switches().filter(|&switch| tree.rank(switch) == rank);
        let all: Vec<u16> = all.collect();
        let step = all.len().div_ceil(VOTERS_MAX).max(1);
        all.into_iter().step_by(step)
    };
    (0..tree.widths.len()).flat_map(of_rank).collect()
}

/// Whether there are links that were not there before.
fn has_new_links(topology: &Topology, previous: &Previous<'_>) -> bool {
    let is_new = |switch: u16, link: &Link| {
        let (here, there) = (previous.switch(switch), previous.switch(link.peer));
        let then = here.and_then(|here| previous.topology.link_at(here, link.port));
        then.map(|then| previous.topology.link(then).peer) != there
    };
    topology.switches().any(|switch| topology.links(switch).iter().any(|link| is_new(switch, link)))
}

//! Tables by destination: where each switch sends one LID.
//!
//! Who follows routes to one LID after the other looks at tables column by column, while they lie
//! in memory row by row. Here they are turned, for a few LIDs at a time. And most engines send all
//! LIDs of a switch's hosts by the same ports: of hosts' LIDs at one home that all switches send
//! alike, which is found by comparing each entry, one stands for all.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::super::lanes::{Columns as By, Layers};
use super::super::{Link, NO_ROUTE, Topology};

/// Columns that are turned at a time.
pub(super) const PORTION: usize = 64;
/// How often LIDs of a home are compared with one of them: as often as parallel links may be.
const ROUNDS: usize = 4;

/// A host's LID, and the switch that delivers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) lid: Lid,
    pub(super) home: u16,
}

/// Where each switch sends a LID, which may stand for others.
pub(super) struct Column<'a> {
    pub(super) to: Target,
    topology: &'a Topology,
    /// By switch: number of a link, or `NO_LINK`.
    next: &'a [u32],
}

const NO_LINK: u32 = u32::MAX;

impl Column<'_> {
    /// The number of the link by which a switch sends on.
    #[inline]
    pub(super) fn link(&self, switch: u16) -> Option<usize> {
        let link = self.next[usize::from(switch)];
        (link != NO_LINK).then_some(link as usize)
    }

    /// The same, and what it is.
    #[inline]
    pub(super) fn next(&self, switch: u16) -> Option<(usize, Link)> {
        self.link(switch).map(|number| (number, self.topology.link(number)))
    }
}

/// Yields the columns of some LIDs, which are best next to each other. `lfts` are the tables by
/// switch.
pub(super) fn each(
    topology: &Topology,
    lfts: &[&[u8]],
    targets: &[Target],
    mut take: impl FnMut(Column<'_>),
) {
    let switches = topology.switch_count().max(1);
    let mut next = vec![NO_LINK; switches * targets.len().min(PORTION)];
    for targets in targets.chunks(PORTION) {
        for switch in topology.switches() {
            let lft = lfts.get(usize::from(switch)).copied().unwrap_or_default();
            for (to, column) in targets.iter().zip(next.chunks_mut(switches)) {
                let link = topology.link_at(switch, entry(lft, to.lid));
                column[usize::from(switch)] = link.map_or(NO_LINK, |link| link as u32);
            }
        }
        for (&to, next) in targets.iter().zip(next.chunks(switches)) {
            take(Column { to, topology, next });
        }
    }
}

/// Hosts' LIDs without those that all switches send like another of the same home, in the same
/// layer if there are `layers`; by number. Of LIDs with many different ways some may be left that
/// are like others.
pub(super) fn targets(topology: &Topology, lfts: &[&[u8]], layers: Option<&Layers>) -> Vec<Target> {
    let hosts = topology.destinations().iter().filter(|to| to.is_host());
    let mut open: Vec<Target> =
        hosts.flat_map(|to| to.lids().map(|lid| Target { lid, home: to.home })).collect();
    open.sort_by_key(|to| to.home);
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let mut pairs = Vec::new();
        for of_home in open.chunk_by(|a, b| a.home == b.home) {
            found.push(of_home[0]);
            pairs.extend(of_home[1..].iter().map(|&to| Pair { first: of_home[0].lid, to }));
        }
        let differ = differ(topology, lfts, layers, &pairs);
        let left = pairs.iter().zip(&differ).filter(|(_, differs)| **differs);
        open = left.map(|(pair, _)| pair.to).collect();
        // Where most are not like another, looking on is of little use.
        if open.is_empty() || open.len() * 2 > pairs.len() {
            break;
        }
    }
    found.extend(open);
    found.sort_unstable_by_key(|to| to.lid);
    found
}

/// Two LIDs of a home.
struct Pair {
    first: Lid,
    to: Target,
}

/// By pair: whether any switch sends them by different ports, or in different layers.
fn differ(
    topology: &Topology,
    lfts: &[&[u8]],
    layers: Option<&Layers>,
    pairs: &[Pair],
) -> Vec<bool> {
    let layers = layers.filter(|layers| layers.columns() == By::Lid);
    let none = || vec![false; pairs.len()];
    let compared = topology.switches().into_par_iter().fold(none, |mut differ, switch| {
        let lft = lfts.get(usize::from(switch)).copied().unwrap_or_default();
        let leads_on = |port: u8| topology.link_at(switch, port).is_some();
        for (pair, differs) in pairs.iter().zip(&mut differ) {
            let (a, b) = (entry(lft, pair.first), entry(lft, pair.to.lid));
            // Where packets leave the fabric, it does not matter by which port.
            *differs |= a != b && (leads_on(a) || leads_on(b));
        }
        if let Some(layers) = layers {
            let row = layers.row(switch);
            for (pair, differs) in pairs.iter().zip(&mut differ) {
                *differs |= row.get(pair.first.index()) != row.get(pair.to.lid.index());
            }
        }
        differ
    });
    compared.reduce(none, |mut a, b| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
        a
    })
}

/// A table's entry for a LID.
#[inline]
fn entry(lft: &[u8], lid: Lid) -> u8 {
    lft.get(lid.index()).copied().unwrap_or(NO_ROUTE)
}

#[cfg(test)]
mod tests {
    use super::super::super::testing;
    use super::*;

    #[test]
    fn lids_that_are_sent_alike_are_looked_at_once() {
        // LIDs 1 to 3 are on switch 0, 4 to 6 on switch 1, behind other ports each.
        let pair = testing::pair(2, 3, 1);
        let mut lfts = vec![vec![NO_ROUTE; pair.table_len()]; 2];
        for to in pair.destinations() {
            lfts[usize::from(to.home)][to.base_lid.index()] = to.exit;
            lfts[usize::from(1 - to.home)][to.base_lid.index()] = 1;
        }
        let found = |lfts: &[Vec<u8>], layers: Option<&Layers>| {
            let lfts: Vec<&[u8]> = lfts.iter().map(Vec::as_slice).collect();
            targets(&pair, &lfts, layers).iter().map(|to| to.lid.0).collect::<Vec<u16>>()
        };
        assert_eq!(found(&lfts, None), [1, 4]);
        let mut layers = Layers::new(2, By::HomeSwitch, 2);
        layers.row_mut(0)[1] = 1;
        assert_eq!(found(&lfts, Some(&layers)), [1, 4], "all LIDs of a switch have its layer");
        let mut layers = Layers::new(2, By::Lid, pair.table_len());
        layers.row_mut(0)[6] = 1;
        assert_eq!(found(&lfts, Some(&layers)), [1, 4, 6]);
        // By another cable there, and by one where it should be delivered.
        lfts[0][5] = 2;
        assert_eq!(found(&lfts, None), [1, 4, 5]);
        lfts[1][6] = 2;
        assert_eq!(found(&lfts, None), [1, 4, 5, 6]);
        lfts[1].truncate(6);
        assert_eq!(found(&lfts, None), [1, 4, 5], "what is missing leads nowhere");
    }
}

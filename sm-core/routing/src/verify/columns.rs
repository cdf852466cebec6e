//! Transposes tables into columns: the next link of each switch for one LID.
//!
//! Following routes LID by LID reads tables column by column, while they are stored row by row.
//! They are transposed a few LIDs at a time. Most engines send all LIDs of a switch's hosts by the
//! same ports: if all switches send several hosts' LIDs of one egress switch by the same ports,
//! which is found by comparing each entry, one of these LIDs represents all.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::super::lanes::{Columns as By, Layers};
use super::super::{Link, NO_ROUTE, Topology};

/// Number of columns transposed at a time.
pub(super) const PORTION: usize = 64;
/// Number of rounds in which LIDs of an egress switch are compared with one of them: the usual
/// number of parallel links.
const ROUNDS: usize = 4;

/// A host's LID and its egress switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) lid: Lid,
    pub(super) egress_switch: u16,
}

/// Lists switches with hosts.
pub(super) fn sources(topology: &Topology) -> Vec<u16> {
    let hosts = topology.hosts_on();
    topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0).collect()
}

/// The next link of each switch for a LID, which may represent others.
pub(super) struct Column<'a> {
    pub(super) to: Target,
    topology: &'a Topology,
    /// By switch: number of the next link, or `NO_LINK`.
    next: &'a [u32],
}

const NO_LINK: u32 = u32::MAX;

impl Column<'_> {
    /// The number of the link by which a switch forwards.
    #[inline]
    pub(super) fn link(&self, switch: u16) -> Option<usize> {
        let link = self.next[usize::from(switch)];
        (link != NO_LINK).then_some(link as usize)
    }

    /// The number of the link by which a switch forwards, and the link.
    #[inline]
    pub(super) fn next(&self, switch: u16) -> Option<(usize, Link)> {
        self.link(switch).map(|number| (number, self.topology.link(number)))
    }
}

/// Returns the columns of some LIDs, preferably consecutive ones. `lfts` is by switch.
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

/// Returns hosts' LIDs in ascending order, without those that all switches send by the same ports
/// as another LID of the same egress switch, in the same layer if there are `layers`. Among LIDs
/// with many different paths some duplicates may remain.
pub(super) fn targets(topology: &Topology, lfts: &[&[u8]], layers: Option<&Layers>) -> Vec<Target> {
    let hosts = topology.destinations().iter().filter(|to| to.is_host());
    let mut open: Vec<Target> = hosts
        .flat_map(|to| to.lids().map(|lid| Target { lid, egress_switch: to.egress_switch }))
        .collect();
    open.sort_by_key(|to| to.egress_switch);
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let mut pairs = Vec::new();
        for of_egress_switch in open.chunk_by(|a, b| a.egress_switch == b.egress_switch) {
            found.push(of_egress_switch[0]);
            pairs.extend(
                of_egress_switch[1..].iter().map(|&to| Pair { first: of_egress_switch[0].lid, to }),
            );
        }
        let differ = differ(topology, lfts, layers, &pairs);
        let left = pairs.iter().zip(&differ).filter(|(_, differs)| **differs);
        open = left.map(|(pair, _)| pair.to).collect();
        // Where most LIDs differ from each other, further comparisons are of little use.
        if open.is_empty() || open.len() * 2 > pairs.len() {
            break;
        }
    }
    found.extend(open);
    found.sort_unstable_by_key(|to| to.lid);
    found
}

/// Two LIDs of an egress switch.
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
            // Where packets leave the fabric, the port does not matter.
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
    fn lids_with_equal_columns_are_examined_once() {
        // LIDs 1 to 3 are on switch 0, 4 to 6 on switch 1, each behind a separate port.
        let pair = testing::pair(2, 3, 1);
        let mut lfts = vec![vec![NO_ROUTE; pair.table_len()]; 2];
        for to in pair.destinations() {
            lfts[usize::from(to.egress_switch)][to.base_lid.index()] = to.exit;
            lfts[usize::from(1 - to.egress_switch)][to.base_lid.index()] = 1;
        }
        let found = |lfts: &[Vec<u8>], layers: Option<&Layers>| {
            let lfts: Vec<&[u8]> = lfts.iter().map(Vec::as_slice).collect();
            targets(&pair, &lfts, layers).iter().map(|to| to.lid.0).collect::<Vec<u16>>()
        };
        assert_eq!(found(&lfts, None), [1, 4]);
        let mut layers = Layers::new(2, By::EgressSwitch, 2);
        layers.row_mut(0)[1] = 1;
        assert_eq!(found(&lfts, Some(&layers)), [1, 4], "all LIDs of a switch have its layer");
        let mut layers = Layers::new(2, By::Lid, pair.table_len());
        layers.row_mut(0)[6] = 1;
        assert_eq!(found(&lfts, Some(&layers)), [1, 4, 6]);
        // Over the other cable, and over a cable where it should be delivered.
        lfts[0][5] = 2;
        assert_eq!(found(&lfts, None), [1, 4, 5]);
        lfts[1][6] = 2;
        assert_eq!(found(&lfts, None), [1, 4, 5, 6]);
        lfts[1].truncate(6);
        assert_eq!(found(&lfts, None), [1, 4, 5], "missing entries lead nowhere");
    }
}

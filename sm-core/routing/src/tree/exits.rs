//! Lists LIDs by the switch that delivers them.

use std::ops::Range;

use super::Tree;
use crate::{Destination, Topology};

/// A LID of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exit {
    /// Index of the LID in a forwarding table.
    pub(super) lid: usize,
    /// The egress switch's port.
    pub(super) port: u8,
    /// Index of [`Topology::destinations`].
    pub(super) destination: u32,
    /// Difference from the host's base LID.
    pub(super) offset: u16,
}

/// LIDs by egress switch.
pub(super) struct Exits {
    /// LIDs of hosts, leaf by leaf in the order of [`Tree::leaves`], and in tree order on each.
    pub(super) hosts: Vec<Exit>,
    /// By switch: its part of `hosts`.
    ranges: Vec<Range<usize>>,
    /// By switch: its own LIDs.
    own: Vec<Vec<usize>>,
}

impl Exits {
    pub(super) fn new(topology: &Topology, tree: &Tree) -> Self {
        let all = topology.destinations();
        let mut own = vec![Vec::new(); topology.switch_count()];
        let mut on = vec![Vec::new(); topology.switch_count()];
        for (to, index) in all.iter().zip(0u32..) {
            let egress_switch = usize::from(to.egress_switch);
            if to.is_host() {
                on[egress_switch].push(index);
            } else {
                own[egress_switch].extend(to.lids().map(|lid| lid.index()));
            }
        }
        let mut hosts = Vec::new();
        let mut ranges = vec![0..0; topology.switch_count()];
        for &leaf in &tree.leaves {
            let on = &mut on[usize::from(leaf)];
            on.sort_unstable_by_key(|&index| (tree.numbers[index as usize], index));
            let first = hosts.len();
            for &destination in &*on {
                let to: &Destination = &all[destination as usize];
                let lids = to.lids().zip(0..);
                hosts.extend(lids.map(|(lid, offset)| Exit {
                    lid: lid.index(),
                    port: to.exit,
                    destination,
                    offset,
                }));
            }
            ranges[usize::from(leaf)] = first..hosts.len();
        }
        Self { hosts, ranges, own }
    }

    /// The part of `hosts` that a switch delivers.
    pub(super) fn range(&self, switch: u16) -> Range<usize> {
        self.ranges[usize::from(switch)].clone()
    }

    /// The LIDs of a switch itself.
    pub(super) fn own(&self, switch: u16) -> &[usize] {
        &self.own[usize::from(switch)]
    }
}

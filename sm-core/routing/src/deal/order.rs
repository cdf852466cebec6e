//! Determines the order and the batches in which destinations are routed.

use std::collections::HashSet;

use ib_mad::types::Lid;

use super::super::regions::Regions;
use super::super::{Destination, Topology};

/// LIDs delivered by one switch and distributed together: hosts' LIDs first, then the switch's own.
pub(crate) struct Batch {
    /// The switch that delivers these LIDs.
    pub(crate) egress_switch: u16,
    /// The LIDs, at most [`Self::LIDS_MAX`].
    pub(crate) lids: Vec<Lid>,
    /// By index in `lids`: the egress switch's port for the LID.
    pub(crate) exits: Vec<u8>,
    /// Number of `lids` that belong to hosts.
    pub(crate) host_lids: usize,
    /// Whether the operator's order places these LIDs first.
    pub(crate) is_ordered: bool,
}

impl Batch {
    /// Largest number of LIDs in a batch: the bits of a word.
    pub(crate) const LIDS_MAX: usize = 64;
}

/// Returns all destinations in batches: first those whose base LIDs are listed in `order`, in that
/// order, then the others.
pub(crate) fn batches(topology: &Topology, order: &[Lid]) -> Vec<Batch> {
    let mut batches = in_order(topology, order);
    let ordered: HashSet<Lid> = order.iter().copied().collect();
    batches.extend(batches_of(topology, |destination| !ordered.contains(&destination.base_lid)));
    batches
}

/// Returns the destinations listed in `order`; neighbours in the list with the same egress switch
/// share a batch.
fn in_order(topology: &Topology, order: &[Lid]) -> Vec<Batch> {
    let all = topology.destinations();
    let find = |lid: &Lid| all.binary_search_by_key(lid, |d| d.base_lid).ok().map(|at| all[at]);
    let destinations: Vec<Destination> = order.iter().filter_map(find).collect();
    let runs = destinations
        .chunk_by(|a, b| (a.egress_switch, a.is_host()) == (b.egress_switch, b.is_host()));
    let portions = runs.flat_map(|run| portions(run[0].egress_switch, run));
    portions.map(|batch| Batch { is_ordered: true, ..batch }).collect()
}

/// Returns selected destinations, in breadth-first order of their egress switches starting from the
/// first switch with a host. Hosts of a switch are ordered by port, and a host's LIDs are
/// consecutive, so that they are assigned to different ports.
pub(crate) fn batches_of(topology: &Topology, takes: impl Fn(&Destination) -> bool) -> Vec<Batch> {
    let mut by_egress_switch: Vec<Vec<Destination>> = vec![Vec::new(); topology.switch_count()];
    for &destination in topology.destinations().iter().filter(|destination| takes(destination)) {
        by_egress_switch[usize::from(destination.egress_switch)].push(destination);
    }
    let mut batches = Vec::with_capacity(by_egress_switch.len());
    let hosts = topology.hosts_on();
    let first = topology.switches().find(|&switch| hosts[usize::from(switch)] > 0);
    // The remaining switches cover the other parts of a fabric that is not connected.
    let starts = first.into_iter().chain(topology.switches());
    for egress_switch in Regions::find(topology, starts, |_, _| true).order {
        let mut destinations = std::mem::take(&mut by_egress_switch[usize::from(egress_switch)]);
        destinations.sort_unstable_by_key(|d| (!d.is_host(), d.exit, d.base_lid));
        batches.extend(portions(egress_switch, &destinations));
    }
    batches
}

/// Splits the destinations of an egress switch into batches, hosts first.
fn portions(egress_switch: u16, destinations: &[Destination]) -> Vec<Batch> {
    let lids = destinations.iter().flat_map(|d| d.lids().map(move |lid| (lid, d.exit)));
    let lids: Vec<(Lid, u8)> = lids.collect();
    let batch = |portion: &[(Lid, u8)]| Batch {
        egress_switch,
        lids: portion.iter().map(|&(lid, _)| lid).collect(),
        exits: portion.iter().map(|&(_, exit)| exit).collect(),
        host_lids: portion.partition_point(|&(_, exit)| exit != 0),
        is_ordered: false,
    };
    lids.chunks(Batch::LIDS_MAX).map(batch).collect()
}

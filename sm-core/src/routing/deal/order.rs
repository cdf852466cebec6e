//! The order in which destinations are routed, and in what portions.

use std::collections::HashSet;

use ib_mad::types::Lid;

use super::super::regions::Regions;
use super::super::{Destination, Topology};

/// LIDs that one switch delivers and that are dealt together: hosts' first, then the switch's own.
pub(in crate::routing) struct Batch {
    /// The switch that delivers.
    pub(in crate::routing) home: u16,
    /// At most [`Self::LIDS_MAX`].
    pub(in crate::routing) lids: Vec<Lid>,
    /// The home switch's port for each.
    pub(in crate::routing) exits: Vec<u8>,
    /// How many of `lids` are hosts'.
    pub(in crate::routing) host_lids: usize,
    /// Whether the operator's order says that these go first.
    pub(in crate::routing) is_ordered: bool,
}

impl Batch {
    /// As many as a word has bits.
    pub(in crate::routing) const LIDS_MAX: usize = 64;
}

/// All destinations: those whose base LIDs are in `order` as they are there, then the others.
pub(in crate::routing) fn batches(topology: &Topology, order: &[Lid]) -> Vec<Batch> {
    let mut batches = in_order(topology, order);
    let ordered: HashSet<Lid> = order.iter().copied().collect();
    batches.extend(batches_of(topology, |destination| !ordered.contains(&destination.base_lid)));
    batches
}

/// Destinations as they are in `order`, those next to each other at once that one switch delivers.
fn in_order(topology: &Topology, order: &[Lid]) -> Vec<Batch> {
    let all = topology.destinations();
    let find = |lid: &Lid| all.binary_search_by_key(lid, |d| d.base_lid).ok().map(|at| all[at]);
    let destinations: Vec<Destination> = order.iter().filter_map(find).collect();
    let runs = destinations.chunk_by(|a, b| (a.home, a.is_host()) == (b.home, b.is_host()));
    let portions = runs.flat_map(|run| portions(run[0].home, run));
    portions.map(|batch| Batch { is_ordered: true, ..batch }).collect()
}

/// Some destinations, in breadth-first order of their homes from the first switch with a host.
/// Hosts of a switch are in the order of their ports, and a host's LIDs follow each other, so that
/// they are dealt to different ports.
pub(in crate::routing) fn batches_of(
    topology: &Topology,
    takes: impl Fn(&Destination) -> bool,
) -> Vec<Batch> {
    let mut by_home: Vec<Vec<Destination>> = vec![Vec::new(); topology.switch_count()];
    for &destination in topology.destinations().iter().filter(|destination| takes(destination)) {
        by_home[usize::from(destination.home)].push(destination);
    }
    let mut batches = Vec::with_capacity(by_home.len());
    let hosts = topology.hosts_on();
    let first = topology.switches().find(|&switch| hosts[usize::from(switch)] > 0);
    // The rest are other parts of a fabric that is not connected.
    let starts = first.into_iter().chain(topology.switches());
    for home in Regions::find(topology, starts, |_, _| true).order {
        let mut destinations = std::mem::take(&mut by_home[usize::from(home)]);
        destinations.sort_unstable_by_key(|d| (!d.is_host(), d.exit, d.base_lid));
        batches.extend(portions(home, &destinations));
    }
    batches
}

/// Destinations of a home, hosts first, as batches.
fn portions(home: u16, destinations: &[Destination]) -> Vec<Batch> {
    let lids = destinations.iter().flat_map(|d| d.lids().map(move |lid| (lid, d.exit)));
    let lids: Vec<(Lid, u8)> = lids.collect();
    let batch = |portion: &[(Lid, u8)]| Batch {
        home,
        lids: portion.iter().map(|&(lid, _)| lid).collect(),
        exits: portion.iter().map(|&(_, exit)| exit).collect(),
        host_lids: portion.partition_point(|&(_, exit)| exit != 0),
        is_ordered: false,
    };
    lids.chunks(Batch::LIDS_MAX).map(batch).collect()
}

//! Looks for the roots of a tree by hops to hosts.

use super::super::{HopMatrix, Topology};

/// Finds roots as OpenSM does: switches that have more than 90 % of all hosts at one distance and
/// at no other more than 5 %. Two things differ, for which that rule is no good. In trees of more
/// than 20 pods it is true of all switches, as only few hosts are in one's own pod: the distance
/// has to be the least of any found. And a root with a cut link would become a leaf of leaves: who
/// has just half of the hosts at that distance is one, too.
pub(super) fn find(topology: &Topology, hops: &HopMatrix) -> Vec<u16> {
    let hosts = topology.hosts_on();
    let total: u64 = hosts.iter().copied().map(u64::from).sum();
    let mut nearest = None;
    // By switch: the distance of most hosts, if it is that of more than half.
    let mut usual = Vec::with_capacity(topology.switch_count());
    for switch in topology.switches() {
        let mut at = [0u64; 256];
        for (&hops, &hosts) in hops.row(switch).iter().zip(&hosts) {
            at[usize::from(hops)] += u64::from(hosts);
        }
        let reachable = &at[..usize::from(HopMatrix::UNREACHABLE)];
        let place = |&hosts: &u64| hosts * 2 > total;
        let most = reachable.iter().position(place);
        usual.push(most);
        let others = reachable.iter().filter(|&&hosts| hosts * 20 > total).count();
        if let Some(most) = most
            && reachable[most] * 10 > total * 9
            && others == 1
        {
            nearest = Some(nearest.map_or(most, |nearest: usize| nearest.min(most)));
        }
    }
    let Some(nearest) = nearest else { return Vec::new() };
    topology.switches().filter(|&switch| usual[usize::from(switch)] == Some(nearest)).collect()
}

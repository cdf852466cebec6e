//! Finds the roots of a tree by hops to hosts.

use crate::{HopMatrix, Topology};

/// Finds roots as OpenSM does: switches that have more than 90 % of all hosts at one distance, and
/// more than 5 % at no other distance. There are two differences, for cases in which that rule
/// fails. In trees of more than 20 pods the rule holds for all switches, as each pod has few of the
/// hosts; therefore the distance must be the smallest of any switch found. And a root with a cut
/// link would count as a leaf below the leaves; therefore a switch with more than half of the hosts
/// at that distance is a root, too.
pub(super) fn find(topology: &Topology, hops: &HopMatrix) -> Vec<u16> {
    let hosts = topology.hosts_on();
    let total: u64 = hosts.iter().copied().map(u64::from).sum();
    let mut nearest = None;
    // By switch: the distance at which it has more than half of the hosts, if any.
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

//! Finds the routes to a LID that pass one switch, and counts them.

use super::{HopMatrix, Topology};

/// The routes to a LID that pass one switch. Finding them takes time proportional to the links of
/// the switches on them, however large the fabric is.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// Switches whose routes pass the given one, starting with it; each precedes those that send
    /// through it.
    switches: Vec<u16>,
    /// By index in `switches`: the index of the next switch on the path.
    next: Vec<u32>,
    /// By index: number of hosts that send from there or through it.
    flows: Vec<u32>,
}

impl Upstream {
    /// Finds the routes that pass switch `at`. `hops` are to the LID's egress switch and fall by
    /// one at each step; `port` returns a switch's entry for the LID, `hosts` is by switch.
    pub(super) fn find(
        &mut self,
        topology: &Topology,
        hops: &[u8],
        hosts: &[u32],
        at: u16,
        port: impl Fn(u16) -> u8,
    ) {
        let Self { switches, next, flows } = self;
        switches.clear();
        next.clear();
        flows.clear();
        switches.push(at);
        next.push(0);
        let mut looked = 0;
        while let Some(&switch) = switches.get(looked) {
            let further = hops[usize::from(switch)].saturating_add(1);
            for link in topology.links(switch) {
                let there = hops[usize::from(link.peer)];
                if there == further
                    && there != HopMatrix::UNREACHABLE
                    && port(link.peer) == link.peer_port
                {
                    switches.push(link.peer);
                    next.push(looked as u32);
                }
            }
            looked += 1;
        }
        flows.extend(switches.iter().map(|&switch| hosts[usize::from(switch)]));
        for place in (1..flows.len()).rev() {
            flows[next[place] as usize] += flows[place];
        }
    }

    /// Number of routes that pass the switch.
    pub(super) fn flow(&self) -> u32 {
        self.flows.first().copied().unwrap_or(0)
    }

    /// All switches that send through it, including itself, and how many hosts send from or through
    /// each.
    pub(super) fn all(&self) -> impl Iterator<Item = (u16, u32)> {
        self.switches.iter().copied().zip(self.flows.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Lid;

    use super::super::{Engine, MinHop, Steering, testing};
    use super::*;

    /// Compares with following each host's route separately.
    #[test]
    fn upstream_equals_following_each_route() {
        for net in [testing::fat_tree(3, 8, 100), testing::torus(&[4, 5], 2)] {
            let topology = testing::topology(&net, 0);
            let routing = MinHop.route(&topology, &Steering::default(), None).unwrap();
            let hosts = topology.hosts_on();
            let mut upstream = Upstream::default();
            for to in topology.destinations() {
                let port = |switch: u16| routing.port(switch, to.base_lid);
                for at in topology.switches() {
                    let row = routing.hops.row(to.egress_switch);
                    upstream.find(&topology, row, &hosts, at, port);
                    let passes =
                        |&from: &u16| way(&topology, &routing, from, to.base_lid).contains(&at);
                    let mut expected: Vec<u16> = topology.switches().filter(passes).collect();
                    let mut found: Vec<u16> = upstream.all().map(|(switch, _)| switch).collect();
                    found.sort_unstable();
                    let flow: u32 = expected.iter().map(|&from| hosts[usize::from(from)]).sum();
                    expected.sort_unstable();
                    assert_eq!((found, upstream.flow()), (expected, flow), "{to:?} by {at}");
                }
            }
        }
    }

    /// The switches on a route.
    fn way(topology: &Topology, routing: &super::super::Routing, from: u16, lid: Lid) -> Vec<u16> {
        let mut way = vec![from];
        while let Some(link) =
            topology.link_at(way[way.len() - 1], routing.port(way[way.len() - 1], lid))
        {
            way.push(topology.link(link).peer);
        }
        way
    }
}

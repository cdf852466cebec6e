//! Counts the routes that pass each link.

use std::num::NonZeroU32;

use super::super::deal::Batch;
use super::super::hops::{First, list_sources};
use super::super::upstream::Upstream;
use super::super::{NO_ROUTE, Previous, Topology};
use super::places;

/// Number of possible port numbers, including 255.
const PORTS: usize = 256;

/// A link's number in the topology plus one, so that it is not 0, and the switch behind it.
#[derive(Clone, Copy)]
struct Next {
    number: NonZeroU32,
    peer: u16,
}

fn next_of(topology: &Topology, switch: u16) -> [Option<Next>; PORTS] {
    let mut next = [None; PORTS];
    for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
        let number = NonZeroU32::new(number as u32 + 1);
        next[usize::from(link.port)] = number.map(|number| Next { number, peer: link.peer });
    }
    next
}

/// Counts the routes of batches.
pub(super) struct Flows<'a> {
    topology: &'a Topology,
    hosts: &'a [u32],
    /// By switch and port: the number of the link there, if any, and the switch behind it. Like the
    /// other per-switch buffers, empty until [`turn_to`](Self::turn_to) is first called.
    next: Vec<[Option<Next>; PORTS]>,
    /// By link: number of routes from hosts to hosts' LIDs.
    pub(super) loads: Vec<u32>,
    /// Switches by hops to the current egress switch, farthest first.
    sources: Vec<u16>,
    /// By switch and index in the batch: number of hosts farther away that send through the switch.
    inflow: Vec<u32>,
    /// By switch: indices of LIDs with inflow, as bits.
    arrived: Vec<u64>,
    upstream: Upstream,
}

impl<'a> Flows<'a> {
    pub(super) fn new(topology: &'a Topology, hosts: &'a [u32]) -> Self {
        Self {
            topology,
            hosts,
            next: Vec::new(),
            loads: vec![0; topology.link_count()],
            sources: Vec::new(),
            inflow: Vec::new(),
            arrived: Vec::new(),
            upstream: Upstream::default(),
        }
    }

    /// Starts counting for an egress switch; `hops` are to it.
    pub(super) fn turn_to(&mut self, hops: &[u8]) {
        if self.next.is_empty() {
            let (topology, switches) = (self.topology, self.topology.switch_count());
            self.next = topology.switches().map(|switch| next_of(topology, switch)).collect();
            self.inflow = vec![0; switches * Batch::LIDS_MAX];
            self.arrived = vec![0; switches];
        }
        list_sources(&mut self.sources, hops, First::Farthest);
    }

    /// Adds the routes to the LIDs of a batch whose bits are set in `of`. Switches must have kept
    /// their numbers.
    pub(super) fn add(&mut self, previous: &Previous<'_>, batch: &Batch, of: u64) {
        if of == 0 {
            return;
        }
        for &switch in &self.sources {
            let index = usize::from(switch);
            let (hosts, arrived) = (self.hosts[index], std::mem::take(&mut self.arrived[index]));
            let passing = if hosts > 0 { of } else { arrived };
            if passing == 0 {
                continue;
            }
            let (lft, next) = (previous.lft(switch), &self.next[index]);
            for place in places(passing) {
                let inflow = &mut self.inflow[index * Batch::LIDS_MAX + place];
                let flow = hosts + std::mem::take(inflow);
                let Some(&port) = lft.get(batch.lids[place].index()) else { continue };
                let Some(Next { number, peer }) = next[usize::from(port)] else { continue };
                let load = &mut self.loads[number.get() as usize - 1];
                *load = load.wrapping_add(flow);
                let peer = usize::from(peer);
                self.inflow[peer * Batch::LIDS_MAX + place] += flow;
                self.arrived[peer] |= 1 << place;
            }
        }
        // Discards flows that arrived at the egress switch.
        for (arrived, inflow) in
            self.arrived.iter_mut().zip(self.inflow.chunks_mut(Batch::LIDS_MAX))
        {
            if std::mem::take(arrived) != 0 {
                inflow.fill(0);
            }
        }
    }

    /// Adds only the routes that pass switches that `lost` their routes to LIDs of a batch, from
    /// these switches on. Links are those of the previous topology. `hops` are to the egress
    /// switch, and fell along the previous routes.
    pub(super) fn add_lost(
        &mut self,
        previous: &Previous<'_>,
        batch: &Batch,
        lost: &[(u8, u16)],
        hops: &[u8],
    ) {
        let topology = self.topology;
        let of_hosts = lost.iter().filter(|&&(place, _)| usize::from(place) < batch.host_lids);
        let mut lost: Vec<(u8, u16)> = of_hosts.copied().collect();
        lost.sort_unstable();
        for of_lid in lost.chunk_by(|a, b| a.0 == b.0) {
            let lid = batch.lids[usize::from(of_lid[0].0)];
            let port =
                |switch: u16| previous.lft(switch).get(lid.index()).copied().unwrap_or(NO_ROUTE);
            for &(place, at) in of_lid {
                self.upstream.find(topology, hops, self.hosts, at, port);
                let flow = self.upstream.flow();
                let mut switch = at;
                // Traffic that arrives at another switch in `lost` is counted there.
                while flow > 0
                    && (switch == at || of_lid.binary_search(&(place, switch)).is_err())
                    && let Some(link) = topology.link_at(switch, port(switch))
                    && hops[usize::from(topology.link(link).peer)] < hops[usize::from(switch)]
                {
                    self.loads[link] = self.loads[link].wrapping_add(flow);
                    switch = topology.link(link).peer;
                }
            }
        }
    }
}

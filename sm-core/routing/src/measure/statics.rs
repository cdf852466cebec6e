//! Measures that need no patterns: loads by all-to-all traffic, and contention.

use rayon::prelude::*;

use super::super::inflow::Inflow;
use super::super::{NO_ROUTE, Topology};
use super::{Groups, Plane};

/// Weight of a host's traffic to a port; that to one of its LIDs is a whole part of it, since a
/// port has at most 2^7 LIDs.
const WHOLE: u64 = 128;
/// Number of destinations that a thread takes at once.
const PORTION: usize = 64;

pub(super) struct Statics {
    /// As [`Quality::all_to_all`](super::Quality::all_to_all).
    pub(super) all_to_all: f64,
    /// As [`Quality::contention`](super::Quality::contention).
    pub(super) contention: f64,
}

/// Sums over destinations, by link.
struct Sums {
    /// Traffic of all hosts, in units of 1 / `WHOLE` flow.
    load: Vec<u64>,
    /// Hosts that receive over the link.
    receivers: Vec<u32>,
    /// Switches with hosts that send over it, as bits; `words` of each link.
    senders: Vec<u64>,
}

impl Statics {
    pub(super) fn of(topology: &Topology, lfts: &[&[u8]], groups: &Groups, plane: Plane) -> Self {
        let all = topology.destinations();
        let hosts: Vec<u32> = groups.iter().flatten().copied().collect();
        let mut hosts_on = vec![0u32; topology.switch_count()];
        hosts.iter().for_each(|&host| {
            hosts_on[usize::from(all[host as usize].egress_switch)] += 1;
        });
        let leaves: Vec<u16> =
            topology.switches().filter(|&switch| hosts_on[usize::from(switch)] > 0).collect();
        let words = leaves.len().div_ceil(64);
        let links = topology.link_count();
        let none = || Sums {
            load: vec![0; links],
            receivers: vec![0; links],
            senders: vec![0; links * words],
        };
        let add = |mut sums: Sums, hosts: &[u32]| {
            let mut routes = Routes::new(topology, lfts, &hosts_on, &leaves);
            let mut seen = vec![u32::MAX; links];
            for &host in hosts {
                let to = &all[host as usize];
                let lids = if plane == Plane::Base { 1 } else { to.lid_count };
                let weight = WHOLE / u64::from(lids);
                for lid in to.lids().take(lids.into()) {
                    routes.collect(to.egress_switch, lid.index(), |link, flow, senders| {
                        sums.load[link] += u64::from(flow) * weight;
                        sums.receivers[link] += u32::from(seen[link] != host);
                        seen[link] = host;
                        let bits = &mut sums.senders[link * words..][..words];
                        bits.iter_mut().zip(senders).for_each(|(bits, more)| *bits |= more);
                    });
                }
            }
            sums
        };
        let sums = hosts.par_chunks(PORTION).fold(none, add).reduce(none, Sums::join);
        let most = sums.load.iter().copied().max().unwrap_or(0) as f64 / WHOLE as f64;
        let others = hosts.len().saturating_sub(1) as f64;
        let smaller = |(link, &receivers): (usize, &u32)| {
            let bits = &sums.senders[link * words..][..words];
            let senders: u32 = leaves
                .iter()
                .enumerate()
                .filter(|(leaf, _)| bits[leaf / 64] >> (leaf % 64) & 1 != 0)
                .map(|(_, &leaf)| hosts_on[usize::from(leaf)])
                .sum();
            u64::from(senders.min(receivers))
        };
        let contention: u64 = sums.receivers.iter().enumerate().map(smaller).sum();
        Self {
            all_to_all: if most > others { others / most } else { 1.0 },
            contention: contention as f64 / links.max(1) as f64,
        }
    }
}

impl Sums {
    fn join(mut self, other: Self) -> Self {
        self.load.iter_mut().zip(other.load).for_each(|(a, b)| *a += b);
        self.receivers.iter_mut().zip(other.receivers).for_each(|(a, b)| *a += b);
        self.senders.iter_mut().zip(other.senders).for_each(|(a, b)| *a |= b);
        self
    }
}

/// Routes of hosts to one LID.
struct Routes<'a> {
    topology: &'a Topology,
    lfts: &'a [&'a [u8]],
    hosts_on: &'a [u32],
    leaves: &'a [u16],
    words: usize,
    inflow: Inflow,
    /// By switch: hosts whose routes pass it, and their switches as bits.
    flow: Vec<u32>,
    senders: Vec<u64>,
}

impl<'a> Routes<'a> {
    fn new(
        topology: &'a Topology,
        lfts: &'a [&'a [u8]],
        hosts_on: &'a [u32],
        leaves: &'a [u16],
    ) -> Self {
        let (switches, words) = (topology.switch_count(), leaves.len().div_ceil(64));
        Self {
            topology,
            lfts,
            hosts_on,
            leaves,
            words,
            inflow: Inflow::new(switches),
            flow: vec![0; switches],
            senders: vec![0; switches * words],
        }
    }

    /// Reports each link that hosts' routes to a LID pass, with their number and the bits of their
    /// switches. Routes that loop count up to the loop.
    fn collect(&mut self, egress: u16, lid: usize, mut report: impl FnMut(usize, u32, &[u64])) {
        let Self { topology, lfts, words, .. } = *self;
        let Self { inflow, flow, senders, .. } = self;
        flow.copy_from_slice(self.hosts_on);
        senders.fill(0);
        for (leaf, &switch) in self.leaves.iter().enumerate() {
            senders[usize::from(switch) * words + leaf / 64] |= 1 << (leaf % 64);
        }
        let port = |switch: u16| {
            let lft = lfts.get(usize::from(switch)).filter(|_| switch != egress);
            lft.and_then(|lft| lft.get(lid)).copied().unwrap_or(NO_ROUTE)
        };
        inflow.walk(topology, port, |switch, link, next| {
            if flow[switch] > 0 {
                report(link, flow[switch], &senders[switch * words..][..words]);
                flow[next] += flow[switch];
                for word in 0..words {
                    senders[next * words + word] |= senders[switch * words + word];
                }
            }
        });
    }
}

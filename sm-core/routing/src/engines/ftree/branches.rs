//! Stores each switch's up or down links contiguously, and finds those that come closer.

use crate::deal::PathRules;
use crate::engines::updn::{Labels, phase};
use crate::{HopMatrix, Topology};

/// Links of all switches in one direction, up or down.
pub(super) struct Branches {
    /// By switch: index of its first link; one more entry than switches.
    first: Vec<u32>,
    all: Vec<Branch>,
}

/// A link of a switch to one above or below it.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    /// Link number in the topology.
    pub(super) link: u32,
    /// Number of the same link from its other end.
    pub(super) back: u32,
    pub(super) peer: u16,
    pub(super) port: u8,
    pub(super) peer_port: u8,
    /// Whether another of the links leads to the same switch.
    pub(super) is_parallel: bool,
}

impl Branches {
    /// Collects the links whose numbers `takes` accepts.
    pub(super) fn new(topology: &Topology, takes: impl Fn(usize) -> bool) -> Self {
        let mut branches = Self { first: vec![0], all: Vec::with_capacity(topology.link_count()) };
        for switch in topology.switches() {
            let links = topology.links(switch);
            for (link, number) in links.iter().zip(topology.link_range(switch)) {
                if takes(number) {
                    let back = topology.link_at(link.peer, link.peer_port);
                    let alike = links.iter().filter(|other| other.peer == link.peer);
                    branches.all.push(Branch {
                        link: number as u32,
                        back: back.unwrap_or(number) as u32,
                        peer: link.peer,
                        port: link.port,
                        peer_port: link.peer_port,
                        is_parallel: alike.count() > 1,
                    });
                }
            }
            branches.first.push(branches.all.len() as u32);
        }
        branches
    }

    /// Returns the links of a switch, by ascending port.
    #[inline]
    pub(super) fn of(&self, switch: u16) -> &[Branch] {
        let switch = usize::from(switch);
        &self.all[self.first[switch] as usize..self.first[switch + 1] as usize]
    }
}

/// Finds the links that come closer to the current egress switch without scanning all others: from
/// most switches of a tree, either every uplink comes closer or a few downlinks do.
pub(super) struct Leftovers {
    /// One bit per switch and egress switch: whether all uplinks of the switch come closer.
    all_up: Vec<u64>,
    /// Words of `all_up` per switch.
    words: usize,
    egress_switch: u16,
    /// Downlinks that come closer, each with the index of the next of the same switch.
    down: Vec<(Branch, u32)>,
    /// By switch: the last of its downlinks found.
    last_down: Vec<u32>,
    /// Switches that have such downlinks.
    found: Vec<u16>,
    /// Scratch space.
    candidates: Vec<Branch>,
}

/// Represents no further link.
const NONE: u32 = u32::MAX;

impl Leftovers {
    /// `hops` are those of the labels, one row per switch.
    pub(super) fn new(
        topology: &Topology,
        labels: &Labels,
        hops: &HopMatrix,
        above: &Branches,
    ) -> Self {
        let switches = topology.switch_count();
        let words = switches.div_ceil(64);
        let mut all_up = vec![0; words * switches];
        let mut closer = vec![0u8; switches];
        for (switch, words) in topology.switches().zip(all_up.chunks_mut(words)) {
            // Where routes break the up/down rule, links are checked one by one.
            let ups = if labels.is_connected { &[][..] } else { above.of(switch) };
            closer.fill(0);
            for branch in ups {
                let there = hops.row(branch.peer).iter().zip(hops.row(switch));
                for (closer, (&there, &here)) in closer.iter_mut().zip(there) {
                    *closer += u8::from(there.wrapping_add(1) == here);
                }
            }
            for (word, closer) in words.iter_mut().zip(closer.chunks(64)) {
                for (bit, &closer) in closer.iter().enumerate() {
                    *word |= u64::from(usize::from(closer) == ups.len()) << bit;
                }
            }
            if ups.is_empty() {
                words.fill(0);
            }
        }
        Self {
            all_up,
            words,
            egress_switch: 0,
            down: Vec::new(),
            last_down: vec![NONE; switches],
            found: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Starts the search for an egress switch.
    pub(super) fn begin(&mut self, labels: &Labels, egress_switch: u16, above: &Branches) {
        self.egress_switch = egress_switch;
        for switch in self.found.drain(..) {
            self.last_down[usize::from(switch)] = NONE;
        }
        self.down.clear();
        if labels.is_connected {
            return;
        }
        let (hops, phases) = (labels.hops.row(egress_switch), labels.phases(egress_switch));
        let mut next = 0;
        let mut at = Some(egress_switch);
        while let Some(switch) = at {
            let level = hops[usize::from(switch)] + 1;
            for branch in above.of(switch) {
                let peer = usize::from(branch.peer);
                if hops[peer] == level && phases[peer] == phase::DOWN {
                    if self.last_down[peer] == NONE {
                        self.found.push(branch.peer);
                    }
                    let last = std::mem::replace(&mut self.last_down[peer], self.down.len() as u32);
                    self.down.push((branch.reversed(switch), last));
                }
            }
            at = self.found.get(next).copied();
            next += 1;
        }
    }

    /// Returns the links of a switch that come closer to the egress switch, by ascending port.
    pub(super) fn candidates<'a>(
        &'a mut self,
        topology: &Topology,
        labels: &Labels,
        switch: u16,
        above: &'a Branches,
    ) -> &'a [Branch] {
        let (egress_switch, index) = (usize::from(self.egress_switch), usize::from(switch));
        let is_upward = labels.phases(self.egress_switch)[index] == phase::UP;
        if is_upward
            && self.all_up[index * self.words + egress_switch / 64] >> (egress_switch % 64) & 1 == 1
        {
            return above.of(switch);
        }
        self.candidates.clear();
        let mut next = self.last_down[index];
        while let Some(&(branch, before)) = self.down.get(next as usize) {
            self.candidates.push(branch);
            next = before;
        }
        if self.candidates.is_empty() {
            let (hops, path_rules) =
                (labels.hops.row(self.egress_switch), labels.path_rules(self.egress_switch));
            let closer = hops[index] - 1;
            for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
                let number = number as u32;
                if hops[usize::from(link.peer)] == closer
                    && path_rules.allow(switch, number, link.peer)
                {
                    let back = topology.link_at(link.peer, link.peer_port);
                    self.candidates.push(Branch {
                        link: number,
                        back: back.map_or(number, |back| back as u32),
                        peer: link.peer,
                        port: link.port,
                        peer_port: link.peer_port,
                        is_parallel: false,
                    });
                }
            }
        } else {
            self.candidates.sort_unstable_by_key(|branch| branch.port);
        }
        &self.candidates
    }
}

impl Branch {
    /// Returns the same link from its other end; `peer` is the switch at this end.
    fn reversed(self, peer: u16) -> Self {
        let Self { link, back, port, peer_port, .. } = self;
        Self { link: back, back: link, peer, port: peer_port, peer_port: port, ..self }
    }
}

//! Which routes may stay as they were before.

use super::super::{HopMatrix, Previous, Topology};
use super::candidates::Candidate;

/// What was routed before, and how that relates to the topology now.
pub(super) struct Stay<'a> {
    previous: &'a Previous<'a>,
    /// Hops then, row a home switch.
    hops_then: &'a HopMatrix,
    /// By switch: whether each of its links was there before.
    same_links: Vec<bool>,
    /// Hops before from the home of the batch at hand, by switch then; empty if it is new.
    hops: &'a [u8],
    /// Whether no switch is nearer to the home or further away than before.
    same_hops: bool,
}

impl<'a> Stay<'a> {
    pub(super) fn new(
        topology: &Topology,
        previous: &'a Previous<'a>,
        hops_then: &'a HopMatrix,
    ) -> Self {
        let same_links = topology.switches().map(|switch| {
            let Some(then) = previous.switch(switch) else { return false };
            topology
                .links(switch)
                .iter()
                .all(|link| was_linked(previous, then, link.port, link.peer))
        });
        let same_links = same_links.collect();
        Self { previous, hops_then, same_links, hops: &[], same_hops: false }
    }

    /// Turns to the batches of a home switch, to which `hops` lead now.
    pub(super) fn begin(&mut self, home: u16, hops: &[u8]) {
        let previous = self.previous;
        self.hops = previous.switch(home).map_or(&[], |then| self.hops_then.row(then));
        self.same_hops = !self.hops.is_empty()
            && (0u16..).zip(hops).all(|(switch, &hops)| {
                previous.switch(switch).is_some_and(|then| self.hops[usize::from(then)] == hops)
            });
    }

    /// The table that a switch had before; empty if it has candidates for the home at hand that
    /// it did not have then.
    pub(super) fn table(&self, switch: u16, candidates: &[Candidate]) -> &'a [u8] {
        let Some(then) = self.previous.switch(switch).filter(|_| !self.hops.is_empty()) else {
            return &[];
        };
        let had = |candidate: &Candidate| {
            let Some(peer) = self.previous.switch(candidate.peer) else { return false };
            was_linked(self.previous, then, candidate.port, candidate.peer)
                && self.hops[usize::from(peer)].checked_add(1) == Some(self.hops[usize::from(then)])
        };
        let same = self.same_hops && self.same_links[usize::from(switch)];
        if same || candidates.iter().all(had) { self.previous.lft(switch) } else { &[] }
    }
}

/// Whether a port led to a switch before.
fn was_linked(previous: &Previous<'_>, then: u16, port: u8, peer: u16) -> bool {
    let Some(link) = previous.topology.link_at(then, port) else { return false };
    previous.switch(peer) == Some(previous.topology.link(link).peer)
}

//! The routes to one LID: the next link of each switch.

use ib_mad::types::Lid;

use crate::{Entries, Topology};

/// The next link of each switch for a LID. Routes end at the egress switch; there are no loops.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// By switch: number of the next link, or [`NO_LINK`].
    next: Vec<u32>,
}

/// Marks that a switch forwards to no switch.
const NO_LINK: u32 = u32::MAX;

impl Column {
    /// Reads the column of a LID from tables, given by switch.
    pub(super) fn read(topology: &Topology, lfts: &[Entries], lid: Lid) -> Self {
        let next = |switch: u16| {
            let port = lfts[usize::from(switch)].get(lid.index()).copied();
            let link = port.and_then(|port| topology.link_at(switch, port));
            link.map_or(NO_LINK, |link| link as u32)
        };
        Self { next: topology.switches().map(next).collect() }
    }

    /// The next link of a switch.
    #[inline]
    pub(super) fn next(&self, switch: u16) -> Option<u32> {
        Some(self.next[usize::from(switch)]).filter(|&link| link != NO_LINK)
    }

    /// Changes the next link of a switch.
    pub(super) fn set(&mut self, switch: u16, link: u32) {
        self.next[usize::from(switch)] = link;
    }

    /// The links of the route from a switch, in order.
    #[inline]
    pub(super) fn path<'a>(
        &'a self,
        topology: &'a Topology,
        source: u16,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut switch = source;
        std::iter::from_fn(move || {
            let link = self.next(switch)?;
            switch = topology.link(link as usize).peer;
            Some(link)
        })
    }

    /// Sets `upstream` to a switch and all switches whose routes pass it.
    pub(super) fn upstream(&self, topology: &Topology, at: u16, upstream: &mut Vec<u16>) {
        upstream.clear();
        upstream.push(at);
        let mut looked = 0;
        while let Some(&switch) = upstream.get(looked) {
            let sends = |peer: u16, port: u8| {
                let link = self.next(peer).map(|link| topology.link(link as usize));
                link.is_some_and(|link| link.port == port)
            };
            let links = topology.links(switch).iter();
            upstream.extend(links.filter(|l| sends(l.peer, l.peer_port)).map(|link| link.peer));
            looked += 1;
        }
    }
}

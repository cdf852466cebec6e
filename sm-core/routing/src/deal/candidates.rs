//! Finds the ports of each switch that lead closer to an egress switch, and the load of the paths
//! that start there.

use ib_mad::types::Lid;

use super::super::{Ties, Topology};

/// A port of a switch that leads closer to the egress switch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Candidate {
    /// Link number in the topology.
    pub(crate) link: u32,
    pub(crate) peer: u16,
    pub(crate) port: u8,
}

/// An engine's rules for routes to the current egress switch: which links lead closer, and which of
/// these may be used.
pub(crate) trait PathRules {
    /// Whether [`Self::narrow`] ever removes a candidate.
    const NARROWS: bool = false;
    /// Whether [`Self::allow`] never refuses a link.
    const ALLOWS_ALL: bool = false;

    /// Whether the peer on a link, with `there` hops left, is closer to the egress switch than the
    /// switch itself, which has `closer + 1` hops left.
    #[inline]
    fn is_closer(&self, closer: u8, there: u8, _switch: u16, _link: u32, _peer: u16) -> bool {
        there == closer
    }

    /// Whether a switch may forward over a link to its peer, which is closer.
    #[inline]
    fn allow(&self, _switch: u16, _link: u32, _peer: u16) -> bool {
        true
    }

    /// All that [`Self::allow`] depends on, besides the link: a number of the switch, and of the
    /// peer.
    #[inline]
    fn of_switch(&self, _switch: u16) -> u8 {
        0
    }

    /// All that [`Self::allow`] depends on of the link.
    #[inline]
    fn of_link(&self, _link: u32) -> u8 {
        0
    }

    /// Removes candidates of a switch from those at index `first` onwards, but never all of them.
    #[inline]
    fn narrow(&self, _switch: u16, _candidates: &mut Vec<Candidate>, _first: usize) {}
}

impl<W: PathRules> PathRules for &W {
    const NARROWS: bool = W::NARROWS;
    const ALLOWS_ALL: bool = W::ALLOWS_ALL;

    #[inline]
    fn is_closer(&self, closer: u8, there: u8, switch: u16, link: u32, peer: u16) -> bool {
        (**self).is_closer(closer, there, switch, link, peer)
    }

    #[inline]
    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        (**self).allow(switch, link, peer)
    }

    #[inline]
    fn of_switch(&self, switch: u16) -> u8 {
        (**self).of_switch(switch)
    }

    #[inline]
    fn of_link(&self, link: u32) -> u8 {
        (**self).of_link(link)
    }

    #[inline]
    fn narrow(&self, switch: u16, candidates: &mut Vec<Candidate>, first: usize) {
        (**self).narrow(switch, candidates, first);
    }
}

/// Allows every shortest path.
pub(crate) struct Shortest;

impl PathRules for Shortest {
    const ALLOWS_ALL: bool = true;
}

/// The candidates of all switches for one egress switch.
pub(crate) struct Candidates {
    /// Candidates of all sources, starting with those of the nearest source.
    all: Vec<Candidate>,
    /// By index in the sources: start and end of its candidates in `all`.
    bounds: Vec<(u32, u32)>,
    /// By index in `all`: the load of the path to the egress switch, summed over its links.
    loads: Vec<u64>,
    /// By switch: the smallest load of any path to the egress switch.
    ahead: Vec<u64>,
    /// By link: the rank of its port in the switch's order of preference. If empty, ports are
    /// ordered by number.
    places: Vec<u16>,
    /// How equally good candidates are ordered, and the LID for which they are.
    ties: (Ties, Lid),
}

impl Candidates {
    /// Creates an empty list for ports that are preferred in the order of `places`.
    pub(crate) fn in_order(places: Vec<u16>) -> Self {
        Self {
            all: Vec::new(),
            bounds: Vec::new(),
            loads: Vec::new(),
            ahead: Vec::new(),
            places,
            ties: (Ties::InTurn, Lid::NONE),
        }
    }

    /// Selects how equally good candidates are ordered, for a LID.
    pub(crate) fn set_ties(&mut self, ties: Ties, lid: Lid) {
        self.ties = (ties, lid);
    }

    /// Whether the candidates of a source ascend by port number.
    pub(crate) fn are_by_port(&self) -> bool {
        self.places.is_empty()
    }

    /// Finds the candidates of all `sources`, which are ordered by hops, farthest first. `loads` is
    /// indexed by link.
    #[inline(never)] // Inlined into its caller, its loops run out of registers.
    pub(crate) fn find<W: PathRules>(
        &mut self,
        topology: &Topology,
        egress_switch: u16,
        hops: &[u8],
        sources: &[u16],
        loads: &[u32],
        path_rules: &W,
    ) {
        let Self { all, bounds, loads: sums, ahead, places, ties: (ties, lid) } = self;
        all.clear();
        sums.clear();
        bounds.resize(sources.len(), (0, 0));
        ahead.resize(hops.len(), 0);
        let ahead = &mut ahead[..];
        ahead[usize::from(egress_switch)] = 0;
        for (&switch, bounds) in sources.iter().zip(bounds).rev() {
            let first = all.len();
            let closer = hops[usize::from(switch)] - 1;
            let mut least = u64::MAX;
            let links = topology.links(switch);
            let range = topology.link_range(switch);
            let numbers = range.start as u32..range.end as u32;
            for ((link, number), &load) in links.iter().zip(numbers).zip(&loads[range]) {
                let there = hops[usize::from(link.peer)];
                if path_rules.is_closer(closer, there, switch, number, link.peer)
                    && path_rules.allow(switch, number, link.peer)
                {
                    let sum = ahead[usize::from(link.peer)] + u64::from(load);
                    least = least.min(sum);
                    sums.push(sum);
                    all.push(Candidate { link: number, peer: link.peer, port: link.port });
                }
            }
            if W::NARROWS {
                path_rules.narrow(switch, all, first);
            }
            if !places.is_empty() {
                all[first..].sort_unstable_by_key(|candidate| places[candidate.link as usize]);
            }
            ties.arrange(switch, *lid, &mut all[first..], |candidate| candidate.port);
            if W::NARROWS || !places.is_empty() || *ties != Ties::InTurn {
                sums.truncate(first);
                sums.extend(all[first..].iter().map(|candidate| {
                    ahead[usize::from(candidate.peer)] + u64::from(loads[candidate.link as usize])
                }));
            }
            ahead[usize::from(switch)] = least;
            *bounds = (first as u32, all.len() as u32);
        }
    }

    /// Returns the candidates of the source at index `place`: at least one, ordered by port, by
    /// preference, or by the tie-breaking rule.
    pub(crate) fn of(&self, place: usize) -> &[Candidate] {
        let (first, end) = self.bounds[place];
        &self.all[first as usize..end as usize]
    }

    /// Returns the loads of the paths that start with these candidates.
    pub(crate) fn loads_of(&self, place: usize) -> &[u64] {
        let (first, end) = self.bounds[place];
        &self.loads[first as usize..end as usize]
    }
}

/// Lists the links by which a switch may forward to the egress switch of `hops`, by ascending port.
pub(crate) fn list_candidates(
    topology: &Topology,
    hops: &[u8],
    path_rules: &impl PathRules,
    switch: u16,
    candidates: &mut Vec<Candidate>,
) {
    candidates.clear();
    let here = hops[usize::from(switch)];
    for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
        let number = number as u32;
        if hops[usize::from(link.peer)].checked_add(1) == Some(here)
            && path_rules.allow(switch, number, link.peer)
        {
            candidates.push(Candidate { link: number, peer: link.peer, port: link.port });
        }
    }
    path_rules.narrow(switch, candidates, 0);
}

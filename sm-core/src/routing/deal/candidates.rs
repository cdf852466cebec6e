//! Which ports of which switches lead closer to a home switch, and how loaded the ways there are.

use ib_mad::types::Lid;

use super::super::{Ties, Topology};

/// One of a switch's ports that lead closer to the home.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::routing) struct Candidate {
    /// Number of the link in the topology.
    pub(in crate::routing) link: u32,
    pub(in crate::routing) peer: u16,
    pub(in crate::routing) port: u8,
}

/// What an engine asks of a route to the home at hand besides that it comes closer.
pub(in crate::routing) trait Ways {
    /// Whether [`Self::narrow`] ever takes any away.
    const NARROWS: bool = false;

    /// Whether a peer that has `there` hops left is closer than a switch that has one more than
    /// `closer`, by a link of this number.
    #[inline]
    fn is_closer(&self, closer: u8, there: u8, _switch: u16, _link: u32, _peer: u16) -> bool {
        there == closer
    }

    /// Whether a switch may send by a link of this number to the peer behind it, which is closer.
    #[inline]
    fn allow(&self, _switch: u16, _link: u32, _peer: u16) -> bool {
        true
    }

    /// Takes candidates of a switch away, those from `first` on, but not all of them.
    #[inline]
    fn narrow(&self, _switch: u16, _candidates: &mut Vec<Candidate>, _first: usize) {}
}

impl<W: Ways> Ways for &W {
    const NARROWS: bool = W::NARROWS;

    #[inline]
    fn is_closer(&self, closer: u8, there: u8, switch: u16, link: u32, peer: u16) -> bool {
        (**self).is_closer(closer, there, switch, link, peer)
    }

    #[inline]
    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        (**self).allow(switch, link, peer)
    }

    #[inline]
    fn narrow(&self, switch: u16, candidates: &mut Vec<Candidate>, first: usize) {
        (**self).narrow(switch, candidates, first);
    }
}

/// All shortest ways will do.
pub(in crate::routing) struct Shortest;

impl Ways for Shortest {}

/// The candidates of all switches for one home.
pub(in crate::routing) struct Candidates {
    /// Of the nearest source first.
    all: Vec<Candidate>,
    /// By place in the sources: where its candidates begin, and behind them where they end.
    bounds: Vec<(u32, u32)>,
    /// By place in `all`: the load of the way to the home, summed over its links.
    loads: Vec<u64>,
    /// By switch: the least load of a way to the home.
    ahead: Vec<u64>,
    /// By link: the place of its port in the order in which its switch prefers them; empty: that of
    /// their numbers.
    places: Vec<u16>,
    /// How those that are equally good stand, and for which LID.
    ties: (Ties, Lid),
}

impl Candidates {
    /// None yet, for ports that are preferred by `places`.
    pub(in crate::routing) fn in_order(places: Vec<u16>) -> Self {
        Self {
            all: Vec::new(),
            bounds: Vec::new(),
            loads: Vec::new(),
            ahead: Vec::new(),
            places,
            ties: (Ties::InTurn, Lid::NONE),
        }
    }

    /// From now on those that are equally good are put in order by `ties` for a LID.
    pub(in crate::routing) fn set_ties(&mut self, ties: Ties, lid: Lid) {
        self.ties = (ties, lid);
    }

    /// Whether candidates of a source ascend by port.
    pub(in crate::routing) fn are_by_port(&self) -> bool {
        self.places.is_empty()
    }

    /// Finds those of all `sources`, which are ordered by hops, the farthest first. `loads` are by
    /// link.
    #[inline(never)] // Inlined into its caller, its loops run out of registers.
    pub(in crate::routing) fn find<W: Ways>(
        &mut self,
        topology: &Topology,
        home: u16,
        hops: &[u8],
        sources: &[u16],
        loads: &[u32],
        ways: &W,
    ) {
        let Self { all, bounds, loads: sums, ahead, places, ties: (ties, lid) } = self;
        all.clear();
        sums.clear();
        bounds.resize(sources.len(), (0, 0));
        ahead.resize(hops.len(), 0);
        let ahead = &mut ahead[..];
        ahead[usize::from(home)] = 0;
        for (&switch, bounds) in sources.iter().zip(bounds).rev() {
            let first = all.len();
            let closer = hops[usize::from(switch)] - 1;
            let mut least = u64::MAX;
            let links = topology.links(switch);
            let range = topology.link_range(switch);
            let numbers = range.start as u32..range.end as u32;
            for ((link, number), &load) in links.iter().zip(numbers).zip(&loads[range]) {
                let there = hops[usize::from(link.peer)];
                if ways.is_closer(closer, there, switch, number, link.peer)
                    && ways.allow(switch, number, link.peer)
                {
                    let sum = ahead[usize::from(link.peer)] + u64::from(load);
                    least = least.min(sum);
                    sums.push(sum);
                    all.push(Candidate { link: number, peer: link.peer, port: link.port });
                }
            }
            if W::NARROWS {
                ways.narrow(switch, all, first);
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

    /// Those of the source at `place`, at least one, by ascending port or place, or as ties have them.
    pub(in crate::routing) fn of(&self, place: usize) -> &[Candidate] {
        let (first, end) = self.bounds[place];
        &self.all[first as usize..end as usize]
    }

    /// The loads of the ways that begin with them.
    pub(in crate::routing) fn loads_of(&self, place: usize) -> &[u64] {
        let (first, end) = self.bounds[place];
        &self.loads[first as usize..end as usize]
    }
}

/// Lists the links by which a switch may send to a home that `hops` lead to, by ascending port.
pub(in crate::routing) fn list_candidates(
    topology: &Topology,
    hops: &[u8],
    ways: &impl Ways,
    switch: u16,
    candidates: &mut Vec<Candidate>,
) {
    candidates.clear();
    let here = hops[usize::from(switch)];
    for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
        let number = number as u32;
        if hops[usize::from(link.peer)].checked_add(1) == Some(here)
            && ways.allow(switch, number, link.peer)
        {
            candidates.push(Candidate { link: number, peer: link.peer, port: link.port });
        }
    }
    ways.narrow(switch, candidates, 0);
}

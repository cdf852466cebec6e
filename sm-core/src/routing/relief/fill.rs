//! Links that came back are given their share.

use super::super::Entries;
use super::super::deal::{Candidate, Ways, list_candidates};
use super::super::hops::{First, list_sources};
use super::{Effort, Relief, Stream, trace_cost};

impl<W: Ways, F: Fn(u16) -> W> Relief<'_, F> {
    /// Gives links that came back what is theirs, until they have as many routes as links of their
    /// switch have on average: routes that it sends by more loaded links, and then routes of others
    /// that may come by it.
    pub(in super::super) fn fill(
        &mut self,
        links: &[(u16, usize)],
        lfts: &mut [Entries],
        effort: Effort,
    ) {
        self.left = effort.switches;
        for &(sender, link) in links {
            let all = self.topology.link_range(sender);
            let sum: u64 = all.clone().map(|link| u64::from(self.loads[link])).sum();
            let share = (sum / all.len().max(1) as u64) as u32;
            for place in 0..self.streams.len() {
                if self.loads[link] >= share || self.left == 0 {
                    break;
                }
                self.draw(sender, link, share, self.streams[place], lfts);
            }
            for place in 0..self.streams.len() {
                if self.loads[link] >= share || self.left == 0 {
                    break;
                }
                self.pull(sender, link, share, self.streams[place], lfts);
            }
        }
    }

    /// Has a switch send a LID by a link, if it may and sends it by one that has more than its share.
    fn draw(&mut self, sender: u16, link: usize, share: u32, stream: Stream, lfts: &mut [Entries]) {
        let Stream { lid, home, .. } = stream;
        let row = self.hops.row(home);
        let to = self.topology.link(link);
        let port = lfts[usize::from(sender)][lid.index()];
        let Some(old) = self.topology.link_at(sender, port) else { return };
        if self.loads[old] <= share
            || row[usize::from(to.peer)].checked_add(1) != Some(row[usize::from(sender)])
            || !self.trace(sender, stream, lfts)
        {
            return;
        }
        list_candidates(self.topology, row, &(self.ways)(home), sender, &mut self.candidates);
        let is_it = |candidate: &&Candidate| candidate.link as usize == link;
        let Some(&candidate) = self.candidates.iter().find(is_it) else { return };
        let (first, count) = stream.siblings;
        let lft = &lfts[usize::from(sender)][first.index()..][..usize::from(count)];
        if count > 1 && lft.contains(&candidate.port) {
            return;
        }
        let limit = self.loads[old];
        let old = self.way(sender, None, lid, home, lfts);
        let Some((old, new)) = old.zip(self.way(sender, Some(&candidate), lid, home, lfts)) else {
            return;
        };
        let flow = self.flows[usize::from(sender)];
        let mut fuller = new.iter().filter(|link| !old.contains(link));
        if fuller.all(|&link| self.loads[link] + flow < limit) {
            self.shift(flow, &old, &new);
            lfts[usize::from(sender)][lid.index()] = candidate.port;
        }
    }

    /// Has switches whose routes to a LID do not come by a link send to one whose do, the nearest
    /// first, where that takes them off links with more than the share.
    fn pull(&mut self, sender: u16, link: usize, share: u32, stream: Stream, lfts: &mut [Entries]) {
        let Stream { lid, home, siblings: (first, count), .. } = stream;
        let (row, port) = (self.hops.row(home), self.topology.link(link).port);
        // Nobody sends to it yet, perhaps, so that it is told from others by its own entry.
        if lfts[usize::from(sender)][lid.index()] != port || sender == home {
            return;
        }
        self.trace_all(link, stream, lfts);
        self.passes[usize::from(sender)] = true;
        let ways = (self.ways)(home);
        for place in 0..self.sources.len() {
            let switch = self.sources[place];
            let flow = self.flows[usize::from(switch)];
            if flow == 0
                || self.passes[usize::from(switch)]
                || row[usize::from(switch)] <= row[usize::from(sender)]
            {
                continue;
            }
            let Some(left) = self.left.checked_sub(1) else { return };
            self.left = left;
            list_candidates(self.topology, row, &ways, switch, &mut self.candidates);
            let leads = |candidate: &&Candidate| self.passes[usize::from(candidate.peer)];
            let Some(&candidate) = self.candidates.iter().find(leads) else { continue };
            let lft = &lfts[usize::from(switch)][first.index()..][..usize::from(count)];
            if count > 1 && lft.contains(&candidate.port) {
                continue;
            }
            let old = self.way(switch, None, lid, home, lfts);
            let new = self.way(switch, Some(&candidate), lid, home, lfts);
            let Some((old, new)) = old.zip(new) else { continue };
            let left_behind = old.iter().filter(|link| !new.contains(link));
            let limit = left_behind.map(|&link| self.loads[link]).max().unwrap_or(0);
            let mut fuller = new.iter().filter(|link| !old.contains(link));
            let fits = fuller.all(|&link| self.loads[link] + flow < limit);
            if limit > share && fits && new.contains(&link) && !old.contains(&link) {
                self.shift(flow, &old, &new);
                lfts[usize::from(switch)][lid.index()] = candidate.port;
                self.passes[usize::from(switch)] = true;
                for (way, is_new) in [(&old, false), (&new, true)] {
                    for &link in way {
                        let flows = &mut self.flows[usize::from(self.topology.link(link).peer)];
                        *flows = if is_new { *flows + flow } else { flows.saturating_sub(flow) };
                    }
                }
                if self.loads[link] >= share {
                    return;
                }
            }
        }
    }

    /// Finds out who sends a LID how often, and from which switches it comes to a link.
    fn trace_all(&mut self, link: usize, stream: Stream, lfts: &[Entries]) {
        let Stream { lid, home, weight, .. } = stream;
        self.left = self.left.saturating_sub(trace_cost(self.topology));
        list_sources(&mut self.sources, self.hops.row(home), First::Nearest);
        let flows = self.flows.iter_mut().zip(&self.hosts);
        flows.for_each(|(flow, &hosts)| *flow = hosts * weight);
        let next = |switch: u16| {
            let port = lfts[usize::from(switch)][lid.index()];
            self.topology.link_at(switch, port)
        };
        for &switch in self.sources.iter().rev() {
            let flow = self.flows[usize::from(switch)];
            if flow > 0
                && let Some(number) = next(switch)
            {
                self.flows[usize::from(self.topology.link(number).peer)] += flow;
            }
        }
        self.passes.fill(false);
        for &switch in self.sources.iter().filter(|&&switch| self.flows[usize::from(switch)] > 0) {
            self.passes[usize::from(switch)] = next(switch).is_some_and(|number| {
                number == link || self.passes[usize::from(self.topology.link(number).peer)]
            });
        }
    }
}

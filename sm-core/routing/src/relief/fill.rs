//! Moves a share of the routes to links that came back.

use super::super::Entries;
use super::super::deal::{Candidate, PathRules, list_candidates};
use super::super::hops::{First, list_sources};
use super::{Effort, Relief, Stream, trace_cost};

impl<W: PathRules, F: Fn(u16) -> W> Relief<'_, F> {
    /// Moves routes to links that came back until each has the average load of its switch's links:
    /// first routes that the switch sends over more loaded links, then routes of other switches
    /// that can pass this one.
    pub(in super::super) fn fill(
        &mut self,
        links: &[(u16, usize)],
        lfts: &mut [Entries],
        effort: Effort,
    ) {
        self.searches_left = effort.searches;
        for &(sender, link) in links {
            let all = self.topology.link_range(sender);
            let sum: u64 = all.clone().map(|link| u64::from(self.loads[link])).sum();
            let share = (sum / all.len().max(1) as u64) as u32;
            for place in 0..self.streams.len() {
                if self.loads[link] >= share || self.searches_left == 0 {
                    break;
                }
                self.draw(sender, link, share, self.streams[place], lfts);
            }
            for place in 0..self.streams.len() {
                if self.loads[link] >= share || self.searches_left == 0 {
                    break;
                }
                self.pull(sender, link, share, self.streams[place], lfts);
            }
        }
    }

    /// Moves a LID to the link from a link with more than its share, if the engine's rules allow
    /// it.
    fn draw(&mut self, sender: u16, link: usize, share: u32, stream: Stream, lfts: &mut [Entries]) {
        let Stream { lid, egress_switch, .. } = stream;
        let row = self.hops.row(egress_switch);
        let to = self.topology.link(link);
        let port = lfts[usize::from(sender)][lid.index()];
        let Some(old) = self.topology.link_at(sender, port) else { return };
        if self.loads[old] <= share
            || row[usize::from(to.peer)].checked_add(1) != Some(row[usize::from(sender)])
            || !self.trace(sender, stream, lfts)
        {
            return;
        }
        list_candidates(
            self.topology,
            row,
            &(self.path_rules)(egress_switch),
            sender,
            &mut self.candidates,
        );
        let is_it = |candidate: &&Candidate| candidate.link as usize == link;
        let Some(&candidate) = self.candidates.iter().find(is_it) else { return };
        let (first, count) = stream.siblings;
        let lft = &lfts[usize::from(sender)][first.index()..][..usize::from(count)];
        if count > 1 && lft.contains(&candidate.port) {
            return;
        }
        let limit = self.loads[old];
        let old = self.path(sender, None, lid, egress_switch, lfts);
        let Some((old, new)) =
            old.zip(self.path(sender, Some(&candidate), lid, egress_switch, lfts))
        else {
            return;
        };
        let flow = self.flows[usize::from(sender)];
        let mut fuller = new.iter().filter(|link| !old.contains(link));
        if fuller.all(|&link| self.loads[link] + flow < limit) {
            self.shift(flow, &old, &new);
            lfts[usize::from(sender)][lid.index()] = candidate.port;
        }
    }

    /// Redirects switches whose routes to a LID do not pass the link to a next switch whose route
    /// does, nearest first, where that relieves links above the share.
    fn pull(&mut self, sender: u16, link: usize, share: u32, stream: Stream, lfts: &mut [Entries]) {
        let Stream { lid, egress_switch, siblings: (first, count), .. } = stream;
        let (row, port) = (self.hops.row(egress_switch), self.topology.link(link).port);
        // There may be no upstream switch yet, so the sender's own entry decides.
        if lfts[usize::from(sender)][lid.index()] != port || sender == egress_switch {
            return;
        }
        self.trace_all(link, stream, lfts);
        self.passes[usize::from(sender)] = true;
        let path_rules = (self.path_rules)(egress_switch);
        for place in 0..self.sources.len() {
            let switch = self.sources[place];
            let flow = self.flows[usize::from(switch)];
            if flow == 0
                || self.passes[usize::from(switch)]
                || row[usize::from(switch)] <= row[usize::from(sender)]
            {
                continue;
            }
            let Some(left) = self.searches_left.checked_sub(1) else { return };
            self.searches_left = left;
            list_candidates(self.topology, row, &path_rules, switch, &mut self.candidates);
            let leads = |candidate: &&Candidate| self.passes[usize::from(candidate.peer)];
            let Some(&candidate) = self.candidates.iter().find(leads) else { continue };
            let lft = &lfts[usize::from(switch)][first.index()..][..usize::from(count)];
            if count > 1 && lft.contains(&candidate.port) {
                continue;
            }
            let old = self.path(switch, None, lid, egress_switch, lfts);
            let new = self.path(switch, Some(&candidate), lid, egress_switch, lfts);
            let Some((old, new)) = old.zip(new) else { continue };
            let left_behind = old.iter().filter(|link| !new.contains(link));
            let limit = left_behind.map(|&link| self.loads[link]).max().unwrap_or(0);
            let mut fuller = new.iter().filter(|link| !old.contains(link));
            let fits = fuller.all(|&link| self.loads[link] + flow < limit);
            if limit > share && fits && new.contains(&link) && !old.contains(&link) {
                self.shift(flow, &old, &new);
                lfts[usize::from(switch)][lid.index()] = candidate.port;
                self.passes[usize::from(switch)] = true;
                for (path, is_new) in [(&old, false), (&new, true)] {
                    for &link in path {
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

    /// Counts the hosts that send to a LID through each switch, and marks the switches whose routes
    /// pass the link.
    fn trace_all(&mut self, link: usize, stream: Stream, lfts: &[Entries]) {
        let Stream { lid, egress_switch, weight, .. } = stream;
        self.searches_left = self.searches_left.saturating_sub(trace_cost(self.topology));
        list_sources(&mut self.sources, self.hops.row(egress_switch), First::Nearest);
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

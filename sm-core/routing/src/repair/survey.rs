//! Determines which previous routes may stay.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::super::deal::{Batch, Candidate, PathRules, list_candidates};
use super::super::{Entries, HopMatrix, Link, NO_ROUTE, Previous, Topology};
use super::flows::Flows;
use super::{Labelled, Scope, first_places, places};

/// The work to do on a batch.
#[derive(Default)]
pub(super) struct Plan {
    /// Index of the batch.
    pub(super) batch: usize,
    /// Indices of LIDs that have no routes yet, as bits.
    pub(super) fresh: u64,
    /// Pairs of a LID's index and a switch that lost its route to it.
    pub(super) lost: Vec<(u8, u16)>,
    /// Switches that no longer reach the egress switch.
    cut_off: Vec<u16>,
    /// Whether the remaining parts of routes to LIDs with lost routes are already counted.
    pub(super) is_counted: bool,
}

/// Number of hosts' routes by link.
#[derive(Default)]
pub(super) struct Counts {
    /// Routes that stay, by current link number; only some of them if the previous loads are known.
    kept: Vec<u32>,
    /// Routes that are part of the previous loads and do not stay, by previous link number; empty
    /// if the previous loads are not known.
    taken: Vec<u32>,
}

impl Counts {
    /// Adds the counts of other batches.
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.kept, &other.kept), (&mut self.taken, &other.taken)] {
            sum.resize(more.len(), 0);
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
}

/// The previous routing, and how it relates to the current topology.
pub(super) struct Survey<'a> {
    topology: &'a Topology,
    now: Labelled<'a>,
    previous: &'a Previous<'a>,
    then: Labelled<'a>,
    scope: Scope,
    /// Whether all switches have kept their numbers.
    is_same_numbers: bool,
    /// Switches whose links changed.
    changed: Vec<u16>,
    /// New links, each with its switch.
    pub(super) new_links: Vec<(u16, usize)>,
    /// By LID: the number of its previous egress switch; `NO_SWITCH` if it had none.
    egress_switches_then: Vec<u16>,
    hosts: Vec<u32>,
    /// Whether the previous loads are known and the same hosts have the same LIDs at the same
    /// switches, so that only changes need counting.
    has_loads: bool,
}

const NO_SWITCH: u16 = u16::MAX;

impl<'a> Survey<'a> {
    /// Returns `None` if most LIDs are new, or the previous routing is incomplete.
    pub(super) fn new(
        topology: &'a Topology,
        now: Labelled<'a>,
        previous: &'a Previous<'a>,
        then: Labelled<'a>,
        scope: Scope,
    ) -> Option<Self> {
        let count_then = previous.topology.switch_count();
        if previous.lfts.len() != count_then || then.hops.switch_count() != count_then {
            return None;
        }
        let last = topology.last_lid().max(previous.topology.last_lid());
        let mut egress_switches_then = vec![NO_SWITCH; last.index() + 1];
        for destination in previous.topology.destinations() {
            destination
                .lids()
                .for_each(|lid| egress_switches_then[lid.index()] = destination.egress_switch);
        }
        let is_same_numbers = previous.is_of_same_switches(topology);
        let changed = topology.switches().filter(|&switch| has_changed(topology, previous, switch));
        let changed: Vec<u16> = changed.collect();
        let links = changed
            .iter()
            .flat_map(|&switch| topology.link_range(switch).map(move |link| (switch, link)));
        let is_new =
            |&(switch, link): &(u16, usize)| !was_linked(previous, switch, &topology.link(link));
        let new_links = links.filter(is_new).collect();
        let has_loads = previous.loads.len() == previous.topology.link_count()
            && previous.is_of_same_ports(topology);
        let survey = Self {
            has_loads,
            topology,
            now,
            previous,
            then,
            scope,
            is_same_numbers,
            changed,
            new_links,
            egress_switches_then,
            hosts: topology.hosts_on(),
        };
        let lids = || {
            topology.destinations().iter().flat_map(|d| d.lids().map(|lid| (lid, d.egress_switch)))
        };
        let known =
            lids().filter(|&(lid, egress_switch)| survey.is_known(lid, egress_switch)).count();
        (known * 2 > lids().count()).then_some(survey)
    }

    /// Whether the same switch delivered a LID before.
    fn is_known(&self, lid: Lid, egress_switch: u16) -> bool {
        let then = self.egress_switches_then[lid.index()];
        then != NO_SWITCH && self.previous.switch(egress_switch) == Some(then)
    }

    /// Examines some batches, the first of which has index `first`. Returns those with work to do,
    /// and the counts of the others.
    pub(super) fn run<W: PathRules>(
        &self,
        batches: &[Batch],
        first: usize,
        path_rules: impl Fn(u16) -> W,
    ) -> (Vec<Plan>, Counts) {
        let mut plans = Vec::new();
        let mut kept = Flows::new(self.topology, &self.hosts);
        let mut taken = self.has_loads.then(|| Flows::new(self.previous.topology, &self.hosts));
        let mut suspects = Suspects::new(self.topology);
        let mut candidates = Vec::new();
        for (batch, number) in batches.iter().zip(first..) {
            let mut plan = Plan { batch: number, ..Plan::default() };
            let all = first_places(batch.lids.len());
            let lids = batch.lids.iter().zip(0u32..);
            let fresh = lids.filter(|&(&lid, _)| !self.is_known(lid, batch.egress_switch));
            plan.fresh = fresh.fold(0, |fresh, (_, place)| fresh | 1 << place);
            if plan.fresh != all {
                let path_rules = path_rules(batch.egress_switch);
                self.list_suspects(batch.egress_switch, &mut suspects);
                for &switch in &suspects.switches {
                    let known = all & !plan.fresh;
                    self.look(batch, switch, known, &path_rules, &mut candidates, &mut plan);
                }
            }
            self.count(batch, &mut plan, &mut kept, taken.as_mut());
            if plan.fresh != 0 || !plan.lost.is_empty() || !plan.cut_off.is_empty() {
                plans.push(plan);
            }
        }
        let taken = taken.map_or_else(Vec::new, |taken| taken.loads);
        (plans, Counts { kept: kept.loads, taken })
    }

    /// Counts the routes to LIDs all of whose routes stay, or the routes to subtract from the
    /// previous loads.
    fn count(
        &self,
        batch: &Batch,
        plan: &mut Plan,
        kept: &mut Flows<'_>,
        taken: Option<&mut Flows<'_>>,
    ) {
        let hosts = first_places(batch.host_lids);
        let is_parted = !plan.cut_off.is_empty();
        if let Some(taken) = taken {
            let row = self.then.hops.row(batch.egress_switch);
            if !is_parted {
                // Egress switches and LIDs are unchanged, so no LID is fresh.
                plan.is_counted = true;
                taken.add_lost(self.previous, batch, &plan.lost, row);
                return;
            }
            taken.turn_to(row);
            taken.add(self.previous, batch, hosts);
        }
        let lost = plan.lost.iter().fold(plan.fresh, |lost, &(place, _)| lost | 1 << place);
        kept.turn_to(self.now.hops.row(batch.egress_switch));
        kept.add(self.previous, batch, hosts & !lost);
    }

    /// The loads of links by routes that stay, from the counts of all batches.
    pub(super) fn loads(&self, counts: &Counts) -> Vec<u32> {
        let mut loads = counts.kept.clone();
        if !self.has_loads {
            return loads;
        }
        let then = self.previous;
        for switch in self.topology.switches() {
            for (link, number) in
                self.topology.links(switch).iter().zip(self.topology.link_range(switch))
            {
                let before = then.topology.link_at(switch, link.port);
                let before = before.filter(|_| was_linked(then, switch, link));
                let stays = before.map_or(0, |at| then.loads[at].saturating_sub(counts.taken[at]));
                loads[number] += stays;
            }
        }
        loads
    }

    /// Lists switches whose paths to an egress switch may have changed.
    fn list_suspects(&self, egress_switch: u16, suspects: &mut Suspects) {
        suspects.clear();
        let Some(egress_switch_then) =
            self.previous.switch(egress_switch).filter(|_| self.scope == Scope::Changed)
        else {
            self.topology.switches().for_each(|switch| suspects.add(switch));
            return;
        };
        self.changed.iter().for_each(|&switch| suspects.add(switch));
        let now = (self.now.hops.row(egress_switch), self.now.phases(egress_switch));
        let then = (self.then.hops.row(egress_switch_then), self.then.phases(egress_switch_then));
        if self.is_same_numbers && now == then {
            return;
        }
        let label = |(hops, phases): (&[u8], &[u8]), switch: u16| {
            (hops[usize::from(switch)], phases.get(usize::from(switch)).copied())
        };
        for switch in self.topology.switches() {
            let before = self.previous.switch(switch).map(|before| label(then, before));
            if before != Some(label(now, switch)) {
                suspects.add(switch);
                self.topology.links(switch).iter().for_each(|link| suspects.add(link.peer));
            }
        }
    }

    /// Finds the routes of the known LIDs of a batch that a switch must give up.
    fn look(
        &self,
        batch: &Batch,
        switch: u16,
        known: u64,
        path_rules: &impl PathRules,
        candidates: &mut Vec<Candidate>,
        plan: &mut Plan,
    ) {
        let hops = self.now.hops.row(batch.egress_switch);
        if switch == batch.egress_switch {
            return;
        }
        if hops[usize::from(switch)] == HopMatrix::UNREACHABLE {
            plan.cut_off.push(switch);
            return;
        }
        list_candidates(self.topology, hops, path_rules, switch, candidates);
        let mut ports = [false; 256];
        candidates.iter().for_each(|candidate| ports[usize::from(candidate.port)] = true);
        let lft = self.previous.lft(switch);
        for place in places(known) {
            let port = lft.get(batch.lids[place].index()).copied().unwrap_or(NO_ROUTE);
            if !ports[usize::from(port)] {
                plan.lost.push((place as u8, switch));
            }
        }
    }

    /// The previous tables, with the current numbers of LIDs and switches, for known LIDs only.
    /// Unchanged tables are shared.
    pub(super) fn kept(&self, batches: &[Batch]) -> Vec<Entries> {
        let len = self.topology.table_len();
        let mut is_known = vec![false; len.max(self.egress_switches_then.len())];
        for batch in batches {
            for &lid in &batch.lids {
                is_known[lid.index()] = self.is_known(lid, batch.egress_switch);
            }
        }
        let is_unowned =
            |lid: &usize| self.egress_switches_then[*lid] != NO_SWITCH && !is_known[*lid];
        let gone: Vec<usize> =
            (0..self.egress_switches_then.len().min(len)).filter(is_unowned).collect();
        let mut lfts: Vec<Entries> = (self.topology.switches().into_par_iter())
            .map(|switch| {
                let mut lft = self.previous.entries(switch).cloned().unwrap_or_default();
                lft.resize(len, NO_ROUTE);
                gone.iter().for_each(|&lid| lft.set(lid, NO_ROUTE));
                lft
            })
            .collect();
        for batch in batches {
            let lft = &mut lfts[usize::from(batch.egress_switch)];
            batch.lids.iter().zip(&batch.exits).for_each(|(lid, &exit)| lft.set(lid.index(), exit));
        }
        lfts
    }
}

impl Plan {
    /// Known LIDs, and the switches that must route them again.
    pub(super) fn lost_lids(&self, batch: &Batch) -> Vec<(Lid, u16)> {
        let lost = self.lost.iter();
        lost.map(|&(place, switch)| (batch.lids[usize::from(place)], switch)).collect()
    }

    /// Known LIDs of hosts that at least one switch must route again.
    pub(super) fn lost_by_hosts(&self, batch: &Batch) -> impl Iterator<Item = Lid> {
        let lost = self.lost.iter().fold(0, |lost, &(place, _)| lost | 1 << place);
        places(lost & first_places(batch.host_lids)).map(|place| batch.lids[place])
    }

    /// Removes routes that do not stay.
    pub(super) fn clear(&self, batch: &Batch, lfts: &mut [Entries]) {
        for &switch in &self.cut_off {
            let lft = &mut lfts[usize::from(switch)];
            batch.lids.iter().for_each(|lid| lft.set(lid.index(), NO_ROUTE));
        }
        for &(place, switch) in &self.lost {
            lfts[usize::from(switch)][batch.lids[usize::from(place)].index()] = NO_ROUTE;
        }
    }
}

/// A set of switches.
struct Suspects {
    switches: Vec<u16>,
    is_in: Vec<bool>,
}

impl Suspects {
    fn new(topology: &Topology) -> Self {
        Self { switches: Vec::new(), is_in: vec![false; topology.switch_count()] }
    }

    fn add(&mut self, switch: u16) {
        if !std::mem::replace(&mut self.is_in[usize::from(switch)], true) {
            self.switches.push(switch);
        }
    }

    fn clear(&mut self) {
        for switch in self.switches.drain(..) {
            self.is_in[usize::from(switch)] = false;
        }
    }
}

/// Whether a switch is new or its links changed.
fn has_changed(topology: &Topology, previous: &Previous<'_>, switch: u16) -> bool {
    let Some(then) = previous.switch(switch) else { return true };
    let links = topology.links(switch);
    links.len() != previous.topology.links(then).len()
        || !links.iter().all(|link| was_linked(previous, switch, link))
}

/// Whether a port of a switch led to the same switch as now.
fn was_linked(previous: &Previous<'_>, switch: u16, now: &Link) -> bool {
    let ends = previous.switch(switch).zip(previous.switch(now.peer));
    ends.is_some_and(|(switch, peer)| {
        let link = previous.topology.link_at(switch, now.port);
        link.is_some_and(|link| previous.topology.link(link).peer == peer)
    })
}

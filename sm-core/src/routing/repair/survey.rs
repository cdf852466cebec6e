//! What of the routing before may stay.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::super::deal::{Batch, Candidate, Ways, list_candidates};
use super::super::{Entries, HopMatrix, Link, NO_ROUTE, Previous, Topology};
use super::flows::Flows;
use super::{Labelled, Scope, first_places, places};

/// What is to be done about a batch.
#[derive(Default)]
pub(super) struct Plan {
    /// The number of the batch.
    pub(super) batch: usize,
    /// Places of LIDs that have no routes yet, as bits.
    pub(super) fresh: u64,
    /// Places of other LIDs, and switches that have to route them anew.
    pub(super) lost: Vec<(u8, u16)>,
    /// Switches that do not reach the home any more.
    cut_off: Vec<u16>,
    /// Whether what is left of routes to LIDs with lost ones is counted already.
    pub(super) is_counted: bool,
}

/// Routes of hosts by link.
#[derive(Default)]
pub(super) struct Counts {
    /// Those that stay, as links are numbered now; only of some if the loads then are known.
    kept: Vec<u32>,
    /// Those that count in the loads then and do not stay, as links were numbered; empty if loads
    /// are not known.
    taken: Vec<u32>,
}

impl Counts {
    /// Adds those of other batches.
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.kept, &other.kept), (&mut self.taken, &other.taken)] {
            sum.resize(more.len(), 0);
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
}

/// The routing before, and how it relates to the topology now.
pub(super) struct Survey<'a> {
    topology: &'a Topology,
    now: Labelled<'a>,
    previous: &'a Previous<'a>,
    then: Labelled<'a>,
    scope: Scope,
    /// Whether all switches have the numbers that they had.
    is_same_numbers: bool,
    /// Switches whose links are not those from before.
    changed: Vec<u16>,
    /// Links that were not there, each behind its switch.
    pub(super) new_links: Vec<(u16, usize)>,
    /// By LID: the switch that delivered it, by its number then; `NOBODY` if none did.
    homes_then: Vec<u16>,
    hosts: Vec<u32>,
    /// Whether loads then are known and the same hosts have the same LIDs at the same switches, so
    /// that only what moves is to be counted.
    has_loads: bool,
}

const NOBODY: u16 = u16::MAX;

impl<'a> Survey<'a> {
    /// `None` if most LIDs are new, or the routing before is not whole.
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
        let mut homes_then = vec![NOBODY; last.index() + 1];
        for destination in previous.topology.destinations() {
            destination.lids().for_each(|lid| homes_then[lid.index()] = destination.home);
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
            homes_then,
            hosts: topology.hosts_on(),
        };
        let lids =
            || topology.destinations().iter().flat_map(|d| d.lids().map(|lid| (lid, d.home)));
        let known = lids().filter(|&(lid, home)| survey.is_known(lid, home)).count();
        (known * 2 > lids().count()).then_some(survey)
    }

    /// Whether a LID was delivered by the same switch.
    fn is_known(&self, lid: Lid, home: u16) -> bool {
        let then = self.homes_then[lid.index()];
        then != NOBODY && self.previous.switch(home) == Some(then)
    }

    /// Looks at some batches, the first of which has number `first`. Yields those with something to
    /// do, and what to count of the others.
    pub(super) fn run<W: Ways>(
        &self,
        batches: &[Batch],
        first: usize,
        ways: impl Fn(u16) -> W,
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
            let fresh = lids.filter(|&(&lid, _)| !self.is_known(lid, batch.home));
            plan.fresh = fresh.fold(0, |fresh, (_, place)| fresh | 1 << place);
            if plan.fresh != all {
                let ways = ways(batch.home);
                self.list_suspects(batch.home, &mut suspects);
                for &switch in &suspects.switches {
                    let known = all & !plan.fresh;
                    self.look(batch, switch, known, &ways, &mut candidates, &mut plan);
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

    /// Counts routes of LIDs that all stay, or what to take from the loads then for those that do
    /// not.
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
            let row = self.then.hops.row(batch.home);
            if !is_parted {
                // Homes and LIDs are those from then, so that none are fresh.
                plan.is_counted = true;
                taken.add_lost(self.previous, batch, &plan.lost, row);
                return;
            }
            taken.turn_to(row);
            taken.add(self.previous, batch, hosts);
        }
        let lost = plan.lost.iter().fold(plan.fresh, |lost, &(place, _)| lost | 1 << place);
        kept.turn_to(self.now.hops.row(batch.home));
        kept.add(self.previous, batch, hosts & !lost);
    }

    /// The loads of links by routes that stay, by what was counted of all batches.
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

    /// Lists switches whose ways to a home may have changed.
    fn list_suspects(&self, home: u16, suspects: &mut Suspects) {
        suspects.clear();
        let Some(home_then) = self.previous.switch(home).filter(|_| self.scope == Scope::Changed)
        else {
            self.topology.switches().for_each(|switch| suspects.add(switch));
            return;
        };
        self.changed.iter().for_each(|&switch| suspects.add(switch));
        let now = (self.now.hops.row(home), self.now.phases(home));
        let then = (self.then.hops.row(home_then), self.then.phases(home_then));
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

    /// Finds out which routes of the known LIDs of a batch a switch must give up.
    fn look(
        &self,
        batch: &Batch,
        switch: u16,
        known: u64,
        ways: &impl Ways,
        candidates: &mut Vec<Candidate>,
        plan: &mut Plan,
    ) {
        let hops = self.now.hops.row(batch.home);
        if switch == batch.home {
            return;
        }
        if hops[usize::from(switch)] == HopMatrix::UNREACHABLE {
            plan.cut_off.push(switch);
            return;
        }
        list_candidates(self.topology, hops, ways, switch, candidates);
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

    /// The tables before, brought into the numbers of LIDs and switches now; known LIDs only. What stays
    /// as it was is shared with them.
    pub(super) fn kept(&self, batches: &[Batch]) -> Vec<Entries> {
        let len = self.topology.table_len();
        let mut is_known = vec![false; len.max(self.homes_then.len())];
        for batch in batches {
            for &lid in &batch.lids {
                is_known[lid.index()] = self.is_known(lid, batch.home);
            }
        }
        let of_nobody = |lid: &usize| self.homes_then[*lid] != NOBODY && !is_known[*lid];
        let gone: Vec<usize> = (0..self.homes_then.len().min(len)).filter(of_nobody).collect();
        let mut lfts: Vec<Entries> = (self.topology.switches().into_par_iter())
            .map(|switch| {
                let mut lft = self.previous.entries(switch).cloned().unwrap_or_default();
                lft.resize(len, NO_ROUTE);
                gone.iter().for_each(|&lid| lft.set(lid, NO_ROUTE));
                lft
            })
            .collect();
        for batch in batches {
            let lft = &mut lfts[usize::from(batch.home)];
            batch.lids.iter().zip(&batch.exits).for_each(|(lid, &exit)| lft.set(lid.index(), exit));
        }
        lfts
    }
}

impl Plan {
    /// LIDs that are not new, and switches that have to route them anew.
    pub(super) fn lost_lids(&self, batch: &Batch) -> Vec<(Lid, u16)> {
        let lost = self.lost.iter();
        lost.map(|&(place, switch)| (batch.lids[usize::from(place)], switch)).collect()
    }

    /// Hosts' LIDs that are not new and that any switch has to route anew.
    pub(super) fn lost_by_hosts(&self, batch: &Batch) -> impl Iterator<Item = Lid> {
        let lost = self.lost.iter().fold(0, |lost, &(place, _)| lost | 1 << place);
        places(lost & first_places(batch.host_lids)).map(|place| batch.lids[place])
    }

    /// Takes away routes that do not stay.
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

/// Switches, each once.
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

/// Whether a switch is new or has other links than before.
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

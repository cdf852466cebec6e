//! Computes the tables of all switches, each by itself.

use std::sync::Arc;

use rayon::prelude::*;
use sa_proto::snapshot::Entries;

use super::digits::{Digits, voters};
use super::exits::Exits;
use super::reuse::{Reuse, Rules, TreeTables};
use super::{NO_SLOT, Tree};
use crate::balance::{is_balanced, most_to_hosts};
use crate::deal::{Dealt, PathRules};
use crate::repair::is_quick;
use crate::{HopMatrix, NO_ROUTE, PortMask, Previous, Topology};

/// Routes all destinations by `hops`, which has a row per egress switch, and by the rules for each.
/// Takes time proportional to switches times links plus switches times LIDs. Loads are not counted,
/// except that in a small fabric digits of previous tables are kept only if the worst link has at
/// most 2 % more routes with them. If the previous tables are known to be of the same tree, only
/// routes are computed that hops and links can have changed.
pub(super) fn route<W: PathRules>(
    topology: &Topology,
    tree: &Tree,
    hops: &HopMatrix,
    previous: Option<&Previous<'_>>,
    path_rules: impl Fn(u16) -> W + Sync,
) -> Dealt {
    let exits = Exits::new(topology, tree);
    let mut by_switch = hops.clone();
    by_switch.transpose();
    let rules = Rules::of(topology, &path_rules);
    let reuse =
        previous.and_then(|previous| Reuse::find(topology, tree, &by_switch, &rules, previous));
    let tables = |digits: &Digits, switches: &[u16]| {
        let reuse = reuse.as_ref().filter(|reuse| reuse.made.digits == *digits);
        let begin = || Filler {
            reuse,
            topology,
            tree,
            hops: &by_switch,
            path_rules: &path_rules,
            exits: &exits,
            digits,
            previous,
            closer: Vec::new(),
            upward: Vec::new(),
            last: Vec::new(),
            ports: Vec::new(),
            uplinks: Vec::new(),
            far_ends: Vec::new(),
            candidates: Vec::new(),
            scratch: Vec::new(),
        };
        let tables = switches.par_iter().map_init(begin, |filler, &switch| filler.table(switch));
        tables.collect::<Vec<(Entries, u64)>>()
    };
    let switches: Vec<u16> = topology.switches().collect();
    let numbers = Digits::of_numbers(tree, &exits);
    let before = previous.and_then(|previous| {
        let voters = voters(topology, tree);
        let samples = tables(&numbers, &voters).into_iter().map(|(table, _)| table);
        let samples: Vec<_> = voters.iter().copied().zip(samples).collect();
        numbers.or_before(topology, tree, &exits, previous, &samples)
    });
    let (digits, tables) = match before {
        Some(before) => {
            let kept = tables(&before, &switches);
            match is_quick(topology).then(|| tables(&numbers, &switches)) {
                Some(fresh) if !is_balanced(most(topology, &kept), most(topology, &fresh)) => {
                    (numbers, fresh)
                }
                _ => (before, kept),
            }
        }
        None => {
            let fresh = tables(&numbers, &switches);
            (numbers, fresh)
        }
    };
    let (lfts, unreachable): (Vec<Entries>, Vec<u64>) = tables.into_iter().unzip();
    let total = unreachable.iter().sum();
    let made = TreeTables { tree: tree.clone(), digits, rules, lfts: lfts.clone(), unreachable };
    Dealt { lfts, unreachable: total, loads: Vec::new(), tree: Some(Arc::new(made)) }
}

/// Number of routes to hosts' LIDs on the most loaded link with these tables.
fn most(topology: &Topology, tables: &[(Entries, u64)]) -> u32 {
    let lfts: Vec<Entries> = tables.iter().map(|(lft, _)| lft.clone()).collect();
    most_to_hosts(topology, &lfts)
}

/// Counts a link as one that leads closer to each egress switch that is one hop nearer `there` than
/// `here`. Most of the time that tables take is spent here: it has no bounds checks, so that the
/// compiler uses vector instructions.
fn count_closer<'a>(
    here: &[u8],
    there: &[u8],
    index: u8,
    add: u8,
    counts: impl Iterator<Item = ((&'a mut u8, &'a mut u8), &'a mut u8)>,
) {
    for ((&here, &there), ((closer, upward), last)) in here.iter().zip(there).zip(counts) {
        let is_closer = there.wrapping_add(1) == here;
        *closer = closer.wrapping_add(u8::from(is_closer));
        *upward = upward.wrapping_add(u8::from(is_closer) & add);
        *last = if is_closer { index } else { *last };
    }
}

/// What all tables are computed from, and buffers.
struct Filler<'a, F> {
    topology: &'a Topology,
    tree: &'a Tree,
    /// One row per switch.
    hops: &'a HopMatrix,
    path_rules: &'a F,
    exits: &'a Exits,
    digits: &'a Digits,
    previous: Option<&'a Previous<'a>>,
    reuse: Option<&'a Reuse<'a>>,
    /// By egress switch: number of links that lead closer, and of useful uplinks among them.
    closer: Vec<u8>,
    upward: Vec<u8>,
    /// By egress switch: the last link that leads closer, counted from the switch's first.
    last: Vec<u8>,
    /// By slot: the port of the uplink, or [`NO_ROUTE`].
    ports: Vec<u8>,
    /// The useful uplinks, counted from the switch's first link.
    uplinks: Vec<u8>,
    /// By link of the switch: the hops from its far end, by egress switch, and whether it is a
    /// useful uplink.
    far_ends: Vec<(&'a [u8], bool)>,
    /// Links that lead closer to an egress switch, counted from the switch's first.
    candidates: Vec<u8>,
    /// A table of which a few entries are valid.
    scratch: Vec<u8>,
}

impl<W: PathRules, F: Fn(u16) -> W> Filler<'_, F> {
    /// Returns the table of a switch, and the number of LIDs without a route.
    fn table(&mut self, switch: u16) -> (Entries, u64) {
        if let Some(reuse) = self.reuse
            && let Some(columns) = reuse.columns(switch)
        {
            let at = usize::from(switch);
            let before = (&reuse.made.lfts[at], reuse.made.unreachable[at]);
            return self.patched(switch, &columns, before);
        }
        let mut lft = vec![NO_ROUTE; self.topology.table_len()];
        self.survey(switch, None);
        let is_leaf = |other: &u16| self.tree.rank(*other) == 0;
        let others = self.topology.switches().filter(|other| !is_leaf(other));
        let egress_switches: Vec<u16> = self.tree.leaves.iter().copied().chain(others).collect();
        let unreachable = self.fill(switch, &egress_switches, &mut lft);
        let before = self.previous.and_then(|previous| previous.entries(switch));
        let same = before.filter(|before| ***before == *lft).cloned();
        (same.unwrap_or_else(|| lft.into()), unreachable)
    }

    /// Returns the table of a switch and the number of LIDs without a route, from those `before`:
    /// the routes to these egress switches may differ.
    fn patched(
        &mut self,
        switch: u16,
        columns: &[u16],
        (before, unreachable): (&Entries, u64),
    ) -> (Entries, u64) {
        if columns.is_empty() {
            return (before.clone(), unreachable);
        }
        let mut lft = std::mem::take(&mut self.scratch);
        lft.resize(self.topology.table_len(), NO_ROUTE);
        let exits = self.exits;
        let lids = |&egress_switch: &u16| {
            let hosts = exits.hosts[exits.range(egress_switch)].iter().map(|exit| exit.lid);
            hosts.chain(exits.own(egress_switch).iter().copied())
        };
        columns.iter().flat_map(lids).for_each(|lid| lft[lid] = NO_ROUTE);
        self.survey(switch, Some(columns));
        let is_missing = |lid: &usize| before[*lid] == NO_ROUTE;
        let missing = columns.iter().flat_map(lids).filter(is_missing).count() as u64;
        let unreachable = unreachable - missing + self.fill(switch, columns, &mut lft);
        let is_same = columns.iter().flat_map(lids).all(|lid| lft[lid] == before[lid]);
        let table = match is_same {
            true => before.clone(),
            false => {
                let mut table = before.to_vec();
                columns.iter().flat_map(lids).for_each(|lid| table[lid] = lft[lid]);
                table.into()
            }
        };
        self.scratch = lft;
        (table, unreachable)
    }

    /// Sets the entries for the LIDs of some egress switches; returns the number of those without a
    /// route.
    fn fill(&mut self, switch: u16, egress_switches: &[u16], lft: &mut [u8]) -> u64 {
        let mut unreachable = 0;
        let ups = self.uplinks.len();
        for &egress_switch in egress_switches {
            let hosts = self.exits.range(egress_switch);
            let own = self.exits.own(egress_switch);
            if hosts.is_empty() && own.is_empty() {
                continue;
            }
            if egress_switch == switch {
                self.exits.hosts[hosts].iter().for_each(|exit| lft[exit.lid] = exit.port);
                own.iter().for_each(|&lid| lft[lid] = 0);
                continue;
            }
            let hops = self.hops.row(switch)[usize::from(egress_switch)];
            if hops == HopMatrix::UNREACHABLE {
                unreachable += (hosts.len() + own.len()) as u64;
                continue;
            }
            let is_up = self.list(switch, egress_switch);
            let links = &self.topology.links(switch);
            let port = |&link: &u8| links[usize::from(link)].port;
            match &self.candidates[..] {
                [] => unreachable += (hosts.len() + own.len()) as u64,
                [only] => {
                    let port = port(only);
                    self.exits.hosts[hosts].iter().for_each(|exit| lft[exit.lid] = port);
                    own.iter().for_each(|&lid| lft[lid] = port);
                }
                several => {
                    let is_whole = is_up && several.len() == ups;
                    self.choose(switch, egress_switch, is_up, is_whole, lft);
                }
            }
        }
        unreachable
    }

    /// Finds the useful uplinks, and by egress switch how many links lead closer: to all, or to
    /// those of some `columns` only.
    fn survey(&mut self, switch: u16, columns: Option<&[u16]>) {
        let Self { topology, tree, hops, closer, upward, last, ports, .. } = self;
        let Self { uplinks, far_ends, .. } = self;
        let here = hops.row(switch);
        let links = topology.links(switch);
        for counts in [&mut *closer, upward, last] {
            match columns {
                Some(columns) => {
                    counts.resize(here.len(), 0);
                    columns.iter().for_each(|&column| counts[usize::from(column)] = 0);
                }
                None => {
                    counts.clear();
                    counts.resize(here.len(), 0);
                }
            }
        }
        ports.clear();
        uplinks.clear();
        far_ends.clear();
        let rank = tree.rank(switch);
        ports.resize(tree.widths.get(rank).copied().unwrap_or(0).into(), NO_ROUTE);
        for ((link, number), index) in links.iter().zip(topology.link_range(switch)).zip(0..) {
            let there = hops.row(link.peer);
            let slot = tree.slots[number];
            let is_up = slot != NO_SLOT && tree.rank(link.peer) == rank + 1;
            if is_up {
                uplinks.push(index);
                ports[usize::from(slot)] = link.port;
            }
            far_ends.push((there, is_up));
            let Some(columns) = columns else {
                let counts = closer.iter_mut().zip(upward.iter_mut()).zip(last.iter_mut());
                count_closer(here, there, index, u8::from(is_up), counts);
                continue;
            };
            for at in columns.iter().copied().map(usize::from) {
                let counts = (&mut closer[at], &mut upward[at]);
                let counts = std::iter::once((counts, &mut last[at]));
                count_closer(&here[at..=at], &there[at..=at], index, u8::from(is_up), counts);
            }
        }
    }

    /// Lists the links that routes to an egress switch may take; returns whether these lead up.
    fn list(&mut self, switch: u16, egress_switch: u16) -> bool {
        let Self { topology, hops, path_rules, closer, upward, last, .. } = self;
        let Self { uplinks, far_ends, candidates, .. } = self;
        let egress = usize::from(egress_switch);
        candidates.clear();
        if closer[egress] == 1 {
            candidates.push(last[egress]);
            return false;
        }
        if usize::from(upward[egress]) == uplinks.len() && !uplinks.is_empty() {
            candidates.extend_from_slice(uplinks);
            return true;
        }
        let rules = path_rules(egress_switch);
        let here = hops.row(switch)[egress];
        let (links, numbers) = (topology.links(switch), topology.link_range(switch));
        let mut is_upward = false;
        for (((there, is_up), link), index) in far_ends.iter().zip(links).zip(0..) {
            let is_closer = there[egress].wrapping_add(1) == here;
            let number = (numbers.start + usize::from(index)) as u32;
            if !is_closer || !rules.allow(switch, number, link.peer) {
                continue;
            }
            if *is_up && !is_upward {
                is_upward = true;
                candidates.clear();
            }
            if *is_up == is_upward {
                candidates.push(index);
            }
        }
        is_upward
    }

    /// Chooses a link for each LID of an egress switch. `is_up`: the links lead up; `is_whole`:
    /// they are all uplinks.
    fn choose(&self, switch: u16, egress_switch: u16, is_up: bool, is_whole: bool, lft: &mut [u8]) {
        let Self { topology, tree, exits, digits, ports, candidates, .. } = self;
        let (first, links) = (topology.link_range(switch).start, topology.links(switch));
        let rank = if is_up { tree.rank(switch) } else { tree.rank(switch).saturating_sub(1) };
        let width = u32::from(tree.widths.get(rank).copied().unwrap_or(0)).max(1);
        // Routes whose slot is missing are spread over the others, from each switch and to each
        // part of the tree.
        let turn = u32::from(tree.part(rank, switch)) + u32::from(tree.part(rank, egress_switch));
        let turn = 1 + turn % width.saturating_sub(1).max(1);
        // The link for a LID that wants a slot, if possible none whose slot or number `avoids`.
        let choose = |wanted: u16, avoids: &dyn Fn(u16, u8) -> bool| {
            let key = |&&link: &&u8| {
                let slot = tree.slots[first + usize::from(link)];
                let beyond = (u32::from(slot) + 2 * width - u32::from(wanted) - turn) % width;
                (slot != wanted, avoids(slot, link), beyond)
            };
            candidates.iter().min_by_key(key).copied().unwrap_or_default()
        };
        let whole = |wanted: u16| {
            let port = ports.get(usize::from(wanted)).copied();
            port.filter(|&port| is_whole && port != NO_ROUTE)
        };
        let port = |link: u8| links[usize::from(link)].port;
        let start = u32::from(switch) + u32::from(egress_switch);
        for (&lid, start) in exits.own(egress_switch).iter().zip(start..) {
            let wanted = (start % width) as u16;
            lft[lid] = whole(wanted).unwrap_or_else(|| port(choose(wanted, &|_, _| false)));
        }
        let hosts = exits.range(egress_switch);
        let mut slots = digits.slots.get(rank).map_or(&[][..], |slots| &slots[hosts.clone()]);
        for siblings in exits.hosts[hosts].chunk_by(|a, b| a.destination == b.destination) {
            let (wanted, rest) = slots.split_at(siblings.len());
            slots = rest;
            // The LIDs of a host share a link only if there are fewer links than LIDs.
            let mut taken = PortMask::default();
            for (exit, &slot) in siblings.iter().zip(wanted) {
                lft[exit.lid] = whole(slot).unwrap_or_else(|| {
                    let avoids = |slot, link| wanted.contains(&slot) || taken.contains(link);
                    let link = choose(slot, &avoids);
                    taken.insert(link);
                    port(link)
                });
            }
        }
    }
}

//! Computes path classes by walking every destination's tree of routes once, from all switches.
//!
//! The forwarding tables are read block by block, 64 destinations at a time, so that each block is
//! read once. Within a block, a destination's column is filled by following routes from every
//! switch to one whose result is known. Routes that end at no port or the wrong port, or in a loop,
//! are no path. Blocks are independent and run in parallel; equal columns are stored once,
//! independent of the order of threads.
//!
//! A destination's column depends on its entries in the tables and on the devices behind the ports
//! that these name. After a change a destination is walked again only if some switch's entry, or
//! the device behind its port, differs and gives that switch another view, provided that all others
//! see the destination as before; the result is identical. A cut cable moves thousands of entries
//! to ports of the same distance, and changes few views.

use std::collections::HashMap;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use rayon::prelude::*;
use sa_proto::snapshot::Lft;

use super::columns::{BuildFold, Column, Columns};
use super::path::{Packed, PathClass};
use crate::tables::limit::Limit;

/// Rows of tables that a thread compares at least: what each found is added up at a cost of its
/// own.
const ROWS_MIN: usize = 256;

/// The far end of a switch port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// No link.
    Nothing,
    /// Another switch, and the limits of the link to it.
    Switch(u16, Limit),
    /// An end port, by its base LID and LMC.
    EndPort(Lid, u8),
}

/// The switches of a fabric, one per row, with the far ends of their ports.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Switches {
    /// Their names.
    pub(super) guids: Vec<Guid>,
    /// Where a row's ports begin in `hops`, and the end of the last.
    pub(super) starts: Vec<u32>,
    /// Ports of all switches, port 0 first.
    pub(super) hops: Vec<Hop>,
}

/// Where packets go.
#[derive(Default)]
pub(super) struct Topology<'a> {
    pub(super) switches: Arc<Switches>,
    /// Forwarding tables, a row each.
    pub(super) lfts: Vec<&'a [u8]>,
    /// SLs of paths by LID, a row each; empty if the routing engine leaves them alone.
    pub(super) sls: Vec<&'a [u8]>,
}

impl Switches {
    /// Begins with none.
    pub(super) fn new() -> Self {
        Self { starts: vec![0], ..Self::default() }
    }

    /// Adds one with these ports, port 0 first.
    pub(super) fn push(&mut self, guid: Guid, ports: impl IntoIterator<Item = Hop>) {
        self.guids.push(guid);
        self.hops.extend(ports);
        self.starts.push(self.hops.len() as u32);
    }

    /// The far ends of a switch's ports, port 0 first.
    pub(super) fn ports(&self, row: usize) -> &[Hop] {
        &self.hops[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    #[inline]
    pub(super) fn hop(&self, row: usize, port: u8) -> Hop {
        self.ports(row).get(usize::from(port)).copied().unwrap_or(Hop::Nothing)
    }
}

impl Topology<'_> {
    pub(super) fn rows(&self) -> usize {
        self.lfts.len()
    }

    /// LIDs whose columns may be others than in `before`, by number; `None` if switches have other
    /// rows.
    fn stale(&self, before: Before<'_>) -> Option<Vec<bool>> {
        if self.switches.guids != before.topology.switches.guids {
            return None;
        }
        let none = || vec![false; usize::from(Lid::UNICAST_LAST.0) + 1];
        let mark = |mut stale: Vec<bool>, row: usize| {
            self.other_views(row, before, |lid| stale[lid.index()] = true);
            stale
        };
        let either = |mut stale: Vec<bool>, more: Vec<bool>| {
            stale.iter_mut().zip(more).for_each(|(stale, more)| *stale |= more);
            stale
        };
        let rows = (0..self.rows()).into_par_iter().with_min_len(ROWS_MIN);
        Some(rows.fold(none, mark).reduce(none, either))
    }

    /// Visits LIDs of which a row has another view than before, as far as its own entries tell;
    /// some of them twice. Returns how many entries it checked for that: those that differ or lead
    /// to another device, most of which may show the same view.
    pub(super) fn other_views(
        &self,
        row: usize,
        before: Before<'_>,
        mut visit: impl FnMut(Lid),
    ) -> usize {
        let (ours, theirs) = (&self.switches, &before.topology.switches);
        let (now, then) = (self.lfts[row], before.topology.lfts[row]);
        let mut checked = 0;
        let mut check = |lid: usize| {
            checked += 1;
            let lid = Lid(lid as u16);
            if !self.is_same_view(row, lid, before.columns) {
                visit(lid);
            }
        };
        differences(now, then, Lft::NO_ROUTE, &mut check);
        differences(self.sls_of(row), before.topology.sls_of(row), 0, &mut check);
        if ours.ports(row) == theirs.ports(row) {
            return checked;
        }
        let ports = ours.ports(row).len().max(theirs.ports(row).len());
        let is_moved = |port: u8| ours.hop(row, port) != theirs.hop(row, port);
        let moved: Vec<bool> = (0..ports as u8).map(is_moved).collect();
        let entries = now.iter().enumerate().take(usize::from(Lid::UNICAST_LAST.0) + 1);
        entries
            .filter(|&(_, &port)| moved.get(usize::from(port)) == Some(&true))
            .for_each(|(lid, _)| check(lid));
        checked
    }

    /// Whether the view of a row is what it was before, if that of the next switch is.
    ///
    /// If that holds for all rows whose entries or links differ, the whole column is what it was:
    /// each view then follows from the next one, and a loop of such views would need ever fewer
    /// hops. Only views of the greatest number of hops, which stands for more, may form a loop.
    fn is_same_view(&self, row: usize, lid: Lid, columns: &Columns) -> bool {
        // LIDs that were not asked for are walked anyway.
        let Some(column) = columns.of(lid) else { return true };
        let class = match self.next(row, lid) {
            Hop::Switch(next, limit) => {
                column.get(usize::from(next)).map_or(PathClass::UNREACHABLE, |view| {
                    through(PathClass { sl: 0, ..view.class() }, limit)
                })
            }
            end => arrival(end, lid),
        };
        class.hops < u8::MAX && column.get(row) == Some(&class.packed(self.sl(row, lid)))
    }

    /// What is behind the port by which a row sends to a LID.
    pub(super) fn next(&self, row: usize, lid: Lid) -> Hop {
        let egress = self.lfts[row].get(lid.index()).copied().unwrap_or(Lft::NO_ROUTE);
        self.switches.hop(row, egress)
    }

    /// The SL of paths from a row to a LID.
    pub(super) fn sl(&self, row: usize, lid: Lid) -> u8 {
        self.sls_of(row).get(lid.index()).copied().unwrap_or(0)
    }

    fn sls_of(&self, row: usize) -> &[u8] {
        self.sls.get(row).copied().unwrap_or(&[])
    }
}

/// Visits the LIDs of which two tables have different entries; beyond its end a table holds `fill`.
fn differences(now: &[u8], then: &[u8], fill: u8, mut visit: impl FnMut(usize)) {
    if std::ptr::eq(now, then) {
        return;
    }
    let limit = usize::from(Lid::UNICAST_LAST.0) + 1;
    let (now, then) = (&now[..now.len().min(limit)], &then[..then.len().min(limit)]);
    let both = now.len().min(then.len());
    let blocks = now[..both].chunks(Lft::BLOCK_LEN).zip(then[..both].chunks(Lft::BLOCK_LEN));
    for ((now, then), first) in blocks.zip((0..).step_by(Lft::BLOCK_LEN)) {
        if now != then {
            let entries = now.iter().zip(then).zip(first..);
            entries.filter(|((now, then), _)| now != then).for_each(|(_, lid)| visit(lid));
        }
    }
    for longer in [now, then] {
        let rest = longer.iter().enumerate().skip(both);
        rest.filter(|&(_, &entry)| entry != fill).for_each(|(lid, _)| visit(lid));
    }
}

/// Result of an earlier walk.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) topology: &'a Topology<'a>,
    pub(super) columns: &'a Columns,
}

/// Walks the trees of all `lids` (ascending) that may differ from those of `before`. There are at
/// most 65,535 distinct columns, because there are fewer unicast LIDs.
pub(super) fn columns(
    topology: &Topology<'_>,
    lids: &[Lid],
    before: Option<Before<'_>>,
) -> Columns {
    let stale = before.and_then(|before| Some((before, topology.stale(before)?)));
    let kept = |lid: Lid| {
        let (before, stale) = stale.as_ref()?;
        if *stale.get(lid.index())? { None } else { before.columns.of(lid) }
    };
    let changed: Vec<Lid> = lids.iter().copied().filter(|&lid| kept(lid).is_none()).collect();
    let blocks: Vec<&[Lid]> =
        changed.chunk_by(|a, b| a.index() / Lft::BLOCK_LEN == b.index() / Lft::BLOCK_LEN).collect();
    let walked: Vec<_> = blocks.par_iter().map(|block| walk_block(topology, block)).collect();
    let mut walked = walked.iter().flat_map(|block: &BlockColumns| {
        block.of_lid.iter().map(|&local| &block.distinct[usize::from(local)])
    });

    let mut columns = Columns {
        distinct: Vec::new(),
        by_lid: vec![Columns::NONE; lids.last().map_or(0, |lid| lid.index() + 1)],
    };
    // Most LIDs share their column with one before, which is the same memory then.
    let mut met: HashMap<*const Packed, u16, BuildFold> = HashMap::default();
    let mut known: HashMap<Column, u16, BuildFold> = HashMap::default();
    for &lid in lids {
        let column =
            kept(lid).unwrap_or_else(|| walked.next().expect("every other LID was walked"));
        let number = *met.entry(column.as_ptr()).or_insert_with(|| {
            *known.entry(column.clone()).or_insert_with(|| {
                columns.distinct.push(column.clone());
                (columns.distinct.len() - 1) as u16
            })
        });
        columns.by_lid[lid.index()] = number;
    }
    columns
}

struct BlockColumns {
    distinct: Vec<Column>,
    of_lid: Vec<u16>,
}

/// Walks destinations that share a block of the forwarding tables.
fn walk_block(topology: &Topology<'_>, lids: &[Lid]) -> BlockColumns {
    let rows = topology.rows();
    let first = lids[0].index() / Lft::BLOCK_LEN * Lft::BLOCK_LEN;
    let egress = columns_of(&topology.lfts, Lft::NO_ROUTE, first, lids);
    let sls = columns_of(&topology.sls, 0, first, lids);

    let mut distinct: Vec<Column> = Vec::new();
    let mut of_lid = Vec::with_capacity(lids.len());
    let mut walk = Walk::new(rows);
    let mut column = Vec::with_capacity(rows);
    for (i, &lid) in lids.iter().enumerate() {
        walk.forget();
        column.clear();
        for row in 0..rows {
            let sl = sls.get(i * rows + row).copied().unwrap_or(0);
            let egress = &egress[i * rows..][..rows];
            let hop = |row: usize| topology.switches.hop(row, egress[row]);
            column.push(walk.from(hop, lid, row).packed(sl));
        }
        // Neighbouring LIDs mostly hang off one switch: the last column is the likeliest.
        let number = distinct.iter().rposition(|known| **known == *column).unwrap_or_else(|| {
            distinct.push(Column::new(&column));
            distinct.len() - 1
        });
        of_lid.push(number as u16);
    }
    BlockColumns { distinct, of_lid }
}

/// Entries of tables by LID, LID by LID: those of LIDs in the block that begins at `first`.
fn columns_of(tables: &[&[u8]], fill: u8, first: usize, lids: &[Lid]) -> Vec<u8> {
    let rows = tables.len();
    let mut columns = vec![fill; rows * lids.len()];
    for (row, table) in tables.iter().enumerate() {
        let block = table.get(first..).unwrap_or(&[]);
        for (i, lid) in lids.iter().enumerate() {
            columns[i * rows + row] = *block.get(lid.index() - first).unwrap_or(&fill);
        }
    }
    columns
}

#[derive(Clone, Copy)]
enum View {
    Unknown,
    /// On the trail that is being followed: meeting it again is a loop.
    OnTrail,
    Known(PathClass),
}

/// State of one destination's walk.
pub(super) struct Walk {
    views: Vec<View>,
    /// Rows passed before one whose view is known, and the limit of the link after each.
    trail: Vec<(usize, Limit)>,
}

impl Walk {
    /// A walk of so many rows, none of which is known.
    pub(super) fn new(rows: usize) -> Self {
        Self { views: vec![View::Unknown; rows], trail: Vec::new() }
    }

    fn forget(&mut self) {
        self.views.fill(View::Unknown);
    }

    /// Sets the view of a row, or that it is to be found.
    pub(super) fn set(&mut self, row: usize, view: Option<PathClass>) {
        self.views[row] = view.map_or(View::Unknown, View::Known);
    }

    /// The view of `start`, following routes only as far as needed. `hop` is what is behind the
    /// port by which a row sends.
    pub(super) fn from(
        &mut self,
        hop: impl Fn(usize) -> Hop,
        dlid: Lid,
        start: usize,
    ) -> PathClass {
        let mut row = start;
        let mut class = loop {
            match self.views[row] {
                View::Known(class) => break class,
                View::OnTrail => break PathClass::UNREACHABLE,
                View::Unknown => {}
            }
            match hop(row) {
                Hop::Switch(next, limit) => {
                    self.views[row] = View::OnTrail;
                    self.trail.push((row, limit));
                    row = usize::from(next);
                }
                end => {
                    let class = arrival(end, dlid);
                    self.views[row] = View::Known(class);
                    break class;
                }
            }
        };
        while let Some((row, limit)) = self.trail.pop() {
            class = through(class, limit);
            self.views[row] = View::Known(class);
        }
        class
    }
}

/// The view of a switch from the one behind a link.
fn through(next: PathClass, limit: Limit) -> PathClass {
    let limit = next.limit.min(limit);
    if limit.is_none() {
        return PathClass::UNREACHABLE;
    }
    PathClass { limit, hops: next.hops.saturating_add(1), ..next }
}

/// The view from the last switch, whose egress port leads to `end`.
fn arrival(end: Hop, dlid: Lid) -> PathClass {
    match end {
        Hop::EndPort(base, lmc) if dlid.0 >> lmc == base.0 >> lmc && base != Lid::NONE => {
            PathClass { limit: Limit::ANY, hops: 1, sl: 0 }
        }
        _ => PathClass::UNREACHABLE,
    }
}

#[cfg(test)]
mod tests;

//! Brings columns up to date after a change: only switches from which a route passes one with
//! another view are walked again.

use std::collections::HashMap;

use ib_mad::types::Lid;

use super::columns::{BuildFold, Column, Columns};
use super::path::Packed;
use super::walk::{Before, Hop, Switches, Topology, Walk};

/// How much work may be done on the calling thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Entries of forwarding tables and SLs that differ, or lead to another device, in the rows
    /// that are looked at. The last row may exceed it.
    pub(super) entries: usize,
    /// Views of LIDs from switches that are walked again.
    pub(super) views: usize,
}

/// The columns of the same LIDs as before, and those of them, by number, whose views are new. All
/// others keep their numbers. `None` if switches have other rows, or that is more work than
/// `limits` permit.
pub(super) fn patched_columns(
    topology: &Topology<'_>,
    before: Before<'_>,
    limits: Limits,
) -> Option<(Columns, Vec<u16>)> {
    if topology.switches.guids != before.topology.switches.guids {
        return None;
    }
    let mut found: Vec<(Lid, u16)> = Vec::new();
    let mut entries = 0;
    for row in 0..topology.rows() {
        entries += topology.other_views(row, before, |lid| found.push((lid, row as u16)));
        if entries > limits.entries || found.len() > limits.views {
            return None;
        }
    }
    found.sort_unstable();
    found.dedup();
    let mut rewalk = Rewalk::new(topology, limits.views);
    let mut changes: Vec<(Lid, Column)> = Vec::new();
    for rows in found.chunk_by(|a, b| a.0 == b.0) {
        let lid = rows[0].0;
        let Some(old) = before.columns.of(lid) else { continue };
        let column = rewalk.column(lid, old, rows)?;
        if column != **old {
            changes.push((lid, Column::new(&column)));
        }
    }
    Some(before.columns.with(changes))
}

/// Rows that have ports leading to a row.
struct Upstream {
    /// Where those of a row begin in `rows`, and the end of the last.
    starts: Vec<u32>,
    rows: Vec<u16>,
}

impl Upstream {
    fn of(switches: &Switches) -> Self {
        let count = switches.guids.len();
        let links = || {
            (0..count).flat_map(|row| {
                switches.ports(row).iter().filter_map(move |hop| match hop {
                    Hop::Switch(to, _) if usize::from(*to) < count => Some((row, usize::from(*to))),
                    _ => None,
                })
            })
        };
        let mut starts = vec![0u32; count + 1];
        links().for_each(|(_, to)| starts[to + 1] += 1);
        for row in 0..count {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut rows = vec![0; starts[count] as usize];
        for (from, to) in links() {
            rows[next[to] as usize] = from as u16;
            next[to] += 1;
        }
        Self { starts, rows }
    }

    fn of_row(&self, row: usize) -> &[u16] {
        &self.rows[self.starts[row] as usize..self.starts[row + 1] as usize]
    }
}

/// Walks again what a change concerns, LID by LID.
struct Rewalk<'a> {
    topology: &'a Topology<'a>,
    upstream: Upstream,
    walk: Walk,
    /// Whether a row is to be walked.
    is_stale: Vec<bool>,
    /// How many further rows may be walked.
    left: usize,
}

impl<'a> Rewalk<'a> {
    fn new(topology: &'a Topology<'a>, limit: usize) -> Self {
        let rows = topology.rows();
        let upstream = Upstream::of(&topology.switches);
        Self { topology, upstream, walk: Walk::new(rows), is_stale: vec![false; rows], left: limit }
    }

    /// The column of a LID, of which these rows have other views; `None` if that is too much work.
    ///
    /// A row from which the route passes none of them has the view that it had: see
    /// [`Topology::is_same_view`].
    fn column(&mut self, lid: Lid, old: &[Packed], rows: &[(Lid, u16)]) -> Option<Vec<Packed>> {
        let topology = self.topology;
        let mut stale: Vec<usize> = rows.iter().map(|&(_, row)| usize::from(row)).collect();
        stale.iter().for_each(|&row| self.is_stale[row] = true);
        let mut done = 0;
        while let Some(&row) = stale.get(done) {
            done += 1;
            for from in self.upstream.of_row(row).iter().map(|&from| usize::from(from)) {
                let next = || topology.next(from, lid);
                if !self.is_stale[from]
                    && matches!(next(), Hop::Switch(to, _) if usize::from(to) == row)
                {
                    self.is_stale[from] = true;
                    stale.push(from);
                }
            }
        }
        let mut column = old.to_vec();
        let left = self.left.checked_sub(stale.len());
        if left.is_some() {
            // What a stale row leads to is stale or as it was.
            for &row in &stale {
                if let Hop::Switch(to, _) = topology.next(row, lid) {
                    let to = usize::from(to);
                    self.walk.set(to, old.get(to).map(|view| view.class()));
                }
            }
            stale.iter().for_each(|&row| self.walk.set(row, None));
            for &row in &stale {
                let class = self.walk.from(|row| topology.next(row, lid), lid, row);
                column[row] = class.packed(topology.sl(row, lid));
            }
        }
        stale.iter().for_each(|&row| self.is_stale[row] = false);
        self.left = left?;
        Some(column)
    }
}

impl Columns {
    /// Same with these columns of LIDs, and those that have other views now, by number: columns
    /// that no LID has give their place.
    fn with(&self, changes: Vec<(Lid, Column)>) -> (Self, Vec<u16>) {
        let mut next = self.clone();
        if changes.is_empty() {
            return (next, Vec::new());
        }
        changes.iter().for_each(|(lid, _)| next.by_lid[lid.index()] = Self::NONE);
        let mut users = vec![0u32; next.distinct.len()];
        for &number in next.by_lid.iter().filter(|&&number| number != Self::NONE) {
            users[usize::from(number)] += 1;
        }
        let mut known: HashMap<Column, usize, BuildFold> =
            next.distinct.iter().cloned().zip(0..).collect();
        let mut fresh = Vec::new();
        for (lid, column) in changes {
            let at = known.get(&column).copied().unwrap_or_else(|| {
                let free = users.iter().position(|users| *users == 0);
                let at = free.unwrap_or(users.len());
                known.insert(column.clone(), at);
                if at == users.len() {
                    next.distinct.push(column);
                    users.push(0);
                } else {
                    known.remove(&next.distinct[at]);
                    next.distinct[at] = column;
                }
                at
            });
            // A column that was not used may have lost its place among the path classes.
            if users[at] == 0 {
                fresh.push(at as u16);
            }
            users[at] += 1;
            next.by_lid[lid.index()] = at as u16;
        }
        (next, fresh)
    }
}

//! Path classes: the limits of the switches between two end ports, by source switch and
//! destination.
//!
//! A class covers the switch part of a path only: the number of switches, the minimum MTU and rate
//! of the links between them, and the SL if the routing engine assigns one. The query applies the
//! limits of the two end ports and their links. LIDs that all switches route alike share a column,
//! so a healthy fat tree needs one column per leaf; [`walk`](super::walk) computes the columns.

use std::collections::HashMap;
use std::sync::Arc;

use ib_mad::types::{Lid, Rate};
use rayon::prelude::*;

use super::columns::{Column, Columns};
use super::matrix::Matrix;
use crate::tables::limit::Limit;

/// The switch part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathClass {
    /// Least MTU and rate of the links between switches; [`Limit::NONE`] if there is no path.
    pub limit: Limit,
    /// Switches crossed, 255 for more.
    pub hops: u8,
    /// The bits of the SL that the routing engine decides; 0 where it decides none.
    pub sl: u8,
}

impl PathClass {
    /// No path.
    pub const UNREACHABLE: Self = Self { limit: Limit::NONE, hops: 0, sl: 0 };

    /// Packed with the SL that its source has for it.
    pub(super) fn packed(self, sl: u8) -> Packed {
        if self.is_reachable() { Packed::new(Self { sl, ..self }) } else { Packed::UNREACHABLE }
    }

    /// Whether there is a path at all.
    #[inline]
    pub const fn is_reachable(&self) -> bool {
        !self.limit.is_none()
    }
}

/// One switch's view of a destination, packed while columns are collected: SL, MTU, rate rank and
/// hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(pub(super) u32);

impl Packed {
    pub(super) fn new(class: PathClass) -> Self {
        Self(
            u32::from(class.sl & 0xF) << 16
                | u32::from(class.limit.mtu) << 13
                | u32::from(class.limit.rate) << 8
                | u32::from(class.hops),
        )
    }

    /// How many different views a word of this kind can hold.
    const COUNT: usize = 1 << 20;

    /// No path.
    pub(super) const UNREACHABLE: Self = Self(0);

    /// All fields but the hops.
    fn block(self) -> usize {
        self.0 as usize / BLOCK
    }

    fn hops(self) -> usize {
        self.0 as usize % BLOCK
    }

    /// Same limits with unknown hops: the maximum.
    fn without_hops(self) -> Self {
        if self == Self::UNREACHABLE { self } else { Self(self.0 | 0xFF) }
    }

    /// Same SL and MTU; the rate is reduced to one of three lower bounds.
    fn coarse(self) -> Self {
        let mut class = self.without_hops().class();
        let at_most = |rate: &Rate| rate.rank() <= class.limit.rate;
        let floor = [Rate::Gbps100, Rate::Gbps10, Rate::Gbps2_5].iter().find(|&rate| at_most(rate));
        class.limit.rate = floor.map_or(0, |rate| rate.rank());
        if class.is_reachable() { Self::new(class) } else { Self::UNREACHABLE }
    }

    pub(super) fn class(self) -> PathClass {
        let limit = Limit { mtu: (self.0 >> 13 & 7) as u8, rate: (self.0 >> 8 & 0x1F) as u8 };
        PathClass { limit, hops: self.0 as u8, sl: (self.0 >> 16) as u8 }
    }
}

/// Path classes of all pairs of source switch and destination LID. Clones share the matrices.
///
/// Two matrices: rows of switches that hosts are attached to, which nearly all queries ask for, and
/// of all others. Seen from the former far more LIDs look alike, so that theirs stays small.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Class number 0 is [`PathClass::UNREACHABLE`].
    classes: Box<[PathClass; 256]>,
    hosts: Matrix,
    others: Matrix,
    /// Column of `others` by destination LID.
    others_column: Arc<[u16]>,
    numbering: Numbering,
    /// Columns of `hosts` and `others` by number of the distinct column.
    places: [Arc<[u16]>; 2],
}

/// How classes were numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbering {
    /// How many numbers are in use.
    count: usize,
    /// Whether each kind of view has a number of its own.
    is_exact: bool,
}

impl Paths {
    /// Whether both have the same columns in the same memory.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let mut places = self.places.iter().zip(&other.places);
        Arc::ptr_eq(&self.others_column, &other.others_column)
            && places.all(|(now, then)| Arc::ptr_eq(now, then))
    }

    /// The class of a source row and a destination, both of the same tables: its column and the LID
    /// it was found by. A detached port has no class: [`PathClass::UNREACHABLE`].
    #[inline]
    pub fn class(&self, row: u16, column: u16, dlid: Lid) -> PathClass {
        let row = usize::from(row);
        let number = if row < self.hosts.rows {
            self.hosts.number(row, column)
        } else {
            let column = self.others_column.get(dlid.index()).copied();
            self.others.number(row - self.hosts.rows, column.unwrap_or(u16::MAX))
        };
        self.classes[usize::from(number)]
    }

    /// Whether that is the row of a switch with hosts, whose classes the column alone decides.
    pub(crate) fn is_host_row(&self, row: u16) -> bool {
        usize::from(row) < self.hosts.rows
    }

    /// The column of a destination LID for switches without hosts.
    pub(crate) fn other_column(&self, dlid: Lid) -> u16 {
        self.others_column.get(dlid.index()).copied().unwrap_or(u16::MAX)
    }

    /// Fetches what [`class`](Self::class) reads of a row with hosts.
    #[inline]
    pub(crate) fn prefetch(&self, row: u16, column: u16) {
        self.hosts.prefetch(usize::from(row), column);
    }

    /// Whether the switch of `row` and all like it reach every destination; then each path has a
    /// reverse path.
    #[inline]
    pub fn is_complete(&self, row: u16) -> bool {
        if usize::from(row) < self.hosts.rows { self.hosts.complete } else { self.others.complete }
    }

    /// Whether every switch reaches every destination.
    #[inline]
    pub(crate) fn are_complete(&self) -> bool {
        self.hosts.complete && self.others.complete
    }

    /// The class numbers of a switch with hosts, by column: 0 means no path, and equal numbers mean
    /// equal classes.
    #[inline]
    pub(crate) fn row(&self, row: u16) -> Option<&[u8]> {
        self.hosts.row(usize::from(row))
    }

    /// Rows and columns of the matrix for switches with hosts.
    pub fn host_size(&self) -> (usize, usize) {
        (self.hosts.rows, self.hosts.columns())
    }

    /// Bytes of the matrix for switches with hosts.
    pub(super) fn host_bytes(&self) -> usize {
        self.hosts.bytes()
    }

    /// Rows and columns of the matrix for all other switches.
    pub fn other_size(&self) -> (usize, usize) {
        (self.others.rows, self.others.columns())
    }

    /// Makes the matrices; the first `host_rows` rows are those of switches with hosts. Also
    /// yields the column that each LID has for them.
    pub(super) fn build(host_rows: usize, columns: &Columns) -> (Self, Vec<u16>) {
        let exact = Numbers::of(&columns.distinct, |view| view);
        let is_exact = exact.is_some();
        let numbers = exact
            .or_else(|| Numbers::of(&columns.distinct, Packed::without_hops))
            .or_else(|| Numbers::of(&columns.distinct, Packed::coarse))
            .expect("5 MTUs times 3 rates times 16 SLs are fewer than 255");
        let numbered: Vec<Vec<u8>> = columns
            .distinct
            .par_iter()
            .map(|views| views.iter().map(|view| numbers.number(*view)).collect())
            .collect();
        let numbering = Numbering { count: numbers.count, is_exact };
        let classes = numbers.classes;
        let ((hosts, host_places), (others, other_places)) = rayon::join(
            || Matrix::share(&numbered, |column| &column[..host_rows.min(column.len())]),
            || Matrix::share(&numbered, |column| &column[host_rows.min(column.len())..]),
        );
        let host_column = by_lid(columns, &host_places);
        let others_column = by_lid(columns, &other_places).into();
        let places = [host_places.into(), other_places.into()];
        (Self { classes, hosts, others, others_column, numbering, places }, host_column)
    }

    /// Same for columns of which only `fresh`, by number, have other views than those of these
    /// matrices. `None` if there is no room for them, or not every kind of view has a number.
    pub(super) fn patched(&self, columns: &Columns, fresh: &[u16]) -> Option<(Self, Vec<u16>)> {
        if !self.numbering.is_exact {
            return None;
        }
        let mut next = self.clone();
        let mut numbered: Vec<Vec<u8>> = Vec::with_capacity(fresh.len());
        for &number in fresh {
            let views = columns.distinct.get(usize::from(number))?;
            let number_of = |view: &Packed| next.number_of(view.class());
            numbered.push(views.iter().map(number_of).collect::<Option<_>>()?);
        }
        let mut is_used = vec![false; columns.distinct.len()];
        for &number in columns.by_lid.iter().filter(|&&number| number != Columns::NONE) {
            is_used[usize::from(number)] = true;
        }
        fresh.iter().for_each(|&number| is_used[usize::from(number)] = false);
        let kept = |places: &[u16]| -> Vec<u16> {
            let used = places.iter().zip(&is_used).filter(|(_, used)| **used);
            used.map(|(place, _)| *place).collect()
        };
        let rows = self.hosts.rows;
        let host_parts: Vec<&[u8]> =
            numbered.iter().map(|column| &column[..rows.min(column.len())]).collect();
        let other_parts: Vec<&[u8]> =
            numbered.iter().map(|column| &column[rows.min(column.len())..]).collect();
        let (hosts, host_places) = self.hosts.patched(&kept(&self.places[0]), &host_parts)?;
        let (others, other_places) = self.others.patched(&kept(&self.places[1]), &other_parts)?;
        (next.hosts, next.others) = (hosts, others);
        for (places, new) in next.places.iter_mut().zip([host_places, other_places]) {
            let mut all = places.to_vec();
            all.resize(columns.distinct.len(), u16::MAX);
            fresh.iter().zip(new).for_each(|(&number, place)| all[usize::from(number)] = place);
            *places = all.into();
        }
        next.others_column = by_lid(columns, &next.places[1]).into();
        let host_column = by_lid(columns, &next.places[0]);
        Some((next, host_column))
    }

    /// The number of a class, a new one if need be; `None` if there are no more.
    fn number_of(&mut self, class: PathClass) -> Option<u8> {
        let known = self.classes[..self.numbering.count].iter().position(|other| *other == class);
        let number = known.unwrap_or(self.numbering.count);
        *self.classes.get_mut(number)? = class;
        self.numbering.count = self.numbering.count.max(number + 1);
        u8::try_from(number).ok()
    }
}

/// Columns by LID, from those by number of the distinct column.
fn by_lid(columns: &Columns, places: &[u16]) -> Vec<u16> {
    let column = |&number: &u16| places.get(usize::from(number)).copied();
    columns.by_lid.iter().map(|number| column(number).unwrap_or(u16::MAX)).collect()
}

/// Views that differ in hops only, of which few fabrics have more than a hundred kinds: their
/// numbers are a block.
const BLOCK: usize = 1 << 8;

/// The kinds of path, numbered.
struct Numbers {
    classes: Box<[PathClass; 256]>,
    /// Block by the fields of a view other than the hops.
    block_of: Box<[u16]>,
    /// Numbers of classes, by block and hops.
    by_view: Vec<[u8; BLOCK]>,
    /// How many classes have a number.
    count: usize,
}

impl Numbers {
    /// A block of views that no column has.
    const NONE: u16 = u16::MAX;

    /// Numbers the distinct views in `columns` after `simplify`; `None` if there are more than 256.
    fn of(columns: &[Column], simplify: impl Fn(Packed) -> Packed) -> Option<Self> {
        const MET: u8 = 1;
        let mut block_of = vec![Self::NONE; Packed::COUNT / BLOCK].into_boxed_slice();
        let mut by_view: Vec<[u8; BLOCK]> = Vec::new();
        for view in columns.iter().flat_map(|column| column.iter()) {
            let block = &mut block_of[view.block()];
            if *block == Self::NONE {
                // Fewer than 4,096.
                *block = by_view.len() as u16;
                by_view.push([0; BLOCK]);
            }
            by_view[usize::from(*block)][view.hops()] = MET;
        }
        let mut classes = Box::new([PathClass::UNREACHABLE; 256]);
        let mut number_of = HashMap::from([(Packed::UNREACHABLE.0, 0)]);
        let in_order = block_of.iter().zip((0..).step_by(BLOCK));
        for (&block, first) in in_order.filter(|(block, _)| **block != Self::NONE) {
            let numbers = by_view[usize::from(block)].iter_mut().zip(first..);
            for (number, view) in numbers.filter(|(number, _)| **number == MET) {
                let simple = simplify(Packed(view));
                let next = number_of.len();
                *number = u8::try_from(*number_of.entry(simple.0).or_insert(next)).ok()?;
                classes[usize::from(*number)] = simple.class();
            }
        }
        Some(Self { classes, block_of, by_view, count: number_of.len() })
    }

    /// The number of a view that a column has.
    fn number(&self, view: Packed) -> u8 {
        self.by_view[usize::from(self.block_of[view.block()])][view.hops()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(mtu: u8, rate: u8, hops: u8) -> Packed {
        Packed::new(PathClass { limit: Limit { mtu, rate }, hops, sl: 0 })
    }

    #[test]
    fn packing_keeps_every_class() {
        for (mtu, rate, hops, sl) in [(5, 23, 255, 15), (1, 1, 1, 0), (0, 0, 0, 0), (4, 18, 3, 9)] {
            let class = PathClass { limit: Limit { mtu, rate }, hops, sl };
            assert_eq!(Packed::new(class).class(), class);
        }
    }

    /// Columns of LIDs 0, 1, 2, ….
    fn columns(distinct: Vec<Arc<[Packed]>>) -> Columns {
        let by_lid = (0..distinct.len() as u16).collect();
        Columns { distinct: distinct.iter().map(|views| Column::new(views)).collect(), by_lid }
    }

    #[test]
    fn rows_and_columns_are_not_mixed_up_however_the_rows_are_divided() {
        let distinct: Vec<Arc<[Packed]>> = vec![
            Arc::new([view(4, 9, 1), view(5, 9, 3)]),
            Arc::new([view(4, 8, 2), view(5, 8, 5)]),
        ];
        let all = columns(distinct.clone());
        for host_rows in 0..=2 {
            let (paths, column) = Paths::build(host_rows, &all);
            for (row, lid) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let class = paths.class(row as u16, column[lid], Lid(lid as u16));
                assert_eq!(Packed::new(class), distinct[lid][row]);
            }
            assert!(paths.is_complete(0) && paths.is_complete(1));
            assert_eq!(paths.class(1, 2, Lid(2)), PathClass::UNREACHABLE);
            assert_eq!(paths.class(2, 0, Lid(0)), PathClass::UNREACHABLE);
            assert_eq!(paths.class(u16::MAX, u16::MAX, Lid(0)), PathClass::UNREACHABLE);
        }
    }

    #[test]
    fn what_only_other_switches_see_does_not_split_the_columns_of_hosts() {
        let (near, far) = (view(4, 9, 1), view(4, 9, 3));
        let all = columns(vec![Arc::new([far, near]), Arc::new([far, far])]);
        let (paths, column) = Paths::build(1, &all);
        assert_eq!((paths.host_size(), paths.other_size()), ((1, 1), (1, 2)));
        assert_eq!(column, [0, 0]);
        assert_eq!(paths.class(1, 0, Lid(0)).hops, 1);
        assert_eq!(paths.class(1, 0, Lid(1)).hops, 3);
    }

    #[test]
    fn a_pair_without_a_path_makes_its_matrix_incomplete() {
        let all = columns(vec![Arc::new([view(4, 9, 1), Packed::UNREACHABLE])]);
        let (paths, column) = Paths::build(1, &all);
        assert!(paths.is_complete(0) && !paths.is_complete(1));
        assert!(!paths.class(1, column[0], Lid(0)).is_reachable());
        assert!(paths.class(0, column[0], Lid(0)).is_reachable());
    }

    /// A chain of 300 switches has more kinds of path than class numbers can distinguish.
    #[test]
    fn hops_are_given_up_before_limits_are() {
        let column: Arc<[Packed]> =
            (0..=255).map(|hops| view(4, 9, hops)).chain([view(3, 2, 7)]).collect();
        let (paths, _) = Paths::build(column.len(), &columns(vec![column]));
        assert_eq!(paths.class(200, 0, Lid(0)).limit, Limit { mtu: 4, rate: 9 });
        let last = PathClass { limit: Limit { mtu: 3, rate: 2 }, hops: 255, sl: 0 };
        assert_eq!(paths.class(256, 0, Lid(0)), last);
    }

    /// 16 SLs on links of many kinds: the SL must be right, and the path must have the returned MTU
    /// and rate.
    #[test]
    fn rates_are_given_up_before_sls_are() {
        let kinds = || {
            (0..16).flat_map(|sl| {
                (1..=5).flat_map(move |mtu| (1..=20).map(move |rate| (sl, mtu, rate)))
            })
        };
        let column = kinds().map(|(sl, mtu, rate)| {
            Packed::new(PathClass { limit: Limit { mtu, rate }, hops: 3, sl })
        });
        let column: Arc<[Packed]> = column.collect();
        let (paths, _) = Paths::build(column.len(), &columns(vec![column]));
        for (row, (sl, mtu, rate)) in (0..).zip(kinds()) {
            let class = paths.class(row, 0, Lid(0));
            assert_eq!((class.sl, class.limit.mtu), (sl, mtu));
            assert!(class.is_reachable() && class.limit.rate <= rate);
        }
    }
}

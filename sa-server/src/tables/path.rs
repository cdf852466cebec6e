//! Path classes: what the switches between two end ports allow, by source switch and destination.
//!
//! A class is the switch part of a path only: how many switches it crosses, and the least MTU and
//! rate of the links between them. What the two end ports and their own links allow is applied by
//! the query. LIDs that every switch sees in the same way share a column, so that a healthy fat
//! tree needs one column a leaf; see [`walk`](super::walk) for how columns come about.

use std::collections::HashMap;

use super::limit::Limit;

/// The switch part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathClass {
    /// Least MTU and rate of the links between switches; [`Limit::NONE`] if there is no path.
    pub limit: Limit,
    /// Switches crossed, 255 for more.
    pub hops: u8,
}

impl PathClass {
    /// No path.
    pub const UNREACHABLE: Self = Self { limit: Limit::NONE, hops: 0 };

    /// Whether there is a path at all.
    #[inline]
    pub const fn is_reachable(&self) -> bool {
        !self.limit.is_none()
    }
}

/// One switch's view of a destination, packed while columns are collected: MTU, rate rank, hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Packed(pub(super) u16);

impl Packed {
    pub(super) fn new(class: PathClass) -> Self {
        Self(
            u16::from(class.limit.mtu) << 13
                | u16::from(class.limit.rate) << 8
                | u16::from(class.hops),
        )
    }

    /// No path.
    pub(super) const UNREACHABLE: Self = Self(0);

    /// The same limits, hops unknown: the most there may be.
    fn without_hops(self) -> Self {
        if self == Self::UNREACHABLE { self } else { Self(self.0 | 0xFF) }
    }

    pub(super) fn class(self) -> PathClass {
        let limit = Limit { mtu: (self.0 >> 13) as u8, rate: (self.0 >> 8 & 0x1F) as u8 };
        PathClass { limit, hops: self.0 as u8 }
    }
}

/// Path classes of all pairs of source switch and destination LID.
#[derive(Debug)]
pub struct Paths {
    /// Class number 0 is [`PathClass::UNREACHABLE`].
    classes: Box<[PathClass; 256]>,
    /// Class numbers, row by row.
    matrix: Box<[u8]>,
    columns: usize,
    complete: bool,
}

impl Paths {
    /// The class of a source row and a destination column, both those of end ports of the same
    /// tables. A detached port has no class: [`PathClass::UNREACHABLE`].
    #[inline]
    pub fn class(&self, row: u16, column: u16) -> PathClass {
        if usize::from(column) >= self.columns {
            return PathClass::UNREACHABLE;
        }
        let at = usize::from(row) * self.columns + usize::from(column);
        self.matrix
            .get(at)
            .map_or(PathClass::UNREACHABLE, |&class| self.classes[usize::from(class)])
    }

    /// Whether every switch reaches every destination, so that each path has a way back.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Rows and columns of the matrix.
    pub fn size(&self) -> (usize, usize) {
        (self.matrix.len() / self.columns.max(1), self.columns)
    }

    /// Takes distinct columns, each with an entry a row.
    pub(super) fn build(rows: usize, columns: &[Box<[Packed]>]) -> Self {
        let number = number_classes(columns, |view| view)
            .or_else(|| number_classes(columns, Packed::without_hops))
            .expect("5 MTUs times 23 rates are fewer than 255");
        let mut classes = Box::new([PathClass::UNREACHABLE; 256]);
        let mut matrix = vec![0; rows * columns.len()].into_boxed_slice();
        for (column, views) in columns.iter().enumerate() {
            for (row, view) in views.iter().enumerate() {
                let (class, view) = number[view];
                classes[usize::from(class)] = view.class();
                matrix[row * columns.len() + column] = class;
            }
        }
        let complete = matrix.iter().all(|&class| class != 0);
        Self { classes, matrix, columns: columns.len(), complete }
    }
}

/// Numbers the kinds of path that `columns` hold after `simplify`; `None` if a byte cannot.
fn number_classes(
    columns: &[Box<[Packed]>],
    simplify: impl Fn(Packed) -> Packed,
) -> Option<HashMap<Packed, (u8, Packed)>> {
    let mut numbers = HashMap::from([(Packed::UNREACHABLE, 0)]);
    let mut known = HashMap::new();
    for &view in columns.iter().flat_map(|column| column.iter()) {
        if known.contains_key(&view) {
            continue;
        }
        let simple = simplify(view);
        let next = numbers.len();
        let number = *numbers.entry(simple).or_insert(next);
        known.insert(view, (u8::try_from(number).ok()?, simple));
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(mtu: u8, rate: u8, hops: u8) -> Packed {
        Packed::new(PathClass { limit: Limit { mtu, rate }, hops })
    }

    #[test]
    fn packing_keeps_every_class() {
        for (mtu, rate, hops) in [(5, 23, 255), (1, 1, 1), (0, 0, 0), (4, 18, 3)] {
            let class = PathClass { limit: Limit { mtu, rate }, hops };
            assert_eq!(Packed::new(class).class(), class);
        }
    }

    #[test]
    fn rows_and_columns_are_not_mixed_up() {
        let columns: [Box<[Packed]>; 2] =
            [Box::new([view(4, 9, 1), view(5, 9, 3)]), Box::new([view(4, 8, 2), view(5, 8, 5)])];
        let paths = Paths::build(2, &columns);
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let class = paths.class(row, column);
            assert_eq!(Packed::new(class), columns[usize::from(column)][usize::from(row)]);
        }
        assert!(paths.is_complete());
        assert_eq!(paths.class(0, 2), PathClass::UNREACHABLE);
        assert_eq!(paths.class(2, 0), PathClass::UNREACHABLE);
        assert_eq!(paths.class(u16::MAX, u16::MAX), PathClass::UNREACHABLE);
    }

    #[test]
    fn a_pair_without_a_path_makes_the_table_incomplete() {
        let columns: [Box<[Packed]>; 1] = [Box::new([view(4, 9, 1), Packed::UNREACHABLE])];
        let paths = Paths::build(2, &columns);
        assert!(!paths.is_complete());
        assert!(!paths.class(1, 0).is_reachable() && paths.class(0, 0).is_reachable());
    }

    /// A chain of 300 switches has more kinds of path than a class number can tell apart.
    #[test]
    fn hops_are_given_up_before_limits_are() {
        let column: Box<[Packed]> =
            (0..=255).map(|hops| view(4, 9, hops)).chain([view(3, 2, 7)]).collect();
        let paths = Paths::build(column.len(), &[column]);
        assert_eq!(paths.class(200, 0).limit, Limit { mtu: 4, rate: 9 });
        assert_eq!(paths.class(256, 0), PathClass { limit: Limit { mtu: 3, rate: 2 }, hops: 255 });
    }
}

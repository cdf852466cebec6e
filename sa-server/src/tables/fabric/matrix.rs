//! Class numbers of paths by switch and column, row by row in one piece of memory.
//!
//! A matrix has room for further columns, so that after a change of the fabric it is copied as it
//! is and only columns that are new are written.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::columns::BuildFold;
use crate::tables::prefetch::prefetch;

/// Rows built at a time: a cache line of each column.
const ROWS_AT_ONCE: usize = 64;
/// Room for further columns: a fraction of those that there are, and at least so many.
const ROOM_FRACTION: usize = 8;
const ROOM_MIN: usize = 64;

/// Class numbers, row by row.
#[derive(Clone, Debug, Default)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    /// Bytes from one row to the next.
    stride: usize,
    numbers: Arc<[u8]>,
    /// Whether no number in a column that is used is 0.
    pub(super) complete: bool,
    /// What is known of each column; those that are not used keep their place.
    columns: Arc<[Column]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column {
    hash: u64,
    /// Whether no number is 0.
    complete: bool,
}

impl Column {
    fn of(numbers: &[u8]) -> Self {
        let hash = BuildFold::default().hash_one(numbers);
        Self { hash, complete: numbers.iter().all(|&number| number != 0) }
    }
}

impl Matrix {
    /// The number at a row and column; 0 beyond the end.
    #[inline]
    pub(super) fn number(&self, row: usize, column: u16) -> u8 {
        if usize::from(column) >= self.stride {
            return 0;
        }
        self.numbers.get(row * self.stride + usize::from(column)).copied().unwrap_or(0)
    }

    /// Fetches what [`number`](Self::number) reads.
    #[inline]
    pub(super) fn prefetch(&self, row: usize, column: u16) {
        prefetch(&self.numbers, row * self.stride + usize::from(column));
    }

    /// The numbers of a row by column.
    #[inline]
    pub(super) fn row(&self, row: usize) -> Option<&[u8]> {
        let start = row * self.stride;
        (row < self.rows).then(|| &self.numbers[start..start + self.stride])
    }

    /// Columns, those that are not used included.
    pub(super) fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Bytes of the numbers, the room for further columns included.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.len()
    }

    /// A matrix of a part of all columns, equal parts once; and where each column's part is.
    pub(super) fn share(columns: &[Vec<u8>], part: impl Fn(&[u8]) -> &[u8]) -> (Self, Vec<u16>) {
        let mut known: HashMap<&[u8], u16, BuildFold> = HashMap::default();
        let mut distinct: Vec<&[u8]> = Vec::new();
        let of_column = columns
            .iter()
            .map(|column| {
                let part = part(column);
                *known.entry(part).or_insert_with(|| {
                    distinct.push(part);
                    (distinct.len() - 1) as u16
                })
            })
            .collect();
        let rows = distinct.first().map_or(0, |part| part.len());
        let stride = with_room(distinct.len());
        let mut numbers = Vec::with_capacity(rows * stride);
        // Some rows of each column at a time, so that they stay cached.
        let mut some = Vec::new();
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let count = ROWS_AT_ONCE.min(rows - first);
            some.clear();
            some.resize(count * stride, 0);
            for (column, part) in distinct.iter().enumerate() {
                for (row, &number) in part[first..first + count].iter().enumerate() {
                    some[row * stride + column] = number;
                }
            }
            numbers.extend_from_slice(&some);
        }
        let columns: Arc<[Column]> = distinct.iter().map(|part| Column::of(part)).collect();
        let complete = columns.iter().all(|column| column.complete);
        (Self { rows, stride, numbers: numbers.into(), complete, columns }, of_column)
    }

    /// Same with `parts` as columns besides those that are `used`, by number, and the columns of
    /// these parts. Columns that are not used give place. `None` if the parts have other rows, or
    /// columns cannot be numbered.
    pub(super) fn patched(&self, used: &[u16], parts: &[&[u8]]) -> Option<(Self, Vec<u16>)> {
        let mut next = self.clone();
        let mut is_used = vec![false; next.columns.len()];
        for &column in used {
            *is_used.get_mut(usize::from(column))? = true;
        }
        let mut places = Vec::with_capacity(parts.len());
        if !parts.is_empty() {
            let mut columns = next.columns.to_vec();
            let mut is_own = false;
            for part in parts {
                if part.len() != self.rows {
                    return None;
                }
                let column = Column::of(part);
                let is_it = |at: &usize| columns[*at] == column && next.is_column(*at, part);
                let at = match (0..columns.len()).find(is_it) {
                    Some(known) => known,
                    None => {
                        let free = is_used.iter().position(|used| !used);
                        let at = free.unwrap_or(columns.len());
                        if at >= usize::from(u16::MAX) {
                            return None;
                        }
                        if at == columns.len() {
                            columns.push(column);
                            is_used.push(false);
                        }
                        columns[at] = column;
                        if at >= next.stride {
                            next.widen();
                        } else if !is_own {
                            next.numbers = Arc::from(&*self.numbers);
                        }
                        is_own = true;
                        next.write(at, part)?;
                        at
                    }
                };
                is_used[at] = true;
                places.push(at as u16);
            }
            next.columns = columns.into();
        }
        let used = next.columns.iter().zip(&is_used).filter(|(_, used)| **used);
        next.complete = used.into_iter().all(|(column, _)| column.complete);
        Some((next, places))
    }

    /// Makes room for further columns, in a copy of the numbers.
    fn widen(&mut self) {
        let stride = with_room(self.stride);
        let mut numbers = Vec::with_capacity(self.rows * stride);
        for row in self.numbers.chunks(self.stride.max(1)) {
            let end = numbers.len() + stride;
            numbers.extend_from_slice(row);
            numbers.resize(end, 0);
        }
        (self.stride, self.numbers) = (stride, numbers.into());
    }

    fn is_column(&self, at: usize, part: &[u8]) -> bool {
        let numbers = self.numbers.iter().skip(at).step_by(self.stride.max(1));
        numbers.eq(part)
    }

    /// Writes a column of numbers that are not shared.
    fn write(&mut self, at: usize, part: &[u8]) -> Option<()> {
        let numbers = Arc::get_mut(&mut self.numbers)?;
        let column = numbers.iter_mut().skip(at).step_by(self.stride.max(1));
        column.zip(part).for_each(|(number, new)| *number = *new);
        Some(())
    }
}

/// Columns that a matrix with so many has place for.
fn with_room(columns: usize) -> usize {
    columns + (columns / ROOM_FRACTION).max(ROOM_MIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(matrix: &Matrix, at: u16) -> Vec<u8> {
        (0..matrix.rows).map(|row| matrix.number(row, at)).collect()
    }

    proptest! {
        /// Columns come and go; each is found where it is said to be.
        #[test]
        fn a_patched_matrix_has_the_columns_in_use(
            first in prop::collection::vec(prop::collection::vec(0u8..3, 5), 1..20),
            steps in prop::collection::vec(
                (prop::collection::vec(prop::bool::weighted(0.8), 80),
                 prop::collection::vec(prop::collection::vec(0u8..4, 5), 0..50)), 0..12),
        ) {
            let (mut matrix, places) = Matrix::share(&first, |column| column);
            let mut held: Vec<(u16, Vec<u8>)> = places.into_iter().zip(first).collect();
            for (stays, parts) in steps {
                let mut stays = stays.into_iter();
                held.retain(|_| stays.next().unwrap_or(true));
                let used: Vec<u16> = held.iter().map(|(at, _)| *at).collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                let (next, places) = matrix.patched(&used, &parts).unwrap();
                matrix = next;
                prop_assert!(matrix.columns() <= matrix.stride);
                prop_assert_eq!(matrix.bytes(), matrix.rows * matrix.stride);
                held.extend(places.into_iter().zip(parts.iter().map(|part| part.to_vec())));
                for (at, numbers) in &held {
                    prop_assert_eq!(&column(&matrix, *at), numbers);
                }
                let complete = held.iter().all(|(_, numbers)| !numbers.contains(&0));
                prop_assert_eq!(matrix.complete, complete);
            }
        }
    }
}

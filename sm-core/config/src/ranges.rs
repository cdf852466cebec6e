//! Sets of numbers written as lists of ranges: `7-9,11`.

/// A set of numbers as ranges, ascending, not adjacent, and not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The numbers from `first` to `last`, both included.
    pub fn of(first: u64, last: u64) -> Self {
        [(first, last)].into_iter().collect()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// First and last number of each range, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Whether the set contains `number`.
    pub fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|&(first, _)| first <= number);
        after.checked_sub(1).is_some_and(|at| number <= self.0[at].1)
    }

    /// Adds the numbers of `other`.
    pub fn extend(&mut self, other: &Self) {
        *self = self.iter().chain(other.iter()).collect();
    }
}

impl FromIterator<(u64, u64)> for Ranges {
    /// Merges ranges given in any order; the ends of a range may be swapped.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let mut all: Vec<(u64, u64)> =
            ranges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
        all.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last);
                }
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let ranges: Ranges =
            [(9, 7), (11, 11), (10, 10), (8, 9), (u64::MAX, 20)].into_iter().collect();
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(7, 11), (20, u64::MAX)]);
        for (number, inside) in [(6, false), (7, true), (11, true), (12, false), (u64::MAX, true)] {
            assert_eq!(ranges.contains(number), inside, "{number}");
        }
    }

    #[test]
    fn nothing_is_in_no_ranges() {
        assert!(Ranges::default().is_empty() && !Ranges::default().contains(0));
    }
}

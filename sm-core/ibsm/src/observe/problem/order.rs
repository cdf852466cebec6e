//! The order in which the first problems are shown where there is no room for all.

use std::collections::HashMap;
use std::hash::Hash;

/// The problems by severity; of each severity one of every kind first, then the second ones, and so
/// on. Hundreds of one kind do not hide another. `key`: severity, as an order, and kind.
pub(crate) fn one_of_each_kind_first<P: Copy, K: Eq + Hash>(
    problems: impl IntoIterator<Item = P>,
    key: impl Fn(&P) -> (u8, K),
) -> impl Iterator<Item = P> {
    let mut before: HashMap<(u8, K), usize> = HashMap::new();
    let mut ranked: Vec<((u8, usize), P)> = Vec::new();
    for problem in problems {
        let key = key(&problem);
        let severity = key.0;
        let place = before.entry(key).or_default();
        ranked.push(((severity, *place), problem));
        *place += 1;
    }
    // Stable: of one rank, as they came.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, problem)| problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the first ten problems in the status were of one kind, and hid a certificate
    /// that was about to expire.
    #[test]
    fn one_of_each_kind_comes_before_the_second_of_any() {
        let all = ["1a", "1b", "0z", "1c", "0z2", "1a2", "1a3"];
        let key = |name: &&str| (name.as_bytes()[0] - b'0', name.as_bytes()[1]);
        let shown: Vec<&str> = one_of_each_kind_first(all, key).collect();
        assert_eq!(shown, ["0z", "0z2", "1a", "1b", "1c", "1a2", "1a3"]);
    }
}

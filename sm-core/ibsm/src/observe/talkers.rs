//! Finds the requesters with the most queries, over all responders and some seconds.

use std::collections::HashMap;

/// Largest number of requesters remembered.
const KNOWN_MAX: usize = 4096;
/// Factor by which an average decays per second: values from ten seconds ago count a third.
const DECAY: f64 = 0.9;
/// Requests per second below which a requester is forgotten.
const FORGOTTEN: f64 = 0.05;

/// Average request rates by LID.
#[derive(Clone, Debug, Default)]
pub(super) struct Talkers {
    by_lid: HashMap<u16, f64>,
}

impl Talkers {
    /// Adds the last second: requests per second by LID, of each responder.
    pub(super) fn tick<'a>(&mut self, seen: impl IntoIterator<Item = &'a (u16, f64)>) {
        self.by_lid.values_mut().for_each(|rate| *rate *= DECAY);
        for &(lid, rate) in seen {
            if self.by_lid.len() < KNOWN_MAX || self.by_lid.contains_key(&lid) {
                *self.by_lid.entry(lid).or_default() += rate * (1.0 - DECAY);
            }
        }
        self.by_lid.retain(|_, rate| *rate >= FORGOTTEN);
    }

    /// The `max` requesters with the highest rates, highest first.
    pub(super) fn top(&self, max: usize) -> Vec<(u16, f64)> {
        let mut all: Vec<_> = self.by_lid.iter().map(|(&lid, &rate)| (lid, rate)).collect();
        all.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(max);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_approach_the_rate_and_decay() {
        let mut talkers = Talkers::default();
        for _ in 0..60 {
            talkers.tick(&[(7, 60.0), (9, 50.0), (7, 40.0)]);
        }
        let top = talkers.top(1);
        assert_eq!(top[0].0, 7);
        assert!((top[0].1 - 100.0).abs() < 1.0, "{top:?}");
        for _ in 0..100 {
            talkers.tick(&[]);
        }
        assert_eq!(talkers.top(10), []);
    }

    #[test]
    fn the_number_remembered_is_limited() {
        let mut talkers = Talkers::default();
        let many: Vec<_> = (0..10_000).map(|lid| (lid, 100.0)).collect();
        talkers.tick(&many);
        assert_eq!(talkers.by_lid.len(), KNOWN_MAX);
    }
}

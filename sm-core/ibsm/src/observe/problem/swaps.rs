//! Swapped cables: two links whose ends on one side have changed places. With a baseline they are
//! compared with that, else with where they led before, for a day.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use super::{Condition, Kind, Subject};
use crate::observe::topology::{End, Moved, Topology};

/// Two cables whose ends on one side were swapped.
pub(super) struct Swap {
    /// An end of each.
    pub(super) ends: [End; 2],
    /// Where these led.
    pub(super) expected: [End; 2],
}

impl Swap {
    /// The problem; `was` says when they led elsewhere.
    pub(super) fn condition(&self, current: &Topology, was: &str) -> Condition {
        let [one, other] = self.ends.map(|end| current.describe(end));
        let [of_one, of_other] = self.expected.map(|end| current.describe(end));
        let detail = format!(
            "two cables are swapped: {was} {one} to {of_one}, and {other} to {of_other}; it is the \
             other way round"
        );
        let (guid, port) = self.ends[0];
        Condition::new(Kind::CableMoved, Subject::port(current.name(guid), guid, port), detail)
    }
}

/// The pairs of swapped cables among these: either end of each has the far end of the other.
pub(super) fn swaps(moved: &[Moved]) -> Vec<Swap> {
    let by_end: BTreeMap<End, &Moved> = moved.iter().map(|moved| (moved.end, moved)).collect();
    let mut swaps: Vec<Swap> = Vec::new();
    let mut known: HashSet<End> = HashSet::new();
    for (&end, one) in &by_end {
        if known.contains(&end) {
            continue;
        }
        // Where its cable led, another leads now, and where that led, its cable does.
        let Some(back) = by_end.get(&one.was) else { continue };
        let Some(other) = by_end.get(&back.is) else { continue };
        if other.is == one.was && other.was == one.is && other.end != end {
            let (ends, expected) = ([end, other.end], [one.was, other.was]);
            known.extend([ends, expected].concat());
            swaps.push(Swap { ends, expected });
        }
    }
    swaps
}

/// Where the link of each end led first, and since when it leads elsewhere.
#[derive(Debug, Default)]
pub(super) struct UsualLinks {
    usual: BTreeMap<End, End>,
    moved: BTreeMap<End, Instant>,
}

impl UsualLinks {
    /// As they were before a restart.
    pub(super) fn of(before: &Topology) -> Self {
        Self { usual: before.peers(), moved: BTreeMap::new() }
    }

    /// Takes the links of a new fabric. What has led elsewhere for `held` is usual by now.
    pub(super) fn follow(&mut self, now: Instant, current: &Topology, held: Duration) {
        for (end, far) in current.peers() {
            if *self.usual.entry(end).or_insert(far) == far {
                self.moved.remove(&end);
            } else if now.saturating_duration_since(*self.moved.entry(end).or_insert(now)) >= held {
                self.usual.insert(end, far);
                self.moved.remove(&end);
            }
        }
    }

    /// Whether anything has led elsewhere for so long that it is usual by now.
    pub(super) fn are_due(&self, now: Instant, held: Duration) -> bool {
        self.moved.values().any(|since| now.saturating_duration_since(*since) >= held)
    }

    /// Cables that are swapped now, and were not before.
    pub(super) fn conditions(&self, current: &Topology) -> Vec<Condition> {
        if self.moved.is_empty() {
            return Vec::new();
        }
        let peers = current.peers();
        let moved = self.moved.keys().filter_map(|&end| {
            let (was, is) = (*self.usual.get(&end)?, *peers.get(&end)?);
            Some(Moved { end, was, is })
        });
        let swaps = swaps(&moved.collect::<Vec<_>>());
        let condition = |swap: &Swap| {
            swap.condition(current, "before,")
                .with_remedy("connect them as before, or accept it: ibsmctl baseline take")
        };
        swaps.iter().map(condition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    const ALL: [(u64, u8, u64, u8); 3] = [(1, 1, 2, 1), (1, 9, 100, 1), (2, 9, 101, 1)];
    const SWAPPED: [(u64, u8, u64, u8); 3] = [ALL[0], (1, 9, 101, 1), (2, 9, 100, 1)];
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn topology(links: &[(u64, u8, u64, u8)]) -> Topology {
        Topology::of(&plane(links, 0, 0))
    }

    /// Regression: without a baseline, swapped cables were in events only.
    #[test]
    fn cables_that_change_places_one_after_the_other_are_swapped_for_a_day() {
        let (mut links, now) = (UsualLinks::default(), Instant::now());
        // Both are pulled, and one after the other is plugged in elsewhere.
        for seen in [&ALL[..], &ALL[..1], &SWAPPED[..2]] {
            links.follow(now, &topology(seen), DAY);
            assert!(links.conditions(&topology(seen)).is_empty());
        }
        let swapped = topology(&SWAPPED);
        links.follow(now, &swapped, DAY);
        let found = links.conditions(&swapped);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].detail,
            "two cables are swapped: before, 'n1' port 9 to 'n100' port 1, and 'n2' port 9 to \
             'n101' port 1; it is the other way round"
        );
        links.follow(now + DAY, &swapped, DAY);
        assert!(links.conditions(&swapped).is_empty(), "it is usual by now");
        links.follow(now + DAY, &topology(&ALL), DAY);
        assert_eq!(links.conditions(&topology(&ALL)).len(), 1);
    }

    #[test]
    fn a_host_that_moved_is_not_swapped_and_what_is_back_is_as_before() {
        let (mut links, now) = (UsualLinks::of(&topology(&ALL)), Instant::now());
        let moved = topology(&[ALL[0], ALL[1], (2, 8, 101, 1)]);
        links.follow(now, &moved, DAY);
        assert!(links.conditions(&moved).is_empty());
        for seen in [&SWAPPED, &ALL] {
            links.follow(now, &topology(seen), DAY);
            assert_eq!(links.conditions(&topology(seen)).len(), usize::from(seen == &SWAPPED));
        }
    }
}

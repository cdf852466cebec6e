//! Traffic patterns: who sends to whom at the same time.

use super::Groups;
use super::random::Random;

/// A kind of pattern. In each pattern a host sends one flow and receives one, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Random pairs that send to each other; of an odd number of hosts one is idle.
    Matching,
    /// Each host sends to the one a fixed number of places after it, cyclically.
    Shift,
    /// Each host sends to a random other one, and each receives from one. (Hosts that a random
    /// permutation leaves in place are idle.)
    Permutation,
    /// Pairs of a round of a tournament in which each host meets each other one once.
    Round,
}

impl Pattern {
    /// Number of patterns to measure: `max`, or all if there are no more.
    pub(super) fn count(self, groups: &Groups, max: u32) -> u32 {
        let hosts = groups.iter().map(Vec::len).max().unwrap_or(0) as u32;
        match self {
            Self::Matching | Self::Permutation => max,
            Self::Shift => max.min(hosts.saturating_sub(1)),
            Self::Round => max.min(rounds(hosts)),
        }
    }

    /// Sets `flows` to the flows of pattern `number` of `count`, as pairs of a source and a
    /// destination. `order` is scratch space.
    pub(super) fn fill(
        self,
        (number, count): (u32, u32),
        groups: &Groups,
        seed: u64,
        order: &mut Vec<u32>,
        flows: &mut Vec<(u32, u32)>,
    ) {
        flows.clear();
        for (hosts, group) in groups.iter().zip(0u64..) {
            let len = hosts.len() as u32;
            let mut random = Random::new(seed, u64::from(number) | group << 32);
            match self {
                Self::Matching => {
                    order.clone_from(hosts);
                    random.shuffle(order);
                    for pair in order.chunks_exact(2) {
                        flows.extend([(pair[0], pair[1]), (pair[1], pair[0])]);
                    }
                }
                Self::Permutation => {
                    order.clone_from(hosts);
                    random.shuffle(order);
                    let pairs = hosts.iter().copied().zip(order.iter().copied());
                    flows.extend(pairs.filter(|(from, to)| from != to));
                }
                Self::Shift if len > 1 => {
                    let by = shift(number, count, len, seed) as usize;
                    let to = hosts.iter().cycle().skip(by);
                    flows.extend(hosts.iter().copied().zip(to.copied()));
                }
                Self::Round if len > 1 => {
                    let round = (u64::from(number) * u64::from(rounds(len))
                        / u64::from(count.max(1))) as u32;
                    meetings(len, round, |a, b| {
                        let (a, b) = (hosts[a as usize], hosts[b as usize]);
                        flows.extend([(a, b), (b, a)]);
                    });
                }
                Self::Shift | Self::Round => {}
            }
        }
    }
}

/// Rounds in which all of so many hosts meet: with an odd number, one host is idle in each.
fn rounds(hosts: u32) -> u32 {
    if hosts < 2 { 0 } else { hosts - 1 + hosts % 2 }
}

/// The shift of pattern `number` of `count`, between 1 and `hosts` - 1: all of them, or one drawn
/// from each of `count` ranges of equal size. (Evenly spaced ones could all be multiples of the
/// number of hosts on a leaf.)
fn shift(number: u32, count: u32, hosts: u32, seed: u64) -> u32 {
    let (all, count) = (u64::from(hosts - 1), u64::from(count.max(1)));
    let begin = (u64::from(number) * all / count) as u32;
    let end = ((u64::from(number) + 1) * all / count) as u32;
    let within = (end - begin).max(1);
    1 + begin + Random::new(seed, u64::from(number) | 1 << 63).below(within)
}

/// The pairs of a round by the circle method: one host stays in its place, the others move on by
/// one place each round.
fn meetings(hosts: u32, round: u32, mut meet: impl FnMut(u32, u32)) {
    let circle = rounds(hosts);
    // With an even number of hosts the last one stays, with an odd number its place is free.
    if hosts.is_multiple_of(2) {
        meet(round % circle, hosts - 1);
    }
    for step in 1..=(circle - 1) / 2 {
        meet((round + step) % circle, (round + circle - step) % circle);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn flows(pattern: Pattern, number: u32, count: u32, groups: &Groups) -> Vec<(u32, u32)> {
        let mut flows = Vec::new();
        pattern.fill((number, count), groups, 5, &mut Vec::new(), &mut flows);
        flows
    }

    #[test]
    fn each_host_sends_and_receives_at_most_once() {
        let kinds = [Pattern::Matching, Pattern::Shift, Pattern::Permutation, Pattern::Round];
        for (pattern, hosts) in kinds.into_iter().flat_map(|kind| [(kind, 9), (kind, 10)]) {
            let groups = vec![(0..hosts).map(|host| host * 3).collect(), vec![100, 101, 102]];
            let count = pattern.count(&groups, 7);
            assert_eq!(count, 7);
            for number in 0..count {
                let flows = flows(pattern, number, count, &groups);
                let unique = |ends: Vec<u32>| ends.iter().collect::<HashSet<_>>().len();
                let (from, to): (Vec<u32>, Vec<u32>) = flows.iter().copied().unzip();
                assert_eq!((unique(from), unique(to)), (flows.len(), flows.len()));
                assert!(flows.iter().all(|(a, b)| a != b && (*a < 100) == (*b < 100)));
                let idle = hosts as usize + 3 - flows.len();
                let least = if pattern == Pattern::Shift { 0 } else { hosts as usize % 2 + 1 };
                let is_random = pattern == Pattern::Permutation;
                assert!(is_random || idle == least, "{pattern:?}: {flows:?}");
            }
        }
    }

    #[test]
    fn all_pairs_meet_once_in_a_tournament() {
        for hosts in [2, 3, 8, 11] {
            let groups = vec![(0..hosts).collect()];
            let count = Pattern::Round.count(&groups, 1000);
            let met: Vec<_> =
                (0..count).flat_map(|round| flows(Pattern::Round, round, count, &groups)).collect();
            assert_eq!(met.len() as u32, hosts * (hosts - 1));
            assert_eq!(met.iter().collect::<HashSet<_>>().len(), met.len());
        }
    }

    #[test]
    fn shifts_are_all_or_drawn_from_equal_ranges() {
        let groups = vec![(0..9).collect()];
        let by = |number, count| {
            let flows = flows(Pattern::Shift, number, count, &groups);
            let by = (flows[0].1 + 9 - flows[0].0) % 9;
            assert!(flows.iter().all(|(from, to)| (from + by) % 9 == *to));
            by
        };
        let all: Vec<_> = (0..8).map(|number| by(number, 8)).collect();
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(by(0, 2) <= 4 && by(1, 2) > 4);
    }
}

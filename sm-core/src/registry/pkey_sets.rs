//! Ports grouped by P_Key set, so that a check over many ports runs once for all
//! ports with the same P_Keys.

use std::collections::HashMap;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, PKey};

use super::EndPort;

/// P_Keys by base.
const BASES: usize = 1 << 15;

/// The ports with one set of P_Keys.
#[derive(Clone, Debug)]
struct Set {
    /// One P_Key of each base, ascending, full membership if the ports have both.
    pkeys: Arc<[PKey]>,
    /// First and last LID and GUID of each port, ascending.
    ports: Vec<(Lid, Lid, Guid)>,
}

/// All ports that have LIDs, by set of P_Keys.
#[derive(Clone, Debug, Default)]
pub(super) struct PKeySets {
    sets: Vec<Set>,
    /// The greatest LID of any port.
    top: Lid,
}

impl PKeySets {
    pub(super) fn new(ports: &[EndPort]) -> Self {
        let mut all = Self { sets: Vec::new(), top: Lid::NONE };
        let mut numbers = HashMap::new();
        for port in ports.iter().filter(|port| port.lid.is_unicast()) {
            let mut pkeys = port.pkeys.to_vec();
            pkeys.retain(|pkey| pkey.is_valid());
            pkeys.sort_unstable_by_key(|pkey| (pkey.base(), !pkey.is_full()));
            pkeys.dedup_by_key(|pkey| pkey.base());
            let pkeys: Arc<[PKey]> = pkeys.into();
            let number = *numbers.entry(Arc::clone(&pkeys)).or_insert(all.sets.len());
            if number == all.sets.len() {
                all.sets.push(Set { pkeys, ports: Vec::new() });
            }
            let last = port.lid.0.saturating_add((1 << port.lmc.min(7)) - 1);
            let last = Lid(last.min(Lid::UNICAST_LAST.0));
            all.sets[number].ports.push((port.lid, last, port.guid));
            all.top = all.top.max(last);
        }
        for set in &mut all.sets {
            set.ports.sort_unstable();
        }
        all
    }

    /// The greatest LID of any port; [`Lid::NONE`] if there are no ports.
    pub(super) fn top(&self) -> Lid {
        self.top
    }

    /// Whether `requester` shares a partition with every port with a LID from `first` to
    /// `last`. Compares the P_Keys of each set once, and examines two ports of it.
    pub(super) fn all_share(&self, requester: &EndPort, first: Lid, last: Lid) -> bool {
        if first > last {
            return true;
        }
        let (mut members, mut full) = ([0_u64; BASES / 64], [0_u64; BASES / 64]);
        for pkey in requester.pkeys.iter().filter(|pkey| pkey.is_valid()) {
            let (word, bit) = place(*pkey);
            members[word] |= bit;
            if pkey.is_full() {
                full[word] |= bit;
            }
        }
        let shared = |theirs: &PKey| {
            let (word, bit) = place(*theirs);
            let enough = if theirs.is_full() { &members } else { &full };
            enough[word] & bit != 0
        };
        self.sets.iter().all(|set| {
            let at = set.ports.partition_point(|&(_, end, _)| end < first);
            // A port may always see itself.
            let mut others = set.ports[at..].iter().take_while(|&&(begin, _, _)| begin <= last);
            others.all(|&(_, _, guid)| guid == requester.guid) || set.pkeys.iter().any(shared)
        })
    }
}

fn place(pkey: PKey) -> (usize, u64) {
    let base = usize::from(pkey.base());
    (base / 64, 1 << (base % 64))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::registry::testing::port;

    /// Ports four LIDs apart.
    fn ports(of: &[(Vec<u16>, u8)]) -> Vec<EndPort> {
        let number = |(n, (pkeys, lmc)): (usize, &(Vec<u16>, u8))| EndPort {
            guid: Guid(n as u64 + 1),
            lid: Lid(4 * (n as u16 + 1)),
            lmc: *lmc,
            ..port(1, pkeys)
        };
        of.iter().enumerate().map(number).collect()
    }

    #[test]
    fn ports_in_the_same_partitions_are_looked_at_together() {
        let tables = [vec![0xFFFF, 0x8001, 1], vec![0x8001, 0xFFFF], vec![0x7FFF, 0x8001]];
        let of: Vec<_> = (0..9_000).map(|n| (tables[n % 3].clone(), 2)).collect();
        let sets = PKeySets::new(&ports(&of));
        assert_eq!(sets.sets.len(), 2, "neither order nor a second membership matters");
        assert_eq!(sets.sets.iter().map(|set| set.ports.len()).sum::<usize>(), 9_000);
        assert_eq!(sets.top(), Lid(36_003));
    }

    proptest! {
        #[test]
        fn the_answer_is_that_of_asking_port_by_port(
            of in vec((
                vec(prop_oneof![
                    Just(0), Just(1), Just(0x8001), Just(2), Just(0x8002), Just(0xFFFF),
                ], 0..4), 0..3_u8), 1..12),
            requester in 0..12_usize,
            (first, last) in (0..60_u16, 0..60_u16),
        ) {
            let ports = ports(&of);
            let requester = &ports[requester % ports.len()];
            let named = |port: &&EndPort| {
                let end = port.lid.0 + (1 << port.lmc) - 1;
                first <= last && port.lid.0 <= last && end >= first
            };
            let expected = ports.iter().filter(named).all(|port| port.shares_partition(requester));
            let sets = PKeySets::new(&ports);
            prop_assert_eq!(sets.all_share(requester, Lid(first), Lid(last)), expected);
        }
    }
}

//! Look-ups by GUID: open addressing, linear probing, at most half full.

use std::sync::Arc;

use ib_mad::types::Guid;

use crate::tables::prefetch::prefetch;

/// An index by GUID. No device has GUID 0.
#[derive(Clone, Debug)]
pub(super) struct GuidIndex<V> {
    /// A power of two of them; GUID 0 marks an empty one.
    slots: Arc<[(Guid, V)]>,
}

impl<V: Copy + Default> Default for GuidIndex<V> {
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

impl<V: Copy + Default> GuidIndex<V> {
    /// If entries have equal GUIDs, the first counts.
    pub(super) fn new(entries: impl ExactSizeIterator<Item = (Guid, V)>) -> Self {
        let len = (entries.len() * 2).next_power_of_two().max(2);
        let mut slots = vec![(Guid(0), V::default()); len];
        for (guid, value) in entries {
            let at = place(&slots, guid);
            if slots[at].0 != guid {
                slots[at] = (guid, value);
            }
        }
        Self { slots: slots.into() }
    }

    /// The value of the GUID.
    #[inline]
    pub(super) fn get(&self, guid: Guid) -> Option<V> {
        let (found, value) = self.slots[place(&self.slots, guid)];
        (found == guid && guid.0 != 0).then_some(value)
    }

    /// Fetches the line that [`get`](Self::get) begins at.
    #[inline]
    pub(super) fn prefetch(&self, guid: Guid) {
        prefetch(&self.slots, slot(guid) & (self.slots.len() - 1));
    }
}

/// Slot of the GUID, or the free slot for it.
#[inline]
fn place<V>(slots: &[(Guid, V)], guid: Guid) -> usize {
    let mask = slots.len() - 1;
    let mut at = slot(guid) & mask;
    while slots[at].0.0 != 0 && slots[at].0 != guid {
        at = (at + 1) & mask;
    }
    at
}

/// Where to look for a GUID first, in a table of any size. Folds a 64x64-bit product: vendors hand
/// out GUIDs in runs, whose low bits alone would cluster.
#[inline]
pub(super) fn slot(guid: Guid) -> usize {
    let product = u128::from(guid.0 ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product as u64 ^ (product >> 64) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guid_leads_to_its_own_value_and_the_first_of_two_counts() {
        let guid = |i: u64| Guid(0x0c42_a103_0000_0000 + i * 16);
        let entries: Vec<_> = (1..=3000).map(|i| (guid(i), i)).chain([(guid(7), 0)]).collect();
        let index = GuidIndex::new(entries.into_iter());
        assert!((1..=3000).all(|i| index.get(guid(i)) == Some(i)));
        assert_eq!((index.get(guid(3001)), index.get(Guid(0))), (None, None));
        assert_eq!(GuidIndex::<u64>::default().get(guid(1)), None);
    }

    #[test]
    fn guid_zero_belongs_to_no_port() {
        let index = GuidIndex::new([(Guid(0), 1), (Guid(1), 2)].into_iter());
        assert_eq!((index.get(Guid(0)), index.get(Guid(1))), (None, Some(2)));
    }
}

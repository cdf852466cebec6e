//! Templates of path records that differ only in their ends, built once per search.
//!
//! A table of all paths from a port has thousands of records of a few kinds. The kind depends on
//! the classes of both ends and on the limits of the switches between them. The first record of a
//! kind is computed; the others are copies with their own GIDs and LIDs.

use ib_mad::wire::record::PathRecord;

use crate::tables::PathClass;
use crate::tables::qos_match::LevelSlot;

/// All inputs of a path except the GIDs and LIDs of its ends, in one word: end classes of source
/// and destination, MTU, rate and SL between the switches there and, where that matters, back, and
/// whether the LIDs are the first choice between these ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u64);

impl Kind {
    #[inline]
    pub(super) fn new(
        (source, destination): (u16, u16),
        there: PathClass,
        back: Option<PathClass>,
        preference: u8,
    ) -> Self {
        // An MTU has 3 bits, the rank of a rate 5, an SL 4, the preference 2.
        let word = |class: PathClass| {
            let PathClass { limit, sl, .. } = class;
            u64::from(sl) << 8 | u64::from(limit.mtu << 5 | limit.rate)
        };
        let back = back.map_or(0, |back| 1 << 12 | word(back));
        let classes = u64::from(source) | u64::from(destination) << 16;
        Self(classes | word(there) << 32 | back << 44 | u64::from(preference) << 57)
    }

    /// The class of a path from one port, by the row of its switch: the number of the path's class.
    #[inline(always)]
    pub(super) fn of_row(destination: u16, number: Option<u8>) -> Self {
        Self(1 << 63 | u64::from(destination) << 16 | u64::from(number.unwrap_or(0)) << 32)
    }

    #[inline(always)]
    fn place(self) -> usize {
        (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % PLACES
    }
}

/// A path's record and where its QoS level is counted, or that there is no path.
pub(crate) type Template = Option<([u8; PathRecord::LEN], LevelSlot)>;

/// Maximum number of kinds kept. Kinds with the same index replace each other.
const PLACES: usize = 256;

#[derive(Clone, Copy)]
struct Place {
    search: u64,
    kind: Kind,
    template: Template,
}

/// The kinds met in a search. Kept from search to search for its memory only.
pub(crate) struct Templates {
    /// Number of the search; places of earlier ones are empty.
    search: u64,
    places: Box<[Place; PLACES]>,
}

impl Templates {
    /// An empty memory.
    pub(crate) fn new() -> Self {
        let place = Place { search: 0, kind: Kind(0), template: None };
        Self { search: 0, places: Box::new([place; PLACES]) }
    }

    /// Forgets everything: a search begins.
    pub(crate) fn begin(&mut self) {
        self.search += 1;
    }

    /// The record of a kind, made by `make` if it is the first.
    #[inline(always)]
    pub(crate) fn of(&mut self, kind: Kind, make: impl FnOnce() -> Template) -> &Template {
        let place = &mut self.places[kind.place()];
        if place.search != self.search || place.kind != kind {
            *place = Place { search: self.search, kind, template: make() };
        }
        &place.template
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Limit;

    const ANY: PathClass = PathClass { limit: Limit::ANY, hops: 1, sl: 0 };

    #[test]
    fn a_kind_is_made_once_a_search() {
        let mut templates = Templates::new();
        let kind = |classes| Kind::new(classes, ANY, None, 0);
        let (one, other) = (kind((0, 0)), kind((0, 1)));
        templates.begin();
        assert_eq!(
            templates.of(one, || Some(([1; 64], LevelSlot::NONE))),
            &Some(([1; 64], LevelSlot::NONE))
        );
        assert_eq!(templates.of(other, || None), &None);
        assert_eq!(templates.of(one, || panic!("it is known")), &Some(([1; 64], LevelSlot::NONE)));
        templates.begin();
        assert_eq!(
            templates.of(one, || Some(([2; 64], LevelSlot::NONE))),
            &Some(([2; 64], LevelSlot::NONE))
        );
    }

    /// Kinds on one place must not be taken for each other.
    #[test]
    fn more_kinds_than_places_are_still_distinguished() {
        let mut templates = Templates::new();
        templates.begin();
        let kind = |i: u16| Kind::new((i % 50, i / 50), ANY, None, 0);
        for i in (0u16..2000).chain(0..2000) {
            let mut record = [0; 64];
            record[..2].copy_from_slice(&i.to_be_bytes());
            assert_eq!(
                templates.of(kind(i), || Some((record, LevelSlot::NONE))),
                &Some((record, LevelSlot::NONE))
            );
        }
    }

    /// No two kinds share a word: each part has separate bits.
    #[test]
    fn every_part_of_a_kind_counts() {
        let class = |limit, sl| PathClass { limit, hops: 2, sl };
        let slow = Limit { mtu: 1, rate: 23 };
        let paths = [
            PathClass::UNREACHABLE,
            ANY,
            class(slow, 0),
            class(slow, 15),
            class(Limit { mtu: 5, rate: 1 }, 1),
        ];
        let mut kinds = Vec::new();
        for classes in [(0, 0), (0, 1), (1, 0), (u16::MAX, 3)] {
            for there in paths {
                for back in paths.map(Some).into_iter().chain([None]) {
                    kinds.extend([0, 2].map(|it| Kind::new(classes, there, back, it).0));
                }
            }
        }
        let count = kinds.len();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), count);
    }
}

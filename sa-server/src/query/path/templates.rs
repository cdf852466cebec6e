//! Records of paths that differ in nothing but their ends, made once for a search.
//!
//! A table of all paths from a port has thousands of records of a few kinds: which kind a path is of
//! depends on the classes of its ends and on what the switches between allow. The first of each
//! kind is made as any path is; the others are copies with their own GIDs and LIDs.

use ib_mad::wire::record::PathRecord;

use crate::qos_match::LevelSlot;

/// What a path depends on, its ends' names aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind {
    /// End classes of source and destination.
    pub(super) classes: (u16, u16),
    /// MTU and rate between the switches, there; and back, where that matters.
    pub(super) there: (u8, u8),
    pub(super) back: Option<(u8, u8)>,
    /// Whether the LIDs are the first choice between these ports.
    pub(super) preference: u8,
}

/// A path's record and where its QoS level is counted, or that there is no path.
type Template = Option<([u8; PathRecord::LEN], LevelSlot)>;

/// Kinds remembered: more than fabrics usually have. Those that fall on one place take turns.
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
        let place = Place { search: 0, kind: Kind::default(), template: None };
        Self { search: 0, places: Box::new([place; PLACES]) }
    }

    /// Forgets everything: a search begins.
    pub(crate) fn begin(&mut self) {
        self.search += 1;
    }

    /// The record of a kind, made by `make` if it is the first.
    #[inline]
    pub(super) fn of(&mut self, kind: Kind, make: impl FnOnce() -> Template) -> &Template {
        let place = &mut self.places[kind.place()];
        if place.search != self.search || place.kind != kind {
            *place = Place { search: self.search, kind, template: make() };
        }
        &place.template
    }
}

impl Kind {
    #[inline]
    fn place(&self) -> usize {
        let word = |(a, b): (u16, u16)| u64::from(a) | u64::from(b) << 16;
        let limits = u16::from_ne_bytes([self.there.0, self.there.1]);
        let mixed = word(self.classes) | u64::from(limits) << 32;
        (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_made_once_a_search() {
        let mut templates = Templates::new();
        let (one, other) = (Kind::default(), Kind { classes: (0, 1), ..Kind::default() });
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
    fn more_kinds_than_places_are_still_told_apart() {
        let mut templates = Templates::new();
        templates.begin();
        let kind = |i: u16| Kind { classes: (i % 50, i / 50), ..Kind::default() };
        for i in (0u16..2000).chain(0..2000) {
            let mut record = [0; 64];
            record[..2].copy_from_slice(&i.to_be_bytes());
            assert_eq!(
                templates.of(kind(i), || Some((record, LevelSlot::NONE))),
                &Some((record, LevelSlot::NONE))
            );
        }
    }
}

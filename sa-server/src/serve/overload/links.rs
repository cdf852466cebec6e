//! Doubly linked lists over the slots of a fixed array: insertion and removal anywhere take
//! constant time and allocate nothing.

/// No place. Places count from 1.
pub(super) const NONE: u16 = 0;

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    newer: u16,
    older: u16,
}

/// The links of lists: one pair per place, so that a place is in at most one of these lists.
#[derive(Debug)]
pub(super) struct Links(Box<[Link]>);

/// The ends of a list, the same place in a list of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    pub(super) newest: u16,
    pub(super) oldest: u16,
}

impl List {
    pub(super) fn is_empty(self) -> bool {
        self.newest == NONE
    }
}

impl Links {
    /// Links for the places 1 to `places`.
    pub(super) fn new(places: u16) -> Self {
        Self(vec![Link::default(); usize::from(places) + 1].into_boxed_slice())
    }

    /// The next younger place of the same list.
    pub(super) fn newer(&self, place: u16) -> u16 {
        self.0[usize::from(place)].newer
    }

    /// Adds a place as the newest of `list`. It must be in none.
    pub(super) fn push(&mut self, list: &mut List, place: u16) {
        self.0[usize::from(place)] = Link { newer: NONE, older: list.newest };
        match list.newest {
            NONE => list.oldest = place,
            newest => self.0[usize::from(newest)].newer = place,
        }
        list.newest = place;
    }

    /// Takes a place out of `list`, in which it must be.
    pub(super) fn remove(&mut self, list: &mut List, place: u16) {
        let Link { newer, older } = self.0[usize::from(place)];
        match newer {
            NONE => list.newest = older,
            newer => self.0[usize::from(newer)].older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.0[usize::from(older)].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_enter_as_newest_and_leave_from_anywhere() {
        let (mut links, mut list) = (Links::new(4), List::default());
        (1..=4).for_each(|place| links.push(&mut list, place));
        assert_eq!(list, List { newest: 4, oldest: 1 });
        for (place, left) in [(2, (4, 1)), (4, (3, 1)), (1, (3, 3)), (3, (NONE, NONE))] {
            links.remove(&mut list, place);
            assert_eq!((list.newest, list.oldest), left);
        }
        assert!(list.is_empty());
    }
}

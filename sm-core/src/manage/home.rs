//! Where each identity belongs: the place at which a GUID was first seen, or has been for an hour.
//!
//! Two ports may report one GUID, by a fault or on purpose. The one at its home keeps LIDs, paths
//! and partitions. A GUID without a rival may move: the port gets its LID and the default partition
//! at once, and what belongs to the GUID alone once its home has been empty for [`PROBATION`]. Once
//! two ports were seen with a GUID, no port elsewhere gets it before its home has been empty for an
//! hour.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, PortNum};

use super::mkey::End;

/// How long a place stays the home of an identity that is elsewhere.
pub const RESERVED: Duration = Duration::from_secs(3600);

/// How long a port that appears with a GUID at another place than its home, which is empty, does
/// without what belongs to the GUID: a host that restarts is back within that time.
pub const PROBATION: Duration = Duration::from_secs(600);

/// Maximum number of switches that are gone whose time is kept. Places at further ones count as
/// empty from when their identities appeared elsewhere.
const GONE_MAX: usize = 1 << 16;

/// Maximum number of identities. Further ones have no home: the first port with a GUID keeps it.
const HOMES_MAX: usize = 1 << 18;

/// The GUID of a node with a port number, or a port GUID with number 0, or the GUID of a switch
/// with [`WHOLE_SWITCH`].
pub type Identity = (Guid, PortNum);

/// Stands for a switch, which has several places, in the place of a port number.
pub const WHOLE_SWITCH: PortNum = PortNum(u8::MAX);

/// Number of the port in the place of a virtual port, which is at the physical one of that GUID.
pub const VIRTUAL: PortNum = PortNum(u8::MAX);

/// The homes of identities. A place is the port at the other end of the link; of a switch's port 0
/// it is that port.
#[derive(Debug, Default)]
pub struct Homes {
    by_identity: HashMap<Identity, Home>,
    /// Since when switches are gone.
    gone: HashMap<Guid, Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Home {
    place: End,
    /// Whether two ports were seen with the identity.
    contested: bool,
    /// Where else it is, or would be.
    away: Option<Away>,
}

/// Where an identity is that is not at its home.
#[derive(Clone, Copy, Debug)]
struct Away {
    place: End,
    since: Instant,
    /// Whether what belongs to the identity alone is there, too.
    is_accepted: bool,
}

impl Away {
    fn new(place: End, since: Instant) -> Self {
        Self { place, since, is_accepted: false }
    }
}

/// An identity that is at another place than its home, without what belongs to it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probation {
    /// Its home.
    pub home: End,
    /// When it ends, unless the identity returns.
    pub ends: Instant,
}

impl Home {
    /// Makes the other place the home if the identity has been there for long.
    fn settle(&mut self, now: Instant) {
        if let Some(away) = self.away
            && now.saturating_duration_since(away.since) >= RESERVED
        {
            *self = Self { place: away.place, contested: false, away: None };
        }
    }

    /// Records that the identity is, or would be, at another place.
    fn leave_for(&mut self, place: End, now: Instant) {
        if self.away.is_none_or(|before| before.place != place) {
            self.away = Some(Away::new(place, now));
        }
    }
}

impl Homes {
    /// The home of an identity.
    pub fn get(&mut self, identity: Identity, now: Instant) -> Option<End> {
        let home = self.by_identity.get_mut(&identity)?;
        home.settle(now);
        Some(home.place)
    }

    /// The home of an identity, as it was when last asked for.
    pub fn known(&self, identity: Identity) -> Option<End> {
        self.by_identity.get(&identity).map(|home| home.place)
    }

    /// Records that an identity is in use at `place`. If it has no home yet, that is where it was
    /// before a restart (`remembered`), or else this place.
    pub fn used(
        &mut self,
        identity: Identity,
        place: End,
        remembered: impl FnOnce() -> Option<End>,
        now: Instant,
    ) {
        if !self.has_room_for(identity) {
            return;
        }
        let home = self.by_identity.entry(identity).or_insert_with(|| {
            let place = remembered().unwrap_or(place);
            Home { place, contested: false, away: None }
        });
        home.settle(now);
        if home.place == place {
            home.away = None;
        } else {
            home.leave_for(place, now);
        }
    }

    /// Records that an identity that was at `place` appeared at another one, `to`.
    pub fn displaced(&mut self, identity: Identity, place: End, to: End, now: Instant) {
        if self.has_room_for(identity) {
            let home = Home { place, contested: false, away: Some(Away::new(to, now)) };
            self.by_identity.entry(identity).or_insert(home);
        }
    }

    /// Records the places of a switch that appeared at another one. They remain its homes however
    /// long it is away: only what takes such a place itself, or the operator, ends that.
    pub fn reserved(&mut self, switch: Guid, links: impl Iterator<Item = (PortNum, End)>) {
        for (num, place) in links {
            let identity = (switch, num);
            if self.has_room_for(identity) {
                self.by_identity.insert(identity, Home { place, contested: false, away: None });
            }
        }
    }

    /// Records that two ports have an identity, whose home is at `place` unless another one is
    /// recorded: that stays, even if neither of the two is there.
    pub fn contested(&mut self, identity: Identity, place: End) {
        if self.has_room_for(identity) {
            let home = Home { place, contested: false, away: None };
            self.by_identity.entry(identity).or_insert(home).contested = true;
        }
    }

    /// Records that two ports have an identity, which belongs to the one at `place`, wherever its
    /// home was recorded.
    pub fn belongs(&mut self, identity: Identity, place: End) {
        if self.has_room_for(identity) {
            self.by_identity.insert(identity, Home { place, contested: true, away: None });
        }
    }

    /// Records that an identity is in use at its home, if it has one.
    pub fn stays(&mut self, identity: Identity) {
        if let Some(home) = self.by_identity.get_mut(&identity) {
            home.away = None;
        }
    }

    /// Whether an identity that two ports had is withheld from the port at `place`; its home, if
    /// so.
    pub fn withheld(&mut self, identity: Identity, place: End, now: Instant) -> Option<End> {
        let home = self.by_identity.get_mut(&identity)?;
        home.settle(now);
        if !home.contested || home.place == place {
            return None;
        }
        home.leave_for(place, now);
        Some(home.place)
    }

    /// Whether an identity that is in use at `place` has to do without what belongs to it alone:
    /// its home is elsewhere, and has not been empty for long. `is_replaced` says whether another
    /// node is at the home, whose owner then cannot be.
    pub fn probation(
        &mut self,
        identity: Identity,
        place: End,
        is_replaced: impl FnOnce(End) -> bool,
        now: Instant,
    ) -> Option<Probation> {
        let home = self.by_identity.get_mut(&identity)?;
        home.settle(now);
        if home.place == place {
            home.away = None;
            return None;
        }
        home.leave_for(place, now);
        let away = home.away.as_mut().filter(|away| !away.is_accepted)?;
        let gone = self.gone.get(&home.place.0);
        let ends = gone.map_or(away.since, |&gone| gone.min(away.since)) + PROBATION;
        away.is_accepted = ends <= now || is_replaced(home.place);
        (!away.is_accepted).then_some(Probation { home: home.place, ends })
    }

    /// Records that what belongs to an identity is where that is, on an operator's word. Not if two
    /// ports were seen with it.
    pub fn accept(&mut self, identity: Identity) {
        if let Some(home) = self.by_identity.get_mut(&identity).filter(|home| !home.contested)
            && let Some(away) = &mut home.away
        {
            away.is_accepted = true;
        }
    }

    /// Whether what belongs to an identity is at `place`, as was last found out.
    pub fn is_accepted(&self, identity: Identity, place: End) -> bool {
        self.by_identity.get(&identity).is_none_or(|home| {
            let is_there = |away: Away| away.is_accepted && away.place == place;
            home.place == place || !home.contested && home.away.is_some_and(is_there)
        })
    }

    /// Records that a switch is gone.
    pub fn switch_gone(&mut self, guid: Guid, now: Instant) {
        if self.gone.len() < GONE_MAX {
            self.gone.entry(guid).or_insert(now);
        }
    }

    /// Forgets the switches that are there again.
    pub fn keep_gone(&mut self, is_gone: impl Fn(Guid) -> bool) {
        self.gone.retain(|guid, _| is_gone(*guid));
    }

    fn has_room_for(&self, identity: Identity) -> bool {
        self.by_identity.len() < HOMES_MAX || self.by_identity.contains_key(&identity)
    }

    /// Forgets identities of nodes and ports that are not `known`.
    pub fn retain(&mut self, known: impl Fn(Guid) -> bool) {
        self.by_identity.retain(|(guid, _), _| known(*guid));
    }

    /// Whether so many identities are recorded that unknown ones should be forgotten.
    pub fn is_crowded(&self) -> bool {
        self.by_identity.len() > HOMES_MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Identity = (Guid(0x30), PortNum(1));
    const A: End = (Guid(1), PortNum(1));
    const B: End = (Guid(1), PortNum(2));
    const C: End = (Guid(2), PortNum(1));

    #[test]
    fn an_identity_moves_at_once_and_its_home_after_an_hour() {
        let (mut homes, now) = (Homes::default(), Instant::now());
        homes.used(ID, A, || None, now);
        assert_eq!(homes.withheld(ID, B, now), None);
        homes.used(ID, B, || None, now);
        assert_eq!(homes.get(ID, now + RESERVED / 2), Some(A));
        homes.used(ID, A, || None, now + RESERVED / 2);
        homes.used(ID, B, || None, now + RESERVED / 2);
        assert_eq!(homes.get(ID, now + RESERVED), Some(A), "it was home meanwhile");
        assert_eq!(homes.get(ID, now + RESERVED * 2), Some(B));
    }

    #[test]
    fn what_belongs_to_an_identity_follows_it_after_a_while() {
        let (mut homes, now) = (Homes::default(), Instant::now());
        let probation = |homes: &mut Homes, place, at| homes.probation(ID, place, |_| false, at);
        assert_eq!(probation(&mut homes, B, now), None, "it is not known");
        homes.used(ID, A, || None, now);
        assert_eq!(probation(&mut homes, A, now), None);
        let [half, end] = [PROBATION / 2, PROBATION].map(|time| now + time);
        let expected = |ends| Some(Probation { home: A, ends });
        assert_eq!(probation(&mut homes, B, now), expected(end));
        assert_eq!((probation(&mut homes, A, half), homes.is_accepted(ID, B)), (None, false));
        assert_eq!(probation(&mut homes, B, half), expected(half + PROBATION), "it was home");
        assert_eq!(probation(&mut homes, C, end), expected(end + PROBATION), "a third place");
        homes.accept(ID);
        assert_eq!((probation(&mut homes, C, end), homes.is_accepted(ID, C)), (None, true));
        assert_eq!(probation(&mut homes, B, end), expected(end + PROBATION), "elsewhere again");
        homes.accept(ID);
        assert_eq!(probation(&mut homes, C, end), expected(end + PROBATION));
        assert_eq!(probation(&mut homes, C, end + PROBATION), None);
        assert!(homes.is_accepted(ID, C) && !homes.is_accepted(ID, B));
        assert_eq!(homes.get(ID, end + PROBATION), Some(A), "it may return");
        homes.contested(ID, A);
        assert!(!homes.is_accepted(ID, C));
    }

    #[test]
    fn an_identity_whose_home_another_node_has_or_whose_switch_is_gone_does_not_wait() {
        let (mut homes, now) = (Homes::default(), Instant::now());
        homes.used(ID, A, || None, now);
        assert_eq!(homes.probation(ID, B, |home| home == A, now), None);
        assert_eq!(homes.probation(ID, B, |_| false, now), None, "as before");
        homes.switch_gone(A.0, now);
        homes.switch_gone(A.0, now + PROBATION);
        let (early, late) = (now + PROBATION / 2, now + PROBATION);
        let probation = homes.probation(ID, C, |_| false, early);
        assert_eq!(probation, Some(Probation { home: A, ends: late }));
        homes.used(ID, A, || None, early);
        assert_eq!(homes.probation(ID, C, |_| false, late), None);
        homes.keep_gone(|guid| guid != A.0);
        assert!(homes.probation(ID, B, |_| false, late).is_some());
    }

    #[test]
    fn the_home_of_before_a_restart_counts() {
        let (mut homes, now) = (Homes::default(), Instant::now());
        homes.used(ID, B, || Some(A), now);
        assert_eq!((homes.get(ID, now), homes.withheld(ID, B, now)), (Some(A), None));
        homes.used(ID, B, || panic!("it has one"), now + RESERVED);
        assert_eq!(homes.get(ID, now + RESERVED), Some(B));
    }

    #[test]
    fn a_contested_identity_is_withheld_from_all_other_places_for_an_hour() {
        let (mut homes, now) = (Homes::default(), Instant::now());
        homes.used(ID, A, || None, now);
        homes.used(ID, B, || None, now);
        homes.contested(ID, B);
        assert_eq!(homes.get(ID, now), Some(A), "neither of the two is at home");
        homes.used(ID, A, || None, now);
        assert_eq!(homes.withheld(ID, A, now), None);
        assert_eq!(homes.withheld(ID, B, now), Some(A));
        assert_eq!(homes.withheld(ID, C, now + RESERVED / 2), Some(A), "another place");
        assert_eq!(homes.withheld(ID, C, now + RESERVED), Some(A));
        assert_eq!(homes.withheld(ID, C, now + RESERVED * 2), None);
        assert_eq!(homes.get(ID, now + RESERVED * 2), Some(C));
    }
}

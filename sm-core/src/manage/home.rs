//! Where each identity belongs: the place at which a GUID was first seen, or has been for an hour.
//!
//! Two ports may report one GUID, by a fault or on purpose. The one at its home keeps LIDs, paths
//! and partitions. A GUID without a rival may move: who replugs a cable waits for nothing. Once two
//! ports were seen with it, no port elsewhere gets it before its home has been empty for an hour.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, PortNum};

use super::mkey::End;

/// How long a place stays the home of an identity that is elsewhere.
pub const RESERVED: Duration = Duration::from_secs(3600);

/// Maximum number of identities. Further ones have no home: the first port with a GUID keeps it.
const HOMES_MAX: usize = 1 << 18;

/// The GUID of a node with a port number, or a port GUID with number 0, or the GUID of a switch
/// with [`WHOLE_SWITCH`].
pub type Identity = (Guid, PortNum);

/// Stands for a switch, which has several places, in the place of a port number.
pub const WHOLE_SWITCH: PortNum = PortNum(u8::MAX);

/// The homes of identities. A place is the port at the other end of the link; of a switch's port 0
/// it is that port.
#[derive(Debug, Default)]
pub struct Homes {
    by_identity: HashMap<Identity, Home>,
}

#[derive(Clone, Copy, Debug)]
struct Home {
    place: End,
    /// Whether two ports were seen with the identity.
    contested: bool,
    /// Where else it is, or would be, and since when.
    away: Option<(End, Instant)>,
}

impl Home {
    /// Makes the other place the home if the identity has been there for long.
    fn settle(&mut self, now: Instant) {
        if let Some((place, since)) = self.away
            && now.saturating_duration_since(since) >= RESERVED
        {
            *self = Self { place, contested: false, away: None };
        }
    }

    /// Records that the identity is, or would be, at another place.
    fn leave_for(&mut self, place: End, now: Instant) {
        if self.away.is_none_or(|(before, _)| before != place) {
            self.away = Some((place, now));
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
            let home = Home { place, contested: false, away: Some((to, now)) };
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

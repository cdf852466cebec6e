//! MLID allocation: the requested MLID if it is free, else the lowest free one. Groups share
//! an MLID if they are solicited-node groups to be consolidated, or if no MLID is free.
//!
//! Groups with one MLID share a tree: packets of one group reach the members of all, and adapters
//! filter by MGID. Only groups of one [`Class`] share, so that no
//! packet is forwarded to a link whose partition, SL, MTU or rate does not allow it.

use std::collections::{BTreeMap, BTreeSet};

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::record::McMemberRecord;

/// Parameters that groups must share to share an MLID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    /// P_Key without the membership bit.
    pkey: u16,
    sl: u8,
    mtu: u8,
    rate: u8,
}

impl Class {
    /// The class of a group.
    pub(super) fn of(record: &[u8; 52]) -> Self {
        let record = McMemberRecord::of(record);
        Self {
            pkey: record.pkey().base(),
            sl: record.sl().get(),
            mtu: record.mtu(),
            rate: record.rate(),
        }
    }
}

/// The groups that use an MLID.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// Class of the first group; predefined groups on the MLID may be of other classes.
    class: Class,
    groups: u32,
}

/// Allocation state of all MLIDs.
#[derive(Debug)]
pub(super) struct Mlids {
    used: BTreeMap<Lid, Use>,
    /// Free MLIDs below `unused`.
    free: BTreeSet<Lid>,
    /// The lowest MLID that was never used.
    unused: Lid,
    /// MLIDs in use by class, the least shared first.
    by_class: BTreeSet<(Class, u32, Lid)>,
}

impl Default for Mlids {
    fn default() -> Self {
        Self {
            used: BTreeMap::new(),
            free: BTreeSet::new(),
            unused: Lid::MULTICAST_FIRST,
            by_class: BTreeSet::new(),
        }
    }
}

impl Mlids {
    /// Adds a group to `mlid`.
    pub(super) fn hold(&mut self, mlid: Lid, class: Class) {
        let of = self.used.entry(mlid).or_insert(Use { class, groups: 0 });
        self.by_class.remove(&(of.class, of.groups, mlid));
        of.groups += 1;
        self.by_class.insert((of.class, of.groups, mlid));
        self.free.remove(&mlid);
        if mlid >= self.unused && mlid.is_multicast() {
            self.free.extend((self.unused.0..mlid.0).map(Lid));
            self.unused = Lid(mlid.0 + 1);
        }
    }

    /// Removes a group from `mlid`.
    pub(super) fn release(&mut self, mlid: Lid) {
        let Some(of) = self.used.get_mut(&mlid) else { return };
        self.by_class.remove(&(of.class, of.groups, mlid));
        of.groups -= 1;
        if of.groups > 0 {
            self.by_class.insert((of.class, of.groups, mlid));
            return;
        }
        self.used.remove(&mlid);
        if mlid.is_multicast() {
            self.free.insert(mlid);
        }
    }

    /// Whether `mlid` is free and at most `last`.
    pub(super) fn is_free(&self, mlid: Lid, last: Lid) -> bool {
        mlid.is_multicast() && mlid <= last && !self.used.contains_key(&mlid)
    }

    /// How many MLIDs there are up to `last`.
    pub(super) fn count(&self, last: Lid) -> usize {
        usize::from((last.0 + 1).saturating_sub(Lid::MULTICAST_FIRST.0))
    }

    /// How many MLIDs up to `last` are free.
    pub(super) fn free_count(&self, last: Lid) -> usize {
        let used = self.used.range(Lid::MULTICAST_FIRST..=last.max(Lid::MULTICAST_FIRST));
        self.count(last).saturating_sub(used.count())
    }

    /// Whether more than `count` MLIDs up to `last` are free, as far as that is known without
    /// counting them.
    pub(super) fn has_free(&self, last: Lid, count: usize) -> bool {
        self.count(last).saturating_sub(self.used.len()) > count
    }

    /// The lowest free MLID, at most `last`.
    pub(super) fn lowest_free(&self, last: Lid) -> Option<Lid> {
        let lowest = *self.free.first().unwrap_or(&self.unused);
        (lowest.is_multicast() && lowest <= last).then_some(lowest)
    }

    /// The MLID of this class, at most `last`, that the fewest groups share.
    pub(super) fn least_shared(&self, class: Class, last: Lid) -> Option<Lid> {
        let of_class = (class, 0, Lid::NONE)..=(class, u32::MAX, Lid::PERMISSIVE);
        let mut mlids = self.by_class.range(of_class).map(|&(_, _, mlid)| mlid);
        mlids.find(|&mlid| mlid <= last)
    }
}

/// The range of MGIDs that an IPv6 solicited-node MGID is consolidated with: those that differ only
/// in the last 24 bits, which come from the address. `None` for other MGIDs.
///
/// ```text
/// ff 1S 60 1b PPPP 0000 0000 0001 ffXX XXXX    S scope, PPPP P_Key, XXXXXX of the address
/// ```
pub(super) fn solicited_node(mgid: Gid) -> Option<(Gid, Gid)> {
    let bytes = mgid.0;
    let signed = bytes[0] == 0xFF && bytes[1] & 0xF0 == 0x10 && bytes[2..4] == [0x60, 0x1B];
    let plain = bytes[6..12] == [0, 0, 0, 0, 0, 1] && bytes[12] == 0xFF;
    let (mut first, mut last) = (bytes, bytes);
    first[13..].fill(0);
    last[13..].fill(0xFF);
    (signed && plain).then_some((Gid(first), Gid(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(sl: u8) -> Class {
        Class { pkey: 1, sl, mtu: 4, rate: 3 }
    }

    const LAST: Lid = Lid(0xC003);

    #[test]
    fn the_lowest_free_mlid_is_taken_and_comes_back() {
        let mut mlids = Mlids::default();
        for expected in 0xC000..=0xC003 {
            let free = mlids.lowest_free(LAST).unwrap();
            assert_eq!(free, Lid(expected));
            mlids.hold(free, class(0));
        }
        assert_eq!(mlids.lowest_free(LAST), None);
        mlids.release(Lid(0xC002));
        assert_eq!(mlids.lowest_free(LAST), Some(Lid(0xC002)));
        mlids.release(Lid(0xC001));
        assert_eq!(mlids.lowest_free(LAST), Some(Lid(0xC001)));
        assert!(mlids.is_free(Lid(0xC001), LAST) && !mlids.is_free(Lid(0xC000), LAST));
        assert!(!mlids.is_free(Lid(0xC004), LAST) && !mlids.is_free(Lid(0xBFFF), LAST));
    }

    #[test]
    fn those_asked_for_are_passed_over() {
        let mut mlids = Mlids::default();
        mlids.hold(Lid(0xC001), class(0));
        assert_eq!(mlids.lowest_free(LAST), Some(Lid(0xC000)));
        mlids.hold(Lid(0xC000), class(0));
        assert_eq!(mlids.lowest_free(LAST), Some(Lid(0xC002)));
    }

    #[test]
    fn sharing_goes_to_the_least_shared_of_the_class() {
        let mut mlids = Mlids::default();
        mlids.hold(Lid(0xC000), class(0));
        mlids.hold(Lid(0xC000), class(0));
        mlids.hold(Lid(0xC001), class(0));
        mlids.hold(Lid(0xC002), class(1));
        assert_eq!(mlids.least_shared(class(0), LAST), Some(Lid(0xC001)));
        mlids.release(Lid(0xC000));
        assert_eq!(mlids.least_shared(class(0), LAST), Some(Lid(0xC000)));
        assert!(!mlids.is_free(Lid(0xC000), LAST), "one group is left on it");
        assert_eq!(mlids.least_shared(class(2), LAST), None);
    }

    #[test]
    fn all_mlids_can_be_used() {
        let mut mlids = Mlids::default();
        let last = Lid(Lid::PERMISSIVE.0 - 1);
        while let Some(free) = mlids.lowest_free(last) {
            mlids.hold(free, class(0));
        }
        assert_eq!(mlids.used.len(), 0x3FFF);
    }

    #[test]
    fn solicited_node_groups_are_recognized_by_their_mgid() {
        let of = |text: &str| solicited_node(text.parse().unwrap());
        let (first, last) = of("ff12:601b:ffff::1:ff12:3456").unwrap();
        assert_eq!(first, "ff12:601b:ffff::1:ff00:0".parse().unwrap());
        assert_eq!(last, "ff12:601b:ffff::1:ffff:ffff".parse().unwrap());
        assert!(of("ff15:601b:8001::1:ff00:1").is_some());
        for other in
            ["ff12:401b:ffff::1:ff12:3456", "ff12:601b:ffff::1", "ff12:601b:ffff::1:fe12:3456"]
        {
            assert!(of(other).is_none(), "{other}");
        }
    }
}

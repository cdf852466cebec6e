//! The member ports of each MLID, updated as groups and members change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid, Lid, Sl};
use ib_mad::wire::record::McMemberRecord;
use sa_proto::snapshot::{MulticastMemberRid, RegistryChanges, RegistryPlane};

use sm_routing::multicast::{Audience, Membership};

/// Port GUIDs and SLs by MLID, of all groups that share the MLID. Send-only members count, because
/// they need a route to the tree, too.
#[derive(Debug, Default)]
pub struct Members {
    by_mlid: Membership,
    /// The groups of each MLID, and the MLID of each group.
    groups: BTreeMap<Lid, BTreeSet<Gid>>,
    mlids: HashMap<Gid, Lid, RandomState>,
    /// MLIDs whose member lists may have changed since they were last taken.
    dirty: BTreeSet<Lid>,
}

impl Members {
    /// The member lists of `plane`.
    pub fn of(plane: &RegistryPlane) -> Self {
        let mut all = Self::default();
        all.apply(&RegistryChanges::between(&RegistryPlane::default(), plane));
        all
    }

    /// Rebuilds all member lists from `plane`.
    pub fn replace(&mut self, plane: &RegistryPlane) {
        let mut next = Self::of(plane);
        next.dirty.append(&mut self.dirty);
        next.dirty.extend(self.by_mlid.keys());
        next.by_mlid = std::mem::take(&mut self.by_mlid);
        *self = next;
    }

    /// Applies changes, in time proportional to their number.
    pub fn apply(&mut self, changes: &RegistryChanges) {
        for (&mgid, group) in &changes.groups {
            let mlid = group.as_ref().and_then(|group| mlid(&group.record));
            let before = match mlid {
                Some(mlid) => self.mlids.insert(mgid, mlid),
                None => self.mlids.remove(&mgid),
            };
            if let Some(groups) = before.and_then(|before| self.groups.get_mut(&before)) {
                groups.remove(&mgid);
            }
            if let Some(mlid) = mlid {
                self.groups.entry(mlid).or_default().insert(mgid);
            }
            self.dirty.extend(before.into_iter().chain(mlid));
        }
        // Memberships of one group are adjacent.
        let mut last = None;
        for rid in changes.members.keys() {
            if last != Some(rid.mgid) {
                last = Some(rid.mgid);
                self.dirty.extend(self.mlids.get(&rid.mgid));
            }
        }
    }

    /// Whether member lists may have changed since they were last taken.
    pub fn may_have_changed(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the lists that changed since the last call, given the current
    /// `plane`; removed ones are empty. Takes time proportional to the size of the groups
    /// concerned, however often they changed.
    pub fn take_changes(&mut self, plane: &RegistryPlane) -> Membership {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&mlid| self.refresh(plane, mlid));
        let list = |mlid| (mlid, self.by_mlid.get(&mlid).cloned().unwrap_or_default());
        dirty.into_iter().map(list).collect()
    }

    /// Recomputes the members of an MLID; returns whether they changed.
    fn refresh(&mut self, plane: &RegistryPlane, mlid: Lid) -> bool {
        let groups = self.groups.get(&mlid).into_iter().flatten();
        let sls = groups.clone().filter_map(|mgid| sl(&plane.groups.find(*mgid)?.record));
        let sls = sls.fold(0, |sls, sl| sls | 1 << sl.get());
        let mut ports: Vec<Guid> = groups.flat_map(|&mgid| ports_of(plane, mgid)).collect();
        // The members of a group without aliases are already sorted.
        if !ports.is_sorted_by(|a, b| a < b) {
            ports.sort_unstable();
            ports.dedup();
        }
        if self.groups.get(&mlid).is_some_and(BTreeSet::is_empty) {
            self.groups.remove(&mlid);
        }
        if ports.is_empty() {
            return self.by_mlid.remove(&mlid).is_some();
        }
        let before = self.by_mlid.get(&mlid);
        if before.is_some_and(|before| *before.ports == *ports && before.sls == sls) {
            return false;
        }
        self.by_mlid.insert(mlid, Audience { ports: ports.into(), sls });
        true
    }
}

/// Member ports of a group, by port GUID.
fn ports_of(plane: &RegistryPlane, mgid: Gid) -> impl Iterator<Item = Guid> {
    let rid = |port| MulticastMemberRid { mgid, port_gid: Gid([port; 16]) };
    let members = plane.members.range((Bound::Included(rid(0)), Bound::Included(rid(0xFF))));
    members.map(|member| {
        let guid = member.rid.port_gid.guid();
        plane.alias_guids.find(guid).map_or(guid, |alias| alias.port_guid)
    })
}

fn sl(record: &[u8; 52]) -> Option<Sl> {
    McMemberRecord::new(&record[..]).ok().map(|record| record.sl())
}

fn mlid(record: &[u8; 52]) -> Option<Lid> {
    McMemberRecord::new(&record[..]).ok().map(|record| record.mlid())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sa_proto::snapshot::{AliasGuid, MulticastGroup, MulticastMember};

    use super::*;

    fn gid(n: u8) -> Gid {
        Gid([n; 16])
    }

    fn group(mgid: u8, mlid: u16) -> Arc<MulticastGroup> {
        let mut record = [0; 52];
        McMemberRecord::new(&mut record[..]).unwrap().set_mlid(Lid(mlid));
        Arc::new(MulticastGroup { mgid: gid(mgid), record, predefined: false })
    }

    fn member(mgid: u8, port: u64) -> Arc<MulticastMember> {
        let rid = MulticastMemberRid { mgid: gid(mgid), port_gid: Gid::new(1, Guid(port)) };
        Arc::new(MulticastMember { rid, join_state: 1, proxy_join: false })
    }

    fn lists(plane: &RegistryPlane) -> Membership {
        Members::of(plane).take_changes(plane)
    }

    #[test]
    fn groups_that_share_an_mlid_share_a_list_and_aliases_are_their_ports() {
        let alias = AliasGuid { alias: Guid(99), port_guid: Guid(5), index: 1 };
        let plane = RegistryPlane {
            groups: vec![group(1, 0xC001), group(2, 0xC001), group(3, 0xC002)].into(),
            members: vec![member(1, 7), member(2, 6), member(2, 99), member(2, 7)].into(),
            alias_guids: vec![Arc::new(alias)].into(),
            ..RegistryPlane::default()
        };
        let heard = Audience::new([Guid(5), Guid(6), Guid(7)], 0);
        assert_eq!(lists(&plane), BTreeMap::from([(Lid(0xC001), heard)]));
    }

    /// Regression: trees were checked as if all groups sent on SL 0.
    #[test]
    fn the_sls_of_an_mlid_are_those_of_its_groups() {
        let with_sl = |mgid, mlid, sl| {
            let mut group = group(mgid, mlid);
            let record = &mut Arc::make_mut(&mut group).record;
            McMemberRecord::new(&mut record[..]).unwrap().set_sl(Sl::from_low_bits(sl));
            group
        };
        let mut plane = RegistryPlane {
            groups: vec![with_sl(1, 0xC001, 3), with_sl(2, 0xC001, 5)].into(),
            members: vec![member(1, 7), member(2, 7)].into(),
            ..RegistryPlane::default()
        };
        assert_eq!(lists(&plane)[&Lid(0xC001)].sls, 1 << 3 | 1 << 5);
        let mut members = Members::of(&plane);
        members.take_changes(&plane);
        let mut changes = RegistryChanges::default();
        changes.groups.insert(gid(2), Some(with_sl(2, 0xC001, 6)));
        plane.apply(&changes);
        members.apply(&changes);
        assert_eq!(members.take_changes(&plane)[&Lid(0xC001)].sls, 1 << 3 | 1 << 6);
    }

    #[test]
    fn a_change_leads_to_what_a_fresh_look_would_find() {
        let mut plane = RegistryPlane {
            groups: vec![group(1, 0xC001), group(2, 0xC002)].into(),
            members: vec![member(1, 7), member(2, 8)].into(),
            ..RegistryPlane::default()
        };
        let mut members = Members::of(&plane);
        // Applying the changes alone yields all lists.
        let mut followed = members.take_changes(&plane);
        let mut step = |change: &dyn Fn(&mut RegistryChanges)| {
            let mut changes = RegistryChanges::default();
            change(&mut changes);
            plane.apply(&changes);
            members.apply(&changes);
            let changed = members.take_changes(&plane);
            followed.extend(changed.clone());
            followed.retain(|_, heard| !heard.is_empty());
            assert_eq!(followed, lists(&plane));
            !changed.is_empty()
        };
        assert!(step(&|changes| {
            changes.members.insert(member(1, 9).rid, Some(member(1, 9)));
        }));
        assert!(step(&|changes| {
            changes.groups.insert(gid(2), Some(group(2, 0xC001)));
        }));
        assert!(!step(&|changes| {
            changes.groups.insert(gid(4), Some(group(4, 0xC004)));
        }));
        assert!(step(&|changes| {
            changes.groups.insert(gid(1), None);
            changes.members.insert(member(1, 7).rid, None);
            changes.members.insert(member(1, 9).rid, None);
        }));
        assert!(step(&|changes| {
            changes.members.insert(member(2, 8).rid, None);
            changes.groups.insert(gid(2), None);
        }));
    }

    #[test]
    fn who_came_and_went_between_two_looks_changed_nothing() {
        let mut plane = RegistryPlane {
            groups: vec![group(1, 0xC001)].into(),
            members: vec![member(1, 7)].into(),
            ..RegistryPlane::default()
        };
        let mut members = Members::of(&plane);
        members.take_changes(&plane);
        for there in [true, false] {
            let mut changes = RegistryChanges::default();
            changes.members.insert(member(1, 9).rid, there.then(|| member(1, 9)));
            plane.apply(&changes);
            members.apply(&changes);
            assert!(members.may_have_changed());
        }
        assert!(members.take_changes(&plane).is_empty());
        assert!(!members.may_have_changed());
    }

    #[test]
    fn lists_that_a_replacement_leaves_out_are_reported_as_empty() {
        let plane = |mgid, mlid| RegistryPlane {
            groups: vec![group(mgid, mlid)].into(),
            members: vec![member(mgid, 7)].into(),
            ..RegistryPlane::default()
        };
        let mut members = Members::of(&plane(1, 0xC001));
        members.take_changes(&plane(1, 0xC001));
        members.replace(&plane(2, 0xC002));
        let changed = members.take_changes(&plane(2, 0xC002));
        let changed: Vec<_> =
            changed.iter().map(|(mlid, heard)| (mlid.0, heard.ports.len())).collect();
        assert_eq!(changed, [(0xC001, 0), (0xC002, 1)]);
    }
}

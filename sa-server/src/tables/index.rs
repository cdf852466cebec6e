//! Look-ups in the registry by keys that its tables are not sorted by: members by port, services by
//! name and port.
//!
//! Like the tables, an index is derived from the previous one in time proportional to the changes.
//! Queries read it and never change it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use ib_mad::types::{Gid, Guid};
use ib_mad::wire::record::ServiceRecord;
use sa_proto::snapshot::{MulticastMember, RegistryPlane, Service, ServiceRid};

/// Look-ups that the tables of one registry plane have no order for.
#[derive(Clone, Debug, Default)]
pub struct RegistryIndex {
    /// GUID of the member's port, and the group.
    members: Sorted<(Guid, Gid)>,
    /// Hash of the name, and the service.
    services: Sorted<(u64, ServiceRid)>,
    /// GID of the port, and the service.
    service_ports: Sorted<(Gid, ServiceRid)>,
    /// Keyed, so that clients cannot register names that collide.
    hasher: RandomState,
}

impl RegistryIndex {
    /// The index of a plane.
    pub fn new(plane: &RegistryPlane) -> Self {
        let hasher = RandomState::new();
        let members = plane.members.iter().map(|row| port_and_group(row)).collect();
        let services = plane.services.iter().map(|row| name_and_rid(&hasher, row)).collect();
        let ports = plane.services.iter().map(|row| port_and_rid(row)).collect();
        Self {
            members: Sorted::new(members),
            services: Sorted::new(services),
            service_ports: Sorted::new(ports),
            hasher,
        }
    }

    /// The index of `new`, made from this one, which is that of `old`.
    #[must_use]
    pub fn follow(&self, old: &RegistryPlane, new: &RegistryPlane) -> Self {
        let mut next = self.clone();
        for (old, new) in new.members.differences(&old.members) {
            let (old, new) =
                (old.map(|row| port_and_group(row)), new.map(|row| port_and_group(row)));
            next.members.replace(old, new);
        }
        for (old, new) in new.services.differences(&old.services) {
            let key = |row: &Arc<Service>| name_and_rid(&self.hasher, row);
            next.services.replace(old.map(key), new.map(key));
            let port = |row: &Arc<Service>| port_and_rid(row);
            next.service_ports.replace(old.map(port), new.map(port));
        }
        next
    }

    /// Whether a port has joined a group under this GUID.
    pub(crate) fn is_member(&self, port: Guid, mgid: Gid) -> bool {
        self.members.from((port, mgid)).next() == Some(&(port, mgid))
    }

    /// The groups that a port has joined under this GUID, ascending.
    pub(crate) fn groups_of(&self, port: Guid) -> impl Iterator<Item = Gid> {
        let from = self.members.from((port, Gid::ZERO));
        from.take_while(move |(guid, _)| *guid == port).map(|&(_, mgid)| mgid)
    }

    /// The services that may have this name: all that do, and rarely one that does not.
    pub(crate) fn services_named(&self, name: &[u8]) -> impl Iterator<Item = ServiceRid> {
        let hash = self.hasher.hash_one(name);
        let from = self.services.from((hash, ServiceRid::default()));
        from.take_while(move |(other, _)| *other == hash).map(|&(_, rid)| rid)
    }

    /// The services that a port offers, ascending.
    pub(crate) fn services_of(&self, port: Gid) -> impl Iterator<Item = ServiceRid> {
        let from = self.service_ports.from((port, ServiceRid::default()));
        from.take_while(move |(gid, _)| *gid == port).map(|&(_, rid)| rid)
    }
}

fn port_and_rid(row: &Service) -> (Gid, ServiceRid) {
    (row.rid.service_gid, row.rid)
}

fn port_and_group(row: &MulticastMember) -> (Guid, Gid) {
    (row.rid.port_gid.guid(), row.rid.mgid)
}

fn name_and_rid(hasher: &RandomState, row: &Service) -> (u64, ServiceRid) {
    let view = ServiceRecord::of(&row.record);
    (hasher.hash_one(&view.service_name()[..]), row.rid)
}

/// Keys of a chunk, at most.
const CHUNK_MAX: usize = 512;

/// A sorted set whose clones share unchanged parts.
#[derive(Clone, Debug)]
struct Sorted<K> {
    /// The keys in ascending order, in chunks that are not empty.
    chunks: Vec<Arc<Vec<K>>>,
}

impl<K> Default for Sorted<K> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<K: Copy + Ord> Sorted<K> {
    fn new(mut keys: Vec<K>) -> Self {
        keys.sort_unstable();
        keys.dedup();
        // Leaves capacity for keys inserted in between.
        let chunks = keys.chunks(CHUNK_MAX * 3 / 4);
        Self { chunks: chunks.map(|chunk| Arc::new(chunk.to_vec())).collect() }
    }

    /// Takes out `old`, if it is there, and puts `new` in.
    fn replace(&mut self, old: Option<K>, new: Option<K>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.remove(old);
        }
        if let Some(new) = new {
            self.insert(new);
        }
    }

    fn insert(&mut self, key: K) {
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(Arc::new(vec![key]));
            return;
        };
        let chunk = Arc::make_mut(chunk);
        let Err(place) = chunk.binary_search(&key) else { return };
        chunk.insert(place, key);
        if chunk.len() > CHUNK_MAX {
            let rest = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(at + 1, Arc::new(rest));
        }
    }

    fn remove(&mut self, key: K) {
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let Ok(place) = chunk.binary_search(&key) else { return };
        if chunk.len() == 1 {
            self.chunks.remove(at);
        } else {
            Arc::make_mut(chunk).remove(place);
        }
    }

    /// Keys from `key` on, ascending.
    fn from(&self, key: K) -> impl Iterator<Item = &K> {
        let at = self.chunk_of(key);
        let rest = self.chunks.get(at..).unwrap_or_default();
        let skip = rest.first().map_or(0, |chunk| chunk.partition_point(|other| *other < key));
        rest.iter().flat_map(|chunk| chunk.iter()).skip(skip)
    }

    /// The chunk that a key belongs to: the last that does not begin above it.
    fn chunk_of(&self, key: K) -> usize {
        self.chunks.partition_point(|chunk| chunk[0] <= key).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::PKey;
    use proptest::prelude::*;
    use sa_proto::snapshot::MulticastMemberRid;
    use std::collections::BTreeSet;

    fn member(group: u8, port: u64) -> Arc<MulticastMember> {
        let rid = MulticastMemberRid { mgid: Gid([group; 16]), port_gid: Gid::new(1, Guid(port)) };
        Arc::new(MulticastMember { rid, join_state: 1, proxy_join: false })
    }

    fn service(service_id: u64, name: &[u8]) -> Arc<Service> {
        let rid = ServiceRid { service_id, service_gid: Gid::ZERO, service_pkey: PKey(0) };
        let mut record = [0; 176];
        record[48..48 + name.len()].copy_from_slice(name);
        Arc::new(Service { rid, record, expires_s: None })
    }

    fn named(index: &RegistryIndex, name: &[u8]) -> Vec<u64> {
        let mut padded = [0; 64];
        padded[..name.len()].copy_from_slice(name);
        index.services_named(&padded).map(|rid| rid.service_id).collect()
    }

    #[test]
    fn an_index_follows_what_is_written() {
        let mut plane = RegistryPlane::default();
        for group in 0..4 {
            plane.members.insert(member(group, 7));
            plane.members.insert(member(group, 8));
        }
        plane.services.insert(service(1, b"storage"));
        let index = RegistryIndex::new(&plane);
        let groups = |index: &RegistryIndex| index.groups_of(Guid(7)).map(|g| g.0[0]).collect();
        let all: Vec<u8> = groups(&index);
        assert_eq!(all, [0, 1, 2, 3]);

        let mut next = plane.clone();
        next.members.remove(member(2, 7).rid);
        next.members.insert(member(9, 7));
        next.services.insert(service(1, b"compute"));
        next.services.insert(service(2, b"storage"));
        let followed = index.follow(&plane, &next);
        let now: Vec<u8> = groups(&followed);
        assert_eq!(now, [0, 1, 3, 9]);
        assert_eq!(
            (named(&followed, b"storage"), named(&followed, b"compute")),
            (vec![2], vec![1])
        );
        assert_eq!(named(&index, b"storage"), [1], "the index before is as it was");
        let offered = |index: &RegistryIndex, gid| index.services_of(gid).count();
        assert_eq!((offered(&index, Gid::ZERO), offered(&followed, Gid::ZERO)), (1, 2));
        assert_eq!(offered(&followed, Gid([1; 16])), 0);
    }

    proptest! {
        #[test]
        fn sorted_is_a_set(
            start in proptest::collection::vec(0..5000u32, 0..3000),
            steps in proptest::collection::vec((0..5000u32, 0..300u32, any::<bool>()), 0..30),
            probe in 0..5000u32,
        ) {
            let mut set: BTreeSet<u32> = start.iter().copied().collect();
            let mut sorted = Sorted::new(start);
            for (from, count, put) in steps {
                for key in from..from + count {
                    if put {
                        set.insert(key);
                        sorted.replace(None, Some(key));
                    } else {
                        set.remove(&key);
                        sorted.replace(Some(key), None);
                    }
                }
            }
            prop_assert!(sorted.chunks.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
            prop_assert!(sorted.from(probe).eq(set.range(probe..)));
            prop_assert!(sorted.from(0).eq(set.iter()));
        }
    }
}

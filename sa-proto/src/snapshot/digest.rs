//! Checksums of planes: sums of row hashes, which a delta updates in time proportional to its size.
//!
//! Every row belongs to one of [`BUCKETS`] buckets by its key. A plane's digest has one sum per
//! bucket; its checksum is the sum of all. Sums do not depend on the order of rows. They detect
//! lost updates and software errors, not forgery.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::encoding::{Canonical, canonical};
use super::fabric::{FabricPlane, Subnet};
use super::registry::RegistryPlane;
use super::row::{Row, Side, join, same};
use super::sorted::{Sorted, for_each_table, keyed};

/// Number of buckets of a plane.
pub const BUCKETS: usize = 1024;
/// Buckets that are copied together when one of them changes.
const COPIED: usize = 64;

/// Checksum of both planes, 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Checksum of the fabric plane.
    pub fabric: u128,
    /// Checksum of the registry plane.
    pub registry: u128,
}

canonical!(Checksum { fabric, registry });

/// Bucket sums of both planes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    pub(super) subnet: u128,
    pub(super) fabric: Sums,
    pub(super) registry: Sums,
}

impl Digest {
    /// Computes the digest of two planes from all rows.
    pub(super) fn of(fabric: &FabricPlane, registry: &RegistryPlane) -> Self {
        struct Planes<'a> {
            fabric: &'a FabricPlane,
            registry: &'a RegistryPlane,
        }
        let planes = Planes { fabric, registry };
        let mut digest = Self {
            subnet: subnet_digest(&fabric.subnet),
            fabric: Sums::default(),
            registry: Sums::default(),
        };
        macro_rules! sum {
            ($plane:ident, $table:ident, $row:ident) => {
                planes.$plane.$table.rows().for_each(|row| digest.$plane.add(&**row));
            };
        }
        for_each_table!(sum);
        digest
    }

    /// The checksum of the same state.
    pub fn checksum(&self) -> Checksum {
        Checksum {
            fabric: self.fabric.total.wrapping_add(self.subnet),
            registry: self.registry.total,
        }
    }

    /// The bucket sums of both planes, fabric first, 16 bytes each.
    pub fn to_bytes(&self) -> Vec<u8> {
        let sums = self.fabric.buckets().chain(self.registry.buckets());
        sums.flat_map(|sum| sum.to_be_bytes()).collect()
    }

    /// The buckets whose sums differ from those in the format of [`to_bytes`](Self::to_bytes).
    /// `None` if `held` is not a valid digest.
    pub fn differing(&self, held: &[u8]) -> Option<BucketSet> {
        let (held, []) = held.as_chunks::<16>() else { return None };
        let (fabric, registry) = held.split_at_checked(BUCKETS)?;
        if registry.len() != BUCKETS {
            return None;
        }
        let differing = |sums: &Sums, held: &[[u8; 16]]| {
            let mut set = PlaneBuckets::default();
            for (bucket, (sum, held)) in sums.buckets().zip(held).enumerate() {
                if sum.to_be_bytes() != *held {
                    set.insert(bucket);
                }
            }
            set
        };
        Some(BucketSet {
            fabric: differing(&self.fabric, fabric),
            registry: differing(&self.registry, registry),
        })
    }
}

pub(super) fn subnet_digest(subnet: &Subnet) -> u128 {
    let mut bytes = Vec::new();
    subnet.put(&mut bytes);
    xxh3_128_with_seed(&bytes, 0)
}

fn row_digest<R: Row>(row: &R) -> u128 {
    let mut bytes = Vec::with_capacity(256);
    row.put(&mut bytes);
    xxh3_128_with_seed(&bytes, R::TABLE as u64)
}

/// One sum per bucket of a plane. Clones share those of neighbouring buckets until one changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    buckets: [Arc<[u128; COPIED]>; BUCKETS / COPIED],
    /// Sum of all buckets.
    total: u128,
}

impl Default for Sums {
    fn default() -> Self {
        let none = Arc::new([0; COPIED]);
        Self { buckets: std::array::from_fn(|_| none.clone()), total: 0 }
    }
}

impl Sums {
    fn buckets(&self) -> impl Iterator<Item = u128> {
        self.buckets.iter().flat_map(|part| part.iter().copied())
    }

    pub(super) fn add<R: Row>(&mut self, row: &R) {
        self.note(bucket_of::<R>(row.key()), row_digest(row));
    }

    /// Adds row `new` and removes row `old`, both with this key.
    pub(super) fn replace<R: Row>(
        &mut self,
        key: R::Key,
        old: Option<&R>,
        new: Option<&R>,
        scratch: &mut Vec<u8>,
    ) {
        if old.zip(new).is_some_and(|(old, new)| std::ptr::eq(old, new)) {
            return;
        }
        scratch.clear();
        key.put(scratch);
        let bucket = bucket_of_bytes::<R>(scratch);
        let mut digest = |row: &R| {
            scratch.clear();
            row.put(scratch);
            xxh3_128_with_seed(scratch, R::TABLE as u64)
        };
        let before = old.map_or(0, &mut digest);
        self.note(bucket, new.map_or(0, digest).wrapping_sub(before));
    }

    fn note(&mut self, bucket: usize, difference: u128) {
        let sum = &mut Arc::make_mut(&mut self.buckets[bucket / COPIED])[bucket % COPIED];
        *sum = sum.wrapping_add(difference);
        self.total = self.total.wrapping_add(difference);
    }
}

/// The bucket of a key.
pub(super) fn bucket_of<R: Row>(key: R::Key) -> usize {
    let mut bytes = Vec::with_capacity(32);
    key.put(&mut bytes);
    bucket_of_bytes::<R>(&bytes)
}

fn bucket_of_bytes<R: Row>(key: &[u8]) -> usize {
    (xxh3_64_with_seed(key, R::TABLE as u64) % BUCKETS as u64) as usize
}

/// A set of buckets of one plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneBuckets {
    bits: [u64; BUCKETS / 64],
}

impl PlaneBuckets {
    fn insert(&mut self, bucket: usize) {
        self.bits[bucket / 64] |= 1 << (bucket % 64);
    }

    fn contains(&self, bucket: usize) -> bool {
        self.bits[bucket / 64] >> (bucket % 64) & 1 == 1
    }

    /// Number of buckets in the set.
    pub fn len(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the row with this key is in one of the set's buckets.
    pub(super) fn has<R: Row>(&self, key: R::Key) -> bool {
        self.contains(bucket_of::<R>(key))
    }
}

/// A set of buckets of both planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketSet {
    /// Buckets of the fabric plane.
    pub fabric: PlaneBuckets,
    /// Buckets of the registry plane.
    pub registry: PlaneBuckets,
}

impl BucketSet {
    /// Number of buckets in the set.
    pub fn len(&self) -> usize {
        self.fabric.len() + self.registry.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The set as one bit per bucket, least significant first, fabric first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.fabric.bits.iter().chain(&self.registry.bits);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads the format of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let (fabric, registry) = words.split_at_checked(BUCKETS / 64)?;
        let read = |words: &[[u8; 8]]| {
            let bits: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
            bits.try_into().ok().map(|bits| PlaneBuckets { bits })
        };
        Some(Self { fabric: read(fabric)?, registry: read(registry)? })
    }
}

/// `rows` with those in `buckets` replaced by `replacement`; `None` if the replacement has a row
/// outside the buckets or is not sorted. Equal rows keep their allocation.
pub(super) fn replace<R: Row, T: Sorted<R>>(
    rows: &T,
    buckets: &PlaneBuckets,
    replacement: T,
) -> Option<T> {
    let ascending = replacement.rows().is_sorted_by(|a, b| a.key() < b.key());
    if !ascending || !replacement.rows().all(|row| buckets.has::<R>(row.key())) {
        return None;
    }
    let kept = join(keyed(rows), keyed(&replacement)).filter_map(|(key, side)| match side {
        Side::Left(row) => (!buckets.has::<R>(key)).then(|| row.clone()),
        Side::Right(row) => Some(row.clone()),
        Side::Both(old, new) => Some(if same(old, new) { old.clone() } else { new.clone() }),
    });
    let mut table = T::default();
    kept.for_each(|row| table.add(row));
    Some(table)
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;

    use super::super::fabric::Lft;
    use super::super::registry::AliasGuid;
    use super::super::tables::Table;
    use super::*;

    fn alias(n: u64) -> AliasGuid {
        AliasGuid { alias: Guid(n), port_guid: Guid(n + 1000), index: 1 }
    }

    #[test]
    fn sums_do_not_depend_on_order_and_undo() {
        let mut forward = Sums::default();
        let mut backward = Sums::default();
        (0..50).for_each(|n| forward.add(&alias(n)));
        (0..50).rev().for_each(|n| backward.add(&alias(n)));
        assert_eq!(forward, backward);
        let mut scratch = Vec::new();
        for n in 0..50 {
            let changed = AliasGuid { index: 7, ..alias(n) };
            forward.replace(Guid(n), Some(&alias(n)), Some(&changed), &mut scratch);
            forward.replace(Guid(n), Some(&changed), None, &mut scratch);
        }
        assert_eq!(forward, Sums::default());
    }

    #[test]
    fn equal_bytes_in_different_tables_hash_differently() {
        let lft = Lft { switch: Guid(1), ports: vec![].into() };
        let mut bytes = Vec::new();
        lft.put(&mut bytes);
        assert_ne!(row_digest(&lft), xxh3_128_with_seed(&bytes, Table::Nodes as u64));
    }

    #[test]
    fn bucket_sets_read_back_and_malformed_ones_are_refused() {
        let mut set = BucketSet::default();
        set.fabric.insert(0);
        set.fabric.insert(1023);
        set.registry.insert(77);
        assert_eq!(BucketSet::from_bytes(&set.to_bytes()), Some(set));
        assert_eq!(set.len(), 3);
        assert_eq!(BucketSet::from_bytes(&set.to_bytes()[1..]), None);
        assert_eq!(BucketSet::from_bytes(&[0; 8]), None);
    }

    #[test]
    fn only_buckets_with_other_rows_differ() {
        let plane = |rows: &[u64]| RegistryPlane {
            alias_guids: rows.iter().map(|&n| Arc::new(alias(n))).collect(),
            ..RegistryPlane::default()
        };
        let fabric = FabricPlane::default();
        let (a, b) = (plane(&[1, 2, 3]), plane(&[1, 2, 4]));
        let (a, b) = (Digest::of(&fabric, &a), Digest::of(&fabric, &b));
        let differing = a.differing(&b.to_bytes()).unwrap();
        assert!(differing.fabric.is_empty() && differing.registry.len() <= 2);
        assert!(differing.registry.has::<AliasGuid>(Guid(3)));
        assert!(a.differing(&a.to_bytes()).unwrap().is_empty());
        assert_eq!(a.differing(&[0; 16]), None);
    }

    #[test]
    fn a_replacement_leaves_other_buckets_alone() {
        let rows: Vec<_> = (0..100).map(|n| Arc::new(alias(n))).collect();
        let mut buckets = PlaneBuckets::default();
        buckets.insert(bucket_of::<AliasGuid>(Guid(5)));
        let replaced = replace(&rows, &buckets, vec![]).unwrap();
        assert!(replaced.len() < 100 && replaced.iter().all(|row| row.alias != Guid(5)));
        assert!(replaced.iter().all(|row| Arc::ptr_eq(row, &rows[row.alias.0 as usize])));
        let stranger = (0..).find(|&n| !buckets.has::<AliasGuid>(Guid(n))).unwrap();
        assert!(replace(&rows, &buckets, vec![Arc::new(alias(stranger))]).is_none());
    }
}

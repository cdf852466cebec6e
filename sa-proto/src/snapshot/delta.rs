//! Changes between two snapshots: computed, applied and merged table by table.
//!
//! Two laws, tested below: `apply(old, construct(old, new)) == new`, and applying `merge(first,
//! second)` equals applying the two in turn. A delta contains the version that it starts from and
//! the checksum of its result, so that it is rejected if applied to the wrong base.

use std::sync::Arc;

use super::change::{Changeable, MissingRow, TableDelta};
use super::device::{Mft, PortTables, SubnetManager, VirtualPorts};
use super::digest::{Checksum, subnet_digest};
use super::fabric::{FabricPlane, Lft, Node, PathSls, Subnet};
use super::policy::{Partition, PortGroup, QosLevel, QosRule, VirtualFabric};
use super::registry::*;
use super::sorted::{Sorted, all_tables, for_each_table};
use super::state::Snapshot;
use super::tables::Table;
use super::version::Version;

/// Why a delta cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// It starts from a different version than the one held.
    #[error("delta from {base} does not apply to {held}")]
    WrongBase {
        /// The version that it starts from.
        base: Version,
        /// The version that it was applied to, or the result of the previous delta.
        held: Version,
    },
    /// It patches a row that does not exist.
    #[error("delta patches a row of table {table:?} that does not exist")]
    MissingRow {
        /// The row's table.
        table: Table,
    },
    /// The resulting state differs from the sender's.
    #[error(
        "checksum mismatch after the delta to {target}: the held state differs from the sender's"
    )]
    Checksum {
        /// The version of its result.
        target: Version,
    },
}

impl From<MissingRow> for DeltaError {
    fn from(MissingRow(table): MissingRow) -> Self {
        Self::MissingRow { table }
    }
}

macro_rules! delta {
    (
        {}
        fabric { $($f:ident: $fabric_row:ident,)* }
        registry { $($r:ident: $registry_row:ident,)* }
    ) => {
        /// The changes from one snapshot to another.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Delta {
            pub(super) base: Version,
            pub(super) target: Version,
            pub(super) checksum: Checksum,
            pub(super) subnet: Option<Subnet>,
            $(pub(super) $f: TableDelta<$fabric_row>,)*
            $(pub(super) $r: TableDelta<$registry_row>,)*
        }

        impl Delta {
            /// A delta without changes, to be filled by a decoder.
            pub(super) fn new(base: Version, target: Version, subnet: Option<Subnet>) -> Self {
                Self {
                    base,
                    target,
                    checksum: Checksum::default(),
                    subnet,
                    $($f: TableDelta::default(),)*
                    $($r: TableDelta::default(),)*
                }
            }

            fn merge_tables(&self, later: &Self) -> Result<Self, DeltaError> {
                Ok(Self {
                    base: self.base,
                    target: later.target,
                    checksum: later.checksum,
                    subnet: later.subnet.as_ref().or(self.subnet.as_ref()).cloned(),
                    $($f: self.$f.merge(&later.$f)?,)*
                    $($r: self.$r.merge(&later.$r)?,)*
                })
            }

            fn between(
                old: &Snapshot,
                version: Version,
                fabric: &FabricPlane,
                registry: &RegistryPlane,
                checksum: impl FnOnce(&Self) -> Checksum,
            ) -> Self {
                let subnet = (old.fabric.subnet != fabric.subnet).then(|| fabric.subnet.clone());
                let mut delta = Self::new(old.version, version, subnet);
                $(delta.$f = TableDelta::between(&old.fabric.$f, &fabric.$f);)*
                $(delta.$r = TableDelta::between(&old.registry.$r, &registry.$r);)*
                delta.checksum = checksum(&delta);
                delta
            }

            /// A delta that applies these changes of the registry plane to `old`.
            fn of_registry(old: &Snapshot, version: Version, changes: &RegistryChanges) -> Self {
                let mut delta = Self::new(old.version, version, None);
                $(delta.$r = TableDelta::of(&changes.$r);)*
                delta
            }

            fn fabric_changes(&self) -> usize {
                0 $(+ self.$f.len())*
            }

            fn registry_changes(&self) -> usize {
                0 $(+ self.$r.len())*
            }

            /// Approximate size of the changes in bytes: encoded for the fabric; in memory for the
            /// registry, whose changes hold whole rows.
            pub(super) fn footprint(&self) -> usize {
                0 $(+ self.$f.encoded_len())*
                    $(+ self.$r.len() * size_of::<$registry_row>())*
            }

            /// The snapshot of `fabric` and `registry`, which this delta leads to from `old`.
            /// Unchanged rows are shared with `old`, changed ones with the planes.
            fn reach(
                &self,
                old: &Snapshot,
                fabric: &FabricPlane,
                registry: &RegistryPlane,
            ) -> Snapshot {
                let mut next = Snapshot {
                    version: self.target,
                    fabric: old.fabric.clone(),
                    registry: old.registry.clone(),
                    digest: old.digest.clone(),
                };
                if self.subnet.is_some() || self.fabric_changes() > 0 {
                    next.fabric = Arc::new(FabricPlane {
                        subnet: fabric.subnet.clone(),
                        $($f: self.$f.share(&old.fabric.$f, &fabric.$f),)*
                    });
                }
                if *old.registry != *registry {
                    next.registry = Arc::new(registry.clone());
                }
                self.advance(old, &mut next);
                next
            }

            fn apply_unchecked(&self, old: &Snapshot) -> Result<Snapshot, DeltaError> {
                if self.base != old.version {
                    return Err(DeltaError::WrongBase { base: self.base, held: old.version });
                }
                let fabric = if self.subnet.is_none() && self.fabric_changes() == 0 {
                    old.fabric.clone()
                } else {
                    Arc::new(FabricPlane {
                        subnet: self.subnet.as_ref().unwrap_or(&old.fabric.subnet).clone(),
                        $($f: old.fabric.$f.changed(&self.$f)?,)*
                    })
                };
                let sequence = self.target.registry_sequence;
                let is_same = self.registry_changes() == 0 && sequence == old.registry.sequence;
                let registry = if is_same {
                    old.registry.clone()
                } else {
                    Arc::new(RegistryPlane {
                        sequence,
                        $($r: old.registry.$r.changed(&self.$r)?,)*
                    })
                };
                let mut next =
                    Snapshot { version: self.target, fabric, registry, digest: old.digest.clone() };
                self.advance(old, &mut next);
                Ok(next)
            }
        }
    };
}
all_tables!(delta);

/// The delta from `old` to `new`.
pub fn construct(old: &Snapshot, new: &Snapshot) -> Delta {
    Delta::between(old, new.version, &new.fabric, &new.registry, |_| new.checksum())
}

/// The snapshot after applying `delta` to `old`. Unchanged rows are shared with `old`.
pub fn apply(old: &Snapshot, delta: &Delta) -> Result<Snapshot, DeltaError> {
    let next = delta.apply_unchecked(old)?;
    if next.checksum() != delta.checksum {
        return Err(DeltaError::Checksum { target: delta.target });
    }
    Ok(next)
}

/// A single delta with the effect of `first` followed by `second`.
pub fn merge(first: &Delta, second: &Delta) -> Result<Delta, DeltaError> {
    if first.target != second.base {
        return Err(DeltaError::WrongBase { base: second.base, held: first.target });
    }
    first.merge_tables(second)
}

impl Snapshot {
    /// The snapshot of `fabric` and `registry`, both [checked](FabricPlane::checked), as a
    /// successor of this one: equal rows are shared with it, and only different ones are hashed.
    pub fn succeed(
        &self,
        version: Version,
        fabric: &FabricPlane,
        registry: &RegistryPlane,
    ) -> (Snapshot, Delta) {
        let mut next = None;
        let delta = Delta::between(self, version, fabric, registry, |delta| {
            next.insert(delta.reach(self, fabric, registry)).checksum()
        });
        (next.expect("the caller requested the checksum"), delta)
    }
}

impl Snapshot {
    /// The successor of this snapshot with the registry plane after `changes`, and the delta to it.
    /// Takes time proportional to the changes, not to the number of rows.
    pub fn advance(
        &self,
        version: Version,
        registry: RegistryPlane,
        changes: &RegistryChanges,
    ) -> (Snapshot, Delta) {
        debug_assert_eq!(changes.applied_to(&self.registry), registry, "changes do not match");
        let mut delta = Delta::of_registry(self, version, changes);
        let mut next = Snapshot {
            version,
            fabric: self.fabric.clone(),
            registry: Arc::new(registry),
            digest: self.digest.clone(),
        };
        delta.advance(self, &mut next);
        delta.checksum = next.checksum();
        (next, delta)
    }

    /// The successor of this snapshot with new multicast forwarding tables `mfts`, ascending by
    /// switch, and the delta to it. Compares no other tables.
    pub fn advance_multicast(&self, version: Version, mfts: &Vec<Arc<Mft>>) -> (Snapshot, Delta) {
        let mut delta = Delta::new(self.version, version, None);
        delta.mfts = TableDelta::between(&self.fabric.mfts, mfts);
        let next = delta
            .apply_unchecked(self)
            .expect("a delta applies to the snapshot it was computed from");
        delta.checksum = next.checksum();
        (next, delta)
    }
}

impl Delta {
    /// The version that the delta applies to.
    pub fn base(&self) -> Version {
        self.base
    }

    /// The version of its result.
    pub fn target(&self) -> Version {
        self.target
    }

    /// The checksum of its result.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Whether only the version differs.
    pub fn is_empty(&self) -> bool {
        self.subnet.is_none() && self.changes() == 0
    }

    /// Number of changed rows.
    pub fn changes(&self) -> usize {
        self.fabric_changes() + self.registry_changes()
    }

    /// Updates `next`'s digest, which is still that of `old`, by the changed rows.
    fn advance(&self, old: &Snapshot, next: &mut Snapshot) {
        if let Some(subnet) = &self.subnet {
            next.digest.subnet = subnet_digest(subnet);
        }
        let mut scratch = Vec::new();
        macro_rules! advance {
            ($plane:ident, $table:ident, $row:ident) => {
                for (key, change) in self.$table.by_key() {
                    let old = old.$plane.$table.row(key).map(|row| &**row);
                    let new = change.row(|| next.$plane.$table.row(key)).map(|row| &**row);
                    next.digest.$plane.replace(key, old, new, &mut scratch);
                }
            };
        }
        for_each_table!(advance);
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use proptest::prelude::*;

    use super::super::digest::Digest;
    use super::super::testing::{SESSION, fabric, lft, linked_pair, registry, snapshot};
    use super::*;

    proptest! {
        #[test]
        fn applying_what_was_constructed_gives_the_new_snapshot(
            old in snapshot(1), new in snapshot(2),
        ) {
            let next = apply(&old, &construct(&old, &new)).unwrap();
            prop_assert_eq!(next.digest(), new.digest());
            prop_assert_eq!(next, new);
        }

        #[test]
        fn merging_equals_applying_in_turn(
            a in snapshot(1), b in snapshot(2), c in snapshot(3), d in snapshot(4),
        ) {
            let (ab, bc, cd) = (construct(&a, &b), construct(&b, &c), construct(&c, &d));
            let merged = merge(&merge(&ab, &bc).unwrap(), &cd).unwrap();
            prop_assert_eq!(&apply(&a, &merged).unwrap(), &d);
            let merged = merge(&ab, &merge(&bc, &cd).unwrap()).unwrap();
            prop_assert_eq!(&apply(&a, &merged).unwrap(), &d);
        }

        #[test]
        fn a_successor_is_what_building_it_would_give(
            old in snapshot(1), fabric in fabric(), registry in registry(),
        ) {
            let built = Snapshot::build(SESSION, 2, fabric.clone(), registry.clone()).unwrap();
            let (next, delta) = old.succeed(built.version(), &fabric, &registry);
            prop_assert_eq!(next.digest(), built.digest());
            prop_assert_eq!(&delta, &construct(&old, &built));
            prop_assert_eq!(next, built);
        }

        /// Changes may set rows to their present content, and remove rows that do not exist.
        #[test]
        fn changes_of_the_registry_lead_to_what_they_say(
            old in snapshot(1), new in registry(), stray in registry(),
        ) {
            let mut changes = RegistryChanges::between(&old.registry, &new);
            changes.services.extend(new.services.iter().map(|row| (row.rid, Some(row.clone()))));
            for row in stray.groups.iter().filter(|row| new.groups.find(row.mgid).is_none()) {
                changes.groups.insert(row.mgid, None);
            }
            let version = Version { registry_sequence: new.sequence, ..old.version() };
            let (next, delta) = old.advance(version, new.clone(), &changes);
            prop_assert_eq!(&**next.registry(), &new);
            prop_assert_eq!(&Digest::of(next.fabric(), next.registry()), next.digest());
            prop_assert_eq!(apply(&old, &delta).unwrap(), next);
            let mut plane = (**old.registry()).clone();
            plane.apply(&changes);
            prop_assert_eq!(plane, new);
        }

        #[test]
        fn other_multicast_tables_lead_to_what_building_would_give(
            old in snapshot(1), other in fabric(),
        ) {
            let fabric = FabricPlane { mfts: other.mfts.clone(), ..(**old.fabric()).clone() };
            let version = Version { fabric_generation: 2, ..old.version() };
            let (next, delta) = old.advance_multicast(version, &other.mfts);
            let (expected, expected_delta) = old.succeed(version, &fabric, old.registry());
            prop_assert_eq!(next.digest(), expected.digest());
            prop_assert_eq!(&delta, &expected_delta);
            prop_assert_eq!(&next, &expected);
            prop_assert!(next.fabric().is_same_but_multicast(old.fabric()));
        }

        #[test]
        fn a_wrong_base_is_refused(a in snapshot(1), b in snapshot(2), c in snapshot(3)) {
            let (ab, bc) = (construct(&a, &b), construct(&b, &c));
            let wrong_base = |result: Result<_, DeltaError>| {
                matches!(result, Err(DeltaError::WrongBase { .. }))
            };
            prop_assert!(wrong_base(apply(&a, &bc)));
            prop_assert!(wrong_base(merge(&bc, &ab).map(|_| a.clone())));
        }

        /// A responder must detect that its state differs from that of its version.
        #[test]
        fn another_state_under_the_base_version_is_refused(
            a in snapshot(1), b in snapshot(1), c in snapshot(2),
        ) {
            prop_assume!(a.fabric() != b.fabric());
            let version = a.version();
            let astray = Snapshot { version, ..b };
            let delta = construct(&a, &c);
            match apply(&astray, &delta) {
                Ok(next) => prop_assert_eq!(next, c),
                Err(DeltaError::Checksum { .. } | DeltaError::MissingRow { .. }) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }

    fn two_switches(first: &[u8], second: &[u8], generation: u64) -> Snapshot {
        let fabric = FabricPlane {
            nodes: linked_pair(Guid(1), Guid(2)).into_iter().map(Arc::new).collect(),
            lfts: vec![Arc::new(lft(Guid(1), first)), Arc::new(lft(Guid(2), second))],
            ..FabricPlane::default()
        };
        Snapshot::build(SESSION, generation, fabric, RegistryPlane::default()).unwrap()
    }

    #[test]
    fn unchanged_rows_and_planes_share_their_memory() {
        let old = two_switches(&[1, 2, 3], &[4, 5, 6], 1);
        let new = two_switches(&[1, 2, 3], &[4, 9, 6], 2);
        let next = apply(&old, &construct(&old, &new)).unwrap();
        assert_eq!(next, new);
        let (before, after) = (old.fabric(), next.fabric());
        assert!(Arc::ptr_eq(&before.lfts[0], &after.lfts[0]));
        assert!(!Arc::ptr_eq(&before.lfts[1], &after.lfts[1]));
        assert!(before.nodes.iter().zip(&after.nodes).all(|(a, b)| Arc::ptr_eq(a, b)));
        assert!(Arc::ptr_eq(old.registry(), next.registry()));
    }

    #[test]
    fn equal_snapshots_differ_by_nothing() {
        let (old, new) = (two_switches(&[1], &[2], 1), two_switches(&[1], &[2], 2));
        let delta = construct(&old, &new);
        assert!(delta.is_empty());
        let next = apply(&old, &delta).unwrap();
        assert_eq!(next.version(), new.version());
        assert!(Arc::ptr_eq(old.fabric(), next.fabric()));
    }

    #[test]
    fn a_wrong_checksum_is_refused() {
        let (old, new) = (two_switches(&[1], &[2], 1), two_switches(&[1], &[3], 2));
        let mut delta = construct(&old, &new);
        delta.checksum.fabric ^= 1;
        assert_eq!(apply(&old, &delta), Err(DeltaError::Checksum { target: new.version() }));
    }
}

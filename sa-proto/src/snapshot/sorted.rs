//! Interface of tables of rows, ascending by key without duplicates, and the list of all tables.
//!
//! A table of the fabric plane is a `Vec<Arc<R>>`, one of the registry plane [`Rows`]. Lookup,
//! deltas, digests and transfer use both through [`Sorted`].

use std::sync::Arc;

use super::row::{Row, find};
use super::rows::Rows;

/// A table in either representation: the operations that deltas, digests and transfer need.
pub(super) trait Sorted<R: Row>: Default {
    /// All rows, ascending by key.
    fn rows(&self) -> impl Iterator<Item = &Arc<R>>;
    /// The row with this key.
    fn row(&self, key: R::Key) -> Option<&Arc<R>>;
    /// The row at a position.
    fn at(&self, index: usize) -> Option<&Arc<R>>;
    /// Appends a row whose key is greater than those before.
    fn add(&mut self, row: Arc<R>);
    /// Whether two tables share their memory, and are therefore equal.
    fn is_same(&self, other: &Self) -> bool;
}

impl<R: Row> Sorted<R> for Vec<Arc<R>> {
    fn rows(&self) -> impl Iterator<Item = &Arc<R>> {
        self.iter()
    }
    fn row(&self, key: R::Key) -> Option<&Arc<R>> {
        find(self, key)
    }
    fn at(&self, index: usize) -> Option<&Arc<R>> {
        self.get(index)
    }
    fn add(&mut self, row: Arc<R>) {
        self.push(row);
    }
    fn is_same(&self, _other: &Self) -> bool {
        false
    }
}

impl<R: Row> Sorted<R> for Rows<R> {
    fn rows(&self) -> impl Iterator<Item = &Arc<R>> {
        self.iter()
    }
    fn row(&self, key: R::Key) -> Option<&Arc<R>> {
        self.find(key)
    }
    fn at(&self, index: usize) -> Option<&Arc<R>> {
        self.get(index)
    }
    fn add(&mut self, row: Arc<R>) {
        self.insert(row);
    }
    fn is_same(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

/// Rows with their keys, for [`join`].
pub(super) fn keyed<R: Row>(rows: &impl Sorted<R>) -> impl Iterator<Item = (R::Key, &Arc<R>)> {
    rows.rows().map(|row| (row.key(), row))
}

/// Calls a macro with all tables: field and row type by plane, in the order of transfer. A new
/// table needs only an entry here and in [`Table`], and its field in the plane, to be looked up,
/// compared, checksummed, sent and cached.
macro_rules! all_tables {
    ($do:ident) => {
        $do! {
            fabric {
                nodes: Node,
                lfts: Lft,
                port_tables: PortTables,
                mfts: Mft,
                subnet_managers: SubnetManager,
                partitions: Partition,
                port_groups: PortGroup,
                qos_levels: QosLevel,
                qos_rules: QosRule,
                virtual_fabrics: VirtualFabric,
                path_sls: PathSls,
            }
            registry {
                groups: MulticastGroup,
                members: MulticastMember,
                services: Service,
                subscriptions: Subscription,
                alias_guids: AliasGuid,
            }
        }
    };
}
pub(crate) use all_tables;

/// Calls a macro with plane, field and row type, once for every table.
macro_rules! for_each_table {
    ($do:ident) => {
        $do!(fabric, nodes, Node);
        $do!(fabric, lfts, Lft);
        $do!(fabric, port_tables, PortTables);
        $do!(fabric, mfts, Mft);
        $do!(fabric, subnet_managers, SubnetManager);
        $do!(fabric, partitions, Partition);
        $do!(fabric, port_groups, PortGroup);
        $do!(fabric, qos_levels, QosLevel);
        $do!(fabric, qos_rules, QosRule);
        $do!(fabric, virtual_fabrics, VirtualFabric);
        $do!(fabric, path_sls, PathSls);
        $do!(registry, groups, MulticastGroup);
        $do!(registry, members, MulticastMember);
        $do!(registry, services, Service);
        $do!(registry, subscriptions, Subscription);
        $do!(registry, alias_guids, AliasGuid);
    };
}
pub(crate) use for_each_table;

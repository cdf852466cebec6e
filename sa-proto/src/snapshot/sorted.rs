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
/// table of the registry plane needs only a row in `registry_tables`; one of the fabric plane needs
/// an entry here and in `Table`, and its field in the plane.
macro_rules! all_tables {
    ($do:ident) => {
        $crate::snapshot::sorted::all_tables! { $do {} }
    };
    ($do:ident $before:tt) => {
        $crate::registry_tables! { [$crate::snapshot::sorted::all_tables] { $do $before } }
    };
    ({ $do:ident $before:tt } $($(#[$doc:meta])* $table:ident: $row:ident by $field:ident:
        $key:ident, named $($subject:ident).+: $subject_type:ident,
        $variant:ident = $number:literal $name:literal;)*) => {
        $do! { $before
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
                virtual_ports: VirtualPorts,
            }
            registry { $($table: $row,)* }
        }
    };
}
pub(crate) use all_tables;

/// Calls a macro with plane, field and row type, once for every table.
macro_rules! for_each_table {
    ($do:ident) => {
        $crate::snapshot::sorted::all_tables! { for_each_table { $do } }
    };
    ({ $do:ident } fabric { $($f:ident: $fr:ident,)* } registry { $($r:ident: $rr:ident,)* }) => {
        $($do!(fabric, $f, $fr);)*
        $($do!(registry, $r, $rr);)*
    };
}
pub(crate) use for_each_table;

//! Which ports have the same paths, and which paths a new generation leaves as they were.
//!
//! Both are for node agents: paths are found once for all ports of a kind, and not at all for those
//! that cannot have changed. Where this cannot be seen from the tables at little cost, ports count
//! as different and paths as changed.

use ib_mad::types::Guid;

use super::{EndPort, Tables};

/// Ports of one kind have equal paths to every destination but themselves, except for their own GID
/// and LID. Kinds of different tables cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceKind {
    row: u16,
    column: u16,
    other_column: u16,
    class: u16,
    class_by_lid: u16,
}

impl Tables {
    /// The kind of a port; `None` if its paths may be unlike those of any other port: it has
    /// several LIDs or planes, is attached to no switch, or SLs are dropped on some paths.
    pub(crate) fn source_kind(&self, port: &EndPort) -> Option<SourceKind> {
        let is_plain = port.row != EndPort::DETACHED && self.end_class(port).lmc == 0;
        if !is_plain || self.has_planes() || !self.all_paths_pass_alike() {
            return None;
        }
        let by_lid = self.end_ports.by_lid(port.lid)?;
        // Columns decide which paths have a reverse path.
        let columns = match self.all_paths_return() {
            true => (0, 0),
            false => (port.column, self.paths.other_column(port.lid)),
        };
        Some(SourceKind {
            row: port.row,
            column: columns.0,
            other_column: columns.1,
            class: port.class,
            class_by_lid: by_lid.class,
        })
    }

    /// Node GUID of the switch that a port is attached to, or is.
    pub(crate) fn switch_of(&self, port: &EndPort) -> Option<Guid> {
        self.walked.switches.guids.get(usize::from(port.row)).copied()
    }

    /// Whether these tables share the ports and paths of those `before`, from which they differ at
    /// most in how switches forward multicast. Takes a time that grows with the number of rows.
    pub(crate) fn has_same_paths(&self, before: &Self) -> bool {
        self.end_ports.is_same(&before.end_ports)
            && self.paths.is_same(&before.paths)
            && self.plane.is_same_but_multicast(&before.plane)
    }

    /// Whether these tables and those `before` have the same ports, partitions and policy, and a
    /// path in both directions between any two ports, so that paths can differ by their switch
    /// parts only ([`Tables::has_same_routes`]).
    pub(crate) fn differs_only_in_routes(&self, before: &Self) -> bool {
        // Destructured, so that a new table cannot be forgotten.
        let Self {
            subnet,
            end_ports,
            partitions,
            paths: _,
            records: _,
            qos: _,
            plane,
            walked,
            sls,
            routers: _,
            alias_guids: _,
            end_classes,
            lmc: _,
            direct,
            planes,
            contradictions: _,
        } = self;
        let is_whole = |tables: &Self| tables.all_paths_return() && tables.planes.is_empty();
        let policy = &before.plane;
        is_whole(self)
            && is_whole(before)
            && *subnet == before.subnet
            && *sls == before.sls
            && *end_classes == before.end_classes
            && *direct == before.direct
            && planes.is_empty()
            && walked.switches.guids == before.walked.switches.guids
            && plane.partitions == policy.partitions
            && plane.port_groups == policy.port_groups
            && plane.qos_levels == policy.qos_levels
            && plane.qos_rules == policy.qos_rules
            && plane.virtual_fabrics == policy.virtual_fabrics
            && plane.virtual_ports == policy.virtual_ports
            && *partitions == before.partitions
            && has_same_ports(end_ports.all(), before.end_ports.all())
    }

    /// Whether the switch parts of all paths from a row are as they were `before`, in tables that
    /// differ in routes only.
    pub(crate) fn has_same_routes(&self, before: &Self, row: u16) -> bool {
        let (now, then) = (self.end_ports.all(), before.end_ports.all());
        let mut last = None;
        for (port, old) in now.iter().zip(then) {
            if self.end_class(port).lmc > 0 {
                return false;
            }
            // Neighbours in the order often share a column.
            let columns = (port.column, old.column);
            if last == Some(columns) && self.paths.is_host_row(row) {
                continue;
            }
            last = Some(columns);
            // Records do not say how many switches there are.
            let class = self.paths.class(row, port.column, port.lid);
            let class_before = before.paths.class(row, old.column, old.lid);
            if (class.limit, class.sl) != (class_before.limit, class_before.sl) {
                return false;
            }
        }
        true
    }
}

/// Whether these are the same ports at the same switches. Each build numbers columns from 0.
fn has_same_ports(now: &[EndPort], then: &[EndPort]) -> bool {
    let place = |port: &EndPort| (port.guid, port.lid, port.row, port.class);
    now.len() == then.len() && now.iter().map(place).eq(then.iter().map(place))
}

//! Port groups of end ports: ports in the same groups share a number.

use std::collections::HashMap;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::{FabricPlane, PortGroup};

/// An interned set of port groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupSet(u16);

impl GroupSet {
    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Collects the sets of groups that ports are in; only groups that rules name count.
pub(crate) struct GroupSets {
    /// Numbers of explicit groups, by port.
    by_guid: HashMap<Guid, Vec<u32>>,
    /// Node types and number of groups that have any.
    by_type: Vec<(u8, u32)>,
    known: HashMap<Vec<u32>, GroupSet>,
    /// Numbers of the groups of each set, ascending.
    pub(super) sets: Vec<Vec<u32>>,
}

impl GroupSets {
    /// The groups of a plane that its rules name.
    pub(crate) fn of(plane: &FabricPlane) -> Self {
        let mut used: Vec<u32> = super::in_force::in_force(plane)
            .flat_map(|rule| [&rule.sources, &rule.destinations])
            .flatten()
            .flatten()
            .copied()
            .collect();
        used.sort_unstable();
        used.dedup();
        let mut groups = Self {
            by_guid: HashMap::new(),
            by_type: Vec::new(),
            known: HashMap::new(),
            sets: Vec::new(),
        };
        let rows = plane.port_groups.iter().filter(|row| used.binary_search(&row.index).is_ok());
        for row in rows {
            if row.node_types != 0 {
                groups.by_type.push((row.node_types, row.index));
            }
            for &guid in &row.ports {
                groups.by_guid.entry(guid).or_default().push(row.index);
            }
        }
        groups
    }

    /// The groups of a port. Beyond 65,536 distinct sets, more than there are unicast LIDs, a port
    /// counts as one without groups.
    pub(crate) fn intern(&mut self, guid: Guid, node_type: Option<NodeType>) -> GroupSet {
        let bit = node_type_bit(node_type);
        let mut set = self.by_guid.get(&guid).cloned().unwrap_or_default();
        set.extend(self.by_type.iter().filter(|(types, _)| types & bit != 0).map(|&(_, n)| n));
        set.sort_unstable();
        set.dedup();
        if let Some(&known) = self.known.get(&set) {
            return known;
        }
        let Ok(number) = u16::try_from(self.sets.len()) else { return GroupSet(0) };
        self.sets.push(set.clone());
        self.known.insert(set, GroupSet(number));
        GroupSet(number)
    }
}

/// The bit of [`PortGroup::node_types`] for a kind of node.
pub(crate) fn node_type_bit(node_type: Option<NodeType>) -> u8 {
    match node_type {
        Some(NodeType::Ca) => PortGroup::NODE_CA,
        Some(NodeType::Switch) => PortGroup::NODE_SWITCH,
        Some(NodeType::Router) => PortGroup::NODE_ROUTER,
        _ => 0,
    }
}

//! Rules for responders, with their port groups and levels, numbered as they are added.
//!
//! Virtual fabrics add theirs first, then the QoS policy: the order is their precedence.

use std::collections::HashMap;

use ib_mad::types::Guid;
use sa_proto::snapshot::{PortGroup, QosLevel, QosRule, VirtualFabric};

use crate::fabric::PolicyRows;
use sm_config::ranges::Ranges;

/// Rules and what they refer to, as rows of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Port groups, by number.
    pub groups: Vec<PortGroup>,
    /// Levels, by number.
    pub levels: Vec<QosLevel>,
    /// Rules, by precedence.
    pub rules: Vec<QosRule>,
    /// Virtual fabrics, by position in their file.
    pub virtual_fabrics: Vec<VirtualFabric>,
    /// Warnings for operators, such as names that match nothing.
    pub warnings: Vec<String>,
    /// Groups by content, so that equal ones share a number.
    known: HashMap<(String, u8, Vec<Guid>), u32>,
}

impl RuleSet {
    /// Returns all rows without the warnings.
    pub fn move_to(self, rows: &mut PolicyRows) {
        rows.port_groups = self.groups;
        rows.qos_levels = self.levels;
        rows.qos_rules = self.rules;
        rows.virtual_fabrics = self.virtual_fabrics;
    }

    /// Adds a group, or finds an equal one. `ports` may be in any order.
    pub fn group(&mut self, name: &str, node_types: u8, mut ports: Vec<Guid>) -> u32 {
        ports.sort_unstable();
        ports.dedup();
        let groups = &mut self.groups;
        *self.known.entry((name.to_owned(), node_types, ports.clone())).or_insert_with(|| {
            let index = groups.len() as u32;
            groups.push(PortGroup { index, name: name.to_owned(), node_types, ports });
            index
        })
    }

    /// Adds a level; its number is given here.
    pub fn level(&mut self, level: QosLevel) -> u32 {
        let index = self.levels.len() as u32;
        self.levels.push(QosLevel { index, ..level });
        index
    }

    /// Adds a rule behind all others; its number is given here.
    pub fn rule(&mut self, rule: QosRule) {
        let index = self.rules.len() as u32;
        self.rules.push(QosRule { index, ..rule });
    }
}

/// Ranges of 16-bit numbers, as in rows. Numbers beyond 16 bits are left out.
pub(super) fn narrow(ranges: &Ranges) -> Vec<(u16, u16)> {
    let last = u64::from(u16::MAX);
    let within = ranges.iter().filter(|&(first, _)| first <= last);
    within.map(|(first, end)| (first as u16, end.min(last) as u16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_groups_are_one() {
        let mut rows = RuleSet::default();
        let first = rows.group("a", 0, vec![Guid(2), Guid(1), Guid(2)]);
        assert_eq!(rows.group("a", 0, vec![Guid(1), Guid(2)]), first);
        assert_ne!(rows.group("b", 0, vec![Guid(1), Guid(2)]), first);
        assert_eq!(rows.groups[0].ports, [Guid(1), Guid(2)]);
    }
}

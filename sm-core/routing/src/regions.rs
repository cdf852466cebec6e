//! Breadth-first search over switches from several start switches.

use std::collections::VecDeque;

use super::Topology;

/// The result of a breadth-first search.
pub(super) struct Regions {
    /// All switches, in the order in which they were reached.
    pub(super) order: Vec<u16>,
    /// By switch: the start switch from which it was reached; equal for all switches of a region.
    pub(super) starts: Vec<u16>,
    /// By switch: hops from its start switch.
    pub(super) depths: Vec<u16>,
}

/// Marks a switch that has not been reached.
const NONE: u16 = u16::MAX;

impl Regions {
    /// Searches from each of `starts` that no earlier one has reached, over links for which `joins`
    /// returns true. Every switch must be among `starts`.
    pub(super) fn find(
        topology: &Topology,
        starts: impl IntoIterator<Item = u16>,
        joins: impl Fn(u16, u16) -> bool,
    ) -> Self {
        let switches = topology.switch_count();
        let order = Vec::with_capacity(switches);
        let mut found = Self { order, starts: vec![NONE; switches], depths: vec![0; switches] };
        let mut queue = VecDeque::new();
        for start in starts {
            if found.starts[usize::from(start)] != NONE {
                continue;
            }
            found.starts[usize::from(start)] = start;
            queue.push_back(start);
            while let Some(switch) = queue.pop_front() {
                found.order.push(switch);
                for link in topology.links(switch) {
                    let peer = usize::from(link.peer);
                    if found.starts[peer] == NONE && joins(switch, link.peer) {
                        found.starts[peer] = start;
                        found.depths[peer] = found.depths[usize::from(switch)] + 1;
                        queue.push_back(link.peer);
                    }
                }
            }
        }
        found
    }
}

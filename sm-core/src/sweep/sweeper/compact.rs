//! Compacts the fabric when most known nodes are gone. Nodes get new indices; the routing in force
//! and the multicast trees are converted to them.

use std::collections::HashMap;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::fabric::{Switch, SwitchIndex};

impl Sweeper {
    /// Removes absent nodes from the fabric.
    pub(super) fn compact_fabric(&mut self) {
        let guid = |(index, switch): (SwitchIndex, &Switch)| {
            (index, self.subnet.fabric.node(switch.node).guid)
        };
        let guids: HashMap<SwitchIndex, Guid> = self.subnet.fabric.switches().map(guid).collect();
        self.subnet.fabric = std::mem::take(&mut self.subnet.fabric).compacted();
        let renumbered = |old: SwitchIndex| {
            let node = self.subnet.fabric.find(*guids.get(&old)?)?;
            self.subnet.fabric.node(node).switch
        };
        let moved: HashMap<SwitchIndex, SwitchIndex> =
            guids.keys().filter_map(|&old| Some((old, renumbered(old)?))).collect();
        let before = self.subnet.routing.made().cloned();
        let moved = |old: SwitchIndex| moved.get(&old).copied();
        let is_whole = self.subnet.routing.renumber(moved)
            && self.multicast.renumber(before.as_ref(), self.subnet.routing.made(), moved);
        if !is_whole {
            // A tree contains a switch that is gone.
            self.multicast.forget_routing(&mut self.subnet);
        }
    }
}

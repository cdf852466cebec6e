//! When most of what was ever found is gone: nodes get other indices. The routing in force and the
//! trees upon it stay, in the new ones.

use std::collections::HashMap;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::fabric::{Switch, SwitchIndex};

impl Sweeper {
    /// Drops what is known of absent nodes.
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
            // It was made of a switch that is gone.
            self.multicast.forget_routing(&mut self.subnet);
        }
    }
}

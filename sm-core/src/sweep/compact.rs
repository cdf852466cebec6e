//! When most of what was ever found is gone: nodes get other indices. The routing in force and the trees
//! upon it stay, in the new ones.

use std::collections::HashMap;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::fabric::{Switch, SwitchIndex};

impl Sweeper {
    /// Drops what is known of absent nodes.
    pub(super) fn compact_fabric(&mut self) {
        let guid =
            |(index, switch): (SwitchIndex, &Switch)| (index, self.fabric.node(switch.node).guid);
        let guids: HashMap<SwitchIndex, Guid> = self.fabric.switches().map(guid).collect();
        self.fabric = std::mem::take(&mut self.fabric).compacted();
        let renumbered = |old: SwitchIndex| {
            let node = self.fabric.find(*guids.get(&old)?)?;
            self.fabric.node(node).switch
        };
        let moved: HashMap<SwitchIndex, SwitchIndex> =
            guids.keys().filter_map(|&old| Some((old, renumbered(old)?))).collect();
        let before = self.router.made().cloned();
        let moved = |old: SwitchIndex| moved.get(&old).copied();
        let is_whole = self.router.renumber(moved)
            && self.multicast.renumber(before.as_ref(), self.router.made(), moved);
        if !is_whole {
            // It was made of a switch that is gone.
            self.forget_routing();
        }
    }
}

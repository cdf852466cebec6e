//! Sizes of the multicast tables of switches, and the reports about tables that are too small.
//!
//! A switch may report the end of its table. If a block can be neither read nor written, the table
//! counts as full from this block on, because its contents are unknown.

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::MFT_BLOCK_LEN;
use tracing::{info, warn};

use super::Multicast;
use super::job::Group;
use crate::fabric::{NodeIndex, SwitchIndex};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::report::LINES_MAX;
use crate::sweep::subnet::routing::active::ActiveRouting;
use sm_routing::multicast::Room;

impl Multicast {
    /// The table sizes of switches; reports those whose table is too small for these groups.
    pub(super) fn multicast_room(
        &mut self,
        subnet: &mut Subnet,
        made: &ActiveRouting,
        groups: &[Group],
    ) -> Room {
        let stated =
            |&index: &SwitchIndex| subnet.fabric.switch(index).switch_info().multicast_fdb_cap();
        let stated = Room(made.switches().iter().map(stated).collect());
        if let Some(last) = groups.last() {
            self.report_short_switches(subnet, made, &stated, last.mlid);
        }
        if self.closed.is_empty() {
            return stated;
        }
        let capacity = |(&index, &stated): (&SwitchIndex, &u16)| {
            let node = subnet.fabric.node(subnet.fabric.switch(index).node);
            let closed = self.closed.get(&node.guid);
            closed.map_or(stated, |block| stated.min(block.saturating_mul(MFT_BLOCK_LEN as u16)))
        };
        Room(made.switches().iter().zip(stated.0.iter()).map(capacity).collect())
    }

    fn report_short_switches(
        &mut self,
        subnet: &mut Subnet,
        made: &ActiveRouting,
        room: &Room,
        last: Lid,
    ) {
        if room.class(last).is_none() {
            return;
        }
        let mut fresh = Vec::new();
        let is_known = |guid: &Guid| subnet.fabric.find(*guid).is_some();
        self.short.0.retain(|guid, _| is_known(guid));
        for ((number, &index), &capacity) in (0..).zip(made.switches()).zip(room.0.iter()) {
            if !room.is_barred(number, last) {
                continue;
            }
            let node = subnet.fabric.switch(index).node;
            let is_new = self.short.note(subnet.fabric.node(node).guid, capacity);
            fresh.extend(subnet.fabric.ports_of(node).next().filter(|_| is_new));
        }
        for &port in fresh.iter().take(LINES_MAX) {
            warn!(
                "{}: multicast table too small for all MLIDs in use; trees avoid it, and members \
                 behind it are not reached",
                subnet.fabric.describe(port)
            );
        }
    }

    /// A switch did not accept a block. If its contents are unknown and it has failed for some
    /// time, trees avoid the switch from now on.
    pub(super) fn close_switch(&mut self, subnet: &mut Subnet, index: SwitchIndex) {
        let Some(block) = subnet.fabric.switch(index).mft.closed_from() else { return };
        let node = subnet.fabric.switch(index).node;
        let guid = subnet.fabric.node(node).guid;
        if self.closed.insert(guid, block).is_some() {
            return;
        }
        if self.closed.len() <= LINES_MAX {
            warn!("{}", subnet.closed_line(node, block));
        }
    }

    /// Trees may use switches again that accepted the block, were reset, or are gone.
    pub(super) fn reopen_switches(&mut self, subnet: &mut Subnet) {
        let fabric = &subnet.fabric;
        self.closed.retain(|&guid, block| {
            let node = fabric.find(guid);
            let switch = node.and_then(|node| fabric.node(node).switch);
            let from = switch.and_then(|switch| fabric.switch(switch).mft.closed_from());
            *block = from.unwrap_or(*block);
            if from.is_none() {
                let name = node.map(|node| fabric.node(node).name()).unwrap_or_default();
                info!("multicast trees use switch '{name}' {guid} again");
            }
            from.is_some()
        });
    }

    /// Switches that trees avoid because they accept no table, as text.
    pub(super) fn closed_warning(&self) -> Option<String> {
        let count = self.closed.len();
        (count > 0).then(|| {
            format!(
                "multicast tables of {count} switches can be neither read nor set; trees avoid them"
            )
        })
    }
}

impl Subnet {
    fn closed_line(&self, node: NodeIndex, block: u16) -> String {
        let (name, guid) = (self.fabric.node(node).name(), self.fabric.node(node).guid);
        let first = Lid::MULTICAST_FIRST.0 + block * MFT_BLOCK_LEN as u16;
        format!(
            "multicast table of switch '{name}' {guid} can be neither read nor set from MLID \
             {first:#06x} on; trees avoid it until it can, and members behind it are not reached"
        )
    }
}

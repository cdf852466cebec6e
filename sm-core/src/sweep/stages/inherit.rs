//! Reads the tables that another SM left: a new master reads the forwarding tables of switches
//! before it computes its own, so that correct routes and trees stay, and blocks that are already
//! right are not written.
//!
//! Multicast tables are read block by block, each from all switches. A switch that reports the end
//! of its table (SwitchInfo.MulticastFDBTop) is read up to there. The others are read as far as
//! registered groups need it, and until [`GAP_MAX`] consecutive blocks are empty everywhere: MLIDs
//! are assigned from the lowest on, and reading all blocks of all tables would take longer than
//! computing all trees again.

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{CapabilityMask, MFT_BLOCK_LEN, MFT_POSITION_PORTS};

use crate::fabric::{PortIndex, SwitchIndex};
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::tasks::multicast;
use crate::sweep::tasks::multicast::blocks::{block_key, block_modifier, block_number};

/// Blocks of 32 MLIDs that may be empty in all switches before one that is not.
const GAP_MAX: u16 = 4;

/// The stage that reads the tables of another subnet manager. Multicast tables are read block by
/// block.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Inheriting {
    /// The block that is being read.
    pub(in crate::sweep) block: u16,
    /// Consecutive blocks before it that are empty in all switches and that no group needs.
    gap: u16,
}

impl Inheriting {
    /// Reads the next block; `false` after the last. `is_needed`: whether a group needs a later
    /// block.
    pub(in crate::sweep) fn read_next(
        &mut self,
        subnet: &mut Subnet,
        is_needed: impl Fn(u16) -> bool,
    ) -> bool {
        loop {
            let holds = subnet.fabric.switches().any(|(_, switch)| switch.mft.holds(self.block));
            self.gap = if holds || is_needed(self.block) { 0 } else { self.gap + 1 };
            if self.block + 1 >= multicast::BLOCKS_MAX {
                return false;
            }
            self.block += 1;
            self.read(subnet);
            if !subnet.exchange.is_idle() {
                return true;
            }
            if self.gap > GAP_MAX && !subnet.tops_are_beyond(self.block) {
                return false;
            }
        }
    }

    /// Reads the block of all switches.
    pub(in crate::sweep) fn read(&self, subnet: &mut Subnet) {
        if subnet.settings.disable_multicast {
            return;
        }
        for (port, index) in subnet.programmed_switches() {
            let switch = subnet.fabric.switch(index);
            let blocks = switch.switch_info().multicast_fdb_cap().div_ceil(MFT_BLOCK_LEN as u16);
            let is_beyond = match subnet.multicast_top(index) {
                Some(last) => last < Some(self.block),
                None => self.gap > GAP_MAX,
            };
            if is_beyond || self.block >= blocks.min(multicast::BLOCKS_MAX) {
                continue;
            }
            let ports = subnet.fabric.node(switch.node).port_count;
            for position in 0..=ports / MFT_POSITION_PORTS as u8 {
                // Until it is read, it may hold any entries.
                subnet.fabric.mft_mut(index).doubt((self.block, position));
                let number = block_number((self.block, position));
                subnet.exchange.push(Request::block(Kind::Multicast, port, number));
            }
        }
    }
}

impl Subnet {
    /// Switches with tables, each with a port by which it is queried.
    pub(in crate::sweep) fn programmed_switches(&self) -> Vec<(PortIndex, SwitchIndex)> {
        let switches = self.fabric.switches();
        let programmed =
            switches.filter(|(_, switch)| switch.switch_info().linear_fdb_top().is_unicast());
        programmed
            .filter_map(|(index, switch)| Some((self.fabric.ports_of(switch.node).next()?, index)))
            .collect()
    }

    /// Whether a switch reports a multicast table that extends beyond a block.
    fn tops_are_beyond(&self, block: u16) -> bool {
        let top = |(_, index): (PortIndex, SwitchIndex)| self.multicast_top(index);
        self.programmed_switches().into_iter().filter_map(top).any(|last| last > Some(block))
    }

    /// The last block of a switch's multicast table, if the switch reports it; `Some(None)` if the
    /// table is empty.
    fn multicast_top(&self, index: SwitchIndex) -> Option<Option<u16>> {
        let switch = self.fabric.switch(index);
        let port = self.fabric.ports_of(switch.node).next()?;
        let mask = self.fabric.port(port).port_info().capability_mask();
        if !mask.contains(CapabilityMask::IS_MULTICAST_FDB_TOP_SUPPORTED) {
            return None;
        }
        let info = switch.switch_info();
        let top = info.multicast_fdb_top();
        // A top at the maximum, as this SM sets it, does not show how much is used.
        if top.0
            >= Lid::MULTICAST_FIRST.0.saturating_add(info.multicast_fdb_cap().saturating_sub(1))
        {
            return None;
        }
        match top.0.checked_sub(Lid::MULTICAST_FIRST.0) {
            Some(last) => Some(Some(last / MFT_BLOCK_LEN as u16)),
            // 0xBFFF means none. No master sets 0, the initial value.
            None => (top.0 == Lid::MULTICAST_FIRST.0 - 1).then_some(None),
        }
    }
}

impl RequestOwner for Inheriting {
    type Kind = kinds::Inheritance;

    fn encode(&self, _: &Subnet, owned: OwnedRequest<Self::Kind>, _: &mut [u8; 64]) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Inheritance::Forwarding => Some(request.block.into()),
            kinds::Inheritance::Multicast => Some(block_modifier(request)),
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, .. } = owned;
        let Some(index) = subnet.fabric.node_of(request.port()).switch else { return };
        match kind {
            kinds::Inheritance::Forwarding => {
                subnet.fabric.lft_mut(index).learn(request.block, data);
            }
            kinds::Inheritance::Multicast => {
                subnet.fabric.mft_mut(index).learn(block_key(request), data);
            }
        }
    }
}

//! What another subnet manager left: a new master reads the forwarding tables of switches before it
//! makes its own, so that routes and trees which are still right stay as they are, and nothing is
//! written that is there already.
//!
//! Of multicast tables a block is read of all switches, then the next. A switch that says where its table
//! ends (SwitchInfo.MulticastFDBTop) is read up to there. The others are read as long as groups of ours
//! need it, and no more than [`GAP_MAX`] blocks in a row are empty everywhere: MLIDs are given out from
//! the lowest on, and to read all blocks of all tables would take longer than to plant all trees anew.

use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{CapabilityMask, MFT_BLOCK_LEN, MFT_POSITION_PORTS};

use super::multicast::block_key;
use super::{Phase, Sweeper, multicast};
use crate::fabric::{PortIndex, SwitchIndex};
use crate::smp::{Kind, Request};

/// Blocks of 32 MLIDs that may be empty in all switches before one that is not.
const GAP_MAX: u16 = 4;

impl Sweeper {
    /// Begins to read tables, if this is our first sweep as master and they are to be kept. A switch
    /// that nobody has programmed says so by the top of its table.
    pub(super) fn begin_inheriting(&mut self, now: Instant) {
        if !self.subnet.first_as_master {
            return self.begin_routing(now);
        }
        self.enter(now, Phase::Inherit);
        let reassigns = self.settings.reassign_lfts || self.settings.reassign_lids;
        if !reassigns {
            for (port, index) in self.programmed_switches() {
                let top = self.fabric.switch(index).switch_info().linear_fdb_top();
                self.router.inherits = true;
                for block in 0..=top.0 / 64 {
                    self.exchange.push(Request::block(Kind::Forwarding, port, block));
                }
            }
        }
        self.read_multicast_block(0);
    }

    /// Goes on to the next block of multicast tables, or to routing.
    pub(super) fn inherit_more(&mut self, now: Instant) {
        loop {
            let block = self.sweep.multicast_block;
            let holds = self.fabric.switches().any(|(_, switch)| switch.mft.holds(block));
            let needed = holds || self.multicast.needs_beyond(block);
            self.sweep.multicast_gap = if needed { 0 } else { self.sweep.multicast_gap + 1 };
            if block + 1 >= multicast::BLOCKS_MAX {
                break;
            }
            self.read_multicast_block(block + 1);
            if !self.exchange.is_idle() {
                return self.enter(now, Phase::Inherit);
            }
            if self.sweep.multicast_gap > GAP_MAX && !self.tops_are_beyond(block + 1) {
                break;
            }
        }
        self.judge_left(now);
        self.keep_inherited_trees(now);
        self.begin_routing(now);
    }

    /// Switches that have tables, each with a port by which it is asked.
    fn programmed_switches(&self) -> Vec<(PortIndex, SwitchIndex)> {
        let switches = self.fabric.switches();
        let programmed =
            switches.filter(|(_, switch)| switch.switch_info().linear_fdb_top().is_unicast());
        programmed
            .filter_map(|(index, switch)| Some((self.fabric.ports_of(switch.node).next()?, index)))
            .collect()
    }

    /// Whether a switch says that its multicast table goes beyond a block.
    fn tops_are_beyond(&self, block: u16) -> bool {
        let top = |(_, index): (PortIndex, SwitchIndex)| self.multicast_top(index);
        self.programmed_switches().into_iter().filter_map(top).any(|last| last > Some(block))
    }

    /// The last block of a switch's multicast table, if the switch says that; `Some(None)` if it has none.
    fn multicast_top(&self, index: SwitchIndex) -> Option<Option<u16>> {
        let switch = self.fabric.switch(index);
        let port = self.fabric.ports_of(switch.node).next()?;
        let mask = self.fabric.port(port).port_info().capability_mask();
        if !mask.contains(CapabilityMask::IS_MULTICAST_FDB_TOP_SUPPORTED) {
            return None;
        }
        let info = switch.switch_info();
        let top = info.multicast_fdb_top();
        // One that was opened to its full length, as we do, says nothing of what is used.
        if top.0
            >= Lid::MULTICAST_FIRST.0.saturating_add(info.multicast_fdb_cap().saturating_sub(1))
        {
            return None;
        }
        match top.0.checked_sub(Lid::MULTICAST_FIRST.0) {
            Some(last) => Some(Some(last / MFT_BLOCK_LEN as u16)),
            // 0xBFFF is none. Another is nothing that a master sets: 0 is what a switch begins with.
            None => (top.0 == Lid::MULTICAST_FIRST.0 - 1).then_some(None),
        }
    }

    fn read_multicast_block(&mut self, block: u16) {
        self.sweep.multicast_block = block;
        if self.settings.disable_multicast {
            return;
        }
        for (port, index) in self.programmed_switches() {
            let switch = self.fabric.switch(index);
            let blocks = switch.switch_info().multicast_fdb_cap().div_ceil(MFT_BLOCK_LEN as u16);
            let is_beyond = match self.multicast_top(index) {
                Some(last) => last < Some(block),
                None => self.sweep.multicast_gap > GAP_MAX,
            };
            if is_beyond || block >= blocks.min(multicast::BLOCKS_MAX) {
                continue;
            }
            let ports = self.fabric.node(switch.node).port_count;
            for position in 0..=ports / MFT_POSITION_PORTS as u8 {
                // Should nobody answer, it may hold anything.
                self.fabric.mft_mut(index).doubt((block, position));
                let number = multicast::block_number((block, position));
                self.exchange.push(Request::block(Kind::Multicast, port, number));
            }
        }
    }

    /// A block of a switch's table was read.
    pub(super) fn forwarding(&mut self, request: Request, data: &[u8; 64]) {
        if let Some(index) = self.fabric.node_of(request.port()).switch {
            self.fabric.lft_mut(index).learn(request.block, data);
        }
    }

    /// A block of a switch's multicast table was read.
    pub(super) fn multicast_read(&mut self, request: Request, data: &[u8; 64]) {
        if let Some(index) = self.fabric.node_of(request.port()).switch {
            self.fabric.mft_mut(index).learn(block_key(request), data);
        }
    }
}

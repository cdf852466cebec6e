//! What another subnet manager left: a new master reads the forwarding tables of switches before it
//! makes its own, so that routes and trees which are still right stay as they are, and nothing is
//! written that is there already.
//!
//! Of multicast tables a block is read of all switches, then the next, up to the first that no switch
//! forwards anything by and no group of ours needs: MLIDs are given out from the lowest on.

use std::time::Instant;

use ib_mad::wire::attribute::{MFT_BLOCK_LEN, MFT_POSITION_PORTS};

use super::multicast::block_key;
use super::{Phase, Sweeper, multicast};
use crate::fabric::{PortIndex, SwitchIndex};
use crate::smp::{Kind, Request};

impl Sweeper {
    /// Begins to read tables, if this is our first sweep as master and they are to be kept. A switch
    /// that nobody has programmed says so by the top of its table.
    pub(super) fn begin_inheriting(&mut self, now: Instant) {
        if !self.first_as_master {
            return self.begin_routing(now);
        }
        self.enter(now, Phase::Inherit);
        let reassigns = self.settings.reassign_lfts || self.settings.reassign_lids;
        if !reassigns {
            for (port, index) in self.programmed_switches() {
                let top = self.fabric.switch(index).switch_info().linear_fdb_top();
                self.inherits = true;
                for block in 0..=top.0 / 64 {
                    self.exchange.push(Request::block(Kind::Forwarding, port, block));
                }
            }
        }
        self.read_multicast_block(0);
    }

    /// Goes on to the next block of multicast tables, or to routing.
    pub(super) fn inherit_more(&mut self, now: Instant) {
        let block = self.sweep.multicast_block;
        let holds = self.fabric.switches().any(|(_, switch)| switch.mft.holds(block));
        if holds || self.multicast.needs_beyond(block) {
            self.read_multicast_block(block + 1);
            if !self.exchange.is_idle() {
                return self.enter(now, Phase::Inherit);
            }
        }
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

    fn read_multicast_block(&mut self, block: u16) {
        self.sweep.multicast_block = block;
        if self.settings.disable_multicast {
            return;
        }
        for (port, index) in self.programmed_switches() {
            let switch = self.fabric.switch(index);
            let blocks = switch.switch_info().multicast_fdb_cap().div_ceil(MFT_BLOCK_LEN as u16);
            if block >= blocks.min(multicast::BLOCKS_MAX) {
                continue;
            }
            let ports = self.fabric.node(switch.node).port_count;
            for position in 0..=ports / MFT_POSITION_PORTS as u8 {
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

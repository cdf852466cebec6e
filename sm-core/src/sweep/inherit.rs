//! What another subnet manager left: a new master reads the forwarding tables of switches before it
//! makes its own, so that routes which are still right stay as they are, and nothing is written that
//! is there already.

use std::time::Instant;

use super::{Phase, Sweeper};
use crate::smp::{Kind, Request};

impl Sweeper {
    /// Begins to read tables, if this is our first sweep as master and they are to be kept. A switch
    /// that nobody has programmed says so by the top of its table.
    pub(super) fn begin_inheriting(&mut self, now: Instant) {
        let reassigns = self.settings.reassign_lfts || self.settings.reassign_lids;
        if !self.first_as_master || reassigns {
            return self.begin_routing(now);
        }
        self.enter(now, Phase::Inherit);
        let switches: Vec<_> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            let switch = self.fabric.switch(index);
            let top = switch.switch_info().linear_fdb_top();
            let port = self.fabric.ports_of(switch.node).next();
            let (true, Some(port)) = (top.is_unicast(), port) else { continue };
            self.inherits = true;
            for block in 0..=top.0 / 64 {
                self.exchange.push(Request::block(Kind::Forwarding, port, block));
            }
        }
    }

    /// A block of a switch's table was read.
    pub(super) fn forwarding(&mut self, request: Request, data: &[u8; 64]) {
        if let Some(index) = self.fabric.node_of(request.port()).switch {
            self.fabric.lft_mut(index).learn(request.block, data);
        }
    }
}

//! The stage that reads the tables of another subnet manager: starts and continues it.

use std::time::Instant;

use super::Sweeper;
use crate::smp::{Kind, Request};
use crate::sweep::stages::Stage;
use crate::sweep::stages::inherit::Inheriting;

impl Sweeper {
    /// Starts to read tables in the first sweep as master, if they are kept. The top of a switch's
    /// table shows whether it was ever programmed.
    pub(super) fn begin_inheriting(&mut self, now: Instant) {
        if !self.subnet.state.first_as_master {
            return self.begin_routing(now);
        }
        let reassigns = self.subnet.settings.reassign_lfts || self.subnet.settings.reassign_lids;
        if !reassigns {
            for (port, index) in self.subnet.programmed_switches() {
                let top = self.subnet.fabric.switch(index).switch_info().linear_fdb_top();
                self.subnet.routing.has_inherited = true;
                for block in 0..=top.0 / 64 {
                    self.subnet.exchange.push(Request::block(Kind::Forwarding, port, block));
                }
            }
        }
        let inheriting = Inheriting::default();
        inheriting.read(&mut self.subnet);
        self.enter(now, Stage::Inherit(inheriting));
    }

    /// Continues with the next block of multicast tables, or with routing.
    pub(super) fn inherit_more(&mut self, now: Instant, mut inheriting: Inheriting) {
        let multicast = &self.multicast;
        if inheriting.read_next(&mut self.subnet, |block| multicast.needs_beyond(block)) {
            return self.enter(now, Stage::Inherit(inheriting));
        }
        self.reregistration.tables_read(&mut self.subnet, now);
        self.multicast.keep_inherited_trees(&mut self.subnet, now);
        self.begin_routing(now);
    }
}

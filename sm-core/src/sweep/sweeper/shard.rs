//! Distribution of clients over responders, which the caller sets.

use std::time::Instant;

use ib_mad::types::Sl;

use super::Sweeper;
use crate::manage::shard::SaLid;
use crate::sweep::subnet::sharding::Sharding;

impl Sweeper {
    /// Turns sharding on or off.
    pub fn set_sharding(&mut self, sharding: Option<Sharding>) {
        self.subnet.shards.sharding = sharding;
    }

    /// Assigns clients to these SA LIDs and moves some of those that are assigned to others. Call
    /// it every second, whether or not the SA LIDs changed. Returns the number of clients moved.
    pub fn spread_clients(&mut self, now: Instant, sa_lids: &[SaLid]) -> usize {
        let Some(sharding) = self.subnet.shards.sharding else { return 0 };
        if !self.subnet.election.is_master() {
            self.subnet.shards.clear();
            return 0;
        }
        if !self.sweep.is_idle() || !self.subnet.state.up {
            return 0;
        }
        let moved = self.subnet.spread_clients(sharding, sa_lids);
        self.advance(now);
        moved
    }

    /// Number of clients that query a responder.
    pub fn sharded(&self) -> usize {
        self.subnet.shards.spread.len()
    }

    /// Service level for packets from hosts to responders: `sm_sl`, unless an SL-to-VL table drops
    /// it. Routing engines may change it for each path.
    pub fn sl_between_hosts(&self) -> Option<Sl> {
        self.subnet.sl_between_hosts()
    }
}

//! Writing multicast tables to switches: first what clears branches, then what adds some.
//!
//! Until the last block is written, switches hold branches of a tree before and of the one that takes
//! its place. Both together can be a loop, and multicast packets have no hop limit. So an entry gets
//! no new ports while any switch of the new tree may still forward its MLID by ports that are to go: a
//! block that does both is written twice, any other once. Other MLIDs of the same block do not wait
//! for it.
//!
//! Switches that are no part of the new tree keep nobody waiting, whatever they may hold: while those of
//! the tree forward to one another alone, a packet that got there from outside does not come back.
//! A switch whose block could be neither read nor written may hold anything. If it takes it in no
//! attempt of a few, it is closed to trees from this block on (`room`), and so no part of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_mad::wire::attribute::MFT_BLOCK_LEN;
use tracing::warn;

use super::super::{Event, LINES_MAX, Sweeper};
use super::{RETRY_DELAY, RETRY_DOUBLINGS};
use crate::smp::{Kind, Request};

/// Bits of a request's block number that are the block of the table; those above are the position.
const BLOCK_BITS: u32 = 12;

impl Sweeper {
    /// Sends blocks that switches are not known to hold as they should, unless a sweep is under way
    /// or requests are on the wire: then it is done when these are.
    pub(in crate::sweep) fn write_multicast(&mut self, now: Instant) {
        if self.multicast.made.is_none() && !self.multicast.membership.is_empty() {
            // Trees are about to be planted; until then none of what stands is taken away.
            return;
        }
        if !self.is_idle() {
            self.multicast.retry = Some(now + RETRY_DELAY);
            return;
        }
        self.multicast.retry = None;
        let switches: Vec<_> = self.fabric.switches().map(|(index, _)| index).collect();
        switches.into_iter().for_each(|index| self.fabric.mft_mut(index).forget_sent());
        self.multicast.adds = self.send_blocks();
    }

    /// Adds the branches that waited for others to be cleared. Those of which that failed wait on.
    pub(in crate::sweep) fn add_branches(&mut self, now: Instant) {
        if std::mem::take(&mut self.multicast.adds) && self.send_blocks() {
            let due = now + self.multicast_delay();
            self.multicast.retry.get_or_insert(due);
        }
    }

    /// Sends blocks that were not sent since the last attempt began. Whether some entries are held
    /// back.
    fn send_blocks(&mut self) -> bool {
        // What could not be read may be a tree that stays for a while, as others do.
        let may_stay = self.multicast.inherited_until.is_some();
        let (mut short, mut stale) = (BTreeSet::new(), Vec::new());
        // By block the entries, a bit each, that switches in their trees may not have cleared of what
        // is to go.
        let mut strays: BTreeMap<u16, u32> = BTreeMap::new();
        for (index, switch) in self.fabric.switches() {
            let Some(port) = self.fabric.ports_of(switch.node).next() else { continue };
            let blocks = switch.switch_info().multicast_fdb_cap().div_ceil(MFT_BLOCK_LEN as u16);
            let is_closed = self.multicast.closed.contains_key(&self.fabric.node(switch.node).guid);
            for key in switch.mft.stale_blocks() {
                if may_stay && !is_closed && switch.mft.is_cleared_blindly(key) {
                    continue;
                }
                if key.0 >= blocks {
                    short.insert(port);
                    continue;
                }
                *strays.entry(key.0).or_default() |=
                    switch.mft.strays(key) & switch.mft.in_use(key.0);
                stale.push((index, port, key));
            }
        }
        for port in short.into_iter().take(LINES_MAX) {
            warn!("{} has no room for all MLIDs in use", self.fabric.describe(port));
        }
        for &(index, port, key) in &stale {
            let mft = self.fabric.mft_mut(index);
            if mft.sent(key).is_none() && mft.send(key, strays[&key.0]) {
                self.exchange.push(Request::block(Kind::SetMulticast, port, block_number(key)));
            }
        }
        let held_back = |&(index, _, key): &(_, _, _)| {
            let mft = &self.fabric.switch(index).mft;
            mft.sent(key) != Some(mft.block(key))
        };
        stale.iter().any(held_back)
    }

    fn multicast_delay(&self) -> Duration {
        RETRY_DELAY * (1 << self.multicast.attempts.min(RETRY_DOUBLINGS))
    }

    pub(in crate::sweep) fn multicast_set(&mut self, request: Request, data: &[u8; 64]) {
        let Some(index) = self.fabric.node_of(request.port()).switch else { return };
        let mft = self.fabric.mft_mut(index);
        let is_taken = mft.sent(block_key(request)) == Some(data);
        mft.acknowledge(block_key(request), data);
        if is_taken {
            self.multicast.attempts = 0;
        }
        self.multicast.news = true;
    }

    /// A block was not taken: it is sent again later.
    pub(in crate::sweep) fn multicast_lost(
        &mut self,
        now: Instant,
        request: Request,
        why: impl std::fmt::Display,
    ) {
        if let Some(index) = self.fabric.node_of(request.port()).switch {
            self.fabric.mft_mut(index).lose(block_key(request));
            self.close_switch(index);
        }
        if self.multicast.retry.is_none() {
            warn!("{} of {}: {why}", request.kind.name(), self.place(request.port()));
            self.multicast.retry = Some(now + self.multicast_delay());
        }
    }

    /// Tells the caller what was written, once nothing is on the wire.
    pub(in crate::sweep) fn tell_multicast(&mut self) {
        if std::mem::take(&mut self.multicast.news) {
            self.emit(Event::MulticastWritten);
        }
    }

    /// Sends again what was not taken, if it is time.
    pub(in crate::sweep) fn retry_multicast(&mut self, now: Instant) {
        // What is due again is handed out when the caller next asks for it.
        self.multicast.replant.take_if(|due| now >= *due);
        self.clear_inherited_trees(now);
        if self.sweep.is_idle() && self.multicast.retry.is_some_and(|due| now >= due) {
            self.multicast.attempts += 1;
            self.write_multicast(now);
        }
    }

    pub(in crate::sweep) fn multicast_due(&self) -> Option<Instant> {
        let replant = self.multicast.replant.filter(|_| self.multicast.at_work.is_none());
        [self.multicast.retry, replant, self.multicast.inherited_until].into_iter().flatten().min()
    }
}

/// The number that stands for a block and position in a request.
pub(in crate::sweep) fn block_number((block, position): (u16, u8)) -> u16 {
    block | u16::from(position) << BLOCK_BITS
}

/// Block and position that a request is about.
pub(in crate::sweep) fn block_key(request: Request) -> (u16, u8) {
    (request.block & ((1 << BLOCK_BITS) - 1), (request.block >> BLOCK_BITS) as u8)
}

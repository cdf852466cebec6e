//! Writes multicast tables to switches: first the blocks that clear branches, then those that add
//! branches.
//!
//! Until the last block is written, switches hold branches of the old tree and of the new one. Both
//! together can be a loop, and multicast packets have no hop limit. So an entry gets no new ports
//! while any switch of the new tree may still forward its MLID by ports to be cleared: a block that
//! does both is written twice, any other once. Other MLIDs of the same block do not wait for it.
//!
//! Switches outside the new tree delay no other write, regardless of what they hold: while those of
//! the tree forward only to one another, a packet that left the tree does not come back. The
//! contents of a block that could be neither read nor written are unknown. If the switch does not
//! accept the block within a few attempts, trees avoid the switch from this block on (`room`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_mad::wire::attribute::MFT_BLOCK_LEN;
use tracing::warn;

use super::blocks::{block_key, block_number};
use super::{Multicast, RETRY_DELAY, RETRY_DOUBLINGS};
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::report::LINES_MAX;

impl Multicast {
    /// Sends blocks that switches may not hold; later if requests are outstanding or a sweep is
    /// under way (`is_between` is false).
    pub(in crate::sweep) fn write_blocks(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        is_between: bool,
    ) {
        if self.made.is_none() && !self.membership.is_empty() {
            // New trees are about to be computed; until then no branch is removed.
            return;
        }
        if !is_between || !subnet.exchange.is_idle() {
            self.retry = Some(now + RETRY_DELAY);
            return;
        }
        self.retry = None;
        let switches: Vec<_> = subnet.fabric.switches().map(|(index, _)| index).collect();
        switches.into_iter().for_each(|index| subnet.fabric.mft_mut(index).forget_sent());
        self.adds = self.send_blocks(subnet);
    }

    /// Adds branches that waited for others to be cleared. Branches whose predecessors failed keep
    /// waiting.
    pub(super) fn add_branches(&mut self, subnet: &mut Subnet, now: Instant) {
        if std::mem::take(&mut self.adds) && self.send_blocks(subnet) {
            let due = now + self.multicast_delay();
            self.retry.get_or_insert(due);
        }
    }

    /// Sends blocks that were not sent since the last attempt began; returns whether entries are
    /// held back.
    fn send_blocks(&mut self, subnet: &mut Subnet) -> bool {
        // A block that could not be read may contain an inherited tree, which stays for a while.
        let may_stay = self.inherited_until.is_some();
        let (mut short, mut stale) = (BTreeSet::new(), Vec::new());
        // By block: entries (one bit each) that a switch of the new tree may not have cleared yet.
        let mut strays: BTreeMap<u16, u32> = BTreeMap::new();
        for (index, switch) in subnet.fabric.switches() {
            let Some(port) = subnet.fabric.ports_of(switch.node).next() else { continue };
            let blocks = switch.switch_info().multicast_fdb_cap().div_ceil(MFT_BLOCK_LEN as u16);
            let is_closed = self.closed.contains_key(&subnet.fabric.node(switch.node).guid);
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
            warn!(
                "{}: multicast table too small for all MLIDs in use",
                subnet.fabric.describe(port)
            );
        }
        for &(index, port, key) in &stale {
            let mft = subnet.fabric.mft_mut(index);
            if mft.sent(key).is_none() && mft.send(key, strays[&key.0]) {
                subnet.exchange.push(Request::block(Kind::SetMulticast, port, block_number(key)));
            }
        }
        let held_back = |&(index, _, key): &(_, _, _)| {
            let mft = &subnet.fabric.switch(index).mft;
            mft.sent(key) != Some(mft.block(key))
        };
        stale.iter().any(held_back)
    }

    fn multicast_delay(&self) -> Duration {
        RETRY_DELAY * (1 << self.attempts.min(RETRY_DOUBLINGS))
    }

    pub(super) fn block_set(&mut self, subnet: &mut Subnet, request: Request, data: &[u8; 64]) {
        let Some(index) = subnet.fabric.node_of(request.port()).switch else { return };
        let mft = subnet.fabric.mft_mut(index);
        let is_taken = mft.sent(block_key(request)) == Some(data);
        mft.acknowledge(block_key(request), data);
        if is_taken {
            self.attempts = 0;
        }
        self.news = true;
    }

    /// A block was not taken: it is sent again later.
    pub(super) fn block_lost(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        request: Request,
        why: impl std::fmt::Display,
    ) {
        if let Some(index) = subnet.fabric.node_of(request.port()).switch {
            subnet.fabric.mft_mut(index).lose(block_key(request));
            self.close_switch(subnet, index);
        }
        if self.retry.is_none() {
            warn!("{} of {}: {why}", request.kind.name(), subnet.place(request.port()));
            self.retry = Some(now + self.multicast_delay());
        }
    }

    /// Reports written tables to the caller, once nothing is outstanding.
    pub(super) fn report_written(&mut self, subnet: &mut Subnet) {
        if std::mem::take(&mut self.news) {
            subnet.events.push(Event::MulticastWritten);
        }
    }
}

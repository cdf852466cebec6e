//! Whom end ports are told to ask: MasterSMLID and MasterSMSL, written between sweeps when clients
//! move from one responder to another.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::{Guid, Lid, Sl};
use ib_mad::wire::attribute::{CapabilityMask, CapabilityMask2, NodeType};
use tracing::{debug, info};

use super::{Event, Sweeper};
use crate::fabric::PortIndex;
use crate::manage::shard::{Seat, Spread, TakeOver};
use crate::smp::{Kind, Request};

/// Which clients are spread over responders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Percent of the ports that can be.
    pub share: u8,
    /// Whether ports are, too, whose adapters may have virtual functions.
    pub virtualized: bool,
}

/// What is known of sharding.
#[derive(Debug, Default)]
pub(super) struct Shards {
    sharding: Option<Sharding>,
    seats: Vec<Seat>,
    spread: Spread,
    /// Whether ports were told anew since the caller was.
    news: bool,
}

impl Shards {
    /// The LID of one port belongs to another now.
    pub(super) fn follow(&mut self, what: TakeOver) {
        let seat = self.seats.iter_mut().find(|seat| seat.port == what.old);
        seat.into_iter().for_each(|seat| seat.port = what.spare);
    }
}

impl Sweeper {
    /// Turns sharding on.
    pub fn set_sharding(&mut self, sharding: Option<Sharding>) {
        self.shards.sharding = sharding;
    }

    /// Spreads clients over these seats from now on. Call it every second, whether they changed or
    /// not: each time some clients are told anew. How many were.
    pub fn spread_clients(&mut self, now: Instant, seats: &[Seat]) -> usize {
        let Some(sharding) = self.shards.sharding else { return 0 };
        if !self.election.is_master() {
            self.shards.spread.clear();
            self.shards.seats.clear();
            return 0;
        }
        if !self.sweep.is_idle() || !self.subnet.up {
            return 0;
        }
        self.shards.seats = seats.to_vec();
        let aside = self.set_aside();
        let mut clients: Vec<(Guid, PortIndex)> = self
            .fabric
            .end_ports()
            .filter(|&port| self.is_client(port, &aside, sharding))
            .map(|port| (self.fabric.port(port).guid, port))
            .collect();
        clients.sort_unstable();
        let guids: Vec<Guid> = clients.iter().map(|(guid, _)| *guid).collect();
        let moved = self.shards.spread.advance(&guids, seats, sharding.share);
        for guid in &moved {
            let Ok(at) = guids.binary_search(guid) else { continue };
            let port = clients[at].1;
            if self.wanted_address(port).is_some() {
                self.exchange.push(Request::new(Kind::SetAddress, port));
            }
        }
        if !moved.is_empty() {
            info!("{} ports are told to ask another responder", moved.len());
        }
        self.advance(now);
        moved.len()
    }

    /// Clients that ask a responder.
    pub fn sharded(&self) -> usize {
        self.shards.spread.len()
    }

    /// Gives ports that are about to be addressed for the first time their seats, lest they be told
    /// twice.
    pub(super) fn admit_clients(&mut self) {
        let Some(sharding) = self.shards.sharding else { return };
        if self.shards.seats.is_empty() {
            return;
        }
        let aside = self.set_aside();
        let tenure = self.election.tenure();
        let fresh: Vec<Guid> = self
            .fabric
            .end_ports()
            .filter(|&port| self.fabric.port(port).told_in != tenure)
            .filter(|&port| self.is_client(port, &aside, sharding))
            .map(|port| self.fabric.port(port).guid)
            .collect();
        for guid in fresh {
            self.shards.spread.admit(guid, &self.shards.seats, sharding.share);
        }
    }

    /// Ports that always ask the SM itself: its own and those of responders.
    fn set_aside(&self) -> BTreeSet<Guid> {
        let home = self.fabric.home().map(|home| self.fabric.port(home).guid);
        let seats = self.shards.seats.iter().map(|seat| seat.port);
        self.responder_ports().iter().copied().chain(seats).chain(home).collect()
    }

    /// Whether a port's clients may be spread: a channel adapter's, not that of another subnet
    /// manager, and not one whose virtual functions would address the SA by a GRH.
    fn is_client(&self, port: PortIndex, aside: &BTreeSet<Guid>, sharding: Sharding) -> bool {
        let entry = self.fabric.port(port);
        let info = entry.port_info();
        let mask = info.capability_mask();
        let may_be_virtual = mask.contains(CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED)
            && info.capability_mask2().contains(CapabilityMask2::IS_VIRTUALIZATION_SUPPORTED);
        self.fabric.node_of(port).kind == NodeType::Ca
            && !mask.contains(CapabilityMask::IS_SM)
            && (sharding.virtualized || !may_be_virtual)
            && !aside.contains(&entry.guid)
    }

    /// LID and service level by which a port asks the SA.
    pub(super) fn sa_of(&self, port: PortIndex) -> (Lid, Sl) {
        let (lid, sl) = self
            .shard_of(port)
            .unwrap_or_else(|| (self.sm_lid(), Sl::from_low_bits(u16::from(self.settings.sm_sl))));
        (lid, self.engine_sl(port, lid, sl))
    }

    /// LID of the responder that a port asks, and the service level that policy has for it.
    fn shard_of(&self, port: PortIndex) -> Option<(Lid, Sl)> {
        let shards = &self.shards;
        let id = shards.spread.seat_of(self.fabric.port(port).guid)?;
        let seat = shards.seats.iter().find(|seat| seat.id == id)?;
        Some((self.lids.get(seat.port)?.first, self.sl_between_hosts()?))
    }

    /// A service level by which packets get from a host to a responder: the one set for the SM,
    /// unless a map on the way drops it. Routing engines may have a say in it for each path.
    pub fn sl_between_hosts(&self) -> Option<Sl> {
        let usual = Sl::from_low_bits(u16::from(self.settings.sm_sl));
        if !self.settings.qos {
            return Some(usual);
        }
        let tables = &self.qos_tables;
        let passes = |sl: Sl| {
            [&tables.ca, &tables.swe].iter().all(|qos| qos.sl2vl[usize::from(sl.get())] != 15)
        };
        let all = (0..16).map(Sl::from_low_bits);
        std::iter::once(usual).chain(all).find(|&sl| passes(sl))
    }

    /// A port was told between sweeps.
    pub(super) fn client_told(&mut self) {
        self.shards.news |= self.sweep.is_idle() && self.shards.sharding.is_some();
    }

    /// A port could not be told: it is tried again with the next step.
    pub(super) fn client_lost(&mut self, now: Instant, port: PortIndex) {
        debug!("{} was not told whom to ask", self.fabric.describe(port));
        self.client_not_asked(now, port);
        self.shards.spread.forget(self.fabric.port(port).guid);
    }

    /// Tells the caller that ports were told, once nothing is on the wire.
    pub(super) fn tell_shards(&mut self) {
        if std::mem::take(&mut self.shards.news) {
            self.emit(Event::ClientsMoved);
        }
    }
}

//! Whether the fabric can be reached from the SM's port: a master that hears nothing may have been
//! replaced, by a standby that does not hear it.

use std::time::{Duration, Instant};

use ib_mad::packet::Packet;
use ib_mad::types::Lid;
use ib_mad::wire::mad::{MgmtClass, Status};
use ib_mad::wire::smp::Smp;

use super::Sweeper;
use crate::fabric::Fabric;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// What was heard of the fabric.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// When a packet of another node arrived last.
    heard: Option<Instant>,
    /// When the neighbor was asked last.
    asked: Option<Instant>,
    /// When that request was queued, until the next turn of the driver, which sends it.
    pub(super) queued: Option<Instant>,
}

impl Reach {
    /// Records the arrival of an SMP, unless the agent or a program of the own host sent it.
    pub(super) fn note(&mut self, now: Instant, packet: &Packet, fabric: &Fabric) {
        let smp = Smp::of(&packet.mad);
        let is_own = match smp.mgmt_class() {
            // The agent of our own port answers without a hop.
            MgmtClass::SUBN_DIRECTED_ROUTE => smp.hop_count() == 0,
            // Its traps come from the port's own LID, without a link, too.
            _ => is_own_lid(fabric, packet.address.lid),
        };
        if !is_own {
            self.heard = Some(now);
        }
    }
}

/// Whether a LID is one of the SM's port, or may be: that has none yet.
fn is_own_lid(fabric: &Fabric, lid: Lid) -> bool {
    let mut own = fabric.own_ports().map(|port| fabric.port(port).port_info());
    let is_of = |base: Lid, lmc: u8| base.0 >> lmc == lid.0 >> lmc;
    !lid.is_unicast() || own.any(|info| is_of(info.base_lid(), info.lmc()))
}

impl Sweeper {
    /// When an SMP of another node arrived last.
    pub fn heard_fabric(&self) -> Option<Instant> {
        self.reach.heard
    }

    /// Asks the neighbor of the SM's port, in each plane, for its NodeInfo if nothing was heard for
    /// as long as `silence`; one request a plane at a time. Returns when to call this again.
    pub fn probe_fabric(&mut self, now: Instant, silence: Duration) -> Instant {
        let Reach { heard, asked, .. } = self.reach;
        // The last request may be answered until its retries are used up.
        let settings = &self.subnet.settings;
        let timeout = Duration::from_millis(settings.transaction_timeout.into());
        let patience = timeout * (settings.transaction_retries + 1);
        let asked = asked.filter(|asked| heard.is_none_or(|heard| heard < *asked));
        let due = heard.map(|heard| heard + silence);
        let due = due.max(asked.map(|asked| asked + patience + silence)).unwrap_or(now);
        if now < due {
            return due;
        }
        let fabric = &self.subnet.fabric;
        for neighbor in fabric.own_ports().filter_map(|port| fabric.port(port).peer()) {
            (self.reach.asked, self.reach.queued) = (Some(now), Some(now));
            self.subnet.exchange.push(Request::new(Kind::Neighbor, neighbor));
        }
        now + silence
    }
}

/// Any answer shows that the fabric is reached, which was noted when it arrived.
pub(in crate::sweep) struct Probe;

impl RequestOwner for Probe {
    type Kind = kinds::Reach;

    fn encode(&self, _: &Subnet, _: OwnedRequest<kinds::Reach>, _: &mut [u8; 64]) -> Option<u32> {
        Some(0)
    }

    fn answered(&mut self, _: &mut Subnet, _: OwnedRequest<kinds::Reach>, _: &[u8; 64]) {}

    fn refused(&mut self, _: &mut Subnet, _: OwnedRequest<kinds::Reach>, _: Status) {}

    fn silent(&mut self, _: &mut Subnet, _: OwnedRequest<kinds::Reach>) {}
}

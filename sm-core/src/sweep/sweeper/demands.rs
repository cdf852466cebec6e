//! Demands of other subnet managers by Set(SMInfo): where they come from, and how many are granted.
//!
//! Any port can send one, with any GUID in it. The port that it came from counts: the one at the
//! other end of the path that the switches recorded. A source LID proves nothing, since a host can
//! set that of its port.

use std::time::Instant;

use ib_mad::packet::Packet;
use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::attribute::{SmControl, SmInfo, SmState};
use ib_mad::wire::mad::Method;
use ib_mad::wire::smp::{HOPS_MAX, Smp};
use tracing::warn;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::mastership::Standing;
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;

impl Sweeper {
    /// What is known of the sender of a Set(SMInfo). One whose demand would exceed the limit of
    /// their rate counts as unknown.
    pub(super) fn standing_of(&mut self, now: Instant, packet: &Packet) -> Standing {
        let smp = Smp::of(&packet.mad);
        if smp.method() != Method::SET {
            return Standing::Unknown;
        }
        let control = SmControl::from_modifier(smp.attribute_modifier());
        if control == Some(SmControl::Handover)
            && self.subnet.election.state() == SmState::Discovering
        {
            // Nothing is known yet. The election at the end of the discovery decides.
            return Standing::Manager;
        }
        let costs_sweep = matches!(control, Some(SmControl::Handover | SmControl::Discover));
        if costs_sweep && !self.subnet.election.demands.has_room(now) {
            return Standing::Unknown;
        }
        let Some(port) = self.subnet.claimant(packet) else { return Standing::Unknown };
        let (election, fabric) = (&self.subnet.election, &self.subnet.fabric);
        if !election.is_allowed(fabric.port(port).guid) {
            return Standing::Unknown;
        }
        if election.master() == Some(port) {
            return Standing::Polled;
        }
        let Some(sm) = election.manager_at(port) else { return Standing::Unknown };
        if control == Some(SmControl::Handover) {
            let is_merger = election.is_master() && election.own.replaced() != Some(sm.guid);
            let may_hand_over = election.may_hand_over(sm);
            let demands = &mut self.subnet.election.demands;
            if !may_hand_over || is_merger && !demands.has_room_for_merger(now) {
                return Standing::Unknown;
            }
        }
        Standing::Manager
    }

    /// Asks the unknown sender of a Set(SMInfo) for its SMInfo, if it is at the port that it names:
    /// it may have started since the last sweep.
    pub(super) fn ask_back(&mut self, now: Instant, packet: &Packet) {
        if !self.subnet.election.demands.note_unanswered(now) {
            return;
        }
        let origin = self.subnet.origin_of(packet);
        let place = origin.map(|port| self.subnet.fabric.describe(port));
        let place = place.as_deref().unwrap_or("an unknown port");
        if self.subnet.election.demands.admits_line(now) {
            warn!(
                "a Set(SMInfo) from {place} is not answered: no subnet manager is known there by \
                 the GUID that it shows, or not as a master that could hand over, or there were \
                 too many"
            );
        }
        if let Some(port) = self.subnet.claimant(packet) {
            self.subnet.exchange.push(Request::new(Kind::SmInfo, port));
        }
    }

    /// Set(SMInfo) that were not answered since their senders were unknown, or too many.
    pub fn unanswered_demands(&self) -> u64 {
        self.subnet.election.demands.unanswered
    }
}

impl Subnet {
    /// The port that a Set(SMInfo) came from, if it is the one whose GUID it shows.
    fn claimant(&self, packet: &Packet) -> Option<PortIndex> {
        let smp = Smp::of(&packet.mad);
        let info = SmInfo::new(smp.data_bytes()).ok()?;
        let origin = self.origin_of(packet)?;
        (self.fabric.port(origin).guid == info.guid()).then_some(origin)
    }

    /// The port that a request came from, if it came along a directed route. Adapters do not
    /// forward: a path through one was made up by it.
    pub(super) fn origin_of(&self, packet: &Packet) -> Option<PortIndex> {
        let smp = Smp::of(&packet.mad);
        if !smp.is_directed() {
            return None;
        }
        let hops = usize::from(smp.hop_count());
        if hops > HOPS_MAX || smp.dr_slid() != Lid::PERMISSIVE {
            return None;
        }
        // Each node noted the port by which the request arrived.
        let own = self.fabric.port(self.fabric.sm_port()?).node;
        let (mut at, mut arrival) = (own, self.fabric.sm_port()?);
        for (passed, num) in smp.return_path()[1..=hops].iter().rev().enumerate() {
            let leaves = self.fabric.port_of(at, PortNum(*num))?;
            let is_passed = match self.fabric.node(at).switch {
                // A request does not leave a switch by the port that it came by.
                Some(_) => passed == 0 || leaves != arrival,
                None => passed == 0 && self.fabric.is_own_port(leaves),
            };
            let peer = self.fabric.port(leaves).peer().filter(|_| is_passed)?;
            if self.fabric.port(peer).peer() != Some(leaves) {
                return None;
            }
            (at, arrival) = (self.fabric.port(peer).node, peer);
        }
        // A switch is addressed by its port 0.
        match self.fabric.node(at).switch {
            Some(_) => self.fabric.port_of(at, PortNum(0)),
            None => Some(arrival),
        }
    }
}

//! Handover of mastership to an SM with higher precedence, and from one with lower precedence (IBA
//! 14.4.1).
//!
//! A master that loses an election sends Set(SMInfo) HANDOVER. It stays master until that is
//! answered, or until the other SM sends Set(SMInfo) ACKNOWLEDGE; OpenSM only answers. A standby
//! with higher precedence than the master requests the handover by trap 144 with SMPriority.
//! `sweeper::with_copy` has what differs if one SM follows the registry of the other.

use std::time::{Duration, Instant};

use ib_mad::packet::{Address, Carrier, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::attribute::{
    CapabilityMask, LocalChanges, LocalChangesDetails, NodeType, NoticeType, ProducerType,
    SmControl, SmNotice, SmState, TrapNumber,
};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp;
use tracing::{debug, warn};

use crate::fabric::PortIndex;
use crate::smp::kinds;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// A refusal that takes longer delays sweeps as much as silence.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(100);

/// Owner of the requests of handovers, whose state is in [`Handover`].
pub(in crate::sweep) struct HandoverMessages;

impl RequestOwner for HandoverMessages {
    type Kind = kinds::Handover;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        // The other manager accepts an ACKNOWLEDGE only from one that shows Standby.
        let (state, control) = match kind {
            kinds::Handover::HandOver => (SmState::Master, SmControl::Handover),
            kinds::Handover::Acknowledge => (SmState::Standby, SmControl::Acknowledge),
        };
        let m_key = subnet.m_key_of(request, None);
        data[..21].copy_from_slice(&subnet.election.own.shown(state, m_key));
        Some(control as u32)
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, _: &[u8; 64]) {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Handover::HandOver => {
                let offered = subnet.election.handover.offered;
                let place = offered.and_then(|sm| subnet.election.place_of(sm));
                subnet.election.handover.is_accepted = place == Some(request.port());
            }
            kinds::Handover::Acknowledge => {}
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, now } = owned;
        let (name, place) = (request.kind.name(), subnet.place(request.port()));
        warn!("{place} refused {name}: {status}");
        let offered_at = subnet.election.handover.offered_at;
        if offered_at.is_some_and(|since| now >= since + REFUSAL_TIME_MAX) {
            subnet.offer_failed(now, kind, request.port());
        }
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, now } = owned;
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(request.port()));
        subnet.offer_failed(now, kind, request.port());
    }
}

impl Subnet {
    /// Records that a manager did not answer HANDOVER, for which the sweep waited.
    fn offer_failed(&mut self, now: Instant, kind: kinds::Handover, port: PortIndex) {
        if kind == kinds::Handover::HandOver {
            self.election.offers.note_failed(now, self.fabric.port(port).guid);
        }
    }

    /// Requests a handover from the master at `port` by trap, because this SM has higher
    /// precedence; not before this SM's copy of its registry is complete.
    pub(in crate::sweep) fn ask_for_handover(&mut self, port: PortIndex) {
        if !self.election.handover.awaits_copy {
            self.election.handover.asks_master = Some(port);
        }
    }

    /// Encodes the trap that requests a handover, if one is due. It is not repeated: each poll of
    /// that master sends another.
    pub(in crate::sweep) fn write_priority_trap(&mut self, packet: &mut Packet) -> bool {
        let Some((sm_port, master)) =
            self.fabric.sm_port().zip(self.election.handover.asks_master.take())
        else {
            return false;
        };
        let port = self.fabric.port(sm_port);
        let (lid, to) = (port.base_lid(), self.fabric.port(master).base_lid());
        if !lid.is_unicast() || !to.is_unicast() {
            return false;
        }
        let producer = match self.fabric.node_of(sm_port).kind {
            NodeType::Switch => ProducerType::SWITCH,
            NodeType::Router => ProducerType::ROUTER,
            _ => ProducerType::CA,
        };
        let mut details = [0; 54];
        LocalChangesDetails::of_mut(&mut details)
            .set_lid(lid)
            .set_other_local_changes(true)
            .set_capability_mask(port.port_info().capability_mask() | CapabilityMask::IS_SM)
            .set_changes(LocalChanges::SM_PRIORITY);
        let request = smp::Request {
            method: Method::TRAP,
            attribute_id: AttributeId::NOTICE,
            attribute_modifier: 0,
            tid: u64::from(self.election.own.act_count()),
            m_key: 0,
        };
        let mut address = Address::smi(to);
        let mut carrier = Carrier::default();
        if self.own_planes.is_empty() {
            request.write_lid_routed(&mut packet.mad);
        } else {
            // In a planarized fabric LID-routed SMPs may not arrive.
            let Some(route) = self.fabric.route_to(master) else { return false };
            if request.write_directed(&mut packet.mad, route.ports()).is_err() {
                return false;
            }
            address.lid = Lid::PERMISSIVE;
            carrier.plane = route.ports().first().copied().unwrap_or_default();
        }
        SmNotice::new(&mut packet.mad[smp::DATA])
            .expect("an SMP carries 64 bytes")
            .set_is_generic(true)
            .set_notice_type(NoticeType::INFORMATIONAL)
            .set_producer_type(producer)
            .set_trap_number(TrapNumber::LOCAL_CHANGES)
            .set_issuer_lid(lid)
            .set_data_details(details);
        (packet.address, packet.carrier) = (address, carrier);
        self.election.own.act();
        true
    }
}

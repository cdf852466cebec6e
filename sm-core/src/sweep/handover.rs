//! Handover of mastership to an SM with higher precedence, and from one with lower precedence (IBA
//! 14.4.1).
//!
//! A master that loses an election sends Set(SMInfo) HANDOVER. It stays master until that is
//! answered, or until the other SM sends Set(SMInfo) ACKNOWLEDGE; OpenSM only answers. A standby
//! with higher precedence than the master requests the handover by trap 144 with SMPriority.
//! [`with_copy`](super::with_copy) has what differs if one SM follows the registry of the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::packet::{Address, Carrier, Packet};
use ib_mad::types::Guid;
use ib_mad::wire::attribute::{
    CapabilityMask, LocalChanges, LocalChangesDetails, NodeType, NoticeType, ProducerType,
    SmControl, SmNotice, SmState, TrapNumber,
};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp;
use tracing::{debug, info, warn};

use super::current::Stage;
use super::owner::{OwnedRequest, RequestOwner};
use super::schedule::Cause;
use super::subnet::Subnet;
use super::{STATE, Sweeper};
use crate::fabric::PortIndex;
use crate::mastership::RemoteSm;
use crate::smp::{Kind, Request, kinds};

/// The SA database of another SM (`-S`), imported at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImportedRegistry {
    /// There is no SA database, or it cannot be used.
    #[default]
    None,
    /// The SA database will be read once LIDs are known.
    Expected,
    /// The SA database was read; these port GUIDs have registrations in it.
    Read(Arc<BTreeSet<Guid>>),
}

/// State of handovers, in both directions.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// The SM that was offered a handover.
    offered: Option<RemoteSm>,
    /// Whether that SM answered HANDOVER.
    is_accepted: bool,
    /// Since when a master with lower precedence has been found that has not handed over.
    awaited_since: Option<Instant>,
    /// Whether another SM was master since this SM was.
    pub(super) follows_another: bool,
    /// Whether to keep the LIDs that the previous master assigned.
    inherits_lids: bool,
    /// Whether this SM was standby since its LIDs were set.
    pub(super) stood_by: bool,
    /// The SM that handed over to this one, until the next election.
    pub(super) taken_from: Option<Guid>,
    /// The master to which a trap that requests a handover is to be sent.
    asks_master: Option<PortIndex>,
    /// Port GUIDs of SMs that follow this SM's registry.
    pub(super) followers: BTreeSet<Guid>,
    /// Whether this SM stands by for any other master that it finds.
    pub(super) is_in_doubt: bool,
    /// Whether the current election polls all other SMs because of that, and whether such an
    /// election has found no other master.
    pub(super) elects_in_doubt: bool,
    pub(super) is_doubt_settled: bool,
    /// Whether no handover is requested or accepted until this SM's copy of the master's registry
    /// is complete.
    pub(super) awaits_copy: bool,
}

impl Handover {
    /// No handover is expected.
    pub(super) fn settle(&mut self) {
        self.offered = None;
        self.awaited_since = None;
        self.taken_from = None;
        self.asks_master = None;
    }

    /// Starts a term as master.
    pub(super) fn begin_tenure(&mut self) {
        self.inherits_lids |= std::mem::take(&mut self.follows_another);
    }

    /// Whether LIDs that ports hold have precedence over ours; `true` once.
    pub(super) fn take_inherits_lids(&mut self) -> bool {
        std::mem::take(&mut self.inherits_lids)
    }
}

/// Owner of the requests of handovers, whose state is in [`Handover`].
pub(super) struct HandoverMessages;

impl RequestOwner for HandoverMessages {
    type Kind = kinds::Handover;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, .. } = owned;
        // The other manager accepts an ACKNOWLEDGE only from one that shows Standby.
        let (state, control) = match kind {
            kinds::Handover::HandOver => (SmState::Master, SmControl::Handover),
            kinds::Handover::Acknowledge => (SmState::Standby, SmControl::Acknowledge),
        };
        data[..21].copy_from_slice(&subnet.election.own.shown(state));
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
        let OwnedRequest { request, .. } = owned;
        let (name, place) = (request.kind.name(), subnet.place(request.port()));
        warn!("{place} refused {name}: {status}");
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, .. } = owned;
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(request.port()));
    }
}

impl Sweeper {
    /// Hands over to an SM with higher precedence that does not follow this SM's registry.
    pub(super) fn hand_over(&mut self, now: Instant, sm: RemoteSm, full: bool) {
        let Some(port) = self.subnet.election.place_of(sm) else {
            return self.go_on_as_master(now, full);
        };
        warn!(
            target: STATE,
            "the subnet manager at {} does not follow our registry: after the handover it asks \
             clients to register again",
            self.subnet.peer_place(port)
        );
        self.offer(now, port, sm, Some(full));
    }

    /// Sends HANDOVER to the subnet manager at `port`. `sweep`: whether the sweep that this
    /// interrupts read the whole fabric; `None` if it interrupts none.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        port: PortIndex,
        sm: RemoteSm,
        sweep: Option<bool>,
    ) {
        let place = self.subnet.peer_place(port);
        info!(
            target: STATE,
            "handing over to the subnet manager at {place}, priority {}", sm.priority
        );
        self.subnet.election.handover.offered = Some(sm);
        self.subnet.election.handover.is_accepted = false;
        self.enter(now, Stage::HandOver { sweep });
        self.subnet.exchange.push(Request::new(Kind::HandOver, port));
    }

    /// Another SM acknowledged a handover, possibly late.
    pub(super) fn handover_acknowledged(&mut self, now: Instant, from: Guid) {
        match self.subnet.election.handover.offered.filter(|sm| sm.guid == from) {
            Some(sm) => self.step_down(now, sm),
            None => warn!("port {from} acknowledged a handover that it was not offered"),
        }
    }

    fn step_down(&mut self, now: Instant, sm: RemoteSm) {
        let rules = self.subnet.election.has_taken_over(sm);
        self.stand_by(now, rules);
    }

    /// Ends a handover: steps down if the other SM answered, otherwise stays master.
    pub(super) fn end_handover(&mut self, now: Instant, sweep: Option<bool>) {
        let Handover { offered, is_accepted, .. } = self.subnet.election.handover;
        if let Some(sm) = offered.filter(|_| is_accepted) {
            return self.step_down(now, sm);
        }
        match sweep {
            Some(full) => {
                warn!("handover not acknowledged; staying master, retrying with the next sweep");
                self.go_on_as_master(now, full);
            }
            None => self.subnet.election.handover.settle(),
        }
    }

    /// Waits until a master with lower precedence has handed over, before anything is configured:
    /// two masters would overwrite each other's settings (IBA C14-60.2.1).
    pub(super) fn await_handover(&mut self, now: Instant, sm: RemoteSm, full: bool) {
        let Some(port) = self.subnet.election.place_of(sm) else {
            return self.go_on_as_master(now, full);
        };
        let place = self.subnet.peer_place(port);
        let interval =
            Duration::from_millis(u64::from(self.subnet.settings.sminfo_polling_timeout));
        let patience = interval.saturating_mul(self.subnet.settings.polling_retry_number);
        let is_new = self.subnet.election.handover.awaited_since.is_none();
        let since = *self.subnet.election.handover.awaited_since.get_or_insert(now);
        if is_new {
            info!(
                target: STATE,
                "another master at {place}, priority {}, has lower precedence: waiting for it to \
                 hand over",
                sm.priority
            );
        } else if now >= since + patience {
            warn!(
                "the master at {place}, priority {}, did not hand over in time: continuing as \
                 master",
                sm.priority
            );
            return self.go_on_as_master(now, full);
        }
        self.subnet.ask_for_handover(port);
        self.subnet.schedule.request(now + interval, Cause::Asked);
    }

    /// Another SM handed over: its whole subnet, or its half of two joined subnets. The current
    /// sweep does not include it, so that sweep is abandoned and a full sweep starts.
    pub(super) fn handed_to_us(&mut self, now: Instant, from: Guid) {
        if self.subnet.election.handover.taken_from == Some(from) {
            // It did not get the answer and sent the request again.
            return;
        }
        self.rest();
        let port =
            self.subnet.fabric.end_ports().find(|&port| self.subnet.fabric.port(port).guid == from);
        match port {
            Some(port) => {
                info!(
                    target: STATE,
                    "the master at {} handed over to this subnet manager",
                    self.subnet.peer_place(port)
                );
                self.subnet.exchange.push(Request::new(Kind::Acknowledge, port));
            }
            None => {
                info!(
                    target: STATE,
                    "the master at port {from} handed over to this subnet manager"
                );
            }
        }
        self.subnet.election.follow_another(now);
        self.subnet.election.handover.taken_from = Some(from);
        // The subnet is no longer the one that was up, if one was.
        self.subnet.state.up = false;
        self.become_master();
        self.subnet.schedule.request(now, Cause::TakeOver);
    }

    /// A master handed over during a discovery, so its SMInfo is outdated: starts discovery again.
    pub(super) fn look_for_master_again(&mut self, now: Instant, from: Guid) {
        info!(
            target: STATE,
            "the master at port {from} handed over to this subnet manager during a discovery: \
             starting another"
        );
        self.rest();
        self.subnet.election.follow_another(now);
        self.subnet.schedule.request(now, Cause::Asked);
    }
}

impl Subnet {
    /// Requests a handover from the master at `port` by trap, because this SM has higher
    /// precedence; not before this SM's copy of its registry is complete.
    pub(super) fn ask_for_handover(&mut self, port: PortIndex) {
        if !self.election.handover.awaits_copy {
            self.election.handover.asks_master = Some(port);
        }
    }

    /// Encodes the trap that requests a handover, if one is due. It is not repeated: each poll of
    /// that master sends another.
    pub(super) fn write_priority_trap(&mut self, packet: &mut Packet) -> bool {
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
        smp::Request {
            method: Method::TRAP,
            attribute_id: AttributeId::NOTICE,
            attribute_modifier: 0,
            tid: u64::from(self.election.own.act_count()),
            m_key: 0,
        }
        .write_lid_routed(&mut packet.mad);
        SmNotice::new(&mut packet.mad[smp::DATA])
            .expect("an SMP carries 64 bytes")
            .set_is_generic(true)
            .set_notice_type(NoticeType::INFORMATIONAL)
            .set_producer_type(producer)
            .set_trap_number(TrapNumber::LOCAL_CHANGES)
            .set_issuer_lid(lid)
            .set_data_details(details);
        (packet.address, packet.carrier) = (Address::smi(to), Carrier::default());
        self.election.own.act();
        true
    }
}

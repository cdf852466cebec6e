//! Moves the LID of a responder that died to a spare port, between sweeps.
//!
//! Clients see only a pause, because they keep the same MasterSMLID. No two ports have the LID at
//! any instant: first the old port is fenced, by giving it another LID or, if it does not answer,
//! by disabling its link at the switch; after that is acknowledged, the spare gets the LID; then
//! every switch gets the entry that it has for the spare, one block each. A later sweep configures
//! the rest and enables disabled ports again, even after a failure or a restart.

use std::collections::BTreeSet;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{PortPhysState, PortState};
use ib_mad::wire::mad::Status;
use tracing::{debug, warn};

use crate::fabric::{PortIndex, SwitchIndex};
use crate::manage::lid::LidRange;
use crate::manage::link;
use crate::manage::shard::TakeOver;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// A LID takeover in progress.
#[derive(Debug)]
pub(in crate::sweep) struct LidTakeOver {
    pub(in crate::sweep) what: TakeOver,
    /// The LIDs to move, and those that the spare gives up.
    pub(in crate::sweep) lids: LidRange,
    pub(in crate::sweep) spare_lids: LidRange,
    pub(in crate::sweep) spare: PortIndex,
    pub(in crate::sweep) step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Step {
    /// The old port is given other LIDs.
    Leave { old: PortIndex },
    /// The switch port at the far end of the old port's link is disabled.
    Disable { at: PortIndex },
    /// The spare is given the LIDs.
    Enter,
    /// Forwarding tables are written.
    Tables,
}

/// Switch ports disabled for a takeover and not seen enabled since: switch GUID and port number.
pub type DisabledPorts = BTreeSet<(Guid, PortNum)>;

/// Whether a LID can be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOverStart {
    /// The takeover has begun: [`Event::TakenOver`] reports its end.
    Begun,
    /// A sweep is under way: try again.
    NotNow,
    /// The ports are not there, or do not have equally many LIDs.
    Impossible,
}

impl RequestOwner for LidTakeOver {
    type Kind = kinds::TakeOver;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        let port = request.port();
        match kind {
            kinds::TakeOver::MoveAddress => *data = subnet.wanted_address(port)?,
            kinds::TakeOver::DisablePort => *data = subnet.wanted_port_switch(port, false),
            kinds::TakeOver::MoveForwarding => {
                data.copy_from_slice(subnet.forwarding_block(request)?);
                return Some(request.block.into());
            }
        }
        Some(link::modifier(&subnet.fabric, port))
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::TakeOver::MoveAddress => subnet.address_set(request, data),
            kinds::TakeOver::DisablePort => subnet.port_info_set(request, data),
            kinds::TakeOver::MoveForwarding => {
                subnet.forwarding_set(request, data);
            }
        }
    }

    /// Logs the refusal only: the end of the step decides how the takeover continues.
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

impl RequestOwner for DisabledPorts {
    type Kind = kinds::DisabledPorts;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::DisabledPorts::EnablePort => {
                *data = subnet.wanted_port_switch(request.port(), true);
                Some(link::modifier(&subnet.fabric, request.port()))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        subnet.port_info_set(request, data);
        let port = request.port();
        if subnet.is_disabled(port) {
            let place = subnet.place(port);
            return subnet.fault(port, format_args!("{place} stays disabled after it was enabled"));
        }
        let guid = subnet.fabric.node_of(port).guid;
        if self.remove(&(guid, subnet.fabric.port(port).num)) {
            subnet.events.push(Event::DisabledPortsChanged);
        }
    }
}

impl Subnet {
    pub(in crate::sweep) fn end_port(&self, guid: Guid) -> Option<PortIndex> {
        self.fabric.end_ports().find(|&port| self.fabric.port(port).guid == guid)
    }

    pub(in crate::sweep) fn is_disabled(&self, port: PortIndex) -> bool {
        let info = self.fabric.port(port).port_info();
        info.port_physical_state() == PortPhysState::Disabled.code()
    }

    pub(in crate::sweep) fn is_off(&self, at: PortIndex) -> bool {
        self.is_disabled(at) || self.fabric.port(at).state() == Some(PortState::Down)
    }

    /// Sets the entry for `lids` on every switch to its entry for `spare`.
    pub(in crate::sweep) fn lead_to_spare(&mut self, lids: LidRange, spare: LidRange) {
        if lids.last > self.routing.top {
            // The tables end before it: the next sweep reroutes.
            return;
        }
        let switches: Vec<SwitchIndex> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            let lft = self.fabric.lft_mut(index);
            let mut ports = lft.desired().ports.to_vec();
            let (to, from) = (usize::from(lids.first.0), usize::from(spare.first.0));
            let count = usize::from(lids.last.0 - lids.first.0) + 1;
            if ports.len() < to.max(from) + count {
                continue;
            }
            ports.copy_within(from..from + count, to);
            lft.set_desired(ports);
            let switch = self.fabric.switch(index);
            let Some(port) = self.fabric.ports_of(switch.node).next() else { continue };
            let blocks: Vec<u16> = switch.lft.stale_blocks().collect();
            for block in blocks {
                self.exchange.push(Request::block(Kind::MoveForwarding, port, block));
            }
        }
    }

    /// PortInfo that disables or enables a switch port.
    pub(in crate::sweep) fn wanted_port_switch(
        &self,
        port: PortIndex,
        on: bool,
    ) -> link::PortInfoBytes {
        link::switched(&self.fabric, port, on)
    }
}

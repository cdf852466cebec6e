//! Moves the LID of a responder that died to a spare port, between sweeps.
//!
//! Clients see only a pause, because they keep the same MasterSMLID. No two ports have the LID at
//! any instant: first the old port is fenced, by giving it another LID or, if it does not answer,
//! by disabling its link at the switch; after that is acknowledged, the spare gets the LID; then
//! every switch gets the entry that it has for the spare, one block each. A later sweep configures
//! the rest and enables disabled ports again, even after a failure or a restart.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{PortPhysState, PortState};
use ib_mad::wire::mad::Status;
use tracing::{debug, info, warn};

use super::current::Stage;
use super::owner::{OwnedRequest, RequestOwner};
use super::schedule::Cause;
use super::subnet::Subnet;
use super::{Event, Sweeper};
use crate::fabric::{PortIndex, SwitchIndex};
use crate::manage::lid::LidRange;
use crate::manage::link;
use crate::manage::shard::TakeOver;
use crate::smp::{Kind, Request, kinds};

/// A LID takeover in progress.
#[derive(Debug)]
pub(super) struct LidTakeOver {
    what: TakeOver,
    /// The LIDs to move, and those that the spare gives up.
    lids: LidRange,
    spare_lids: LidRange,
    spare: PortIndex,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
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

impl Sweeper {
    /// Starts to move the LIDs of one port to another.
    pub fn take_over(&mut self, now: Instant, what: TakeOver) -> TakeOverStart {
        if !self.is_idle() || !self.subnet.state.up || !self.subnet.election.is_master() {
            return TakeOverStart::NotNow;
        }
        let (Some(lids), Some(spare_lids), Some(spare)) = (
            self.subnet.lids.get(what.old),
            self.subnet.lids.get(what.spare),
            self.subnet.end_port(what.spare),
        ) else {
            return TakeOverStart::Impossible;
        };
        if what.old == what.spare
            || lids.last.0 - lids.first.0 != spare_lids.last.0 - spare_lids.first.0
        {
            return TakeOverStart::Impossible;
        }
        info!("moving LID {} from port {} to port {}", lids.first, what.old, what.spare);
        let old = self.subnet.end_port(what.old);
        // A port that left the fabric has no LIDs; new ones are assigned when it returns.
        if !self.subnet.lids.relocate(what.old, old.is_some()) {
            return TakeOverStart::Impossible;
        }
        let step = match old {
            Some(old) => Step::Leave { old },
            None => Step::Enter,
        };
        let take_over = LidTakeOver { what, lids, spare_lids, spare, step };
        self.enter(now, Stage::TakeOver(take_over));
        match old {
            Some(old) => self.subnet.exchange.push(Request::new(Kind::MoveAddress, old)),
            None => self.enter_spare(what, lids, spare),
        }
        self.advance(now);
        TakeOverStart::Begun
    }

    fn enter_spare(&mut self, what: TakeOver, lids: LidRange, spare: PortIndex) {
        self.subnet.lids.set(what.spare, lids);
        // Before any sweep looks where clients belong.
        self.subnet.shards.follow(what);
        self.subnet.events.push(Event::LidsChanged);
        self.subnet.exchange.push(Request::new(Kind::MoveAddress, spare));
    }

    /// Ends a step, whose requests are all answered or given up, and starts the next.
    pub(super) fn end_take_over_step(&mut self, now: Instant, take_over: LidTakeOver) {
        let LidTakeOver { what, lids, spare_lids, spare, step } = take_over;
        let next = match step {
            Step::Leave { old } if self.subnet.fabric.port(old).base_lid() != lids.first => {
                self.enter_spare(what, lids, spare);
                Some(Step::Enter)
            }
            Step::Leave { old } => self.disable_far_end(old).map(|at| Step::Disable { at }),
            Step::Disable { at } if self.subnet.is_off(at) => {
                self.enter_spare(what, lids, spare);
                Some(Step::Enter)
            }
            Step::Disable { .. } => None,
            Step::Enter if self.subnet.fabric.port(spare).base_lid() == lids.first => {
                self.subnet.lead_to_spare(lids, spare_lids);
                Some(Step::Tables)
            }
            // Whether or not the spare has the LIDs, no other port does.
            Step::Enter => return self.end_take_over(now, what, false),
            Step::Tables => None,
        };
        if let Some(step) = next {
            let take_over = LidTakeOver { what, lids, spare_lids, spare, step };
            self.sweep.stage = Stage::TakeOver(take_over);
            return;
        }
        let done = step == Step::Tables;
        if !done {
            // No port was given the LIDs: they are still the old port's.
            self.subnet.lids.set(what.old, lids);
        }
        self.end_take_over(now, what, done);
    }

    fn end_take_over(&mut self, now: Instant, what: TakeOver, done: bool) {
        if done {
            info!("port {} took over the LID", what.spare);
        } else {
            warn!("port {} could not take over the LID of port {}", what.spare, what.old);
        }
        self.subnet.events.push(Event::TakenOver { what, done });
        self.subnet.schedule.request(now, Cause::Asked);
    }

    /// Disables the switch port at the far end of a link; `None` if there is none.
    fn disable_far_end(&mut self, old: PortIndex) -> Option<PortIndex> {
        let at = self.subnet.fabric.port(old).peer()?;
        self.subnet.fabric.node_of(at).switch?;
        debug!("{} does not answer; disabling its link", self.subnet.fabric.describe(old));
        // Kept before it is asked: the answer may be lost.
        self.disabled_ports
            .insert((self.subnet.fabric.node_of(at).guid, self.subnet.fabric.port(at).num));
        self.subnet.events.push(Event::DisabledPortsChanged);
        self.subnet.exchange.push(Request::new(Kind::DisablePort, at));
        Some(at)
    }

    /// Ends a takeover that cannot continue. LIDs that were not assigned yet go back to the old
    /// port.
    pub(super) fn abandon_take_over(&mut self) {
        let Stage::TakeOver(take_over) = std::mem::take(&mut self.sweep.stage) else { return };
        let LidTakeOver { what, lids, step, .. } = take_over;
        if matches!(step, Step::Leave { .. } | Step::Disable { .. }) {
            self.subnet.lids.set(what.old, lids);
        }
        warn!("takeover by port {} of the LID of port {} cancelled", what.spare, what.old);
        self.subnet.events.push(Event::TakenOver { what, done: false });
    }

    /// Switch ports still disabled for a takeover, to be saved across restarts.
    pub fn disabled_ports(&self) -> &DisabledPorts {
        &self.disabled_ports
    }

    /// Sets the ports that an earlier run disabled.
    pub fn set_disabled_ports(&mut self, ports: DisabledPorts) {
        self.disabled_ports = ports;
    }

    /// Enables ports that were disabled for a takeover, regardless of its result. Ports that were
    /// enabled otherwise are removed from the list.
    pub(super) fn enable_disabled_ports(&mut self, full: bool) {
        let before = self.disabled_ports.len();
        for (guid, num) in self.disabled_ports.clone() {
            let node =
                self.subnet.fabric.find(guid).filter(|&node| self.subnet.fabric.node(node).present);
            let port = node.and_then(|node| self.subnet.fabric.port_of(node, num));
            // Switches that are absent, or were not read in this sweep, are skipped.
            let Some(port) = port.filter(|&port| full && self.subnet.fabric.port(port).known)
            else {
                continue;
            };
            if self.subnet.is_disabled(port) {
                info!("enabling {}, which a takeover had disabled", self.subnet.place(port));
                self.subnet.exchange.push(Request::new(Kind::EnablePort, port));
                self.subnet.journal.report.port_infos_set += 1;
            } else {
                self.disabled_ports.remove(&(guid, num));
            }
        }
        if self.disabled_ports.len() != before {
            self.subnet.events.push(Event::DisabledPortsChanged);
        }
    }
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
    fn end_port(&self, guid: Guid) -> Option<PortIndex> {
        self.fabric.end_ports().find(|&port| self.fabric.port(port).guid == guid)
    }

    fn is_disabled(&self, port: PortIndex) -> bool {
        let info = self.fabric.port(port).port_info();
        info.port_physical_state() == PortPhysState::Disabled.code()
    }

    fn is_off(&self, at: PortIndex) -> bool {
        self.is_disabled(at) || self.fabric.port(at).state() == Some(PortState::Down)
    }

    /// Sets the entry for `lids` on every switch to its entry for `spare`.
    fn lead_to_spare(&mut self, lids: LidRange, spare: LidRange) {
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
    pub(super) fn wanted_port_switch(&self, port: PortIndex, on: bool) -> link::PortInfoBytes {
        link::switched(&self.fabric, port, on)
    }
}

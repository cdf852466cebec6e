//! Links: their settings, the step to Armed, the QoS tables of ports, and the step to Active.

use std::collections::HashSet;

use ib_mad::wire::attribute::{PortInfo, PortState};
use ib_mad::wire::mad::Status;
use tracing::debug;

use super::program::Programmed;
use crate::fabric::PortIndex;
use crate::manage::link;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::report::Phase;

/// How often a link may be taken through Down in one sweep before that counts as an error.
const RESETS_MAX: u16 = 2;

/// The stage that configures links and brings them up.
#[derive(Debug)]
pub(in crate::sweep) struct LinkSetup {
    pub(in crate::sweep) step: Step,
    pub(in crate::sweep) programmed: Programmed,
    /// Ports that refused a step, with whether it was the step to Armed. Their PortInfo is read.
    pub(in crate::sweep) read_again: HashSet<(PortIndex, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Step {
    Arm,
    PortTables,
    Activate,
}

impl LinkSetup {
    pub(in crate::sweep) fn phase(&self) -> Phase {
        match self.step {
            Step::Arm => Phase::Arm,
            Step::PortTables => Phase::PortTables,
            Step::Activate => Phase::Activate,
        }
    }

    /// Handles the refusal of a step to Armed or Active; `false` if the port refused it before. A
    /// port refuses a step that it has already taken, for example if the answer was lost, so its
    /// PortInfo is read.
    fn step_refused(&mut self, subnet: &mut Subnet, request: Request) -> bool {
        let is_new = self.read_again.insert((request.port(), request.kind == Kind::Arm));
        if is_new {
            subnet.exchange.push(Request::new(Kind::RefusedStep, request.port()));
        }
        is_new
    }
}

impl RequestOwner for LinkSetup {
    type Kind = kinds::Links;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        let port = request.port();
        match kind {
            kinds::Links::Arm => *data = subnet.wanted_arming(port)?,
            kinds::Links::Activate => *data = subnet.wanted_activation(port)?,
            kinds::Links::TakeDown => *data = link::taken_down(&subnet.fabric, port),
            kinds::Links::RefusedStep => {}
        }
        Some(link::modifier(&subnet.fabric, port))
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Links::Arm | kinds::Links::Activate | kinds::Links::TakeDown => {
                subnet.port_info_set(request, data);
            }
            // A port in the wrong state is reported at the end of the sweep.
            kinds::Links::RefusedStep => {
                subnet.fabric.port_mut(request.port()).info = *data;
            }
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        let is_handled = match kind {
            kinds::Links::Arm | kinds::Links::Activate => self.step_refused(subnet, request),
            kinds::Links::RefusedStep | kinds::Links::TakeDown => false,
        };
        if is_handled {
            let (name, place) = (request.kind.name(), subnet.place(request.port()));
            return debug!("{place} refused {name}: {status}");
        }
        subnet.report_refusal(request, status);
    }
}

impl Subnet {
    /// PortInfo to set so that an armed port becomes active.
    fn wanted_activation(&self, port: PortIndex) -> Option<link::PortInfoBytes> {
        link::active(&self.fabric, port, self.link_inputs(), self.wanted_addressing(port))
    }

    /// PortInfo to set so that a linked port is configured and armed, if it is not. A new master
    /// always sets it, because the values may be those of another SM.
    pub(in crate::sweep) fn wanted_arming(&self, port: PortIndex) -> Option<link::PortInfoBytes> {
        let external = self.fabric.node_of(port).switch.is_some();
        let anyway = external && self.state.first_as_master || self.state.forced_links_changed;
        link::armed(&self.fabric, port, self.link_inputs(), self.wanted_addressing(port), anyway)
    }

    /// Takes links that are left out to Initialize, in which they carry no data.
    pub(in crate::sweep) fn take_down_left_out(&mut self) {
        for &port in &self.state.left_out {
            let state = self.fabric.port(port).state();
            if matches!(state, Some(PortState::Armed | PortState::Active)) {
                self.exchange.push(Request::new(Kind::TakeDown, port));
                self.journal.report.port_infos_set += 1;
            }
        }
    }

    pub(in crate::sweep) fn activate_links(&mut self) {
        for port in self.linked_ports() {
            if self.fabric.port(port).state() == Some(PortState::Armed) {
                self.exchange.push(Request::new(Kind::Activate, port));
                self.journal.report.port_infos_set += 1;
            }
        }
    }

    /// The link of `port` was taken through Down to change its MTU or VLs, so its far end is in
    /// Initialize too. If this happened while arming, both ends are armed again.
    pub(in crate::sweep) fn link_was_reset(&mut self, request: Request, port: PortIndex) {
        let peer = self.fabric.port(port).peer();
        if let Some(peer) = peer {
            let entry = self.fabric.port_mut(peer);
            PortInfo::of_mut(&mut entry.info).set_port_state(PortState::Initialize);
        }
        if request.kind == Kind::Arm && request.block < RESETS_MAX {
            for port in [Some(port), peer].into_iter().flatten() {
                self.exchange.push(Request::block(Kind::Arm, port, request.block + 1));
                self.journal.report.port_infos_set += 1;
            }
        }
    }

    pub(in crate::sweep) fn linked_ports(&self) -> Vec<PortIndex> {
        self.fabric
            .nodes()
            .flat_map(|(index, _)| self.fabric.ports_of(index))
            .filter(|&port| self.is_linked(port))
            .collect()
    }

    pub(in crate::sweep) fn is_linked(&self, port: PortIndex) -> bool {
        let entry = self.fabric.port(port);
        let peer = entry.peer().filter(|&peer| self.fabric.port(peer).known);
        // A port without a LID cannot be addressed.
        let left_out = |port| self.fabric.is_left_out(port);
        entry.known && !left_out(port) && peer.is_some_and(|peer| !left_out(peer))
    }
}

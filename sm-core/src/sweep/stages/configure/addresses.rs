//! Addresses of end ports, and the changes that a new master finds.

use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{PortInfo, SwitchInfo};
use ib_mad::wire::mad::Status;
use tracing::debug;

use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::link;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::schedule::Cause;

/// Addresses of end ports, as owner of the requests that set them.
pub(in crate::sweep) struct Addresses;

impl RequestOwner for Addresses {
    type Kind = kinds::Addresses;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        let port = request.port();
        match kind {
            kinds::Addresses::SetAddress => *data = subnet.wanted_address(port)?,
            kinds::Addresses::ClearOldPortChange => {
                data[..20].copy_from_slice(&subnet.cleared_switch_info(port)?);
                return Some(0);
            }
            kinds::Addresses::RecheckPort => {}
        }
        Some(link::modifier(&subnet.fabric, port))
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        match kind {
            kinds::Addresses::SetAddress => subnet.address_set(request, data),
            kinds::Addresses::ClearOldPortChange => {
                let node = subnet.fabric.port(request.port()).node;
                subnet.take_switch_info(node, data);
                subnet.read_unset_ports(node);
            }
            kinds::Addresses::RecheckPort => subnet.port_rechecked(now, request.port(), data),
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        subnet.report_refusal(request, status);
        end_without_answer(subnet, kind, request);
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, .. } = owned;
        subnet.report_silence(request);
        end_without_answer(subnet, kind, request);
    }
}

/// Continues without the result of a request.
fn end_without_answer(subnet: &mut Subnet, kind: kinds::Addresses, request: Request) {
    match kind {
        kinds::Addresses::ClearOldPortChange => {
            subnet.read_unset_ports(subnet.fabric.port(request.port()).node);
        }
        kinds::Addresses::SetAddress | kinds::Addresses::RecheckPort => {}
    }
}

impl Subnet {
    /// Addresses that an end port should have, in each of its planes; `None` for other ports, and
    /// if LIDs ran out. Its clients are asked to register again in one plane.
    pub(super) fn wanted_addressing(&self, port: PortIndex) -> Option<link::Addressing> {
        let is_end_port = self.fabric.end_port_of(port)? == port;
        let range = self.lids.get(self.fabric.port(port).guid)?;
        let reregistered = self.fabric.port(port).reregistered_in == self.election.tenure();
        let sa = self.sa_of(port);
        // Not every driver notifies its clients of another SA, but all notify them of this.
        let moved = self.fabric.port(port).port_info().master_sm_lid() != sa.0;
        // In the first sweep as master the SA moves for all ports.
        let moved = moved && !self.state.first_as_master;
        Some(link::Addressing {
            base_lid: range.first,
            lmc: link::lmc_of(&self.fabric, port, &self.settings),
            sa,
            reregister: is_end_port
                && (!reregistered || moved)
                && !self.settings.no_clients_rereg
                && !self.pending_clients.is_deferred(port),
        })
    }

    /// PortInfo to set if an end port's addresses differ from those it should have.
    pub(in crate::sweep) fn wanted_address(&self, port: PortIndex) -> Option<link::PortInfoBytes> {
        link::addressed(&self.fabric, port, self.link_inputs(), self.wanted_addressing(port)?)
    }

    /// Records the answer to a Set(PortInfo) with the addresses of an end port.
    pub(in crate::sweep) fn address_set(&mut self, request: Request, data: &[u8; 64]) {
        self.port_info_set(request, data);
        let port = request.port();
        if !self.pending_clients.is_deferred(port) && self.fabric.is_end_port(port) {
            let tenure = self.election.tenure();
            let entry = self.fabric.port_mut(port);
            if std::mem::replace(&mut entry.reregistered_in, tenure) != tenure {
                self.lapsed.note_asked(entry.guid);
            }
        }
        let Some(wanted) = self.lids.get(self.fabric.port(port).guid) else { return };
        let info = self.fabric.port(port).port_info();
        let (lid, lmc) = (info.base_lid(), info.lmc());
        if wanted.first != lid {
            let place = self.place(port);
            self.fault(port, format_args!("{place} reports LID {lid} after another was set"));
        } else if lmc != link::lmc_of(&self.fabric, port, &self.settings)
            && link::has_link_layer(&self.fabric, port)
        {
            let place = self.place(port);
            self.fault(port, format_args!("{place} reports LMC {lmc} after another was set"));
        }
    }

    /// Clears PortStateChange on all switches before anything is set that a reset would undo, so
    /// that the next light sweep detects later changes.
    pub(in crate::sweep) fn clear_port_changes(&mut self) {
        let switches: Vec<_> = self
            .fabric
            .switches()
            .filter(|(_, switch)| switch.switch_info().port_state_change())
            .map(|(_, switch)| switch.node)
            .collect();
        for node in switches {
            if let Some(port) = self.fabric.ports_of(node).next() {
                self.exchange.push(Request::new(Kind::ClearOldPortChange, port));
            }
        }
    }

    /// A change between the read of a switch's ports and the clearing of PortStateChange would go
    /// unnoticed: reads again the ports that get no Set(), and port 0, whose LID shows a reset.
    fn read_unset_ports(&mut self, node: NodeIndex) {
        for port in self.fabric.ports_of(node) {
            let entry = self.fabric.port(port);
            if entry.num.0 == 0 || entry.peer().is_none() {
                self.exchange.push(Request::new(Kind::RecheckPort, port));
            }
        }
    }

    /// Handles PortInfo of a port without a link, or of a switch's port 0, read after
    /// PortStateChange was cleared. A change since the discovery starts another sweep.
    fn port_rechecked(&mut self, now: Instant, port: PortIndex, data: &[u8; 64]) {
        let info = PortInfo::of(data);
        let entry = self.fabric.port(port);
        let state_changed = info.port_state() != entry.port_info().port_state();
        let lost_its_lid = info.base_lid() == Lid::NONE && entry.base_lid() != Lid::NONE;
        if state_changed || lost_its_lid {
            debug!("{} changed during the sweep", self.fabric.describe(port));
            if lost_its_lid {
                self.switch_was_reset(entry.node);
            }
            self.schedule.request(now, Cause::Asked);
        }
    }

    /// SwitchInfo of a port's switch as it is, with PortStateChange to be cleared.
    pub(in crate::sweep) fn cleared_switch_info(&self, port: PortIndex) -> Option<[u8; 20]> {
        let mut info = self.fabric.switch(self.fabric.node_of(port).switch?).info;
        SwitchInfo::of_mut(&mut info).set_port_state_change(true);
        Some(info)
    }
}

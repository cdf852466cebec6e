//! Requests of the setup of virtual ports as MADs, and what their answers change.

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{
    CapabilityMask, PortState, VNodeInfo, VPKeyTable, VPORT_STATES_PER_BLOCK, VPortInfo,
    VPortState, VirtualizationInfo, virtual_port_modifier,
};
use ib_mad::wire::field::part;
use ib_mad::wire::mad::Status;

use super::{Host, MANAGED, Pass, Trouble, VirtualPortSetup, What};
use crate::fabric::{INDICES_MAX, PortIndex, VIRTUAL_PORTS_MAX, VirtualPort};
use crate::smp::{Kind, Request, kinds, of_virtual_block};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

type Data = [u8; 64];

impl VirtualPortSetup {
    fn host(&self, subnet: &Subnet, request: Request) -> Option<&Host> {
        self.hosts.get(&subnet.fabric.port(request.port()).guid)
    }

    /// The pass that a request is of.
    fn pass(&mut self, subnet: &Subnet, request: Request) -> Option<&mut Pass> {
        let guid: Guid = subnet.fabric.port(request.port()).guid;
        self.hosts.get_mut(&guid)?.pass.as_mut()
    }

    /// VirtualizationInfo as it is to be set. What the port reports about itself stays.
    fn wanted_info(&self, subnet: &Subnet, request: Request) -> Option<[u8; 8]> {
        let host = self.host(subnet, request)?;
        let mut info = subnet.fabric.virtual_ports_so_far(request.port())?.info;
        let mask = subnet.fabric.port(request.port()).port_info().capability_mask();
        let reregister = host.is_new
            && !subnet.settings.no_clients_rereg
            && mask.contains(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED);
        VirtualizationInfo::of_mut(&mut info)
            .set_virtualization_enable(subnet.settings.virt_enabled == MANAGED)
            .set_client_reregister(reregister)
            .set_vport_state_change(true);
        Some(info)
    }

    /// Something about a virtual port could not be read.
    fn note_unread(&mut self, subnet: &Subnet, kind: Kind, request: Request) {
        let (index, _) = of_virtual_block(request.block);
        // Nothing depends on the description.
        if let Some(pass) = self.pass(subnet, request)
            && matches!(kind, Kind::VPortInfo | Kind::VNodeInfo | Kind::VPKeys)
        {
            pass.unread.insert(index);
        }
    }

    fn note(&mut self, subnet: &Subnet, request: Request, what: What) {
        let of_port = matches!(
            request.kind,
            Kind::Virtualization | Kind::SetVirtualization | Kind::VPortState
        );
        let trouble = match of_port {
            true => Trouble::of_port(what),
            false => Trouble::of_one(what, of_virtual_block(request.block).0),
        };
        if let Some(pass) = self.pass(subnet, request) {
            pass.note(trouble);
        }
    }

    /// States of 128 virtual ports: those that are not Down and were in another state, or are not
    /// known, are read.
    fn take_states(&mut self, subnet: &mut Subnet, request: Request, data: &Data) {
        let port = request.port();
        let room = VIRTUAL_PORTS_MAX.saturating_sub(subnet.fabric.virtual_port_count());
        let guid = subnet.fabric.port(port).guid;
        let Some(host) = self.hosts.get_mut(&guid) else { return };
        let is_outdated = host.is_outdated;
        let Some(pass) = &mut host.pass else { return };
        let states = VPortState::of(data);
        let left_out = subnet.fabric.with_virtual_ports(port, |all, ports| {
            let top = all.virtualization_info().vport_index_top().min(INDICES_MAX - 1);
            let first = usize::from(request.block) * VPORT_STATES_PER_BLOCK;
            let (mut added, mut left_out) = (0, None);
            for place in 0..VPORT_STATES_PER_BLOCK {
                let Ok(index) = u16::try_from(first + place) else { break };
                let state = Some(states.state(place)).and_then(PortState::from_code);
                let is_up = |state: &PortState| {
                    matches!(state, PortState::Initialize | PortState::Armed | PortState::Active)
                };
                let Some(state) = state.filter(|state| index <= top && is_up(state)) else {
                    ports.remove(&index);
                    continue;
                };
                let known = ports.get(&index);
                if known.is_some_and(|port| port.state == state && port.is_read && !is_outdated) {
                    continue;
                }
                if known.is_none() && added == room {
                    let (_, count) = left_out.get_or_insert((index, 0));
                    *count += 1;
                    continue;
                }
                added += usize::from(known.is_none());
                ports.entry(index).or_insert_with(|| VirtualPort::unread(state)).state = state;
                pass.reading.insert(index);
            }
            // Beyond the last one none is enabled.
            ports.retain(|&index, _| index <= top);
            left_out
        });
        if let Some((first, count)) = left_out {
            pass.note(Trouble { what: What::TooManyOfFabric, first, count });
        }
    }

    /// VPortInfo that was read or set.
    fn take_vport_info(&mut self, subnet: &mut Subnet, request: Request, data: &Data) {
        let (index, _) = of_virtual_block(request.block);
        let info = *part::<0, { VPortInfo::LEN }, _>(data);
        let state = PortState::from_code(VPortInfo::of(&info).vport_state());
        let Some(state) = state else {
            self.note_unread(subnet, Kind::VPortInfo, request);
            return self.note(subnet, request, What::Malformed(request.kind));
        };
        subnet.fabric.with_virtual_ports(request.port(), |_, ports| {
            if state == PortState::Down {
                ports.remove(&index);
            } else if let Some(port) = ports.get_mut(&index) {
                port.set_info(info, state);
            }
        });
    }

    fn change(subnet: &mut Subnet, request: Request, change: impl FnOnce(&mut VirtualPort, u16)) {
        let (index, block) = of_virtual_block(request.block);
        subnet.fabric.with_virtual_ports(request.port(), |_, ports| {
            if let Some(port) = ports.get_mut(&index) {
                change(port, block);
            }
        });
    }
}

/// A virtual port that a request is about.
fn virtual_port(subnet: &Subnet, request: Request) -> Option<(PortIndex, u16, &VirtualPort)> {
    let (index, _) = of_virtual_block(request.block);
    let port = subnet.fabric.virtual_ports_so_far(request.port())?.get(index)?;
    Some((request.port(), index, port))
}

/// VPortInfo with the next step of a virtual port, and its state then.
fn stepped(port: &VirtualPort) -> Option<(PortState, [u8; VPortInfo::LEN])> {
    let next = match port.state {
        PortState::Initialize => PortState::Armed,
        PortState::Armed => PortState::Active,
        _ => return None,
    };
    let mut info = port.info;
    VPortInfo::of_mut(&mut info).set_vport_state(next).set_client_reregister(false);
    Some((next, info))
}

impl RequestOwner for VirtualPortSetup {
    type Kind = kinds::VirtualPorts;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut Data,
    ) -> Option<u32> {
        use kinds::VirtualPorts::{
            SetVPKeys, SetVPortInfo, SetVirtualization, VNodeDescription, VNodeInfo, VPKeys,
            VPortInfo, VPortState, Virtualization,
        };
        let OwnedRequest { kind, request, .. } = owned;
        // Nothing more is sent to a port that does not answer.
        self.host(subnet, request)?.pass.as_ref().filter(|pass| !pass.is_silent)?;
        let (index, block) = of_virtual_block(request.block);
        match kind {
            Virtualization => Some(0),
            SetVirtualization => {
                let info = self.wanted_info(subnet, request)?;
                data[..info.len()].copy_from_slice(&info);
                Some(0)
            }
            VPortState => Some(request.block.into()),
            VPortInfo | VNodeInfo | VNodeDescription => Some(virtual_port_modifier(index, 0)),
            VPKeys => Some(virtual_port_modifier(index, block)),
            SetVPKeys => {
                let (host, index, port) = virtual_port(subnet, request)?;
                let plan = &subnet.partitions.plan;
                let keys = plan.wanted_virtual_block((host, index), port, block)?;
                VPKeyTable::of_mut(data).set_pkeys(&keys);
                Some(virtual_port_modifier(index, block))
            }
            SetVPortInfo => {
                let (_, info) = stepped(virtual_port(subnet, request)?.2)?;
                data[..info.len()].copy_from_slice(&info);
                Some(virtual_port_modifier(index, 0))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &Data) {
        use kinds::VirtualPorts as Of;
        let OwnedRequest { kind, request, .. } = owned;
        // The port may have left since.
        if self.pass(subnet, request).is_none() || !subnet.fabric.is_end_port(request.port()) {
            return;
        }
        match kind {
            Of::Virtualization | Of::SetVirtualization => {
                let info = *part::<0, { VirtualizationInfo::LEN }, _>(data);
                subnet.fabric.with_virtual_ports(request.port(), |all, _| all.info = info);
                let is_enabled = VirtualizationInfo::of(&info).virtualization_enable();
                let wanted = subnet.settings.virt_enabled == MANAGED;
                if kind == Of::SetVirtualization && is_enabled != wanted {
                    self.note(subnet, request, What::NotTaken(request.kind));
                }
            }
            Of::VPortState => self.take_states(subnet, request, data),
            Of::VPortInfo => self.take_vport_info(subnet, request, data),
            Of::SetVPortInfo => {
                let next = virtual_port(subnet, request).and_then(|(_, _, port)| stepped(port));
                self.take_vport_info(subnet, request, data);
                let state = virtual_port(subnet, request).map(|(_, _, port)| port.state);
                if next.map(|(next, _)| next) != state {
                    self.note(subnet, request, What::NotTaken(request.kind));
                }
            }
            Of::VNodeInfo => Self::change(subnet, request, |port, _| {
                port.node_info = *part::<0, { VNodeInfo::LEN }, _>(data);
            }),
            Of::VNodeDescription => {
                Self::change(subnet, request, |port, _| port.description = *data);
            }
            Of::VPKeys | Of::SetVPKeys => {
                let (index, block) = of_virtual_block(request.block);
                let keys = VPKeyTable::of(data).pkeys();
                subnet.fabric.set_virtual_pkeys(request.port(), index, block, &keys);
                let is_wrong = virtual_port(subnet, request).is_some_and(|(host, index, port)| {
                    let plan = &subnet.partitions.plan;
                    plan.wanted_virtual_block((host, index), port, block).is_some()
                });
                if kind == Of::SetVPKeys && is_wrong {
                    self.note(subnet, request, What::NotTaken(request.kind));
                }
            }
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { request, .. } = owned;
        self.counters.refused += 1;
        self.note_unread(subnet, request.kind, request);
        self.note(subnet, request, What::Refused(request.kind, status));
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, .. } = owned;
        self.note(subnet, request, What::Silent(request.kind));
        if let Some(pass) = self.pass(subnet, request) {
            pass.is_silent = true;
        }
    }
}

//! Encodes requests as MADs. Every attempt is encoded from the state at that time.

use ib_mad::packet::{Address, Carrier, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::attribute::{
    PKeyTable, SmControl, SmState, SwitchInfo, multicast_forwarding_modifier, pkey_table_modifier,
};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{self, Smp};

use super::Sweeper;
use super::multicast::block_key;
use super::subnet::Subnet;
use crate::fabric::DirectedRoute;
use crate::manage::link;
use crate::smp::{Kind, Owner, Request};

impl Sweeper {
    /// Writes `request` into `packet`; `false` if there is nothing to be said any more.
    pub(super) fn encode(
        &self,
        request: Request,
        tid: u64,
        m_key: u64,
        packet: &mut Packet,
    ) -> bool {
        let Some(route) = self.subnet.route_of(request) else { return false };
        let (method, attribute_id, attribute_modifier) = self.subnet.header_of(request);
        let header = smp::Request { method, attribute_id, attribute_modifier, tid, m_key };
        if header.write_directed(&mut packet.mad, route.ports()).is_err() {
            return false;
        }
        (packet.address, packet.carrier) = (Address::smi(Lid::PERMISSIVE), Carrier::default());
        let Ok(mut smp) = Smp::new(&mut packet.mad[..]) else { return false };
        if method == Method::GET {
            return true;
        }
        match request.kind.owner() {
            Owner::Sweep => self.subnet.write_data(request, smp.data_bytes_mut()).is_some(),
            _ => self.write_for_task(request, smp.data_bytes_mut()).is_some(),
        }
    }
}

impl Subnet {
    /// Writes what a Set() is to set; `None` if it is so already.
    fn write_data(&self, request: Request, data: &mut [u8]) -> Option<()> {
        let port = request.port();
        match request.kind {
            Kind::SetAddress => data.copy_from_slice(&self.wanted_address(port)?),
            Kind::DisablePort => data.copy_from_slice(&self.wanted_port_switch(port, false)),
            Kind::EnablePort => data.copy_from_slice(&self.wanted_port_switch(port, true)),
            Kind::Arm => data.copy_from_slice(&self.wanted_arming(port)?),
            Kind::Activate => data.copy_from_slice(&self.wanted_activation(port)?),
            Kind::SetSwitchInfo => data[..20].copy_from_slice(&self.wanted_switch_info(port)?),
            Kind::ClearPortChange => {
                let switch = self.fabric.switch(self.fabric.node_of(port).switch?);
                data[..20].copy_from_slice(&switch.info);
                SwitchInfo::new(data).ok()?.set_port_state_change(true);
            }
            Kind::SetMlnxExtPortInfo => data.copy_from_slice(&self.wanted_fdr10(port)?),
            Kind::SetPKeys => {
                let mut table = PKeyTable::new(data).ok()?;
                let keys =
                    self.partitions.plan().wanted_block(&self.fabric, port, request.block)?;
                for (index, key) in keys.into_iter().enumerate() {
                    table.set_pkey(index, key);
                }
            }
            Kind::SetForwarding => {
                let switch = self.fabric.switch(self.fabric.node_of(port).switch?);
                data.copy_from_slice(switch.lft.block(request.block)?);
            }
            Kind::SetSlToVl => data[..8].copy_from_slice(&self.requested_map(request)?),
            Kind::SetVlArbitration => {
                data.copy_from_slice(&self.wanted_block(port, request.block.into())?);
            }
            Kind::HandOver => {
                data[..21].copy_from_slice(&self.election.own.shown(SmState::Master));
            }
            // Who acknowledges is in Standby still, and checked for that.
            Kind::Acknowledge => {
                data[..21].copy_from_slice(&self.election.own.shown(SmState::Standby));
            }
            // Reads send nothing, and tasks write their own.
            _ => return None,
        }
        Some(())
    }

    fn route_of(&self, request: Request) -> Option<DirectedRoute> {
        match request.kind {
            Kind::OwnNodeInfo => Some(DirectedRoute::LOCAL),
            Kind::Probe | Kind::ProbeAgain => self.fabric.route_through(request.port()),
            _ => self.fabric.route_to(request.port()),
        }
    }

    /// Method, attribute and attribute modifier of a request.
    pub(super) fn header_of(&self, request: Request) -> (Method, AttributeId, u32) {
        let method = if request.kind.is_set() { Method::SET } else { Method::GET };
        (method, request.kind.attribute_id(), self.modifier_of(request))
    }

    fn modifier_of(&self, request: Request) -> u32 {
        match request.kind {
            Kind::HandOver => SmControl::Handover as u32,
            Kind::Acknowledge => SmControl::Acknowledge as u32,
            kind => match kind.attribute_id() {
                AttributeId::PORT_INFO => link::modifier(&self.fabric, request.port()),
                AttributeId::MLNX_EXT_PORT_INFO => self.port_number(request),
                AttributeId::PKEY_TABLE => self.pkey_modifier(request),
                AttributeId::LINEAR_FORWARDING_TABLE | AttributeId::GUID_INFO => {
                    u32::from(request.block)
                }
                AttributeId::SL_TO_VL_MAPPING_TABLE => self.map_modifier(request),
                AttributeId::VL_ARBITRATION_TABLE => {
                    let block = u32::from(request.block) + 1;
                    block << 16 | u32::from(self.table_port(request))
                }
                AttributeId::MULTICAST_FORWARDING_TABLE => {
                    let (block, position) = block_key(request);
                    multicast_forwarding_modifier(block, position)
                }
                // One per node: NodeInfo, NodeDescription, SwitchInfo, SMInfo.
                _ => 0,
            },
        }
    }

    /// The number by which a port's QoS tables are addressed: 0 on channel adapters and routers.
    pub(super) fn table_port(&self, request: Request) -> u8 {
        let is_switch = self.fabric.node_of(request.port()).switch.is_some();
        if is_switch { self.fabric.port(request.port()).num.0 } else { 0 }
    }

    fn port_number(&self, request: Request) -> u32 {
        self.fabric.port(request.port()).num.0.into()
    }

    fn pkey_modifier(&self, request: Request) -> u32 {
        let is_switch = self.fabric.node_of(request.port()).switch.is_some();
        let num = if is_switch { self.fabric.port(request.port()).num.0 } else { 0 };
        pkey_table_modifier(num, request.block)
    }
}

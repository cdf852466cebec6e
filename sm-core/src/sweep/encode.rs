//! Requests as MADs. Written anew for every attempt, from what is known then.

use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Lid, Qpn};
use ib_mad::wire::attribute::{
    PKeyTable, SmControl, SmState, SwitchInfo, multicast_forwarding_modifier, pkey_table_modifier,
};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{self, Smp};

use super::Sweeper;
use super::multicast::block_key;
use crate::fabric::DirectedRoute;
use crate::manage::link;
use crate::smp::{Kind, Request};

impl Sweeper {
    /// Writes `request` into `packet`; `false` if there is nothing to be said any more.
    pub(super) fn encode(
        &self,
        request: Request,
        tid: u64,
        m_key: u64,
        packet: &mut Packet,
    ) -> bool {
        let Some(route) = self.route_of(request) else { return false };
        let (method, attribute_id, attribute_modifier) = self.header_of(request);
        let header = smp::Request { method, attribute_id, attribute_modifier, tid, m_key };
        if header.write_directed(&mut packet.mad, route.ports()).is_err() {
            return false;
        }
        packet.address = Address {
            lid: Lid::PERMISSIVE,
            qpn: Qpn::SMI,
            local_qpn: Qpn::SMI,
            ..Address::default()
        };
        let Ok(mut smp) = Smp::new(&mut packet.mad[..]) else { return false };
        method == Method::GET || self.write_data(request, smp.data_bytes_mut()).is_some()
    }

    fn route_of(&self, request: Request) -> Option<DirectedRoute> {
        match request.kind {
            Kind::OwnNodeInfo => Some(DirectedRoute::HOME),
            Kind::Probe | Kind::ProbeAgain => self.fabric.route_through(request.port()),
            _ => self.fabric.route_to(request.port()),
        }
    }

    pub(super) fn header_of(&self, request: Request) -> (Method, AttributeId, u32) {
        use AttributeId as Id;
        use Method as M;
        match request.kind {
            Kind::OwnNodeInfo | Kind::Probe | Kind::ProbeAgain => (M::GET, Id::NODE_INFO, 0),
            Kind::NodeDescription => (M::GET, Id::NODE_DESCRIPTION, 0),
            Kind::SwitchInfo | Kind::PortChange => (M::GET, Id::SWITCH_INFO, 0),
            Kind::ClearPortChange | Kind::SetSwitchInfo => (M::SET, Id::SWITCH_INFO, 0),
            Kind::PortInfo | Kind::LinkState => {
                (M::GET, Id::PORT_INFO, link::modifier(&self.fabric, request.port()))
            }
            Kind::SetAddress
            | Kind::DisablePort
            | Kind::EnablePort
            | Kind::Arm
            | Kind::Activate => {
                (M::SET, Id::PORT_INFO, link::modifier(&self.fabric, request.port()))
            }
            Kind::MlnxExtPortInfo => (M::GET, Id::MLNX_EXT_PORT_INFO, self.port_number(request)),
            Kind::SetMlnxExtPortInfo => (M::SET, Id::MLNX_EXT_PORT_INFO, self.port_number(request)),
            Kind::PKeys => (M::GET, Id::PKEY_TABLE, self.pkey_modifier(request)),
            Kind::SetPKeys => (M::SET, Id::PKEY_TABLE, self.pkey_modifier(request)),
            Kind::SmInfo => (M::GET, Id::SM_INFO, 0),
            Kind::Forwarding => (M::GET, Id::LINEAR_FORWARDING_TABLE, u32::from(request.block)),
            Kind::HandOver => (M::SET, Id::SM_INFO, SmControl::Handover as u32),
            Kind::Acknowledge => (M::SET, Id::SM_INFO, SmControl::Acknowledge as u32),
            Kind::SetForwarding => (M::SET, Id::LINEAR_FORWARDING_TABLE, u32::from(request.block)),
            Kind::SetGuidInfo => (M::SET, Id::GUID_INFO, u32::from(request.block)),
            Kind::SetSlToVl => (M::SET, Id::SL_TO_VL_MAPPING_TABLE, self.map_modifier(request)),
            Kind::SetVlArbitration => {
                let block = u32::from(request.block) + 1;
                let modifier = block << 16 | u32::from(self.table_port(request));
                (M::SET, Id::VL_ARBITRATION_TABLE, modifier)
            }
            Kind::Multicast | Kind::SetMulticast => {
                let (block, position) = block_key(request);
                let modifier = multicast_forwarding_modifier(block, position);
                let method = if request.kind.is_set() { M::SET } else { M::GET };
                (method, Id::MULTICAST_FORWARDING_TABLE, modifier)
            }
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
            Kind::SetGuidInfo => data.copy_from_slice(&self.wanted_guids(request)?),
            Kind::SetSlToVl => data[..8].copy_from_slice(&self.requested_map(request)?),
            Kind::SetVlArbitration => {
                data.copy_from_slice(&self.wanted_block(port, request.block.into())?);
            }
            Kind::SetMulticast => {
                let switch = self.fabric.switch(self.fabric.node_of(port).switch?);
                data.copy_from_slice(switch.mft.sent(block_key(request))?);
            }
            Kind::HandOver => data[..21].copy_from_slice(&self.election.own.shown(SmState::Master)),
            // Who acknowledges is in Standby still, and checked for that.
            Kind::Acknowledge => {
                data[..21].copy_from_slice(&self.election.own.shown(SmState::Standby));
            }
            Kind::OwnNodeInfo
            | Kind::Probe
            | Kind::ProbeAgain
            | Kind::NodeDescription
            | Kind::SwitchInfo
            | Kind::PortChange
            | Kind::PortInfo
            | Kind::LinkState
            | Kind::MlnxExtPortInfo
            | Kind::PKeys
            | Kind::SmInfo
            | Kind::Forwarding
            | Kind::Multicast => {}
        }
        Some(())
    }
}

//! SL-to-VL mapping and VL arbitration tables of all ports, while QoS is on, virtual fabrics have
//! bandwidth, or routes need lanes. A table that a port is known to hold is not sent again; none is
//! read, since only the master writes these tables.

use std::borrow::Cow;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::{CapabilityMask, PortState, data_vls};

use crate::fabric::{HeldQos, NodeIndex, PortIndex};
use crate::manage::port_qos::{self, VL_ARB_BLOCKS};
use crate::manage::vfabric::arbitration::PortLanes;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use sm_config::PortQos;

impl Subnet {
    /// Sets the SL-to-VL tables of active ports before routes move to other lanes, because new
    /// routes on old lanes can deadlock.
    pub(in crate::sweep) fn set_tables_of_active_ports(&mut self) {
        if self.routing.take_lanes_moved() {
            let mut ports = self.ports_with_tables();
            ports.retain(|&port| {
                let entry = self.fabric.port(port);
                entry.num == PortNum(0) || entry.state() == Some(PortState::Active)
            });
            self.push_port_tables(&ports);
        }
    }

    /// Sets the tables that ports are not known to hold.
    pub(in crate::sweep) fn set_port_tables(&mut self) {
        let ports = self.ports_with_tables();
        self.push_port_tables(&ports);
    }

    fn ports_with_tables(&self) -> Vec<PortIndex> {
        let mut ports = self.linked_ports();
        let own = self
            .fabric
            .switches()
            .filter(|(_, switch)| switch.switch_info().enhanced_port0())
            .filter_map(|(_, switch)| self.fabric.ports_of(switch.node).next());
        ports.extend(own);
        ports
    }

    fn push_port_tables(&mut self, ports: &[PortIndex]) {
        for &port in ports {
            self.push_arbitration(port);
        }
        self.push_maps(ports);
    }

    fn push_arbitration(&mut self, port: PortIndex) {
        let Some(tables) = self.wanted_arbitration(port) else { return };
        let blocks: [_; VL_ARB_BLOCKS] =
            std::array::from_fn(|block| self.block_of(port, &tables, block));
        for (block, wanted) in blocks.into_iter().enumerate() {
            if wanted.is_some_and(|entries| {
                !self.held(port).is_some_and(|h| h.arbitrates(block, &entries))
            }) {
                self.exchange.push(Request::block(Kind::SetVlArbitration, port, block as u16));
            }
        }
    }

    /// The SL-to-VL map for packets from `in_port`; `None` if the port has none.
    pub(in crate::sweep) fn wanted_map(&self, port: PortIndex, in_port: u8) -> Option<[u8; 8]> {
        let node = self.fabric.node_of(port);
        let speaker = match node.switch {
            Some(_) => self.fabric.ports_of(self.fabric.port(port).node).next()?,
            None => port,
        };
        let mask = self.fabric.port(speaker).port_info().capability_mask();
        let operational = self.fabric.port(port).port_info().operational_vls();
        mask.contains(CapabilityMask::IS_SL_MAPPING_SUPPORTED).then(|| {
            let vls = self.hop_vls(port, in_port).unwrap_or(self.qos_of(port).sl2vl);
            port_qos::sl_to_vl(&vls, operational)
        })
    }

    /// The tables whose VL arbitration a port should have; `None` if it has one data VL only.
    fn wanted_arbitration(&self, port: PortIndex) -> Option<Cow<'_, PortQos>> {
        let info = self.fabric.port(port).port_info();
        if info.vl_cap() <= 1 {
            return None;
        }
        let tables = self.qos_of(port);
        if let Some(arbitration) = self.partitions.virtual_fabrics.arbitration()
            && !port_qos::is_own(tables, &self.settings)
        {
            let lanes = PortLanes {
                vls: self.vls_by_sl(port),
                engine_sls: self.engine_sls(),
                count: data_vls(info.operational_vls()).unwrap_or(1),
                capacity: (info.vl_arbitration_low_cap(), info.vl_arbitration_high_cap()),
            };
            return Some(Cow::Owned(port_qos::of_virtual_fabrics(tables, arbitration, &lanes)));
        }
        let at_host = self.leads_from_torus_to_host(port);
        Some(match at_host {
            true => Cow::Owned(port_qos::of_torus_host_port(tables)),
            false => Cow::Borrowed(tables),
        })
    }

    /// The VLs by SL of packets that leave by a port, as bit sets.
    fn vls_by_sl(&self, port: PortIndex) -> [u16; 16] {
        let operational = self.fabric.port(port).port_info().operational_vls();
        let vls =
            self.hop_vl_sets(port).unwrap_or_else(|| self.qos_of(port).sl2vl.map(|vl| 1 << vl));
        vls.map(|vls| port_qos::folded_set(vls, operational))
    }

    fn block_of(&self, port: PortIndex, tables: &PortQos, block: usize) -> Option<[u8; 64]> {
        let info = self.fabric.port(port).port_info();
        let capacity = (info.vl_arbitration_low_cap(), info.vl_arbitration_high_cap());
        port_qos::vl_arb_block(tables, info.operational_vls(), capacity, block)
    }

    /// A block of the VL arbitration table that a port should hold; `None` if it has no such block,
    /// or one data VL only.
    fn wanted_block(&self, port: PortIndex, block: usize) -> Option<[u8; 64]> {
        let tables = self.wanted_arbitration(port)?;
        self.block_of(port, &tables, block)
    }

    fn held(&self, port: PortIndex) -> Option<&HeldQos> {
        self.fabric.port(port).qos.as_deref()
    }

    /// Discards the known tables of a node's ports.
    pub(in crate::sweep) fn forget_port_tables(&mut self, node: NodeIndex) {
        for port in self.fabric.ports_of(node) {
            self.fabric.port_mut(port).qos = None;
        }
        if let Some(switch) = self.fabric.node(node).switch {
            self.fabric.switch_mut(switch).refuses_wildcard_maps = false;
        }
    }

    fn qos_of(&self, port: PortIndex) -> &PortQos {
        self.qos_tables.of_port(self.fabric.node_of(port).kind, self.fabric.port(port).num)
    }

    /// The number by which a port's tables are addressed: 0 on channel adapters and routers.
    pub(in crate::sweep) fn table_port(&self, request: Request) -> u8 {
        let is_switch = self.fabric.node_of(request.port()).switch.is_some();
        if is_switch { self.fabric.port(request.port()).num.0 } else { 0 }
    }
}

/// VL arbitration tables, as owner of the requests that set them.
pub(in crate::sweep) struct VlArbitration;

impl RequestOwner for VlArbitration {
    type Kind = kinds::VlArbitration;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::VlArbitration::SetVlArbitration => {
                *data = subnet.wanted_block(request.port(), request.block.into())?;
                let block = u32::from(request.block) + 1;
                Some(block << 16 | u32::from(subnet.table_port(request)))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        let held = subnet.fabric.port_mut(request.port()).qos.get_or_insert_default();
        held.set_block(request.block.into(), *data);
    }
}

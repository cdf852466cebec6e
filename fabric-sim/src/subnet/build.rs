//! Builds a subnet from a net, in its state after power-on, and resets nodes to that state.
//!
//! Values that a manager does not set are those of `ibsim`'s ports unless the specification
//! requires others, so that tools print the same for both.

use std::collections::{BTreeSet, HashMap};

use ib_mad::types::{Lid, Lifetime, Mtu, PortNum};
use ib_mad::wire::attribute::{
    CapabilityMask, CapabilityMask2, LinkSpeeds, LinkSpeedsExt, LinkSpeedsExt2, LinkWidths,
    NodeDescriptionRepr, NodeType, PortInfo, PortPhysState, PortState, SwitchInfoRepr,
};

use super::traffic::RareCounters;
use crate::agent::congestion::Congestion;
use crate::agent::performance::CounterSupport;

use super::tables::{GUID_CAP, PKEY_CAP, VL_ARB_CAP, VL_CAP};
use super::{Node, NodeIndex, Port, PortIndex, Subnet, Switch, Traffic};
use ib_mad::netlist::{LinkRate, LinkSpeed, LinkWidth, Net, NodeKind};

/// Length of a PortInfo in bytes.
pub(super) const PORT_INFO_LEN: usize = 64;

/// LinearFDBCap: all unicast LIDs.
const LINEAR_FDB_CAP: u16 = 0xC000;
/// Default MulticastFDBCap.
const MULTICAST_FDB_CAP: u16 = 1024;
/// SubnetTimeOut: about a second, the minimum time between two traps.
const SUBNET_TIME_OUT: u8 = 18;
/// RespTimeValue: about 1 ms.
const RESP_TIME: u8 = 8;

const CAPABILITIES: CapabilityMask = CapabilityMask(
    CapabilityMask::IS_TRAP_SUPPORTED.0
        | CapabilityMask::IS_SL_MAPPING_SUPPORTED.0
        | CapabilityMask::IS_LED_INFO_SUPPORTED.0
        | CapabilityMask::IS_SYSTEM_IMAGE_GUID_SUPPORTED.0
        | CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED.0
        | CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED.0
        | CapabilityMask::IS_DR_NOTICE_SUPPORTED.0
        | CapabilityMask::IS_CAPABILITY_MASK_NOTICE_SUPPORTED.0
        | CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED.0
        | CapabilityMask::IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED.0,
);

/// Fixed capabilities of a port.
struct Ability {
    role: Role,
    number: u8,
    widths: LinkWidths,
    speeds: LinkSpeeds,
    speeds_ext: LinkSpeedsExt,
    speeds_ext2: LinkSpeedsExt2,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A port of a channel adapter or router.
    End,
    /// Port 0 of a switch.
    Management,
    /// An external port of a switch.
    External,
}

impl Ability {
    fn new(role: Role, number: u8, rate: LinkRate) -> Self {
        let ext = rate.speed.extended_mask_up_to();
        Self {
            role,
            number,
            widths: LinkWidths(rate.width.mask_up_to()),
            speeds: LinkSpeeds(rate.speed.mask_up_to()),
            speeds_ext: LinkSpeedsExt(ext & 0xF),
            speeds_ext2: LinkSpeedsExt2(ext >> 4),
        }
    }

    /// The capabilities of a port that a PortInfo states.
    fn of(info: &[u8; PORT_INFO_LEN]) -> Self {
        let info = PortInfo::of(info);
        let role = match (info.capability_mask(), info.local_port_num().0) {
            (CapabilityMask::NONE, _) => Role::External,
            (_, 0) => Role::Management,
            _ => Role::End,
        };
        Self {
            role,
            number: info.local_port_num().0,
            widths: info.link_width_supported(),
            speeds: info.link_speed_supported(),
            speeds_ext: info.link_speed_ext_supported(),
            speeds_ext2: info.link_speed_ext_supported2(),
        }
    }

    /// PortInfo of a port after power-on, without a link.
    fn port_info(&self) -> [u8; PORT_INFO_LEN] {
        let mut bytes = [0; PORT_INFO_LEN];
        let mut info = PortInfo::of_mut(&mut bytes);
        info.set_local_port_num(PortNum(self.number))
            .set_link_width_supported(self.widths)
            .set_link_width_enabled(self.widths)
            .set_link_width_active(LinkWidths::X4)
            .set_link_speed_supported(self.speeds)
            .set_link_speed_enabled(self.speeds)
            .set_link_speed_active(LinkSpeeds::SDR)
            .set_link_speed_ext_supported(self.speeds_ext)
            .set_link_speed_ext_enabled(self.speeds_ext)
            .set_link_speed_ext_supported2(self.speeds_ext2)
            .set_link_speed_ext_enabled2(self.speeds_ext2)
            .set_link_down_default_state(PortPhysState::Polling)
            .set_vl_cap(VL_CAP)
            .set_operational_vls(VL_CAP)
            .set_vl_arbitration_high_cap(VL_ARB_CAP)
            .set_vl_arbitration_low_cap(VL_ARB_CAP);
        if self.role == Role::Management {
            info.set_port_physical_state(PortPhysState::LinkUp)
                .set_neighbor_mtu(Mtu::B256)
                .set_mtu_cap(Mtu::B1024);
        } else {
            info.set_port_physical_state(PortPhysState::Polling)
                .set_neighbor_mtu(Mtu::B2048)
                .set_mtu_cap(Mtu::B2048)
                .set_vl_stall_count(7);
        }
        if self.role != Role::External {
            let fast = |bits: u8, then: CapabilityMask2| match self.speeds_ext.0 & bits {
                0 => CapabilityMask2::NONE,
                _ => then,
            };
            let two_lanes = match self.widths.contains(LinkWidths::X2) {
                true => CapabilityMask2::IS_LINK_WIDTH_2X_SUPPORTED,
                false => CapabilityMask2::NONE,
            };
            let capabilities = match self.role {
                Role::Management => CAPABILITIES | CapabilityMask::IS_MULTICAST_FDB_TOP_SUPPORTED,
                _ => CAPABILITIES,
            };
            info.set_capability_mask(capabilities)
                .set_capability_mask2(
                    CapabilityMask2::IS_SET_NODE_DESCRIPTION_SUPPORTED
                        | two_lanes
                        | fast(4, CapabilityMask2::IS_LINK_SPEED_HDR_SUPPORTED)
                        | fast(8, CapabilityMask2::IS_LINK_SPEED_NDR_SUPPORTED),
                )
                .set_gid_prefix(ib_mad::types::SUBNET_PREFIX_DEFAULT)
                .set_subnet_time_out(SUBNET_TIME_OUT)
                .set_resp_time_value(RESP_TIME)
                .set_guid_cap(if self.role == Role::Management { 1 } else { GUID_CAP as u8 });
        }
        bytes
    }
}

/// Resets a port to its state after power-on.
pub(super) fn reset_port_info(info: &mut [u8; PORT_INFO_LEN]) {
    *info = Ability::of(info).port_info();
}

/// State of a port after power-on: a switch's port 0 has no link to wait for.
pub(super) fn reset_state(is_switch: bool, number: u8) -> PortState {
    if is_switch && number == 0 { PortState::Active } else { PortState::Down }
}

/// Resets a switch to its state after power-on.
pub(super) fn reset_switch(switch: &mut Switch) {
    let multicast_fdb_cap = switch.info.multicast_fdb_cap;
    *switch = new_switch(switch.info.enhanced_port0);
    switch.info.multicast_fdb_cap = multicast_fdb_cap;
}

fn new_switch(enhanced_port0: bool) -> Switch {
    Switch {
        info: SwitchInfoRepr {
            linear_fdb_cap: LINEAR_FDB_CAP,
            random_fdb_cap: 0,
            multicast_fdb_cap: MULTICAST_FDB_CAP,
            linear_fdb_top: Lid::NONE,
            default_port: PortNum(0),
            default_multicast_primary_port: PortNum(0),
            default_multicast_not_primary_port: PortNum(0),
            life_time_value: Lifetime::default(),
            port_state_change: false,
            optimized_sl_to_vl_mapping_programming: 1,
            lids_per_port: 0,
            partition_enforcement_cap: PKEY_CAP as u16,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: true,
            enhanced_port0,
            multicast_fdb_top: Lid::NONE,
        },
        lft: Vec::new(),
        mft: Vec::new(),
    }
}

/// Whether several ports of an adapter have the same port GUID.
fn has_planes(node: &ib_mad::netlist::Node) -> bool {
    let mut guids = std::collections::HashSet::new();
    node.kind == NodeKind::Ca && !node.ports().all(|(_, port)| guids.insert(port.guid))
}

impl Subnet {
    /// The subnet of `net`, with all nodes powered and all links trained.
    pub(crate) fn new(net: &Net) -> Self {
        let places = net.nodes().iter().map(|node| usize::from(node.port_count()) + 1).sum();
        let mut subnet = Self {
            nodes: Vec::with_capacity(net.nodes().len()),
            ports: Vec::with_capacity(places),
            port_info: Vec::with_capacity(places),
            port_guid: Vec::with_capacity(places),
            tables: Vec::new(),
            switches: Vec::new(),
            descriptions: Vec::with_capacity(net.nodes().len()),
            names: HashMap::with_capacity(net.nodes().len()),
            counter_support: CounterSupport::default(),
            virtual_ports: HashMap::new(),
            fixed_guids: BTreeSet::new(),
            rare: RareCounters::default(),
            congestion: Congestion::default(),
            degraded: HashMap::new(),
            leases: HashMap::new(),
            leases_begun: 0,
            effects: Vec::new(),
        };
        for node in net.nodes() {
            subnet.add_node(node);
        }
        subnet.tables.resize_with(places, || None);
        for (a, b) in net.links() {
            let index = |end: ib_mad::netlist::PortRef| {
                PortIndex(subnet[NodeIndex(end.node)].first_port + u32::from(end.port))
            };
            let (a, b) = (index(a), index(b));
            subnet[a].peer = b;
            subnet[b].peer = a;
        }
        for port in (0..subnet.port_places()).map(PortIndex) {
            subnet.settle(port);
        }
        // No manager is attached yet to receive traps.
        subnet.effects.clear();
        subnet
    }

    fn add_node(&mut self, node: &ib_mad::netlist::Node) {
        let index = NodeIndex(self.nodes.len() as u32);
        let is_switch = node.kind == NodeKind::Switch;
        let mut switch = u32::MAX;
        if is_switch {
            switch = self.switches.len() as u32;
            self.switches.push(new_switch(node.enhanced_port0));
        }
        let node_type = match node.kind {
            NodeKind::Switch => NodeType::Switch,
            NodeKind::Ca => NodeType::Ca,
            NodeKind::Router => NodeType::Router,
        };
        self.names.insert(node.id.as_str().into(), index);
        self.descriptions.push(NodeDescriptionRepr::from_text(&node.description).node_string);
        self.nodes.push(Node {
            name: node.id.as_str().into(),
            node_type,
            num_ports: node.port_count(),
            up: true,
            first_port: self.ports.len() as u32,
            switch,
            has_planes: has_planes(node),
            guid: node.guid,
            system_image_guid: node.system_image_guid,
            vendor_id: node.vendor_id,
            device_id: node.device_id,
        });
        for number in 0..=node.port_count() {
            let described = node.port(number);
            let role = match (is_switch, number) {
                (false, _) => Role::End,
                (true, 0) => Role::Management,
                (true, _) => Role::External,
            };
            // Port 0 has no link that limits its speed.
            let rate = match role {
                Role::Management => LinkRate { width: LinkWidth::X4, ..node.rate },
                _ => described.map_or(node.rate, |port| port.rate),
            };
            let mut info = Ability::new(role, number, rate).port_info();
            if let Some(port) = described.filter(|_| role != Role::External) {
                PortInfo::of_mut(&mut info).set_base_lid(Lid(port.lid)).set_lmc(port.lmc);
            }
            self.ports.push(Port {
                node: index,
                number,
                cut: false,
                fdr10: rate.speed >= LinkSpeed::Fdr10,
                state: reset_state(is_switch, number),
                peer: PortIndex::NONE,
                traffic: Traffic::default(),
            });
            self.port_info.push(info);
            self.port_guid.push(described.map_or(node.guid, |port| port.guid));
        }
    }
}

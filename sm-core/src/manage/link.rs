//! What a port's PortInfo should be: addresses of end ports, settings of links, and the way of a
//! link from Initialize over Armed to Active (IBTA vol 1, 7.2.7, 14.2.5.6).

use ib_mad::types::{Lid, Mtu, Sl};
use ib_mad::wire::attribute::{CapabilityMask, NodeType, PortInfo, PortPhysState, PortState};

use crate::config::Settings;
use crate::fabric::{Fabric, PortIndex};

/// Length of PortInfo.
pub type PortInfoBytes = [u8; 64];

/// What has to be known of the subnet to configure a port.
#[derive(Clone, Copy, Debug)]
pub struct Subnet<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// LID of the SM.
    pub sm_lid: Lid,
}

/// LIDs of an end port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Base LID.
    pub base_lid: Lid,
    /// 2^LMC LIDs.
    pub lmc: u8,
    /// Whether its clients are to register again with the SA.
    pub reregister: bool,
}

/// How many LIDs an end port gets, as LMC: base switch ports have one.
pub fn lmc_of(fabric: &Fabric, port: PortIndex, settings: &Settings) -> u8 {
    match fabric.node_of(port).switch {
        Some(switch) => {
            let enhanced = fabric.switch(switch).switch_info().enhanced_port0();
            if enhanced && settings.lmc_esp0 { settings.lmc } else { 0 }
        }
        None => settings.lmc,
    }
}

/// PortInfo as an end port should have it to be addressed: LID, SM, subnet prefix and, unless it
/// is a switch's base port 0, the settings of its link. `None` if it has all that.
pub fn addressed(
    fabric: &Fabric,
    port: PortIndex,
    subnet: Subnet<'_>,
    addressing: Addressing,
) -> Option<PortInfoBytes> {
    let settings = subnet.settings;
    let current = fabric.port(port);
    let mut bytes = as_set(&current.info);
    let mut info = view(&mut bytes);
    info.set_m_key(settings.m_key)
        .set_gid_prefix(settings.subnet_prefix)
        .set_base_lid(addressing.base_lid)
        .set_lmc(addressing.lmc)
        .set_master_sm_lid(subnet.sm_lid)
        .set_master_sm_sl(Sl::from_low_bits(u16::from(settings.sm_sl)))
        .set_m_key_lease_period(settings.m_key_lease_period)
        .set_m_key_protect_bits(settings.m_key_protection_level)
        .set_subnet_time_out(settings.subnet_timeout);
    let mask = current.port_info().capability_mask();
    let reregister =
        addressing.reregister && mask.contains(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED);
    info.set_client_reregister(reregister);
    if has_link_layer(fabric, port) {
        set_link(fabric, port, settings, &mut bytes);
    }
    (reregister || differs(&current.info, &bytes)).then_some(bytes)
}

/// PortInfo as a linked port should have it before it is armed, with the step to Armed if it is
/// due. `None` if there is nothing to set. With `anyway` it is set though nothing differs.
pub fn armed(
    fabric: &Fabric,
    port: PortIndex,
    settings: &Settings,
    anyway: bool,
) -> Option<PortInfoBytes> {
    let current = fabric.port(port);
    let mut bytes = as_set(&current.info);
    set_link(fabric, port, settings, &mut bytes);
    let differs = differs(&current.info, &bytes);
    let arm = current.state() == Some(PortState::Initialize);
    let mut info = view(&mut bytes);
    if arm {
        info.set_port_state(PortState::Armed);
    } else if differs && needs_initialize(&current.info, &bytes) {
        // MTU and VLs may only change in Initialize: the link is taken through Down.
        view(&mut bytes).set_port_state(PortState::Down);
    }
    (arm || differs || anyway).then_some(bytes)
}

/// PortInfo that takes an armed port to Active; `None` if it is not Armed.
pub fn active(fabric: &Fabric, port: PortIndex) -> Option<PortInfoBytes> {
    let current = fabric.port(port);
    if current.state() != Some(PortState::Armed) {
        return None;
    }
    let mut bytes = as_set(&current.info);
    view(&mut bytes).set_port_state(PortState::Active);
    Some(bytes)
}

/// AttributeModifier of PortInfo with bit 31, by which the SM says that it knows extended speeds,
/// where the port has them.
pub fn modifier(fabric: &Fabric, port: PortIndex) -> u32 {
    const SM_SUPPORTS_EXTENDED_SPEEDS: u32 = 1 << 31;
    let extended =
        capability_mask(fabric, port).contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED);
    let num = u32::from(fabric.port(port).num.0);
    if extended { num | SM_SUPPORTS_EXTENDED_SPEEDS } else { num }
}

/// The port's CapabilityMask; a switch's external ports have that of its port 0.
pub fn capability_mask(fabric: &Fabric, port: PortIndex) -> CapabilityMask {
    let node = fabric.port(port).node;
    let holder = match fabric.node(node).switch {
        Some(_) => fabric.ports_of(node).next().unwrap_or(port),
        None => port,
    };
    fabric.port(holder).port_info().capability_mask()
}

/// Whether PortInfo's link fields mean something: not for a base switch port 0.
pub fn has_link_layer(fabric: &Fabric, port: PortIndex) -> bool {
    match fabric.node_of(port).switch {
        Some(switch) if fabric.port(port).num.0 == 0 => {
            fabric.switch(switch).switch_info().enhanced_port0()
        }
        _ => true,
    }
}

/// Sets what the two ends of a link have to agree on, and its timeouts.
fn set_link(fabric: &Fabric, port: PortIndex, settings: &Settings, bytes: &mut PortInfoBytes) {
    let current = fabric.port(port);
    let own = current.port_info();
    let peer = current.peer().map(|peer| (fabric.port(peer), fabric.node_of(peer)));
    let peer_info = peer.map(|(port, _)| port.port_info());

    let least =
        |own: u8, peer: Option<u8>| peer.filter(|&code| code != 0).map_or(own, |p| p.min(own));
    let mtu = least(own.mtu_cap(), peer_info.as_ref().map(|info| info.mtu_cap()));
    let vls = least(own.vl_cap(), peer_info.as_ref().map(|info| info.vl_cap()));

    let mut info = view(bytes);
    if let Some(mtu) = Mtu::from_code(mtu) {
        info.set_neighbor_mtu(mtu);
    }
    info.set_local_phy_errors(settings.local_phy_errors_threshold)
        .set_overrun_errors(settings.overrun_errors_threshold);
    if current.num.0 == 0 {
        return;
    }
    info.set_operational_vls(vls.clamp(1, settings.max_op_vls))
        .set_link_down_default_state(PortPhysState::Polling);
    let Some((_, peer_node)) = peer else { return };
    let leaf = peer_node.switch.is_none();
    match fabric.node(current.node).kind {
        NodeType::Switch if leaf => {
            info.set_hoq_life(settings.leaf_head_of_queue_lifetime)
                .set_vl_stall_count(settings.leaf_vl_stall_count);
        }
        NodeType::Switch => {
            info.set_hoq_life(settings.head_of_queue_lifetime)
                .set_vl_stall_count(settings.vl_stall_count);
        }
        NodeType::Router => {
            info.set_hoq_life(settings.leaf_head_of_queue_lifetime);
        }
        NodeType::Ca => {}
    }
}

/// The bytes of a Set() that changes nothing: as reported, with states "no change".
fn as_set(current: &PortInfoBytes) -> PortInfoBytes {
    let mut bytes = *current;
    view(&mut bytes)
        .set_port_state(PortState::NoChange)
        .set_port_physical_state(PortPhysState::NoChange)
        .set_client_reregister(false);
    bytes
}

/// Whether a Set() of `wanted` would change anything but states.
fn differs(current: &PortInfoBytes, wanted: &PortInfoBytes) -> bool {
    as_set(current) != *wanted
}

/// Whether a change may only be made in Initialize, and the port is beyond it.
fn needs_initialize(current: &PortInfoBytes, wanted: &PortInfoBytes) -> bool {
    let (current, wanted) = (const_view(current), const_view(wanted));
    let beyond =
        [PortState::Armed.code(), PortState::Active.code()].contains(&current.port_state());
    beyond
        && (current.neighbor_mtu() != wanted.neighbor_mtu()
            || current.operational_vls() != wanted.operational_vls())
}

fn view(bytes: &mut PortInfoBytes) -> PortInfo<&mut PortInfoBytes> {
    PortInfo::new(bytes).expect("64 bytes are a PortInfo")
}

fn const_view(bytes: &PortInfoBytes) -> PortInfo<&PortInfoBytes> {
    PortInfo::new(bytes).expect("64 bytes are a PortInfo")
}

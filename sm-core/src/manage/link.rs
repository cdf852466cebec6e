//! The PortInfo that a port should have: addresses of end ports, link settings, and the transition
//! of a link from Initialize through Armed to Active (IBA 7.2.7, 14.2.5.6).

use ib_mad::types::{Lid, Mtu, Sl};
use ib_mad::wire::attribute::{
    CapabilityMask, LinkSpeeds, LinkSpeedsExt, LinkWidths, NodeType, PortInfo, PortPhysState,
    PortState,
};

use super::pkey::PKeyPlan;
use super::port_qos;
use super::vfabric::VirtualFabrics;
use crate::fabric::{Fabric, PortIndex};
use sm_config::{QosTables, Settings};

/// Length of PortInfo.
pub type PortInfoBytes = [u8; 64];

/// Settings of the subnet needed to configure a port.
#[derive(Clone, Copy, Debug)]
pub struct Subnet<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The P_Key checks of switches.
    pub pkeys: &'a PKeyPlan,
    /// The QoS tables, while QoS is on or virtual fabrics arbitrate.
    pub qos: Option<&'a QosTables>,
    /// Virtual fabrics, which may have limits of high priority and queue lifetimes.
    pub virtual_fabrics: &'a VirtualFabrics,
}

/// LIDs of an end port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Base LID.
    pub base_lid: Lid,
    /// 2^LMC LIDs.
    pub lmc: u8,
    /// LID and SL for its SA queries: MasterSMLID and MasterSMSL.
    pub sa: (Lid, Sl),
    /// Whether its clients must register again with the SA (ClientReregister).
    pub reregister: bool,
}

/// LMC of an end port; a base switch port 0 has one LID.
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
    let current = fabric.port(port);
    let mut bytes = configured(fabric, port, subnet, Some(addressing));
    let mask = current.port_info().capability_mask();
    let reregister =
        addressing.reregister && mask.contains(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED);
    view(&mut bytes).set_client_reregister(reregister);
    // A switch's port 0 has no link to reset.
    if current.num.0 != 0 {
        reset_if_needed(&current.info, &mut bytes);
    }
    (reregister || differs(&current.info, &bytes)).then_some(bytes)
}

/// PortInfo as a linked port should have it before it is active, with the step to Armed if it is
/// due. `addressing` is that of an end port. `None` if there is nothing to set; with `anyway` it
/// is set though nothing differs.
pub fn armed(
    fabric: &Fabric,
    port: PortIndex,
    subnet: Subnet<'_>,
    addressing: Option<Addressing>,
    anyway: bool,
) -> Option<PortInfoBytes> {
    let current = fabric.port(port);
    let mut bytes = configured(fabric, port, subnet, addressing);
    let differs = differs(&current.info, &bytes);
    let arm = current.state() == Some(PortState::Initialize);
    if arm {
        view(&mut bytes).set_port_state(PortState::Armed);
    } else {
        reset_if_needed(&current.info, &mut bytes);
    }
    (arm || differs || anyway).then_some(bytes)
}

/// PortInfo that takes an armed port to Active; `None` if it is not Armed.
pub fn active(
    fabric: &Fabric,
    port: PortIndex,
    subnet: Subnet<'_>,
    addressing: Option<Addressing>,
) -> Option<PortInfoBytes> {
    if fabric.port(port).state() != Some(PortState::Armed) {
        return None;
    }
    let mut bytes = configured(fabric, port, subnet, addressing);
    view(&mut bytes).set_port_state(PortState::Active);
    Some(bytes)
}

/// PortInfo that disables a port of a switch, or restarts its link training.
pub fn switched(fabric: &Fabric, port: PortIndex, on: bool) -> PortInfoBytes {
    let mut bytes = as_set(&fabric.port(port).info);
    let state = if on { PortPhysState::Polling } else { PortPhysState::Disabled };
    view(&mut bytes).set_port_physical_state(state);
    bytes
}

/// PortInfo that takes a link down, from where it is trained again.
pub fn taken_down(fabric: &Fabric, port: PortIndex) -> PortInfoBytes {
    let mut bytes = as_set(&fabric.port(port).info);
    view(&mut bytes).set_port_state(PortState::Down);
    bytes
}

/// PortInfo with all fields that the SM decides, states unchanged. Of the reported PortInfo only
/// the capabilities are used, so that a wrong report cannot be written back as a setting.
fn configured(
    fabric: &Fabric,
    port: PortIndex,
    subnet: Subnet<'_>,
    addressing: Option<Addressing>,
) -> PortInfoBytes {
    let settings = subnet.settings;
    let mut bytes = as_set(&fabric.port(port).info);
    if let Some(addressing) = addressing {
        view(&mut bytes)
            .set_m_key(settings.m_key)
            .set_gid_prefix(settings.subnet_prefix)
            .set_base_lid(addressing.base_lid)
            .set_lmc(addressing.lmc)
            .set_master_sm_lid(addressing.sa.0)
            .set_master_sm_sl(addressing.sa.1)
            .set_m_key_lease_period(settings.m_key_lease_period)
            .set_m_key_protect_bits(settings.m_key_protection_level)
            .set_subnet_time_out(settings.subnet_timeout);
    }
    if has_link_layer(fabric, port) {
        set_link(fabric, port, subnet, &mut bytes);
    }
    bytes
}

/// AttributeModifier of PortInfo, with bit 31, by which the SM reports support of extended speeds,
/// if the port has them.
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

/// Sets the values that the two ends of a link must agree on, and its timeouts.
fn set_link(fabric: &Fabric, port: PortIndex, subnet: Subnet<'_>, bytes: &mut PortInfoBytes) {
    let settings = subnet.settings;
    let current = fabric.port(port);
    let own = current.port_info();
    let peer_port = current.peer();
    let peer = peer_port.map(|peer| (fabric.port(peer), fabric.node_of(peer)));
    let peer_info = peer.map(|(port, _)| port.port_info());

    let least =
        |own: u8, peer: Option<u8>| peer.filter(|&code| code != 0).map_or(own, |p| p.min(own));
    let mtu = least(own.mtu_cap(), peer_info.as_ref().map(|info| info.mtu_cap()));
    let mut info = view(bytes);
    if let Some(mtu) = Mtu::from_code(mtu) {
        info.set_neighbor_mtu(mtu);
    }
    info.set_local_phy_errors(settings.local_phy_errors_threshold)
        .set_overrun_errors(settings.overrun_errors_threshold);
    if current.num.0 == 0 {
        return;
    }
    info.set_operational_vls(operational_vls(fabric, port, settings))
        .set_link_down_default_state(PortPhysState::Polling);
    if let Some(qos) = subnet.qos {
        // With one data VL there is no arbitration.
        // It goes with the arbitration table of the port (IBA C14-62.1.1.11).
        let tables = qos.of_port(fabric.node(current.node).kind, current.num);
        let limit = match subnet.virtual_fabrics.arbitration() {
            Some(arbitration) if !port_qos::is_own(tables, settings) => {
                arbitration.high_limit(tables)
            }
            _ => tables.high_limit,
        };
        info.set_vl_high_limit(if own.vl_cap() <= 1 { 0 } else { limit });
    }
    if let Some(checks) = subnet.pkeys.checks(fabric, port) {
        info.set_partition_enforcement_inbound(checks.inbound)
            .set_partition_enforcement_outbound(checks.outbound);
    }
    set_enabled(settings, &mut info);
    let both_extended = peer_port.is_some_and(|peer| {
        [port, peer].into_iter().all(|end| {
            capability_mask(fabric, end).contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED)
        })
    });
    if both_extended {
        set_extended_speeds(settings, &mut info);
    }
    let Some((peer_port, peer_node)) = peer else { return };
    let leaf = peer_node.switch.is_none();
    let fabrics = subnet.virtual_fabrics;
    match fabric.node(current.node).kind {
        NodeType::Switch if leaf => {
            let life = fabrics.hoq_life_to(peer_port.guid);
            info.set_hoq_life(life.unwrap_or(settings.leaf_head_of_queue_lifetime))
                .set_vl_stall_count(settings.leaf_vl_stall_count);
        }
        NodeType::Switch => {
            info.set_hoq_life(fabrics.hoq_life().unwrap_or(settings.head_of_queue_lifetime))
                .set_vl_stall_count(settings.vl_stall_count);
        }
        NodeType::Router => {
            let life = fabrics.hoq_life();
            info.set_hoq_life(life.unwrap_or(settings.leaf_head_of_queue_lifetime));
        }
        _ => {}
    }
}

/// The OperationalVLs that a linked port is to have, a code: what both ends and the operator allow.
pub fn operational_vls(fabric: &Fabric, port: PortIndex, settings: &Settings) -> u8 {
    let vl_cap = |port: PortIndex| fabric.port(port).port_info().vl_cap();
    let peer = fabric.port(port).peer().map(vl_cap).filter(|&code| code != 0);
    peer.map_or(vl_cap(port), |peer| peer.min(vl_cap(port))).clamp(1, settings.max_op_vls)
}

/// Sets the widths and speeds that a link may have (`force_link_width`, `force_link_speed`). What a
/// port does not support is left out, because the port would refuse it.
fn set_enabled(settings: &Settings, info: &mut PortInfo<&mut PortInfoBytes>) {
    let wanted = |forced: u8, all: u8, supported: u8| match forced {
        0 => None,
        forced if forced == all => Some(all),
        forced => Some(forced & supported).filter(|&bits| bits != 0),
    };
    let all = LinkWidths::SET_TO_SUPPORTED.0;
    let (supported, enabled) = (info.link_width_supported(), info.link_width_enabled());
    if let Some(widths) = wanted(settings.force_link_width, all, supported.0)
        && (widths != all || enabled != supported)
    {
        info.set_link_width_enabled(LinkWidths(widths));
    }
    let all = LinkSpeeds::SET_TO_SUPPORTED.0;
    let (supported, enabled) = (info.link_speed_supported(), info.link_speed_enabled());
    if let Some(speeds) = wanted(settings.force_link_speed, all, supported.0)
        && (speeds != all || enabled != supported)
    {
        info.set_link_speed_enabled(LinkSpeeds(speeds));
    }
}

/// Sets the extended speeds that a link may have (`force_link_speed_ext`), if both ends have them.
fn set_extended_speeds(settings: &Settings, info: &mut PortInfo<&mut PortInfoBytes>) {
    /// LinkSpeedExtEnabled: no extended speed.
    const OFF: u8 = 30;
    let all = LinkSpeedsExt::SET_TO_SUPPORTED;
    let (supported, enabled) = (info.link_speed_ext_supported(), info.link_speed_ext_enabled());
    let wanted = match settings.force_link_speed_ext {
        0 => return,
        OFF => OFF,
        forced if forced == all.0 && enabled == supported => return,
        forced if forced == all.0 => forced,
        forced => forced & supported.0,
    };
    if wanted != 0 {
        info.set_link_speed_ext_enabled(LinkSpeedsExt(wanted));
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

/// Whether a Set() of `wanted` would change anything but states. "All supported" does not count:
/// the port resolves it, and not every port reports that it did; it is only sent with other
/// changes.
fn differs(current: &PortInfoBytes, wanted: &PortInfoBytes) -> bool {
    let (now, mut wanted) = (const_view(current), *wanted);
    let mut then = view(&mut wanted);
    if then.link_width_enabled() == LinkWidths::SET_TO_SUPPORTED {
        then.set_link_width_enabled(now.link_width_enabled());
    }
    if then.link_speed_enabled() == LinkSpeeds::SET_TO_SUPPORTED {
        then.set_link_speed_enabled(now.link_speed_enabled());
    }
    if then.link_speed_ext_enabled() == LinkSpeedsExt::SET_TO_SUPPORTED {
        then.set_link_speed_ext_enabled(now.link_speed_ext_enabled());
    }
    as_set(current) != wanted
}

/// MTU and VLs may only change in Initialize: resets an Armed or Active port through Down, from
/// which its link retrains by itself.
fn reset_if_needed(current: &PortInfoBytes, wanted: &mut PortInfoBytes) {
    let (now, then) = (const_view(current), const_view(wanted));
    let beyond = [PortState::Armed.code(), PortState::Active.code()].contains(&now.port_state());
    let changes = now.neighbor_mtu() != then.neighbor_mtu()
        || now.operational_vls() != then.operational_vls();
    if beyond && changes {
        view(wanted).set_port_state(PortState::Down);
    }
}

fn view(bytes: &mut PortInfoBytes) -> PortInfo<&mut PortInfoBytes> {
    PortInfo::of_mut(bytes)
}

fn const_view(bytes: &PortInfoBytes) -> PortInfo<&PortInfoBytes> {
    PortInfo::of(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Guid, PortNum};
    use ib_mad::wire::attribute::{NodeInfo, NodeInfoRepr};

    /// A switch and a channel adapter, linked, both in `state`, with the MTUs of their MTUCap.
    fn pair(state: PortState) -> (Fabric, PortIndex, PortIndex) {
        let mut fabric = Fabric::default();
        let mut ends = [(NodeType::Switch, 4), (NodeType::Ca, 1)].map(|(kind, ports)| {
            let guid = Guid(kind.code().into());
            let mut bytes = [0; 40];
            NodeInfo::new(&mut bytes[..])
                .unwrap()
                .set_node_type(kind)
                .set_num_ports(ports)
                .set_node_guid(guid)
                .set_port_guid(guid);
            assert!(NodeInfoRepr::parse(&NodeInfo::new(&bytes).unwrap()).is_ok());
            let node = fabric.add(&NodeInfo::new(&bytes[..]).unwrap(), kind).unwrap();
            fabric.port_of(node, PortNum(1)).unwrap()
        });
        fabric.link(ends[0], ends[1]);
        for (port, mtu) in ends.iter_mut().zip([Mtu::B4096, Mtu::B2048]) {
            let entry = fabric.port_mut(*port);
            entry.known = true;
            view(&mut entry.info)
                .set_port_state(state)
                .set_mtu_cap(mtu)
                .set_neighbor_mtu(mtu)
                .set_vl_cap(4)
                .set_operational_vls(4);
        }
        (fabric, ends[0], ends[1])
    }

    fn arm(fabric: &Fabric, port: PortIndex, anyway: bool) -> Option<PortInfoBytes> {
        let settings = Settings::default();
        armed(
            fabric,
            port,
            Subnet {
                settings: &settings,
                pkeys: &PKeyPlan::default(),
                qos: None,
                virtual_fabrics: &VirtualFabrics::default(),
            },
            None,
            anyway,
        )
    }

    fn armed_info(fabric: &Fabric, port: PortIndex) -> PortInfo<PortInfoBytes> {
        PortInfo::new(arm(fabric, port, false).unwrap()).unwrap()
    }

    #[test]
    fn both_ends_get_the_smaller_mtu_and_the_leaf_its_timeouts() {
        let (fabric, leaf, host) = pair(PortState::Initialize);
        for port in [leaf, host] {
            let info = armed_info(&fabric, port);
            assert_eq!(info.neighbor_mtu(), Mtu::B2048.code());
            assert_eq!(info.port_state(), PortState::Armed.code());
        }
        let info = armed_info(&fabric, leaf);
        assert_eq!((info.hoq_life(), info.vl_stall_count()), (0x10, 7));
    }

    #[test]
    fn an_active_port_whose_mtu_changes_goes_through_down() {
        let (fabric, leaf, host) = pair(PortState::Active);
        assert_eq!(armed_info(&fabric, leaf).port_state(), PortState::Down.code());
        let info = armed_info(&fabric, host);
        assert_eq!(info.port_state(), PortState::NoChange.code(), "its MTU stays");
    }

    #[test]
    fn what_is_as_it_should_be_is_not_set() {
        let (mut fabric, leaf, _) = pair(PortState::Active);
        let mut wanted = arm(&fabric, leaf, false).unwrap();
        view(&mut wanted).set_port_state(PortState::Active);
        fabric.port_mut(leaf).info = wanted;
        assert_eq!(arm(&fabric, leaf, false), None);
        let anyway = arm(&fabric, leaf, true).unwrap();
        assert_eq!(const_view(&anyway).port_state(), PortState::NoChange.code());
    }

    #[test]
    fn clients_register_again_only_behind_capable_ports() {
        let (mut fabric, _, host) = pair(PortState::Active);
        let settings = Settings::default();
        let subnet = Subnet {
            settings: &settings,
            pkeys: &PKeyPlan::default(),
            qos: None,
            virtual_fabrics: &VirtualFabrics::default(),
        };
        let sa = (Lid(1), Sl::default());
        let addressing = Addressing { base_lid: Lid(7), lmc: 0, sa, reregister: true };
        let info = addressed(&fabric, host, subnet, addressing).unwrap();
        assert!(!const_view(&info).client_reregister());
        assert_eq!(const_view(&info).base_lid(), Lid(7));
        view(&mut fabric.port_mut(host).info)
            .set_capability_mask(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED);
        let info = addressed(&fabric, host, subnet, addressing).unwrap();
        assert!(const_view(&info).client_reregister());
    }

    fn enabled(info: &PortInfo<PortInfoBytes>) -> (u8, u8, u8) {
        let (width, speed) = (info.link_width_enabled().0, info.link_speed_enabled().0);
        (width, speed, info.link_speed_ext_enabled().0)
    }

    /// Values of force_link_width, force_link_speed and force_link_speed_ext, and their effect on a
    /// port that supports 1x and 4x, up to 5 Gb/s and 14 and 25 Gb/s, and has fewer of these
    /// enabled.
    #[test]
    fn widths_and_speeds_are_as_forced_within_what_is_supported() {
        let (mut fabric, leaf, host) = pair(PortState::Initialize);
        for port in [leaf, host] {
            view(&mut fabric.port_mut(port).info)
                .set_link_width_supported(LinkWidths(3))
                .set_link_width_enabled(LinkWidths(1))
                .set_link_speed_supported(LinkSpeeds(3))
                .set_link_speed_enabled(LinkSpeeds(1))
                .set_link_speed_ext_supported(LinkSpeedsExt(3))
                .set_link_speed_ext_enabled(LinkSpeedsExt(1));
        }
        let set = |fabric: &Fabric, port, [width, speed, speed_ext]: [u8; 3]| {
            let settings = Settings {
                force_link_width: width,
                force_link_speed: speed,
                force_link_speed_ext: speed_ext,
                ..Settings::default()
            };
            let pkeys = PKeyPlan::default();
            let virtual_fabrics = &VirtualFabrics::default();
            let subnet = Subnet { settings: &settings, pkeys: &pkeys, qos: None, virtual_fabrics };
            enabled(&PortInfo::new(armed(fabric, port, subnet, None, true).unwrap()).unwrap())
        };
        let cases = [
            ([255, 15, 31], (255, 15, 1)),
            ([0, 0, 0], (1, 1, 1)),
            ([2, 5, 30], (2, 1, 1)),
            ([16, 4, 8], (1, 1, 1)),
        ];
        for (forced, expected) in cases {
            assert_eq!(set(&fabric, leaf, forced), expected, "{forced:?}");
        }
        // A switch's capabilities are those of its port 0.
        let switch = fabric.port(leaf).node;
        let port0 = fabric.ports_of(switch).next().unwrap();
        for port in [port0, host] {
            view(&mut fabric.port_mut(port).info)
                .set_capability_mask(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED);
        }
        for (forced, expected) in [(31, 31), (0, 1), (30, 30), (2, 2), (8, 1)] {
            for port in [leaf, host] {
                assert_eq!(set(&fabric, port, [0, 0, forced]), (1, 1, expected), "{forced}");
            }
        }
    }

    /// Regression: some simulators and old firmware do not report the change; it was set again
    /// forever.
    #[test]
    fn what_is_supported_is_asked_for_only_beside_something_else() {
        let (mut fabric, leaf, _) = pair(PortState::Active);
        let settings = Settings::default();
        let pkeys = PKeyPlan::default();
        let virtual_fabrics = &VirtualFabrics::default();
        let subnet = || Subnet { settings: &settings, pkeys: &pkeys, qos: None, virtual_fabrics };
        let info = armed(&fabric, leaf, subnet(), None, true).unwrap();
        fabric.port_mut(leaf).info = info;
        view(&mut fabric.port_mut(leaf).info)
            .set_link_width_supported(LinkWidths(3))
            .set_link_width_enabled(LinkWidths(1))
            .set_port_state(PortState::Active);
        assert!(armed(&fabric, leaf, subnet(), None, false).is_none());
        let info = armed(&fabric, leaf, subnet(), None, true).unwrap();
        assert_eq!(const_view(&info).link_width_enabled(), LinkWidths::SET_TO_SUPPORTED);
    }
}

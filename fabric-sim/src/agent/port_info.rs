//! PortInfo (IBA 14.2.5.6) and its vendor extension: which fields can be read and set, to which
//! values, and the changes of state that a manager may request.
//!
//! A Set() is checked completely before any of it is applied.

use ib_mad::types::{Lid, Mtu, PortNum};
use ib_mad::wire::attribute::{
    LinkSpeeds, LinkSpeedsExt, LinkSpeedsExt2, LinkWidths, MlnxExtPortInfo, MlnxLinkSpeeds,
    PortInfo, PortPhysState, PortState, data_vls,
};
use ib_mad::wire::mad::Status;

use super::{Data, INVALID, Query, UNSUPPORTED};
use crate::subnet::{Effect, PortIndex, Subnet};

/// Modifier bit by which a requester announces support of extended speeds; ports here report them
/// in any case.
const SM_SUPPORTS_EXTENDED_SPEEDS: u32 = 1 << 31;
const MELLANOX: u32 = 0x00_02C9;

type View<'a> = PortInfo<&'a Data>;

pub(super) fn port_info(subnet: &mut Subnet, query: &Query, data: &mut Data) -> Result<(), Status> {
    let port = named_port(subnet, query, query.modifier & !SM_SUPPORTS_EXTENDED_SPEEDS)?;
    if query.set {
        set(subnet, port, &PortInfo::of(data))?;
    }
    *data = read_port_info(subnet, port, subnet[query.port].number);
    if !query.knows_key {
        PortInfo::of_mut(data).set_m_key(0);
    }
    Ok(())
}

/// PortInfo as returned to a request that arrived by port `asked_by` of the same node.
pub(crate) fn read_port_info(subnet: &Subnet, port: PortIndex, asked_by: u8) -> Data {
    let mut bytes = *subnet.port_info(port).into_inner();
    let mut info = PortInfo::of_mut(&mut bytes);
    info.set_local_port_num(PortNum(asked_by)).set_port_state(subnet.port_state(port));
    bytes
}

/// The port that a modifier selects: 0 is the port addressed, except on switches.
fn named_port(subnet: &Subnet, query: &Query, modifier: u32) -> Result<PortIndex, Status> {
    if modifier == 0 && !subnet[query.node].is_switch() {
        return Ok(query.port);
    }
    let number = u8::try_from(modifier).map_err(|_| INVALID)?;
    let port = subnet.port(query.node, number).ok_or(INVALID)?;
    if query.set && !subnet[query.node].is_switch() && port != query.port {
        return Err(INVALID); // Each port of an adapter has its own agent.
    }
    Ok(port)
}

fn set(subnet: &mut Subnet, port: PortIndex, asked: &View<'_>) -> Result<(), Status> {
    let kind = Kind::of(subnet, port);
    check(subnet, port, kind, asked)?;
    let state_asked = PortState::from_code(asked.port_state()).ok_or(INVALID)?;
    let phys_asked = PortPhysState::from_code(asked.port_physical_state()).ok_or(INVALID)?;
    check_states(subnet, port, kind, state_asked, phys_asked)?;

    configure_link(subnet, port, asked);
    if kind != Kind::External {
        configure_end_port(subnet, port, kind, asked);
    }
    change_states(subnet, port, state_asked, phys_asked);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A port of an adapter or router, or an enhanced switch port 0.
    End,
    /// Base switch port 0, which has no virtual lanes.
    BasePort0,
    /// An external port of a switch.
    External,
}

impl Kind {
    fn of(subnet: &Subnet, port: PortIndex) -> Self {
        let at = &subnet[port];
        match subnet.switch(at.node) {
            Some(_) if at.number != 0 => Self::External,
            Some(switch) if !switch.info.enhanced_port0 => Self::BasePort0,
            _ => Self::End,
        }
    }
}

fn check(subnet: &Subnet, port: PortIndex, kind: Kind, asked: &View<'_>) -> Result<(), Status> {
    let now = subnet.port_info(port);
    let within = |value: u8, supported: u8, all: u8| value == all || value & !supported == 0;
    let widths = now.link_width_supported().0;
    let ext = asked.link_speed_ext_enabled();
    let valid = within(asked.link_width_enabled().0, widths, LinkWidths::SET_TO_SUPPORTED.0)
        && within(
            asked.link_speed_enabled().0,
            now.link_speed_supported().0,
            LinkSpeeds::SET_TO_SUPPORTED.0,
        )
        && (ext == LinkSpeedsExt::DISABLE
            || within(ext.0, now.link_speed_ext_supported().0, LinkSpeedsExt::SET_TO_SUPPORTED.0))
        && asked.link_speed_ext_enabled2().0 & !now.link_speed_ext_supported2().0 == 0
        && Mtu::from_code(asked.neighbor_mtu()).is_some_and(|mtu| mtu.code() <= now.mtu_cap())
        && (asked.operational_vls() == 0
            || data_vls(asked.operational_vls()).is_some()
                && asked.operational_vls() <= now.vl_cap())
        && asked.link_down_default_state() <= PortPhysState::Polling.code();
    let addressed = kind == Kind::External
        || asked.base_lid() <= Lid::UNICAST_LAST
            && asked.master_sm_lid() <= Lid::UNICAST_LAST
            && asked.base_lid().0.trailing_zeros() >= u32::from(asked.lmc())
            && (kind == Kind::End || asked.lmc() == 0);
    if valid && addressed { Ok(()) } else { Err(INVALID) }
}

/// Whether the link state machine allows the transition from the present state.
fn check_states(
    subnet: &Subnet,
    port: PortIndex,
    kind: Kind,
    state: PortState,
    phys: PortPhysState,
) -> Result<(), Status> {
    use PortState::{Active, Armed, Down, Initialize, NoChange};
    let is_port0 = subnet[port].number == 0;
    let peer_state = subnet.wired_peer(port).map(|peer| subnet.port_state(peer));
    let now = subnet.port_state(port);
    let allowed = match (now, state) {
        (_, NoChange) => true,
        _ if is_port0 => state == now && kind != Kind::External,
        (_, Down) => true,
        (Initialize | Armed, Armed) => true,
        // The neighbour must at least be armed, or no packet sent would arrive.
        (Armed, Active) => matches!(peer_state, Some(Armed | Active)),
        _ => false,
    };
    let phys_allowed = match phys {
        PortPhysState::NoChange => true,
        PortPhysState::Sleep | PortPhysState::Polling | PortPhysState::Disabled => {
            !is_port0 && matches!(state, NoChange | Down)
        }
        _ => false,
    };
    if allowed && phys_allowed { Ok(()) } else { Err(INVALID) }
}

fn configure_link(subnet: &mut Subnet, port: PortIndex, asked: &View<'_>) {
    let mut info = subnet.port_info_mut(port);
    match asked.link_width_enabled() {
        LinkWidths::NONE => {}
        LinkWidths::SET_TO_SUPPORTED => {
            let supported = info.link_width_supported();
            info.set_link_width_enabled(supported);
        }
        widths => {
            info.set_link_width_enabled(widths);
        }
    }
    match asked.link_speed_enabled() {
        LinkSpeeds::NONE => {}
        LinkSpeeds::SET_TO_SUPPORTED => {
            let supported = info.link_speed_supported();
            info.set_link_speed_enabled(supported);
        }
        speeds => {
            info.set_link_speed_enabled(speeds);
        }
    }
    match asked.link_speed_ext_enabled() {
        LinkSpeedsExt::NONE => {}
        LinkSpeedsExt::DISABLE => {
            info.set_link_speed_ext_enabled(LinkSpeedsExt::NONE);
        }
        LinkSpeedsExt::SET_TO_SUPPORTED => {
            let supported = info.link_speed_ext_supported();
            info.set_link_speed_ext_enabled(supported);
        }
        speeds => {
            info.set_link_speed_ext_enabled(speeds);
        }
    }
    match asked.link_speed_ext_enabled2() {
        LinkSpeedsExt2::NONE => {}
        speeds => {
            info.set_link_speed_ext_enabled2(speeds);
        }
    }
    if let Some(mtu) = Mtu::from_code(asked.neighbor_mtu()) {
        info.set_neighbor_mtu(mtu);
    }
    if let Some(default @ (PortPhysState::Sleep | PortPhysState::Polling)) =
        PortPhysState::from_code(asked.link_down_default_state())
    {
        info.set_link_down_default_state(default);
    }
    if asked.operational_vls() != 0 {
        info.set_operational_vls(asked.operational_vls());
    }
    info.set_vl_high_limit(asked.vl_high_limit())
        .set_vl_stall_count(asked.vl_stall_count())
        .set_hoq_life(asked.hoq_life())
        .set_partition_enforcement_inbound(asked.partition_enforcement_inbound())
        .set_partition_enforcement_outbound(asked.partition_enforcement_outbound())
        .set_filter_raw_inbound(asked.filter_raw_inbound())
        .set_filter_raw_outbound(asked.filter_raw_outbound())
        .set_local_phy_errors(asked.local_phy_errors())
        .set_overrun_errors(asked.overrun_errors());
}

fn configure_end_port(subnet: &mut Subnet, port: PortIndex, kind: Kind, asked: &View<'_>) {
    let mut info = subnet.port_info_mut(port);
    info.set_m_key(asked.m_key())
        .set_m_key_protect_bits(asked.m_key_protect_bits())
        .set_m_key_lease_period(asked.m_key_lease_period())
        .set_m_key_violations(asked.m_key_violations())
        .set_p_key_violations(asked.p_key_violations())
        .set_q_key_violations(asked.q_key_violations())
        .set_gid_prefix(asked.gid_prefix())
        .set_base_lid(asked.base_lid())
        .set_lmc(if kind == Kind::BasePort0 { 0 } else { asked.lmc() })
        .set_master_sm_lid(asked.master_sm_lid())
        .set_master_sm_sl(asked.master_sm_sl())
        .set_init_type_reply(asked.init_type_reply())
        .set_multicast_pkey_trap_suppression_enabled(
            asked.multicast_pkey_trap_suppression_enabled(),
        )
        .set_subnet_time_out(asked.subnet_time_out());
    if asked.client_reregister() {
        subnet.effects.push(Effect::Reregister(port));
    }
}

/// Applies the state changes that [`check_states`] allowed.
fn change_states(subnet: &mut Subnet, port: PortIndex, state: PortState, phys: PortPhysState) {
    match state {
        PortState::Armed | PortState::Active => {
            subnet.set_port_state(port, state);
        }
        PortState::Down => subnet.drop_link(port),
        PortState::NoChange | PortState::Initialize | PortState::ActiveDefer => {}
    }
    if phys != PortPhysState::NoChange {
        subnet.drop_link(port);
        subnet.port_info_mut(port).set_port_physical_state(phys);
    }
    if state == PortState::Down || phys != PortPhysState::NoChange {
        subnet.settle(port);
    }
}

pub(super) fn mlnx_ext_port_info(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    /// StateChangeEnable bit: LinkSpeedEnabled is valid.
    const SPEED_ENABLED: u8 = 1;
    let port = named_port(subnet, query, query.modifier)?;
    let fdr10 = subnet[port].fdr10;
    if subnet[query.node].vendor_id != MELLANOX && !fdr10 {
        return Err(UNSUPPORTED);
    }
    let supported = if fdr10 { MlnxLinkSpeeds::FDR10 } else { MlnxLinkSpeeds::NONE };
    if query.set {
        let asked = MlnxExtPortInfo::of(data);
        let speeds = asked.link_speed_enabled();
        if speeds.0 & !supported.0 != 0 {
            return Err(INVALID);
        }
        if asked.state_change_enable() & SPEED_ENABLED != 0 {
            subnet.tables_mut(port).mlnx_speed_enabled = Some(speeds.0);
        }
    }
    let active = fdr10_active(subnet, port);
    data.fill(0);
    MlnxExtPortInfo::of_mut(data)
        .set_link_speed_supported(supported)
        .set_link_speed_enabled(MlnxLinkSpeeds(fdr10_enabled(subnet, port)))
        .set_link_speed_active(if active { supported } else { MlnxLinkSpeeds::NONE });
    Ok(())
}

pub(crate) fn fdr10_enabled(subnet: &Subnet, port: PortIndex) -> u8 {
    let set = subnet.tables(port).and_then(|tables| tables.mlnx_speed_enabled);
    set.unwrap_or(u8::from(subnet[port].fdr10))
}

/// Whether a link at QDR runs FDR10 instead: both ports enable it.
pub(crate) fn fdr10_active(subnet: &Subnet, port: PortIndex) -> bool {
    let info = subnet.port_info(port);
    let Some(peer) = subnet.wired_peer(port) else { return false };
    info.port_physical_state() == PortPhysState::LinkUp.code()
        && info.link_speed_active() == LinkSpeeds::QDR
        && info.link_speed_ext_active() == LinkSpeedsExt::NONE
        && fdr10_enabled(subnet, port) & fdr10_enabled(subnet, peer) != 0
}

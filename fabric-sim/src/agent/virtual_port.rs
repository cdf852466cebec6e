//! Virtual ports of adapters' ports (vendor-specific; see `ib_mad::wire::attribute`): their states,
//! LIDs and P_Key tables.
//!
//! A virtual function that has a driver is *plugged*: its virtual port leaves Down once the manager
//! has enabled virtual ports. Packets to virtual ports are addressed to the LID of the physical
//! port and delivered to its clients.

use std::collections::BTreeMap;

use ib_mad::types::{Guid, Lid, PKey, PortNum};
use ib_mad::wire::attribute::{
    CapabilityMask2, LocalChanges, NodeDescriptionRepr, PKEYS_PER_BLOCK, PortPhysState, PortState,
    VNodeInfoRepr, VPKeyTable, VPORT_STATES_PER_BLOCK, VPortCapabilityMask, VPortInfo,
    VPortInfoRepr, VPortState, VirtualizationInfo, VirtualizationInfoRepr,
};
use ib_mad::wire::mad::Status;

use super::{Data, INVALID, Query, UNSUPPORTED, trap};
use crate::subnet::{PortIndex, Subnet};

/// P_Keys of a virtual port.
const PKEY_CAP: usize = 4 * PKEYS_PER_BLOCK;
/// GUIDs of a virtual port.
const GUID_CAP: u8 = 1;

type PKeys = [PKey; PKEYS_PER_BLOCK];

/// The virtual ports of a port.
#[derive(Debug)]
pub(crate) struct VirtualPorts {
    /// The highest supported index.
    cap: u16,
    is_enabled: bool,
    /// VPortStateChange.
    has_changed: bool,
    ports: BTreeMap<u16, VirtualPort>,
}

/// A virtual port. Port 0, the physical function, is always plugged.
#[derive(Debug)]
struct VirtualPort {
    is_plugged: bool,
    /// Its state while it is plugged, virtual ports are enabled and the link is up.
    state: PortState,
    guid: Guid,
    needs_lid: bool,
    lid: Lid,
    pkeys: BTreeMap<u16, PKeys>,
}

/// State of a virtual port, for tests and operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualPortView {
    /// Its index.
    pub index: u16,
    /// Its GUID.
    pub guid: Guid,
    /// Its state.
    pub state: PortState,
    /// Its own LID; `Lid::NONE` if it uses that of the physical port.
    pub lid: Lid,
    /// Its P_Key table, up to the last valid key.
    pub pkeys: Vec<PKey>,
}

impl VirtualPort {
    fn new(guid: Guid, is_plugged: bool) -> Self {
        Self {
            is_plugged,
            state: PortState::Initialize,
            guid,
            needs_lid: false,
            lid: Lid::NONE,
            pkeys: BTreeMap::new(),
        }
    }

    /// Forgets what a manager set.
    fn reset(&mut self) {
        (self.state, self.lid) = (PortState::Initialize, Lid::NONE);
        self.pkeys.clear();
    }
}

impl VirtualPorts {
    /// The highest index of a plugged virtual port.
    fn top(&self) -> u16 {
        let mut plugged = self.ports.iter().filter(|(_, port)| port.is_plugged);
        plugged.next_back().map_or(0, |(&index, _)| index)
    }

    /// The link went down: all virtual ports begin again when it is up.
    pub(crate) fn link_down(&mut self) {
        for port in self.ports.values_mut() {
            port.state = PortState::Initialize;
        }
    }

    /// The host was powered off and on.
    pub(crate) fn reset(&mut self) {
        (self.is_enabled, self.has_changed) = (false, false);
        self.ports.values_mut().for_each(VirtualPort::reset);
    }
}

/// GUID of a virtual port that has none of its own yet.
fn default_guid(port: Guid, index: u16) -> Guid {
    match index {
        0 => port,
        index => Guid(0x02 << 56 | u64::from(index) << 40 | port.0 & 0xFF_FFFF_FFFF),
    }
}

/// Gives `port` virtual ports 0 to `cap`, of which those after 0 are not plugged. PortInfo shows
/// the capability.
pub(crate) fn add(subnet: &mut Subnet, port: PortIndex, cap: u16) {
    let guid = subnet.port_guid(port);
    let ports = BTreeMap::from([(0, VirtualPort::new(guid, true))]);
    let virtual_ports = VirtualPorts { cap, is_enabled: false, has_changed: false, ports };
    subnet.virtual_ports.insert(port, virtual_ports);
    show(subnet, port);
}

/// Sets the capability in PortInfo of a port that has virtual ports.
pub(crate) fn show(subnet: &mut Subnet, port: PortIndex) {
    if subnet.virtual_ports.contains_key(&port) {
        let mut info = subnet.port_info_mut(port);
        let mask = info.capability_mask2();
        info.set_capability_mask2(mask | CapabilityMask2::IS_VIRTUALIZATION_SUPPORTED);
    }
}

/// Plugs virtual port `index`, with this GUID or its last or default one, or unplugs it. Returns
/// `false` if the port does not support the index.
pub(crate) fn plug(
    subnet: &mut Subnet,
    port: PortIndex,
    index: u16,
    guid: Option<Guid>,
    is_plugged: bool,
) -> bool {
    let default = default_guid(subnet.port_guid(port), index);
    let Some(all) = subnet.virtual_ports.get_mut(&port) else { return false };
    if index == 0 || index > all.cap {
        return false;
    }
    let entry = all.ports.entry(index).or_insert_with(|| VirtualPort::new(default, false));
    entry.reset();
    entry.is_plugged = is_plugged;
    entry.guid = guid.unwrap_or(entry.guid);
    note_change(subnet, port);
    true
}

/// Sets whether virtual port `index` needs a LID of its own. Returns `false` if it does not exist.
pub(crate) fn set_needs_lid(subnet: &mut Subnet, port: PortIndex, index: u16, needs: bool) -> bool {
    let all = subnet.virtual_ports.get_mut(&port);
    let Some(entry) = all.and_then(|all| all.ports.get_mut(&index)) else { return false };
    entry.needs_lid = needs;
    note_change(subnet, port);
    true
}

/// Sets VPortStateChange, and sends trap 144 if it was not set.
fn note_change(subnet: &mut Subnet, port: PortIndex) {
    let Some(all) = subnet.virtual_ports.get_mut(&port).filter(|all| all.is_enabled) else {
        return;
    };
    if !std::mem::replace(&mut all.has_changed, true) {
        trap::local_changes(subnet, port, LocalChanges::NONE);
    }
}

/// The virtual ports of `port`.
pub(crate) fn views(subnet: &Subnet, port: PortIndex) -> Vec<VirtualPortView> {
    let Some(all) = subnet.virtual_ports.get(&port) else { return Vec::new() };
    let view = |(&index, entry): (&u16, &VirtualPort)| {
        let blocks = (0..(PKEY_CAP / PKEYS_PER_BLOCK) as u16).map(|block| pkeys(entry, block));
        let mut pkeys: Vec<PKey> = blocks.flatten().collect();
        let used = pkeys.iter().rposition(|key| key.is_valid()).map_or(0, |last| last + 1);
        pkeys.truncate(used);
        let state = state(subnet, port, index);
        VirtualPortView { index, guid: entry.guid, state, lid: entry.lid, pkeys }
    };
    all.ports.iter().map(view).collect()
}

/// The state that an agent shows of a virtual port.
fn state(subnet: &Subnet, port: PortIndex, index: u16) -> PortState {
    let Some(all) = subnet.virtual_ports.get(&port) else { return PortState::Down };
    let is_up = subnet.phys_state(port) == PortPhysState::LinkUp;
    match all.ports.get(&index) {
        Some(_) if index == 0 && !all.is_enabled => subnet.port_state(port),
        Some(entry) if entry.is_plugged && all.is_enabled && is_up => entry.state,
        _ => PortState::Down,
    }
}

fn pkeys(entry: &VirtualPort, block: u16) -> PKeys {
    let mut reset = [PKey(0); PKEYS_PER_BLOCK];
    if block == 0 {
        reset[0] = PKey::DEFAULT_FULL;
    }
    entry.pkeys.get(&block).copied().unwrap_or(reset)
}

/// The virtual ports of the port addressed.
fn of<'a>(subnet: &'a mut Subnet, query: &Query) -> Result<&'a mut VirtualPorts, Status> {
    subnet.virtual_ports.get_mut(&query.port).ok_or(UNSUPPORTED)
}

/// The virtual port that the modifier selects, and its index and block.
fn selected<'a>(
    subnet: &'a mut Subnet,
    query: &Query,
) -> Result<(&'a mut VirtualPort, u16, u16), Status> {
    let (index, block) = ((query.modifier >> 16) as u16, query.modifier as u16);
    let entry = of(subnet, query)?.ports.get_mut(&index).ok_or(INVALID)?;
    Ok((entry, index, block))
}

pub(super) fn virtualization_info(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let all = of(subnet, query)?;
    if query.modifier != 0 {
        return Err(INVALID);
    }
    if query.set {
        let asked = VirtualizationInfo::of(data);
        if asked.virtualization_enable() != all.is_enabled {
            all.is_enabled = !all.is_enabled;
            all.ports.values_mut().for_each(|port| port.state = PortState::Initialize);
        }
        all.has_changed &= !asked.vport_state_change();
    }
    let info = VirtualizationInfoRepr {
        vport_cap: all.cap,
        vport_index_top: all.top(),
        virtualization_enable: all.is_enabled,
        client_reregister: false,
        vport_state_change: all.has_changed,
        revision: 0,
        capability_mask: 0,
    };
    data.fill(0);
    data[..8].copy_from_slice(&info.to_bytes());
    Ok(())
}

pub(super) fn vport_state(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    query.only_get()?;
    let cap = u32::from(of(subnet, query)?.cap);
    let first = query.modifier.saturating_mul(VPORT_STATES_PER_BLOCK as u32);
    if query.modifier > u32::from(u16::MAX) || first > cap {
        return Err(INVALID);
    }
    data.fill(0);
    for place in 0..VPORT_STATES_PER_BLOCK {
        let index = first + place as u32;
        let state = u16::try_from(index).map(|index| state(subnet, query.port, index));
        VPortState::of_mut(data).set_state(place, state.unwrap_or(PortState::Down));
    }
    Ok(())
}

pub(super) fn vport_info(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let index = selected(subnet, query)?.1;
    if query.set {
        set_vport_info(subnet, query, index, &VPortInfo::of(data))?;
    }
    let state = state(subnet, query.port, index);
    let (entry, ..) = selected(subnet, query)?;
    let info = VPortInfoRepr {
        vport_state: state,
        client_reregister: false,
        lid_required: entry.needs_lid,
        guid_cap: GUID_CAP,
        capability_mask: VPortCapabilityMask::IS_COMMUNICATION_MANAGEMENT_SUPPORTED,
        p_key_violations: 0,
        q_key_violations: 0,
        lid: entry.lid,
        lid_by_vport_index: 0,
        port_guid: entry.guid,
        profile_guid: Guid(0),
    };
    data.fill(0);
    data[..28].copy_from_slice(&info.to_bytes());
    Ok(())
}

fn set_vport_info(
    subnet: &mut Subnet,
    query: &Query,
    index: u16,
    asked: &VPortInfo<&Data>,
) -> Result<(), Status> {
    use PortState::{Active, Armed, Initialize, NoChange};
    let now = state(subnet, query.port, index);
    let is_port_active = subnet.port_state(query.port) == Active;
    let asked_state = PortState::from_code(asked.vport_state()).ok_or(INVALID)?;
    let is_allowed = match (now, asked_state) {
        (_, NoChange) | (Initialize | Armed, Armed) => true,
        // Data passes only if it passes the physical port.
        (Armed, Active) => is_port_active,
        _ => false,
    };
    if !is_allowed || asked.lid() > Lid::UNICAST_LAST {
        return Err(INVALID);
    }
    let (entry, ..) = selected(subnet, query)?;
    if asked_state != NoChange {
        entry.state = asked_state;
    }
    if entry.needs_lid {
        entry.lid = asked.lid();
    }
    Ok(())
}

pub(super) fn vnode_info(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    query.only_get()?;
    let (entry, ..) = selected(subnet, query)?;
    let info = VNodeInfoRepr {
        partition_cap: PKEY_CAP as u16,
        local_port_num: PortNum(1),
        num_ports: 1,
        node_guid: entry.guid,
    };
    data.fill(0);
    data[..12].copy_from_slice(&info.to_bytes());
    Ok(())
}

pub(super) fn vnode_description(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    query.only_get()?;
    let index = selected(subnet, query)?.1;
    let host = NodeDescriptionRepr { node_string: *subnet.description(query.node) };
    let text = format!("{} vf{index}", host.text());
    *data = NodeDescriptionRepr::from_text(&text).node_string;
    Ok(())
}

pub(super) fn vport_guid_info(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    query.only_get()?;
    let (entry, _, block) = selected(subnet, query)?;
    if block != 0 {
        return Err(INVALID);
    }
    let guid = entry.guid;
    data.fill(0);
    data[..8].copy_from_slice(&guid.0.to_be_bytes());
    Ok(())
}

pub(super) fn vpkey_table(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let (entry, _, block) = selected(subnet, query)?;
    if usize::from(block) >= PKEY_CAP / PKEYS_PER_BLOCK {
        return Err(INVALID);
    }
    if query.set {
        entry.pkeys.insert(block, VPKeyTable::of(data).pkeys());
    }
    let keys = pkeys(entry, block);
    VPKeyTable::of_mut(data).set_pkeys(&keys);
    Ok(())
}

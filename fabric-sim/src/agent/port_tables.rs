//! Tables of a port: GUIDInfo, P_KeyTable, SLtoVLMappingTable, VLArbitrationTable (IBA 14.2.5.5,
//! 14.2.5.7, 14.2.5.8, 14.2.5.9).

use ib_mad::types::{Gid, Guid, PKey, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{CapabilityMask, GUIDS_PER_BLOCK, GuidInfo, PKEYS_PER_BLOCK};
use ib_mad::wire::field::part;
use ib_mad::wire::mad::Status;

use super::{Data, INVALID, Query, virtual_port};
use crate::subnet::{GUID_CAP, PKEY_CAP, PortIndex, Subnet};
use crate::subnet::{guids, pkeys, sl_to_vl as sl_to_vl_of, vl_arbitration as vl_arbitration_of};

/// Modifier bit of SLtoVLMappingTable: all output ports.
const ALL_OUT_PORTS: u32 = 1 << 16;
/// Modifier bit of SLtoVLMappingTable: all input ports.
const ALL_IN_PORTS: u32 = 1 << 17;

pub(super) fn guid_info(subnet: &mut Subnet, query: &Query, data: &mut Data) -> Result<(), Status> {
    let port = subnet.management_port(query.port);
    let cap = usize::from(subnet.port_info(port).guid_cap());
    let block = usize::try_from(query.modifier).map_err(|_| INVALID)?;
    if block >= cap.div_ceil(GUIDS_PER_BLOCK) {
        return Err(INVALID);
    }
    debug_assert!(cap <= GUID_CAP);
    if query.set && !subnet.fixed_guids.contains(&port) {
        let mut asked = *data;
        asked[(cap - block * GUIDS_PER_BLOCK).min(GUIDS_PER_BLOCK) * 8..].fill(0);
        if block == 0 {
            asked[..8].fill(0); // The port GUID is read-only.
        }
        subnet.tables_mut(port).set_guids(block, asked);
    }
    *data = guids(subnet.tables(port), block);
    if block == 0 {
        let guid = subnet.port_guid(port);
        GuidInfo::of_mut(data).set_guid(0, guid);
    }
    Ok(())
}

pub(super) fn pkey_table(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let block = (query.modifier & 0xFFFF) as usize;
    let port = query.port_of_switch(subnet, query.modifier >> 16)?;
    if block >= PKEY_CAP / PKEYS_PER_BLOCK {
        return Err(INVALID);
    }
    if query.set {
        subnet.tables_mut(port).set_pkeys(block, *data);
    }
    *data = pkeys(subnet.tables(port), block);
    Ok(())
}

pub(super) fn sl_to_vl(subnet: &mut Subnet, query: &Query, data: &mut Data) -> Result<(), Status> {
    let vls = *part::<0, 8, _>(data);
    let ports = subnet[query.node].num_ports;
    let (in_port, out_port) = match subnet[query.node].is_switch() {
        true => (query.modifier >> 8 & 0xFF, query.modifier & 0xFF),
        false => (0, 0),
    };
    let wild = query.modifier & (ALL_IN_PORTS | ALL_OUT_PORTS);
    if in_port > u32::from(ports) || wild != 0 && !(query.set && subnet[query.node].is_switch()) {
        return Err(INVALID);
    }
    let in_port = in_port as u8;
    let one_port = query.port_of_switch(subnet, out_port)?;
    if query.set {
        let only = (wild & ALL_IN_PORTS == 0).then_some(in_port);
        if wild & ALL_OUT_PORTS == 0 {
            subnet.tables_mut(one_port).set_sl_to_vl(only, ports, vls);
        } else {
            for port in subnet.ports_of(query.node) {
                subnet.tables_mut(port).set_sl_to_vl(only, ports, vls);
            }
        }
    }
    data.fill(0);
    data[..8].copy_from_slice(&sl_to_vl_of(subnet.tables(one_port), in_port));
    Ok(())
}

pub(super) fn vl_arbitration(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let port = query.port_of_switch(subnet, query.modifier & 0xFFFF)?;
    // Blocks 1 and 2 are the low-priority table, 3 and 4 the high-priority one; each table here
    // fits in one block.
    let table = match query.modifier >> 16 {
        1 => 0,
        3 => 1,
        _ => return Err(INVALID),
    };
    if query.set {
        subnet.tables_mut(port).set_vl_arbitration(table, *data);
    }
    *data = vl_arbitration_of(subnet.tables(port), table);
    Ok(())
}

/// Whether a port takes packets to `gid`: its GUID, one of its GUID table or that of a virtual
/// port, or the one that stands for the SA, at the port of a subnet manager.
pub(crate) fn has_gid(subnet: &Subnet, port: PortIndex, gid: Gid) -> bool {
    let port = subnet.management_port(port);
    let info = subnet.port_info(port);
    let (prefix, guid) = (gid.prefix(), gid.guid());
    let is_of_subnet = prefix == info.gid_prefix() || prefix == SUBNET_PREFIX_DEFAULT;
    is_of_subnet
        && guid != Guid(0)
        && (guid == subnet.port_guid(port)
            || all_guids(subnet, port).contains(&guid)
            || virtual_port::views(subnet, port).iter().any(|each| each.guid == guid)
            || guid == Guid::WELL_KNOWN_SA
                && info.capability_mask().contains(CapabilityMask::IS_SM))
}

/// The GUID table of a port; entry 0, the port GUID, is 0.
pub(crate) fn all_guids(subnet: &Subnet, port: PortIndex) -> Vec<Guid> {
    let cap = usize::from(subnet.port_info(port).guid_cap());
    let blocks = (0..cap.div_ceil(GUIDS_PER_BLOCK)).map(|at| guids(subnet.tables(port), at));
    let bytes: Vec<u8> = blocks.flatten().collect();
    let guids = bytes.as_chunks().0.iter().map(|guid| Guid(u64::from_be_bytes(*guid)));
    guids.take(cap).collect()
}

/// The P_Key table of a port, up to its last valid key.
pub(crate) fn all_pkeys(subnet: &Subnet, port: PortIndex) -> Vec<PKey> {
    let blocks = (0..PKEY_CAP / PKEYS_PER_BLOCK).map(|block| pkeys(subnet.tables(port), block));
    let bytes: Vec<u8> = blocks.flatten().collect();
    let mut keys: Vec<PKey> =
        bytes.as_chunks().0.iter().map(|key| PKey(u16::from_be_bytes(*key))).collect();
    let used = keys.iter().rposition(|key| key.is_valid()).map_or(0, |last| last + 1);
    keys.truncate(used);
    keys
}

/// The P_Keys of a port, as ibsim's control protocol returns them.
pub(crate) fn read_pkeys(subnet: &Subnet, port: PortIndex) -> Data {
    pkeys(subnet.tables(port), 0)
}

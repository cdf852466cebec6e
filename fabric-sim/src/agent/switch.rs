//! Attributes of switches: SwitchInfo and forwarding tables (IBA 14.2.5.4, 14.2.5.10, 14.2.5.12).

use ib_mad::wire::attribute::{
    LFT_BLOCK_LEN, MFT_BLOCK_LEN, MFT_POSITION_PORTS, MulticastForwardingTable, SwitchInfo,
    multicast_forwarding_block,
};
use ib_mad::wire::mad::Status;

use super::{Data, INVALID, Query, UNSUPPORTED};
use crate::subnet::Subnet;

pub(super) fn switch_info(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let switch = subnet.switch_mut(query.node).ok_or(UNSUPPORTED)?;
    let info = &mut switch.info;
    if query.set {
        let asked = SwitchInfo::of(data);
        if asked.linear_fdb_top().0 >= info.linear_fdb_cap {
            return Err(INVALID);
        }
        info.linear_fdb_top = asked.linear_fdb_top();
        info.multicast_fdb_top = asked.multicast_fdb_top();
        info.life_time_value = asked.life_time_value();
        info.default_multicast_primary_port = asked.default_multicast_primary_port();
        info.default_multicast_not_primary_port = asked.default_multicast_not_primary_port();
        // Writing 1 clears it, writing 0 leaves it.
        info.port_state_change &= !asked.port_state_change();
    }
    data.fill(0);
    data[..20].copy_from_slice(&info.to_bytes());
    Ok(())
}

pub(super) fn linear_forwarding(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let switch = subnet.switch_mut(query.node).ok_or(UNSUPPORTED)?;
    let block = usize::try_from(query.modifier).map_err(|_| INVALID)?;
    if block >= usize::from(switch.info.linear_fdb_cap).div_ceil(LFT_BLOCK_LEN) {
        return Err(INVALID);
    }
    let entries = block * LFT_BLOCK_LEN..(block + 1) * LFT_BLOCK_LEN;
    if query.set {
        if switch.lft.len() < entries.end {
            // Managers set LinearFDBTop first, so reserve the final length.
            let top = (switch.info.linear_fdb_top.index() + 1).next_multiple_of(LFT_BLOCK_LEN);
            switch.lft.reserve_exact(top.max(entries.end) - switch.lft.len());
            switch.lft.resize(entries.end, 0xFF);
        }
        switch.lft[entries.clone()].copy_from_slice(data);
    }
    match switch.lft.get(entries) {
        Some(ports) => data.copy_from_slice(ports),
        None => data.fill(0xFF),
    }
    Ok(())
}

pub(super) fn multicast_forwarding(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    let ports = usize::from(subnet[query.node].num_ports);
    let switch = subnet.switch_mut(query.node).ok_or(UNSUPPORTED)?;
    let (block, position) = multicast_forwarding_block(query.modifier);
    let (block, position) = (usize::from(block), usize::from(position));
    let blocks = usize::from(switch.info.multicast_fdb_cap).div_ceil(MFT_BLOCK_LEN);
    if block >= blocks || position > ports / MFT_POSITION_PORTS {
        return Err(INVALID);
    }
    if query.set {
        if switch.mft.len() <= position {
            switch.mft.resize_with(position + 1, Vec::new);
        }
        let masks = &mut switch.mft[position];
        if masks.len() < (block + 1) * MFT_BLOCK_LEN {
            masks.resize((block + 1) * MFT_BLOCK_LEN, 0);
        }
        let asked = MulticastForwardingTable::of(data);
        for (i, mask) in masks[block * MFT_BLOCK_LEN..][..MFT_BLOCK_LEN].iter_mut().enumerate() {
            *mask = asked.port_mask(i);
        }
    }
    let mut answer = [0; 64];
    if let Some(masks) = switch.mft.get(position) {
        let mut view = MulticastForwardingTable::of_mut(&mut answer);
        for (i, &mask) in masks.iter().skip(block * MFT_BLOCK_LEN).take(MFT_BLOCK_LEN).enumerate() {
            view.set_port_mask(i, mask);
        }
    }
    *data = answer;
    Ok(())
}

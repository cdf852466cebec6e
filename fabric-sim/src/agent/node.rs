//! Attributes of a whole node: NodeInfo, NodeDescription, LedInfo, VendorDiag.

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::{LedInfo, LocalChanges, NodeInfoRepr, VendorDiagRepr};
use ib_mad::wire::mad::Status;

use super::{Data, INVALID, Query, trap};
use crate::subnet::{NodeIndex, PKEY_CAP, PortIndex, Subnet};

/// Revision of every simulated device.
const REVISION: u32 = 0xA1;

/// NodeInfo as returned to a request that arrived by `port`.
pub(crate) fn read_node_info(subnet: &Subnet, port: PortIndex) -> [u8; 40] {
    let node = subnet.node_of(port);
    let at = &subnet[port];
    NodeInfoRepr {
        base_version: 1,
        class_version: 1,
        node_type: node.node_type,
        num_ports: node.num_ports,
        system_image_guid: node.system_image_guid,
        node_guid: node.guid,
        port_guid: subnet.port_guid(subnet.management_port(port)),
        partition_cap: PKEY_CAP as u16,
        device_id: node.device_id,
        revision: REVISION,
        local_port_num: PortNum(at.number),
        vendor_id: node.vendor_id,
    }
    .to_bytes()
}

pub(super) fn node_info(subnet: &Subnet, query: &Query, data: &mut Data) -> Result<(), Status> {
    query.only_get()?;
    data.fill(0);
    data[..40].copy_from_slice(&read_node_info(subnet, query.port));
    Ok(())
}

pub(super) fn node_description(
    subnet: &mut Subnet,
    query: &Query,
    data: &mut Data,
) -> Result<(), Status> {
    if query.set {
        set_description(subnet, query.node, *data);
    }
    *data = *subnet.description(query.node);
    Ok(())
}

/// Changes a node's description and notifies the subnet manager.
pub(crate) fn set_description(subnet: &mut Subnet, node: NodeIndex, description: Data) {
    if *subnet.description(node) != description {
        *subnet.description_mut(node) = description;
        let port = subnet.default_port(node);
        trap::local_changes(subnet, port, LocalChanges::NODE_DESCRIPTION);
    }
}

pub(super) fn led_info(subnet: &mut Subnet, query: &Query, data: &mut Data) -> Result<(), Status> {
    let port = query.port_of_switch(subnet, query.modifier)?;
    let asked = LedInfo::of(data).led_mask();
    if query.set {
        subnet.tables_mut(port).led = asked;
    }
    let led = subnet.tables(port).is_some_and(|tables| tables.led);
    data.fill(0);
    LedInfo::of_mut(data).set_led_mask(led);
    Ok(())
}

pub(super) fn vendor_diag(query: &Query, data: &mut Data) -> Result<(), Status> {
    query.only_get()?;
    if query.modifier != 0 {
        return Err(INVALID);
    }
    // One diagnostic, without findings.
    *data = VendorDiagRepr { next_index: 0, diag_data: [0; 62] }.to_bytes();
    Ok(())
}

//! NodeRecord: one per visible end port.

use std::ops::ControlFlow;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::record::node::component as node;
use ib_mad::wire::record::{NodeRecord, stride};
use ib_mad::wire::sa::attribute;

use super::{Family, Found, Query, Refusal};
use crate::tables::{Owner, text};
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family = Family::readable(attribute::NODE_RECORD, NodeRecord::LEN, find);

const NODE_INFO: usize = 4;
const NODE_DESCRIPTION: usize = 44;

const COMPONENTS: &[Component] = &[
    of(node::BASE_VERSION, "base_version"),
    of(node::CLASS_VERSION, "class_version"),
    of(node::NODE_TYPE, "node_type"),
    of(node::NUM_PORTS, "num_ports"),
    of(node::SYSTEM_IMAGE_GUID, "system_image_guid"),
    of(node::NODE_GUID, "node_guid"),
    of(node::PORT_GUID, "port_guid"),
    of(node::PARTITION_CAP, "partition_cap"),
    of(node::DEVICE_ID, "device_id"),
    of(node::REVISION, "revision"),
    of(node::LOCAL_PORT_NUM, "local_port_num"),
    of(node::VENDOR_ID, "vendor_id"),
];

const fn of(mask: ib_mad::wire::sa::ComponentMask, field: &str) -> Component {
    Component::of(mask, NodeInfo::FIELDS, field, NODE_INFO)
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let sight = query.sight(query.requester()?);
    let (records, mask) = (&query.tables.records, query.mask);
    let request = NodeRecord::of(query.record);
    let info = NodeInfo::at::<NODE_INFO, _>(query.record);

    let mut pattern = Pattern::new(COMPONENTS, mask, query.record);
    if mask.contains(node::NODE_DESCRIPTION) {
        // A description is text: bytes after its end in the request are ignored.
        pattern.require_bytes(NODE_DESCRIPTION, text(&request.node_description()));
    }

    // The narrowest selection that the request permits, or else all.
    let rows = if mask.contains(node::LID) {
        let Some(base) = query.tables.end_ports.by_lid(request.lid()) else { return Ok(()) };
        pattern.require_bytes(0, &base.lid.0.to_be_bytes());
        records.nodes_of_lid(request.lid())
    } else if mask.contains(node::PORT_GUID) && lid_of(query, info.port_guid()) != Lid::NONE {
        records.nodes_of_lid(lid_of(query, info.port_guid()))
    } else if mask.contains(node::NODE_GUID) {
        records.nodes_of_guid(info.node_guid())
    } else {
        records.all_nodes_rows()
    };
    let mut offer = |(record, owner): (&[u8], &Owner)| {
        found.step()?;
        if pattern.matches(record) && sight.has(owner) {
            let record: &[u8; stride(NodeRecord::LEN)] =
                record.first_chunk().expect("a row has the padded length of its record");
            found.push(record)?;
        }
        ControlFlow::Continue(())
    };
    let _ = if rows == records.all_nodes_rows() && mask.contains(node::NODE_DESCRIPTION) {
        let mut described = records.nodes_described(&request.node_description());
        described.try_for_each(|at| records.nodes.range(at..at + 1).try_for_each(&mut offer))
    } else {
        records.nodes.range(rows).try_for_each(offer)
    };
    Ok(())
}

fn lid_of(query: &Query<'_>, guid: Guid) -> Lid {
    query.tables.end_ports.by_guid(guid).map_or(Lid::NONE, |port| port.lid)
}

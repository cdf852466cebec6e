//! What a batch will look up, fetched before it is answered.
//!
//! A look-up in a large fabric waits for memory that no cache of the core holds, and one request
//! waits after the other. Here the requests of a batch wait together: first all ask for the lines
//! that their ends are found in, then for those that these lead to. All of it is hints: an answer never depends on
//! what was fetched, so that nothing here has to be right, only cheap.

use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::{NodeRecord, PathRecord, node, path};
use ib_mad::wire::sa::{DATA_LEN, SaMad, attribute};

use super::path::request::{End, Request};
use crate::tables::{EndPort, Tables};

/// Fewer requests have too little to wait for together.
const BATCH_MIN: usize = 4;

/// Fetches what answering `batch` will read.
#[inline]
pub(crate) fn read_ahead(tables: &Tables, batch: &[Packet]) {
    if batch.len() < BATCH_MIN || tables.fits_caches() {
        return;
    }
    batch.iter().for_each(|packet| first(tables, packet));
    batch.iter().for_each(|packet| second(tables, packet));
}

/// The lines that look-ups begin at.
fn first(tables: &Tables, packet: &Packet) {
    let mad = SaMad::new(&packet.mad);
    tables.end_ports.prefetch_lid(packet.address.lid);
    match (mad.header().method(), mad.header().attribute_id()) {
        (Method::GET, attribute::PATH_RECORD) => {
            let (source, destination) = Request::ends(mad.sa().component_mask(), mad.data());
            for end in [source, destination] {
                match end {
                    End { gid: Some(gid), .. } => tables.end_ports.prefetch_guid(gid.guid()),
                    End { lid: Some(lid), .. } => tables.end_ports.prefetch_lid(lid),
                    _ => {}
                }
            }
            if mad.sa().component_mask().contains(path::component::SERVICE_ID) {
                let record = PathRecord::new(&mad.data()[..]).expect("64 bytes of 200");
                tables.qos.prefetch(record.service_id());
            }
        }
        (Method::GET, attribute::NODE_RECORD) => {
            let mask = mad.sa().component_mask();
            if mask.contains(node::component::LID) {
                tables.records.prefetch_node_of_lid(node_lid(mad.data()));
            } else if mask.contains(node::component::NODE_GUID) {
                tables.records.prefetch_node_of_guid(node_guid(mad.data()));
            }
        }
        _ => {}
    }
}

/// What those lead to.
fn second(tables: &Tables, packet: &Packet) {
    let mad = SaMad::new(&packet.mad);
    match (mad.header().method(), mad.header().attribute_id()) {
        (Method::GET, attribute::PATH_RECORD) => {
            let (source, destination) = Request::ends(mad.sa().component_mask(), mad.data());
            if let (Some(source), Some(destination)) =
                (port(tables, &source), port(tables, &destination))
            {
                tables.paths.prefetch(source.row, destination.column);
                if !tables.qos.is_empty() || !tables.paths.is_complete(destination.row) {
                    tables.paths.prefetch(destination.row, source.column);
                }
            }
        }
        (Method::GET, attribute::NODE_RECORD) => {
            let mask = mad.sa().component_mask();
            let records = &tables.records;
            let rows = if mask.contains(node::component::LID) {
                records.nodes_of_lid(node_lid(mad.data()))
            } else if mask.contains(node::component::NODE_GUID) {
                records.nodes_of_guid(node_guid(mad.data()))
            } else {
                0..0
            };
            records.nodes.prefetch(rows.start);
        }
        _ => {}
    }
}

/// The port that a request most likely means by this end.
fn port<'a>(tables: &'a Tables, end: &End) -> Option<&'a EndPort> {
    match (end.gid, end.lid) {
        (Some(gid), _) => tables.end_ports.by_guid(gid.guid()),
        (None, Some(lid)) => tables.end_ports.by_lid(lid),
        (None, None) => None,
    }
}

fn node_lid(data: &[u8; DATA_LEN]) -> Lid {
    NodeRecord::new(&data[..]).expect("108 bytes of 200").lid()
}

fn node_guid(data: &[u8; DATA_LEN]) -> Guid {
    NodeInfo::new(&data[4..]).expect("40 bytes of 196").node_guid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane};

    proptest! {
        /// Whatever a packet holds, looking ahead does no harm.
        #[test]
        fn any_packet_may_be_looked_at(
            bytes in any::<[u8; 32]>(),
            mask in any::<u64>(),
            data in any::<[u8; 32]>(),
            lid in any::<u16>(),
        ) {
            let tables = Tables::build(&FabricPlane::default(), &RegistryPlane::default());
            for attribute in [attribute::PATH_RECORD, attribute::NODE_RECORD] {
                let mut packet = Packet::default();
                packet.address.lid = Lid(lid);
                packet.mad[..32].copy_from_slice(&bytes);
                packet.mad[56..88].copy_from_slice(&data);
                let mut mad = SaMad::new(&mut packet.mad);
                mad.header_mut().set_method(Method::GET).set_attribute_id(attribute);
                mad.sa_mut().set_component_mask(ib_mad::wire::sa::ComponentMask(mask));
                first(&tables, &packet);
                second(&tables, &packet);
            }
        }
    }
}

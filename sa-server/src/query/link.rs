//! LinkRecord: every link whose two ends are both visible to the requester.

use ib_mad::types::Lid;
use ib_mad::wire::record::link::component as link;
use ib_mad::wire::record::{LinkRecord, LinkRecordRepr};
use ib_mad::wire::sa::attribute;

use super::{Family, Found, Query, Refusal};
use crate::tables::{LinkOwners, NodeRows, Sight};
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family = Family::readable(attribute::LINK_RECORD, LinkRecord::LEN, find);

const COMPONENTS: &[Component] = &[
    Component::of(link::FROM_PORT, LinkRecord::FIELDS, "from_port", 0),
    Component::of(link::TO_PORT, LinkRecord::FIELDS, "to_port", 0),
];

const FROM_LID: usize = 0;
const TO_LID: usize = 4;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let sight = query.sight(query.requester()?);
    let records = &query.tables.records;
    let request = LinkRecord::of(query.record);
    let mut pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let mut from = None;
    let mut to = None;
    for (component, lid, offset, node) in [
        (link::FROM_LID, request.from_lid(), FROM_LID, &mut from),
        (link::TO_LID, request.to_lid(), TO_LID, &mut to),
    ] {
        if query.mask.contains(component) {
            let Some((base, rows)) = port(query, lid) else { return Ok(()) };
            pattern.require_bytes(offset, &base.0.to_be_bytes());
            *node = Some(rows);
        }
    }

    let mut offer = |record: &[u8], owners: &LinkOwners| {
        if pattern.matches(record) && may_see(query, sight, owners) {
            let record: &[u8; LinkRecord::LEN] =
                record.first_chunk().expect("a row has the padded length of its record");
            found.push(record)?;
        }
        found.step()
    };
    let all = records.all_nodes();
    let _ = match (from, to) {
        (None, Some(node)) => {
            // Links to a node are its own links, seen from the other end.
            records
                .links
                .range(node.links.clone())
                .try_for_each(|(record, owners)| offer(&reversed(record), owners))
        }
        (from, _) => {
            let nodes = from.map_or(all, std::slice::from_ref);
            nodes.iter().try_for_each(|node| {
                records
                    .links
                    .range(node.links.clone())
                    .try_for_each(|(record, owners)| offer(record, owners))
            })
        }
    };
    Ok(())
}

/// The base LID of the port that has `lid`, and its node.
fn port<'a>(query: &Query<'a>, lid: Lid) -> Option<(Lid, &'a NodeRows)> {
    let port = query.tables.end_ports.by_lid(lid)?;
    Some((port.lid, query.tables.records.node_by_lid(lid)?))
}

fn may_see(query: &Query<'_>, sight: Sight<'_>, owners: &LinkOwners) -> bool {
    (query.sees_all() || query.tables.partitions.visible(owners.from.pkeys, owners.to.pkeys))
        && sight.has(&owners.from)
        && sight.has(&owners.to)
}

fn reversed(record: &[u8]) -> [u8; LinkRecord::LEN] {
    let view = LinkRecord::new(record).expect("a row contains a LinkRecord");
    LinkRecordRepr {
        from_lid: view.to_lid(),
        from_port: view.to_port(),
        to_port: view.from_port(),
        to_lid: view.from_lid(),
    }
    .to_bytes()
}

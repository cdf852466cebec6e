//! PathRecord: paths between end ports, by GID, by LID, or from and to all of them.
//!
//! A request names each end by GID, by LID, by both, or not at all. Every matching pair of ports
//! that the requester may see contributes the paths between its LIDs; paths without a common LID
//! come first. Get() returns the first path. For a destination in another subnet, the router of the
//! matching prefix route takes its place. Multicast destinations are handled in [`multicast`].

mod multicast;
pub(crate) mod request;
pub(crate) mod search;
pub(crate) mod select;

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::sa::attribute;

use super::{Family, Found, Query, Refusal};
use crate::tables::{EndPort, Tables};
use request::{End, Request};
use search::{Candidates, Search};

pub(super) const FAMILY: Family = Family::readable(attribute::PATH_RECORD, PathRecord::LEN, find);

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let request = Request::read(query)?;
    let requester = query.requester()?;
    let tables = query.tables;
    let (source_end, destination_end) = Request::ends(query.mask, query.record);
    if let Some(mgid) = destination_end.gid.filter(|gid| gid.is_multicast()) {
        let _ = multicast::find(query, requester, mgid, found);
        return Ok(());
    }
    // An end that does not exist means no path, even if the other one contradicts itself.
    let (Some(source), Some(destination)) =
        (source(tables, &source_end), destination(tables, &destination_end))
    else {
        return Ok(());
    };
    if source.contradictory || destination.contradictory {
        return Err(Refusal::Status(Status::SA_REQ_INVALID));
    }
    let search = Search {
        tables,
        request: &request,
        requester,
        sees_all: query.sees_all(),
        levels: query.levels,
    };
    let _ = search.all(&source, &destination, found);
    Ok(())
}

/// Whether a request names an end by a group's MGID, or by an actual or possible alias GUID.
pub(super) fn names_registered(query: &Query<'_>) -> bool {
    let (source, destination) = Request::ends(query.mask, query.record);
    [source.gid, destination.gid].into_iter().flatten().any(|gid| {
        let is_own = || query.tables.end_ports.by_own_guid(gid.guid()).is_some();
        gid.is_multicast() || is_local(query.tables, gid) && !is_own()
    })
}

/// The ports that may be the source. `None` if no port has its GID or LID.
#[inline]
fn source<'a>(tables: &'a Tables, end: &End) -> Option<Candidates<'a>> {
    let by_gid = match end.gid {
        Some(gid) => Some(local_port(tables, gid)?),
        None => None,
    };
    candidates(tables, by_gid, end.lid, end.gid)
}

/// The ports that may be the destination, the router's for a GID of another subnet. `None` if its
/// no port has its GID or LID.
#[inline]
fn destination<'a>(tables: &'a Tables, end: &End) -> Option<Candidates<'a>> {
    let (by_gid, gid) = match end.gid {
        Some(gid) if is_local(tables, gid) => (Some(tables.end_ports.by_guid(gid.guid())?), None),
        Some(gid) => (Some(router(tables, gid)?), Some(gid)),
        None => (None, None),
    };
    candidates(tables, by_gid, end.lid, gid)
}

#[inline]
fn candidates<'a>(
    tables: &'a Tables,
    by_gid: Option<&'a EndPort>,
    lid: Option<Lid>,
    shown_gid: Option<Gid>,
) -> Option<Candidates<'a>> {
    let by_lid = match lid {
        Some(lid) => Some(tables.end_ports.by_lid(lid)?),
        None => None,
    };
    let contradictory = matches!((by_gid, by_lid), (Some(a), Some(b)) if !a.is_same_port(b));
    let ports = match (by_gid, lid) {
        (Some(port), _) => std::slice::from_ref(port),
        (None, Some(lid)) => tables.end_ports.names_by_lid(lid),
        (None, None) => tables.end_ports.all(),
    };
    Some(Candidates { ports, lid, contradictory, shown_gid })
}

/// The port of this subnet that has a GID.
#[inline]
pub(crate) fn local_port(tables: &Tables, gid: Gid) -> Option<&EndPort> {
    if is_local(tables, gid) { tables.end_ports.by_guid(gid.guid()) } else { None }
}

/// The router's port on the path to a GID of another subnet.
#[cold]
pub(crate) fn router(tables: &Tables, gid: Gid) -> Option<&EndPort> {
    tables.end_ports.by_guid(tables.router_to(gid.prefix())?)
}

/// Whether a GID is of this subnet: by its prefix, or link-local.
#[inline]
pub(crate) fn is_local(tables: &Tables, gid: Gid) -> bool {
    const LINK_LOCAL: u64 = 0xFE80_0000_0000_0000;
    const LINK_LOCAL_MASK: u64 = 0xFFC0_0000_0000_0000;
    let prefix = gid.prefix();
    prefix == tables.subnet.prefix || prefix & LINK_LOCAL_MASK == LINK_LOCAL
}

//! MultiPathRecord: GetMulti() for paths between several sources and several destinations. What
//! comes back are PathRecords.
//!
//! Two sources, two destinations and two paths wanted is how a client asks for a path and one to fail
//! over to: those two are chosen to have nothing in common. All other requests get paths pair by pair
//! until they are as many as wanted.

use std::ops::ControlFlow;

use ib_mad::types::Lid;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::multi_path::component as multi;
use ib_mad::wire::record::{MultiPathRecord, PathRecord};
use ib_mad::wire::sa::attribute;

use super::path::local_port;
use super::path::request::Request;
use super::path::search::{Classed, PREFERRED, Path, Search, Told};
use super::{Family, Found, Query, Refusal};
use crate::tables::{EndPort, Tables};

pub(super) const FAMILY: Family = Family {
    answered_as: attribute::PATH_RECORD,
    ..Family::multi(attribute::MULTI_PATH_RECORD, PathRecord::LEN, find)
};

/// Paths told if the request does not say how many: as many as NumbPath can.
const PATHS_MAX: u8 = 127;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let mut ends = std::mem::take(found.ends);
    ends.clear();
    let searched = find_between(query, &mut ends, found);
    *found.ends = ends;
    searched
}

/// The same, with room for all ends.
fn find_between(
    query: &Query<'_>,
    ends: &mut Vec<EndPort>,
    found: &mut Found<'_>,
) -> Result<(), Refusal> {
    const COUNTS: [ib_mad::wire::sa::ComponentMask; 2] = [multi::SGID_COUNT, multi::DGID_COUNT];
    if COUNTS.iter().any(|&count| !query.mask.contains(count)) {
        return Err(Refusal::Status(Status::SA_INSUFFICIENT_COMPONENTS));
    }
    let Ok(record) = MultiPathRecord::new(query.data) else {
        return Err(Refusal::Status(Status::SA_REQ_INVALID));
    };
    let tables = query.tables;
    let request = Request::read_multi(tables, query.mask, &record)?;
    let requester = query.requester()?;
    // Sources or destinations that are announced and not there are not looked for behind the data.
    let (sources, destinations) = record.gids().ok_or(INVALID_GID)?;
    let all = sources.clone().chain(destinations.clone());
    ends.extend(all.map_while(|gid| local_port(tables, gid)).copied());
    if ends.len() < sources.len() + destinations.len() {
        return Err(INVALID_GID);
    }
    if sources.len() == 0 || destinations.len() == 0 {
        return Err(Refusal::Status(Status::SA_REQ_INVALID));
    }
    let (sources, destinations) = ends.split_at(sources.len());
    let search = Search {
        tables,
        request: &request,
        requester,
        sees_all: query.sees_all(),
        levels: query.levels,
    };
    let numb_path = record.numb_path();
    let _ = match (sources, destinations) {
        ([a, b], [c, d]) if numb_path == 2 => {
            independent(&search, ordered(tables, a, b), ordered(tables, c, d), found)
        }
        _ => match request.plain() {
            Some(plain) => {
                let search = Search { request: &plain, ..search };
                pair_by_pair(&search, sources, destinations, found)
            }
            None => pair_by_pair(&search, sources, destinations, found),
        },
    };
    Ok(())
}

const INVALID_GID: Refusal = Refusal::Status(Status::SA_REQ_INVALID_GID);

/// Two ports, always in the same order.
fn ordered<'a>(tables: &'a Tables, a: &'a EndPort, b: &'a EndPort) -> [&'a EndPort; 2] {
    // OpenSM compares GUIDs as they are in its memory, the last byte first.
    let place = |end: &EndPort| {
        let base = tables.end_ports.by_lid(end.lid).unwrap_or(end);
        base.guid.0.swap_bytes()
    };
    if place(a) < place(b) { [a, b] } else { [b, a] }
}

/// Paths of every pair, a source's after the other, until they are as many as wanted. Inlined, so
/// that what a plain request does not wish for is not looked for either.
#[inline(always)]
fn pair_by_pair(
    search: &Search<'_>,
    sources: &[EndPort],
    destinations: &[EndPort],
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    let tables = search.tables;
    found.templates.begin();
    let wanted = usize::from(search.request.numb_path.unwrap_or(PATHS_MAX));
    for source in sources {
        let source = (source, tables.end_class(source));
        for destination in destinations {
            found.steps(tables.path_cost())?;
            let left = wanted.saturating_sub(found.count());
            if left == 0 {
                return ControlFlow::Break(());
            }
            let destination = (destination, tables.end_class(destination));
            if search.allows(source, destination) {
                let (slids, dlids) = (search.lids(source, None), search.lids(destination, None));
                // Nearly always: ports of one LID each.
                if let ((slid, 1), (dlid, 1)) = (slids, dlids) {
                    if let Some(path) = search.path(source, Lid(slid), destination, Lid(dlid)) {
                        search.tell(&path, Told::default(), PREFERRED, found)?;
                    }
                    continue;
                }
                let (from, to) = ((source, slids), (destination, dlids));
                search.pair(from, to, Told::default(), left, found)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// Two paths that share no port, by different LIDs of their ranges, so that in a fat tree they cross
/// different spines: of the two ways to pair the ends that with the shorter path.
fn independent(
    search: &Search<'_>,
    sources: [&EndPort; 2],
    destinations: [&EndPort; 2],
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    let tables = search.tables;
    let offset = offset(tables, sources[0], destinations[0]);
    let way = |s: usize, d: usize| {
        let (source, destination) = (sources[s], destinations[d]);
        let from = (source, tables.end_class(source));
        let to = (destination, tables.end_class(destination));
        if search.allows(from, to) { by_offset(search, from, to, offset + s as u16) } else { None }
    };
    let straight = [way(0, 0), way(1, 1)];
    let crossed = [way(0, 1), way(1, 0)];
    let count = |ways: &[Option<(Path, u16)>; 2]| ways.iter().flatten().count();
    let least = |ways: &[Option<(Path, u16)>; 2]| {
        ways.iter().flatten().map(|&(_, links)| links).min().unwrap_or(u16::MAX)
    };
    // Two paths rather than one, then the shorter one.
    let prefers_crossed = (count(&crossed), least(&straight)) > (count(&straight), least(&crossed));
    for (path, _) in if prefers_crossed { crossed } else { straight }.into_iter().flatten() {
        search.tell(&path, Told::default(), PREFERRED, found)?;
    }
    ControlFlow::Continue(())
}

/// Where in their LID ranges two ends begin: the same in both directions, and spread over pairs.
fn offset(tables: &Tables, a: &EndPort, b: &EndPort) -> u16 {
    let lmc = tables.end_class(a).lmc.max(tables.end_class(b).lmc);
    let (low, high) = (a.lid.0.min(b.lid.0), a.lid.0.max(b.lid.0));
    let mixed = u32::from(low >> lmc) << 4 | u32::from(high >> lmc);
    (mixed % 103) as u16
}

/// The first path from LIDs that lie `offset` in their ranges, with the links that it takes.
fn by_offset(
    search: &Search<'_>,
    source: Classed<'_>,
    destination: Classed<'_>,
    offset: u16,
) -> Option<(Path, u16)> {
    let (first_slid, slids) = search.lids(source, None);
    let (first_dlid, dlids) = search.lids(destination, None);
    (0..slids.min(dlids)).find_map(|i| {
        let slid = Lid(first_slid + (offset % slids + i) % slids);
        let dlid = Lid(first_dlid + (offset % dlids + i) % dlids);
        let path = search.path(source, slid, destination, dlid)?;
        Some((path, search.links(source, destination, dlid)))
    })
}

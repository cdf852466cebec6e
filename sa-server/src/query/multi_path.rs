//! MultiPathRecord: GetMulti() for paths between several sources and several destinations. The
//! answer consists of PathRecords.
//!
//! A client that requests two paths between two sources and two destinations wants a path and a
//! spare for failover: these two are chosen without a common part. All other requests get paths
//! pair by pair until the requested number is reached.

use std::ops::ControlFlow;

use ib_mad::types::Lid;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::multi_path::component as multi;
use ib_mad::wire::record::{MultiPathRecord, PathRecord};
use ib_mad::wire::sa::attribute;

use super::end::End;
use super::path::local_port;
use super::path::request::{Constraints, Request};
use super::path::search::{Classed, PREFERRED, Path, Search, ShownGids};
use super::{Family, Found, Query, Refusal};
use crate::tables::{EndPort, Tables};

pub(super) const FAMILY: Family = Family {
    // IBA o15-0.2.7.
    answered_as: attribute::PATH_RECORD,
    ..Family::multi(attribute::MULTI_PATH_RECORD, PathRecord::LEN, find)
};

/// Paths returned if the request gives no number: the maximum of NumbPath.
const PATHS_MAX: u8 = 127;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let mut ends = std::mem::take(found.ends);
    ends.clear();
    let searched = find_between(query, &mut ends, found);
    *found.ends = ends;
    searched
}

/// Same, with buffers for all ends.
fn find_between(
    query: &Query<'_>,
    ends: &mut Vec<End>,
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
    let search = Search {
        tables,
        request: &request,
        requester,
        sees_all: query.sees_all(),
        levels: query.levels,
    };
    let counts = [sources.len(), destinations.len()];
    // Parts of the index that are not cached are then fetched in parallel, not one after the other.
    for gid in sources.clone().chain(destinations.clone()) {
        tables.end_ports.prefetch_guid(gid.guid());
    }
    for gids in [sources, destinations] {
        for gid in gids {
            ends.push(End::new(&search, local_port(tables, gid).ok_or(INVALID_GID)?));
        }
    }
    if counts.contains(&0) {
        return Err(Refusal::Status(Status::SA_REQ_INVALID));
    }
    let (sources, destinations) = ends.split_at(counts[0]);
    let numb_path = record.numb_path();
    let _ = match (sources, destinations) {
        ([a, b], [c, d]) if numb_path == 2 => {
            independent(&search, ordered(tables, a, b), ordered(tables, c, d), found)
        }
        _ if request.constraints == Constraints::NONE => {
            pair_by_pair(&search, Constraints::NONE, sources, destinations, found)
        }
        _ => pair_by_pair(&search, request.constraints, sources, destinations, found),
    };
    Ok(())
}

impl End {
    #[inline]
    fn new(search: &Search<'_>, port: &EndPort) -> Self {
        let class = search.tables.end_class(port);
        Self {
            port: *port,
            class: *class,
            is_own: search.requester.is_same_port(port),
            is_visible: search.visible((port, class)),
            has_one_lid: class.lmc == 0 && port.lid.is_unicast(),
            is_same_back: search.is_same_back(port),
        }
    }

    #[inline(always)]
    fn classed(&self) -> Classed<'_> {
        (&self.port, &self.class)
    }

    /// Whether the requester may see paths to another end, as in [`Search::allows`]. Ends that
    /// share the path's P_Key may see each other; only raw packets have no P_Key.
    #[inline(always)]
    fn allows(&self, search: &Search<'_>, constraints: Constraints, to: &Self) -> bool {
        let is_known = self.is_own || self.is_visible && to.is_visible;
        is_known && (!constraints.raw || search.connected(self.classed(), to.classed()))
    }
}

const INVALID_GID: Refusal = Refusal::Status(Status::SA_REQ_INVALID_GID);

/// Two ports, always in the same order.
fn ordered<'a>(tables: &Tables, a: &'a End, b: &'a End) -> [&'a End; 2] {
    // OpenSM compares GUIDs as they are in its memory, the last byte first.
    let place = |end: &End| {
        let base = tables.end_ports.by_lid(end.port.lid).unwrap_or(&end.port);
        base.guid.0.swap_bytes()
    };
    if place(a) < place(b) { [a, b] } else { [b, a] }
}

/// Paths of every pair, source by source, until the requested number is reached. Inlined, so that
/// the compiler drops checks that a plain request does not need.
#[inline(always)]
fn pair_by_pair(
    search: &Search<'_>,
    constraints: Constraints,
    sources: &[End],
    destinations: &[End],
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    let cost = search.tables.path_cost();
    found.templates.begin();
    let wanted = usize::from(search.request.numb_path.unwrap_or(PATHS_MAX));
    for source in sources {
        for destination in destinations {
            found.steps(cost)?;
            if found.count() >= wanted {
                return ControlFlow::Break(());
            }
            if !source.allows(search, constraints, destination) {
                continue;
            }
            let (from, to) = (source.classed(), destination.classed());
            if source.has_one_lid && destination.has_one_lid {
                let (by_slid, by_dlid) = ((from, from.0.lid), (to, to.0.lid));
                let is_same_back = destination.is_same_back;
                if let Some(path) =
                    search.path_within(constraints, None, by_slid, by_dlid, is_same_back)
                {
                    search.push(&path, ShownGids::default(), PREFERRED, found)?;
                }
                continue;
            }
            // Many LIDs cost many steps; avoid useless ones.
            if search.connected(from, to) {
                let (slids, dlids) = (search.lids(from, None), search.lids(to, None));
                let (from, to) = ((from, slids), (to, dlids));
                search.preferred(from, to, ShownGids::default(), wanted, found)?;
            }
        }
    }
    if search.is_open() {
        return in_further_fabrics(search, sources, destinations, wanted, found);
    }
    ControlFlow::Continue(())
}

/// Paths of every pair in further virtual fabrics, until the requested number is reached: after
/// those of all pairs in the first, since the number counts all pairs.
#[cold]
fn in_further_fabrics(
    search: &Search<'_>,
    sources: &[End],
    destinations: &[End],
    wanted: usize,
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    for source in sources {
        for destination in destinations {
            if found.count() >= wanted {
                return ControlFlow::Break(());
            }
            let (from, to) = (source.classed(), destination.classed());
            let is_allowed = source.allows(search, search.request.constraints, destination);
            if is_allowed && search.connected(from, to) {
                let (from, to) = ((from, search.lids(from, None)), (to, search.lids(to, None)));
                search.further(from, to, ShownGids::default(), wanted, found)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// Two paths without a common port, by different LIDs of the ranges, so that they use different
/// spines of a fat tree. Of the two ways to pair the ends, the one with the shorter path is
/// returned.
fn independent(
    search: &Search<'_>,
    sources: [&End; 2],
    destinations: [&End; 2],
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    let offset = offset(sources[0], destinations[0]);
    let way = |s: usize, d: usize| {
        let (source, destination) = (sources[s], destinations[d]);
        let (from, to) = (source.classed(), destination.classed());
        let is_allowed = source.allows(search, search.request.constraints, destination);
        if is_allowed { by_offset(search, from, to, offset + s as u16) } else { None }
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
        search.push(&path, ShownGids::default(), PREFERRED, found)?;
    }
    ControlFlow::Continue(())
}

/// Where in their LID ranges two ends begin: the same in both directions, and spread over pairs.
fn offset(a: &End, b: &End) -> u16 {
    let lmc = a.class.lmc.max(b.class.lmc);
    let (a, b) = (a.port.lid.0, b.port.lid.0);
    let (low, high) = (a.min(b), a.max(b));
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

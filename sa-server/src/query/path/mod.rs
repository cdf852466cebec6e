//! PathRecord: paths between end ports, by GID, by LID, or from and to all of them.
//!
//! A request names each end by GID, by LID, by both or not at all. Every pair of ports that fits
//! and that the requester may see gives paths between their LIDs: those that share no LID first.
//! Get() yields the first path. A multicast group as destination is another matter: see
//! [`multicast`].

mod multicast;
mod request;
mod select;

use std::ops::ControlFlow;

use ib_mad::types::{Gid, Lid, Lifetime, Mtu, Rate};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::{PathRecord, PathRecordRepr, Selector};
use ib_mad::wire::sa::attribute;

use super::{Family, Found, Query, Refusal};
use crate::tables::{EndClass, EndPort, Tables};
use request::{End, PKeyWish, Request};
use select::{Parameters, select};

pub(super) const FAMILY: Family = Family::readable(attribute::PATH_RECORD, PathRecord::LEN, find);

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let request = Request::read(query)?;
    let requester = query.requester()?;
    let tables = query.tables;
    if let Some(mgid) = request.destination.gid.filter(|gid| gid.is_multicast()) {
        let _ = multicast::find(query, mgid, found);
        return Ok(());
    }
    // An end that does not exist means no path, even if the other one contradicts itself.
    let (Some(source), Some(destination)) =
        (Candidates::of(tables, &request.source), Candidates::of(tables, &request.destination))
    else {
        return Ok(());
    };
    if source.contradictory || destination.contradictory {
        return Err(Refusal::Status(Status::SA_REQ_INVALID));
    }
    let search = Search { tables, request, requester, source_gid: request.source.gid };
    let _ = search.all(&source, &destination, found);
    Ok(())
}

/// The ports that one end of the path may be.
struct Candidates<'a> {
    ports: &'a [EndPort],
    /// The one LID that the request allows, if it names one.
    lid: Option<Lid>,
    /// Whether GID and LID are those of different ports.
    contradictory: bool,
}

impl<'a> Candidates<'a> {
    /// `None` if a GID or LID is nobody's.
    #[inline]
    fn of(tables: &'a Tables, end: &End) -> Option<Self> {
        let by_gid = match end.gid {
            Some(gid) if !is_local(tables, gid) => return None,
            Some(gid) => Some(tables.end_ports.by_guid(gid.guid())?),
            None => None,
        };
        let by_lid = match end.lid {
            Some(lid) => Some(tables.end_ports.by_lid(lid)?),
            None => None,
        };
        let contradictory = matches!((by_gid, by_lid), (Some(a), Some(b)) if !a.is_same_port(b));
        let ports = match (by_gid, end.lid) {
            (Some(port), _) => std::slice::from_ref(port),
            (None, Some(lid)) => tables.end_ports.names_by_lid(lid),
            (None, None) => tables.end_ports.all(),
        };
        Some(Self { ports, lid: end.lid, contradictory })
    }
}

/// Whether a GID is of this subnet: by its prefix, or link-local.
#[inline]
fn is_local(tables: &Tables, gid: Gid) -> bool {
    const LINK_LOCAL: u64 = 0xFE80_0000_0000_0000;
    const LINK_LOCAL_MASK: u64 = 0xFFC0_0000_0000_0000;
    let prefix = gid.prefix();
    prefix == tables.subnet.prefix || prefix & LINK_LOCAL_MASK == LINK_LOCAL
}

struct Search<'a> {
    tables: &'a Tables,
    request: Request,
    requester: &'a EndPort,
    /// The source GID that answers repeat, if the request has one.
    source_gid: Option<Gid>,
}

/// A port with its class.
type Classed<'a> = (&'a EndPort, &'a EndClass);

impl Search<'_> {
    /// Goes through all pairs of candidates. Breaks off when no more paths are wanted or allowed.
    #[inline]
    fn all(
        &self,
        sources: &Candidates<'_>,
        destinations: &Candidates<'_>,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        for destination in destinations.ports {
            let destination = (destination, self.tables.end_class(destination));
            if !self.visible(destination) {
                found.step()?;
                continue;
            }
            for source in sources.ports {
                found.step()?;
                let source = (source, self.tables.end_class(source));
                if self.visible(source) && self.connected(source, destination) {
                    let slids = self.lids(source, sources.lid);
                    let dlids = self.lids(destination, destinations.lid);
                    self.pair(source, slids, destination, dlids, found)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn visible(&self, port: Classed<'_>) -> bool {
        let own = self.tables.end_class(self.requester).pkeys;
        self.tables.partitions.visible(own, port.1.pkeys) || self.requester.is_same_port(port.0)
    }

    #[inline]
    fn connected(&self, a: Classed<'_>, b: Classed<'_>) -> bool {
        self.tables.partitions.visible(a.1.pkeys, b.1.pkeys) || a.0.is_same_port(b.0)
    }

    /// First LID and number of LIDs of a port, as far as the request allows.
    #[inline]
    fn lids(&self, (port, class): Classed<'_>, only: Option<Lid>) -> (u16, u16) {
        match only {
            Some(lid) => (lid.0, 1),
            None if !port.lid.is_unicast() => (0, 0),
            None => (port.lid.0, 1 << class.lmc),
        }
    }

    /// Paths between two ports: first those that have no LID in common, then all others.
    #[inline]
    fn pair(
        &self,
        source: Classed<'_>,
        (slid, slids): (u16, u16),
        destination: Classed<'_>,
        (dlid, dlids): (u16, u16),
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        let wanted = match self.request.numb_path {
            _ if found.is_single() => 1,
            Some(numb_path) => usize::from(numb_path),
            None => usize::MAX,
        };
        let wanted = found.count().saturating_add(wanted);
        for i in 0..slids.min(dlids) {
            if found.count() >= wanted {
                break;
            }
            self.path(source, Lid(slid + i), destination, Lid(dlid + i), PREFERRED, found)?;
        }
        for s in 0..slids {
            for d in (0..dlids).filter(|&d| d != s) {
                if found.count() >= wanted {
                    break;
                }
                found.step()?;
                self.path(source, Lid(slid + s), destination, Lid(dlid + d), REDUNDANT, found)?;
            }
        }
        if found.is_single() && found.count() > 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// The path between two LIDs, if there is one.
    #[inline]
    fn path(
        &self,
        source: Classed<'_>,
        slid: Lid,
        destination: Classed<'_>,
        dlid: Lid,
        preference: u8,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        let (Some(at_slid), Some(at_dlid)) =
            (self.at(source.0, slid), self.at(destination.0, dlid))
        else {
            return ControlFlow::Continue(());
        };
        let request = &self.request;
        let there = select(self.tables, request, source, (at_dlid, destination.1), dlid);
        let Some(parameters) = there else { return ControlFlow::Continue(()) };
        // Without wishes a way back that exists is good enough.
        let has_wishes = request.mtu.is_some()
            || request.rate.is_some()
            || request.lifetime.is_some()
            || request.pkey != PKeyWish::Any;
        let reversible = (!has_wishes && self.tables.paths.is_complete(destination.0.row))
            || select(self.tables, request, destination, (at_slid, source.1), slid).is_some();
        if request.reversible && !reversible {
            return ControlFlow::Continue(());
        }
        let prefix = self.tables.subnet.prefix;
        let record = PathRecordRepr {
            service_id: 0,
            dgid: Gid::new(prefix, destination.0.guid),
            sgid: self.source_gid.unwrap_or(Gid::new(prefix, source.0.guid)),
            dlid,
            slid,
            raw_traffic: false,
            flow_label: 0,
            hop_limit: 0,
            tclass: 0,
            reversible,
            numb_path: 0,
            pkey: parameters.pkey,
            qos_class: 0,
            sl: parameters.sl,
            mtu_selector: Selector::Exactly,
            mtu: told_mtu(&parameters),
            rate_selector: Selector::Exactly,
            rate: told_rate(&parameters, source.1, reversible.then_some(destination.1)),
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: self.told_lifetime(&parameters, source.0, destination.0),
            preference,
        };
        found.push(&record.to_bytes())
    }

    /// The port as found by one of its LIDs: that decides which column its paths are in.
    #[inline]
    fn at<'p>(&'p self, port: &'p EndPort, lid: Lid) -> Option<&'p EndPort> {
        if port.lid == lid { Some(port) } else { self.tables.end_ports.by_lid(lid) }
    }

    /// A path from a port to itself takes no time, whatever was asked for.
    fn told_lifetime(&self, parameters: &Parameters, a: &EndPort, b: &EndPort) -> Lifetime {
        Lifetime::from_low_bits(if a.is_same_port(b) { 0 } else { parameters.lifetime })
    }
}

/// Preference of paths that share no LID with each other.
const PREFERRED: u8 = 0;
/// Preference of the others.
const REDUNDANT: u8 = 2;

#[inline]
fn told_mtu(parameters: &Parameters) -> Mtu {
    Mtu::from_code(parameters.limit.mtu).unwrap_or(Mtu::B256)
}

/// The rate in a code that the source understands, and whoever takes the way back.
#[inline]
fn told_rate(parameters: &Parameters, source: &EndClass, back: Option<&EndClass>) -> Rate {
    let rank = usize::from(parameters.limit.rate.max(1)) - 1;
    let rate = source.rates.fit(Rate::BY_VALUE[rank]);
    back.map_or(rate, |class| class.rates.fit(rate))
}

//! Searches paths between candidate ports: pairs that the requester may see, in order of LIDs.

use std::ops::ControlFlow;

use ib_mad::types::{Gid, Guid, Lid, PKey, Rate};
use ib_mad::wire::record::{PathRecord, Selector};

use super::request::{Constraints, Request};
use super::select::{Parameters, select};
use crate::query::Found;
use crate::query::templates::Kind;
use crate::tables::qos_match::{Level, LevelCounts, LevelSlot};
use crate::tables::{EndClass, EndPort, Tables};

/// The ports that one end of the path may be.
pub(crate) struct Candidates<'a> {
    pub(crate) ports: &'a [EndPort],
    /// The one LID that the request allows, if it names one.
    pub(crate) lid: Option<Lid>,
    /// Whether GID and LID are those of different ports.
    pub(crate) contradictory: bool,
    /// The GID that answers repeat, if it is not simply the port's.
    pub(crate) shown_gid: Option<Gid>,
}

/// A search for the paths between candidates, on behalf of a requester.
pub(crate) struct Search<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) request: &'a Request,
    pub(crate) requester: &'a EndPort,
    /// Whether partitions hide nothing from it.
    pub(crate) sees_all: bool,
    /// Paths answered, by QoS level.
    pub(crate) levels: &'a LevelCounts,
}

/// GIDs that answers repeat: the source's, and that of a destination in another subnet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShownGids {
    pub(crate) sgid: Option<Gid>,
    pub(crate) dgid: Option<Gid>,
}

/// A port with its class.
pub(crate) type Classed<'a> = (&'a EndPort, &'a EndClass);

impl Search<'_> {
    /// Examines all pairs of candidates. Stops when no further path is requested or allowed.
    #[inline]
    pub(crate) fn all(
        &self,
        sources: &Candidates<'_>,
        destinations: &Candidates<'_>,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        let gids = ShownGids { sgid: sources.shown_gid, dgid: destinations.shown_gid };
        found.templates.begin();
        // Get() means one path in all, GetTable() that many for each pair.
        let wanted = match self.request.numb_path {
            _ if found.is_single() => 1,
            Some(numb_path) => usize::from(numb_path),
            None => usize::MAX,
        };
        if let [source] = sources.ports
            && wanted > 0
            && !found.is_single()
            && self.tables.all_paths_pass_alike()
            && !self.is_open()
        {
            let source = (source, self.tables.end_class(source));
            return self.all_from(source, sources.lid, destinations, gids, wanted, found);
        }
        for destination in destinations.ports {
            let destination = (destination, self.tables.end_class(destination));
            if !self.visible(destination) {
                found.step()?;
                continue;
            }
            for source in sources.ports {
                found.steps(self.tables.path_cost())?;
                let source = (source, self.tables.end_class(source));
                if self.allows(source, destination) {
                    let slids = self.lids(source, sources.lid);
                    let dlids = self.lids(destination, destinations.lid);
                    self.pair((source, slids), (destination, dlids), gids, wanted, found)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Same from one port, for a table: most destinations are copies of an earlier one, except for
    /// their GIDs and LIDs.
    fn all_from(
        &self,
        source: Classed<'_>,
        only: Option<Lid>,
        destinations: &Candidates<'_>,
        gids: ShownGids,
        wanted: usize,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        let tables = self.tables;
        let slids = self.lids(source, only);
        let is_alone = slids.1 == 1 && destinations.lid.is_none() && self.visible(source);
        // If every path has a reverse path, the row defines a path completely.
        let is_plain = !self.request.minds_direction(tables) && tables.all_paths_return();
        let row = if is_plain { tables.paths.row(source.0.row) } else { None };
        for port in destinations.ports {
            found.steps(tables.path_cost())?;
            let class = tables.end_class(port);
            let destination = (port, class);
            // The requester sees its own port, even if it sees no others of its class.
            let is_own = source.0.is_same_port(port) || self.requester.is_same_port(port);
            if !is_alone || class.lmc > 0 || !port.lid.is_unicast() || is_own {
                if self.allows(source, destination) {
                    let dlids = self.lids(destination, destinations.lid);
                    self.pair((source, slids), (destination, dlids), gids, wanted, found)?;
                }
                continue;
            }
            let (from, to) = ((source, Lid(slids.0)), (destination, port.lid));
            let make = || {
                if !self.allows(source, destination) {
                    return None;
                }
                let path = self.path(from.0, from.1, to.0, to.1)?;
                Some((path.record(gids, PREFERRED), path.level()))
            };
            let kind = match row {
                Some(row) => Kind::of_row(port.class, row.get(usize::from(port.column)).copied()),
                None => match self.kind(from, to, PREFERRED) {
                    Some(kind) => kind,
                    None => continue,
                },
            };
            let gid = gids.dgid.unwrap_or_else(|| self.gid(port));
            let Some(level) = found.push_like(kind, gid, port.lid, make) else { continue };
            self.levels.increment(level?);
        }
        ControlFlow::Continue(())
    }

    /// Whether the requester may see paths between two ports, and the ports may see each other.
    #[inline(always)]
    pub(crate) fn allows(&self, source: Classed<'_>, destination: Classed<'_>) -> bool {
        // Most ask for paths from themselves: those that they see are those that they can talk to.
        if self.requester.is_same_port(source.0) {
            return self.connected(source, destination);
        }
        self.visible(source) && self.visible(destination) && self.connected(source, destination)
    }

    /// Links from one port to another.
    pub(crate) fn links(&self, source: Classed<'_>, destination: Classed<'_>, dlid: Lid) -> u16 {
        if source.0.is_same_port(destination.0) {
            return 0;
        }
        let Some(at_dlid) = self.at(destination.0, dlid) else { return 0 };
        let switches = self.tables.path_class(source.0, at_dlid, dlid).hops;
        // A switch is an end of its own path: it has no link to itself.
        let ends =
            [source, destination].into_iter().filter(|(port, _)| self.tables.is_switch(port));
        (u16::from(switches) + 1).saturating_sub(ends.count() as u16)
    }

    #[inline(always)]
    pub(crate) fn visible(&self, port: Classed<'_>) -> bool {
        let own = self.tables.end_class(self.requester).pkeys;
        self.requester.is_same_port(port.0)
            || self.tables.partitions.visible(own, port.1.pkeys)
            || self.sees_all
    }

    #[inline(always)]
    pub(crate) fn connected(&self, a: Classed<'_>, b: Classed<'_>) -> bool {
        self.tables.partitions.visible(a.1.pkeys, b.1.pkeys) || a.0.is_same_port(b.0)
    }

    /// First LID and number of LIDs of a port, as far as the request allows.
    #[inline]
    pub(crate) fn lids(&self, (port, class): Classed<'_>, only: Option<Lid>) -> (u16, u16) {
        match only {
            Some(lid) => (lid.0, 1),
            None if !port.lid.is_unicast() => (0, 0),
            None => (port.lid.0, 1 << class.lmc),
        }
    }

    /// Paths between two ports, `wanted` of them: those of the first virtual fabric, if any are
    /// defined, before those of others.
    #[inline]
    fn pair(
        &self,
        from: (Classed<'_>, (u16, u16)),
        to: (Classed<'_>, (u16, u16)),
        gids: ShownGids,
        wanted: usize,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        let wanted = found.count().saturating_add(wanted);
        self.preferred(from, to, gids, wanted, found)?;
        if found.count() < wanted && self.is_open() {
            self.further(from, to, gids, wanted, found)?;
        }
        if found.is_single() && found.count() > 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Paths between two ports in the first virtual fabric that the request falls under, or without
    /// virtual fabrics, up to `wanted` records in all: first those that have no LID in common, then
    /// all others.
    #[inline]
    pub(crate) fn preferred(
        &self,
        (source, (slid, slids)): (Classed<'_>, (u16, u16)),
        (destination, (dlid, dlids)): (Classed<'_>, (u16, u16)),
        gids: ShownGids,
        wanted: usize,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        for i in 0..slids.min(dlids) {
            if found.count() >= wanted {
                break;
            }
            let (slid, dlid) = (Lid(slid + i), Lid(dlid + i));
            let (from, to) = ((source, slid), (destination, dlid));
            if let Some((record, level)) = self.record(from, to, gids, PREFERRED, found) {
                self.levels.increment(level);
                found.push(&record)?;
            }
        }
        for s in 0..slids {
            for d in (0..dlids).filter(|&d| d != s) {
                if found.count() >= wanted {
                    break;
                }
                found.steps(self.tables.path_cost())?;
                let (slid, dlid) = (Lid(slid + s), Lid(dlid + d));
                let (from, to) = ((source, slid), (destination, dlid));
                if let Some((record, level)) = self.record(from, to, gids, REDUNDANT, found) {
                    self.levels.increment(level);
                    found.push(&record)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether the request leaves the P_Key open, so that the paths of all virtual fabrics that it
    /// falls under meet it.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        let Request { asked, constraints, .. } = self.request;
        asked.pkey.is_none() && !constraints.raw && self.tables.qos.has_fabrics()
    }

    /// Paths between two ports in virtual fabrics after the first that the request falls under,
    /// up to `wanted` records in all; each as [`preferred`](Self::preferred) has those of the
    /// first.
    #[cold]
    pub(crate) fn further(
        &self,
        (source, (slid, slids)): (Classed<'_>, (u16, u16)),
        (destination, (dlid, dlids)): (Classed<'_>, (u16, u16)),
        gids: ShownGids,
        wanted: usize,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        let Some(criteria) = &self.request.criteria else { return ControlFlow::Continue(()) };
        let groups = (source.1.groups, destination.1.groups);
        let qos = &self.tables.qos;
        let Some(levels) = qos.further(&self.request.asked, criteria, groups.0, groups.1) else {
            return ControlFlow::Continue(());
        };
        let own = self.tables.end_class(self.requester).pkeys;
        let may_see = |level: &Level| {
            let is_member = |pkey: &PKey| self.tables.partitions.is_member(own, *pkey);
            self.sees_all || level.pkeys.iter().any(is_member)
        };
        let side_by_side = (0..slids.min(dlids)).map(|i| (i, i, PREFERRED));
        let crossed = (0..slids)
            .flat_map(|s| (0..dlids).filter(move |&d| d != s).map(move |d| (s, d, REDUNDANT)));
        for level in levels {
            found.step()?;
            if !may_see(level) {
                continue;
            }
            for (s, d, preference) in side_by_side.clone().chain(crossed.clone()) {
                if found.count() >= wanted {
                    return ControlFlow::Continue(());
                }
                found.steps(self.tables.path_cost())?;
                let (from, to) = ((source, Lid(slid + s)), (destination, Lid(dlid + d)));
                let constraints = self.request.constraints;
                if let Some(path) = self.path_within(constraints, Some(level), from, to, false) {
                    self.push(&path, gids, preference, found)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Adds a path to the result.
    #[inline]
    pub(crate) fn push(
        &self,
        path: &Path,
        gids: ShownGids,
        preference: u8,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        self.levels.increment(path.parameters.level);
        found.push(&path.record(gids, preference))
    }

    /// The record of the path between two LIDs, if there is one: for a table a copy of the first of
    /// its kind.
    #[inline]
    fn record(
        &self,
        (source, slid): (Classed<'_>, Lid),
        (destination, dlid): (Classed<'_>, Lid),
        gids: ShownGids,
        preference: u8,
        found: &mut Found<'_>,
    ) -> Option<([u8; PathRecord::LEN], LevelSlot)> {
        let make = || {
            let path = self.path(source, slid, destination, dlid)?;
            Some((path.record(gids, preference), path.parameters.level))
        };
        // Paths to oneself are like no others, and the requester's own port is visible where others
        // of its class are not.
        let is_own =
            source.0.is_same_port(destination.0) || self.requester.is_same_port(destination.0);
        let has_kind = self.tables.all_paths_pass_alike() && !is_own;
        if found.is_single() || !has_kind {
            return make();
        }
        let kind = self.kind((source, slid), (destination, dlid), preference)?;
        let (mut record, level) = (*found.templates.of(kind, make))?;
        PathRecord::of_mut(&mut record)
            .set_dgid(gids.dgid.unwrap_or_else(|| self.gid(destination.0)))
            .set_sgid(gids.sgid.unwrap_or_else(|| self.gid(source.0)))
            .set_dlid(dlid)
            .set_slid(slid);
        Some((record, level))
    }

    /// Kind of the path between two LIDs: paths of one search and kind differ only in their GIDs
    /// and LIDs.
    #[inline]
    fn kind(
        &self,
        (source, slid): (Classed<'_>, Lid),
        (destination, dlid): (Classed<'_>, Lid),
        preference: u8,
    ) -> Option<Kind> {
        let at_dlid = self.at(destination.0, dlid)?;
        let there = self.tables.path_class(source.0, at_dlid, dlid);
        let back = if self.is_same_back(destination.0) {
            None
        } else {
            let at_slid = self.at(source.0, slid)?;
            Some(self.tables.path_class(destination.0, at_slid, slid))
        };
        Some(Kind::new((source.0.class, destination.0.class), there, back, preference))
    }

    /// The GID of a port by the GUID that it was found by.
    #[inline]
    fn gid(&self, port: &EndPort) -> Gid {
        Gid::new(self.tables.subnet.prefix, port.guid)
    }

    /// Whether every path to a port has a reverse path that is no worse: true where paths are
    /// symmetric.
    #[inline(always)]
    pub(crate) fn is_same_back(&self, destination: &EndPort) -> bool {
        !self.request.minds_direction(self.tables)
            && self.tables.all_sls_pass()
            && self.tables.paths.is_complete(destination.row)
    }

    /// The path between two LIDs, if there is one.
    #[inline(always)]
    pub(crate) fn path(
        &self,
        source: Classed<'_>,
        slid: Lid,
        destination: Classed<'_>,
        dlid: Lid,
    ) -> Option<Path> {
        let is_same_back = self.is_same_back(destination.0);
        self.path_within(
            self.request.constraints,
            None,
            (source, slid),
            (destination, dlid),
            is_same_back,
        )
    }

    /// Same, with the constraints, possibly the QoS level of both directions, and the result of
    /// [`is_same_back`] already known.
    ///
    /// [`is_same_back`]: Self::is_same_back
    #[inline(always)]
    pub(crate) fn path_within(
        &self,
        constraints: Constraints,
        level: Option<&Level>,
        (source, slid): (Classed<'_>, Lid),
        (destination, dlid): (Classed<'_>, Lid),
        is_same_back: bool,
    ) -> Option<Path> {
        let (at_slid, at_dlid) = (self.at(source.0, slid)?, self.at(destination.0, dlid)?);
        let (tables, request) = (self.tables, self.request);
        let (to, back_to) = ((at_dlid, destination.1), (at_slid, source.1));
        let there = select(tables, request, constraints, level, source, to, dlid);
        let Ok(parameters) = there else { return None };
        let reversible = is_same_back
            || select(tables, request, constraints, level, destination, back_to, slid).is_ok();
        if request.reversible && !reversible {
            return None;
        }
        Some(Path {
            parameters,
            prefix: tables.subnet.prefix,
            source: source.0.guid,
            destination: destination.0.guid,
            slid,
            dlid,
            reversible,
            is_loopback: source.0.is_same_port(destination.0),
            needs_grh: source.1.is_virtual || destination.1.is_virtual,
            rate: reported_rate(&parameters, source.1, reversible.then_some(destination.1)),
        })
    }

    /// The port as found by one of its LIDs: that decides which column its paths are in.
    #[inline(always)]
    fn at<'p>(&'p self, port: &'p EndPort, lid: Lid) -> Option<&'p EndPort> {
        if port.lid == lid { Some(port) } else { self.tables.end_ports.by_lid(lid) }
    }
}

/// A path that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    parameters: Parameters,
    /// Prefix of the GIDs of both ends.
    prefix: u64,
    source: Guid,
    destination: Guid,
    slid: Lid,
    dlid: Lid,
    reversible: bool,
    is_loopback: bool,
    /// Whether an end is a virtual port.
    needs_grh: bool,
    rate: Rate,
}

impl Path {
    /// Where paths of its QoS level are counted.
    #[inline]
    pub(crate) fn level(&self) -> LevelSlot {
        self.parameters.level
    }

    /// The path as a PathRecord. Paths to another subnet have a HopLimit, since they go through a
    /// router; so have those of virtual ports, since senders add a GRH then.
    #[inline(always)]
    pub(crate) fn record(&self, gids: ShownGids, preference: u8) -> [u8; PathRecord::LEN] {
        let Parameters { limit, lifetime, pkey, sl, .. } = self.parameters;
        // A path from a port to itself takes no time, even if the request asks for a lifetime.
        let lifetime = if self.is_loopback { 0 } else { lifetime };
        let hop_limit = match gids.dgid {
            Some(_) => HOP_LIMIT_MAX,
            None if self.needs_grh => HOP_LIMIT_VIRTUAL,
            None => 0,
        };
        let exactly = |value: u8| u64::from(Selector::Exactly.code() << 6 | value & 0x3F);
        let mut record = [0; PathRecord::LEN];
        // Word by word, where the layout's setters would write bit by bit. ServiceID is omitted,
        // like all fields not named here.
        let (words, _) = record.as_chunks_mut::<8>();
        let gid = |shown: Option<Gid>, guid: Guid| {
            let (prefix, guid) =
                shown.map_or((self.prefix, guid), |shown| (shown.prefix(), shown.guid()));
            (prefix.to_be_bytes(), guid.0.to_be_bytes())
        };
        (words[1], words[2]) = gid(gids.dgid, self.destination);
        (words[3], words[4]) = gid(gids.sgid, self.source);
        let lids = u64::from(self.dlid.0) << 48 | u64::from(self.slid.0) << 32;
        words[5] = (lids | u64::from(hop_limit)).to_be_bytes();
        let (reversible, pkey, sl) = (self.reversible.into(), pkey.0.into(), sl.get().into());
        let low: [u64; 5] = [reversible, pkey, sl, exactly(limit.mtu), exactly(self.rate.code())];
        words[6] =
            (low[0] << 55 | low[1] << 32 | low[2] << 16 | low[3] << 8 | low[4]).to_be_bytes();
        words[7] = (exactly(lifetime) << 56 | u64::from(preference) << 48).to_be_bytes();
        record
    }
}

/// HopLimit of paths between virtual ports, or from or to one; the vendor's manager reports it too.
const HOP_LIMIT_VIRTUAL: u8 = 2;
/// HopLimit of paths to another subnet.
const HOP_LIMIT_MAX: u8 = 255;
/// Preference of paths that share no LID with each other.
pub(crate) const PREFERRED: u8 = 0;
/// Preference of the others.
const REDUNDANT: u8 = 2;

/// The rate in a code that both ends of the path understand.
#[inline]
fn reported_rate(parameters: &Parameters, source: &EndClass, back: Option<&EndClass>) -> Rate {
    let rank = usize::from(parameters.limit.rate.max(1)) - 1;
    let rate = source.rates.fit(Rate::BY_VALUE[rank]);
    back.map_or(rate, |class| class.rates.fit(rate))
}

//! Whether one path meets a request, and which parameters the answer reports for it.

use ib_mad::types::{Lid, Lifetime, Mtu, PKey, Sl};
use ib_mad::wire::record::Selector;
use serde::Serialize;

use super::request::{Constraint, Constraints, Request};
use crate::tables::qos_match::{Level, LevelSlot, RuleNumber};
use crate::tables::{EndClass, EndPort, Limit, PKeySet, Tables};

/// The parameters of a path before they are written to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) limit: Limit,
    pub(crate) lifetime: u8,
    pub(crate) pkey: PKey,
    pub(crate) sl: Sl,
    /// Where paths of its QoS level are counted.
    pub(crate) level: LevelSlot,
}

/// Why there is no path that meets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoPath {
    /// No route leads there.
    Unreachable,
    /// Every SL is dropped on the path.
    NoSlPasses,
    /// The level's SL is dropped on the path.
    LevelSlDropped,
    /// No path has the requested MTU.
    Mtu,
    /// No path has the requested rate.
    Rate,
    /// No path has the requested packet lifetime.
    Lifetime,
    /// The ends do not share the requested P_Key.
    PKeyNotShared,
    /// The level does not have the requested P_Key.
    PKeyNotOfLevel,
    /// The ends share no P_Key of the level's.
    NoLevelPKeyShared,
    /// The ends share no P_Key.
    NoPKeyShared,
    /// The requested SL is not the level's.
    SlNotOfLevel,
    /// The requested SL is not the one that the route requires.
    SlNotOfRoute,
    /// The SL is dropped on the path.
    SlDropped,
}

/// The path from `source` to `destination` (found by `dlid`), if it exists and meets the request,
/// whose constraints are a separate argument; `level` is that of the QoS rule that accepts the
/// request, unless given; values that may be below those of the path are lowered to the requested
/// ones. Always inlined: most requests have no constraints, and where this
/// is known at compile time, the compiler drops the checks.
#[inline(always)]
pub(crate) fn select(
    tables: &Tables,
    request: &Request,
    constraints: Constraints,
    level: Option<&Level>,
    (source, source_class): (&EndPort, &EndClass),
    (destination, destination_class): (&EndPort, &EndClass),
    dlid: Lid,
) -> Result<Parameters, NoPath> {
    let switches = tables.path_class(source, destination, dlid);
    let mut limit = switches.limit.min(source_class.limit).min(destination_class.limit);
    if constraints.mtu.is_some_and(overrides_quirks) {
        limit.mtu = switches.limit.mtu.min(source_class.mtu_cap).min(destination_class.mtu_cap);
    }
    if limit.is_none() {
        return Err(NoPath::Unreachable);
    }
    let passing = tables.passing_sls(source, destination, dlid);
    let passes = |sl: Sl| passing >> sl.get() & 1 == 1;
    if passing == 0 {
        return Err(NoPath::NoSlPasses);
    }
    let level = match level {
        Some(level) => level,
        None => tables.qos.granted(rule(tables, request, source_class, destination_class)),
    };
    if level.sl.is_some_and(|sl| !passes(tables.engine_sl(sl, switches.sl))) {
        return Err(NoPath::LevelSlDropped);
    }

    let limit = limit.min(level.limit);
    let lifetime = if source.is_same_port(destination) {
        Lifetime::default().code()
    } else {
        level.lifetime.unwrap_or(tables.subnet.lifetime.code())
    };
    let limit = Limit {
        mtu: at_most(constraints.mtu, limit.mtu).ok_or(NoPath::Mtu)?,
        rate: rate(constraints.rate, limit.rate).ok_or(NoPath::Rate)?,
    };
    let lifetime = at_most(constraints.lifetime, lifetime).ok_or(NoPath::Lifetime)?;
    let asked =
        if constraints.raw { PKeyConstraint::Raw } else { PKeyConstraint::of(request.asked.pkey) };
    let pkey = pkey(tables, asked, level, source_class.pkeys, destination_class.pkeys)?;

    let sl = match (constraints.sl, level.sl) {
        (Some(asked), Some(own)) if asked != own => return Err(NoPath::SlNotOfLevel),
        (Some(sl), _) | (None, Some(sl)) => sl,
        (None, None) if pkey.is_valid() => tables.partition_sl(pkey),
        // Raw packets between ports that share no partition: SL 0, or the first that passes.
        (None, None) if passes(Sl::default()) => Sl::default(),
        (None, None) => Sl::from_low_bits(passing.trailing_zeros() as u16),
    };
    let chosen = sl;
    let sl = tables.engine_sl(chosen, switches.sl);
    if constraints.sl.is_some() && sl != chosen {
        return Err(NoPath::SlNotOfRoute);
    }
    if !passes(sl) {
        return Err(NoPath::SlDropped);
    }
    let pkey = if constraints.raw { PKey(0) } else { pkey };
    Ok(Parameters { limit, lifetime, pkey, sl, level: level.slot })
}

/// The QoS rule that a path between ports of these classes falls under.
#[inline]
pub(crate) fn rule(
    tables: &Tables,
    request: &Request,
    source: &EndClass,
    destination: &EndClass,
) -> Option<RuleNumber> {
    let criteria = request.criteria.as_ref()?;
    tables.qos.find(criteria, source.groups, destination.groups)
}

/// Requirement for the P_Key of the path.
#[derive(Clone, Copy)]
enum PKeyConstraint {
    /// Any that both ends share.
    Any,
    /// Exactly this P_Key.
    Exactly(PKey),
    /// No P_Key: raw packets carry none.
    Raw,
}

impl PKeyConstraint {
    #[inline(always)]
    fn of(asked: Option<PKey>) -> Self {
        asked.map_or(Self::Any, Self::Exactly)
    }
}

/// The P_Key of the path: for raw packets one that the ends share, if there is one.
#[inline(always)]
fn pkey(
    tables: &Tables,
    constraint: PKeyConstraint,
    level: &Level,
    a: PKeySet,
    b: PKeySet,
) -> Result<PKey, NoPath> {
    let partitions = &tables.partitions;
    let level = level.has_pkeys.then_some(level);
    match (constraint, level) {
        (PKeyConstraint::Raw, _) => Ok(partitions.first_shared(a, b).unwrap_or(PKey(0))),
        (PKeyConstraint::Exactly(pkey), _) if !partitions.share(a, b, pkey) => {
            Err(NoPath::PKeyNotShared)
        }
        (PKeyConstraint::Exactly(pkey), Some(level)) if !level.allows(pkey) => {
            Err(NoPath::PKeyNotOfLevel)
        }
        (PKeyConstraint::Exactly(pkey), _) => Ok(pkey),
        (PKeyConstraint::Any, Some(level)) => {
            let mut pkeys = level.pkeys.iter().copied();
            pkeys.find(|&pkey| partitions.share(a, b, pkey)).ok_or(NoPath::NoLevelPKeyShared)
        }
        (PKeyConstraint::Any, None) => partitions.first_shared(a, b).ok_or(NoPath::NoPKeyShared),
    }
}

/// Whether a constraint on the MTU overrides the lower MTU that an adapter is faster with:
/// "largest" and more than 1,024 bytes do, "greater than 1,024" does not, as with OpenSM.
fn overrides_quirks(constraint: Constraint) -> bool {
    match constraint.selector {
        Selector::Largest => true,
        Selector::Greater | Selector::Exactly => constraint.value > Mtu::B1024.code(),
        Selector::Less => false,
    }
}

/// A quantity whose codes are ordered by size and that may be used below the path's value.
#[inline(always)]
fn at_most(constraint: Option<Constraint>, have: u8) -> Option<u8> {
    let Some(Constraint { selector, value }) = constraint else { return Some(have) };
    match selector {
        Selector::Greater => (have > value).then_some(have),
        Selector::Less if have < value => Some(have),
        // 1 is the minimum code of an MTU and of a lifetime.
        Selector::Less => (value > 1).then(|| value - 1),
        Selector::Exactly => (have >= value).then_some(value),
        Selector::Largest => Some(have),
    }
}

/// Rates are ranks here. A rate requested exactly must be the path's own, as with OpenSM.
#[inline(always)]
fn rate(constraint: Option<Constraint>, have: u8) -> Option<u8> {
    match constraint {
        Some(Constraint { selector: Selector::Exactly, value }) => (have == value).then_some(have),
        other => at_most(other, have),
    }
}

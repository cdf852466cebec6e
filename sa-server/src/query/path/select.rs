//! Whether one path meets a request's wishes, and what it is told to have.

use ib_mad::types::{Lid, Lifetime, PKey, Sl};
use ib_mad::wire::record::Selector;

use super::request::{PKeyWish, Request, Wish};
use crate::tables::{EndClass, EndPort, Limit, Tables};

/// What is told of a path, before it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) limit: Limit,
    pub(super) lifetime: u8,
    pub(super) pkey: PKey,
    pub(super) sl: Sl,
}

/// The path from `source` to `destination` (as found by `dlid`), if it is there and meets the
/// wishes; values that may be less than the path has are lowered to what was asked for.
#[inline]
pub(super) fn select(
    tables: &Tables,
    request: &Request,
    (source, source_class): (&EndPort, &EndClass),
    (destination, destination_class): (&EndPort, &EndClass),
    dlid: Lid,
) -> Option<Parameters> {
    let switches = tables.path_class(source, destination, dlid);
    let limit = switches.limit.min(source_class.limit).min(destination_class.limit);
    if limit.is_none() {
        return None;
    }
    let itself = source.is_same_port(destination);
    let lifetime = if itself { Lifetime::default() } else { tables.subnet.lifetime }.code();
    let limit =
        Limit { mtu: at_most(request.mtu, limit.mtu)?, rate: rate(request.rate, limit.rate)? };
    let lifetime = at_most(request.lifetime, lifetime)?;
    let (a, b) = (source_class.pkeys, destination_class.pkeys);
    let pkey = match request.pkey {
        PKeyWish::Raw => PKey(0),
        PKeyWish::Exactly(pkey) if tables.partitions.share(a, b, pkey) => pkey,
        PKeyWish::Exactly(_) => return None,
        PKeyWish::Any => tables.partitions.first_shared(a, b)?,
    };
    Some(Parameters { limit, lifetime, pkey, sl: request.sl.unwrap_or_default() })
}

/// A quantity whose codes follow its size, and which may be used below what the path has.
#[inline]
fn at_most(wish: Option<Wish>, have: u8) -> Option<u8> {
    let Some(Wish { selector, value }) = wish else { return Some(have) };
    match selector {
        Selector::Greater => (have > value).then_some(have),
        Selector::Less if have < value => Some(have),
        // 1 is the least that can be told, of an MTU as of a lifetime.
        Selector::Less => (value > 1).then(|| value - 1),
        Selector::Exactly => (have >= value).then_some(value),
        Selector::Largest => Some(have),
    }
}

/// Rates are ranks here. A rate asked for exactly must be the path's own, as with OpenSM.
#[inline]
fn rate(wish: Option<Wish>, have: u8) -> Option<u8> {
    match wish {
        Some(Wish { selector: Selector::Exactly, value }) => (have == value).then_some(have),
        other => at_most(other, have),
    }
}

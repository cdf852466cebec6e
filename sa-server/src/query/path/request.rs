//! A PathRecord request, read once and checked.

use ib_mad::types::{Gid, Lid, Mtu, PKey, Rate, Sl};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{PathRecord, Selector};
use ib_mad::wire::sa::ComponentMask;

use crate::query::{Query, Refusal};

/// What the request says of one end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) gid: Option<Gid>,
    pub(super) lid: Option<Lid>,
}

/// A wish for an MTU, a rate or a lifetime: by size, as ranks and codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) selector: Selector,
    pub(super) value: u8,
}

/// Which P_Key the path is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PKeyWish {
    /// Any that both ends share.
    Any,
    /// This one.
    Exactly(PKey),
    /// None: raw packets carry none.
    Raw,
}

/// A request's criteria. FlowLabel, HopLimit, TClass, QoSClass, ServiceID and Preference select
/// nothing while no QoS policy is in force, as with OpenSM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) source: End,
    pub(super) destination: End,
    pub(super) pkey: PKeyWish,
    pub(super) sl: Option<Sl>,
    pub(super) mtu: Option<Wish>,
    pub(super) rate: Option<Wish>,
    pub(super) lifetime: Option<Wish>,
    /// Whether a path without a way back is of no use.
    pub(super) reversible: bool,
    /// Most paths wanted for a pair of ports.
    pub(super) numb_path: Option<u8>,
}

impl Request {
    #[inline]
    pub(super) fn read(query: &Query<'_>) -> Result<Self, Refusal> {
        let record = PathRecord::new(&query.record[..]).expect("64 bytes of 200");
        let mask = query.mask;
        let has = |component: ComponentMask| mask.contains(component);
        // A value without its selector, or a selector without its value, is no wish.
        let wish = |components: ComponentMask, selector: Selector, value: Option<u8>| {
            if !has(components) {
                return Ok(None);
            }
            let value = value.ok_or(Refusal::Status(Status::SA_REQ_INVALID))?;
            Ok(Some(Wish { selector, value }))
        };
        let rate = wish(
            path::RATE_SELECTOR | path::RATE,
            record.rate_selector(),
            Rate::from_code(record.rate()).map(Rate::rank),
        )?;
        let mtu = wish(
            path::MTU_SELECTOR | path::MTU,
            record.mtu_selector(),
            Mtu::from_code(record.mtu()).map(Mtu::code),
        )?;
        let lifetime = wish(
            path::PACKET_LIFE_TIME_SELECTOR | path::PACKET_LIFE_TIME,
            record.packet_life_time_selector(),
            Some(record.packet_life_time().code()),
        )?;
        if mask.intersects(path::SERVICE_ID) && !has(path::SERVICE_ID) {
            return Err(Refusal::Status(Status::SA_INSUFFICIENT_COMPONENTS));
        }
        let end = |gid: ComponentMask, gid_value: Gid, lid: ComponentMask, lid_value: Lid| End {
            gid: has(gid).then_some(gid_value),
            lid: has(lid).then_some(lid_value),
        };
        Ok(Self {
            source: end(path::SGID, record.sgid(), path::SLID, record.slid()),
            destination: end(path::DGID, record.dgid(), path::DLID, record.dlid()),
            pkey: match () {
                () if has(path::RAW_TRAFFIC) && record.raw_traffic() => PKeyWish::Raw,
                () if has(path::PKEY) => PKeyWish::Exactly(record.pkey()),
                () => PKeyWish::Any,
            },
            sl: has(path::SL).then(|| record.sl()),
            mtu,
            rate,
            lifetime,
            reversible: has(path::REVERSIBLE) && record.reversible(),
            numb_path: has(path::NUMB_PATH).then(|| record.numb_path()),
        })
    }
}

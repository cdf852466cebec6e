//! A request for paths, PathRecord or MultiPathRecord, read once and checked.

use ib_mad::types::{Gid, Lid, Mtu, Rate, Sl};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::multi_path::component as multi;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{MultiPathRecord, PathRecord, Selector};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN};

use crate::query::{Query, Refusal};
use crate::tables::Tables;
use crate::tables::qos_match::{Asked, Criteria};

/// The components of a request that specify one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) gid: Option<Gid>,
    pub(crate) lid: Option<Lid>,
}

/// A constraint on the MTU, rate or packet lifetime; values compare by size, as ranks and codes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Constraint {
    pub(crate) selector: Selector,
    pub(crate) value: u8,
}

/// Requirements of a request for its paths, apart from the ends. Most requests demand nothing;
/// where this is known at compile time, the compiler drops the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Constraints {
    pub(crate) sl: Option<Sl>,
    pub(crate) mtu: Option<Constraint>,
    pub(crate) rate: Option<Constraint>,
    pub(crate) lifetime: Option<Constraint>,
    /// Whether it is for raw packets, which carry no P_Key.
    pub(crate) raw: bool,
}

impl Constraints {
    /// No constraint.
    pub(crate) const NONE: Self =
        Self { sl: None, mtu: None, rate: None, lifetime: None, raw: false };
}

/// A request's criteria. FlowLabel, HopLimit, TClass and Preference select nothing, as with OpenSM;
/// QoSClass and ServiceID only choose a QoS rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) constraints: Constraints,
    /// Whether the path must be reversible.
    pub(crate) reversible: bool,
    /// Maximum number of paths: for a pair of ports; for MultiPathRecord, of all pairs.
    pub(crate) numb_path: Option<u8>,
    /// Inputs of QoS rules. The path must have the P_Key, unless it is for raw packets.
    pub(crate) asked: Asked,
    /// Same, looked up; `None` if no rule is in force.
    pub(crate) criteria: Option<Criteria>,
}

/// Reads the criteria of `$record` under the ComponentMask `$mask`: PathRecord and MultiPathRecord
/// have the same fields at different places.
macro_rules! read {
    ($tables:expr, $record:expr, $mask:expr, $component:ident) => {{
        let (record, mask): (_, ComponentMask) = (&$record, $mask);
        let has = |component: ComponentMask| mask.contains(component);
        // A value without its selector, or a selector without its value, constrains nothing.
        let constraint = |components: ComponentMask, selector: Selector, value: Option<u8>| {
            if !has(components) {
                return Ok(None);
            }
            let value = value.ok_or(Refusal::Status(Status::SA_REQ_INVALID))?;
            Ok(Some(Constraint { selector, value }))
        };
        let rate = constraint(
            $component::RATE_SELECTOR | $component::RATE,
            record.rate_selector(),
            Rate::from_code(record.rate()).map(Rate::rank),
        )?;
        let mtu = constraint(
            $component::MTU_SELECTOR | $component::MTU,
            record.mtu_selector(),
            Mtu::from_code(record.mtu()).map(Mtu::code),
        )?;
        let lifetime = constraint(
            $component::PACKET_LIFE_TIME_SELECTOR | $component::PACKET_LIFE_TIME,
            record.packet_life_time_selector(),
            Some(record.packet_life_time().code()),
        )?;
        if mask.intersects($component::SERVICE_ID) && !has($component::SERVICE_ID) {
            return Err(Refusal::Status(Status::SA_INSUFFICIENT_COMPONENTS));
        }
        let asked = Asked {
            service_id: has($component::SERVICE_ID).then(|| record.service_id()),
            qos_class: has($component::QOS_CLASS).then(|| record.qos_class()),
            pkey: has($component::PKEY).then(|| record.pkey()),
        };
        Ok(Self {
            constraints: Constraints {
                sl: has($component::SL).then(|| record.sl()),
                mtu,
                rate,
                lifetime,
                raw: has($component::RAW_TRAFFIC) && record.raw_traffic(),
            },
            reversible: has($component::REVERSIBLE) && record.reversible(),
            numb_path: has($component::NUMB_PATH).then(|| record.numb_path()),
            criteria: criteria($tables, &asked),
            asked,
        })
    }};
}

impl Request {
    /// The criteria of a PathRecord.
    #[inline]
    pub(crate) fn read(query: &Query<'_>) -> Result<Self, Refusal> {
        let record = PathRecord::of(query.record);
        read!(query.tables, record, query.mask, path)
    }

    /// The criteria of a PathRecord with only a P_Key, reversibility and inputs of QoS rules, as
    /// most requests are.
    #[inline(always)]
    pub(crate) fn read_plain(
        tables: &Tables,
        mask: ComponentMask,
        record: &[u8; DATA_LEN],
    ) -> Self {
        let record = PathRecord::of(record);
        let has = |component: ComponentMask| mask.contains(component);
        let asked = Asked {
            service_id: has(path::SERVICE_ID).then(|| record.service_id()),
            qos_class: has(path::QOS_CLASS).then(|| record.qos_class()),
            pkey: has(path::PKEY).then(|| record.pkey()),
        };
        Self {
            constraints: Constraints::NONE,
            reversible: has(path::REVERSIBLE) && record.reversible(),
            numb_path: None,
            criteria: criteria(tables, &asked),
            asked,
        }
    }

    /// The criteria of a MultiPathRecord.
    pub(crate) fn read_multi(
        tables: &Tables,
        mask: ComponentMask,
        record: &MultiPathRecord<&[u8]>,
    ) -> Result<Self, Refusal> {
        read!(tables, record, mask, multi)
    }

    /// The ends of a PathRecord: source, destination.
    #[inline]
    pub(crate) fn ends(mask: ComponentMask, record: &[u8; DATA_LEN]) -> (End, End) {
        let record = PathRecord::of(record);
        let has = |component: ComponentMask| mask.contains(component);
        let end = |gid: ComponentMask, gid_value: Gid, lid: ComponentMask, lid_value: Lid| End {
            gid: has(gid).then_some(gid_value),
            lid: has(lid).then_some(lid_value),
        };
        (
            end(path::SGID, record.sgid(), path::SLID, record.slid()),
            end(path::DGID, record.dgid(), path::DLID, record.dlid()),
        )
    }

    /// Whether a path may meet the request in one direction only. Sharing a partition is symmetric.
    #[inline(always)]
    pub(crate) fn minds_direction(&self, tables: &Tables) -> bool {
        let Constraints { sl, mtu, rate, lifetime, .. } = self.constraints;
        let has_constraint = mtu.is_some() || rate.is_some() || lifetime.is_some();
        // Where the engine assigns SLs, the way back may have another.
        let minds_sl = sl.is_some() && (self.criteria.is_some() || tables.subnet.engine_sls != 0);
        has_constraint || minds_sl || self.criteria.is_some() && tables.qos.refuses()
    }
}

#[inline]
fn criteria(tables: &Tables, asked: &Asked) -> Option<Criteria> {
    (!tables.qos.is_empty()).then(|| tables.qos.criteria(asked))
}

//! QoS levels in the form that queries use.

use std::sync::Arc;

use ib_mad::types::{PKey, Sl};
use sa_proto::snapshot::QosLevel;

use super::LevelSlot;
use crate::tables::limit::Limit;

/// A QoS level.
#[derive(Clone, Debug)]
pub struct Level {
    row: Arc<QosLevel>,
    /// Greatest MTU and rate.
    pub limit: Limit,
    /// SL of the path.
    pub sl: Option<Sl>,
    /// Packet lifetime, as its code.
    pub lifetime: Option<u8>,
    /// Whether the path must have one of the level's P_Keys.
    pub has_pkeys: bool,
    /// P_Keys of the level that any port has, without the membership bit, in the level's order.
    pub pkeys: Box<[PKey]>,
    /// Where its paths are counted.
    pub slot: LevelSlot,
}

impl Level {
    /// `partitions`: all P_Keys that ports have, ascending, without the membership bit.
    pub(super) fn new(row: &Arc<QosLevel>, partitions: &[u16]) -> Self {
        let mut pkeys: Vec<PKey> = Vec::new();
        for &(first, last) in &row.pkeys {
            let start = partitions.partition_point(|&base| base < first);
            let end = partitions.partition_point(|&base| base <= last).max(start);
            pkeys.extend(partitions[start..end].iter().copied().map(PKey));
        }
        let any = Limit::ANY;
        Self {
            limit: Limit {
                mtu: row.mtu_limit.map_or(any.mtu, |mtu| mtu.code()),
                rate: row.rate_limit.map_or(any.rate, |rate| rate.rank()),
            },
            sl: row.sl,
            lifetime: row.packet_life.map(|life| life.code()),
            has_pkeys: !row.pkeys.is_empty(),
            pkeys: pkeys.into(),
            slot: LevelSlot::OTHER,
            row: Arc::clone(row),
        }
    }

    /// The level if no rule applies: it grants everything.
    pub(super) fn any() -> Self {
        let row = QosLevel {
            index: u32::MAX,
            name: String::new(),
            sl: None,
            mtu_limit: None,
            rate_limit: None,
            packet_life: None,
            pkeys: Vec::new(),
        };
        Self { slot: LevelSlot::NONE, ..Self::new(&Arc::new(row), &[]) }
    }

    /// The row that it was made from.
    pub fn row(&self) -> &QosLevel {
        &self.row
    }

    /// Whether a path of this level may have the P_Key; its membership bit is ignored.
    #[inline]
    pub fn allows(&self, pkey: PKey) -> bool {
        let within = |&(first, last): &(u16, u16)| (first..=last).contains(&pkey.base());
        !self.has_pkeys || self.row.pkeys.iter().any(within)
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::any()
    }
}

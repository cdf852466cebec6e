//! Service levels: those of partitions, and those that reach the destination of a path.
//!
//! A port that maps an SL to VL15 drops its packets. Most fabrics have no such mapping, or drop the
//! same SLs everywhere. Only where ports differ is a path followed hop by hop to find the SLs that
//! arrive.

use std::sync::Arc;

use ib_mad::types::{Lid, PKey, Sl};
use sa_proto::snapshot::{FabricPlane, PortTables};

use super::{EndPort, Partitions, Step, Tables};

/// A mask of all SLs.
pub(crate) const ALL_SLS: u16 = 0xFFFF;
/// The VL that data packets cannot take.
const DROP_VL: u8 = 15;

/// SL tables.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sls {
    /// SL by partition number.
    of_partition: Box<[Sl]>,
    through: Through,
}

/// The SLs that all links of a path accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// The same SLs on every path; one bit for each.
    Always(u16),
    /// Other SLs on other paths.
    ByPath,
}

impl Sls {
    pub(super) fn of(plane: &FabricPlane, partitions: &Partitions) -> Self {
        let mut of_partition = vec![Sl::default(); partitions.len()];
        for row in &plane.partitions {
            if let Some(number) = partitions.number(row.pkey) {
                of_partition[number] = row.sl;
            }
        }
        Self { of_partition: of_partition.into(), through: Through::of(plane) }
    }
}

impl Through {
    fn of(plane: &FabricPlane) -> Self {
        if !plane.subnet.qos && plane.subnet.engine_sls == 0 {
            return Self::Always(ALL_SLS);
        }
        let mut masks = plane.port_tables.iter().flat_map(|row| {
            row.sl_to_vl.iter().filter_map(|&(_, map)| row.sl_to_vl_maps.get(usize::from(map)))
        });
        let Some(first) = masks.next().map(passing) else { return Self::Always(ALL_SLS) };
        let everywhere = first == ALL_SLS || has_maps_everywhere(plane);
        if everywhere && masks.all(|map| passing(map) == first) {
            return Self::Always(first);
        }
        Self::ByPath
    }
}

/// Whether the maps of every node are known.
fn has_maps_everywhere(plane: &FabricPlane) -> bool {
    let has_map = |node| {
        sa_proto::snapshot::find(&plane.port_tables, node)
            .is_some_and(|row: &Arc<PortTables>| !row.sl_to_vl.is_empty())
    };
    plane.nodes.iter().all(|node| has_map(node.guid))
}

/// SLs that a map sends to a VL other than VL15.
pub(crate) fn passing(map: &[u8; 8]) -> u16 {
    (0..16).fold(0, |mask, sl| {
        let vl = map[sl / 2] >> (4 * (1 - sl % 2)) & 0xF;
        mask | u16::from(vl != DROP_VL) << sl
    })
}

impl Tables {
    /// SL of the partition of `pkey`; 0 while QoS is off, or if the partition has no row.
    #[inline]
    pub(crate) fn partition_sl(&self, pkey: PKey) -> Sl {
        if !self.subnet.qos {
            return Sl::default();
        }
        let number = self.partitions.number(pkey);
        number.and_then(|number| self.sls.of_partition.get(number)).copied().unwrap_or_default()
    }

    /// The SL of a path for which policy chose `chosen`, and whose class has `class_sl`: the bits
    /// that the routing engine decides are the class's.
    #[inline(always)]
    pub(crate) fn engine_sl(&self, chosen: Sl, class_sl: u8) -> Sl {
        let by_engine = self.subnet.engine_sls;
        Sl::from_low_bits(u16::from(chosen.get() & !by_engine | class_sl & by_engine))
    }

    /// Whether all SLs get through on all paths.
    #[inline]
    pub(crate) fn all_sls_pass(&self) -> bool {
        self.sls.through == Through::Always(ALL_SLS)
    }

    /// Whether there is a path between any two ports, on which all SLs get through.
    #[inline]
    pub(crate) fn all_paths_return(&self) -> bool {
        self.all_sls_pass() && self.paths.are_complete()
    }

    /// Whether the same SLs get through on all paths.
    #[inline]
    pub(crate) fn all_paths_pass_alike(&self) -> bool {
        matches!(self.sls.through, Through::Always(_))
    }

    /// Cost of a pair of ports, in steps of a search.
    #[inline]
    pub(crate) fn path_cost(&self) -> u32 {
        match self.sls.through {
            Through::Always(_) => 1,
            Through::ByPath => WALK_COST,
        }
    }

    /// SLs that no hop from `source` to `dlid`, a LID of `destination`, drops.
    #[inline]
    pub(crate) fn passing_sls(&self, source: &EndPort, destination: &EndPort, dlid: Lid) -> u16 {
        match self.sls.through {
            Through::Always(mask) => mask,
            Through::ByPath => self.passing_by_path(source, destination, dlid),
        }
    }

    #[cold]
    fn passing_by_path(&self, source: &EndPort, destination: &EndPort, dlid: Lid) -> u16 {
        let mut mask = ALL_SLS;
        self.trace(source, destination, dlid, |step| mask &= self.passing_at(step));
        mask
    }

    /// SLs that get through at one hop.
    pub(crate) fn passing_at(&self, step: &Step<'_>) -> u16 {
        self.sl_to_vl(step).map_or(ALL_SLS, passing)
    }

    /// The SL-to-VL map that a packet meets at one hop, if it is known.
    pub(crate) fn sl_to_vl(&self, step: &Step<'_>) -> Option<&[u8; 8]> {
        let row = sa_proto::snapshot::find(&self.plane.port_tables, step.node.guid)?;
        let ports =
            if step.is_switch() { (step.entry.0, step.exit.0) } else { CHANNEL_ADAPTER_PORTS };
        let at = row.sl_to_vl.binary_search_by_key(&ports, |&(ports, _)| ports).ok()?;
        row.sl_to_vl_maps.get(usize::from(row.sl_to_vl[at].1))
    }
}

/// Steps of following a path in both directions.
const WALK_COST: u32 = 16;
/// The key for the ports of a channel adapter in [`PortTables::sl_to_vl`].
const CHANNEL_ADAPTER_PORTS: (u8, u8) = (0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sls_on_vl15_do_not_pass() {
        assert_eq!(passing(&[0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67]), ALL_SLS);
        assert_eq!(passing(&[0x0F, 0, 0, 0, 0, 0, 0, 0xFF]), 0b0011_1111_1111_1101);
    }
}

//! The intended SL-to-VL mapping and VL arbitration tables of a port (IBA 7.6.9, 7.6.6).

use ib_mad::wire::attribute::data_vls;

use super::vfabric::arbitration::{Arbitration, PortLanes};
use sm_config::{PortQos, Settings, VL_ARB_ENTRIES};

/// Blocks of VL arbitration tables, in their order on the wire: two of low, two of high priority.
pub const VL_ARB_BLOCKS: usize = 4;
const BLOCK_ENTRIES: usize = 32;
/// The VL that data packets cannot take: packets mapped to it are dropped.
const DROP_VL: u8 = 15;

/// The SL-to-VL map for a port whose OperationalVLs have this code: VLs that the port does not
/// have fold onto those that it has; VL 15 stays, and drops the packet.
pub fn sl_to_vl(vls: &[u8; 16], operational_vls: u8) -> [u8; 8] {
    let vls = folded(vls, operational_vls);
    std::array::from_fn(|i| vls[2 * i] << 4 | vls[2 * i + 1])
}

/// How many SLs from 0 on a port whose OperationalVLs have this code keeps apart.
pub fn distinct_lanes(qos: &PortQos, operational_vls: u8) -> u8 {
    let vls = folded(&qos.sl2vl, operational_vls);
    let is_new = |&sl: &usize| vls[sl] != DROP_VL && !vls[..sl].contains(&vls[sl]);
    (0..vls.len()).take_while(is_new).count() as u8
}

/// The VL by SL of a port whose OperationalVLs have this code.
pub fn folded(vls: &[u8; 16], operational_vls: u8) -> [u8; 16] {
    let mask = vl_mask(operational_vls);
    vls.map(|vl| if vl == DROP_VL { DROP_VL } else { vl & mask })
}

/// The VLs of a set, as [`folded`] has them; without VL 15, which drops packets.
pub fn folded_set(vls: u16, operational_vls: u8) -> u16 {
    let mask = vl_mask(operational_vls);
    (0..DROP_VL).filter(|vl| vls >> vl & 1 == 1).fold(0, |all, vl| all | 1 << (vl & mask))
}

/// Block `block` of the VL arbitration table, 0 to 3, of a port that has `low` and `high` entries
/// of each priority; `None` if it has no such block.
pub fn vl_arb_block(
    qos: &PortQos,
    operational_vls: u8,
    (low, high): (u8, u8),
    block: usize,
) -> Option<[u8; 64]> {
    let (entries, capacity) =
        if block < 2 { (&qos.vlarb_low, low) } else { (&qos.vlarb_high, high) };
    let start = block % 2 * BLOCK_ENTRIES;
    let count = usize::from(capacity).checked_sub(start)?.min(BLOCK_ENTRIES);
    let mask = vl_mask(operational_vls);
    let mut bytes = [0; 64];
    for (pair, &(vl, weight)) in
        bytes.as_chunks_mut::<2>().0.iter_mut().zip(&entries[start..start + count])
    {
        *pair = [vl & mask, weight];
    }
    (count > 0).then_some(bytes)
}

/// The tables for ports of a torus's switches that lead to hosts: these have VL 0 for the lower QoS
/// level, which other links have VLs 0 to 3 for, and VL 1 for the upper one (VLs 4 to 7). As with
/// OpenSM, the entries of VL 0 and VL 4 count, which becomes VL 1, and the others are left out.
pub fn of_torus_host_port(qos: &PortQos) -> PortQos {
    let fold = |entries: &[(u8, u8); VL_ARB_ENTRIES]| {
        let kept = entries.iter().filter_map(|&(vl, weight)| match vl {
            0 => Some((0, weight)),
            4 => Some((1, weight)),
            _ => None,
        });
        let mut folded = [(0, 0); VL_ARB_ENTRIES];
        folded.iter_mut().zip(kept).for_each(|(entry, kept)| *entry = kept);
        folded
    };
    PortQos { vlarb_high: fold(&qos.vlarb_high), vlarb_low: fold(&qos.vlarb_low), ..qos.clone() }
}

/// Whether the operator's tables are in force at ports of a kind although virtual fabrics have
/// bandwidth: those that settings have, while QoS is on.
pub fn is_own(qos: &PortQos, settings: &Settings) -> bool {
    settings.qos && qos.has_entries
}

/// The tables of a port with these lanes, with the entries that virtual fabrics
/// ask for.
pub fn of_virtual_fabrics(qos: &PortQos, arbitration: &Arbitration, lanes: &PortLanes) -> PortQos {
    let (vlarb_low, vlarb_high) = arbitration.entries(lanes);
    PortQos { vlarb_low, vlarb_high, ..qos.clone() }
}

/// The bits of a VL's number that distinguish the data VLs of this code.
fn vl_mask(operational_vls: u8) -> u8 {
    data_vls(operational_vls).unwrap_or(1).next_power_of_two() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_config::QosTables;

    #[test]
    fn vls_that_a_port_does_not_have_fold_onto_those_it_has() {
        let mut settings = Settings::default();
        let default = QosTables::of(&settings).ca;
        assert_eq!(
            sl_to_vl(&default.sl2vl, 4),
            [0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67],
            "eight VLs, as OpenSM maps them"
        );
        assert_eq!(sl_to_vl(&default.sl2vl, 1), [0; 8]);
        settings.set("qos_sl2vl", "15,9,15").unwrap();
        assert_eq!(sl_to_vl(&QosTables::of(&settings).ca.sl2vl, 2)[..2], [0xF1, 0xF0]);
    }

    #[test]
    fn sls_that_share_a_vl_keep_no_routes_apart() {
        let mut settings = Settings::default();
        let default = QosTables::of(&settings).swe;
        let lanes = [1, 2, 3, 4, 5].map(|code| distinct_lanes(&default, code));
        assert_eq!(lanes, [1, 2, 4, 8, 15]);
        for (map, lanes) in [("0,1,2,0,3", 3), ("3,2,15", 2), ("0,0,0,0", 1), ("15,1", 0)] {
            settings.set("qos_sl2vl", map).unwrap();
            assert_eq!(distinct_lanes(&QosTables::of(&settings).swe, 4), lanes, "{map}");
        }
    }

    /// Regression: the upper QoS level of a torus had low priority on the last hop.
    #[test]
    fn at_host_ports_of_a_torus_both_levels_have_one_vl() {
        let mut settings = Settings::default();
        settings.set("qos_swe_vlarb_high", "4:64,5:64,6:64,7:64").unwrap();
        settings.set("qos_swe_vlarb_low", "0:4,1:4,2:4,3:4").unwrap();
        let folded = of_torus_host_port(&QosTables::of(&settings).swe);
        assert_eq!(folded.vlarb_high[..2], [(1, 64), (0, 0)]);
        assert_eq!(folded.vlarb_low[..2], [(0, 4), (0, 0)]);
        let low = vl_arb_block(&folded, 4, (8, 8), 0).unwrap();
        assert_eq!(low[..4], [0, 4, 0, 0]);
    }

    #[test]
    fn arbitration_tables_end_where_the_ports_do() {
        let default = QosTables::of(&Settings::default()).ca;
        let low = vl_arb_block(&default, 4, (8, 8), 0).unwrap();
        assert_eq!(low[..6], [0, 0, 1, 4, 2, 4]);
        assert_eq!((low[14..16].to_vec(), low[16..].iter().all(|&b| b == 0)), (vec![7, 4], true));
        let high = vl_arb_block(&default, 4, (8, 8), 2).unwrap();
        assert_eq!(high[..4], [0, 4, 1, 0]);
        assert_eq!(vl_arb_block(&default, 4, (8, 8), 1), None);
        assert_eq!(vl_arb_block(&default, 4, (0, 8), 0), None);
        assert!(vl_arb_block(&default, 4, (40, 8), 1).is_some());
    }
}

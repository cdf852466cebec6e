//! What SL-to-VL mapping and VL arbitration tables of a port should hold (7.6.9, 7.6.6).

use ib_mad::wire::attribute::data_vls;

use crate::config::PortQos;

/// Blocks of VL arbitration tables, in their order on the wire: two of low, two of high priority.
pub const VL_ARB_BLOCKS: usize = 4;
const BLOCK_ENTRIES: usize = 32;

/// The SL-to-VL map for a port whose OperationalVLs have this code: VLs that the port does not
/// have fold onto those that it has; VL 15 stays, and drops the packet.
pub fn sl_to_vl(qos: &PortQos, operational_vls: u8) -> [u8; 8] {
    let mask = vl_mask(operational_vls);
    let fold = |vl: u8| if vl == 15 { 15 } else { vl & mask };
    std::array::from_fn(|i| fold(qos.sl2vl[2 * i]) << 4 | fold(qos.sl2vl[2 * i + 1]))
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

/// The bits of a VL's number that tell the data VLs of this code apart.
fn vl_mask(operational_vls: u8) -> u8 {
    data_vls(operational_vls).unwrap_or(1).next_power_of_two() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{QosTables, Settings};

    #[test]
    fn vls_that_a_port_does_not_have_fold_onto_those_it_has() {
        let mut settings = Settings::default();
        let default = QosTables::of(&settings).ca;
        assert_eq!(
            sl_to_vl(&default, 4),
            [0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67],
            "eight VLs, as OpenSM maps them"
        );
        assert_eq!(sl_to_vl(&default, 1), [0; 8]);
        settings.set("qos_sl2vl", "15,9,15").unwrap();
        assert_eq!(sl_to_vl(&QosTables::of(&settings).ca, 2)[..2], [0xF1, 0xF0]);
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

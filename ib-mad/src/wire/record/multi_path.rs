//! MultiPathRecord: the request of a GetMulti(), which is answered by PathRecords.

use super::Selector;
use super::components;
use crate::types::{Gid, Lifetime, PKey, Sl};
use crate::wire::field::layout;
use crate::wire::sa::DATA_LEN;

layout! {
    /// MultiPathRecord, 24 bytes followed by its GIDs (IBA 15.2.5.20): SGIDCount sources, DGIDCount
    /// destinations. More than 11 do not fit into one MAD.
    ///
    /// ```text
    ///  0 RawTraffic:1 rsvd:3 FlowLabel:20 HopLimit:8
    ///  4 TClass (1)         5 Reversible:1 NumbPath:7          6 P_Key (2)
    ///  8 QoSClass:12 SL:4  10 MtuSelector:2 Mtu:6             11 RateSelector:2 Rate:6
    /// 12 PktLifeSelector:2 PktLife:6                          13 ServiceID8MSB (1)
    /// 14 IndependenceSelector:2 rsvd:6    15 SGIDCount (1)    16 DGIDCount (1)
    /// 17 ServiceID56LSB (7)               24 SDGID (16 each)
    /// ```
    pub struct MultiPathRecord(MultiPathRecordRepr): "MultiPathRecord", 24 bytes {
        /// Whether the paths are for raw packets, which have no P_Key.
        raw_traffic: bool [0 .. 1],
        /// Flow label of the GRH.
        flow_label: u32 [4 .. 24],
        /// Hop limit of the GRH.
        hop_limit: u8 [24 .. 32],
        /// Traffic class of the GRH.
        tclass: u8 [32 .. 40],
        /// Whether the paths must be reversible.
        reversible: bool [40 .. 41],
        /// Maximum number of paths in total.
        numb_path: u8 [41 .. 48],
        /// P_Key.
        pkey: PKey [48 .. 64],
        /// QoS class, matched by QoS rules.
        qos_class: u16 [64 .. 76],
        /// Service level.
        sl: Sl [76 .. 80],
        /// How the MTU is compared.
        mtu_selector: Selector [80 .. 82],
        /// Path MTU as its code; optional.
        mtu: u8 [82 .. 88],
        /// How the rate is compared.
        rate_selector: Selector [88 .. 90],
        /// Static rate as its code; optional.
        rate: u8 [90 .. 96],
        /// How the lifetime is compared.
        packet_life_time_selector: Selector [96 .. 98],
        /// Packet lifetime.
        packet_life_time: Lifetime [98 .. 104],
        /// Upper 8 bits of the service ID.
        service_id_8_msb: u8 [104 .. 112],
        /// 1 if the paths should be as independent of each other as possible.
        independence_selector: u8 [112 .. 114],
        /// Number of source GIDs.
        sgid_count: u8 [120 .. 128],
        /// Number of destination GIDs, after the sources.
        dgid_count: u8 [128 .. 136],
        /// Lower 56 bits of the service ID.
        service_id_56_lsb: u64 [136 .. 192],
    }
}

components! {
    RAW_TRAFFIC = 0, "RawTraffic";
    FLOW_LABEL = 2, "FlowLabel";
    HOP_LIMIT = 3, "HopLimit";
    TCLASS = 4, "TClass";
    REVERSIBLE = 5, "Reversible";
    NUMB_PATH = 6, "NumbPath";
    PKEY = 7, "P_Key";
    QOS_CLASS = 8, "QoSClass";
    SL = 9, "SL";
    MTU_SELECTOR = 10, "MtuSelector";
    MTU = 11, "Mtu";
    RATE_SELECTOR = 12, "RateSelector";
    RATE = 13, "Rate";
    PACKET_LIFE_TIME_SELECTOR = 14, "PacketLifeTimeSelector";
    PACKET_LIFE_TIME = 15, "PacketLifeTime";
    SERVICE_ID_8_MSB = 16, "ServiceID8MSB";
    INDEPENDENCE_SELECTOR = 17, "IndependenceSelector";
    SGID_COUNT = 19, "SGIDCount";
    DGID_COUNT = 20, "DGIDCount";
    SERVICE_ID_56_LSB = 21, "ServiceID56LSB";
    => /// Both halves of ServiceID; one without the other is insufficient.
    SERVICE_ID = SERVICE_ID_8_MSB | SERVICE_ID_56_LSB;
}

/// Limit of GIDs after the fixed part in one MAD.
pub const GIDS_IN_ONE_MAD: usize = (DATA_LEN - MultiPathRecord::LEN) / GID_LEN;

const GID_LEN: usize = 16;

impl<T: AsRef<[u8]>> MultiPathRecord<T> {
    /// The service ID, assembled from its two parts.
    #[inline]
    pub fn service_id(&self) -> u64 {
        u64::from(self.service_id_8_msb()) << 56 | self.service_id_56_lsb()
    }

    /// Source and destination GIDs; `None` if the buffer is shorter than the counts require.
    pub fn gids(&self) -> Option<(Gids<'_>, Gids<'_>)> {
        let (sources, destinations) = (self.sgid_count(), self.dgid_count());
        let list = &self.buffer.as_ref()[MultiPathRecord::LEN..];
        let (sources, rest) = list.split_at_checked(usize::from(sources) * GID_LEN)?;
        let (destinations, _) = rest.split_at_checked(usize::from(destinations) * GID_LEN)?;
        Some((Gids::new(sources), Gids::new(destinations)))
    }
}

/// Consecutive GIDs.
#[derive(Clone, Debug)]
pub struct Gids<'a> {
    gids: std::slice::Iter<'a, [u8; GID_LEN]>,
}

impl<'a> Gids<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { gids: bytes.as_chunks().0.iter() }
    }
}

impl Iterator for Gids<'_> {
    type Item = Gid;

    #[inline]
    fn next(&mut self) -> Option<Gid> {
        self.gids.next().copied().map(Gid)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.gids.size_hint()
    }
}

impl ExactSizeIterator for Gids<'_> {}

/// Writes `sources` and then `destinations` after the fixed part, and their counts. `None`, with
/// nothing written, if they exceed `record` or the range of the counts.
pub fn write_gids(record: &mut [u8], sources: &[Gid], destinations: &[Gid]) -> Option<()> {
    let (sgid_count, dgid_count) =
        (u8::try_from(sources.len()).ok()?, u8::try_from(destinations.len()).ok()?);
    let list = record.get_mut(MultiPathRecord::LEN..)?;
    if list.len() < (sources.len() + destinations.len()) * GID_LEN {
        return None;
    }
    for (slot, gid) in list.chunks_exact_mut(GID_LEN).zip(sources.iter().chain(destinations)) {
        slot.copy_from_slice(&gid.0);
    }
    MultiPathRecord { buffer: record }.set_sgid_count(sgid_count).set_dgid_count(dgid_count);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 15.2.5.20.
    #[test]
    fn gids_read_as_they_were_written() {
        let gid = |last| Gid([last; 16]);
        let mut data = [0; DATA_LEN];
        write_gids(&mut data, &[gid(1), gid(2)], &[gid(3)]).unwrap();
        let record = MultiPathRecord::new(&data).unwrap();
        let (sources, destinations) = record.gids().unwrap();
        assert!(sources.eq([gid(1), gid(2)]) && destinations.eq([gid(3)]));
    }

    #[test]
    fn counts_beyond_the_buffer_are_refused() {
        let mut data = [0; DATA_LEN];
        assert_eq!(GIDS_IN_ONE_MAD, 11);
        assert_eq!(write_gids(&mut data, &[Gid::ZERO; 6], &[Gid::ZERO; 6]), None);
        MultiPathRecord::of_mut(&mut data).set_sgid_count(255).set_dgid_count(255);
        assert!(MultiPathRecord::new(&data).unwrap().gids().is_none());
    }
}

//! PathRecord: a path between two ports, or from a port to a multicast group.

use super::Selector;
use super::components;
use crate::types::{Gid, Lid, Lifetime, Mtu, PKey, Rate, Sl};
use crate::wire::field::layout;

layout! {
    /// PathRecord, 64 bytes (IBA 15.2.5.16).
    ///
    /// ```text
    ///  0 ServiceID (8)      8 DGID (16)         24 SGID (16)
    /// 40 DLID (2)          42 SLID (2)          44 RawTraffic:1 rsvd:3 FlowLabel:20 HopLimit:8
    /// 48 TClass (1)        49 Reversible:1 NumbPath:7
    /// 50 P_Key (2)         52 QoSClass:12 SL:4
    /// 54 MtuSelector:2 Mtu:6   55 RateSelector:2 Rate:6   56 PktLifeSelector:2 PktLife:6
    /// 57 Preference (1)    58 reserved (6)
    /// ```
    pub struct PathRecord(PathRecordRepr): "PathRecord", 64 bytes {
        /// Service ID, matched by QoS rules.
        service_id: u64 [0 .. 64],
        /// Destination GID.
        dgid: Gid [64 .. 192],
        /// Source GID.
        sgid: Gid [192 .. 320],
        /// Destination LID.
        dlid: Lid [320 .. 336],
        /// Source LID.
        slid: Lid [336 .. 352],
        /// Whether the path is for raw packets, which have no P_Key.
        raw_traffic: bool [352 .. 353],
        /// Flow label of the GRH.
        flow_label: u32 [356 .. 376],
        /// Hop limit of the GRH; 0 or 1 within a subnet.
        hop_limit: u8 [376 .. 384],
        /// Traffic class of the GRH.
        tclass: u8 [384 .. 392],
        /// Whether the path must be, or is, reversible.
        reversible: bool [392 .. 393],
        /// Maximum number of paths for each pair of GIDs.
        numb_path: u8 [393 .. 400],
        /// P_Key.
        pkey: PKey [400 .. 416],
        /// QoS class, matched by QoS rules.
        qos_class: u16 [416 .. 428],
        /// Service level.
        sl: Sl [428 .. 432],
        /// How the MTU is compared.
        mtu_selector: Selector [432 .. 434],
        /// Path MTU.
        mtu: Mtu [434 .. 440],
        /// How the rate is compared.
        rate_selector: Selector [440 .. 442],
        /// Static rate.
        rate: Rate [442 .. 448],
        /// How the lifetime is compared.
        packet_life_time_selector: Selector [448 .. 450],
        /// Packet lifetime.
        packet_life_time: Lifetime [450 .. 456],
        /// Preference: 0 for the preferred path of several, higher for others.
        preference: u8 [456 .. 464],
    }
}

components! {
    SERVICE_ID_8_MSB = 0, "ServiceID8MSB";
    SERVICE_ID_56_LSB = 1, "ServiceID56LSB";
    DGID = 2, "DGID";
    SGID = 3, "SGID";
    DLID = 4, "DLID";
    SLID = 5, "SLID";
    RAW_TRAFFIC = 6, "RawTraffic";
    FLOW_LABEL = 8, "FlowLabel";
    HOP_LIMIT = 9, "HopLimit";
    TCLASS = 10, "TClass";
    REVERSIBLE = 11, "Reversible";
    NUMB_PATH = 12, "NumbPath";
    PKEY = 13, "P_Key";
    QOS_CLASS = 14, "QoSClass";
    SL = 15, "SL";
    MTU_SELECTOR = 16, "MtuSelector";
    MTU = 17, "Mtu";
    RATE_SELECTOR = 18, "RateSelector";
    RATE = 19, "Rate";
    PACKET_LIFE_TIME_SELECTOR = 20, "PacketLifeTimeSelector";
    PACKET_LIFE_TIME = 21, "PacketLifeTime";
    PREFERENCE = 22, "Preference";
    => /// Both halves of ServiceID; one without the other is insufficient.
    SERVICE_ID = SERVICE_ID_8_MSB | SERVICE_ID_56_LSB;
}

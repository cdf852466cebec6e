//! InformInfo: a subscription to notices.

use super::notice::{NoticeType, ProducerType, TrapNumber};
use crate::types::{Gid, Lid, Qpn};
use crate::wire::field::layout;

layout! {
    /// InformInfo, 36 bytes (IBA 13.4.8.3).
    ///
    /// ```text
    ///  0 GID (16)      16 LIDRangeBegin (2)   18 LIDRangeEnd (2)   20 reserved (2)
    /// 22 IsGeneric     23 Subscribe           24 Type (2)          26 TrapNumber or DeviceID (2)
    /// 28 QPN (3)       31 reserved:3 RespTimeValue:5
    /// 32 reserved      33 ProducerType or VendorID (3)
    /// ```
    pub struct InformInfo(InformInfoRepr): "InformInfo", 36 bytes {
        /// Notices about this GID only; 0 selects by LIDs.
        gid: Gid [0 .. 128],
        /// First LID of the range; 0xFFFF for all LIDs.
        lid_range_begin: Lid [128 .. 144],
        /// Last LID of the range; 0 for a single LID.
        lid_range_end: Lid [144 .. 160],
        /// 1 for generic notices, 0 for vendor-specific ones.
        is_generic: u8 [176 .. 184],
        /// 1 to subscribe, 0 to unsubscribe.
        subscribe: u8 [184 .. 192],
        /// Type of notice; 0xFFFF for all types.
        inform_type: u16 [192 .. 208],
        /// Trap number, or device ID of a vendor-specific notice; 0xFFFF for all.
        trap_number: TrapNumber [208 .. 224],
        /// QP of the subscriber, when unsubscribing.
        qpn: Qpn [224 .. 248],
        /// RespTimeValue: maximum time to the ReportResp(), 4.096 µs × 2^n.
        resp_time_value: u8 [251 .. 256],
        /// Producer type, or vendor ID; 0xFFFFFF for all.
        producer_type: ProducerType [264 .. 288],
    }
}

impl<T: AsRef<[u8]>> InformInfo<T> {
    /// The type of notice; `None` if all types are selected or the code is wider than a notice's.
    pub fn notice_type(&self) -> Option<NoticeType> {
        u8::try_from(self.inform_type()).ok().map(NoticeType)
    }
}

//! ClassPortInfo: capabilities of a management class, and redirection of its requests.

use crate::types::{Gid, Lid, PKey, Qpn, Sl};
use crate::wire::field::layout;

layout! {
    /// ClassPortInfo, 72 bytes (IBA 13.4.8.1).
    ///
    /// ```text
    ///  0 BaseVersion  1 ClassVersion  2 CapabilityMask (2)  4 CapabilityMask2:27 RespTimeValue:5
    ///  8 RedirectGID (16)  24 RedirectTC  25 RedirectSL:4 RedirectFL:20
    /// 28 RedirectLID (2)   30 RedirectP_Key (2)   32 reserved  33 RedirectQP (3)
    /// 36 RedirectQ_Key (4)
    /// 40 TrapGID (16)      56 TrapTC      57 TrapSL:4 TrapFL:20
    /// 60 TrapLID (2)       62 TrapP_Key (2)       64 TrapHL    65 TrapQP (3)
    /// 68 TrapQ_Key (4)
    /// ```
    pub struct ClassPortInfo(ClassPortInfoRepr): "ClassPortInfo", 72 bytes {
        /// Highest supported version of the MAD base format.
        base_version: u8 [0 .. 8],
        /// Highest supported version of the class.
        class_version: u8 [8 .. 16],
        /// Capability bits: the low byte is common to all classes, the high byte class-specific.
        capability_mask: u16 [16 .. 32],
        /// Further class-specific capability bits.
        capability_mask2: u32 [32 .. 59],
        /// RespTimeValue: maximum response time, 4.096 µs × 2^n.
        resp_time_value: u8 [59 .. 64],
        /// GID to send requests to instead; 0 if the LID is sufficient.
        redirect_gid: Gid [64 .. 192],
        /// Traffic class of redirected requests.
        redirect_tc: u8 [192 .. 200],
        /// Service level of redirected requests.
        redirect_sl: Sl [200 .. 204],
        /// Flow label of redirected requests.
        redirect_fl: u32 [204 .. 224],
        /// LID to send requests to instead; 0 if there is no redirection.
        redirect_lid: Lid [224 .. 240],
        /// P_Key of redirected requests.
        redirect_pkey: PKey [240 .. 256],
        /// QP of redirected requests.
        redirect_qp: Qpn [264 .. 288],
        /// Q_Key of that QP.
        redirect_qkey: u32 [288 .. 320],
        /// GID that traps are sent to.
        trap_gid: Gid [320 .. 448],
        /// Traffic class of traps.
        trap_tc: u8 [448 .. 456],
        /// Service level of traps.
        trap_sl: Sl [456 .. 460],
        /// Flow label of traps.
        trap_fl: u32 [460 .. 480],
        /// LID that traps are sent to; 0 if no traps are sent.
        trap_lid: Lid [480 .. 496],
        /// P_Key of traps.
        trap_pkey: PKey [496 .. 512],
        /// Hop limit of traps.
        trap_hl: u8 [512 .. 520],
        /// QP that traps are sent to.
        trap_qp: Qpn [520 .. 544],
        /// Q_Key of that QP.
        trap_qkey: u32 [544 .. 576],
    }
}

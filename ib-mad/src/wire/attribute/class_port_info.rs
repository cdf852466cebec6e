//! What a class says of itself, and where else to ask: ClassPortInfo.

use crate::types::{Gid, Lid, PKey, Qpn, Sl};
use crate::wire::field::layout;

layout! {
    /// ClassPortInfo, 72 bytes (13.4.8.1).
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
        /// Highest version of the MAD base format.
        base_version: u8 [0 .. 8],
        /// Highest version of the class.
        class_version: u8 [8 .. 16],
        /// Low byte common to all classes, high byte the class's.
        capability_mask: u16 [16 .. 32],
        /// More bits of the class.
        capability_mask2: u32 [32 .. 59],
        /// Longest time to an answer, 4.096 µs × 2^n.
        resp_time_value: u8 [59 .. 64],
        /// GID to ask instead; 0 if the LID is enough.
        redirect_gid: Gid [64 .. 192],
        /// Traffic class towards it.
        redirect_tc: u8 [192 .. 200],
        /// Service level towards it.
        redirect_sl: Sl [200 .. 204],
        /// Flow label towards it.
        redirect_fl: u32 [204 .. 224],
        /// LID to ask instead; 0 if there is no redirection.
        redirect_lid: Lid [224 .. 240],
        /// P_Key towards it.
        redirect_pkey: PKey [240 .. 256],
        /// QP to ask.
        redirect_qp: Qpn [264 .. 288],
        /// Q_Key of that QP.
        redirect_qkey: u32 [288 .. 320],
        /// GID that traps go to.
        trap_gid: Gid [320 .. 448],
        /// Traffic class towards it.
        trap_tc: u8 [448 .. 456],
        /// Service level towards it.
        trap_sl: Sl [456 .. 460],
        /// Flow label towards it.
        trap_fl: u32 [460 .. 480],
        /// LID that traps go to; 0 if no traps are sent.
        trap_lid: Lid [480 .. 496],
        /// P_Key towards it.
        trap_pkey: PKey [496 .. 512],
        /// Hop limit towards it.
        trap_hl: u8 [512 .. 520],
        /// QP that traps go to.
        trap_qp: Qpn [520 .. 544],
        /// Q_Key of that QP.
        trap_qkey: u32 [544 .. 576],
    }
}

//! Settings of switches, of their ports and of channel adapters.

use crate::wire::field::layout;

/// Entries in a block of the congestion control table.
pub const CCT_BLOCK_LEN: usize = 64;
/// Ports in a block of SwitchPortCongestionSetting: as many as fit, which is what `ibccquery`
/// reads. OpenSM's header has 32.
pub const PORT_ELEMENTS_PER_BLOCK: usize = 48;

/// Bits of SwitchCongestionSetting's Control_Map: which fields a Set() writes (IBA A10.4.3.6).
pub mod control_map {
    /// Victim_Mask.
    pub const VICTIM_MASK: u32 = 1 << 0;
    /// Credit_Mask.
    pub const CREDIT_MASK: u32 = 1 << 1;
    /// Threshold and Packet_Size.
    pub const THRESHOLD: u32 = 1 << 2;
    /// CS_Threshold and CS_ReturnDelay.
    pub const CREDIT_STARVATION: u32 = 1 << 3;
    /// Marking_Rate.
    pub const MARKING_RATE: u32 = 1 << 4;
    /// All of them.
    pub const ALL: u32 = 0x1F;
}

/// An entry of the congestion control table: 2 bits of shift, 14 bits of multiplier. The delay
/// between packets is the time that the packet takes, shifted right by the shift, times the
/// multiplier (IBA A10.2.2.1.1).
pub const fn cct_entry(shift: u8, multiplier: u16) -> u16 {
    (shift as u16 & 3) << 14 | multiplier & 0x3FFF
}

layout! {
    /// SwitchCongestionSetting, 76 bytes (IBA A10.4.3.6): when a switch marks packets.
    ///
    /// ```text
    ///  0 Control_Map (4)   4 Victim_Mask (32)   36 Credit_Mask (32)
    /// 68 Threshold:4 reserved:4   69 Packet_Size   70 CS_Threshold:4 reserved:12
    /// 72 CS_ReturnDelay (2)       74 Marking_Rate (2)
    /// ```
    pub struct SwitchCongestionSetting(SwitchCongestionSettingRepr):
        "SwitchCongestionSetting", 76 bytes
    {
        /// Fields that a Set() writes, bits of [`control_map`].
        control_map: u32 [0 .. 32],
        /// Ports that mark packets even if they are only victims of congestion elsewhere.
        victim_mask: [u8; 32] [32 .. 288],
        /// Ports with credit starvation.
        credit_mask: [u8; 32] [288 .. 544],
        /// How early packets are marked: 0 never, 15 earliest.
        threshold: u8 [544 .. 548],
        /// Packets shorter than this are not marked, in credits.
        packet_size: u8 [552 .. 560],
        /// How early credits are held back: 0 never, 15 earliest.
        cs_threshold: u8 [560 .. 564],
        /// Delay of credits, as [`cct_entry`].
        cs_return_delay: u16 [576 .. 592],
        /// Mean number of packets between marked ones.
        marking_rate: u16 [592 .. 608],
    }
}

layout! {
    /// SwitchPortCongestionSetting, 192 bytes (IBA A10.4.3.7): settings of ports that differ from
    /// those of their switch. Ports of elements that are not valid are not written.
    ///
    /// ```text
    ///  0 SwitchPortCongestionSettingElement (48 x 4)
    /// ```
    pub struct SwitchPortCongestionSetting(SwitchPortCongestionSettingRepr):
        "SwitchPortCongestionSetting", 192 bytes
    {
        /// One [`SwitchPortCongestionElement`] a port.
        elements: [u8; 192] [0 .. 1536],
    }
}

layout! {
    /// SwitchPortCongestionSettingElement, 4 bytes (IBA A10.4.3.7).
    ///
    /// ```text
    ///  0 Valid:1 Control_Type:1 reserved:2 Threshold:4   1 Packet_Size   2 Cong_Parm (2)
    /// ```
    pub struct SwitchPortCongestionElement(SwitchPortCongestionElementRepr):
        "SwitchPortCongestionSettingElement", 4 bytes
    {
        /// Whether the port has settings of its own.
        valid: bool [0 .. 1],
        /// Whether they are about credit starvation instead of marking.
        control_type: bool [1 .. 2],
        /// How early packets are marked, or credits held back.
        threshold: u8 [4 .. 8],
        /// Packets shorter than this are not marked, in credits.
        packet_size: u8 [8 .. 16],
        /// Mean number of packets between marked ones.
        marking_rate: u16 [16 .. 32],
    }
}

layout! {
    /// CACongestionSetting, 132 bytes (IBA A10.4.3.8): how a port of a channel adapter reacts.
    ///
    /// ```text
    ///  0 Port_Control (2)   2 Control_Map (2)   4 CACongestionEntry (16 x 8)
    /// ```
    pub struct CaCongestionSetting(CaCongestionSettingRepr): "CACongestionSetting", 132 bytes {
        /// Bit 0: SLs are slowed down instead of queue pairs.
        port_control: u16 [0 .. 16],
        /// SLs whose entry a Set() writes, as bits.
        control_map: u16 [16 .. 32],
        /// One [`CaCongestionEntry`] an SL.
        entries: [u8; 128] [32 .. 1056],
    }
}

layout! {
    /// CACongestionEntry, 8 bytes (IBA A10.4.3.8): how an SL reacts.
    ///
    /// ```text
    ///  0 CCTI_Timer (2)   2 CCTI_Increase   3 Trigger_Threshold   4 CCTI_Min   5 reserved (3)
    /// ```
    pub struct CaCongestionEntry(CaCongestionEntryRepr): "CACongestionEntry", 8 bytes {
        /// Time after which the index falls by 1, in 1.024 us.
        ccti_timer: u16 [0 .. 16],
        /// By how much a BECN raises the index.
        ccti_increase: u8 [16 .. 24],
        /// Index at which an event is logged.
        trigger_threshold: u8 [24 .. 32],
        /// Least index.
        ccti_min: u8 [32 .. 40],
    }
}

layout! {
    /// CongestionControlTable, 132 bytes (IBA A10.4.3.9): a block of 64 delays by index.
    ///
    /// ```text
    ///  0 CCTI_Limit (2)   2 reserved (2)   4 CCT_Entry (64 x 2)
    /// ```
    pub struct CongestionControlTable(CongestionControlTableRepr):
        "CongestionControlTable", 132 bytes
    {
        /// Last index of the whole table.
        ccti_limit: u16 [0 .. 16],
        /// The delays, [`cct_entry`] each.
        entries: [u8; 128] [32 .. 1056],
    }
}

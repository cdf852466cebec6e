//! Attributes of the device behind a port: LedInfo, VendorDiag, RouterInfo, and the extended port
//! information of Mellanox and NVIDIA devices.

use super::link::MlnxLinkSpeeds;
use crate::wire::field::layout;

layout! {
    /// LedInfo, 4 bytes (IBA 14.2.5.15).
    pub struct LedInfo(LedInfoRepr): "LedInfo", 4 bytes {
        /// Whether the port's LED is on.
        led_mask: bool [0 .. 1],
    }
}

layout! {
    /// VendorDiag, 64 bytes (IBA 14.2.5.14). The modifier is the index, from 0.
    pub struct VendorDiag(VendorDiagRepr): "VendorDiag", 64 bytes {
        /// Index of the next diagnostic; 0 if this is the last.
        next_index: u16 [0 .. 16],
        /// Defined by the vendor.
        diag_data: [u8; 62] [16 .. 512],
    }
}

layout! {
    /// RouterInfo as received, without its fields.
    pub struct RouterInfo(RouterInfoRepr): "RouterInfo", 64 bytes {
        /// Its 64 bytes.
        data: [u8; 64] [0 .. 512],
    }
}

layout! {
    /// MlnxExtPortInfo, 64 bytes: FDR10 of Mellanox devices. The modifier is the port.
    ///
    /// ```text
    ///  3 StateChangeEnable   7 LinkSpeedSupported   11 LinkSpeedEnabled   15 LinkSpeedActive
    /// ```
    pub struct MlnxExtPortInfo(MlnxExtPortInfoRepr): "MlnxExtPortInfo", 64 bytes {
        /// The fields that a Set() changes.
        state_change_enable: u8 [24 .. 32],
        /// Supported speeds.
        link_speed_supported: MlnxLinkSpeeds [56 .. 64],
        /// Enabled speeds.
        link_speed_enabled: MlnxLinkSpeeds [88 .. 96],
        /// The active speed, if it is one of these.
        link_speed_active: MlnxLinkSpeeds [120 .. 128],
    }
}

//! Capabilities of a port: PortInfo's CapabilityMask and CapabilityMask2 (IBA 14.2.5.6).

use crate::wire::mad::open_code;

/// Declares an integer newtype with named bits; other bits are preserved.
macro_rules! bit_set {
    (
        $(#[$doc:meta])*
        pub struct $name:ident($int:ty);
        $( $(#[$bit_doc:meta])* $bit:ident = $number:literal, $text:literal; )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            /// No bits.
            pub const NONE: Self = Self(0);
            $( $(#[$bit_doc])* pub const $bit: Self = Self(1 << $number); )*

            /// Whether all bits of `other` are set.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Union of the bits.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits of `self` without those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl std::fmt::Display for $name {
            /// The names, joined by `|`; bits without a name as a number; `none` if no bit is set.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                if self.0 == 0 {
                    return f.write_str("none");
                }
                let mut rest = self.0;
                let mut separator = "";
                $(
                    if rest & (1 << $number) != 0 {
                        rest &= !(1 << $number);
                        f.write_str(separator)?;
                        f.write_str($text)?;
                        separator = "|";
                    }
                )*
                if rest != 0 {
                    write!(f, "{separator}{rest:#x}")?;
                }
                Ok(())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        open_code!($name, $int);
    };
}
pub(crate) use bit_set;

bit_set! {
    /// CapabilityMask of PortInfo (IBA 14.2.5.6).
    pub struct CapabilityMask(u32);
    /// IsSM: a subnet manager runs behind this port.
    IS_SM = 1, "IsSM";
    /// IsNoticeSupported: notices can be read from the Notice queue.
    IS_NOTICE_SUPPORTED = 2, "IsNoticeSupported";
    /// IsTrapSupported: the port sends traps.
    IS_TRAP_SUPPORTED = 3, "IsTrapSupported";
    /// Optional inter-packet delays.
    IS_OPTIONAL_IPD_SUPPORTED = 4, "IsOptionalIPDSupported";
    /// Automatic path migration.
    IS_AUTOMATIC_MIGRATION_SUPPORTED = 5, "IsAutomaticMigrationSupported";
    /// SLtoVLMappingTable is supported.
    IS_SL_MAPPING_SUPPORTED = 6, "IsSLMappingSupported";
    /// The M_Key is in non-volatile memory.
    IS_MKEY_NVRAM = 7, "IsMKeyNVRAM";
    /// P_Keys are in non-volatile memory.
    IS_PKEY_NVRAM = 8, "IsPKeyNVRAM";
    /// LedInfo is supported.
    IS_LED_INFO_SUPPORTED = 9, "IsLEDInfoSupported";
    /// Subnet managers must not be started on this port.
    IS_SM_DISABLED = 10, "IsSMdisabled";
    /// NodeInfo's SystemImageGUID is valid.
    IS_SYSTEM_IMAGE_GUID_SUPPORTED = 11, "IsSystemImageGUIDSupported";
    /// A switch's external ports send trap 259.
    IS_PKEY_SWITCH_EXTERNAL_PORT_TRAP_SUPPORTED = 12, "IsPKeySwitchExternalPortTrapSupported";
    /// CableInfo is supported.
    IS_CABLE_INFO_SUPPORTED = 13, "IsCableInfoSupported";
    /// The LinkSpeedExt fields are valid.
    IS_EXTENDED_SPEEDS_SUPPORTED = 14, "IsExtendedSpeedsSupported";
    /// CapabilityMask2 is valid.
    IS_CAPABILITY_MASK2_SUPPORTED = 15, "IsCapabilityMask2Supported";
    /// Communication management.
    IS_COMMUNICATION_MANAGEMENT_SUPPORTED = 16, "IsCommunicationManagementSupported";
    /// SNMP tunnelling.
    IS_SNMP_TUNNELING_SUPPORTED = 17, "IsSNMPTunnelingSupported";
    /// InitType and InitTypeReply are valid.
    IS_REINIT_SUPPORTED = 18, "IsReinitSupported";
    /// Device management.
    IS_DEVICE_MANAGEMENT_SUPPORTED = 19, "IsDeviceManagementSupported";
    /// Vendor-defined classes.
    IS_VENDOR_CLASS_SUPPORTED = 20, "IsVendorClassSupported";
    /// Trap 256 carries directed-route data.
    IS_DR_NOTICE_SUPPORTED = 21, "IsDRNoticeSupported";
    /// Trap 144 is sent when this mask changes.
    IS_CAPABILITY_MASK_NOTICE_SUPPORTED = 22, "IsCapabilityMaskNoticeSupported";
    /// Boot management.
    IS_BOOT_MANAGEMENT_SUPPORTED = 23, "IsBootManagementSupported";
    /// LinkRoundTripLatency is valid.
    IS_LINK_ROUND_TRIP_LATENCY_SUPPORTED = 24, "IsLinkRoundTripLatencySupported";
    /// ClientReregister is supported.
    IS_CLIENT_REREGISTRATION_SUPPORTED = 25, "IsClientReregistrationSupported";
    /// Trap 144 is also sent for changes other than of this mask.
    IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED = 26, "IsOtherLocalChangesNoticeSupported";
    /// LinkSpeedWidthPairsTable is supported.
    IS_LINK_SPEED_WIDTH_PAIRS_TABLE_SUPPORTED = 27, "IsLinkSpeedWidthPairsTableSupported";
    /// VendorSpecificMADsTable is supported.
    IS_VENDOR_SPECIFIC_MADS_TABLE_SUPPORTED = 28, "IsVendorSpecificMadsTableSupported";
    /// P_Key traps of multicast packets can be suppressed.
    IS_MCAST_PKEY_TRAP_SUPPRESSION_SUPPORTED = 29, "IsMcastPkeyTrapSuppressionSupported";
    /// SwitchInfo's MulticastFDBTop is valid.
    IS_MULTICAST_FDB_TOP_SUPPORTED = 30, "IsMulticastFDBTopSupported";
    /// HierarchyInfo is supported.
    IS_HIERARCHY_INFO_SUPPORTED = 31, "IsHierarchyInfoSupported";
}

bit_set! {
    /// CapabilityMask2 of PortInfo (IBA 14.2.5.6); valid if
    /// [`CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED`] is set.
    pub struct CapabilityMask2(u16);
    /// NodeDescription can be set.
    IS_SET_NODE_DESCRIPTION_SUPPORTED = 0, "IsSetNodeDescriptionSupported";
    /// PortInfoExtended is supported.
    IS_PORT_INFO_EXTENDED_SUPPORTED = 1, "IsPortInfoExtendedSupported";
    /// Virtual ports.
    IS_VIRTUALIZATION_SUPPORTED = 2, "IsVirtualizationSupported";
    /// SwitchPortStateTable is supported.
    IS_SWITCH_PORT_STATE_TABLE_SUPPORTED = 3, "IsSwitchPortStateTableSupported";
    /// Links of two lanes (2x).
    IS_LINK_WIDTH_2X_SUPPORTED = 4, "IsLinkWidth2xSupported";
    /// HDR, 50 Gb/s per lane.
    IS_LINK_SPEED_HDR_SUPPORTED = 5, "IsLinkSpeedHDRSupported";
    /// A third M_Key protection bit.
    IS_MKEY_PROTECT_BITS_EXT_SUPPORTED = 6, "IsMKeyProtectBitsExtSupported";
    /// Trap 128 names the port.
    IS_ENHANCED_TRAP_128_SUPPORTED = 7, "IsEnhancedTrap128Supported";
    /// SwitchInfo's PartitionTop is valid.
    IS_PARTITION_TOP_SUPPORTED = 8, "IsPartitionTopSupported";
    /// The enhanced VL arbiter.
    IS_ENHANCED_QOS_ARBITER_SUPPORTED = 9, "IsEnhancedQoSArbiterSupported";
    /// NDR, 100 Gb/s per lane.
    IS_LINK_SPEED_NDR_SUPPORTED = 10, "IsLinkSpeedNDRSupported";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_print_their_names_and_keep_unnamed_bits() {
        let mask = CapabilityMask::IS_SM | CapabilityMask(1) | CapabilityMask::IS_TRAP_SUPPORTED;
        assert_eq!(mask.to_string(), "IsSM|IsTrapSupported|0x1");
        assert!(mask.contains(CapabilityMask::IS_SM));
        assert_eq!(mask.without(CapabilityMask::IS_SM).0, 9);
        assert_eq!(CapabilityMask2::NONE.to_string(), "none");
    }
}

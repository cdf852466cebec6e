//! The common MAD header (IBA 13.4.3), management classes, methods and status.

use super::field::layout;

layout! {
    /// Common MAD header, 24 bytes (IBA 13.4.3).
    ///
    /// ```text
    ///  0 BaseVersion   1 MgmtClass   2 ClassVersion   3 R:1 Method:7
    ///  4 Status (2)    6 ClassSpecific (2)            8 TransactionID (8)
    /// 16 AttributeID (2)  18 reserved (2)            20 AttributeModifier (4)
    /// ```
    pub struct MadHeader(MadHeaderRepr): "MAD", 24 bytes {
        /// 1 for every MAD defined so far.
        base_version: u8 [0 .. 8],
        /// Management class.
        mgmt_class: MgmtClass [8 .. 16],
        /// Class version.
        class_version: u8 [16 .. 24],
        /// Method, including the response bit.
        method: Method [24 .. 32],
        /// Status; directed-route SMPs have the D bit in the top bit.
        status: Status [32 .. 48],
        /// Class-specific; in a directed-route SMP hop pointer and hop count.
        class_specific: u16 [48 .. 64],
        /// Transaction ID, chosen by the requester.
        tid: u64 [64 .. 128],
        /// Attribute ID.
        attribute_id: AttributeId [128 .. 144],
        /// AttributeModifier, defined by the attribute.
        attribute_modifier: u32 [160 .. 192],
    }
}

/// Implements [`Field`](super::field::Field) for an integer newtype that accepts every value.
macro_rules! open_code {
    ($name:ident, $int:ty) => {
        impl $crate::wire::field::Field for $name {
            type View = Self;
            #[inline(always)]
            fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> Self {
                Self($crate::wire::field::get_bits::<BIT, WIDTH>(bytes) as $int)
            }
            #[inline(always)]
            fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]) {
                $crate::wire::field::set_bits::<BIT, WIDTH>(bytes, u64::from(self.0));
            }
            #[inline(always)]
            fn check(view: Self) -> Result<Self, u64> {
                Ok(view)
            }
            fn format(view: Self, text: &mut String) {
                text.push_str(&format!("{view}"));
            }
        }
    };
}
pub(crate) use open_code;

/// Declares an integer newtype with names for known values; other values are preserved.
macro_rules! named_codes {
    (
        $(#[$doc:meta])*
        pub struct $name:ident($int:ty);
        $( $(#[$value_doc:meta])* $value:ident = $code:literal, $text:literal; )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $( $(#[$value_doc])* pub const $value: Self = Self($code); )*

            /// Name in the specification; `None` if the value has none.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $code => Some($text), )*
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#x}", self.0),
                }
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        $crate::wire::mad::open_code!($name, $int);
    };
}
pub(crate) use named_codes;

named_codes! {
    /// Management class (IBA 13.4.4).
    pub struct MgmtClass(u8);
    /// Subnet management, LID-routed.
    SUBN_LID_ROUTED = 0x01, "Subn";
    /// Subnet administration.
    SUBN_ADM = 0x03, "SubnAdm";
    /// Performance management.
    PERF = 0x04, "Perf";
    /// Baseboard management.
    BM = 0x05, "BM";
    /// Device management.
    DEV_MGT = 0x06, "DevMgt";
    /// Communication management.
    COM_MGT = 0x07, "ComMgt";
    /// SNMP tunnelling.
    SNMP = 0x08, "SNMP";
    /// Vendor class of Mellanox and NVIDIA devices.
    VENDOR_MLNX = 0x0A, "VendorMlnx";
    /// Congestion control.
    CONGESTION = 0x21, "CC";
    /// Subnet management, directed route.
    SUBN_DIRECTED_ROUTE = 0x81, "SubnDR";
}

named_codes! {
    /// Method, with the response bit (IBA 13.4.5, 15.2.2).
    pub struct Method(u8);
    /// Get().
    GET = 0x01, "Get";
    /// Set().
    SET = 0x02, "Set";
    /// Send().
    SEND = 0x03, "Send";
    /// Trap().
    TRAP = 0x05, "Trap";
    /// Report().
    REPORT = 0x06, "Report";
    /// TrapRepress().
    TRAP_REPRESS = 0x07, "TrapRepress";
    /// GetTable(), subnet administration.
    GET_TABLE = 0x12, "GetTable";
    /// GetTraceTable(), subnet administration.
    GET_TRACE_TABLE = 0x13, "GetTraceTable";
    /// GetMulti(), subnet administration.
    GET_MULTI = 0x14, "GetMulti";
    /// Delete(), subnet administration.
    DELETE = 0x15, "Delete";
    /// GetResp().
    GET_RESP = 0x81, "GetResp";
    /// ReportResp().
    REPORT_RESP = 0x86, "ReportResp";
    /// GetTableResp().
    GET_TABLE_RESP = 0x92, "GetTableResp";
    /// GetMultiResp().
    GET_MULTI_RESP = 0x94, "GetMultiResp";
    /// DeleteResp().
    DELETE_RESP = 0x95, "DeleteResp";
}

impl Method {
    /// Whether the response bit is set.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// The method of the response: GetResp() for Set(), GetTableResp() for GetTraceTable(),
    /// otherwise the same number with the response bit.
    #[inline]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self::GET_TRACE_TABLE => Self::GET_TABLE_RESP,
            other => Self(other.0 | 0x80),
        }
    }
}

named_codes! {
    /// Attribute ID. The same number may mean different attributes in different classes.
    pub struct AttributeId(u16);
    /// ClassPortInfo, every class (IBA 13.4.8.1).
    CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
    /// Notice (IBA 13.4.8.2).
    NOTICE = 0x0002, "Notice";
    /// InformInfo (IBA 13.4.8.3).
    INFORM_INFO = 0x0003, "InformInfo";
    /// NodeDescription, SM class.
    NODE_DESCRIPTION = 0x0010, "NodeDescription";
    /// NodeInfo, SM class; NodeRecord, SA class.
    NODE_INFO = 0x0011, "NodeInfo";
    /// SwitchInfo, SM class.
    SWITCH_INFO = 0x0012, "SwitchInfo";
    /// GUIDInfo, SM class; SwitchInfoRecord, SA class.
    GUID_INFO = 0x0014, "GUIDInfo";
    /// PortInfo, SM class; LinearForwardingTableRecord, SA class.
    PORT_INFO = 0x0015, "PortInfo";
    /// P_KeyTable, SM class.
    PKEY_TABLE = 0x0016, "P_KeyTable";
    /// SLtoVLMappingTable, SM class.
    SL_TO_VL_MAPPING_TABLE = 0x0017, "SLtoVLMappingTable";
    /// VLArbitrationTable, SM class.
    VL_ARBITRATION_TABLE = 0x0018, "VLArbitrationTable";
    /// LinearForwardingTable, SM class.
    LINEAR_FORWARDING_TABLE = 0x0019, "LinearForwardingTable";
    /// RandomForwardingTable, SM class.
    RANDOM_FORWARDING_TABLE = 0x001A, "RandomForwardingTable";
    /// MulticastForwardingTable, SM class.
    MULTICAST_FORWARDING_TABLE = 0x001B, "MulticastForwardingTable";
    /// SMInfo, SM class.
    SM_INFO = 0x0020, "SMInfo";
    /// VendorDiag, SM class.
    VENDOR_DIAG = 0x0030, "VendorDiag";
    /// LedInfo, SM class.
    LED_INFO = 0x0031, "LedInfo";
    /// Extended port information of Mellanox and NVIDIA devices, SM class.
    MLNX_EXT_PORT_INFO = 0xFF90, "MlnxExtPortInfo";
    /// Virtual ports of a port of NVIDIA's adapters, SM class.
    VIRTUALIZATION_INFO = 0xFFB0, "VirtualizationInfo";
    /// State and addresses of a virtual port, SM class.
    VPORT_INFO = 0xFFB1, "VPortInfo";
    /// The node of a virtual port, SM class.
    VNODE_INFO = 0xFFB2, "VNodeInfo";
    /// States of virtual ports, SM class.
    VPORT_STATE = 0xFFB3, "VPortState";
    /// Description of a virtual port's node, SM class.
    VNODE_DESCRIPTION = 0xFFB4, "VNodeDescription";
    /// GUIDs of a virtual port, SM class.
    VPORT_GUID_INFO = 0xFFB5, "VPortGUIDInfo";
    /// P_Keys of a virtual port, SM class.
    VPKEY_TABLE = 0xFFB6, "VPKeyTable";
}

named_codes! {
    /// MAD status (IBA 13.4.7): the low byte is common to all classes, the high byte is
    /// class-specific.
    pub struct Status(u16);
    /// Success.
    OK = 0x0000, "OK";
    /// Busy: try again later; nothing was done.
    BUSY = 0x0001, "BUSY";
    /// Redirect: send the request to the port in ClassPortInfo's redirect fields.
    REDIRECT = 0x0002, "REDIRECT";
    /// Base or class version is not supported.
    BAD_VERSION = 0x0004, "BAD_VERSION";
    /// Method is not supported.
    UNSUPPORTED_METHOD = 0x0008, "UNSUPPORTED_METHOD";
    /// The combination of method and attribute is not supported.
    UNSUPPORTED_METHOD_ATTRIBUTE = 0x000C, "UNSUPPORTED_METHOD_ATTRIBUTE";
    /// A field of the attribute, or its modifier, is invalid.
    INVALID_FIELD = 0x001C, "INVALID_FIELD";
    /// SA: ERR_NO_RESOURCES.
    SA_NO_RESOURCES = 0x0100, "ERR_NO_RESOURCES";
    /// SA: ERR_REQ_INVALID.
    SA_REQ_INVALID = 0x0200, "ERR_REQ_INVALID";
    /// SA: ERR_NO_RECORDS: no records match.
    SA_NO_RECORDS = 0x0300, "ERR_NO_RECORDS";
    /// SA: ERR_TOO_MANY_RECORDS: a Get() matched several records.
    SA_TOO_MANY_RECORDS = 0x0400, "ERR_TOO_MANY_RECORDS";
    /// SA: ERR_REQ_INVALID_GID: the GID is unknown.
    SA_REQ_INVALID_GID = 0x0500, "ERR_REQ_INVALID_GID";
    /// SA: ERR_REQ_INSUFFICIENT_COMPONENTS: a required component is missing from the mask.
    SA_INSUFFICIENT_COMPONENTS = 0x0600, "ERR_REQ_INSUFFICIENT_COMPONENTS";
    /// SA: ERR_REQ_DENIED.
    SA_DENIED = 0x0700, "ERR_REQ_DENIED";
    /// SA: ERR_PRIORITY_SUGGESTED.
    SA_PRIORITY_SUGGESTED = 0x0800, "PRIORITY_SUGGESTED";
}

impl Status {
    /// Whether the busy bit is set, regardless of other bits: the request was not executed and may
    /// be retried.
    pub const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 13.4.3.
    #[test]
    fn header_reads_a_captured_query() {
        let mut bytes = [0; 256];
        bytes[..18]
            .copy_from_slice(&[1, 3, 2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x10, 0x6E, 0, 0x35]);
        let header = MadHeader::new(&bytes).unwrap();
        assert_eq!(header.mgmt_class(), MgmtClass::SUBN_ADM);
        assert_eq!(header.method(), Method::GET);
        assert_eq!(header.tid(), 0x0001_0000_0000_106E);
        assert_eq!(header.attribute_id(), AttributeId(0x35));
    }

    /// IBA 13.4.5, 15.2.2.
    #[test]
    fn set_is_answered_by_get_resp() {
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::DELETE.response(), Method::DELETE_RESP);
        assert_eq!(Method::GET_TRACE_TABLE.response(), Method::GET_TABLE_RESP);
        assert_eq!(Method::GET_TABLE.response(), Method::GET_TABLE_RESP);
    }
}

//! The header that every MAD begins with (13.4.3), its classes, methods and status.

use super::field::layout;

layout! {
    /// Common MAD header, 24 bytes (13.4.3).
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
        /// Version of the class.
        class_version: u8 [16 .. 24],
        /// Method, response bit included.
        method: Method [24 .. 32],
        /// Status; directed-route SMPs keep their D bit in its top bit.
        status: Status [32 .. 48],
        /// Class-specific; hop pointer and hop count of a directed-route SMP.
        class_specific: u16 [48 .. 64],
        /// Transaction id, chosen by the requester.
        tid: u64 [64 .. 128],
        /// What the MAD is about.
        attribute_id: AttributeId [128 .. 144],
        /// Which part of it, as the attribute defines.
        attribute_modifier: u32 [160 .. 192],
    }
}

/// Makes a newtype of an integer a [`Field`](super::field::Field) that accepts every value.
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

/// Declares an integer newtype whose known values have names; unknown ones pass through.
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

            /// Name in the specification; `None` if this value has none.
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
    /// Management class (13.4.4).
    pub struct MgmtClass(u8);
    /// Subnet management by LID.
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
    /// Subnet management by directed route.
    SUBN_DIRECTED_ROUTE = 0x81, "SubnDR";
}

named_codes! {
    /// Method, with the response bit (13.4.5, 15.2.2).
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
    /// Whether this answers something: the response bit is set.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// The method of the answer: Set() is answered by GetResp(), GetTraceTable() by
    /// GetTableResp(), others by their own number with the response bit.
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
    /// Attribute id. One number may mean another attribute in another class.
    pub struct AttributeId(u16);
    /// ClassPortInfo, every class (13.4.8.1).
    CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
    /// Notice (13.4.8.2).
    NOTICE = 0x0002, "Notice";
    /// InformInfo (13.4.8.3).
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
}

named_codes! {
    /// MAD status (13.4.7): the low byte is common to all classes, the high one belongs to the class.
    pub struct Status(u16);
    /// All well.
    OK = 0x0000, "OK";
    /// Try again later; nothing was done.
    BUSY = 0x0001, "BUSY";
    /// Ask whom ClassPortInfo's redirect fields name.
    REDIRECT = 0x0002, "REDIRECT";
    /// Base or class version not supported.
    BAD_VERSION = 0x0004, "BAD_VERSION";
    /// Method not supported.
    UNSUPPORTED_METHOD = 0x0008, "UNSUPPORTED_METHOD";
    /// Method and attribute together not supported.
    UNSUPPORTED_METHOD_ATTRIBUTE = 0x000C, "UNSUPPORTED_METHOD_ATTRIBUTE";
    /// A field of the attribute, or its modifier, is invalid.
    INVALID_FIELD = 0x001C, "INVALID_FIELD";
    /// SA: no resources.
    SA_NO_RESOURCES = 0x0100, "ERR_NO_RESOURCES";
    /// SA: the request is invalid.
    SA_REQ_INVALID = 0x0200, "ERR_REQ_INVALID";
    /// SA: no records match.
    SA_NO_RECORDS = 0x0300, "ERR_NO_RECORDS";
    /// SA: a Get() matched several records.
    SA_TOO_MANY_RECORDS = 0x0400, "ERR_TOO_MANY_RECORDS";
    /// SA: the GID is unknown.
    SA_REQ_INVALID_GID = 0x0500, "ERR_REQ_INVALID_GID";
    /// SA: the component mask leaves out what is needed.
    SA_INSUFFICIENT_COMPONENTS = 0x0600, "ERR_REQ_INSUFFICIENT_COMPONENTS";
    /// SA: denied.
    SA_DENIED = 0x0700, "ERR_REQ_DENIED";
    /// SA: a priority is suggested.
    SA_PRIORITY_SUGGESTED = 0x0800, "PRIORITY_SUGGESTED";
}

impl Status {
    /// Whether the agent is busy, whatever else it says: nothing was done, and asking again later
    /// may help.
    pub const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn set_is_answered_by_get_resp() {
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::DELETE.response(), Method::DELETE_RESP);
        assert_eq!(Method::GET_TRACE_TABLE.response(), Method::GET_TABLE_RESP);
        assert_eq!(Method::GET_TABLE.response(), Method::GET_TABLE_RESP);
    }
}

//! MADs of the Subnet Administration class (IBA 15.2): headers, attribute ids and component masks.
//!
//! The records in their data part are in [`record`](super::record).

use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not, Range};

use super::MAD_LEN;
use super::field::{layout, part, part_mut};
use super::mad::{AttributeId, MadHeader, Method, MgmtClass, Status, open_code};
use super::rmpp::{self, RmppHeader};

/// Length of the headers: MAD, RMPP and SA.
pub const HEADER_LEN: usize = 56;

/// Data bytes of one MAD.
pub const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// Length of the SA header, which RMPP counts as payload of every segment.
pub const SA_HEADER_LEN: usize = HEADER_LEN - SA_HEADER_OFFSET;

/// The class version this crate implements.
pub const CLASS_VERSION: u8 = 2;

const SA_HEADER_OFFSET: usize = 36;
const RMPP_HEADER: Range<usize> = rmpp::OFFSET..SA_HEADER_OFFSET;

/// A MAD of the SA class: three headers, then 200 bytes of data.
///
/// ```text
///  0 MAD header (24)   24 RMPP header (12)   36 SA header (20)   56 data (200)
/// ```
pub struct SaMad<T> {
    buffer: T,
}

impl<T: Borrow<[u8; MAD_LEN]>> SaMad<T> {
    /// Wraps a MAD without checking its class; the view is meaningful for the SA class only.
    #[inline]
    pub fn new(buffer: T) -> Self {
        Self { buffer }
    }

    /// The underlying buffer.
    #[inline]
    pub fn into_inner(self) -> T {
        self.buffer
    }

    /// The common header.
    #[inline(always)]
    pub fn header(&self) -> MadHeader<&[u8; MadHeader::LEN]> {
        MadHeader::at::<0, _>(self.buffer.borrow())
    }

    /// The RMPP header.
    #[inline(always)]
    pub fn rmpp(&self) -> RmppHeader<&[u8; RmppHeader::LEN]> {
        RmppHeader::at::<{ rmpp::OFFSET }, _>(self.buffer.borrow())
    }

    /// The SA header.
    #[inline(always)]
    pub fn sa(&self) -> SaHeader<&[u8; SaHeader::LEN]> {
        SaHeader::at::<SA_HEADER_OFFSET, _>(self.buffer.borrow())
    }

    /// The data part.
    #[inline(always)]
    pub fn data(&self) -> &[u8; DATA_LEN] {
        part::<HEADER_LEN, _, _>(self.buffer.borrow())
    }
}

impl<T: BorrowMut<[u8; MAD_LEN]>> SaMad<T> {
    /// The common header, mutable.
    #[inline(always)]
    pub fn header_mut(&mut self) -> MadHeader<&mut [u8; MadHeader::LEN]> {
        MadHeader::at_mut::<0, _>(self.buffer.borrow_mut())
    }

    /// The RMPP header, mutable.
    #[inline(always)]
    pub fn rmpp_mut(&mut self) -> RmppHeader<&mut [u8; RmppHeader::LEN]> {
        RmppHeader::at_mut::<{ rmpp::OFFSET }, _>(self.buffer.borrow_mut())
    }

    /// The SA header, mutable.
    #[inline(always)]
    pub fn sa_mut(&mut self) -> SaHeader<&mut [u8; SaHeader::LEN]> {
        SaHeader::at_mut::<SA_HEADER_OFFSET, _>(self.buffer.borrow_mut())
    }

    /// The data part, mutable.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8; DATA_LEN] {
        part_mut::<HEADER_LEN, _, _>(self.buffer.borrow_mut())
    }

    /// Initializes the whole buffer as a request with an empty data part.
    pub fn write_request(
        &mut self,
        method: Method,
        attribute_id: AttributeId,
        tid: u64,
        component_mask: ComponentMask,
    ) {
        self.buffer.borrow_mut().fill(0);
        self.header_mut()
            .set_base_version(1)
            .set_mgmt_class(MgmtClass::SUBN_ADM)
            .set_class_version(CLASS_VERSION)
            .set_method(method)
            .set_tid(tid)
            .set_attribute_id(attribute_id);
        self.sa_mut().set_component_mask(component_mask);
    }

    /// Turns the request in this buffer into its response of one MAD, with data and component mask
    /// unchanged. Clears the SM_Key, so that it is not disclosed, and the RMPP header, which a
    /// table response sets again.
    #[inline]
    pub fn make_response(&mut self, status: Status) {
        let method = self.header().method().response();
        self.header_mut().set_method(method).set_status(status);
        self.buffer.borrow_mut()[RMPP_HEADER].fill(0);
        self.sa_mut().set_sm_key(0);
    }
}

layout! {
    /// SA header, 20 bytes, at byte 36 of a MAD (IBA 15.2.1.1).
    ///
    /// ```text
    ///  0 SM_Key (8)   8 AttributeOffset (2)   10 reserved (2)   12 ComponentMask (8)
    /// ```
    pub struct SaHeader(SaHeaderRepr): "SA", 20 bytes {
        /// SM_Key of a trusted requester; 0 if it does not claim trust.
        sm_key: u64 [0 .. 64],
        /// Distance of records in a table, in units of 8 bytes; 0 if the table is empty.
        attribute_offset: u16 [64 .. 80],
        /// The components of the record that the request specifies.
        component_mask: ComponentMask [96 .. 160],
    }
}

/// Components of a record that a request specifies (IBA 15.2.1.1). Each record's module defines its
/// bits; undefined bits select nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComponentMask(pub u64);

open_code!(ComponentMask, u64);

impl ComponentMask {
    /// No components: every record matches.
    pub const NONE: Self = Self(0);

    /// The mask of one component, by its number.
    #[inline]
    pub const fn component(number: u32) -> Self {
        Self(1 << number)
    }

    /// Union; a `const` version of [`BitOr`].
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every component of `other` is in this mask.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any component of `other` is in this mask.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether no component is selected.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for ComponentMask {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for ComponentMask {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for ComponentMask {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitAndAssign for ComponentMask {
    #[inline]
    fn bitand_assign(&mut self, other: Self) {
        self.0 &= other.0;
    }
}

impl Not for ComponentMask {
    type Output = Self;
    #[inline]
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Display for ComponentMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for ComponentMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ComponentMask({self})")
    }
}

/// Methods of the SA class's requests (IBA 15.2.2).
pub mod method {
    use super::Method;

    /// Methods of requests, each with its name as a metric label.
    pub const REQUESTS: [(Method, &str); 5] = [
        (Method::GET, "get"),
        (Method::GET_TABLE, "get_table"),
        (Method::GET_MULTI, "get_multi"),
        (Method::SET, "set"),
        (Method::DELETE, "delete"),
    ];
    /// The metric label of all other methods.
    pub const OTHER: &str = "other";

    /// The metric label of a method.
    pub fn label(method: Method) -> &'static str {
        let row = REQUESTS.iter().find(|(request, _)| *request == method);
        row.map_or(OTHER, |&(_, label)| label)
    }
}

/// Attribute IDs of the SA class (IBA 15.2.5). The numbers of common attributes (ClassPortInfo,
/// Notice, InformInfo) are constants of [`AttributeId`]; some of these mean other attributes in the
/// SM class.
pub mod attribute {
    use super::AttributeId;

    macro_rules! attributes {
        ($( $name:ident = $id:literal, $text:literal; )*) => {
            $( #[doc = concat!($text, ".")] pub const $name: AttributeId = AttributeId($id); )*

            /// All attributes that the class defines.
            pub const ALL: &[AttributeId] = &[
                AttributeId::CLASS_PORT_INFO,
                AttributeId::NOTICE,
                AttributeId::INFORM_INFO,
                $( $name, )*
            ];

            /// Name of an attribute in the SA class; `None` if the class does not define it.
            pub const fn name(id: AttributeId) -> Option<&'static str> {
                match id {
                    AttributeId::CLASS_PORT_INFO
                    | AttributeId::NOTICE
                    | AttributeId::INFORM_INFO => id.name(),
                    $( $name => Some($text), )*
                    _ => None,
                }
            }
        };
    }

    attributes! {
        NODE_RECORD = 0x11, "NodeRecord";
        PORT_INFO_RECORD = 0x12, "PortInfoRecord";
        SL_TO_VL_MAPPING_TABLE_RECORD = 0x13, "SLtoVLMappingTableRecord";
        SWITCH_INFO_RECORD = 0x14, "SwitchInfoRecord";
        LINEAR_FORWARDING_TABLE_RECORD = 0x15, "LinearForwardingTableRecord";
        RANDOM_FORWARDING_TABLE_RECORD = 0x16, "RandomForwardingTableRecord";
        MULTICAST_FORWARDING_TABLE_RECORD = 0x17, "MulticastForwardingTableRecord";
        SM_INFO_RECORD = 0x18, "SMInfoRecord";
        LINK_RECORD = 0x20, "LinkRecord";
        GUID_INFO_RECORD = 0x30, "GUIDInfoRecord";
        SERVICE_RECORD = 0x31, "ServiceRecord";
        PKEY_TABLE_RECORD = 0x33, "P_KeyTableRecord";
        PATH_RECORD = 0x35, "PathRecord";
        VL_ARBITRATION_TABLE_RECORD = 0x36, "VLArbitrationTableRecord";
        MC_MEMBER_RECORD = 0x38, "MCMemberRecord";
        TRACE_RECORD = 0x39, "TraceRecord";
        MULTI_PATH_RECORD = 0x3A, "MultiPathRecord";
        SERVICE_ASSOCIATION_RECORD = 0x3B, "ServiceAssociationRecord";
        INFORM_INFO_RECORD = 0xF3, "InformInfoRecord";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_becomes_its_answer_in_place() {
        let mut bytes = [0xA5; MAD_LEN];
        let mut mad = SaMad::new(&mut bytes);
        mad.write_request(
            Method::SET,
            attribute::SERVICE_RECORD,
            0x1_0000_106E,
            ComponentMask::component(3),
        );
        mad.sa_mut().set_sm_key(7);
        mad.rmpp_mut().set_rmpp_version(1).set_segment(9);
        mad.data_mut()[0] = 0x55;
        mad.make_response(Status::SA_REQ_INVALID);

        let mad = SaMad::new(&bytes);
        assert_eq!(mad.header().method(), Method::GET_RESP);
        assert_eq!(mad.header().status(), Status::SA_REQ_INVALID);
        assert_eq!(mad.header().tid(), 0x1_0000_106E);
        assert_eq!((mad.sa().sm_key(), mad.sa().component_mask().0), (0, 8));
        assert_eq!((mad.data()[0], mad.data()[1]), (0x55, 0));
        assert_eq!(bytes[24..36], [0; 12]);
    }

    /// IBA 15.2.1.1.
    #[test]
    fn headers_lie_where_the_specification_puts_them() {
        let mut bytes = [0; MAD_LEN];
        let mut mad = SaMad::new(&mut bytes);
        mad.rmpp_mut().set_rmpp_version(1).set_payload_len(0x0102);
        mad.sa_mut().set_sm_key(0x11).set_attribute_offset(8);
        mad.sa_mut().set_component_mask(ComponentMask(0x22));
        mad.data_mut()[199] = 0x33;
        let set: Vec<_> = (0..MAD_LEN).filter(|&i| bytes[i] != 0).collect();
        assert_eq!(set, [24, 34, 35, 43, 45, 55, 255]);
    }

    #[test]
    fn names_are_those_of_the_sa_class() {
        assert_eq!(attribute::name(AttributeId(0x11)), Some("NodeRecord"));
        assert_eq!(attribute::name(AttributeId(0x01)), Some("ClassPortInfo"));
        assert_eq!(attribute::name(AttributeId(0x10)), None);
    }
}

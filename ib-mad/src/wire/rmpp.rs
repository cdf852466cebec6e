//! The header of the Reliable Multi-Packet Protocol (13.6.2): its layout and its codes.
//!
//! Who sends which packet when is decided in [`crate::rmpp`].

use std::fmt;
use std::ops::BitOr;

use super::field::layout;
use super::mad::{named_codes, open_code};

/// Where the header lies in a MAD, bytes from its start.
pub const OFFSET: usize = 24;

/// The version that every RMPP packet carries.
pub const VERSION: u8 = 1;

/// The response time code that says nothing: the reader goes by its own defaults.
pub const RESP_TIME_NONE: u8 = 0x1F;

layout! {
    /// RMPP header, 12 bytes, at byte 24 of a MAD (13.6.2.1).
    ///
    /// ```text
    ///  0 RMPPVersion   1 RMPPType   2 RRespTime:5 RMPPFlags:3   3 RMPPStatus
    ///  4 Data1 (4): SegmentNumber of DATA and ACK
    ///  8 Data2 (4): PayloadLength of DATA, NewWindowLast of ACK
    /// ```
    pub struct RmppHeader(RmppHeaderRepr): "RMPP", 12 bytes {
        /// 1 if the packet is RMPP's; 0 in MADs that are no part of a transfer.
        rmpp_version: u8 [0 .. 8],
        /// DATA, ACK, STOP or ABORT.
        rmpp_type: RmppType [8 .. 16],
        /// Longest time the sender takes to answer, as the code n; 4.096 µs × 2^n. 31: not given.
        resp_time: u8 [16 .. 21],
        /// Active, First, Last.
        flags: RmppFlags [21 .. 24],
        /// Why a STOP or ABORT was sent; 0 in others.
        rmpp_status: RmppStatus [24 .. 32],
        /// DATA: this segment's number, from 1. ACK: the last segment received in order.
        segment: u32 [32 .. 64],
        /// DATA: payload bytes, SA headers counted: of the whole transfer in the first segment, of
        /// the last segment in the last. ACK: the last segment that may be sent (NewWindowLast).
        payload_len: u32 [64 .. 96],
    }
}

impl<T: AsRef<[u8]>> RmppHeader<T> {
    /// What an ACK has where DATA has the payload length: the last segment that may be sent.
    #[inline(always)]
    pub fn new_window_last(&self) -> u32 {
        self.payload_len()
    }

    /// Whether the MAD belongs to a transfer. If not, no other field means anything.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.flags().contains(RmppFlags::ACTIVE)
    }
}

named_codes! {
    /// What an RMPP packet is (13.6.2.1).
    pub struct RmppType(u8);
    /// No part of a transfer.
    NONE = 0, "none";
    /// A segment.
    DATA = 1, "DATA";
    /// The receiver acknowledges segments and opens the window.
    ACK = 2, "ACK";
    /// The receiver, out of resources, ends the transfer.
    STOP = 3, "STOP";
    /// Either side ends the transfer because of an error.
    ABORT = 4, "ABORT";
}

named_codes! {
    /// Why a transfer was stopped or aborted (13.6.2.1).
    pub struct RmppStatus(u8);
    /// Nothing wrong.
    NORMAL = 0, "normal";
    /// Resources exhausted; goes with STOP.
    RESOURCES_EXHAUSTED = 1, "resources exhausted (ResX)";
    /// The transfer took longer than its total time.
    TOTAL_TIME_TOO_LONG = 118, "total time too long (T2L)";
    /// The last segment and the payload length contradict each other.
    INCONSISTENT_LAST = 119, "inconsistent Last and PayloadLength";
    /// The First flag and the segment number contradict each other.
    INCONSISTENT_FIRST = 120, "inconsistent First and SegmentNumber";
    /// The packet's type is not defined.
    BAD_TYPE = 121, "bad RMPPType (BadT)";
    /// An ACK's NewWindowLast is less than one sent before, or than its segment number.
    NEW_WINDOW_LAST_TOO_SMALL = 122, "NewWindowLast too small (W2S)";
    /// An ACK's segment number lies beyond what was sent.
    SEGMENT_TOO_BIG = 123, "SegmentNumber too big (S2B)";
    /// The status is not defined for the packet's type.
    ILLEGAL_STATUS = 124, "illegal RMPPStatus";
    /// The version is not supported.
    UNSUPPORTED_VERSION = 125, "unsupported RMPPVersion (UnV)";
    /// Retries are spent.
    TOO_MANY_RETRIES = 126, "too many retries (TMR)";
    /// Anything else.
    UNSPECIFIED = 127, "unspecified";
}

/// Active, First and Last; the low three bits of their byte (13.6.2.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmppFlags(pub u8);

open_code!(RmppFlags, u8);

impl RmppFlags {
    /// The MAD is part of an RMPP transfer; without it the rest of the header means nothing.
    pub const ACTIVE: Self = Self(1);
    /// The first segment.
    pub const FIRST: Self = Self(2);
    /// The last segment.
    pub const LAST: Self = Self(4);

    /// Whether every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for RmppFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for RmppFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (flag, name) in [(Self::ACTIVE, "Active"), (Self::FIRST, "First"), (Self::LAST, "Last")]
        {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for RmppFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RmppFlags({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_a_first_segment_reads_as_the_kernel_writes_it() {
        let bytes = [1, 1, 0xFB, 0, 0, 0, 0, 1, 0, 0, 0x2C, 0x10];
        let header = RmppHeader::new(&bytes).unwrap();
        assert_eq!(header.rmpp_type(), RmppType::DATA);
        assert_eq!((header.resp_time(), header.flags()), (0x1F, RmppFlags(3)));
        assert_eq!((header.segment(), header.payload_len()), (1, 11_280));
        assert_eq!(header.flags().to_string(), "Active|First");
        assert_eq!(RmppHeaderRepr::parse(&header).unwrap().to_bytes(), bytes);
    }

    #[test]
    fn setting_flags_keeps_the_response_time() {
        let mut bytes = [0; 12];
        let mut header = RmppHeader::new(&mut bytes).unwrap();
        header.set_resp_time(18).set_flags(RmppFlags::ACTIVE | RmppFlags::LAST);
        assert_eq!(bytes[2], 18 << 3 | 5);
    }
}

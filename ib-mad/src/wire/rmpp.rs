//! Header of the Reliable Multi-Packet Protocol (IBA 13.6.2): layout and codes.
//!
//! The protocol itself is in [`crate::rmpp`].

use std::fmt;
use std::ops::BitOr;

use super::field::layout;
use super::mad::{named_codes, open_code};

/// Offset of the header in a MAD, in bytes.
pub const OFFSET: usize = 24;

/// The version that every RMPP packet carries.
pub const VERSION: u8 = 1;

/// Response time code for "not given": the reader uses its own default.
pub const RESP_TIME_NONE: u8 = 0x1F;

layout! {
    /// RMPP header, 12 bytes, at byte 24 of a MAD (IBA 13.6.2.1).
    ///
    /// ```text
    ///  0 RMPPVersion   1 RMPPType   2 RRespTime:5 RMPPFlags:3   3 RMPPStatus
    ///  4 Data1 (4): SegmentNumber of DATA and ACK
    ///  8 Data2 (4): PayloadLength of DATA, NewWindowLast of ACK
    /// ```
    pub struct RmppHeader(RmppHeaderRepr): "RMPP", 12 bytes {
        /// RMPPVersion: 1 in RMPP packets; 0 in MADs that are not part of a transfer.
        rmpp_version: u8 [0 .. 8],
        /// DATA, ACK, STOP or ABORT.
        rmpp_type: RmppType [8 .. 16],
        /// Response time of the sender, 4.096 µs × 2^n; 31: not given.
        resp_time: u8 [16 .. 21],
        /// Active, First, Last.
        flags: RmppFlags [21 .. 24],
        /// Reason of a STOP or ABORT; 0 in other packets.
        rmpp_status: RmppStatus [24 .. 32],
        /// DATA: number of this segment, from 1. ACK: the last segment received in order.
        segment: u32 [32 .. 64],
        /// DATA: payload bytes, including SA headers: in the first segment of the whole transfer,
        /// in the last segment of that segment. ACK: the last segment that may be sent
        /// (NewWindowLast).
        payload_len: u32 [64 .. 96],
    }
}

impl<T: AsRef<[u8]>> RmppHeader<T> {
    /// NewWindowLast of an ACK, at the place of DATA's payload length: the last segment that may be
    /// sent.
    #[inline(always)]
    pub fn new_window_last(&self) -> u32 {
        self.payload_len()
    }

    /// Whether the MAD belongs to a transfer. If not, the other fields are undefined.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.flags().contains(RmppFlags::ACTIVE)
    }
}

named_codes! {
    /// Type of an RMPP packet (IBA 13.6.2.1).
    pub struct RmppType(u8);
    /// Not part of a transfer.
    NONE = 0, "none";
    /// A segment.
    DATA = 1, "DATA";
    /// The receiver acknowledges segments and opens the window.
    ACK = 2, "ACK";
    /// The receiver ends the transfer for lack of resources.
    STOP = 3, "STOP";
    /// Either side ends the transfer because of an error.
    ABORT = 4, "ABORT";
}

named_codes! {
    /// Reason of a STOP or ABORT (IBA 13.6.2.1).
    pub struct RmppStatus(u8);
    /// Normal.
    NORMAL = 0, "normal";
    /// Resources exhausted; used with STOP.
    RESOURCES_EXHAUSTED = 1, "resources exhausted (ResX)";
    /// The transfer exceeded its total time.
    TOTAL_TIME_TOO_LONG = 118, "total time too long (T2L)";
    /// The Last flag and the payload length are inconsistent.
    INCONSISTENT_LAST = 119, "inconsistent Last and PayloadLength";
    /// The First flag and the segment number are inconsistent.
    INCONSISTENT_FIRST = 120, "inconsistent First and SegmentNumber";
    /// The packet type is undefined.
    BAD_TYPE = 121, "bad RMPPType (BadT)";
    /// The NewWindowLast of an ACK is less than an earlier one, or than its segment number.
    NEW_WINDOW_LAST_TOO_SMALL = 122, "NewWindowLast too small (W2S)";
    /// The segment number of an ACK is beyond the last segment sent.
    SEGMENT_TOO_BIG = 123, "SegmentNumber too big (S2B)";
    /// The status is undefined for the packet type.
    ILLEGAL_STATUS = 124, "illegal RMPPStatus";
    /// The version is not supported.
    UNSUPPORTED_VERSION = 125, "unsupported RMPPVersion (UnV)";
    /// Retries are exhausted.
    TOO_MANY_RETRIES = 126, "too many retries (TMR)";
    /// Any other reason.
    UNSPECIFIED = 127, "unspecified";
}

/// RMPPFlags Active, First and Last; the low three bits of their byte (IBA 13.6.2.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmppFlags(pub u8);

open_code!(RmppFlags, u8);

impl RmppFlags {
    /// The MAD is part of an RMPP transfer; otherwise the rest of the header is undefined.
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

    /// IBA 13.6.2.1.
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

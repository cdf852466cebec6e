//! The Reliable Multi-Packet Protocol (IBA 13.6) for MADs of the SA class, as two state
//! machines: [`Sender`] and [`Receiver`].
//!
//! They never send, sleep or read a clock. The caller owns the socket, the time and the table of
//! transfers, keyed by peer, class and transaction ID. The header layout is in
//! [`wire::rmpp`](crate::wire::rmpp).
//!
//! A message is 56 bytes of header and any number of data bytes. It is sent as segments of
//! [`DATA_LEN`] data bytes, each behind its own header, whose SA part counts as payload.
//!
//! A *double-sided* transfer has a message in each direction: a GetMulti() of several segments and
//! its response (IBA 13.6.6). The requester reverses the direction by an ACK of segment 0, which
//! opens the window of the response. The responder does not wait for it: a response's window starts
//! at one segment in any case.
//!
//! # Examples
//!
//! A table response from its sender to its receiver, both driven by hand. A program would send and
//! receive `mad` in between, and call `handle_timeout` when `poll_timeout` is due.
//!
//! ```
//! use std::time::Instant;
//!
//! use ib_mad::rmpp::{Outcome, Receiver, ReceiverConfig, Sender, SenderConfig};
//! use ib_mad::wire::mad::{Method, Status};
//! use ib_mad::wire::sa::{ComponentMask, HEADER_LEN, SaMad, attribute};
//!
//! // The header of every segment, and the records: 15 of 64 bytes.
//! let mut mad = [0; 256];
//! let mut answer = SaMad::new(&mut mad);
//! answer.write_request(Method::GET_TABLE, attribute::PATH_RECORD, 7, ComponentMask::NONE);
//! answer.make_response(Status::OK);
//! answer.sa_mut().set_attribute_offset(8);
//! let header: [u8; HEADER_LEN] = *mad.first_chunk().unwrap();
//! let records = vec![1; 15 * 64];
//!
//! let now = Instant::now();
//! let mut sender = Sender::new(now, records.len(), SenderConfig::default()).unwrap();
//! let mut receiver = None;
//! let outcome = loop {
//!     while let Some(segment) = sender.poll_transmit(now) {
//!         segment.write(&header, &records, &mut mad);
//!         match &mut receiver {
//!             None => receiver = Receiver::start(now, &mad, ReceiverConfig::default()).ok(),
//!             Some(receiver) => receiver.handle_packet(now, &mad),
//!         }
//!     }
//!     let receiver = receiver.as_mut().unwrap();
//!     while let Some(acknowledgement) = receiver.poll_transmit() {
//!         acknowledgement.write(receiver.header(), &[], &mut mad);
//!         sender.handle_packet(now, &SaMad::new(&mad).rmpp());
//!     }
//!     if let Some(outcome) = sender.poll() {
//!         break outcome;
//!     }
//! };
//! assert_eq!(outcome, Outcome::Complete);
//! let message = receiver.unwrap().take_message().unwrap();
//! assert_eq!(message[HEADER_LEN..], records);
//! ```

#[cfg(test)]
mod channel_test;
mod receiver;
mod sender;

use std::ops::Range;

pub use receiver::{Receiver, ReceiverConfig, Refusal, single_segment};
pub use sender::{Burst, Sender, SenderConfig};

use crate::wire::MAD_LEN;
use crate::wire::mad::{MadHeader, Method};
use crate::wire::rmpp::{OFFSET, RmppFlags, RmppStatus, RmppType, VERSION};
use crate::wire::sa::{DATA_LEN, HEADER_LEN, SA_HEADER_LEN};

/// Bits of the flags in the byte that they share.
const FLAGS: u8 = 7;

/// Payload of a full segment as RMPP counts it: the SA header and 200 data bytes.
const SEGMENT_PAYLOAD: u32 = (SA_HEADER_LEN + DATA_LEN) as u32;

/// A packet to send. [`write`](Self::write) encodes it as a MAD.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transmit {
    /// A segment of the message.
    Data {
        /// Its number, from 1.
        segment: u32,
        /// RMPPFlags First and Last as they apply; Active always.
        flags: RmppFlags,
        /// PayloadLength, including SA headers.
        payload_len: u32,
        /// Range of the message's data in this segment; at most [`DATA_LEN`] bytes.
        data: Range<usize>,
    },
    /// ACK: segments up to `segment` have arrived; those up to `window_last` may be sent.
    Ack {
        /// The last segment received in order.
        segment: u32,
        /// The last segment of the window.
        window_last: u32,
    },
    /// STOP: the receiver lacks resources.
    Stop(RmppStatus),
    /// ABORT: an error occurred.
    Abort(RmppStatus),
}

impl Transmit {
    /// The packet for a caller that holds the message's data without the first `len` bytes, which
    /// were acknowledged.
    #[inline]
    pub fn behind(self, len: usize) -> Self {
        match self {
            Self::Data { segment, flags, payload_len, data } => {
                let data = data.start - len..data.end - len;
                Self::Data { segment, flags, payload_len, data }
            }
            other => other,
        }
    }

    /// Writes the packet: `header` with the RMPP fields set, and the segment's part of `data`,
    /// which is all of the message's data. The header's response time is kept.
    #[inline]
    pub fn write(&self, header: &[u8; HEADER_LEN], data: &[u8], mad: &mut [u8; MAD_LEN]) {
        let (head, tail) = mad.split_at_mut(HEADER_LEN);
        head.copy_from_slice(header);
        let carried = match self {
            Self::Data { data: range, .. } => &data[range.clone()],
            _ => &[],
        };
        // Nearly all segments are full: a constant length lets the compiler optimize the copy.
        match (tail.first_chunk_mut::<DATA_LEN>(), carried.first_chunk()) {
            (Some(tail), Some(carried)) => *tail = *carried,
            _ => {
                tail[..carried.len()].copy_from_slice(carried);
                tail[carried.len()..].fill(0);
            }
        }

        let (rmpp_type, flags, status, segment, payload_len) = match *self {
            Self::Data { segment, flags, payload_len, .. } => {
                (RmppType::DATA, flags, RmppStatus::NORMAL, segment, payload_len)
            }
            Self::Ack { segment, window_last } => {
                (RmppType::ACK, RmppFlags::ACTIVE, RmppStatus::NORMAL, segment, window_last)
            }
            Self::Stop(status) => (RmppType::STOP, RmppFlags::ACTIVE, status, 0, 0),
            Self::Abort(status) => (RmppType::ABORT, RmppFlags::ACTIVE, status, 0, 0),
        };
        // Whole words instead of the layout's setters, which work bit by bit: this is done for
        // every segment. The response time shares a byte with the flags.
        let resp_time = header[OFFSET + 2] & !FLAGS;
        let codes = [VERSION, rmpp_type.0, resp_time | flags.0 & FLAGS, status.0];
        let (words, _) = head[OFFSET..].as_chunks_mut::<4>();
        words[0] = codes;
        words[1] = segment.to_be_bytes();
        words[2] = payload_len.to_be_bytes();
    }
}

/// The header for packets in the other direction: the method with its response bit flipped.
pub fn reply_header(header: &[u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    let mut reply = *header;
    let mut view = MadHeader::of_mut(&mut reply);
    let method = view.method();
    view.set_method(Method(method.0 ^ 0x80));
    reply
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The receiver has the whole message.
    Complete,
    /// This side ended the transfer and notifies the peer.
    Ended(RmppStatus),
    /// The peer sent STOP or ABORT.
    EndedByPeer(RmppStatus),
}

//! The Reliable Multi-Packet Protocol (IBTA vol 1, 13.6) for MADs of the SA class, as two state
//! machines: [`Sender`] and [`Receiver`].
//!
//! They decide; they never send, sleep or read a clock. The caller owns the socket, the time and
//! the table of transfers, keyed by peer, class and transaction id. What is not here: header
//! layout ([`wire::rmpp`](crate::wire::rmpp)) and the choice of records to send.
//!
//! A message is 56 bytes of header and any number of data bytes. It travels as segments of
//! [`DATA_LEN`] data bytes, each behind a header of its own whose SA part counts as payload.
//!
//! A *double-sided* transfer has a message each way: a GetMulti() of several segments and its
//! answer (13.6.6). Whoever asked then tells that it knows its request to have arrived by an ACK
//! of segment 0, which opens the window of the answer. Nobody waits for it: an answer's window
//! starts at one segment anyway.

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

/// The flags' bits of the byte that they share.
const FLAGS: u8 = 7;

/// Payload of a full segment as RMPP counts it: the SA header and 200 data bytes.
const SEGMENT_PAYLOAD: u32 = (SA_HEADER_LEN + DATA_LEN) as u32;

/// A packet to send. [`write`](Self::write) makes a MAD of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// A segment of the message.
    Data {
        /// Its number, from 1.
        segment: u32,
        /// First and Last as they apply; Active always.
        flags: RmppFlags,
        /// PayloadLength, SA headers counted.
        payload_len: u32,
        /// Which bytes of the message's data it carries; at most [`DATA_LEN`].
        data: Range<usize>,
    },
    /// Segments up to `segment` have arrived; those up to `window_last` may come.
    Ack {
        /// The last segment received in order.
        segment: u32,
        /// The last segment of the window.
        window_last: u32,
    },
    /// The end of the transfer, because the receiver lacks resources.
    Stop(RmppStatus),
    /// The end of the transfer, because of an error.
    Abort(RmppStatus),
}

impl Transmit {
    /// Writes the packet: `header` with RMPP fields set, and the data it carries out of `data`,
    /// which is all of the message's data. The header's response time is kept.
    #[inline]
    pub fn write(&self, header: &[u8; HEADER_LEN], data: &[u8], mad: &mut [u8; MAD_LEN]) {
        let (head, tail) = mad.split_first_chunk_mut::<HEADER_LEN>().expect("56 bytes of 256");
        *head = *header;
        let carried = match self {
            Self::Data { data: range, .. } => &data[range.clone()],
            _ => &[],
        };
        // Nearly all segments are full: of a length that the compiler knows.
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
        // Word by word, where the layout's setters would write bit by bit: this is done for every
        // segment. The response time shares a byte with the flags.
        let resp_time = header[OFFSET + 2] & !FLAGS;
        let codes = [VERSION, rmpp_type.0, resp_time | flags.0 & FLAGS, status.0];
        let (words, _) = head[OFFSET..].as_chunks_mut::<4>();
        words[0] = codes;
        words[1] = segment.to_be_bytes();
        words[2] = payload_len.to_be_bytes();
    }
}

/// The header of the other direction's packets: the method with its response bit flipped.
pub fn reply_header(header: &[u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    let mut reply = *header;
    let mut view = MadHeader::new(&mut reply[..]).expect("24 bytes of 56");
    let method = view.method();
    view.set_method(Method(method.0 ^ 0x80));
    reply
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole message is at the receiver.
    Complete,
    /// We ended it, and say so to the peer.
    Ended(RmppStatus),
    /// The peer sent STOP or ABORT.
    EndedByPeer(RmppStatus),
}

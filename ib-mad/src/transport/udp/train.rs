//! Trains: datagrams to or from one peer that pass through the kernel as one buffer. Assembles and
//! splits them for both engines.

use std::net::SocketAddr;

use super::envelope::{self, encode_from};
use super::{DATAGRAM_LEN, ENVELOPE_LEN, UdpCounters, decode};
use crate::transport::mmsg::{self, Vectors};
use crate::transport::sockaddr::RawAddress;
use crate::transport::{Address, Carrier, Marks, Packet};
use crate::wire::MAD_LEN;

/// Packets per train: the kernel's limit.
pub(super) const TRAIN_MAX: usize = 64;
/// The longest train that the kernel assembles.
pub(super) const TRAIN_BYTES_MAX: usize = 1 << 16;

/// Room for one control message that holds an int.
pub(super) type Control = [u64; 4];

/// A datagram to send. Whole cache lines, without gaps between neighbours.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Datagram {
    envelope: [u8; ENVELOPE_LEN],
    mad: [u8; MAD_LEN],
}

const _: () = assert!(size_of::<Datagram>() == DATAGRAM_LEN);

/// Datagrams being sent, those of a train side by side.
pub(super) struct Outgoing {
    datagrams: Box<[Datagram]>,
    vectors: Vectors<1>,
    peers: Box<[RawAddress]>,
    controls: Box<[Control]>,
    /// Of the socket.
    token: u64,
}

impl Outgoing {
    /// Room for `count` datagrams of a socket with this token.
    pub(super) fn new(count: usize, token: u64) -> Self {
        let empty = Datagram { envelope: [0; ENVELOPE_LEN], mad: [0; MAD_LEN] };
        Self {
            datagrams: vec![empty; count].into_boxed_slice(),
            vectors: Vectors::new(count),
            peers: vec![RawAddress::empty(); count].into_boxed_slice(),
            controls: vec![Control::default(); count].into_boxed_slice(),
            token,
        }
    }

    /// Writes a train of `packets` to `peer` into the places from `first` on.
    pub(super) fn write(&mut self, first: usize, packets: &[Packet], peer: SocketAddr) {
        let places = &mut self.datagrams[first..first + packets.len()];
        for (datagram, packet) in places.iter_mut().zip(packets) {
            datagram.envelope = encode_from(&packet.address, packet.carrier.marks, self.token);
            datagram.mad = packet.mad;
        }
        self.peers[first] = RawAddress::new(peer).0;
    }

    /// The header of the train of `len` datagrams from `first` on. Valid until the train is
    /// overwritten or `self` dropped.
    pub(super) fn header(&mut self, first: usize, len: usize) -> libc::msghdr {
        let datagrams = &self.datagrams[first..first + len];
        self.vectors.0[first] = [libc::iovec {
            iov_base: datagrams.as_ptr().cast_mut().cast(),
            iov_len: len * DATAGRAM_LEN,
        }];
        let peer = &mut self.peers[first];
        let mut header = mmsg::NOTHING;
        header.msg_namelen = peer.len();
        header.msg_name = (&raw mut *peer).cast();
        header.msg_iov = self.vectors.0[first].as_mut_ptr();
        header.msg_iovlen = 1;
        if len > 1 {
            // SAFETY: the control buffer lives as long as the header is valid.
            unsafe { write_segment_size(&mut header, &mut self.controls[first]) };
        }
        header
    }

    /// Splits the train of `len` datagrams from `first` on into single datagrams.
    pub(super) fn take_apart(&mut self, first: usize, len: usize) {
        let peer = self.peers[first];
        self.peers[first..first + len].fill(peer);
    }
}

/// The peer of the first packet of `batch`, and how many consecutive packets, up to `max`, go
/// there; `None` if it has no valid peer.
pub(super) fn next_train(batch: &[Packet], max: usize) -> Option<(SocketAddr, usize)> {
    // The kernel would reject a whole train to port 0.
    let peer = batch.first()?.carrier.peer.filter(|peer| peer.port() != 0)?;
    let same = |packet: &&Packet| packet.carrier.peer == Some(peer);
    Some((peer, batch.iter().take(max).take_while(same).count()))
}

/// A received train, and how far it has been copied out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    /// The sender.
    pub(super) peer: Option<SocketAddr>,
    /// Length of its datagrams except the last, which may be shorter.
    pub(super) segment: usize,
    /// Whether none of it was truncated.
    pub(super) is_whole: bool,
    /// Bytes copied out.
    pub(super) offset: usize,
}

impl Train {
    /// Copies packets of the train in `bytes` into `batch`. Returns their number, and whether the
    /// train is exhausted.
    pub(super) fn hand_out(
        &mut self,
        bytes: &[u8],
        batch: &mut [Packet],
        counters: &mut UdpCounters,
    ) -> (usize, bool) {
        let mut filled = 0;
        while filled < batch.len() {
            let end = (self.offset + self.segment.max(1)).min(bytes.len());
            let datagram = &bytes[self.offset..end];
            match open_datagram(datagram).filter(|_| self.is_whole) {
                Some((address, marks, token, mad)) => {
                    batch[filled].address = address;
                    batch[filled].carrier =
                        Carrier { peer: self.peer, marks, token, ..Carrier::default() };
                    batch[filled].mad = *mad;
                    filled += 1;
                }
                None if self.is_whole && datagram.len() == DATAGRAM_LEN => {
                    counters.malformed.envelope += 1;
                }
                None => counters.malformed.length += 1,
            }
            self.offset = end;
            if end == bytes.len() {
                return (filled, true);
            }
        }
        (filled, false)
    }
}

/// Splits a datagram into its envelope's contents and its MAD.
#[inline]
fn open_datagram(datagram: &[u8]) -> Option<(Address, Marks, u64, &[u8; MAD_LEN])> {
    if datagram.len() != DATAGRAM_LEN {
        return None;
    }
    let (envelope, mad) = datagram.split_first_chunk()?;
    let (address, marks) = decode(envelope)?;
    Some((address, marks, envelope::token(envelope), mad.first_chunk()?))
}

/// Attaches the control message that makes the kernel split a train into datagrams.
///
/// # Safety
///
/// `control` must outlive every use of `header`.
unsafe fn write_segment_size(header: &mut libc::msghdr, control: &mut Control) {
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute. The control buffer is aligned for a header and
    // longer than the message, so the pointer to its data stays within it.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as libc::c_uint) as usize;
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = libc::UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as libc::c_uint) as usize;
        libc::CMSG_DATA(message).cast::<u16>().write_unaligned(DATAGRAM_LEN as u16);
    }
}

/// Datagram length of a received train; `None` if it is a single datagram.
///
/// # Safety
///
/// The header's control buffer must be valid, aligned to 8 bytes and filled by the kernel.
pub(super) unsafe fn read_segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the caller guarantees the buffer; the macros stay within the length in the header.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_UDP && (*message).cmsg_type == libc::UDP_GRO {
                let size = libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(size).ok().filter(|&size| size > 0);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

//! The engine that uses recvmmsg(2) and sendmmsg(2): one system call per batch.

use std::io;
use std::os::fd::BorrowedFd;

use super::UdpCounters;
use super::train::{
    Control, Outgoing, TRAIN_BYTES_MAX, TRAIN_MAX, Train, next_train, read_segment_size,
};
use super::{DATAGRAM_LEN, is_fatal, is_fault_of_train};
use crate::transport::Packet;
use crate::transport::mapping::Mapping;
use crate::transport::mmsg::{self, Headers, Vectors};
use crate::transport::sockaddr::RawAddress;

/// Packets per send call.
const SEND_MAX: usize = 256;
/// Trains per receive call.
const RECEIVE_MAX: usize = 64;
/// Distance of buffers: not a power of two, so that their beginnings do not compete for the same
/// cache lines. Single datagrams fill only the beginnings.
const STRIDE: usize = TRAIN_BYTES_MAX + 448;

/// Buffers of both directions.
pub(super) struct Mmsg {
    outgoing: Outgoing,
    headers: Headers,
    incoming: Incoming,
    /// Whether runs of packets to one peer are sent as one train.
    trains: bool,
}

/// Received trains, and how far they have been copied out.
struct Incoming {
    bytes: Mapping,
    vectors: Vectors<1>,
    peers: Box<[RawAddress]>,
    controls: Box<[Control]>,
    headers: Headers,
    /// Trains received by the last call.
    trains: usize,
    /// The train being copied out, and its index.
    train: Option<Train>,
    number: usize,
    /// Packets per train of the last call, rounded down. Determines how many trains fill a batch,
    /// so that packets wait in the kernel rather than here.
    mean_train: usize,
}

impl Mmsg {
    pub(super) fn new(trains: bool, token: u64) -> io::Result<Self> {
        Ok(Self {
            outgoing: Outgoing::new(SEND_MAX, token),
            headers: Headers::new(SEND_MAX),
            incoming: Incoming::new()?,
            trains,
        })
    }

    /// Whether runs of packets to one peer are sent as one train; not if they cannot leave this
    /// host.
    pub(super) fn sends_trains(&self) -> bool {
        self.trains
    }

    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &mut [Packet],
        counters: &mut UdpCounters,
    ) -> io::Result<usize> {
        let mut filled = self.incoming.hand_out(batch, counters);
        if filled < batch.len() {
            self.incoming.receive(fd, batch.len() - filled)?;
            counters.receives += u64::from(self.incoming.trains > 0);
            filled += self.incoming.hand_out(&mut batch[filled..], counters);
        }
        Ok(filled)
    }

    /// Whether the last receive call found an empty socket.
    pub(super) fn is_drained(&self) -> bool {
        self.incoming.trains == 0
    }

    /// Sends until the socket accepts no more.
    pub(super) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &[Packet],
        counters: &mut UdpCounters,
    ) -> io::Result<usize> {
        let mut taken = 0;
        while taken < batch.len() {
            let rest = &batch[taken..];
            match self.send_some(fd, rest) {
                // No peer to send it to.
                Ok(None) => {
                    counters.refused += 1;
                    taken += 1;
                }
                Ok(Some(0)) => break,
                Ok(Some(sent)) => {
                    counters.sent += sent as u64;
                    counters.sends += 1;
                    taken += sent;
                }
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error)
                    if self.trains
                        && is_fault_of_train(&error)
                        && next_train(rest, 2).is_some_and(|(_, len)| len > 1) =>
                {
                    self.trains = false;
                }
                // An error of the peer or its network.
                Err(_) => {
                    counters.refused += 1;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    /// Sends as many packets of a batch as the socket accepts, at most [`SEND_MAX`] and none after
    /// one without a peer; `None` if the first has none.
    fn send_some(&mut self, fd: BorrowedFd<'_>, batch: &[Packet]) -> io::Result<Option<usize>> {
        let batch = &batch[..batch.len().min(SEND_MAX)];
        let train_max = if self.trains { TRAIN_MAX } else { 1 };
        let (mut messages, mut start) = (0, 0);
        while let Some((peer, len)) = next_train(&batch[start..], train_max) {
            self.outgoing.write(start, &batch[start..start + len], peer);
            self.headers.0[messages].msg_hdr = self.outgoing.header(start, len);
            messages += 1;
            start += len;
        }
        if messages == 0 {
            return Ok(None);
        }
        // SAFETY: the first `messages` headers are those of trains just written, and valid until
        // the next are.
        let sent = unsafe { mmsg::send(fd, &mut self.headers.0[..messages])? };
        // A datagram or train is accepted as a whole or not at all.
        let bytes: usize = self.headers.0[..sent].iter().map(|sent| sent.msg_len as usize).sum();
        Ok(Some(bytes / DATAGRAM_LEN))
    }
}

impl Incoming {
    fn new() -> io::Result<Self> {
        Ok(Self {
            bytes: Mapping::anonymous(RECEIVE_MAX * STRIDE)?,
            vectors: Vectors::new(RECEIVE_MAX),
            peers: vec![RawAddress::empty(); RECEIVE_MAX].into_boxed_slice(),
            controls: vec![Control::default(); RECEIVE_MAX].into_boxed_slice(),
            headers: Headers::new(RECEIVE_MAX),
            trains: 0,
            train: None,
            number: 0,
            mean_train: 1,
        })
    }

    /// Receives about as many packets as there is `room` for. All trains must have been copied out.
    fn receive(&mut self, fd: BorrowedFd<'_>, room: usize) -> io::Result<()> {
        let count = (room / self.mean_train).clamp(1, RECEIVE_MAX);
        for i in 0..count {
            let start = self.bytes.at(i * STRIDE).as_ptr();
            self.vectors.0[i] = [libc::iovec { iov_base: start.cast(), iov_len: TRAIN_BYTES_MAX }];
            let header = &mut self.headers.0[i].msg_hdr;
            header.msg_name = (&raw mut self.peers[i]).cast();
            header.msg_namelen = RawAddress::LEN;
            header.msg_iov = self.vectors.0[i].as_mut_ptr();
            header.msg_iovlen = 1;
            header.msg_control = self.controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&self.controls[i]);
        }
        (self.trains, self.train, self.number) = (0, None, 0);
        // SAFETY: the first `count` headers point at an owned peer, control buffer and vector, and
        // that at a buffer within the mapping; all outlive the call.
        self.trains = unsafe { mmsg::receive(fd, &mut self.headers.0[..count])? };
        let trains = &self.headers.0[..self.trains];
        let bytes: usize = trains.iter().map(|message| message.msg_len as usize).sum();
        if let Some(mean) = (bytes / DATAGRAM_LEN).checked_div(self.trains) {
            self.mean_train = mean.max(1);
        }
        Ok(())
    }

    /// Copies received packets into `batch`; returns their number.
    fn hand_out(&mut self, batch: &mut [Packet], counters: &mut UdpCounters) -> usize {
        let mut filled = 0;
        while self.number < self.trains && filled < batch.len() {
            let message = &self.headers.0[self.number];
            let len = (message.msg_len as usize).min(TRAIN_BYTES_MAX);
            let start = self.bytes.at(self.number * STRIDE).as_ptr();
            // SAFETY: the kernel filled that much of this owned buffer, and writes to it only in
            // `receive`.
            let bytes = unsafe { std::slice::from_raw_parts(start, len) };
            let train = self.train.get_or_insert_with(|| Train {
                peer: self.peers[self.number].get(),
                // SAFETY: the header's control buffer is owned, and was filled by the kernel.
                segment: unsafe { read_segment_size(&message.msg_hdr) }.unwrap_or(len),
                is_whole: message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0,
                offset: 0,
            });
            let (handed, is_all) = train.hand_out(bytes, &mut batch[filled..], counters);
            filled += handed;
            if is_all {
                (self.train, self.number) = (None, self.number + 1);
            }
        }
        filled
    }
}

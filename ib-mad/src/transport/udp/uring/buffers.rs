//! Receive buffers that the kernel selects when a datagram arrives (a provided buffer ring), and
//! parsing of their content.

use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering::Release};

use io_uring::Submitter;
use io_uring::types::{BufRingEntry, RecvMsgOut};

use super::super::train::{TRAIN_BYTES_MAX, Train, read_segment_size};
use crate::transport::mapping::Mapping;
use crate::transport::mmsg::NOTHING;
use crate::transport::sockaddr::RawAddress;

/// The only buffer group.
pub(super) const GROUP: u16 = 0;

/// Room for the sender's address before each datagram or train, in bytes. With the kernel's header
/// before it and [`CONTROL_LEN`] after it, the datagram starts on a cache line.
const NAME_LEN: usize = 32;
/// Room for control messages, in bytes.
const CONTROL_LEN: usize = 80;
/// Everything before the datagram: a header of four words, address, control messages.
const HEAD_LEN: usize = 16 + NAME_LEN + CONTROL_LEN;
const _: () = assert!(HEAD_LEN.is_multiple_of(64) && NAME_LEN >= RawAddress::LEN as usize);

/// Entries of the ring, a page of them.
const ENTRIES: usize = 256;
const PAGE: usize = ENTRIES * size_of::<BufRingEntry>();

/// Number and distance of the buffers.
#[derive(Clone, Copy)]
struct Shape {
    count: usize,
    stride: usize,
}

/// A train needs 64 KB. An odd number of additional cache lines keeps the beginnings of the
/// buffers, which is all that single datagrams fill, from competing for the same cache lines.
const OF_TRAINS: Shape = Shape { count: 64, stride: HEAD_LEN + TRAIN_BYTES_MAX + 320 };
/// A datagram, with room to detect that it is longer than a packet.
const OF_DATAGRAMS: Shape = Shape { count: ENTRIES, stride: HEAD_LEN + 448 };
const _: () =
    assert!(OF_TRAINS.stride.is_multiple_of(64) && OF_DATAGRAMS.stride.is_multiple_of(64));

/// The buffers, and the ring that passes them to the kernel.
pub(super) struct Buffers {
    /// The ring, then the buffers.
    memory: Mapping,
    shape: Shape,
    /// Buffers passed so far.
    tail: u16,
}

/// A buffer that the kernel filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// Index of the buffer.
    pub(super) buffer: u16,
    /// Bytes in it, including the header.
    pub(super) len: usize,
}

impl Buffers {
    /// Allocates memory and passes all buffers to the kernel.
    pub(super) fn register(submitter: &Submitter<'_>, trains: bool) -> io::Result<Self> {
        let shape = if trains { OF_TRAINS } else { OF_DATAGRAMS };
        let memory = Mapping::anonymous(PAGE + shape.count * shape.stride)?;
        let mut buffers = Self { memory, shape, tail: 0 };
        let ring = buffers.entries().as_ptr() as u64;
        // SAFETY: the ring is an owned page; its owner drops the io_uring before the buffers.
        unsafe {
            submitter.register_buf_ring_with_flags(ring, shape.count as u16, GROUP, 0)?;
        }
        for buffer in 0..shape.count {
            buffers.give_back(buffer as u16);
        }
        Ok(buffers)
    }

    /// Number of buffers.
    pub(super) fn count(&self) -> usize {
        self.shape.count
    }

    /// Template of what the kernel writes before each datagram.
    pub(super) fn template() -> libc::msghdr {
        let mut template = NOTHING;
        template.msg_namelen = NAME_LEN as libc::socklen_t;
        template.msg_controllen = CONTROL_LEN;
        template
    }

    fn entries(&self) -> NonNull<BufRingEntry> {
        self.memory.at(0).cast()
    }

    fn start(&self, buffer: u16) -> NonNull<u8> {
        self.memory.at(PAGE + usize::from(buffer) * self.shape.stride)
    }

    /// Passes a buffer to the kernel.
    pub(super) fn give_back(&mut self, buffer: u16) {
        let start = self.start(buffer).as_ptr() as u64;
        let place = usize::from(self.tail) % self.shape.count;
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the entry is within the owned ring page. There are as many entries as buffers, so
        // the kernel does not read this one before the tail has moved. The tail lies in the first
        // entry, where no setter writes, and is aligned.
        unsafe {
            let entry = self.entries().add(place).as_mut();
            entry.set_addr(start);
            entry.set_len((HEAD_LEN + TRAIN_BYTES_MAX).min(self.shape.stride) as u32);
            entry.set_bid(buffer);
            let tail = BufRingEntry::tail(self.entries().as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Release);
        }
    }

    /// Parses a buffer: returns a train and its bytes. `None` if it is shorter than a header, which
    /// the kernel does not do.
    ///
    /// # Safety
    ///
    /// The buffer must have been filled by the kernel and not been given back.
    pub(super) unsafe fn open(&self, filled: Filled) -> Option<(Train, &[u8])> {
        let len = filled.len.min(self.shape.stride);
        // SAFETY: the kernel has written that much there, and writes no more until it is given
        // back, for which the caller vouches.
        let bytes = unsafe { std::slice::from_raw_parts(self.start(filled.buffer).as_ptr(), len) };
        let parsed = RecvMsgOut::parse(bytes, &Self::template()).ok()?;
        let mut control = NOTHING;
        control.msg_control = parsed.control_data().as_ptr().cast_mut().cast();
        control.msg_controllen = parsed.control_data().len();
        // SAFETY: the kernel wrote these control messages; they begin 48 bytes into a cache line.
        let segment = unsafe { read_segment_size(&control) };
        let payload = &bytes[HEAD_LEN..HEAD_LEN + parsed.payload_data().len()];
        let train = Train {
            peer: peer(parsed.name_data()),
            segment: segment.unwrap_or(payload.len()),
            is_whole: !parsed.is_payload_truncated(),
            offset: 0,
        };
        Some((train, payload))
    }
}

fn peer(name: &[u8]) -> Option<SocketAddr> {
    RawAddress::from_bytes(name).get()
}

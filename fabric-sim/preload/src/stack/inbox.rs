//! What waits to be read from an open port, and how much of it a read yields.

use std::collections::VecDeque;

use ib_mad::wire::MAD_LEN;

use crate::umad::{Errno, HEADER_LEN, Header};

/// Messages that wait; those that arrive beyond it are dropped, as the kernel does.
pub const MESSAGES_MAX: usize = 200_000;

/// A message received, or a send that comes back.
struct Message {
    header: Header,
    mad: Vec<u8>,
}

/// The queue of an open port.
#[derive(Default)]
pub(super) struct Inbox {
    queue: VecDeque<Message>,
    /// Whether it was last said to have something.
    pub(super) told_readable: bool,
}

impl Inbox {
    /// Adds a message; `false` if there is no room.
    pub(super) fn push(&mut self, header: Header, mad: Vec<u8>) -> bool {
        let has_room = self.queue.len() < MESSAGES_MAX;
        if has_room {
            self.queue.push_back(Message { header, mad });
        }
        has_room
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Reads one message, header and all; yields its length. What does not fit stays: with EINVAL
    /// if not even its first MAD fits, else with ENOSPC and that MAD, and the length of all of it
    /// in the header.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let Message { header, mad } = self.queue.front().ok_or(Errno(libc::EAGAIN))?;
        let first = &mad[..mad.len().min(MAD_LEN)];
        let Some((head, rest)) = buffer.split_first_chunk_mut::<HEADER_LEN>() else {
            return Err(Errno(libc::EINVAL));
        };
        if rest.len() < first.len() {
            return Err(Errno(libc::EINVAL));
        }
        *head = header.0;
        rest[..first.len()].copy_from_slice(first);
        if rest.len() < mad.len() {
            return Err(Errno(libc::ENOSPC));
        }
        rest[..mad.len()].copy_from_slice(mad);
        let len = HEADER_LEN + mad.len();
        self.queue.pop_front();
        Ok(len)
    }
}

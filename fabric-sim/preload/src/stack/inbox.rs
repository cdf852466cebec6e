//! Receive queue of an open port.

use std::collections::VecDeque;

use ib_mad::wire::MAD_LEN;

use crate::umad::{Errno, HEADER_LEN, Header};

/// Limit of queued messages; later ones are dropped, as in the kernel.
pub const MESSAGES_MAX: usize = 200_000;

/// A received message, or a send that is returned.
struct Message {
    header: Header,
    mad: Vec<u8>,
}

/// The queue of an open port.
#[derive(Default)]
pub(super) struct Inbox {
    queue: VecDeque<Message>,
    /// Whether the port was last reported as readable.
    pub(super) reported_readable: bool,
}

impl Inbox {
    /// Appends a message; `false` if the queue is full.
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

    /// Reads one message with its header into `buffer`; returns its length. A message that does not
    /// fit stays queued: the error is EINVAL if not even its first MAD fits, else ENOSPC with that
    /// MAD copied and the length of the whole message in the header.
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

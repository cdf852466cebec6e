//! Reads packets from the transport, to answer them next or to put them into the backlog.

use std::io;
use std::time::Instant;

use ib_mad::transport::{Packet, Transport};

use super::{SPILL_TIME, Worker};

impl<T: Transport> Worker<T> {
    /// Drains a transport inherited from another process, and drops all but the last `keep`
    /// packets: the senders of the others have given up or repeated.
    pub fn take_over(&mut self, keep: usize, now: Instant) -> io::Result<()> {
        // Packets that arrive faster than they are dropped are not inherited.
        const ROUNDS_MAX: usize = 16_384;
        for _ in 0..ROUNDS_MAX {
            let count = self.receive()?;
            let Self { responder, backlog, batch, is_drained, .. } = self;
            let mut lost = |packet: &Packet, reason| responder.lose(packet, reason);
            backlog.file(&batch[..count], now, &mut lost);
            backlog.keep_newest(keep, &mut lost);
            if count == 0 || *is_drained {
                break;
            }
        }
        self.pace.note_drained(now);
        Ok(())
    }

    /// Fills the batch with the next requests; returns their number, and whether the transport may
    /// have more.
    pub(super) fn take_in(
        &mut self,
        now: Instant,
        clock: &impl Fn() -> Instant,
    ) -> io::Result<(usize, bool)> {
        let has_room = self.has_room();
        let mut more = true;
        if has_room && self.backlog.is_light_empty() {
            let read = self.receive()?;
            more = read == self.batch.len();
            if !more {
                self.pace.note_drained(now);
            }
            let is_behind = more && self.pace.is_behind(now);
            let count = self.pass_on(read, now, is_behind);
            let Self { responder, backlog, batch, arrived, .. } = self;
            let batch = &mut batch[..count];
            let mut lost = |packet: &Packet, reason| responder.lose(packet, reason);
            backlog.drop_stale(now, &mut lost);
            if !is_behind {
                arrived[..count].fill(now);
                return Ok((backlog.set_heavy_aside(batch, now, &mut lost), more));
            }
            backlog.file(batch, now, &mut lost);
        }
        if !has_room || self.pace.is_due(now) {
            more = self.drain(now, clock)?;
        }
        let Self { responder, backlog, batch, arrived, .. } = self;
        backlog.drop_stale(now, &mut |packet, reason| responder.lose(packet, reason));
        let count = if has_room { backlog.take(now, batch, arrived) } else { 0 };
        self.pace.note_taken(count);
        Ok((count, more))
    }

    /// Queues received packets while time permits; returns whether there may be more.
    fn drain(&mut self, now: Instant, clock: &impl Fn() -> Instant) -> io::Result<bool> {
        let allowance = self.pace.allowance(now, self.backlog.has_hog());
        let (mut read, mut begin, mut at) = (0, now, now);
        let mut more = true;
        while more
            && (read < allowance.packets || at.saturating_duration_since(begin) < allowance.spare)
        {
            let received = self.receive()?;
            more = received == self.batch.len();
            let count = self.pass_on(received, now, true);
            let Self { responder, backlog, batch, .. } = self;
            let mut lost = |packet: &Packet, reason| responder.lose(packet, reason);
            backlog.file(&batch[..count], now, &mut lost);
            read += received;
            at = clock();
            if read <= allowance.packets {
                begin = at;
            }
        }
        if !more {
            self.pace.note_drained(now);
        }
        self.pace.note_read(at, at.saturating_duration_since(begin));
        if let Some(packets) = self.pace.queue_limit(at) {
            self.transport.limit_queue(packets);
            self.note_overflow();
        }
        Ok(more)
    }

    /// Passes queries among the first `count` packets of the batch to other responders, if this
    /// worker is behind or was a moment ago; returns how many are left, at the front.
    fn pass_on(&mut self, count: usize, now: Instant, is_behind: bool) -> usize {
        let Self { spill: Some(spill), spills_until, responder, batch, .. } = self else {
            return count;
        };
        if is_behind {
            *spills_until = Some(now + SPILL_TIME);
        }
        match spills_until {
            Some(until) if now < *until => spill.pass_on(responder.own_lane(), &mut batch[..count]),
            _ => count,
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let count = self.transport.receive(&mut self.batch)?;
        self.is_drained = self.transport.is_drained();
        if count > 0 || self.is_drained {
            self.responder.note_read();
        }
        self.pace.note_received(count);
        if count > 0 {
            self.responder.stats().batches.increment();
        }
        Ok(count)
    }

    /// Counts packets that were lost before they could be read.
    pub(super) fn note_overflow(&mut self) {
        let overflowed = self.transport.overflowed();
        let stats = self.responder.stats();
        stats.socket_overflow.add(overflowed.saturating_sub(self.overflowed));
        self.overflowed = overflowed;
    }

    /// Counts datagrams that the transport skipped.
    pub(super) fn note_malformed(&mut self) {
        let malformed = self.transport.malformed();
        if malformed != self.malformed {
            let stats = self.responder.stats();
            stats.malformed_length.add(malformed.length - self.malformed.length);
            stats.malformed_envelope.add(malformed.envelope - self.malformed.envelope);
            stats.malformed_stranger.add(malformed.stranger - self.malformed.stranger);
            self.malformed = malformed;
        }
    }
}

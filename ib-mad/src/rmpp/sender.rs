//! The RMPP sender (IBA 13.6): sends one message as acknowledged segments.
//!
//! After loss it goes back to the first unacknowledged segment when no progress has been
//! acknowledged for a response time. A receiver in Linux does not report gaps, nor segments that it
//! has but did not acknowledge yet, so a selective repeat is impossible.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Outcome, SEGMENT_PAYLOAD, Transmit};
use crate::wire::rmpp::{RmppFlags, RmppHeader, RmppStatus, RmppType, VERSION};
use crate::wire::sa::{DATA_LEN, SA_HEADER_LEN};

/// Settings of a [`Sender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Limit of segments sent beyond the last acknowledged one, however far the receiver opens its
    /// window; limits repetition after a loss. 0 counts as 1.
    pub window_max: u32,
    /// How long to wait for an ACK before going back.
    pub response_timeout: Duration,
    /// How often to go back without progress before aborting.
    pub retries_max: u32,
    /// Time limit of the whole transfer, with or without progress.
    pub total_timeout: Duration,
    /// Whether this is a request whose response may have several segments too.
    pub double_sided: bool,
}

impl Default for SenderConfig {
    /// 64 segments, 1 s, 4 retries, 40 s (after which Linux receivers give up), one-sided.
    fn default() -> Self {
        Self {
            window_max: 64,
            response_timeout: Duration::from_secs(1),
            retries_max: 4,
            total_timeout: Duration::from_secs(40),
            double_sided: false,
        }
    }
}

/// No segment has this number.
const UNKNOWN: u32 = u32::MAX;

/// A message being sent.
#[derive(Clone, Debug)]
pub struct Sender {
    config: SenderConfig,
    /// Length of the message, as far as it is known.
    data_len: usize,
    /// Number of segments that may be sent: all, or those before the last known byte.
    segment_count: u32,
    /// The last segment; [`UNKNOWN`] while data is still to come.
    last: u32,
    /// Whether the first segment announces the length.
    announces: bool,
    state: State,
    /// Deadline of the whole transfer.
    total_deadline: Instant,
}

#[derive(Clone, Debug)]
enum State {
    Sending(Sending),
    Over {
        outcome: Outcome,
        /// Whether `poll` has returned it.
        reported: bool,
        /// Not yet returned by `poll_transmit`.
        last_words: Option<Transmit>,
    },
}

#[derive(Clone, Debug)]
struct Sending {
    /// The last segment acknowledged.
    acked: u32,
    /// The last segment sent since the last going back.
    sent: u32,
    /// The last segment ever sent; no ACK may acknowledge a later one.
    sent_max: u32,
    /// The last segment that the receiver's window allows.
    window_last: u32,
    retries_left: u32,
    /// Start of the present time without progress; `None` before the first segment is sent. After a
    /// response time the sender goes back.
    since: Option<Instant>,
}

impl Sender {
    /// A transfer of `data_len` bytes, which may be 0. `None` if that exceeds the number of
    /// segments the header can express.
    pub fn new(now: Instant, data_len: usize, config: SenderConfig) -> Option<Self> {
        let segment_count = u32::try_from(data_len.div_ceil(DATA_LEN).max(1)).ok()?;
        // The first segment announces the total payload.
        segment_count.checked_mul(SEGMENT_PAYLOAD)?;
        let (last, announces) = (segment_count, true);
        let growing = Self::growing(now, config);
        Some(Self { data_len, segment_count, last, announces, ..growing })
    }

    /// A transfer of data that is found while it is sent: see [`grow`](Self::grow). Its first
    /// segment announces no length, which is permitted (IBA 13.6.2.1).
    pub fn growing(now: Instant, config: SenderConfig) -> Self {
        Self {
            config: SenderConfig { window_max: config.window_max.max(1), ..config },
            data_len: 0,
            segment_count: 0,
            last: UNKNOWN,
            announces: false,
            state: State::Sending(Sending {
                acked: 0,
                sent: 0,
                sent_max: 0,
                window_last: 1,
                retries_left: config.retries_max,
                since: None,
            }),
            total_deadline: now + config.total_timeout,
        }
    }

    /// Appends `bytes` to a message that grows; with `is_last`, they are its end. Aborts if that
    /// exceeds the number of segments the header can express.
    pub fn grow(&mut self, bytes: usize, is_last: bool) {
        if self.last != UNKNOWN {
            return;
        }
        self.data_len += bytes;
        // The last segment is marked as such, so one waits until it is certain that more follow.
        let segments = match is_last {
            true => self.data_len.div_ceil(DATA_LEN).max(1),
            false => self.data_len.saturating_sub(1) / DATA_LEN,
        };
        match u32::try_from(segments) {
            Ok(segments) if segments != UNKNOWN => self.segment_count = segments,
            _ => return self.abort(RmppStatus::RESOURCES_EXHAUSTED),
        }
        if is_last {
            self.last = self.segment_count;
        }
    }

    /// Length of the message, as far as it is known.
    pub fn data_len(&self) -> usize {
        self.data_len
    }

    /// Whether a message that grows should do so now: the receiver may get more segments than there
    /// are.
    pub fn wants_data(&self) -> bool {
        let State::Sending(sending) = &self.state else { return false };
        let ahead = self.segment_count.saturating_sub(sending.acked);
        self.last == UNKNOWN && ahead < self.config.window_max
    }

    /// Length of the data that the receiver has acknowledged: it is not sent again.
    pub fn acked_len(&self) -> usize {
        match &self.state {
            State::Sending(sending) => self.data_len.min(sending.acked as usize * DATA_LEN),
            State::Over { .. } => self.data_len,
        }
    }

    /// Number of segments of the message, as far as they may be sent now.
    pub fn segment_count(&self) -> u32 {
        self.segment_count
    }

    /// The next packet to send, if the window has room. Call until it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.poll_burst(now, 1).next()
    }

    /// The next packets to send, as far as the window allows, and at most `max`. All of them count
    /// as sent.
    #[inline]
    pub fn poll_burst(&mut self, now: Instant, max: u32) -> Burst<'_> {
        let (mut segments, mut again, mut words) = (0..0, 0, None);
        match &mut self.state {
            State::Over { last_words, .. } if max > 0 => words = last_words.take(),
            State::Over { .. } => {}
            State::Sending(sending) => {
                let last = sending
                    .window_last
                    .min(sending.acked.saturating_add(self.config.window_max))
                    .min(self.segment_count);
                let count = last.saturating_sub(sending.sent).min(max);
                if count > 0 {
                    segments = sending.sent..sending.sent + count;
                    again = (sending.sent_max - sending.sent).min(count);
                    sending.sent = segments.end;
                    sending.sent_max = sending.sent_max.max(sending.sent);
                    sending.since = Some(now);
                }
            }
        }
        Burst { sender: self, segments, again, last_words: words }
    }

    /// When `handle_timeout` is due. Any other `&mut self` call may change it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Over { .. } => None,
            State::Sending(sending) => {
                let deadline = sending.since.map(|since| since + self.config.response_timeout);
                Some(deadline.map_or(self.total_deadline, |due| due.min(self.total_deadline)))
            }
        }
    }

    /// How the transfer ended, once it has. Returned once.
    pub fn poll(&mut self) -> Option<Outcome> {
        let State::Over { outcome, reported, .. } = &mut self.state else { return None };
        (!std::mem::replace(reported, true)).then_some(*outcome)
    }

    /// Whether the transfer has ended. Keep the sender of a double-sided request until its response
    /// arrives, to answer repeated ACKs.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over { last_words: None, .. })
    }

    /// Handles a packet that the receiver sent. Packets of the other direction (DATA), and packets
    /// that are not RMPP, are ignored.
    pub fn handle_packet<T: AsRef<[u8]>>(&mut self, now: Instant, packet: &RmppHeader<T>) {
        if !packet.is_active() {
            return;
        }
        if packet.rmpp_version() != VERSION {
            return self.abort(RmppStatus::UNSUPPORTED_VERSION);
        }
        match packet.rmpp_type() {
            RmppType::DATA => {}
            RmppType::ACK if packet.rmpp_status() != RmppStatus::NORMAL => {
                self.abort(RmppStatus::ILLEGAL_STATUS);
            }
            RmppType::ACK => self.handle_ack(now, packet.segment(), packet.new_window_last()),
            // Regardless of their status: STOP and ABORT are not answered.
            RmppType::STOP | RmppType::ABORT => self.handle_end(packet.rmpp_status()),
            _ => self.abort(RmppStatus::BAD_TYPE),
        }
    }

    /// Handles an ACK for everything up to `segment`, which opens the window to `window_last`. An
    /// ACK older than a previous one is ignored; datagrams may be reordered and repeated.
    pub fn handle_ack(&mut self, now: Instant, segment: u32, window_last: u32) {
        let State::Sending(sending) = &mut self.state else {
            return self.repeat_turnaround(segment);
        };
        if window_last < segment {
            return self.abort(RmppStatus::NEW_WINDOW_LAST_TOO_SMALL);
        }
        if segment > sending.sent_max {
            return self.abort(RmppStatus::SEGMENT_TOO_BIG);
        }
        if segment < sending.acked {
            return;
        }
        sending.window_last = sending.window_last.max(window_last);
        if segment > sending.acked {
            sending.acked = segment;
            sending.sent = sending.sent.max(segment);
            sending.retries_left = self.config.retries_max;
            sending.since = Some(now);
        }
        if segment == self.last {
            self.end(Outcome::Complete, self.turnaround());
        }
    }

    /// Handles a STOP or ABORT of the receiver.
    pub fn handle_end(&mut self, status: RmppStatus) {
        self.end(Outcome::EndedByPeer(status), None);
    }

    /// Goes back to the first unacknowledged segment, or aborts if no retries or no time are left.
    pub fn handle_timeout(&mut self, now: Instant) {
        let State::Sending(sending) = &mut self.state else { return };
        if now >= self.total_deadline {
            return self.abort(RmppStatus::TOTAL_TIME_TOO_LONG);
        }
        let deadline = sending.since.map(|since| since + self.config.response_timeout);
        if deadline.is_none_or(|deadline| now < deadline) {
            return; // Spurious calls are allowed.
        }
        let Some(left) = sending.retries_left.checked_sub(1) else {
            return self.abort(RmppStatus::TOO_MANY_RETRIES);
        };
        sending.retries_left = left;
        sending.sent = sending.acked;
        // Re-armed even if the window is closed and nothing will be sent, so that a receiver that
        // never reopens it cannot hold the transfer forever.
        sending.since = Some(now);
    }

    /// Ends the transfer from this side and notifies the receiver, unless it has ended.
    pub fn abort(&mut self, status: RmppStatus) {
        self.end(Outcome::Ended(status), Some(Transmit::Abort(status)));
    }

    fn end(&mut self, outcome: Outcome, last_words: Option<Transmit>) {
        if let State::Sending(_) = self.state {
            self.state = State::Over { outcome, reported: false, last_words };
        }
    }

    /// The segment that comes after `before` others.
    #[inline]
    fn segment(&self, before: u32) -> Transmit {
        let segment = before + 1;
        let start = before as usize * DATA_LEN;
        let data = start..self.data_len.min(start + DATA_LEN);
        let mut flags = RmppFlags::ACTIVE;
        let mut payload_len = 0;
        if segment == self.last {
            flags = flags | RmppFlags::LAST;
            payload_len = (SA_HEADER_LEN + data.len()) as u32;
        }
        if before == 0 {
            flags = flags | RmppFlags::FIRST;
            if self.announces {
                // The SA header of every segment counts. `new` has checked that the sum fits.
                payload_len = self.data_len as u32 + self.segment_count * SA_HEADER_LEN as u32;
            }
        }
        Transmit::Data { segment, flags, payload_len, data }
    }

    /// The ACK by which a double-sided request reverses the direction.
    fn turnaround(&self) -> Option<Transmit> {
        self.config.double_sided.then_some(Transmit::Ack { segment: 0, window_last: 1 })
    }

    /// Repeats the turnaround ACK: the receiver repeats its last ACK if the turnaround ACK was
    /// lost.
    fn repeat_turnaround(&mut self, segment: u32) {
        let turnaround = self.turnaround();
        if let State::Over { outcome: Outcome::Complete, last_words, .. } = &mut self.state
            && segment == self.segment_count
        {
            *last_words = turnaround;
        }
    }
}

/// Packets to send in sequence.
#[derive(Debug)]
pub struct Burst<'a> {
    sender: &'a Sender,
    /// Segments, by how many there are before them.
    segments: Range<u32>,
    again: u32,
    last_words: Option<Transmit>,
}

impl Burst<'_> {
    /// Number of segments returned so far that had been sent before.
    pub fn again(&self) -> u32 {
        self.again
    }
}

impl Iterator for Burst<'_> {
    type Item = Transmit;

    #[inline]
    fn next(&mut self) -> Option<Transmit> {
        match self.segments.next() {
            Some(before) => Some(self.sender.segment(before)),
            None => self.last_words.take(),
        }
    }
}

#[cfg(test)]
mod tests;

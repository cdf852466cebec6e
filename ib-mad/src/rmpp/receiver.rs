//! The RMPP receiver (IBA 13.6): reassembles and acknowledges segments.
//!
//! ACKs are sent as Linux sends them: for the first segment, at the end of each window, for the
//! last segment, and for every segment that was acknowledged before. Gaps are not reported; the
//! sender goes back after its response time.

use std::time::{Duration, Instant};

use super::{Outcome, SEGMENT_PAYLOAD, Transmit, reply_header};
use crate::wire::MAD_LEN;
use crate::wire::field::part;
use crate::wire::rmpp::{RmppFlags, RmppStatus, RmppType, VERSION};
use crate::wire::sa::{DATA_LEN, HEADER_LEN, SA_HEADER_LEN, SaMad};

/// Settings of a [`Receiver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Segments between ACKs, 1 to 64; values outside are clamped.
    pub window: u32,
    /// Limit of a message's data bytes, rounded up to whole segments. A sender that announces or
    /// sends more is stopped. Memory is allocated as segments arrive, not when they are announced.
    pub data_max: usize,
    /// Time limit of the whole transfer.
    pub total_timeout: Duration,
    /// How long repeated segments are still acknowledged after the message is complete.
    pub linger: Duration,
}

impl Default for ReceiverConfig {
    /// 64 segments, 1 GiB, 40 s, 10 s: Linux's values, and the PathRecords of 4,096 ports to each
    /// other.
    fn default() -> Self {
        Self {
            window: 64,
            data_max: 1 << 30,
            total_timeout: Duration::from_secs(40),
            linger: Duration::from_secs(10),
        }
    }
}

/// Why a packet does not start a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It belongs to a finished or unknown transfer, or is not RMPP. Do not reply.
    Ignore,
    /// It is malformed, or announces too much: send this reply, with
    /// [`reply_header`](super::reply_header) of the packet's header.
    Reply(Transmit),
}

/// A message being received.
#[derive(Clone, Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    /// Header of the packets to send.
    header: [u8; HEADER_LEN],
    state: State,
    /// The packet for `poll_transmit`; a newer one replaces an older one.
    to_send: Option<Transmit>,
    /// The window of the response, once the requester has opened it.
    answer_window: Option<u32>,
}

#[derive(Clone, Debug)]
enum State {
    Receiving(Receiving),
    /// Complete; repeats are acknowledged until `until`.
    Lingering {
        message: Option<Vec<u8>>,
        reported: bool,
        ack: Transmit,
        until: Instant,
    },
    Over {
        outcome: Outcome,
        reported: bool,
    },
}

#[derive(Clone, Debug)]
struct Receiving {
    /// Header of the first segment, then data, with gaps where segments are missing.
    message: Vec<u8>,
    /// The first missing segment.
    next: u32,
    /// Bit n: segment `next + n` has arrived. Never beyond the window, hence 64 bits.
    ahead: u64,
    /// The last segment acknowledged.
    acked: u32,
    window_last: u32,
    /// Number of segments, if the first one announced it.
    announced: Option<u32>,
    /// Number and data length of the last segment, once it has arrived.
    last: Option<(u32, usize)>,
    deadline: Instant,
}

/// A DATA packet with a checked header.
struct Segment<'a> {
    number: u32,
    flags: RmppFlags,
    payload_len: u32,
    data: &'a [u8; DATA_LEN],
}

/// A packet by its kind.
enum Packet<'a> {
    Data(Segment<'a>),
    Ack { segment: u32, window_last: u32 },
    End(RmppStatus),
    Malformed(RmppStatus),
    NotRmpp,
}

impl Receiver {
    /// Starts a transfer with its first segment, which may be the only one.
    pub fn start(
        now: Instant,
        mad: &[u8; MAD_LEN],
        config: ReceiverConfig,
    ) -> Result<Self, Refusal> {
        let segment = match Packet::parse(mad) {
            Packet::Data(segment) if segment.number == 1 => segment,
            Packet::Malformed(status) => return Err(Refusal::Reply(Transmit::Abort(status))),
            _ => return Err(Refusal::Ignore),
        };
        let header: &[u8; HEADER_LEN] = part::<0, _, _>(mad);
        let config = ReceiverConfig { window: config.window.clamp(1, 64), ..config };
        let mut receiver = Self {
            config,
            header: reply_header(header),
            state: State::Receiving(Receiving {
                message: header.to_vec(),
                next: 1,
                ahead: 0,
                acked: 0,
                window_last: 1,
                announced: None,
                last: None,
                deadline: now + config.total_timeout,
            }),
            to_send: None,
            answer_window: None,
        };
        receiver.handle_segment(now, &segment);
        match receiver.state {
            State::Over { .. } => {
                Err(receiver.to_send.take().map_or(Refusal::Ignore, Refusal::Reply))
            }
            _ => Ok(receiver),
        }
    }

    /// Header of the packets that `poll_transmit` returns.
    pub fn header(&self) -> &[u8; HEADER_LEN] {
        &self.header
    }

    /// The next packet to send. Call until it returns `None`.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.to_send.take()
    }

    /// When `handle_timeout` is due. Any other `&mut self` call may change it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Receiving(receiving) => Some(receiving.deadline),
            State::Lingering { until, .. } => Some(*until),
            State::Over { .. } => None,
        }
    }

    /// How the transfer ended, once it has. Returned once.
    pub fn poll(&mut self) -> Option<Outcome> {
        let (outcome, reported) = match &mut self.state {
            State::Receiving(_) => return None,
            State::Lingering { reported, .. } => (Outcome::Complete, reported),
            State::Over { outcome, reported } => (*outcome, reported),
        };
        (!std::mem::replace(reported, true)).then_some(outcome)
    }

    /// The message, once complete: the first segment's header, then all data. Returned once.
    pub fn take_message(&mut self) -> Option<Vec<u8>> {
        match &mut self.state {
            State::Lingering { message, .. } => message.take(),
            _ => None,
        }
    }

    /// The window that a double-sided requester opened for the response.
    pub fn answer_window(&self) -> Option<u32> {
        self.answer_window
    }

    /// Whether the transfer has ended, including the wait for repeats.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over { .. }) && self.to_send.is_none()
    }

    /// Handles a packet of this transfer.
    pub fn handle_packet(&mut self, now: Instant, mad: &[u8; MAD_LEN]) {
        match Packet::parse(mad) {
            Packet::Data(segment) => self.handle_segment(now, &segment),
            Packet::Ack { segment: 0, window_last } => {
                if let State::Lingering { .. } = self.state {
                    self.answer_window = Some(window_last);
                }
            }
            Packet::End(status) => self.end(Outcome::EndedByPeer(status), None),
            Packet::Malformed(status) => self.abort(status),
            Packet::Ack { .. } | Packet::NotRmpp => {}
        }
    }

    /// Aborts a transfer that takes too long; ends the wait for repeats of a complete one.
    pub fn handle_timeout(&mut self, now: Instant) {
        match &self.state {
            State::Receiving(receiving) if now >= receiving.deadline => {
                self.abort(RmppStatus::TOTAL_TIME_TOO_LONG);
            }
            State::Lingering { until, reported, .. } if now >= *until => {
                self.state = State::Over { outcome: Outcome::Complete, reported: *reported };
            }
            _ => {} // Spurious calls are allowed.
        }
    }

    /// Ends the transfer from this side and notifies the sender, unless it is complete or has
    /// ended.
    pub fn abort(&mut self, status: RmppStatus) {
        self.end(Outcome::Ended(status), Some(Transmit::Abort(status)));
    }

    fn end(&mut self, outcome: Outcome, last_words: Option<Transmit>) {
        if let State::Receiving(_) = self.state {
            self.state = State::Over { outcome, reported: false };
            self.to_send = last_words;
        }
    }

    fn handle_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        match &mut self.state {
            State::Over { .. } => {}
            State::Lingering { ack, .. } => self.to_send = Some(ack.clone()),
            State::Receiving(receiving) => match receiving.take(segment, &self.config) {
                Ok(Progress::Silent) => {}
                Ok(Progress::Ack) => self.to_send = Some(receiving.ack()),
                Ok(Progress::Complete) => {
                    let ack = receiving.ack();
                    self.to_send = Some(ack.clone());
                    self.state = State::Lingering {
                        message: Some(std::mem::take(&mut receiving.message)),
                        reported: false,
                        ack,
                        until: now + self.config.linger,
                    };
                }
                Err(RmppStatus::RESOURCES_EXHAUSTED) => {
                    let status = RmppStatus::RESOURCES_EXHAUSTED;
                    self.end(Outcome::Ended(status), Some(Transmit::Stop(status)));
                }
                Err(status) => self.abort(status),
            },
        }
    }
}

/// If `mad` is a message of one segment: the length of its data, and the ACK to it. Equivalent to a
/// [`Receiver`], for callers that need not acknowledge repeats.
pub fn single_segment(mad: &[u8; MAD_LEN]) -> Option<(usize, Transmit)> {
    let Packet::Data(Segment { number: 1, flags, payload_len, .. }) = Packet::parse(mad) else {
        return None;
    };
    let data_len = payload_len.checked_sub(SA_HEADER_LEN as u32)? as usize;
    let is_whole = flags.contains(RmppFlags::LAST) && data_len <= DATA_LEN;
    is_whole.then_some((data_len, Transmit::Ack { segment: 1, window_last: 1 }))
}

/// Action for a segment.
enum Progress {
    Silent,
    Ack,
    Complete,
}

impl Receiving {
    fn ack(&self) -> Transmit {
        Transmit::Ack { segment: self.acked, window_last: self.window_last }
    }

    fn take(
        &mut self,
        segment: &Segment<'_>,
        config: &ReceiverConfig,
    ) -> Result<Progress, RmppStatus> {
        let number = segment.number;
        if number <= self.acked {
            return Ok(Progress::Ack);
        }
        if number > self.window_last || self.has(number) {
            return Ok(Progress::Silent);
        }
        let segments_max = config.data_max.div_ceil(DATA_LEN).max(1);
        self.check_length(segment, segments_max)?;
        let start = HEADER_LEN + (number as usize - 1) * DATA_LEN;
        if self.message.len() < start + DATA_LEN {
            self.message.resize(start + DATA_LEN, 0);
        }
        self.message[start..start + DATA_LEN].copy_from_slice(segment.data);
        self.ahead |= 1 << (number - self.next);
        let in_order = self.ahead.trailing_ones();
        self.ahead = self.ahead.checked_shr(in_order).unwrap_or(0);
        self.next += in_order;

        if let Some((last, data_len)) = self.last
            && self.next > last
        {
            self.acked = last;
            self.message.truncate(HEADER_LEN + data_len);
            return Ok(Progress::Complete);
        }
        if self.next > self.window_last {
            self.acked = self.window_last;
            self.window_last = self.window_last.saturating_add(config.window);
            return Ok(Progress::Ack);
        }
        Ok(Progress::Silent)
    }

    /// Whether segment `number`, not beyond the window, has arrived.
    fn has(&self, number: u32) -> bool {
        number < self.next || self.ahead >> (number - self.next) & 1 == 1
    }

    /// Checks the segment against the limit and the lengths announced so far, and records the
    /// lengths that it announces.
    fn check_length(
        &mut self,
        segment: &Segment<'_>,
        segments_max: usize,
    ) -> Result<(), RmppStatus> {
        let Segment { number, flags, payload_len, .. } = *segment;
        if number == 1 && payload_len != 0 {
            self.announced = Some(payload_len.div_ceil(SEGMENT_PAYLOAD));
        }
        if number.max(self.announced.unwrap_or(0)) as usize > segments_max {
            return Err(RmppStatus::RESOURCES_EXHAUSTED);
        }
        let is_last = flags.contains(RmppFlags::LAST);
        let fits = match self.announced {
            Some(count) => is_last == (number == count) && number <= count,
            None => true,
        };
        let within = self.last.is_none_or(|(last, _)| number < last);
        if !fits || !within {
            return Err(RmppStatus::INCONSISTENT_LAST);
        }
        if is_last {
            let beyond = self.ahead.checked_shr(number - self.next).unwrap_or(0) != 0;
            let payload_fits = (SA_HEADER_LEN as u32..=SEGMENT_PAYLOAD).contains(&payload_len);
            if beyond || !payload_fits {
                return Err(RmppStatus::INCONSISTENT_LAST);
            }
            let data_len = (number as usize - 1) * DATA_LEN + payload_len as usize - SA_HEADER_LEN;
            self.last = Some((number, data_len));
        }
        Ok(())
    }
}

impl<'a> Packet<'a> {
    fn parse(mad: &'a [u8; MAD_LEN]) -> Self {
        let view = SaMad::new(mad);
        let rmpp = view.rmpp();
        if !rmpp.is_active() {
            return Self::NotRmpp;
        }
        if rmpp.rmpp_version() != VERSION {
            return Self::Malformed(RmppStatus::UNSUPPORTED_VERSION);
        }
        let status = rmpp.rmpp_status();
        match rmpp.rmpp_type() {
            RmppType::DATA | RmppType::ACK if status != RmppStatus::NORMAL => {
                Self::Malformed(RmppStatus::ILLEGAL_STATUS)
            }
            RmppType::DATA => {
                let (number, flags) = (rmpp.segment(), rmpp.flags());
                if (number == 1) != flags.contains(RmppFlags::FIRST) || number == 0 {
                    return Self::Malformed(RmppStatus::INCONSISTENT_FIRST);
                }
                let data = part::<HEADER_LEN, _, _>(mad);
                Self::Data(Segment { number, flags, payload_len: rmpp.payload_len(), data })
            }
            RmppType::ACK => {
                Self::Ack { segment: rmpp.segment(), window_last: rmpp.new_window_last() }
            }
            RmppType::STOP | RmppType::ABORT => Self::End(status),
            _ => Self::Malformed(RmppStatus::BAD_TYPE),
        }
    }
}

#[cfg(test)]
mod tests;

//! Messages longer than one MAD, sent and received by RMPP for agents.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_mad::rmpp::{
    Outcome, Receiver, ReceiverConfig, Refusal, Sender, SenderConfig, Transmit, reply_header,
};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Method;
use ib_mad::wire::rmpp::{RmppStatus, RmppType};
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

use super::requests::{Key, Request};
use crate::umad::Errno;

/// Limit of active transfers in each direction. Packets of further ones are ignored.
const TRANSFERS_MAX: usize = 4096;

/// Limit of complete messages whose repeats are still acknowledged. A new one displaces the oldest.
const LINGERING_MAX: usize = 1 << 16;

/// Time a sender waits for an ACK if the program set no timeout, as in Linux.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Linux has no limit for the whole transfer on the sending side.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(3600);

/// Key of an outgoing message. Several responses with one transaction id can be active at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OutKey {
    key: Key,
    to: Lid,
}

impl OutKey {
    fn new(key: Key, far: Lid) -> Self {
        Self { key, to: if key.response { far } else { Lid::NONE } }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InKey {
    key: Key,
    from: Lid,
    method: Method,
}

struct Outgoing {
    sender: Sender,
    request: Request,
    header: [u8; HEADER_LEN],
    data: Vec<u8>,
    is_queued: bool,
}

struct Incoming {
    agent: u16,
    receiver: Receiver,
    address: Address,
}

/// State of a message.
pub(super) enum Event {
    /// Received: the agent it is for, and the sender's address.
    Arrived(u16, Address, Vec<u8>),
    /// The receiver has all of it.
    Sent(Request),
    /// Failed after the last retry.
    TimedOut(Request),
    /// Terminated by one of the two sides.
    Ended,
}

#[derive(Default)]
pub(super) struct Transfers {
    outgoing: HashMap<OutKey, Outgoing>,
    /// Transfers that may have a packet to send, without duplicates.
    ready: VecDeque<OutKey>,
    incoming: HashMap<InKey, Incoming>,
    /// Complete transfers and when they expire, oldest first.
    lingering: HashMap<InKey, Incoming>,
    lingering_until: VecDeque<(Instant, InKey)>,
    /// ACKs and final packets of transfers that have ended.
    replies: VecDeque<Packet>,
}

impl Transfers {
    /// Starts sending `message`, the first MAD of which is in `request`.
    pub(super) fn start(
        &mut self,
        now: Instant,
        request: Request,
        message: &[u8],
    ) -> Result<(), Errno> {
        let (header, data) = message.split_first_chunk().ok_or(Errno(libc::EINVAL))?;
        if self.outgoing.len() >= TRANSFERS_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        let key = request.key();
        let timeout_ms = request.header.timeout_ms();
        let config = SenderConfig {
            window_max: u32::MAX,
            response_timeout: match timeout_ms {
                0 => RESPONSE_TIMEOUT,
                ms => Duration::from_millis(ms.into()),
            },
            retries_max: request.header.retries(),
            total_timeout: TOTAL_TIMEOUT,
            double_sided: !key.response && timeout_ms > 0,
        };
        let sender = Sender::new(now, data.len(), config).ok_or(Errno(libc::EINVAL))?;
        let key = OutKey::new(key, request.address.lid);
        let (header, data) = (*header, data.to_vec());
        let outgoing = Outgoing { sender, request, header, data, is_queued: false };
        self.outgoing.insert(key, outgoing);
        self.queue(key);
        Ok(())
    }

    /// Whether a message with this key is being sent, to `far` if it is a response.
    pub(super) fn is_sending(&self, key: Key, far: Lid) -> bool {
        self.outgoing.contains_key(&OutKey::new(key, far))
    }

    /// Drops the record of a response to an earlier request with the same key.
    pub(super) fn forget_answer(&mut self, request: &Request) {
        let view = SaMad::new(&*request.mad);
        let key = InKey {
            key: Key { response: true, ..request.key() },
            from: request.address.lid,
            method: view.header().method().response(),
        };
        self.incoming.remove(&key);
        self.lingering.remove(&key);
    }

    /// Ends the transfer of a request that has been answered. `false` if none was active.
    pub(super) fn forget_outgoing(&mut self, key: Key, far: Lid) -> bool {
        self.outgoing.remove(&OutKey::new(key, far)).is_some()
    }

    /// Ends all transfers of an agent without an ABORT.
    pub(super) fn cancel(&mut self, agent: u16) {
        self.outgoing.retain(|_, outgoing| outgoing.request.agent != agent);
        self.incoming.retain(|_, incoming| incoming.agent != agent);
        self.lingering.retain(|_, incoming| incoming.agent != agent);
    }

    /// Handles an RMPP packet for an agent.
    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        agent: u16,
        packet: &Packet,
    ) -> Option<Event> {
        let view = SaMad::new(&packet.mad);
        let (header, rmpp) = (view.header(), view.rmpp());
        if rmpp.rmpp_type() == RmppType::DATA {
            return self.handle_data(now, agent, packet);
        }
        let key = OutKey::new(Key::answered_by(&header), packet.address.lid);
        if let Some(outgoing) = self.outgoing.get_mut(&key) {
            outgoing.sender.handle_packet(now, &rmpp);
            return self.settle(key);
        }
        // A double-sided transfer turns around here, or the requester ends the one being received.
        let key =
            InKey { key: Key::of(&header), from: packet.address.lid, method: header.method() };
        self.find_incoming(&key)?.receiver.handle_packet(now, &packet.mad);
        self.settle_incoming(key)
    }

    fn handle_data(&mut self, now: Instant, agent: u16, packet: &Packet) -> Option<Event> {
        let view = SaMad::new(&packet.mad);
        let key = InKey {
            key: Key::of(&view.header()),
            from: packet.address.lid,
            method: view.header().method(),
        };
        let has_room = self.incoming.len() < TRANSFERS_MAX;
        match self.find_incoming(&key) {
            Some(incoming) => incoming.receiver.handle_packet(now, &packet.mad),
            None if !has_room => return None,
            None => match Receiver::start(now, &packet.mad, ReceiverConfig::default()) {
                Ok(receiver) => {
                    let address = packet.address;
                    self.incoming.insert(key, Incoming { agent, receiver, address });
                }
                Err(Refusal::Reply(transmit)) => {
                    let header: &[u8; HEADER_LEN] = packet.mad.first_chunk()?;
                    let address = &packet.address;
                    self.reply(&transmit, &reply_header(header), *address);
                }
                Err(_) => {}
            },
        }
        self.settle_incoming(key)
    }

    /// The next packet to send.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if let Some(reply) = self.replies.pop_front() {
            return Some(reply);
        }
        while let Some(key) = self.ready.pop_front() {
            let Some(outgoing) = self.outgoing.get_mut(&key) else { continue };
            outgoing.is_queued = false;
            let Some(transmit) = outgoing.sender.poll_transmit(now) else { continue };
            let address = outgoing.request.address;
            let mut packet = Packet::new([0; MAD_LEN], address);
            transmit.write(&outgoing.header, &outgoing.data, &mut packet.mad);
            self.queue(key);
            return Some(packet);
        }
        None
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let outgoing = self.outgoing.values().filter_map(|to| to.sender.poll_timeout());
        let incoming = self.incoming.values().filter_map(|from| from.receiver.poll_timeout());
        let lingering = self.lingering_until.front().map(|&(until, _)| until);
        outgoing.chain(incoming).chain(lingering).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Event> {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let late = self.outgoing.iter().filter(|(_, to)| is_due(to.sender.poll_timeout()));
        let mut events = Vec::new();
        for key in late.map(|(&key, _)| key).collect::<Vec<_>>() {
            if let Some(outgoing) = self.outgoing.get_mut(&key) {
                outgoing.sender.handle_timeout(now);
            }
            events.extend(self.settle(key));
        }
        let late = self.incoming.iter().filter(|(_, from)| is_due(from.receiver.poll_timeout()));
        for key in late.map(|(&key, _)| key).collect::<Vec<_>>() {
            if let Some(incoming) = self.incoming.get_mut(&key) {
                incoming.receiver.handle_timeout(now);
            }
            events.extend(self.settle_incoming(key));
        }
        while self.lingering_until.front().is_some_and(|&(until, _)| until <= now) {
            self.forget_oldest();
        }
        events
    }

    fn forget_oldest(&mut self) {
        let Some((until, key)) = self.lingering_until.pop_front() else { return };
        // A later message may have the same key.
        if self.lingering.get(&key).is_some_and(|at| at.receiver.poll_timeout() == Some(until)) {
            self.lingering.remove(&key);
        }
    }

    fn find_incoming(&mut self, key: &InKey) -> Option<&mut Incoming> {
        let lingering = self.lingering.get_mut(key);
        self.incoming.get_mut(key).or(lingering)
    }

    /// State of an outgoing message.
    fn settle(&mut self, key: OutKey) -> Option<Event> {
        let outgoing = self.outgoing.get_mut(&key)?;
        let event = match outgoing.sender.poll() {
            None => {
                self.queue(key);
                return None;
            }
            // The receiver may repeat its last ACK until it responds.
            Some(Outcome::Complete) => {
                let request = Request { is_over: true, ..outgoing.request.clone() };
                match request.header.timeout_ms() {
                    0 => drop(self.outgoing.remove(&key)),
                    _ => self.queue(key),
                }
                return Some(Event::Sent(request));
            }
            // Linux ends the transfer without an ABORT.
            Some(Outcome::Ended(RmppStatus::TOO_MANY_RETRIES)) => {
                return self.outgoing.remove(&key).map(|to| Event::TimedOut(to.request));
            }
            Some(Outcome::Ended(status)) => Some(Transmit::Abort(status)),
            Some(_) => None,
        };
        let outgoing = self.outgoing.remove(&key)?;
        if let Some(last_words) = event {
            self.reply(&last_words, &outgoing.header, outgoing.request.address);
        }
        Some(Event::Ended)
    }

    /// State of an incoming message; queues the packets that answer it.
    fn settle_incoming(&mut self, key: InKey) -> Option<Event> {
        let incoming = self.find_incoming(&key)?;
        let (agent, address) = (incoming.agent, incoming.address);
        let mut replies = Vec::new();
        while let Some(transmit) = incoming.receiver.poll_transmit() {
            let mut mad = [0; MAD_LEN];
            transmit.write(incoming.receiver.header(), &[], &mut mad);
            replies.push(Packet::new(mad, address));
        }
        let outcome = incoming.receiver.poll();
        self.replies.extend(replies);
        match outcome? {
            Outcome::Complete => {
                let mut complete = self.incoming.remove(&key)?;
                let message = complete.receiver.take_message()?;
                if let Some(until) = complete.receiver.poll_timeout() {
                    if self.lingering_until.len() >= LINGERING_MAX {
                        self.forget_oldest();
                    }
                    self.lingering.insert(key, complete);
                    self.lingering_until.push_back((until, key));
                }
                Some(Event::Arrived(agent, address, message))
            }
            _ => {
                self.incoming.remove(&key);
                Some(Event::Ended)
            }
        }
    }

    fn reply(&mut self, transmit: &Transmit, header: &[u8; HEADER_LEN], address: Address) {
        let mut mad = [0; MAD_LEN];
        transmit.write(header, &[], &mut mad);
        self.replies.push_back(Packet::new(mad, address));
    }

    fn queue(&mut self, key: OutKey) {
        if let Some(outgoing) = self.outgoing.get_mut(&key)
            && !std::mem::replace(&mut outgoing.is_queued, true)
        {
            self.ready.push_back(key);
        }
    }
}

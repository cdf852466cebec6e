//! Incoming requests of several segments: a bounded table of RMPP receivers.
//!
//! Few requests are that long (MultiPathRecord). For a short request with an RMPP header, only its
//! acknowledgement is kept. The protocol itself is in [`ib_mad::rmpp`].

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use ib_mad::rmpp::{
    Outcome, Receiver, ReceiverConfig, Refusal, Transmit, reply_header, single_segment,
};
use ib_mad::transport::{Origin, Packet};
use ib_mad::wire::field::part;
use ib_mad::wire::sa::HEADER_LEN;

use crate::serve::transfer::{Key, source_max};

/// Result of a segment.
pub(crate) enum Progress {
    /// More segments are expected, or the transfer is over.
    Waiting,
    /// The segment is all of the request, with so many bytes of data.
    Single(usize),
    /// The request is whole: its header, then all data.
    Whole(Vec<u8>),
    /// The segment is malformed: `packet` has become the ABORT to send.
    Refused,
    /// The packet is not answered.
    Ignored,
    /// The table of transfers is full.
    Full,
}

struct Assembly {
    receiver: Receiver,
    origin: Origin,
    /// Whether the request is incomplete.
    open: bool,
}

/// All requests on their way in.
pub(crate) struct Assemblies {
    config: ReceiverConfig,
    /// The greatest LMC in the subnet.
    pub(crate) lmc: u8,
    max: usize,
    by_key: HashMap<Key, Assembly, RandomState>,
    /// Transfers that have something to send; may hold keys of transfers that are gone.
    ready: VecDeque<Key>,
    /// Acknowledgements of single-segment requests; further ones are not sent when `max` wait.
    acks: VecDeque<([u8; HEADER_LEN], Transmit, Origin)>,
    open: usize,
    tally: Tally,
}

/// Results of transfers since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Begun.
    pub(crate) begun: u32,
    /// Ended with the request whole.
    pub(crate) complete: u32,
    /// Given up.
    pub(crate) failed: u32,
}

impl Assemblies {
    /// A table of at most `max` transfers of at most `data_max` bytes each.
    pub(crate) fn new(max: usize, data_max: usize) -> Self {
        let linger = Duration::from_secs(2);
        Self {
            config: ReceiverConfig { data_max, linger, ..ReceiverConfig::default() },
            lmc: 0,
            max,
            by_key: HashMap::default(),
            ready: VecDeque::new(),
            acks: VecDeque::new(),
            open: 0,
            tally: Tally::default(),
        }
    }

    /// Requests that are not whole yet.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Whether a packet belongs to a request that is known.
    pub(crate) fn contains(&self, packet: &Packet) -> bool {
        !self.by_key.is_empty() && self.by_key.contains_key(&Key::of(packet))
    }

    /// Takes a packet of a request that [`contains`](Self::contains) knows.
    pub(crate) fn handle_packet(&mut self, now: Instant, packet: &Packet) -> Progress {
        let key = Key::of(packet);
        if let Some(assembly) = self.by_key.get_mut(&key) {
            assembly.receiver.handle_packet(now, &packet.mad);
            self.ready.push_back(key);
        }
        self.settle(&key)
    }

    /// Takes a packet that may begin a request.
    pub(crate) fn begin(&mut self, now: Instant, packet: &mut Packet) -> Progress {
        let header = part::<0, _, _>(&packet.mad);
        // A request of one segment is not stored: its repeats are answered again.
        if let Some((data_len, ack)) = single_segment(&packet.mad) {
            if self.acks.len() < self.max {
                self.acks.push_back((reply_header(header), ack, packet.origin()));
            }
            return Progress::Single(data_len);
        }
        let receiver = match Receiver::start(now, &packet.mad, self.config) {
            Ok(receiver) => receiver,
            Err(Refusal::Reply(transmit)) => {
                let header = reply_header(header);
                transmit.write(&header, &[], &mut packet.mad);
                return Progress::Refused;
            }
            Err(_) => return Progress::Ignored,
        };
        if self.by_key.len() >= self.max && !self.evict(now) {
            return Progress::Full;
        }
        let key = Key::of(packet);
        let held = self.by_key.keys().filter(|other| other.has_source_of(&key, self.lmc)).count();
        if held >= source_max(self.max) {
            return Progress::Full;
        }
        let origin = packet.origin();
        self.by_key.insert(key, Assembly { receiver, origin, open: true });
        self.open += 1;
        self.tally.begun += 1;
        self.ready.push_back(key);
        self.settle(&key)
    }

    /// The next packet to send; `false` if there is none.
    pub(crate) fn poll_transmit(&mut self, packet: &mut Packet) -> bool {
        if let Some((header, ack, origin)) = self.acks.pop_front() {
            ack.write(&header, &[], &mut packet.mad);
            packet.set_origin(&origin);
            return true;
        }
        while let Some(key) = self.ready.front() {
            if let Some(assembly) = self.by_key.get_mut(key)
                && let Some(transmit) = assembly.receiver.poll_transmit()
            {
                transmit.write(assembly.receiver.header(), &[], &mut packet.mad);
                packet.set_origin(&assembly.origin);
                return true;
            }
            self.ready.pop_front();
        }
        false
    }

    /// When `handle_timeout` is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.by_key.values().filter_map(|assembly| assembly.receiver.poll_timeout()).min()
    }

    /// Ends transfers whose time is up.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.by_key.is_empty() {
            return;
        }
        let due: Vec<Key> = self
            .by_key
            .iter()
            .filter(|(_, assembly)| assembly.receiver.poll_timeout().is_none_or(|at| now >= at))
            .map(|(&key, _)| key)
            .collect();
        for key in due {
            if let Some(assembly) = self.by_key.get_mut(&key) {
                assembly.receiver.handle_timeout(now);
                self.ready.push_back(key);
            }
            self.settle(&key);
        }
    }

    /// Results of transfers since the last call; `None` if there are none.
    #[inline]
    pub(crate) fn take_tally(&mut self) -> Option<Tally> {
        let tally = std::mem::take(&mut self.tally);
        (tally != Tally::default()).then_some(tally)
    }

    fn settle(&mut self, key: &Key) -> Progress {
        let Some(assembly) = self.by_key.get_mut(key) else { return Progress::Waiting };
        let mut progress = Progress::Waiting;
        match assembly.receiver.poll() {
            Some(outcome) if assembly.open => {
                assembly.open = false;
                self.open -= 1;
                match assembly.receiver.take_message() {
                    Some(message) if outcome == Outcome::Complete => {
                        self.tally.complete += 1;
                        progress = Progress::Whole(message);
                    }
                    _ => self.tally.failed += 1,
                }
            }
            _ => {}
        }
        if assembly.receiver.is_over() {
            self.by_key.remove(key);
        }
        progress
    }

    /// Frees a slot by removing the oldest transfer that only waits for repeats.
    fn evict(&mut self, now: Instant) -> bool {
        self.handle_timeout(now);
        let idle = self.by_key.iter().filter(|(_, assembly)| !assembly.open);
        let oldest = idle.min_by_key(|(_, assembly)| assembly.receiver.poll_timeout());
        match oldest.map(|(&key, _)| key) {
            Some(key) => self.by_key.remove(&key).is_some(),
            None => self.by_key.len() < self.max,
        }
    }
}

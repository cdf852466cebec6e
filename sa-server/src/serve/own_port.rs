//! Answers to front-door requests that leave by this responder's own port, which saves the SM's
//! port half of its packets.
//!
//! The worker at the front door selects them and passes them to the worker that owns the port. Only
//! single-packet answers qualify: a client acknowledges segments to the port they came from, and
//! transfers belong to the front door.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;
use ib_mad::transport::udp::DIRECT;
use ib_mad::transport::{Address, Grh, Packet};
use ib_mad::types::{Gid, Guid, Qpn, Sl};
use ib_mad::wire::sa::SaMad;

use crate::sm::forward::Exchange;
use crate::tables::Tables;

/// Answers that the port's worker has not taken yet; those beyond go by the front door.
const QUEUE_MAX: usize = 4096;

/// The port as the other workers see it.
#[derive(Debug)]
pub struct OwnPort {
    answers: ArrayQueue<Packet>,
    /// Whether its transport works.
    is_open: AtomicBool,
    exchange: Arc<Exchange>,
    /// Number of the worker that has it.
    worker: usize,
}

impl OwnPort {
    /// The port of worker number `worker`. Shut at first.
    pub fn new(exchange: Arc<Exchange>, worker: usize) -> Arc<Self> {
        let (answers, is_open) = (ArrayQueue::new(QUEUE_MAX), AtomicBool::new(false));
        Arc::new(Self { answers, is_open, exchange, worker })
    }

    /// Hands an answer over; `false` if it has to go another way.
    pub(crate) fn send(&self, answer: Packet) -> bool {
        self.is_open.load(Relaxed) && self.answers.push(answer).is_ok()
    }

    /// Wakes the port's worker.
    pub(crate) fn wake(&self) {
        self.exchange.wake(self.worker);
    }

    /// Says whether its transport works.
    pub fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Relaxed);
    }

    pub(crate) fn take(&self) -> Option<Packet> {
        self.answers.pop()
    }
}

/// Role of a worker for the responder's own port.
#[derive(Clone, Debug, Default)]
pub enum Egress {
    /// No answers: all leave by the transport of their requests.
    #[default]
    Back,
    /// Answers to requests that allow it leave by that port.
    By(Arc<OwnPort>),
    /// The port is its own.
    Owner(Arc<OwnPort>),
}

/// Address of `answer` for the port with `guid`: the requester's LID, with a GRH if the request had
/// one, on the SL of the path from here. `None` if it must leave as its request came.
pub(crate) fn readdress(tables: &Tables, guid: Guid, answer: &Packet) -> Option<Address> {
    let asked = &answer.address;
    if !answer.carrier.marks.contains(DIRECT) || SaMad::new(&answer.mad).rmpp().is_active() {
        return None;
    }
    let here = tables.end_ports.by_guid(guid)?;
    let there = tables.end_ports.by_lid(asked.lid)?;
    let class = tables.path_class(here, there, asked.lid);
    if !class.is_reachable() {
        return None;
    }
    let passing = tables.passing_sls(here, there, asked.lid);
    let usual = tables.engine_sl(tables.partition_sl(asked.pkey), class.sl);
    let sl = match passing {
        0 => return None,
        _ if passing >> usual.get() & 1 == 1 => usual,
        // A route that has to keep to an SL must not take another.
        _ if tables.subnet.engine_sls != 0 => return None,
        _ => Sl::from_low_bits(passing.trailing_zeros() as u16),
    };
    let local_gid = Gid::new(tables.subnet.prefix, guid);
    Some(Address {
        lid: asked.lid,
        qpn: asked.qpn,
        local_qpn: Qpn::GSI,
        sl,
        pkey: asked.pkey,
        grh: asked.grh.map(|grh| Grh { local_gid, ..grh }),
        ..Address::default()
    })
}

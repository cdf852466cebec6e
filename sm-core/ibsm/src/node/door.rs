//! The front door, with the packets that wait for its socket.

use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use sa_proto::snapshot::Session;
use tracing::warn;

use super::ring::Ring;
use crate::cli::SaAccess;
use crate::front_door::{Counters, FrontDoor, Passage, Spill, Target};
use crate::observe::Responders;
use sm_core::sweep::SlsOfPaths;

/// Packets that wait for the socket; more are dropped, and their senders retry.
const QUEUE_MAX: usize = 4096;
/// A process without a turn for so long was stopped: it has one a second. Another manager may have
/// become master meanwhile, and clients may ask that.
const STOPPED_MIN: Duration = Duration::from_millis(1_200);
/// How long it takes at most to read what arrived meanwhile.
const READ_TIME: Duration = Duration::from_millis(20);
/// How often dropped queries are logged.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

/// The front door without its socket.
pub(super) struct Door {
    logic: FrontDoor,
    responders: Responders,
    /// Packets for responders.
    outgoing: Ring,
    last_turn: Instant,
    /// Until when requests may have waited at the port while the process was stopped.
    stale_until: Option<Instant>,
    dropped: Warned,
    forged: Warned,
}

/// The last warning of something that is counted.
#[derive(Default)]
struct Warned {
    /// The count then.
    count: u64,
    /// When the next one may be logged.
    due: Option<Instant>,
}

impl Warned {
    /// Whether to log a warning now that so many are counted.
    fn is_due(&mut self, now: Instant, count: u64) -> bool {
        let is_due = count > self.count && self.due.is_none_or(|due| now >= due);
        if is_due {
            *self = Self { count, due: Some(now + WARNING_INTERVAL) };
        }
        is_due
    }
}

impl Door {
    /// A front door that is closed.
    pub(super) fn new(now: Instant, responders: Responders, access: &SaAccess) -> Self {
        let mut logic = FrontDoor::default();
        logic.set_redirect_mode(access.redirect);
        logic.set_return_way(access.front_door_return);
        Self {
            logic,
            responders,
            outgoing: Ring::new(QUEUE_MAX),
            last_turn: now,
            stale_until: None,
            dropped: Warned::default(),
            forged: Warned::default(),
        }
    }

    /// Notices that the process was stopped. Must be called before anything that arrives is
    /// handled.
    pub(super) fn watch(&mut self, now: Instant) {
        let last = std::mem::replace(&mut self.last_turn, now);
        if now.saturating_duration_since(last) >= STOPPED_MIN {
            self.stale_until = Some(now + READ_TIME);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        Counters { overflow: self.outgoing.dropped(), ..self.logic.counters }
    }

    pub(super) fn pins(&self) -> usize {
        self.logic.pins()
    }

    /// Opens the door while this SM is master and publishes in this session, and closes it
    /// otherwise.
    pub(super) fn set_session(&mut self, session: Option<Session>) {
        self.logic.set_session(session);
    }

    /// Sets the ports that clients may be redirected to, and the SLs of paths there.
    pub(super) fn set_targets(&mut self, targets: Vec<Target>, sls: SlsOfPaths) {
        self.logic.set_targets(targets, sls);
    }

    /// What the responder that reads the SM's port may pass to others.
    pub(super) fn spill(&self, reader: Option<u64>) -> Spill {
        self.logic.spill(reader, &self.responders.load())
    }

    /// Takes a packet that the fabric delivered to QP1. `true` if it has become an answer to be
    /// sent.
    pub(super) fn admit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        // The age of what waited is unknown, and a write whose client has given up must not be
        // decided after later ones. Clients that still wait repeat their requests.
        if self.stale_until.is_some_and(|until| now < until) {
            self.logic.counters.stale += 1;
            return false;
        }
        let responders = self.responders.load();
        match self.logic.admit(now, &responders, packet) {
            Passage::ToResponder => {
                self.outgoing.push(packet);
                false
            }
            Passage::ToClient => true,
            Passage::Dropped => false,
        }
    }

    /// Takes a packet of a responder. `true` if it is an answer to be sent.
    pub(super) fn release(&mut self, now: Instant, packet: &mut Packet) -> bool {
        self.logic.release(now, &self.responders.load(), packet)
    }

    /// Packets for responders.
    pub(super) fn poll_forward(&self) -> &[Packet] {
        self.outgoing.front()
    }

    /// Reports that `count` of these packets were sent.
    pub(super) fn handle_forwarded(&mut self, count: usize) {
        self.outgoing.consume(count);
    }

    /// Warns, at intervals, of queries that were dropped for lack of a responder, and of answers
    /// that were forged.
    pub(super) fn warn_of_drops(&mut self, now: Instant) {
        let forged = self.logic.counters.forged;
        if self.forged.is_due(now, forged) {
            warn!(
                "{forged} SA answers dropped so far: they came from the address of a responder and \
                 do not have its token; another program has the address, or pretends to"
            );
        }
        let dropped = self.logic.counters.no_responder;
        if self.dropped.is_due(now, dropped) {
            warn!(
                "{dropped} SA queries dropped so far: no responder is connected and serving this \
                 SM's session; `ibsmctl status` shows the command that starts one"
            );
        }
    }
}

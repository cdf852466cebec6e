//! One thread with one queue of one transport and one responder.
//!
//! A worker reads a batch of requests, answers them in place and sends the answers. If it does not
//! keep up, requests go into a [`Backlog`], which decides which to answer next and which to drop.
//!
//! [`Worker::turn`] never blocks and takes the time as an argument; [`Worker::run`] is the thread.

mod delivery;
mod intake;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, Malformed, Packet, Transport, wait};

use crate::serve::overload::{Backlog, BacklogConfig, Pace};
use crate::serve::own_port::Egress;
use crate::serve::responder::Responder;
use crate::serve::spill::Spill;
use crate::sm::forward::PATIENCE;

/// Packets answered at a time.
const BATCH_MAX: usize = 64;

/// A worker without a turn for so long was stopped, and clients have given up.
const STOPPED_MIN: Duration = PATIENCE;

/// A worker that fell behind passes queries on for at least so long.
const SPILL_TIME: Duration = Duration::from_millis(50);

/// Bounds of a [`Worker`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Packets that wait to be answered.
    pub backlog: BacklogConfig,
    /// Maximum number of packets that wait to be sent. At this limit no request is answered.
    pub outbox_max: usize,
    /// How often a worker checks for new tables, transport losses and, if idle, whether to stop.
    pub look_around: Duration,
    /// How long an idle worker polls before it sleeps. Polling saves the wake-up time and costs a
    /// CPU.
    pub busy_poll: Duration,
}

impl Default for WorkerConfig {
    /// Room for 2,048 packets to be sent, ten checks a second, no polling before sleep.
    fn default() -> Self {
        Self {
            backlog: BacklogConfig::default(),
            outbox_max: 2048,
            look_around: Duration::from_millis(100),
            busy_poll: Duration::ZERO,
        }
    }
}

/// A responder at a transport.
pub struct Worker<T> {
    transport: T,
    responder: Responder,
    config: WorkerConfig,
    /// Packets in work, and when each of them arrived.
    batch: Box<[Packet]>,
    arrived: Box<[Instant]>,
    /// Packets that wait to be answered.
    backlog: Backlog,
    pace: Pace,
    /// Packets that the transport would not take, in order.
    outbox: Vec<Packet>,
    /// Segments on their way from the responder to the transport.
    segments: Box<[Packet]>,
    /// Malformed datagrams of the transport that the statistics already include.
    malformed: Malformed,
    /// Packets lost by the transport that the statistics already include.
    overflowed: u64,
    /// When the last turn began.
    now: Instant,
    /// Whether the last read found that nothing waited any more.
    is_drained: bool,
    /// Role of the worker for the responder's own port.
    egress: Egress,
    /// Other responders that take queries while this worker is behind.
    spill: Option<Arc<Spill>>,
    spills_until: Option<Instant>,
    /// Whether in this turn tables under way grow before costly requests are answered.
    grows_first: bool,
}

/// Work left after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The worker has more to do at once.
    Again,
    /// The worker has nothing to do until a packet arrives or time passes.
    Wait,
}

impl<T: Transport> Worker<T> {
    /// A worker; all memory for normal operation is allocated here.
    pub fn new(transport: T, responder: Responder, config: WorkerConfig) -> Self {
        let now = Instant::now();
        Self {
            transport,
            responder,
            config,
            batch: vec![Packet::default(); BATCH_MAX].into_boxed_slice(),
            arrived: vec![now; BATCH_MAX].into_boxed_slice(),
            backlog: Backlog::new(config.backlog),
            pace: Pace::new(now),
            outbox: Vec::with_capacity(config.outbox_max + BATCH_MAX),
            segments: vec![Packet::default(); BATCH_MAX].into_boxed_slice(),
            malformed: Malformed::default(),
            overflowed: 0,
            now,
            is_drained: false,
            egress: Egress::Back,
            spill: None,
            spills_until: None,
            grows_first: false,
        }
    }

    /// Same, with a role for the responder's own port.
    pub fn with_egress(self, egress: Egress) -> Self {
        Self { egress, ..self }
    }

    /// Same, with other responders that take queries while this worker is behind.
    pub fn with_spill(self, spill: Option<Arc<Spill>>) -> Self {
        Self { spill, ..self }
    }

    /// The responder, for its counters.
    pub fn responder(&self) -> &Responder {
        &self.responder
    }

    /// When [`turn`](Self::turn) is due if nothing arrives before.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.responder.poll_timeout()
    }

    /// Drops the packets in the transport if there was no turn for two seconds: the process was
    /// stopped. Their age is unknown, and a write whose client has given up must not be decided
    /// after later ones. Clients that still wait repeat their requests. A loop that turns at least
    /// every [`WorkerConfig::look_around`] calls this before each turn.
    pub fn note_pause(&mut self, now: Instant) -> io::Result<()> {
        if now.saturating_duration_since(self.now) >= STOPPED_MIN {
            self.take_over(0, now)?;
        }
        self.now = now;
        Ok(())
    }

    /// The transport.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Continues with another transport after a failure; unsent packets are sent through it.
    pub fn replace_transport(&mut self, transport: T) {
        self.transport = transport;
        self.malformed = Malformed::default();
        self.overflowed = 0;
    }

    /// Continues with a new responder after the old one failed. Requests in progress are lost.
    pub fn replace_responder(&mut self, responder: Responder) {
        self.responder = responder;
        self.outbox.clear();
    }

    /// Receives, answers and sends without waiting.
    pub fn turn(&mut self, clock: impl Fn() -> Instant) -> io::Result<Next> {
        self.flush()?;
        let now = clock();
        self.now = now;
        self.responder.note_reading(now);
        self.backlog.lmc = self.responder.lmc();
        self.is_drained = false;
        let (count, more) = self.take_in(now, &clock)?;
        self.note_malformed();
        if count > 0 {
            self.answer(count, now, &clock)?;
        }
        let others_wait = more || !self.backlog.is_light_empty();
        if self.is_drained && !others_wait {
            self.responder.note_all_read();
        }
        // Both have the time of costly requests, and neither is to take all of it.
        self.grows_first = !self.grows_first;
        let mut tables = self.grows_first && self.grow_tables(others_wait, &clock);
        tables |= self.answer_heavy(others_wait, &clock)?;
        tables |= !self.grows_first && self.grow_tables(others_wait, &clock);
        if self.responder.poll_timeout().is_some_and(|due| now >= due) {
            self.responder.handle_timeout(now);
        }
        let sent = self.send_segments(now, others_wait)?;
        let blocked = !self.outbox.is_empty();
        // After sending, read again: the transport may already hold new packets.
        let waiting = self.backlog.len();
        let busy = (more || count > 0 || tables || waiting > 0 || sent) && !blocked;
        Ok(if busy { Next::Again } else { Next::Wait })
    }

    /// Works until `stop` is set. `upkeep` is called every `interval`, for what a transport needs
    /// now and then. Fails when the transport does.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        interval: Duration,
        mut upkeep: impl FnMut(&mut T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.set_open(true);
        let ended = self.work(stop, interval, &mut upkeep);
        self.set_open(false);
        ended
    }

    fn work(
        &mut self,
        stop: &AtomicBool,
        interval: Duration,
        upkeep: &mut impl FnMut(&mut T) -> io::Result<()>,
    ) -> io::Result<()> {
        let start = Instant::now();
        let (mut upkeep_due, mut around_due) = (start + interval, start);
        let mut idle_since = None;
        self.now = start;
        while !stop.load(Relaxed) {
            self.note_pause(Instant::now())?;
            let next = self.turn(Instant::now)?;
            // By the turn's clock: a worker that is never idle looks around as well.
            let now = self.now;
            if now >= around_due {
                self.look_around(now);
                around_due = now + self.config.look_around;
            }
            if now >= upkeep_due {
                upkeep(&mut self.transport)?;
                upkeep_due = now + interval;
            }
            if next == Next::Again {
                idle_since = None;
                continue;
            }
            if !self.config.busy_poll.is_zero() && self.outbox.is_empty() {
                let since = idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() < self.config.busy_poll {
                    std::hint::spin_loop();
                    continue;
                }
                idle_since = None;
            }
            self.wait()?;
        }
        Ok(())
    }

    /// Periodic work.
    fn look_around(&mut self, now: Instant) {
        self.responder.refresh();
        if self.pace.lifts_limit(now) {
            self.transport.limit_queue(usize::MAX);
        }
        self.note_overflow();
    }

    /// Announces to the other workers whether answers can leave by the port, if it is this
    /// worker's.
    fn set_open(&self, is_open: bool) {
        if let Egress::Owner(port) = &self.egress {
            port.set_open(is_open);
        }
    }

    /// Sleeps until something arrives, can be sent or is due.
    fn wait(&mut self) -> io::Result<()> {
        let due = self.responder.poll_timeout();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = due.map_or(self.config.look_around, |due| due.min(self.config.look_around));
        match self.transport.descriptor() {
            Some(descriptor) => {
                let write = !self.outbox.is_empty();
                let transport = Interest::read_or_write(descriptor, write);
                match self.responder.descriptor() {
                    Some(decided) => {
                        let mut interests = [transport, Interest::read(decided)];
                        wait(&mut interests, Some(timeout))?;
                        if interests[1].is_readable() {
                            self.responder.clear_wakeup();
                        }
                    }
                    None => {
                        wait(&mut [transport], Some(timeout))?;
                    }
                }
            }
            None => std::thread::sleep(timeout.min(Duration::from_millis(1))),
        }
        Ok(())
    }

    /// Sends the packets that the transport has not accepted so far.
    fn flush(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            let sent = self.transport.send(&self.outbox)?;
            if sent == 0 {
                break;
            }
            self.outbox.drain(..sent);
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.outbox.len() <= self.config.outbox_max
    }
}

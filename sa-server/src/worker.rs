//! One thread, one queue of one transport, one responder.
//!
//! A worker takes what has arrived, answers the newest first and in place, and sends the answers.
//! While it keeps up that is one batch at a time. Under overload it drains the transport into a
//! bounded backlog, so that age can be told, and drops what its sender no longer waits for.
//!
//! [`Worker::turn`] never blocks and takes its time as an argument; [`Worker::run`] is the thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, Malformed, Packet, Transport, wait};

use crate::own_port::Way;
use crate::responder::{Outcome, Responder};

/// Packets answered at a time.
const BATCH_MAX: usize = 64;

/// Bounds of a [`Worker`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Most packets that wait to be answered.
    pub backlog_max: usize,
    /// What waited longer is dropped: shorter than the time after which clients ask again.
    pub stale_after: Duration,
    /// Most packets that wait to be sent. While they are that many nothing is answered.
    pub outbox_max: usize,
    /// How often an idle worker looks around: for new tables, and whether it is to stop.
    pub look_around: Duration,
}

impl Default for WorkerConfig {
    /// 2,048 packets either way, 100 ms, as IPoIB repeats its queries.
    fn default() -> Self {
        Self {
            backlog_max: 2048,
            stale_after: Duration::from_millis(100),
            outbox_max: 2048,
            look_around: Duration::from_millis(100),
        }
    }
}

/// A responder at a transport.
pub struct Worker<T> {
    transport: T,
    responder: Responder,
    config: WorkerConfig,
    /// Packets that have arrived, oldest first: `waiting` of them.
    backlog: Box<[Packet]>,
    /// When each of them did.
    arrived: Box<[Instant]>,
    waiting: usize,
    /// Packets that the transport would not take, in order.
    outbox: Vec<Packet>,
    /// Segments on their way from the responder to the transport.
    segments: Box<[Packet]>,
    /// What of the transport's malformed datagrams is in the statistics.
    malformed: Malformed,
    /// What it has to do with the responder's own port.
    way: Way,
}

/// What a turn leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is more to do at once.
    Again,
    /// Nothing, until something arrives or time passes.
    Wait,
}

impl<T: Transport> Worker<T> {
    /// A worker; all memory of its ordinary way is taken here.
    pub fn new(transport: T, responder: Responder, config: WorkerConfig) -> Self {
        let backlog_max = config.backlog_max.max(BATCH_MAX);
        Self {
            transport,
            responder,
            config,
            backlog: vec![Packet::default(); backlog_max].into_boxed_slice(),
            arrived: vec![Instant::now(); backlog_max].into_boxed_slice(),
            waiting: 0,
            outbox: Vec::with_capacity(config.outbox_max + BATCH_MAX),
            segments: vec![Packet::default(); BATCH_MAX].into_boxed_slice(),
            malformed: Malformed::default(),
            way: Way::Back,
        }
    }

    /// The same, with something to do with the responder's own port.
    pub fn with_way(self, way: Way) -> Self {
        Self { way, ..self }
    }

    /// The responder, for its counters.
    pub fn responder(&self) -> &Responder {
        &self.responder
    }

    /// The transport.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Goes on with another transport after the old one failed. What was to be sent by the old one
    /// is sent by the new.
    pub fn replace_transport(&mut self, transport: T) {
        self.transport = transport;
        self.malformed = Malformed::default();
    }

    /// Begins anew with another responder after the old one failed. What had arrived is lost.
    pub fn replace_responder(&mut self, responder: Responder) {
        self.responder = responder;
        self.waiting = 0;
        self.outbox.clear();
    }

    /// Receives, answers and sends what can be without waiting.
    pub fn turn(&mut self, clock: impl Fn() -> Instant) -> io::Result<Next> {
        self.flush()?;
        let now = clock();
        let more = self.receive(now)?;
        self.note_malformed();
        self.drop_stale(now);
        if self.waiting > 0 && self.has_room() {
            self.answer(now, &clock)?;
        }
        if self.responder.poll_timeout().is_some_and(|due| now >= due) {
            self.responder.handle_timeout(now);
        }
        let sent = self.send_segments(now)?;
        let blocked = !self.outbox.is_empty();
        let busy = (more || self.waiting > 0 || sent) && !blocked;
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
        let mut upkeep_due = Instant::now() + interval;
        while !stop.load(Relaxed) {
            if self.turn(Instant::now)? == Next::Again {
                continue;
            }
            self.wait()?;
            self.responder.refresh();
            if Instant::now() >= upkeep_due {
                upkeep(&mut self.transport)?;
                upkeep_due = Instant::now() + interval;
            }
        }
        Ok(())
    }

    /// Tells the others whether answers can leave by the port, if it is this worker's.
    fn set_open(&self, is_open: bool) {
        if let Way::Owner(port) = &self.way {
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
                            self.responder.hush();
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

    /// Sends what the transport did not take before.
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

    /// Takes what has arrived. Goes on while whole batches come, as far as there is room: what
    /// stays in the transport's queue has no age. Whether there may be more.
    fn receive(&mut self, now: Instant) -> io::Result<bool> {
        while self.waiting < self.backlog.len() {
            let room = (self.backlog.len() - self.waiting).min(BATCH_MAX);
            let batch = &mut self.backlog[self.waiting..self.waiting + room];
            let received = self.transport.receive(batch)?;
            self.arrived[self.waiting..self.waiting + received].fill(now);
            self.waiting += received;
            if received > 0 {
                self.responder.stats().batches.increment();
            }
            if received < room {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts datagrams that the transport passed over.
    fn note_malformed(&mut self) {
        let malformed = self.transport.malformed();
        if malformed != self.malformed {
            let stats = self.responder.stats();
            stats.malformed_length.add(malformed.length - self.malformed.length);
            stats.malformed_envelope.add(malformed.envelope - self.malformed.envelope);
            self.malformed = malformed;
        }
    }

    /// Drops the oldest requests if they have waited too long.
    fn drop_stale(&mut self, now: Instant) {
        let arrived = &self.arrived[..self.waiting];
        let is_stale = |at: &Instant| now.duration_since(*at) > self.config.stale_after;
        let stale = arrived.partition_point(is_stale);
        if stale == 0 {
            return;
        }
        for packet in &self.backlog[..stale] {
            self.responder.drop_stale(packet);
        }
        self.backlog[..self.waiting].rotate_left(stale);
        self.arrived[..self.waiting].rotate_left(stale);
        self.waiting -= stale;
    }

    /// Answers the newest batch and sends the answers.
    fn answer(&mut self, now: Instant, clock: &impl Fn() -> Instant) -> io::Result<()> {
        let start = self.waiting.saturating_sub(BATCH_MAX);
        let batch = &mut self.backlog[start..self.waiting];
        let arrived = self.arrived[start];
        self.waiting = start;

        // Answers move to the front, so that they go out by one call.
        let mut sends = 0u64;
        self.responder.handle_batch(batch, now, |i, outcome| {
            sends |= u64::from(outcome == Outcome::Send) << i;
        });
        let (mut answers, mut directly) = (0, 0);
        for i in 0..batch.len() {
            if sends >> i & 1 == 0 {
                continue;
            }
            if leaves_directly(&self.way, &mut self.responder, &batch[i]) {
                directly += 1;
                continue;
            }
            batch.swap(answers, i);
            answers += 1;
        }
        if let (Way::By(port), 1..) = (&self.way, directly) {
            port.ring();
            self.responder.stats().direct_answers.add(directly);
        }
        let answers = &batch[..answers];
        let mut sent = 0;
        while self.outbox.is_empty() && sent < answers.len() {
            match self.transport.send(&answers[sent..])? {
                0 => break,
                taken => sent += taken,
            }
        }
        self.outbox.extend_from_slice(&answers[sent..]);
        let latency = clock().duration_since(arrived);
        self.responder.stats().record_latency(latency, answers.len() as u64 + directly);
        Ok(())
    }

    /// Sends the next segments of transfers under way. Whether there may be more.
    fn send_segments(&mut self, now: Instant) -> io::Result<bool> {
        if !self.outbox.is_empty() {
            return Ok(false);
        }
        let mut filled = 0;
        if let Way::Owner(port) = &self.way {
            while filled < self.segments.len()
                && let Some(answer) = port.take()
            {
                self.segments[filled] = answer;
                filled += 1;
            }
        }
        let mut directly = 0;
        while filled < self.segments.len()
            && self.responder.poll_transmit(now, &mut self.segments[filled])
        {
            if leaves_directly(&self.way, &mut self.responder, &self.segments[filled]) {
                directly += 1;
            } else {
                filled += 1;
            }
        }
        if let (Way::By(port), 1..) = (&self.way, directly) {
            port.ring();
            self.responder.stats().direct_answers.add(directly);
        }
        let mut sent = 0;
        while sent < filled {
            match self.transport.send(&self.segments[sent..filled])? {
                0 => break,
                taken => sent += taken,
            }
        }
        self.outbox.extend_from_slice(&self.segments[sent..filled]);
        Ok(filled > 0 || directly > 0)
    }
}

/// Hands an answer to the worker of the responder's own port, if it may leave there.
#[inline]
fn leaves_directly(way: &Way, responder: &mut Responder, answer: &Packet) -> bool {
    match way {
        Way::By(port) if answer.address.direct => {
            let address = responder.readdress(answer);
            address.is_some_and(|address| port.send(Packet { mad: answer.mad, address }))
        }
        _ => false,
    }
}

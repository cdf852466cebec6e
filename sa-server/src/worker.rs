//! One thread, one queue of one transport, one responder.
//!
//! A worker takes what has arrived, answers it in place and sends the answers, one batch at a time.
//! If it does not keep up, it files what arrives in a [`Backlog`], which decides what is answered
//! next and what is dropped.
//!
//! [`Worker::turn`] never blocks and takes its time as an argument; [`Worker::run`] is the thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, Malformed, Packet, Transport, wait};
use ib_mad::wire::mad::Method;
use ib_mad::wire::sa::SaMad;

use crate::overload::{Backlog, BacklogConfig, Pace};
use crate::own_port::Way;
use crate::responder::{Outcome, Responder};
use crate::stats::Kind;

/// Packets answered at a time.
const BATCH_MAX: usize = 64;
/// How long a worker answers requests that are dear before it looks around.
const HEAVY_SLICE: Duration = Duration::from_micros(200);
/// Segments of answers under way that go out before others are answered that wait.
const SEGMENTS_WHILE_OTHERS_WAIT: usize = 16;

/// Bounds of a [`Worker`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Packets that wait to be answered.
    pub backlog: BacklogConfig,
    /// Most packets that wait to be sent. While they are that many nothing is answered.
    pub outbox_max: usize,
    /// How often a worker looks around: for new tables, what its transport has lost and, if it is
    /// idle, whether it is to stop.
    pub look_around: Duration,
    /// How long a worker without work keeps looking for some before it sleeps. It saves the
    /// next request the time of waking up and costs a CPU.
    pub busy_poll: Duration,
}

impl Default for WorkerConfig {
    /// 2,048 packets to be sent; the worker looks around ten times a second and sleeps at once.
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
    /// What of the transport's malformed datagrams is in the statistics.
    malformed: Malformed,
    /// The same of the packets that it lost.
    overflowed: u64,
    /// When the last turn began.
    now: Instant,
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
        self.overflowed = 0;
    }

    /// Begins anew with another responder after the old one failed. What was in work is lost.
    pub fn replace_responder(&mut self, responder: Responder) {
        self.responder = responder;
        self.outbox.clear();
    }

    /// Takes all that waits at a transport that was another process's before, and drops all but the
    /// last `keep` of it: who sent the rest has given up, or asked again.
    pub fn take_over(&mut self, keep: usize, now: Instant) -> io::Result<()> {
        // What comes in faster than it is dropped is not inherited.
        const ROUNDS_MAX: usize = 16_384;
        for _ in 0..ROUNDS_MAX {
            let count = self.receive()?;
            let Self { responder, backlog, batch, .. } = self;
            let mut lost = |packet: &Packet, reason| responder.lose(packet, reason);
            backlog.file(&batch[..count], now, &mut lost);
            backlog.keep_newest(keep, &mut lost);
            if count < batch.len() {
                break;
            }
        }
        self.pace.note_drained(now);
        Ok(())
    }

    /// Receives, answers and sends what can be without waiting.
    pub fn turn(&mut self, clock: impl Fn() -> Instant) -> io::Result<Next> {
        self.flush()?;
        let now = clock();
        self.now = now;
        let (count, more) = self.take_in(now, &clock)?;
        self.note_malformed();
        if count > 0 {
            self.answer(count, now, &clock)?;
        }
        let others_wait = more || !self.backlog.is_light_empty();
        let tables = self.answer_heavy(others_wait, &clock)?;
        if self.responder.poll_timeout().is_some_and(|due| now >= due) {
            self.responder.handle_timeout(now);
        }
        let sent = self.send_segments(now, others_wait)?;
        let blocked = !self.outbox.is_empty();
        // Who has sent looks again: what came meanwhile may already be with the transport.
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
        while !stop.load(Relaxed) {
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

    /// What is due now and then, whether there is work or not.
    fn look_around(&mut self, now: Instant) {
        self.responder.refresh();
        if self.pace.lifts_limit(now) {
            self.transport.limit_queue(usize::MAX);
        }
        self.note_overflow();
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

    /// Fills the batch with what is to be answered next. How many that are, and whether there may
    /// be more with the transport.
    fn take_in(&mut self, now: Instant, clock: &impl Fn() -> Instant) -> io::Result<(usize, bool)> {
        let has_room = self.has_room();
        let mut more = true;
        if has_room && self.backlog.is_light_empty() {
            let count = self.receive()?;
            more = count == self.batch.len();
            if !more {
                self.pace.note_drained(now);
            }
            let Self { responder, backlog, batch, arrived, .. } = self;
            let batch = &mut batch[..count];
            let mut lost = |packet: &Packet, reason| responder.lose(packet, reason);
            backlog.drop_stale(now, &mut lost);
            if !more || !self.pace.is_behind(now) {
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

    /// Files what has arrived, as far as there is time for it. Whether there may be more.
    fn drain(&mut self, now: Instant, clock: &impl Fn() -> Instant) -> io::Result<bool> {
        let allowance = self.pace.allowance(now, self.backlog.has_hog());
        let (mut read, mut begin, mut at) = (0, now, now);
        let mut more = true;
        while more
            && (read < allowance.packets || at.saturating_duration_since(begin) < allowance.spare)
        {
            let count = self.receive()?;
            more = count == self.batch.len();
            let Self { responder, backlog, batch, .. } = self;
            let mut lost = |packet: &Packet, reason| responder.lose(packet, reason);
            backlog.file(&batch[..count], now, &mut lost);
            read += count;
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

    fn receive(&mut self) -> io::Result<usize> {
        let count = self.transport.receive(&mut self.batch)?;
        self.pace.note_received(count);
        if count > 0 {
            self.responder.stats().batches.increment();
        }
        Ok(count)
    }

    /// Counts packets that were lost before they could be read.
    fn note_overflow(&mut self) {
        let overflowed = self.transport.overflowed();
        let stats = self.responder.stats();
        stats.socket_overflow.add(overflowed.saturating_sub(self.overflowed));
        self.overflowed = overflowed;
    }

    /// Counts datagrams that the transport passed over.
    fn note_malformed(&mut self) {
        let malformed = self.transport.malformed();
        if malformed != self.malformed {
            let stats = self.responder.stats();
            stats.malformed_length.add(malformed.length - self.malformed.length);
            stats.malformed_envelope.add(malformed.envelope - self.malformed.envelope);
            stats.malformed_stranger.add(malformed.stranger - self.malformed.stranger);
            self.malformed = malformed;
        }
    }

    /// Answers the first `count` packets of the batch and sends the answers.
    fn answer(
        &mut self,
        count: usize,
        now: Instant,
        clock: &impl Fn() -> Instant,
    ) -> io::Result<()> {
        self.responder.stats().requesters.sample(&self.batch[..count]);
        let mut sends = 0u64;
        self.responder.handle_batch(&mut self.batch[..count], now, |i, outcome| {
            sends |= u64::from(outcome == Outcome::Send) << i;
        });
        for (address, time) in self.responder.take_dear() {
            self.backlog.note_offence(&address, now, time);
        }
        let end = self.deliver(count, sends, clock)?;
        self.backlog.credit(end.saturating_duration_since(now));
        Ok(())
    }

    /// Answers requests that are dear, if there are such and it is time for them: one, or as many
    /// as there is time for. Whether there were.
    fn answer_heavy(
        &mut self,
        others_wait: bool,
        clock: &impl Fn() -> Instant,
    ) -> io::Result<bool> {
        if !self.backlog.has_heavy() || !self.has_room() {
            return Ok(false);
        }
        let start = clock();
        let (mut now, mut count, mut sends) = (start, 0, 0u64);
        while count < self.batch.len()
            && now.saturating_duration_since(start) < HEAVY_SLICE
            && let Some(dear) = self.backlog.take_heavy(now, others_wait, &mut self.batch[count])
        {
            self.arrived[count] = dear.arrived;
            self.responder.stats().requesters.sample(&self.batch[count..=count]);
            let outcome = self.responder.handle(&mut self.batch[count], now);
            for (address, time) in self.responder.take_dear() {
                if !dear.was_known {
                    self.backlog.note_offence(&address, now, time);
                }
            }
            sends |= u64::from(outcome == Outcome::Send) << count;
            let end = clock();
            self.backlog.charge(dear, end.saturating_duration_since(now));
            (now, count) = (end, count + 1);
        }
        if count > 0 {
            self.deliver(count, sends, clock)?;
        }
        Ok(count > 0)
    }

    /// Sends those of the first `count` packets of the batch that `sends` has a bit for. Returns the
    /// time.
    fn deliver(
        &mut self,
        count: usize,
        sends: u64,
        clock: &impl Fn() -> Instant,
    ) -> io::Result<Instant> {
        // Answers move to the front, so that they go out by one call.
        let batch = &mut self.batch[..count];
        let (mut answers, mut directly) = (0, 0);
        // Which of those that are sent, in order, answer GetTable or GetMulti.
        let mut tables = 0u64;
        let may_leave = matches!(self.way, Way::By(_));
        for i in 0..count {
            if sends >> i & 1 == 0 {
                continue;
            }
            let place = answers + directly;
            let method = SaMad::new(&batch[i].mad).header().method();
            let is_table = matches!(method, Method::GET_TABLE_RESP | Method::GET_MULTI_RESP);
            tables |= u64::from(is_table) << place;
            // As a rule all are answered, and none has to move.
            if place != i {
                self.arrived[place] = self.arrived[i];
            }
            if may_leave && leaves_directly(&self.way, &mut self.responder, &batch[i]) {
                directly += 1;
                continue;
            }
            if answers != i {
                batch.swap(answers, i);
            }
            answers += 1;
        }
        if let (Way::By(port), 1..) = (&self.way, directly) {
            port.ring();
            self.responder.stats().direct_answers.add(directly as u64);
        }
        let answers = &batch[..answers];
        let sent = send(&mut self.transport, &mut self.outbox, answers);
        let now = clock();
        // Those that came together are told of together.
        let (stats, mut rest) = (self.responder.stats(), tables);
        for group in self.arrived[..answers.len() + directly].chunk_by(PartialEq::eq) {
            let latency = now.saturating_duration_since(group[0]);
            let of_group = rest & !0 >> (BATCH_MAX - group.len());
            let tables = u64::from(of_group.count_ones());
            stats.record_latency(Kind::Get, latency, group.len() as u64 - tables);
            stats.record_latency(Kind::Table, latency, tables);
            rest = rest.checked_shr(group.len() as u32).unwrap_or(0);
        }
        sent.map(|()| now)
    }

    /// Sends the next segments of transfers under way. Whether there may be more.
    fn send_segments(&mut self, now: Instant, others_wait: bool) -> io::Result<bool> {
        if !self.outbox.is_empty() {
            return Ok(false);
        }
        let most = if others_wait { SEGMENTS_WHILE_OTHERS_WAIT } else { self.segments.len() };
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
        let most = most.max(filled);
        let first = filled;
        let end = first + self.responder.poll_transmit_batch(now, &mut self.segments[first..most]);
        for next in first..end {
            if leaves_directly(&self.way, &mut self.responder, &self.segments[next]) {
                directly += 1;
            } else {
                if directly > 0 {
                    self.segments.swap(filled, next);
                }
                filled += 1;
            }
        }
        if let (Way::By(port), 1..) = (&self.way, directly) {
            port.ring();
            self.responder.stats().direct_answers.add(directly);
        }
        send(&mut self.transport, &mut self.outbox, &self.segments[..filled])?;
        Ok(filled > 0 || directly > 0)
    }
}

/// Sends packets behind those in the outbox. What the transport does not take is kept there, also
/// if that is because it failed: its successor sends them.
fn send<T: Transport>(
    transport: &mut T,
    outbox: &mut Vec<Packet>,
    packets: &[Packet],
) -> io::Result<()> {
    let (mut sent, mut failed) = (0, Ok(()));
    while outbox.is_empty() && sent < packets.len() {
        match transport.send(&packets[sent..]) {
            Ok(0) => break,
            Ok(taken) => sent += taken,
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
    }
    outbox.extend_from_slice(&packets[sent..]);
    failed
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

//! Answers a batch and sends the answers by the worker's transport or by the responder's own port.

use std::io;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::DIRECT;
use ib_mad::transport::{Packet, Transport};
use ib_mad::wire::mad::Method;
use ib_mad::wire::sa::SaMad;

use super::{BATCH_MAX, Worker};
use crate::serve::own_port::Egress;
use crate::serve::responder::{Outcome, Responder};
use crate::stats::Kind;

/// How long a worker answers costly requests, or lets tables grow, before it checks other work.
const HEAVY_SLICE: Duration = Duration::from_micros(200);
/// Segments of answers under way that go out before others are answered that wait.
const SEGMENTS_WHILE_OTHERS_WAIT: usize = 16;

impl<T: Transport> Worker<T> {
    /// Answers the first `count` packets of the batch and sends the answers.
    pub(super) fn answer(
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
        for (address, time) in self.responder.take_costly() {
            self.backlog.note_offence(&address, now, time);
        }
        let end = self.deliver(count, sends, clock)?;
        self.backlog.credit(end.saturating_duration_since(now));
        Ok(())
    }

    /// Answers costly requests if due: one, or as many as time permits. Returns whether there were
    /// any.
    pub(super) fn answer_heavy(
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
            && let Some(costly) = self.backlog.take_heavy(now, others_wait, &mut self.batch[count])
        {
            self.arrived[count] = costly.arrived;
            self.responder.stats().requesters.sample(&self.batch[count..=count]);
            let outcome = self.responder.handle(&mut self.batch[count], now);
            for (address, time) in self.responder.take_costly() {
                if !costly.was_known {
                    self.backlog.note_offence(&address, now, time);
                }
            }
            sends |= u64::from(outcome == Outcome::Send) << count;
            let end = clock();
            self.backlog.charge(costly, end.saturating_duration_since(now));
            (now, count) = (end, count + 1);
        }
        if count > 0 {
            self.deliver(count, sends, clock)?;
        }
        Ok(count > 0)
    }

    /// Finds more of tables that are found while they are sent, if there is time. Returns whether
    /// there were any that needed it.
    pub(super) fn grow_tables(&mut self, others_wait: bool, clock: &impl Fn() -> Instant) -> bool {
        if !self.responder.has_growing() || !self.has_room() {
            return false;
        }
        let start = clock();
        let (mut now, mut has_grown) = (start, false);
        while now.saturating_duration_since(start) < HEAVY_SLICE
            && self.backlog.may_spend(others_wait)
            && self.responder.grow_table(now)
        {
            let end = clock();
            self.backlog.spend(others_wait, end.saturating_duration_since(now));
            (now, has_grown) = (end, true);
        }
        has_grown
    }

    /// Sends those of the first `count` packets of the batch that `sends` has a bit for. Returns
    /// the time.
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
        let may_leave = matches!(self.egress, Egress::By(_));
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
            if may_leave && leaves_directly(&self.egress, &mut self.responder, &batch[i]) {
                directly += 1;
                continue;
            }
            if answers != i {
                batch.swap(answers, i);
            }
            answers += 1;
        }
        if let (Egress::By(port), 1..) = (&self.egress, directly) {
            port.wake();
            self.responder.stats().direct_answers.add(directly as u64);
        }
        let answers = &batch[..answers];
        let sent = send(&mut self.transport, &mut self.outbox, answers);
        let now = clock();
        // Requests that arrived together are reported together.
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

    /// Sends the next segments of open transfers; returns whether there may be more.
    pub(super) fn send_segments(&mut self, now: Instant, others_wait: bool) -> io::Result<bool> {
        if !self.outbox.is_empty() {
            return Ok(false);
        }
        let most = if others_wait { SEGMENTS_WHILE_OTHERS_WAIT } else { self.segments.len() };
        let mut filled = 0;
        if let Egress::Owner(port) = &self.egress {
            while filled < self.segments.len()
                && let Some(answer) = port.take()
            {
                self.segments[filled] = answer;
                filled += 1;
            }
        }
        if let Some(spill) = &self.spill {
            filled += spill.take_answers(&mut self.segments[filled..]);
        }
        let mut directly = 0;
        let most = most.max(filled);
        let first = filled;
        let end = first + self.responder.poll_transmit_batch(now, &mut self.segments[first..most]);
        for next in first..end {
            if leaves_directly(&self.egress, &mut self.responder, &self.segments[next]) {
                directly += 1;
            } else {
                if directly > 0 {
                    self.segments.swap(filled, next);
                }
                filled += 1;
            }
        }
        if let (Egress::By(port), 1..) = (&self.egress, directly) {
            port.wake();
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

/// Passes an answer to the worker that sends from the responder's port, if it may leave there.
#[inline]
fn leaves_directly(egress: &Egress, responder: &mut Responder, answer: &Packet) -> bool {
    match egress {
        Egress::By(port) if answer.carrier.marks.contains(DIRECT) => {
            let address = responder.readdress(answer);
            address.is_some_and(|address| port.send(Packet::new(answer.mad, address)))
        }
        _ => false,
    }
}

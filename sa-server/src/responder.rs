//! One request in, its answer out, in the same buffer.
//!
//! A responder belongs to one worker. It decides what becomes of every packet and accounts for it;
//! it never touches a socket or a clock. The steps: is this a request for us, which attribute and
//! method (here); which records match (`query`); how do they travel, in one MAD or
//! by RMPP (`transfer`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::rmpp::SenderConfig;
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Guid, Qpn};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{attribute_offset, stride};
use ib_mad::wire::rmpp::{RmppType, VERSION};
use ib_mad::wire::sa::{DATA_LEN, HEADER_LEN, SaMad};
use sa_proto::prost::bytes::Bytes;

use crate::answer::{check_class, echo, make_answer, make_single_segment, subject, write_data};
use crate::assembly::{Assemblies, Progress};
use crate::cell::{Generation, Reader};
use crate::forward::{self, OpenWrites, Rejected, Submission, Verdict, WorkerEnd};
use crate::own_port;
use crate::pool::{Pool, PoolConfig};
use crate::proxy;
use crate::query::{self, Exhausted, Express, Found, Query, Refusal, Scratch};
use crate::redirect::Redirection;
use crate::stats::{DropReason, Kind, Stats, Subject};
use crate::tally::Tally;
use crate::transfer::{Key, Transfers};

/// A Get() that takes more steps than this is told of as dear: what a worker does in some 20 µs.
const STEPS_DEAR: u32 = 1000;
/// Nanoseconds that a step takes, about.
const STEP_NS: u64 = 20;
/// Requests told of as dear at a time; a batch has no more.
const DEAR_MAX: usize = 64;

/// Bounds and settings of a [`Responder`].
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// Memory for table answers.
    pub pool: PoolConfig,
    /// Most answers of several segments at a time.
    pub transfers_max: usize,
    /// Most requests of several segments at a time.
    pub assemblies_max: usize,
    /// Most data bytes of a request.
    pub request_max: usize,
    /// Windows, timeouts and retries of answers.
    pub sender: SenderConfig,
    /// Whom ClassPortInfo tells to ask instead.
    pub redirection: Redirection,
    /// GUID of the responder's own port, by which answers may leave.
    pub own_port: Option<Guid>,
    /// Sends every request back as its own answer, without a look at the tables: what everything
    /// around the answering costs.
    pub echo: bool,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            pool: PoolConfig::default(),
            transfers_max: 1024,
            assemblies_max: 256,
            request_max: 16 << 10,
            sender: SenderConfig::default(),
            redirection: Redirection::off(),
            own_port: None,
            echo: false,
        }
    }
}

/// What to do with a packet that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has become what is to be sent.
    Send,
    /// Nothing is to be sent for it, or not yet: see [`Responder::poll_transmit_batch`].
    Nothing,
}

/// Answers requests from the current tables.
pub struct Responder {
    tables: Reader,
    redirection: Redirection,
    own_port: Option<Guid>,
    echo: bool,
    pool: Pool,
    transfers: Transfers,
    assemblies: Assemblies,
    forward: Option<Forward>,
    /// Where records stand before they are the answer: the request is read as long as they are sought.
    scratch: Box<Scratch>,
    /// Who asked for what was dear, and how long that took.
    dear: Vec<(Address, Duration)>,
    stats: Arc<Stats>,
}

/// The way to the SM, and the requests that went it.
struct Forward {
    end: WorkerEnd,
    open: OpenWrites,
}

impl Forward {
    /// Keeps a request and passes it on; with `look_again` it only asks for what it would find.
    fn submit(
        &mut self,
        now: Instant,
        packet: &Packet,
        look_again: bool,
    ) -> Result<(), DropReason> {
        let id = self.open.begin(now, packet).map_err(|rejected| match rejected {
            Rejected::Repeated => DropReason::Duplicate,
            Rejected::TooMany => DropReason::TooManyWrites,
        })?;
        let request = (!look_again).then(|| forward::Request {
            mad: Bytes::copy_from_slice(&packet.mad),
            address: packet.address.clone(),
        });
        if self.end.submit(Submission { id, at: now, request }) {
            return Ok(());
        }
        self.open.end(id);
        Err(DropReason::TooManyWrites)
    }
}

impl Responder {
    /// A responder that answers from whatever `tables` holds at the time.
    pub fn new(tables: Reader, config: ResponderConfig, stats: Arc<Stats>) -> Self {
        Self {
            tables,
            redirection: config.redirection,
            own_port: config.own_port,
            echo: config.echo,
            pool: Pool::new(config.pool),
            transfers: Transfers::new(config.transfers_max, config.sender),
            assemblies: Assemblies::new(config.assemblies_max, config.request_max),
            forward: None,
            scratch: Box::new(Scratch::new()),
            dear: Vec::with_capacity(DEAR_MAX),
            stats,
        }
    }

    /// The same, with a way to the SM for what only the SM can decide. Without one, writes are
    /// dropped.
    pub fn with_exchange(mut self, end: WorkerEnd) -> Self {
        let open = OpenWrites::new(
            forward::OPEN_MAX,
            forward::PATIENCE,
            end.id_base(),
            end.first_serial(),
        );
        self.forward = Some(Forward { end, open });
        self
    }

    /// Becomes readable when the SM has decided something, or a report is to be sent.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.forward.as_ref().map(|forward| forward.end.descriptor())
    }

    /// Whether a query that finds nothing registered asks an SM before it is answered.
    pub fn asks_sm_when_empty(&self) -> bool {
        self.forward.as_ref().is_some_and(|forward| forward.end.is_reachable())
    }

    /// Takes note that the descriptor was readable; what it told of comes by `poll_transmit_batch`.
    pub fn hush(&self) {
        if let Some(forward) = &self.forward {
            forward.end.hush();
        }
    }

    /// What this responder counts.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Handles one packet.
    pub fn handle(&mut self, packet: &mut Packet, now: Instant) -> Outcome {
        let mut outcome = Outcome::Nothing;
        self.handle_batch(std::slice::from_mut(packet), now, |_, sent| outcome = sent);
        outcome
    }

    /// Handles a batch, all of it from the same tables. Tells what became of each packet.
    pub fn handle_batch(
        &mut self,
        batch: &mut [Packet],
        now: Instant,
        mut outcome: impl FnMut(usize, Outcome),
    ) {
        if self.echo {
            for (i, packet) in batch.iter_mut().enumerate() {
                outcome(i, echo(packet, &self.stats));
            }
            return;
        }
        let mut handler = self.handler(now);
        let mut first = 0;
        for batch in batch.chunks_mut(query::TOGETHER_MAX) {
            handler.handle_together(batch, |i, sent| outcome(first + i, sent));
            first += batch.len();
        }
        drop(handler);
        self.account(now);
    }

    /// Those whose Get() turned out to be dear since the last call, and how long it took.
    pub(crate) fn take_dear(&mut self) -> impl Iterator<Item = (Address, Duration)> {
        self.dear.drain(..)
    }

    /// How an answer is addressed if it leaves by the responder's own port; `None` if it has to
    /// leave as its request came.
    pub(crate) fn readdress(&mut self, answer: &Packet) -> Option<Address> {
        if !answer.address.direct {
            return None;
        }
        let tables = &self.tables.current()?.tables;
        own_port::readdress(tables, self.own_port?, answer)
    }

    fn handler(&mut self, now: Instant) -> BatchHandler<'_> {
        let Self {
            tables,
            redirection,
            pool,
            transfers,
            assemblies,
            forward,
            scratch,
            dear,
            stats,
            ..
        } = self;
        let generation: Option<&Generation> = tables.current().map(|current| &**current);
        let (forward, looks_again) = (forward.as_mut(), false);
        BatchHandler {
            generation,
            redirection,
            pool,
            transfers,
            assemblies,
            forward,
            looks_again,
            scratch,
            tally: Tally::new(stats),
            dear,
            stats,
            now,
        }
    }

    /// The next packet of a transfer under way; `false` if there is none to send now.
    pub fn poll_transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        self.poll_transmit_batch(now, std::slice::from_mut(packet)) > 0
    }

    /// Fills `packets` with the next ones of transfers, decided writes and reports, and tells how
    /// many; fewer than there is room for are all that there are to send now.
    pub fn poll_transmit_batch(&mut self, now: Instant, packets: &mut [Packet]) -> usize {
        let mut filled = 0;
        while let Some(packet) = packets.get_mut(filled)
            && (self.assemblies.poll_transmit(packet) || self.poll_decided(now, packet))
        {
            filled += 1;
        }
        let sent = self.transfers.poll_transmit(now, &mut packets[filled..], &mut self.pool);
        self.stats.segments_sent.add(sent.packets as u64);
        self.stats.segments_repeated.add(sent.again as u64);
        filled += sent.packets;
        if filled < packets.len() {
            self.account(now);
        }
        filled
    }

    /// The next answer to a request that the SM has decided, or else the next report.
    fn poll_decided(&mut self, now: Instant, packet: &mut Packet) -> bool {
        while let Some(forward) = &mut self.forward
            && let Some(answer) = forward.end.take_answer()
        {
            let Some(open) = forward.open.end(answer.id) else { continue };
            *packet = open.packet;
            let sends = match answer.verdict {
                Verdict::Reply(status, data) => {
                    self.reply(packet, status, data.as_deref());
                    true
                }
                Verdict::LookAgain => {
                    let mut handler = self.handler(now);
                    handler.looks_again = true;
                    handler.handle_request(packet, Data::Here(DATA_LEN)) == Outcome::Send
                }
                Verdict::Unheard => {
                    self.stats.drop_request(DropReason::WriteUnheard);
                    false
                }
            };
            if sends {
                let waited = now.saturating_duration_since(open.since);
                self.stats.record_latency(Kind::Write, waited, 1);
                self.account(now);
                return true;
            }
        }
        match self.forward.as_ref().and_then(|forward| forward.end.take_report()) {
            Some(report) => {
                *packet = report;
                self.stats.reports_sent.increment();
                true
            }
            None => false,
        }
    }

    /// Turns a write into the answer that the SM has decided on.
    fn reply(&self, packet: &mut Packet, status: Status, data: Option<&[u8]>) {
        let header = SaMad::new(&packet.mad);
        let (method, attribute) = (header.header().method(), header.header().attribute_id());
        self.stats.count_responses(Subject::of(attribute, method), status, 1);
        make_answer(packet, status);
        let mut mad = SaMad::new(&mut packet.mad);
        if let Some(data) = data {
            let (record, rest) = mad.data_mut().split_at_mut(data.len().min(DATA_LEN));
            record.copy_from_slice(&data[..record.len()]);
            rest.fill(0);
        }
        if status == Status::OK
            && let Some(family) = query::family(attribute)
            && family.is_record
        {
            mad.sa_mut().set_attribute_offset(attribute_offset(family.record_len));
        }
    }

    /// When `handle_timeout` is due. Changes after any other `&mut self` call.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let forward = self.forward.as_ref().and_then(|forward| forward.open.poll_timeout());
        [self.transfers.poll_timeout(), self.assemblies.poll_timeout(), forward]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets transfers whose time is up send again or give up. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now, &mut self.pool);
        self.assemblies.handle_timeout(now);
        if let Some(forward) = &mut self.forward {
            let reason = if forward.end.is_reachable() {
                DropReason::WriteTimedOut
            } else {
                DropReason::NoSm
            };
            for _ in 0..forward.open.handle_timeout(now) {
                self.stats.drop_request(reason);
            }
        }
        self.account(now);
    }

    /// Bytes of memory that table answers under way have.
    pub fn memory_lent(&self) -> usize {
        self.pool.lent()
    }

    /// Accounts for a packet that waited and will not be handled.
    pub fn lose(&mut self, packet: &Packet, reason: DropReason) {
        if SaMad::new(&packet.mad).rmpp().is_active() {
            // As good as lost on the way: transfers repeat what matters.
            self.stats.transfer_packets.increment();
        } else {
            let is_ours = check_class(packet).is_ok();
            self.stats.count_requests(if is_ours { subject(packet) } else { Subject::NONE }, 1);
            self.stats.drop_request(reason);
        }
    }

    /// Looks for new tables, so that an idle worker does not hold on to old ones.
    pub fn refresh(&mut self) {
        self.tables.current();
    }

    /// Settles the accounts of transfers that have ended.
    fn account(&mut self, now: Instant) {
        let stats = &*self.stats;
        for ended in self.transfers.take_ended() {
            if ended.is_complete {
                let took = now.saturating_duration_since(ended.begun);
                stats.record_latency(Kind::Table, took, 1);
                stats.count_responses(ended.subject, Status::OK, 1);
                stats.rmpp_out.complete.increment();
            } else {
                stats.drop_request(DropReason::TransferFailed);
                stats.rmpp_out.failed.increment();
            }
        }
        let incoming = self.assemblies.take_tally();
        stats.rmpp_in.begun.add(incoming.begun.into());
        stats.rmpp_in.complete.add(incoming.complete.into());
        stats.rmpp_in.failed.add(incoming.failed.into());
        for _ in 0..incoming.failed {
            stats.drop_request(DropReason::TransferFailed);
        }
        stats.rmpp_in.active.set(self.assemblies.open() as u64);
        stats.rmpp_out.active.set(self.transfers.len() as u64);
        let forwarded = self.forward.as_ref().map_or(0, |forward| forward.open.len());
        stats.set_in_flight(self.transfers.len() + self.assemblies.open() + forwarded);
    }
}

/// The data of a request.
#[derive(Clone, Copy)]
enum Data<'a> {
    /// What the packet holds, so many bytes of it.
    Here(usize),
    /// This; the packet holds the first of it.
    Whole(&'a [u8]),
}

/// A responder at work on one batch.
struct BatchHandler<'a> {
    generation: Option<&'a Generation>,
    redirection: &'a Redirection,
    pool: &'a mut Pool,
    transfers: &'a mut Transfers,
    assemblies: &'a mut Assemblies,
    forward: Option<&'a mut Forward>,
    /// Whether the SM has told that the registry here is as it was there.
    looks_again: bool,
    scratch: &'a mut Scratch,
    tally: Tally<'a>,
    dear: &'a mut Vec<(Address, Duration)>,
    stats: &'a Stats,
    now: Instant,
}

impl BatchHandler<'_> {
    /// Handles what can be looked at together: what is plain by the short way.
    fn handle_together(&mut self, batch: &mut [Packet], mut outcome: impl FnMut(usize, Outcome)) {
        // What is part of a transfer is never plain.
        if let [packet] = batch
            && SaMad::new(&packet.mad).rmpp().is_active()
        {
            return outcome(0, self.handle(packet));
        }
        let Some(generation) = self.generation else {
            return batch.iter_mut().enumerate().for_each(|(i, it)| outcome(i, self.handle(it)));
        };
        let mut plain = std::mem::take(&mut self.scratch.plain);
        let express = Express::new(&generation.tables, &self.stats.levels, &mut plain, batch);
        for (i, packet) in batch.iter_mut().enumerate() {
            let sent = match express.answer(i, packet) {
                Some(record_len) => self.finish(packet, record_len),
                None => self.handle(packet),
            };
            outcome(i, sent);
        }
        self.scratch.plain = plain;
    }

    /// Makes a Get() the answer to itself whose record stands in it already.
    #[inline]
    fn finish(&mut self, packet: &mut Packet, record_len: usize) -> Outcome {
        let subject = subject(packet);
        make_answer(packet, Status::OK);
        SaMad::new(&mut packet.mad).sa_mut().set_attribute_offset(attribute_offset(record_len));
        self.tally.request(subject);
        self.tally.respond(subject, Status::OK);
        Outcome::Send
    }

    #[inline]
    fn handle(&mut self, packet: &mut Packet) -> Outcome {
        if packet.address.local_qpn == Qpn::SMI {
            return self.handle_smp(packet);
        }
        if SaMad::new(&packet.mad).rmpp().is_active() {
            return self.handle_rmpp(packet);
        }
        if SaMad::new(&packet.mad).header().method() == Method::REPORT_RESP {
            return self.handle_report_answer(packet);
        }
        if let Err(reason) = check_class(packet) {
            return self.refuse(reason);
        }
        self.tally.request(subject(packet));
        self.handle_request(packet, Data::Here(DATA_LEN))
    }

    /// Counts what is no request of the class, or none that we could answer.
    #[cold]
    fn refuse(&self, reason: DropReason) -> Outcome {
        self.stats.count_requests(Subject::NONE, 1);
        self.stats.drop_request(reason);
        Outcome::Nothing
    }

    /// A packet for the SM, which clients take this port for.
    #[cold]
    fn handle_smp(&mut self, packet: &mut Packet) -> Outcome {
        let tables = self.generation.map(|generation| &*generation.tables);
        let end = self.forward.as_ref().map(|forward| &forward.end);
        match proxy::handle(packet, tables, end, self.stats) {
            true => Outcome::Send,
            false => Outcome::Nothing,
        }
    }

    /// An answer to a report of ours.
    #[cold]
    fn handle_report_answer(&mut self, packet: &Packet) -> Outcome {
        match &self.forward {
            Some(forward) if packet.address.undelivered == 0 => {
                self.stats.report_answers.increment();
                if !forward.end.give_report_answer(packet) {
                    self.stats.report_answers_lost.increment();
                }
            }
            _ => return self.refuse(DropReason::UnexpectedResponse),
        }
        Outcome::Nothing
    }

    /// A request that is whole.
    #[inline]
    fn handle_request(&mut self, packet: &mut Packet, data: Data<'_>) -> Outcome {
        match self.answer(packet, data) {
            Ok(outcome) => outcome,
            Err(reason) => {
                self.stats.drop_request(reason);
                Outcome::Nothing
            }
        }
    }

    /// A packet that is part of a transfer.
    #[cold]
    fn handle_rmpp(&mut self, packet: &mut Packet) -> Outcome {
        if let Err(reason) = check_class(packet) {
            return self.refuse(reason);
        }
        let mad = SaMad::new(&packet.mad);
        let is_control =
            matches!(mad.rmpp().rmpp_type(), RmppType::ACK | RmppType::STOP | RmppType::ABORT);
        let known = self.assemblies.contains(packet);
        let progress = if is_control && mad.rmpp().rmpp_version() == VERSION {
            self.stats.transfer_packets.increment();
            if self.transfers.handle_packet(self.now, packet, self.pool) || !known {
                return Outcome::Nothing;
            }
            self.assemblies.handle_packet(self.now, packet)
        } else if known {
            self.stats.transfer_packets.increment();
            self.assemblies.handle_packet(self.now, packet)
        } else {
            self.stats.count_requests(subject(packet), 1);
            self.assemblies.begin(self.now, packet)
        };
        let reason = match progress {
            Progress::Waiting => return Outcome::Nothing,
            Progress::Single(len) => {
                SaMad::new(&mut packet.mad).data_mut()[len..].fill(0);
                return self.handle_request(packet, Data::Here(len));
            }
            Progress::Whole(message) => {
                // The packet holds what fits: all that records other than MultiPathRecord look at.
                let len = message.len().min(packet.mad.len());
                packet.mad[..len].copy_from_slice(&message[..len]);
                packet.mad[len..].fill(0);
                let data = message.get(HEADER_LEN..).unwrap_or(&[]);
                return self.handle_request(packet, Data::Whole(data));
            }
            Progress::Refused => {
                self.stats.drop_request(DropReason::MalformedRmpp);
                return Outcome::Send;
            }
            Progress::Ignored => DropReason::MalformedRmpp,
            Progress::Full => DropReason::TooManyTransfers,
        };
        self.stats.drop_request(reason);
        Outcome::Nothing
    }

    /// Answers a whole request in its buffer, or begins a transfer.
    #[inline]
    fn answer(&mut self, packet: &mut Packet, data: Data<'_>) -> Result<Outcome, DropReason> {
        let generation = self.generation.ok_or(DropReason::NotReady)?;
        let tables = &*generation.tables;
        let mad = SaMad::new(&packet.mad);
        let (header, sa) = (mad.header(), mad.sa());
        let sm_key = sa.sm_key();
        if sm_key != 0 && sm_key != tables.subnet.sa_key {
            return Err(DropReason::WrongSmKey);
        }
        let (method, attribute) = (header.method(), header.attribute_id());
        let subject = Subject::of(attribute, method);
        let family = match query::family(attribute) {
            Some(family) if family.hears(method) => family,
            None if query::is_defined(method) => return Err(DropReason::UnsupportedAttribute),
            _ => return Err(DropReason::UnsupportedMethod),
        };
        if family.is_write(method) {
            return self.forward_write(packet);
        }
        let is_table = method == Method::GET_TABLE;
        let wants_many = is_table || method == Method::GET_MULTI;
        if wants_many {
            let key = Key::of(packet);
            if self.transfers.contains(&key) {
                return Err(DropReason::Duplicate);
            }
            // Before the search: it would be in vain.
            if self.transfers.has_share(&key, self.pool.share()) {
                return Err(DropReason::TooManyTransfers);
            }
        }

        let asked_by_rmpp = mad.rmpp().is_active();
        let resp_time = if is_table { 0 } else { mad.rmpp().resp_time() };
        let query = Query {
            tables,
            registry: &generation.registry,
            index: &generation.index,
            mask: sa.component_mask(),
            attribute_modifier: header.attribute_modifier(),
            record: mad.data(),
            data: match data {
                Data::Here(len) => &mad.data()[..len],
                Data::Whole(data) => data,
            },
            is_rmpp: asked_by_rmpp,
            slid: packet.address.lid,
            sgid: packet.address.grh.map(|grh| grh.remote_gid),
            trusted: sm_key != 0,
            redirection: self.redirection,
            levels: &self.stats.levels,
        };
        let mut found = Found::new(self.scratch, self.pool, family.record_len, !wants_many);
        let searched = family.find(method, &query, &mut found);
        let found = found.finish();
        if found.steps > STEPS_DEAR && !wants_many {
            self.note_dear(packet, found.steps);
        }
        if found.count == 0
            && found.exhausted.is_none()
            && searched.is_ok()
            && family.is_registry()
            && self.asks_sm(packet)?
        {
            return Ok(Outcome::Nothing);
        }
        let status = match (searched, found.exhausted) {
            (Err(Refusal::Unheard(reason)), _) => return Err(reason),
            (Err(Refusal::Status(status)), _) => status,
            (Ok(()), Some(Exhausted::NoMemory)) => return Err(DropReason::NoMemory),
            (Ok(()), Some(Exhausted::TooMany)) => Status::SA_NO_RESOURCES,
            (Ok(()), None) if wants_many || found.count == 1 => Status::OK,
            (Ok(()), None) if found.count == 0 => Status::SA_NO_RECORDS,
            (Ok(()), None) => Status::SA_TOO_MANY_RECORDS,
        };
        make_answer(packet, status);
        let mut mad = SaMad::new(&mut packet.mad);
        mad.header_mut().set_attribute_id(family.answered_as);
        if status != Status::OK {
            self.tally.respond(subject, status);
            // The request goes back with the status.
            if asked_by_rmpp {
                make_single_segment(packet, DATA_LEN, resp_time);
            }
            return Ok(Outcome::Send);
        }
        if family.is_record {
            let offset = if found.count == 0 { 0 } else { attribute_offset(family.record_len) };
            mad.sa_mut().set_attribute_offset(offset);
        }
        if let Some(records) = found.spilled {
            return self.begin_transfer(packet, records, subject);
        }
        let len = found.count * stride(family.record_len);
        write_data(mad.data_mut(), &self.scratch.records, len);
        if is_table || asked_by_rmpp {
            make_single_segment(packet, len, resp_time);
        }
        self.tally.respond(subject, status);
        Ok(Outcome::Send)
    }

    /// Takes note of a Get() that was dear.
    #[cold]
    fn note_dear(&mut self, packet: &Packet, steps: u32) {
        if self.dear.len() < DEAR_MAX {
            let time = Duration::from_nanos(STEP_NS * u64::from(steps));
            self.dear.push((packet.address.clone(), time));
        }
    }

    /// Passes a write on to the SM.
    #[cold]
    fn forward_write(&mut self, packet: &Packet) -> Result<Outcome, DropReason> {
        let forward = self.forward.as_mut().ok_or(DropReason::NoSm)?;
        forward.submit(self.now, packet, false)?;
        self.stats.forwarded.increment();
        Ok(Outcome::Nothing)
    }

    /// Whether a request that found nothing waits until the registry here is as it is at the SM:
    /// what it asks for may just have been registered by way of another responder.
    #[cold]
    fn asks_sm(&mut self, packet: &Packet) -> Result<bool, DropReason> {
        match &mut self.forward {
            // One that waits already, or finds no room to wait, must not hear a "no" meanwhile.
            Some(forward) if !self.looks_again && forward.end.is_reachable() => {
                forward.submit(self.now, packet, true).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Begins to send a table answer whose header stands in `packet`.
    #[cold]
    fn begin_transfer(
        &mut self,
        packet: &Packet,
        records: Vec<u8>,
        subject: Subject,
    ) -> Result<Outcome, DropReason> {
        let header = *packet.mad.first_chunk::<HEADER_LEN>().expect("56 bytes of 256");
        let address = packet.address.clone();
        let key = Key::of(packet);
        match self.transfers.begin(self.now, key, address, header, records, subject) {
            Ok(()) => {
                self.stats.rmpp_out.begun.increment();
                Ok(Outcome::Nothing)
            }
            Err(records) => {
                self.pool.give_back(records);
                Err(DropReason::TooManyTransfers)
            }
        }
    }
}

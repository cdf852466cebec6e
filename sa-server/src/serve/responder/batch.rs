//! A responder at work on one batch, with the same tables for all of it: decides what happens to
//! each packet, and which records answer a complete request.

use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Packet};
use ib_mad::types::Qpn;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{attribute_offset, stride};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad};

use super::arrivals::Arrivals;
use super::forward::Forward;
use super::{COSTLY_MAX, Outcome};
use crate::query::pool::Pool;
use crate::query::redirect::Redirection;
use crate::query::{self, Exhausted, Express, Found, Parts, Plain, Query, Refusal, Scratch};
use crate::serve::answer::{check_class, make_answer, make_single_segment, subject, write_data};
use crate::serve::assembly::Assemblies;
use crate::serve::proxy;
use crate::serve::transfer::{Key, Transfers};
use crate::stats::tally::Tally;
use crate::stats::{DropReason, Stats, Subject};
use crate::tables::cell::Generation;

/// A request that did not wait with the costly ones, and has more steps than this, is reported as
/// costly: about 20 µs of work.
const STEPS_COSTLY: u32 = 1000;
/// Nanoseconds that a step takes, about.
const STEP_NS: u64 = 20;

/// The data of a request.
#[derive(Clone, Copy)]
pub(super) enum Data<'a> {
    /// The record is in the packet, with this length in bytes.
    Here(usize),
    /// This message; the packet holds its first segment.
    Whole(&'a [u8]),
}

/// The components of a request, and its record.
#[derive(Clone, Copy)]
pub(super) struct Components<'a> {
    pub(super) mask: ComponentMask,
    pub(super) record: &'a [u8; DATA_LEN],
}

/// A responder at work on one batch.
pub(super) struct BatchHandler<'a> {
    pub(super) generation: Option<&'a Generation>,
    pub(super) arrivals: &'a Arrivals,
    /// The lane of its session.
    pub(super) lane: usize,
    /// Whether there are other sessions.
    pub(super) is_split: bool,
    pub(super) redirection: &'a Redirection,
    pub(super) pool: &'a mut Pool,
    pub(super) transfers: &'a mut Transfers,
    pub(super) assemblies: &'a mut Assemblies,
    pub(super) forward: Option<&'a mut Forward>,
    /// Whether the SM has confirmed that the local registry is current, or cannot.
    pub(super) is_requery: bool,
    /// Whether the local registry may lack changes that the SM can be asked for.
    pub(super) may_be_outdated: bool,
    pub(super) scratch: &'a mut Scratch,
    pub(super) plain: &'a mut Vec<Plain>,
    pub(super) tally: Tally<'a>,
    pub(super) costly: &'a mut Vec<(Address, Duration)>,
    pub(super) stats: &'a Stats,
    pub(super) now: Instant,
}

impl BatchHandler<'_> {
    /// Answers the plain requests of the batch by the fast path.
    pub(super) fn handle_together(
        &mut self,
        batch: &mut [Packet],
        mut outcome: impl FnMut(usize, Outcome),
    ) {
        // Packets of a transfer are never plain.
        if let [packet] = batch
            && SaMad::new(&packet.mad).rmpp().is_active()
        {
            return outcome(0, self.handle(packet));
        }
        // Lookups in a batch do not ask the SM.
        let Some(generation) = self.generation.filter(|_| !self.may_be_outdated) else {
            return batch.iter_mut().enumerate().for_each(|(i, it)| outcome(i, self.handle(it)));
        };
        let mut plain = std::mem::take(self.plain);
        let express = Express::new(&generation.tables, &self.stats.levels, &mut plain, batch);
        for (i, packet) in batch.iter_mut().enumerate() {
            let sent = match express.answer(i, packet) {
                Some(record_len) => self.finish(packet, record_len),
                None => self.handle(packet),
            };
            outcome(i, sent);
        }
        *self.plain = plain;
    }

    /// Completes the answer of a Get() whose record is already in its packet.
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

    /// Counts packets that are not requests of the class, or cannot be answered.
    #[cold]
    pub(super) fn refuse(&self, reason: DropReason) -> Outcome {
        self.stats.count_requests(Subject::NONE, 1);
        self.stats.drop_request(reason);
        Outcome::Nothing
    }

    /// Handles a packet that is addressed to the SM.
    #[cold]
    fn handle_smp(&mut self, packet: &mut Packet) -> Outcome {
        let tables = self.generation.map(|generation| &*generation.tables);
        let end = self.forward.as_ref().map(|forward| &forward.end);
        match proxy::handle(packet, tables, (end, self.lane), self.stats) {
            true => Outcome::Send,
            false => Outcome::Nothing,
        }
    }

    /// Handles the answer to a report.
    #[cold]
    fn handle_report_answer(&mut self, packet: &Packet) -> Outcome {
        match &self.forward {
            Some(forward) if packet.carrier.undelivered == 0 => {
                self.stats.report_answers.increment();
                if !forward.end.submit_report_answer(self.lane, packet) {
                    self.stats.report_answers_lost.increment();
                }
            }
            _ => return self.refuse(DropReason::UnexpectedResponse),
        }
        Outcome::Nothing
    }

    /// A request that is whole.
    #[inline]
    pub(super) fn handle_request(&mut self, packet: &mut Packet, data: Data<'_>) -> Outcome {
        match self.answer(packet, data) {
            Ok(outcome) => outcome,
            Err(reason) => {
                self.stats.drop_request(reason);
                Outcome::Nothing
            }
        }
    }

    /// Answers a whole request in its buffer, or begins a transfer.
    #[inline]
    fn answer(&mut self, packet: &mut Packet, data: Data<'_>) -> Result<Outcome, DropReason> {
        let generation = self.generation.ok_or(DropReason::NotReady)?;
        let tables = &*generation.tables;
        let mad = SaMad::new(&packet.mad);
        let (header, sa) = (mad.header(), mad.sa());
        let sm_key = sa.sm_key();
        // Any other SM_Key is a guess (IBA C15-0.1.5).
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
        let components = Components { mask: sa.component_mask(), record: mad.data() };
        let query = Query {
            data: match data {
                Data::Here(len) => &mad.data()[..len],
                Data::Whole(data) => data,
            },
            ..self.query_of(generation, packet, components)
        };
        if self.may_be_outdated && family.reads_registry(&query) && self.asks_sm(packet)? {
            return Ok(Outcome::Nothing);
        }
        let mut found = Found::new(self.scratch, self.pool, family.record_len, !wants_many);
        let searched = family.find(method, &query, &mut found);
        let found = found.finish();
        // Requests for tables wait with the costly ones, but not segments of one.
        let has_waited = wants_many && matches!(data, Data::Here(_));
        if found.steps > STEPS_COSTLY && !has_waited {
            self.note_costly(packet, found.steps);
        }
        let is_empty = found.count == 0 && found.exhausted.is_none() && searched.is_ok();
        // The SM could not read its registry when its session began.
        let is_unknown =
            is_empty && !generation.version.has_registry() && family.reads_registry(&query);
        if is_empty && !is_unknown && family.is_registry() && self.asks_sm(packet)? {
            return Ok(Outcome::Nothing);
        }
        if is_table
            && searched.is_ok()
            && found.exhausted == Some(Exhausted::TooMany)
            && let Some(parts) = Parts::of(attribute, query.mask, query.record)
            && let Some(outcome) = self.begin_growing(packet, parts, family, subject)?
        {
            return Ok(outcome);
        }
        let status = match (searched, found.exhausted) {
            _ if is_unknown => Status::SA_NO_RESOURCES,
            (Err(Refusal::Unheard(reason)), _) => return Err(reason),
            (Err(Refusal::Status(status)), _) => status,
            (Ok(()), Some(Exhausted::NoMemory)) => return Err(DropReason::NoMemory),
            (Ok(()), Some(Exhausted::TooMany)) => Status::SA_NO_RESOURCES,
            (Ok(()), None) if wants_many || found.count == 1 => Status::OK,
            (Ok(()), None) if found.count == 0 => Status::SA_NO_RECORDS,
            // A Get() that matches several records is an error (IBA C15-0.1.30).
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

    /// Records a costly request that did not wait with others.
    #[cold]
    fn note_costly(&mut self, packet: &Packet, steps: u32) {
        if self.costly.len() < COSTLY_MAX {
            let time = Duration::from_nanos(STEP_NS * u64::from(steps));
            self.costly.push((packet.address, time));
        }
    }
}

impl<'a> BatchHandler<'a> {
    /// The query of a request in `packet`, with these components.
    #[inline(always)]
    pub(super) fn query_of<'q>(
        &self,
        generation: &'q Generation,
        packet: &Packet,
        components: Components<'q>,
    ) -> Query<'q>
    where
        'a: 'q,
    {
        let mad = SaMad::new(&packet.mad);
        Query {
            tables: &generation.tables,
            registry: &generation.registry,
            index: &generation.index,
            mask: components.mask,
            attribute_modifier: mad.header().attribute_modifier(),
            record: components.record,
            data: components.record,
            is_rmpp: mad.rmpp().is_active(),
            slid: packet.address.lid,
            sgid: packet.address.grh.map(|grh| grh.remote_gid),
            trusted: mad.sa().sm_key() != 0,
            redirection: self.redirection,
            levels: &self.stats.levels,
        }
    }
}

//! Requests that only the SM can decide: forwards them and turns the SM's outcome into the answer.

use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::attribute_offset;
use ib_mad::wire::sa::{DATA_LEN, SaMad};

use super::batch::{BatchHandler, Data};
use super::{Outcome, Responder};
use crate::query;
use crate::serve::answer::make_answer;
use crate::sm::forward::Verdict;
use crate::stats::{DropReason, Kind, Subject};

impl BatchHandler<'_> {
    /// Passes a write on to the SM.
    #[cold]
    pub(super) fn forward_write(&mut self, packet: &Packet) -> Result<Outcome, DropReason> {
        let forward = self.forward.as_mut().ok_or(DropReason::NoSm)?;
        let current = self.generation.map_or(0, |generation| generation.registry.sequence);
        let seen = self.arrivals.seen(self.lane, current);
        forward.submit_write(self.now, self.lane, packet, seen)?;
        self.stats.forwarded.increment();
        Ok(Outcome::Nothing)
    }

    /// Whether a query waits until the local registry equals the SM's: it has no result, or that
    /// may be outdated, because the record may just have been written through another responder.
    #[cold]
    pub(super) fn asks_sm(&mut self, packet: &Packet) -> Result<bool, DropReason> {
        match &mut self.forward {
            // A request that already waits, or for which there is no slot, must not be answered
            // meanwhile.
            Some(forward) if !self.is_requery && forward.end.may_ask(self.lane) => {
                forward.submit_query(self.now, self.lane, packet)?;
                self.stats.reads_asked.increment();
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Responder {
    /// The next answer to a request that the SM has decided, or else the next report.
    pub(super) fn poll_decided(&mut self, now: Instant, packet: &mut Packet) -> bool {
        while let Some(forward) = &mut self.forward
            && let Some(answer) = forward.end.take_answer()
        {
            let Some(open) = forward.open.end(answer.id) else { continue };
            *packet = open.packet;
            let lane = self.lane_of(packet);
            let sends = match answer.verdict {
                // The requester belongs to another part of the fabric since, whose manager may
                // have begun without this write. It sends it again.
                Verdict::Reply(..) if lane != open.lane => {
                    self.stats.drop_request(DropReason::WriteUnheard);
                    false
                }
                Verdict::Reply(status, data) => {
                    self.reply(packet, status, data.as_deref());
                    true
                }
                Verdict::Requery => {
                    let mut handler = self.handler(now, Some(lane));
                    if lane == open.lane {
                        handler.is_requery = true;
                        handler.may_be_outdated = false;
                    }
                    handler.handle_request(packet, Data::Here(DATA_LEN)) == Outcome::Send
                }
                Verdict::NoReply => {
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
}

//! RMPP packets of transfers in progress, and the start of new transfers.

use ib_mad::transport::Packet;
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{attribute_offset, stride};
use ib_mad::wire::rmpp::{RmppType, VERSION};
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

use super::Outcome;
use super::batch::{BatchHandler, Components, Data};
use crate::query::{self, Family, Parts};
use crate::serve::answer::{check_class, make_answer, subject};
use crate::serve::assembly::Progress;
use crate::serve::transfer::{Grown, Growth, Key};
use crate::stats::{DropReason, Subject};

/// Steps of a search, by [`STEP_NS`](super::batch::STEP_NS) some 200 µs, and bytes of records, five
/// windows, for which a transfer grows at a time.
const GROWTH_STEPS: u32 = 10_000;
const GROWTH_LEN: usize = 64 << 10;
/// Steps that a part counts in addition to those of its search.
const PART_STEPS: u32 = 8;

impl BatchHandler<'_> {
    /// A packet that is part of a transfer.
    #[cold]
    pub(super) fn handle_rmpp(&mut self, packet: &mut Packet) -> Outcome {
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

    /// Starts to send a table that is found part by part; `None` if the first part cannot be found.
    #[cold]
    pub(super) fn begin_growing(
        &mut self,
        packet: &mut Packet,
        parts: Parts,
        family: &Family,
        subject: Subject,
    ) -> Result<Option<Outcome>, DropReason> {
        if !self.transfers.may_grow(&Key::of(packet)) {
            return Err(DropReason::TooManyTransfers);
        }
        let mut data = self.pool.take(1).map_err(|_| DropReason::NoMemory)?;
        let mut growth = Box::new(Growth { packet: packet.clone(), parts });
        let grown = self.find_parts(&mut growth, &mut data);
        if grown == Grown::Failed {
            self.pool.give_back(data);
            return Ok(None);
        }
        make_answer(packet, Status::OK);
        let mut mad = SaMad::new(&mut packet.mad);
        mad.header_mut().set_attribute_id(family.answered_as);
        mad.sa_mut().set_attribute_offset(attribute_offset(family.record_len));
        let header = *part::<0, HEADER_LEN, _>(&packet.mad);
        match self.transfers.begin_growing(self.now, (header, data), growth, grown, subject) {
            Ok(()) => {
                self.stats.rmpp_out.begun.increment();
                Ok(Some(Outcome::Nothing))
            }
            Err(data) => {
                self.pool.give_back(data);
                Err(DropReason::TooManyTransfers)
            }
        }
    }

    /// Finds more of the table of a transfer that grows: parts for some steps of a search, or until
    /// there are enough records to send for a while.
    #[cold]
    pub(super) fn grow(&mut self, slot: usize) {
        let Some((mut growth, mut data)) = self.transfers.take_growth(slot) else { return };
        let grown = self.find_parts(&mut growth, &mut data);
        self.transfers.grown(slot, data, (growth, grown), self.pool);
    }

    /// Appends records to `data`.
    fn find_parts(&mut self, growth: &mut Growth, data: &mut Vec<u8>) -> Grown {
        let Some(generation) = self.generation else { return Grown::Failed };
        let Growth { packet, parts } = growth;
        let attribute = SaMad::new(&packet.mad).header().attribute_id();
        let Some(family) = query::family(attribute) else { return Grown::Failed };
        let (mut steps, start) = (0, data.len());
        let len_max = GROWTH_LEN.min(self.pool.answer_max() / 4);
        while steps < GROWTH_STEPS && data.len() - start < len_max {
            let Some((mask, record)) = parts.next(&generation.tables) else {
                return Grown::All;
            };
            let query = self.query_of(generation, packet, Components { mask, record });
            let mut found = query::Found::new(self.scratch, self.pool, family.record_len, false);
            let searched = family.find(Method::GET_TABLE, &query, &mut found);
            let found = found.finish();
            if searched.is_err() || found.exhausted.is_some() {
                return Grown::Failed;
            }
            // A part costs something even if nothing is searched.
            steps += found.steps + PART_STEPS;
            let len = found.count * stride(family.record_len);
            while data.capacity() - data.len() < len {
                if self.pool.grow(data).is_err() {
                    found.spilled.into_iter().for_each(|records| self.pool.give_back(records));
                    return Grown::Failed;
                }
            }
            match found.spilled {
                Some(records) => {
                    data.extend_from_slice(&records);
                    self.pool.give_back(records);
                }
                None => data.extend_from_slice(&self.scratch.records[..len]),
            }
        }
        Grown::More
    }

    /// Starts to send a table answer whose header is in `packet`.
    #[cold]
    pub(super) fn begin_transfer(
        &mut self,
        packet: &Packet,
        records: Vec<u8>,
        subject: Subject,
    ) -> Result<Outcome, DropReason> {
        let header = *part::<0, HEADER_LEN, _>(&packet.mad);
        let origin = packet.origin();
        let key = Key::of(packet);
        match self.transfers.begin(self.now, key, origin, header, records, subject) {
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

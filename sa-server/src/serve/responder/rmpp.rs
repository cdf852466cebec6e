//! RMPP packets of transfers in progress, and the start of new transfers.

use ib_mad::transport::Packet;
use ib_mad::wire::field::part;
use ib_mad::wire::rmpp::{RmppType, VERSION};
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

use super::Outcome;
use super::batch::{BatchHandler, Data};
use crate::serve::answer::{check_class, subject};
use crate::serve::assembly::Progress;
use crate::serve::transfer::Key;
use crate::stats::{DropReason, Subject};

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

//! Receives tables: responses of several segments, reassembled by RMPP.
//!
//! A state machine: packets and times are passed in, packets to send and complete tables are
//! returned.

use std::time::Instant;

use ib_mad::rmpp::{Receiver, ReceiverConfig, Refusal, Transmit};
use ib_mad::transport::{Origin, Packet};
use ib_mad::wire::mad::MadHeader;
use ib_mad::wire::rmpp::RmppType;
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

/// Limit of transfers, including complete ones whose repeats are acknowledged.
const TRANSFERS_MAX: usize = 1024;

/// Tables being received; see the [module](self).
#[derive(Default)]
pub struct Tables {
    transfers: Vec<Transfer>,
    /// Packets to send.
    refused: Vec<(Origin, [u8; HEADER_LEN], Transmit)>,
    dropped: u64,
}

struct Transfer {
    tid: u64,
    from: Origin,
    receiver: Receiver,
}

/// Result of a packet of a transfer.
pub enum Progress {
    /// The table is not complete yet.
    Some,
    /// The complete table: headers, then data.
    Whole(Vec<u8>),
}

impl Tables {
    /// Handles a segment. A new transfer starts only if `is_expected`.
    pub fn handle(&mut self, now: Instant, packet: &Packet, is_expected: bool) -> Progress {
        let tid = MadHeader::new(&packet.mad[..]).expect("24 bytes of 256").tid();
        let is_its = |t: &Transfer| t.tid == tid && is_same(&t.from, &packet.origin());
        let at = match self.transfers.iter().position(is_its) {
            Some(at) => {
                self.transfers[at].receiver.handle_packet(now, &packet.mad);
                at
            }
            None if !is_expected => return Progress::Some,
            None => {
                self.transfers.retain(|transfer| !transfer.receiver.is_over());
                if self.transfers.len() == TRANSFERS_MAX {
                    self.make_room();
                }
                if self.transfers.len() == TRANSFERS_MAX {
                    self.dropped += 1;
                    return Progress::Some;
                }
                match Receiver::start(now, &packet.mad, ReceiverConfig::default()) {
                    Ok(receiver) => {
                        let from = packet.origin();
                        self.transfers.push(Transfer { tid, from, receiver });
                    }
                    Err(Refusal::Reply(transmit)) => {
                        let head = packet.mad.first_chunk().expect("56 bytes of 256");
                        let header = ib_mad::rmpp::reply_header(head);
                        self.refused.push((packet.origin(), header, transmit));
                        return Progress::Some;
                    }
                    Err(_) => return Progress::Some,
                }
                self.transfers.len() - 1
            }
        };
        match self.transfers[at].receiver.take_message() {
            Some(message) => Progress::Whole(message),
            None => Progress::Some,
        }
    }

    /// Writes the next packet to send, with its address; `false` if there is none.
    pub fn poll_transmit(&mut self, packet: &mut Packet) -> bool {
        if let Some((origin, header, transmit)) = self.refused.pop() {
            packet.set_origin(&origin);
            transmit.write(&header, &[], &mut packet.mad);
            return true;
        }
        for Transfer { from, receiver, .. } in &mut self.transfers {
            if let Some(transmit) = receiver.poll_transmit() {
                packet.set_origin(from);
                transmit.write(receiver.header(), &[], &mut packet.mad);
                return true;
            }
        }
        false
    }

    /// Handles timeouts.
    pub fn handle_timeout(&mut self, now: Instant) {
        for transfer in &mut self.transfers {
            transfer.receiver.handle_timeout(now);
        }
        self.transfers.retain(|transfer| !transfer.receiver.is_over());
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.transfers.iter().filter_map(|transfer| transfer.receiver.poll_timeout()).min()
    }

    /// Transfers dropped because the table was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Drops the transfer that has been complete for longest: its sender has the last ACK, or
    /// repeats in vain.
    fn make_room(&mut self) {
        let complete = self.transfers.iter_mut().position(|t| t.receiver.poll().is_some());
        if let Some(at) = complete {
            self.transfers.remove(at);
        }
    }
}

/// Whether two packets came from the same sender.
fn is_same(one: &Origin, other: &Origin) -> bool {
    let key = |end: &Origin| (end.carrier.peer, end.address.lid, end.address.qpn);
    key(one) == key(other)
}

/// Whether the packet is part of an RMPP transfer.
#[inline]
pub fn is_segment(packet: &Packet) -> bool {
    SaMad::new(&packet.mad).rmpp().is_active()
}

/// Whether a packet is an ACK.
pub fn is_acknowledgement(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    mad.rmpp().is_active() && mad.rmpp().rmpp_type() == RmppType::ACK
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::rmpp::{Sender, SenderConfig};
    use ib_mad::wire::MAD_LEN;
    use ib_mad::wire::mad::Method;
    use ib_mad::wire::sa::{ComponentMask, attribute};
    use std::time::Duration;

    #[test]
    fn a_table_is_put_together_and_acknowledged() {
        let now = Instant::now();
        let mut mad = [0; MAD_LEN];
        let nodes = attribute::NODE_RECORD;
        SaMad::new(&mut mad).write_request(Method::GET_TABLE_RESP, nodes, 5, ComponentMask::NONE);
        let header: [u8; HEADER_LEN] = *mad.first_chunk().unwrap();
        let data: Vec<u8> = (0..1000).map(|n| n as u8).collect();
        let config = SenderConfig {
            window_max: 64,
            response_timeout: Duration::from_secs(1),
            retries_max: 1,
            total_timeout: Duration::from_secs(40),
            double_sided: false,
        };
        let mut sender = Sender::new(now, data.len(), config).unwrap();
        let mut tables = Tables::default();
        let mut packet = Packet::default();
        packet.address.lid = ib_mad::types::Lid(7);
        let mut whole = None;
        while whole.is_none() {
            while let Some(transmit) = sender.poll_transmit(now) {
                transmit.write(&header, &data, &mut packet.mad);
                assert!(is_segment(&packet));
                if let Progress::Whole(message) = tables.handle(now, &packet, true) {
                    whole = Some(message);
                }
            }
            let mut reply = Packet::default();
            while tables.poll_transmit(&mut reply) {
                assert_eq!((reply.address.lid, reply.mad[3]), (packet.address.lid, 0x12));
                let rmpp = SaMad::new(&reply.mad);
                sender.handle_ack(now, rmpp.rmpp().segment(), rmpp.rmpp().new_window_last());
            }
        }
        assert_eq!(whole.unwrap()[HEADER_LEN..], data);
        let over = tables.poll_timeout().unwrap();
        tables.handle_timeout(over);
        assert!(tables.transfers.is_empty(), "it lingers, but not for ever");
    }

    #[test]
    fn unrequested_segments_start_no_transfer() {
        let mut tables = Tables::default();
        let mut packet = Packet::default();
        packet.mad[24..28].copy_from_slice(&[1, 1, 3, 0]);
        assert!(matches!(tables.handle(Instant::now(), &packet, false), Progress::Some));
        assert!(tables.transfers.is_empty());
    }
}

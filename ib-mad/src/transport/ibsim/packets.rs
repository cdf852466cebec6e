//! Sends and receives batches at the data socket, with the simulator's header before each packet.

use std::io;
use std::os::fd::BorrowedFd;

use super::super::mmsg::{self, Headers, Vectors};
use super::protocol::{self, PACKET_LEN, SimHeader, SimHeaderRepr};
use super::{BATCH_MAX, IbsimCounters};
use crate::transport::{Address, Carrier, Packet};
use crate::types::{Lid, PortNum};
use crate::wire::MAD_LEN;
use crate::wire::mad::MadHeader;

pub(super) const HEADER_LEN: usize = SimHeader::<()>::LEN;

pub(super) struct Buffers {
    pub(super) sim: Box<[[u8; HEADER_LEN]]>,
    pub(super) vectors: Vectors<2>,
    pub(super) headers: Headers,
}

/// Result of reading the socket.
pub(super) struct Received {
    /// Valid packets.
    pub(super) packets: usize,
    /// Whether nothing waited, valid or not.
    pub(super) is_empty: bool,
}

impl Buffers {
    /// Receives packets into `batch`, with addresses as seen from the port with `lid` and `lmc`.
    /// `has_planes`: whether the server names planes.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &mut [Packet],
        lid: Lid,
        lmc: u8,
        has_planes: bool,
        counters: &mut IbsimCounters,
    ) -> io::Result<Received> {
        let count = batch.len().min(BATCH_MAX);
        for (i, packet) in batch[..count].iter_mut().enumerate() {
            let vectors = &mut self.vectors.0[i];
            *vectors = [mmsg::vector_mut(&mut self.sim[i]), mmsg::vector_mut(&mut packet.mad)];
            let header = &mut self.headers.0[i].msg_hdr;
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len();
        }
        // SAFETY: every header points at its two vectors, and they at a header buffer of `self` and
        // at a MAD of the batch, all mutably borrowed beyond the call.
        let got = unsafe { mmsg::receive(socket, &mut self.headers.0[..count])? };
        let mut kept = 0;
        for i in 0..got {
            let header = &self.headers.0[i];
            let is_whole = header.msg_len as usize == PACKET_LEN
                && header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let Some((address, undelivered)) =
                is_whole.then(|| received_from(&self.sim[i], &batch[i].mad, lid, lmc)).flatten()
            else {
                counters.malformed += 1;
                continue;
            };
            counters.received += 1;
            counters.undelivered += u64::from(undelivered != 0);
            batch.swap(kept, i);
            batch[kept].address = address;
            let plane = if has_planes { SimHeader::of(&self.sim[i]).plane() } else { PortNum(0) };
            batch[kept].carrier = Carrier { undelivered, plane, ..Carrier::default() };
            kept += 1;
        }
        Ok(Received { packets: kept, is_empty: got == 0 })
    }

    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &[Packet],
        lid: Lid,
    ) -> io::Result<usize> {
        for (i, packet) in batch.iter().enumerate() {
            self.sim[i] = sent_to(packet, lid).to_bytes();
            let vectors = &mut self.vectors.0[i];
            *vectors = [mmsg::vector(&self.sim[i]), mmsg::vector(&packet.mad)];
            let header = &mut self.headers.0[i].msg_hdr;
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len();
        }
        // SAFETY: every header points at its two vectors, and they at a header buffer of `self` and
        // at a MAD of the batch, all borrowed beyond the call.
        unsafe { mmsg::send(socket, &mut self.headers.0[..batch.len()]) }
    }
}

/// The address of a packet received by the port with `lid` and `lmc`, and [`Carrier::undelivered`].
pub(super) fn received_from(
    sim: &[u8; HEADER_LEN],
    mad: &[u8; MAD_LEN],
    lid: Lid,
    lmc: u8,
) -> Option<(Address, u32)> {
    let sim = SimHeaderRepr::parse(&SimHeader::new(sim).ok()?).ok()?;
    let response = MadHeader::new(mad).ok()?.method().is_response();
    // A returned packet has the addresses it was sent with, unless it is the response to it that
    // could not be delivered here.
    let is_mine = sim.status != 0 && !(response && sim.dlid == lid);
    let (far, near) = if is_mine {
        ((sim.dlid, sim.dqp), (sim.slid, sim.sqp))
    } else {
        ((sim.slid, sim.sqp), (sim.dlid, sim.dqp))
    };
    let path_bits = if near.0 == Lid::PERMISSIVE { 0 } else { near.0.0 & ((1 << lmc) - 1) };
    let address = Address {
        lid: far.0,
        qpn: far.1,
        local_qpn: near.1,
        path_bits: path_bits as u8,
        ..Address::default()
    };
    Some((address, sim.status))
}

/// The header of a packet to send from the port with `lid`.
pub(super) fn sent_to(packet: &Packet, lid: Lid) -> SimHeaderRepr {
    let Packet { mad, address, carrier } = packet;
    let slid = match (address.lid, address.path_bits) {
        (Lid::PERMISSIVE, _) => Lid::PERMISSIVE,
        // The server fills in the base LID, which may have changed.
        (_, 0) => Lid::NONE,
        (_, path_bits) => Lid(lid.0 | u16::from(path_bits)),
    };
    SimHeaderRepr {
        dlid: address.lid,
        slid,
        dqp: address.qpn,
        sqp: address.local_qpn,
        status: 0,
        plane: carrier.plane,
        length: protocol::message_len(mad),
    }
}

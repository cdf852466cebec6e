//! A UD queue pair at a port of this host, to which clients are redirected: requests and responses
//! bypass the kernel.
//!
//! It has the Q_Key of subnet administration, so that every client's QP1 can send to it; setting
//! that Q_Key needs `CAP_NET_RAW`. Its partition is the default partition.
//!
//! Batches are read from a completion queue. A notification of the next arrival is requested from
//! the kernel only when that queue is empty, hence never under load.
//!
//! libibverbs is loaded at run time; without it only this transport is unavailable. Packets over
//! IPv4 (RoCE) are skipped: they have another header in place of the GRH.

mod queue_pair;

use std::io;
use std::os::fd::BorrowedFd;

use self::queue_pair::{Arrival, Destination, QueuePair};
use super::umad::{Tables, UmadError, UmadPort};
use super::{Address, Carrier, Grh, LocalPort, Malformed, Packet, Transport};
use crate::types::{Gid, Lid, PKey, Qpn, Sl};
use crate::wire::MAD_LEN;
use crate::wire::mad::MadHeader;

/// Bytes before each received MAD: a GRH, or unused.
const GRH_LEN: usize = 40;
/// Completions read at a time.
const BATCH_MAX: usize = 64;
/// Hop limit of responses, the same as the kernel's.
const HOP_LIMIT: u8 = 0xFF;

/// Why a queue pair cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs or one of its dependencies is missing.
    #[error(
        "cannot use verbs: {0}; install libibverbs1 and the provider of the HCA (ibverbs-providers)"
    )]
    NoLibrary(io::Error),
    /// libibverbs does not support the device.
    #[error("libibverbs has no device {0}: is its provider installed, and ib_uverbs loaded?")]
    NoDevice(String),
    /// The Q_Key is privileged.
    #[error(
        "the Q_Key of subnet administration needs CAP_NET_RAW: run as root, or give the program \
         that capability"
    )]
    QKey,
    /// The default partition is not in the port's table.
    #[error("{0} is not a member of the default partition")]
    NoPartition(String),
    /// A resource cannot be created.
    #[error("verbs: cannot create {what}: {source}")]
    Setup {
        /// The resource.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The port does not exist.
    #[error("{0}")]
    Port(#[from] UmadError),
    /// The system's error.
    #[error("verbs: {0}")]
    Io(#[from] io::Error),
}

/// Counters of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets whose length is not that of a MAD.
    pub odd_lengths: u64,
    /// Packets with another header than a GRH.
    pub odd_headers: u64,
    /// Packets that cannot be sent because their destination does not exist.
    pub refused: u64,
}

/// A queue pair at a port.
pub struct Verbs {
    pair: QueuePair,
    port: UmadPort,
    pkey: PKey,
    tables: Tables,
    /// Whether a notification of the next arrival has been requested.
    armed: bool,
    is_drained: bool,
    counters: VerbsCounters,
}

impl Verbs {
    /// Creates a queue pair in the port's default partition.
    pub fn open(port: &UmadPort) -> Result<Self, VerbsError> {
        let mut tables = Tables::default();
        tables.refresh(port)?;
        let index = tables.pkey_index(PKey::DEFAULT_FULL);
        let index = index.ok_or_else(|| VerbsError::NoPartition(port.to_string()))?;
        let pkey = tables.pkey(port, index);
        let pair = QueuePair::open(&port.device, port.num.0, index)?;
        let (port, counters) = (port.clone(), VerbsCounters::default());
        Ok(Self { pair, port, pkey, tables, armed: true, is_drained: false, counters })
    }

    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        Qpn(self.pair.number())
    }

    /// The port.
    pub fn port(&self) -> &UmadPort {
        &self.port
    }

    /// Reads the port's GIDs and LIDs again. Fails if the P_Keys have changed, since the queue pair
    /// must be created again then.
    pub fn refresh(&mut self) -> io::Result<LocalPort> {
        self.tables.refresh(&self.port)?;
        let index = self.tables.pkey_index(PKey::DEFAULT_FULL);
        if index.map(|index| self.tables.pkey(&self.port, index)) != Some(self.pkey) {
            return Err(io::Error::other("the port's P_Keys have changed"));
        }
        self.port.local()
    }

    /// Counters so far.
    pub fn counters(&self) -> VerbsCounters {
        self.counters
    }

    /// Reads arrived packets; returns whether the queue had any, valid or not.
    fn take(&mut self, batch: &mut [Packet], filled: &mut usize) -> io::Result<bool> {
        let mut arrivals = [Arrival::default(); BATCH_MAX];
        let room = (batch.len() - *filled).min(BATCH_MAX);
        let got = self.pair.poll_receives(&mut arrivals[..room])?;
        let mut slots = [0; BATCH_MAX];
        for (arrival, slot) in arrivals[..got].iter().zip(&mut slots) {
            *slot = arrival.slot;
            if arrival.len != GRH_LEN + MAD_LEN {
                self.counters.odd_lengths += 1;
                continue;
            }
            let (head, mad) = self.pair.slot(arrival.slot).split_at(GRH_LEN);
            let grh = match arrival.has_grh.then(|| read_grh(head)) {
                Some(None) => {
                    self.counters.odd_headers += 1;
                    continue;
                }
                grh => grh.flatten(),
            };
            let packet = &mut batch[*filled];
            packet.mad.copy_from_slice(mad);
            packet.carrier = Carrier::default();
            packet.address = Address {
                lid: Lid(arrival.lid),
                qpn: Qpn(arrival.qpn),
                local_qpn: Qpn(self.pair.number()),
                sl: Sl::from_low_bits(arrival.sl.into()),
                pkey: self.pkey,
                path_bits: arrival.path_bits,
                grh,
                ..Address::default()
            };
            *filled += 1;
            self.counters.received += 1;
        }
        self.pair.post_receives(&slots[..got]).map_err(io::Error::other)?;
        Ok(got > 0)
    }

    /// Sends a packet, or counts it as refused. `false` if it must wait until others have been
    /// sent.
    fn send_one(&mut self, Packet { mad, address, .. }: &Packet) -> io::Result<bool> {
        if !self.pair.has_room()? {
            return Ok(false);
        }
        let is_answer = MadHeader::new(mad).is_ok_and(|mad| mad.method().is_response());
        let grh = address.grh.map(|grh| {
            let index = self.tables.gid_index(&self.port, grh.local_gid);
            let hop_limit = if is_answer { HOP_LIMIT } else { grh.hop_limit };
            (grh.remote_gid, index, grh.flow_label, grh.traffic_class, hop_limit)
        });
        let Address { lid, sl, path_bits, qpn, .. } = *address;
        let destination = Destination { lid, sl: sl.get(), path_bits, grh };
        match self.pair.send(mad, destination, qpn.0) {
            Ok(sent) => {
                self.counters.sent += u64::from(sent);
                Ok(sent)
            }
            Err(error) if is_fatal(&error) => Err(error),
            Err(_) => {
                self.counters.refused += 1;
                Ok(true)
            }
        }
    }
}

/// The GRH in the 40 bytes before a MAD, as seen locally. `None` if they hold another header.
fn read_grh(bytes: &[u8]) -> Option<Grh> {
    const IP_VERSION: u32 = 6;
    let first = u32::from_be_bytes(*bytes.first_chunk()?);
    let gid = |at: usize| bytes[at..].first_chunk().map(|bytes| Gid(*bytes));
    (first >> 28 == IP_VERSION && bytes.len() == GRH_LEN).then_some(())?;
    Some(Grh {
        remote_gid: gid(8)?,
        local_gid: gid(24)?,
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0x000F_FFFF,
        hop_limit: bytes[7],
    })
}

impl Transport for Verbs {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut filled = 0;
        self.is_drained = false;
        if self.take(batch, &mut filled)? {
            return Ok(filled);
        }
        if self.armed && !self.pair.quench()? {
            self.is_drained = true;
            return Ok(0);
        }
        self.pair.arm_receives()?;
        self.armed = true;
        // Packets that arrived in between do not cause a notification.
        self.is_drained = !self.take(batch, &mut filled)?;
        Ok(filled)
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        for (taken, packet) in batch.iter().enumerate() {
            let mut sent = self.send_one(packet)?;
            if !sent {
                self.pair.arm_sends()?;
                // Sends completed in between do not cause a notification.
                sent = self.send_one(packet)?;
            }
            if !sent {
                return Ok(taken);
            }
        }
        Ok(batch.len())
    }

    fn local_lid(&self) -> Lid {
        self.tables.lid()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.descriptor())
    }

    fn malformed(&self) -> Malformed {
        let VerbsCounters { odd_lengths, odd_headers, .. } = self.counters;
        Malformed { length: odd_lengths, envelope: odd_headers, ..Malformed::default() }
    }
}

/// Whether an error concerns the queue pair rather than one destination.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), None | Some(libc::EIO | libc::ENODEV | libc::EBADF))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves IBA 8.3.
    #[test]
    fn a_grh_is_read_from_our_end_and_nothing_else_passes_for_one() {
        let mut bytes = [0; GRH_LEN];
        bytes[..4].copy_from_slice(&[0x6A, 0xB1, 0x23, 0x45]);
        bytes[7] = 9;
        bytes[8..24].fill(1);
        bytes[24..].fill(2);
        let grh = read_grh(&bytes).unwrap();
        assert_eq!((grh.remote_gid, grh.local_gid), (Gid([1; 16]), Gid([2; 16])));
        assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit), (0xAB, 0x12345, 9));
        bytes[0] = 0x45;
        assert_eq!(read_grh(&bytes), None, "IPv4");
        assert_eq!(read_grh(&bytes[..20]), None);
    }
}

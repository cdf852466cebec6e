//! A UD queue pair of our own at a port of this host, which clients are redirected to: requests and
//! answers pass without the kernel.
//!
//! It has the Q_Key of subnet administration, so that every client's QP1 can send to it; setting that
//! one needs `CAP_NET_RAW`. Its partition is the one it is made with, the default one.
//!
//! What is read in batches is a completion queue. Only when that is empty the kernel is asked to
//! tell of the next arrival, by the descriptor; under load it never is.
//!
//! libibverbs is looked for when the program begins; the rest of it works without. Packets by IPv4
//! (RoCE) are passed over: there the place of the GRH has another header.

mod queue_pair;

use std::io;
use std::os::fd::BorrowedFd;

use self::queue_pair::{Arrival, Destination, QueuePair};
use super::umad::{Tables, UmadError, UmadPort};
use super::{Address, Grh, LocalPort, Malformed, Packet, Transport};
use crate::types::{Gid, Lid, PKey, Qpn, Sl};
use crate::wire::MAD_LEN;
use crate::wire::mad::MadHeader;

/// Bytes before each MAD that arrives, with a GRH in them or nothing.
const GRH_LEN: usize = 40;
/// Packets taken from the completion queue at a time.
const BATCH_MAX: usize = 64;
/// Hop limit of answers, as the kernel's own have it.
const HOP_LIMIT: u8 = 0xFF;

/// Why there is no queue pair.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs, or what it needs, is not there.
    #[error(
        "cannot use verbs: {0}; install libibverbs1 and the provider of the HCA (ibverbs-providers)"
    )]
    NoLibrary(io::Error),
    /// libibverbs does not know the device.
    #[error("libibverbs has no device {0}: is its provider installed, and ib_uverbs loaded?")]
    NoDevice(String),
    /// The Q_Key is a privileged one.
    #[error(
        "the Q_Key of subnet administration needs CAP_NET_RAW: run as root, or give the program that capability"
    )]
    QKey,
    /// The default partition is not in the port's table.
    #[error("{0} is not a member of the default partition")]
    NoPartition(String),
    /// Something that it needs cannot be had.
    #[error("verbs: cannot make {what}: {source}")]
    Setup {
        /// What it is.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No such port.
    #[error("{0}")]
    Port(#[from] UmadError),
    /// The system's error.
    #[error("verbs: {0}")]
    Io(#[from] io::Error),
}

/// What has passed through a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Those whose length is not that of a MAD.
    pub odd_lengths: u64,
    /// Those with another header than a GRH.
    pub odd_headers: u64,
    /// Packets that cannot be sent: nobody is where they go.
    pub refused: u64,
}

/// A queue pair at a port.
pub struct Verbs {
    pair: QueuePair,
    port: UmadPort,
    pkey: PKey,
    tables: Tables,
    /// Whether the channel tells of the next arrival.
    armed: bool,
    counters: VerbsCounters,
}

impl Verbs {
    /// Makes one in the port's default partition.
    pub fn open(port: &UmadPort) -> Result<Self, VerbsError> {
        let mut tables = Tables::default();
        tables.refresh(port)?;
        let index = tables.pkey_index(PKey::DEFAULT_FULL);
        let index = index.ok_or_else(|| VerbsError::NoPartition(port.to_string()))?;
        let pkey = tables.pkey(port, index);
        let pair = QueuePair::open(&port.device, port.num.0, index)?;
        let (port, counters) = (port.clone(), VerbsCounters::default());
        Ok(Self { pair, port, pkey, tables, armed: true, counters })
    }

    /// The number by which clients name it.
    pub fn qpn(&self) -> Qpn {
        Qpn(self.pair.number())
    }

    /// The port.
    pub fn port(&self) -> &UmadPort {
        &self.port
    }

    /// Reads the port's GIDs again, and its LIDs. Fails when its partition is another by now, since
    /// the queue pair has to be made anew then.
    pub fn refresh(&mut self) -> io::Result<LocalPort> {
        self.tables.refresh(&self.port)?;
        let index = self.tables.pkey_index(PKey::DEFAULT_FULL);
        if index.map(|index| self.tables.pkey(&self.port, index)) != Some(self.pkey) {
            return Err(io::Error::other("the port's P_Keys have changed"));
        }
        self.port.local()
    }

    /// What has passed through so far.
    pub fn counters(&self) -> VerbsCounters {
        self.counters
    }

    /// Takes packets that have arrived; whether the queue had any, be they packets or not.
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

    /// Sends a packet, or counts it as refused. `false` if it has to wait until others are out.
    fn send_one(&mut self, Packet { mad, address }: &Packet) -> io::Result<bool> {
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

/// The GRH in what stands before a MAD, seen from our end. `None` if it is no GRH.
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
        if self.take(batch, &mut filled)? {
            return Ok(filled);
        }
        if self.armed && !self.pair.quench()? {
            return Ok(0);
        }
        self.pair.arm_receives()?;
        self.armed = true;
        // What came in between tells of nothing.
        self.take(batch, &mut filled)?;
        Ok(filled)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        for (taken, packet) in batch.iter().enumerate() {
            let mut sent = self.send_one(packet)?;
            if !sent {
                self.pair.arm_sends()?;
                // What was out in between tells of nothing.
                sent = self.send_one(packet)?;
            }
            if !sent {
                return Ok(taken);
            }
        }
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.descriptor())
    }

    fn malformed(&self) -> Malformed {
        let VerbsCounters { odd_lengths, odd_headers, .. } = self.counters;
        Malformed { length: odd_lengths, envelope: odd_headers, ..Malformed::default() }
    }
}

/// Whether an error is the queue pair's, rather than one destination's.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), None | Some(libc::EIO | libc::ENODEV | libc::EBADF))
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Captures of MADs as pcap files of InfiniBand packets, which tshark dissects.
//!
//! Records have LINKTYPE_ERF and contain an InfiniBand packet: older releases of tshark do not
//! support LINKTYPE_INFINIBAND in pcap files.
//!
//! Link, network and transport headers are synthesized from the address, since no MAD interface
//! shows the real ones; both CRCs are zero. A write that fails never fails the transport: packets
//! that cannot be written are counted. A slow disk delays it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Address, Grh, Malformed, Packet, Transport};
use crate::types::{Lid, Qpn};
use crate::wire::MAD_LEN;

/// LINKTYPE_ERF of the pcap registry: Endace extensible record format.
const LINKTYPE_ERF: u32 = 197;
/// ERF type of a record that holds a packet from its local route header on.
const ERF_TYPE_INFINIBAND: u8 = 21;
const ERF_FLAG_VARYING_LENGTH: u8 = 0x04;
/// Magic number of pcap files with nanosecond timestamps.
const MAGIC_NANOSECONDS: u32 = 0xA1B2_3C4D;
const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16 + ERF_HEADER_LEN;
const ERF_HEADER_LEN: usize = 16;
const LRH_LEN: usize = 8;
const GRH_LEN: usize = 40;
const BTH_LEN: usize = 12;
const DETH_LEN: usize = 8;
const ICRC_LEN: usize = 4;
const VCRC_LEN: usize = 2;
/// Maximum length of a packet, with all headers.
const PACKET_LEN_MAX: usize =
    LRH_LEN + GRH_LEN + BTH_LEN + DETH_LEN + MAD_LEN + ICRC_LEN + VCRC_LEN;

/// Size to which programs limit a capture file, bytes.
pub const FILE_LEN_MAX: u64 = 1 << 30;

/// Counters of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// MADs written.
    pub written: u64,
    /// MADs not written because the file has reached its size limit, or a write failed.
    pub left_out: u64,
}

/// A capture file, which several transports may share.
#[derive(Debug)]
pub struct CaptureFile(Mutex<PcapWriter<BufWriter<File>>>);

impl CaptureFile {
    /// A new file at `path`, of up to `bytes_max` bytes, in place of one that is there. Only this
    /// user may read it: MADs contain keys. A link is not followed. A named pipe must be of root or
    /// of this user, and have a reader; the capture ends at the first write that would block.
    pub fn create(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // Writes to a pipe must not block.
        options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let is_new = match fs::symlink_metadata(path) {
            // It may be another user's, who could read on.
            Ok(there) if there.is_file() => fs::remove_file(path).map(|()| true)?,
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        if is_new {
            options.create_new(true).mode(0o600);
        }
        let file = options.open(path)?;
        let there = file.metadata()?;
        // SAFETY: it reads no memory of this process and cannot fail.
        let own = unsafe { libc::geteuid() };
        if there.file_type().is_fifo() && ![0, own].contains(&there.uid()) {
            let text = "the pipe is another user's, who would read the keys in MADs";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let file = BufWriter::with_capacity(1 << 16, file);
        Ok(Self(Mutex::new(PcapWriter::new(file, bytes_max)?)))
    }

    /// Writes packets that passed the port with base LID `local`. Requests that came back unsent or
    /// unanswered were not received, and are left out.
    pub fn record(&self, direction: Direction, local: Lid, packets: &[Packet]) {
        if packets.is_empty() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut writer = self.writer();
        for packet in packets.iter().filter(|packet| packet.carrier.undelivered == 0) {
            writer.write(now, direction, local, packet);
        }
    }

    /// Writes the buffer to the file.
    pub fn flush(&self) {
        self.writer().flush();
    }

    /// Counters so far.
    pub fn counters(&self) -> CaptureCounters {
        self.writer().counters
    }

    /// Locks the writer, also after a panic of another thread.
    fn writer(&self) -> MutexGuard<'_, PcapWriter<BufWriter<File>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transport that writes its traffic of both directions to a pcap file, if it has one.
pub struct Capture<T> {
    inner: T,
    file: Option<Arc<CaptureFile>>,
    is_flushed: bool,
}

impl<T: Transport> Capture<T> {
    /// Captures the traffic of `inner` to `file`; without one it costs a comparison per batch.
    pub fn new(inner: T, file: Option<Arc<CaptureFile>>) -> Self {
        Self { inner, file, is_flushed: true }
    }

    /// Captures the traffic of `inner` to a new file at `path`, up to `bytes_max` bytes.
    pub fn create(inner: T, path: &Path, bytes_max: u64) -> io::Result<Self> {
        Ok(Self::new(inner, Some(Arc::new(CaptureFile::create(path, bytes_max)?))))
    }

    /// Counters of the file so far.
    pub fn counters(&self) -> CaptureCounters {
        self.file.as_ref().map_or_else(CaptureCounters::default, |file| file.counters())
    }

    /// The captured transport.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: Transport> Transport for Capture<T> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let received = self.inner.receive(batch)?;
        if let Some(file) = &self.file {
            if received > 0 {
                file.record(Direction::Received, self.inner.local_lid(), &batch[..received]);
            } else if !self.is_flushed {
                // Idle: readers of the file see the packets so far.
                file.flush();
            }
            self.is_flushed = received == 0;
        }
        Ok(received)
    }

    fn is_drained(&self) -> bool {
        self.inner.is_drained()
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let sent = self.inner.send(batch)?;
        if let Some(file) = &self.file {
            file.record(Direction::Sent, self.inner.local_lid(), &batch[..sent]);
            self.is_flushed = false;
        }
        Ok(sent)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn limit_queue(&mut self, packets: usize) {
        self.inner.limit_queue(packets);
    }

    fn overflowed(&mut self) -> u64 {
        self.inner.overflowed()
    }

    fn local_lid(&self) -> Lid {
        self.inner.local_lid()
    }

    fn malformed(&self) -> Malformed {
        self.inner.malformed()
    }
}

/// Direction of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Received,
    /// Sent.
    Sent,
}

/// Writes MADs in pcap format.
#[derive(Debug)]
pub struct PcapWriter<W> {
    output: W,
    bytes_left: u64,
    psn: u32,
    counters: CaptureCounters,
}

impl<W: Write> PcapWriter<W> {
    /// Starts a file of at most `bytes_max` bytes.
    pub fn new(mut output: W, bytes_max: u64) -> io::Result<Self> {
        let mut header = [0; FILE_HEADER_LEN];
        header[0..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&((ERF_HEADER_LEN + PACKET_LEN_MAX) as u32).to_le_bytes());
        header[20..24].copy_from_slice(&LINKTYPE_ERF.to_le_bytes());
        output.write_all(&header)?;
        let bytes_left = bytes_max.saturating_sub(FILE_HEADER_LEN as u64);
        Ok(Self { output, bytes_left, psn: 0, counters: CaptureCounters::default() })
    }

    /// Writes one MAD with `time` since the epoch, or counts it as omitted.
    pub fn write(&mut self, time: Duration, direction: Direction, local: Lid, packet: &Packet) {
        let mut bytes = [0; RECORD_HEADER_LEN + PACKET_LEN_MAX];
        let (header, body) = bytes.split_at_mut(RECORD_HEADER_LEN);
        let len = compose(body, direction, local, self.psn, packet);
        let captured = ((ERF_HEADER_LEN + len) as u32).to_le_bytes();
        let seconds = time.as_secs() as u32;
        header[0..4].copy_from_slice(&seconds.to_le_bytes());
        header[4..8].copy_from_slice(&time.subsec_nanos().to_le_bytes());
        header[8..12].copy_from_slice(&captured);
        header[12..16].copy_from_slice(&captured);
        let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
        header[16..20].copy_from_slice(&(fraction as u32).to_le_bytes());
        header[20..24].copy_from_slice(&seconds.to_le_bytes());
        header[24..26].copy_from_slice(&[ERF_TYPE_INFINIBAND, ERF_FLAG_VARYING_LENGTH]);
        header[26..28].copy_from_slice(&((ERF_HEADER_LEN + len) as u16).to_be_bytes());
        header[30..32].copy_from_slice(&(len as u16).to_be_bytes());
        let record = &bytes[..RECORD_HEADER_LEN + len];
        let bytes_left = self.bytes_left.checked_sub(record.len() as u64);
        match bytes_left.map(|left| (left, self.output.write_all(record))) {
            Some((left, Ok(()))) => {
                self.bytes_left = left;
                self.psn = (self.psn + 1) & 0x00FF_FFFF;
                self.counters.written += 1;
            }
            // After a failure the file may end with a partial record: write no more.
            _ => {
                self.bytes_left = 0;
                self.counters.left_out += 1;
            }
        }
    }

    fn flush(&mut self) {
        if self.output.flush().is_err() {
            self.bytes_left = 0;
        }
    }
}

/// Writes the packet's bytes; returns their number.
fn compose(bytes: &mut [u8], direction: Direction, local: Lid, psn: u32, packet: &Packet) -> usize {
    let Address { lid, qpn, local_qpn, sl, pkey, path_bits, grh, .. } = packet.address;
    let local = match lid {
        Lid::PERMISSIVE => lid,
        _ => Lid(local.0 | u16::from(path_bits)),
    };
    let (slid, dlid, sqp, dqp) = match direction {
        Direction::Received => (lid, local, qpn, local_qpn),
        Direction::Sent => (local, lid, local_qpn, qpn),
    };
    let transport_len = BTH_LEN + DETH_LEN + MAD_LEN + ICRC_LEN;
    let grh_len = if grh.is_some() { GRH_LEN } else { 0 };
    let words = ((LRH_LEN + grh_len + transport_len) / 4) as u16;

    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    const NEXT_IS_GRH: u8 = 3;
    const NEXT_IS_BTH: u8 = 2;
    let vl = if dqp == Qpn::SMI { 15 } else { 0 };
    put(&[vl << 4, sl.get() << 4 | if grh.is_some() { NEXT_IS_GRH } else { NEXT_IS_BTH }]);
    put(&dlid.0.to_be_bytes());
    put(&words.to_be_bytes());
    put(&slid.0.to_be_bytes());
    if let Some(Grh { remote_gid, local_gid, traffic_class, flow_label, hop_limit }) = grh {
        const IP_VERSION: u32 = 6;
        const NEXT_HEADER_IBA: u8 = 0x1B;
        let first = IP_VERSION << 28 | u32::from(traffic_class) << 20 | flow_label & 0x000F_FFFF;
        put(&first.to_be_bytes());
        put(&(transport_len as u16).to_be_bytes());
        put(&[NEXT_HEADER_IBA, hop_limit]);
        let (sgid, dgid) = match direction {
            Direction::Received => (remote_gid, local_gid),
            Direction::Sent => (local_gid, remote_gid),
        };
        put(&sgid.0);
        put(&dgid.0);
    }
    const OPCODE_UD_SEND_ONLY: u8 = 0x64;
    put(&[OPCODE_UD_SEND_ONLY, 0]);
    put(&pkey.0.to_be_bytes());
    put(&dqp.0.to_be_bytes());
    put(&psn.to_be_bytes());
    put(&if dqp == Qpn::SMI { 0 } else { Qpn::GSI_QKEY }.to_be_bytes());
    put(&sqp.0.to_be_bytes());
    put(&packet.mad);
    put(&[0; ICRC_LEN + VCRC_LEN]);
    at
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::transport::memory::{Faults, Network};
    use crate::types::{Gid, Sl};

    const RECORD_LEN: usize = RECORD_HEADER_LEN + PACKET_LEN_MAX - GRH_LEN;

    #[test]
    fn headers_are_those_of_the_specification() {
        let address = Address {
            lid: Lid(0x0102),
            qpn: Qpn(0x0A0B0C),
            sl: Sl::from_low_bits(5),
            path_bits: 1,
            grh: Some(Grh {
                remote_gid: Gid([1; 16]),
                local_gid: Gid([2; 16]),
                traffic_class: 0xAB,
                flow_label: 0x12345,
                hop_limit: 9,
            }),
            ..Address::default()
        };
        let packet = Packet::new([0xEE; MAD_LEN], address);
        let mut bytes = [0; PACKET_LEN_MAX];
        let len = compose(&mut bytes, Direction::Received, Lid(0x0304), 7, &packet);
        assert_eq!(len, PACKET_LEN_MAX);
        assert_eq!(bytes[0..8], [0, 0x53, 0x03, 0x05, 0, 82, 0x01, 0x02]);
        assert_eq!(bytes[8..16], [0x6A, 0xB1, 0x23, 0x45, 0x01, 0x18, 0x1B, 9]);
        assert_eq!((&bytes[16..32], &bytes[32..48]), (&[1; 16][..], &[2; 16][..]));
        assert_eq!(bytes[48..60], [0x64, 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(bytes[60..68], [0x80, 0x01, 0, 0, 0, 0x0A, 0x0B, 0x0C]);
        assert_eq!(bytes[68..324], [0xEE; MAD_LEN]);
    }

    #[test]
    fn both_directions_are_written_and_a_full_file_is_left_alone() {
        let path = std::env::temp_dir().join(format!("ib-mad-capture-{}", std::process::id()));
        let network = Network::new(1, Faults::NONE);
        let (a, mut b) = (network.endpoint(Lid(1), 0), network.endpoint(Lid(2), 0));
        let bytes_max = FILE_HEADER_LEN + 2 * RECORD_LEN + 1;
        let mut a = Capture::create(a, &path, bytes_max as u64).unwrap();
        let mut batch = [Packet::default()];
        batch[0].address.lid = Lid(2);
        a.send(&batch).unwrap();
        assert_eq!(b.receive(&mut batch).unwrap(), 1);
        b.send(&batch).unwrap();
        assert_eq!(a.receive(&mut batch).unwrap(), 1);
        a.send(&batch).unwrap();
        assert_eq!(a.counters(), CaptureCounters { written: 2, left_out: 1 });
        // The file of an idle transport is complete.
        assert_eq!(a.receive(&mut batch).unwrap(), 0);
        let file = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.len(), FILE_HEADER_LEN + 2 * RECORD_LEN);
        let lrh = |record: usize| {
            let at = FILE_HEADER_LEN + record * RECORD_LEN + RECORD_HEADER_LEN;
            (file[at + 3], file[at + 7])
        };
        assert_eq!((lrh(0), lrh(1)), ((2, 1), (1, 2)), "(DLID, SLID)");
    }

    /// They hold keys. What came back to its sender did not arrive.
    #[test]
    fn transports_share_a_file_that_only_its_owner_reads() {
        let path = std::env::temp_dir().join(format!("ib-mad-shared-{}", std::process::id()));
        std::fs::write(&path, "an earlier capture").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let file = Arc::new(CaptureFile::create(&path, u64::MAX).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        let network = Network::new(1, Faults::NONE);
        let end = |lid| Capture::new(network.endpoint(Lid(lid), 0), Some(Arc::clone(&file)));
        let (mut a, mut b) = (end(1), end(2));
        let mut batch = [Packet::default()];
        batch[0].address.lid = Lid(2);
        a.send(&batch).unwrap();
        assert_eq!(b.receive(&mut batch).unwrap(), 1);
        batch[0].carrier.undelivered = 110;
        file.record(Direction::Received, Lid(1), &batch);
        assert_eq!(b.receive(&mut batch).unwrap(), 0);
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((mode & 0o777, len as usize), (0o600, FILE_HEADER_LEN + 2 * RECORD_LEN));
        assert_eq!(file.counters(), CaptureCounters { written: 2, left_out: 0 });
    }

    /// Regression: a link that another user had made led the capture to any file of root.
    #[test]
    fn a_link_is_not_followed_and_a_file_of_others_not_written_to() {
        let name =
            |what: &str| std::env::temp_dir().join(format!("ib-mad-{what}-{}", std::process::id()));
        let (precious, link) = (name("precious"), name("link"));
        std::fs::write(&precious, "precious").unwrap();
        symlink(&precious, &link).unwrap();
        let refused = CaptureFile::create(&link, u64::MAX);
        let theirs = File::open(&precious).unwrap();
        CaptureFile::create(&precious, u64::MAX).unwrap().flush();
        let text = io::read_to_string(theirs).unwrap();
        std::fs::remove_file(&precious).and_then(|()| std::fs::remove_file(&link)).unwrap();
        assert_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(libc::ELOOP));
        assert_eq!(text, "precious", "another file has its name");
    }

    #[test]
    fn a_transport_without_a_file_passes_its_packets() {
        let network = Network::new(1, Faults::NONE);
        let mut a = Capture::new(network.endpoint(Lid(1), 0), None);
        let mut b = Capture::new(network.endpoint(Lid(2), 0), None);
        let mut batch = [Packet::default()];
        batch[0].address.lid = Lid(2);
        assert_eq!((a.send(&batch).unwrap(), b.receive(&mut batch).unwrap()), (1, 1));
        assert_eq!((a.counters(), b.local_lid()), (CaptureCounters::default(), Lid(2)));
    }

    #[test]
    fn after_a_failed_write_nothing_follows_the_torn_record() {
        struct FailsOnce(Vec<u8>, bool);
        impl Write for FailsOnce {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if bytes.len() > FILE_HEADER_LEN && !self.1 {
                    self.1 = true;
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.0.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = PcapWriter::new(FailsOnce(Vec::new(), false), u64::MAX).unwrap();
        for _ in 0..3 {
            writer.write(Duration::ZERO, Direction::Sent, Lid(1), &Packet::default());
        }
        assert_eq!(writer.counters, CaptureCounters { written: 0, left_out: 3 });
        assert_eq!(writer.output.0.len(), FILE_HEADER_LEN);
    }
}

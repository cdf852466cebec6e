//! A port of this host, by the kernel's own interface: a file `/dev/infiniband/umadN` that MADs are
//! read from and written to, and what sysfs tells of the port.
//!
//! What to know about it:
//!
//! - A file takes methods of a class for itself ([`AgentSpec`]); a second one that wants one of
//!   them is refused. While no file has them, the kernel answers Get and Set with status 0x000c,
//!   which clients take for final. So files are handed from process to process ([`Umad::adopt`]).
//! - The upper half of a request's TransactionID is overwritten when it is sent. Match answers by
//!   the low 32 bits. That of an answer is left alone.
//! - An answer to a request of our own is given to us only while the kernel waits for it:
//!   [`UmadOptions::answer_timeout`]. A request that gets none by then comes back with
//!   [`Address::undelivered`](super::Address::undelivered) set and no more than its header.
//! - The queue of a file that nobody reads holds 200,000 MADs, the oldest: read until nothing is
//!   left. There is no back-pressure in sending.
//! - RMPP is ours: every segment is a packet of its own.
//!
//! What is not here: the header ([`Header`]), the calls (`abi`), sysfs ([`UmadPort`]).

mod abi;
mod header;
mod sysfs;
mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

pub use abi::{ABI_VERSION, AgentSpec, Rmpp, open, register};
pub use header::{HEADER_LEN, Header, QKEY_GSI};
pub use sysfs::UmadPort;
pub(super) use tables::Tables;

use super::{LocalPort, Malformed, Packet, Transport};
use crate::types::{Gid, Qpn};
use crate::wire::MAD_LEN;
use crate::wire::mad::{MadHeader, Method, MgmtClass};

/// A packet as it is read and written.
const RECORD_LEN: usize = HEADER_LEN + MAD_LEN;
/// Length of the longest MAD there is: that of Omni-Path. Read so that it does not stay in the way.
const MAD_LEN_MAX: usize = 2048;
/// The longest message that is read, to be passed over.
const MESSAGE_LEN_MAX: usize = 1 << 20;
/// Length of the header of a MAD, all that is left of a request that comes back.
const MAD_HEADER_LEN: usize = 24;
/// Hop limit of answers, as the kernel's own have it.
const HOP_LIMIT: u8 = 0xFF;

/// Why a port cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UmadError {
    /// The class of umad files does not exist.
    #[error(
        "this host has no umad devices: load the driver of its HCA, and ib_umad (modprobe ib_umad)"
    )]
    NoModule,
    /// A kernel of another time.
    #[error("this kernel's umad interface has version {0}, not {ABI_VERSION}")]
    Abi(u32),
    /// No such port.
    #[error("there is no umad device for {wanted}; there are: {}", list(have))]
    UnknownPort {
        /// What was asked for.
        wanted: String,
        /// The ports that there are.
        have: Vec<String>,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {source}{}", path.display(), advice(source))]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another file has the requests that are wanted.
    #[error(
        "another process serves class {class} at {port} (an SM with its own SA, or another ibsa): \
         stop it, or choose another port; `fuser -v /dev/infiniband/{umad}` names it"
    )]
    Taken {
        /// The class.
        class: MgmtClass,
        /// The port.
        port: String,
        /// The file's name.
        umad: String,
    },
    /// Another process is the port's subnet manager.
    #[error(
        "{port} has a subnet manager already, another process of this host: stop it (opensm?); \
         `fuser -v {}` names it", path.display()
    )]
    HasSm {
        /// The port.
        port: String,
        /// The file that it holds.
        path: PathBuf,
    },
    /// The port does not have the QP.
    #[error("{port} has no QP{qpn}: it is no InfiniBand port, or its HCA keeps QP0 to itself")]
    NoQp {
        /// The QP.
        qpn: Qpn,
        /// The port.
        port: String,
    },
    /// A descriptor that was handed over is not this port's file.
    #[error("the descriptor handed over is not that of {0}")]
    NotThisPort(String),
    /// The system's error.
    #[error("umad: {0}")]
    Io(#[from] io::Error),
}

fn list(have: &[String]) -> String {
    if have.is_empty() { "none".to_owned() } else { have.join(", ") }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root, or give this user access to the file",
        _ => "",
    }
}

/// What to do with a port.
#[derive(Clone, Debug)]
pub struct UmadOptions {
    /// The port.
    pub port: UmadPort,
    /// The requests to take. The kernel numbers them in this order, which therefore has to be the
    /// same wherever a file is handed on.
    pub agents: Vec<AgentSpec>,
    /// How long the kernel waits for the answer to a request of ours that names no time of its own
    /// ([`Address::answer_timeout_ms`](super::Address::answer_timeout_ms)). Has to be over before the
    /// request is repeated: the kernel refuses a second one with the same TransactionID.
    pub answer_timeout: Duration,
}

impl UmadOptions {
    /// Serves subnet administration at `port`.
    pub fn sa_responder(port: UmadPort) -> Self {
        let agents = vec![AgentSpec::SA_RESPONDER];
        Self { port, agents, answer_timeout: Duration::from_millis(900) }
    }

    /// Manages the subnet at `port`, and serves its administration there.
    pub fn subnet_manager(port: UmadPort, answer_timeout: Duration) -> Self {
        let agents = vec![AgentSpec::SM_DIRECTED, AgentSpec::SM_BY_LID, AgentSpec::SA_RESPONDER];
        Self { port, agents, answer_timeout }
    }
}

/// While it lives, a port's PortInfo says that there is a subnet manager (IsSM).
#[derive(Debug)]
pub struct IsSm {
    _file: OwnedFd,
}

impl IsSm {
    /// Sets it. One process at a time can.
    pub fn set(port: &UmadPort) -> Result<Self, UmadError> {
        let path = port.issm_path();
        match abi::open_issm(&path) {
            Ok(file) => Ok(Self { _file: file }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(UmadError::HasSm { port: port.to_string(), path })
            }
            Err(source) => Err(UmadError::Open { path, source }),
        }
    }
}

/// What has passed through a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmadCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received, those that came back included.
    pub received: u64,
    /// Requests of ours that came back unanswered.
    pub undelivered: u64,
    /// What was read and was no packet.
    pub malformed: u64,
    /// Packets that the kernel would not send, each of them alone: an answer that is on its way
    /// already, a P_Key that the port does not have, a neighbour that cannot be resolved.
    pub refused: u64,
    /// The error of the last one refused.
    pub refused_error: i32,
}

/// The file of a port, or what stands in for it in a test.
pub trait Device: AsFd + Send {
    /// read(2).
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// write(2).
    fn write(&self, record: &[u8]) -> io::Result<usize>;
}

impl Device for OwnedFd {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is writable for the length given.
        let got = unsafe { libc::read(self.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    fn write(&self, record: &[u8]) -> io::Result<usize> {
        // SAFETY: the record is readable for the length given.
        let put = unsafe { libc::write(self.as_raw_fd(), record.as_ptr().cast(), record.len()) };
        usize::try_from(put).map_err(|_| io::Error::last_os_error())
    }
}

/// A port, and the requests taken there.
#[derive(Debug)]
pub struct Umad<D = OwnedFd> {
    device: D,
    port: UmadPort,
    /// By the kernel's numbers.
    agents: Vec<AgentSpec>,
    answer_timeout_ms: u32,
    tables: Tables,
    buffer: Vec<u8>,
    counters: UmadCounters,
}

impl Umad {
    /// Opens the file and takes the requests.
    pub fn open(options: &UmadOptions) -> Result<Self, UmadError> {
        let path = options.port.path();
        let device = abi::open(&path).map_err(|source| UmadError::Open { path, source })?;
        for spec in &options.agents {
            abi::register(device.as_fd(), spec).map_err(|error| refusal(options, spec, error))?;
        }
        Self::new(device, options)
    }

    /// Goes on with a file that another process opened with the same options and handed over. Its
    /// queue is as that process left it.
    pub fn adopt(device: OwnedFd, options: &UmadOptions) -> Result<Self, UmadError> {
        if !is_device(&device, &options.port)? {
            return Err(UmadError::NotThisPort(options.port.to_string()));
        }
        abi::set_nonblocking(device.as_fd())?;
        Self::new(device, options)
    }

    /// A descriptor of the same file, to be handed to a successor.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }
}

/// Whether a descriptor is that of a port's file.
fn is_device(device: &OwnedFd, port: &UmadPort) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let held = std::fs::File::from(device.try_clone()?).metadata()?;
    let now = std::fs::metadata(port.path())?;
    Ok(held.rdev() == now.rdev() && held.mode() & libc::S_IFMT == libc::S_IFCHR)
}

fn refusal(options: &UmadOptions, spec: &AgentSpec, error: io::Error) -> UmadError {
    let port = options.port.to_string();
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            UmadError::Taken { class: spec.class, port, umad: options.port.umad.clone() }
        }
        Some(libc::EPROTONOSUPPORT) => UmadError::NoQp { qpn: spec.qpn, port },
        _ => UmadError::Io(error),
    }
}

impl<D: Device> Umad<D> {
    fn new(device: D, options: &UmadOptions) -> Result<Self, UmadError> {
        let UmadOptions { port, agents, answer_timeout } = options.clone();
        let mut this = Self {
            device,
            port,
            agents,
            answer_timeout_ms: u32::try_from(answer_timeout.as_millis()).unwrap_or(u32::MAX),
            tables: Tables::default(),
            buffer: vec![0; HEADER_LEN + MAD_LEN_MAX],
            counters: UmadCounters::default(),
        };
        this.refresh()?;
        Ok(this)
    }

    /// The port.
    pub fn port(&self) -> &UmadPort {
        &self.port
    }

    /// Reads the port's P_Keys and GIDs again, and its LIDs. Call it now and then: nothing else
    /// tells that the subnet manager has changed them.
    pub fn refresh(&mut self) -> io::Result<LocalPort> {
        self.tables.refresh(&self.port)?;
        self.port.local()
    }

    /// What has passed through so far.
    pub fn counters(&self) -> UmadCounters {
        self.counters
    }

    /// Makes a packet of the `len` bytes in the buffer; whether they are one.
    fn take(&mut self, len: usize, packet: &mut Packet) -> bool {
        let Some(header) = self.buffer.first_chunk().map(|bytes| Header(*bytes)) else {
            return false;
        };
        let came_back = header.status() != 0;
        let least = if came_back { HEADER_LEN + MAD_HEADER_LEN } else { RECORD_LEN };
        let Some(spec) = self.agents.get(header.agent_id() as usize) else { return false };
        if !(least..=RECORD_LEN).contains(&len) {
            return false;
        }
        let local_gid = match header.grh_present() {
            true => self.tables.gid(&self.port, header.gid_index()),
            false => Gid::ZERO,
        };
        let pkey = self.tables.pkey(&self.port, header.pkey_index());
        packet.address = header.address(spec.qpn, pkey, local_gid);
        packet.address.undelivered = header.status();
        let mad = &self.buffer[HEADER_LEN..len];
        packet.mad[..mad.len()].copy_from_slice(mad);
        packet.mad[mad.len()..].fill(0);
        self.counters.received += 1;
        self.counters.undelivered += u64::from(came_back);
        true
    }

    fn write(&mut self, packet: &Packet) -> io::Result<()> {
        let Packet { mad, address } = packet;
        let view = MadHeader::new(mad).expect("24 bytes of 256");
        let (class, method) = (view.mgmt_class(), view.method());
        let serves = |spec: &AgentSpec| spec.qpn == address.local_qpn && spec.class == class;
        let unsendable = || io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        let agent = self.agents.iter().position(serves).ok_or_else(unsendable)?;
        let pkey_index = match address.local_qpn {
            // Nobody looks at the P_Key of a subnet management packet.
            Qpn::SMI => 0,
            _ => self.tables.pkey_index(address.pkey).ok_or_else(unsendable)?,
        };
        let gid_index = match &address.grh {
            Some(grh) => self.tables.gid_index(&self.port, grh.local_gid),
            None => 0,
        };
        let mut header = Header::sent(agent as u32, address, pkey_index, gid_index);
        if method.is_response() && address.grh.is_some() {
            header.set_hop_limit(HOP_LIMIT);
        }
        if awaits_answer(method) {
            header.set_timeout_ms(match address.answer_timeout_ms {
                0 => self.answer_timeout_ms,
                own => before_repeat(own),
            });
        }
        let mut record = [0; RECORD_LEN];
        record[..HEADER_LEN].copy_from_slice(&header.0);
        record[HEADER_LEN..].copy_from_slice(mad);
        self.device.write(&record).map(drop)
    }

    /// Makes room for a message that does not fit the buffer: the kernel keeps it until it is read.
    fn grow(&mut self) -> io::Result<()> {
        let header = self.buffer.first_chunk().map(|bytes| Header(*bytes));
        let needed = header.map_or(0, |header| header.length() as usize);
        if needed <= self.buffer.len() || needed > MESSAGE_LEN_MAX {
            let reason = format!("a message of {needed} bytes that cannot be read");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        self.buffer.resize(needed, 0);
        Ok(())
    }
}

/// How long the kernel is to wait for an answer, so that it has given up before the request is sent
/// again after `timeout_ms`.
fn before_repeat(timeout_ms: u32) -> u32 {
    (timeout_ms - timeout_ms / 10).max(2) - 1
}

/// Whether the kernel has to be told that an answer will come.
fn awaits_answer(method: Method) -> bool {
    !method.is_response() && !matches!(method, Method::TRAP | Method::TRAP_REPRESS | Method::SEND)
}

/// Whether an error tells that the file is of no use any more, rather than that one packet is not.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV | libc::ENXIO | libc::EBADF))
}

impl<D: Device> Transport for Umad<D> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut filled = 0;
        // As many reads as there is room: what is left shows when the file is polled.
        for _ in 0..batch.len() {
            match self.device.read(&mut self.buffer) {
                Ok(len) if self.take(len, &mut batch[filled]) => filled += 1,
                Ok(_) => self.counters.malformed += 1,
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (io::ErrorKind::WouldBlock, _) => break,
                    (io::ErrorKind::Interrupted, _) => {}
                    (_, Some(libc::ENOSPC)) => self.grow()?,
                    // It will fail again when it is read next.
                    _ if filled > 0 => break,
                    _ => return Err(error),
                },
            }
        }
        Ok(filled)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        for (taken, packet) in batch.iter().enumerate() {
            match self.write(packet) {
                Ok(()) => self.counters.sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                Err(error) if !is_fatal(&error) => {
                    self.counters.refused += 1;
                    self.counters.refused_error = error.raw_os_error().unwrap_or(0);
                }
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn malformed(&self) -> Malformed {
        Malformed { length: self.counters.malformed, ..Malformed::default() }
    }
}

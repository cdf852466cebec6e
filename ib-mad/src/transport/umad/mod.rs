//! A port of this host through the kernel's umad interface: MADs are read from and written to a
//! file `/dev/infiniband/umadN`; the port's attributes are in sysfs.
//!
//! Properties of the interface:
//!
//! - A file registers for methods of a class ([`AgentSpec`]); the kernel refuses a second
//!   registration for the same method. While no file is registered, the kernel answers Get and Set
//!   with status 0x000c, which clients treat as final. For this reason files are passed from
//!   process to process ([`Umad::adopt`]).
//! - The kernel overwrites the upper half of a request's TransactionID when it is sent. Match
//!   responses by the low 32 bits. The TransactionID of a response is not changed.
//! - The kernel delivers the response to a request only within [`UmadOptions::answer_timeout`].
//!   After that the request is returned, its header only, with
//!   [`Carrier::undelivered`](super::Carrier::undelivered) set.
//! - The queue of a file that is not read keeps the oldest 200,000 MADs: read until it is empty.
//!   Sending has no back-pressure.
//! - RMPP is done here: every segment is a packet.
//!
//! The header is in [`Header`], the system calls in `abi`, sysfs in [`UmadPort`]. [`sharing`]: how
//! a subnet manager and a responder share the file of the SA class. A port of a planarized fabric
//! has several files: [`pairing`] finds them, [`Planar`] uses them.

mod abi;
mod header;
pub mod pairing;
mod planar;
pub mod sharing;
mod sysfs;
mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

pub use abi::{ABI_VERSION, AgentSpec, Rmpp, open, register};
pub use header::{HEADER_LEN, Header};
pub use planar::{Planar, PlanarOptions};
pub use sysfs::{HostPort, UmadPort};
pub(super) use tables::Tables;

use super::{Carrier, LocalPort, Malformed, Packet, Transport};
use crate::types::{Gid, Guid, Lid, Qpn};
use crate::wire::MAD_LEN;
use crate::wire::mad::{MadHeader, Method, MgmtClass};

/// A packet as it is read and written.
const RECORD_LEN: usize = HEADER_LEN + MAD_LEN;
/// Length of the longest MAD, that of Omni-Path. It must be read to remove it from the queue.
const MAD_LEN_MAX: usize = 2048;
/// The longest message that is read, in order to skip it.
const MESSAGE_LEN_MAX: usize = 1 << 20;
/// Length of the MAD header, which is all that is left of a returned request.
const MAD_HEADER_LEN: usize = 24;
/// Hop limit of responses, the same as the kernel's.
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
    /// The kernel has another ABI version.
    #[error("this kernel's umad interface has version {0}, not {ABI_VERSION}")]
    Abi(u32),
    /// The port does not exist.
    #[error("there is no umad device for {wanted}; available: {}", list(have))]
    UnknownPort {
        /// The port as requested.
        wanted: String,
        /// The existing ports.
        have: Vec<String>,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {source}{}", path.display(), advice(source))]
    Open {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another file has registered for the same requests.
    #[error(
        "another process serves class {class} at {port} (an SM with its own SA, or another ibsa): \
         stop it, or choose another port; `fuser -v /dev/infiniband/{umad}` shows it"
    )]
    Taken {
        /// The class.
        class: MgmtClass,
        /// The port.
        port: String,
        /// The umad file's name.
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
        /// Its issm file.
        path: PathBuf,
    },
    /// The port does not have this QP.
    #[error("{port} has no QP{qpn}: it is not an InfiniBand port, or its HCA reserves QP0")]
    NoQp {
        /// The QP.
        qpn: Qpn,
        /// The port.
        port: String,
    },
    /// The ports with one GUID are not those of a planarized port.
    #[error(
        "ports with GUID {guid}: {}; of a planarized port, one for data has IsSMdisabled, and the \
         others do not",
        list(ports)
    )]
    NotPlanarized {
        /// The port GUID.
        guid: Guid,
        /// The ports.
        ports: Vec<String>,
    },
    /// An inherited descriptor is not this port's file.
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

/// How to use a port.
#[derive(Clone, Debug)]
pub struct UmadOptions {
    /// The port.
    pub port: UmadPort,
    /// The agents to register. The kernel numbers them in this order, which must therefore be the
    /// same wherever a file is passed on.
    pub agents: Vec<AgentSpec>,
    /// How long the kernel waits for the response to a request without its own time
    /// ([`Carrier::answer_timeout_ms`](super::Carrier::answer_timeout_ms)). Must be shorter than
    /// the retry interval: the kernel refuses a second request with the same TransactionID.
    pub answer_timeout: Duration,
}

impl UmadOptions {
    /// Serves subnet administration at `port`.
    pub fn sa_responder(port: UmadPort) -> Self {
        let agents = vec![AgentSpec::SA_RESPONDER];
        Self { port, agents, answer_timeout: Duration::from_millis(900) }
    }

    /// Manages the subnet at `port`, and sends packets of its administration from there. Requests
    /// of that class need a separate file ([`sa_responder`](Self::sa_responder)), which other
    /// processes may have too; responses to requests sent here arrive here.
    pub fn subnet_manager(port: UmadPort, answer_timeout: Duration) -> Self {
        let client = AgentSpec::sa_client(Rmpp::Owner);
        let agents = vec![AgentSpec::SM_DIRECTED, AgentSpec::SM_BY_LID, client];
        Self { port, agents, answer_timeout }
    }

    /// Reads counters of ports from `port`; others may use it, too.
    pub fn perf_client(port: UmadPort, answer_timeout: Duration) -> Self {
        Self { port, agents: vec![AgentSpec::PERF_CLIENT], answer_timeout }
    }

    /// Sets up congestion control from `port`; others may use it, too.
    pub fn congestion_client(port: UmadPort, answer_timeout: Duration) -> Self {
        Self { port, agents: vec![AgentSpec::CONGESTION_CLIENT], answer_timeout }
    }

    /// Sends SMPs by directed route from `port`, and receives the answers only: a subnet manager
    /// may use the port, too.
    pub fn observer(port: UmadPort, answer_timeout: Duration) -> Self {
        let agents = vec![AgentSpec { methods: 0, ..AgentSpec::SM_DIRECTED }];
        Self { port, agents, answer_timeout }
    }
}

/// Sets IsSM in a port's PortInfo while it exists.
#[derive(Debug)]
pub struct IsSm {
    _file: OwnedFd,
}

impl IsSm {
    /// Sets IsSM. Only one process at a time can.
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

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmadCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received, returned ones included.
    pub received: u64,
    /// Requests returned unanswered.
    pub undelivered: u64,
    /// Messages read that were not valid packets.
    pub malformed: u64,
    /// Packets that the kernel refused to send, each without effect on others: a response that is
    /// being sent already, a P_Key that the port does not have, a neighbour that cannot be
    /// resolved.
    pub refused: u64,
    /// The latest such error.
    pub refused_error: i32,
}

/// A port's file, or a replacement in tests.
pub trait Device: AsFd + Send {
    /// read(2).
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// write(2).
    fn write(&self, record: &[u8]) -> io::Result<usize>;
}

impl Device for OwnedFd {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is writable for the given length.
        let got = unsafe { libc::read(self.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    fn write(&self, record: &[u8]) -> io::Result<usize> {
        // SAFETY: the record is readable for the given length.
        let put = unsafe { libc::write(self.as_raw_fd(), record.as_ptr().cast(), record.len()) };
        usize::try_from(put).map_err(|_| io::Error::last_os_error())
    }
}

/// A port, and its registered agents.
#[derive(Debug)]
pub struct Umad<D = OwnedFd> {
    device: D,
    port: UmadPort,
    /// By the kernel's agent id.
    agents: Vec<AgentSpec>,
    answer_timeout_ms: u32,
    tables: Tables,
    buffer: Vec<u8>,
    is_drained: bool,
    counters: UmadCounters,
}

impl Umad {
    /// Opens the file and registers the agents.
    pub fn open(options: &UmadOptions) -> Result<Self, UmadError> {
        let path = options.port.path();
        let device = abi::open(&path).map_err(|source| UmadError::Open { path, source })?;
        for spec in &options.agents {
            abi::register(device.as_fd(), spec).map_err(|error| refusal(options, spec, error))?;
        }
        Self::new(device, options)
    }

    /// Adopts a file that another process opened with the same options. Its receive queue is as
    /// that process left it.
    pub fn adopt(device: OwnedFd, options: &UmadOptions) -> Result<Self, UmadError> {
        if !is_device(&device, &options.port)? {
            return Err(UmadError::NotThisPort(options.port.to_string()));
        }
        abi::set_nonblocking(device.as_fd())?;
        Self::new(device, options)
    }

    /// A duplicate of the descriptor, for a successor.
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
            is_drained: false,
            counters: UmadCounters::default(),
        };
        this.refresh()?;
        Ok(this)
    }

    /// The port.
    pub fn port(&self) -> &UmadPort {
        &self.port
    }

    /// Reads the port's P_Keys, GIDs and LIDs again. Call it periodically: changes by the subnet
    /// manager are not notified.
    pub fn refresh(&mut self) -> io::Result<LocalPort> {
        self.tables.refresh(&self.port)?;
        self.port.local()
    }

    /// Counters of packets so far.
    pub fn counters(&self) -> UmadCounters {
        self.counters
    }

    /// Decodes the `len` bytes in the buffer; returns whether they are a packet.
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
        packet.carrier = Carrier { undelivered: header.status(), ..Carrier::default() };
        let mad = &self.buffer[HEADER_LEN..len];
        packet.mad[..mad.len()].copy_from_slice(mad);
        packet.mad[mad.len()..].fill(0);
        self.counters.received += 1;
        self.counters.undelivered += u64::from(came_back);
        true
    }

    fn write(&mut self, packet: &Packet) -> io::Result<()> {
        let Packet { mad, address, carrier } = packet;
        let view = MadHeader::of(mad);
        let (class, method) = (view.mgmt_class(), view.method());
        let serves = |spec: &AgentSpec| spec.qpn == address.local_qpn && spec.class == class;
        let unsendable = || io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        let agent = self.agents.iter().position(serves).ok_or_else(unsendable)?;
        let pkey_index = match address.local_qpn {
            // The P_Key of a subnet management packet is not checked by anyone.
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
            header.set_timeout_ms(match carrier.answer_timeout_ms {
                0 => self.answer_timeout_ms,
                own => before_repeat(own),
            });
        }
        let mut record = [0; RECORD_LEN];
        record[..HEADER_LEN].copy_from_slice(&header.0);
        record[HEADER_LEN..].copy_from_slice(mad);
        self.device.write(&record).map(drop)
    }

    /// Enlarges the buffer for a message that does not fit: the kernel keeps it until it is read.
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

/// How long the kernel waits for a response, so that it has given up before the request is sent
/// again after `timeout_ms`.
fn before_repeat(timeout_ms: u32) -> u32 {
    (timeout_ms - timeout_ms / 10).max(2) - 1
}

/// Whether the kernel must expect a response.
fn awaits_answer(method: Method) -> bool {
    !method.is_response() && !matches!(method, Method::TRAP | Method::TRAP_REPRESS | Method::SEND)
}

/// Whether an error concerns the file, which is then unusable, rather than one packet.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV | libc::ENXIO | libc::EBADF))
}

impl<D: Device> Transport for Umad<D> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut filled = 0;
        self.is_drained = false;
        // As many reads as there is room: what remains is reported when the file is polled.
        for _ in 0..batch.len() {
            match self.device.read(&mut self.buffer) {
                // No message is empty: the device is gone.
                Ok(0) if filled > 0 => break,
                Ok(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
                Ok(len) if self.take(len, &mut batch[filled]) => filled += 1,
                Ok(_) => self.counters.malformed += 1,
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (io::ErrorKind::WouldBlock, _) => {
                        self.is_drained = true;
                        break;
                    }
                    (io::ErrorKind::Interrupted, _) => {}
                    (_, Some(libc::ENOSPC)) => self.grow()?,
                    // The error will recur at the next read.
                    _ if filled > 0 => break,
                    _ => return Err(error),
                },
            }
        }
        Ok(filled)
    }

    fn is_drained(&self) -> bool {
        self.is_drained
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

    fn local_lid(&self) -> Lid {
        self.tables.lid()
    }

    fn malformed(&self) -> Malformed {
        Malformed { length: self.counters.malformed, ..Malformed::default() }
    }
}

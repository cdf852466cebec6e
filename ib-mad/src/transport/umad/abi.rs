//! The kernel's interface to a umad file: opening it and registering agents (`rdma/ib_user_mad.h`).
//! Everything else is reading and writing.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::types::Qpn;
use crate::wire::mad::{Method, MgmtClass};

/// Version of the interface, as in `abi_version`.
pub const ABI_VERSION: u32 = 5;

/// The implementation of RMPP that an agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rmpp {
    /// The class has no RMPP.
    None,
    /// The owner of the file: it reads and writes single segments.
    Owner,
    /// The kernel: whole messages are read and written.
    Kernel,
}

/// Registration of an agent: the requests of a class that it receives. Responses to its own
/// requests are delivered in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// QP0 or QP1.
    pub qpn: Qpn,
    /// Management class.
    pub class: MgmtClass,
    /// Class version.
    pub version: u8,
    /// Methods whose requests are delivered, as a bit set; empty for a client.
    pub methods: u128,
    /// The implementation of RMPP.
    pub rmpp: Rmpp,
}

impl AgentSpec {
    /// Class version of subnet administration.
    const SA_VERSION: u8 = 2;

    /// All requests of subnet administration, as for a responder.
    pub const SA_RESPONDER: Self = Self {
        qpn: Qpn::GSI,
        class: MgmtClass::SUBN_ADM,
        version: Self::SA_VERSION,
        methods: 1 << Method::GET.0
            | 1 << Method::SET.0
            | 1 << Method::GET_TABLE.0
            | 1 << Method::GET_TRACE_TABLE.0
            | 1 << Method::GET_MULTI.0
            | 1 << Method::DELETE.0,
        rmpp: Rmpp::Owner,
    };

    /// Class version of subnet management.
    const SM_VERSION: u8 = 1;

    /// Requests to a subnet manager by directed route: SMInfo and traps. Responses to its own
    /// requests are delivered too.
    pub const SM_DIRECTED: Self = Self {
        qpn: Qpn::SMI,
        class: MgmtClass::SUBN_DIRECTED_ROUTE,
        version: Self::SM_VERSION,
        methods: 1 << Method::GET.0
            | 1 << Method::SET.0
            | 1 << Method::TRAP.0
            | 1 << Method::TRAP_REPRESS.0,
        rmpp: Rmpp::None,
    };

    /// As [`SM_DIRECTED`](Self::SM_DIRECTED), for LID-routed SMPs: agents send traps by LID.
    pub const SM_BY_LID: Self = Self { class: MgmtClass::SUBN_LID_ROUTED, ..Self::SM_DIRECTED };

    /// A client of performance management, which receives responses only.
    pub const PERF_CLIENT: Self = Self {
        qpn: Qpn::GSI,
        class: MgmtClass::PERF,
        version: crate::wire::perf::CLASS_VERSION,
        methods: 0,
        rmpp: Rmpp::None,
    };

    /// A client of congestion control, which receives responses only.
    pub const CONGESTION_CLIENT: Self = Self {
        class: MgmtClass::CONGESTION,
        version: crate::wire::congestion::CLASS_VERSION,
        ..Self::PERF_CLIENT
    };

    /// A client of subnet administration, which receives responses only.
    pub const fn sa_client(rmpp: Rmpp) -> Self {
        Self { methods: 0, rmpp, ..Self::SA_RESPONDER }
    }
}

/// `struct ib_user_mad_reg_req2`.
#[repr(C)]
struct RegisterRequest {
    id: u32,
    qpn: u32,
    class: u8,
    class_version: u8,
    reserved: u16,
    flags: u32,
    methods: [u64; 2],
    oui: u32,
    rmpp_version: u8,
    reserved_end: [u8; 3],
}

/// Flag: the owner does RMPP.
const USER_RMPP: u32 = 1;
const MAGIC: u32 = 0x1B;
const REGISTER_AGENT2: libc::Ioctl = libc::_IOWR::<RegisterRequest>(MAGIC, 4);

/// Opens a umad file, non-blocking.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map(OwnedFd::from)
}

/// Opens the issm file: while it is open, the port has IsSM in PortInfo. Fails immediately with
/// `EAGAIN` while another process has it open.
pub(super) fn open_issm(path: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map(OwnedFd::from)
}

/// Makes an inherited file non-blocking.
pub(super) fn set_nonblocking(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open; no memory is passed.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Registers `spec` with the file; returns the agent id used in its headers, which from then on are
/// 64 bytes long.
///
/// Errors: `EINVAL` if another file has one of its methods, `EPROTONOSUPPORT` if the port has no
/// such QP.
pub fn register(file: BorrowedFd<'_>, spec: &AgentSpec) -> io::Result<u32> {
    let mut request = RegisterRequest {
        id: 0,
        qpn: spec.qpn.0,
        class: spec.class.0,
        class_version: spec.version,
        reserved: 0,
        flags: if spec.rmpp == Rmpp::Owner { USER_RMPP } else { 0 },
        methods: [spec.methods as u64, (spec.methods >> 64) as u64],
        oui: 0,
        rmpp_version: u8::from(spec.rmpp != Rmpp::None),
        reserved_end: [0; 3],
    };
    // SAFETY: the request has the layout of this ioctl, and outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), REGISTER_AGENT2, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(request.id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values in `rdma/ib_user_mad.h` on x86 and ARM.
    #[test]
    fn the_ioctl_is_the_kernels() {
        assert_eq!(size_of::<RegisterRequest>(), 40);
        assert_eq!(std::mem::offset_of!(RegisterRequest, methods), 16);
        assert_eq!(std::mem::offset_of!(RegisterRequest, rmpp_version), 36);
        assert_eq!(REGISTER_AGENT2 as u32, 0xC028_1B04);
    }

    #[test]
    fn what_is_no_umad_file_takes_no_agents() {
        let (file, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let error = register(std::os::fd::AsFd::as_fd(&file), &AgentSpec::SA_RESPONDER);
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}

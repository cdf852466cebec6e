//! The kernel's interface to a umad file: opening it, and taking classes of requests
//! (`rdma/ib_user_mad.h`). Reading and writing is all the rest.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::types::Qpn;
use crate::wire::mad::{Method, MgmtClass};

/// Version of the interface that `abi_version` tells.
pub const ABI_VERSION: u32 = 5;

/// Who takes messages apart and puts them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rmpp {
    /// Nobody: the class has no RMPP.
    None,
    /// The owner of the file: it reads and writes segments.
    Owner,
    /// The kernel: whole messages are read and written.
    Kernel,
}

/// Requests of a class that the owner of a file wants to be given, and answers to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// QP0 or QP1.
    pub qpn: Qpn,
    /// Management class.
    pub class: MgmtClass,
    /// Version of the class.
    pub version: u8,
    /// Bit set of methods to be given requests of; none for a mere client.
    pub methods: u128,
    /// Who does RMPP.
    pub rmpp: Rmpp,
}

impl AgentSpec {
    /// Class version of subnet administration.
    const SA_VERSION: u8 = 2;

    /// Subnet administration as a responder serves it, all of its requests.
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

    /// What a subnet manager is asked and told along directed routes: SMInfo and traps. Answers to
    /// its own requests come to it, too.
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

    /// The same by LID, as agents send traps.
    pub const SM_BY_LID: Self = Self { class: MgmtClass::SUBN_LID_ROUTED, ..Self::SM_DIRECTED };

    /// A client of subnet administration that is given answers only.
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

/// Of `flags`: the owner does RMPP.
const USER_RMPP: u32 = 1;
const MAGIC: u32 = 0x1B;
const REGISTER_AGENT2: libc::Ioctl = libc::_IOWR::<RegisterRequest>(MAGIC, 4);

/// Opens a umad file, never to block.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map(OwnedFd::from)
}

/// Opens the file that makes its holder's port one with a subnet manager (IsSM of PortInfo). Fails
/// at once, with `EAGAIN`, while another process holds it.
pub(super) fn open_issm(path: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map(OwnedFd::from)
}

/// Makes a file that was inherited one that never blocks.
pub(super) fn set_nonblocking(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open; no memory is passed.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the file given what `spec` names; the number by which its headers name it. From then on
/// they are 64 bytes long.
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
    // SAFETY: the request is laid out as the call's number says, and outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), REGISTER_AGENT2, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(request.id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `rdma/ib_user_mad.h` has it on x86 and ARM.
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

//! libibumad calls on an open port.

use std::ffi::{c_char, c_int, c_long, c_void};

use ib_mad::wire::mad::MgmtClass;

use super::message::{read, write};
use super::{Uncancelled, fail, is_ours, set_errno};
use crate::device::Device;
use crate::stack::Registration;
use crate::umad::{Errno, HEADER_LEN};

/// OUI that umad_register uses for vendor classes: OpenIB's.
const OPENIB_OUI: u32 = 0x00_1405;
/// Vendor classes that have an OUI.
const OUI_CLASSES: std::ops::RangeInclusive<c_int> = 0x30..=0x4F;
/// Flag of umad_register2: the program does RMPP itself.
const USER_RMPP: u32 = 1;

/// Arguments of umad_register2 (`struct umad_reg_attr`).
#[repr(C)]
#[derive(Debug)]
pub struct RegAttr {
    mgmt_class: u8,
    mgmt_class_version: u8,
    flags: u32,
    method_mask: [u64; 2],
    oui: u32,
    rmpp_version: u8,
}

unsafe extern "C-unwind" {
    /// poll(2), which is a cancellation point.
    fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// Opens a port; port 0 means any.
///
/// # Safety
///
/// `ca_name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_open_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    if !unsafe { is_ours(ca_name) } {
        return fail(Errno(libc::EINVAL));
    }
    let open = || {
        let device = Device::get()?;
        if portnum > 0 && c_int::from(device.info()?.port_num().0) != portnum {
            return Err(Errno(libc::EINVAL));
        }
        device.open()
    };
    open().unwrap_or_else(fail)
}

/// Opens a port for subnet management; every port can be used for that.
///
/// # Safety
///
/// `ca_name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_open_smi_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { umad_open_port(ca_name, portnum) }
}

/// Closes a port.
#[unsafe(no_mangle)]
pub extern "C" fn umad_close_port(fd: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    match Device::get().and_then(|device| device.close(fd)) {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// Returns the descriptor of a port, readable when a message waits.
#[unsafe(no_mangle)]
pub extern "C" fn umad_get_fd(fd: c_int) -> c_int {
    fd
}

fn register(fd: c_int, registration: Registration) -> Result<u32, Errno> {
    Device::get()?.register(fd, registration)
}

/// Methods of a mask; none if `mask` is null.
///
/// # Safety
///
/// `mask` is null or points at 16 bytes that can be read.
unsafe fn methods(mask: *const c_long) -> u128 {
    if mask.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller; bytes have no alignment. A mask is an array of longs whose
    // bits count from the lowest.
    u128::from_le_bytes(unsafe { mask.cast::<[u8; 16]>().read() })
}

/// Registers an agent; returns its id, or a negative errno.
///
/// # Safety
///
/// `method_mask` is null or points at 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register(
    fd: c_int,
    mgmt_class: c_int,
    mgmt_version: c_int,
    rmpp_version: u8,
    method_mask: *const c_long,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    let registration = Registration {
        class: MgmtClass(mgmt_class as u8),
        class_version: mgmt_version as u8,
        // SAFETY: guaranteed by the caller.
        methods: unsafe { methods(method_mask) },
        oui: OPENIB_OUI,
        rmpp_version,
        user_rmpp: false,
    };
    registered(register(fd, registration))
}

/// Registers an agent of a vendor class; returns its id, or a negative errno.
///
/// # Safety
///
/// `oui` points at 3 bytes, `method_mask` is null or points at 16.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register_oui(
    fd: c_int,
    mgmt_class: c_int,
    rmpp_version: u8,
    oui: *const u8,
    method_mask: *const c_long,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    if !OUI_CLASSES.contains(&mgmt_class) {
        return fail(Errno(libc::EINVAL));
    }
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    let [a, b, c] = unsafe { oui.cast::<[u8; 3]>().read() };
    let registration = Registration {
        class: MgmtClass(mgmt_class as u8),
        class_version: 1,
        // SAFETY: guaranteed by the caller.
        methods: unsafe { methods(method_mask) },
        oui: u32::from_be_bytes([0, a, b, c]),
        rmpp_version,
        user_rmpp: false,
    };
    registered(register(fd, registration))
}

fn registered(agent: Result<u32, Errno>) -> c_int {
    match agent {
        Ok(agent) => agent as c_int,
        Err(error) => {
            set_errno(error);
            -libc::EPERM
        }
    }
}

/// Registers an agent; returns 0 or a positive errno.
///
/// # Safety
///
/// `attr` is null or points at a `struct umad_reg_attr`, `agent_id` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register2(
    fd: c_int,
    attr: *mut RegAttr,
    agent_id: *mut u32,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    let (Some(attr), false) = (unsafe { attr.as_mut() }, agent_id.is_null()) else {
        return libc::EINVAL;
    };
    let bad_oui = attr.oui == 0 || attr.oui >> 24 != 0;
    if OUI_CLASSES.contains(&c_int::from(attr.mgmt_class)) && bad_oui {
        return libc::EINVAL;
    }
    if attr.flags & !USER_RMPP != 0 {
        // An unknown flag: report the supported ones.
        attr.flags = USER_RMPP;
        return libc::EINVAL;
    }
    let [low, high] = attr.method_mask;
    let registration = Registration {
        class: MgmtClass(attr.mgmt_class),
        class_version: attr.mgmt_class_version,
        methods: u128::from(high) << 64 | u128::from(low),
        oui: attr.oui,
        rmpp_version: attr.rmpp_version,
        user_rmpp: attr.flags & USER_RMPP != 0,
    };
    match register(fd, registration) {
        Ok(agent) => {
            // SAFETY: guaranteed by the caller.
            unsafe { agent_id.write(agent) };
            0
        }
        Err(error) => error.0,
    }
}

/// Unregisters an agent.
#[unsafe(no_mangle)]
pub extern "C" fn umad_unregister(fd: c_int, agentid: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    match Device::get().and_then(|device| device.unregister(fd, agentid as u32)) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Sends a message of `length` bytes behind its header.
///
/// # Safety
///
/// `umad` points at a header, which is written, and `length` bytes that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_send(
    fd: c_int,
    agentid: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    let mut header = unsafe { read(umad) };
    header
        .set_agent_id(agentid as u32)
        .set_timeout_ms(timeout_ms as u32)
        .set_retries(retries as u32);
    // SAFETY: guaranteed by the caller.
    unsafe { write(umad, header) };
    let length = usize::try_from(length).unwrap_or(0);
    // SAFETY: guaranteed by the caller; the bytes are borrowed for this call.
    let message =
        unsafe { std::slice::from_raw_parts(umad.cast::<u8>().byte_add(HEADER_LEN), length) };
    match Device::get().and_then(|device| device.send(fd, header, message)) {
        Ok(()) => {
            set_errno(Errno(0));
            0
        }
        Err(error) => {
            set_errno(error);
            -libc::EIO
        }
    }
}

/// Receives a message and returns its agent. `length` holds the room behind the header on entry and
/// the message's length on return. A message that does not fit stays queued, and `length` is the
/// room that it needs.
///
/// # Safety
///
/// `umad` is null or points at a header and `*length` bytes, all writable; `length` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umad_recv(
    fd: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    // No value here needs `Drop`: the thread may be cancelled while it waits.
    if umad.is_null() || length.is_null() {
        return fail(Errno(libc::EINVAL));
    }
    if timeout_ms != 0 {
        let waited = umad_poll(fd, timeout_ms);
        if waited < 0 {
            return waited;
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { receive(fd, umad, length) }
}

/// Reads a message if one is queued.
///
/// # Safety
///
/// As [`umad_recv`], but nothing is null.
#[inline(never)]
unsafe fn receive(fd: c_int, umad: *mut c_void, length: *mut c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    let room = usize::try_from(unsafe { length.read() }).unwrap_or(0);
    // SAFETY: guaranteed by the caller. The bytes may be uninitialized: they are only written.
    let buffer = unsafe { std::slice::from_raw_parts_mut(umad.cast::<u8>(), HEADER_LEN + room) };
    let (len, result) = match Device::get().and_then(|device| device.receive(fd, buffer)) {
        Ok(len) => {
            set_errno(Errno(0));
            // SAFETY: guaranteed by the caller.
            (len - HEADER_LEN, unsafe { read(umad) }.agent_id() as c_int)
        }
        Err(error) => {
            // SAFETY: guaranteed by the caller. What a message needs is written to its header.
            let needed = unsafe { read(umad) }.length() as usize;
            (needed.wrapping_sub(HEADER_LEN), fail(error))
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { length.write(len as c_int) };
    result
}

/// Waits until a message can be received; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn umad_poll(fd: c_int, timeout_ms: c_int) -> c_int {
    let mut descriptor = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `descriptor` is one pollfd, and writable.
    match unsafe { poll(&mut descriptor, 1, timeout_ms) } {
        1 => 0,
        0 => fail(Errno(libc::ETIMEDOUT)),
        // errno is set by poll(2).
        _ => -libc::EIO,
    }
}

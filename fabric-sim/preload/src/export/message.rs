//! libibumad calls on the header of a message in the program's memory.

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::umad::{HEADER_LEN, Header};

/// Offset and length of the address in the header (`struct ib_mad_addr`).
const ADDRESS: usize = 20;
const ADDRESS_LEN: usize = HEADER_LEN - ADDRESS;

static DEBUG_LEVEL: AtomicI32 = AtomicI32::new(0);

/// Reads the header at `umad`.
///
/// # Safety
///
/// `umad` points at a readable header.
pub(super) unsafe fn read(umad: *const c_void) -> Header {
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    Header(unsafe { umad.cast::<[u8; HEADER_LEN]>().read() })
}

/// Writes the header at `umad`.
///
/// # Safety
///
/// `umad` points at a writable header.
pub(super) unsafe fn write(umad: *mut c_void, header: Header) {
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    unsafe { umad.cast::<[u8; HEADER_LEN]>().write(header.0) };
}

/// Modifies the header at `umad`.
///
/// # Safety
///
/// `umad` points at a header.
unsafe fn change(umad: *mut c_void, change: impl FnOnce(&mut Header)) -> c_int {
    // SAFETY: guaranteed by the caller.
    let mut header = unsafe { read(umad) };
    change(&mut header);
    // SAFETY: guaranteed by the caller.
    unsafe { write(umad, header) };
    0
}

/// The MAD behind the header.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    // SAFETY: the message is longer than its header.
    unsafe { umad.byte_add(HEADER_LEN) }
}

/// Length of the header.
#[unsafe(no_mangle)]
pub extern "C" fn umad_size() -> usize {
    HEADER_LEN
}

/// Status of a received message: 0, or the errno of a send that was returned.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { read(umad) }.status() as c_int
}

/// The address within the header.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut c_void {
    // SAFETY: the header is longer than what precedes the address.
    unsafe { umad.byte_add(ADDRESS) }
}

/// Sets the destination of a message; numbers in host order.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let set = move |header: &mut Header| {
        let path_bits = header.path_bits();
        header
            .set_lid(dlid as u16)
            .set_qpn(dqp as u32)
            .set_sl_and_path_bits(sl as u8, path_bits)
            .set_qkey(qkey as u32);
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change(umad, set) }
}

/// Sets the destination of a message; numbers in network order, apart from the SL.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    let (dlid, dqp, qkey) = (u16::from_be(dlid), u32::from_be(dqp), u32::from_be(qkey));
    // SAFETY: guaranteed by the caller.
    unsafe { umad_set_addr(umad, dlid.into(), dqp as c_int, sl, qkey as c_int) }
}

/// Copies the GRH fields of a `struct ib_mad_addr` into the header, or clears them if `address` is
/// null. `convert` brings the flow label into network order.
///
/// # Safety
///
/// `umad` points at a message, `address` is null or points at an address.
unsafe fn set_grh(umad: *mut c_void, address: *const c_void, convert: fn(u32) -> u32) -> c_int {
    if address.is_null() {
        // SAFETY: guaranteed by the caller.
        return unsafe {
            change(umad, |header| {
                header.set_grh(None);
            })
        };
    }
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    let address = unsafe { address.cast::<[u8; ADDRESS_LEN]>().read() };
    let set = |header: &mut Header| {
        header.0[32] = 1;
        // Hop limit, traffic class and GID.
        header.0[34..52].copy_from_slice(&address[34 - ADDRESS..52 - ADDRESS]);
        let mut label = [0; 4];
        label.copy_from_slice(&address[52 - ADDRESS..56 - ADDRESS]);
        header.set_flow_label(u32::from_be(convert(u32::from_ne_bytes(label))));
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change(umad, set) }
}

/// Sets the GRH; the flow label is in host order.
///
/// # Safety
///
/// `umad` points at a message, `address` is null or points at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_set_grh(umad: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { set_grh(umad, address, u32::to_be) }
}

/// Sets the GRH; the flow label is in network order.
///
/// # Safety
///
/// `umad` points at a message, `address` is null or points at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_set_grh_net(umad: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { set_grh(umad, address, |label| label) }
}

/// Sets the P_Key index.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, pkey_index: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        change(umad, |header| {
            header.set_pkey_index(pkey_index as u16);
        })
    }
}

/// Returns the P_Key index.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { read(umad) }.pkey_index().into()
}

/// Sets the debug level unless `level` is negative; returns the level in use.
#[unsafe(no_mangle)]
pub extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        DEBUG_LEVEL.store(level, Ordering::Relaxed);
    }
    DEBUG_LEVEL.load(Ordering::Relaxed)
}

/// Prints an address.
///
/// # Safety
///
/// `address` points at a `struct ib_mad_addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_addr_dump(address: *mut c_void) {
    let mut header = Header::ZERO;
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    let bytes = unsafe { address.cast::<[u8; ADDRESS_LEN]>().read() };
    header.0[ADDRESS..].copy_from_slice(&bytes);
    let gid: String = header.0[36..52].iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = writeln!(
        std::io::stderr(),
        "qpn {} qkey {:#x} lid {} sl {} grh {} hop limit {} traffic class {} flow label {:#x} \
         pkey index {:#x} gid {gid}",
        header.qpn(),
        header.qkey(),
        header.lid(),
        header.sl(),
        header.grh_present(),
        header.0[34],
        header.0[35],
        header.flow_label(),
        header.pkey_index(),
    );
}

/// Prints a header.
///
/// # Safety
///
/// `umad` points at a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_dump(umad: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let header = unsafe { read(umad) };
    let (agent, status, timeout) = (header.agent_id(), header.status(), header.timeout_ms());
    let _ = writeln!(std::io::stderr(), "agent id {agent} status {status:x} timeout {timeout} ms",);
    // SAFETY: guaranteed by the caller.
    unsafe { umad_addr_dump(umad_get_mad_addr(umad)) };
}

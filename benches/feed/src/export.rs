//! The intercepted functions of libibumad: registration shows which agent is the SA's, receiving
//! returns requests to feed, sending collects the answers. All other calls are passed to the
//! library behind this one.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::io::Write;
use std::mem::transmute;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::MAD_LEN;
use crate::job::{self, Step, awake, current, wake_descriptor};
use crate::order::SOCKET_VARIABLE;

/// Bytes before a MAD (`struct ib_user_mad`).
const HEADER_LEN: usize = 64;
/// Minimum length of a MAD's headers, bytes.
const SA_HEADER_LEN: c_int = 56;
const SUBN_ADM: c_int = 3;
/// Interval at which a waiting receiver polls. Milliseconds.
const LOOK_AROUND: c_int = 1000;

/// The SA's port and agent; -1 before it has registered.
static PORT: AtomicI32 = AtomicI32::new(-1);
static AGENT: AtomicI32 = AtomicI32::new(-1);

type Register = unsafe extern "C" fn(c_int, c_int, c_int, u8, *const c_long) -> c_int;
type Send = unsafe extern "C" fn(c_int, c_int, *mut c_void, c_int, c_int, c_int) -> c_int;
type Receive = unsafe extern "C-unwind" fn(c_int, *mut c_void, *mut c_int, c_int) -> c_int;

unsafe extern "C-unwind" {
    /// poll(2), which is a cancellation point.
    fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// The library behind this one.
struct Behind {
    register: Register,
    send: Send,
    receive: Receive,
}

/// # Panics
///
/// If there is no libibumad behind this library.
fn behind() -> &'static Behind {
    static BEHIND: OnceLock<Behind> = OnceLock::new();
    BEHIND.get_or_init(|| {
        // SAFETY: they have these types (infiniband/umad.h).
        unsafe {
            Behind {
                register: transmute::<*mut c_void, Register>(next(c"umad_register")),
                send: transmute::<*mut c_void, Send>(next(c"umad_send")),
                receive: transmute::<*mut c_void, Receive>(next(c"umad_recv")),
            }
        }
    })
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null(), "umad-feed: no libibumad with {name:?} is loaded");
    found
}

/// Registers an agent. If it is the SA's, records it and starts accepting orders.
///
/// # Safety
///
/// As libibumad's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register(
    fd: c_int,
    mgmt_class: c_int,
    mgmt_version: c_int,
    rmpp_version: u8,
    method_mask: *const c_long,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let agent =
        unsafe { (behind().register)(fd, mgmt_class, mgmt_version, rmpp_version, method_mask) };
    if agent >= 0
        && mgmt_class == SUBN_ADM
        && !method_mask.is_null()
        && let Some(socket) = std::env::var_os(SOCKET_VARIABLE)
    {
        AGENT.store(agent, Relaxed);
        PORT.store(fd, Relaxed);
        if let Err(error) = job::obey(socket.into()) {
            let _ = writeln!(std::io::stderr(), "umad-feed: {SOCKET_VARIABLE}: {error}");
        }
    }
    agent
}

/// Collects the answer to a fed request; sends everything else.
///
/// # Safety
///
/// As libibumad's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_send(
    fd: c_int,
    agentid: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    if let Some(job) = current()
        && agentid == AGENT.load(Relaxed)
        && fd == PORT.load(Relaxed)
        && length >= SA_HEADER_LEN
    {
        let len = length as usize;
        // SAFETY: the caller guarantees `length` bytes behind the header; bytes have no alignment.
        let message = unsafe { std::slice::from_raw_parts(umad.cast::<u8>().add(HEADER_LEN), len) };
        let taken = match message.first_chunk() {
            Some(first) => job.take(first, len),
            None => {
                let mut first = [0; MAD_LEN];
                first[..len].copy_from_slice(message);
                job.take(&first, len)
            }
        };
        if taken {
            return 0;
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { (behind().send)(fd, agentid, umad, length, timeout_ms, retries) }
}

/// Receives a fed request, or else a packet from the library behind this one.
///
/// # Safety
///
/// As libibumad's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umad_recv(
    fd: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    // No value here needs `Drop`: the thread may be cancelled while it waits.
    let receive = behind().receive;
    let is_ours = fd == PORT.load(Relaxed) && timeout_ms < 0;
    // SAFETY: the caller guarantees a number there if it is not null.
    let room = if umad.is_null() || length.is_null() { 0 } else { unsafe { length.read() } };
    if !is_ours || room < MAD_LEN as c_int {
        // SAFETY: guaranteed by the caller.
        return unsafe { receive(fd, umad, length, timeout_ms) };
    }
    loop {
        let (mut hears_fabric, mut patience) = (true, -1);
        if let Some(job) = current() {
            if job.fabric && wait([fd, -1], job.pause_ms as c_int)[0] {
                // SAFETY: guaranteed by the caller.
                return unsafe { receive(fd, umad, length, 0) };
            }
            // SAFETY: the caller guarantees `room` bytes behind the header; bytes have no
            // alignment.
            let mad = unsafe { &mut *umad.cast::<u8>().add(HEADER_LEN).cast::<[u8; MAD_LEN]>() };
            match job.feed(mad) {
                Step::Deliver(lid, qpn) => {
                    let agent = AGENT.load(Relaxed);
                    // SAFETY: the caller guarantees a header, and a number in `length`.
                    unsafe {
                        umad.cast::<[u8; HEADER_LEN]>().write(header(agent, lid, qpn));
                        length.write(MAD_LEN as c_int);
                    }
                    return agent;
                }
                Step::Again => continue,
                Step::Wait => (hears_fabric, patience) = (job.fabric, LOOK_AROUND),
            }
        }
        let [fabric, woken] =
            wait([if hears_fabric { fd } else { -1 }, wake_descriptor()], patience);
        if woken {
            awake();
        }
        if fabric {
            // SAFETY: guaranteed by the caller.
            return unsafe { receive(fd, umad, length, 0) };
        }
    }
}

/// Waits until one of two descriptors is readable; -1 means none.
fn wait(descriptors: [c_int; 2], timeout_ms: c_int) -> [bool; 2] {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: `polled` has two entries, and is writable.
    unsafe { poll(polled.as_mut_ptr(), 2, timeout_ms) };
    polled.map(|polled| polled.revents != 0)
}

/// The header of a MAD that a client sent (`struct ib_user_mad`).
fn header(agent: c_int, lid: u16, qpn: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&agent.to_ne_bytes());
    header[16..20].copy_from_slice(&((HEADER_LEN + MAD_LEN) as u32).to_ne_bytes());
    header[20..24].copy_from_slice(&qpn.to_be_bytes());
    header[28..30].copy_from_slice(&lid.to_be_bytes());
    header
}

//! Interposed C library calls, for programs that use the kernel's umad interface without libibumad:
//! the file `/dev/infiniband/umad0`, its ioctls, and its sysfs attributes. Calls that do not
//! concern the device are passed to the C library unchanged.
//!
//! The open file is one end of a SOCK_SEQPACKET pair; the device holds the other. Reading, writing
//! and polling are the kernel's own. statx(2) shows it as the device, so that a process recognizes
//! a file that it was passed. One difference from a umad file: a malformed write is
//! discarded, not reported.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::{Mutex, PoisonError};

use ib_mad::wire::mad::MgmtClass;

use super::set_errno;
use crate::device::Device;
use crate::info::{CA_NAME, Info};
use crate::socket;
use crate::stack::Registration;
use crate::umad::Errno;

const UMAD: &[u8] = b"/dev/infiniband/umad0";
const ISSM: &[u8] = b"/dev/infiniband/issm0";
/// Sysfs class of umad devices, and its entries.
const CLASS: &str = "/sys/class/infiniband_mad";
const LISTED: [&CStr; 2] = [c"umad0", c"issm0"];
/// ABI version of the umad interface.
const ABI_VERSION: u32 = 5;
/// Limit of simultaneously open directories of the class.
const LISTINGS_MAX: usize = 64;

/// `struct ib_user_mad_reg_req2`, and the ioctl that uses it.
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

const REGISTER_AGENT2: c_ulong = libc::_IOWR::<RegisterRequest>(0x1B, 4);
/// Flag: the program does RMPP itself.
const USER_RMPP: u32 = 1;

/// Looks up the C library's function that this library interposes.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
unsafe fn next<F: Copy>(name: &CStr) -> F {
    // SAFETY: the name is a C string; RTLD_NEXT finds the function behind this library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(
        !found.is_null() && size_of::<F>() == size_of_val(&found),
        "the C library lacks {name:?}"
    );
    // SAFETY: both are pointers, and the caller guarantees the type.
    unsafe { std::mem::transmute_copy(&found) }
}

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;

/// open(2).
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's own arguments, passed on.
    unsafe { open_or(path, || next::<Open>(c"open")(path, flags, mode)) }
}

/// open(2) as called by programs built for large files.
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's own arguments, passed on.
    unsafe { open_or(path, || next::<Open>(c"open64")(path, flags, mode)) }
}

/// # Safety
///
/// `path` is null or a C string.
unsafe fn open_or(path: *const c_char, otherwise: impl FnOnce() -> c_int) -> c_int {
    if path.is_null() {
        return otherwise();
    }
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let opened = match name {
        UMAD => Device::get().and_then(Device::open_socket),
        ISSM => Device::get().map(|device| {
            let path = format!("{}\0", device.issm_path());
            // SAFETY: the path ends with NUL and outlives the call.
            unsafe { next::<Open>(c"open64")(path.as_ptr().cast(), libc::O_CLOEXEC, 0) }
        }),
        name if name.starts_with(b"/sys/class/infiniband") => attribute(name),
        _ => return otherwise(),
    };
    opened.unwrap_or_else(failed)
}

/// Sets errno and returns -1.
fn failed(error: Errno) -> c_int {
    set_errno(error);
    -1
}

/// Opens an in-memory file with the content of a sysfs attribute.
fn attribute(name: &[u8]) -> Result<c_int, Errno> {
    let absent = Errno(libc::ENOENT);
    let name = std::str::from_utf8(name).map_err(|_| absent)?;
    let text = text(name, &Device::get()?.info()?).ok_or(absent)?;
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"sysfs".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(Errno(libc::EMFILE));
    }
    // SAFETY: the text is readable for its length, and the descriptor is new.
    unsafe {
        libc::write(file, text.as_ptr().cast(), text.len());
        libc::lseek(file, 0, libc::SEEK_SET);
    }
    Ok(file)
}

/// Content of a sysfs attribute.
fn text(name: &str, info: &Info) -> Option<String> {
    let number = info.port_num().0;
    if let Some(entry) = name.strip_prefix(CLASS) {
        return match entry {
            "/abi_version" => Some(format!("{ABI_VERSION}\n")),
            "/umad0/ibdev" | "/issm0/ibdev" => Some(format!("{CA_NAME}\n")),
            "/umad0/port" | "/issm0/port" => Some(format!("{number}\n")),
            _ => None,
        };
    }
    let port = format!("/sys/class/infiniband/{CA_NAME}/ports/{number}/");
    let entry = name.strip_prefix(&port)?;
    Some(match entry.split_once('/').unwrap_or((entry, "")) {
        ("gids", index) => match index.parse::<usize>().ok()? {
            0 => format!("{}\n", info.gid()),
            _ => return None,
        },
        ("pkeys", index) => format!("{:#06x}\n", info.pkeys.get(index.parse::<usize>().ok()?)?.0),
        ("lid", "") => format!("{:#x}\n", info.port.lid.0),
        ("lid_mask_count", "") => format!("{}\n", info.port.lmc),
        ("sm_lid", "") => format!("{:#x}\n", info.port.sm_lid.0),
        ("sm_sl", "") => format!("{}\n", info.port.sm_sl.get()),
        ("state", "") => format!("{}: {}\n", info.state, state_name(info.state)),
        _ => return None,
    })
}

fn state_name(code: u8) -> &'static str {
    ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE"].get(usize::from(code)).unwrap_or(&"<unknown>")
}

/// ioctl(2).
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
    if request != REGISTER_AGENT2 {
        // SAFETY: the caller's own arguments, passed on.
        return unsafe { next::<Ioctl>(c"ioctl")(file, request, argument) };
    }
    // SAFETY: this ioctl's argument points at such a structure.
    let Some(wanted) = (unsafe { argument.cast::<RegisterRequest>().as_mut() }) else {
        return failed(Errno(libc::EFAULT));
    };
    let registration = Registration {
        class: MgmtClass(wanted.class),
        class_version: wanted.class_version,
        methods: u128::from(wanted.methods[0]) | u128::from(wanted.methods[1]) << 64,
        oui: wanted.oui,
        rmpp_version: wanted.rmpp_version,
        user_rmpp: wanted.flags & USER_RMPP != 0,
    };
    match Device::get().and_then(|device| device.register_socket(file, registration)) {
        Ok(id) => {
            wanted.id = id;
            0
        }
        Err(error) => failed(error),
    }
}

/// Device number of umad files, as on Linux, for the port of the node with this id.
fn device_number(node: &[u8]) -> (u32, u32) {
    // FNV-1a. Linux has 20 bits for the minor number.
    let hash = node
        .iter()
        .fold(0x811C_9DC5, |hash: u32, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (231, hash & 0xF_FFFF)
}

/// statx(2), by which Rust's standard library reads the attributes of files.
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut libc::statx,
) -> c_int {
    type Statx =
        unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    // SAFETY: a path is a C string.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes());
    let number = match name {
        Some(UMAD) => match Device::get() {
            Ok(device) => Some(device_number(device.node().as_bytes())),
            Err(error) => return failed(error),
        },
        Some([]) | None => socket::node_of(directory).map(|node| device_number(&node)),
        Some(_) => None,
    };
    let Some((major, minor)) = number else {
        // SAFETY: the caller's own arguments, passed on.
        return unsafe { next::<Statx>(c"statx")(directory, path, flags, mask, status) };
    };
    // SAFETY: all-zero bytes are valid for a struct of numbers.
    let mut shown: libc::statx = unsafe { std::mem::zeroed() };
    shown.stx_mask = libc::STATX_BASIC_STATS;
    shown.stx_mode = (libc::S_IFCHR | 0o600) as u16;
    (shown.stx_rdev_major, shown.stx_rdev_minor, shown.stx_nlink) = (major, minor, 1);
    // SAFETY: guaranteed by the caller.
    unsafe { status.write(shown) };
    0
}

/// Open directories of the class: stream, position, and the entry returned last.
static LISTINGS: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

/// opendir(3).
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    type Opendir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
    // SAFETY: a path is a C string.
    let is_class = !path.is_null()
        && unsafe { CStr::from_ptr(path) }.to_bytes().strip_suffix(b"/").map_or_else(
            // SAFETY: as above.
            || unsafe { CStr::from_ptr(path) }.to_bytes() == CLASS.as_bytes(),
            |name| name == CLASS.as_bytes(),
        );
    // Any existing directory can provide the stream.
    let path = if is_class { c"/".as_ptr() } else { path };
    // SAFETY: the caller's own arguments, passed on.
    let stream = unsafe { next::<Opendir>(c"opendir")(path) };
    if is_class && !stream.is_null() {
        let mut listings = LISTINGS.lock().unwrap_or_else(PoisonError::into_inner);
        if listings.len() < LISTINGS_MAX {
            // SAFETY: all-zero bytes are valid for a struct of numbers.
            let entry: libc::dirent64 = unsafe { std::mem::zeroed() };
            let entry = Box::into_raw(Box::new(entry));
            listings.push((stream as usize, 0, entry as usize));
        }
    }
    stream
}

/// readdir(3) as called by programs built for large files.
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(stream: *mut libc::DIR) -> *mut libc::dirent64 {
    type Readdir = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;
    let mut listings = LISTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, read, entry)) = listings.iter_mut().find(|(open, ..)| *open == stream as usize)
    else {
        drop(listings);
        // SAFETY: the caller's own arguments, passed on.
        return unsafe { next::<Readdir>(c"readdir64")(stream) };
    };
    let Some(name) = LISTED.get(*read) else { return std::ptr::null_mut() };
    *read += 1;
    let entry = *entry as *mut libc::dirent64;
    // SAFETY: it was made by opendir() and lives until closedir(); the names are short.
    unsafe {
        let to = &mut (*entry).d_name;
        for (to, from) in to.iter_mut().zip(name.to_bytes_with_nul()) {
            *to = *from as c_char;
        }
        (*entry).d_ino = *read as libc::ino64_t;
        (*entry).d_reclen = size_of::<libc::dirent64>() as u16;
        (*entry).d_type = libc::DT_LNK;
    }
    entry
}

/// closedir(3).
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(stream: *mut libc::DIR) -> c_int {
    type Closedir = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
    let mut listings = LISTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = listings.iter().position(|(open, ..)| *open == stream as usize) {
        let (_, _, entry) = listings.swap_remove(at);
        // SAFETY: it was made by opendir(), and is not used after this call.
        drop(unsafe { Box::from_raw(entry as *mut libc::dirent64) });
    }
    drop(listings);
    // SAFETY: the caller's own arguments, passed on.
    unsafe { next::<Closedir>(c"closedir")(stream) }
}

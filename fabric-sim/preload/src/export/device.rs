//! libibumad calls on devices and ports. There is one device, with the port that it is attached to.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Uncancelled, copy_str, fail, is_ours};
use crate::device::Device;
use crate::info::{CA_NAME, Info};
use crate::umad::Errno;

const NAME_LEN: usize = 20;
const PORTS_MAX: usize = 10;

/// `struct umad_port`.
#[repr(C)]
#[derive(Debug)]
pub struct Port {
    ca_name: [c_char; NAME_LEN],
    portnum: c_int,
    base_lid: c_uint,
    lmc: c_uint,
    sm_lid: c_uint,
    sm_sl: c_uint,
    state: c_uint,
    phys_state: c_uint,
    rate: c_uint,
    /// In network byte order, as are the GUIDs.
    capmask: u32,
    gid_prefix: u64,
    port_guid: u64,
    pkeys_size: c_uint,
    pkeys: *mut u16,
    link_layer: [c_char; NAME_LEN],
}

/// `struct umad_ca`.
#[repr(C)]
#[derive(Debug)]
pub struct Ca {
    ca_name: [c_char; NAME_LEN],
    node_type: c_uint,
    numports: c_int,
    fw_ver: [c_char; 20],
    ca_type: [c_char; 40],
    hw_ver: [c_char; 20],
    node_guid: u64,
    system_guid: u64,
    ports: [*mut Port; PORTS_MAX],
}

/// `struct umad_device_node`.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceNode {
    next: *mut DeviceNode,
    ca_name: *const c_char,
}

/// `struct umad_ca_pair`.
#[repr(C)]
#[derive(Debug)]
pub struct CaPair {
    smi_name: [c_char; NAME_LEN],
    smi_preferred_port: u32,
    gsi_name: [c_char; NAME_LEN],
    gsi_preferred_port: u32,
}

impl Port {
    /// Describes the port. The P_Key table is allocated with malloc(3).
    fn new(info: &Info) -> Result<Self, Errno> {
        let size = info.pkeys.len();
        // SAFETY: all-zero bytes are valid for a struct of numbers.
        let pkeys = unsafe { libc::calloc(size, size_of::<u16>()) }.cast::<u16>();
        if pkeys.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (i, pkey) in info.pkeys.iter().enumerate() {
            // SAFETY: `pkeys` has room for as many, and is aligned for them.
            unsafe { pkeys.add(i).write(pkey.0) };
        }
        let mut port = Self {
            ca_name: [0; NAME_LEN],
            portnum: info.port_num().0.into(),
            base_lid: info.port.lid.0.into(),
            lmc: info.port.lmc.into(),
            sm_lid: info.port.sm_lid.0.into(),
            sm_sl: info.port.sm_sl.get().into(),
            state: info.state.into(),
            phys_state: info.physical_state.into(),
            rate: info.rate_gbps,
            capmask: info.capability_mask.to_be(),
            gid_prefix: info.port.gid_prefix.to_be(),
            port_guid: info.port.guid.0.to_be(),
            pkeys_size: size as c_uint,
            pkeys,
            link_layer: [0; NAME_LEN],
        };
        copy_str(CA_NAME, &mut port.ca_name);
        copy_str("InfiniBand", &mut port.link_layer);
        Ok(port)
    }
}

/// Returns the device's description if it has this name.
///
/// # Safety
///
/// `ca_name` is null or a C string.
unsafe fn info(ca_name: *const c_char) -> Result<Info, Errno> {
    // SAFETY: guaranteed by the caller.
    if unsafe { is_ours(ca_name) } { Device::get()?.info() } else { Err(Errno(libc::ENODEV)) }
}

/// Initializes the library.
#[unsafe(no_mangle)]
pub extern "C" fn umad_init() -> c_int {
    0
}

/// Ends use of the library.
#[unsafe(no_mangle)]
pub extern "C" fn umad_done() -> c_int {
    0
}

/// Writes the names of up to `max` devices; returns their number.
///
/// # Safety
///
/// `cas` has room for `max` names of 20 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_cas_names(cas: *mut [c_char; NAME_LEN], max: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    if max < 1 {
        return 0;
    }
    match Device::get() {
        Ok(_) => {
            let mut name = [0; NAME_LEN];
            copy_str(CA_NAME, &mut name);
            // SAFETY: there is room for at least one name.
            unsafe { cas.write(name) };
            1
        }
        Err(error) => fail(error),
    }
}

/// Writes the GUIDs of all ports by port number, 0 where there is no port; returns their number.
///
/// # Safety
///
/// `ca_name` is null or a C string, `portguids` is null or has room for `max` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_ca_portguids(
    ca_name: *const c_char,
    portguids: *mut u64,
    max: c_int,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    let info = match unsafe { info(ca_name) } {
        Ok(info) => info,
        Err(error) => return fail(error),
    };
    if portguids.is_null() {
        return 0;
    }
    let last = usize::from(info.port_num().0);
    if usize::try_from(max).is_ok_and(|max| last >= max) {
        return fail(Errno(libc::ENOMEM));
    }
    for number in 0..=last {
        let guid = if number == last { info.port.guid.0.to_be() } else { 0 };
        // SAFETY: there is room for more than `last` numbers.
        unsafe { portguids.add(number).write(guid) };
    }
    last as c_int + 1
}

/// Describes a device.
///
/// # Safety
///
/// `ca_name` is null or a C string, `ca` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_ca(ca_name: *const c_char, ca: *mut Ca) -> c_int {
    let _uncancelled = Uncancelled::new();
    let fill = || {
        // SAFETY: guaranteed by the caller.
        let info = unsafe { info(ca_name) }?;
        let number = usize::from(info.port_num().0);
        if number >= PORTS_MAX {
            return Err(Errno(libc::EIO));
        }
        let facts = Port::new(&info)?;
        // SAFETY: all-zero bytes are valid for a struct of numbers and pointers.
        let port = unsafe { libc::calloc(1, size_of::<Port>()) }.cast::<Port>();
        if port.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: newly allocated, with the size and alignment of a port.
        unsafe { port.write(facts) };
        let mut device = Ca {
            ca_name: [0; NAME_LEN],
            node_type: info.node_type.into(),
            numports: number as c_int,
            fw_ver: [0; 20],
            ca_type: [0; 40],
            hw_ver: [0; 20],
            node_guid: info.node_guid.0.to_be(),
            system_guid: info.system_guid.0.to_be(),
            ports: [std::ptr::null_mut(); PORTS_MAX],
        };
        device.ports[number] = port;
        copy_str(CA_NAME, &mut device.ca_name);
        copy_str("1", &mut device.fw_ver);
        copy_str(&format!("{:x}", info.revision), &mut device.hw_ver);
        copy_str("simulator", &mut device.ca_type);
        // SAFETY: guaranteed by the caller.
        unsafe { ca.write(device) };
        Ok(())
    };
    fill().map_or_else(fail, |()| 0)
}

/// Frees what `umad_get_ca` allocated.
///
/// # Safety
///
/// `ca` is null or was filled by `umad_get_ca`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_release_ca(ca: *mut Ca) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(ca) = (unsafe { ca.as_mut() }) else { return -libc::ENODEV };
    for port in &mut ca.ports {
        // SAFETY: each pointer is null or points at a port allocated with malloc(3).
        unsafe {
            umad_release_port(*port);
            libc::free(port.cast::<c_void>());
        }
        *port = std::ptr::null_mut();
    }
    0
}

/// Describes a port; port 0 means any.
///
/// # Safety
///
/// `ca_name` is null or a C string, `port` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_port(
    ca_name: *const c_char,
    portnum: c_int,
    port: *mut Port,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    let fill = || {
        // SAFETY: guaranteed by the caller.
        let info = unsafe { info(ca_name) }?;
        if portnum > 0 && portnum != c_int::from(info.port_num().0) {
            return Err(Errno(libc::EIO));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { port.write(Port::new(&info)?) };
        Ok(())
    };
    fill().map_or_else(fail, |()| 0)
}

/// Frees what `umad_get_port` allocated.
///
/// # Safety
///
/// `port` is null or was filled by `umad_get_port` or `umad_get_ca`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_release_port(port: *mut Port) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(port) = (unsafe { port.as_mut() }) else { return -libc::ENODEV };
    // SAFETY: the pointer is null or was allocated with malloc(3).
    unsafe { libc::free(port.pkeys.cast()) };
    port.pkeys = std::ptr::null_mut();
    port.pkeys_size = 0;
    0
}

/// Writes the path of the issm file: opening it makes the process a subnet manager.
///
/// # Safety
///
/// `ca_name` is null or a C string, `path` has room for `max` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_issm_path(
    ca_name: *const c_char,
    _portnum: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    if !unsafe { is_ours(ca_name) } {
        return fail(Errno(libc::EINVAL));
    }
    let device = match Device::get() {
        Ok(device) => device,
        Err(error) => return fail(error),
    };
    let room = usize::try_from(max).unwrap_or(0);
    if room > 0 {
        // SAFETY: guaranteed by the caller. The bytes are only written.
        copy_str(&device.issm_path(), unsafe { std::slice::from_raw_parts_mut(path, room) });
    }
    0
}

/// Returns the devices as a list; free it with `umad_free_ca_device_list`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_get_ca_device_list() -> *mut DeviceNode {
    let _uncancelled = Uncancelled::new();
    if let Err(error) = Device::get() {
        fail(error);
        return std::ptr::null_mut();
    }
    let len = size_of::<DeviceNode>() + NAME_LEN;
    // SAFETY: all-zero bytes are valid for a struct of numbers and pointers.
    let node = unsafe { libc::calloc(1, len) }.cast::<DeviceNode>();
    if node.is_null() {
        fail(Errno(libc::ENOMEM));
        return node;
    }
    // SAFETY: the allocation has room for a name behind the node.
    unsafe {
        let name = node.add(1).cast::<c_char>();
        copy_str(CA_NAME, std::slice::from_raw_parts_mut(name, NAME_LEN));
        node.write(DeviceNode { next: std::ptr::null_mut(), ca_name: name });
    }
    node
}

/// Frees a device list.
///
/// # Safety
///
/// `head` is null or the head of a list that `umad_get_ca_device_list` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_free_ca_device_list(mut head: *mut DeviceNode) {
    while !head.is_null() {
        // SAFETY: a node of the list, allocated with malloc(3).
        unsafe {
            let next = (*head).next;
            libc::free(head.cast());
            head = next;
        }
    }
}

/// Sorts a list by name. Our list has one device, so there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn umad_sort_ca_device_list(_head: *mut *mut DeviceNode, _size: usize) -> c_int {
    0
}

/// Lists pairs of devices for subnet management and for other classes: our device for both. Returns
/// the number of pairs.
///
/// # Safety
///
/// `cas` has room for `max` pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_smi_gsi_pairs(cas: *mut CaPair, max: usize) -> c_int {
    if max == 0 {
        return 0;
    }
    // SAFETY: there is room for at least one pair.
    match unsafe { umad_get_smi_gsi_pair_by_ca_name(std::ptr::null(), 0, cas, 0) } {
        0 => 1,
        error => error,
    }
}

/// Returns the device that serves subnet management for the device with this name.
///
/// # Safety
///
/// `devname` is null or a C string, `ca_pair` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_smi_gsi_pair_by_ca_name(
    devname: *const c_char,
    portnum: u8,
    ca_pair: *mut CaPair,
    _enforce_smi: c_uint,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    let info = match unsafe { info(devname) } {
        Ok(info) if portnum == 0 || portnum == info.port_num().0 => info,
        Ok(_) => return fail(Errno(libc::ENODEV)),
        Err(error) => return fail(error),
    };
    let port = u32::from(info.port_num().0);
    let mut pair = CaPair {
        smi_name: [0; NAME_LEN],
        smi_preferred_port: port,
        gsi_name: [0; NAME_LEN],
        gsi_preferred_port: port,
    };
    copy_str(CA_NAME, &mut pair.smi_name);
    copy_str(CA_NAME, &mut pair.gsi_name);
    // SAFETY: guaranteed by the caller.
    unsafe { ca_pair.write(pair) };
    0
}

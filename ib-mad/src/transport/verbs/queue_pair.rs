//! A UD queue pair and its resources, through libibverbs: registered memory in slots, two
//! completion queues, and one completion channel for both. All `unsafe` code of verbs is here.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rdma_mummy_sys as ibv;

use super::{GRH_LEN, VerbsError};
use crate::types::{Gid, Lid, Qpn};
use crate::wire::MAD_LEN;

/// Posted receives; packets beyond them are lost, as the protocol allows.
pub(super) const RECEIVES: usize = 4096;
/// Limit of packets being sent.
pub(super) const SENDS: usize = 1024;
/// Bytes of a slot: GRH and MAD, on separate cache lines.
const SLOT_LEN: usize = 320;
/// Limit of cached address handles.
const HANDLES_MAX: usize = 4096;
/// Bit in the work request IDs of receives.
const RECEIVE: u64 = 1 << 63;

/// Key of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    pub(super) lid: Lid,
    pub(super) sl: u8,
    pub(super) path_bits: u8,
    /// Destination GID, local GID index, flow label, traffic class, hop limit.
    pub(super) grh: Option<(Gid, u8, u32, u8, u8)>,
}

/// A received packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    pub(super) slot: usize,
    pub(super) len: usize,
    pub(super) qpn: u32,
    pub(super) lid: u16,
    pub(super) sl: u8,
    pub(super) path_bits: u8,
    pub(super) has_grh: bool,
}

/// The queue pair. Fields are released in the order of `Drop`.
pub(super) struct QueuePair {
    context: *mut ibv::ibv_context,
    pd: *mut ibv::ibv_pd,
    channel: *mut ibv::ibv_comp_channel,
    received: *mut ibv::ibv_cq,
    sent: *mut ibv::ibv_cq,
    memory: NonNull<u8>,
    region: *mut ibv::ibv_mr,
    pair: *mut ibv::ibv_qp,
    port: u8,
    handles: HashMap<Destination, *mut ibv::ibv_ah>,
    /// Sends posted, and sends known to be completed, since the start.
    posted: u64,
    done: u64,
}

// SAFETY: libibverbs objects may be used by any thread; this one uses them by `&mut self`.
unsafe impl Send for QueuePair {}

/// Checks a call that returns a pointer, or null and sets errno.
fn made<T>(what: &'static str, pointer: *mut T) -> Result<*mut T, VerbsError> {
    match pointer.is_null() {
        true => Err(VerbsError::Setup { what, source: io::Error::last_os_error() }),
        false => Ok(pointer),
    }
}

/// Checks a call that returns 0, or an errno.
fn checked(status: i32) -> io::Result<()> {
    match status {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

const fn memory_layout() -> Layout {
    match Layout::from_size_align((RECEIVES + SENDS) * SLOT_LEN, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("the layout of the packet slots is invalid"),
    }
}

impl QueuePair {
    /// A queue pair at a port, ready to send and with all receives posted.
    pub(super) fn open(device: &str, port: u8, pkey_index: u16) -> Result<Self, VerbsError> {
        let context = open_device(device)?;
        let layout = memory_layout();
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        let mut this = Self {
            context,
            pd: ptr::null_mut(),
            channel: ptr::null_mut(),
            received: ptr::null_mut(),
            sent: ptr::null_mut(),
            memory,
            region: ptr::null_mut(),
            pair: ptr::null_mut(),
            port,
            handles: HashMap::new(),
            posted: 0,
            done: 0,
        };
        this.build(pkey_index)?;
        Ok(this)
    }

    fn build(&mut self, pkey_index: u16) -> Result<(), VerbsError> {
        let context = self.context;
        // SAFETY: the context is open.
        self.pd = made("a protection domain", unsafe { ibv::ibv_alloc_pd(context) })?;
        // SAFETY: the context is open.
        let channel = unsafe { ibv::ibv_create_comp_channel(context) };
        self.channel = made("a completion channel", channel)?;
        // SAFETY: the channel was just created; fcntl accesses no memory.
        let set = unsafe { libc::fcntl((*self.channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
        if set < 0 {
            return Err(io::Error::last_os_error().into());
        }
        let queue = |entries: usize| {
            // SAFETY: context and channel are open.
            let made_queue = unsafe {
                ibv::ibv_create_cq(context, entries as i32, ptr::null_mut(), self.channel, 0)
            };
            made("a completion queue", made_queue)
        };
        self.received = queue(RECEIVES)?;
        self.sent = queue(SENDS)?;
        let access = ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
        // SAFETY: the memory is allocated for this length, and freed after the region is
        // deregistered.
        self.region = made("a memory region", unsafe {
            ibv::ibv_reg_mr(self.pd, self.memory.as_ptr().cast(), memory_layout().size(), access)
        })?;
        // SAFETY: all-zero bytes are a valid value: null pointers and numbers.
        let mut wanted: ibv::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wanted.send_cq = self.sent;
        wanted.recv_cq = self.received;
        wanted.qp_type = ibv::ibv_qp_type::IBV_QPT_UD;
        wanted.cap.max_send_wr = SENDS as u32;
        wanted.cap.max_recv_wr = RECEIVES as u32;
        (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
        // SAFETY: domain and queues are open, and outlive the pair.
        let pair = unsafe { ibv::ibv_create_qp(self.pd, &raw mut wanted) };
        self.pair = made("a queue pair", pair)?;
        self.ready(pkey_index)?;
        let slots: Vec<usize> = (0..RECEIVES).collect();
        for some in slots.chunks(64) {
            self.post_receives(some)?;
        }
        self.arm_receives().map_err(VerbsError::Io)
    }

    /// Moves the queue pair through its states to RTS.
    fn ready(&mut self, pkey_index: u16) -> Result<(), VerbsError> {
        type Mask = ibv::ibv_qp_attr_mask;
        use ibv::ibv_qp_state::{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
        // SAFETY: all-zero bytes are a valid value: numbers only.
        let mut wanted: ibv::ibv_qp_attr = unsafe { std::mem::zeroed() };
        wanted.qkey = Qpn::GSI_QKEY;
        (wanted.port_num, wanted.pkey_index) = (self.port, pkey_index);
        let begin = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
        for (state, mask) in [
            (IBV_QPS_INIT, Mask::IBV_QP_STATE | begin),
            (IBV_QPS_RTR, Mask::IBV_QP_STATE),
            (IBV_QPS_RTS, Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN),
        ] {
            wanted.qp_state = state;
            // SAFETY: the pair is open, and `wanted` outlives the call.
            let status = unsafe { ibv::ibv_modify_qp(self.pair, &raw mut wanted, mask.0 as i32) };
            checked(status).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => VerbsError::QKey,
                _ => VerbsError::Setup { what: "the queue pair's state", source },
            })?;
        }
        Ok(())
    }

    /// The queue pair number.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the pair is open as long as `self` is.
        unsafe { (*self.pair).qp_num }
    }

    /// Descriptor that is readable when an armed queue has a completion.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor are open as long as `self` is.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Requests a notification of the next arrival.
    pub(super) fn arm_receives(&mut self) -> io::Result<()> {
        // SAFETY: the queue is open.
        checked(unsafe { ibv::ibv_req_notify_cq(self.received, 0) })
    }

    /// Requests a notification of the next completed send.
    pub(super) fn arm_sends(&mut self) -> io::Result<()> {
        // SAFETY: the queue is open.
        checked(unsafe { ibv::ibv_req_notify_cq(self.sent, 0) })
    }

    /// Reads pending notifications; returns whether any was for an arrival.
    pub(super) fn quench(&mut self) -> io::Result<bool> {
        let mut of_arrivals = false;
        loop {
            let (mut queue, mut owner) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is open and non-blocking; both places are writable.
            let status =
                unsafe { ibv::ibv_get_cq_event(self.channel, &raw mut queue, &raw mut owner) };
            if status != 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(of_arrivals),
                    _ => Err(error),
                };
            }
            of_arrivals |= queue == self.received;
            // SAFETY: one event of this queue was read, and is acknowledged once.
            unsafe { ibv::ibv_ack_cq_events(queue, 1) };
        }
    }

    /// Reads completions of received packets, up to the room given.
    pub(super) fn poll_receives(&mut self, arrivals: &mut [Arrival]) -> io::Result<usize> {
        let mut completions = EMPTY;
        let count = arrivals.len().min(completions.len());
        let got = poll(self.received, &mut completions[..count])?;
        for (arrival, done) in arrivals.iter_mut().zip(&completions[..got]) {
            succeeded(done)?;
            *arrival = Arrival {
                slot: (done.wr_id & !RECEIVE) as usize,
                len: done.byte_len as usize,
                qpn: done.src_qp,
                lid: done.slid,
                sl: done.sl,
                path_bits: done.dlid_path_bits,
                has_grh: done.wc_flags & ibv::ibv_wc_flags::IBV_WC_GRH.0 != 0,
            };
        }
        Ok(got)
    }

    /// Content of a slot that was received and is not posted again.
    pub(super) fn slot(&self, slot: usize) -> &[u8; GRH_LEN + MAD_LEN] {
        assert!(slot < RECEIVES, "slots are numbered by us");
        // SAFETY: within the memory; the device does not write to the slot before it is posted
        // again, which requires borrowing `self` mutably.
        unsafe { &*self.memory.as_ptr().add(slot * SLOT_LEN).cast() }
    }

    /// Posts slots for receiving again.
    pub(super) fn post_receives(&mut self, slots: &[usize]) -> Result<(), VerbsError> {
        // SAFETY: the region is registered.
        let key = unsafe { (*self.region).lkey };
        for &slot in slots {
            // SAFETY: `slot` is one that was received, hence within the memory.
            let at = unsafe { self.memory.as_ptr().add(slot * SLOT_LEN) };
            let length = (GRH_LEN + MAD_LEN) as u32;
            let mut place = ibv::ibv_sge { addr: at as u64, length, lkey: key };
            let mut request = ibv::ibv_recv_wr {
                wr_id: RECEIVE | slot as u64,
                next: ptr::null_mut(),
                sg_list: &raw mut place,
                num_sge: 1,
            };
            let mut bad = ptr::null_mut();
            // SAFETY: queue pair and request are valid; the device copies the request during the
            // call.
            let status = unsafe { ibv::ibv_post_recv(self.pair, &raw mut request, &raw mut bad) };
            checked(status).map_err(|source| VerbsError::Setup { what: "a receive", source })?;
        }
        Ok(())
    }

    /// Whether there is room for a packet. Polls for completions if there is none.
    pub(super) fn has_room(&mut self) -> io::Result<bool> {
        if self.posted - self.done < SENDS as u64 {
            return Ok(true);
        }
        self.reap()?;
        Ok(self.posted - self.done < SENDS as u64)
    }

    /// Reads completions of sent packets.
    fn reap(&mut self) -> io::Result<()> {
        let mut completions = EMPTY;
        loop {
            let got = poll(self.sent, &mut completions)?;
            for done in &completions[..got] {
                succeeded(done)?;
                self.done = done.wr_id;
            }
            if got < completions.len() {
                return Ok(());
            }
        }
    }

    /// Sends a MAD for which there is room. `false` if it must wait until others have been sent.
    pub(super) fn send(
        &mut self,
        mad: &[u8; MAD_LEN],
        destination: Destination,
        qpn: u32,
    ) -> io::Result<bool> {
        let Some(handle) = self.handle(destination)? else { return Ok(false) };
        let slot = RECEIVES + (self.posted % SENDS as u64) as usize;
        // SAFETY: within the memory, and no send uses the slot, as `has_room` has checked.
        let at = unsafe {
            let at = self.memory.as_ptr().add(slot * SLOT_LEN);
            ptr::copy_nonoverlapping(mad.as_ptr(), at, MAD_LEN);
            at
        };
        // SAFETY: the region is registered.
        let lkey = unsafe { (*self.region).lkey };
        let mut place = ibv::ibv_sge { addr: at as u64, length: MAD_LEN as u32, lkey };
        // SAFETY: all-zero bytes are a valid value: null pointers and zeros.
        let mut request: ibv::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = self.posted + 1;
        request.sg_list = &raw mut place;
        request.num_sge = 1;
        request.opcode = ibv::ibv_wr_opcode::IBV_WR_SEND;
        request.send_flags = ibv::ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.ud = ibv::ud_t { ah: handle, remote_qpn: qpn, remote_qkey: Qpn::GSI_QKEY };
        let mut bad = ptr::null_mut();
        // SAFETY: queue pair, request and handle are valid; the device copies the request in the
        // call.
        checked(unsafe { ibv::ibv_post_send(self.pair, &raw mut request, &raw mut bad) })?;
        self.posted += 1;
        Ok(true)
    }

    /// The address handle of a destination. `None` if there are too many, which can be destroyed
    /// once all sends that use them have completed.
    fn handle(&mut self, destination: Destination) -> io::Result<Option<*mut ibv::ibv_ah>> {
        if let Some(&handle) = self.handles.get(&destination) {
            return Ok(Some(handle));
        }
        if self.handles.len() >= HANDLES_MAX {
            self.reap()?;
            if self.posted != self.done {
                return Ok(None);
            }
            for (_, handle) in self.handles.drain() {
                // SAFETY: created by ibv_create_ah, destroyed once, and not used by any pending
                // send.
                unsafe { ibv::ibv_destroy_ah(handle) };
            }
        }
        // SAFETY: all-zero bytes are a valid value: numbers only.
        let mut wanted: ibv::ibv_ah_attr = unsafe { std::mem::zeroed() };
        wanted.dlid = destination.lid.0;
        wanted.sl = destination.sl;
        wanted.src_path_bits = destination.path_bits;
        wanted.port_num = self.port;
        if let Some((gid, index, flow_label, traffic_class, hop_limit)) = destination.grh {
            wanted.is_global = 1;
            wanted.grh.dgid = ibv::ibv_gid { raw: gid.0 };
            wanted.grh.sgid_index = index;
            (wanted.grh.flow_label, wanted.grh.traffic_class) = (flow_label, traffic_class);
            wanted.grh.hop_limit = hop_limit;
        }
        // SAFETY: the domain is open, and `wanted` outlives the call.
        let handle = unsafe { ibv::ibv_create_ah(self.pd, &raw mut wanted) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        self.handles.insert(destination, handle);
        Ok(Some(handle))
    }
}

/// Completions per call.
const POLL_MAX: usize = 64;
const EMPTY: [ibv::ibv_wc; POLL_MAX] =
    // SAFETY: all-zero bytes are a valid completion.
    unsafe { std::mem::zeroed() };

fn poll(queue: *mut ibv::ibv_cq, completions: &mut [ibv::ibv_wc]) -> io::Result<usize> {
    let count = completions.len() as i32;
    // SAFETY: the queue is open, and `completions` is writable for `count` of them.
    let got = unsafe { ibv::ibv_poll_cq(queue, count, completions.as_mut_ptr()) };
    usize::try_from(got).map_err(|_| io::Error::other("the completion queue failed"))
}

fn succeeded(done: &ibv::ibv_wc) -> io::Result<()> {
    match done.status {
        ibv::ibv_wc_status::IBV_WC_SUCCESS => Ok(()),
        status => Err(io::Error::other(format!("completion with status {status}"))),
    }
}

fn open_device(name: &str) -> Result<*mut ibv::ibv_context, VerbsError> {
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { ibv::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Err(VerbsError::NoLibrary(io::Error::last_os_error()));
    }
    let mut context = ptr::null_mut();
    let mut found = false;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices, each with a name that is a C string.
        let device = unsafe { *list.add(i) };
        // SAFETY: as above.
        let is_it = unsafe { CStr::from_ptr(ibv::ibv_get_device_name(device)) }.to_bytes()
            == name.as_bytes();
        if is_it {
            found = true;
            // SAFETY: the device is one of the list, which is freed below.
            context = unsafe { ibv::ibv_open_device(device) };
        }
    }
    // SAFETY: the list returned above, freed once.
    unsafe { ibv::ibv_free_device_list(list) };
    if !found {
        return Err(VerbsError::NoDevice(name.to_owned()));
    }
    made("the device", context)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Failures cannot be handled here. SAFETY: each object was created by the matching call, or
        // is null; users of another object are destroyed before it, and the memory last.
        unsafe {
            if !self.pair.is_null() {
                ibv::ibv_destroy_qp(self.pair);
            }
            for &handle in self.handles.values() {
                ibv::ibv_destroy_ah(handle);
            }
            if !self.region.is_null() {
                ibv::ibv_dereg_mr(self.region);
            }
            for queue in [self.sent, self.received] {
                if !queue.is_null() {
                    ibv::ibv_destroy_cq(queue);
                }
            }
            if !self.channel.is_null() {
                ibv::ibv_destroy_comp_channel(self.channel);
            }
            if !self.pd.is_null() {
                ibv::ibv_dealloc_pd(self.pd);
            }
            ibv::ibv_close_device(self.context);
            dealloc(self.memory.as_ptr(), memory_layout());
        }
    }
}

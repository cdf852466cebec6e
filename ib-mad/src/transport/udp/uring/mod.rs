//! The engine that uses io_uring: one multishot receive request with kernel-selected buffers, and
//! batches of sends submitted by one system call, which also collects received datagrams.
//!
//! The thread that owns the ring processes completions when it enters the kernel (`DEFER_TASKRUN`),
//! so they never interrupt it. Until then, arriving datagrams remain with the socket. Therefore
//! poll the socket: the ring's own descriptor does not report deferred work.
//!
//! Limits: [`PLACES`] datagrams being sent, [`Buffers::count`] receive buffers. When all of these
//! are in use, the receive request ends, further datagrams remain in the socket's buffer, and the
//! next call arms the request again.

mod buffers;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::types::Fixed;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use self::buffers::{Buffers, Filled, GROUP};
use super::train::{Outgoing, TRAIN_MAX, Train, next_train};
use super::{UdpCounters, is_fatal, is_fault_of_train};
use crate::transport::Packet;
use crate::transport::mmsg::Headers;

/// Limit of datagrams being sent.
const PLACES: usize = 512;
/// Requests submitted per system call.
const SUBMISSIONS: u32 = 256;
/// Limit of pending completions: one per datagram sent, one per buffer filled, and ends of
/// receiving.
const COMPLETIONS: u32 = 1024;

/// Index of the socket among the ring's registered files.
const SOCKET: Fixed = Fixed(0);
/// User data of the receive request; send requests are identified by [`Sent`].
const RECEIVE: u64 = u64::MAX;

/// A ring, and the buffers of both directions.
pub(super) struct Uring {
    /// Dropped before the memory that requests refer to.
    ring: IoUring,
    buffers: Buffers,
    template: Box<libc::msghdr>,
    outgoing: Outgoing,
    headers: Headers,
    /// Places in use; they are free again when no send is in progress.
    taken: usize,
    /// Send requests in progress.
    under_way: usize,
    /// Filled buffers, in order.
    filled: VecDeque<Filled>,
    /// The train being copied out, in the first of them.
    train: Option<Train>,
    is_started: bool,
    /// Whether the receive request is active.
    is_armed: bool,
    is_drained: bool,
    /// Whether runs of packets to one peer are sent as one train.
    trains: bool,
}

// SAFETY: the raw pointers of `template` are null.
unsafe impl Send for Uring {}

/// The train that a completion belongs to.
#[derive(Clone, Copy)]
struct Sent {
    first: usize,
    len: usize,
}

impl Sent {
    fn name(self) -> u64 {
        (self.first | self.len << 32) as u64
    }

    fn named(name: u64) -> Self {
        Self { first: name as u32 as usize, len: (name >> 32) as usize }
    }
}

impl Uring {
    /// A ring for `socket`, which must stay open as long. It belongs to the thread that first
    /// receives or sends. Requires Linux 6.1.
    pub(super) fn new(socket: BorrowedFd<'_>, trains: bool, token: u64) -> io::Result<Self> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_r_disabled()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        ring.submitter().register_files(&[socket.as_raw_fd()])?;
        let buffers = Buffers::register(&ring.submitter(), trains)?;
        Ok(Self {
            filled: VecDeque::with_capacity(buffers.count()),
            ring,
            buffers,
            template: Box::new(Buffers::template()),
            outgoing: Outgoing::new(PLACES, token),
            headers: Headers::new(PLACES),
            taken: 0,
            under_way: 0,
            train: None,
            is_started: false,
            is_armed: false,
            is_drained: false,
            trains,
        })
    }

    /// Whether runs of packets to one peer are sent as one train; not if they cannot leave this
    /// host.
    pub(super) fn sends_trains(&self) -> bool {
        self.trains
    }

    pub(super) fn receive(
        &mut self,
        batch: &mut [Packet],
        counters: &mut UdpCounters,
    ) -> io::Result<usize> {
        self.start()?;
        self.look(counters)?;
        let mut handed = self.hand_out(batch, counters);
        self.is_drained = false;
        // Answer received packets first: the call that sends the answers receives again.
        if handed == 0 {
            self.enter()?;
            self.look(counters)?;
            counters.receives += u64::from(!self.filled.is_empty());
            // Without a request to receive, as when buffers were lacking, packets stay unread.
            self.is_drained = self.filled.is_empty() && self.is_armed;
            handed = self.hand_out(batch, counters);
        }
        Ok(handed)
    }

    /// Whether all that has arrived was handed out when `receive` last entered the kernel.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Queues packets as far as there is room. Packets that do not fit into the socket's buffer
    /// wait in the kernel.
    pub(super) fn send(
        &mut self,
        batch: &[Packet],
        counters: &mut UdpCounters,
    ) -> io::Result<usize> {
        self.start()?;
        let mut done = 0;
        loop {
            done += self.push_trains(&batch[done..], counters)?;
            if self.ring.submission().is_empty() {
                return Ok(done);
            }
            counters.sends += 1;
            self.enter()?;
            self.look(counters)?;
        }
    }

    /// Queues packets until places or the submission queue are full; returns their number.
    fn push_trains(&mut self, batch: &[Packet], counters: &mut UdpCounters) -> io::Result<usize> {
        if self.under_way == 0 {
            self.taken = 0;
        }
        let mut done = 0;
        while done < batch.len() && !self.ring.submission().is_full() {
            let room = PLACES - self.taken;
            let train_max = if self.trains { TRAIN_MAX.min(room) } else { room.min(1) };
            match next_train(&batch[done..], train_max) {
                None => {
                    counters.refused += 1;
                    done += 1;
                }
                Some((_, 0)) => break,
                Some((peer, len)) => {
                    let sent = Sent { first: self.taken, len };
                    self.outgoing.write(sent.first, &batch[done..done + len], peer);
                    self.push_send(sent)?;
                    self.taken += len;
                    done += len;
                }
            }
        }
        Ok(done)
    }

    fn push_send(&mut self, sent: Sent) -> io::Result<()> {
        let header = &mut self.headers.0[sent.first].msg_hdr;
        *header = self.outgoing.header(sent.first, sent.len);
        let request = opcode::SendMsg::new(SOCKET, header).flags(libc::MSG_NOSIGNAL as u32);
        // SAFETY: the header and its buffers stay unchanged until no send is in progress.
        unsafe { self.push(&request.build().user_data(sent.name()))? };
        self.under_way += 1;
        Ok(())
    }

    /// Appends to the submission queue, which is submitted first if it is full.
    ///
    /// # Safety
    ///
    /// Memory that `request` refers to must stay valid until it completes.
    unsafe fn push(&mut self, request: &squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.submission().push(request) }
            .map_err(|_| io::Error::other("the kernel accepts no requests from the io_uring"))
    }

    /// Binds the ring to this thread, at the first use.
    fn start(&mut self) -> io::Result<()> {
        if !self.is_started {
            self.ring.submitter().register_enable_rings()?;
            self.is_started = true;
        }
        Ok(())
    }

    /// Enters the kernel: submits requests and processes completions.
    fn enter(&mut self) -> io::Result<()> {
        if !self.is_armed {
            let request = opcode::RecvMsgMulti::new(SOCKET, &raw const *self.template, GROUP);
            // SAFETY: the template lives as long as the ring.
            unsafe { self.push(&request.build().user_data(RECEIVE))? };
            self.is_armed = true;
        }
        self.submit()
    }

    fn submit(&mut self) -> io::Result<()> {
        let waiting = self.ring.submission().len() as u32;
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: without an argument the call refers to the ring only.
        let entered =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(waiting, 0, flags, None) };
        match entered {
            Ok(_) => Ok(()),
            // Interrupted, or completions must be read first: the caller retries.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Err(io::Error::other(
                "only the thread that used an io_uring first can use it; this is another",
            )),
            Err(error) => Err(error),
        }
    }

    /// Processes completed requests.
    fn look(&mut self, counters: &mut UdpCounters) -> io::Result<()> {
        loop {
            let Some(completion) = self.ring.completion().next() else { return Ok(()) };
            match completion.user_data() {
                RECEIVE => self.note_received(&completion, counters)?,
                name => self.note_sent(Sent::named(name), completion.result(), counters)?,
            }
        }
    }

    fn note_received(
        &mut self,
        completion: &cqueue::Entry,
        counters: &mut UdpCounters,
    ) -> io::Result<()> {
        let (flags, result) = (completion.flags(), completion.result());
        self.is_armed &= cqueue::more(flags);
        match (usize::try_from(result), cqueue::buffer_select(flags)) {
            (Ok(len), Some(buffer)) => self.filled.push_back(Filled { buffer, len }),
            (Ok(_), None) => {}
            (Err(_), _) if -result == libc::ENOBUFS => counters.starved += 1,
            (Err(_), _) => {
                let error = io::Error::from_raw_os_error(-result);
                if is_fatal(&error) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn note_sent(&mut self, sent: Sent, result: i32, counters: &mut UdpCounters) -> io::Result<()> {
        self.under_way -= 1;
        if result >= 0 {
            counters.sent += sent.len as u64;
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(-result);
        if is_fatal(&error) {
            return Err(error);
        }
        if sent.len > 1 && is_fault_of_train(&error) {
            // Datagrams without segmentation may pass.
            self.trains = false;
            self.outgoing.take_apart(sent.first, sent.len);
            for first in sent.first..sent.first + sent.len {
                self.push_send(Sent { first, len: 1 })?;
            }
        } else {
            // An error of the peer or its network.
            counters.refused += sent.len as u64;
        }
        Ok(())
    }

    /// Copies received packets into `batch`; returns their number.
    fn hand_out(&mut self, batch: &mut [Packet], counters: &mut UdpCounters) -> usize {
        let mut done = 0;
        while done < batch.len()
            && let Some(&filled) = self.filled.front()
        {
            // SAFETY: the kernel has completed this buffer, and it has not been passed back.
            let opened = unsafe { self.buffers.open(filled) };
            let is_all = opened.is_none_or(|(train, bytes)| {
                let mut train = self.train.take().unwrap_or(train);
                let (handed, is_all) = train.hand_out(bytes, &mut batch[done..], counters);
                done += handed;
                self.train = (!is_all).then_some(train);
                is_all
            });
            if is_all {
                self.filled.pop_front();
                self.buffers.give_back(filled.buffer);
            }
        }
        done
    }
}

impl Drop for Uring {
    /// Waits until the kernel no longer uses our memory.
    fn drop(&mut self) {
        if self.is_started {
            // It fails on another thread only; then requests make no progress until the ring is
            // closed, since only its own thread processes them.
            let all = io_uring::types::CancelBuilder::any();
            let _ = self.ring.submitter().register_sync_cancel(None, all);
            // Releases the socket, which would otherwise be closed some time after the ring.
            let _ = self.submit();
            let _ = self.ring.submitter().unregister_files();
        }
    }
}

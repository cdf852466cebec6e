//! The kernel's MAD layer as programs see it through libibumad: agents, transaction ids, timeouts
//! and retries, RMPP in both directions, receive queues.
//!
//! This module never sends, sleeps or reads a clock. The socket is in `device`, libibumad's
//! functions are in `export`.
//!
//! An agent's number is in bits 32 to 47 of the transaction ids of its requests. Linux uses all of
//! the upper half, but ibsim overwrites the top 16 bits.

mod agents;
mod inbox;
mod requests;
mod transfers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, PKey, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass, Status};
use ib_mad::wire::sa::{self, SaMad};

pub use self::agents::{AGENTS_MAX, Registration};
pub use self::inbox::MESSAGES_MAX;

use self::agents::{Agent, Agents, is_response};
use self::inbox::Inbox;
use self::requests::{Key, Request, Requests};
use self::transfers::{Event, Transfers};
use crate::umad::{Errno, Header};

/// An open port: the number that its program knows it by.
pub type FileId = i32;

/// Limit of queued outgoing packets.
const OUT_MAX: usize = 1 << 16;
/// Minimum length of a send in bytes: the MAD and RMPP headers.
const SEND_MIN: usize = 36;
/// Bytes of the MAD that are returned with a send that timed out.
const REPORT_LEN: usize = 24;
/// Bit in the status of directed-route responses.
const DIRECTION: u16 = 0x8000;

/// Numbers of discarded packets and messages, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that no agent registered for.
    pub unclaimed: u64,
    /// Answers that match no request.
    pub unmatched: u64,
    /// Packets that were returned undelivered; the sender's timeout keeps running.
    pub bounced: u64,
    /// Messages dropped because a queue was full.
    pub overflowed: u64,
}

/// The open ports of a process, with their agents, sends and transfers.
pub struct Stack {
    agents: Agents,
    files: BTreeMap<FileId, Inbox>,
    requests: Requests,
    transfers: Transfers,
    out: VecDeque<Packet>,
    pkeys: Vec<PKey>,
    gid: Gid,
    counters: Counters,
}

impl Stack {
    /// A stack without open ports. `seed` must differ between processes.
    pub fn new(seed: u32) -> Self {
        Self {
            agents: Agents::new(seed),
            files: BTreeMap::new(),
            requests: Requests::new(seed),
            transfers: Transfers::default(),
            out: VecDeque::new(),
            pkeys: vec![PKey::DEFAULT_FULL],
            gid: Gid::ZERO,
            counters: Counters::default(),
        }
    }

    /// Numbers of packets and messages discarded so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sets the port's P_Key table and GID.
    pub fn set_port(&mut self, pkeys: &[PKey], gid: Gid) {
        self.pkeys = pkeys.to_vec();
        self.gid = gid;
    }

    /// Opens a port.
    pub fn open(&mut self, file: FileId) {
        self.files.insert(file, Inbox::default());
    }

    /// Closes a port with its agents and their pending sends. Returns the classes they had
    /// registered.
    pub fn close(&mut self, file: FileId) -> Vec<MgmtClass> {
        let agents: Vec<(u16, Agent)> = self.agents.of_file(file).collect();
        for (_, agent) in &agents {
            self.drop_agent(file, agent.id);
        }
        self.files.remove(&file);
        agents.iter().map(|(_, agent)| agent.registration.class).collect()
    }

    /// Registers an agent; returns its id.
    pub fn register(&mut self, file: FileId, registration: Registration) -> Result<u32, Errno> {
        if !self.files.contains_key(&file) {
            return Err(Errno(libc::EBADF));
        }
        self.agents.register(file, registration)
    }

    /// Removes an agent and its pending sends. Returns its class.
    pub fn unregister(&mut self, file: FileId, agent: u32) -> Result<MgmtClass, Errno> {
        self.drop_agent(file, agent).ok_or(Errno(libc::EINVAL))
    }

    /// Methods of a class whose requests are to be delivered to this process.
    pub fn methods(&self, class: MgmtClass) -> u128 {
        self.agents.methods(class)
    }

    fn drop_agent(&mut self, file: FileId, id: u32) -> Option<MgmtClass> {
        let class = self.agents.find(file, id)?.1.registration.class;
        let number = self.agents.unregister(file, id)?;
        self.requests.cancel(number);
        self.transfers.cancel(number);
        Some(class)
    }

    /// Sends a message: one MAD, or several by RMPP if its header says so.
    pub fn send(
        &mut self,
        now: Instant,
        file: FileId,
        header: Header,
        message: &[u8],
    ) -> Result<(), Errno> {
        let invalid = Errno(libc::EINVAL);
        let (number, agent) = self.agents.find(file, header.agent_id()).ok_or(Errno(libc::EIO))?;
        let mut mad = Box::new([0; MAD_LEN]);
        let first = message.len().min(MAD_LEN);
        mad[..first].copy_from_slice(&message[..first]);
        let mut view = SaMad::new(&mut *mad);
        let class = view.header().mgmt_class();
        let is_long =
            agent.leaves_rmpp_to_us() && class == MgmtClass::SUBN_ADM && view.rmpp().is_active();
        let least = if class == MgmtClass::SUBN_ADM { sa::HEADER_LEN } else { SEND_MIN };
        if message.len() < least || message.len() > MAD_LEN && !is_long {
            return Err(invalid);
        }
        if !is_response(&view.header()) {
            let low = view.header().tid() & u64::from(u32::MAX);
            view.header_mut().set_tid(u64::from(number) << 32 | low);
        }
        let address = self.address(&header, agent.registration.class)?;
        let key = Key::of(&view.header());
        if self.requests.contains(&key) || self.transfers.is_sending(key, address.lid) {
            return Err(invalid);
        }
        let request = Request { agent: number, header, address, mad, is_over: false };
        if !key.response {
            // A repeated request gets its response even if an earlier response came too late.
            self.transfers.forget_answer(&request);
        }
        if is_long {
            let mut whole = message.to_vec();
            whole[..MAD_LEN.min(first)].copy_from_slice(&request.mad[..first]);
            return self.transfers.start(now, request, &whole);
        }
        if header.timeout_ms() > 0 {
            return self.requests.start(request);
        }
        if self.out.len() >= OUT_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        self.out.push_back(Packet::new(*request.mad, request.address));
        Ok(())
    }

    /// Reads one message into `buffer`, behind its header; returns the number of bytes. Errors:
    /// EAGAIN if none is queued, EINVAL or ENOSPC if the buffer is too short.
    pub fn receive(&mut self, file: FileId, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.files.get_mut(&file).ok_or(Errno(libc::EBADF))?.read(buffer)
    }

    /// Handles a packet from the fabric.
    pub fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        if packet.carrier.undelivered != 0 {
            self.counters.bounced += 1;
            return;
        }
        let view = SaMad::new(&packet.mad);
        let header = view.header();
        let Some((number, agent)) = self.agents.receiver(&packet.mad) else {
            return self.refuse(packet);
        };
        let class = header.mgmt_class();
        if agent.leaves_rmpp_to_us() && class == MgmtClass::SUBN_ADM && view.rmpp().is_active() {
            if let Some(event) = self.transfers.handle_packet(now, number, packet) {
                self.handle_event(event);
            }
            return;
        }
        self.deliver(number, &packet.address, packet.mad.to_vec());
    }

    /// The next packet to send. Call until it returns `None`, or while packets can be sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        let next = self.out.pop_front();
        next.or_else(|| self.requests.poll_transmit(now))
            .or_else(|| self.transfers.poll_transmit(now))
    }

    /// When `handle_timeout` is due. Any other `&mut self` call may change it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.requests.poll_timeout().into_iter().chain(self.transfers.poll_timeout()).min()
    }

    /// Retries sends that are unanswered, and returns those without retries left to their programs.
    pub fn handle_timeout(&mut self, now: Instant) {
        for event in self.transfers.handle_timeout(now) {
            self.handle_event(event);
        }
        self.requests.handle_timeout(now);
        while let Some(request) = self.requests.poll_expired() {
            self.transfers.forget_outgoing(request.key(), request.address.lid);
            self.report(&request);
        }
    }

    /// A port that has become readable, or no longer is. Call until it returns `None`.
    pub fn poll_readable(&mut self) -> Option<(FileId, bool)> {
        let changed = |inbox: &Inbox| inbox.is_readable() != inbox.reported_readable;
        let (&file, inbox) = self.files.iter_mut().find(|(_, inbox)| changed(inbox))?;
        inbox.reported_readable = inbox.is_readable();
        Some((file, inbox.reported_readable))
    }

    fn address(&self, header: &Header, class: MgmtClass) -> Result<Address, Errno> {
        let is_smp = matches!(class, MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE);
        let local_qpn = if is_smp { Qpn::SMI } else { Qpn::GSI };
        let index = usize::from(header.pkey_index());
        let pkey = *self.pkeys.get(index).ok_or(Errno(libc::EINVAL))?;
        if header.grh_present() && header.gid_index() != 0 {
            return Err(Errno(libc::ENODATA));
        }
        Ok(header.address(local_qpn, pkey, self.gid))
    }

    /// Delivers a message to its agent if it is a request, or matches a pending one.
    fn deliver(&mut self, number: u16, from: &Address, mad: Vec<u8>) {
        let Some(agent) = self.agents.get(number) else { return };
        let Ok(header) = MadHeader::new(&mad[..]) else { return };
        if is_response(&header) {
            let key = Key::answered_by(&header);
            // The response may arrive before the last ACK of a long request.
            let mut expected = self.requests.handle_answer(&key, from);
            expected |= self.transfers.forget_outgoing(key, from.lid);
            // A program that does RMPP itself gets every segment.
            let is_segment = agents::may_be_long(header.mgmt_class())
                && !agent.leaves_rmpp_to_us()
                && mad.first_chunk().is_some_and(|mad| SaMad::new(mad).rmpp().is_active());
            if !expected && !is_segment {
                self.counters.unmatched += 1;
                return;
            }
        }
        let base = from.pkey.base();
        let index = self.pkeys.iter().position(|pkey| pkey.base() == base).unwrap_or(0);
        let header = Header::received(agent.id, from, index as u16, mad.len());
        self.push(agent.file, header, mad);
    }

    /// Returns an unanswered send to its program.
    fn report(&mut self, request: &Request) {
        let Some(agent) = self.agents.get(request.agent) else { return };
        let mut header = request.header;
        header.set_status(libc::ETIMEDOUT as u32);
        self.push(agent.file, header, request.mad[..REPORT_LEN].to_vec());
    }

    fn push(&mut self, file: FileId, header: Header, mad: Vec<u8>) {
        let taken = self.files.get_mut(&file).is_none_or(|inbox| inbox.push(header, mad));
        self.counters.overflowed += u64::from(!taken);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Arrived(agent, from, message) => self.deliver(agent, &from, message),
            Event::Sent(request) if request.header.timeout_ms() > 0 => {
                let key = request.key();
                // The table is full: time out immediately.
                if self.requests.start(request.clone()).is_err() {
                    self.transfers.forget_outgoing(key, request.address.lid);
                    self.report(&request);
                }
            }
            Event::TimedOut(request) => self.report(&request),
            // Linux does not report this to any agent.
            Event::Sent(_) | Event::Ended => {}
        }
    }

    /// Answers a Get() or Set() that no agent registered for, as the kernel does.
    fn refuse(&mut self, packet: &Packet) {
        self.counters.unclaimed += 1;
        let mut mad = packet.mad;
        let mut view = SaMad::new(&mut mad);
        let header = view.header();
        let (method, class) = (header.method(), header.mgmt_class());
        if !matches!(method, Method::GET | Method::SET) || self.out.len() >= OUT_MAX {
            return;
        }
        let mut status = Status::UNSUPPORTED_METHOD_ATTRIBUTE;
        if class == MgmtClass::SUBN_DIRECTED_ROUTE {
            status.0 |= DIRECTION;
        }
        view.header_mut().set_method(Method::GET_RESP).set_status(status);
        self.out.push_back(Packet::new(mad, packet.address));
    }
}

#[cfg(test)]
mod tests;

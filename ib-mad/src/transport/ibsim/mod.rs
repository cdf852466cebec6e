//! A client of ibsim's socket protocol, as stock `ibsim` and our `ibfabric` serve it.
//!
//! What to know about the fabric behind it:
//!
//! - It replaces the top 16 bits of a request's TransactionID by the client's slot, in the packet
//!   that arrives as in the answer. Match answers by the low 48 bits.
//! - Packets carry neither SL nor P_Key nor GRH: those of received ones are defaults, those of
//!   sent ones are ignored.
//! - A MAD that cannot be delivered comes back to its sender with [`Address::undelivered`] set.
//! - The queue to each side holds as much as the sender's socket buffer, some 200 packets, and ibsim
//!   serves nobody while one of its clients does not read. So receive whenever there is something
//!   to receive, also between two attempts to send.
//!
//! What is not here: the layouts ([`protocol`]) and the control socket (`control`).

mod control;
pub mod protocol;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::time::Duration;

use self::control::Sockets;
use self::protocol::{
    CONTROL_DATA_LEN, ConnectData, ControlKind, MethodsData, NODE_NAME_MAX, PACKET_LEN, SimHeader,
    SimHeaderRepr, accepted_classes, declare_classes,
};
use super::mmsg::{self, Headers, Vectors};
use super::{Address, LocalPort, Malformed, Packet, Transport};
use crate::types::{Lid, PKey, PortNum, Qpn};
use crate::wire::MAD_LEN;
use crate::wire::attribute::{NodeInfo, NodeType, PortInfo, PortState};
use crate::wire::mad::{MadHeader, MgmtClass};

/// Packets that one system call moves.
const BATCH_MAX: usize = 64;
/// Packets kept that arrive while a control request waits for its answer.
const STASH_MAX: usize = 4096;
const HEADER_LEN: usize = SimHeader::<()>::LEN;

/// Where and as what to attach.
#[derive(Clone, Debug)]
pub struct IbsimOptions {
    /// Base of the server's socket names.
    pub socket: String,
    /// Identifier or description of the node to attach to; `None` for the server's default.
    pub node: Option<String>,
    /// Which requests to receive.
    pub role: Role,
    /// A QP above 1 whose packets to receive as well. At stock ibsim the only way to be sent
    /// requests on a node whose QP0 and QP1 belong to another client.
    pub qpn: Option<Qpn>,
    /// The id of an earlier client of the same owner, to be thrown out if it was killed: it would
    /// go on holding its slot and its requests.
    pub stale_client: Option<ClientId>,
    /// How long the server may take to answer a control request.
    pub timeout: Duration,
}

impl Default for IbsimOptions {
    /// A client of `IBSIM_SOCKNAME` at `SIM_HOST`, as libumad2sim has it.
    fn default() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            socket: variable("IBSIM_SOCKNAME").unwrap_or_else(|| "sim".to_owned()),
            node: variable("SIM_HOST"),
            role: Role::Client,
            qpn: None,
            stale_client: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Which requests a client receives. Answers to its own reach every client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// None.
    Client,
    /// Those of subnet administration. Stock ibsim delivers SMPs for SMInfo and traps too.
    Responder,
    /// Those of subnet management.
    Manager {
        /// And those of subnet administration. Stock ibsim delivers them in any case.
        sa: bool,
    },
}

impl Role {
    fn classes(self) -> &'static [MgmtClass] {
        const SUBN: MgmtClass = MgmtClass::SUBN_LID_ROUTED;
        const SUBN_DR: MgmtClass = MgmtClass::SUBN_DIRECTED_ROUTE;
        match self {
            Self::Client => &[],
            Self::Responder => &[MgmtClass::SUBN_ADM],
            Self::Manager { sa: false } => &[SUBN, SUBN_DR],
            Self::Manager { sa: true } => &[SUBN, SUBN_DR, MgmtClass::SUBN_ADM],
        }
    }
}

/// What a client is known by: kept by its owner, so that a successor can throw it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Its slot at the server.
    pub slot: u32,
    /// The number in its socket names.
    pub number: u32,
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.slot, self.number)
    }
}

/// Text that is not a client id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an ibsim client id, SLOT:NUMBER")]
pub struct ParseClientIdError(pub String);

impl FromStr for ClientId {
    type Err = ParseClientIdError;

    fn from_str(text: &str) -> Result<Self, ParseClientIdError> {
        let parse = || {
            let (slot, number) = text.trim().split_once(':')?;
            Some(Self { slot: slot.parse().ok()?, number: number.parse().ok()? })
        };
        parse().ok_or_else(|| ParseClientIdError(text.to_owned()))
    }
}

/// Why a client could not attach, or a control request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IbsimError {
    /// Nobody is bound to the server's name.
    #[error(
        "no ibsim answers at socket '{socket}'; start `ibfabric serve NET` or `ibsim`, or set --socket"
    )]
    NoServer {
        /// Base of its names.
        socket: String,
    },
    /// The server is there and silent.
    #[error("ibsim at socket '{socket}' does not answer; is another of its clients stopped?")]
    NoAnswer {
        /// Base of its names.
        socket: String,
    },
    /// The base of the socket names is too long, or has a NUL byte.
    #[error("'{socket}' cannot be the name of a socket; at most 80 characters")]
    SocketName {
        /// As given.
        socket: String,
    },
    /// No such node.
    #[error("node '{node}' is not in the net file")]
    UnknownNode {
        /// As given.
        node: String,
    },
    /// Another client receives the requests that this one wants.
    #[error("another SM/SA is attached to node {node}")]
    Taken {
        /// The node's identifier.
        node: String,
    },
    /// All of the server's client slots are in use.
    #[error("ibsim at socket '{socket}' has no room for another client (stock ibsim serves 10)")]
    NoSlot {
        /// Base of its names.
        socket: String,
    },
    /// Refused though it ought to work.
    #[error("ibsim refused control request {0}")]
    Refused(u32),
    /// The system's error.
    #[error("ibsim socket: {0}")]
    Io(#[from] io::Error),
}

impl IbsimError {
    /// The error; where nobody answers, with where the name of the sockets comes from. `variable` is
    /// what IBSIM_SOCKNAME holds.
    pub fn with_origin(&self, variable: Option<&str>) -> String {
        let Self::NoServer { socket } = self else { return self.to_string() };
        let origin = match variable.filter(|name| !name.is_empty()) {
            None if socket == "sim" => "the default, since IBSIM_SOCKNAME is not set".to_owned(),
            None => "that of --socket; IBSIM_SOCKNAME is not set".to_owned(),
            Some(name) if name == socket => "from IBSIM_SOCKNAME".to_owned(),
            Some(name) => format!("that of --socket, though IBSIM_SOCKNAME is '{name}'"),
        };
        format!("{self}. The name is {origin}; it has to be the server's")
    }
}

/// What has passed through a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsimCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received, those that came back included.
    pub received: u64,
    /// Packets that came back undelivered.
    pub undelivered: u64,
    /// Datagrams that were no packets.
    pub malformed: u64,
    /// Packets dropped since too many arrived during a control request.
    pub overflowed: u64,
}

/// An attached client. Detaches when dropped.
pub struct Ibsim {
    sockets: Sockets,
    slot: u32,
    node: String,
    is_sm: bool,
    lid: Lid,
    lmc: u8,
    stash: VecDeque<Packet>,
    spare: Box<[Packet]>,
    buffers: Buffers,
    counters: IbsimCounters,
}

struct Buffers {
    sim: Box<[[u8; HEADER_LEN]]>,
    vectors: Vectors<2>,
    headers: Headers,
}

impl Ibsim {
    /// Attaches to a node.
    pub fn connect(options: &IbsimOptions) -> Result<Self, IbsimError> {
        if let Some(node) = &options.node
            && node.len() > NODE_NAME_MAX
        {
            return Err(IbsimError::UnknownNode { node: node.clone() });
        }
        let sockets = Sockets::open(&options.socket, options.timeout)?;
        let mut this = Self {
            sockets,
            slot: 0,
            node: String::new(),
            is_sm: false,
            lid: Lid::NONE,
            lmc: 0,
            stash: VecDeque::new(),
            spare: vec![Packet::default(); BATCH_MAX].into_boxed_slice(),
            buffers: Buffers {
                sim: vec![[0; HEADER_LEN]; BATCH_MAX].into_boxed_slice(),
                vectors: Vectors::new(BATCH_MAX),
                headers: Headers::new(BATCH_MAX),
            },
            counters: IbsimCounters::default(),
        };
        // Dropping what is not attached would detach whoever holds slot 0.
        let slot = match this.attach_anyhow(options) {
            Ok(slot) => slot,
            Err(error) => {
                this.slot = u32::MAX;
                return Err(error);
            }
        };
        this.slot = slot;
        if !options.role.classes().is_empty() {
            this.claim_requests(options)?;
        }
        this.sockets.connect_data(this.slot)?;
        this.local_port()?;
        Ok(this)
    }

    /// What this client is known by at the server.
    pub fn client_id(&self) -> ClientId {
        ClientId { slot: self.slot, number: self.sockets.number }
    }

    /// Identifier of the node it is attached to.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What has passed through so far.
    pub fn counters(&self) -> IbsimCounters {
        self.counters
    }

    /// Sets or clears IsSM in the port's PortInfo. Stock ibsim delivers requests only to one that
    /// set it, or that was to receive them when it connected.
    pub fn set_is_sm(&mut self, is_sm: bool) -> Result<(), IbsimError> {
        let mut data = [0; CONTROL_DATA_LEN];
        data[..4].copy_from_slice(&u32::from(is_sm).to_ne_bytes());
        self.control(ControlKind::SET_ISSM, data)?;
        self.is_sm = is_sm;
        Ok(())
    }

    /// LIDs, state and GUID of the port it is attached to. Also learns the LIDs by which
    /// [`Address::path_bits`] are told, so call it again when they change.
    pub fn local_port(&mut self) -> Result<LocalPort, IbsimError> {
        let (port, node) = (self.port_info(PortNum(0))?, self.node_info()?);
        let port = PortInfo::new(&port).map_err(io::Error::other)?;
        let node = NodeInfo::new(&node).map_err(io::Error::other)?;
        let num = port.local_port_num();
        let mut guid = node.port_guid();
        // Stock ibsim leaves the node GUID where the port GUID belongs, and derives port GUIDs so.
        if node.node_type() != NodeType::Switch.code() && guid == node.node_guid() {
            guid.0 = guid.0.wrapping_add(u64::from(num.0.max(1)));
        }
        let port = LocalPort {
            guid,
            num,
            gid_prefix: port.gid_prefix(),
            lid: port.base_lid(),
            lmc: port.lmc(),
            sm_lid: port.master_sm_lid(),
            sm_sl: port.master_sm_sl(),
            state: PortState::from_code(port.port_state()),
        };
        (self.lid, self.lmc) = (port.lid, port.lmc);
        Ok(port)
    }

    /// PortInfo of a port of the node, 0 for that attached to.
    pub fn port_info(&mut self, port: PortNum) -> Result<[u8; 64], IbsimError> {
        let mut data = [0; CONTROL_DATA_LEN];
        data[0] = port.0;
        self.control(ControlKind::GET_PORTINFO, data)
    }

    /// NodeInfo of the node.
    pub fn node_info(&mut self) -> Result<[u8; 64], IbsimError> {
        self.control(ControlKind::GET_NODEINFO, [0; CONTROL_DATA_LEN])
    }

    /// Attaches without requests, making room by throwing out the stale client.
    fn attach_anyhow(&mut self, options: &IbsimOptions) -> Result<u32, IbsimError> {
        let stale = options.stale_client.filter(|stale| self.sockets.is_abandoned(stale.number));
        let node = options.node.as_deref().unwrap_or("");
        let mut slot = self.attach(node, options.qpn, false)?;
        if let Some(stale) = stale
            && !self.is_anothers(stale.slot, slot)?
        {
            self.detach(stale.slot)?;
            if slot.is_none() {
                slot = self.attach(node, options.qpn, false)?;
            }
        }
        if let Some(slot) = slot {
            return Ok(slot);
        }
        // The refusal does not say which of its two reasons it has: try without one of them.
        match self.attach("", None, false)? {
            Some(slot) => {
                self.detach(slot)?;
                Err(IbsimError::UnknownNode { node: node.to_owned() })
            }
            None => Err(IbsimError::NoSlot { socket: options.socket.clone() }),
        }
    }

    /// Whether the slot of a stale client is known to have passed to another, as it may have when
    /// the server was restarted: it is this client's, or that of a client at another node.
    fn is_anothers(&self, stale: u32, mine: Option<u32>) -> Result<bool, IbsimError> {
        let Some(mine) = mine else { return Ok(false) };
        if stale >= mine {
            // Slots are given out lowest first, so those above may never have been used, and stock
            // ibsim crashes when asked about such a one.
            return Ok(stale == mine);
        }
        let node_of = |slot| {
            self.sockets.request(slot, ControlKind::GET_NODEINFO, [0; CONTROL_DATA_LEN], || {})
        };
        Ok(node_of(stale)? != node_of(mine)?)
    }

    /// Has the requests of the role's classes delivered here: by declaring them or, where the
    /// server knows no declarations, by attaching once more, as a manager. Being one from the
    /// start leaves PortInfo's IsSM alone, so that a responder does not pass for an SM.
    fn claim_requests(&mut self, options: &IbsimOptions) -> Result<(), IbsimError> {
        let classes = options.role.classes();
        let taken = || IbsimError::Taken { node: self.node.clone() };
        let sockets = &self.sockets;
        let answer = sockets
            .request(self.slot, ControlKind::DECLARE_CLASSES, declare_classes(classes), || {
                sockets.discard_data();
            })?
            .ok_or_else(taken)?;
        match accepted_classes(&answer) {
            Some(count) if count == classes.len() => return Ok(()),
            Some(_) => return Err(taken()),
            None => {}
        }
        self.detach(self.slot)?;
        let node = options.node.as_deref().unwrap_or("");
        match self.attach(node, options.qpn, true) {
            Ok(Some(slot)) => {
                self.slot = slot;
                Ok(())
            }
            other => {
                self.slot = u32::MAX;
                Err(other.err().unwrap_or_else(|| IbsimError::Taken { node: self.node.clone() }))
            }
        }
    }

    /// Has requests of a class delivered here by method, in place of those declared before for the
    /// class. `false` if the server knows no such declarations: stock ibsim delivers requests to a
    /// manager only.
    pub fn declare_methods(&mut self, class: MgmtClass, methods: u128) -> Result<bool, IbsimError> {
        let asked = MethodsData { class, methods };
        match self.control(ControlKind::DECLARE_METHODS, asked.to_bytes()) {
            Ok(answer) => Ok(asked.is_accepted_by(&answer)),
            Err(IbsimError::Refused(_)) => Err(IbsimError::Taken { node: self.node.clone() }),
            Err(error) => Err(error),
        }
    }

    /// The first 32 P_Keys of the port.
    pub fn pkeys(&mut self) -> Result<[PKey; 32], IbsimError> {
        let data = self.control(ControlKind::GET_PKEYS, [0; CONTROL_DATA_LEN])?;
        let mut pkeys = [PKey(0); 32];
        for (pkey, bytes) in pkeys.iter_mut().zip(data.chunks_exact(2)) {
            *pkey = PKey(u16::from_be_bytes([bytes[0], bytes[1]]));
        }
        Ok(pkeys)
    }

    /// Asks for a slot at `node`; `None` if refused.
    fn attach(
        &mut self,
        node: &str,
        qpn: Option<Qpn>,
        is_sm: bool,
    ) -> Result<Option<u32>, IbsimError> {
        let connect = ConnectData {
            id: self.sockets.number,
            qpn: qpn.unwrap_or_default(),
            is_sm,
            node: node.as_bytes().to_vec(),
        };
        let sockets = &self.sockets;
        let answer = sockets.request(0, ControlKind::CONNECT, connect.to_bytes(), || {
            sockets.discard_data();
        })?;
        Ok(answer.map(|data| {
            let connected = ConnectData::from_bytes(&data);
            self.node = String::from_utf8_lossy(&connected.node).into_owned();
            connected.id
        }))
    }

    fn detach(&self, slot: u32) -> Result<(), IbsimError> {
        let sockets = &self.sockets;
        sockets.request(slot, ControlKind::DISCONNECT, [0; CONTROL_DATA_LEN], || {
            sockets.discard_data();
        })?;
        Ok(())
    }

    /// A control request of the attached client. Packets that arrive meanwhile are kept for the
    /// next call of `receive`.
    fn control(
        &mut self,
        kind: ControlKind,
        data: [u8; CONTROL_DATA_LEN],
    ) -> Result<[u8; CONTROL_DATA_LEN], IbsimError> {
        let Self { sockets, stash, spare, buffers, counters, lid, lmc, .. } = self;
        let answer = sockets.request(self.slot, kind, data, || {
            // An error of the data socket will show again when it is used in earnest.
            let got = buffers.receive(sockets.data.as_fd(), spare, *lid, *lmc, counters);
            for packet in &spare[..got.unwrap_or(0)] {
                if stash.len() < STASH_MAX {
                    stash.push_back(packet.clone());
                } else {
                    counters.overflowed += 1;
                }
            }
        })?;
        answer.ok_or(IbsimError::Refused(kind.0))
    }
}

impl Transport for Ibsim {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let kept = self.stash.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(self.stash.drain(..kept)) {
            *place = packet;
        }
        if kept == batch.len() {
            return Ok(kept);
        }
        let Self { sockets, buffers, counters, lid, lmc, .. } = self;
        let got =
            buffers.receive(sockets.data.as_fd(), &mut batch[kept..], *lid, *lmc, counters)?;
        Ok(kept + got)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let mut taken = 0;
        for chunk in batch.chunks(BATCH_MAX) {
            let sent = match self.buffers.send(self.sockets.data.as_fd(), chunk, self.lid) {
                Ok(sent) => sent,
                Err(_) if taken > 0 => 0,
                Err(error) => return Err(error),
            };
            taken += sent;
            self.counters.sent += sent as u64;
            if sent < chunk.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sockets.data.as_fd())
    }

    /// Those that came during a control request. What finds the socket full, the simulator counts.
    fn overflowed(&mut self) -> u64 {
        self.counters.overflowed
    }

    fn malformed(&self) -> Malformed {
        Malformed { length: self.counters.malformed, ..Malformed::default() }
    }
}

impl Drop for Ibsim {
    fn drop(&mut self) {
        if self.slot == u32::MAX {
            return;
        }
        // Nobody is left to be told of a failure, nor is an answer waited for: requests are
        // served in order.
        if self.is_sm {
            let _ = self.sockets.send(self.slot, ControlKind::SET_ISSM, [0; CONTROL_DATA_LEN]);
        }
        let _ = self.sockets.send(self.slot, ControlKind::DISCONNECT, [0; CONTROL_DATA_LEN]);
    }
}

impl Buffers {
    /// Receives packets into `batch`, addressed as seen from the port with `lid` and `lmc`.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &mut [Packet],
        lid: Lid,
        lmc: u8,
        counters: &mut IbsimCounters,
    ) -> io::Result<usize> {
        let count = batch.len().min(BATCH_MAX);
        for (i, packet) in batch[..count].iter_mut().enumerate() {
            let vectors = &mut self.vectors.0[i];
            *vectors = [mmsg::vector_mut(&mut self.sim[i]), mmsg::vector_mut(&mut packet.mad)];
            let header = &mut self.headers.0[i].msg_hdr;
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len();
        }
        // SAFETY: every header points at its two vectors, and they at a header buffer of ours and
        // at a MAD of the batch, all borrowed for writing beyond the call.
        let got = unsafe { mmsg::receive(socket, &mut self.headers.0[..count])? };
        let mut kept = 0;
        for i in 0..got {
            let header = &self.headers.0[i];
            let is_whole = header.msg_len as usize == PACKET_LEN
                && header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let Some(address) =
                is_whole.then(|| received_from(&self.sim[i], &batch[i].mad, lid, lmc)).flatten()
            else {
                counters.malformed += 1;
                continue;
            };
            counters.received += 1;
            counters.undelivered += u64::from(address.undelivered != 0);
            batch.swap(kept, i);
            batch[kept].address = address;
            kept += 1;
        }
        Ok(kept)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, batch: &[Packet], lid: Lid) -> io::Result<usize> {
        for (i, packet) in batch.iter().enumerate() {
            self.sim[i] = sent_to(packet, lid).to_bytes();
            let vectors = &mut self.vectors.0[i];
            *vectors = [mmsg::vector(&self.sim[i]), mmsg::vector(&packet.mad)];
            let header = &mut self.headers.0[i].msg_hdr;
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len();
        }
        // SAFETY: every header points at its two vectors, and they at a header buffer of ours and
        // at a MAD of the batch, all borrowed beyond the call.
        unsafe { mmsg::send(socket, &mut self.headers.0[..batch.len()]) }
    }
}

/// The address of a packet received by the port with `lid` and `lmc`.
fn received_from(
    sim: &[u8; HEADER_LEN],
    mad: &[u8; MAD_LEN],
    lid: Lid,
    lmc: u8,
) -> Option<Address> {
    let sim = SimHeaderRepr::parse(&SimHeader::new(sim).ok()?).ok()?;
    let response = MadHeader::new(mad).ok()?.method().is_response();
    // What comes back still bears the addresses it was sent with, unless it is the answer to it
    // that found no way here.
    let is_mine = sim.status != 0 && !(response && sim.dlid == lid);
    let (far, near) = if is_mine {
        ((sim.dlid, sim.dqp), (sim.slid, sim.sqp))
    } else {
        ((sim.slid, sim.sqp), (sim.dlid, sim.dqp))
    };
    let path_bits = if near.0 == Lid::PERMISSIVE { 0 } else { near.0.0 & ((1 << lmc) - 1) };
    Some(Address {
        lid: far.0,
        qpn: far.1,
        local_qpn: near.1,
        path_bits: path_bits as u8,
        undelivered: sim.status,
        ..Address::default()
    })
}

/// The header of a packet to send from the port with `lid`.
fn sent_to(Packet { mad, address }: &Packet, lid: Lid) -> SimHeaderRepr {
    let slid = match (address.lid, address.path_bits) {
        (Lid::PERMISSIVE, _) => Lid::PERMISSIVE,
        // The server fills in the base LID, which it may know better.
        (_, 0) => Lid::NONE,
        (_, path_bits) => Lid(lid.0 | u16::from(path_bits)),
    };
    SimHeaderRepr {
        dlid: address.lid,
        slid,
        dqp: address.qpn,
        sqp: address.local_qpn,
        status: 0,
        length: protocol::message_len(mad),
    }
}

#[cfg(test)]
mod tests;

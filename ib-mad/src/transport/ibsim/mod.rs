//! A client of ibsim's socket protocol, as stock `ibsim` and our `ibfabric` serve it.
//!
//! Properties of the fabric behind it:
//!
//! - It replaces the top 16 bits of a request's TransactionID by the client's slot; the response
//!   has the replaced value. Match responses by the low 48 bits.
//! - Packets carry neither SL nor P_Key nor GRH: received packets have defaults; values set on
//!   packets to send are ignored.
//! - A MAD that cannot be delivered is returned to its sender with
//!   [`Carrier::undelivered`](super::Carrier::undelivered) set.
//! - The queue in each direction is the sender's socket buffer, some 200 packets, and ibsim blocks
//!   while one of its clients does not read. Receive whenever packets are waiting, also between two
//!   attempts to send.
//!
//! The layouts are in [`protocol`], the control socket in `control`.

mod attach;
mod control;
mod error;
mod options;
mod packets;
pub mod protocol;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use self::control::Sockets;
use self::packets::{Buffers, HEADER_LEN};
use self::protocol::{
    CONTROL_DATA_LEN, ControlKind, MethodsData, NODE_NAME_MAX, planes_of, planes_request,
};
use super::mmsg::{Headers, Vectors};
use super::{LocalPort, Malformed, Packet, Transport};
use crate::types::{Lid, PKey, PortNum};
use crate::wire::attribute::{NodeInfo, NodeType, PortInfo, PortState};
use crate::wire::mad::MgmtClass;
pub use error::IbsimError;
pub use options::{ClientId, IbsimOptions, ParseClientIdError, Role};

/// Packets per system call.
const BATCH_MAX: usize = 64;
/// Limit of packets kept that arrive during a control request.
const STASH_MAX: usize = 4096;

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsimCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received, returned ones included.
    pub received: u64,
    /// Packets returned undelivered.
    pub undelivered: u64,
    /// Datagrams that were not packets.
    pub malformed: u64,
    /// Packets dropped because too many arrived during a control request.
    pub overflowed: u64,
}

/// An attached client. Detaches when dropped.
pub struct Ibsim {
    sockets: Sockets,
    slot: u32,
    node: String,
    is_sm: bool,
    /// Whether the server names the planes of packets.
    has_planes: bool,
    lid: Lid,
    lmc: u8,
    stash: VecDeque<Packet>,
    is_drained: bool,
    spare: Box<[Packet]>,
    buffers: Buffers,
    counters: IbsimCounters,
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
            has_planes: false,
            lid: Lid::NONE,
            lmc: 0,
            stash: VecDeque::new(),
            is_drained: false,
            spare: vec![Packet::default(); BATCH_MAX].into_boxed_slice(),
            buffers: Buffers {
                sim: vec![[0; HEADER_LEN]; BATCH_MAX].into_boxed_slice(),
                vectors: Vectors::new(BATCH_MAX),
                headers: Headers::new(BATCH_MAX),
            },
            counters: IbsimCounters::default(),
        };
        // Dropping an unattached client would detach the client in slot 0.
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

    /// Identifies this client at the server.
    pub fn client_id(&self) -> ClientId {
        ClientId { slot: self.slot, number: self.sockets.number }
    }

    /// Id of the node it is attached to.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Counters so far.
    pub fn counters(&self) -> IbsimCounters {
        self.counters
    }

    /// Sets or clears IsSM in the port's PortInfo. Stock ibsim delivers requests only to a client
    /// that set it, or that asked for them when it connected.
    pub fn set_is_sm(&mut self, is_sm: bool) -> Result<(), IbsimError> {
        let mut data = [0; CONTROL_DATA_LEN];
        data[..4].copy_from_slice(&u32::from(is_sm).to_ne_bytes());
        self.control(ControlKind::SET_ISSM, data)?;
        self.is_sm = is_sm;
        Ok(())
    }

    /// LIDs, state and GUID of the attached port. Also updates the LIDs from which
    /// [`Address::path_bits`](super::Address::path_bits) are computed, so call it again when they
    /// change.
    pub fn local_port(&mut self) -> Result<LocalPort, IbsimError> {
        let (port, node) = (self.port_info(PortNum(0))?, self.node_info()?);
        let port = PortInfo::new(&port).map_err(io::Error::other)?;
        let node = NodeInfo::new(&node).map_err(io::Error::other)?;
        let num = port.local_port_num();
        let mut guid = node.port_guid();
        // Stock ibsim returns the node GUID in place of the port GUID, and derives port GUIDs in
        // this way.
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

    /// PortInfo of a port of the node; 0 is the attached port.
    pub fn port_info(&mut self, port: PortNum) -> Result<[u8; 64], IbsimError> {
        let mut data = [0; CONTROL_DATA_LEN];
        data[0] = port.0;
        self.control(ControlKind::GET_PORTINFO, data)
    }

    /// NodeInfo of the node.
    pub fn node_info(&mut self) -> Result<[u8; 64], IbsimError> {
        self.control(ControlKind::GET_NODEINFO, [0; CONTROL_DATA_LEN])
    }

    /// Requests delivery of certain methods of a class, replacing earlier ones of the class.
    /// `false` if the server does not support such declarations: stock ibsim delivers requests to a
    /// manager only.
    pub fn declare_methods(&mut self, class: MgmtClass, methods: u128) -> Result<bool, IbsimError> {
        let asked = MethodsData { class, methods };
        match self.control(ControlKind::DECLARE_METHODS, asked.to_bytes()) {
            Ok(answer) => Ok(asked.is_accepted_by(&answer)),
            Err(IbsimError::Refused(_)) => Err(IbsimError::Taken { node: self.node.clone() }),
            Err(error) => Err(error),
        }
    }

    /// Numbers of the ports that the attached port has in planes of the fabric, if it is planarized
    /// and the server is `ibfabric`; otherwise none. From then on packets name planes.
    pub fn planes(&mut self) -> Result<Vec<PortNum>, IbsimError> {
        let planes = match self.control(ControlKind::GET_PLANES, planes_request()) {
            Ok(answer) => planes_of(&answer).unwrap_or_default(),
            Err(IbsimError::Refused(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        self.has_planes = !planes.is_empty();
        Ok(planes)
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

    /// Sends a control request of the attached client. Packets that arrive meanwhile are kept for
    /// the next call of `receive`.
    fn control(
        &mut self,
        kind: ControlKind,
        data: [u8; CONTROL_DATA_LEN],
    ) -> Result<[u8; CONTROL_DATA_LEN], IbsimError> {
        let Self { sockets, stash, spare, buffers, counters, lid, lmc, has_planes, .. } = self;
        let answer = sockets.request(self.slot, kind, data, || {
            // An error of the data socket will be reported again when it is next used.
            let data = sockets.data.as_fd();
            let got = buffers.receive(data, spare, *lid, *lmc, *has_planes, counters);
            for packet in &spare[..got.map_or(0, |got| got.packets)] {
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
        self.is_drained = false;
        let kept = self.stash.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(self.stash.drain(..kept)) {
            *place = packet;
        }
        if kept == batch.len() {
            return Ok(kept);
        }
        let Self { sockets, buffers, counters, lid, lmc, has_planes, .. } = self;
        let (data, room) = (sockets.data.as_fd(), &mut batch[kept..]);
        let got = buffers.receive(data, room, *lid, *lmc, *has_planes, counters)?;
        self.is_drained = got.is_empty;
        Ok(kept + got.packets)
    }

    fn is_drained(&self) -> bool {
        self.is_drained
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

    /// Packets dropped during control requests. Packets dropped at a full socket are counted by the
    /// simulator.
    fn overflowed(&mut self) -> u64 {
        self.counters.overflowed
    }

    fn local_lid(&self) -> Lid {
        self.lid
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
        // A failure cannot be reported here, and no response is awaited: requests are served in
        // order.
        if self.is_sm {
            let _ = self.sockets.send(self.slot, ControlKind::SET_ISSM, [0; CONTROL_DATA_LEN]);
        }
        let _ = self.sockets.send(self.slot, ControlKind::DISCONNECT, [0; CONTROL_DATA_LEN]);
    }
}

#[cfg(test)]
mod tests;

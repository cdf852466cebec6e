//! Layouts of ibsim's two kinds of datagrams, for clients and servers. No sockets here.
//!
//! A server owns the abstract unix datagram sockets `NAME:ctl` and `NAME:outN`, one of the latter
//! per client slot; a client owns `NAME:ctlID` and `NAME:inID`, where ID is any number that no
//! other client uses. Each name ends with a NUL byte. MADs are sent between `inID` and `outN`,
//! control requests and responses between the two `ctl` sockets.

use crate::types::{Lid, PortNum, Qpn};
use crate::wire::MAD_LEN;
use crate::wire::field::layout;
use crate::wire::mad::{MadHeader, MgmtClass};
use crate::wire::rmpp::{self, RmppFlags, RmppHeader, RmppType};
use crate::wire::sa;

/// Length of a packet: [`SimHeader`] and a MAD.
pub const PACKET_LEN: usize = SimHeader::<()>::LEN + MAD_LEN;

/// Status of a packet returned undelivered: ETIMEDOUT.
pub const STATUS_UNDELIVERED: u32 = 110;

layout! {
    /// Header before the MAD, 32 bytes.
    ///
    /// LIDs are in network order in the *first* half of a word, since ibsim assigns a 16-bit value
    /// in network order to a 32-bit one; true on little-endian machines.
    pub struct SimHeader(SimHeaderRepr): "ibsim packet", 32 bytes {
        /// Destination LID.
        dlid: Lid [0 .. 16],
        /// Source LID; 0 means the sender's own.
        slid: Lid [32 .. 48],
        /// Destination QP.
        dqp: Qpn [64 .. 96],
        /// Source QP.
        sqp: Qpn [96 .. 128],
        /// 0, or [`STATUS_UNDELIVERED`].
        status: u32 [128 .. 160],
        /// [`Carrier::plane`](crate::packet::Carrier::plane), for clients that asked for planes
        /// ([`ControlKind::GET_PLANES`]). An extension: padding of ibsim's structure, with any
        /// value.
        plane: PortNum [160 .. 168],
        /// Bytes of the MAD that follow.
        length: u64 [192 .. 256],
    }
}
/// Length of a control request or response.
pub const CONTROL_LEN: usize = 16 + CONTROL_DATA_LEN;
/// Bytes of data in it.
pub const CONTROL_DATA_LEN: usize = 64;
/// Length limit of a node name in a connection request; one of its 32 bytes is the terminator.
pub const NODE_NAME_MAX: usize = 31;

const CONTROL_MAGIC: u32 = 0xDEAD_BEEF;

/// Kind of a control request, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlKind(pub u32);

impl ControlKind {
    /// In responses: refused.
    pub const ERROR: Self = Self(0);
    /// Attach to a node; data is [`ConnectData`].
    pub const CONNECT: Self = Self(1);
    /// Detach and free the slot.
    pub const DISCONNECT: Self = Self(2);
    /// LID and state of the port, in host order.
    pub const GET_PORT: Self = Self(3);
    /// Vendor of the node.
    pub const GET_VENDOR: Self = Self(4);
    /// GID of the port.
    pub const GET_GID: Self = Self(5);
    /// GUID of the node, in host order.
    pub const GET_GUID: Self = Self(6);
    /// NodeInfo as on the wire.
    pub const GET_NODEINFO: Self = Self(7);
    /// PortInfo as on the wire; the first byte of the request is a port number, 0 for the port
    /// attached to.
    pub const GET_PORTINFO: Self = Self(8);
    /// Start or stop being a manager: a host-order integer.
    pub const SET_ISSM: Self = Self(9);
    /// P_Keys as on the wire.
    pub const GET_PKEYS: Self = Self(10);
    /// Declare classes; data is [`declare_classes`]. An extension: ibsim returns this request
    /// unchanged, like every kind that it does not know.
    pub const DECLARE_CLASSES: Self = Self(64);
    /// Declare methods of one class; data is [`MethodsData`]. An extension too.
    pub const DECLARE_METHODS: Self = Self(65);
    /// Ports of the planarized port that the client is attached to; data is [`planes_request`]. An
    /// extension too. From then on packets of the client name planes ([`SimHeader`]).
    pub const GET_PLANES: Self = Self(66);
}

/// A control request or response. Integers are in host order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// The client slot concerned.
    pub client: u32,
    /// Kind of the request; [`ControlKind::ERROR`] in the response to a refused one.
    pub kind: ControlKind,
    /// Data, depending on the kind.
    pub data: [u8; CONTROL_DATA_LEN],
}

impl Control {
    /// Encodes the request or response.
    pub fn to_bytes(&self) -> [u8; CONTROL_LEN] {
        let mut bytes = [0; CONTROL_LEN];
        bytes[0..4].copy_from_slice(&CONTROL_MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.client.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.kind.0.to_ne_bytes());
        bytes[12..16].copy_from_slice(&(CONTROL_DATA_LEN as u32).to_ne_bytes());
        bytes[16..].copy_from_slice(&self.data);
        bytes
    }

    /// Decodes a whole datagram; `None` if its length or magic number is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONTROL_LEN] = bytes.try_into().ok()?;
        if word(bytes, 0) != CONTROL_MAGIC {
            return None;
        }
        let mut data = [0; CONTROL_DATA_LEN];
        data.copy_from_slice(&bytes[16..]);
        Some(Self { client: word(bytes, 4), kind: ControlKind(word(bytes, 8)), data })
    }
}

/// Data of [`ControlKind::CONNECT`]: 44 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// In the request the number in the client's socket names, in the response its slot.
    pub id: u32,
    /// A QP above 1 whose packets the client receives; else 0.
    pub qpn: Qpn,
    /// Whether the client receives requests to QP0 and QP1.
    pub is_sm: bool,
    /// Node to attach to, by id or description, without terminator; empty for the default. In the
    /// response the node's id.
    pub node: Vec<u8>,
}

impl ConnectData {
    /// Encodes the data. A name that is too long is truncated.
    pub fn to_bytes(&self) -> [u8; CONTROL_DATA_LEN] {
        let mut data = [0; CONTROL_DATA_LEN];
        data[0..4].copy_from_slice(&self.id.to_ne_bytes());
        data[4..8].copy_from_slice(&self.qpn.0.to_ne_bytes());
        data[8..12].copy_from_slice(&u32::from(self.is_sm).to_ne_bytes());
        let len = self.node.len().min(NODE_NAME_MAX);
        data[12..12 + len].copy_from_slice(&self.node[..len]);
        data
    }

    /// Decodes the data. Every bit pattern is valid.
    pub fn from_bytes(data: &[u8; CONTROL_DATA_LEN]) -> Self {
        let name = &data[12..12 + NODE_NAME_MAX + 1];
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Self {
            id: word(data, 0),
            qpn: Qpn(word(data, 4)),
            is_sm: word(data, 8) != 0,
            node: name[..len].to_vec(),
        }
    }
}

/// Limit of classes in one declaration.
pub const CLASSES_MAX: usize = 25;

const CLASSES_VERSION: u8 = 1;
const CLASSES_REQUEST: [u8; 8] = *b"ibfabric";
const CLASSES_ACCEPTED: [u8; 8] = *b"IBFABRIC";

/// Data of a [`ControlKind::DECLARE_CLASSES`] request: the client receives requests of these
/// classes at the port it is attached to, whether or not it declared itself a manager.
///
/// ```text
/// 0 "ibfabric" (8)   8 version   9 count   10 classes (count)
/// ```
///
/// # Panics
///
/// If there are more than [`CLASSES_MAX`] classes.
pub fn declare_classes(classes: &[MgmtClass]) -> [u8; CONTROL_DATA_LEN] {
    assert!(classes.len() <= CLASSES_MAX, "{} classes are too many to declare", classes.len());
    let mut data = [0; CONTROL_DATA_LEN];
    data[0..8].copy_from_slice(&CLASSES_REQUEST);
    data[8] = CLASSES_VERSION;
    data[9] = classes.len() as u8;
    for (byte, class) in data[10..].iter_mut().zip(classes) {
        *byte = class.0;
    }
    data
}

/// The classes of a declaration; `None` if it is malformed.
pub fn declared_classes(data: &[u8; CONTROL_DATA_LEN]) -> Option<Vec<MgmtClass>> {
    let count = usize::from(data[9]);
    if data[0..8] != CLASSES_REQUEST || data[8] != CLASSES_VERSION || count > CLASSES_MAX {
        return None;
    }
    Some(data[10..10 + count].iter().copied().map(MgmtClass).collect())
}

/// Data of the response that accepts `count` classes. Its magic differs from the request's, so that
/// an echo is not taken for it.
pub fn classes_accepted(count: usize) -> [u8; CONTROL_DATA_LEN] {
    let mut data = [0; CONTROL_DATA_LEN];
    data[0..8].copy_from_slice(&CLASSES_ACCEPTED);
    data[8] = CLASSES_VERSION;
    data[9] = count.min(CLASSES_MAX) as u8;
    data
}

/// Number of classes that a response accepts; `None` if it is an echo.
pub fn accepted_classes(data: &[u8; CONTROL_DATA_LEN]) -> Option<usize> {
    (data[0..8] == CLASSES_ACCEPTED && data[8] == CLASSES_VERSION).then(|| usize::from(data[9]))
}

const METHODS_VERSION: u8 = 1;
const METHODS_REQUEST: [u8; 8] = *b"ibmethod";
const METHODS_ACCEPTED: [u8; 8] = *b"IBMETHOD";

/// Data of a [`ControlKind::DECLARE_METHODS`] request: methods of one class whose requests the
/// client receives at its port. Replaces the client's earlier declaration for the class.
///
/// A declaration of classes assigns each to one client; methods of a class can be divided among
/// clients, as a kernel divides them among its agents.
///
/// ```text
/// 0 "ibmethod" (8)   8 version   9 class   10 methods (16), a bit each from the lowest
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodsData {
    /// Management class.
    pub class: MgmtClass,
    /// Bit n: method n. 0 removes the declaration.
    pub methods: u128,
}

impl MethodsData {
    /// Encodes the request's data.
    pub fn to_bytes(self) -> [u8; CONTROL_DATA_LEN] {
        let mut data = [0; CONTROL_DATA_LEN];
        data[0..8].copy_from_slice(&METHODS_REQUEST);
        data[8] = METHODS_VERSION;
        data[9] = self.class.0;
        data[10..26].copy_from_slice(&self.methods.to_le_bytes());
        data
    }

    /// Decodes a request's data; `None` if it is malformed.
    pub fn from_bytes(data: &[u8; CONTROL_DATA_LEN]) -> Option<Self> {
        let known = data[0..8] == METHODS_REQUEST && data[8] == METHODS_VERSION;
        let methods = u128::from_le_bytes(data[10..26].try_into().ok()?);
        known.then_some(Self { class: MgmtClass(data[9]), methods })
    }

    /// Data of the response that accepts it, distinct from an echo.
    pub fn accepted(self) -> [u8; CONTROL_DATA_LEN] {
        let mut data = self.to_bytes();
        data[0..8].copy_from_slice(&METHODS_ACCEPTED);
        data
    }

    /// Whether a response accepts it.
    pub fn is_accepted_by(self, answer: &[u8; CONTROL_DATA_LEN]) -> bool {
        *answer == self.accepted()
    }
}

/// Limit of planes of a port.
pub const PLANES_MAX: usize = 16;

const PLANES_REQUEST: [u8; 8] = *b"ibplanes";
const PLANES_ANSWER: [u8; 8] = *b"IBPLANES";

/// Data of a [`ControlKind::GET_PLANES`] request.
pub fn planes_request() -> [u8; CONTROL_DATA_LEN] {
    let mut data = [0; CONTROL_DATA_LEN];
    data[..8].copy_from_slice(&PLANES_REQUEST);
    data
}

/// Whether it is the data of such a request.
pub fn asks_for_planes(data: &[u8; CONTROL_DATA_LEN]) -> bool {
    data[..8] == PLANES_REQUEST
}

/// Data of the response: the numbers of the ports, none if the port is not planarized. At most
/// [`PLANES_MAX`] are stated.
///
/// ```text
/// 0 "IBPLANES" (8)   8 count   9 port numbers (count)
/// ```
pub fn planes_answer(planes: &[PortNum]) -> [u8; CONTROL_DATA_LEN] {
    let planes = &planes[..planes.len().min(PLANES_MAX)];
    let mut data = [0; CONTROL_DATA_LEN];
    data[..8].copy_from_slice(&PLANES_ANSWER);
    data[8] = planes.len() as u8;
    data[9..].iter_mut().zip(planes).for_each(|(byte, plane)| *byte = plane.0);
    data
}

/// The planes of a response; `None` if it is an echo.
pub fn planes_of(data: &[u8; CONTROL_DATA_LEN]) -> Option<Vec<PortNum>> {
    let count = usize::from(data[8]).min(PLANES_MAX);
    (data[..8] == PLANES_ANSWER).then(|| data[9..9 + count].iter().copied().map(PortNum).collect())
}

/// The abstract name of a socket, without its leading NUL: `BASE:SUFFIX`, NUL-terminated.
pub fn socket_name(base: &str, suffix: &str) -> Vec<u8> {
    format!("{base}:{suffix}\0").into_bytes()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The length field for a MAD: all of it, but for the last segment of an RMPP message only the
/// valid part. Programs under `libumad2sim`, which does not implement RMPP, compute the number of
/// records in a response from it.
pub fn message_len(mad: &[u8; MAD_LEN]) -> u64 {
    let header = MadHeader::of(mad);
    let rmpp = RmppHeader::at::<{ rmpp::OFFSET }, _>(mad);
    let is_last_data = header.mgmt_class() == MgmtClass::SUBN_ADM
        && rmpp.is_active()
        && rmpp.rmpp_type() == RmppType::DATA
        && rmpp.flags().contains(RmppFlags::LAST);
    let end = sa::HEADER_LEN - sa::SA_HEADER_LEN + rmpp.payload_len() as usize;
    if is_last_data { end.clamp(sa::HEADER_LEN, MAD_LEN) as u64 } else { MAD_LEN as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of ibsim's C structures on a little-endian machine.
    #[test]
    fn header_has_the_layout_of_sim_request() {
        let header = SimHeaderRepr {
            dlid: Lid(0x1234),
            slid: Lid(0x5678),
            dqp: Qpn(1),
            sqp: Qpn(0x0001_0203),
            status: STATUS_UNDELIVERED,
            plane: PortNum(3),
            length: 256,
        };
        let mut expected = [0; 32];
        expected[0..2].copy_from_slice(&[0x12, 0x34]);
        expected[4..6].copy_from_slice(&[0x56, 0x78]);
        expected[11] = 1;
        expected[12..16].copy_from_slice(&[0, 1, 2, 3]);
        expected[19] = 110;
        expected[20] = 3;
        expected[30] = 1;
        assert_eq!(header.to_bytes(), expected);
        assert_eq!(PACKET_LEN, 288);
    }

    #[test]
    fn control_messages_round_trip_and_strangers_are_refused() {
        let connect = ConnectData { id: 77, qpn: Qpn(9), is_sm: true, node: b"Hca-0001".to_vec() };
        let control = Control { client: 3, kind: ControlKind::CONNECT, data: connect.to_bytes() };
        let bytes = control.to_bytes();
        assert_eq!(Control::from_bytes(&bytes), Some(control.clone()));
        assert_eq!(ConnectData::from_bytes(&control.data), connect);
        assert_eq!(Control::from_bytes(&bytes[..79]), None);
        let mut other = bytes;
        other[0] ^= 1;
        assert_eq!(Control::from_bytes(&other), None);
    }

    #[test]
    fn a_name_of_any_length_is_terminated() {
        let connect = ConnectData { id: 1, qpn: Qpn(0), is_sm: false, node: vec![b'x'; 50] };
        let read = ConnectData::from_bytes(&connect.to_bytes());
        assert_eq!(read.node, vec![b'x'; NODE_NAME_MAX]);
    }

    /// Regression: `saquery` under `libumad2sim` showed garbage records after the only one of a
    /// table.
    #[test]
    fn the_last_segment_is_as_long_as_what_it_carries() {
        let mut mad = [0; MAD_LEN];
        let mut header = MadHeader::of_mut(&mut mad);
        header.set_mgmt_class(MgmtClass::SUBN_ADM);
        assert_eq!(message_len(&mad), 256, "no RMPP");
        let mut rmpp = RmppHeader::new(&mut mad[rmpp::OFFSET..]).unwrap();
        rmpp.set_rmpp_type(RmppType::DATA).set_payload_len(20 + 64);
        rmpp.set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST);
        assert_eq!(message_len(&mad), 256, "more segments follow");
        let mut rmpp = RmppHeader::new(&mut mad[rmpp::OFFSET..]).unwrap();
        rmpp.set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST);
        assert_eq!(message_len(&mad), 56 + 64);
        RmppHeader::new(&mut mad[rmpp::OFFSET..]).unwrap().set_payload_len(u32::MAX);
        assert_eq!(message_len(&mad), 256);
    }

    #[test]
    fn an_echoed_question_for_planes_is_no_answer() {
        let request = planes_request();
        assert!(asks_for_planes(&request));
        assert_eq!(planes_of(&request), None);
        let planes = [1, 2, 3, 4].map(PortNum);
        let answer = planes_answer(&planes);
        assert_eq!(planes_of(&answer), Some(planes.to_vec()));
        assert!(!asks_for_planes(&answer));
        let mut overlong = planes_answer(&[PortNum(1); 40]);
        overlong[8] = 255;
        assert_eq!(planes_of(&overlong).unwrap().len(), PLANES_MAX);
    }

    #[test]
    fn an_echoed_declaration_is_no_acceptance() {
        let classes = [MgmtClass::SUBN_ADM, MgmtClass::PERF];
        let request = declare_classes(&classes);
        assert_eq!(declared_classes(&request), Some(classes.to_vec()));
        assert_eq!(accepted_classes(&request), None);
        assert_eq!(accepted_classes(&classes_accepted(2)), Some(2));
        let mut overlong = request;
        overlong[9] = CLASSES_MAX as u8 + 1;
        assert_eq!(declared_classes(&overlong), None);
    }
}

//! Messages of the kernel's local service protocol, RDMA_NL_LS (Linux, `rdma_netlink.h`).
//!
//! ```text
//! nlmsghdr   length (4)  type (2)  flags (2)  sequence (4)  port ID (4)      host byte order
//! request    nlmsghdr, device name (64), port (1), path use (1), padding (2), attributes
//! answer     nlmsghdr, attributes of type 1: flags (4), reserved (4), PathRecord (64)
//! attribute  length (2)  type (2), content, padded to 4
//! ```
//!
//! What a request means is not decided here.

use ib_mad::types::{Gid, PKey};

/// `NLMSG_HDRLEN`.
pub const HEADER_LEN: usize = 16;
/// The fixed part of a request, `struct rdma_ls_resolve_header`, with padding.
const RESOLVE_LEN: usize = 68;
/// `LS_DEVICE_NAME_MAX`.
const NAME_LEN: usize = 64;
/// Length of an answer with one path.
pub const ANSWER_LEN: usize = HEADER_LEN + 4 + PATH_LEN;
/// `struct ib_path_rec_data`.
const PATH_LEN: usize = 8 + RECORD_LEN;
/// A PathRecord.
pub const RECORD_LEN: usize = 64;

/// RDMA_NL_LS in the message type.
const CLIENT_LS: u16 = 4 << 10;
/// Bits of the message type that name the operation.
const OPERATION_MASK: u16 = (1 << 10) - 1;
/// Flags of the header: a request; the agent cannot answer (`RDMA_NL_LS_F_ERR`).
const F_REQUEST: u16 = 0x0001;
const F_ERROR: u16 = 0x0100;

/// Attribute types (`LS_NLA_TYPE_…`).
mod kind {
    pub(super) const PATH_RECORD: u16 = 1;
    pub(super) const SERVICE_ID: u16 = 3;
    pub(super) const DGID: u16 = 4;
    pub(super) const SGID: u16 = 5;
    pub(super) const TCLASS: u16 = 6;
    pub(super) const PKEY: u16 = 7;
    pub(super) const QOS_CLASS: u16 = 8;
}

/// `RDMA_NLA_F_MANDATORY`: who does not know the attribute must not answer.
const MANDATORY: u16 = 1 << 13;
/// Bits of an attribute's type that are flags: NLA_F_NESTED, NLA_F_NET_BYTEORDER and the above.
const KIND_MASK: u16 = !(0xC000 | MANDATORY);

/// Flags of a path in an answer (`IB_PATH_…`).
mod path {
    pub(super) const GMP: u32 = 1;
    pub(super) const PRIMARY: u32 = 2;
    pub(super) const OUTBOUND: u32 = 8;
    pub(super) const INBOUND_REVERSE: u32 = 32;
}

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A path is wanted.
    Resolve,
    /// How long the kernel waits for answers. Agents send it.
    SetTimeout,
    /// A GID is wanted for an IP address. Other agents answer.
    IpResolve,
    /// Another one.
    Other,
}

/// One message, its content not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it is about.
    pub operation: Operation,
    /// Whether it is a request.
    pub is_request: bool,
    /// Number that the answer repeats.
    pub sequence: u32,
    content: &'a [u8],
}

/// How the path will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// For a connection, or for management datagrams: the path must be reversible.
    Reversible,
    /// In one direction.
    Unidirectional,
}

/// A request for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Name of the device, such as `mlx5_0`.
    pub device: &'a [u8],
    /// Number of the port on it.
    pub port: u8,
    /// How the path will be used.
    pub path_use: PathUse,
    /// ServiceID.
    pub service_id: Option<u64>,
    /// Destination.
    pub dgid: Option<Gid>,
    /// Source.
    pub sgid: Option<Gid>,
    /// P_Key.
    pub pkey: Option<PKey>,
    /// QoSClass.
    pub qos_class: Option<u16>,
    /// TClass. It selects nothing.
    pub tclass: Option<u8>,
}

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The length of a message or attribute exceeds what is there, or is below its header's.
    #[error("a length is wrong")]
    Length,
    /// Not a message of the local service.
    #[error("not a message of RDMA_NL_LS")]
    Client,
    /// The path use is not defined.
    #[error("the path use is not defined")]
    PathUse,
    /// A mandatory attribute is not known.
    #[error("a mandatory attribute is unknown")]
    Unknown,
}

/// The messages of a datagram. Ends after the first one that cannot be read.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Of a datagram.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some((header, _)) = rest.split_first_chunk::<HEADER_LEN>() else {
            return Some(Err(NetlinkError::Length));
        };
        let [l0, l1, l2, l3, t0, t1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(content) = rest.get(HEADER_LEN..len) else {
            return Some(Err(NetlinkError::Length));
        };
        self.rest = rest.get(aligned(len)..).unwrap_or_default();
        let kind = u16::from_ne_bytes([t0, t1]);
        if kind & !OPERATION_MASK != CLIENT_LS {
            return Some(Err(NetlinkError::Client));
        }
        Some(Ok(Message {
            operation: match kind & OPERATION_MASK {
                0 => Operation::Resolve,
                1 => Operation::SetTimeout,
                2 => Operation::IpResolve,
                _ => Operation::Other,
            },
            is_request: u16::from_ne_bytes([f0, f1]) & F_REQUEST != 0,
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            content,
        }))
    }
}

impl<'a> Message<'a> {
    /// Reads the content of a request for a path.
    pub fn request(&self) -> Result<Request<'a>, NetlinkError> {
        let (fixed, attributes) =
            self.content.split_at_checked(RESOLVE_LEN).ok_or(NetlinkError::Length)?;
        let name = &fixed[..NAME_LEN];
        let name_len = name.iter().position(|&byte| byte == 0).unwrap_or(NAME_LEN);
        let mut request = Request {
            device: &name[..name_len],
            port: fixed[NAME_LEN],
            path_use: match fixed[NAME_LEN + 1] {
                0 | 2 => PathUse::Reversible,
                1 => PathUse::Unidirectional,
                _ => return Err(NetlinkError::PathUse),
            },
            service_id: None,
            dgid: None,
            sgid: None,
            pkey: None,
            qos_class: None,
            tclass: None,
        };
        let mut rest = attributes;
        while !rest.is_empty() {
            let (kind, value);
            (kind, value, rest) = attribute(rest).ok_or(NetlinkError::Length)?;
            match kind & KIND_MASK {
                kind::SERVICE_ID => request.service_id = Some(u64::from_ne_bytes(exact(value)?)),
                kind::DGID => request.dgid = Some(Gid(exact(value)?)),
                kind::SGID => request.sgid = Some(Gid(exact(value)?)),
                kind::TCLASS => request.tclass = Some(u8::from_ne_bytes(exact(value)?)),
                kind::PKEY => request.pkey = Some(PKey(u16::from_ne_bytes(exact(value)?))),
                kind::QOS_CLASS => request.qos_class = Some(u16::from_ne_bytes(exact(value)?)),
                _ if kind & MANDATORY != 0 => return Err(NetlinkError::Unknown),
                _ => {}
            }
        }
        Ok(request)
    }
}

/// The type and content of the first attribute, and what follows.
fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let &[l0, l1, t0, t1, ..] = bytes else { return None };
    let len = usize::from(u16::from_ne_bytes([l0, l1]));
    let value = bytes.get(4..len)?;
    let rest = bytes.get(aligned(len)..).unwrap_or_default();
    Some((u16::from_ne_bytes([t0, t1]), value, rest))
}

fn exact<const N: usize>(value: &[u8]) -> Result<[u8; N], NetlinkError> {
    value.try_into().map_err(|_| NetlinkError::Length)
}

/// Messages and attributes begin at multiples of 4.
fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Appends the answer to request `sequence`: one path.
pub fn write_path(
    answers: &mut Vec<u8>,
    sequence: u32,
    path_use: PathUse,
    record: &[u8; RECORD_LEN],
) {
    // The kernel takes the first path with all flags that it looks for.
    let flags = match path_use {
        PathUse::Reversible => path::PRIMARY | path::GMP | path::OUTBOUND | path::INBOUND_REVERSE,
        PathUse::Unidirectional => path::PRIMARY | path::OUTBOUND,
    };
    write_header(answers, ANSWER_LEN, 0, sequence);
    answers.extend_from_slice(&((4 + PATH_LEN) as u16).to_ne_bytes());
    answers.extend_from_slice(&kind::PATH_RECORD.to_ne_bytes());
    answers.extend_from_slice(&flags.to_ne_bytes());
    answers.extend_from_slice(&[0; 4]);
    answers.extend_from_slice(record);
}

/// Appends the answer that makes the kernel ask the SA at once.
pub fn write_error(answers: &mut Vec<u8>, sequence: u32) {
    write_header(answers, HEADER_LEN, F_ERROR, sequence);
}

fn write_header(answers: &mut Vec<u8>, len: usize, flags: u16, sequence: u32) {
    answers.extend_from_slice(&(len as u32).to_ne_bytes());
    answers.extend_from_slice(&CLIENT_LS.to_ne_bytes());
    answers.extend_from_slice(&flags.to_ne_bytes());
    answers.extend_from_slice(&sequence.to_ne_bytes());
    answers.extend_from_slice(&[0; 4]);
}

/// Requests as the kernel builds them: for tests and benchmarks, which have no kernel to ask.
pub mod kernel {
    use super::*;

    /// A request message.
    pub fn request(sequence: u32, asked: &Request<'_>) -> Vec<u8> {
        let mut message = vec![0; HEADER_LEN];
        let mut name = [0; NAME_LEN];
        name[..asked.device.len()].copy_from_slice(asked.device);
        message.extend_from_slice(&name);
        let path_use = match asked.path_use {
            PathUse::Reversible => 2,
            PathUse::Unidirectional => 1,
        };
        message.extend_from_slice(&[asked.port, path_use, 0, 0]);
        let mut put = |kind: u16, value: Option<&[u8]>| {
            let Some(value) = value else { return };
            message.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            message.extend_from_slice(&(kind | MANDATORY).to_ne_bytes());
            message.extend_from_slice(value);
            message.resize(aligned(message.len()), 0);
        };
        put(kind::SERVICE_ID, asked.service_id.map(u64::to_ne_bytes).as_ref().map(|v| &v[..]));
        put(kind::DGID, asked.dgid.as_ref().map(|gid| &gid.0[..]));
        put(kind::SGID, asked.sgid.as_ref().map(|gid| &gid.0[..]));
        put(kind::TCLASS, asked.tclass.as_ref().map(std::slice::from_ref));
        put(kind::PKEY, asked.pkey.map(|pkey| pkey.0.to_ne_bytes()).as_ref().map(|v| &v[..]));
        put(kind::QOS_CLASS, asked.qos_class.map(u16::to_ne_bytes).as_ref().map(|v| &v[..]));
        finish(message, 0, sequence)
    }

    /// A request of another operation, without content.
    pub fn other(sequence: u32, operation: u16) -> Vec<u8> {
        finish(vec![0; HEADER_LEN], operation, sequence)
    }

    fn finish(mut message: Vec<u8>, operation: u16, sequence: u32) -> Vec<u8> {
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message[4..6].copy_from_slice(&(CLIENT_LS | operation).to_ne_bytes());
        message[6..8].copy_from_slice(&F_REQUEST.to_ne_bytes());
        message[8..12].copy_from_slice(&sequence.to_ne_bytes());
        message
    }

    /// What the kernel takes from an answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Taken {
        /// This PathRecord.
        Path([u8; RECORD_LEN]),
        /// It asks the SA.
        AsksSa,
        /// No path: the query fails. No agent may cause that.
        Fails,
    }

    /// Reads the answers in a datagram as the kernel does: sequence numbers, and what it takes for
    /// a request with this use.
    pub fn take(datagram: &[u8], path_use: PathUse) -> Vec<(u32, Taken)> {
        let wanted = match path_use {
            PathUse::Unidirectional => 2 | 8,
            PathUse::Reversible => 2 | 1 | 8 | 32,
        };
        let mut taken = Vec::new();
        let mut rest = datagram;
        while let Some(header) = rest.first_chunk::<HEADER_LEN>() {
            let len = u32::from_ne_bytes(*header.first_chunk().expect("16 bytes")) as usize;
            let flags = u16::from_ne_bytes([header[6], header[7]]);
            let sequence = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
            assert_eq!(u16::from_ne_bytes([header[4], header[5]]), CLIENT_LS);
            assert_eq!(flags & F_REQUEST, 0, "it would be taken for a request");
            let mut attributes = &rest[HEADER_LEN..len];
            let mut found = if flags & F_ERROR != 0 { Taken::AsksSa } else { Taken::Fails };
            while found == Taken::Fails && !attributes.is_empty() {
                let (kind, value);
                (kind, value, attributes) = attribute(attributes).expect("whole attributes");
                let flags = u32::from_ne_bytes(*value.first_chunk().expect("flags"));
                if kind == kind::PATH_RECORD && flags & wanted == wanted {
                    found = Taken::Path(value[8..].try_into().expect("72 bytes"));
                }
            }
            taken.push((sequence, found));
            rest = rest.get(aligned(len)..).unwrap_or_default();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::kernel::{Taken, take};
    use super::*;

    fn full() -> Request<'static> {
        Request {
            device: b"mlx5_0",
            port: 1,
            path_use: PathUse::Reversible,
            service_id: Some(0x1_0600_0000),
            dgid: Some(Gid([1; 16])),
            sgid: Some(Gid([2; 16])),
            pkey: Some(PKey(0xffff)),
            qos_class: Some(3),
            tclass: Some(7),
        }
    }

    fn read(datagram: &[u8]) -> Result<Request<'_>, NetlinkError> {
        Messages::new(datagram).next().unwrap()?.request()
    }

    #[test]
    fn every_attribute_is_read() {
        for path_use in [PathUse::Reversible, PathUse::Unidirectional] {
            let asked = Request { path_use, ..full() };
            assert_eq!(read(&kernel::request(5, &asked)), Ok(asked));
        }
        let bare = Request {
            service_id: None,
            dgid: None,
            sgid: None,
            pkey: None,
            qos_class: None,
            tclass: None,
            ..full()
        };
        assert_eq!(read(&kernel::request(5, &bare)), Ok(bare));
    }

    /// The bytes are those that Linux 6.1 sends on a little-endian host: `ib_nl_send_msg` and
    /// `ib_nl_set_path_rec_attrs`.
    #[test]
    #[cfg(target_endian = "little")]
    fn the_layout_is_the_kernels() {
        let asked = Request { service_id: None, qos_class: None, tclass: None, ..full() };
        let message = kernel::request(0x0102_0304, &asked);
        assert_eq!(message.len(), 16 + 68 + 20 + 20 + 8);
        assert_eq!(message[..16], [132, 0, 0, 0, 0, 0x10, 1, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(message[16..23], *b"mlx5_0\0");
        assert_eq!(message[80..84], [1, 2, 0, 0]);
        assert_eq!(message[84..88], [20, 0, 4, 0x20]);
        assert_eq!(message[124..132], [6, 0, 7, 0x20, 0xff, 0xff, 0, 0]);
    }

    #[test]
    fn the_kernel_takes_the_path_for_either_use() {
        for path_use in [PathUse::Reversible, PathUse::Unidirectional] {
            let mut answers = Vec::new();
            write_path(&mut answers, 7, path_use, &[9; 64]);
            assert_eq!(answers.len(), ANSWER_LEN);
            write_error(&mut answers, 8);
            let taken = take(&answers, path_use);
            assert_eq!(taken, [(7, Taken::Path([9; 64])), (8, Taken::AsksSa)]);
        }
    }

    #[test]
    fn an_unknown_attribute_counts_if_it_is_mandatory() {
        let mut message = kernel::request(1, &full());
        let at = message.len();
        message.extend([8, 0, 40, 0, 1, 2, 3, 4]);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(read(&message), Ok(full()));
        message[at + 2..at + 4].copy_from_slice(&(40 | MANDATORY).to_ne_bytes());
        assert_eq!(read(&message), Err(NetlinkError::Unknown));
        // Also those that this protocol defines for other messages.
        message[at + 2..at + 4].copy_from_slice(&(2 | MANDATORY).to_ne_bytes());
        assert_eq!(read(&message), Err(NetlinkError::Unknown));
    }

    #[test]
    fn several_messages_of_a_datagram_are_read() {
        let datagram = [kernel::request(1, &full()), kernel::other(2, 2), kernel::other(3, 9)];
        let read: Vec<_> = Messages::new(&datagram.concat())
            .map(|message| message.map(|message| (message.sequence, message.operation)))
            .collect();
        let wanted = [(1, Operation::Resolve), (2, Operation::IpResolve), (3, Operation::Other)];
        assert_eq!(read, wanted.map(Ok));
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let message = kernel::request(1, &full());
        for len in 0..message.len() {
            let cut = &message[..len];
            let first = Messages::new(cut).next();
            assert!(matches!(first, None | Some(Err(NetlinkError::Length))), "{len}");
            let mut cut = cut.to_vec();
            if len >= HEADER_LEN {
                cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                if let Err(error) = read(&cut) {
                    assert_eq!(error, NetlinkError::Length, "{len}");
                }
            }
        }
        let mut long = kernel::request(1, &full());
        long[84] = 0xff;
        assert_eq!(read(&long), Err(NetlinkError::Length));
        let mut short = kernel::request(1, &full());
        short[84] = 3;
        assert_eq!(read(&short), Err(NetlinkError::Length));
    }
}

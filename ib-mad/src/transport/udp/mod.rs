//! MADs over UDP: one datagram is an [`Envelope`] and a MAD.
//!
//! Two uses: a stand-in for a fabric, between a load generator and responders, and the way of a
//! request from a front door to a responder and back. In both the envelope names the fabric's
//! client, so [`Address::lid`](super::Address::lid) and its companions stay the client's on either
//! side, and only [`Address::peer`](super::Address::peer) tells who is at the other end of the
//! wire. Nothing is authenticated or encrypted: bind to addresses that only trusted hosts reach.
//!
//! Runs of packets to one peer leave as one train (`UDP_SEGMENT`), and trains arrive as one buffer
//! (`UDP_GRO`), which spares most of the kernel's work; where the kernel knows neither, datagrams
//! travel one by one. What is not here: the envelope's layout (`envelope`).

mod envelope;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub use self::envelope::{ENVELOPE_LEN, Envelope, EnvelopeRepr, decode, encode};
use super::mmsg::{self, Headers, Vectors};
use super::sockaddr::RawAddress;
use super::{Address, Malformed, Packet, Transport};
use crate::wire::MAD_LEN;

/// Length of a datagram.
pub const DATAGRAM_LEN: usize = ENVELOPE_LEN + MAD_LEN;

/// Packets in a train: the kernel's limit.
const TRAIN_MAX: usize = 64;
/// Packets that one system call sends.
const SEND_MAX: usize = 256;
/// Trains that one system call receives.
const RECEIVE_MAX: usize = 64;
/// The longest train the kernel puts together.
const TRAIN_BYTES_MAX: usize = 1 << 16;
/// Room for one control message that holds an int.
const CONTROL_WORDS: usize = 4;
/// Bytes of socket buffer asked for; the kernel may grant less.
const SOCKET_BUFFER: libc::c_int = 8 << 20;

/// How to open a socket.
#[derive(Clone, Copy, Debug)]
pub struct UdpOptions {
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// Lets several sockets listen at one address; the kernel deals peers out among them.
    pub share_port: bool,
    /// Sends and receives trains where the kernel can.
    pub trains: bool,
}

impl UdpOptions {
    /// A socket of its own at `listen`, with trains.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, share_port: false, trains: true }
    }
}

/// What has passed through a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Datagrams received that were no packets.
    pub malformed: Malformed,
    /// Packets dropped since they had no peer or the kernel refused their peer.
    pub refused: u64,
    /// System calls that sent something.
    pub sends: u64,
    /// System calls that received something.
    pub receives: u64,
}

/// A socket that carries MADs.
pub struct Udp {
    socket: UdpSocket,
    trains: bool,
    outgoing: Outgoing,
    incoming: Incoming,
    counters: UdpCounters,
}

/// Buffers of one call that sends.
struct Outgoing {
    envelopes: Box<[[u8; ENVELOPE_LEN]]>,
    vectors: Vectors<2>,
    peers: Box<[RawAddress]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
    headers: Headers,
}

/// Trains received, and how far they have been handed out.
struct Incoming {
    bytes: Box<[u8]>,
    vectors: Vectors<1>,
    peers: Box<[RawAddress]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
    headers: Headers,
    /// Trains received by the last call.
    trains: usize,
    /// The train being handed out, and where in it.
    train: usize,
    offset: usize,
    /// Packets in a train of the last call, rounded down. Tells how many trains fill a batch, so
    /// that packets wait in the kernel rather than here.
    mean_train: usize,
}

impl Udp {
    /// Opens a socket.
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let socket = open(options)?;
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            // Best effort: the default buffer works, it only drops sooner.
            let _ = set_option(&socket, libc::SOL_SOCKET, option, SOCKET_BUFFER);
        }
        let trains = options.trains
            && set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
            // Zero leaves datagrams alone; it fails where the option is not known.
            && set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        Ok(Self {
            socket,
            trains,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            counters: UdpCounters::default(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// What has passed through so far.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Whether runs of packets to one peer leave as one train.
    pub fn sends_trains(&self) -> bool {
        self.trains
    }
}

impl Transport for Udp {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut filled = self.incoming.hand_out(batch, &mut self.counters);
        if filled < batch.len() {
            self.incoming.receive(self.socket.as_fd(), batch.len() - filled)?;
            self.counters.receives += u64::from(self.incoming.trains > 0);
            filled += self.incoming.hand_out(&mut batch[filled..], &mut self.counters);
        }
        self.counters.received += filled as u64;
        Ok(filled)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < batch.len() {
            let rest = &batch[taken..];
            // The kernel would refuse the whole train.
            if !is_sendable(&rest[0]) {
                self.counters.refused += 1;
                taken += 1;
                continue;
            }
            match self.outgoing.send(self.socket.as_fd(), rest, self.trains) {
                Ok(0) => break,
                Ok(sent) => {
                    self.counters.sent += sent as u64;
                    self.counters.sends += 1;
                    taken += sent;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(error),
                    // A device or a route that cannot cut trains. Ordinary datagrams may pass.
                    Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
                        if self.trains && begins_with_train(rest) =>
                    {
                        self.trains = false;
                    }
                    // The peer's fault, or its network's.
                    _ => {
                        self.counters.refused += 1;
                        taken += 1;
                    }
                },
            }
        }
        Ok(taken)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn malformed(&self) -> Malformed {
        self.counters.malformed
    }
}

fn is_sendable(packet: &Packet) -> bool {
    packet.address.peer.is_some_and(|peer| peer.port() != 0)
}

fn begins_with_train(batch: &[Packet]) -> bool {
    batch.len() > 1 && batch[0].address.peer == batch[1].address.peer
}

impl Outgoing {
    fn new() -> Self {
        Self {
            envelopes: vec![[0; ENVELOPE_LEN]; SEND_MAX].into_boxed_slice(),
            vectors: Vectors::new(SEND_MAX),
            peers: vec![RawAddress::empty(); SEND_MAX].into_boxed_slice(),
            controls: vec![[0; CONTROL_WORDS]; SEND_MAX].into_boxed_slice(),
            headers: Headers::new(SEND_MAX),
        }
    }

    /// Sends as many packets of a batch as the socket takes, at most [`SEND_MAX`] and none behind
    /// one that is not sendable.
    fn send(&mut self, fd: BorrowedFd<'_>, batch: &[Packet], trains: bool) -> io::Result<usize> {
        let batch = &batch[..batch.len().min(SEND_MAX)];
        for (i, packet) in batch.iter().enumerate() {
            self.envelopes[i] = encode(&packet.address);
            self.vectors.0[i] = [mmsg::vector(&self.envelopes[i]), mmsg::vector(&packet.mad)];
        }
        let train_max = if trains { TRAIN_MAX } else { 1 };
        let (mut messages, mut start) = (0, 0);
        while let Some(peer) = batch.get(start).and_then(|first| first.address.peer) {
            if peer.port() == 0 {
                break;
            }
            let len = batch[start..]
                .iter()
                .take(train_max)
                .take_while(|packet| packet.address.peer == Some(peer))
                .count();
            let (raw, name_len) = RawAddress::new(peer);
            self.peers[messages] = raw;
            let header = &mut self.headers.0[messages].msg_hdr;
            header.msg_name = (&raw mut self.peers[messages]).cast();
            header.msg_namelen = name_len;
            header.msg_iov = self.vectors.0[start..start + len].as_mut_ptr().cast();
            header.msg_iovlen = 2 * len;
            if len > 1 {
                // SAFETY: the control buffer has room for a message of two bytes.
                unsafe { write_segment_size(header, &mut self.controls[messages]) };
            } else {
                header.msg_control = std::ptr::null_mut();
                header.msg_controllen = 0;
            }
            messages += 1;
            start += len;
        }
        // SAFETY: the first `messages` headers point at a peer, a control message and vectors of
        // ours, the vectors at envelopes of ours and MADs of the batch; all outlive the call.
        let sent = unsafe { mmsg::send(fd, &mut self.headers.0[..messages])? };
        Ok(self.headers.0[..sent].iter().map(|message| message.msg_hdr.msg_iovlen / 2).sum())
    }
}

impl Incoming {
    fn new() -> Self {
        Self {
            // Untouched pages cost nothing.
            bytes: vec![0; RECEIVE_MAX * TRAIN_BYTES_MAX].into_boxed_slice(),
            vectors: Vectors::new(RECEIVE_MAX),
            peers: vec![RawAddress::empty(); RECEIVE_MAX].into_boxed_slice(),
            controls: vec![[0; CONTROL_WORDS]; RECEIVE_MAX].into_boxed_slice(),
            headers: Headers::new(RECEIVE_MAX),
            trains: 0,
            train: 0,
            offset: 0,
            mean_train: 1,
        }
    }

    /// Receives about as many packets as there is `room` for. All trains must have been handed
    /// out.
    fn receive(&mut self, fd: BorrowedFd<'_>, room: usize) -> io::Result<()> {
        let count = (room / self.mean_train).clamp(1, RECEIVE_MAX);
        for (i, bytes) in self.bytes.chunks_exact_mut(TRAIN_BYTES_MAX).take(count).enumerate() {
            self.vectors.0[i] = [mmsg::vector_mut(bytes)];
            let header = &mut self.headers.0[i].msg_hdr;
            header.msg_name = (&raw mut self.peers[i]).cast();
            header.msg_namelen = RawAddress::LEN;
            header.msg_iov = self.vectors.0[i].as_mut_ptr();
            header.msg_iovlen = 1;
            header.msg_control = self.controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&self.controls[i]);
        }
        (self.trains, self.train, self.offset) = (0, 0, 0);
        // SAFETY: the first `count` headers point at a peer, a control buffer and a vector of
        // ours, and that at a buffer of ours; all outlive the call.
        self.trains = unsafe { mmsg::receive(fd, &mut self.headers.0[..count])? };
        let trains = &self.headers.0[..self.trains];
        let bytes: usize = trains.iter().map(|message| message.msg_len as usize).sum();
        if let Some(mean) = (bytes / DATAGRAM_LEN).checked_div(self.trains) {
            self.mean_train = mean.max(1);
        }
        Ok(())
    }

    /// Copies received packets into `batch`; returns how many.
    fn hand_out(&mut self, batch: &mut [Packet], counters: &mut UdpCounters) -> usize {
        let mut filled = 0;
        while self.train < self.trains && filled < batch.len() {
            let message = &self.headers.0[self.train];
            let start = self.train * TRAIN_BYTES_MAX;
            let train = &self.bytes[start..start + message.msg_len as usize];
            // SAFETY: the header's control buffer is ours, and the kernel filled it in.
            let segment = unsafe { read_segment_size(&message.msg_hdr) }.unwrap_or(train.len());
            let peer = self.peers[self.train].get();
            let is_whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            while filled < batch.len() {
                let end = (self.offset + segment.max(1)).min(train.len());
                let datagram = &train[self.offset..end];
                match open_datagram(datagram).filter(|_| is_whole) {
                    Some((address, mad)) => {
                        batch[filled].address = Address { peer, ..address };
                        batch[filled].mad = *mad;
                        filled += 1;
                    }
                    None if is_whole && datagram.len() == DATAGRAM_LEN => {
                        counters.malformed.envelope += 1;
                    }
                    None => counters.malformed.length += 1,
                }
                self.offset = end;
                if end == train.len() {
                    (self.train, self.offset) = (self.train + 1, 0);
                    break;
                }
            }
        }
        filled
    }
}

/// Splits a datagram into its envelope's address and its MAD.
fn open_datagram(datagram: &[u8]) -> Option<(Address, &[u8; MAD_LEN])> {
    if datagram.len() != DATAGRAM_LEN {
        return None;
    }
    let (envelope, mad) = datagram.split_first_chunk()?;
    Some((decode(envelope)?, mad.first_chunk()?))
}

/// Attaches the control message that has the kernel cut a train into datagrams.
///
/// # Safety
///
/// `control` must outlive every use of `header`.
unsafe fn write_segment_size(header: &mut libc::msghdr, control: &mut [u64; CONTROL_WORDS]) {
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN compute only. The control buffer is aligned for a header and
    // longer than the message, so the pointer to its data stays within it.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as libc::c_uint) as usize;
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = libc::UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as libc::c_uint) as usize;
        libc::CMSG_DATA(message).cast::<u16>().write_unaligned(DATAGRAM_LEN as u16);
    }
}

/// The length of a received train's datagrams; `None` if it is a single one.
///
/// # Safety
///
/// The header's control buffer must be valid and filled in by the kernel.
unsafe fn read_segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the caller vouches for the buffer; the macros stay within the length in the header.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_UDP && (*message).cmsg_type == libc::UDP_GRO {
                let size = libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(size).ok().filter(|&size| size > 0);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

fn open(options: &UdpOptions) -> io::Result<UdpSocket> {
    let family = match options.listen {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    // SAFETY: a plain system call.
    let fd = unsafe {
        libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    check(fd)?;
    // SAFETY: the descriptor is open and nobody else's.
    let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    if options.share_port {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    let (raw, len) = RawAddress::new(options.listen);
    // SAFETY: `raw` holds an address of length `len`.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), len) })?;
    Ok(socket)
}

fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` is an int, as every option used here, and outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Interest, wait};
    use crate::types::{Lid, Qpn};
    use std::time::Duration;

    fn socket(trains: bool) -> Udp {
        let listen = "127.0.0.1:0".parse().unwrap();
        Udp::bind(&UdpOptions { trains, ..UdpOptions::new(listen) }).unwrap()
    }

    fn packets(count: u16, peer: SocketAddr) -> Vec<Packet> {
        (0..count)
            .map(|i| Packet {
                mad: [i as u8; MAD_LEN],
                address: Address { lid: Lid(i), peer: Some(peer), ..Address::default() },
            })
            .collect()
    }

    /// Waits for `count` packets, taking `batch_len` at a time.
    fn receive(socket: &mut Udp, count: usize, batch_len: usize) -> Vec<Packet> {
        let mut batch = vec![Packet::default(); batch_len];
        let mut all = Vec::new();
        while all.len() < count {
            let got = socket.receive(&mut batch).unwrap();
            all.extend_from_slice(&batch[..got]);
            if got < batch_len && all.len() < count {
                let mut interests = [Interest::read(socket.descriptor().unwrap())];
                assert_eq!(wait(&mut interests, Some(Duration::from_secs(60))).unwrap(), 1);
            }
        }
        all
    }

    /// Trains on neither side, on one, on both: the packets that arrive are the same.
    #[test]
    fn packets_arrive_whole_and_in_order_with_and_without_trains() {
        for (sender_trains, receiver_trains) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let (mut sender, mut receiver) = (socket(sender_trains), socket(receiver_trains));
            let to = receiver.local_addr().unwrap();
            let sent = packets(150, to);
            assert_eq!(sender.send(&sent).unwrap(), 150);
            let from = sender.local_addr().unwrap();
            let got = receive(&mut receiver, 150, 7);
            for (got, sent) in got.iter().zip(&sent) {
                assert_eq!(got.mad, sent.mad);
                let expected = Address { peer: Some(from), ..sent.address.clone() };
                assert_eq!(got.address, expected);
            }
            assert_eq!(receiver.counters().received, 150);
            if sender.sends_trains() {
                assert_eq!(sender.counters().sends, 1);
            }
        }
    }

    #[test]
    fn an_answer_written_where_the_request_stood_goes_back() {
        let (mut client, mut server) = (socket(true), socket(true));
        let mut request = packets(1, server.local_addr().unwrap());
        request[0].address.qpn = Qpn(77);
        client.send(&request).unwrap();
        let mut answer = receive(&mut server, 1, 8);
        answer[0].mad[3] = 0x81;
        server.send(&answer).unwrap();
        let answer = receive(&mut client, 1, 8);
        assert_eq!((answer[0].mad[3], answer[0].address.qpn), (0x81, Qpn(77)));
    }

    /// A batch may hold packets to many peers; a bad one must not hold up the others.
    #[test]
    fn peers_may_be_mixed_and_bad_ones_are_counted() {
        let mut sender = socket(true);
        let mut receivers = [socket(true), socket(true)];
        let [a, b] = [0, 1].map(|i: usize| receivers[i].local_addr().unwrap());
        let mut batch = packets(9, a);
        for i in [2, 3, 7] {
            batch[i].address.peer = Some(b);
        }
        batch[0].address.peer = None;
        batch[4].address.peer = Some(SocketAddr::new(b.ip(), 0));
        batch[8].address.peer = Some("[::1]:9".parse().unwrap());
        assert_eq!(sender.send(&batch).unwrap(), 9);
        let counters = sender.counters();
        assert_eq!((counters.sent, counters.refused), (6, 3));
        assert!(sender.sends_trains(), "no fault of trains");
        let lids = |packets: Vec<Packet>| -> Vec<u16> {
            packets.iter().map(|packet| packet.address.lid.0).collect()
        };
        assert_eq!(lids(receive(&mut receivers[0], 3, 8)), [1, 5, 6]);
        assert_eq!(lids(receive(&mut receivers[1], 3, 8)), [2, 3, 7]);
    }

    #[test]
    fn strange_datagrams_are_counted_and_passed_over() {
        let mut receiver = socket(true);
        let to = receiver.local_addr().unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let good = encode(&Address::default());
        let mut datagram = [0; DATAGRAM_LEN + 1];
        stranger.send_to(&datagram[..DATAGRAM_LEN], to).unwrap();
        datagram[..ENVELOPE_LEN].copy_from_slice(&good);
        for len in [0, 1, DATAGRAM_LEN - 1, DATAGRAM_LEN + 1, DATAGRAM_LEN] {
            stranger.send_to(&datagram[..len], to).unwrap();
        }
        assert_eq!(receive(&mut receiver, 1, 8).len(), 1);
        assert_eq!(receiver.malformed(), Malformed { length: 4, envelope: 1 });
    }

    #[test]
    fn several_sockets_can_share_an_address() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let options = UdpOptions { share_port: true, ..UdpOptions::new(listen) };
        let first = Udp::bind(&options).unwrap();
        let listen = first.local_addr().unwrap();
        assert!(Udp::bind(&UdpOptions { listen, ..options }).is_ok());
        assert!(Udp::bind(&UdpOptions::new(listen)).is_err());
    }
}

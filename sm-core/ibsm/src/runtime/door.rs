//! The front door's socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Malformed, Packet, Transport};
use sa_proto::trust;

use crate::front_door::AnnouncedDoor;
use crate::node::{BATCH, Node};

/// The UDP socket of the front door.
pub(super) struct DoorSocket {
    udp: Udp,
    /// In all envelopes that it sends: another program that has its address later does not know it.
    token: u64,
    incoming: Box<[Packet]>,
}

impl DoorSocket {
    pub(super) fn open(listen: SocketAddr) -> io::Result<Self> {
        let token = trust::token()?;
        let udp = Udp::bind(&UdpOptions { token, ..UdpOptions::new(listen) })?;
        Ok(Self { udp, token, incoming: vec![Packet::default(); BATCH].into_boxed_slice() })
    }

    /// What responders need to know of it.
    pub(super) fn announced(&self) -> io::Result<AnnouncedDoor> {
        Ok(AnnouncedDoor { address: self.udp.local_addr()?.to_string(), token: self.token })
    }

    /// Datagrams that were malformed.
    pub(super) fn malformed(&self) -> Malformed {
        self.udp.malformed()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.udp.descriptor()
    }

    /// Sends packets to responders, as far as the socket takes them.
    pub(super) fn send(&mut self, node: &mut Node) -> io::Result<()> {
        while !node.poll_forward().is_empty() {
            let sent = self.udp.send(node.poll_forward())?;
            if sent == 0 {
                break;
            }
            node.handle_forwarded(sent);
        }
        Ok(())
    }

    /// Hands over a batch of packets from responders; returns whether there were any.
    pub(super) fn receive(&mut self, mut handle: impl FnMut(&mut Packet)) -> io::Result<bool> {
        let got = self.udp.receive(&mut self.incoming)?;
        self.incoming[..got].iter_mut().for_each(&mut handle);
        Ok(got > 0)
    }
}

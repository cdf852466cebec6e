//! The front door's socket. The kernel drops what does not come from a responder before it takes
//! room in the socket's buffer.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::{Accepted, Udp, UdpOptions};
use ib_mad::transport::{Malformed, Packet, Transport};
use sa_proto::trust;

use crate::front_door::AnnouncedDoor;
use crate::node::{BATCH, Node};
use crate::observe::Responder;

/// How often the kernel is asked how much it dropped.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The UDP socket of the front door.
pub(super) struct DoorSocket {
    udp: Udp,
    /// In all envelopes that it sends: another program that has its address later does not know it.
    token: u64,
    incoming: Box<[Packet]>,
    /// The responders that it accepts.
    followed: Option<Arc<Vec<Responder>>>,
    accepted: Option<Accepted>,
    /// Datagrams that the kernel dropped, and when that was last asked for.
    dropped: u64,
    counted: Option<Instant>,
}

/// The datagrams that may come from these responders; `None` if one of an older version, which has
/// no token, is among them: then all.
fn accepted(responders: &[Responder]) -> Option<Accepted> {
    let sending = responders.iter().filter(|responder| !responder.front_door.is_empty());
    let mut tokens: Vec<u64> = sending.map(|responder| responder.front_door_token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    (tokens.first() != Some(&0)).then_some(Accepted { tokens, ports: Vec::new() })
}

impl DoorSocket {
    pub(super) fn open(listen: SocketAddr) -> io::Result<Self> {
        let token = trust::token()?;
        let udp = Udp::bind(&UdpOptions { token, ..UdpOptions::new(listen) })?;
        let incoming = vec![Packet::default(); BATCH].into_boxed_slice();
        let (followed, accepted) = (None, None);
        Ok(Self { udp, token, incoming, followed, accepted, dropped: 0, counted: None })
    }

    /// Accepts datagrams of these responders only. Called before any of them is sent a request.
    pub(super) fn follow(&mut self, now: Instant, responders: &Arc<Vec<Responder>>) {
        let is_due = |counted: Instant| now.saturating_duration_since(counted) >= COUNT_INTERVAL;
        if self.counted.is_none_or(is_due) {
            (self.dropped, self.counted) = (self.udp.overflowed(), Some(now));
        }
        if self.followed.as_ref().is_some_and(|followed| Arc::ptr_eq(followed, responders)) {
            return;
        }
        let is_first = self.followed.replace(responders.clone()).is_none();
        let accepted = accepted(responders);
        if !is_first && accepted == self.accepted {
            return;
        }
        match self.udp.accept_only(accepted.as_ref()) {
            Ok(()) => self.accepted = accepted,
            Err(error) => {
                // Strangers may use the buffer up; their datagrams are still dropped when received.
                tracing::debug!(%error, "cannot set the filter of the front door's socket");
                if self.udp.accept_only(None).is_ok() {
                    self.accepted = None;
                }
            }
        }
    }

    /// Datagrams that the kernel dropped: they came from no responder, or the buffer was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
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

#[cfg(test)]
mod tests {
    use sa_proto::proto::snapshot::Hello;

    use super::*;

    fn responder(id: u64, token: u64) -> Responder {
        let hello = Hello {
            responder_id: id,
            front_door: vec!["127.0.0.1:9".to_owned()],
            front_door_token: token,
            ..Hello::default()
        };
        Responder::new(&hello, None, None, Instant::now(), id)
    }

    /// Regression: a local user could fill the socket's buffer, and answers of responders were
    /// lost.
    #[test]
    fn only_what_may_come_from_a_responder_reaches_the_buffer() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut door = DoorSocket::open(listen).unwrap();
        let to = door.udp.local_addr().unwrap();
        let send = |token| {
            let mut udp = Udp::bind(&UdpOptions { token, ..UdpOptions::new(listen) }).unwrap();
            let mut packet = Packet::default();
            packet.carrier.peer = Some(to);
            assert_eq!(udp.send(&[packet]).unwrap(), 1);
        };
        let mut now = Instant::now();
        let mut heard = |responders: &[(u64, u64)], token| {
            let list = responders.iter().map(|&(id, token)| responder(id, token)).collect();
            now += COUNT_INTERVAL;
            door.follow(now, &Arc::new(list));
            send(token);
            let mut heard = 0;
            door.receive(|_| heard += 1).unwrap();
            now += COUNT_INTERVAL;
            door.follow(now, &Arc::default());
            (heard, door.dropped())
        };
        assert_eq!(heard(&[], 7), (0, 1));
        assert_eq!(heard(&[(1, 7), (2, 8)], 8), (1, 1));
        assert_eq!(heard(&[(1, 7), (2, 8)], 9), (0, 2));
        assert_eq!(heard(&[(1, 7), (2, 0)], 9), (1, 2), "one has no token");
    }
}

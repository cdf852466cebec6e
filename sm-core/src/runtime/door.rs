//! The front door's socket, and the packets on their way through it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Malformed, Packet, Transport};
use tracing::warn;

use super::BATCH;
use super::ring::Ring;
use crate::front_door::{Counters, FrontDoor, Passage, RedirectMode, ReturnWay, Target};
use crate::publish::Responders;
use crate::sweep::SlsOfPaths;

/// Packets that wait for the socket to take them; more are dropped, their senders ask again.
const QUEUE_MAX: usize = 4096;
/// How often what is dropped is told.
const COMPLAINT_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);

/// The front door with its socket.
pub(super) struct Door {
    udp: Udp,
    logic: FrontDoor,
    responders: Responders,
    /// Packets for responders that the socket has not taken yet.
    outgoing: Ring,
    incoming: Box<[Packet]>,
    complaint_due: Option<Instant>,
    complained: u64,
}

impl Door {
    pub(super) fn open(listen: SocketAddr, responders: Responders) -> io::Result<Self> {
        Ok(Self {
            udp: Udp::bind(&UdpOptions::new(listen))?,
            logic: FrontDoor::default(),
            responders,
            outgoing: Ring::new(QUEUE_MAX),
            incoming: vec![Packet::default(); BATCH].into_boxed_slice(),
            complaint_due: None,
            complained: 0,
        })
    }

    /// Where responders reach it.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    pub(super) fn counters(&self) -> Counters {
        Counters { overflow: self.outgoing.dropped(), ..self.logic.counters }
    }

    /// Datagrams that were no packets.
    pub(super) fn malformed(&self) -> Malformed {
        self.udp.malformed()
    }

    pub(super) fn pins(&self) -> usize {
        self.logic.pins()
    }

    /// Opens the door while we are the master and publish, and shuts it otherwise.
    pub(super) fn set_open(&mut self, open: bool) {
        self.logic.set_open(open);
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.udp.descriptor()
    }

    /// Whether packets wait for the socket.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Says which clients are redirected.
    pub(super) fn set_redirect_mode(&mut self, mode: RedirectMode) {
        self.logic.set_redirect_mode(mode);
    }

    /// Says by which way answers go back.
    pub(super) fn set_return_way(&mut self, way: ReturnWay) {
        self.logic.set_return_way(way);
    }

    /// Says to which ports clients may be redirected, and the SLs of paths there.
    pub(super) fn set_targets(&mut self, targets: Vec<Target>, sls: SlsOfPaths) {
        self.logic.set_targets(targets, sls);
    }

    /// Takes a packet that the fabric delivered to our QP1. `true` if it has become an answer to be
    /// sent.
    pub(super) fn admit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let responders = self.responders.load();
        match self.logic.admit(now, &responders, packet) {
            Passage::ToResponder => {
                self.outgoing.push(packet);
                false
            }
            Passage::ToClient => true,
            Passage::Dropped => false,
        }
    }

    /// Sends what waits for responders.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            let sent = self.udp.send(self.outgoing.front())?;
            if sent == 0 {
                break;
            }
            self.outgoing.consume(sent);
        }
        Ok(())
    }

    /// Hands answers from responders to `deliver`; whether there were any.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        mut deliver: impl FnMut(&Packet),
    ) -> io::Result<bool> {
        let got = self.udp.receive(&mut self.incoming)?;
        let responders = self.responders.load();
        for packet in &mut self.incoming[..got] {
            if self.logic.release(now, &responders, packet) {
                deliver(packet);
            }
        }
        Ok(got > 0)
    }

    /// Tells the operator once in a while if queries find nobody to answer them.
    pub(super) fn complain(&mut self, now: Instant) {
        let unanswered = self.logic.counters.no_responder;
        if unanswered > self.complained && self.complaint_due.is_none_or(|due| now >= due) {
            warn!(
                "{unanswered} queries dropped so far, since no responder is connected and serving; \
                 `ibsmctl status` tells how to start one"
            );
            self.complained = unanswered;
            self.complaint_due = Some(now + COMPLAINT_INTERVAL);
        }
    }
}

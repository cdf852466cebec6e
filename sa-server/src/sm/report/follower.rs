//! Decides how a responder follows the SM's events.
//!
//! This module never sends, waits or reads a clock. There is at most one event stream. The SM
//! numbers its events; a new stream of the same SM continues after the last one received.
//!
//! Reports leave through the SM's front door, so none is sent before its address is known.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::types::{Guid, PKey};
use sa_proto::proto::event as proto;

use super::{Counters, Event, ReportConfig, Reports};
use crate::sm::peers::Peers;
use crate::tables::cell::Generation;

/// Minimum interval between two streams, and delay after an attempt that failed.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The event stream, and the Reports that result from it.
#[derive(Debug)]
pub struct Follower {
    responder_id: u64,
    reports: Reports,
    link: Link,
    /// URL of the SM that numbered the events received.
    sm: String,
    /// Number of the last event received from `sm`.
    last_event: u64,
    /// The SM's front door, through which Reports leave.
    front_door: Option<SocketAddr>,
    /// Accepts envelopes from that front door.
    peers: Peers,
    /// The lane of the SM's session.
    lane: usize,
}

/// The event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// No stream; one may be opened at `retry`, or now.
    Down { retry: Option<Instant> },
    /// A stream is being opened, or is open since `opened`.
    Up { opened: Option<Instant> },
}

impl Follower {
    /// No events yet. The addresses of front doors are announced to `peers`, as those of `lane`.
    pub fn new(responder_id: u64, config: ReportConfig, peers: Peers, lane: usize) -> Self {
        Self {
            responder_id,
            reports: Reports::new(responder_id, config),
            link: Link::Down { retry: None },
            sm: String::new(),
            last_event: 0,
            front_door: None,
            peers,
            lane,
        }
    }

    /// Whether to open a stream now, if there is an SM.
    pub fn poll_connect(&self) -> bool {
        self.link == Link::Down { retry: None }
    }

    /// A stream to the SM at this URL is being opened; returns the request for it. Another SM has a
    /// own front door and event numbers.
    pub fn handle_connect(&mut self, sm: &str) -> proto::FollowRequest {
        self.link = Link::Up { opened: None };
        if self.sm != sm {
            sm.clone_into(&mut self.sm);
            self.last_event = 0;
            self.handle_front_doors(Vec::new(), 0);
            self.handle_spill(Vec::new(), 0);
        }
        proto::FollowRequest { responder_id: self.responder_id, after: self.last_event }
    }

    /// The stream is open.
    pub fn handle_open(&mut self, now: Instant) {
        self.link = Link::Up { opened: Some(now) };
    }

    /// The stream broke, or could not be opened.
    pub fn handle_disconnect(&mut self, now: Instant) {
        if let Link::Up { opened } = self.link {
            self.link = Link::Down { retry: Some(opened.unwrap_or(now) + RETRY_DELAY) };
        }
    }

    /// The stream, if there is one, is closed in favour of another SM; connects without delay.
    pub fn handle_upstream(&mut self) {
        self.link = Link::Down { retry: None };
    }

    /// The SM's front door has these addresses and this token. Reports leave through the first.
    pub fn handle_front_doors(&mut self, addresses: Vec<SocketAddr>, token: u64) {
        self.front_door = addresses.first().copied();
        self.peers.set_doors(self.lane, addresses, token);
    }

    /// The responder at the SM's port passes requests on from these addresses, with this token.
    pub fn handle_spill(&mut self, addresses: Vec<SocketAddr>, token: u64) {
        self.peers.set_spill(self.lane, addresses, token);
    }

    /// Takes events from the stream; returns how many were ignored because they carry no Notice.
    pub fn handle_notices(
        &mut self,
        now: Instant,
        generation: &Generation,
        notices: Vec<proto::Notice>,
    ) -> usize {
        let mut invalid = 0;
        for notice in notices {
            self.last_event = self.last_event.max(notice.number);
            match event(&notice) {
                Some(event) => self.reports.handle_event(now, generation, &event),
                None => invalid += 1,
            }
        }
        invalid
    }

    /// Queries are answered from `generation` from now on.
    pub fn handle_registry(&mut self, now: Instant, generation: &Generation) {
        self.reports.handle_registry(now, generation);
    }

    /// Takes a ReportResp; `false` if it answers no Report on the wire.
    pub fn handle_answer(&mut self, now: Instant, packet: &Packet) -> bool {
        self.reports.handle_answer(now, packet)
    }

    /// The next Report to send. Call until it yields `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        let front_door = self.front_door?;
        let mut packet = self.reports.poll_transmit(now)?;
        packet.carrier.peer = Some(front_door);
        Some(packet)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. Changes after any other `&mut self`
    /// call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let retry = match self.link {
            Link::Down { retry } => retry,
            Link::Up { .. } => None,
        };
        [retry, self.reports.poll_timeout()].into_iter().flatten().min()
    }

    /// Performs due work: allows a new stream, repeats Reports. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Link::Down { retry: Some(due) } = self.link
            && due <= now
        {
            self.link = Link::Down { retry: None };
        }
        self.reports.handle_timeout(now);
    }

    /// Counters of Reports.
    pub fn counters(&self) -> Counters {
        self.reports.counters
    }
}

/// An event of the stream; `None` if its Notice has a wrong length.
fn event(notice: &proto::Notice) -> Option<Event> {
    Some(Event {
        notice: notice.notice[..].try_into().ok()?,
        trusted_only: notice.trusted_only,
        subject: (notice.subject_port_guid != 0).then_some(Guid(notice.subject_port_guid)),
        subject_pkeys: notice.subject_pkeys.iter().map(|&key| PKey(key as u16)).collect(),
        supersedes_key: notice.supersedes_key,
    })
}

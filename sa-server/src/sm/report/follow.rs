//! Drives the follower: moves events from the SM's gRPC stream to it, and Reports from it to the
//! worker that sends them.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use sa_proto::proto::event as proto;
use sa_proto::proto::event::events_client::EventsClient;
use sa_proto::snapshot::Version;
use tokio::sync::watch;
use tonic::Streaming;

use super::follower::Follower;
use super::{Counters, ReportConfig};
use crate::serve::spill::Spill;
use crate::sm::forward::Exchange;
use crate::sm::peers::{self, Peers};
use crate::sm::replica::{Upstream, passing_identity};
use crate::sm::sleep_until;
use crate::tables::cell::Reader;

/// Limit of addresses that requests at the SM's port are passed on from.
const SPILL_FROM_MAX: usize = 8;

/// What Reports are made of, and where they go.
pub(crate) struct Reporting {
    pub(crate) responder_id: u64,
    /// The lane of the session whose events are followed.
    pub(crate) lane: usize,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) counters: Arc<ArcSwap<Counters>>,
    pub(crate) tables: Reader,
    pub(crate) peers: Peers,
    /// Queries at the SM's port that other responders may answer, if this responder is there.
    pub(crate) spill: Option<Arc<Spill>>,
}

/// Sends Reports until a sender of `upstream`, the SM followed in the lane, or of `versions` is
/// dropped; `versions` changes when the tables hold another generation.
pub(crate) async fn run(
    reporting: Reporting,
    mut upstream: watch::Receiver<Option<Upstream>>,
    mut versions: watch::Receiver<Version>,
) {
    let Reporting { responder_id, lane, exchange, counters, tables, peers, spill } = reporting;
    // A late response to a Report of the previous process must not match one of this process.
    let config = ReportConfig { first_tid: passing_identity() as u32, ..ReportConfig::default() };
    let follower = Follower::new(responder_id, config, peers, lane);
    let mut reporter = Reporter { exchange: Arc::clone(&exchange), lane, follower, tables, spill };
    let mut sm = upstream.borrow_and_update().clone();
    let mut stream = None;
    loop {
        if let Some(sm) = sm.as_ref().filter(|_| reporter.follower.poll_connect()) {
            stream = reporter.open(sm).await;
        }
        reporter.transmit();
        tokio::select! {
            notices = next(&mut stream) => match notices {
                Some(notices) => reporter.take(sm.as_ref(), notices).await,
                None => {
                    stream = None;
                    reporter.handle_disconnect(Instant::now());
                }
            },
            () = exchange.report_answered(lane) => reporter.take_answers(),
            () = sleep_until(reporter.follower.poll_timeout()) => {
                reporter.follower.handle_timeout(Instant::now());
            }
            changed = versions.changed() => match changed {
                Ok(()) => reporter.update_registry(),
                Err(_) => return,
            },
            changed = upstream.changed() => match changed {
                Ok(()) => {
                    sm = upstream.borrow_and_update().clone();
                    stream = None;
                    reporter.handle_upstream();
                }
                Err(_) => return,
            },
        }
        counters.store(Arc::new(reporter.follower.counters()));
    }
}

/// The next message of a stream, or `None` once it has ended; never completes without a stream.
async fn next(stream: &mut Option<Streaming<proto::Notices>>) -> Option<proto::Notices> {
    match stream {
        Some(stream) => stream.message().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

struct Reporter {
    exchange: Arc<Exchange>,
    lane: usize,
    follower: Follower,
    tables: Reader,
    spill: Option<Arc<Spill>>,
}

impl Reporter {
    async fn open(&mut self, sm: &Upstream) -> Option<Streaming<proto::Notices>> {
        let request = self.follower.handle_connect(&sm.url);
        match EventsClient::new(sm.channel.clone()).follow(request).await {
            Ok(stream) => {
                self.follower.handle_open(Instant::now());
                Some(stream.into_inner())
            }
            Err(status) => {
                tracing::debug!(sm = sm.url, reason = status.message(), "event stream failed");
                self.follower.handle_disconnect(Instant::now());
                None
            }
        }
    }

    fn handle_disconnect(&mut self, now: Instant) {
        self.follower.handle_disconnect(now);
        self.keep_queries();
    }

    fn handle_upstream(&mut self) {
        self.follower.handle_upstream();
        self.keep_queries();
    }

    /// Passes on no more queries until a manager names responders: it no longer says which of them
    /// are alive, and a client would be sent to a dead one with each repeat.
    fn keep_queries(&self) {
        if let Some(spill) = &self.spill {
            spill.suspend(self.lane);
        }
    }

    async fn take(&mut self, sm: Option<&Upstream>, notices: proto::Notices) {
        if let Some(sm) = sm.filter(|_| !notices.front_door.is_empty()) {
            let doors = peers::doors(&notices.front_door, &sm.url).await;
            if doors.is_empty() {
                tracing::warn!(
                    address = notices.front_door,
                    "the SM announced an unusable front-door address; Reports to subscribers are \
                     not sent"
                );
            }
            self.follower.handle_front_doors(doors, notices.front_door_token);
        }
        if let (Some(sm), Some(named)) = (sm, &notices.spill) {
            self.take_spill(sm, named).await;
        }
        let Some(generation) = self.tables.lane(self.lane) else { return };
        let invalid = self.follower.handle_notices(Instant::now(), generation, notices.notices);
        if invalid > 0 {
            tracing::warn!(events = invalid, "events without a valid Notice ignored");
        }
    }

    /// Accepts requests that the responder at the SM's port passes on, and passes on those of this
    /// responder if it is there.
    async fn take_spill(&mut self, sm: &Upstream, named: &proto::Spill) {
        let mut addresses = Vec::new();
        for from in named.from.iter().take(SPILL_FROM_MAX) {
            addresses.extend(peers::doors(from, &sm.url).await);
        }
        self.follower.handle_spill(addresses, named.from_token);
        if let Some(spill) = &self.spill {
            spill.set_targets(self.lane, &named.targets);
        }
    }

    fn take_answers(&mut self) {
        while let Some(packet) = self.exchange.take_report_answer(self.lane) {
            self.follower.handle_answer(Instant::now(), &packet);
        }
    }

    fn update_registry(&mut self) {
        if let Some(generation) = self.tables.lane(self.lane) {
            self.follower.handle_registry(Instant::now(), generation);
        }
    }

    /// Queues Reports for the worker that sends them. One that finds the queue full is repeated
    /// later, as if it had been lost on the way.
    fn transmit(&mut self) {
        let now = Instant::now();
        while let Some(packet) = self.follower.poll_transmit(now) {
            if !self.exchange.send_report(packet) {
                break;
            }
        }
    }
}

//! Drives the follower: moves events from the SM's gRPC stream to it, and Reports from it to the
//! worker that sends them.

use std::net::SocketAddr;
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
use crate::sm::forward::Exchange;
use crate::sm::peers::Peers;
use crate::sm::replica::{Upstream, passing_identity};
use crate::sm::sleep_until;
use crate::tables::cell::Reader;

/// Addresses tried for a front door that is on the SM's host.
const DOORS_MAX: usize = 8;

/// Sends Reports until a sender of `upstream`, the followed SM, or of `versions` is dropped;
/// `versions` changes when `tables` holds another generation.
pub(crate) async fn run(
    responder_id: u64,
    exchange: Arc<Exchange>,
    counters: Arc<ArcSwap<Counters>>,
    mut upstream: watch::Receiver<Option<Upstream>>,
    mut versions: watch::Receiver<Version>,
    tables: Reader,
    peers: Peers,
) {
    // A late response to a Report of the previous process must not match one of this process.
    let config = ReportConfig { first_tid: passing_identity() as u32, ..ReportConfig::default() };
    let follower = Follower::new(responder_id, config, peers);
    let mut reporter = Reporter { exchange: Arc::clone(&exchange), follower, tables };
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
                    reporter.follower.handle_disconnect(Instant::now());
                }
            },
            () = exchange.report_answered() => reporter.take_answers(),
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
                    reporter.follower.handle_upstream();
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
    follower: Follower,
    tables: Reader,
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

    async fn take(&mut self, sm: Option<&Upstream>, notices: proto::Notices) {
        if let Some(sm) = sm.filter(|_| !notices.front_door.is_empty()) {
            let doors = doors(&notices.front_door, &sm.url).await;
            if doors.is_empty() {
                tracing::warn!(
                    address = notices.front_door,
                    "the SM announced an unusable front-door address; Reports to subscribers are \
                     not sent"
                );
            }
            self.follower.handle_front_doors(doors);
        }
        let Some(generation) = self.tables.current() else { return };
        let invalid = self.follower.handle_notices(Instant::now(), generation, notices.notices);
        if invalid > 0 {
            tracing::warn!(events = invalid, "events without a valid Notice ignored");
        }
    }

    fn take_answers(&mut self) {
        while let Some(packet) = self.exchange.take_report_answer() {
            self.follower.handle_answer(Instant::now(), &packet);
        }
    }

    fn update_registry(&mut self) {
        if let Some(generation) = self.tables.current() {
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

/// The addresses of an announced front door; an unspecified address stands for the SM's host.
async fn doors(announced: &str, sm: &str) -> Vec<SocketAddr> {
    let Ok(address) = announced.parse::<SocketAddr>() else { return Vec::new() };
    if !address.ip().is_unspecified() {
        return vec![address];
    }
    let Ok(uri) = sm.parse::<tonic::transport::Uri>() else { return Vec::new() };
    let Some(host) = uri.host() else { return Vec::new() };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((host, address.port())).await;
    found.map_or_else(|_| Vec::new(), |found| found.take(DOORS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_door_at_no_address_is_at_the_sms() {
        for (announced, sm, expected) in [
            ("192.0.2.1:5", "http://198.51.100.2:7", "192.0.2.1:5"),
            ("0.0.0.0:5", "http://198.51.100.2:7", "198.51.100.2:5"),
            ("[::]:5", "http://[2001:db8::1]:7", "[2001:db8::1]:5"),
        ] {
            assert_eq!(doors(announced, sm).await, [expected.parse::<SocketAddr>().unwrap()]);
        }
        let local = doors("0.0.0.0:5", "http://localhost:7").await;
        assert!(!local.is_empty() && local.iter().all(|at| at.ip().is_loopback()), "{local:?}");
        assert!(doors("nonsense", "http://198.51.100.2:7").await.is_empty());
    }
}

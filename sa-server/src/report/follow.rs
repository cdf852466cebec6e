//! The stream of events from the SM that is followed, and the reports that they lead to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ib_mad::types::{Guid, PKey};
use sa_proto::proto::event as proto;
use sa_proto::proto::event::events_client::EventsClient;
use sa_proto::snapshot::Version;
use tokio::sync::watch;
use tonic::Streaming;

use super::{Counters, Event, ReportConfig, Reports};
use crate::cell::Reader;
use crate::forward::Exchange;
use crate::peers::Peers;
use crate::replica::{Upstream, passing_identity};

/// How long to wait before a stream that broke is opened again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Addresses of an SM's host that its front door may be at.
const DOORS_MAX: usize = 8;

/// Reports until the program ends. `upstream` tells which SM is followed, `versions` when the
/// generation in `tables` is another.
pub(crate) async fn run(
    responder_id: u64,
    exchange: Arc<Exchange>,
    counters: Arc<ArcSwap<Counters>>,
    mut upstream: watch::Receiver<Option<Upstream>>,
    versions: watch::Receiver<Version>,
    tables: Reader,
    peers: Peers,
) {
    // A late answer to a report of the process before must not pass for one to ours.
    let config = ReportConfig { first_tid: passing_identity() as u32, ..ReportConfig::default() };
    let reports = Reports::new(responder_id, config);
    let mut reporter = Reporter {
        responder_id,
        exchange,
        counters,
        reports,
        versions,
        tables,
        heard: (String::new(), 0),
        door: None,
        peers,
    };
    loop {
        let current = upstream.borrow_and_update().clone();
        let stream = match &current {
            Some(sm) => reporter.follow(sm).await,
            None => None,
        };
        let end = reporter.work(current.as_ref(), stream, &mut upstream).await;
        if end.is_err() {
            return;
        }
    }
}

/// Nobody tells of SMs any more: the program ends.
struct Ended;

struct Reporter {
    responder_id: u64,
    exchange: Arc<Exchange>,
    counters: Arc<ArcSwap<Counters>>,
    reports: Reports,
    versions: watch::Receiver<Version>,
    tables: Reader,
    /// Number of the last event heard of, and from which SM: each numbers them for itself.
    heard: (String, u64),
    /// The SM's front door, by which reports leave.
    door: Option<SocketAddr>,
    /// Whose envelopes are believed: that front door's.
    peers: Peers,
}

impl Reporter {
    async fn follow(&mut self, sm: &Upstream) -> Option<Streaming<proto::Notices>> {
        if self.heard.0 != sm.url {
            self.heard = (sm.url.clone(), 0);
            self.door = None;
            self.peers.set_doors([]);
        }
        let request = proto::FollowRequest { responder_id: self.responder_id, after: self.heard.1 };
        match EventsClient::new(sm.channel.clone()).follow(request).await {
            Ok(stream) => Some(stream.into_inner()),
            Err(status) => {
                tracing::debug!(sm = sm.url, reason = status.message(), "no events");
                None
            }
        }
    }

    /// Takes events and answers until the stream breaks or another SM is followed.
    async fn work(
        &mut self,
        sm: Option<&Upstream>,
        mut stream: Option<Streaming<proto::Notices>>,
        upstream: &mut watch::Receiver<Option<Upstream>>,
    ) -> Result<(), Ended> {
        let exchange = Arc::clone(&self.exchange);
        let retry = tokio::time::sleep(RETRY_DELAY);
        tokio::pin!(retry);
        loop {
            self.transmit();
            let due = self.reports.poll_timeout();
            let due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            let broken = stream.is_none() && sm.is_some();
            let message = async {
                match &mut stream {
                    Some(stream) => stream.message().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = message => match message {
                    Ok(Some(notices)) => self.take(sm, notices).await,
                    Ok(None) | Err(_) => stream = None,
                },
                () = exchange.report_answered() => {
                    while let Some(packet) = exchange.take_report_answer() {
                        self.reports.handle_answer(Instant::now(), &packet);
                    }
                }
                () = due => self.reports.handle_timeout(Instant::now()),
                changed = self.versions.changed() => {
                    changed.map_err(|_| Ended)?;
                    self.versions.borrow_and_update();
                    if let Some(generation) = self.tables.current() {
                        self.reports.handle_registry(Instant::now(), generation);
                    }
                }
                changed = upstream.changed() => return changed.map_err(|_| Ended),
                () = &mut retry, if broken => return Ok(()),
            }
            self.counters.store(Arc::new(self.reports.counters));
        }
    }

    async fn take(&mut self, sm: Option<&Upstream>, notices: proto::Notices) {
        if !notices.front_door.is_empty() {
            let doors = match sm {
                Some(sm) => doors(&notices.front_door, &sm.url).await,
                None => Vec::new(),
            };
            self.door = doors.first().copied();
            self.peers.set_doors(doors);
            if self.door.is_none() {
                tracing::warn!(
                    address = notices.front_door,
                    "the SM's front door has no address that reports can be sent to"
                );
            }
        }
        let Some(generation) = self.tables.current().cloned() else { return };
        for notice in notices.notices {
            self.heard.1 = self.heard.1.max(notice.number);
            let Ok(bytes) = <[u8; 80]>::try_from(&notice.notice[..]) else {
                tracing::warn!("an event that is no notice; ignored");
                continue;
            };
            let event = Event {
                notice: bytes,
                trusted_only: notice.trusted_only,
                subject: (notice.subject_port_guid != 0).then_some(Guid(notice.subject_port_guid)),
                subject_pkeys: notice.subject_pkeys.iter().map(|&key| PKey(key as u16)).collect(),
                supersedes_key: notice.supersedes_key,
            };
            self.reports.handle_event(Instant::now(), &generation, &event);
        }
    }

    /// Hands what is to be sent to the worker that sends it.
    fn transmit(&mut self) {
        if self.door.is_none() {
            return;
        }
        let now = Instant::now();
        while let Some(mut packet) = self.reports.poll_transmit(now) {
            packet.address.peer = self.door;
            if !self.exchange.send_report(packet) {
                // It is repeated as if it had been lost on the way.
                break;
            }
        }
    }
}

/// The addresses that a front door may be at; an unspecified one is on the SM's own host.
async fn doors(told: &str, sm: &str) -> Vec<SocketAddr> {
    let Ok(address) = told.parse::<SocketAddr>() else { return Vec::new() };
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
        for (told, sm, expected) in [
            ("192.0.2.1:5", "http://198.51.100.2:7", "192.0.2.1:5"),
            ("0.0.0.0:5", "http://198.51.100.2:7", "198.51.100.2:5"),
            ("[::]:5", "http://[2001:db8::1]:7", "[2001:db8::1]:5"),
        ] {
            assert_eq!(doors(told, sm).await, [expected.parse::<SocketAddr>().unwrap()]);
        }
        let local = doors("0.0.0.0:5", "http://localhost:7").await;
        assert!(!local.is_empty() && local.iter().all(|at| at.ip().is_loopback()), "{local:?}");
        assert!(doors("nonsense", "http://198.51.100.2:7").await.is_empty());
    }
}

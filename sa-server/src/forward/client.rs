//! The control plane's end: one stream of writes to the SM that is followed.
//!
//! Writes that were sent when a stream broke are sent again on the next one, unless their clients
//! have given up: the SM knows repeats, also those of another responder or connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ib_mad::transport::Address;
use ib_mad::wire::mad::Status;
use sa_proto::metrics::Histogram;
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_client::RegistryClient;
use sa_proto::snapshot::Version;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::held::{Held, Point};
use super::in_flight::{InFlight, Sent, WRITES_MAX};
use super::{Answer, Exchange, Request, Submission, Verdict};
use crate::replica::Upstream;

/// Writes in one message: what the SM commits at a time.
const BATCH_MAX: usize = 1024;
/// Messages that the connection has not taken yet.
const OUTBOUND_MAX: usize = 4;
/// How long to wait before a stream that broke at once is opened again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How often the control plane looks for writes whose clients have given up.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// What the forwarding of writes counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Writes handed to the SM, repeats after a broken stream included.
    pub sent: AtomicU64,
    /// Outcomes that came back.
    pub outcomes: AtomicU64,
    /// Writes sent again after a broken stream.
    pub resent: AtomicU64,
    /// Writes given up because no outcome came in time.
    pub given_up: AtomicU64,
    /// Streams opened.
    pub streams: AtomicU64,
    /// Outcomes that wait for the tables now.
    pub held: AtomicU64,
    /// Messages that the SM has not answered now.
    pub in_flight: AtomicU64,
    /// Time from handing a write to the SM to its outcome.
    pub round_trip: Histogram,
}

/// The task that passes writes on.
#[derive(Debug)]
pub struct Forwarding {
    /// Identity of this responder.
    pub responder_id: u64,
    /// Where writes come from, and outcomes go.
    pub exchange: Arc<Exchange>,
    /// What it counts.
    pub counters: Arc<Counters>,
    /// How long clients wait: what is older is not sent.
    pub patience: Duration,
}

impl Forwarding {
    /// Passes on what `exchange` takes in, with the patience of RDMA CM's clients.
    pub fn new(responder_id: u64, exchange: Arc<Exchange>) -> Self {
        Self { responder_id, exchange, counters: Arc::default(), patience: super::PATIENCE }
    }

    /// Goes on until nobody tells of SMs any more. `upstream` tells which SM is followed,
    /// `versions` what queries are answered from.
    pub async fn run(
        self,
        mut upstream: watch::Receiver<Option<Upstream>>,
        versions: watch::Receiver<Version>,
    ) {
        let Self { responder_id, exchange, counters, patience } = self;
        let mut client = Client {
            responder_id,
            exchange,
            counters,
            versions,
            patience,
            in_flight: InFlight::default(),
            held: Held::default(),
        };
        loop {
            let current = upstream.borrow_and_update().clone();
            let goes_on = match current {
                Some(sm) => {
                    tokio::select! {
                        ended = client.serve(&sm) => {
                            client.exchange.set_reachable(false);
                            if let Err(status) = ended {
                                let reason = status.message();
                                tracing::debug!(sm = sm.url, reason, "writes interrupted");
                            }
                            client.pause(RETRY_DELAY, &mut upstream).await
                        }
                        changed = upstream.changed() => {
                            client.exchange.set_reachable(false);
                            changed.is_ok()
                        }
                    }
                }
                None => client.pause(Duration::MAX, &mut upstream).await,
            };
            if !goes_on {
                return;
            }
        }
    }
}

struct Client {
    responder_id: u64,
    exchange: Arc<Exchange>,
    counters: Arc<Counters>,
    versions: watch::Receiver<Version>,
    patience: Duration,
    in_flight: InFlight,
    held: Held,
}

impl Client {
    /// Passes writes to one SM until its stream breaks.
    async fn serve(&mut self, sm: &Upstream) -> Result<(), tonic::Status> {
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        // The first message is queued before the call, which the SM may not answer without.
        let hello = self.batch_again();
        let _ = outbound.try_send(hello);
        let mut registry = RegistryClient::new(sm.channel.clone());
        let inbound = registry.write(ReceiverStream::new(messages)).await?.into_inner();
        self.counters.streams.fetch_add(1, Relaxed);
        self.exchange.set_reachable(true);
        self.work(outbound, inbound).await
    }

    async fn work(
        &mut self,
        outbound: mpsc::Sender<proto::Writes>,
        mut inbound: Streaming<proto::Outcomes>,
    ) -> Result<(), tonic::Status> {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        let exchange = Arc::clone(&self.exchange);
        let mut more = true;
        loop {
            let may_send = self.in_flight.may_send();
            let stall = self.in_flight.poll_stall().filter(|_| more && !may_send);
            tokio::select! {
                biased;
                outcomes = inbound.message() => match outcomes? {
                    Some(outcomes) => self.take(outcomes),
                    None => return Ok(()),
                },
                changed = self.versions.changed() => {
                    if changed.is_err() { return Ok(()) }
                    self.release();
                }
                permit = outbound.reserve(), if may_send && more => {
                    let Ok(permit) = permit else { return Ok(()) };
                    match self.batch() {
                        Some(batch) => permit.send(batch),
                        None => more = false,
                    }
                }
                () = exchange.submitted(), if !more => more = true,
                () = until(stall), if stall.is_some() => {
                    self.in_flight.handle_stall(Instant::now());
                }
                _ = sweep.tick() => self.give_up(),
            }
        }
    }

    /// Waits while there is no stream; what cannot be sent is given up by age. `false` once nobody
    /// tells of SMs any more.
    async fn pause(
        &mut self,
        duration: Duration,
        upstream: &mut watch::Receiver<Option<Upstream>>,
    ) -> bool {
        let until = tokio::time::sleep(duration.min(Duration::from_secs(3600)));
        tokio::pin!(until);
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            tokio::select! {
                () = &mut until => return true,
                changed = upstream.changed() => return changed.is_ok(),
                changed = self.versions.changed() => {
                    if changed.is_err() { return false }
                    self.release();
                }
                _ = sweep.tick() => self.give_up(),
            }
        }
    }

    /// The next writes to send, if there are any.
    fn batch(&mut self) -> Option<proto::Writes> {
        let mut writes = Vec::new();
        let now = Instant::now();
        let mut barrier: Option<u64> = None;
        while writes.len() < BATCH_MAX {
            let Some(Submission { id, at, request }) = self.exchange.take_submission() else {
                break;
            };
            if now.saturating_duration_since(at) > self.patience {
                self.counters.given_up.fetch_add(1, Relaxed);
                continue;
            }
            if request.is_none()
                && let Some(serial) = barrier
                && let Some(open) = self.in_flight.get_mut(serial)
            {
                // One answer does for all who ask the same in one batch.
                open.others.push(id);
                continue;
            }
            let serial = self.in_flight.note(now, id, request);
            let request = self.in_flight.get(serial).and_then(|open| open.request.as_ref());
            if request.is_none() {
                barrier = Some(serial);
            }
            writes.push(encode(serial, request));
        }
        self.counters.sent.fetch_add(writes.len() as u64, Relaxed);
        self.counters.in_flight.store(self.in_flight.len() as u64, Relaxed);
        (!writes.is_empty()).then(|| self.message(now, writes))
    }

    /// Everything that was sent on a stream that broke, oldest first.
    fn batch_again(&mut self) -> proto::Writes {
        self.give_up();
        self.in_flight.forget_messages();
        let sent = self.in_flight.iter();
        let writes: Vec<_> =
            sent.map(|(serial, open)| encode(serial, open.request.as_ref())).collect();
        self.counters.resent.fetch_add(writes.len() as u64, Relaxed);
        if writes.is_empty() {
            // Only a greeting, which is not answered.
            return self.writes(writes);
        }
        self.message(Instant::now(), writes)
    }

    fn message(&mut self, now: Instant, writes: Vec<proto::Write>) -> proto::Writes {
        self.in_flight.note_message(now);
        self.writes(writes)
    }

    fn writes(&self, writes: Vec<proto::Write>) -> proto::Writes {
        let epoch = self.versions.borrow().session.epoch;
        proto::Writes { responder_id: self.responder_id, writes, epoch }
    }

    fn take(&mut self, outcomes: proto::Outcomes) {
        let now = Instant::now();
        let mut ready = Vec::with_capacity(outcomes.outcomes.len());
        for outcome in outcomes.outcomes {
            let Some(open) = self.in_flight.answered(outcome.id) else { continue };
            self.counters.outcomes.fetch_add(1, Relaxed);
            self.counters.round_trip.record(now.saturating_duration_since(open.since), 1);
            let point = Point::new(outcome.epoch, outcome.sequence);
            let verdict = verdict(&open, outcome);
            for id in open.others {
                let answer = Answer { id, verdict: verdict.clone() };
                ready.extend(self.held.push(point, answer));
            }
            ready.extend(self.held.push(point, Answer { id: open.id, verdict }));
        }
        self.counters.in_flight.store(self.in_flight.len() as u64, Relaxed);
        self.exchange.answer(ready);
        self.release();
    }

    /// Gives workers the answers that the tables hold now.
    fn release(&mut self) {
        let version = *self.versions.borrow_and_update();
        self.held.advance(version.into());
        self.exchange.answer(std::iter::from_fn(|| self.held.pop()));
        self.counters.held.store(self.held.len() as u64, Relaxed);
    }

    /// Forgets writes whose clients no longer wait; the workers have.
    fn give_up(&mut self) {
        if let Some(since) = Instant::now().checked_sub(self.patience) {
            while self.in_flight.pop_older(since).is_some() {
                self.counters.given_up.fetch_add(1, Relaxed);
            }
        }
        self.counters.in_flight.store(self.in_flight.len() as u64, Relaxed);
        // Outcomes that the tables never reached: of a session that another has replaced.
        if self.held.len() > WRITES_MAX {
            self.held.clear();
        }
    }
}

/// Returns at `due`; never without.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn verdict(open: &Sent, outcome: proto::Outcome) -> Verdict {
    match (&open.request, outcome.dropped) {
        (None, _) => Verdict::LookAgain,
        (Some(_), true) => Verdict::Unheard,
        (Some(_), false) => {
            let data = Some(outcome.data).filter(|data| !data.is_empty());
            Verdict::Reply(Status(outcome.status as u16), data)
        }
    }
}

fn encode(id: u64, request: Option<&Request>) -> proto::Write {
    proto::Write {
        id,
        mad: request.map(|request| request.mad.clone()).unwrap_or_default(),
        requester: request.map(|request| requester(&request.address)),
    }
}

fn requester(address: &Address) -> proto::Requester {
    proto::Requester {
        lid: address.lid.0.into(),
        qpn: address.qpn.0,
        sl: address.sl.get().into(),
        pkey_index: 0,
        pkey: address.pkey.0.into(),
        gid: address.grh.map(|grh| grh.remote_gid.0.to_vec()).unwrap_or_default().into(),
    }
}

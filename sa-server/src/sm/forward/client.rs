//! Drives the forwarding machine: moves its messages to and from one gRPC stream to the followed
//! SM.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_client::RegistryClient;
use sa_proto::snapshot::Version;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::machine::{Counters, Machine};
use super::{Acknowledged, Exchange, PATIENCE};
use crate::sm::replica::Upstream;
use crate::sm::sleep_until;

/// Messages that the connection has not accepted yet.
const OUTBOUND_MAX: usize = 4;

/// The task that forwards writes.
#[derive(Debug)]
pub struct Forwarding {
    /// Identity of this responder.
    pub responder_id: u64,
    /// The lane whose writes go to the followed SM.
    pub lane: usize,
    /// Source of writes, and destination of their outcomes.
    pub exchange: Arc<Exchange>,
    /// Counters of this task.
    pub counters: Arc<Counters>,
    /// How long clients wait; older writes are not sent.
    pub patience: Duration,
    /// What may be acknowledged.
    pub acknowledged: Arc<Acknowledged>,
}

impl Forwarding {
    /// Forwards writes of the first lane of `exchange`, which expire when RDMA CM's clients time
    /// out.
    pub fn new(responder_id: u64, exchange: Arc<Exchange>) -> Self {
        Self {
            responder_id,
            lane: 0,
            exchange,
            counters: Arc::default(),
            patience: PATIENCE,
            acknowledged: Arc::default(),
        }
    }

    /// Runs until a sender of `upstream`, the followed SM, or of `versions`, the version that
    /// queries are answered from, is dropped.
    pub async fn run(
        self,
        mut upstream: watch::Receiver<Option<Upstream>>,
        versions: watch::Receiver<Version>,
    ) {
        let mut client = Client { forwarder: Forwarder::new(self), versions };
        loop {
            let sm = upstream.borrow_and_update().clone();
            let is_closed = tokio::select! {
                Closed = client.follow(sm.as_ref()) => true,
                changed = upstream.changed() => changed.is_err(),
            };
            client.forwarder.handle_upstream();
            if is_closed {
                return;
            }
        }
    }
}

struct Client {
    forwarder: Forwarder,
    versions: watch::Receiver<Version>,
}

/// The source of versions is closed: the program ends.
struct Closed;

impl Client {
    /// Forwards writes to `sm` over one stream after another.
    async fn follow(&mut self, sm: Option<&Upstream>) -> Closed {
        loop {
            if let Some(sm) = sm.filter(|_| self.forwarder.poll_connect()) {
                if let Err(status) = self.serve(sm).await {
                    let reason = status.message();
                    tracing::debug!(
                        sm = sm.url,
                        reason,
                        "write stream to the SM failed; reconnecting"
                    );
                }
                self.forwarder.handle_disconnect(Instant::now());
            }
            self.forwarder.deliver();
            tokio::select! {
                changed = self.versions.changed() => match changed {
                    Ok(()) => self.update_version(),
                    Err(_) => return Closed,
                },
                () = sleep_until(self.forwarder.poll_timeout()) => {
                    self.forwarder.handle_timeout(Instant::now());
                }
            }
        }
    }

    /// Opens a stream and forwards writes until it breaks.
    async fn serve(&mut self, sm: &Upstream) -> Result<(), tonic::Status> {
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        self.update_version();
        // Queued before the call, which the SM may answer only after the first message.
        let _ = outbound.try_send(self.forwarder.handle_connect(Instant::now()));
        let mut registry = RegistryClient::new(sm.channel.clone());
        let inbound = registry.write(ReceiverStream::new(messages)).await?.into_inner();
        self.forwarder.handle_open();
        self.work(outbound, inbound).await
    }

    async fn work(
        &mut self,
        outbound: mpsc::Sender<proto::Writes>,
        mut inbound: Streaming<proto::Outcomes>,
    ) -> Result<(), tonic::Status> {
        let (lane, exchange) = (self.forwarder.lane, Arc::clone(&self.forwarder.exchange));
        let mut has_submissions = true;
        loop {
            self.forwarder.deliver();
            tokio::select! {
                biased;
                outcomes = inbound.message() => match outcomes? {
                    Some(outcomes) => self.forwarder.handle_outcomes(Instant::now(), outcomes),
                    None => return Ok(()),
                },
                changed = self.versions.changed() => match changed {
                    Ok(()) => self.update_version(),
                    Err(_) => return Ok(()),
                },
                permit = outbound.reserve(), if has_submissions && self.forwarder.may_send() => {
                    let Ok(permit) = permit else { return Ok(()) };
                    match self.forwarder.poll_transmit(Instant::now()) {
                        Some(writes) => permit.send(writes),
                        None => has_submissions = false,
                    }
                }
                () = exchange.submitted(lane), if !has_submissions => has_submissions = true,
                () = sleep_until(self.forwarder.poll_timeout()) => {
                    self.forwarder.handle_timeout(Instant::now());
                    // It may be time for a message without submissions.
                    has_submissions = true;
                }
            }
        }
    }

    fn update_version(&mut self) {
        let version = *self.versions.borrow_and_update();
        self.forwarder.handle_version(version);
    }
}

/// The machine with the queues between workers and the control plane, without a connection.
#[derive(Debug)]
pub struct Forwarder {
    lane: usize,
    exchange: Arc<Exchange>,
    counters: Arc<Counters>,
    acknowledged: Arc<Acknowledged>,
    machine: Machine,
}

impl Forwarder {
    /// Forwards what `forwarding` names. There is no stream yet.
    pub fn new(forwarding: Forwarding) -> Self {
        let Forwarding { responder_id, lane, exchange, counters, patience, acknowledged } =
            forwarding;
        let machine = Machine::new(responder_id, patience, Arc::clone(&counters));
        Self { lane, exchange, counters, acknowledged, machine }
    }

    /// Whether to open a stream now, if there is an SM. [`handle_connect`](Self::handle_connect)
    /// follows.
    pub fn poll_connect(&self) -> bool {
        self.machine.poll_connect()
    }

    /// A stream is being opened; returns its first message.
    pub fn handle_connect(&mut self, now: Instant) -> proto::Writes {
        self.machine.handle_connect(now)
    }

    /// The SM has accepted the stream.
    pub fn handle_open(&mut self) {
        self.counters.streams.fetch_add(1, Relaxed);
        self.exchange.set_reachable(self.lane, true);
    }

    /// The stream broke, or could not be opened.
    pub fn handle_disconnect(&mut self, now: Instant) {
        self.exchange.set_reachable(self.lane, false);
        self.machine.handle_disconnect(now);
    }

    /// The stream, if there is one, is closed in favour of another SM.
    pub fn handle_upstream(&mut self) {
        self.exchange.set_reachable(self.lane, false);
        self.machine.handle_upstream();
    }

    /// Queries are answered from `version` from now on.
    pub fn handle_version(&mut self, version: Version) {
        if version == Version::NONE {
            // The lane may be another part of the fabric next, whose manager must not get what was
            // meant for this one.
            while self.exchange.take_submission(self.lane).is_some() {}
        }
        self.machine.handle_version(version);
    }

    /// Takes outcomes from the SM.
    pub fn handle_outcomes(&mut self, now: Instant, outcomes: proto::Outcomes) {
        self.machine.handle_outcomes(now, outcomes);
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) would send a submission.
    pub fn may_send(&self) -> bool {
        self.machine.may_send()
    }

    /// The next message for the stream, of what workers have submitted.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<proto::Writes> {
        self.machine.poll_transmit(now, || self.exchange.take_submission(self.lane))
    }

    /// Hands answers to the workers. Call it after each of the others.
    pub fn deliver(&mut self) {
        self.exchange.set_reads(self.lane, self.machine.reads());
        self.exchange.set_confirmed(self.lane, self.machine.confirmed());
        let mut permits = self.acknowledged.permits();
        self.exchange.answer(std::iter::from_fn(|| self.machine.poll_answer(&mut permits)));
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    /// Does what is due. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.machine.handle_timeout(now);
    }
}

//! Turns one request into its answer, in the same buffer.
//!
//! A responder belongs to one worker. It decides what happens to every packet and accounts for it;
//! it never uses a socket or a clock. The steps: check that the request is for the SA, and its
//! attribute and method (`batch`); find the matching records (`query`); send them in one MAD or by
//! RMPP (`rmpp`, `transfer`). Requests that the SM has to decide go through `writes`.

mod arrivals;
mod batch;
mod config;
mod echo;
mod forward;
mod rmpp;
mod writes;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::DIRECT;
use ib_mad::transport::{Address, Packet};
use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;
use ib_mad::wire::sa::SaMad;

use crate::query::pool::Pool;
use crate::query::redirect::Redirection;
use crate::query::{self, Plain, Scratch};
use crate::serve::answer::{check_class, subject};
use crate::serve::assembly::Assemblies;
use crate::serve::open_requests::OpenRequests;
use crate::serve::own_port;
use crate::serve::transfer::Transfers;
use crate::sm::forward::{OPEN_MAX, PATIENCE, WorkerEnd};
use crate::sm::peers::Peers;
use crate::stats::tally::Tally;
use crate::stats::{DropReason, Kind, Stats, Subject};
use crate::tables::cell::{Reader, View};

use arrivals::Arrivals;
use batch::BatchHandler;
pub use config::ResponderConfig;
use echo::echo;
use forward::Forward;

/// Costly requests reported at a time; a batch has no more.
const COSTLY_MAX: usize = 64;

/// Action for a packet after it was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send it: the buffer holds the answer.
    Send,
    /// Send nothing for it, or not yet: see [`Responder::poll_transmit_batch`].
    Nothing,
}

/// Answers requests from the current tables.
pub struct Responder {
    tables: Reader,
    redirection: Redirection,
    own_port: Option<Guid>,
    doors: Peers,
    echo: bool,
    pool: Pool,
    transfers: Transfers,
    assemblies: Assemblies,
    forward: Option<Forward>,
    arrivals: Arrivals,
    /// Buffer for records while the request is still being read.
    scratch: Box<Scratch>,
    /// The plain requests of the batch at hand.
    plain: Vec<Plain>,
    /// Requesters of costly queries, and how long each took.
    costly: Vec<(Address, Duration)>,
    stats: Arc<Stats>,
}

impl Responder {
    /// A responder that answers from the current generation of `tables`.
    pub fn new(tables: Reader, config: ResponderConfig, stats: Arc<Stats>) -> Self {
        Self {
            tables,
            redirection: config.redirection,
            own_port: config.own_port,
            doors: config.doors,
            echo: config.echo,
            pool: Pool::new(config.pool),
            transfers: Transfers::new(config.transfers_max, config.sender),
            assemblies: Assemblies::new(config.assemblies_max, config.request_max),
            forward: None,
            arrivals: Arrivals::default(),
            scratch: Box::new(Scratch::new()),
            plain: Vec::with_capacity(query::TOGETHER_MAX),
            costly: Vec::with_capacity(COSTLY_MAX),
            stats,
        }
    }

    /// Same, with a queue to the SM for requests that only the SM can decide. Without one, writes
    /// are dropped.
    pub fn with_exchange(mut self, end: WorkerEnd) -> Self {
        let open = OpenRequests::new(OPEN_MAX, PATIENCE, end.id_base(), end.first_serial());
        self.forward = Some(Forward { end, open });
        self
    }

    /// Becomes readable when the SM has decided something, or a report is due.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.forward.as_ref().map(|forward| forward.end.descriptor())
    }

    /// Whether a query without a result waits for the SM before it is answered.
    pub fn asks_sm_when_empty(&mut self) -> bool {
        let lane = self.tables.view().lane;
        self.forward.as_ref().is_some_and(|forward| forward.end.may_ask(lane))
    }

    /// Clears the readable state of the descriptor; `poll_transmit_batch` returns the packets.
    pub fn clear_wakeup(&self) {
        if let Some(forward) = &self.forward {
            forward.end.clear_wakeup();
        }
    }

    /// Counters of this responder.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// A worker is about to read what has arrived. One that calls this reports, too, when it has
    /// [read all of it](Self::note_all_read): what it handles may have waited since.
    pub(crate) fn note_reading(&mut self, now: Instant) {
        if self.forward.is_some() {
            self.arrivals.begin(now, &mut self.tables);
        }
    }

    /// Packets were read, or none waited.
    pub(crate) fn note_read(&mut self) {
        self.arrivals.advance();
    }

    /// All that had arrived at the last [`note_reading`](Self::note_reading) is handled.
    pub(crate) fn note_all_read(&mut self) {
        self.arrivals.end();
    }

    /// Handles one packet.
    pub fn handle(&mut self, packet: &mut Packet, now: Instant) -> Outcome {
        let mut outcome = Outcome::Nothing;
        self.handle_batch(std::slice::from_mut(packet), now, |_, sent| outcome = sent);
        outcome
    }

    /// Handles a batch, all of it from the same tables. Reports the outcome of each packet.
    pub fn handle_batch(
        &mut self,
        batch: &mut [Packet],
        now: Instant,
        mut outcome: impl FnMut(usize, Outcome),
    ) {
        if self.echo {
            for (i, packet) in batch.iter_mut().enumerate() {
                outcome(i, echo(packet, &self.stats));
            }
            return;
        }
        let mut handler = self.handler(now, None);
        if handler.is_split {
            drop(handler);
            return self.handle_split(batch, now, outcome);
        }
        let mut first = 0;
        for batch in batch.chunks_mut(query::TOGETHER_MAX) {
            handler.handle_together(batch, |i, sent| outcome(first + i, sent));
            first += batch.len();
        }
        drop(handler);
        self.account(now);
    }

    /// Handles a batch while there are tables of several sessions: packets that came through the
    /// door of one manager in a row together.
    #[cold]
    fn handle_split(
        &mut self,
        batch: &mut [Packet],
        now: Instant,
        mut outcome: impl FnMut(usize, Outcome),
    ) {
        let mut first = 0;
        while first < batch.len() {
            let lane = self.lane_of(&batch[first]);
            let rest = &batch[first..];
            let len = rest.iter().take(query::TOGETHER_MAX);
            let len = len.take_while(|packet| self.lane_of(packet) == lane).count().max(1);
            let mut handler = self.handler(now, Some(lane));
            let together = &mut batch[first..first + len];
            handler.handle_together(together, |i, sent| outcome(first + i, sent));
            first += len;
        }
        self.account(now);
    }

    /// The lane of the own session, from which packets of the fabric are answered.
    pub(crate) fn own_lane(&mut self) -> usize {
        self.tables.view().lane
    }

    /// The lane of the session that a packet is answered from.
    fn lane_of(&mut self, packet: &Packet) -> usize {
        self.lane_by(packet.carrier.peer)
    }

    /// Same of a packet that came through a door.
    fn lane_by(&mut self, door: Option<SocketAddr>) -> usize {
        let View { lane, is_split, .. } = self.tables.view();
        let door = door.filter(|_| is_split);
        door.and_then(|door| self.doors.lane_of(door)).unwrap_or(lane)
    }

    /// Requesters of costly requests that did not wait with the others of their kind, since the
    /// last call, and how long each took.
    pub fn take_costly(&mut self) -> impl Iterator<Item = (Address, Duration)> {
        self.costly.drain(..)
    }

    /// How an answer is addressed if it leaves by the responder's own port; `None` if it has to
    /// leave as its request came.
    pub(crate) fn readdress(&mut self, answer: &Packet) -> Option<Address> {
        if !answer.carrier.marks.contains(DIRECT) {
            return None;
        }
        let lane = self.lane_of(answer);
        let tables = &self.tables.lane(lane)?.tables;
        own_port::readdress(tables, self.own_port?, answer)
    }

    /// The greatest LMC in the subnet, as of the last batch.
    pub(crate) fn lmc(&self) -> u8 {
        self.transfers.lmc
    }

    /// A handler of packets for the session in `lane`; for the own one if there is none.
    #[inline]
    fn handler(&mut self, now: Instant, lane: Option<usize>) -> BatchHandler<'_> {
        let Self {
            tables,
            redirection,
            pool,
            transfers,
            assemblies,
            forward,
            arrivals,
            scratch,
            plain,
            costly,
            stats,
            ..
        } = self;
        let view = match lane {
            None => tables.view(),
            Some(lane) => {
                let generation = tables.lane(lane).map(|generation| &**generation);
                View { generation, lane, is_split: true }
            }
        };
        let View { generation, lane, is_split } = view;
        let (mut forward, is_requery) = (forward.as_mut(), false);
        let lmc = generation.map_or(0, |generation| generation.tables.lmc);
        (transfers.lmc, assemblies.lmc) = (lmc, lmc);
        if let Some(forward) = &mut forward {
            forward.open.lmc = lmc;
        }
        let may_be_outdated =
            forward.as_ref().is_some_and(|forward| forward.end.must_ask(lane, now));
        BatchHandler {
            generation,
            arrivals,
            lane,
            is_split,
            redirection,
            pool,
            transfers,
            assemblies,
            forward,
            is_requery,
            may_be_outdated,
            scratch,
            plain,
            tally: Tally::new(stats),
            costly,
            stats,
            now,
        }
    }

    /// The next packet of a transfer under way; `false` if there is none to send now.
    pub fn poll_transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        self.poll_transmit_batch(now, std::slice::from_mut(packet)) > 0
    }

    /// Fills `packets` with the next packets of transfers, decided writes and reports, and returns
    /// their number. If they do not fill it, there are no others to send now.
    pub fn poll_transmit_batch(&mut self, now: Instant, packets: &mut [Packet]) -> usize {
        let mut filled = 0;
        while let Some(packet) = packets.get_mut(filled)
            && (self.assemblies.poll_transmit(packet) || self.poll_decided(now, packet))
        {
            filled += 1;
        }
        let sent = self.transfers.poll_transmit(now, &mut packets[filled..], &mut self.pool);
        self.stats.segments_sent.add(sent.packets as u64);
        self.stats.segments_repeated.add(sent.again as u64);
        filled += sent.packets;
        if filled < packets.len() {
            self.account(now);
        }
        filled
    }

    /// Whether tables are sent that are not found completely yet.
    #[inline]
    pub(crate) fn has_growing(&self) -> bool {
        self.transfers.grows()
    }

    /// Finds more of one table that is found while it is sent, for some 200 µs. Returns whether
    /// there was one that has little left to send; such tables take turns.
    #[cold]
    pub fn grow_table(&mut self, now: Instant) -> bool {
        let Some(slot) = self.transfers.next_hungry() else { return false };
        let lane = self.lane_by(self.transfers.door(slot));
        self.handler(now, Some(lane)).grow(slot);
        true
    }

    /// When `handle_timeout` is due. Changes after any other `&mut self` call.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let forward = self.forward.as_ref().and_then(|forward| forward.open.poll_timeout());
        [self.transfers.poll_timeout(), self.assemblies.poll_timeout(), forward]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets transfers whose time is up send again or give up. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now, &mut self.pool);
        self.assemblies.handle_timeout(now);
        if let Some(Forward { end, open }) = &mut self.forward {
            open.handle_timeout(now, |lane| {
                self.stats.drop_request(match end.is_reachable(lane) {
                    true => DropReason::WriteTimedOut,
                    false => DropReason::NoSm,
                });
            });
        }
        self.account(now);
    }

    /// Bytes of memory that table answers under way have.
    pub fn memory_lent(&self) -> usize {
        self.pool.lent()
    }

    /// Accounts for a packet that waited and will not be handled.
    pub fn lose(&mut self, packet: &Packet, reason: DropReason) {
        if SaMad::new(&packet.mad).rmpp().is_active() {
            // Treated as lost: transfers repeat their packets.
            self.stats.transfer_packets.increment();
        } else {
            let is_ours = check_class(packet).is_ok();
            self.stats.count_requests(if is_ours { subject(packet) } else { Subject::NONE }, 1);
            self.stats.drop_request(reason);
        }
    }

    /// Checks for new tables, so that an idle worker does not keep old ones.
    pub fn refresh(&mut self) {
        self.tables.current();
    }

    /// Settles the accounts of transfers that have ended.
    fn account(&mut self, now: Instant) {
        let stats = &*self.stats;
        for ended in self.transfers.take_ended() {
            if ended.is_complete {
                let took = now.saturating_duration_since(ended.begun);
                stats.record_latency(Kind::Table, took, 1);
                stats.count_responses(ended.subject, Status::OK, 1);
                stats.rmpp_out.complete.increment();
            } else {
                stats.drop_request(DropReason::TransferFailed);
                stats.rmpp_out.failed.increment();
            }
        }
        if let Some(incoming) = self.assemblies.take_tally() {
            stats.rmpp_in.begun.add(incoming.begun.into());
            stats.rmpp_in.complete.add(incoming.complete.into());
            stats.rmpp_in.failed.add(incoming.failed.into());
            for _ in 0..incoming.failed {
                stats.drop_request(DropReason::TransferFailed);
            }
        }
        stats.rmpp_in.active.set(self.assemblies.open() as u64);
        stats.rmpp_out.active.set(self.transfers.len() as u64);
        let forwarded = self.forward.as_ref().map_or(0, |forward| forward.open.len());
        stats.set_in_flight(self.transfers.len() + self.assemblies.open() + forwarded);
    }
}

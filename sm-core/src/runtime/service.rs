//! The loop: one thread that owns the fabric's transport and the front door's socket.
//!
//! It moves packets and waits; the parts decide and do the rest:
//!
//! - `outcomes`: what follows from events, signals and orders.
//! - `workers`: routing, and whatever else takes long. `publication`: what responders are told;
//!   `session`: when that may begin. `held`: what subscribers hear of once responders are that far.
//! - `site`: what operators' files say. `files`: what the state directory keeps.
//! - `status`, `measure`: what operators see. `once`: when a run with `--once` ends.
//! - `outgoing`: SMPs on their way out. `registry`: the registry's thread. `reach`: where clients are led.

mod files;
mod held;
mod measure;
mod once;
mod outcomes;
mod outgoing;
mod publication;
mod reach;
mod registry;
mod session;
mod site;
mod status;
mod workers;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::transport::{Interest, Packet, wait};
use ib_mad::types::Qpn;

use super::attachment::Attachment;
use super::door::Door;
use super::dump_files::DumpFiles;
use super::follow::Progress;
use super::log::Log;
use super::metrics::Metrics;
use super::registry::RegistryHandle;
use super::ring::Ring;
use super::signals::Signals;
use super::state::StateDir;
use super::{BATCH, RunError};
use crate::config::{Config, SitePolicy};
use crate::manage::shard::Seats;
use crate::publish::Publisher;
use crate::registry::Ports;
use crate::sweep::Sweeper;
pub(super) use files::Caches;
use files::StateFiles;
use held::HeldEvents;
use once::Once;
use outgoing::Outgoing;
use publication::Publication;
use site::SiteFiles;
use status::{PROGRESS_INTERVAL, Sweeps};
use workers::Workers;

/// Batches received before it is the senders' turn again.
const BATCHES_IN_A_ROW: usize = 8;
/// Answers that wait for the transport to take them; more are dropped, their askers ask again.
const ANSWERS_MAX: usize = 4096;

/// What setting up has made, to be run.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) log: Log,
    pub(super) signals: Signals,
    pub(super) state: StateDir,
    pub(super) caches: Caches,
    pub(super) fabric: Attachment,
    pub(super) sweeper: Sweeper,
    pub(super) publisher: Arc<Publisher>,
    pub(super) registry: RegistryHandle,
    /// How far we are with the registry of the master that we stand by for.
    pub(super) followed: Arc<Progress>,
    pub(super) door: Door,
    pub(super) metrics: Metrics,
    pub(super) policy: SitePolicy,
    /// What was told of the settings.
    pub(super) remarks: Vec<String>,
}

pub(super) struct Service {
    config: Config,
    log: Log,
    signals: Signals,
    fabric: Attachment,
    sweeper: Sweeper,
    workers: Workers,
    /// Packets written and not yet taken by the transport.
    outgoing: Outgoing,
    /// Answers to other nodes' requests, which go ahead of our own requests.
    answers: Ring,
    incoming: Box<[Packet]>,
    door: Door,
    registry: RegistryHandle,
    /// Ports by LID as of the last sweep, for traps that name their sender so.
    ports: Option<Ports>,
    followed: Arc<Progress>,
    publisher: Arc<Publisher>,
    publication: Publication,
    held: HeldEvents,
    /// LIDs that clients ask instead of ours.
    seats: Seats,
    site: SiteFiles,
    files: StateFiles,
    dumps: DumpFiles,
    metrics: Metrics,
    sweeps: Sweeps,
    /// When status is brought up to date, and progress told next.
    status_due: Instant,
    progress_due: Instant,
    /// When a lack of responders is warned of, after the subnet came up.
    responders_due: Option<Instant>,
    /// When credit loops are looked for, and caches written, after the last sweep.
    deferred_due: Option<Instant>,
    /// A run with `--once`.
    once: Option<Once>,
    done: Option<Result<(), RunError>>,
}

impl Service {
    /// What is to be run, with its threads. Fails if the system has no more of them.
    pub(super) fn new(parts: Parts) -> std::io::Result<Self> {
        let Parts { config, log, signals, state, caches, fabric, sweeper, .. } = parts;
        let Parts { publisher, registry, followed, door, metrics, policy, remarks, .. } = parts;
        let now = Instant::now();
        metrics.show_light_sweeps(Arc::clone(sweeper.light_sweeps()));
        Ok(Self {
            dumps: DumpFiles::start(&config.settings, &config.state_dir)?,
            workers: Workers::start(now)?,
            once: config.once.then(Once::default),
            config,
            log,
            signals,
            fabric,
            sweeper,
            outgoing: Outgoing::default(),
            answers: Ring::new(ANSWERS_MAX),
            incoming: vec![Packet::default(); BATCH].into_boxed_slice(),
            door,
            registry,
            ports: None,
            followed,
            publication: Publication::new(publisher.clone()),
            publisher,
            held: HeldEvents::default(),
            seats: Seats::default(),
            site: SiteFiles::new(policy, remarks),
            files: StateFiles::start(state, caches)?,
            metrics,
            sweeps: Sweeps::default(),
            status_due: now,
            progress_due: now + PROGRESS_INTERVAL,
            responders_due: None,
            deferred_due: None,
            done: None,
        })
    }

    /// Runs until it is told to end, or cannot go on.
    pub(super) fn run(mut self) -> Result<(), RunError> {
        self.sweeper.request_heavy_sweep(Instant::now());
        let result = loop {
            match self.turn() {
                Ok(()) => {}
                Err(failure) => break Err(failure),
            }
            if let Some(result) = self.done.take() {
                break result;
            }
        };
        self.registry.tell(self.held.release_all());
        if self.deferred_due.is_some() {
            self.files.compare_caches(&mut self.sweeper);
        }
        self.files.tables_changed();
        let result = result.and(self.finish_files().map_err(RunError::from));
        if result.is_ok() {
            self.dumps.finish(&self.sweeper)?;
        }
        // Dropping the transport clears IsSM and detaches.
        drop(self.fabric);
        self.files.forget_client();
        result
    }

    fn turn(&mut self) -> Result<(), RunError> {
        let mut busy = self.receive()?;
        busy |= self.receive_answers()?;
        let now = Instant::now();
        self.maintain(now);
        self.sweeper.set_registry_copy(self.followed.followed().copy());
        self.sweeper.set_imported_registry(now, self.registry.imported());
        if self.fabric.is_attached() {
            self.sweeper.handle_timeout(now);
        }
        busy |= self.exchange_registry(now);
        self.tell_status(now);
        let blocked = self.send(now)?;
        self.door.flush()?;
        self.take_events();
        if self.deferred_due.is_none() {
            self.dumps.exchange(&self.sweeper)?;
        }
        self.follow_mastership(now);
        if self.publication.republish(now, &self.sweeper) {
            self.dumps.want_multicast();
        }
        self.do_deferred(now)?;
        self.write_files(now, false)?;
        self.take_signals();
        self.take_orders(now);
        // All of the above may leave jobs behind; sending does if an SMP has become needless that
        // was the last one waited for. What comes of them is sent at once, as we are busy.
        busy |= self.workers.exchange(now, &mut self.sweeper)?;
        self.tell_progress(now);
        self.end_once(now);
        // As a sweep that was asked for.
        busy |= self.sweeper.has_events();
        if self.done.is_none() && (blocked || !busy) {
            self.wait(blocked)?;
        }
        Ok(())
    }

    /// Brings the state directory's files up to date.
    fn write_files(&mut self, now: Instant, all: bool) -> std::io::Result<()> {
        let registry = &self.registry;
        self.files.write(now, &mut self.sweeper, || registry.plane().sequence, all)
    }

    /// The same, and waits until they are.
    fn finish_files(&mut self) -> std::io::Result<()> {
        let now = Instant::now();
        // What is being written may be older than what is in memory.
        self.files.finish(now)?;
        self.write_files(now, true)?;
        self.files.finish(now)
    }

    /// Attaches to the fabric again if it broke off, and then takes nothing for granted.
    fn maintain(&mut self, now: Instant) {
        if self.fabric.maintain(now) {
            if let Some(client) = self.fabric.client_id() {
                self.files.keep_client(client);
            }
            self.outgoing.clear();
            self.sweeper.set_own_port(self.fabric.port_guid());
            self.sweeper.begin_anew(now);
        }
        if !self.fabric.is_attached() {
            self.sweeper.fabric_lost();
        }
    }

    /// Takes in what the fabric delivered; whether there was anything.
    fn receive(&mut self) -> Result<bool, RunError> {
        let mut any = false;
        for _ in 0..BATCHES_IN_A_ROW {
            let now = Instant::now();
            let got = self.fabric.receive(now, &mut self.incoming);
            any |= got > 0;
            for packet in &mut self.incoming[..got] {
                let is_answer = match packet.address.local_qpn {
                    Qpn::SMI => self.sweeper.handle_packet(now, packet),
                    _ => self.door.admit(now, packet),
                };
                if is_answer {
                    // If there is no room, its asker asks again; it is counted.
                    self.answers.push(packet);
                }
            }
            if got < self.incoming.len() {
                break;
            }
        }
        Ok(any)
    }

    /// Takes in what responders answered; whether there was anything.
    fn receive_answers(&mut self) -> Result<bool, RunError> {
        let answers = &mut self.answers;
        // Room is asked for before, so that a burst waits in the socket.
        if answers.room() < BATCH {
            return Ok(false);
        }
        Ok(self.door.receive(Instant::now(), |packet| answers.push(packet))?)
    }

    /// Sends what is to be sent; whether the transport takes no more for now.
    fn send(&mut self, now: Instant) -> Result<bool, RunError> {
        while !self.answers.is_empty() {
            let sent = self.fabric.send(now, self.answers.front());
            if sent == 0 {
                return Ok(true);
            }
            self.answers.consume(sent);
        }
        loop {
            let packets = self.outgoing.fill(&mut self.sweeper, now);
            if packets.is_empty() {
                return Ok(false);
            }
            let sent = self.fabric.send(now, packets);
            if self.outgoing.consume(sent) > 0 {
                return Ok(true);
            }
        }
    }

    fn wait(&mut self, blocked: bool) -> Result<(), RunError> {
        let now = Instant::now();
        // Without a fabric the sweep under way stands still: it will begin anew.
        let sweep_due = self.sweeper.poll_timeout().filter(|_| self.fabric.is_attached());
        let due = [
            sweep_due,
            self.once.as_ref().and_then(Once::poll_timeout),
            self.publication.poll_timeout(),
            self.held.poll_timeout(),
            self.deferred_due,
            self.files.poll_timeout(),
            Some(self.status_due),
            Some(self.fabric.due()),
        ];
        let timeout = due.into_iter().flatten().min().map(|due| due.saturating_duration_since(now));
        let mut interests: Vec<Interest<'_>> =
            self.workers.descriptors().into_iter().map(Interest::read).collect();
        interests.extend(
            [self.signals.as_fd(), self.registry.as_fd(), self.dumps.as_fd(), self.files.as_fd()]
                .map(Interest::read),
        );
        let fabric = self.fabric.descriptor();
        interests.extend(fabric.map(|fabric| Interest::read_or_write(fabric, blocked)));
        let door = self.door.descriptor();
        interests.extend(door.map(|door| Interest::read_or_write(door, self.door.is_blocked())));
        wait(&mut interests, timeout)?;
        Ok(())
    }

    /// Publishes and answers as long as we are the master.
    fn follow_mastership(&mut self, now: Instant) {
        let is_on = self.publication.follow_mastership(now, &mut self.sweeper, &self.registry);
        self.door.set_open(is_on);
        self.registry.set_open(is_on);
    }
}

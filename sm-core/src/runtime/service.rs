//! The loop: one thread that owns the fabric's transport and the front door's socket.

mod files;
mod measure;
mod office;
mod outgoing;
mod reach;
mod session;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ib_mad::transport::{Interest, Packet, wait};
use ib_mad::types::Qpn;
use ib_mad::wire::attribute::SmState;
use tracing::{debug, error, info, warn};

use super::attachment::Attachment;
use super::door::Door;
use super::dump_files::DumpFiles;
use super::farewell::{Farewell, in_vain, nothing_up};
use super::follow::Progress;
use super::log::Log;
use super::metrics::Metrics;
use super::policy::RefusedFiles;
use super::registry::Office;
use super::ring::Ring;
use super::signals::{Signal, Signals};
use super::state::StateDir;
use super::worker::Worker;
use super::{BATCH, ONCE_ATTEMPTS, RunError};
use crate::config::{Config, Settings, SitePolicy};
use crate::fabric::SubnetParameters;
use crate::manage::PolicyRows;
use crate::manage::mkey::{MKeyTable, Neighbours};
use crate::manage::policy::{self, InForce};
use crate::manage::shard::Seats;
use crate::observe::moment::FaultPort;
use crate::publish::{Challenge, Orders, Publisher, SmStatus};
use crate::registry::Ports;
use crate::sweep::{
    BalanceCheck, BalanceFinding, Event, Left, LoopCheck, LoopFinding, MulticastJob,
    MulticastOutcome, Origin, Phase, RegistryCopy, Report, RoutingJob, RoutingOutcome, Sweeper,
};
use files::{Files, Followed};
use outgoing::Outgoing;
use session::Tenure;

/// Batches received before it is the senders' turn again.
const BATCHES_IN_A_ROW: usize = 8;
/// Answers that wait for the transport to take them; more are dropped, their askers ask again.
const ANSWERS_MAX: usize = 4096;
/// How often a long phase says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// How long multicast tables wait for others to be published with them.
const REPUBLISH_DELAY: Duration = Duration::from_secs(1);
/// How often metrics and status are brought up to date.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// How long what nobody waits for is put off after a sweep, for responders to be served first.
const AFTERMATH_DELAY: Duration = Duration::from_secs(1);

/// Subnet managers with another SM_Key that the status lists.
const LISTED_MAX: usize = 8;
/// Remarks on how the policy fits the fabric that are logged at a time.
const POLICY_REMARKS_MAX: usize = 20;

pub(super) struct Service {
    config: Config,
    log: Log,
    signals: Signals,
    state: StateDir,
    fabric: Attachment,
    sweeper: Sweeper,
    publisher: Arc<Publisher>,
    registry: Office,
    /// Ports by LID as of the last sweep, for traps that name their sender so.
    ports: Option<Ports>,
    door: Door,
    router: Worker<Box<RoutingJob>, RoutingOutcome>,
    checker: Worker<LoopCheck, LoopFinding>,
    planter: Worker<MulticastJob, MulticastOutcome>,
    balancer: Worker<BalanceCheck, BalanceFinding>,
    dumps: DumpFiles,
    /// When multicast tables that were written are published, if any were.
    republish_due: Option<Instant>,
    /// When credit loops are looked for, and caches written, after the last sweep.
    aftermath_due: Option<Instant>,
    metrics: Metrics,
    policy: SitePolicy,
    /// Settings that were read again and are not in force yet.
    new_settings: Option<Settings>,
    refused_files: RefusedFiles,
    /// What was last told of the settings.
    remarks: Vec<String>,
    /// What was last told of how the policy fits the fabric.
    policy_remarks: Vec<String>,
    /// LIDs that clients ask instead of ours.
    seats: Seats,
    /// Whether a sweep was asked for, to find out if another SM rules.
    challenged: bool,
    /// Our session, as far as it has come.
    tenure: Tenure,
    /// Packets written and not yet taken by the transport.
    outgoing: Outgoing,
    /// Answers to other nodes' requests, which go ahead of our own requests.
    answers: Ring,
    incoming: Box<[Packet]>,
    /// When progress is to be told next.
    progress_due: Instant,
    status_due: Instant,
    /// With `--once`, when the subnet is up.
    farewell: Option<Farewell>,
    /// The routing under way: its sweep, LIDs and switches, and when it began.
    routing: (u32, (usize, usize), Instant),
    sweeps: Sweeps,
    caches: Caches,
    /// Which files of the state directory are behind.
    files: Files,
    /// How far we are with the registry of the master that we stand by for.
    followed: Arc<Progress>,
    done: Option<Result<(), RunError>>,
}

/// What the state directory says of M_Keys and links.
#[derive(Debug)]
pub(super) struct Caches {
    pub(super) m_keys: MKeyTable,
    pub(super) neighbours: Neighbours,
    /// Who made the routes in force.
    pub(super) origin: Option<Origin>,
}

/// Totals of sweeps.
#[derive(Debug, Default)]
struct Sweeps {
    full: u64,
    partial: u64,
    errors: u64,
    failed_in_a_row: u32,
    /// Sweeps that found nobody but us.
    empty: u32,
    last: Report,
    /// Light sweeps that found nothing changed, and when the last of them was noticed.
    quiet: (u64, Option<u64>),
}

impl Service {
    #[allow(clippy::too_many_arguments, reason = "each is a part that setting up has made")]
    pub(super) fn new(
        config: Config,
        log: Log,
        signals: Signals,
        state: StateDir,
        fabric: Attachment,
        sweeper: Sweeper,
        publisher: Arc<Publisher>,
        registry: Office,
        door: Door,
        metrics: Metrics,
        policy: SitePolicy,
        caches: Caches,
        followed: Arc<Progress>,
    ) -> std::io::Result<Self> {
        let now = Instant::now();
        let dumps = DumpFiles::start(&config.settings, &config.state_dir)?;
        metrics.show_light_sweeps(Arc::clone(sweeper.light_sweeps()));
        Ok(Self {
            config,
            log,
            signals,
            state,
            fabric,
            sweeper,
            publisher,
            registry,
            ports: None,
            door,
            router: Worker::start("routing", |job: Box<RoutingJob>| job.run())?,
            checker: Worker::start("loops", LoopCheck::run)?,
            planter: Worker::start("multicast", MulticastJob::run)?,
            balancer: Worker::start("balance", BalanceCheck::run)?,
            dumps,
            republish_due: None,
            aftermath_due: None,
            metrics,
            policy,
            new_settings: None,
            refused_files: RefusedFiles::default(),
            remarks: Vec::new(),
            policy_remarks: Vec::new(),
            seats: Seats::default(),
            challenged: false,
            tenure: Tenure::default(),
            outgoing: Outgoing::default(),
            answers: Ring::new(ANSWERS_MAX),
            incoming: vec![Packet::default(); BATCH].into_boxed_slice(),
            progress_due: now + PROGRESS_INTERVAL,
            status_due: now,
            farewell: None,
            routing: (0, (0, 0), now),
            sweeps: Sweeps::default(),
            caches,
            files: Files::default(),
            followed,
            done: None,
        })
    }

    /// Takes what was told of the settings at the start.
    pub(super) fn with_remarks(self, remarks: Vec<String>) -> Self {
        Self { remarks, ..self }
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
        if self.aftermath_due.is_some() {
            self.keep_caches();
        }
        self.files.left.touch();
        self.keep_files(Instant::now(), true);
        if result.is_ok() {
            self.dumps.finish(&self.sweeper)?;
        }
        // Dropping the transport clears IsSM and detaches.
        drop(self.fabric);
        self.state.forget_client();
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
        busy |= self.exchange_routing(now)?;
        // What comes of it is to be sent.
        self.tell_status(now);
        let blocked = self.send(now)?;
        self.door.flush()?;
        self.take_events();
        if self.aftermath_due.is_none() {
            self.dumps.exchange(&self.sweeper)?;
        }
        self.follow_mastership(now);
        self.republish(now);
        self.see_to_aftermath(now)?;
        self.keep_files(now, false);
        self.take_signals();
        self.take_orders(now);
        self.tell_progress(now);
        self.take_leave(now);
        if self.done.is_none() && (blocked || !busy) {
            self.wait(blocked)?;
        }
        Ok(())
    }

    /// Attaches to the fabric again if it broke off, and then takes nothing for granted.
    fn maintain(&mut self, now: Instant) {
        if self.fabric.maintain(now) {
            if let Some(client) = self.fabric.client_id()
                && let Err(failure) = self.state.keep_client(client)
            {
                warn!("the simulator will keep what we are known by if we are killed: {failure}");
            }
            self.outgoing.clear();
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

    /// Hands routing to its thread, and takes what came of it; whether anything did.
    fn exchange_routing(&mut self, now: Instant) -> Result<bool, RunError> {
        let result = self.router.poll()?;
        let any = result.is_some();
        match result {
            Some(Ok(outcome)) => self.sweeper.handle_routing(now, outcome),
            Some(Err(panic)) => {
                self.sweeper.handle_routing_failure(now, self.routing.0, &panic.to_string());
            }
            None => {}
        }
        // One at a time: while a fabric flaps, only the last job handed out counts.
        if self.router.is_idle()
            && let Some(job) = self.sweeper.poll_routing()
        {
            self.routing = (job.sweep(), job.size(), now);
            self.router.submit(job)?;
        }
        match self.checker.poll()? {
            Some(Ok(finding)) => self.sweeper.handle_loops(&finding),
            Some(Err(panic)) => error!("nobody knows about credit loops: {panic}"),
            None => {}
        }
        match self.planter.poll()? {
            Some(Ok(outcome)) => self.sweeper.handle_multicast(now, outcome),
            Some(Err(panic)) => {
                self.sweeper.handle_multicast_failure(now, &panic.to_string());
            }
            None => {}
        }
        match self.balancer.poll()? {
            Some(Ok(finding)) => self.sweeper.handle_balance(now, &finding),
            Some(Err(panic)) => error!("nobody knows how good the routes found are: {panic}"),
            None => {}
        }
        if let Some(job) = self.sweeper.poll_multicast(now) {
            self.planter.submit(job)?;
        }
        Ok(any)
    }

    /// Does what was put off for responders to be served first.
    fn see_to_aftermath(&mut self, now: Instant) -> Result<(), RunError> {
        if self.aftermath_due.is_some_and(|due| now < due) {
            return Ok(());
        }
        if self.aftermath_due.take().is_some() {
            self.keep_caches();
        }
        // Sweeps do not wait for a look for loops: should they outrun it, its jobs queue up, each
        // as large as the routing it is about. So there is one at a time.
        if self.checker.is_idle()
            && let Some(check) = self.sweeper.poll_loop_check()
        {
            self.checker.submit(check)?;
        }
        if self.balancer.is_idle()
            && let Some(check) = self.sweeper.poll_balance_check()
        {
            self.balancer.submit(check)?;
        }
        if let Some(job) = self.sweeper.poll_multicast_proof() {
            self.planter.submit(job)?;
        }
        Ok(())
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
        let farewell = self.farewell.as_ref().map(Farewell::due);
        let due = [
            sweep_due,
            farewell,
            self.republish_due,
            self.aftermath_due,
            self.tenure.poll_timeout(),
            self.files.iter().filter_map(Followed::poll_timeout).min(),
            Some(self.status_due),
            Some(self.fabric.due()),
        ];
        let timeout = due.into_iter().flatten().min().map(|due| due.saturating_duration_since(now));
        let mut interests = vec![
            Interest::read(self.signals.as_fd()),
            Interest::read(self.router.as_fd()),
            Interest::read(self.checker.as_fd()),
            Interest::read(self.planter.as_fd()),
            Interest::read(self.balancer.as_fd()),
            Interest::read(self.registry.as_fd()),
        ];
        let fabric = self.fabric.descriptor();
        interests.push(Interest::read(self.dumps.as_fd()));
        interests.extend(fabric.map(|fabric| Interest::read_or_write(fabric, blocked)));
        let door = self.door.descriptor();
        interests.extend(door.map(|door| Interest::read_or_write(door, self.door.is_blocked())));
        wait(&mut interests, timeout)?;
        Ok(())
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::HeavySweep => {
                    info!("HUP: heavy sweep");
                    self.reread_settings();
                    self.sweeper.request_heavy_sweep(Instant::now());
                }
                Signal::ReopenLog => match self.log.reopen() {
                    Ok(()) => info!("USR1: the log file is opened again"),
                    Err(failure) => error!("USR1: {failure}; writing to the old one"),
                },
                Signal::Terminate => {
                    info!("terminated");
                    self.done = Some(Ok(()));
                }
            }
        }
    }

    fn take_events(&mut self) {
        // Told of once what led to them is published.
        let mut told = Vec::new();
        while let Some(event) = self.sweeper.poll_event() {
            match event {
                Event::Discovering => self.reload_policy(),
                Event::LidsChanged => self.files.lids.touch(),
                Event::CutPortsChanged => self.files.cut_ports.touch(),
                Event::Configured(report) => self.configured(*report),
                // What else follows, follows from our state; see `follow_mastership`.
                Event::StandingBy(_) => {
                    self.keep_origin(None);
                    self.forget_left();
                }
                Event::MulticastWritten => {
                    let due = Instant::now() + REPUBLISH_DELAY;
                    self.republish_due.get_or_insert(due);
                }
                Event::TakenOver { what, done } => self.taken_over(what, done),
                Event::PortsChanged(changed) => told.extend(self.events_of_ports(&changed)),
                Event::Trap(trap) => told.extend(self.event_of_trap(&trap)),
                Event::Fatal(reason) if self.config.settings.exit_on_fatal => {
                    self.done = Some(Err(RunError::Fatal(reason)));
                }
                // The sweep that found it goes on failing, and is tried again.
                Event::Fatal(reason) => error!("{reason}"),
            }
        }
        if !told.is_empty() {
            self.registry.tell(told);
        }
    }

    /// Reads the configuration file again; what it says counts from the next heavy sweep on.
    fn reread_settings(&mut self) {
        match self.config.reread() {
            Ok((settings, remarks)) => {
                let (new, old): (Vec<_>, Vec<_>) =
                    remarks.iter().partition(|remark| !self.remarks.contains(remark));
                new.iter().for_each(|remark| warn!("{remark}"));
                if !old.is_empty() {
                    info!("{} remarks on the settings are as before", old.len());
                }
                self.remarks = remarks;
                self.new_settings = Some(settings);
            }
            Err(failure) => {
                let reason = sa_proto::with_causes(&failure);
                error!("{reason}; until that is mended, the settings in force stay");
            }
        }
    }

    /// Puts settings in force that were read again.
    fn follow_settings(&mut self) {
        let Some(settings) = self.new_settings.take() else { return };
        let waiting = self.sweeper.follow_settings(&settings);
        if !waiting.is_empty() {
            warn!("these settings count from the next start on: {}", waiting.join(", "));
        }
        self.config.settings = self.sweeper.settings().clone();
    }

    /// Reads the site's policy files again, for the sweep that has just begun.
    fn reload_policy(&mut self) {
        self.follow_settings();
        let (policy, reading) = self.policy.reload(&self.config.settings);
        reading.remarks.iter().for_each(|remark| warn!("{remark}"));
        reading.taken.iter().for_each(|taken| info!("read {taken}"));
        // Every heavy sweep reads the files again; a mistake is told once.
        for failure in reading.errors.iter().filter(|failure| !self.refused_files.knows(failure)) {
            error!(
                "{}; until that is mended, {}",
                sa_proto::with_causes(failure),
                policy.instead_of(failure)
            );
        }
        for path in self.refused_files.note(&policy, &reading.errors) {
            info!("{} is refused no longer: what it says is in force", path.display());
        }
        self.sweeper.set_partitions(policy.partitions.clone());
        self.sweeper.set_virtual_fabrics(policy.virtual_fabrics.clone());
        self.sweeper.set_routing_files(policy.routing.clone());
        self.policy = policy;
    }

    /// Has ports of new responders made full members of the default partition.
    fn follow_responders(&mut self, now: Instant) {
        let responders = self.publisher.responders();
        let ports: Vec<_> =
            responders.load().iter().filter_map(|entry| Some(entry.port?.0)).collect();
        if self.sweeper.set_responder_ports(ports) {
            self.sweeper.request_heavy_sweep(now);
        }
    }

    /// Publishes and answers as long as we are the master, and makes sure that responders follow.
    fn follow_mastership(&mut self, now: Instant) {
        if self.sweeper.sm_state() != SmState::Master {
            self.publisher.end_session();
            self.tenure.end();
        }
        self.begin_session(now);
        if self.publish_plane(now) {
            // What was written to multicast tables while it waited is not part of it.
            self.republish_due.get_or_insert(now + REPUBLISH_DELAY);
        }
        let is_on = self.publisher.session().is_some() && !self.tenure.is_waiting();
        self.door.set_open(is_on);
        self.registry.set_open(is_on);
        match self.publisher.challenge() {
            Some(Challenge::Epoch) if self.tenure.may_try(now) => match self.publisher.renew() {
                Ok(()) => self.tenure.succeeded(),
                Err(failure) => self.tenure.failed(now, sa_proto::with_causes(&failure)),
            },
            Some(Challenge::Rival) if !self.challenged => {
                warn!("responders follow another subnet manager; looking for it");
                self.challenged = true;
                self.sweeper.request_heavy_sweep(now);
            }
            Some(_) => {}
            None => self.challenged = false,
        }
    }

    /// Publishes multicast tables, some time after the first of them was written.
    fn republish(&mut self, now: Instant) {
        if self.republish_due.take_if(|due| now >= *due).is_none() {
            return;
        }
        self.dumps.want_multicast();
        if self.publisher.session().is_some()
            && let Err(failure) =
                self.publisher.publish_multicast(&self.sweeper.fabric().multicast_tables())
        {
            error!("the snapshot is not published: {}", sa_proto::with_causes(&failure));
        }
    }

    /// Keeps who made the routes in force.
    fn keep_origin(&mut self, origin: Option<Origin>) {
        if origin == self.caches.origin {
            return;
        }
        match self.state.keep_origin(origin.as_ref()) {
            Ok(()) => self.caches.origin = origin,
            Err(failure) => {
                error!("the next start will not know whose routes it finds: {failure}");
            }
        }
    }

    /// Another subnet manager rules: the next run must not take it for ours what it finds.
    fn forget_left(&self) {
        if let Err(failure) = self.state.forget_left() {
            error!("the next start may not ask clients to register again: {failure}");
        }
    }

    /// Does what operators asked for by `ibsmctl`.
    fn take_orders(&mut self, now: Instant) {
        let Orders { sweep, reroute } = self.publisher.take_orders();
        if reroute {
            info!("reroute: all routes are made anew");
            self.sweeper.reroute(now);
        } else if sweep {
            info!("sweep: heavy sweep");
            self.sweeper.request_heavy_sweep(now);
        }
    }

    /// Has M_Keys and links kept where the next start, or OpenSM, finds them.
    fn keep_caches(&mut self) {
        if *self.sweeper.m_keys() != self.caches.m_keys {
            self.files.m_keys.touch();
        }
        if *self.sweeper.neighbours() != self.caches.neighbours {
            self.files.neighbours.touch();
        }
        self.files.left.touch();
    }

    /// Writes those files of the state directory that are behind, and `all` of them even if they
    /// could not be written a moment ago.
    fn keep_files(&mut self, now: Instant, all: bool) {
        let is_due = |file: &Followed| file.is_due(now) || all && file.is_behind();
        let (files, state, sweeper) = (&mut self.files, &self.state, &mut self.sweeper);
        if is_due(&files.lids) {
            files.lids.note(now, state.keep_lids(sweeper.lids()));
        }
        if is_due(&files.cut_ports) {
            files.cut_ports.note(now, state.keep_cut_ports(sweeper.cut_ports()));
        }
        let m_keys = sweeper.m_keys();
        if is_due(&files.m_keys) && files.m_keys.note(now, state.keep_m_keys(m_keys)) {
            self.caches.m_keys.clone_from(m_keys);
        }
        if is_due(&files.neighbours) {
            // To know them takes a walk of the fabric.
            let neighbours = sweeper.neighbours();
            if files.neighbours.note(now, state.keep_neighbours(neighbours)) {
                self.caches.neighbours.clone_from(neighbours);
            }
        }
        if is_due(&files.left) && sweeper.is_settled() {
            let left = Left::of(sweeper.fabric(), self.registry.plane().sequence);
            files.left.note(now, state.keep_left(&left));
        }
    }

    fn configured(&mut self, report: Report) {
        if report.full || report.changed() {
            // A run that ends with this sweep leaves nothing undone.
            let delay = if self.config.once { Duration::ZERO } else { AFTERMATH_DELAY };
            self.aftermath_due.get_or_insert_with(|| Instant::now() + delay);
        }
        if report.up {
            self.keep_origin(self.sweeper.origin());
        }
        // The port's own LID may be new: the transport tells path bits by it.
        self.fabric.refresh(Instant::now());
        self.publish(Instant::now(), report.full);
        let is_news = report.full || report.changed() || self.sweeps.failed_in_a_row > 0;
        if report.errors == 0 && report.up && is_news {
            self.dumps.want_all();
        }
        match report.errors {
            0 if report.up && is_news => info!("SUBNET UP: {report}"),
            0 => debug!("nothing changed: {report}"),
            errors if report.up => {
                let faults = report.faults.join("; ");
                warn!("SUBNET UP with {errors} fault(s): {report}; the first: {faults}");
            }
            _ => {}
        }
        if report.errors == 0 {
            self.sweeps.failed_in_a_row = 0;
        } else {
            self.sweeps.failed_in_a_row += 1;
        }
        if self.config.once {
            let fabric = self.sweeper.fabric();
            let has_lid = |home| fabric.port(home).base_lid().is_unicast();
            let has_lid = fabric.home().is_some_and(has_lid);
            let found = report.hosts + report.switches;
            let in_vain = nothing_up(has_lid, found, report.unanswered).filter(|_| report.up);
            if let Some(reason) = in_vain {
                // Who is silent for a moment answers one of the sweeps that follow.
                self.sweeps.empty += 1;
                if self.sweeps.empty >= ONCE_ATTEMPTS {
                    self.done = Some(Err(reason));
                } else {
                    self.sweeper.request_heavy_sweep(Instant::now());
                }
            } else if report.errors == 0 {
                self.farewell.get_or_insert_with(|| Farewell::new(Instant::now()));
            } else if self.sweeps.failed_in_a_row >= ONCE_ATTEMPTS && report.up {
                // What is faulty stays so.
                self.farewell.get_or_insert_with(|| Farewell::new(Instant::now()));
            } else if self.sweeps.failed_in_a_row >= ONCE_ATTEMPTS {
                self.done = Some(Err(RunError::NotUp));
            }
        }
        if report.full {
            self.sweeps.full += 1;
        } else {
            self.sweeps.partial += 1;
        }
        self.publisher.sweeps().note(&report, unix_ms(), self.fault_ports());
        self.sweeps.errors += report.errors;
        self.metrics.note_sweep(&report, self.sweeper.routing_engine());
        self.sweeps.last = report;
        self.status_due = Instant::now();
    }

    /// Ports of which the last sweep could not find out or set everything.
    fn fault_ports(&self) -> Vec<FaultPort> {
        let fabric = self.sweeper.fabric();
        let port = |&port| {
            let entry = fabric.port(port);
            FaultPort { guid: fabric.node(entry.node).guid.to_string(), port: entry.num.0 }
        };
        self.sweeper.faults().iter().map(port).collect()
    }

    /// Publishes what a sweep found, or has it wait for a session. Only a full one asks the other
    /// subnet managers who is the master, and so decides if we take responders back from one of them.
    fn publish(&mut self, now: Instant, full: bool) {
        let policy = self.policy_rows();
        let begins = match self.publisher.session() {
            None => self.sweeper.sm_state() == SmState::Master,
            Some(_) => full && self.publisher.challenge() == Some(Challenge::Rival),
        };
        if begins {
            self.tenure.want();
        }
        self.begin_session(now);
        let settings = self.sweeper.settings();
        let parameters = SubnetParameters {
            prefix: settings.subnet_prefix,
            lifetime: settings.subnet_timeout,
            sa_key: settings.sa_key,
            routing_engine: self.sweeper.routing_engine().to_owned(),
            engine_sls: self.sweeper.engine_sls(),
            path_sls: self.sweeper.path_sls(),
            managers: self.sweeper.subnet_managers(),
            policy,
        };
        self.tell_registry(&parameters);
        self.tenure.offer(self.sweeper.fabric().plane(&parameters));
        self.publish_plane(now);
    }

    /// Begins a session if one is wanted, and it is time.
    fn begin_session(&mut self, now: Instant) {
        let fabric = self.sweeper.fabric();
        let Some(home) = fabric.home().filter(|_| self.tenure.is_due(now)) else { return };
        let begun = self.publisher.begin_session(fabric.port(home).guid);
        if begun.is_ok() {
            self.registry.session_begun();
        }
        self.tenure.begun(now, begun.map_err(|failure| sa_proto::with_causes(&failure)));
    }

    /// Publishes what waits, unless it is to wait on; whether anything was.
    fn publish_plane(&mut self, now: Instant) -> bool {
        self.tenure.settle(now, || self.registry.published());
        let Some(plane) = self.tenure.poll() else { return false };
        if let Err(failure) = self.publisher.publish(plane) {
            error!("the snapshot is not published: {}", sa_proto::with_causes(&failure));
        }
        true
    }

    /// What policy files come to on the fabric as it is. What is odd about it is told once.
    fn policy_rows(&mut self) -> PolicyRows {
        let (rows, remarks) = policy::rows(&InForce {
            fabric: self.sweeper.fabric(),
            settings: self.sweeper.settings(),
            site: &self.policy,
            partitions: self.sweeper.partitions(),
            memberships: self.sweeper.memberships(),
            virtual_fabrics: self.sweeper.virtual_fabrics(),
        });
        if remarks != self.policy_remarks {
            remarks.iter().take(POLICY_REMARKS_MAX).for_each(|remark| warn!("{remark}"));
            self.policy_remarks = remarks;
        }
        rows
    }

    fn tell_progress(&mut self, now: Instant) {
        if self.sweeper.phase() == Phase::Idle {
            self.progress_due = now + PROGRESS_INTERVAL;
        } else if now >= self.progress_due {
            self.progress_due = now + PROGRESS_INTERVAL;
            if self.sweeper.phase() == Phase::Route {
                let (_, (lids, switches), began) = self.routing;
                let seconds = now.saturating_duration_since(began).as_secs();
                info!("routing {lids} LIDs on {switches} switches, {seconds} s so far");
                return;
            }
            let (hosts, switches) = self.sweeper.fabric().counts();
            info!(
                "{}: {} requests to go; {switches} switches and {hosts} hosts known",
                self.sweeper.phase(),
                self.sweeper.outstanding()
            );
        }
    }

    /// Ends a `--once` run when responders have what it leaves behind, or when it is in vain.
    fn take_leave(&mut self, now: Instant) {
        let Some(farewell) = &mut self.farewell else {
            if self.config.once
                && self.done.is_none()
                && let Some(reason) = in_vain(
                    self.sweeper.sm_state(),
                    self.sweeper.master(),
                    self.sweeper.fruitless_sweeps(),
                )
            {
                self.done = Some(Err(reason));
            }
            return;
        };
        if now < farewell.due() {
            return;
        }
        let published = self.publisher.version();
        let responders = self.publisher.responders();
        let responders = responders.load();
        let behind = responders.iter().filter(|entry| entry.serving != Some(published)).count();
        if farewell.is_over(now, responders.len(), behind) {
            self.done = Some(Ok(()));
        }
    }

    /// How far we are with the registry of the master that we stand by for; empty unless `--follow`
    /// is given.
    fn following(&self) -> String {
        if self.config.follow.is_empty() {
            return String::new();
        }
        let held = match self.followed.followed().copy() {
            RegistryCopy::None => "not all of it is held",
            RegistryCopy::Current => "in step",
            RegistryCopy::Ended(_) => "in step until its feed ended",
        };
        held.to_owned()
    }

    /// What an operator should know beyond the state.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.refused_files.warnings();
        warnings.extend(self.tenure.warning());
        warnings.extend(self.files.iter().filter_map(Followed::warning));
        warnings.extend(self.sweeper.strangers().take(LISTED_MAX).map(|place| {
            format!("the subnet manager at {place} shows another SM_Key, and is left out")
        }));
        warnings.extend(self.sweeper.multicast_warnings());
        let (waiting, rate) =
            (self.sweeper.clients_to_ask(), self.config.settings.client_rereg_rate);
        if waiting > 0 {
            warnings.push(format!(
                "{waiting} clients are still to be asked to register again, {rate} a second"
            ));
        }
        let avoided = self.sweeper.avoided_switches();
        if avoided > 0 {
            warnings.push(format!(
                "{avoided} switches do not take their forwarding tables, and routes avoid them"
            ));
        }
        warnings
    }

    fn tell_status(&mut self, now: Instant) {
        self.door.complain(now);
        if now < self.status_due {
            return;
        }
        self.status_due = now + STATUS_INTERVAL;
        self.follow_responders(now);
        self.lead_clients(now);
        let quiet = self.sweeper.quiet_sweeps();
        if quiet != self.sweeps.quiet.0 {
            self.sweeps.quiet = (quiet, Some(unix_ms()));
        }
        let metrics = self.collect();
        self.publisher.set_status(SmStatus {
            state: self.sweeper.sm_state().to_string(),
            subnet_up: self.sweeper.is_up(),
            warnings: self.warnings(),
            routing_engine: self.sweeper.routing_engine().to_owned(),
            engines_passed_over: self.sweeper.passed_over().to_vec(),
            guid: self.sweeper.fabric().home().map(|home| self.sweeper.fabric().port(home).guid),
            priority: self.sweeper.settings().sm_priority,
            peers: self.sweeper.peers(now),
            following: self.following(),
            takes_over_after: self.sweeper.patience(),
            phase: self.sweeper.phase().to_string(),
            quiet_sweeps: self.sweeps.quiet.0,
            quiet_sweep_ms: self.sweeps.quiet.1,
            counters: measure::totals(&metrics),
        });
        self.metrics.tell(metrics);
    }
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

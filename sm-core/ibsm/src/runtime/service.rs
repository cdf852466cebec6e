//! The driver of [`Node`]: one thread that owns the transport, the front door's socket and the
//! clock. It moves packets, results and actions between them and the node, and waits.
//!
//! - `workers`: threads for routing and other long jobs. `state_files`: a thread for long files of
//!   the state directory. `bell`: wakes the loop for orders of operators.
//! - `files`: operators' files, of this host or copied from the master.
//! - `links`: the publisher and the registry, as the node uses them.
//! - `measure`: metrics. `turns`: how long the parts of a turn take.

mod bell;
mod files;
mod links;
mod measure;
mod state_files;
mod turns;
mod workers;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use daemon::manager::{ServiceManager, Watchdog};
use ib_mad::transport::capture::Direction;
use ib_mad::transport::{Interest, Packet, wait};
use ib_mad::wire::attribute::SmState;
use tracing::{error, info, warn};

use super::RunError;
use super::attachment::Attachment;
use super::copies::CopyExchange;
use super::door::DoorSocket;
use super::dump_files::DumpFileWriter;
use super::event_plugin::EventPlugin;
use super::follow::{OwnFiles, Progress};
use super::history::History;
use super::log::Log;
use super::metrics::Metrics;
use super::registry::RegistryHandle;
use super::sa_port::SaPort;
use super::signals::{Signal, Signals};
use super::state::StateDir;
use super::store::etcd::EtcdStatus;
use super::tap::Tap;
use crate::api::ApiStatus;
use crate::cli::Config;
use crate::clock::unix_ms;
use crate::http::Totals;
use crate::node::{Action, BATCH, NewSession, Node, NodeParts, SavedState, StateWrite};
use crate::observe::event::{self, Draft, EventKind, EventLog, FabricChanges, FabricDiary};
use crate::observe::problem::{Condition, Kind, Severity, Subject};
use crate::observe::responder_command;
use crate::partitions::Site;
use crate::publish::Publisher;
use bell::Bell;
use sm_config::SitePolicy;
use sm_core::sweep::{Report, Sweeper};
use state_files::StateFileWriter;
use turns::{Part, Turns};
use workers::Workers;

/// Batches received before packets are sent.
const BATCHES_IN_A_ROW: usize = 8;
/// How often a standby gives its performance manager the nodes that it knows.
const OFFER_INTERVAL: Duration = Duration::from_secs(60);

/// How often the responders are looked up that requests at the SM's port may be passed to.
const SPILL_INTERVAL: Duration = Duration::from_millis(100);

/// The parts of a run, set up.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) log: Log,
    pub(super) signals: Signals,
    pub(super) state: StateDir,
    pub(super) saved: SavedState,
    pub(super) fabric: Attachment,
    pub(super) tap: Tap,
    /// Requests of subnet administration, if they have a separate file.
    pub(super) sa_port: Option<SaPort>,
    pub(super) sweeper: Sweeper,
    pub(super) publisher: Arc<Publisher>,
    pub(super) registry: Arc<RegistryHandle>,
    /// State of a shared store.
    pub(super) store: Option<Arc<EtcdStatus>>,
    /// State of the copy of the master's registry.
    pub(super) followed: Arc<Progress>,
    /// Compares operators' files with the master's, if one is followed.
    pub(super) own_files: Option<Arc<OwnFiles>>,
    pub(super) door: DoorSocket,
    pub(super) metrics: Metrics,
    /// Connections of the HTTP server.
    pub(super) http: Arc<Totals>,
    /// State of the API, if it is served.
    pub(super) api: Option<Arc<ApiStatus>>,
    /// What is kept of the past.
    pub(super) history: Option<History>,
    /// The program that gets events.
    pub(super) event_plugin: Option<EventPlugin>,
    pub(super) policy: SitePolicy,
    /// Warnings about the settings that were logged.
    pub(super) remarks: Vec<String>,
    /// What started this process as a service, if anything did.
    pub(super) manager: Option<ServiceManager>,
}

/// The node with its threads, sockets and files.
pub(super) struct Service {
    config: Config,
    log: Log,
    signals: Signals,
    fabric: Attachment,
    tap: Tap,
    sa_port: Option<SaPort>,
    spill_due: Instant,
    workers: Workers,
    incoming: Box<[Packet]>,
    door: DoorSocket,
    node: Node,
    registry: Arc<RegistryHandle>,
    store: Option<Arc<EtcdStatus>>,
    followed: Arc<Progress>,
    own_files: Option<Arc<OwnFiles>>,
    /// Hash of the master's settings that are used.
    master_settings: Option<u128>,
    copies: CopyExchange,
    publisher: Arc<Publisher>,
    /// Rings when operators give orders.
    bell: Bell,
    events: EventLog,
    diary: FabricDiary,
    files: StateFileWriter,
    dumps: DumpFileWriter,
    metrics: Metrics,
    http: Arc<Totals>,
    api: Option<Arc<ApiStatus>>,
    turns: Turns,
    history: Option<History>,
    event_plugin: Option<EventPlugin>,
    /// When the nodes that a standby knows were last offered to the performance manager.
    offered: Option<Instant>,
    manager: Option<ServiceManager>,
    /// Fed by turns of this loop only.
    watchdog: Option<Watchdog>,
    /// State of the SM that the service manager shows.
    shown: Option<SmState>,
}

impl Service {
    /// Starts the threads. Fails if the system has no more of them.
    pub(super) fn new(parts: Parts) -> std::io::Result<Self> {
        let Parts { config, log, signals, state, saved, fabric, tap, sweeper, .. } = parts;
        let Parts { publisher, registry, followed, own_files, door, metrics, .. } = parts;
        let Parts { policy, remarks, sa_port, store, http, api, .. } = parts;
        let Parts { history, event_plugin, .. } = parts;
        let manager = parts.manager;
        metrics.show_light_sweeps(Arc::clone(sweeper.light_sweeps()));
        let node = Node::new(
            Instant::now(),
            NodeParts {
                settings: config.settings.clone(),
                policy,
                remarks,
                access: config.sa_access.clone(),
                once: config.once,
                follows: !config.follow.is_empty(),
                follows_config: config.follow_config,
                shares: store.is_some(),
                responder_command: responder_command(publisher.address(), config.tls.is_some()),
                sweeper,
                saved,
                responders: publisher.responders(),
                feed: publisher.clone(),
                registry: registry.clone(),
            },
        );
        Ok(Self {
            dumps: DumpFileWriter::start(&config.settings, &config.state_dir)?,
            workers: Workers::start()?,
            files: StateFileWriter::start(state)?,
            config,
            log,
            signals,
            fabric,
            tap,
            sa_port,
            spill_due: Instant::now(),
            incoming: vec![Packet::default(); BATCH].into_boxed_slice(),
            door,
            node,
            registry,
            store,
            followed,
            own_files,
            master_settings: None,
            copies: CopyExchange::default(),
            events: publisher.events(),
            diary: FabricDiary::default(),
            bell: Bell::of(&publisher)?,
            publisher,
            metrics,
            http,
            api,
            turns: Turns::new(Instant::now()),
            history,
            event_plugin,
            offered: None,
            watchdog: Watchdog::of(manager.as_ref(), Instant::now()),
            manager,
            shown: None,
        })
    }

    /// Runs until the node ends, or the system fails.
    pub(super) fn run(mut self) -> Result<(), RunError> {
        self.manager.iter().for_each(|manager| manager.ready("looking for the fabric"));
        let result = loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(result)) => break result,
                Err(failure) => break Err(failure),
            }
        };
        self.manager.iter().for_each(ServiceManager::stopping);
        self.node.shut_down();
        let result = result.and(self.finish_files().map_err(RunError::from));
        if result.is_ok() {
            self.dumps.finish(&mut self.node)?;
        }
        self.tap.rest();
        // Dropping the transport clears IsSM and detaches.
        drop(self.fabric);
        self.files.directory().forget_client();
        let text = match &result {
            Ok(()) => "ibsm ends".to_owned(),
            Err(failure) => format!("ibsm ends: {}", sa_proto::with_causes(failure)),
        };
        let severity = result.is_err().then_some(Severity::Critical);
        self.events.note(unix_ms(), Draft::new(EventKind::Stopped, text).rated(severity));
        // The last events are passed and written.
        (self.event_plugin, self.history) = (None, None);
        result
    }

    /// Input, deadlines, packets, actions; then waits for more. Yields how the run ended, once it
    /// has.
    fn turn(&mut self) -> Result<Option<Result<(), RunError>>, RunError> {
        let now = Instant::now();
        self.turns.begin(now);
        self.registry.note_turn();
        self.watchdog.iter_mut().for_each(|watchdog| watchdog.turn(now));
        let mut busy = self.workers.poll(|outcome| self.node.handle_job(now, outcome))?;
        while let Some(outcome) = self.files.poll()? {
            self.note_written(now, outcome);
        }
        self.dumps.poll(&mut self.node)?;
        self.take_signals(now);
        let has_orders = self.take_orders(now);
        let followed = self.copies.exchange(&self.publisher, &self.registry, &self.followed);
        self.node.handle_followed(followed);
        self.turns.end(Instant::now(), Part::Results);
        busy |= self.receive()?;
        self.turns.end(Instant::now(), Part::Receive);
        busy |= self.receive_responses()?;
        let now = Instant::now();
        self.turns.end(now, Part::Responses);
        self.maintain(now);
        self.save_index();
        busy |= self.node.handle_timeout(now);
        self.turns.end(Instant::now(), Part::Deadlines);
        let blocked = self.transmit(now);
        self.door.follow(now, &self.publisher.responders().load());
        self.door.send(&mut self.node)?;
        self.turns.end(Instant::now(), Part::Transmit);
        while let Some(action) = self.node.poll_action(now) {
            busy = true;
            self.turns.end(Instant::now(), Part::Events);
            let part = match action {
                Action::ReadFiles { .. } => Part::ReadFiles,
                Action::Report => Part::Report,
                _ => Part::Submit,
            };
            self.act(now, action)?;
            self.turns.end(Instant::now(), part);
        }
        self.turns.end(Instant::now(), Part::Events);
        if has_orders {
            self.publisher.orders_done();
        }
        self.followed.state_stored(self.node.stored_state());
        self.followed.set_ended(self.node.ended());
        self.followed.set_sealed(self.node.sealed());
        busy |= self.node.has_events();
        let end = self.node.poll_end();
        if end.is_none() && (blocked || !busy) {
            self.wait(blocked)?;
        }
        Ok(end.map(|end| end.map_err(RunError::from)))
    }

    fn take_signals(&mut self, now: Instant) {
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::HeavySweep => {
                    info!("SIGHUP: rereading settings, starting a heavy sweep");
                    self.reload(now);
                }
                Signal::ReopenLog => match self.log.reopen() {
                    Ok(()) => info!("SIGUSR1: log file reopened"),
                    Err(failure) => error!("SIGUSR1: {failure}; still writing to the old file"),
                },
                Signal::Terminate => self.node.handle_terminate(),
            }
        }
    }

    /// Reads the settings again. They take effect with a heavy sweep.
    fn reload(&mut self, now: Instant) {
        self.manager.iter().for_each(ServiceManager::reloading);
        let leads = self.node.leads();
        self.node.handle_settings(now, self.config.reread(leads));
        // Without sweeps they are in force already.
        self.follow_settings();
        let status = self.state_in_words();
        self.manager.iter().for_each(|manager| manager.ready(status));
    }

    /// The state of the SM, as the service manager shows it.
    fn state_in_words(&self) -> &'static str {
        match self.node.sweeper().sm_state() {
            SmState::NotActive => "not active",
            SmState::Discovering => "discovering",
            SmState::Standby => "standby",
            SmState::Master => "master",
        }
    }

    /// Carries out orders of operators, and has the status of this turn show it. Returns whether
    /// there were any.
    fn take_orders(&mut self, now: Instant) -> bool {
        self.bell.silence();
        let Some(orders) = self.publisher.take_orders() else { return false };
        if orders.reload {
            info!("reload requested: rereading settings, starting a heavy sweep");
            self.reload(now);
        }
        if orders.baseline && self.config.quarantine {
            self.node.set_quarantine(now, self.publisher.expected());
        }
        let changes_settings = orders.priority.is_some() || orders.log_flags.is_some();
        self.node.handle_orders(now, orders);
        if changes_settings {
            self.follow_settings();
        }
        self.node.report_at(now);
        true
    }

    /// Attaches to the fabric again if the connection was lost.
    fn maintain(&mut self, now: Instant) {
        if self.fabric.maintain(now) {
            if let Some(client) = self.fabric.client_id()
                && let Err(failure) = self.files.directory().keep_client(client)
            {
                warn!(
                    "cannot save the simulator client ID: {failure}; if ibsm is killed, the \
                     simulator keeps its slot occupied"
                );
            }
            let (port, planes) = (self.fabric.port_guid(), self.fabric.planes());
            self.node.handle_attached(now, port, planes);
            if let Some(sa_port) = &mut self.sa_port {
                sa_port.reattach(self.fabric.umad_port().cloned());
            }
        }
        if let Some(sa_port) = &mut self.sa_port {
            let session = self.publisher.session();
            let responders = self.publisher.responders();
            sa_port.maintain(now, &responders.load(), &responders.hung(), session);
            if now >= self.spill_due {
                self.spill_due = now + SPILL_INTERVAL;
                self.registry.set_spill(self.node.spill(sa_port.responder()));
            }
        }
        if !self.fabric.is_attached() {
            self.node.handle_detached();
        }
    }

    /// Receives from the fabric; returns whether there was anything.
    fn receive(&mut self) -> Result<bool, RunError> {
        let mut any = false;
        for _ in 0..BATCHES_IN_A_ROW {
            let now = Instant::now();
            let got = self.fabric.receive(now, &mut self.incoming);
            any |= got > 0;
            let lid = self.fabric.local_lid();
            self.tap.note(now, Direction::Received, lid, &self.incoming[..got]);
            for packet in &mut self.incoming[..got] {
                self.node.handle_packet(now, packet);
            }
            let asked = match &mut self.sa_port {
                Some(sa_port) => sa_port.receive(&mut self.incoming),
                None => 0,
            };
            any |= asked > 0;
            self.tap.note(now, Direction::Received, lid, &self.incoming[..asked]);
            for packet in &mut self.incoming[..asked] {
                self.node.handle_packet(now, packet);
            }
            if got.max(asked) < self.incoming.len() {
                break;
            }
        }
        Ok(any)
    }

    /// Receives from responders; returns whether there was anything. Without room for the answers,
    /// a burst waits in the socket.
    fn receive_responses(&mut self) -> Result<bool, RunError> {
        if !self.node.has_room_for_responses() {
            return Ok(false);
        }
        let now = Instant::now();
        Ok(self.door.receive(|packet| self.node.handle_response(now, packet))?)
    }

    /// Sends to the fabric; returns whether the transport takes no more for now.
    fn transmit(&mut self, now: Instant) -> bool {
        loop {
            let packets = self.node.poll_transmit(now);
            if packets.is_empty() {
                return false;
            }
            let sent = self.fabric.send(now, packets);
            if self.fabric.is_attached() {
                self.tap.note(now, Direction::Sent, self.fabric.local_lid(), &packets[..sent]);
            }
            if !self.node.handle_transmitted(sent) {
                return true;
            }
        }
    }

    /// Carries out an action.
    fn act(&mut self, now: Instant, action: Action) -> Result<(), RunError> {
        match action {
            Action::ReadFiles { lids } => self.read_files(lids),
            Action::BeginSession(new) => self.begin_session(now, new),
            Action::Run(job) => self.workers.submit(job)?,
            Action::Write(write) => self.write(now, write)?,
            Action::Dump(job) => self.dumps.submit(job)?,
            Action::RefreshPort => self.fabric.refresh(Instant::now()),
            Action::NoteSweep { report, faults } => self.note_sweep(&report, faults),
            Action::Note(draft) => self.events.note(unix_ms(), *draft),
            Action::Report => self.report(now),
        }
        Ok(())
    }

    /// Begins a publishing session: saves its epoch, and announces it to responders.
    fn begin_session(&mut self, now: Instant, new: NewSession) {
        let result = match new {
            NewSession::Master(sm_guid) => self.publisher.begin_session(sm_guid),
            NewSession::Above => self.publisher.renew(),
        };
        self.node.handle_session(now, result);
    }

    /// Writes a file of the state directory.
    fn write(&mut self, now: Instant, write: StateWrite) -> std::io::Result<()> {
        if let Some(outcome) = self.files.submit(write)? {
            self.node.handle_written(now, outcome);
        }
        Ok(())
    }

    /// Adds a sweep to the history and to metrics.
    fn note_sweep(&mut self, report: &Report, faults: Vec<crate::observe::moment::FaultPort>) {
        let now_ms = unix_ms();
        let changes = self.fabric_changes();
        self.publisher.sweeps().note(report, now_ms, faults, &changes);
        self.events.note(now_ms, event::sweep_end(report, &changes));
        self.note_changes(changes);
        self.metrics.note_sweep(report, self.node.sweeper().routing_engine());
    }

    /// What came, went or changed since the fabric was published before.
    fn fabric_changes(&mut self) -> FabricChanges {
        self.diary.follow(self.publisher.observatory().snapshot().fabric())
    }

    fn note_changes(&self, changes: FabricChanges) {
        let now_ms = unix_ms();
        changes.listed.into_iter().for_each(|draft| self.events.note(now_ms, draft));
    }

    /// Gives the performance manager of a standby the nodes that this SM discovered; a master
    /// publishes them.
    fn offer_nodes(&mut self, now: Instant) {
        let is_due = self.offered.is_none_or(|at| now >= at + OFFER_INTERVAL);
        if !self.config.settings.perfmgr || self.node.leads() || !is_due {
            return;
        }
        let mut nodes: Vec<_> = self.node.sweeper().fabric().rows().map(|(_, row)| row).collect();
        nodes.sort_unstable_by_key(|node| node.guid);
        if self.node.sweeper().sm_state() == SmState::Standby && !nodes.is_empty() {
            self.offered = Some(now);
            self.publisher.perf().offer_discovered(nodes);
        }
    }

    /// Updates status and metrics, and what partitions are listed with.
    fn report(&mut self, now: Instant) {
        // The first fabric of a session is published after the end of its sweep.
        let changes = self.fabric_changes();
        self.note_changes(changes);
        let (settings, sweeper) = (self.node.settings(), self.node.sweeper());
        self.registry.set_site(Site {
            partitions: sweeper.partitions_of_files().clone(),
            m_key: settings.m_key,
            sm_key: settings.sm_key,
        });
        let metrics = self.collect();
        let service = self.sa_port.as_ref().map(SaPort::service).unwrap_or_default();
        self.node.handle_port_service(service);
        let mut status = self.node.status(now, unix_ms(), measure::totals(&metrics));
        if let Some(store) = &self.store {
            let view = store.view();
            status.store = view.to_string();
            let followed = self.followed.followed();
            let differ = followed.files_differ.filter(|_| !self.node.leads());
            if let Some(differ) = differ.filter(|differ| !differ.is_empty()) {
                status.store += "; files that differ from the master's: ";
                status.store += &differ.join(", ");
            }
            let warning = view.warning().filter(|_| self.publisher.session().is_some());
            if let Some(text) = warning {
                status.warn(Condition::new(Kind::StoreUnavailable, Subject::subnet(), text));
            }
            let [state, tables] = view.behind;
            let behind = [("LIDs, M_Keys and links in etcd", state), ("log in etcd", tables)];
            for (subject, text) in behind {
                let Some(text) = text else { continue };
                let subject = Subject::named(subject);
                status.warn(Condition::new(Kind::StateFileBehind, subject, text));
            }
        }
        for (option, text) in self.config.exposures() {
            status.warn(Condition::new(Kind::UnsafeSetting, Subject::named(option), text));
        }
        if let Some((file, reason)) = self.api.as_ref().and_then(|api| api.users_refused()) {
            let text = format!("the previous users of the API stay: {reason}");
            status.warn(Condition::new(Kind::FileRefused, Subject::named(file), text));
        }
        let unwritable = self.history.as_ref().and_then(History::condition);
        unwritable.into_iter().for_each(|condition| status.warn(condition));
        self.publisher.set_status(status);
        let state = self.node.sweeper().sm_state();
        if self.shown.replace(state) != Some(state) {
            let status = self.state_in_words();
            self.manager.iter().for_each(|manager| manager.status(status));
        }
        self.offer_nodes(now);
        self.metrics.set(metrics);
    }

    /// Waits for input or the next deadline.
    fn wait(&mut self, blocked: bool) -> Result<(), RunError> {
        self.tap.rest();
        let now = Instant::now();
        let due = self.fabric.due();
        let sa_port = self.sa_port.as_ref().map(|sa_port| sa_port.due().min(self.spill_due));
        let due = sa_port.map_or(due, |sa_port| sa_port.min(due));
        let due = self.node.poll_timeout().map_or(due, |node| node.min(due));
        let due = self.watchdog.as_ref().map_or(due, |watchdog| watchdog.due().min(due));
        let timeout = Some(due.saturating_duration_since(now));
        let mut interests: Vec<Interest<'_>> =
            self.workers.descriptors().into_iter().map(Interest::read).collect();
        interests.extend(
            [
                self.signals.as_fd(),
                self.registry.as_fd(),
                self.dumps.as_fd(),
                self.files.as_fd(),
                self.bell.as_fd(),
            ]
            .map(Interest::read),
        );
        let fabric = self.fabric.descriptor();
        interests.extend(fabric.map(|fabric| Interest::read_or_write(fabric, blocked)));
        let door_blocked = !self.node.poll_forward().is_empty();
        let door = self.door.descriptor();
        interests.extend(door.map(|door| Interest::read_or_write(door, door_blocked)));
        let first = interests.len();
        let sa_port = self.sa_port.iter().flat_map(SaPort::descriptors);
        interests.extend(sa_port.map(Interest::read));
        wait(&mut interests, timeout)?;
        let is_readable = interests[first..].iter().any(Interest::is_readable);
        if let Some(sa_port) = self.sa_port.as_mut().filter(|_| is_readable) {
            sa_port.note_readable();
        }
        Ok(())
    }

    /// Writes all files of the state directory that are outdated, and waits until they are written.
    fn finish_files(&mut self) -> std::io::Result<()> {
        let now = Instant::now();
        // Writes that have begun may be older than the content in memory.
        self.await_writes(now)?;
        self.node.retry_writes();
        while let Some(write) = self.node.poll_write(now) {
            self.write(now, write)?;
        }
        self.await_writes(now)
    }

    /// Waits until all writes that have begun have ended.
    fn await_writes(&mut self, now: Instant) -> std::io::Result<()> {
        while let Some(outcome) = self.files.wait()? {
            self.note_written(now, outcome);
        }
        Ok(())
    }
}

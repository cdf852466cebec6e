//! The subnet manager as one state machine without I/O: it joins sweeps, publication, the front
//! door, operators' files and the state directory.
//!
//! Input arrives through `handle_…(now, …)`, output leaves through `poll_…`. The driver
//! (`runtime::service`) owns sockets, files, threads and the clock; a test or a simulation can
//! take its place. A driver repeats these steps:
//!
//! 1. Pass received input: results of jobs and writes, signals and orders, packets.
//! 2. [`Node::handle_timeout`].
//! 3. Send the packets that [`Node::poll_transmit`] and [`Node::poll_forward`] yield.
//! 4. Carry out the actions that [`Node::poll_action`] yields, until it yields none.
//! 5. Unless there was input or an action, wait until [`Node::poll_timeout`] or for input.
//!
//! - `events`: handles events of the sweep. `clients`: how clients reach responders.
//! - `publication`: sessions and snapshots; `session`: when one may begin; `held`: events that
//!   wait until responders serve the snapshot that caused them.
//! - `succession`: mastership passes between managers without losing registrations.
//! - `site`: operators' files. `files`, `state_file` and `dumps`: files of the state directory, and
//!   dump files. `state_copy`: those of the master, while standing by.
//! - `jobs`: routing and other long work. `transmit`, `door`: packets to the fabric and to
//!   responders. `registry`: exchange with the registry. `status`, `problems`: for operators.
//!   `once`: when a run with `--once` ends. `diary`: events.
//! - `outside`: the snapshot feed and the registry as the node uses them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod action;
mod clients;
mod diary;
mod door;
mod dumps;
mod error;
mod events;
mod files;
mod held;
mod jobs;
mod master_state;
mod once;
mod outside;
mod problems;
mod publication;
mod refused;
mod registry;
mod ring;
mod session;
mod site;
mod state_copy;
mod state_file;
mod status;
mod succession;
mod transmit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::{Guid, PortNum, Qpn};
use ib_mad::wire::attribute::SmState;
use sa_proto::state::StateVersion;
use tracing::{info, warn};

use crate::cli::{ConfigError, SaAccess};
use crate::observe::Responders;
use crate::publish::{Orders, PublishError};
pub use action::{Action, FilesRead, NewSession};
use clients::Clients;
use diary::Diary;
use door::Door;
pub use dumps::DumpError;
use dumps::DumpFiles;
pub use error::NodeError;
use files::StateFiles;
pub use files::{Contents, SavedState, StateWrite, WriteOutcome};
use jobs::Jobs;
pub use jobs::{Job, JobOutcome};
pub use master_state::{BASELINE, LIDS, M_KEYS, MasterState, NEIGHBOURS};
use once::Once;
pub use outside::{RegistryLink, SnapshotFeed};
use publication::Publication;
use registry::RegistryExchange;
use sa_proto::snapshot::{Session, Version};
pub use session::SessionState;
use site::SiteFiles;
use sm_config::{Settings, SitePolicy};
use sm_core::manage::quarantine::Expected;
use sm_core::sweep::{DumpJob, Sweeper};
use state_copy::StateCopy;
use status::Board;
pub use status::SweepTotals;
use succession::Succession;
pub use succession::{Beat, Followed, SuccessionCounters};
use transmit::TransmitQueue;

/// Packets moved at once.
pub const BATCH: usize = 64;

/// Inputs for the start of a node.
pub struct NodeParts {
    /// Settings from the configuration file and the command line.
    pub settings: Settings,
    /// Policy files as read at the start.
    pub policy: SitePolicy,
    /// Warnings about the settings that were logged at the start.
    pub remarks: Vec<String>,
    /// How clients reach responders.
    pub access: SaAccess,
    /// Whether to end once the subnet is up.
    pub once: bool,
    /// Whether the registry of another subnet manager is followed while standing by.
    pub follows: bool,
    /// Whether operators' files of that one are used, too.
    pub follows_config: bool,
    /// Whether the managers of the subnet share a store: everything acknowledged is in it.
    pub shares: bool,
    /// The command that starts a responder, for warnings.
    pub responder_command: String,
    /// The state machine of sweeps.
    pub sweeper: Sweeper,
    /// Contents of the state directory at the start.
    pub saved: SavedState,
    /// The connected responders.
    pub responders: Responders,
    /// The snapshot feed.
    pub feed: Arc<dyn SnapshotFeed>,
    /// The registry.
    pub registry: Arc<dyn RegistryLink>,
}

/// The subnet manager. (A node of the fabric is another thing: see [`sm_core::fabric`].)
pub struct Node {
    sweeper: Sweeper,
    /// Whether what is not in the baseline is to be kept out, and there is none.
    lacks_baseline: bool,
    /// Whether the fabric can be reached.
    attached: bool,
    transmit: TransmitQueue,
    door: Door,
    responders: Responders,
    registry: RegistryExchange,
    succession: Succession,
    publication: Publication,
    clients: Clients,
    site: SiteFiles,
    files: StateFiles,
    state_copy: StateCopy,
    dumps: DumpFiles,
    jobs: Jobs,
    status: Board,
    /// When checks of the routing begin and caches are compared, after the last sweep: responders
    /// are served first.
    deferred_due: Option<Instant>,
    /// A run with `--once`.
    once: Option<Once>,
    actions: VecDeque<Action>,
    diary: Diary,
    end: Option<Result<(), NodeError>>,
}

impl Node {
    /// A node that is attached to the fabric and requests its first sweep.
    pub fn new(now: Instant, parts: NodeParts) -> Self {
        let NodeParts { settings, policy, remarks, access, sweeper, responders, feed, .. } = parts;
        let mut node = Self {
            sweeper,
            lacks_baseline: false,
            attached: true,
            transmit: TransmitQueue::default(),
            door: Door::new(now, responders.clone(), &access),
            responders,
            registry: RegistryExchange::new(parts.registry),
            succession: Succession::new(parts.follows, parts.follows_config, parts.shares),
            publication: Publication::new(feed),
            clients: Clients::new(&access),
            dumps: DumpFiles::new(&settings),
            site: SiteFiles::new(settings, policy, remarks),
            files: StateFiles::new(parts.saved),
            state_copy: StateCopy::new(parts.follows_config),
            jobs: Jobs::new(now),
            status: Board::new(now, parts.responder_command),
            deferred_due: None,
            once: parts.once.then(Once::default),
            actions: VecDeque::new(),
            diary: Diary::default(),
            end: None,
        };
        node.sweeper.set_registry_is_shared(parts.shares);
        if parts.once {
            node.sweeper.yield_to_masters();
        }
        // Until they are known, ports keep P_Keys that no file mentions.
        node.sweeper.put_api_partitions(now, None);
        node.registry.pass_partitions(now, &mut node.sweeper);
        node.sweeper.request_heavy_sweep(now);
        node
    }

    // Input.

    /// Takes a packet of the fabric. Its memory is used for an answer, if there is one.
    pub fn handle_packet(&mut self, now: Instant, packet: &mut Packet) {
        self.watch(now);
        let is_answer = match packet.address.local_qpn {
            Qpn::SMI => self.sweeper.handle_packet(now, packet),
            _ => self.door.admit(now, packet),
        };
        if is_answer {
            self.transmit.push_answer(packet);
        }
    }

    /// Must be called before anything that arrives is handled.
    fn watch(&mut self, now: Instant) {
        self.succession.watch(now, &mut self.sweeper);
        self.door.watch(now);
    }

    /// Takes a packet of a responder: the answer to a client, without its envelope.
    pub fn handle_response(&mut self, now: Instant, packet: &mut Packet) {
        if self.door.release(now, packet) {
            self.transmit.push_answer(packet);
        }
    }

    /// Whether a batch of answers fits into the queue. If not, responses should wait in the socket.
    pub fn has_room_for_responses(&self) -> bool {
        self.transmit.answer_room() >= BATCH
    }

    /// The fabric can be reached again, by the port with this GUID, which is in planes of the
    /// fabric by the ports with these numbers, if any. Its earlier state is discarded.
    pub fn handle_attached(&mut self, now: Instant, port: Guid, planes: Vec<PortNum>) {
        self.attached = true;
        self.transmit.clear_requests();
        self.sweeper.set_own_port(port);
        self.sweeper.set_own_planes(planes);
        self.sweeper.restart(now);
    }

    /// The fabric cannot be reached.
    pub fn handle_detached(&mut self) {
        self.attached = false;
        self.sweeper.fabric_lost();
    }

    /// SIGHUP: the settings were read again, or could not be. They take effect with the heavy
    /// sweep that this requests; in NOT-ACTIVE, where there are no sweeps, at once.
    pub fn handle_settings(
        &mut self,
        now: Instant,
        read: Result<(Settings, Vec<String>), ConfigError>,
    ) {
        self.site.handle_settings(read);
        if self.sweeper.sm_state() == SmState::NotActive {
            self.follow_settings();
        }
        self.sweeper.request_heavy_sweep(now);
    }

    /// SIGTERM or SIGINT.
    pub fn handle_terminate(&mut self) {
        info!("termination signal received; shutting down");
        self.end = Some(Ok(()));
    }

    /// Requests made with `ibsmctl` or at the console.
    pub fn handle_orders(&mut self, now: Instant, orders: Orders) {
        // The driver reads the settings again, and passes the baseline; see `handle_settings` and
        // `set_quarantine`.
        let Orders { sweep, light_sweep, reroute, sweeping, priority, log_flags, .. } = orders;
        for guid in orders.admitted {
            match self.sweeper.admit(now, guid) {
                true => info!("{guid} was moved, on request: it gets what belongs to it"),
                false => warn!("admit {guid}: no port waits for what belongs to this GUID"),
            }
        }
        if let Some(flags) = log_flags {
            info!("log level {flags:#x} requested");
            self.site.note_log_flags(flags);
        }
        if let Some(priority) = priority {
            info!("priority {priority} requested");
            self.sweeper.set_priority(priority);
            self.site.note_priority(priority);
        }
        if let Some(sweeping) = sweeping {
            info!("sweeps turned {} on request", if sweeping { "on" } else { "off" });
            self.sweeper.set_sweeping(now, sweeping);
        }
        if light_sweep {
            info!("sweep requested: starting a light sweep");
            self.sweeper.request_light_sweep(now);
        }
        if reroute {
            info!("reroute requested: recomputing all routes");
            self.sweeper.reroute(now);
        } else if sweep {
            info!("sweep requested: starting a heavy sweep");
            self.sweeper.request_heavy_sweep(now);
        }
    }

    /// Updates the status in this turn: it shows what was ordered.
    pub fn report_at(&mut self, now: Instant) {
        self.status.report_at(now);
    }

    /// Keeps out what is not expected (`--quarantine`), from now on. `None`: there is no baseline.
    pub fn set_quarantine(&mut self, now: Instant, expected: Option<Arc<Expected>>) {
        self.lacks_baseline = expected.is_none();
        self.sweeper.set_quarantine(now, expected);
    }

    /// State of the copy of the master's registry that is kept while standing by.
    pub fn handle_followed(&mut self, followed: Followed) {
        self.succession.handle_followed(followed);
    }

    /// The version of the master's state that is on disk.
    pub fn stored_state(&self) -> StateVersion {
        self.state_copy.stored()
    }

    /// The version published last, if this SM is master and acknowledges nothing, since its
    /// mastership is in doubt, and how many elections of others it knows.
    pub fn sealed(&self) -> Option<(Version, u64)> {
        self.succession.sealed()
    }

    /// The version published last if this SM was master and is not; else [`Version::NONE`].
    pub fn ended(&self) -> Version {
        self.succession.ended()
    }

    /// The result of [`Action::ReadFiles`].
    pub fn handle_files(&mut self, now: Instant, files: FilesRead) {
        self.site.handle_policy(files.policy, &files.reading, &files.time, &mut self.sweeper);
        if !files.reading.taken.is_empty() {
            let taken = files.reading.taken;
            self.note_configuration(format!("read {}", taken.join(", ")), taken);
        }
        self.dumps.follow(self.site.settings());
        if let Some(lids) = files.lids {
            files::handle_lids(lids, &mut self.sweeper);
        }
        self.sweeper.files_are_read(now);
    }

    /// The result of [`Action::Write`].
    pub fn handle_written(&mut self, now: Instant, outcome: WriteOutcome) {
        match outcome {
            WriteOutcome::Done(write) => self.files.handle_written(now, write, Ok(())),
            WriteOutcome::Failed(write, failure) => {
                self.files.handle_written(now, write, Err(&*failure));
            }
            WriteOutcome::Panicked(reason) => self.files.handle_panic(now, &reason),
        }
    }

    /// The result of [`Action::Dump`].
    pub fn handle_dumped(&mut self, result: Result<(), DumpError>) {
        self.dumps.handle_written(result);
    }

    /// The result of [`Action::BeginSession`].
    pub fn handle_session(&mut self, now: Instant, result: Result<Session, PublishError>) {
        self.publication.handle_session(now, result, self.registry.link());
    }

    /// The result of [`Action::Run`].
    pub fn handle_job(&mut self, now: Instant, outcome: JobOutcome) {
        self.jobs.handle(now, outcome, &mut self.sweeper);
    }

    /// Applies changes of the registry, and performs due work. Spurious calls are allowed. Returns
    /// whether the registry had changes.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.watch(now);
        self.sweeper.set_imported_registry(now, self.registry.imported());
        if self.attached {
            self.sweeper.handle_timeout(now);
        }
        let changed = self.registry.exchange(now, &mut self.sweeper, &mut self.transmit);
        self.update_status(now);
        changed
    }

    // Output.

    /// Packets for the fabric: answers to clients, then SMPs. Call until none are left, and state
    /// after each call how many were sent with [`handle_transmitted`](Self::handle_transmitted).
    pub fn poll_transmit(&mut self, now: Instant) -> &[Packet] {
        self.transmit.poll(now, &mut self.sweeper)
    }

    /// Records that `count` packets of the last [`poll_transmit`](Self::poll_transmit) were sent.
    /// Returns whether to offer the transport more.
    pub fn handle_transmitted(&mut self, count: usize) -> bool {
        self.transmit.handle_transmitted(count)
    }

    /// Packets for responders, each at its [`peer`](ib_mad::transport::Carrier::peer).
    pub fn poll_forward(&self) -> &[Packet] {
        self.door.poll_forward()
    }

    /// Reports that `count` packets of [`poll_forward`](Self::poll_forward) were sent.
    pub fn handle_forwarded(&mut self, count: usize) {
        self.door.handle_forwarded(count);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        if self.actions.is_empty() {
            self.advance(now);
        }
        self.actions.pop_front()
    }

    /// The next file of the state directory to write. [`poll_action`](Self::poll_action) yields
    /// them, too.
    pub fn poll_write(&mut self, now: Instant) -> Option<StateWrite> {
        let registry = &self.registry;
        self.files.poll_write(now, &mut self.sweeper, || registry.sequence())
    }

    /// The next dump files to write. [`poll_action`](Self::poll_action) yields them, too.
    pub fn poll_dump(&mut self) -> Option<DumpJob> {
        self.dumps.poll(&self.sweeper)
    }

    /// Whether a sweep has left events: [`poll_action`](Self::poll_action) is due.
    pub fn has_events(&self) -> bool {
        self.sweeper.has_events()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and
    /// [`poll_action`](Self::poll_action) next.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        // Without a fabric the current sweep makes no progress; it starts over.
        let sweep_due = self.sweeper.poll_timeout().filter(|_| self.attached);
        let due = [
            sweep_due,
            self.once.as_ref().and_then(Once::poll_timeout),
            self.publication.poll_timeout(),
            self.succession.poll_timeout(),
            self.deferred_due,
            self.files.poll_timeout(&self.sweeper),
            Some(self.status.due()),
        ];
        due.into_iter().flatten().min()
    }

    /// The result of the run, if it must end. Returned once.
    pub fn poll_end(&mut self) -> Option<Result<(), NodeError>> {
        self.end.take()
    }

    /// The run ends: releases held events, and marks all files as due that may be outdated. Writes
    /// that [`poll_write`](Self::poll_write) returns after this must be done before the end.
    pub fn shut_down(&mut self) {
        let events = self.publication.release_all();
        self.registry.notify(events);
        if self.deferred_due.is_some() {
            self.files.compare_caches(&mut self.sweeper);
        }
        self.files.tables_changed();
    }

    /// Has files whose last write failed written at once.
    pub fn retry_writes(&mut self) {
        self.files.retry();
    }

    // State, for files, metrics and status.

    /// Settings in force.
    pub fn settings(&self) -> &Settings {
        self.site.settings()
    }

    /// Policy files in force.
    pub fn policy(&self) -> &SitePolicy {
        self.site.policy()
    }

    /// Number of policy files refused at the last reading, and of refusals since the start.
    pub fn refused_policies(&self) -> (usize, u64) {
        (self.site.refused().count(), self.site.refused().total())
    }

    /// The state machine of sweeps.
    pub fn sweeper(&self) -> &Sweeper {
        &self.sweeper
    }

    /// Totals of sweeps.
    pub fn sweeps(&self) -> &SweepTotals {
        self.status.sweeps()
    }

    /// The publishing session.
    pub fn session(&self) -> &SessionState {
        self.publication.session()
    }

    /// Totals of handovers and takeovers.
    pub fn succession(&self) -> SuccessionCounters {
        self.succession.counters()
    }

    /// Number of files of the state directory whose last write failed.
    pub fn files_behind(&self) -> usize {
        self.files.warnings().count()
    }

    /// Packets of the front door, and its pins.
    pub fn front_door(&self) -> (crate::front_door::Counters, usize) {
        (self.door.counters(), self.door.pins())
    }

    /// What the responder `reader`, which reads the SM's port, may pass to others.
    pub fn spill(&self, reader: Option<u64>) -> crate::front_door::Spill {
        self.door.spill(reader)
    }

    /// Answers dropped because too many waited for the transport.
    pub fn answers_dropped(&self) -> u64 {
        self.transmit.answers_dropped()
    }

    /// Handles events and deadlines, and queues actions.
    fn advance(&mut self, now: Instant) {
        self.handle_events(now);
        self.note_mastership();
        if self.deferred_due.is_none()
            && let Some(job) = self.dumps.poll(&self.sweeper)
        {
            self.actions.push_back(Action::Dump(job));
        }
        let (leads, own) = (self.leads(), self.publication.feed().session());
        let followed = self.succession.followed();
        match own {
            _ if !leads => self.state_copy.follow(followed, &mut self.sweeper, &mut self.files),
            Some(own) => self.state_copy.follow_keys(followed, own, &mut self.sweeper),
            None => {}
        }
        self.follow_mastership(now);
        if let Some(session) = self.publication.poll_session() {
            self.actions.push_back(Action::BeginSession(session));
        }
        if self.publication.republish(now, &self.sweeper) {
            self.dumps.want_multicast();
        }
        self.do_deferred(now);
        while let Some(write) = self.poll_write(now) {
            self.actions.push_back(Action::Write(write));
        }
        while let Some(job) = self.jobs.poll(now, &mut self.sweeper) {
            self.actions.push_back(Action::Run(job));
        }
        self.log_progress(now);
        self.end_once(now);
    }

    /// Puts settings into force that were read again.
    fn follow_settings(&mut self) {
        if let Some(changes) = self.site.follow_settings(&mut self.sweeper) {
            let text = match changes.is_empty() {
                true => "settings read again: unchanged".to_owned(),
                false => format!("settings changed: {}", changes.join(", ")),
            };
            self.note_configuration(text, changes);
        }
    }

    /// Whether this SM is the master, or publishes still.
    pub fn leads(&self) -> bool {
        let is_master = self.sweeper.sm_state() == SmState::Master;
        is_master || self.publication.feed().session().is_some()
    }

    /// Publishes and answers as long as this SM is the master.
    fn follow_mastership(&mut self, now: Instant) {
        let link = self.registry.link();
        let parts = succession::Parts {
            sweeper: &mut self.sweeper,
            feed: self.publication.feed(),
            registry: link,
            responders: &self.responders,
            is_state_published: self.deferred_due.is_none() && self.files.are_tables_published(),
        };
        let outlook = self.succession.follow(now, parts);
        self.publication.set_may_begin(outlook.may_begin);
        let is_on = self.publication.follow_mastership(now, &mut self.sweeper, link);
        self.door.set_session(self.publication.feed().session().filter(|_| is_on));
        self.registry.acknowledge_until(outlook.vouched_until.filter(|_| is_on));
        self.registry.set_open(is_on);
    }

    /// Does the work that was deferred so that responders are served first.
    fn do_deferred(&mut self, now: Instant) {
        if self.deferred_due.is_some_and(|due| now < due) {
            return;
        }
        if self.deferred_due.take().is_some() {
            self.files.compare_caches(&mut self.sweeper);
        }
        while let Some(job) = self.jobs.poll_check(&mut self.sweeper) {
            self.actions.push_back(Action::Run(job));
        }
    }
}

#[cfg(test)]
mod tests;

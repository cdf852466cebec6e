//! The sweep: finding out what the fabric is, and making it what it should be.
//!
//! [`Sweeper`] decides and never acts: the caller sends what [`poll_transmit`] writes, hands back
//! what arrives, and calls [`handle_timeout`] when [`poll_timeout`] says so. A heavy sweep walks
//! the whole fabric; a light one asks every switch whether a port changed, and what did change is
//! then discovered from there on. Both end in the same phases of configuration, which send only
//! what differs.
//!
//! - `discover`: the walk; `contradiction`: links that cannot both be true, duplicate GUIDs;
//!   `doubt`: who is silent may only be out of reach;
//!   `light`: looking for changes; `election`: other subnet managers; `handover`: from and to them.
//! - `keys`: which M_Key is shown to whom.
//! - `qos`: tables of ports; `guid_info`: alias GUIDs, written between sweeps.
//! - `take_over`: the LID of a responder's port goes to another.
//! - `shard`: whom end ports ask, written between sweeps.
//! - `reregister`: clients that a new master asks to register again, a few at a time.
//! - `multicast`: trees, written between sweeps; `service`: which end ports came and went.
//! - `configure`: LIDs, P_Keys, forwarding tables, links; `tables`: their routing, which the caller
//!   runs ([`RoutingJob`]); `encode`: requests as MADs.
//! - `origin`: who made the tables that switches hold, and when they are made anew.
//! - `partitions`: P_Key tables, by the policy in force.
//! - `schedule`: when to sweep next, and why. `report`: what a sweep did.
//!
//! What is not here: what ports and tables should hold (`manage`, `routing`), who is master
//! (`mastership`), and sockets, clocks and files (`runtime`).
//!
//! [`poll_transmit`]: Sweeper::poll_transmit
//! [`handle_timeout`]: Sweeper::handle_timeout
//! [`poll_timeout`]: Sweeper::poll_timeout

mod babble;
mod configure;
mod contradiction;
mod discover;
mod doubt;
mod dump;
mod election;
mod encode;
mod fdr10;
mod guid_info;
mod handover;
mod inherit;
mod keys;
mod lanes;
mod left;
mod light;
mod multicast;
mod origin;
mod packets;
mod partitions;
mod peer;
mod qos;
mod report;
mod reregister;
mod router;
mod schedule;
mod service;
mod shard;
mod shunned;
mod sl_maps;
mod tables;
mod take_over;
mod unanswered;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::SmState;
use sa_proto::metrics::Histogram;
use tracing::{debug, trace, warn};

use crate::config::{NodeNames, QosTables, Settings};
use crate::fabric::{Fabric, NodeIndex, PortIndex};
use crate::manage::lid::LidTable;
use crate::manage::shard::TakeOver;
use crate::mastership::{Mastership, RemoteSm};
use crate::smp::{Counters, Exchange, Kind, Passed, Request, Timing};
use babble::Babblers;
use contradiction::Contradictions;
use doubt::Doubts;
pub use dump::{DumpFileKind, DumpJob, DumpScope};
use guid_info::AliasGuids;
use handover::Handover;
pub use handover::{ImportedRegistry, RegistryCopy};
pub use lanes::SlsOfPaths;
pub use left::Left;
use keys::MKeys;
use multicast::Multicast;
pub use multicast::{MulticastJob, MulticastOutcome};
pub use origin::{BalanceCheck, BalanceFinding, CORRECTION_DELAY, Origin};
use partitions::Partitioning;
pub use peer::Peer;
pub use report::{Phase, Report};
use reregister::Reregistration;
use router::Router;
pub use router::{LoopCheck, LoopFinding, RoutingJob, RoutingOutcome};
pub use schedule::Cause;
use schedule::Schedule;
use service::InService;
pub use service::PortsChanged;
pub use shard::Sharding;
use shard::Shards;
use shunned::Shunned;
use take_over::Underway;
pub use take_over::{CutPorts, Start};

/// Lines logged of one sort in one sweep; what is beyond is only counted.
const LINES_MAX: usize = 10;
/// Traps among the events that wait for the caller; more are dropped, and counted. Of all other
/// events there are a few a sweep, and none may be lost.
const TRAPS_MAX: usize = 1024;
/// Faulty ports that are tried again before long; others are when the next sweep comes by.
const FAULTS_MAX: usize = 1024;
/// Subnet managers remembered of one discovery.
const OTHERS_MAX: usize = 256;

/// Something that the caller has to know or do.
#[derive(Debug)]
pub enum Event {
    /// A discovery of the whole fabric begins: what it is to be configured by can still be changed,
    /// with [`Sweeper::set_partitions`].
    Discovering,
    /// LIDs were given out anew: keep [`Sweeper::lids`].
    LidsChanged,
    /// A sweep has ended with the fabric configured: publish it.
    Configured(Box<Report>),
    /// Multicast forwarding tables of switches, or whom end ports ask, are others now: publish them
    /// before long.
    MulticastWritten,
    /// Other ports are switched off for a takeover than before: keep [`Sweeper::cut_ports`].
    CutPortsChanged,
    /// A [`take_over`](Sweeper::take_over) has ended.
    TakenOver {
        /// Which.
        what: TakeOver,
        /// Whether the spare has the LIDs, and nobody else.
        done: bool,
    },
    /// End ports came into service or went out of it, as the sweep that has just ended found.
    PortsChanged(PortsChanged),
    /// A trap of the fabric's, a repeated one too.
    Trap(TrapNotice),
    /// Another subnet manager is master.
    StandingBy(RemoteSm),
    /// The program cannot do its work.
    Fatal(String),
}

/// A trap as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrapNotice {
    /// LID that it came from.
    pub lid: Lid,
    /// The notice, without its issuer's GID, as SMPs carry it.
    pub notice: [u8; 64],
}

/// The state machine of sweeps.
#[derive(Debug)]
pub struct Sweeper {
    settings: Settings,
    fabric: Fabric,
    exchange: Exchange,
    mastership: Mastership,
    lids: LidTable,
    schedule: Schedule,
    phase: Phase,
    /// Why the sweep under way, or the last one, was begun.
    cause: Option<Cause>,
    sweep: Sweep,
    /// Light sweeps that found nothing changed.
    quiet_sweeps: u64,
    /// Number of the last discovery, full or partial.
    number: u32,
    /// Whether no sweep as master has programmed the fabric yet.
    first_as_master: bool,
    /// Whether the subnet is up.
    up: bool,
    /// Sweeps in a row that ended with errors.
    failed_sweeps: u32,
    /// The other subnet managers that the last discovery found, and where.
    others: Vec<(PortIndex, RemoteSm)>,
    /// Subnet managers that show another SM_Key: the GUIDs of their ports, and where they are.
    strangers: Vec<(Guid, String)>,
    /// Times that one did.
    strange_answers: u64,
    /// The master we stand by for.
    master: Option<(PortIndex, Guid)>,
    /// Polls in a row that the master left unanswered.
    polls_missed: u32,
    handover: Handover,
    /// What we hold of what clients registered with the master that we stand by for.
    registry_copy: RegistryCopy,
    /// What is known of the SA database that we begin with.
    imported: ImportedRegistry,
    /// Switches that get their SL-to-VL maps singly, whatever they say of themselves.
    plain_maps: BTreeSet<NodeIndex>,
    /// Switches that do not take their forwarding tables.
    shunned: Shunned,
    /// Whether clients keep what they registered with the master before us; until our first sweep ends.
    spares_clients: bool,
    reregistration: Reregistration,
    /// When the master we stand by for last answered a poll.
    master_seen: Option<Instant>,
    /// Ports with a link behind which the last discovery found nobody.
    unanswered: Vec<PortIndex>,
    /// Ports of which the last sweep could not find out or set everything.
    faults: Vec<PortIndex>,
    partitions: Partitioning,
    router: Router,
    routing_job: Option<Box<RoutingJob>>,
    /// Whether nobody has looked for credit loops in the routing in force.
    loops_unknown: bool,
    /// Whether switches hold tables of another SM's, of which routes are to be kept.
    inherits: bool,
    /// Whether nobody has looked how good inherited routes in force are.
    balance_unknown: bool,
    /// Whether all ports are to be told which widths and speeds they may have: that has changed.
    links_forced_anew: bool,
    /// Whether the last routing looked at was free of credit loops.
    loop_free: bool,
    multicast: Multicast,
    qos_tables: QosTables,
    aliases: AliasGuids,
    shards: Shards,
    under_way: Option<Underway>,
    cut_ports: CutPorts,
    service: InService,
    routing_engine: String,
    /// Why engines that are wanted before it are not used, a line each.
    passed_over: Vec<String>,
    light_sweeps: Arc<Histogram>,
    /// The last LID that the tables lead to.
    top: Lid,
    /// Whether our own port was found down.
    cut_off: bool,
    /// Whether nobody was found behind it, though it has a link.
    secluded: bool,
    /// Sweeps in a row that were given up.
    fruitless: u32,
    m_keys: MKeys,
    /// Whether it was said what an M_Key of another subnet manager looks like.
    m_key_hinted: bool,
    /// Keeps a storm of traps from filling the log.
    trap_lines: Limit,
    babblers: Babblers,
    events: VecDeque<Event>,
    /// Traps among them.
    traps_waiting: usize,
    /// Traps that found no room among them.
    traps_dropped: u64,
}

/// So many lines an interval.
#[derive(Debug, Default)]
struct Limit {
    since: Option<Instant>,
    lines: usize,
}

impl Limit {
    const INTERVAL: Duration = Duration::from_secs(10);

    fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now >= since + Self::INTERVAL) {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.lines += 1;
        self.lines <= LINES_MAX
    }
}

/// What belongs to the sweep under way.
#[derive(Debug, Default)]
struct Sweep {
    /// Whether it walks the whole fabric.
    full: bool,
    /// Whether it is known already why it comes to nothing.
    is_fatal: bool,
    /// Whether our own port is down, so that nothing can be found out.
    cut_off: bool,
    /// Nodes that left a request without answer that they must answer.
    silent: HashSet<NodeIndex>,
    /// Nodes that left a question about a port without answer.
    quiet: HashSet<NodeIndex>,
    contradictions: Contradictions,
    doubts: Doubts,
    /// Ports with a link that is left out: it leads back to themselves, or to a duplicate.
    left_out: HashSet<PortIndex>,
    /// Nodes to be asked last, when routes avoid what turned out to be down.
    suspects: Vec<NodeIndex>,
    /// Whether a link turned out to be down that routes may use.
    routes_changed: bool,
    /// Links between switches that are gone.
    cut_links: usize,
    /// Where a light sweep saw changes.
    changed: Vec<NodeIndex>,
    /// Switches that lost what was programmed.
    reset: HashSet<NodeIndex>,
    /// Blocks of forwarding tables to be written, step by step.
    table_steps: VecDeque<Vec<Request>>,
    /// The block of multicast tables that is being read, in the first sweep as master.
    multicast_block: u16,
    /// Blocks in a row before it that no switch forwards anything by.
    multicast_gap: u16,
    /// Whether the tops of tables follow.
    tops_are_due: bool,
    /// Switches that did not take a block: what comes after it in the plan stays undone.
    unprogrammed: HashSet<NodeIndex>,
    /// Switches that took one.
    programmed: HashSet<NodeIndex>,
    /// Ports that refused a step, and whether it was that to Armed: they were asked where they are.
    read_again: HashSet<(PortIndex, bool)>,
    /// Whether there are no forwarding tables for the fabric as it is.
    unroutable: bool,
    /// Ports of which something could not be found out or set.
    faults: Vec<PortIndex>,
    /// Nodes that something was logged about.
    told: HashSet<NodeIndex>,
    /// Lines logged of errors, and of oddities.
    lines: (usize, usize),
    /// When a light sweep that saw a change ends.
    grace_ends: Option<Instant>,
    report: Report,
    /// When the phase under way began.
    phase_began: Option<Instant>,
}

impl Sweeper {
    /// A subnet manager that knows nothing of its fabric but the LIDs it once gave out. `seed`
    /// should differ from run to run; see [`Exchange::new`].
    pub fn new(settings: Settings, lids: LidTable, seed: u32) -> Self {
        let timing = Timing {
            window: settings.window(),
            timeout: Duration::from_millis(u64::from(settings.transaction_timeout)),
            long_timeout: Duration::from_millis(u64::from(settings.long_timeout())),
            retries: settings.transaction_retries,
        };
        Self {
            mastership: {
                let mut own = Mastership::new(settings.sm_priority, settings.sm_key);
                own.set_m_key(settings.m_key);
                if settings.sm_inactive {
                    own.set_state(SmState::NotActive);
                }
                own
            },
            schedule: Schedule::new(&settings),
            fabric: Fabric::default(),
            exchange: Exchange::new(timing, seed),
            lids,
            phase: Phase::Idle,
            cause: None,
            sweep: Sweep::default(),
            quiet_sweeps: 0,
            number: 0,
            first_as_master: true,
            up: false,
            failed_sweeps: 0,
            others: Vec::new(),
            strangers: Vec::new(),
            strange_answers: 0,
            master: None,
            polls_missed: 0,
            handover: Handover::default(),
            registry_copy: RegistryCopy::None,
            imported: ImportedRegistry::None,
            plain_maps: BTreeSet::new(),
            shunned: Shunned::default(),
            spares_clients: false,
            reregistration: Reregistration::default(),
            master_seen: None,
            unanswered: Vec::new(),
            faults: Vec::new(),
            partitions: Partitioning::default(),
            router: Router::new(&settings.engine_names()),
            routing_job: None,
            loops_unknown: false,
            inherits: false,
            balance_unknown: false,
            links_forced_anew: false,
            loop_free: true,
            cut_off: false,
            secluded: false,
            fruitless: 0,
            m_keys: MKeys::default(),
            m_key_hinted: false,
            trap_lines: Limit::default(),
            babblers: Babblers::default(),
            multicast: Multicast::default(),
            qos_tables: QosTables::of(&settings),
            aliases: AliasGuids::default(),
            shards: Shards::default(),
            under_way: None,
            cut_ports: CutPorts::new(),
            service: InService::default(),
            routing_engine: String::new(),
            passed_over: Vec::new(),
            light_sweeps: Arc::new(Histogram::from_millisecond()),
            top: Lid::NONE,
            events: VecDeque::new(),
            traps_waiting: 0,
            traps_dropped: 0,
            settings,
        }
    }

    /// The fabric as it is known.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// LIDs by port GUID.
    pub fn lids(&self) -> &LidTable {
        &self.lids
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes other settings in place of those in force, as far as they count while the program runs.
    /// Yields the keys that differ and would count from the start on. Best while nothing is being
    /// set, as on [`Event::Discovering`].
    pub fn follow_settings(&mut self, new: &Settings) -> Vec<&'static str> {
        let forced = |settings: &Settings| {
            let Settings { force_link_width, force_link_speed, force_link_speed_ext, .. } =
                settings;
            (*force_link_width, *force_link_speed, *force_link_speed_ext)
        };
        let before = forced(&self.settings);
        let engines = self.settings.engine_names();
        let waiting = self.settings.follow(new);
        let wanted = self.settings.engine_names();
        if wanted != engines {
            self.router.set_engines(&wanted);
        }
        self.links_forced_anew |= forced(&self.settings) != before;
        self.mastership.set_priority(self.settings.sm_priority);
        let tables = QosTables::of(&self.settings);
        if tables != self.qos_tables {
            self.lanes_changed();
            self.qos_tables = tables;
        }
        self.schedule.set_intervals(&self.settings);
        waiting
    }

    /// What operators call nodes. Before the first sweep; nodes already found keep their names.
    pub fn set_node_names(&mut self, names: NodeNames) {
        self.fabric = Fabric::with_names(Arc::new(names));
    }

    /// What is being done.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Light sweeps that found nothing changed, so far.
    pub fn quiet_sweeps(&self) -> u64 {
        self.quiet_sweeps
    }

    /// Our state among subnet managers.
    pub fn sm_state(&self) -> SmState {
        self.mastership.state()
    }

    /// Whether the subnet is up: the last sweep as master programmed all of it but for
    /// [`faults`](Self::faults).
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Takes in that the fabric is out of reach: what was found is no longer known to be so. See
    /// [`begin_anew`](Self::begin_anew) for when it is back.
    pub fn fabric_lost(&mut self) {
        self.up = false;
    }

    /// Sweeps in a row that were given up, since the fabric could not be read.
    pub fn fruitless_sweeps(&self) -> u32 {
        self.fruitless
    }

    /// Ports of which the last sweep could not find out or set everything.
    pub fn faults(&self) -> &[PortIndex] {
        &self.faults
    }

    /// Name of the routing engine that made the tables.
    pub fn routing_engine(&self) -> &str {
        &self.routing_engine
    }

    /// Why engines that are wanted before that one are not used, a line each.
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    /// SMPs sent, answered and given up so far.
    pub fn counters(&self) -> Counters {
        self.exchange.counters()
    }

    /// SMPs of a kind so far.
    pub fn passed(&self, kind: Kind) -> Passed {
        self.exchange.passed(kind)
    }

    /// How long light sweeps took so far.
    pub fn light_sweeps(&self) -> &Arc<Histogram> {
        &self.light_sweeps
    }

    /// Changes whenever all that was begun is given up. Packets of
    /// [`poll_transmit`](Self::poll_transmit) that have not left by then must not: they are orders of
    /// a master, which may be another by now.
    pub fn generation(&self) -> u64 {
        self.exchange.generation()
    }

    /// Requests that wait or are on the wire.
    pub fn outstanding(&self) -> usize {
        self.exchange.outstanding()
    }

    /// States what we hold of what clients registered with the master that we stand by for. If that
    /// is all when we take over, no client is asked to register again.
    pub fn set_registry_copy(&mut self, copy: RegistryCopy) {
        self.registry_copy = copy;
    }

    /// Changes our priority among subnet managers, 0 to 15. The next heavy sweep decides what follows
    /// from it.
    pub fn set_priority(&mut self, priority: u8) {
        self.settings.sm_priority = priority;
        self.mastership.set_priority(priority);
    }

    /// Asks for a heavy sweep as soon as none is under way.
    pub fn request_heavy_sweep(&mut self, now: Instant) {
        self.schedule.request(now, Cause::Asked);
        self.advance(now);
    }

    /// Begins anew, as at start, since the fabric was out of reach and may be another by now. Only
    /// the LIDs given out are still known, and that we are to rest, if we are.
    pub fn begin_anew(&mut self, now: Instant) {
        self.rest();
        self.fabric = Fabric::with_names(Arc::clone(self.fabric.names()));
        self.forget_routing();
        self.partitions.forget();
        self.others.clear();
        self.unanswered.clear();
        self.faults.clear();
        self.master = None;
        self.up = false;
        if self.mastership.state() != SmState::NotActive {
            self.mastership.set_state(SmState::Discovering);
        }
        self.request_heavy_sweep(now);
    }

    /// Writes the next SMP to send. `false` if there is none for now.
    pub fn poll_transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        if std::mem::take(&mut self.sweep.routes_changed) && !self.sweep.full {
            // What the routes known so far cannot reach may be reached another way.
            self.find_other_routes();
        }
        if self.write_nudge(packet) {
            return true;
        }
        while let Some(transmit) = self.exchange.poll_transmit(now) {
            let is_in_vain = self.is_in_vain(transmit.request);
            if !is_in_vain && self.encode(transmit.request, transmit.tid, packet) {
                let timeout_ms = transmit.timeout.as_millis();
                packet.address.answer_timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
                self.trace_smp("->", transmit.request);
                self.mastership.act();
                return true;
            }
            // The fabric changed since it was queued: nothing is left to be said, or not this way.
            self.exchange.cancel(transmit.tid);
            self.doubts(transmit.request);
            self.advance(now);
        }
        false
    }

    /// What has happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.traps_waiting -= usize::from(matches!(event, Event::Trap(_)));
        Some(event)
    }

    /// Traps that subscribers did not hear of, since too many came between two looks at events.
    pub fn traps_dropped(&self) -> u64 {
        self.traps_dropped
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        // What is written between sweeps keeps the next one waiting until it is answered.
        let idle = self.phase == Phase::Idle && self.exchange.is_idle();
        let scheduled = self.schedule.next().filter(|_| idle);
        let grace = self.sweep.grace_ends.filter(|_| self.phase == Phase::Light);
        let multicast = self.multicast_due().filter(|_| idle);
        let aliases = self.guid_blocks_due().filter(|_| idle);
        let clients = self.clients_due().filter(|_| idle);
        let correction = self.correction_due().filter(|_| idle);
        [self.exchange.poll_timeout(), scheduled, grace, multicast, aliases, clients, correction]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.exchange.handle_timeout(now);
        self.end_grace(now);
        self.retry_multicast(now);
        self.retry_guid_blocks(now);
        self.correct_routes(now);
        self.advance(now);
        self.ask_clients(now);
    }

    /// Ends phases that have nothing left to do, and begins what is due.
    fn advance(&mut self, now: Instant) {
        loop {
            while let Some(request) = self.exchange.poll_given_up(now) {
                self.handle_silence(now, request);
            }
            if !self.exchange.is_idle() || self.phase == Phase::Route {
                return;
            }
            if self.phase == Phase::Idle {
                self.tell_multicast();
                self.tell_shards();
                // What it found is published as the fabric stands, and so before another changes it.
                if self.events.iter().any(|event| matches!(event, Event::Configured(_))) {
                    return;
                }
                match self.schedule.take_due(now) {
                    Some(cause) => self.begin(now, cause),
                    None => return,
                }
            } else {
                self.end_phase(now);
            }
        }
    }

    fn begin(&mut self, now: Instant, cause: Cause) {
        let resting = matches!(self.mastership.state(), SmState::NotActive);
        let standby = self.mastership.state() == SmState::Standby;
        let heavy = self.settings.force_heavy_sweep;
        self.cause = Some(cause);
        match cause {
            _ if resting => {}
            Cause::Poll if standby => self.begin_poll(now),
            Cause::Poll => {}
            Cause::Timer if standby => {}
            Cause::Timer if !heavy => self.begin_light(now, cause),
            Cause::Trap | Cause::Unanswered if self.up && !heavy => self.look_again(now, cause),
            _ => self.begin_discovery(now, None, Vec::new()),
        }
    }

    fn enter(&mut self, now: Instant, phase: Phase) {
        self.sweep.phase_began = Some(now);
        self.phase = phase;
    }

    fn end_phase(&mut self, now: Instant) {
        if self.phase == Phase::Tables && self.write_tables() {
            return;
        }
        if self.phase == Phase::TakeOver {
            self.end_take_over_stage(now);
            return;
        }
        if self.phase == Phase::Discover && self.discovers_more(now) {
            return;
        }
        if let Some(began) = self.sweep.phase_began.take() {
            if self.phase == Phase::Light {
                self.light_sweeps.record(now - began, 1);
            }
            self.sweep.report.phases.push((self.phase, now - began));
        }
        match self.phase {
            Phase::Idle | Phase::TakeOver => {}
            Phase::Light => self.end_light(now),
            Phase::Discover => self.end_discovery(now),
            Phase::Elect => self.end_election(now),
            Phase::Addresses => self.begin_inheriting(now),
            Phase::Inherit => self.inherit_more(now),
            // Links must not carry what no table leads anywhere.
            Phase::Route if self.sweep.unroutable => self.end_sweep(now),
            Phase::Route => self.begin_tables(now),
            Phase::Tables => self.begin_arming(now),
            Phase::Arm if self.needs_port_tables() => self.begin_port_tables(now),
            Phase::Arm | Phase::PortTables => self.begin_activating(now),
            Phase::Activate => self.end_sweep(now),
            Phase::Poll => self.end_poll(now),
            Phase::HandOver => self.end_handover(now),
        }
    }

    /// Counts an error of the sweep that concerns `port`, which is tried again before long.
    fn fault(&mut self, port: PortIndex, text: std::fmt::Arguments<'_>) {
        let faults = &mut self.sweep.faults;
        if faults.len() < FAULTS_MAX && !faults.contains(&port) {
            faults.push(port);
        }
        if self.sweep.report.faults.len() < LINES_MAX {
            self.sweep.report.faults.push(text.to_string());
        }
        if self.is_first_about(port) {
            return self.error(text);
        }
        self.sweep.report.errors += 1;
        debug!("{text}");
    }

    /// Counts an error of the sweep, and logs it unless there were many already.
    fn error(&mut self, text: std::fmt::Arguments<'_>) {
        self.sweep.report.errors += 1;
        self.sweep.lines.0 += 1;
        match self.sweep.lines.0 {
            n if n <= LINES_MAX => warn!("{text}"),
            n if n == LINES_MAX + 1 => warn!("more errors follow; they are only counted"),
            _ => debug!("{text}"),
        }
    }

    /// Logs something odd about the fabric that does not keep the rest from working, unless there
    /// was much of that already.
    fn complain(&mut self, text: std::fmt::Arguments<'_>) {
        self.sweep.report.oddities += 1;
        self.sweep.lines.1 += 1;
        match self.sweep.lines.1 {
            n if n <= LINES_MAX => warn!("{text}"),
            n if n == LINES_MAX + 1 => warn!("more of that follows; it is only counted"),
            _ => debug!("{text}"),
        }
    }

    /// The same of something odd about one node. A node that fails leaves a dozen requests without an
    /// answer, of which the first says all there is to say.
    fn complain_of(&mut self, port: PortIndex, text: std::fmt::Arguments<'_>) {
        if self.is_first_about(port) {
            return self.complain(text);
        }
        self.sweep.report.oddities += 1;
        debug!("{text}");
    }

    /// Whether nothing was logged yet in this sweep about the node of `port`; then something is now.
    fn is_first_about(&mut self, port: PortIndex) -> bool {
        let node = self.fabric.port(port).node;
        self.sweep.told.insert(node)
    }

    /// Tells of an SMP, where all is to be told.
    fn trace_smp(&self, way: &str, request: Request) {
        if tracing::enabled!(tracing::Level::TRACE) && request.kind != Kind::OwnNodeInfo {
            let (name, block) = (request.kind.name(), request.block);
            trace!("{way} {name} block {block} of {}", self.place(request.port()));
        }
    }

    fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn emit_trap(&mut self, trap: TrapNotice) {
        if self.traps_waiting == TRAPS_MAX {
            self.traps_dropped += 1;
            return;
        }
        self.traps_waiting += 1;
        self.emit(Event::Trap(trap));
    }

    /// `port` in words, with the route to it.
    fn place(&self, port: PortIndex) -> String {
        match self.fabric.route_to(port) {
            Some(route) => format!("{} (directed route {route})", self.fabric.describe(port)),
            None => self.fabric.describe(port),
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::wire::attribute::{NodeInfo, NodeType};

    use super::*;

    /// A simulator that was gone left the subnet up for whoever asked.
    #[test]
    fn a_fabric_that_is_lost_is_not_up() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        sweeper.up = true;
        sweeper.fabric_lost();
        assert!(!sweeper.is_up());
    }

    /// Traps pushed out that a sweep had ended, and with it what was to be published.
    #[test]
    fn a_storm_of_traps_pushes_no_other_event_out() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let trap = TrapNotice { lid: Lid(1), notice: [0; 64] };
        sweeper.emit(Event::LidsChanged);
        (0..TRAPS_MAX + 10).for_each(|_| sweeper.emit_trap(trap.clone()));
        sweeper.emit(Event::MulticastWritten);
        assert!(matches!(sweeper.poll_event(), Some(Event::LidsChanged)));
        for _ in 0..TRAPS_MAX {
            assert!(matches!(sweeper.poll_event(), Some(Event::Trap(_))));
        }
        assert!(matches!(sweeper.poll_event(), Some(Event::MulticastWritten)));
        assert_eq!(sweeper.traps_dropped(), 10);
        sweeper.emit_trap(trap);
        assert!(matches!(sweeper.poll_event(), Some(Event::Trap(_))));
    }

    /// The next sweep could begin in the call that ended the one before, and paths were published
    /// with the routing forgotten.
    #[test]
    fn no_sweep_begins_before_what_the_last_one_found_is_taken() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let now = Instant::now();
        sweeper.emit(Event::Configured(Box::default()));
        sweeper.request_heavy_sweep(now);
        assert_eq!(sweeper.phase(), Phase::Idle);
        assert!(matches!(sweeper.poll_event(), Some(Event::Configured(_))));
        assert!(sweeper.poll_timeout().is_some_and(|due| due <= now));
        sweeper.handle_timeout(now);
        assert_eq!(sweeper.phase(), Phase::Discover);
        // What is given up before it is taken is not to be published.
        sweeper.emit(Event::Configured(Box::default()));
        sweeper.begin_anew(now);
        let events = std::iter::from_fn(|| sweeper.poll_event());
        assert_eq!(events.filter(|event| matches!(event, Event::Configured(_))).count(), 0);
    }

    /// Port 0 of a switch is never seen in Initialize: what it held was still taken for known.
    #[test]
    fn a_reset_switch_is_not_known_to_hold_tables_at_port_0() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let mut bytes = [0; 40];
        let mut info = NodeInfo::new(&mut bytes[..]).unwrap();
        info.set_node_type(NodeType::Switch).set_num_ports(4);
        info.set_node_guid(Guid(5)).set_port_guid(Guid(5));
        let info = NodeInfo::new(&bytes[..]).unwrap();
        let node = sweeper.fabric.add(&info, NodeType::Switch).unwrap();
        let port0 = sweeper.fabric.ports_of(node).next().unwrap();
        sweeper.fabric.port_mut(port0).qos.get_or_insert_default();
        sweeper.note_reset(node);
        assert!(sweeper.fabric.port(port0).qos.is_none());
    }
}

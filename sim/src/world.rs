//! The event loop: everything that is due, in the order of virtual time. `traffic` is what arrives
//! and what clients ask; `paths` and `statuses` what they may be answered; `processes` how
//! processes run, start, end and fail; `episode` when, and what must hold then.

mod calm;
mod episode;
mod paths;
mod processes;
mod statuses;
mod traffic;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_sim::generate::{Common, Shape, generate};
use fabric_sim::{Delivery, Fabric, NodeIndex, Options};
use ib_mad::transport::Packet;
use ib_mad::types::{Gid, Guid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::NodeType;
use ibsm::runtime::{EtcdLink, EtcdModel};
use sa_proto::snapshot::{RegistryVersion, Session, Snapshot};
use sm_config::Settings;

use crate::client::{Client, NAMED_SLOTS, PLAIN_SLOTS, SLOTS, Source};
use crate::config::{Config, Plant};
use crate::disk::Disk;
use crate::faults::{Adversary, Fault};
use crate::manager::{Manager, Setup};
use crate::net::{NetEvent, Network, Proc};
use crate::oracle::Oracle;
use crate::program::Program;
use crate::random::Random;
use crate::responder::Responder;
use crate::time::{HostClock, Timeline};
use crate::trace::Trace;
use crate::violation::Violation;
use episode::Episode;

/// How long the system may take, once faults have stopped, until the subnet is up, all responders
/// are current and every client is served.
pub const SETTLE_MAX: Duration = Duration::from_secs(90);
/// Time that a turn of a process takes: what arrives meanwhile is for the next one.
const TURN_TIME: Duration = Duration::from_micros(100);
/// Times at which clients ask, in an episode: multiples of one of these, as those of a job that
/// starts do; or whenever each wants to.
const TICKS: [Duration; 4] = [
    Duration::from_nanos(1),
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(250),
];
/// Turns of a process in a second after which it counts as one that never rests: half of those that
/// it can have.
const TURNS_MAX: usize = 5_000;
/// How long all is watched after that.
const CALM: Duration = Duration::from_secs(5);

/// What is due.
#[derive(Debug)]
enum Event {
    Net(NetEvent),
    /// A client may ask something.
    Ask(usize),
    /// A client has waited for an answer to the request with this TransactionID, sent so often.
    Late(usize, u64, u32),
    /// A process goes on, or starts again.
    Resume(Proc),
    Start(Proc),
    /// The master is killed.
    Strike,
    /// The power of a manager's host fails.
    Blackout(usize),
    /// The program may give an order.
    Order,
    /// A fault begins or ends.
    Fault,
    Repair(Fault),
}

/// A place where a process runs.
struct Place<P> {
    clock: Arc<HostClock>,
    process: Option<P>,
    is_stopped: bool,
    is_dirty: bool,
    /// When its next turn is due, as it said last, and when the last one ends.
    due: Option<Instant>,
    free_from: Option<Instant>,
    starts: u64,
    /// The session that it published in last.
    session: Option<Session>,
    /// The epoch that must be on its disk.
    saved_epoch: u64,
    /// The session in which it could acknowledge writes last.
    acknowledging: Option<Session>,
    /// Packets that arrived while it was stopped.
    queue: Vec<Packet>,
    /// Turns in the current second, which began then.
    turns: (Option<Instant>, usize),
}

impl<P> Place<P> {
    fn new(clock: Arc<HostClock>) -> Self {
        Self {
            clock,
            process: None,
            is_stopped: false,
            is_dirty: false,
            due: None,
            free_from: None,
            starts: 0,
            session: None,
            saved_epoch: 0,
            acknowledging: None,
            queue: Vec::new(),
            turns: (None, 0),
        }
    }

    fn wants_turn(&self, now: Instant) -> bool {
        self.next(now).is_some_and(|due| due <= now)
    }

    /// Begins a turn; returns whether there were so many in the last second that the process never
    /// comes to rest.
    fn begin_turn(&mut self, now: Instant) -> bool {
        self.is_dirty = false;
        self.free_from = Some(now + TURN_TIME);
        let (since, count) = &mut self.turns;
        if since.is_none_or(|since| now >= since + Duration::from_secs(1)) {
            (*since, *count) = (Some(now), 0);
        }
        *count += 1;
        *count > TURNS_MAX
    }

    /// When it has its next turn.
    fn next(&self, now: Instant) -> Option<Instant> {
        let due = if self.is_dirty { Some(now) } else { self.due };
        let due = due.filter(|_| self.process.is_some() && !self.is_stopped)?;
        Some(self.free_from.map_or(due, |from| from.max(due)))
    }
}

/// The simulated system.
pub struct World {
    /// What is simulated.
    pub config: Config,
    timeline: Arc<Timeline>,
    agenda: BinaryHeap<Entry>,
    scheduled: u64,
    random: Random,
    /// The fabric.
    pub fabric: Fabric,
    /// The management network.
    pub net: Network,
    managers: Vec<Place<Manager>>,
    setups: Vec<Setup>,
    /// The cluster that has the registry, if managers share it.
    etcd: Option<Arc<EtcdModel>>,
    /// The managers' disks.
    pub disks: Vec<Disk>,
    responders: Vec<Place<Responder>>,
    clients: Vec<Client>,
    /// The program that orders partitions.
    program: Program,
    /// The hosts that they run on.
    client_hosts: Vec<NodeIndex>,
    /// The hosts of responders with ports of their own, and those without clients, with whether
    /// they are on.
    responder_hosts: Vec<NodeIndex>,
    spares: Vec<(NodeIndex, bool)>,
    /// What fails at present.
    episode: Episode,
    /// Chooses which answers are lost.
    losses: Random,
    /// Ports of clients, for path queries.
    ports: Vec<Guid>,
    adversary: Adversary,
    /// What is known to hold.
    pub oracle: Oracle,
    /// What happened.
    pub trace: Trace,
    deliveries: Vec<Delivery>,
    /// Whether clients make up requests, and at multiples of which time.
    invents: bool,
    tick: Duration,
    /// Since when everything is current, and nothing fails that could change that.
    calm_since: Option<Instant>,
    /// When to look next whether that is so again.
    calm_due: Instant,
    /// Where answers under way come from, by TransactionID.
    sources: BTreeMap<u64, Source>,
    /// The manager that became master last, and how often another one did.
    reign: (usize, u64),
    /// Whether ports may have left the fabric since everything was settled.
    has_moved: bool,
    /// Clients' ports that have no link, and since when.
    departed: BTreeMap<Guid, Instant>,
    /// Whether the fabric was split since then, or two managers acknowledged writes at once.
    was_split: bool,
    /// When the host of a manager got its link to the fabric back last.
    joined: Option<Instant>,
    /// What masters that acknowledged had on disk, and since when, as far as standbys that are in
    /// step must have it.
    acknowledged: VecDeque<(Instant, RegistryVersion)>,
    /// Managers' hosts whose time of day was set since they booted.
    has_stepped: Vec<bool>,
    /// Snapshots that responders kept for their next start, and when they may keep another.
    kept: Vec<(Option<Arc<Snapshot>>, Instant)>,
    turns: u64,
}

struct Entry {
    at: Instant,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed: the heap yields its greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Hash of the trace.
    pub hash: u64,
    /// Events in the trace.
    pub events: u64,
    /// Virtual time.
    pub simulated: Duration,
    /// Answers with OK, with another status, and requests given up.
    pub totals: [u64; 3],
    /// Faults caused, by kind.
    pub faults: Vec<(&'static str, u64)>,
    /// The longest waits for answers while one thing failed alone, by kind.
    pub waits: Vec<(&'static str, Duration)>,
}

impl World {
    /// A system in which nothing has started.
    pub fn new(config: Config) -> Result<Self, String> {
        let net = generate(&Shape::FatTree(config.tree.clone()), &Common::default())
            .map_err(|error| error.to_string())?;
        let options = Options { seed: config.seed, ..Options::default() };
        let mut fabric = Fabric::new(&net, options);
        fabric.set_delay(None, Duration::from_micros(1)).map_err(|error| error.to_string())?;
        let hosts: Vec<_> =
            fabric.nodes().filter(|node| fabric.node(*node).node_type == NodeType::Ca).collect();
        if hosts.len() < config.managers + config.clients {
            return Err("more managers and clients than hosts".to_owned());
        }
        let timeline = Timeline::new();
        let (seed, now) = (config.seed, timeline.now());
        let clock = |host| HostClock::new(timeline.clone(), host);
        let mut random = Random::new(seed, 1);
        let spread = hosts.len() / (config.managers + config.clients);
        let place = |index: usize| hosts[index * spread.max(1)];
        let guid_of = |fabric: &Fabric, node| {
            let port = fabric.port(node, 1).ok_or("a host without a port")?;
            Ok::<_, String>(port.guid)
        };
        let model = config.etcd.then(|| EtcdModel::new(clock(200)));
        let mut setups = Vec::new();
        for index in 0..config.managers {
            // At both ends of the fabric.
            let host = hosts[index * (hosts.len() - 1) / config.managers.max(2).saturating_sub(1)];
            setups.push(Setup {
                index,
                host,
                port: guid_of(&fabric, host)?,
                settings: settings(index, &config),
                follows: (0..config.managers)
                    .filter(|other| *other != index && !config.etcd)
                    .collect(),
                sync: config.sync && !config.etcd,
                etcd: model.as_ref().map(|model| {
                    EtcdLink::new(model, Duration::from_micros(200), seed + index as u64)
                }),
                loses_writes: config.plant == Some(Plant::LostWrites),
            });
        }
        let taken: Vec<_> = setups.iter().map(|setup| setup.host).collect();
        let mut clients = Vec::new();
        let free = (0..).map(place).filter(|node| !taken.contains(node)).take(config.clients);
        let free: Vec<_> = free.collect();
        for (index, &node) in free.iter().enumerate() {
            let endpoint = fabric.attach(node, 0).map_err(|error| error.to_string())?;
            let guid = guid_of(&fabric, node)?;
            let gid = Gid::new(SUBNET_PREFIX_DEFAULT, guid);
            let mut client = Client::new(index, endpoint, guid, gid, now);
            client.slots = match config.aliases {
                true if config.creates => SLOTS,
                true => NAMED_SLOTS,
                false => PLAIN_SLOTS,
            };
            clients.push(client);
        }
        let used: BTreeSet<_> = taken.iter().chain(&free).copied().collect();
        let mut rest: Vec<_> = hosts.iter().copied().filter(|host| !used.contains(host)).collect();
        let mut responder_hosts = Vec::new();
        if config.own_ports {
            for index in 0..config.responders.min(rest.len()) {
                // In all parts of the fabric.
                responder_hosts.push(rest.remove(index * rest.len() / config.responders));
            }
            let asks_port = |client: &Client| client.index % 3 == 1;
            for client in clients.iter_mut().filter(|client| asks_port(client)) {
                client.via = Some(client.index / 3 % responder_hosts.len().max(1));
            }
        }
        let apart = (rest.len() / config.spare_hosts.max(1)).max(1);
        let spares = rest.into_iter().step_by(apart).take(config.spare_hosts);
        let spares: Vec<_> =
            spares.enumerate().map(|(index, host)| (host, !index.is_multiple_of(2))).collect();
        for (host, _) in spares.iter().filter(|(_, is_on)| !is_on) {
            fabric.node_down(now, *host).map_err(|error| error.to_string())?;
        }
        let ports: Vec<_> = clients.iter().map(|client| client.guid).collect();
        let managers = (0..config.managers).map(|index| Place::new(clock(index as u64)));
        let responders = (0..config.responders).map(|index| Place::new(clock(100 + index as u64)));
        let mut this = Self {
            agenda: BinaryHeap::new(),
            scheduled: 0,
            net: Network::new(seed),
            managers: managers.collect(),
            responders: responders.collect(),
            disks: Vec::new(),
            setups,
            etcd: model,
            program: Program::new(seed, ports.clone()),
            clients,
            client_hosts: free,
            responder_hosts,
            spares,
            episode: Episode::default(),
            losses: Random::new(seed, 4),
            ports,
            adversary: Adversary::new(seed),
            oracle: Oracle::default(),
            trace: Trace::new(config.prints),
            deliveries: Vec::new(),
            invents: true,
            tick: TICKS[0],
            calm_since: None,
            calm_due: now,
            sources: BTreeMap::new(),
            reign: (0, 0),
            has_moved: false,
            departed: BTreeMap::new(),
            was_split: false,
            joined: None,
            acknowledged: VecDeque::new(),
            has_stepped: vec![false; config.managers],
            kept: vec![(None, now); config.responders],
            turns: 0,
            fabric,
            timeline,
            random: random.clone(),
            config,
        };
        let syncs = this.config.plant != Some(Plant::NoSync);
        // So that the log is folded often in some runs, and hardly ever in others.
        let is_shared = this.config.etcd;
        let clocks = this.managers.iter().map(|place| place.clock.clone());
        let disks = clocks.map(|clock| {
            let disk = Disk::new(syncs, 512 << random.below(12), clock);
            if is_shared {
                disk.set_beside_shared_store();
            }
            disk
        });
        this.disks = disks.collect();
        for index in 0..this.config.managers {
            this.schedule(
                now + Duration::from_millis(index as u64 * 300),
                Event::Start(Proc::Manager(index)),
            );
        }
        for index in 0..this.config.responders {
            this.schedule(now + Duration::from_millis(100), Event::Start(Proc::Responder(index)));
        }
        for index in 0..this.config.clients {
            let first = random.between(Duration::ZERO, Duration::from_secs(2));
            this.schedule(now + first, Event::Ask(index));
        }
        if this.config.orders {
            this.schedule(now + Duration::from_secs(1), Event::Order);
        }
        Ok(this)
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.timeline.now()
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.timeline.elapsed()
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.agenda.push(Entry { at, number: self.scheduled, event });
    }

    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        let at = self.elapsed();
        self.trace.line(at, text);
    }

    /// What happened so far.
    pub fn summary(&self) -> Summary {
        let mut totals = [0; 3];
        for client in &self.clients {
            for (total, of_client) in totals.iter_mut().zip(client.totals) {
                *total += of_client;
            }
        }
        Summary {
            hash: self.trace.hash(),
            events: self.trace.count(),
            simulated: self.elapsed(),
            totals,
            faults: self.adversary.caused(),
            waits: self.oracle.waits(),
        }
    }

    /// The state of all processes, for people.
    pub fn describe(&self) -> Vec<String> {
        let managers = self.managers.iter().enumerate().map(|(index, place)| {
            let state = place.process.as_ref().map_or("down".to_owned(), Manager::describe);
            format!("manager {index}: {state}")
        });
        let responders = self.responders.iter().enumerate().map(|(index, place)| {
            let state = place.process.as_ref().map_or("down".to_owned(), Responder::describe);
            format!("responder {index}: {state}")
        });
        managers.chain(responders).collect()
    }

    fn running(&self) -> impl Iterator<Item = &Manager> {
        self.managers.iter().filter_map(|place| place.process.as_ref())
    }

    fn run_until(
        &mut self,
        end: Instant,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Violation> {
        while self.now() < end && !done(self) {
            self.step(end)?;
        }
        Ok(())
    }

    /// Everything that is due at the next instant.
    fn step(&mut self, end: Instant) -> Result<(), Violation> {
        let now = self.now();
        let due = [self.agenda.peek().map(|entry| entry.at), self.fabric.poll_timeout(now)];
        let managers = self.managers.iter().filter_map(|place| place.next(now));
        let responders = self.responders.iter().filter_map(|place| place.next(now));
        let due = due.into_iter().flatten().chain(managers).chain(responders).min();
        self.timeline.advance_to(due.unwrap_or(end).min(end));
        let now = self.now();
        while self.agenda.peek().is_some_and(|entry| entry.at <= now) {
            let Some(entry) = self.agenda.pop() else { break };
            self.handle(entry.event)?;
            self.collect_net();
        }
        let mut deliveries = std::mem::take(&mut self.deliveries);
        self.fabric.poll(now, &mut deliveries, usize::MAX);
        for delivery in deliveries.drain(..) {
            self.deliver(delivery)?;
        }
        self.deliveries = deliveries;
        while let Some((node, number)) = self.fabric.poll_reregistration() {
            if self.config.plant == Some(Plant::DeafClients) {
                continue;
            }
            let guid = self.fabric.port(node, number).map(|port| port.guid);
            let client = self.clients.iter().position(|client| Some(client.guid) == guid);
            if let Some(client) = client {
                self.check_request(client)?;
                self.clients[client].handle_reregister(now);
            }
        }
        for index in 0..self.managers.len() {
            if self.managers[index].wants_turn(now) {
                self.turn_manager(index)?;
            }
        }
        for index in 0..self.responders.len() {
            if self.responders[index].wants_turn(now) {
                self.turn_responder(index)?;
            }
        }
        self.collect_net();
        self.look_for_calm();
        Ok(())
    }

    fn collect_net(&mut self) {
        for (at, event) in self.net.take_events() {
            self.schedule(at, Event::Net(event));
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Net(NetEvent::Datagram(to, packet)) => self.handle_datagram(to, *packet),
            Event::Net(event) => self.handle_net(event),
            Event::Ask(client) => self.ask(client),
            Event::Late(client, tid, tries) => self.late(client, tid, tries)?,
            Event::Resume(process) => self.resume(process),
            Event::Start(process) => self.start(process)?,
            Event::Strike => self.strike(),
            Event::Blackout(index) => self.black_out(index),
            Event::Order => self.order(),
            Event::Fault => {
                self.fault();
                self.note_departures();
            }
            Event::Repair(fault) => {
                self.repair(&fault);
                self.note_departures();
            }
        }
        Ok(())
    }

    fn is_running(&self, process: Proc) -> bool {
        match process {
            Proc::Manager(index) => self.managers[index].process.is_some(),
            Proc::Responder(index) => self.responders[index].process.is_some(),
        }
    }

    /// Whether packets wait at the port of a manager, and in its sockets.
    fn takes_no_packets(&self, index: usize) -> bool {
        let place = &self.managers[index];
        place.is_stopped || place.process.as_ref().is_some_and(Manager::hangs)
    }

    fn is_stopped(&self, process: Proc) -> bool {
        match process {
            Proc::Manager(index) => self.managers[index].is_stopped,
            Proc::Responder(index) => self.responders[index].is_stopped,
        }
    }
}

fn settings(index: usize, config: &Config) -> Settings {
    let seed = config.seed;
    Settings {
        m_key: if config.m_keys { 0x1000 + index as u64 } else { 0 },
        m_key_protection_level: if config.m_keys { 2 } else { 0 },
        sweep_interval: 5,
        // Seconds without a master, or hardly any.
        sminfo_polling_timeout: [1000, 500, 250][seed as usize % 3],
        sm_priority: if index == 0 { 5 } else { 3 },
        ..Settings::default()
    }
}

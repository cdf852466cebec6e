//! A subnet manager: its node, its registry, its publisher and the feeds that it follows, driven as
//! `ibsm`'s threads drive them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_sim::{Endpoint, Fabric, NodeIndex};
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::SmState;
use ibsm::cli::SaAccess;
use ibsm::clock::Clock;
use ibsm::front_door::AnnouncedDoor;
use ibsm::node::{
    Action, Contents, FilesRead, Job, LIDS, M_KEYS, NEIGHBOURS, NewSession, Node, NodeParts,
    SavedState, StateWrite, SuccessionCounters, WriteOutcome,
};
use ibsm::publish::{FeedEnd, Publisher, Subscription};
use ibsm::runtime::EtcdLink;
use ibsm::runtime::copies::CopyExchange;
use ibsm::runtime::follow::{self, Output, Progress, Stream};
use ibsm::runtime::registry::{
    Given, Next, OrderFailure, RegistryHandle, RegistrySetup, RegistryThread, SaDumpFile, WasRead,
    WriteStream,
};
use sa_proto::proto::registry::{Outcome, Outcomes};
use sa_proto::proto::snapshot::from_responder::Message as Report;
use sa_proto::snapshot::{Checksum, HistoryLimits, RegistryPlane, RegistryVersion, Version};
use sa_proto::state::StateVersion;
use sm_config::{Settings, SitePolicy};
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};
use sm_core::registry::PartitionOrder;
use sm_core::sweep::{DisabledPorts, Origin, Phase, Sweeper, TableFingerprint};

use crate::disk::Disk;
use crate::net::{ConnId, Kind, Message, Network, Proc};
use crate::random::Random;
use crate::time::HostClock;
use crate::violation::{Stored, Violation};

/// Turns at one instant after which a manager that always has more to do counts as stuck.
const TURNS_MAX: usize = 1000;
/// How long the start waits for the registry and then for what else other managers left in etcd, as
/// that of `ibsm`.
const STATE_PATIENCE: Duration = Duration::from_secs(5 + 3);
/// How often a store in etcd is polled.
const STORE_INTERVAL: Duration = Duration::from_millis(5);

/// What a manager is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its number.
    pub index: usize,
    /// The host that it runs on, and the GUID of the port there.
    pub host: NodeIndex,
    /// See [`host`](Self::host).
    pub port: Guid,
    /// Its settings.
    pub settings: Settings,
    /// The numbers of the managers that it follows.
    pub follows: Vec<usize>,
    /// Whether writes wait for standbys that are in step.
    pub sync: bool,
    /// See [`Plant::LostWrites`](crate::config::Plant::LostWrites).
    pub loses_writes: bool,
    /// The way to etcd, if the registry is there.
    pub etcd: Option<EtcdLink>,
}

/// A running subnet manager.
pub struct Manager {
    setup: Setup,
    clock: Arc<HostClock>,
    disk: Disk,
    endpoint: Endpoint,
    publisher: Arc<Publisher>,
    registry: Arc<RegistryHandle>,
    thread: RegistryThread,
    /// When the registry's thread may work again.
    thread_from: Instant,
    /// When a store in etcd is to be polled.
    store_due: Option<Instant>,
    /// Until it has read what others left in etcd it does nothing else, for a limited time; packets
    /// wait at its port.
    awaits: Option<(WasRead, Instant)>,
    early: Vec<Packet>,
    node: Node,
    /// Whether its service loop hangs, which drives the node.
    hangs: bool,
    progress: Arc<Progress>,
    copies: CopyExchange,
    feeds: BTreeMap<ConnId, Subscription>,
    writes: BTreeMap<ConnId, WriteStream>,
    /// The feeds followed: the manager, the machine and the connection.
    follows: Vec<(usize, Stream, Option<ConnId>)>,
    /// What was on disk of the master's registry and state, and what this manager had published
    /// when it stopped acknowledging, when followed managers were notified.
    stored: (Version, StateVersion, Option<(Version, u64)>),
    jobs: Vec<(Instant, Job)>,
    random: Random,
    /// The highest version that it reported as stored to managers that it follows.
    pub reported: RegistryVersion,
    /// Versions published, for the oracle.
    pub published: Vec<(Version, Checksum)>,
    last_published: Version,
}

/// What a manager acts on.
pub struct Around<'a> {
    /// The fabric.
    pub fabric: &'a mut Fabric,
    /// The management network.
    pub net: &'a mut Network,
}

impl Manager {
    /// Starts a manager with what its disk holds. Fails with the reason if it cannot start.
    pub fn start(
        setup: Setup,
        clock: Arc<HostClock>,
        disk: Disk,
        mut random: Random,
        fabric: &mut Fabric,
    ) -> Result<Self, String> {
        let now = clock.now();
        let publisher = Arc::new(Publisher::in_process(
            clock.clone(),
            Box::new(disk.clone()),
            HistoryLimits::default(),
        ));
        let address = Proc::Manager(setup.index).address().to_string();
        publisher.set_front_door(AnnouncedDoor { address, token: 0 });
        if setup.sync {
            publisher.sync_followers().enable();
        }
        let progress = Arc::new(Progress::default());
        let registry = RegistrySetup::new(0).map_err(|error| error.to_string())?;
        let dump = SaDumpFile::default();
        let opened = match &setup.etcd {
            Some(link) => {
                let (link, process) = (link.clone(), random.draw());
                let publisher = publisher.clone();
                registry.open_in_model(link, process, &progress, publisher, dump).map(
                    |(handle, thread, was_read)| {
                        (handle, thread, Some((was_read, now + STATE_PATIENCE)))
                    },
                )
            }
            None => registry
                .open_on(Arc::new(disk.clone()), publisher.clone(), dump)
                .map(|(handle, thread)| (handle, thread, None)),
        };
        let (registry, thread, awaits) = opened.map_err(|error| error.to_string())?;
        let registry = Arc::new(registry);
        if !setup.follows.is_empty() {
            registry.keep_copy(&progress);
        }
        let endpoint = fabric.attach(setup.host, 0).map_err(|error| error.to_string())?;
        fabric.set_takes_requests(endpoint, true);
        fabric.set_is_sm(now, endpoint, true);
        let seed = random.draw() as u32;
        let node = node(&setup, &disk, &publisher, &registry, (now, seed))?;
        let follows = setup.follows.iter().map(|&other| {
            let name = format!("standby {}", setup.index);
            let greeting = follow::greeting(1000 + setup.index as u64, name, setup.port, false);
            (other, Stream::new(now, format!("sm{other}"), greeting), None)
        });
        Ok(Self {
            follows: follows.collect(),
            endpoint,
            publisher,
            registry,
            thread,
            thread_from: now,
            store_due: setup.etcd.is_some().then_some(now),
            awaits,
            early: Vec::new(),
            node,
            hangs: false,
            progress,
            copies: CopyExchange::default(),
            feeds: BTreeMap::new(),
            writes: BTreeMap::new(),
            stored: (Version::NONE, StateVersion::default(), None),
            jobs: Vec::new(),
            random,
            reported: RegistryVersion::default(),
            published: Vec::new(),
            last_published: Version::NONE,
            setup,
            clock,
            disk,
        })
    }

    fn id(&self) -> Proc {
        Proc::Manager(self.setup.index)
    }

    /// Its port on the fabric.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Whether it has a publishing session: it acts as the master.
    pub fn is_publishing(&self) -> bool {
        self.publisher.session().is_some()
    }

    /// Whether it is master, the subnet is up and no sweep is under way.
    pub fn is_up(&self) -> bool {
        let sweeper = self.node.sweeper();
        self.is_publishing() && sweeper.is_up() && sweeper.phase() == Phase::Idle
    }

    /// The version published last.
    pub fn version(&self) -> Version {
        self.publisher.version()
    }

    /// What is registered and published.
    pub fn plane(&self) -> Arc<RegistryPlane> {
        self.registry.plane()
    }

    /// The registry that it has on disk; `None` while that cannot be read.
    pub fn stored(&self) -> Option<Stored> {
        Some((self.registry.held(), self.thread.rows()?))
    }

    /// Whether it counts as in step with the master that it follows.
    pub fn is_in_step(&mut self) -> bool {
        let status = self.node.status(self.clock.now(), 0, Vec::new());
        status.copy.is_some_and(|copy| copy.in_step)
    }

    /// Whether it may acknowledge writes.
    pub fn acknowledges(&self) -> bool {
        self.is_publishing() && self.thread.acknowledges(self.clock.now())
    }

    /// Whether it is master, or takes itself for it.
    pub fn is_master(&self) -> bool {
        self.node.sweeper().sm_state() == SmState::Master
    }

    /// Internal errors of its registry.
    pub fn panics(&self) -> u64 {
        self.thread.panics()
    }

    /// The version of [`stored`](Self::stored).
    pub fn held(&self) -> RegistryVersion {
        self.registry.held()
    }

    /// Totals of handovers and takeovers.
    pub fn succession(&self) -> SuccessionCounters {
        self.node.succession()
    }

    /// State for people.
    pub fn describe(&self) -> String {
        let sweeper = self.node.sweeper();
        format!(
            "{:?} session {:?} phase {} up {} version {} held {:?} {:?}; {}",
            sweeper.sm_state(),
            self.publisher.session().map(|session| session.epoch),
            sweeper.phase(),
            sweeper.is_up(),
            self.version(),
            self.registry.held(),
            self.node.succession(),
            self.thread.describe(self.clock.now()),
        )
    }

    /// An operator requests a sweep.
    pub fn order(&mut self, orders: ibsm::publish::Orders) {
        let now = self.clock.now();
        self.node.handle_orders(now, orders);
    }

    /// A program orders a partition.
    pub fn order_partition(&self, order: PartitionOrder) -> Result<Given, OrderFailure> {
        self.registry.desk().submit(order)
    }

    /// Makes its service loop hang, or go on.
    pub fn set_hangs(&mut self, hangs: bool) {
        self.hangs = hangs;
    }

    /// Whether its service loop hangs; packets wait in its sockets.
    pub fn hangs(&self) -> bool {
        self.hangs
    }

    /// A client asks for a connection.
    pub fn handle_asks(&mut self, net: &mut Network, id: ConnId, kind: Kind) {
        let now = self.clock.now();
        match kind {
            Kind::Feed | Kind::Follow => {
                self.feeds.insert(id, self.publisher.subscribe(None));
            }
            Kind::Writes => match self.registry.open_writes() {
                Some(stream) => _ = self.writes.insert(id, stream),
                None => return net.refuse(now, id),
            },
        }
        net.accept(now, id);
    }

    /// Takes a message of a connection.
    pub fn handle_message(&mut self, net: &mut Network, id: ConnId, message: Message) {
        let now = self.clock.now();
        let follow = self.follows.iter_mut().find(|(_, _, conn)| *conn == Some(id));
        match (message, follow) {
            (Message::Accepted, Some((_, stream, _))) => stream.handle_connected(&self.progress),
            (Message::FromSm(messages), Some((_, stream, _))) => {
                for message in messages {
                    stream.handle_message(message, &self.progress);
                }
            }
            (Message::Closed, Some((_, stream, conn))) => {
                *conn = None;
                stream.handle_disconnected(now, "closed".to_owned(), &self.progress);
            }
            (Message::FromResponder(message), _) => {
                let Some(feed) = self.feeds.get_mut(&id) else { return };
                if let Err(end) = feed.handle_message(now, *message) {
                    self.end_feed(net, id, &end);
                }
            }
            (Message::Writes(mut writes), _) => {
                if self.setup.loses_writes
                    && writes.writes.last().is_some_and(|write| !write.mad.is_empty())
                    && self.random.one_in(100)
                    && let Some(write) = writes.writes.pop()
                {
                    let Version { session, registry_sequence, .. } = self.publisher.version();
                    let (epoch, sequence) = (session.epoch, registry_sequence);
                    let outcome = Outcome { id: write.id, epoch, sequence, ..Outcome::default() };
                    let outcomes = Outcomes { outcomes: vec![outcome] };
                    net.send(now, id, self.id(), Message::Outcomes(outcomes));
                }
                let Some(stream) = self.writes.get_mut(&id) else { return };
                if stream.handle_message(writes).is_err() {
                    self.writes.remove(&id);
                    net.close(now, id, self.id());
                }
            }
            (Message::Closed, _) => {
                self.writes.remove(&id);
                if let Some(mut feed) = self.feeds.remove(&id) {
                    feed.handle_end(&FeedEnd::Left("the connection broke".to_owned()));
                }
            }
            (Message::Accepted | Message::FromSm(_) | Message::Outcomes(_), _) => {}
        }
    }

    fn end_feed(&mut self, net: &mut Network, id: ConnId, end: &FeedEnd) {
        if let Some(mut feed) = self.feeds.remove(&id) {
            feed.handle_end(end);
        }
        net.close(self.clock.now(), id, self.id());
    }

    /// Takes a packet of the fabric.
    pub fn handle_packet(&mut self, packet: &mut Packet) {
        match self.awaits {
            Some(_) => self.early.push(packet.clone()),
            None => self.node.handle_packet(self.clock.now(), packet),
        }
    }

    /// Takes a packet of a responder.
    pub fn handle_datagram(&mut self, packet: &mut Packet) {
        self.node.handle_response(self.clock.now(), packet);
    }

    /// Does all that is to be done now. After this the disk may have killed or stopped the process;
    /// then nothing that it did since has left it. Fails if there is always more to do.
    pub fn turn(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        for _ in 0..TURNS_MAX {
            let now = self.clock.now();
            let mut busy = self.step_registry(now);
            if self.disk.is_killed() || self.disk.is_stopped() {
                return Ok(());
            }
            if let Some((was_read, until)) = &self.awaits {
                let is_read = was_read() && self.thread.rows().is_some();
                if !is_read && now < *until {
                    return Ok(());
                }
                self.awaits = None;
                for mut packet in std::mem::take(&mut self.early) {
                    self.node.handle_packet(now, &mut packet);
                }
            }
            if !self.hangs {
                let Some(more) = self.turn_node(now, around) else { break };
                busy |= more;
            }
            self.note_published();
            busy |= self.serve_feeds(now, around.net);
            self.serve_writes(now, around.net);
            busy |= self.follow(now, around.net);
            if !busy {
                return Ok(());
            }
        }
        Err(Violation(format!("manager {} never comes to rest", self.setup.index)))
    }

    /// A turn of the service loop; returns whether there is more to do, or `None` if there always
    /// is.
    fn turn_node(&mut self, now: Instant, around: &mut Around<'_>) -> Option<bool> {
        self.registry.note_turn();
        let followed = self.copies.exchange(&self.publisher, &self.registry, &self.progress);
        self.node.handle_followed(followed);
        let mut busy = self.run_jobs(now);
        busy |= self.node.handle_timeout(now);
        self.transmit(now, around);
        let mut actions = 0;
        while let Some(action) = self.node.poll_action(now) {
            if actions == TURNS_MAX {
                return None;
            }
            (busy, actions) = (true, actions + 1);
            self.act(now, action);
        }
        self.progress.state_stored(self.node.stored_state());
        self.progress.set_ended(self.node.ended());
        self.progress.set_sealed(self.node.sealed());
        Some(busy | self.node.has_events())
    }

    fn step_registry(&mut self, now: Instant) -> bool {
        let is_due = self.thread.has_work(now)
            || self.thread.poll_timeout(now) <= now
            || self.store_due.is_some_and(|due| due <= now);
        if now < self.thread_from || !is_due {
            return false;
        }
        self.store_due = self.store_due.map(|_| now + STORE_INTERVAL);
        if let Next::Gather(time) = self.thread.step(now) {
            self.thread_from = now + time;
        }
        self.note_published();
        true
    }

    /// Runs jobs whose time is up, as the threads for long work would.
    fn run_jobs(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(at) = self.jobs.iter().position(|(due, _)| *due <= now) {
            let (_, job) = self.jobs.remove(at);
            self.node.handle_job(now, job.run());
            any = true;
        }
        any
    }

    fn transmit(&mut self, now: Instant, around: &mut Around<'_>) {
        loop {
            let packets = self.node.poll_transmit(now);
            let count = packets.len();
            if count == 0 {
                break;
            }
            packets.iter().for_each(|packet| around.fabric.send(now, self.endpoint, packet));
            self.node.handle_transmitted(count);
        }
        let me = self.id();
        loop {
            let packets = self.node.poll_forward();
            let count = packets.len();
            if count == 0 {
                break;
            }
            packets.iter().for_each(|packet| around.net.send_datagram(now, me, packet));
            self.node.handle_forwarded(count);
        }
    }

    fn act(&mut self, now: Instant, action: Action) {
        match action {
            Action::ReadFiles { lids } => {
                let (policy, reading) = self.node.policy().reload(self.node.settings(), &absent);
                let lids = lids.then(|| Ok(lids_of(&self.disk)));
                let time = String::new();
                self.node.handle_files(now, FilesRead { policy, reading, lids, time });
            }
            Action::BeginSession(new) => {
                let result = match new {
                    NewSession::Master(sm_guid) => self.publisher.begin_session(sm_guid),
                    NewSession::Above => self.publisher.renew(),
                };
                self.node.handle_session(now, result);
            }
            Action::Run(job) => {
                let time =
                    self.random.between(Duration::from_micros(200), Duration::from_millis(20));
                self.jobs.push((now + time, job));
            }
            Action::Write(write) => {
                let outcome = match self.write(&write) {
                    Ok(()) => WriteOutcome::Done(write),
                    Err(error) => WriteOutcome::Failed(write, error.into()),
                };
                self.node.handle_written(now, outcome);
            }
            Action::Dump(_) => self.node.handle_dumped(Ok(())),
            Action::RefreshPort | Action::NoteSweep { .. } | Action::Note(_) => {}
            Action::Report => _ = self.node.status(now, 0, Vec::new()),
        }
    }

    /// Changes a file of the state directory.
    fn write(&self, write: &StateWrite) -> std::io::Result<()> {
        match write.contents() {
            Contents::Followed(name, text) => {
                let written = self.disk.replace(name, Some(text.clone()), true);
                // As `ibsm` does: standbys get it even if it cannot be written here.
                self.publisher.state_board().set_file(name, text);
                written
            }
            Contents::Text(name, text) => self.disk.replace(name, Some(text), true),
            Contents::Removed(name) => self.disk.replace(name, None, false),
            // It does not follow operators' files, of which there are none.
            Contents::MasterFiles(_) => Ok(()),
        }
    }

    fn note_published(&mut self) {
        let version = self.publisher.version();
        if version != self.last_published {
            self.last_published = version;
            let checksum = self.publisher.reader().current().checksum();
            self.published.push((version, checksum));
        }
    }

    fn serve_feeds(&mut self, now: Instant, net: &mut Network) -> bool {
        let me = self.id();
        let mut busy = false;
        let ids: Vec<_> = self.feeds.keys().copied().collect();
        for id in ids {
            let Some(feed) = self.feeds.get_mut(&id) else { continue };
            feed.handle_changes(now);
            if feed.poll_timeout(now).is_some_and(|due| due <= now)
                && let Err(end) = feed.handle_timeout(now)
            {
                self.end_feed(net, id, &end);
                continue;
            }
            while feed.has_output() && net.has_room(id, me) {
                busy = true;
                net.send(now, id, me, Message::FromSm(feed.poll_transmit(now)));
                feed.handle_changes(now);
            }
        }
        busy
    }

    fn serve_writes(&mut self, now: Instant, net: &mut Network) {
        let me = self.id();
        let mut ended = Vec::new();
        for (&id, stream) in &mut self.writes {
            while let Some(outcomes) = stream.poll_outcomes() {
                net.send(now, id, me, Message::Outcomes(outcomes));
            }
            if !stream.is_open() {
                ended.push(id);
            }
        }
        for id in ended {
            self.writes.remove(&id);
            net.close(now, id, me);
        }
    }

    fn follow(&mut self, now: Instant, net: &mut Network) -> bool {
        let me = self.id();
        let mut busy = false;
        let progress = &self.progress;
        let stored = (progress.last_stored(), progress.last_state(), progress.sealed());
        let news = stored != self.stored;
        self.stored = stored;
        for (other, stream, conn) in &mut self.follows {
            if stream.poll_connect(now) {
                *conn = Some(net.connect(now, Kind::Follow, me, Proc::Manager(*other)));
            }
            if news {
                stream.handle_stored(&self.progress);
            }
            let Some(id) = *conn else { continue };
            while let Some(output) = stream.poll_output() {
                busy = true;
                match output {
                    Output::News => self.registry.followed_changed(),
                    Output::Send(message) => {
                        net.send(now, id, me, Message::FromResponder(message));
                    }
                    Output::Close(reason) => {
                        net.close(now, id, me);
                        *conn = None;
                        stream.handle_disconnected(now, reason, &self.progress);
                    }
                }
            }
            if stream.has_holding()
                && net.has_room(id, me)
                && let Some(message) = stream.holding(now, &self.progress)
            {
                if let Some(Report::Holding(holding)) = &message.message
                    && let Ok(version) = Version::try_from(holding.version)
                {
                    self.reported = self.reported.max(version.registry());
                }
                net.send(now, id, me, Message::FromResponder(Box::new(message)));
            }
        }
        busy
    }

    /// When [`turn`](Self::turn) is due.
    pub fn due(&mut self) -> Option<Instant> {
        self.deadlines().filter_map(|(_, due)| due).min()
    }

    /// What is due now, for people.
    pub fn due_parts(&mut self) -> Vec<&'static str> {
        let now = self.clock.now();
        let due = self.deadlines().filter(|(_, due)| due.is_some_and(|due| due <= now));
        due.map(|(name, _)| name).collect()
    }

    fn deadlines(&mut self) -> impl Iterator<Item = (&'static str, Option<Instant>)> {
        let (now, node) = (self.clock.now(), self.node.poll_timeout());
        let has_work = self.thread.has_work(now);
        let timer = self.thread.poll_timeout(now).max(self.thread_from);
        let work = has_work.then_some(now.max(self.thread_from));
        let feeds = self.feeds.values().map(move |feed| ("a feed", feed.poll_timeout(now)));
        let follows =
            self.follows.iter().map(|(_, stream, _)| ("a followed feed", stream.poll_timeout()));
        let jobs = self.jobs.iter().map(|(due, _)| ("a job", Some(*due)));
        let own = [
            ("the registry's work", work),
            ("the registry's timer", Some(timer)),
            ("the node", node),
            ("the store", self.store_due.map(|due| due.max(self.thread_from))),
        ];
        // Nothing else is looked at while it awaits etcd.
        let waits = self.awaits.is_some() || self.hangs;
        let own = own.into_iter().filter(move |(name, _)| !waits || *name != "the node");
        own.chain(feeds).chain(follows).chain(jobs.filter(move |_| !waits))
    }
}

fn node(
    setup: &Setup,
    disk: &Disk,
    publisher: &Arc<Publisher>,
    registry: &Arc<RegistryHandle>,
    (now, seed): (Instant, u32),
) -> Result<Node, String> {
    let settings = setup.settings.clone();
    let (policy, _) =
        SitePolicy::load(&settings, &absent).map_err(|error| format!("policy: {error}"))?;
    let text = |name| disk.read(name).unwrap_or_default();
    let mut sweeper = Sweeper::new(settings.clone(), lids_of(disk), seed);
    let (m_keys, _) = MKeyTable::parse(&text(M_KEYS));
    let (neighbours, _) = Neighbours::parse(&text(NEIGHBOURS));
    let neighbours = Arc::new(neighbours);
    let board = publisher.state_board();
    board.set_file(LIDS, sweeper.lids().render());
    board.set_file(M_KEYS, m_keys.render());
    board.set_file(NEIGHBOURS, neighbours.render());
    let origin = Origin::parse(&text("routing"));
    let saved = SavedState {
        m_keys: m_keys.clone(),
        neighbours: neighbours.clone(),
        origin: origin.clone(),
    };
    sweeper.set_origin(origin);
    let is_whole =
        |left: &TableFingerprint| registry.stored().is_some_and(|stored| stored >= left.registry);
    sweeper.set_fingerprint(TableFingerprint::parse(&text("tables")).filter(is_whole));
    // As `ibsm` does: until the tables are compared, no further run may use it.
    disk.replace("tables", None, false).map_err(|error| error.to_string())?;
    sweeper.set_m_keys(m_keys, neighbours);
    sweeper.set_own_port(setup.port);
    sweeper.set_disabled_ports(disabled_ports(&text("cut-ports")));
    Ok(Node::new(
        now,
        NodeParts {
            settings,
            policy,
            remarks: Vec::new(),
            access: SaAccess::default(),
            once: false,
            follows: !setup.follows.is_empty(),
            follows_config: false,
            shares: setup.etcd.is_some(),
            responder_command: String::new(),
            sweeper,
            saved,
            responders: publisher.responders(),
            feed: publisher.clone(),
            registry: registry.clone(),
        },
    ))
}

fn lids_of(disk: &Disk) -> LidTable {
    LidTable::parse(&disk.read(LIDS).unwrap_or_default()).0
}

fn disabled_ports(text: &str) -> DisabledPorts {
    let port = |line: &str| {
        let (guid, num) = line.split_once(' ')?;
        Some((guid.parse().ok()?, PortNum(num.trim().parse().ok()?)))
    };
    text.lines().filter_map(port).collect()
}

/// There are no operators' files.
fn absent(_: &std::path::Path, _: u64) -> std::io::Result<Vec<u8>> {
    Err(std::io::ErrorKind::NotFound.into())
}

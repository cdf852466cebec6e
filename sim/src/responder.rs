//! A responder: its replica of the snapshot, its tables, its forwarding of writes and one worker,
//! driven as `ibsa`'s tasks and threads drive them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fabric_sim::{Endpoint, Fabric, NodeIndex};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::{Guid, Qpn};
use ib_mad::wire::sa::SaMad;
use ibsm::clock::Clock;
use sa_proto::proto::snapshot::PortUse;
use sa_proto::snapshot::{Snapshot, Version};
use sa_server::host::placement::Builders;
use sa_server::runtime::Builder;
use sa_server::serve::responder::ResponderConfig;
use sa_server::serve::worker::{Next, Worker, WorkerConfig};
use sa_server::sm::forward::{Exchange, Forwarder, Forwarding};
use sa_server::sm::peers::Peers;
use sa_server::sm::replica::machine::{Machine, Output};
use sa_server::sm::replica::{Change, Identity, ReplicaStatus, SESSIONS_MAX, greeting, replies};
use sa_server::stats::Stats;
use sa_server::tables::cell::Publisher;

use crate::client::TID_MASK;
use crate::manager::Around;
use crate::net::{ConnId, Kind, Message, Network, Proc};
use crate::random::Random;
use crate::time::HostClock;
use crate::violation::Violation;

/// Time until a broken connection is opened again, at least and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));
/// How often sessions whose managers are gone are looked at.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Turns at one instant after which a responder that always has more to do counts as stuck.
const TURNS_MAX: usize = 1000;

/// The transport of a worker: two queues. A read may end before the batch is full or all that
/// waits is read, as with sockets.
#[derive(Clone, Debug, Default)]
struct Queues {
    both: Arc<Mutex<(VecDeque<Packet>, Vec<Packet>)>>,
    /// Selects how many packets a read yields.
    dice: u64,
}

impl Queues {
    fn with<T>(&self, act: impl FnOnce(&mut (VecDeque<Packet>, Vec<Packet>)) -> T) -> T {
        act(&mut self.both.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Transport for Queues {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let most = 1 + (self.dice >> 33) as usize % batch.len().max(1);
        Ok(self.with(|(arrived, _)| {
            let count = most.min(batch.len()).min(arrived.len());
            for (place, packet) in batch.iter_mut().zip(arrived.drain(..count)) {
                *place = packet;
            }
            count
        }))
    }

    fn is_drained(&self) -> bool {
        self.with(|(arrived, _)| arrived.is_empty())
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.with(|(_, left)| left.extend_from_slice(batch));
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A link to a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// The next attempt is due then.
    Waiting(Instant),
    Connecting(ConnId),
    Open(ConnId),
}

/// Writes to the manager followed in one lane.
struct Lane {
    forwarder: Forwarder,
    /// The manager that is followed.
    upstream: Option<usize>,
    /// The stream, and whether it is open.
    writes: Option<(ConnId, bool)>,
    /// What queries are answered from.
    serving: Option<Arc<Snapshot>>,
}

/// What a responder is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Its number.
    pub index: usize,
    /// How many managers it follows.
    pub managers: usize,
    /// The host at whose port it answers, and the GUID of that port; `None` if it answers only
    /// what managers pass on.
    pub port: Option<(NodeIndex, Guid)>,
    /// See [`Plant::StaleTables`](crate::config::Plant::StaleTables).
    pub is_stale: bool,
}

/// A running responder.
pub struct Responder {
    index: usize,
    clock: Arc<HostClock>,
    random: Random,
    builder: Builder,
    machine: Machine,
    links: Vec<Link>,
    lanes: Vec<Lane>,
    own: usize,
    peers: Peers,
    upkeep_due: Instant,
    worker: Worker<Queues>,
    queues: Queues,
    endpoint: Option<Endpoint>,
    /// Snapshots installed since the oracle looked.
    pub news: Vec<Arc<Snapshot>>,
    /// Answers sent since the world looked: TransactionID, and epoch of what was served.
    pub answers: Vec<(u64, u64)>,
    /// The snapshot to be kept for the next start.
    pub saved: Option<Arc<Snapshot>>,
    /// See [`Plant::StaleTables`](crate::config::Plant::StaleTables).
    is_stale: bool,
}

impl Responder {
    /// Starts a responder. `kept`: the snapshot of an earlier run.
    pub fn start(
        setup: Setup,
        clock: Arc<HostClock>,
        random: Random,
        kept: Option<Arc<Snapshot>>,
        fabric: &mut Fabric,
    ) -> io::Result<Self> {
        let Setup { index, managers, port, is_stale } = setup;
        let (now, address) = (clock.now(), Proc::Responder(index).address());
        let own_port = port.map(|(_, guid)| guid);
        let attach = |(host, _)| fabric.attach(host, 0).map_err(io::Error::other);
        let endpoint = port.map(attach).transpose()?;
        if let Some(endpoint) = endpoint {
            fabric.set_takes_requests(endpoint, true);
        }
        let publisher = Publisher::new();
        let tables = publisher.reader();
        let builder =
            Builder::new(Arc::new(Mutex::new(publisher)), Builders::caller(), Arc::default());
        let lanes = managers.min(SESSIONS_MAX);
        let exchange = Exchange::with_lanes(1, lanes)?;
        let id = 1 + index as u64;
        let stats = Arc::new(Stats::default());
        let peers = Peers::default();
        let doors = peers.clone();
        let config = ResponderConfig { doors, own_port, ..ResponderConfig::default() };
        let responder = sa_server::serve::responder::Responder::new(tables, config, stats);
        let responder = responder.with_exchange(exchange.worker(0));
        let identity = Identity {
            id,
            name: format!("sa{index}"),
            front_door: vec![address],
            front_door_token: 0,
            spill_from: None,
            spill_token: 0,
            port: own_port.map(|guid| (guid, Qpn::GSI)),
            port_use: PortUse::default(),
        };
        let urls = (0..managers).map(|manager| format!("sm{manager}")).collect();
        let status = Arc::<ReplicaStatus>::default();
        let machine =
            Machine::new(now, greeting(&identity), urls, own_port, kept, Arc::clone(&status));
        let lane = |lane| Lane {
            forwarder: Forwarder::new(Forwarding {
                lane,
                acknowledged: Arc::clone(status.lane(lane).acknowledged()),
                ..Forwarding::new(id, Arc::clone(&exchange))
            }),
            upstream: None,
            writes: None,
            serving: None,
        };
        let queues = Queues::default();
        Ok(Self {
            index,
            clock,
            random,
            builder,
            machine,
            links: vec![Link::Waiting(now); managers],
            lanes: (0..lanes).map(lane).collect(),
            own: 0,
            peers,
            upkeep_due: now + UPKEEP_INTERVAL,
            worker: Worker::new(queues.clone(), responder, WorkerConfig::default()),
            queues,
            endpoint,
            news: Vec::new(),
            answers: Vec::new(),
            saved: None,
            is_stale,
        })
    }

    fn id(&self) -> Proc {
        Proc::Responder(self.index)
    }

    /// The snapshots that queries are answered from.
    pub fn serving(&self) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.lanes.iter().filter_map(|lane| lane.serving.as_ref())
    }

    /// Its port on the fabric, if it has one.
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.endpoint
    }

    /// The snapshot that requests at its own port are answered from.
    pub fn serving_own(&self) -> Option<&Arc<Snapshot>> {
        self.lanes[self.own].serving.as_ref()
    }

    /// Whether a lane serves this version of a manager and passes writes on to it; `own`: requests
    /// at its own port, too.
    pub fn follows(&self, manager: usize, version: Version, own: bool) -> bool {
        let mut lanes = self.lanes.iter().enumerate();
        lanes.any(|(index, lane)| {
            let serving = lane.serving.as_ref().map(|snapshot| snapshot.version());
            lane.upstream == Some(manager)
                && matches!(lane.writes, Some((_, true)))
                && serving == Some(version)
                && (!own || index == self.own)
        })
    }

    /// State for people.
    pub fn describe(&self) -> String {
        let lanes = self.lanes.iter().map(|lane| {
            let version = lane.serving.as_ref().map(|snapshot| snapshot.version().to_string());
            format!("[upstream {:?} writes {:?} serves {version:?}]", lane.upstream, lane.writes)
        });
        format!("own lane {} {}", self.own, lanes.collect::<String>())
    }

    /// Takes a packet of a front door, or of the fabric.
    pub fn handle_packet(&mut self, packet: Packet) {
        self.queues.with(|(arrived, _)| arrived.push_back(packet));
    }

    /// Takes a message of a connection.
    pub fn handle_message(&mut self, net: &mut Network, id: ConnId, message: Message) {
        let now = self.clock.now();
        let is_on =
            |link: &Link| matches!(link, Link::Connecting(on) | Link::Open(on) if *on == id);
        if let Some(link) = self.links.iter().position(is_on) {
            self.handle_feed(now, net, link, (id, message));
            return self.carry_out(now, net);
        }
        let is_on = |lane: &&mut Lane| lane.writes.is_some_and(|(conn, _)| conn == id);
        let Some(lane) = self.lanes.iter_mut().find(is_on) else { return };
        match message {
            Message::Accepted => {
                lane.writes = Some((id, true));
                lane.forwarder.handle_open();
            }
            Message::Outcomes(outcomes) => lane.forwarder.handle_outcomes(now, outcomes),
            Message::Closed => {
                lane.writes = None;
                lane.forwarder.handle_disconnect(now);
            }
            _ => {}
        }
        lane.forwarder.deliver();
    }

    fn handle_feed(
        &mut self,
        now: Instant,
        net: &mut Network,
        link: usize,
        (id, message): (ConnId, Message),
    ) {
        match message {
            Message::Accepted => {
                self.links[link] = Link::Open(id);
                self.machine.handle_connected(link);
            }
            Message::FromSm(messages) => {
                for message in messages {
                    self.machine.handle_message(now, link, message);
                    self.carry_out(now, net);
                }
            }
            Message::Closed => {
                let delay = self.random.between(RECONNECT.0, RECONNECT.1);
                self.links[link] = Link::Waiting(now + delay);
                self.machine.handle_disconnected(now, link, &"closed");
            }
            _ => {}
        }
    }

    /// Carries out what the machine decides, as `replica` does.
    fn carry_out(&mut self, now: Instant, net: &mut Network) {
        let me = self.id();
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(link, message) => {
                    if let Link::Open(id) = self.links[link] {
                        net.send(now, id, me, Message::FromResponder(message));
                    }
                }
                Output::Install { lane, snapshot, .. } => {
                    let is_first = self.lanes[lane].serving.is_none();
                    if !self.is_stale || is_first || !self.random.one_in(20) {
                        self.builder.follow(&Change::Serve(lane, snapshot.clone()));
                    }
                    self.news.push(snapshot.clone());
                    self.lanes[lane].forwarder.handle_version(snapshot.version());
                    self.lanes[lane].forwarder.deliver();
                    self.lanes[lane].serving = Some(snapshot);
                    self.machine.handle_installed(true);
                }
                Output::Drop(lane) => {
                    self.peers.forget(lane);
                    self.follow(now, net, lane, None);
                    self.builder.follow(&Change::Drop(lane));
                    self.lanes[lane].serving = None;
                    self.lanes[lane].forwarder.handle_version(Version::NONE);
                    self.lanes[lane].forwarder.deliver();
                }
                Output::Own(lane) => {
                    self.own = lane;
                    self.builder.follow(&Change::Own(lane));
                }
                Output::Follow { lane, link } => self.follow(now, net, lane, Some(link)),
                Output::Rest(lane) => self.follow(now, net, lane, None),
                Output::Leave(link) => {
                    for lane in 0..self.lanes.len() {
                        if self.lanes[lane].upstream == Some(link) {
                            self.follow(now, net, lane, None);
                        }
                    }
                }
                Output::Admit { lane, front_door, .. } => {
                    let door = front_door.address.parse::<SocketAddr>();
                    self.peers.set_fed(lane, door, front_door.token);
                }
                Output::Shut(lane) => self.peers.forget(lane),
                Output::Answer(link, inquiry, serving) => {
                    if let Link::Open(id) = self.links[link] {
                        for reply in replies(inquiry, &serving) {
                            net.send(now, id, me, Message::FromResponder(Box::new(reply)));
                        }
                    }
                }
                Output::Save(snapshot) => self.saved = Some(snapshot),
            }
        }
    }

    /// Writes of a lane go to another manager from now on.
    fn follow(&mut self, now: Instant, net: &mut Network, lane: usize, upstream: Option<usize>) {
        let me = self.id();
        let lane = &mut self.lanes[lane];
        if lane.upstream == upstream {
            return;
        }
        lane.upstream = upstream;
        if let Some((id, _)) = lane.writes.take() {
            net.close(now, id, me);
        }
        lane.forwarder.handle_upstream();
    }

    /// Does all that is to be done now. Fails if there is always more to do.
    pub fn turn(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        let me = self.id();
        let Around { fabric, net } = around;
        for _ in 0..TURNS_MAX {
            let now = self.clock.now();
            for (manager, link) in self.links.iter_mut().enumerate() {
                if matches!(link, Link::Waiting(due) if *due <= now) {
                    *link =
                        Link::Connecting(net.connect(now, Kind::Feed, me, Proc::Manager(manager)));
                }
            }
            if now >= self.upkeep_due {
                self.upkeep_due = now + UPKEEP_INTERVAL;
                self.machine.handle_timeout(now);
                self.carry_out(now, net);
            }
            self.forward(now, net);
            // It looks for answers at every turn, so its wake-ups are left where they are, as in a
            // worker that never sleeps.
            let next = self.worker.turn(|| now).unwrap_or(Next::Wait);
            let left = self.queues.with(|(_, left)| std::mem::take(left));
            let busy = next == Next::Again || !left.is_empty();
            for packet in &left {
                self.note_answer(packet);
                match self.endpoint.filter(|_| packet.carrier.peer.is_none()) {
                    Some(endpoint) => fabric.send(now, endpoint, packet),
                    None => net.send_datagram(now, me, packet),
                }
            }
            if !busy {
                return Ok(());
            }
        }
        Err(Violation(format!("responder {} never comes to rest", self.index)))
    }

    /// Notes which session an answer comes from.
    fn note_answer(&mut self, packet: &Packet) {
        let door = packet.carrier.peer.and_then(Proc::at);
        let serves =
            |lane: &&Lane| lane.upstream.is_some() && lane.upstream.map(Proc::Manager) == door;
        let lane = match packet.carrier.peer {
            Some(_) => self.lanes.iter().find(serves),
            None => self.lanes.get(self.own),
        };
        if let Some(lane) = lane
            && let Some(snapshot) = &lane.serving
        {
            let tid = SaMad::new(&packet.mad).header().tid() & TID_MASK;
            self.answers.push((tid, snapshot.version().session.epoch));
        }
    }

    fn forward(&mut self, now: Instant, net: &mut Network) {
        let me = self.id();
        for lane in &mut self.lanes {
            let forwarder = &mut lane.forwarder;
            if forwarder.poll_timeout().is_some_and(|due| due <= now) {
                forwarder.handle_timeout(now);
            }
            if let Some(manager) = lane.upstream
                && lane.writes.is_none()
                && forwarder.poll_connect()
            {
                let id = net.connect(now, Kind::Writes, me, Proc::Manager(manager));
                let first = forwarder.handle_connect(now);
                lane.writes = Some((id, false));
                net.send(now, id, me, Message::Writes(first));
            }
            if let Some((id, true)) = lane.writes {
                while forwarder.may_send()
                    && net.has_room(id, me)
                    && let Some(writes) = forwarder.poll_transmit(now)
                {
                    net.send(now, id, me, Message::Writes(writes));
                }
            }
            forwarder.deliver();
        }
    }

    /// The process goes on after it was stopped.
    pub fn handle_resume(&mut self) {
        // Queues do not fail.
        let _ = self.worker.note_pause(self.clock.now());
    }

    /// When [`turn`](Self::turn) is due.
    pub fn due(&mut self) -> Option<Instant> {
        let links = self.links.iter().filter_map(|link| match link {
            Link::Waiting(due) => Some(*due),
            Link::Connecting(_) | Link::Open(_) => None,
        });
        let lanes = self.lanes.iter().filter_map(|lane| lane.forwarder.poll_timeout());
        // A worker that waits looks around only to free memory.
        let worker = self.worker.poll_timeout();
        links.chain(lanes).chain(worker).chain([self.upkeep_due]).min()
    }
}

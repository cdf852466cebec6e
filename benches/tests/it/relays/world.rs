//! Responders, agents and what they send each other, in virtual time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::cpu::ProcessClock;
use benches::fabrics::Managed;
use ib_mad::types::{Gid, Guid, PKey};
use sa_proto::prost::Message;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_proto::snapshot::codec::Encoder;
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Snapshot};
use sa_server::agent::choice::Choice;
use sa_server::agent::netlink::{PathUse, Request};
use sa_server::agent::ping::Pings;
use sa_server::agent::port::Port;
use sa_server::node::{AGENTS_MAX, Follower, GroupKey, Halves, Lead};
use sa_server::node::{Messages, list};
use sa_server::tables::Tables;
use sa_server::tables::cell::Generation;

/// Bytes of a message besides its content: the prefix of gRPC and the header of a DATA frame.
const FRAME_LEN: u64 = 5 + 9;
/// Agents whose answers are compared with those of the responder.
const COMPARED: usize = 25;

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Sent {
    pub(super) fn add(&mut self, message: &impl Message) {
        self.messages += 1;
        self.bytes += message.encoded_len() as u64 + FRAME_LEN;
    }

    pub(super) fn of(encoder: Encoder) -> Self {
        let mut sent = Self::default();
        encoder.for_each(|message| sent.add(&message));
        sent
    }
}

/// A responder with `--agents`.
#[derive(Default)]
pub(super) struct Relay {
    pub(super) is_dead: bool,
    pub(super) agents: usize,
    pub(super) halves: Halves,
    pub(super) number: u64,
    pub(super) sent: Sent,
    /// Times that paths were found.
    pub(super) found: u64,
    pub(super) cpu: Duration,
}

/// A node agent, and what it was sent.
pub(super) struct Agent {
    pub(super) guid: Guid,
    pub(super) choice: Choice,
    pub(super) follower: Follower,
    pub(super) log: Vec<(Instant, Step)>,
}

impl Agent {
    /// That the manager was asked this long ago, counted from the first request of the stream.
    pub(super) fn confirmation(&self, now: Instant, age: Duration) -> Option<proto::Confirmation> {
        let connected = self.log.iter().rev().find(|(_, step)| matches!(step, Step::Connected));
        let after = (now - connected?.0).as_millis() as i64 - age.as_millis() as i64;
        Some(proto::Confirmation { ping: Pings::FIRST, after_ms: after })
    }
}

/// A message as it is sent.
fn confirmed(message: &proto::Update, confirmation: Option<proto::Confirmation>) -> proto::Update {
    let mut message = message.clone();
    if let Some(Kind::Current(current)) = &mut message.kind {
        current.confirmation = confirmation;
    }
    message
}

#[derive(Clone)]
pub(super) enum Step {
    Connected,
    One(proto::Update),
    /// An update, and the confirmation at its end.
    Many(Messages, Option<proto::Confirmation>),
    /// The manager confirms nothing any more.
    Unconfirmed,
}

/// The whole fabric.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) relays: Vec<Relay>,
    pub(super) agents: Vec<Agent>,
    pub(super) generation: Arc<Generation>,
    pub(super) before: Option<Arc<Tables>>,
    pub(super) snapshot: Arc<Snapshot>,
}

pub(super) fn built(plane: FabricPlane, epoch: u64, generation: u64) -> Arc<Snapshot> {
    let session = Session { epoch, sm_guid: Guid(epoch) };
    let built = Snapshot::build(session, generation, plane, RegistryPlane::default());
    Arc::new(built.expect("a plane without contradictions"))
}

impl World {
    pub(super) fn new(managed: &Managed, relays: usize) -> Self {
        let urls: Vec<String> = (1..=relays).map(|i| format!("https://sa{i}:7473")).collect();
        let agent = |guid: Guid| Agent {
            guid,
            choice: Choice::new(guid, urls.iter().map(String::as_str)),
            follower: Follower::new(guid),
            log: Vec::new(),
        };
        let snapshot = built(managed.plane(), 1, 1);
        let registry = Arc::clone(snapshot.registry());
        let tables = Arc::new(Tables::build(snapshot.fabric(), &registry));
        let mut world = Self {
            now: Instant::now(),
            relays: std::iter::repeat_with(Relay::default).take(relays).collect(),
            agents: managed.host_ports().into_iter().map(agent).collect(),
            generation: Arc::new(Generation::new(snapshot.version(), tables, registry)),
            before: None,
            snapshot,
        };
        world.advance();
        world
    }

    /// Every responder gets a snapshot.
    pub(super) fn publish(&mut self, snapshot: Arc<Snapshot>) {
        let tables = &self.generation.tables;
        let registry = Arc::clone(snapshot.registry());
        let next = Arc::new(tables.rebuild(snapshot.fabric(), &registry));
        self.before = Some(Arc::clone(tables));
        self.generation = Arc::new(Generation::new(snapshot.version(), next, registry));
        self.snapshot = snapshot;
        self.advance();
    }

    pub(super) fn advance(&mut self) {
        let (before, now) = (self.before.as_deref(), &self.generation.tables);
        for relay in self.relays.iter_mut().filter(|relay| !relay.is_dead) {
            let mut clock = ProcessClock::start();
            relay.number = relay.halves.advance(before, Some(now));
            relay.cpu += clock.lap();
        }
    }

    /// Lets agents choose until none of them tries a responder. Returns how many attempts there
    /// were.
    pub(super) fn choose(&mut self) -> usize {
        let mut attempts = 0;
        let until = self.now + Duration::from_secs(5);
        loop {
            let mut wakes: Option<Instant> = None;
            for agent in &mut self.agents {
                while let Some(at) = agent.choice.poll(self.now) {
                    attempts += 1;
                    let before = agent.choice.followed();
                    let relay = &mut self.relays[at];
                    if relay.is_dead || relay.agents >= AGENTS_MAX {
                        agent.choice.handle_failed(self.now, at);
                        continue;
                    }
                    relay.agents += 1;
                    agent.follower = Follower::new(agent.guid);
                    let terms = agent.follower.greet(&self.generation);
                    relay.sent.add(&terms);
                    if let Some(before) = before {
                        self.relays[before].agents -= 1;
                    }
                    agent.choice.handle_followed(self.now, at);
                    let Some(Kind::Terms(of)) = &terms.kind else { panic!("{terms:?}") };
                    agent.choice.handle_switch(self.now, Guid(of.switch_guid));
                    agent.log.push((self.now, Step::Connected));
                    agent.log.push((self.now, Step::One(terms)));
                }
                let due = agent.choice.poll_timeout();
                wakes = wakes.into_iter().chain(due).min();
            }
            match wakes.filter(|due| *due <= until) {
                Some(due) => self.now = self.now.max(due),
                None => return attempts,
            }
        }
    }

    /// Brings agents up to date. Returns how many were not.
    pub(super) fn update(&mut self) -> usize {
        let mut concerned = 0;
        let mut leads: Vec<HashMap<GroupKey, Lead>> = vec![HashMap::new(); self.relays.len()];
        for agent in &mut self.agents {
            let at = agent.choice.followed().expect("all agents have a responder");
            let relay = &mut self.relays[at];
            if agent.follower.is_current(relay.number) {
                continue;
            }
            concerned += 1;
            if agent.follower.half().is_some() {
                let changing = proto::Update { kind: Some(Kind::Changing(proto::Changing {})) };
                relay.sent.add(&changing);
                agent.log.push((self.now, Step::One(changing)));
            }
            let mut clock = ProcessClock::start();
            let key = agent.follower.group(&self.generation);
            let lead = leads[at].entry(key).or_insert_with(|| {
                relay.found += 1;
                agent.follower.lead(&relay.halves, &self.generation, relay.number)
            });
            let messages = agent.follower.follow(&self.generation, lead);
            relay.cpu += clock.lap();
            let confirmation = agent.confirmation(self.now, Duration::ZERO);
            for message in messages.iter() {
                relay.sent.add(&confirmed(message, confirmation));
            }
            agent.log.push((self.now, Step::Many(messages, confirmation)));
            agent.choice.handle_fresh();
        }
        concerned
    }

    /// A heartbeat of each responder to each of its agents.
    pub(super) fn beat(&mut self, age: Duration) {
        let version = self.generation.version;
        for agent in &mut self.agents {
            let at = agent.choice.followed().expect("all agents have a responder");
            let beat = proto::Update {
                kind: Some(Kind::Heartbeat(proto::Heartbeat {
                    session: version.session.epoch,
                    generation: version.fabric_generation,
                    confirmation: agent.confirmation(self.now, age),
                })),
            };
            self.relays[at].sent.add(&beat);
            agent.log.push((self.now, Step::One(beat)));
        }
    }

    /// The counts since the last call: of all responders, and of the one that did most.
    pub(super) fn take(&mut self) -> Figures {
        let mut figures = Figures::default();
        for relay in &mut self.relays {
            let (sent, found) = (std::mem::take(&mut relay.sent), std::mem::take(&mut relay.found));
            let cpu = std::mem::take(&mut relay.cpu);
            figures.sent.messages += sent.messages;
            figures.sent.bytes += sent.bytes;
            figures.found += found;
            figures.most.messages = figures.most.messages.max(sent.messages);
            figures.most.bytes = figures.most.bytes.max(sent.bytes);
            figures.most_found = figures.most_found.max(found);
            figures.most_cpu = figures.most_cpu.max(cpu);
        }
        figures
    }

    /// Runs every agent over what it was sent.
    pub(super) fn check(&self) {
        let compared = self.agents.len() / COMPARED;
        let last = self.generation.version;
        for (i, agent) in self.agents.iter().enumerate() {
            let mut port = Port::new(agent.guid);
            for (at, step) in &agent.log {
                match step {
                    Step::Connected => port.handle_connected(*at, *at),
                    Step::One(update) => port.handle_update(*at, update.clone()).expect("it fits"),
                    Step::Many(messages, confirmation) => {
                        for message in messages.iter() {
                            let message = confirmed(message, *confirmation);
                            port.handle_update(*at, message).expect("it fits");
                        }
                        assert!(port.is_fresh(*at), "{}", agent.guid);
                    }
                    Step::Unconfirmed => assert!(!port.is_fresh(*at), "{}", agent.guid),
                }
            }
            assert!(port.is_fresh(self.now), "{}", agent.guid);
            assert_eq!(port.version(), (last.session.epoch, last.fabric_generation));
            if i % compared.max(1) == 0 {
                self.compare(&port);
            }
        }
    }

    /// Compares an agent's paths with those that a responder lists.
    pub(super) fn compare(&self, port: &Port) {
        let paths = list(&self.generation, port.guid()).expect("the port is there");
        let tables = &self.generation.tables;
        let prefix = tables.subnet.prefix;
        let mut equal = 0;
        for (at, lid) in paths.lids.iter().enumerate() {
            let end = tables.end_ports.by_lid(ib_mad::types::Lid(*lid as u16)).expect("an end");
            let asked = Request {
                device: b"mlx5_0",
                port: 1,
                path_use: PathUse::Reversible,
                service_id: None,
                dgid: Some(Gid::new(prefix, end.guid)),
                sgid: Some(Gid::new(prefix, port.guid())),
                pkey: Some(PKey::DEFAULT_FULL),
                qos_class: None,
                tclass: None,
            };
            let record = port.answer(self.now, &asked).expect("the agent has the path");
            let view = ib_mad::wire::record::PathRecord::of(&record);
            let of_list = (paths.sls[at], paths.mtus[at], paths.rates[at]);
            let of_agent = (view.sl().get().into(), view.mtu().into(), view.rate().into());
            assert_eq!((u32::from(view.dlid().0), of_agent), (*lid, of_list));
            let own = tables.end_ports.by_guid(port.guid()).expect("it is there").lid;
            assert_eq!(view.slid(), own);
            equal += 1;
        }
        assert!(equal >= self.agents.len(), "{equal}");
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) sent: Sent,
    pub(super) found: u64,
    pub(super) most: Sent,
    pub(super) most_found: u64,
    pub(super) most_cpu: Duration,
}

//! Node agents of a whole fabric over several responders, without sockets and in virtual time: the
//! state machines of `ibsa` and `ibsa agent`, and each message as it would be sent.
//!
//! What is counted is what an operator has to plan for: messages and bytes of the manager and of
//! each responder when all agents come up, when a cable is pulled, when a responder fails, and when
//! another manager takes over. Every agent is then run over all that it was sent, and has to hold
//! what the responder answers, and to be silent while no manager confirms its paths.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::cpu::ProcessClock;
use benches::fabrics::{FAT_TREE_1000, FAT_TREE_10000, Managed, Stated, middle_cable};
use fabric_sim::NodeIndex;
use ib_mad::netlist::NodeKind;
use ib_mad::types::{Gid, Guid, PKey};
use sa_proto::prost::Message;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_proto::snapshot::codec::Encoder;
use sa_proto::snapshot::{
    FabricPlane, Held, History, HistoryLimits, RegistryPlane, Session, Snapshot, delta,
};
use sa_server::agent::choice::Choice;
use sa_server::agent::netlink::{PathUse, Request};
use sa_server::agent::port::Port;
use sa_server::node::{AGENTS_MAX, CONTACT_MAX, Follower, GroupKey, HEARTBEAT, Halves, Lead};
use sa_server::node::{Messages, list};
use sa_server::tables::Tables;
use sa_server::tables::cell::Generation;

/// Bytes of a message besides its content: the prefix of gRPC and the header of a DATA frame.
const FRAME_LEN: u64 = 5 + 9;
/// Agents whose answers are compared with those of the responder.
const COMPARED: usize = 25;

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sent {
    messages: u64,
    bytes: u64,
}

impl Sent {
    fn add(&mut self, message: &impl Message) {
        self.messages += 1;
        self.bytes += message.encoded_len() as u64 + FRAME_LEN;
    }

    fn of(encoder: Encoder) -> Self {
        let mut sent = Self::default();
        encoder.for_each(|message| sent.add(&message));
        sent
    }
}

/// A responder with `--agents`.
#[derive(Default)]
struct Relay {
    is_dead: bool,
    agents: usize,
    halves: Halves,
    number: u64,
    sent: Sent,
    /// Times that paths were found.
    found: u64,
    cpu: Duration,
}

/// A node agent, and what it was sent.
struct Agent {
    guid: Guid,
    choice: Choice,
    follower: Follower,
    log: Vec<(Instant, Step)>,
}

#[derive(Clone)]
enum Step {
    Connected,
    One(proto::Update),
    Many(Messages),
    /// The manager confirms nothing any more.
    Unconfirmed,
}

/// The whole fabric.
struct World {
    now: Instant,
    relays: Vec<Relay>,
    agents: Vec<Agent>,
    generation: Arc<Generation>,
    before: Option<Arc<Tables>>,
    snapshot: Arc<Snapshot>,
}

fn built(plane: FabricPlane, epoch: u64, generation: u64) -> Arc<Snapshot> {
    let session = Session { epoch, sm_guid: Guid(epoch) };
    let built = Snapshot::build(session, generation, plane, RegistryPlane::default());
    Arc::new(built.expect("a plane without contradictions"))
}

impl World {
    fn new(managed: &Managed, relays: usize) -> Self {
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
    fn publish(&mut self, snapshot: Arc<Snapshot>) {
        let tables = &self.generation.tables;
        let registry = Arc::clone(snapshot.registry());
        let next = Arc::new(tables.rebuild(snapshot.fabric(), &registry));
        self.before = Some(Arc::clone(tables));
        self.generation = Arc::new(Generation::new(snapshot.version(), next, registry));
        self.snapshot = snapshot;
        self.advance();
    }

    fn advance(&mut self) {
        let (before, now) = (self.before.as_deref(), &self.generation.tables);
        for relay in self.relays.iter_mut().filter(|relay| !relay.is_dead) {
            let mut clock = ProcessClock::start();
            relay.number = relay.halves.advance(before, Some(now));
            relay.cpu += clock.lap();
        }
    }

    /// Lets agents choose until none of them tries a responder. Returns how many attempts there
    /// were.
    fn choose(&mut self) -> usize {
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
    fn update(&mut self) -> usize {
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
            let messages = agent.follower.follow(&self.generation, lead, Duration::ZERO);
            relay.cpu += clock.lap();
            messages.iter().for_each(|message| relay.sent.add(message));
            agent.log.push((self.now, Step::Many(messages)));
            agent.choice.handle_fresh();
        }
        concerned
    }

    /// A heartbeat of each responder to each of its agents.
    fn beat(&mut self, age: Duration) {
        let version = self.generation.version;
        for agent in &mut self.agents {
            let at = agent.choice.followed().expect("all agents have a responder");
            let beat = proto::Update {
                kind: Some(Kind::Heartbeat(proto::Heartbeat {
                    session: version.session.epoch,
                    generation: version.fabric_generation,
                    age_ms: age.as_millis() as u32,
                })),
            };
            self.relays[at].sent.add(&beat);
            agent.log.push((self.now, Step::One(beat)));
        }
    }

    /// The counts since the last call: of all responders, and of the one that did most.
    fn take(&mut self) -> Figures {
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
    fn check(&self) {
        let compared = self.agents.len() / COMPARED;
        let last = self.generation.version;
        for (i, agent) in self.agents.iter().enumerate() {
            let mut port = Port::new(agent.guid);
            for (at, step) in &agent.log {
                match step {
                    Step::Connected => port.handle_connected(*at),
                    Step::One(update) => port.handle_update(*at, update.clone()).expect("it fits"),
                    Step::Many(messages) => {
                        for message in messages.iter() {
                            port.handle_update(*at, message.clone()).expect("it fits");
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
    fn compare(&self, port: &Port) {
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
struct Figures {
    sent: Sent,
    found: u64,
    most: Sent,
    most_found: u64,
    most_cpu: Duration,
}

/// A row of the table in `docs/benchmarks.md`.
#[allow(clippy::print_stdout, reason = "figures are printed there")]
fn print(name: &str, manager: Sent, concerned: usize, figures: &Figures) {
    let Figures { sent, found, most, most_found, most_cpu } = figures;
    println!(
        "| {name} | {} / {} | {concerned} | {} / {} | {} / {} | {found} / {most_found} | {:.1} ms \
         |",
        manager.messages,
        size(manager.bytes),
        sent.messages,
        size(sent.bytes),
        most.messages,
        size(most.bytes),
        most_cpu.as_secs_f64() * 1e3,
    );
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// A cable of a host other than the manager's.
fn cable_of_a_host(stated: &Stated) -> (NodeIndex, u8) {
    let net = stated.net();
    let mut hosts = net.nodes().iter().enumerate().filter(|(_, node)| node.kind == NodeKind::Ca);
    let (last, _) = hosts.next_back().expect("a host");
    (NodeIndex(last as u32), 1)
}

fn times(sent: Sent, relays: usize) -> Sent {
    let relays = relays as u64;
    Sent { messages: sent.messages * relays, bytes: sent.bytes * relays }
}

/// What is asserted holds for any fabric of this kind.
fn run(stated: &Stated, relays: usize) {
    let mut managed = stated.managed();
    let mut world = World::new(&managed, relays);
    let agents = world.agents.len();

    let attempts = world.choose();
    assert!(attempts <= 2 * agents + agents / 2, "{attempts} attempts");
    assert_eq!(world.update(), agents);
    let manager = times(Sent::of(Encoder::full(Arc::clone(&world.snapshot))), relays);
    let figures = world.take();
    let switches = world.generation.tables.paths.host_size().0;
    assert!(figures.found <= switches as u64 + relays as u64, "{} times", figures.found);
    print("all agents come up", manager, agents, &figures);
    let held: Vec<usize> = world.relays.iter().map(|relay| relay.agents).collect();
    print_held(&held);

    // Another way of the same length is left: no path of any host differs.
    let cut = |world: &mut World, managed: &mut Managed, cable, number| {
        managed.cut(cable);
        let next = built(managed.plane(), 1, number);
        let delta = Arc::new(delta::construct(&world.snapshot, &next));
        world.now += Duration::from_secs(1);
        world.publish(next);
        (times(Sent::of(Encoder::delta(delta)), relays), world.update())
    };
    let cable = middle_cable(&stated.net());
    let (manager, concerned) = cut(&mut world, &mut managed, cable, 2);
    print("a cable between switches is pulled", manager, concerned, &world.take());
    assert_eq!(concerned, 0);
    world.beat(Duration::ZERO);
    print("a heartbeat of all", Sent::default(), agents, &world.take());

    // All other hosts lose a destination. Its own agent can be heard beside the fabric, and is not
    // part of it any more.
    let cable = cable_of_a_host(stated);
    let (manager, concerned) = cut(&mut world, &mut managed, cable, 3);
    let figures = world.take();
    print("a cable of a host is pulled", manager, concerned, &figures);
    assert!(figures.found <= switches as u64 + 2 * relays as u64, "{} times", figures.found);
    let known = |agent: &Agent| world.generation.tables.end_ports.by_guid(agent.guid).is_some();
    let gone = world.agents.iter().filter(|&agent| !known(agent)).count();
    assert_eq!((concerned, gone), (agents, 1));
    let bytes_each = figures.sent.bytes / agents as u64;
    assert!(bytes_each < 400, "{bytes_each} bytes for each agent");
    let of_gone: Vec<Guid> =
        world.agents.iter().filter(|&agent| !known(agent)).map(|agent| agent.guid).collect();
    world.agents.retain(|agent| !of_gone.contains(&agent.guid));

    // A responder fails: its agents, and no others, go to all others.
    let before: Vec<usize> = world.relays.iter().map(|relay| relay.agents).collect();
    let most = (0..relays).max_by_key(|&at| before[at]).expect("a responder");
    world.relays[most].is_dead = true;
    world.relays[most].agents = 0;
    let now = world.now;
    for agent in world.agents.iter_mut().filter(|agent| agent.choice.followed() == Some(most)) {
        agent.choice.handle_failed(now, most);
    }
    world.choose();
    let concerned = world.update();
    let figures = world.take();
    print("a responder fails", Sent::default(), concerned, &figures);
    assert!(concerned.abs_diff(before[most]) <= 1, "{concerned} of {}", before[most]);
    let held: Vec<usize> = world.relays.iter().map(|relay| relay.agents).collect();
    print_held(&held);

    // The manager dies, all agents fall silent, and another one takes over with the same fabric.
    world.beat(Duration::ZERO);
    world.take();
    let died = world.now;
    while world.now < died + CONTACT_MAX {
        world.now += HEARTBEAT;
        let age = world.now - died;
        world.beat(age);
    }
    for agent in &mut world.agents {
        agent.log.push((world.now, Step::Unconfirmed));
    }
    world.take();
    let next = built(managed.plane(), 2, 1);
    let old = &world.snapshot;
    let held = Held {
        version: old.version(),
        checksum: old.checksum(),
        bucket_sums: old.digest().to_bytes().into(),
    };
    let history = History::new(Arc::clone(&next), HistoryLimits::default());
    let encoder = history.plan(Some(&held)).encode(Some(&held)).expect("an update");
    let manager = times(Sent::of(encoder), relays - 1);
    world.now += Duration::from_secs(2);
    world.publish(next);
    let concerned = world.update();
    print("another manager takes over", manager, concerned, &world.take());
    assert_eq!(concerned, 0);
    world.beat(Duration::ZERO);
    world.check();
}

#[allow(clippy::print_stdout, reason = "figures are printed there")]
fn print_held(held: &[usize]) {
    println!("agents of each responder: {held:?}");
}

#[test]
fn a_thousand_agents_over_four_responders() {
    run(&FAT_TREE_1000, 4);
}

/// For figures, not for CI:
///
/// ```text
/// cargo test -p benches --test it ten_thousand_agents -- --ignored --nocapture
/// ```
#[test]
#[ignore = "for figures: takes minutes"]
fn ten_thousand_agents_over_sixteen_responders() {
    run(&FAT_TREE_10000, 16);
}

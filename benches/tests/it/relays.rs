//! Node agents of a whole fabric over several responders, without sockets and in virtual time: the
//! state machines of `ibsa` and `ibsa agent`, and each message as it would be sent.
//!
//! What is counted is what an operator has to plan for: messages and bytes of the manager and of
//! each responder when all agents come up, when a cable is pulled, when a responder fails, and when
//! another manager takes over. Every agent is then run over all that it was sent, and has to hold
//! what the responder answers, and to be silent while no manager confirms its paths.

use std::sync::Arc;
use std::time::Duration;

use benches::fabrics::{FAT_TREE_1000, FAT_TREE_10000, Managed, Stated, middle_cable};
use fabric_sim::NodeIndex;
use ib_mad::netlist::NodeKind;
use ib_mad::types::Guid;
use sa_proto::snapshot::codec::Encoder;
use sa_proto::snapshot::{Held, History, HistoryLimits, delta};
use sa_server::node::{CONTACT_MAX, HEARTBEAT};

use world::{Agent, Figures, Sent, Step, World, built};

mod world;

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
#[ignore = "for figures: takes 15 s"]
fn ten_thousand_agents_over_sixteen_responders() {
    run(&FAT_TREE_10000, 16);
}

//! The agent of a compute node beside a whole subnet: the kernel's requests, built after its
//! source, cause no SA query, get the responder's answers, and see a link that failed.
//!
//! A pair of sockets stands in for netlink: soft-RoCE's kernel asks no agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chaos_support::Dice;
use crate::support::agents::{Agent, Served, is_path, query, request};
use crate::support::scrape::{get, names};
use crate::support::{Subnet, hosts};
use benches::fabrics::FAT_TREE_45000;
use benches::sandbox::PATIENCE;
use ib_mad::types::Gid;
use ib_mad::wire::mad::Status;
use ib_mad::wire::sa::SaMad;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_proto::snapshot::{RegistryPlane, Version};
use sa_server::agent::host::{Host, Name};
use sa_server::agent::netlink::PathUse;
use sa_server::agent::netlink::Request;
use sa_server::agent::netlink::kernel::{self, Taken};
use sa_server::agent::ping::Pings;
use sa_server::agent::port::Port;
use sa_server::agent::runtime::{AgentMetrics, SharedHost};
use sa_server::node::{Follower, Halves};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};
use sa_server::watch::http;

/// Paths that the kernel resolves.
const PATHS: u32 = 100_000;
/// Requests that it has waiting at once.
const WINDOW: u32 = 64;

#[tokio::test]
async fn a_hundred_thousand_paths_cost_no_query_and_equal_the_responders() {
    let subnet = Subnet::new("agent");
    let _ibsm = subnet.ibsm(&[]);
    let responder = Served::start(&subnet);
    let hosts = hosts(&subnet.snapshot().await);
    let own = hosts[3];
    let mut agent = Agent::start(&[&responder.agents], own.gid);
    let all: Vec<Request<'_>> = hosts.iter().map(|host| request(own.gid, host.gid)).collect();
    agent.ask_until(&all[0], is_path);

    let before = responder.requests();
    let mut taken: BTreeMap<usize, Taken> = BTreeMap::new();
    let first = agent.sequence + 1;
    let (mut sent, mut answered) = (0, 0);
    while answered < PATHS {
        while sent < PATHS && sent - answered < WINDOW {
            agent.send(&all[sent as usize % all.len()]);
            sent += 1;
        }
        for (sequence, path) in agent.receive() {
            let at = (sequence - first) as usize % all.len();
            assert!(is_path(path), "request {sequence}");
            assert_eq!(*taken.entry(at).or_insert(path), path);
            answered += 1;
        }
    }
    assert_eq!(responder.requests(), before, "the responder was asked");
    assert_eq!(taken.len(), all.len());
    for (at, path) in taken {
        let expected = responder.answer(own.lid, &all[at]).expect("the responder has a path");
        assert_eq!(path, Taken::Path(expected));
    }
    documented(&agent);
}

/// Every metric of the agent is in the documentation, and no other.
fn documented(agent: &Agent) {
    let page = AgentMetrics::new(SharedHost::clone(&agent.host));
    let address = http::serve("127.0.0.1:0".parse().unwrap(), page).expect("a free port");
    let text = get(&address.to_string(), "/metrics", "text/plain");
    let ours = |name: &String| name.starts_with("ibsa_agent_");
    let served: Vec<String> = names(&text).into_iter().filter(ours).collect();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let docs = std::fs::read_to_string(docs).expect("docs/metrics.md is readable");
    let lines = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next());
    let mut documented: Vec<String> = lines.map(str::to_owned).filter(ours).collect();
    documented.sort();
    assert_eq!(served, documented);
}

#[tokio::test]
async fn a_link_that_failed_is_seen_by_the_next_answer_or_the_sa_is_asked() {
    let subnet = Subnet::new("agent-cut");
    let _ibsm = subnet.ibsm(&[]);
    let responder = Served::start(&subnet);
    let snapshot = subnet.snapshot().await;
    let hosts = hosts(&snapshot);
    let (own, far) = (hosts[3], hosts[9]);
    let mut agent = Agent::start(&[&responder.agents], own.gid);
    let asked = request(own.gid, far.gid);
    agent.ask_until(&asked, is_path);
    let mut nodes = snapshot.fabric().nodes.iter();
    let node = nodes.find(|node| node.ports.iter().any(|port| port.guid == far.gid.guid()));
    let description = node.expect("the host has a node").description;
    let name = String::from_utf8_lossy(&description).trim_end_matches('\0').to_owned();

    subnet.control(&["link-down", &name, "1"]);
    agent.ask_until(&asked, |taken| taken == Taken::AsksSa);
    // From the responder's first answer without the path on, the agent gives none.
    let deadline = Instant::now() + PATIENCE;
    while responder.answer(own.lid, &asked).is_some() {
        assert!(Instant::now() < deadline, "the responder does not notice");
        std::thread::sleep(Duration::from_millis(2));
    }
    // Other paths are answered again.
    agent.ask_until(&request(own.gid, hosts[4].gid), is_path);
    assert_eq!(agent.ask(&asked), Taken::AsksSa);

    subnet.control(&["link-up", &name, "1"]);
    let again = agent.ask_until(&asked, is_path);
    assert_eq!(again, Taken::Path(responder.answer(own.lid, &asked).expect("a path")));
}

#[tokio::test]
async fn the_next_responder_is_followed_when_one_ends() {
    let subnet = Subnet::new("agent-two");
    let _ibsm = subnet.ibsm(&[]);
    let (first, second) = (Served::start(&subnet), Served::start(&subnet));
    let hosts = hosts(&subnet.snapshot().await);
    let own = hosts[3];
    let mut agent = Agent::start(&[&first.agents, &second.agents], own.gid);
    let asked = request(own.gid, hosts[9].gid);
    agent.ask_until(&asked, is_path);
    // Which of them it follows depends on the GUID of its switch, which it learns from the first
    // that it reaches.
    let deadline = Instant::now() + PATIENCE;
    let (own, other) = loop {
        match (first.metric("ibsa_agents"), second.metric("ibsa_agents")) {
            (1, 0) => break (first, second),
            (0, 1) => break (second, first),
            counts => assert!(Instant::now() < deadline, "{counts:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    drop(own);
    let deadline = Instant::now() + PATIENCE;
    while other.metric("ibsa_agents") == 0 {
        assert!(Instant::now() < deadline, "the second responder is not followed");
        std::thread::sleep(Duration::from_millis(10));
    }
    agent.ask_until(&asked, is_path);
}

/// A message of a responder whose manager was asked when the agent connected.
fn confirmed(message: &proto::Update) -> proto::Update {
    let mut message = message.clone();
    if let Some(Kind::Current(current)) = &mut message.kind {
        let confirmation = proto::Confirmation { ping: Pings::FIRST, after_ms: 0 };
        current.confirmation = Some(confirmation);
    }
    message
}

/// What an agent and its responder cost at 45,000 hosts, and 10^6 answers compared with the
/// responder's. For figures, not for CI:
///
/// ```text
/// cargo test -p benches --test it agents_at_45000 -- --ignored --nocapture
/// ```
#[test]
#[ignore = "for figures: takes minutes"]
#[allow(clippy::print_stdout, reason = "figures are printed there")]
fn what_agents_at_45000_hosts_cost() {
    const ANSWERS: u32 = 1_000_000;
    let managed = FAT_TREE_45000.managed();
    let guids = managed.host_ports();
    let plane = managed.plane();
    let registry = RegistryPlane::default();
    let tables = Arc::new(Tables::build(&plane, &registry));
    let generation = Arc::new(Generation::new(Version::OFFLINE, tables, Arc::new(registry)));
    let prefix = plane.subnet.prefix;
    let own = Gid::new(prefix, guids[17]);

    let halves = Halves::default();
    let number = halves.advance(None, Some(&generation.tables));
    let mut follower = Follower::new(own.guid());
    let begun = Instant::now();
    let messages = follower.update(&halves, &generation, number);
    let found_in = begun.elapsed();
    let begun = Instant::now();
    let again = follower.update(&halves, &generation, number);
    assert_eq!(again.iter().count(), 1);
    let found_again_in = begun.elapsed();
    let now = Instant::now();
    let name = Name { device: "mlx5_0".into(), port: 1 };
    let mut host = Host::new(vec![(name, Port::new(own.guid()))]);
    let port = host.port_mut(0).expect("a port");
    port.handle_connected(now, now);
    let count = messages.iter().count();
    for message in messages.iter() {
        port.handle_update(now, confirmed(message)).expect("the messages fit");
    }
    let (applied_in, paths, bytes) = (now.elapsed(), port.table().len(), port.table().bytes());
    println!(
        "{paths} paths found in {found_in:?}, again in {found_again_in:?}; {count} messages \
         applied in {applied_in:?}; table {bytes} bytes, responder {} bytes",
        follower.half().expect("it has paths").bytes()
    );

    let mut publisher = Publisher::new();
    publisher.publish(Arc::clone(&generation));
    let config = ResponderConfig::default();
    let mut responder = Responder::new(publisher.reader(), config, Arc::default());
    let lid = generation.tables.end_ports.by_guid(own.guid()).expect("a port").lid;
    let mut draw = Dice::new(1);
    let requests: Vec<_> = (0..ANSWERS)
        .map(|_| request(own, Gid::new(prefix, guids[draw.below(guids.len() as u64) as usize])))
        .collect();
    let datagrams: Vec<_> =
        requests.iter().zip(0..).map(|(asked, i)| kernel::request(i, asked)).collect();
    let mut answers = Vec::with_capacity(128 * requests.len());
    let begun = Instant::now();
    for datagram in &datagrams {
        host.answer(now, datagram, &mut answers);
    }
    let each = begun.elapsed() / ANSWERS;
    println!("an answer takes {each:?}");
    let taken = kernel::take(&answers, PathUse::Reversible);
    assert_eq!(taken.len(), requests.len());
    for ((sequence, taken), asked) in taken.iter().zip(&requests) {
        let mut packet = query(lid, asked);
        assert_eq!(responder.handle(&mut packet, now), Outcome::Send);
        let mad = SaMad::new(&packet.mad);
        assert_eq!(mad.header().status(), Status::OK);
        let record = *mad.data().first_chunk().expect("a record");
        assert_eq!(*taken, Taken::Path(record), "request {sequence}");
    }
    println!("{ANSWERS} answers equal the responder's");
}

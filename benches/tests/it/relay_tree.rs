//! A manager, two responders that serve agents of compute nodes, and agents, with everything that
//! can fail between them: a responder, the manager, and the network between both.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::support::agents::{Agent, Served, is_path, request};
use crate::support::pair::proxy;
use crate::support::{Host, Subnet, hosts, ibsmctl};
use benches::sandbox::PATIENCE;
use sa_server::agent::netlink::Request;
use sa_server::agent::netlink::kernel::Taken;
use sa_server::node::CONTACT_MAX;

/// What may pass, on a loaded machine, between what happens and its effect.
const DELAY: Duration = Duration::from_secs(4);

/// A node with its agent.
struct Node {
    agent: Agent,
    asked: Request<'static>,
    from: Host,
}

impl Node {
    /// Agents of the first hosts, each of which asks for a path to the last.
    fn start(count: usize, hosts: &[Host], from: &[&Served]) -> Vec<Self> {
        let urls: Vec<&str> = from.iter().map(|served| &*served.agents).collect();
        let to = hosts[hosts.len() - 1];
        let node = |own: &Host| Self {
            agent: Agent::start(&urls, own.gid),
            asked: request(own.gid, to.gid),
            from: *own,
        };
        hosts[..count].iter().map(node).collect()
    }

    fn is_answered(&mut self) -> bool {
        is_path(self.agent.ask(&self.asked))
    }

    /// Until it is answered, as the responder answers.
    fn await_answer(&mut self, served: &Served) {
        let taken = self.agent.ask_until(&self.asked, is_path);
        let expected = served.answer(self.from.lid, &self.asked).expect("there is a path");
        assert_eq!(taken, Taken::Path(expected));
    }

    /// Until it leaves the query to the SA; returns when.
    fn await_silence(&mut self) -> Instant {
        self.agent.ask_until(&self.asked, |taken| taken == Taken::AsksSa);
        Instant::now()
    }

    /// Epoch of the session that its paths are of.
    fn epoch(&self) -> u64 {
        self.agent.host.lock().expect("no holder panics").ports()[0].1.version().0
    }
}

fn await_that(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn agents(of: &Served) -> u64 {
    of.metric("ibsa_agents")
}

#[tokio::test]
async fn agents_survive_a_responder_and_fall_silent_without_a_manager_until_the_next_session() {
    const AGENTS: usize = 6;
    let subnet = Subnet::new("relay-tree");
    let mut ibsm = subnet.ibsm(&[]);
    let (first, second) = (Served::start(&subnet), Served::start(&subnet));
    let hosts = hosts(&subnet.snapshot().await);
    let mut nodes = Node::start(AGENTS, &hosts, &[&first, &second]);
    nodes.iter_mut().for_each(|node| node.await_answer(&first));
    await_that("all follow", || agents(&first) + agents(&second) == AGENTS as u64);
    await_that("the manager shows them", || {
        let status = ibsmctl(&subnet.url(), &["status"]);
        let shown = |served| status.contains(&format!("{} node agents", agents(served)));
        shown(&first) && shown(&second)
    });

    // The agents of the responder that dies go to the other one.
    let (dying, living) =
        if agents(&first) >= agents(&second) { (first, second) } else { (second, first) };
    drop(dying);
    await_that("the others follow", || agents(&living) == AGENTS as u64);
    nodes.iter_mut().for_each(|node| node.await_answer(&living));

    let epoch = nodes[0].epoch();
    let killed = Instant::now();
    ibsm.kill_and_wait();
    for node in &mut nodes {
        let silent = node.await_silence();
        assert!(silent < killed + CONTACT_MAX + DELAY, "{:?}", silent - killed);
    }
    await_that("the metric shows it", || living.metric("ibsa_agents_confirmed") == 0);
    assert!(living.answer(nodes[0].from.lid, &nodes[0].asked).is_some(), "the SA answers");

    // The same fabric, and another session: agents go on with what they hold.
    let sent = living.metric("ibsa_agents_paths_sent_total");
    let _ibsm = subnet.ibsm(&[]);
    nodes.iter_mut().for_each(|node| node.await_answer(&living));
    await_that("agents know the session", || nodes.iter().all(|node| node.epoch() > epoch));
    assert_eq!(living.metric("ibsa_agents_paths_sent_total"), sent);
    assert_eq!(agents(&living), AGENTS as u64);
}

#[tokio::test]
async fn a_responder_that_is_cut_off_from_the_manager_is_not_taken_for_current() {
    let subnet = Subnet::new("relay-cut");
    let _ibsm = subnet.ibsm(&[]);
    let direct = subnet.url();
    let (through, link) = proxy(direct.trim_start_matches("http://").parse().expect("an address"));
    let cut_off = Served::start_below(&subnet, &format!("http://{through}"));
    let hosts = hosts(&subnet.snapshot().await);
    let mut node = Node::start(1, &hosts, &[&cut_off]).remove(0);
    node.await_answer(&cut_off);

    let cut_at = Instant::now();
    link.is_cut.store(true, Relaxed);
    let silent = node.await_silence();
    assert!(silent < cut_at + CONTACT_MAX + DELAY, "{:?}", silent - cut_at);
    // It does not take further agents, and these go elsewhere.
    await_that("it knows", || cut_off.metric("ibsa_agents_confirmed") == 0);
    let other = Served::start(&subnet);
    let mut late = Node::start(3, &hosts, &[&cut_off, &other]);
    late.iter_mut().for_each(|node| node.await_answer(&other));
    assert_eq!((agents(&cut_off), agents(&other)), (1, 3));
    assert!(!node.is_answered());

    link.is_cut.store(false, Relaxed);
    link.reset();
    node.await_answer(&cut_off);
}

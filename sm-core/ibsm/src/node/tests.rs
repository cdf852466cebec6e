//! A node on a simulated fabric in virtual time, without threads, sockets or files.

mod cuts;
mod outside;
mod succession;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabric_sim::generate::{Common, FatTree, Shape, generate};
use fabric_sim::{Delivery, Endpoint, Fabric, NodeIndex, Options, Probability, VirtualClock};
use ib_mad::types::{Lid, PKey, PortNum, Sl};
use ib_mad::wire::attribute::{NodeType, PortErrorDetailsRepr, SmInfo, SmNotice, TrapNumber};
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::sa::SaMad;
use sa_proto::proto::snapshot::Hello;
use sa_proto::snapshot::{
    ApiPartition, PartitionMember, PartitionMemberRid, RegistryPlane, SubnetManager,
};

use super::*;
use crate::observe::event::{Draft, EventKind};
use crate::observe::problem::{Kind, Subject};
use crate::observe::{Responder, SmStatus};
use crate::publish::Challenge;
use outside::{TestFeed, TestRegistry};
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::MKeyTable;
use sm_core::sweep::{Report, TrapNotice};

/// Time in which the subnet must come up. It takes milliseconds.
const UP_TIME: Duration = Duration::from_secs(5);

/// Operators' files by path.
type Files = BTreeMap<PathBuf, String>;

fn read(files: &Files, path: &Path) -> io::Result<Vec<u8>> {
    let text = files.get(path).ok_or(io::ErrorKind::NotFound)?;
    Ok(text.clone().into_bytes())
}

/// A fabric, a node at its first host, and the time.
struct Bed {
    fabric: Fabric,
    clock: VirtualClock,
    endpoint: Endpoint,
    node: Node,
    feed: Arc<TestFeed>,
    registry: Arc<TestRegistry>,
    responders: Responders,
    files: Files,
    /// Files of the state directory that were written, oldest first.
    writes: Vec<StateWrite>,
    /// Whether the state directory is full.
    is_disk_full: bool,
    reports: Vec<Report>,
    notes: Vec<Draft>,
    dumps: usize,
    status: SmStatus,
    end: Option<Result<(), NodeError>>,
    /// Another subnet manager.
    peer: Option<Peer>,
}

/// Another subnet manager on the fabric: its sweeps alone.
struct Peer {
    endpoint: Endpoint,
    sweeper: Sweeper,
}

impl Bed {
    /// Two spines, four leaves, eight hosts.
    fn new(settings: Settings, files: Files, once: bool) -> Self {
        Self::build(settings, files, once, false)
    }

    /// The same; `follows`: whether the registry of another manager is followed.
    fn build(settings: Settings, files: Files, once: bool, follows: bool) -> Self {
        Self::build_with(settings, files, once, follows, false)
    }

    /// The same; `shares`: whether the managers share a store.
    fn build_with(
        settings: Settings,
        files: Files,
        once: bool,
        follows: bool,
        shares: bool,
    ) -> Self {
        let tree = FatTree { levels: 2, radix: 4, hosts: 8, oversubscription: (1, 1) };
        let net = generate(&Shape::FatTree(tree), &Common::default()).unwrap();
        let mut fabric = Fabric::new(&net, Options { seed: 7, ..Options::default() });
        fabric.set_delay(None, Duration::from_micros(1)).unwrap();
        let clock = VirtualClock::new();
        let now = clock.now();
        let is_host = |node: &NodeIndex| fabric.node(*node).node_type == NodeType::Ca;
        let host = fabric.nodes().find(is_host).unwrap();
        let endpoint = fabric.attach(host, 0).unwrap();
        fabric.set_takes_requests(endpoint, true);
        fabric.set_is_sm(now, endpoint, true);
        let mut sweeper = Sweeper::new(settings.clone(), LidTable::default(), 1);
        sweeper.set_own_port(fabric.port(host, 1).unwrap().guid);
        let (policy, _) = SitePolicy::load(&settings, &|path, _| read(&files, path)).unwrap();
        let feed = Arc::new(TestFeed::default());
        let registry = Arc::new(TestRegistry::default());
        let responders = Responders::default();
        let neighbours = sweeper.neighbours().clone();
        let parts = NodeParts {
            settings,
            policy,
            remarks: Vec::new(),
            access: SaAccess::default(),
            once,
            follows,
            follows_config: false,
            shares,
            responder_command: "ibsa".to_owned(),
            sweeper,
            saved: SavedState { m_keys: MKeyTable::default(), neighbours, origin: None },
            responders: responders.clone(),
            feed: feed.clone(),
            registry: registry.clone(),
        };
        Self {
            fabric,
            endpoint,
            node: Node::new(now, parts),
            clock,
            feed,
            registry,
            responders,
            files,
            writes: Vec::new(),
            is_disk_full: false,
            reports: Vec::new(),
            notes: Vec::new(),
            dumps: 0,
            status: SmStatus::default(),
            end: None,
            peer: None,
        }
    }

    /// One turn of a driver; then time advances to the next event.
    fn step(&mut self) {
        let now = self.clock.now();
        let mut busy = self.node.handle_timeout(now);
        loop {
            let packets = self.node.poll_transmit(now);
            let sent = packets.len();
            if sent == 0 {
                break;
            }
            packets.iter().for_each(|packet| self.fabric.send(now, self.endpoint, packet));
            self.node.handle_transmitted(sent);
        }
        while let Some(action) = self.node.poll_action(now) {
            busy = true;
            self.act(now, action);
        }
        let mut deliveries: Vec<Delivery> = Vec::new();
        self.fabric.poll(now, &mut deliveries, usize::MAX);
        busy |= !deliveries.is_empty();
        for mut delivery in deliveries {
            match &mut self.peer {
                Some(peer) if peer.endpoint == delivery.endpoint => {
                    if peer.sweeper.handle_packet(now, &mut delivery.packet) {
                        self.fabric.send(now, peer.endpoint, &delivery.packet);
                    }
                }
                _ => self.node.handle_packet(now, &mut delivery.packet),
            }
        }
        busy |= self.step_peer(now);
        self.end = self.end.take().or_else(|| self.node.poll_end());
        if !busy && !self.node.has_events() {
            let due = self.node.poll_timeout().into_iter().chain(self.fabric.poll_timeout(now));
            let due = due.chain(self.peer.as_mut().and_then(|peer| peer.sweeper.poll_timeout()));
            // A deadline may have passed: time goes on nevertheless.
            let next = due.min().unwrap_or(now).max(now + Duration::from_micros(1));
            self.clock.advance_to(next);
        }
    }

    /// Runs the other manager; returns whether it did anything.
    fn step_peer(&mut self, now: Instant) -> bool {
        let Some(Peer { endpoint, sweeper }) = &mut self.peer else { return false };
        sweeper.handle_timeout(now);
        while let Some(job) = sweeper.poll_routing() {
            sweeper.handle_routing(now, job.run());
        }
        if let Some(job) = sweeper.poll_multicast(now) {
            sweeper.handle_multicast(now, job.run());
        }
        let (mut packet, mut busy) = (Packet::default(), false);
        while sweeper.poll_transmit(now, &mut packet) {
            busy = true;
            self.fabric.send(now, *endpoint, &packet);
        }
        while let Some(event) = sweeper.poll_event() {
            busy = true;
            if matches!(event, sm_core::sweep::Event::Discovering) {
                sweeper.files_are_read(now);
            }
        }
        busy
    }

    /// Starts another manager at the last host; returns the GUID of its port.
    fn add_peer(&mut self, settings: Settings) -> Guid {
        let now = self.clock.now();
        let is_host = |node: &NodeIndex| self.fabric.node(*node).node_type == NodeType::Ca;
        let host = self.fabric.nodes().filter(is_host).last().unwrap();
        let endpoint = self.fabric.attach(host, 0).unwrap();
        self.fabric.set_takes_requests(endpoint, true);
        self.fabric.set_is_sm(now, endpoint, true);
        let guid = self.fabric.port(host, 1).unwrap().guid;
        let mut sweeper = Sweeper::new(settings, LidTable::default(), 1000);
        sweeper.set_own_port(guid);
        sweeper.request_heavy_sweep(now);
        self.peer = Some(Peer { endpoint, sweeper });
        guid
    }

    /// Removes the other manager from the fabric without notice.
    fn crash_peer(&mut self) {
        let peer = self.peer.take().unwrap();
        self.fabric.detach(self.clock.now(), peer.endpoint);
    }

    fn act(&mut self, now: Instant, action: Action) {
        match action {
            Action::ReadFiles { lids } => {
                let settings = self.node.settings();
                let read = |path: &Path, _| read(&self.files, path);
                let (policy, reading) = self.node.policy().reload(settings, &read);
                let lids = lids.then(|| Ok(LidTable::default()));
                let time = "2026-01-01T00:00:00Z".to_owned();
                self.node.handle_files(now, FilesRead { policy, reading, lids, time });
            }
            Action::BeginSession(new) => {
                let result = self.feed.begin(new);
                self.node.handle_session(now, result);
            }
            Action::Run(job) => self.node.handle_job(now, job.run()),
            Action::Write(write) if self.is_disk_full => {
                let full = io::Error::from(io::ErrorKind::StorageFull);
                self.node.handle_written(now, WriteOutcome::Failed(write, full.into()));
            }
            Action::Write(write) => {
                self.writes.push(write.clone());
                self.node.handle_written(now, WriteOutcome::Done(write));
            }
            Action::Dump(_) => {
                self.dumps += 1;
                self.node.handle_dumped(Ok(()));
            }
            Action::RefreshPort => {}
            Action::NoteSweep { report, .. } => self.reports.push(*report),
            Action::Note(draft) => self.notes.push(*draft),
            Action::Report => self.status = self.node.status(now, 0, Vec::new()),
        }
    }

    /// Runs until `done`; fails if that takes longer than `limit`.
    fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        let end = self.clock.now() + limit;
        while !done(self) {
            let state = (self.node.sweeper().phase(), self.node.sweeper().is_up());
            assert!(self.clock.now() < end, "not within {limit:?}: {state:?}");
            self.step();
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            self.step();
        }
    }

    fn planes(&self) -> usize {
        self.feed.lock().planes.len()
    }

    /// Runs until the subnet is up and published.
    fn bring_up(&mut self) {
        self.run_until(UP_TIME, |bed| bed.node.sweeper().is_up() && bed.planes() > 0);
    }

    /// The host of the node.
    fn own_host(&self) -> NodeIndex {
        let is_host = |node: &NodeIndex| self.fabric.node(*node).node_type == NodeType::Ca;
        self.fabric.nodes().find(is_host).expect("there are hosts")
    }

    /// A switch port with a link to another switch.
    fn trunk(&self) -> (NodeIndex, u8) {
        let is_switch = |node| self.fabric.node(node).node_type == NodeType::Switch;
        let ports = self.fabric.nodes().filter(|&node| is_switch(node)).flat_map(|node| {
            (1..=self.fabric.node(node).num_ports).map(move |number| (node, number))
        });
        let is_trunk = |&(node, number): &(NodeIndex, u8)| {
            let link = self.fabric.port(node, number).and_then(|port| port.link);
            link.is_some_and(|link| is_switch(link.node))
        };
        ports.into_iter().find(is_trunk).unwrap()
    }

    /// The P_Keys of the last host.
    fn pkeys(&self) -> Vec<u16> {
        let is_host = |node: &NodeIndex| self.fabric.node(*node).node_type == NodeType::Ca;
        let host = self.fabric.nodes().filter(is_host).last().unwrap();
        self.fabric.pkeys(host, 1).unwrap().iter().map(|pkey| pkey.0).collect()
    }
}

fn settings() -> Settings {
    Settings { sweep_interval: 10, ..Settings::default() }
}

#[test]
fn what_the_manager_does_is_noted_as_events() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let kinds: Vec<_> = bed.notes.iter().map(|note| note.kind).collect();
    use EventKind::{Mastership, RoutingDone, SubnetUp, SweepStart, TablesChanged};
    for kind in [SweepStart, Mastership, RoutingDone, TablesChanged, SubnetUp] {
        assert!(kinds.contains(&kind), "{kind:?}: {kinds:?}");
    }
    let last = bed.notes.iter().rfind(|note| note.kind == Mastership).unwrap();
    assert!(last.text.starts_with("this SM is master, and was "), "{}", last.text);

    bed.notes.clear();
    let changed = Settings { sweep_interval: 20, ..settings() };
    bed.node.handle_settings(bed.clock.now(), Ok((changed, Vec::new())));
    bed.run_for(Duration::from_secs(2));
    let note = bed.notes.iter().find(|note| note.kind == EventKind::Configuration).unwrap();
    assert!(note.text.contains("sweep_interval"), "{}", note.text);
}

#[test]
fn a_node_brings_the_subnet_up_and_publishes_it() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    let start = bed.clock.now();
    bed.bring_up();
    assert!(bed.clock.now() - start < Duration::from_secs(1), "of virtual time");
    assert!(bed.fabric.check_routes().is_whole());
    let feed = bed.feed.lock();
    let plane = feed.planes.last().unwrap();
    assert_eq!((plane.nodes.len(), plane.lfts.len()), (14, 6));
    assert_eq!(feed.session.map(|session| session.epoch), Some(1));
    drop(feed);
    assert!(bed.registry.lock().ports.is_some());

    bed.run_for(Duration::from_secs(2));
    assert!(bed.registry.lock().open, "it accepts writes");
    let lids = bed.writes.iter().find_map(|write| match write {
        StateWrite::Lids(lids) => Some(lids.len()),
        _ => None,
    });
    assert_eq!(lids, Some(14), "8 hosts and 6 switches");
    assert!(bed.writes.iter().any(|write| matches!(write, StateWrite::Origin(Some(_)))));
    assert_eq!((bed.reports.len(), bed.dumps), (1, 1));
    assert!(bed.status.subnet_up);
    assert_eq!(bed.status.state, "master");
    assert!(bed.end.is_none());
}

/// Regression: ActCount of SMInfoRecord was always 0.
#[test]
fn act_count_is_published_and_is_no_change_by_itself() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let act_count = |row: &SubnetManager| SmInfo::new(&row.info[..]).unwrap().act_count();
    let published = act_count(&bed.feed.lock().planes.last().unwrap().subnet_managers[0]);
    assert!(published > 0);
    bed.run_for(Duration::from_secs(30));
    let found = bed.node.sweeper.subnet_managers();
    assert!(act_count(&found[0]) > published, "requests were sent since");
    assert_eq!(act_count(&bed.node.publication.managers(found)[0]), published);
}

#[test]
fn a_failed_link_is_routed_around_and_published() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let before = bed.planes();
    let (switch, port) = bed.trunk();
    let now = bed.clock.now();
    bed.fabric.link_down(now, switch, port).unwrap();
    bed.run_until(UP_TIME, |bed| bed.planes() > before);
    assert!(bed.fabric.check_routes().is_whole());
    assert!(bed.node.sweeper().is_up());
    bed.run_for(Duration::from_secs(1));
    assert!(!bed.registry.lock().events.is_empty(), "subscribers learn of the trap");
    assert_eq!(bed.node.sweeps().full, 1, "only the affected part was read again");
}

/// The conditions of this kind, as text.
fn conditions(bed: &mut Bed, kind: Kind) -> Vec<String> {
    bed.run_for(Duration::from_secs(2));
    let these = bed.status.conditions.iter().filter(|one| one.kind == kind);
    these.map(|one| one.text()).collect()
}

#[test]
fn a_link_that_comes_back_three_times_flaps() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let (switch, port) = bed.trunk();
    for time in 1..=3 {
        let now = bed.clock.now();
        bed.fabric.link_down(now, switch, port).unwrap();
        bed.run_for(Duration::from_secs(5));
        let now = bed.clock.now();
        bed.fabric.link_up(now, switch, port).unwrap();
        bed.run_for(Duration::from_secs(5));
        assert_eq!(conditions(&mut bed, Kind::LinkFlapping).len(), usize::from(time == 3));
    }
    bed.run_for(Duration::from_secs(600));
    assert!(conditions(&mut bed, Kind::LinkFlapping).is_empty());
}

#[test]
fn a_port_that_reports_errors_is_a_problem() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let (switch, port) = bed.trunk();
    let now = bed.clock.now();
    bed.fabric.port_error(now, switch, port, TrapNumber::LOCAL_LINK_INTEGRITY).unwrap();
    let found = conditions(&mut bed, Kind::PortErrors);
    assert_eq!(found.len(), 1, "{found:?}");
    let name = bed.fabric.node(switch).guid.to_string();
    assert!(found[0].contains(&format!("{name} port {port}: it reports ")), "{found:?}");
}

/// Regression: the event had the number of the port that sent the trap, 0 of a switch.
#[test]
fn a_trap_about_errors_is_an_event_of_the_port_that_it_names() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let (switch, port) = bed.trunk();
    let guid = bed.fabric.node(switch).guid;
    for number in [
        TrapNumber::LOCAL_LINK_INTEGRITY,
        TrapNumber::EXCESSIVE_BUFFER_OVERRUN,
        TrapNumber::FLOW_CONTROL_UPDATE,
    ] {
        bed.notes.clear();
        let now = bed.clock.now();
        bed.fabric.port_error(now, switch, port, number).unwrap();
        bed.run_for(Duration::from_secs(1));
        let note = bed.notes.iter().find(|note| note.kind == EventKind::Trap).unwrap();
        assert_eq!((note.subject.guid, note.subject.port), (Some(guid), Some(PortNum(port))));
        assert!(note.text.ends_with(&format!("port {port}")), "{}", note.text);
    }
}

/// A host must not have others shown as faulty.
#[test]
fn a_trap_about_a_port_of_another_node_is_an_event_of_its_sender() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let lids: Vec<Lid> = (1..0xC000).map(Lid).collect();
    let known = |lid: &&Lid| bed.node.registry.port_guid(**lid).is_some();
    let [sender, victim] = lids.iter().filter(known).take(2).collect::<Vec<_>>()[..] else {
        panic!("the fabric has two ports")
    };
    let guid = bed.node.registry.port_guid(*sender);
    let mut notice = [0; 64];
    let details = PortErrorDetailsRepr { lid: *victim, port_num: PortNum(1) }.to_bytes();
    SmNotice::of_mut(&mut notice)
        .set_is_generic(true)
        .set_trap_number(TrapNumber::LOCAL_LINK_INTEGRITY)
        .set_data_details(details);
    bed.notes.clear();
    bed.node.note_trap(bed.clock.now(), &TrapNotice { lid: *sender, notice });
    bed.run_for(Duration::from_secs(1));
    let note = bed.notes.iter().find(|note| note.kind == EventKind::Trap).unwrap();
    let fabric = bed.node.sweeper.fabric();
    let port = fabric.end_ports().find(|&port| Some(fabric.port(port).guid) == guid).unwrap();
    assert_eq!(note.subject, Subject::of(fabric, port));
}

#[test]
fn a_node_that_answers_nothing_is_a_problem() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    assert!(conditions(&mut bed, Kind::NoAnswer).is_empty());
    assert!(conditions(&mut bed, Kind::SubnetDown).is_empty());
    let is_host = |node: &NodeIndex| bed.fabric.node(*node).node_type == NodeType::Ca;
    let host = bed.fabric.nodes().filter(is_host).last().unwrap();
    bed.fabric.set_loss(Some((host, 1)), Probability::new(1.0).unwrap()).unwrap();
    let now = bed.clock.now();
    bed.node.handle_orders(now, Orders { sweep: true, ..Orders::default() });
    bed.run_for(Duration::from_secs(20));
    assert_eq!(conditions(&mut bed, Kind::NoAnswer).len(), 1);
}

/// A path query for a new port must not fail: its event waits until responders serve the port.
#[test]
fn events_of_ports_wait_for_responders() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    bed.run_for(Duration::from_secs(1));
    let hello = Hello { front_door: vec!["127.0.0.1:1".to_owned()], ..Hello::default() };
    let served = Some(bed.feed.version());
    assert!(bed.responders.enter(&Responder::new(&hello, served, None, bed.clock.now(), 1)));
    let is_host = |node: &NodeIndex| bed.fabric.node(*node).node_type == NodeType::Ca;
    let host = bed.fabric.nodes().filter(is_host).last().unwrap();
    let before = bed.planes();
    bed.registry.lock().events.clear();
    let now = bed.clock.now();
    bed.fabric.node_down(now, host).unwrap();
    bed.run_until(UP_TIME, |bed| bed.planes() > before);
    bed.run_for(Duration::from_millis(100));
    let reported = bed.registry.lock().events.len();
    let version = bed.feed.version();
    assert!(bed.responders.update(1, |entry| entry.serving = Some(version)));
    bed.run_for(Duration::from_millis(10));
    assert_eq!(bed.registry.lock().events.len(), reported + 1);
}

fn query(method: Method) -> Packet {
    let mut packet = Packet::default();
    (packet.address.lid, packet.address.local_qpn) = (Lid(4), Qpn::GSI);
    let mut mad = SaMad::new(&mut packet.mad);
    mad.header_mut().set_mgmt_class(MgmtClass::SUBN_ADM).set_method(method).set_tid(1);
    packet
}

#[test]
fn queries_go_to_a_responder_and_its_answers_to_the_fabric() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    let now = bed.clock.now();
    bed.node.handle_packet(now, &mut query(Method::GET));
    assert!(bed.node.poll_forward().is_empty(), "nothing is published");
    bed.bring_up();
    bed.run_for(Duration::from_secs(1));
    let now = bed.clock.now();
    bed.node.handle_packet(now, &mut query(Method::GET));
    assert!(bed.node.poll_forward().is_empty(), "there is no responder");

    let hello = Hello { front_door: vec!["127.0.0.1:1".to_owned()], ..Hello::default() };
    let served = Some(bed.feed.version());
    assert!(bed.responders.enter(&Responder::new(&hello, served, None, now, 1)));
    bed.node.handle_packet(now, &mut query(Method::GET));
    let [forwarded] = bed.node.poll_forward() else { panic!("not forwarded") };
    let responder = forwarded.carrier.peer;
    assert_eq!(responder, "127.0.0.1:1".parse().ok());
    bed.node.handle_forwarded(1);
    assert!(bed.node.poll_forward().is_empty());

    let mut response = query(Method::GET_RESP);
    response.carrier.peer = responder;
    bed.node.handle_response(now, &mut response);
    assert_eq!(bed.node.poll_transmit(now)[0].mad, response.mad);
    let (counters, _) = bed.node.front_door();
    assert_eq!((counters.requests, counters.answers), (1, 1));
    assert_eq!((counters.not_master, counters.no_responder), (1, 1));
}

/// Regression: a join waited at the port of a manager that was stopped. Its client gave up and left
/// the group by another manager. Then the first one continued and passed the join on.
#[test]
fn requests_that_waited_while_the_process_was_stopped_are_dropped() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    bed.run_for(Duration::from_secs(1));
    let now = bed.clock.now();
    let hello = Hello { front_door: vec!["127.0.0.1:1".to_owned()], ..Hello::default() };
    let served = Some(bed.feed.version());
    assert!(bed.responders.enter(&Responder::new(&hello, served, None, now, 1)));
    let stopped = Duration::from_secs(3);
    bed.node.handle_packet(now + stopped, &mut query(Method::SET));
    bed.node.handle_packet(now + stopped + Duration::from_millis(5), &mut query(Method::SET));
    assert!(bed.node.poll_forward().is_empty(), "they may be as old as that");
    assert_eq!(bed.node.door.counters().stale, 2);
    let later = now + stopped + Duration::from_millis(100);
    bed.node.handle_packet(later, &mut query(Method::SET));
    assert_eq!(bed.node.poll_forward().len(), 1);
}

#[test]
fn a_changed_partition_file_takes_effect_and_a_faulty_one_does_not() {
    let path = PathBuf::from("partitions.conf");
    let file = |text: &str| Files::from([(path.clone(), text.to_owned())]);
    let settings =
        Settings { partition_config_file: Some("partitions.conf".to_owned()), ..settings() };
    let mut bed = Bed::new(settings, file("Default=0x7fff : ALL=full;\n"), false);
    bed.bring_up();
    assert_eq!(bed.pkeys(), [0xFFFF]);

    let sweep = |bed: &mut Bed| {
        let (now, before) = (bed.clock.now(), bed.node.sweeps().full);
        bed.node.handle_orders(now, Orders { sweep: true, ..Orders::default() });
        bed.run_until(UP_TIME, |bed| bed.node.sweeps().full > before);
    };
    bed.files = file("Default=0x7fff : ALL=full;\nstorage=0x8001 : ALL=full;\n");
    sweep(&mut bed);
    let mut pkeys = bed.pkeys();
    pkeys.sort_unstable();
    assert_eq!(pkeys, [0x8001, 0xFFFF]);
    assert_eq!(bed.feed.lock().planes.last().unwrap().partitions.len(), 2);
    assert_eq!(bed.node.refused_policies(), (0, 0));

    bed.files = file("this is not a partition\n");
    sweep(&mut bed);
    assert_eq!(bed.pkeys().len(), 2, "the previous contents stay in force");
    assert_eq!(bed.node.refused_policies(), (1, 1));
    bed.run_for(Duration::from_secs(2));
    assert!(bed.status.warnings.iter().any(|line| line.contains("partitions.conf: refused")));
}

/// Regression: a state directory that was full at the start left a master without an SA until some
/// link changed.
/// In NOT-ACTIVE there are no sweeps with which settings could take effect.
#[test]
fn an_inactive_manager_reads_its_settings_again() {
    let mut bed = Bed::new(Settings { sm_inactive: true, ..settings() }, Files::new(), false);
    bed.run_for(Duration::from_secs(30));
    assert_eq!((bed.node.sweeper.sm_state(), bed.reports.len()), (SmState::NotActive, 0));
    let now = bed.clock.now();
    let new = Settings { sm_inactive: true, subnet_timeout: 20, ..settings() };
    bed.node.handle_settings(now, Ok((new, Vec::new())));
    bed.run_for(Duration::from_secs(30));
    assert_eq!(bed.node.settings().subnet_timeout, 20);
    assert_eq!((bed.node.sweeper.sm_state(), bed.reports.len()), (SmState::NotActive, 0));
    let now = bed.clock.now();
    bed.node.handle_settings(now, Ok((settings(), Vec::new())));
    bed.bring_up();
}

#[test]
fn a_full_state_directory_delays_publication_and_files() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.is_disk_full = true;
    bed.feed.lock().is_disk_full = true;
    bed.run_until(UP_TIME, |bed| bed.node.sweeper().is_up());
    bed.run_for(Duration::from_secs(2));
    assert_eq!((bed.planes(), bed.writes.len()), (0, 0));
    assert!(bed.node.session().is_refused() && !bed.registry.lock().open);
    assert!(bed.node.files_behind() > 0);

    bed.is_disk_full = false;
    bed.feed.lock().is_disk_full = false;
    bed.run_for(Duration::from_secs(6));
    assert_eq!(bed.planes(), 1);
    assert!(!bed.node.session().is_refused() && bed.registry.lock().open);
    assert_eq!(bed.node.files_behind(), 0);
    assert!(bed.writes.iter().any(|write| matches!(write, StateWrite::Lids(_))));
}

#[test]
fn a_session_above_that_of_responders_is_begun_once_and_retried_if_its_epoch_is_not_saved() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    bed.run_for(Duration::from_secs(1));
    let epoch = |bed: &Bed| bed.feed.lock().session.unwrap().epoch;
    assert_eq!((epoch(&bed), bed.registry.lock().open), (1, true));
    bed.feed.lock().is_disk_full = true;
    bed.feed.lock().challenge = Some(Challenge::Epoch);
    bed.run_for(Duration::from_secs(1));
    assert!(bed.node.session().is_refused() && bed.registry.lock().open);
    bed.feed.lock().is_disk_full = false;
    bed.run_for(Duration::from_secs(3));
    assert_eq!((epoch(&bed), bed.node.session().is_refused()), (2, false));
}

#[test]
fn a_run_with_once_ends_when_the_subnet_is_published() {
    let mut bed = Bed::new(settings(), Files::new(), true);
    bed.run_until(UP_TIME, |bed| bed.end.is_some());
    assert!(matches!(bed.end, Some(Ok(()))));
    assert_eq!(bed.planes(), 1);
    bed.node.shut_down();
    let now = bed.clock.now();
    let left: Vec<_> = std::iter::from_fn(|| bed.node.poll_write(now)).collect();
    assert!(left.iter().any(|write| matches!(write, StateWrite::Tables(7, _))), "{left:?}");
}

/// A partition that a program made, with a member on the fabric and one that is not.
fn api_partition(bed: &Bed, pkey: u16) -> Arc<ApiPartitions> {
    let host = bed.fabric.nodes().filter(|&node| bed.fabric.node(node).node_type == NodeType::Ca);
    let guid = bed.fabric.port(host.last().unwrap(), 1).unwrap().guid;
    let (pkey, name, sl) = (PKey(pkey), String::new(), Sl::default());
    let row = ApiPartition { pkey, name, ipoib: true, mtu: 0, rate: 0, sl };
    let member = |guid| {
        let rid = PartitionMemberRid { pkey, guid };
        Arc::new(PartitionMember {
            rid,
            full: true,
            limited: false,
            first: false,
            host: String::new(),
        })
    };
    Arc::new(ApiPartitions::of(&RegistryPlane {
        api_partitions: [Arc::new(row)].into_iter().collect(),
        partition_members: [Guid(0x99), guid].map(member).into_iter().collect(),
        ..RegistryPlane::default()
    }))
}

/// Ports in the plane that was published last whose tables hold this P_Key.
fn holders(bed: &Bed, pkey: u16) -> usize {
    let feed = bed.feed.lock();
    let plane = feed.planes.last().unwrap();
    let end_ports = plane.nodes.iter().filter(|node| node.switch_info.is_none());
    let ports = end_ports.flat_map(|node| &node.ports);
    ports.filter(|port| port.pkeys.contains(&PKey(pkey))).count()
}

#[test]
fn partitions_of_programs_are_published_within_a_second_and_without_a_sweep() {
    let mut bed = Bed::new(Settings::default(), Files::new(), false);
    bed.registry.lock().api_partitions = Some(Arc::default());
    bed.run_until(UP_TIME, |bed| !bed.feed.lock().planes.is_empty());
    bed.run_for(Duration::from_secs(1));
    let sweeps = bed.reports.len();
    let partitions = api_partition(&bed, 5);
    bed.registry.lock().api_partitions = Some(partitions);
    bed.run_for(Duration::from_secs(1));
    assert_eq!((holders(&bed, 0x8005), bed.reports.len()), (1, sweeps));
    let ports = bed.registry.lock().ports.clone().unwrap();
    assert!(ports.iter().any(|port| port.pkeys.contains(&PKey(0x8005))));
    bed.registry.lock().api_partitions = Some(Arc::default());
    bed.run_for(Duration::from_secs(1));
    assert_eq!(holders(&bed, 0x8005), 0);
}

#[test]
fn partitions_of_programs_are_in_force_with_the_first_sweep() {
    let mut bed = Bed::new(Settings::default(), Files::new(), false);
    let partitions = api_partition(&bed, 5);
    bed.registry.lock().api_partitions = Some(partitions);
    bed.run_until(UP_TIME, |bed| !bed.feed.lock().planes.is_empty());
    assert_eq!(holders(&bed, 0x8005), 1);
}

#[test]
fn the_status_warns_of_what_files_and_programs_disagree_about() {
    let mut bed = Bed::new(Settings::default(), Files::new(), false);
    let partitions = api_partition(&bed, 0x7fff);
    bed.run_until(UP_TIME, |bed| !bed.feed.lock().planes.is_empty());
    let limited = |bed: &Bed| bed.status.warnings.iter().any(|line| line.contains("a program"));
    bed.run_for(Duration::from_secs(2));
    assert!(!limited(&bed));
    // All ports are full members, and so is this one: no conflict.
    bed.registry.lock().api_partitions = Some(partitions);
    bed.run_for(Duration::from_secs(2));
    assert!(!limited(&bed), "{:?}", bed.status.warnings);
    let path = Settings::default().partition_config_file.unwrap().into();
    bed.files.insert(path, "Default=0x7fff: ALL=limited, SELF=full;".to_owned());
    let now = bed.clock.now();
    bed.node.handle_orders(now, Orders { sweep: true, ..Orders::default() });
    bed.run_for(Duration::from_secs(5));
    assert!(limited(&bed), "{:?}", bed.status.warnings);
}

/// Regression: registrations were not acknowledged, and no warning said why.
#[test]
fn a_registry_whose_disk_does_not_answer_is_a_problem() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    let began = bed.clock.now();
    bed.registry.lock().busy_since = Some(began);
    bed.run_for(Duration::from_secs(7));
    assert!(conditions(&mut bed, Kind::RegistryHangs).is_empty());
    bed.run_for(Duration::from_secs(1));
    assert_eq!(conditions(&mut bed, Kind::RegistryHangs).len(), 1);
    bed.registry.lock().busy_since = None;
    assert!(conditions(&mut bed, Kind::RegistryHangs).is_empty());
}

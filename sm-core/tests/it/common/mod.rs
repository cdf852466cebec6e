//! A test bed in virtual time: a simulated fabric and subnet managers attached to it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fabric_sim::generate::{Common, FatTree, Shape, generate};
use fabric_sim::{Delivery, Endpoint, Fabric, NodeIndex, Options, VirtualClock};
use ib_mad::netlist::Net;
use ib_mad::transport::Packet;
use ib_mad::types::{Lid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{NodeType, PortState, SmState};
use ib_mad::wire::mad::Method;
use ib_mad::wire::smp::Smp;
use sa_proto::snapshot::FabricPlane;
use sm_config::Settings;
use sm_core::fabric::SubnetParameters;
use sm_core::manage::lid::LidTable;
use sm_core::manage::shard::TakeOver;
use sm_core::mastership::RemoteSm;
use sm_core::registry::{self, Ports};
use sm_core::sweep::{Changes, Event, Phase, PortsChanged, Report, Sweeper, TrapNotice};

/// Reads operators' files from disk.
pub(crate) const DISK: sm_config::ReadFile = &|path, _| std::fs::read(path);

/// A subnet manager attached to a port.
pub(crate) struct Manager {
    pub(crate) endpoint: Endpoint,
    pub(crate) sweeper: Sweeper,
    /// Number of sweeps that have written routes before they went on.
    pub(crate) routed: usize,
    /// Reports of its sweeps, oldest first.
    pub(crate) reports: Vec<Report>,
    pub(crate) standing_by: Option<RemoteSm>,
    /// End ports that came and went, and traps, oldest first.
    pub(crate) changes: Vec<PortsChanged>,
    pub(crate) traps: Vec<TrapNotice>,
    /// Takeovers that ended, and whether they succeeded.
    pub(crate) taken_over: Vec<(TakeOver, bool)>,
    /// Why it did not become master beside another one.
    pub(crate) rivals: Vec<String>,
    /// Number of further SMPs that it can send; `None` if there is no limit.
    pub(crate) sends_left: Option<u64>,
    /// Whether its process is stopped: it neither receives nor sends, and its timers do not run.
    pub(crate) stopped: bool,
    /// Contents of its guid2lid, if it is read again.
    pub(crate) guid2lid: LidTable,
    node: NodeIndex,
    /// Whether it must not set anything.
    is_dry: bool,
}

/// Something done to a packet.
pub(crate) type Tamper = Box<dyn FnMut(&mut Packet)>;

/// A function that changes a packet that a node is to receive, or has answered.
pub(crate) type Lie = Box<dyn FnMut(NodeIndex, &mut Packet)>;

/// Answers a request to a node at the end of a path; returns whether it does.
pub(crate) type MakeUp = Box<dyn FnMut(&[u8], &mut Packet) -> bool>;

/// Nodes that a host makes up: requests to or through it go to `answer` with the path from the host
/// on, and are answered if it returns `true`.
pub(crate) struct MadeUp {
    pub(crate) at: NodeIndex,
    /// Time from a request to its answer.
    pub(crate) delay: Duration,
    pub(crate) answer: MakeUp,
}

/// A fabric, its managers, and the time.
pub(crate) struct Bed {
    pub(crate) fabric: Fabric,
    pub(crate) clock: VirtualClock,
    pub(crate) managers: Vec<Manager>,
    /// Changes packets on their way to the managers.
    pub(crate) tamper: Option<Tamper>,
    /// Changes directed-route requests to a node, and its answers.
    pub(crate) lie: Option<Lie>,
    pub(crate) made_up: Option<MadeUp>,
    /// Answers of made-up nodes, with the time when they arrive, in order.
    made_up_answers: VecDeque<(Instant, Delivery)>,
    /// How many routings to come fail.
    pub(crate) failing_routings: u32,
    /// Number of requested balance checks.
    pub(crate) balance_checks: usize,
    deliveries: Vec<Delivery>,
}

/// A two-level fat tree: 2 spines, 4 leaves, 8 hosts if `hosts` is 8 and `radix` is 4.
pub(crate) fn fat_tree(levels: u8, radix: u8, hosts: usize) -> Net {
    let shape = Shape::FatTree(FatTree { levels, radix, hosts, oversubscription: (1, 1) });
    generate(&shape, &Common::default()).unwrap()
}

impl Bed {
    pub(crate) fn new(net: &Net) -> Self {
        // RUST_LOG=debug shows the managers' logs of a test that fails.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .without_time()
            .try_init();
        let options = Options { seed: 7, ..Options::default() };
        let mut fabric = Fabric::new(net, options);
        fabric.set_delay(None, Duration::from_micros(1)).unwrap();
        Self {
            fabric,
            clock: VirtualClock::new(),
            managers: Vec::new(),
            tamper: None,
            lie: None,
            made_up: None,
            made_up_answers: VecDeque::new(),
            failing_routings: 0,
            balance_checks: 0,
            deliveries: Vec::new(),
        }
    }

    /// A bed with one manager on the first host.
    pub(crate) fn with_manager(net: &Net, settings: Settings) -> Self {
        let mut bed = Self::new(net);
        let host = bed.hosts()[0];
        bed.manage(host, settings, LidTable::default());
        bed
    }

    /// The fabric as the first manager publishes it.
    pub(crate) fn plane(&self) -> FabricPlane {
        self.sweeper().fabric().plane(&self.parameters())
    }

    /// The end ports of the fabric as the first manager passes them to the registry.
    pub(crate) fn registered(&self) -> Ports {
        Ports::of(self.sweeper().fabric(), &self.parameters(), registry::Settings::default())
    }

    fn parameters(&self) -> SubnetParameters {
        let sweeper = self.sweeper();
        SubnetParameters {
            prefix: SUBNET_PREFIX_DEFAULT,
            lifetime: 18,
            sa_key: 1,
            routing_engine: sweeper.routing_engine().to_owned(),
            engine_sls: sweeper.engine_sls(),
            path_sls: sweeper.path_sls(),
            managers: Vec::new(),
            policy: Default::default(),
        }
    }

    /// Starts a manager on a node.
    pub(crate) fn manage(&mut self, node: NodeIndex, settings: Settings, lids: LidTable) {
        let first_tid = self.managers.len() as u32 * 1000;
        let at = self.attach(node, Sweeper::new(settings, lids, first_tid));
        let now = self.clock.now();
        self.fabric.set_takes_requests(self.managers[at].endpoint, true);
        self.fabric.set_is_sm(now, self.managers[at].endpoint, true);
        self.managers[at].sweeper.request_heavy_sweep(now);
    }

    /// Gives a sweeper the port of a node. Returns the manager's number.
    fn attach(&mut self, node: NodeIndex, mut sweeper: Sweeper) -> usize {
        let num = u8::from(self.fabric.node(node).node_type != NodeType::Switch);
        sweeper.set_own_port(self.fabric.port(node, num).unwrap().guid);
        let endpoint = self.fabric.attach(node, 0).unwrap();
        sweeper.set_own_planes(self.fabric.planes(endpoint));
        self.managers.push(Manager {
            endpoint,
            sweeper,
            routed: 0,
            reports: Vec::new(),
            standing_by: None,
            changes: Vec::new(),
            traps: Vec::new(),
            taken_over: Vec::new(),
            rivals: Vec::new(),
            sends_left: None,
            stopped: false,
            guid2lid: LidTable::default(),
            node,
            is_dry: false,
        });
        self.managers.len() - 1
    }

    /// Starts a dry run on a node, beside a manager that may be there, and runs it to its end.
    /// Returns its report, and what it would change.
    pub(crate) fn run_dry(
        &mut self,
        node: NodeIndex,
        settings: Settings,
        lids: LidTable,
    ) -> (Report, Changes) {
        let at = self.attach(node, Sweeper::new(settings, lids, 0xD21));
        let dry = &mut self.managers[at];
        dry.is_dry = true;
        dry.sweeper.run_dry();
        dry.sweeper.request_heavy_sweep(self.clock.now());
        self.run_until(Duration::from_secs(60), "the end of a dry run", |bed| {
            let Manager { sweeper, reports, .. } = &bed.managers[at];
            !reports.is_empty() && sweeper.outstanding() == 0
        });
        let manager = self.crash(at);
        (manager.reports[0].clone(), manager.sweeper.changes())
    }

    /// Removes the last manager from the fabric without notice, as a crash does.
    pub(crate) fn crash_manager(&mut self) -> Manager {
        self.crash(self.managers.len() - 1)
    }

    /// Same with the manager `at`.
    pub(crate) fn crash(&mut self, at: usize) -> Manager {
        let manager = self.managers.remove(at);
        self.fabric.detach(self.clock.now(), manager.endpoint);
        manager
    }

    pub(crate) fn sweeper(&self) -> &Sweeper {
        &self.managers[0].sweeper
    }

    pub(crate) fn reports(&self) -> &[Report] {
        &self.managers[0].reports
    }

    pub(crate) fn hosts(&self) -> Vec<NodeIndex> {
        self.fabric.nodes().filter(|&n| self.fabric.node(n).node_type == NodeType::Ca).collect()
    }

    pub(crate) fn switches(&self) -> Vec<NodeIndex> {
        self.fabric.nodes().filter(|&n| self.fabric.node(n).node_type == NodeType::Switch).collect()
    }

    /// Runs until `done`; fails if that takes longer than `limit` of virtual time.
    pub(crate) fn run_until(
        &mut self,
        limit: Duration,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) {
        let end = self.clock.now() + limit;
        while !done(self) {
            let state = self.managers.first().map(|manager| {
                let sweeper = &manager.sweeper;
                (sweeper.phase(), sweeper.is_up(), sweeper.fabric().counts())
            });
            assert!(self.clock.now() < end, "no '{what}' within {limit:?}, but {state:?}");
            self.step();
        }
    }

    /// Runs for so long.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            self.step();
        }
    }

    /// Runs until the first manager has the subnet up and nothing to do.
    pub(crate) fn bring_up(&mut self) -> Report {
        let before = self.reports().len();
        self.run_until(Duration::from_secs(60), "subnet up", |bed| {
            let sweeper = bed.sweeper();
            bed.reports().len() > before && sweeper.is_up() && sweeper.phase() == Phase::Idle
        });
        self.reports().last().unwrap().clone()
    }

    /// Performs one step: sends all pending packets, and advances time to the next event.
    fn step(&mut self) {
        let now = self.clock.now();
        let mut packet = Packet::default();
        for manager in self.managers.iter_mut().filter(|manager| !manager.stopped) {
            manager.sweeper.handle_timeout(now);
            while let Some(job) = manager.sweeper.poll_routing() {
                let sweep = job.sweep();
                if self.failing_routings > 0 {
                    self.failing_routings -= 1;
                    manager.sweeper.handle_routing_failure(now, sweep, "as the test wants it");
                } else {
                    manager.sweeper.handle_routing(now, job.run());
                }
            }
            if let Some(job) = manager.sweeper.poll_multicast(now) {
                manager.sweeper.handle_multicast(now, job.run());
            }
            if let Some(check) = manager.sweeper.poll_balance_check() {
                self.balance_checks += 1;
                manager.sweeper.handle_balance(now, &check.run());
            }
            while let Some(check) = manager.sweeper.poll_loop_check() {
                manager.sweeper.handle_loops(&check.run());
            }
            if let Some(job) = manager.sweeper.poll_multicast_proof() {
                manager.sweeper.handle_multicast(now, job.run());
            }
            while manager.sends_left != Some(0) && manager.sweeper.poll_transmit(now, &mut packet) {
                manager.sends_left = manager.sends_left.map(|left| left - 1);
                let method = Smp::of(&packet.mad).method();
                assert!(!manager.is_dry || method == Method::GET, "a dry run sent {method}");
                if let Some(lie) = &mut self.lie
                    && let Some(node) = directed_to(&self.fabric, manager.node, &packet)
                {
                    lie(node, &mut packet);
                }
                if let Some(made_up) = &mut self.made_up
                    && let Some(path) = path_beyond(&self.fabric, manager.node, made_up.at, &packet)
                {
                    if !(made_up.answer)(&path, &mut packet) {
                        continue;
                    }
                    let delivery = Delivery { endpoint: manager.endpoint, packet: packet.clone() };
                    self.made_up_answers.push_back((now + made_up.delay, delivery));
                    continue;
                }
                self.fabric.send(now, manager.endpoint, &packet);
            }
        }
        self.fabric.poll(now, &mut self.deliveries, usize::MAX);
        let arrived = self.made_up_answers.partition_point(|(at, _)| *at <= now);
        self.deliveries.extend(self.made_up_answers.drain(..arrived).map(|(_, answer)| answer));
        let any = !self.deliveries.is_empty();
        for mut delivery in self.deliveries.drain(..) {
            let Some(manager) =
                self.managers.iter_mut().find(|manager| manager.endpoint == delivery.endpoint)
            else {
                continue;
            };
            if let Some(tamper) = &mut self.tamper {
                tamper(&mut delivery.packet);
            }
            if manager.stopped {
                continue;
            }
            if let Some(lie) = &mut self.lie
                && let Some(node) = directed_to(&self.fabric, manager.node, &delivery.packet)
            {
                lie(node, &mut delivery.packet);
            }
            if manager.sweeper.handle_packet(now, &mut delivery.packet) {
                assert!(!manager.is_dry, "a dry run answered a request");
                self.fabric.send(now, manager.endpoint, &delivery.packet);
            }
        }
        for manager in &mut self.managers {
            while let Some(event) = manager.sweeper.poll_event() {
                match event {
                    Event::Routed => manager.routed += 1,
                    Event::Configured(report) => manager.reports.push(*report),
                    Event::StandingBy(sm) => manager.standing_by = Some(sm),
                    Event::PortsChanged(changed) => manager.changes.push(changed),
                    Event::Trap(trap) => manager.traps.push(trap),
                    Event::TakenOver { what, done } => manager.taken_over.push((what, done)),
                    Event::Discovering if manager.sweeper.wants_lids() => {
                        manager.sweeper.set_lids(manager.guid2lid.clone());
                    }
                    Event::Discovering
                    | Event::LidsChanged
                    | Event::DisabledPortsChanged
                    | Event::MulticastWritten
                    | Event::PKeysWritten
                    | Event::ClientsMoved => {}
                    Event::Rival(reason) => manager.rivals.push(reason),
                    Event::Fatal(reason) => panic!("{reason}"),
                }
            }
        }
        if !any {
            let due = self
                .managers
                .iter_mut()
                .filter(|manager| !manager.stopped)
                .filter_map(|manager| manager.sweeper.poll_timeout())
                .chain(self.fabric.poll_timeout(now))
                .chain(self.made_up_answers.front().map(|(at, _)| *at))
                .min();
            // Should nothing be due, time passes all the same.
            self.clock.advance_to(due.unwrap_or(now + Duration::from_millis(100)));
        }
    }

    /// Every powered end port whose link is up, with its LIDs.
    pub(crate) fn end_ports(&self) -> Vec<(NodeIndex, u8, Lid, u8)> {
        let mut ends = Vec::new();
        for node in self.fabric.nodes() {
            let view = self.fabric.node(node);
            if !view.up {
                continue;
            }
            let ports = if view.node_type == NodeType::Switch { 0..=0 } else { 1..=view.num_ports };
            for num in ports {
                let port = self.fabric.port(node, num).unwrap();
                let linked =
                    port.link.is_some_and(|link| !link.cut && self.fabric.node(link.node).up);
                if num == 0 || linked {
                    ends.push((node, num, port.lid, port.lmc));
                }
            }
        }
        ends
    }

    /// Fails unless every end port reaches every LID of every other by the programmed tables, over
    /// active links only, and no two ports share a LID.
    pub(crate) fn assert_all_reachable(&self) {
        let ends = self.end_ports();
        let mut owners = vec![None; 0xC000];
        for (node, num, lid, lmc) in &ends {
            assert!(lid.is_unicast(), "{} port {num} has LID {lid}", self.fabric.node(*node).name);
            for lid in lid.0..lid.0 + (1 << lmc) {
                let before = owners[usize::from(lid)].replace((*node, *num));
                assert_eq!(before, None, "LID {lid} has two owners");
            }
        }
        for &(source, source_num, ..) in &ends {
            for (lid, owner) in owners.iter().enumerate() {
                if let Some(owner) = owner {
                    self.assert_reachable((source, source_num), Lid(lid as u16), *owner);
                }
            }
        }
    }

    /// As [`assert_all_reachable`](Self::assert_all_reachable), for those end ports that the
    /// manager can reach.
    pub(crate) fn assert_sound(&self) {
        let fabric = self.sweeper().fabric();
        let known = |guid| fabric.find(guid).is_some_and(|node| fabric.node(node).present);
        let ends: Vec<_> = self
            .end_ports()
            .into_iter()
            .filter(|&(node, ..)| known(self.fabric.node(node).guid))
            .collect();
        assert!(!ends.is_empty());
        for &(source, source_num, ..) in &ends {
            for &(node, num, lid, _) in &ends {
                self.assert_reachable((source, source_num), lid, (node, num));
            }
        }
    }

    /// Faults of a fabric that one manager should have configured: linked ports that are not
    /// Active, end ports with another MasterSMLID, LIDs of two ports, pairs without a path.
    pub(crate) fn what_is_wrong(&self) -> Option<String> {
        let state = |manager: &Manager| manager.sweeper.sm_state();
        let masters: Vec<&Manager> =
            self.managers.iter().filter(|manager| state(manager) == SmState::Master).collect();
        let [master] = masters[..] else { return Some(format!("{} masters", masters.len())) };
        let sweeper = &master.sweeper;
        if !sweeper.is_up() || sweeper.phase() != Phase::Idle {
            return Some(format!("the master is in phase {}", sweeper.phase()));
        }
        let errors = master.reports.last().map_or(0, |report| report.errors);
        if errors > 0 {
            return Some(format!("{errors} errors"));
        }
        let sm_lid = self.fabric.local_lid(master.endpoint);
        let mut owners = std::collections::HashSet::new();
        for (node, num, lid, _) in self.end_ports() {
            let (name, port) = (self.fabric.node(node).name, self.fabric.port(node, num).unwrap());
            if !lid.is_unicast() || !owners.insert(lid) {
                return Some(format!("{name} port {num} has LID {lid}"));
            }
            if Some(port.master_sm_lid) != sm_lid {
                return Some(format!("{name} port {num} obeys LID {}", port.master_sm_lid));
            }
        }
        for node in self.fabric.nodes().filter(|&node| self.fabric.node(node).up) {
            let view = self.fabric.node(node);
            for num in 1..=view.num_ports {
                let port = self.fabric.port(node, num).unwrap();
                let is_linked =
                    port.link.is_some_and(|link| !link.cut && self.fabric.node(link.node).up);
                if is_linked && port.state != PortState::Active {
                    return Some(format!("{} port {num} is {}", view.name, port.state));
                }
            }
        }
        let routes = self.fabric.check_routes();
        (!routes.is_whole()).then(|| format!("{routes:?}"))
    }

    /// Runs until one manager has configured the fabric correctly; fails if that takes longer than
    /// `limit`. Returns the time that it took.
    pub(crate) fn settle(&mut self, limit: Duration, what: &str) -> Duration {
        let begun = self.clock.now();
        // Checked when a sweep has ended, or an SM became master: nothing else changes the result.
        let mut seen = None;
        loop {
            let marks: Vec<_> = self
                .managers
                .iter()
                .map(|manager| {
                    let sweeper = &manager.sweeper;
                    (manager.reports.len(), sweeper.sm_state(), sweeper.phase() == Phase::Idle)
                })
                .collect();
            let over = self.clock.now() > begun + limit;
            if over || seen.as_ref() != Some(&marks) {
                let wrong = self.what_is_wrong();
                if wrong.is_none() {
                    return self.clock.now() - begun;
                }
                assert!(!over, "{what}: after {limit:?}: {}", wrong.unwrap_or_default());
                seen = Some(marks);
            }
            self.step();
        }
    }

    /// As [`settle`](Self::settle), and the fabric stays configured for a minute.
    pub(crate) fn settle_for_good(&mut self, limit: Duration, what: &str) -> Duration {
        let took = self.settle(limit, what);
        self.run_for(Duration::from_secs(61));
        self.settle(Duration::from_secs(2), what);
        took
    }

    /// Runs until all LIDs of a planarized fabric are delivered in each of their planes, and the
    /// first manager has nothing to do.
    pub(crate) fn settle_planes(&mut self) {
        self.run_until(Duration::from_secs(60), "all planes deliver", |bed| {
            let sweeper = bed.sweeper();
            let is_idle = sweeper.is_up() && sweeper.phase() == Phase::Idle;
            is_idle && bed.fabric.check_routes().is_whole()
        });
    }

    /// The nodes of `ends` that are not reached by packets from at least one other of them.
    pub(crate) fn cut_off_among(&self, ends: &[(NodeIndex, u8, Lid, u8)]) -> Vec<String> {
        let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to)));
        pairs
            .filter_map(|(&(node, num, ..), &(to, to_num, lid, _))| {
                self.follow((node, num), lid, (to, to_num)).err()
            })
            .collect()
    }

    pub(crate) fn assert_reachable(
        &self,
        source: (NodeIndex, u8),
        lid: Lid,
        owner: (NodeIndex, u8),
    ) {
        self.follow(source, lid, owner).unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// Follows the tables from one end port to a LID of another.
    fn follow(
        &self,
        source: (NodeIndex, u8),
        lid: Lid,
        owner: (NodeIndex, u8),
    ) -> Result<(), String> {
        let (mut node, mut egress) = source;
        if source == owner {
            return Ok(());
        }
        for _ in 0..64 {
            let view = self.fabric.node(node);
            if view.node_type == NodeType::Switch {
                egress = view.lft.get(lid.index()).copied().unwrap_or(255);
                if node == owner.0 {
                    let right = egress == 0;
                    let wrong = || format!("{} to its own LID {lid} by {egress}", view.name);
                    return right.then_some(()).ok_or_else(wrong);
                }
            }
            let port = self.fabric.port(node, egress);
            let port = port.ok_or_else(|| format!("{}: LID {lid} by port {egress}", view.name))?;
            let link = port.link.filter(|link| port.state == PortState::Active && !link.cut);
            let link = link
                .ok_or_else(|| format!("{} port {egress}, LID {lid}: {}", view.name, port.state))?;
            if (link.node, link.port) == owner {
                return Ok(());
            }
            if self.fabric.node(link.node).node_type != NodeType::Switch {
                let name = self.fabric.node(link.node).name;
                return Err(format!("LID {lid} went to the wrong host {name}"));
            }
            node = link.node;
        }
        Err(format!("LID {lid} goes round in circles"))
    }
}

/// The node at the end of a directed route that begins at `from`.
/// The rest of the path of a directed-route request to `through`, or to what is behind it.
fn path_beyond(
    fabric: &Fabric,
    from: NodeIndex,
    through: NodeIndex,
    packet: &Packet,
) -> Option<Vec<u8>> {
    let smp = Smp::new(&packet.mad).ok().filter(|smp| !smp.returning())?;
    let (mut node, mut path) = (from, smp.path()?);
    while node != through {
        let (&egress, rest) = path.split_first()?;
        let link = fabric.port(node, egress)?.link.filter(|link| !link.cut)?;
        (node, path) = (link.node, rest);
    }
    Some(path.to_vec())
}

fn directed_to(fabric: &Fabric, from: NodeIndex, packet: &Packet) -> Option<NodeIndex> {
    let smp = Smp::new(&packet.mad).ok()?;
    let mut node = from;
    for &egress in smp.path()? {
        node = fabric.port(node, egress)?.link?.node;
    }
    Some(node)
}

//! The fabrics of the benchmarks, and our own subnet manager running on them in one process.
//!
//! [`Managed`] connects a sweeper and a simulated subnet without sockets and in virtual time, so
//! that planes are those of a real sweep, and the CPU time of the two sides can be measured
//! separately. What is not here: programs on real sockets ([`sandbox`](crate::sandbox)).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fabric_sim::generate::{Common, FatTree, Shape, generate};
use fabric_sim::{Delivery, Endpoint, Fabric, NodeIndex, Options, VirtualClock};
use ib_mad::netlist::{Net, NodeKind, PortRef};
use ib_mad::transport::Packet;
use ib_mad::types::Guid;
use ib_mad::wire::attribute::{NodeInfo, PortInfo};
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session, Snapshot, find};
use sm_config::Settings;
use sm_core::fabric::SubnetParameters;
use sm_core::manage::lid::LidTable;
use sm_core::smp::{Counters, Kind};
use sm_core::sweep::{Event, MulticastJob, MulticastOutcome, Report, Sweeper};
use sm_routing::{Destination, Topology, TopologyBuilder};

use crate::cpu::ProcessClock;

/// Maximum number of sweeps in a row that end without the subnet being up.
const ATTEMPTS: u32 = 5;

/// A fabric as benchmarks name it.
#[derive(Clone, Copy, Debug)]
pub struct Stated {
    /// Part of the benchmark's name.
    pub name: &'static str,
    radix: u8,
    hosts: usize,
}

/// Three levels of switches with 16 ports, 1,000 hosts: 320 switches, 1,320 LIDs.
pub const FAT_TREE_1000: Stated = Stated { name: "fat_tree_1000", radix: 16, hosts: 1_000 };

/// Three levels of switches with 40 ports, 10,000 hosts: 1,400 switches, 11,400 LIDs.
pub const FAT_TREE_10000: Stated = Stated { name: "fat_tree_10000", radix: 40, hosts: 10_000 };

/// Three levels of switches with 60 ports, 45,000 hosts: 3,900 switches, 48,900 LIDs.
pub const FAT_TREE_45000: Stated = Stated { name: "fat_tree_45000", radix: 60, hosts: 45_000 };

impl Stated {
    /// Its nodes and cables; the same in each run.
    pub fn net(&self) -> Net {
        let (radix, hosts) = (self.radix, self.hosts);
        let tree = FatTree { levels: 3, radix, hosts, oversubscription: (1, 1) };
        let common = Common { seed: 1, ..Common::default() };
        generate(&Shape::FatTree(tree), &common).expect("a tree of this radix has so many hosts")
    }

    /// The fabric, brought up.
    pub fn managed(&self) -> Managed {
        let mut managed = Managed::new(&self.net(), Settings::default());
        managed.bring_up();
        managed
    }
}

/// A cable between two switches, by one of its ends: the one in the middle of all such cables.
pub fn middle_cable(net: &Net) -> (NodeIndex, u8) {
    let is_switch = |at: &PortRef| net.nodes()[at.node as usize].kind == NodeKind::Switch;
    let cables: Vec<PortRef> =
        net.links().filter(|(a, b)| is_switch(a) && is_switch(b)).map(|(a, _)| a).collect();
    let PortRef { node, port } = cables[cables.len() / 2];
    (NodeIndex(node), port)
}

/// A snapshot of `plane` in a separate session, without registrations.
pub fn snapshot(plane: FabricPlane, generation: u64) -> Snapshot {
    let session = Session { epoch: 1, sm_guid: Guid(1) };
    Snapshot::build(session, generation, plane, RegistryPlane::default())
        .expect("a sweep leaves a plane without contradictions")
}

/// CPU time of the two sides of a [`Managed`] subnet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// In the sweeper, without routing.
    pub manager: Duration,
    /// Routing jobs.
    pub routings: u64,
    /// In routing jobs, on all threads.
    pub routing: Duration,
    /// Wall time of routing jobs.
    pub routing_wall: Duration,
    /// In the simulated subnet.
    pub simulator: Duration,
    /// Batches of packets exchanged; the clock was read twice for each.
    pub batches: u64,
}

/// A simulated subnet and the subnet manager on its first host, in one process.
pub struct Managed {
    fabric: Fabric,
    endpoint: Endpoint,
    sweeper: Sweeper,
    clock: VirtualClock,
    window: usize,
    outgoing: Vec<Packet>,
    incoming: Vec<Delivery>,
    cost: Cost,
}

impl Managed {
    /// The subnet of `net`, and a manager that has not started.
    ///
    /// # Panics
    ///
    /// If `net` has no host.
    pub fn new(net: &Net, settings: Settings) -> Self {
        let mut fabric = Fabric::new(net, Options::default());
        let clock = VirtualClock::new();
        let home = net.nodes().iter().position(|node| node.kind == NodeKind::Ca);
        let home = NodeIndex(home.expect("a host to run on") as u32);
        let endpoint = fabric.attach(home, 0).expect("a host has a port");
        fabric.set_takes_requests(endpoint, true);
        fabric.set_is_sm(clock.now(), endpoint, true);
        Self {
            fabric,
            endpoint,
            window: settings.window(),
            outgoing: Vec::new(),
            sweeper: Sweeper::new(settings, LidTable::default(), 1),
            clock,
            incoming: Vec::new(),
            cost: Cost::default(),
        }
    }

    /// Sweeps the whole fabric until the subnet is up; returns the report of the last sweep.
    pub fn bring_up(&mut self) -> Report {
        self.sweeper.request_heavy_sweep(self.clock.now());
        self.settle()
    }

    /// Pulls a cable and waits, in virtual time, until the manager has handled it.
    pub fn cut(&mut self, (node, port): (NodeIndex, u8)) -> Report {
        let now = self.clock.now();
        self.fabric.link_down(now, node, port).expect("a cable of this fabric");
        self.settle()
    }

    /// Runs both sides until a sweep has ended with the subnet up.
    ///
    /// # Panics
    ///
    /// If it does not come up.
    fn settle(&mut self) -> Report {
        let mut failed = 0;
        let mut clock = ProcessClock::start();
        loop {
            let now = self.clock.now();
            let mut packet = Packet::default();
            while self.outgoing.len() < self.window && self.sweeper.poll_transmit(now, &mut packet)
            {
                self.outgoing.push(packet.clone());
            }
            self.cost.manager += clock.lap();
            let idle = self.outgoing.is_empty();
            for packet in self.outgoing.drain(..) {
                self.fabric.send(now, self.endpoint, &packet);
            }
            self.fabric.poll(now, &mut self.incoming, usize::MAX);
            self.cost.simulator += clock.lap();
            self.cost.batches += 1;

            let idle = idle && self.incoming.is_empty();
            for mut delivery in self.incoming.drain(..) {
                if self.sweeper.handle_packet(now, &mut delivery.packet) {
                    self.outgoing.push(delivery.packet);
                }
            }
            if let Some(job) = self.sweeper.poll_routing() {
                self.cost.manager += clock.lap();
                let start = Instant::now();
                let outcome = job.run();
                self.cost.routings += 1;
                self.cost.routing_wall += start.elapsed();
                self.cost.routing += clock.lap();
                self.sweeper.handle_routing(now, outcome);
            } else if idle {
                self.wait(now);
            }
            while let Some(event) = self.sweeper.poll_event() {
                match event {
                    Event::Configured(report) if report.errors == 0 => {
                        self.cost.manager += clock.lap();
                        return *report;
                    }
                    Event::Configured(report) => {
                        failed += 1;
                        assert!(failed < ATTEMPTS, "the subnet does not come up: {report:?}");
                    }
                    Event::Fatal(reason) => panic!("{reason}"),
                    _ => {}
                }
            }
        }
    }

    /// Advances time until something is due on either side.
    fn wait(&mut self, now: Instant) {
        let due = [self.sweeper.poll_timeout(), self.fabric.poll_timeout(now)];
        let due = due.into_iter().flatten().min().expect("something is always due");
        self.clock.advance_to(due);
        self.sweeper.handle_timeout(self.clock.now());
    }

    /// The plane that the manager would publish now.
    pub fn plane(&self) -> FabricPlane {
        let settings = self.sweeper.settings();
        self.sweeper.fabric().plane(&SubnetParameters {
            prefix: settings.subnet_prefix,
            lifetime: settings.subnet_timeout,
            sa_key: settings.sa_key,
            engine_sls: self.sweeper.engine_sls(),
            path_sls: self.sweeper.path_sls(),
            routing_engine: self.sweeper.routing_engine().to_owned(),
            managers: Vec::new(),
            policy: Default::default(),
        })
    }

    /// Port GUIDs of all hosts, ascending.
    pub fn host_ports(&self) -> Vec<Guid> {
        let fabric = self.sweeper.fabric();
        let hosts = fabric.end_ports().filter(|&port| fabric.node_of(port).switch.is_none());
        let mut guids: Vec<Guid> = hosts.map(|port| fabric.port(port).guid).collect();
        guids.sort_unstable();
        guids
    }

    /// The manager, to receive groups.
    pub fn sweeper_mut(&mut self) -> &mut Sweeper {
        &mut self.sweeper
    }

    /// Sets the number of MLIDs that switches support, and lets the manager read it.
    pub fn make_multicast_room(&mut self, mlids: u16) {
        self.fabric.set_multicast_capacity(mlids);
        self.sweeper.request_heavy_sweep(self.clock.now());
        self.settle();
    }

    /// Trees to be computed.
    pub fn poll_multicast(&mut self) -> Option<MulticastJob> {
        self.sweeper.poll_multicast(self.clock.now())
    }

    /// Passes the result to the manager.
    pub fn handle_multicast(&mut self, outcome: MulticastOutcome) {
        self.sweeper.handle_multicast(self.clock.now(), outcome);
    }

    /// Runs both sides until all blocks of multicast tables are written.
    pub fn write_multicast(&mut self) {
        let mut packet = Packet::default();
        loop {
            let now = self.clock.now();
            let mut any = false;
            while self.outgoing.len() < self.window && self.sweeper.poll_transmit(now, &mut packet)
            {
                self.outgoing.push(packet.clone());
            }
            for packet in self.outgoing.drain(..) {
                any = true;
                self.fabric.send(now, self.endpoint, &packet);
            }
            self.fabric.poll(now, &mut self.incoming, usize::MAX);
            for mut delivery in self.incoming.drain(..) {
                any = true;
                self.sweeper.handle_packet(now, &mut delivery.packet);
            }
            while let Some(event) = self.sweeper.poll_event() {
                if matches!(event, Event::MulticastWritten) {
                    return;
                }
            }
            if !any {
                match self.fabric.poll_timeout(now) {
                    Some(due) => self.clock.advance_to(due),
                    None => return,
                }
            }
        }
    }

    /// Blocks of multicast tables that were sent so far.
    pub fn multicast_blocks(&self) -> u64 {
        self.sweeper.passed(Kind::SetMulticast).sent
    }

    /// The manager.
    pub fn sweeper(&self) -> &Sweeper {
        &self.sweeper
    }

    /// SMPs so far.
    pub fn smps(&self) -> Counters {
        self.sweeper.counters()
    }

    /// CPU time so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }
}

/// The number of each host's switch among those of [`topology`], by the GUID of the host's port.
pub fn places(plane: &FabricPlane) -> HashMap<Guid, u16> {
    let numbers: HashMap<Guid, u16> =
        plane.lfts.iter().zip(0..).map(|(lft, number)| (lft.switch, number)).collect();
    let mut places = HashMap::new();
    for node in plane.nodes.iter().filter(|node| node.switch_info.is_none()) {
        for port in &node.ports {
            let home = port.peer.and_then(|(peer, _)| numbers.get(&peer));
            places.extend(home.map(|&home| (port.guid, home)));
        }
    }
    places
}

/// The fabric of `plane` as routing engines see it; switches in the order of the plane's tables.
pub fn topology(plane: &FabricPlane) -> Topology {
    let mut builder = TopologyBuilder::new();
    let switches: HashMap<Guid, u16> = plane
        .lfts
        .iter()
        .map(|lft| {
            let node = find(&plane.nodes, lft.switch).expect("a table belongs to a switch");
            let ports = NodeInfo::of(&node.info).num_ports();
            (lft.switch, builder.add_switch(ports).expect("as many as LIDs at most"))
        })
        .collect();
    for node in &plane.nodes {
        let switch = switches.get(&node.guid).copied();
        for port in &node.ports {
            let peer = port.peer.and_then(|(peer, num)| Some((*switches.get(&peer)?, num.0)));
            let place = match (switch, peer) {
                (Some(switch), Some(peer)) if port.num.0 != 0 => {
                    builder.add_link((switch, port.num.0), peer).expect("ports are those seen");
                    continue;
                }
                (Some(switch), _) if port.num.0 == 0 => (switch, 0),
                (None, Some(peer)) => peer,
                _ => continue,
            };
            let base_lid = PortInfo::of(&port.info).base_lid();
            let (egress_switch, exit) = place;
            let destination = Destination { base_lid, lid_count: 1, egress_switch, exit };
            builder.add_destination(destination).expect("a sweep gives LIDs once");
        }
    }
    builder.build().expect("a sweep leaves no contradictions")
}

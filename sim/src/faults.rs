//! What fails, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric_sim::{Fabric, NodeIndex, Probability};
use ib_mad::wire::attribute::NodeType;
use ibsm::publish::Orders;
use ibsm::runtime::{ETCD_MEMBERS as MEMBERS, EtcdRefused};

use crate::config::Config;
use crate::disk::DiskFaults;
use crate::net::Proc;
use crate::random::Random;

/// Something that fails, or an order of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process is killed, and started again.
    Kill(Proc),
    /// A manager and a responder are killed at once, and started again.
    KillBoth(usize, usize),
    /// The power of a manager's host fails.
    PowerLoss(usize),
    /// A process is stopped, and goes on.
    Stop(Proc),
    /// The service loop of a manager hangs, and goes on; its other threads work.
    Hang(usize),
    /// Nothing passes from one process to another.
    Cut(Proc, Proc),
    /// Nothing passes between these processes and all others, in neither direction.
    Parts(Vec<Proc>),
    /// A manager's feed to a responder makes no progress, for less time than keepalive permits.
    Stall(Proc, Proc),
    /// The management network takes long.
    SlowNetwork,
    /// Datagrams are lost and repeated.
    LossyDatagrams,
    /// The fabric loses packets.
    LossyFabric,
    /// A link fails.
    Link(NodeIndex, u8),
    /// A switch fails.
    Node(NodeIndex),
    /// The links from the switch of a manager's host to other switches fail.
    Split(NodeIndex),
    /// The link of a manager's host to the fabric fails, while the network between managers works.
    OwnLink(usize),
    /// The host of a manager loses its link to the fabric and all connections of the network.
    Isolated(usize),
    /// A host without clients is switched off or on, and stays so.
    Host(usize),
    /// All responders are killed, and started again.
    Responders,
    /// The disk of a manager's host fails.
    Disk(usize, DiskFaults),
    /// The time of day of a manager's host is set.
    WallClock(usize, i64),
    /// etcd answers no requests, as during an election.
    EtcdDown,
    /// A member of etcd answers nothing.
    EtcdMember(usize),
    /// A manager cannot reach etcd.
    EtcdCut(usize),
    /// Requests of a manager to etcd, and answers, are lost.
    EtcdLossy(usize),
    /// etcd refuses requests: its quota is used up, or managers may not use it.
    EtcdRefuses(EtcdRefused),
    /// An operator's orders.
    Orders(usize, Orders),
}

impl Fault {
    /// Whether it can delay what responders learn by more than is documented, or change who is
    /// master.
    pub fn is_hard(&self) -> bool {
        match self {
            Self::Kill(_)
            | Self::KillBoth(..)
            | Self::PowerLoss(_)
            | Self::Stop(_)
            | Self::Hang(_)
            | Self::Cut(..)
            | Self::Parts(_)
            | Self::Split(_)
            | Self::OwnLink(_)
            | Self::Isolated(_)
            | Self::Responders
            | Self::SlowNetwork
            | Self::LossyDatagrams
            | Self::EtcdDown
            | Self::EtcdMember(_)
            | Self::EtcdCut(_)
            | Self::EtcdLossy(_)
            | Self::EtcdRefuses(_)
            | Self::Disk(..) => true,
            Self::Stall(..)
            | Self::LossyFabric
            | Self::Link(..)
            | Self::Node(_)
            | Self::Host(_)
            | Self::WallClock(..)
            | Self::Orders(..) => false,
        }
    }

    /// Whether another manager may become master.
    pub fn may_change_master(&self) -> bool {
        matches!(
            self,
            Self::Kill(Proc::Manager(_))
                | Self::KillBoth(..)
                | Self::PowerLoss(_)
                | Self::Stop(Proc::Manager(_))
                | Self::OwnLink(_)
                | Self::Isolated(_)
                | Self::Disk(_, DiskFaults { stops_in: Some(_), .. })
        )
    }

    /// Whether a standby may fall behind.
    pub fn delays_standby(&self) -> bool {
        matches!(
            self,
            Self::Cut(Proc::Manager(_), Proc::Manager(_))
                | Self::Parts(_)
                | Self::Isolated(_)
                | Self::Disk(..)
                | Self::SlowNetwork
                | Self::Responders
        )
    }

    /// Whether ports may leave the fabric.
    pub fn moves_ports(&self) -> bool {
        matches!(
            self,
            Self::LossyFabric
                | Self::Link(..)
                | Self::Node(_)
                | Self::Split(_)
                | Self::OwnLink(_)
                | Self::Isolated(_)
        )
    }

    /// Its name, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill(Proc::Manager(_)) => "manager killed",
            Self::Kill(Proc::Responder(_)) => "responder killed",
            Self::KillBoth(..) => "manager and responder killed",
            Self::PowerLoss(_) => "power lost",
            Self::Stop(Proc::Manager(_)) => "manager stopped",
            Self::Stop(Proc::Responder(_)) => "responder stopped",
            Self::Hang(_) => "service loop hangs",
            Self::Cut(Proc::Manager(_), Proc::Manager(_)) => "managers cut off from each other",
            Self::Cut(..) => "responder cut off",
            Self::Parts(_) => "network in two parts",
            Self::Stall(..) => "feed stalled",
            Self::SlowNetwork => "slow network",
            Self::LossyDatagrams => "lossy datagrams",
            Self::LossyFabric => "lossy fabric",
            Self::Link(..) => "link down",
            Self::Node(_) => "switch down",
            Self::Split(_) => "fabric split",
            Self::OwnLink(_) => "link of a manager down",
            Self::Isolated(_) => "manager isolated",
            Self::Host(_) => "host off or on",
            Self::Responders => "all responders killed",
            Self::Disk(_, DiskFaults { is_full: true, .. }) => "disk full",
            Self::Disk(_, DiskFaults { kills_in: Some(_), .. }) => "killed while writing",
            Self::Disk(_, DiskFaults { stops_in: Some(_), .. }) => "stopped while writing",
            Self::Disk(..) => "sync failed",
            Self::WallClock(..) => "clock step",
            Self::EtcdDown => "etcd down",
            Self::EtcdMember(_) => "member of etcd down",
            Self::EtcdCut(_) => "manager cut off from etcd",
            Self::EtcdLossy(_) => "lossy network to etcd",
            Self::EtcdRefuses(EtcdRefused::Writes) => "etcd full",
            Self::EtcdRefuses(EtcdRefused::All) => "etcd denies access",
            Self::Orders(..) => "orders",
        }
    }
}

/// The ports of a switch that lead to other switches.
pub fn uplinks(fabric: &Fabric, switch: NodeIndex) -> Vec<u8> {
    let leads_on = |port: &u8| {
        let link = fabric.port(switch, *port).and_then(|port| port.link);
        link.is_some_and(|link| fabric.node(link.node).node_type == NodeType::Switch)
    };
    (1..=fabric.node(switch).num_ports).filter(leads_on).collect()
}

/// Chooses faults by the seed.
pub struct Adversary {
    random: Random,
    caused: BTreeMap<&'static str, u64>,
}

impl Adversary {
    /// An adversary that has done nothing.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed, 2), caused: BTreeMap::new() }
    }

    /// Faults caused, by name.
    pub fn caused(&self) -> Vec<(&'static str, u64)> {
        self.caused.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// The next fault. `hosts`: those of the managers, whose links stay at their end. `is_single`:
    /// no other one comes with it.
    pub fn choose(
        &mut self,
        config: &Config,
        fabric: &Fabric,
        hosts: &[NodeIndex],
        is_single: bool,
    ) -> Fault {
        let fault = match self.choose_wide(config, is_single) {
            Some(fault) => fault,
            None => self.choose_any(config, fabric, hosts),
        };
        *self.caused.entry(fault.name()).or_default() += 1;
        fault
    }

    /// A fault of those that depend on the configuration, now and then; of the master's more often
    /// if it is the only one.
    fn choose_wide(&mut self, config: &Config, is_single: bool) -> Option<Fault> {
        let random = &mut self.random;
        if is_single && random.one_in(2) {
            let manager = random.below(config.managers);
            if config.etcd && random.one_in(4) {
                return Some(Fault::EtcdMember(random.below(MEMBERS)));
            }
            if config.hangs && random.one_in(4) {
                return Some(Fault::Hang(manager));
            }
            return Some(match random.below(if config.own_ports { 6 } else { 4 }) {
                0 => Fault::Kill(Proc::Manager(manager)),
                1 => Fault::PowerLoss(manager),
                2 => Fault::Stop(Proc::Manager(manager)),
                3 if config.kills_both => Fault::KillBoth(manager, random.below(config.responders)),
                3 => Fault::Kill(Proc::Manager(manager)),
                _ => Fault::OwnLink(manager),
            });
        }
        if config.own_ports && random.one_in(10) {
            return Some(Fault::OwnLink(random.below(config.managers)));
        }
        if config.hangs && random.one_in(8) {
            return Some(Fault::Hang(random.below(config.managers)));
        }
        if config.isolates && random.one_in(8) {
            return Some(Fault::Isolated(random.below(config.managers)));
        }
        if config.spare_hosts > 0 && random.one_in(6) {
            return Some(Fault::Host(random.below(config.spare_hosts)));
        }
        (config.single_faults && random.one_in(16)).then_some(Fault::Responders)
    }

    fn choose_any(&mut self, config: &Config, fabric: &Fabric, hosts: &[NodeIndex]) -> Fault {
        let Config { managers, responders, splits, .. } = *config;
        let random = &mut self.random;
        let manager = random.below(managers);
        let process = match random.below(managers + responders) {
            index if index < managers => Proc::Manager(index),
            index => Proc::Responder(index - managers),
        };
        match random.below(if config.etcd { 26 } else { 19 }) {
            0..3 => Fault::Kill(process),
            3 => Fault::PowerLoss(manager),
            4..6 => Fault::Stop(process),
            6..8 if random.one_in(3) => {
                let all = (0..managers).map(Proc::Manager);
                let all = all.chain((0..responders).map(Proc::Responder));
                Fault::Parts(all.filter(|_| random.one_in(2)).collect())
            }
            6..8 => {
                let other = match random.below(managers + responders) {
                    index if index < managers => Proc::Manager(index),
                    index => Proc::Responder(index - managers),
                };
                match random.one_in(2) {
                    true => Fault::Cut(Proc::Manager(manager), other),
                    false => Fault::Cut(other, Proc::Manager(manager)),
                }
            }
            8 => match random.one_in(2) {
                true => Fault::SlowNetwork,
                false => Fault::LossyDatagrams,
            },
            9 => Fault::LossyFabric,
            10 => Self::link(random, fabric, hosts),
            11 => Self::switch(random, fabric),
            12 => {
                let operations = 1 + random.below(40) as u32;
                let faults = DiskFaults::default();
                let faults = match random.one_in(2) {
                    true => DiskFaults { kills_in: Some(operations), ..faults },
                    false => {
                        let time = Duration::from_millis(100 + random.below(10_000) as u64);
                        DiskFaults { stops_in: Some((operations, time)), ..faults }
                    }
                };
                Fault::Disk(manager, faults)
            }
            13 => {
                let faults = match random.one_in(2) {
                    true => DiskFaults { is_full: true, ..DiskFaults::default() },
                    false => {
                        let failing_syncs = if random.one_in(2) { 1 } else { u32::MAX };
                        DiskFaults { failing_syncs, ..DiskFaults::default() }
                    }
                };
                Fault::Disk(manager, faults)
            }
            14 => Fault::WallClock(manager, random.below(7200) as i64 - 3600),
            15 if splits => {
                let host = fabric.port(hosts[manager], 1).and_then(|port| port.link);
                host.map_or(Fault::LossyFabric, |link| Fault::Split(link.node))
            }
            15..18 => {
                Fault::Stall(Proc::Manager(manager), Proc::Responder(random.below(responders)))
            }
            18 => {
                let reroute = random.one_in(2);
                let orders = Orders { sweep: !reroute, reroute, ..Orders::default() };
                Fault::Orders(manager, orders)
            }
            19 if config.single_faults && random.one_in(2) => {
                Fault::EtcdMember(random.below(MEMBERS))
            }
            19 => Fault::EtcdDown,
            20..22 => Fault::EtcdCut(manager),
            24 => Fault::EtcdRefuses(EtcdRefused::Writes),
            25 => Fault::EtcdRefuses(EtcdRefused::All),
            _ => Fault::EtcdLossy(manager),
        }
    }

    fn link(random: &mut Random, fabric: &Fabric, hosts: &[NodeIndex]) -> Fault {
        let nodes: Vec<_> = fabric.nodes().filter(|node| !hosts.contains(node)).collect();
        let node = nodes[random.below(nodes.len())];
        let port = 1 + random.below(usize::from(fabric.node(node).num_ports)) as u8;
        Fault::Link(node, port)
    }

    /// A spine: without it there are other ways.
    fn switch(random: &mut Random, fabric: &Fabric) -> Fault {
        let has_hosts = |node: NodeIndex| {
            (1..=fabric.node(node).num_ports).any(|port| {
                let link = fabric.port(node, port).and_then(|port| port.link);
                link.is_some_and(|link| fabric.node(link.node).node_type == NodeType::Ca)
            })
        };
        let is_spine = |node: &NodeIndex| {
            fabric.node(*node).node_type == NodeType::Switch && !has_hosts(*node)
        };
        let spines: Vec<_> = fabric.nodes().filter(is_spine).collect();
        Fault::Node(spines[random.below(spines.len())])
    }

    /// Makes the fabric lose packets, or not.
    pub fn set_loss(&mut self, fabric: &mut Fabric, is_lossy: bool) {
        let loss = Probability::parse(if is_lossy { "0.5%" } else { "0" });
        // Without a link named this changes all, which cannot fail.
        let _ = fabric.set_loss(None, loss.unwrap_or_default());
    }
}

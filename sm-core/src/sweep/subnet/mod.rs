//! The subnet: data that the stages of a sweep and the tasks between sweeps share, and the types
//! that both need, such as [`owner`] and [`events`]. Nothing here imports a stage or a task.

pub(in crate::sweep) mod demands;
pub(in crate::sweep) mod election;
pub(in crate::sweep) mod events;
pub(in crate::sweep) mod fingerprint;
pub(in crate::sweep) mod handover;
pub(in crate::sweep) mod journal;
mod keys;
pub(in crate::sweep) mod lanes;
pub(in crate::sweep) mod log;
mod m_keys;
pub(in crate::sweep) mod offers;
pub(in crate::sweep) mod overwritten;
pub(in crate::sweep) mod owner;
mod partitioning;
pub(in crate::sweep) mod peer;
pub(in crate::sweep) mod pending_clients;
pub(in crate::sweep) mod registry_copy;
pub(in crate::sweep) mod report;
pub(in crate::sweep) mod routing;
pub(in crate::sweep) mod sa_guid;
pub(in crate::sweep) mod schedule;
pub(in crate::sweep) mod service;
mod shard;
pub(in crate::sweep) mod sharding;
pub(in crate::sweep) mod state;
pub(in crate::sweep) mod system_images;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ib_mad::types::{Guid, PortNum};

use crate::fabric::{DirectedRoute, Fabric, PortIndex};
use crate::manage::home::Homes;
use crate::manage::lid::LidTable;
use crate::manage::link;
use crate::manage::quarantine::Quarantine;
use crate::smp::{Destination, Exchange, Request, Timing};
use election::Election;
use events::Events;
use journal::Journal;
use m_keys::MKeys;
use overwritten::Overwritten;
use partitioning::Partitioning;
use pending_clients::{LapsedPorts, PendingClients};
use routing::RoutingState;
use schedule::Schedule;
use sharding::Shards;
use sm_config::{QosTables, Settings};
use state::SubnetState;

/// State of the subnet, the wanted configuration, and outstanding requests.
#[derive(Debug)]
pub(in crate::sweep) struct Subnet {
    pub(in crate::sweep) settings: Settings,
    /// QoS tables that the settings ask for.
    pub(in crate::sweep) qos_tables: QosTables,
    pub(in crate::sweep) fabric: Fabric,
    pub(in crate::sweep) exchange: Exchange,
    pub(in crate::sweep) schedule: Schedule,
    /// State left by earlier sweeps.
    pub(in crate::sweep) state: SubnetState,
    pub(in crate::sweep) election: Election,
    /// Settings that another manager wrote over ours.
    pub(in crate::sweep) overwritten: Overwritten,
    pub(in crate::sweep) lids: LidTable,
    /// Numbers of the ports by which the SM's own port is in the planes of a planarized fabric;
    /// none otherwise.
    pub(in crate::sweep) own_planes: Vec<PortNum>,
    pub(in crate::sweep) m_keys: MKeys,
    /// Port GUIDs by the alias GUIDs that the registry has given to these ports.
    pub(in crate::sweep) alias_owners: HashMap<Guid, Guid>,
    /// Where the GUIDs of ports belong.
    pub(in crate::sweep) homes: Homes,
    /// What does not belong, and is kept out.
    pub(in crate::sweep) quarantine: Quarantine,
    pub(in crate::sweep) partitions: Partitioning,
    /// Routing engines, and the routing in force.
    pub(in crate::sweep) routing: RoutingState,
    /// The responder that each client queries.
    pub(in crate::sweep) shards: Shards,
    pub(in crate::sweep) pending_clients: PendingClients,
    pub(in crate::sweep) lapsed: LapsedPorts,
    pub(in crate::sweep) events: Events,
    /// Report, errors and anomalies of the current sweep, or of the last one.
    pub(in crate::sweep) journal: Journal,
}

impl Subnet {
    /// An unknown subnet in which `lids` were assigned before. `seed` is for [`Exchange::new`].
    pub(in crate::sweep) fn new(settings: Settings, lids: LidTable, seed: u32) -> Self {
        let timing = Timing {
            window: settings.window(),
            timeout: Duration::from_millis(u64::from(settings.transaction_timeout)),
            long_timeout: Duration::from_millis(u64::from(settings.long_timeout())),
            retries: settings.transaction_retries,
        };
        Self {
            qos_tables: QosTables::of(&settings),
            fabric: Fabric::default(),
            exchange: Exchange::new(timing, seed),
            schedule: Schedule::new(&settings),
            state: SubnetState::default(),
            election: Election::new(&settings),
            overwritten: Overwritten::default(),
            lids,
            own_planes: Vec::new(),
            m_keys: MKeys::default(),
            alias_owners: HashMap::new(),
            homes: Homes::default(),
            quarantine: Quarantine::default(),
            partitions: Partitioning::default(),
            routing: RoutingState::new(&settings.engine_names()),
            shards: Shards::default(),
            pending_clients: PendingClients::default(),
            lapsed: LapsedPorts::default(),
            events: Events::default(),
            journal: Journal::default(),
            settings,
        }
    }

    /// Inputs for the attributes of a link.
    pub(in crate::sweep) fn link_inputs(&self) -> link::Subnet<'_> {
        let pkeys = self.partitions.plan();
        let qos = self.has_qos().then_some(&self.qos_tables);
        let virtual_fabrics = &self.partitions.virtual_fabrics;
        link::Subnet { settings: &self.settings, pkeys, qos, virtual_fabrics }
    }

    /// The directed route to the node that a request is sent to.
    pub(in crate::sweep) fn route_of(&self, request: Request) -> Option<DirectedRoute> {
        match request.destination() {
            Destination::OwnNode => Some(DirectedRoute::LOCAL),
            Destination::NodeOf(port) => self.fabric.route_to(port),
            Destination::Behind(port) => self.fabric.route_through(port),
            Destination::Beyond(port, num) => self.fabric.route_through(port)?.extended(num),
        }
    }

    /// The port by which a request leaves the SM's node, if the SM's port is planarized; 0
    /// otherwise.
    pub(in crate::sweep) fn plane_of(&self, request: Request, route: &DirectedRoute) -> PortNum {
        let Some(&first) = self.own_planes.first() else { return PortNum(0) };
        let own = match request.destination() {
            Destination::NodeOf(port) if self.fabric.is_own_port(port) => {
                self.fabric.port(port).num
            }
            _ => first,
        };
        route.ports().first().copied().unwrap_or(own)
    }

    /// A port and how requests reach it, for log lines.
    pub(in crate::sweep) fn place(&self, port: PortIndex) -> String {
        match self.fabric.route_to(port) {
            Some(route) => {
                format!("{} (directed route {route})", self.fabric.describe(port))
            }
            None => self.fabric.describe(port),
        }
    }

    /// Counts and logs an error of `port`, which is retried soon.
    pub(in crate::sweep) fn fault(&mut self, port: PortIndex, text: fmt::Arguments<'_>) {
        self.journal.fault(self.fabric.port(port).node, port, text);
    }

    /// Counts and logs an error.
    pub(in crate::sweep) fn error(&mut self, text: fmt::Arguments<'_>) {
        self.journal.error(text);
    }

    /// Counts and logs an anomaly: a fault of the fabric that the sweep can work around.
    pub(in crate::sweep) fn anomaly(&mut self, text: fmt::Arguments<'_>) {
        self.journal.anomaly(text);
    }

    /// Counts and logs an anomaly of the node of `port`.
    pub(in crate::sweep) fn node_anomaly(&mut self, port: PortIndex, text: fmt::Arguments<'_>) {
        self.journal.node_anomaly(self.fabric.port(port).node, text);
    }
}

//! The subnet: data that the phases of a sweep and the tasks between sweeps share.

use std::fmt;
use std::time::Duration;

use sm_config::{QosTables, Settings};

use super::election::state::Election;
use super::events::Events;
use super::journal::Journal;
use super::m_keys::MKeys;
use super::partitioning::Partitioning;
use super::pending_clients::PendingClients;
use super::routing::RoutingState;
use super::schedule::Schedule;
use super::sharding::Shards;
use super::state::SubnetState;
use crate::fabric::{Fabric, PortIndex};
use crate::manage::lid::LidTable;
use crate::manage::link;
use crate::smp::{Exchange, Timing};

/// State of the subnet, the wanted configuration, and outstanding requests.
#[derive(Debug)]
pub(super) struct Subnet {
    pub(super) settings: Settings,
    /// QoS tables that the settings ask for.
    pub(super) qos_tables: QosTables,
    pub(super) fabric: Fabric,
    pub(super) exchange: Exchange,
    pub(super) schedule: Schedule,
    /// State left by earlier sweeps.
    pub(super) state: SubnetState,
    pub(super) election: Election,
    pub(super) lids: LidTable,
    pub(super) m_keys: MKeys,
    pub(super) partitions: Partitioning,
    /// Routing engines, and the routing in force.
    pub(super) routing: RoutingState,
    /// The responder that each client queries.
    pub(super) shards: Shards,
    pub(super) pending_clients: PendingClients,
    pub(super) events: Events,
    /// Report, errors and anomalies of the current sweep, or of the last one.
    pub(super) journal: Journal,
}

impl Subnet {
    /// An unknown subnet in which `lids` were assigned before. `seed` is for [`Exchange::new`].
    pub(super) fn new(settings: Settings, lids: LidTable, seed: u32) -> Self {
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
            lids,
            m_keys: MKeys::default(),
            partitions: Partitioning::default(),
            routing: RoutingState::new(&settings.engine_names()),
            shards: Shards::default(),
            pending_clients: PendingClients::default(),
            events: Events::default(),
            journal: Journal::default(),
            settings,
        }
    }

    /// Inputs for the attributes of a link.
    pub(super) fn link_inputs(&self) -> link::Subnet<'_> {
        let pkeys = self.partitions.plan();
        let qos = self.settings.qos.then_some(&self.qos_tables);
        link::Subnet { settings: &self.settings, pkeys, qos }
    }

    /// A port and how requests reach it, for log lines.
    pub(super) fn place(&self, port: PortIndex) -> String {
        match self.fabric.route_to(port) {
            Some(route) => {
                format!("{} (directed route {route})", self.fabric.describe(port))
            }
            None => self.fabric.describe(port),
        }
    }

    /// Counts and logs an error of `port`, which is retried soon.
    pub(super) fn fault(&mut self, port: PortIndex, text: fmt::Arguments<'_>) {
        self.journal.fault(self.fabric.port(port).node, port, text);
    }

    /// Counts and logs an error.
    pub(super) fn error(&mut self, text: fmt::Arguments<'_>) {
        self.journal.error(text);
    }

    /// Counts and logs an anomaly: a fault of the fabric that the sweep can work around.
    pub(super) fn anomaly(&mut self, text: fmt::Arguments<'_>) {
        self.journal.anomaly(text);
    }

    /// Counts and logs an anomaly of the node of `port`.
    pub(super) fn node_anomaly(&mut self, port: PortIndex, text: fmt::Arguments<'_>) {
        self.journal.node_anomaly(self.fabric.port(port).node, text);
    }
}

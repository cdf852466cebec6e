//! The partitions in force, and the P_Key tables that follow from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ib_mad::types::Guid;

use crate::fabric::PortIndex;
use crate::manage::api_partitions::{ApiPartitions, Conflicts};
use crate::manage::partition::Memberships;
use crate::manage::pkey::PKeyPlan;
use crate::manage::vfabric::VirtualFabrics;
use sm_config::PartitionConfig;
use sm_config::opafm::OpaFm;

/// Configured partitions, and their resolution by the last sweep.
#[derive(Debug)]
pub(in crate::sweep) struct Partitioning {
    pub(in crate::sweep) config: Arc<PartitionConfig>,
    /// The partitions of operators' files as the last sweep resolved them.
    pub(in crate::sweep) of_files: Arc<PartitionConfig>,
    /// Partitions that programs made; `None` while they are unknown.
    pub(in crate::sweep) api: Option<Arc<ApiPartitions>>,
    /// What they and the operator's files disagree about, as the last sweep or change found.
    pub(in crate::sweep) conflicts: Conflicts,
    pub(in crate::sweep) virtual_fabric_file: Option<Arc<OpaFm>>,
    /// Virtual fabrics as the last sweep resolved them.
    pub(in crate::sweep) virtual_fabrics: VirtualFabrics,
    /// Whether virtual fabrics have had bandwidth since the start.
    pub(in crate::sweep) arbitrated: bool,
    /// The inputs of `memberships`.
    pub(in crate::sweep) in_force: Arc<PartitionConfig>,
    /// GUIDs of the ports that responders serve at, ascending.
    pub(in crate::sweep) responders: Vec<Guid>,
    pub(in crate::sweep) memberships: Memberships,
    pub(in crate::sweep) plan: PKeyPlan,
    /// Ports with virtual ports whose tables were not right when plans were last computed.
    pub(in crate::sweep) wrong_virtual_hosts: Vec<PortIndex>,
    /// Ports that can have virtual ports and whose own tables were set since the last sweep: those
    /// of their virtual ports are to follow soon.
    pub(in crate::sweep) rewritten_hosts: BTreeSet<PortIndex>,
    /// Ports whose tables were reported as too small.
    pub(in crate::sweep) reported: BTreeSet<PortIndex>,
}

impl Default for Partitioning {
    fn default() -> Self {
        Self {
            config: Arc::default(),
            of_files: Arc::default(),
            api: Some(Arc::default()),
            conflicts: Conflicts::default(),
            virtual_fabric_file: None,
            virtual_fabrics: VirtualFabrics::default(),
            arbitrated: false,
            in_force: Arc::default(),
            responders: Vec::new(),
            memberships: Memberships::default(),
            plan: PKeyPlan::default(),
            wrong_virtual_hosts: Vec::new(),
            rewritten_hosts: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }
}

impl Partitioning {
    /// Wanted P_Key tables.
    pub(in crate::sweep) fn plan(&self) -> &PKeyPlan {
        &self.plan
    }

    /// Removes everything that refers to fabric indices.
    pub(in crate::sweep) fn forget(&mut self) {
        self.memberships = Memberships::default();
        self.plan = PKeyPlan::default();
        self.wrong_virtual_hosts.clear();
        self.rewritten_hosts.clear();
        self.reported.clear();
    }
}

//! What the site's policy files come to on a fabric, as rows of a snapshot.

use sa_proto::snapshot::{Partition, PortGroup, PrefixRoute, QosLevel, QosRule, VirtualFabric};

/// Partitions, QoS and virtual fabrics, resolved against a fabric. Rows need not be sorted.
#[derive(Clone, Debug, Default)]
pub struct PolicyRows {
    /// Whether QoS is on.
    pub qos: bool,
    /// Whether a port may have a P_Key as full and as limited member at once.
    pub allow_both_pkeys: bool,
    /// Whether trusted requesters see what shares no partition with them.
    pub trusted_see_all: bool,
    /// The greatest code of a rate that is told.
    pub max_rate: u8,
    /// Whether InfiniHost adapters are told a lower MTU.
    pub quirks: bool,
    /// Ways to other subnets, the first that fits is taken.
    pub prefix_routes: Vec<PrefixRoute>,
    /// Partitions.
    pub partitions: Vec<Partition>,
    /// Port groups of rules and virtual fabrics.
    pub port_groups: Vec<PortGroup>,
    /// Levels of rules.
    pub qos_levels: Vec<QosLevel>,
    /// Rules, by precedence.
    pub qos_rules: Vec<QosRule>,
    /// Virtual fabrics.
    pub virtual_fabrics: Vec<VirtualFabric>,
}

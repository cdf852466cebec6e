//! The site's policy resolved against a fabric, as rows of a snapshot.

use sa_proto::snapshot::{Partition, PortGroup, PrefixRoute, QosLevel, QosRule, VirtualFabric};

/// Partitions, QoS and virtual fabrics, resolved against a fabric. Rows need not be sorted.
#[derive(Clone, Debug, Default)]
pub struct PolicyRows {
    /// Whether QoS is on.
    pub qos: bool,
    /// Whether a port may have a P_Key as full and as limited member at once.
    pub allow_both_pkeys: bool,
    /// Whether trusted requesters see ports that share no partition with them.
    pub trusted_see_all: bool,
    /// The greatest rate code in answers.
    pub max_rate: u8,
    /// Whether InfiniHost adapters get a lower MTU in answers.
    pub quirks: bool,
    /// Prefix routes to other subnets; the first match applies.
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

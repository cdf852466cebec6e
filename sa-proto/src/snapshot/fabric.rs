//! The fabric plane: nodes, ports, links, forwarding tables and subnet parameters.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, Lifetime, PKey, PortNum, Rate};

use super::by_lid::by_lid_row;
use super::device::{Mft, PortTables, SubnetManager};
use super::encoding::canonical;
use super::entries::Entries;
use super::policy::{Partition, PortGroup, PrefixRoute, QosLevel, QosRule, VirtualFabric};
use super::row::{NoPatch, Row, Table, same};

/// What a sweep found and configured.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FabricPlane {
    /// Parameters of the subnet as a whole.
    pub subnet: Subnet,
    /// All nodes, ascending by node GUID, each once.
    pub nodes: Vec<Arc<Node>>,
    /// The forwarding tables of all switches, ascending by node GUID, each once.
    pub lfts: Vec<Arc<Lft>>,
    /// SLs of paths by source switch, ascending by node GUID; none of engines that leave SLs alone.
    pub path_sls: Vec<Arc<PathSls>>,
    /// SL-to-VL and VL arbitration tables, ascending by node GUID.
    pub port_tables: Vec<Arc<PortTables>>,
    /// Multicast forwarding tables, ascending by the switch's node GUID.
    pub mfts: Vec<Arc<Mft>>,
    /// Subnet managers, ascending by port GUID.
    pub subnet_managers: Vec<Arc<SubnetManager>>,
    /// Partitions, ascending by base P_Key.
    pub partitions: Vec<Arc<Partition>>,
    /// Port groups that QoS rules and virtual fabrics name, ascending by number.
    pub port_groups: Vec<Arc<PortGroup>>,
    /// Levels that QoS rules name, ascending by number.
    pub qos_levels: Vec<Arc<QosLevel>>,
    /// QoS rules, by precedence: those of virtual fabrics and of the QoS policy.
    pub qos_rules: Vec<Arc<QosRule>>,
    /// Virtual fabrics, by position in their file.
    pub virtual_fabrics: Vec<Arc<VirtualFabric>>,
}

impl FabricPlane {
    /// Whether two planes differ at most in how switches forward multicast. Rows that they share
    /// are not looked at.
    pub fn is_same_but_multicast(&self, other: &Self) -> bool {
        // Named one by one, so that a new table cannot be forgotten.
        let Self {
            subnet,
            nodes,
            lfts,
            path_sls,
            port_tables,
            mfts: _,
            subnet_managers,
            partitions,
            port_groups,
            qos_levels,
            qos_rules,
            virtual_fabrics,
        } = self;
        *subnet == other.subnet
            && same_rows(nodes, &other.nodes)
            && same_rows(lfts, &other.lfts)
            && same_rows(path_sls, &other.path_sls)
            && same_rows(port_tables, &other.port_tables)
            && same_rows(subnet_managers, &other.subnet_managers)
            && same_rows(partitions, &other.partitions)
            && same_rows(port_groups, &other.port_groups)
            && same_rows(qos_levels, &other.qos_levels)
            && same_rows(qos_rules, &other.qos_rules)
            && same_rows(virtual_fabrics, &other.virtual_fabrics)
    }
}

fn same_rows<R: Row>(a: &[Arc<R>], b: &[Arc<R>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

/// Parameters of the subnet as a whole.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Subnet {
    /// Upper half of every port's GID.
    pub prefix: u64,
    /// LID of the port that the SM runs on.
    pub sm_lid: Lid,
    /// GUID of that port.
    pub sm_port_guid: Guid,
    /// The packet lifetime reported for every path (OpenSM's `subnet_timeout`).
    pub lifetime: Lifetime,
    /// The SM_Key that makes an SA request trusted (`sa_key`); 0 means that none is. A secret:
    /// never logged, and not in a cache file.
    pub sa_key: u64,
    /// Response time of the SA as ClassPortInfo states it; 4.096 µs × 2^n.
    pub response_time: Lifetime,
    /// Name of the routing engine that made the tables.
    pub routing_engine: String,
    /// Whether QoS is on (`qos`): rules and levels apply.
    pub qos: bool,
    /// Whether a port may have a P_Key as full and as limited member at once
    /// (`allow_both_pkeys`).
    pub allow_both_pkeys: bool,
    /// Whether trusted requesters see records of ports that share no partition with them.
    pub trusted_see_all: bool,
    /// Bits of a path's SL that the routing engine decides, by [`PathSls`]; policy decides the
    /// others. 0 for engines that leave SLs alone.
    pub engine_sls: u8,
    /// The greatest code of a rate that requesters are told (`max_rate_enum`); 0 is no limit.
    pub max_rate: u8,
    /// Whether paths of InfiniHost adapters are told an MTU of 1,024 bytes unless more is asked for
    /// (`enable_quirks`).
    pub quirks: bool,
    /// Ways to other subnets; the first that fits is taken.
    pub prefix_routes: Vec<PrefixRoute>,
}

/// The fastest rate up to `rate` whose code is `max_rate` at most; 0 is no limit. Codes are in no order
/// of speed: where 300 Gb/s (18) is the limit, 28 Gb/s (19) is told as 25.
pub fn told_rate(max_rate: u8, rate: Rate) -> Rate {
    let is_told = |rate: &Rate| max_rate == 0 || rate.code() <= max_rate;
    let slower = Rate::BY_VALUE[..usize::from(rate.rank())].iter().rev();
    slower.copied().find(is_told).unwrap_or(Rate::Gbps2_5)
}

/// A channel adapter, switch or router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node GUID, the key of this row.
    pub guid: Guid,
    /// NodeInfo as it is on the wire; its port-specific fields are those of the first port seen.
    pub info: [u8; 40],
    /// NodeDescription as it is on the wire.
    pub description: [u8; 64],
    /// SwitchInfo as it is on the wire, for switches.
    pub switch_info: Option<[u8; 20]>,
    /// Ports seen, ascending by number; port 0 only on switches.
    pub ports: Vec<Port>,
}

/// One port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number on its node.
    pub num: PortNum,
    /// Port GUID; a switch's external ports have that of its port 0.
    pub guid: Guid,
    /// PortInfo as it is on the wire, M_Key blanked.
    pub info: [u8; 64],
    /// The P_Key table up to its last valid key; an entry without key is 0.
    pub pkeys: Arc<[PKey]>,
    /// Node GUID and port at the other end of the link, if there is one.
    pub peer: Option<(Guid, PortNum)>,
}

impl Node {
    /// The port with this number, if it was seen.
    pub fn port(&self, num: PortNum) -> Option<&Port> {
        self.ports.binary_search_by_key(&num, |port| port.num).ok().map(|at| &self.ports[at])
    }
}

impl Port {
    /// Where `info` has M_Key, which never leaves the SM.
    pub const M_KEY: Range<usize> = 0..8;
}

/// A switch's linear forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lft {
    /// The switch's node GUID, the key of this row.
    pub switch: Guid,
    /// Egress port by DLID, in whole blocks of 64 entries; 255 means none.
    pub ports: Entries,
}

/// The SLs that the routing engine gives to paths from the hosts of a switch, and from itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSls {
    /// The switch's node GUID, the key of this row.
    pub switch: Guid,
    /// SL by DLID, of which [`Subnet::engine_sls`] counts; in whole blocks of 64 entries.
    pub sls: Vec<u8>,
}

impl Lft {
    /// Entries in a block of the table (14.2.5.10).
    pub const BLOCK_LEN: usize = 64;
    /// The entry for a destination without a route.
    pub const NO_ROUTE: u8 = 0xFF;
    /// Blocks that a table can have: enough for every unicast LID.
    pub const BLOCKS_MAX: usize = (Lid::UNICAST_LAST.0 as usize + 1) / Self::BLOCK_LEN;

    /// The table's blocks, in order.
    pub fn blocks(&self) -> &[[u8; Self::BLOCK_LEN]] {
        self.ports.as_chunks().0
    }
}

impl Row for Node {
    type Key = Guid;
    type Patch = NoPatch;
    const TABLE: Table = Table::Nodes;
    fn key(&self) -> Guid {
        self.guid
    }
}

by_lid_row!(Lft { switch, ports }, Lfts, Lft::NO_ROUTE);
by_lid_row!(PathSls { switch, sls }, PathSls, 0);

canonical!(Subnet {
    prefix,
    sm_lid,
    sm_port_guid,
    lifetime,
    sa_key,
    response_time,
    routing_engine,
    qos,
    allow_both_pkeys,
    trusted_see_all,
    engine_sls,
    max_rate,
    quirks,
    prefix_routes
});
canonical!(Node { guid, info, description, switch_info, ports });
canonical!(Port { num, guid, info, pkeys, peer });

impl fmt::Debug for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subnet")
            .field("prefix", &format_args!("{:#018x}", self.prefix))
            .field("sm_lid", &self.sm_lid)
            .field("sm_port_guid", &self.sm_port_guid)
            .field("lifetime", &self.lifetime)
            .field("response_time", &self.response_time)
            .field("routing_engine", &self.routing_engine)
            .field("qos", &self.qos)
            .field("allow_both_pkeys", &self.allow_both_pkeys)
            .field("trusted_see_all", &self.trusted_see_all)
            .field("engine_sls", &self.engine_sls)
            .field("max_rate", &self.max_rate)
            .field("quirks", &self.quirks)
            .field("prefix_routes", &self.prefix_routes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_beyond_the_greatest_code_are_told_as_slower_ones() {
        let told = told_rate;
        for rate in Rate::BY_VALUE {
            assert_eq!((told(0, rate), told(63, rate)), (rate, rate));
            assert!(told(18, rate).code() <= 18 && told(18, rate).rank() <= rate.rank());
        }
        assert_eq!(told(18, Rate::Gbps1200), Rate::Gbps300);
        assert_eq!(told(18, Rate::Gbps28), Rate::Gbps25);
        assert_eq!(told(7, Rate::Gbps100), Rate::Gbps40);
        assert_eq!(told(21, Rate::Gbps800), Rate::Gbps400);
        assert_eq!(told(2, Rate::Gbps10), Rate::Gbps2_5);
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let subnet = Subnet { sa_key: 0x5EC2_E75E, ..Subnet::default() };
        assert!(!format!("{subnet:x?}").to_lowercase().contains("5ec2e75e"));
    }
}

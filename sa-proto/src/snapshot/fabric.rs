//! The fabric plane: nodes, ports, links, forwarding tables and subnet parameters.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, Lifetime, PKey, PortNum, Rate};
use ib_mad::wire::attribute::PortInfo;

use super::blocks::{BLOCK_LEN, BLOCKS_MAX};
use super::by_lid::by_lid_row;
use super::device::{Mft, PortTables, SubnetManager, VirtualPorts};
use super::encoding::canonical;
use super::entries::Entries;
use super::policy::{Partition, PortGroup, PrefixRoute, QosLevel, QosRule, VirtualFabric};
use super::row::{NoPatch, Row, same};
use super::tables::Table;

/// State of the fabric after a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FabricPlane {
    /// Parameters of the subnet as a whole.
    pub subnet: Subnet,
    /// All nodes, ascending by node GUID, without duplicates.
    pub nodes: Vec<Arc<Node>>,
    /// Linear forwarding tables of all switches, ascending by node GUID, without duplicates.
    pub lfts: Vec<Arc<Lft>>,
    /// SLs of paths by source switch, ascending by node GUID; empty for engines that do not
    /// determine SLs.
    pub path_sls: Vec<Arc<PathSls>>,
    /// SL-to-VL and VL arbitration tables, ascending by node GUID.
    pub port_tables: Vec<Arc<PortTables>>,
    /// Virtual ports, ascending by the GUID of the port that has them.
    pub virtual_ports: Vec<Arc<VirtualPorts>>,
    /// Multicast forwarding tables, ascending by the switch's node GUID.
    pub mfts: Vec<Arc<Mft>>,
    /// Subnet managers, ascending by port GUID.
    pub subnet_managers: Vec<Arc<SubnetManager>>,
    /// Partitions, ascending by base P_Key.
    pub partitions: Vec<Arc<Partition>>,
    /// Port groups of QoS rules and virtual fabrics, ascending by number.
    pub port_groups: Vec<Arc<PortGroup>>,
    /// QoS levels that rules refer to, ascending by number.
    pub qos_levels: Vec<Arc<QosLevel>>,
    /// QoS rules, by precedence: those of virtual fabrics and of the QoS policy.
    pub qos_rules: Vec<Arc<QosRule>>,
    /// Virtual fabrics, by position in their file.
    pub virtual_fabrics: Vec<Arc<VirtualFabric>>,
}

impl FabricPlane {
    /// Whether two planes differ at most in multicast forwarding. Shared rows are not compared.
    pub fn is_same_but_multicast(&self, other: &Self) -> bool {
        self.is_same_but_routes_and_partitions(other)
            && same_rows(&self.nodes, &other.nodes)
            && same_rows(&self.lfts, &other.lfts)
            && same_rows(&self.path_sls, &other.path_sls)
            && same_rows(&self.port_tables, &other.port_tables)
            && same_rows(&self.partitions, &other.partitions)
            && same_rows(&self.subnet_managers, &other.subnet_managers)
    }

    /// Whether two planes differ at most in nodes, subnet managers, partitions, and what switches
    /// and ports are programmed with for packets on their way. Shared rows are not compared.
    pub fn is_same_but_routes_and_partitions(&self, other: &Self) -> bool {
        // Destructured, so that a new table cannot be forgotten: it belongs here or above.
        let Self {
            subnet,
            nodes: _,
            lfts: _,
            path_sls: _,
            port_tables: _,
            virtual_ports,
            mfts: _,
            subnet_managers: _,
            partitions: _,
            port_groups,
            qos_levels,
            qos_rules,
            virtual_fabrics,
        } = self;
        *subnet == other.subnet
            && same_rows(virtual_ports, &other.virtual_ports)
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
    /// Subnet prefix.
    pub prefix: u64,
    /// LID of the port that the SM runs on.
    pub sm_lid: Lid,
    /// GUID of that port.
    pub sm_port_guid: Guid,
    /// Packet lifetime reported for all paths (OpenSM's `subnet_timeout`).
    pub lifetime: Lifetime,
    /// The SM_Key that makes an SA request trusted (`sa_key`); 0 if none. A secret: never logged,
    /// and not in a cache file.
    pub sa_key: u64,
    /// RespTimeValue of the SA in ClassPortInfo; 4.096 µs × 2^n.
    pub response_time: Lifetime,
    /// Name of the routing engine that computed the tables.
    pub routing_engine: String,
    /// Whether QoS is enabled (`qos`): rules and levels apply.
    pub qos: bool,
    /// Whether a port may be a full and a limited member of a partition at once
    /// (`allow_both_pkeys`).
    pub allow_both_pkeys: bool,
    /// Whether trusted requesters receive records of ports that share no partition with them.
    pub trusted_see_all: bool,
    /// Bits of a path's SL that the routing engine determines, by [`PathSls`]; policy determines
    /// the others. 0 for engines that do not determine SLs.
    pub engine_sls: u8,
    /// The highest rate code in responses (`max_rate_enum`); 0 for no limit.
    pub max_rate: u8,
    /// Whether paths of InfiniHost adapters are limited to an MTU of 1,024 bytes unless the request
    /// asks for more (`enable_quirks`).
    pub quirks: bool,
    /// Routes to other subnets, in order of precedence.
    pub prefix_routes: Vec<PrefixRoute>,
}

/// The fastest rate up to `rate` whose code is at most `max_rate`; 0 for no limit. Codes are not in
/// order of speed: with a limit of 300 Gb/s (18), 28 Gb/s (19) becomes 25 Gb/s.
pub fn limited_rate(max_rate: u8, rate: Rate) -> Rate {
    let is_allowed = |rate: &Rate| max_rate == 0 || rate.code() <= max_rate;
    let slower = Rate::BY_VALUE[..usize::from(rate.rank())].iter().rev();
    slower.copied().find(is_allowed).unwrap_or(Rate::Gbps2_5)
}

/// A channel adapter, switch or router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node GUID, the key of this row.
    pub guid: Guid,
    /// NodeInfo in wire format; its port-specific fields are those of the first port discovered.
    pub info: [u8; 40],
    /// NodeDescription in wire format.
    pub description: [u8; 64],
    /// SwitchInfo in wire format, for switches.
    pub switch_info: Option<[u8; 20]>,
    /// Discovered ports, ascending by number; port 0 only on switches.
    pub ports: Vec<Port>,
}

/// One port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Port number.
    pub num: PortNum,
    /// PortGUID; external ports of a switch have that of port 0.
    pub guid: Guid,
    /// PortInfo in wire format, with the M_Key cleared.
    pub info: [u8; 64],
    /// The P_Key table up to its last valid key; unused entries are 0.
    pub pkeys: Arc<[PKey]>,
    /// Node GUID and port number of the link's far end, if there is a link.
    pub peer: Option<(Guid, PortNum)>,
}

impl Node {
    /// The port with this number, if discovered.
    pub fn port(&self, num: PortNum) -> Option<&Port> {
        self.ports.binary_search_by_key(&num, |port| port.num).ok().map(|at| &self.ports[at])
    }

    /// Whether a port of an adapter is one of several with its port GUID, which are the planes of
    /// one port in a planarized fabric, and another one stands for that: the first with a LID, or
    /// else the first.
    pub fn is_further_plane(&self, port: &Port) -> bool {
        if self.switch_info.is_some() || self.ports.len() < 2 {
            return false;
        }
        let planes = || self.ports.iter().filter(|other| other.guid == port.guid);
        let has_lid = |port: &&Port| PortInfo::of(&port.info).base_lid() != Lid::NONE;
        let first = planes().find(has_lid).or_else(|| planes().next());
        first.is_some_and(|first| first.num != port.num)
    }
}

impl Port {
    /// Offset of the M_Key in `info`; M_Keys never leave the SM.
    pub const M_KEY: Range<usize> = 0..8;
}

/// A switch's linear forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lft {
    /// The switch's node GUID, the key of this row.
    pub switch: Guid,
    /// Output port by DLID, in whole blocks of 64 entries; 255 for none.
    pub ports: Entries,
}

/// SLs that the routing engine assigned to paths from a switch and its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSls {
    /// The switch's node GUID, the key of this row.
    pub switch: Guid,
    /// SL by DLID, of which the bits in [`Subnet::engine_sls`] apply; in whole blocks of 64
    /// entries.
    pub sls: Vec<u8>,
}

impl Lft {
    /// Entries in a block of the table (IBA 14.2.5.10).
    pub const BLOCK_LEN: usize = BLOCK_LEN;
    /// Entry of a destination without a route.
    pub const NO_ROUTE: u8 = 0xFF;
    /// Limit of blocks of a table: all unicast LIDs.
    pub const BLOCKS_MAX: usize = BLOCKS_MAX;

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
    fn rates_beyond_the_greatest_code_become_slower_ones() {
        let limited = limited_rate;
        for rate in Rate::BY_VALUE {
            assert_eq!((limited(0, rate), limited(63, rate)), (rate, rate));
            assert!(limited(18, rate).code() <= 18 && limited(18, rate).rank() <= rate.rank());
        }
        assert_eq!(limited(18, Rate::Gbps1200), Rate::Gbps300);
        assert_eq!(limited(18, Rate::Gbps28), Rate::Gbps25);
        assert_eq!(limited(7, Rate::Gbps100), Rate::Gbps40);
        assert_eq!(limited(21, Rate::Gbps800), Rate::Gbps400);
        assert_eq!(limited(2, Rate::Gbps10), Rate::Gbps2_5);
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let subnet = Subnet { sa_key: 0x5EC2_E75E, ..Subnet::default() };
        assert!(!format!("{subnet:x?}").to_lowercase().contains("5ec2e75e"));
    }
}

//! The fabric plane: nodes, ports, links, forwarding tables and subnet parameters.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, Lifetime, PKey, PortNum};

use super::blocks::{BlockReader, BlockWriter};
use super::device::{Mft, PortTables, SubnetManager};
use super::encoding::{Canonical, Malformed, Reader, canonical};
use super::policy::{Partition, PortGroup, PrefixRoute, QosLevel, QosRule, VirtualFabric};
use super::row::{NoPatch, Patch, Row, Side, Table, join, same};

/// What a sweep found and configured.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FabricPlane {
    /// Parameters of the subnet as a whole.
    pub subnet: Subnet,
    /// All nodes, ascending by node GUID, each once.
    pub nodes: Vec<Arc<Node>>,
    /// The forwarding tables of all switches, ascending by node GUID, each once.
    pub lfts: Vec<Arc<Lft>>,
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
    /// Ways to other subnets; the first that fits is taken.
    pub prefix_routes: Vec<PrefixRoute>,
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
    pub ports: Vec<u8>,
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

/// Changed blocks of a forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LftPatch {
    /// Blocks that the changed table has; what it grows by is among `blocks`.
    len_blocks: u16,
    /// Number and content of changed blocks, ascending.
    blocks: Vec<(u16, [u8; Lft::BLOCK_LEN])>,
}

impl LftPatch {
    /// Numbers of the changed blocks, ascending.
    pub fn changed(&self) -> impl Iterator<Item = u16> + '_ {
        self.blocks.iter().map(|&(number, _)| number)
    }
}

impl Patch<Lft> for LftPatch {
    fn between(old: &Lft, new: &Lft) -> Option<Self> {
        let (old, new) = (old.blocks(), new.blocks());
        let blocks: Vec<_> = (0u16..)
            .zip(new)
            .filter(|&(number, block)| old.get(usize::from(number)) != Some(block))
            .map(|(number, &block)| (number, block))
            .collect();
        (blocks.len() < new.len()).then_some(Self { len_blocks: new.len() as u16, blocks })
    }

    fn apply(&self, row: &Lft) -> Lft {
        let mut ports = row.ports.clone();
        ports.resize(usize::from(self.len_blocks) * Lft::BLOCK_LEN, Lft::NO_ROUTE);
        let blocks = ports.as_chunks_mut().0;
        for (number, block) in &self.blocks {
            if let Some(place) = blocks.get_mut(usize::from(*number)) {
                *place = *block;
            }
        }
        Lft { switch: row.switch, ports }
    }

    fn merge(&self, later: &Self) -> Self {
        let mut blocks: Vec<_> = join_by_number(&self.blocks, &later.blocks).collect();
        blocks.retain(|&(number, _)| number < later.len_blocks);
        Self { len_blocks: later.len_blocks, blocks }
    }
}

/// The blocks of both lists, the later one's where both have one.
fn join_by_number<'a, B: Copy>(
    earlier: &'a [(u16, B)],
    later: &'a [(u16, B)],
) -> impl Iterator<Item = (u16, B)> + 'a {
    join(earlier.iter().copied(), later.iter().copied()).map(|(number, side)| match side {
        Side::Left(block) | Side::Right(block) | Side::Both(_, block) => (number, block),
    })
}

impl Canonical for LftPatch {
    fn put(&self, out: &mut Vec<u8>) {
        self.len_blocks.put(out);
        self.blocks.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len_blocks = u16::take(input)?;
        let blocks: Vec<(u16, [u8; Lft::BLOCK_LEN])> = Canonical::take(input)?;
        if usize::from(len_blocks) > Lft::BLOCKS_MAX {
            return Err(Malformed("a forwarding table beyond the last unicast LID"));
        }
        let ascending = blocks.is_sorted_by(|a, b| a.0 < b.0);
        if !ascending || blocks.last().is_some_and(|&(last, _)| last >= len_blocks) {
            return Err(Malformed("blocks of a forwarding table out of order or beyond its end"));
        }
        Ok(Self { len_blocks, blocks })
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

impl Row for Lft {
    type Key = Guid;
    type Patch = LftPatch;
    const TABLE: Table = Table::Lfts;
    fn key(&self) -> Guid {
        self.switch
    }

    fn put_sharing(&self, blocks: &mut BlockWriter, out: &mut Vec<u8>) {
        self.switch.put(out);
        (self.blocks().len() as u32).put(out);
        self.blocks().iter().for_each(|block| blocks.put(block, out));
    }
    fn take_sharing(blocks: &mut BlockReader, input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let switch = Guid::take(input)?;
        let count = input.count(size_of::<u16>())?;
        if count > Self::BLOCKS_MAX {
            return Err(Malformed("a forwarding table beyond the last unicast LID"));
        }
        let mut ports = Vec::with_capacity(count * Self::BLOCK_LEN);
        for _ in 0..count {
            ports.extend_from_slice(&blocks.take(input)?);
        }
        Ok(Self { switch, ports })
    }
}

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
    prefix_routes
});
canonical!(Node { guid, info, description, switch_info, ports });
canonical!(Port { num, guid, info, pkeys, peer });

impl Canonical for Lft {
    fn put(&self, out: &mut Vec<u8>) {
        self.switch.put(out);
        (self.ports.len() as u32).put(out);
        out.extend_from_slice(&self.ports);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let switch = Guid::take(input)?;
        let len = input.count(1)?;
        Ok(Self { switch, ports: input.bytes(len)?.to_vec() })
    }
}

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
            .field("prefix_routes", &self.prefix_routes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lft(blocks: &[u8]) -> Lft {
        let ports = blocks.iter().flat_map(|&fill| [fill; Lft::BLOCK_LEN]).collect();
        Lft { switch: Guid(1), ports }
    }

    #[test]
    fn a_patch_carries_changed_blocks_only() {
        let (old, new) = (lft(&[1, 2, 3, 4]), lft(&[1, 9, 3, 4]));
        let patch = LftPatch::between(&old, &new).unwrap();
        assert_eq!(patch.changed().collect::<Vec<_>>(), [1]);
        assert_eq!(patch.apply(&old), new);
    }

    #[test]
    fn tables_may_shrink_and_grow_again() {
        let (a, b, c) = (lft(&[1, 2, 3]), lft(&[1, 2]), lft(&[1, 2, 7, 8]));
        let (shrink, grow) =
            (LftPatch::between(&a, &b).unwrap(), LftPatch::between(&b, &c).unwrap());
        assert_eq!(shrink.apply(&a), b);
        assert_eq!(grow.apply(&b), c);
        assert_eq!(shrink.merge(&grow).apply(&a), c);
        let back = LftPatch::between(&c, &b).unwrap();
        assert_eq!(grow.merge(&back).apply(&b), b);
    }

    #[test]
    fn a_table_that_changed_everywhere_is_sent_whole() {
        assert_eq!(LftPatch::between(&lft(&[1, 2]), &lft(&[3, 4])), None);
    }

    #[test]
    fn a_patch_beyond_its_table_is_refused() {
        let mut bytes = Vec::new();
        LftPatch { len_blocks: 2, blocks: vec![(2, [0; 64])] }.put(&mut bytes);
        assert!(super::super::encoding::decode::<LftPatch>(&bytes).is_err());
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let subnet = Subnet { sa_key: 0x5EC2_E75E, ..Subnet::default() };
        assert!(!format!("{subnet:x?}").to_lowercase().contains("5ec2e75e"));
    }
}

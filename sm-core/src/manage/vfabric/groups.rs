//! Virtual fabrics as partitions, and the multicast groups that they have from the beginning.

use std::collections::BTreeMap;

use ib_mad::types::{Gid, Guid, PKey, Sl};

use super::by_mgid::accepts;
use super::{VirtualFabric, VirtualFabrics};
use sm_config::opafm::MulticastGroup;
use sm_config::partitions::{Group, GroupSl, Membership, Partition, PartitionConfig, Ports, Rule};

/// The lower half of IPoIB's own MGIDs: broadcast (IPv4 only), all nodes, all routers or IGMP, and
/// multicast DNS.
const IPV4_GROUPS: [u64; 4] = [0xFFFF_FFFF, 1, 0x16, 0xFB];
const IPV6_GROUPS: [u64; 4] = [1, 2, 0x16, 0xFB];

/// A partition as virtual fabrics make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPartition {
    /// P_Key without the membership bit.
    pub pkey: PKey,
    /// Name of the first virtual fabric that has it.
    pub name: String,
    /// SL of that one.
    pub sl: Sl,
    /// Port GUIDs of full members, ascending.
    pub full: Vec<Guid>,
    /// Port GUIDs of members that are nowhere full ones, ascending.
    pub limited: Vec<Guid>,
}

impl VirtualFabrics {
    /// The partitions of all virtual fabrics that pass traffic, by the order of the file.
    pub fn partitions(&self) -> Vec<FabricPartition> {
        // Full membership in one virtual fabric is full membership in the partition.
        let mut order: Vec<PKey> = Vec::new();
        let mut members: BTreeMap<PKey, BTreeMap<usize, bool>> = BTreeMap::new();
        for (_, fabric) in self.active() {
            let ports = members.entry(fabric.pkey).or_insert_with(|| {
                order.push(fabric.pkey);
                BTreeMap::new()
            });
            for port in self.ports_of(&fabric.full) {
                ports.insert(port, true);
            }
            for port in self.ports_of(&fabric.limited) {
                ports.entry(port).or_insert(false);
            }
        }
        let partition = |pkey: PKey| {
            let (_, first) = self.active().find(|(_, fabric)| fabric.pkey == pkey)?;
            let ports = members.get(&pkey)?;
            let guids = |full| {
                let of_kind = ports.iter().filter(move |(_, is_full)| **is_full == full);
                let mut guids: Vec<Guid> = of_kind.map(|(&at, _)| self.ports[at].0).collect();
                guids.sort_unstable();
                guids
            };
            let (full, limited) = (guids(true), guids(false));
            Some(FabricPartition {
                pkey,
                name: first.name.clone(),
                sl: first.base_sl,
                full,
                limited,
            })
        };
        order.into_iter().filter_map(partition).collect()
    }

    /// `config` with the partitions and groups of virtual fabrics: where both are about the same
    /// port and P_Key, the virtual fabric prevails; of two groups with one MGID, `config`'s.
    pub fn join(&self, config: &PartitionConfig) -> PartitionConfig {
        let partitions = self.partitions();
        let rule = |pkey, guid, membership| Rule {
            pkey,
            ports: Ports::Guid(guid),
            membership,
            first: false,
        };
        let rules = partitions.iter().flat_map(|partition| {
            let of = move |guids: &[Guid], membership| -> Vec<Rule> {
                guids.iter().map(|&guid| rule(partition.pkey, guid, membership)).collect()
            };
            let full = of(&partition.full, Membership::Full);
            full.into_iter().chain(of(&partition.limited, Membership::Limited))
        });
        let named = partitions.iter().map(|partition| Partition {
            pkey: partition.pkey,
            name: partition.name.clone(),
            sl: partition.sl,
        });
        config.joined(named.collect(), rules.collect(), self.groups())
    }

    /// The groups to be created in advance, each MGID once.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for wanted in &self.multicast_groups {
            for (at, fabric) in self.active() {
                let meant = match (wanted.virtual_fabric, wanted.pkey) {
                    (Some(named), _) => named == at,
                    (None, Some(pkey)) => pkey.base() == fabric.pkey.base(),
                    (None, None) => true,
                };
                if !meant {
                    continue;
                }
                // Named outright, a group needs no application; else the virtual fabric takes it.
                let outright = wanted.virtual_fabric.is_some() && !wanted.mgids.is_empty();
                for mgid in mgids(wanted, fabric.pkey) {
                    let known = groups.iter().any(|group| group.mgid == mgid);
                    if !known && (outright || self.takes(fabric, mgid)) {
                        groups.push(group(wanted, fabric, mgid));
                    }
                }
            }
        }
        groups
    }

    /// Whether a group with this MGID is a virtual fabric's.
    fn takes(&self, fabric: &VirtualFabric, mgid: Gid) -> bool {
        let names = |fabric: &VirtualFabric| accepts(&fabric.traffic.mgids, mgid);
        names(fabric)
            || (fabric.traffic.unmatched_mgids && !self.active().any(|(_, other)| names(other)))
    }
}

/// The MGIDs that are wanted, each with the P_Key in it if it has a place for one.
fn mgids(wanted: &MulticastGroup, pkey: PKey) -> Vec<Gid> {
    let ip = |signature: u16, low: u64| with_pkey(ip_mgid(signature, low), pkey);
    if wanted.mgids.is_empty() {
        let ipv4 = IPV4_GROUPS.iter().map(|&low| ip(0x401B, low));
        let ipv6 = IPV6_GROUPS.iter().map(|&low| ip(0x601B, low));
        return ipv4.chain(ipv6).collect();
    }
    wanted.mgids.iter().map(|&mgid| with_pkey(mgid, pkey)).collect()
}

fn ip_mgid(signature: u16, low: u64) -> Gid {
    let high = 0xFF12_0000_0000_0000 | u64::from(signature) << 32;
    Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

/// An IPoIB MGID with 0 for the P_Key gets this one.
fn with_pkey(mgid: Gid, pkey: PKey) -> Gid {
    let mut bytes = mgid.0;
    if matches!(bytes[2..4], [0x40 | 0x60, 0x1B]) && bytes[4..6] == [0, 0] {
        bytes[4..6].copy_from_slice(&(pkey.base() | 0x8000).to_be_bytes());
    }
    Gid(bytes)
}

fn group(wanted: &MulticastGroup, fabric: &VirtualFabric, mgid: Gid) -> Group {
    let rate = match fabric.rate_max {
        Some(most) if most.rank() < wanted.rate.rank() => most,
        _ => wanted.rate,
    };
    let mtu = match fabric.mtu_max {
        Some(most) if most.code() < wanted.mtu.code() => most,
        _ => wanted.mtu,
    };
    let sl =
        if fabric.qos { fabric.multicast_sl } else { wanted.sl.unwrap_or(fabric.multicast_sl) };
    Group {
        pkey: PKey(fabric.pkey.base()),
        mgid,
        mtu,
        rate,
        sl: GroupSl::Own(sl),
        qkey: wanted.qkey,
        tclass: wanted.tclass,
        flow_label: wanted.flow_label,
    }
}

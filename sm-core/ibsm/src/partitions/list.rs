//! All partitions of a snapshot: those in force, and what programs ordered.

use std::collections::{BTreeMap, HashMap};

use ib_mad::types::{Gid, Guid, PKey, PortNum};
use sa_proto::proto::partition as proto;
use sa_proto::snapshot::{
    ApiPartition, Node, PartitionMember, PartitionMemberRid, Port, Snapshot, VirtualPort,
};
use sm_config::PartitionConfig;
use sm_config::partitions::{Group, Partition, broadcast_mgid};
use sm_core::manage::api_partitions::name_of;

use super::Site;
use crate::observe::node_name;

/// Members in one message.
const MEMBERS_MAX: usize = 4_096;

/// End ports of a snapshot, and the number of them in each partition.
struct EndPorts<'a> {
    snapshot: &'a Snapshot,
    by_guid: HashMap<Guid, (&'a Node, &'a Port)>,
    /// Virtual ports, each with the GUID of the port that has it.
    virtual_ports: HashMap<Guid, (Guid, &'a VirtualPort)>,
    of_pkey: HashMap<u16, u32>,
}

impl<'a> EndPorts<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let rows = snapshot.fabric().virtual_ports.iter();
        let virtual_ports = rows.flat_map(|row| {
            let reached = row.ports.iter().filter(|port| port.is_reached(row.port_guid));
            reached.map(|port| (port.guid, (row.port_guid, port)))
        });
        let mut ports = Self {
            snapshot,
            by_guid: HashMap::new(),
            virtual_ports: virtual_ports.collect(),
            of_pkey: HashMap::new(),
        };
        for node in &snapshot.fabric().nodes {
            let is_end = |port: &&Port| (port.num == PortNum(0)) == node.switch_info.is_some();
            for port in node.ports.iter().filter(is_end) {
                ports.by_guid.insert(port.guid, (node, port));
                let mut bases: Vec<u16> = port.pkeys.iter().map(|key| key.base()).collect();
                bases.sort_unstable();
                bases.dedup();
                for base in bases.into_iter().filter(|base| *base != 0) {
                    *ports.of_pkey.entry(base).or_default() += 1;
                }
            }
        }
        ports
    }

    fn member(&self, row: &PartitionMember) -> proto::ListedMember {
        let PartitionMember { rid, full, limited, first, ref host } = *row;
        let aliases = &self.snapshot.registry().alias_guids;
        let virtual_port = self.virtual_ports.get(&rid.guid).copied();
        let port_guid = match virtual_port {
            Some((port_guid, _)) => port_guid,
            None => aliases.find(rid.guid).map_or(rid.guid, |alias| alias.port_guid),
        };
        let port = self.by_guid.get(&port_guid).copied();
        let is_in_force = |port: &Port| match virtual_port {
            Some((_, virtual_port)) => holds(&virtual_port.pkeys, row),
            None => holds(&port.pkeys, row),
        };
        let member = proto::Member { guid: rid.guid.0, full, limited, first };
        let state = match port {
            None => proto::MemberState::Absent,
            Some((_, port)) if is_in_force(port) => proto::MemberState::InForce,
            Some(_) => proto::MemberState::NotInForce,
        };
        proto::ListedMember {
            member: Some(member),
            state: state.into(),
            port_guid: port.map_or(0, |(_, port)| port.guid.0),
            node: port.map_or_else(|| host.clone(), |(node, _)| node_name(node)),
            number: port.map_or(0, |(_, port)| port.num.0.into()),
        }
    }
}

/// Whether a P_Key table holds what a program asked for.
fn holds(pkeys: &[PKey], row: &PartitionMember) -> bool {
    let base = row.rid.pkey.base();
    let of_base = || pkeys.iter().filter(|key| key.base() == base);
    let full = of_base().any(|key| key.is_full());
    // Without `allow_both_pkeys`, who is to be both is a full member.
    if row.full { full } else { !full && of_base().next().is_some() }
}

/// Partitions that operators' files define, by P_Key without the membership bit, with their group
/// for IP over InfiniBand.
struct FilePartitions<'a>(HashMap<u16, (&'a Partition, Option<&'a Group>)>);

impl<'a> FilePartitions<'a> {
    fn of(config: &'a PartitionConfig) -> Self {
        let groups: HashMap<Gid, &Group> =
            config.groups().iter().map(|group| (group.mgid, group)).collect();
        let partitions = config.partitions().iter().map(|partition| {
            let group = groups.get(&broadcast_mgid(partition.pkey)).copied();
            (partition.pkey.base(), (partition, group))
        });
        Self(partitions.collect())
    }

    /// The partition as its file defines it: what a program says of its attributes has no effect.
    fn find(&self, pkey: PKey) -> Option<proto::Partition> {
        let (defined, group) = self.0.get(&pkey.base())?;
        Some(proto::Partition {
            pkey: pkey.base().into(),
            name: defined.name.clone(),
            ipoib: group.is_some(),
            mtu: group.map_or(0, |group| group.mtu.code().into()),
            rate: group.map_or(0, |group| group.rate.code().into()),
            sl: defined.sl.get().into(),
            ..Default::default()
        })
    }
}

/// All partitions by P_Key, or one: those of operators' files that have members, and those of
/// programs. `send` takes a message and returns whether to continue.
pub fn list(
    snapshot: &Snapshot,
    site: &Site,
    only: Option<PKey>,
    brief: bool,
    mut send: impl FnMut(proto::Listed) -> bool,
) {
    let ports = EndPorts::of(snapshot);
    let files = FilePartitions::of(&site.partitions);
    let registry = snapshot.registry();
    let mut all: BTreeMap<PKey, proto::Partition> = BTreeMap::new();
    let is_wanted = |pkey: PKey| only.is_none_or(|only| only.base() == pkey.base());
    for row in snapshot.fabric().partitions.iter().filter(|row| is_wanted(row.pkey)) {
        // A partition of programs may be in force for some more milliseconds after it was deleted.
        if let Some(partition) = files.find(row.pkey) {
            all.insert(PKey(row.pkey.base()), partition);
        }
    }
    for row in registry.api_partitions.iter().filter(|row| is_wanted(row.pkey)) {
        let ApiPartition { pkey, ipoib, mtu, rate, sl, .. } = **row;
        let of_file = files.find(pkey);
        let is_of_file = of_file.is_some();
        let partition = all.entry(pkey).or_insert_with(|| {
            of_file.unwrap_or_else(|| proto::Partition {
                pkey: pkey.base().into(),
                name: name_of(row),
                ..Default::default()
            })
        });
        partition.by_program = true;
        if !is_of_file {
            partition.name = name_of(row);
            partition.ipoib = ipoib;
            (partition.mtu, partition.rate) = (mtu.into(), rate.into());
            partition.sl = sl.get().into();
        }
    }
    let mut batch = Vec::new();
    let mut rows = 0;
    for (pkey, mut partition) in all {
        partition.ports = ports.of_pkey.get(&pkey.base()).copied().unwrap_or(0);
        let rid = |guid| PartitionMemberRid { pkey, guid };
        let members = registry.partition_members.range(rid(Guid(0))..=rid(Guid(u64::MAX)));
        for row in members.filter(|_| !brief) {
            if rows >= MEMBERS_MAX {
                let rest = proto::Partition { members: Vec::new(), ..partition.clone() };
                batch.push(std::mem::replace(&mut partition, rest));
                rows = 0;
                if !send(proto::Listed { partitions: std::mem::take(&mut batch) }) {
                    return;
                }
            }
            partition.members.push(ports.member(row));
            rows += 1;
        }
        batch.push(partition);
        rows += 1;
    }
    if !batch.is_empty() {
        send(proto::Listed { partitions: batch });
    }
}

/// All partitions, or one, each whole.
pub fn all(
    snapshot: &Snapshot,
    site: &Site,
    only: Option<PKey>,
    brief: bool,
) -> Vec<proto::Partition> {
    let mut whole = Vec::new();
    list(snapshot, site, only, brief, |message| {
        join(&mut whole, message);
        true
    });
    whole
}

/// Adds the partitions of a message; members may continue those of the last one.
pub fn join(whole: &mut Vec<proto::Partition>, message: proto::Listed) {
    for partition in message.partitions {
        match whole.last_mut().filter(|last| last.pkey == partition.pkey) {
            Some(last) => last.members.extend(partition.members),
            None => whole.push(partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::Sl;
    use ib_mad::types::{Mtu, Rate};
    use ib_mad::wire::attribute::{NodeInfo, NodeType};
    use sm_config::partitions as config;

    use sa_proto::snapshot::{AliasGuid, FabricPlane, RegistryPlane, Session};

    use sa_proto::snapshot;

    use super::*;

    fn adapter(guid: u64, pkeys: &[u16]) -> Arc<Node> {
        let pkeys = pkeys.iter().copied().map(PKey).collect();
        let port = Port { num: PortNum(1), guid: Guid(guid), info: [0; 64], pkeys, peer: None };
        let mut node = Node {
            guid: Guid(guid),
            info: [0; 40],
            description: [0; 64],
            switch_info: None,
            ports: vec![port],
        };
        NodeInfo::of_mut(&mut node.info).set_node_type(NodeType::Ca);
        node.description[..5].copy_from_slice(b"host1");
        Arc::new(node)
    }

    /// A file that defines the partition 5 with these attributes, and the default one.
    fn site() -> Site {
        let pkey = PKey(5);
        let sl = Sl::from_low_bits(2);
        let defined = config::Partition { pkey, name: "p".to_owned(), sl };
        let group = Group {
            pkey,
            mgid: broadcast_mgid(pkey),
            mtu: Mtu::B4096,
            rate: Rate::Gbps100,
            sl: config::GroupSl::Inherited(sl),
            qkey: 0,
            tclass: 0,
            flow_label: 0,
        };
        let partitions = PartitionConfig::default().joined(vec![defined], vec![], vec![group]);
        Site { partitions: Arc::new(partitions), ..Site::default() }
    }

    fn published(members: &[(u64, bool)]) -> Snapshot {
        let partition = |pkey, name: &str| {
            Arc::new(snapshot::Partition { pkey, name: name.to_owned(), sl: Sl::default() })
        };
        let virtual_port = |index: u16, pkeys: &[u16]| snapshot::VirtualPort {
            index,
            state: 4,
            guid: Guid(0xB0 + u64::from(index)),
            node_guid: Guid(0xB0),
            is_usable: true,
            needs_lid: false,
            description: String::new(),
            pkeys: pkeys.iter().copied().map(PKey).collect(),
        };
        let ports = vec![virtual_port(1, &[0xffff, 0x8005]), virtual_port(2, &[0xffff])];
        let row = snapshot::VirtualPorts { port_guid: Guid(2), pkeys: Vec::new(), ports };
        let fabric = FabricPlane {
            nodes: vec![adapter(1, &[0xffff, 0x8005]), adapter(2, &[0xffff, 5])],
            virtual_ports: vec![Arc::new(row)],
            partitions: vec![partition(PKey(5), "p"), partition(PKey(0x7fff), "Default")],
            ..FabricPlane::default()
        };
        let row = |pkey| ApiPartition {
            pkey: PKey(pkey),
            name: String::new(),
            ipoib: pkey != 5,
            mtu: 0,
            rate: 0,
            sl: Sl::default(),
        };
        let member = |&(guid, full): &(u64, bool)| {
            let rid = PartitionMemberRid { pkey: PKey(5), guid: Guid(guid) };
            let host = if guid == 9 { "host9".to_owned() } else { String::new() };
            Arc::new(PartitionMember { rid, full, limited: !full, first: false, host })
        };
        let alias = AliasGuid { alias: Guid(0xA), port_guid: Guid(1), index: 1 };
        let registry = RegistryPlane {
            api_partitions: [5, 6].map(row).map(Arc::new).into_iter().collect(),
            partition_members: members.iter().map(member).collect(),
            alias_guids: [Arc::new(alias)].into_iter().collect(),
            ..RegistryPlane::default()
        };
        Snapshot::build(Session { epoch: 1, sm_guid: Guid(1) }, 1, fabric, registry).unwrap()
    }

    #[test]
    fn members_are_listed_with_what_became_of_them() {
        use proto::MemberState::{Absent, InForce, NotInForce};
        let snapshot = published(&[(1, true), (2, true), (0xA, true), (9, true)]);
        let listed = all(&snapshot, &site(), Some(PKey(0x8005)), false);
        let states: Vec<_> = listed[0].members.iter().map(|member| member.state()).collect();
        assert_eq!(states, [InForce, NotInForce, Absent, InForce]);
        assert_eq!(listed[0].members[2].node, "host9", "it was added by that name");
        assert_eq!(listed[0].members[3].node, "host1", "an alias stands for its port");
        assert_eq!((listed.len(), &listed[0].name[..], listed[0].ports), (1, "p", 2));
    }

    #[test]
    fn a_virtual_port_is_listed_by_its_own_p_keys_and_at_its_port() {
        use proto::MemberState::{InForce, NotInForce};
        let snapshot = published(&[(0xB1, true), (0xB2, true)]);
        let listed = all(&snapshot, &site(), Some(PKey(0x8005)), false);
        let members = &listed[0].members;
        let states: Vec<_> = members.iter().map(|member| member.state()).collect();
        assert_eq!(states, [InForce, NotInForce]);
        assert_eq!((members[0].port_guid, &members[0].node[..]), (2, "host1"));
    }

    #[test]
    fn partitions_of_files_and_of_programs_are_listed_together() {
        let listed = all(&published(&[]), &site(), None, false);
        let rows: Vec<_> =
            listed.iter().map(|row| (row.pkey, &row.name[..], row.by_program, row.ports)).collect();
        let expected =
            [(5, "p", true, 2), (6, "api_pkey_0x6", true, 0), (0x7fff, "Default", false, 2)];
        assert_eq!(rows, expected);
    }

    /// Regression: a partition of a file to which a program had added members was listed with the
    /// program's attributes, which have no effect, and lost its group for IP over InfiniBand.
    #[test]
    fn the_attributes_of_a_partition_that_a_file_defines_are_the_files() {
        let listed = all(&published(&[(1, true)]), &site(), None, false);
        let attributes = |row: &proto::Partition| (row.ipoib, row.mtu, row.rate, row.sl);
        let (mtu, rate) = (Mtu::B4096.code().into(), Rate::Gbps100.code().into());
        assert_eq!(attributes(&listed[0]), (true, mtu, rate, 2));
        assert!(listed[0].by_program && listed[0].members.len() == 1);
        assert_eq!(attributes(&listed[1]), (true, 0, 0, 0), "a program's");
        assert!(listed[2].ipoib, "the default partition");
    }

    #[test]
    fn many_members_are_in_several_messages() {
        let members: Vec<_> = (1..=2 * MEMBERS_MAX as u64 + 1).map(|guid| (guid, true)).collect();
        let snapshot = published(&members);
        let mut messages = 0;
        list(&snapshot, &site(), None, false, |_| {
            messages += 1;
            true
        });
        assert_eq!(messages, 3);
        let listed = all(&snapshot, &site(), None, false);
        assert_eq!(listed[0].members.len(), members.len());
        assert_eq!(all(&snapshot, &site(), None, true)[0].members.len(), 0);
    }
}

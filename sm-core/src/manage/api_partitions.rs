//! Partitions that programs made, and how they join those of operators' files.
//!
//! Where both are about the same thing, the operator's file applies, and a [`Conflict`] names it:
//! the membership of a port in a partition, and the attributes of a partition that a file defines.
//! Everything else is added. The rules of programs come before those of the file, of which the
//! later applies.
//!
//! Not here: the orders that make them (`registry::partitions`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, Mtu, PKey, Rate};
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::{ApiPartition, PartitionMember, RegistryPlane};

use sm_config::PartitionConfig;
use sm_config::partitions::{
    Group, GroupSl, IPOIB_QKEY, Membership, Partition, Ports, Rule, broadcast_mgid,
};

/// Conflicts that are kept; further ones are only counted.
const CONFLICTS_MAX: usize = 1_000;
/// MTU and rate of a broadcast group without others, as in `partitions.conf`.
const MTU_DEFAULT: Mtu = Mtu::B2048;
const RATE_DEFAULT: Rate = Rate::Gbps10;

/// Partitions that programs made, with their members. Alias GUIDs are resolved to their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiPartitions {
    partitions: Vec<(Arc<ApiPartition>, Vec<Member>)>,
}

/// A member of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    /// GUID of the port.
    port: Guid,
    full: bool,
    limited: bool,
    first: bool,
}

impl Member {
    fn membership(&self) -> Membership {
        match (self.full, self.limited) {
            (true, true) => Membership::Both,
            (false, _) => Membership::Limited,
            (true, false) => Membership::Full,
        }
    }
}

/// The name of a partition, for people: its own or one that its number gives.
pub fn name_of(row: &ApiPartition) -> String {
    match &row.name[..] {
        "" => format!("api_pkey_{:#x}", row.pkey.base()),
        name => name.to_owned(),
    }
}

impl ApiPartitions {
    /// The partitions in these rows.
    pub fn of(plane: &RegistryPlane) -> Self {
        let port_of = |guid| plane.alias_guids.find(guid).map_or(guid, |alias| alias.port_guid);
        let mut rows = plane.partition_members.iter().peekable();
        let members = |row: &Arc<ApiPartition>| {
            // A port may be named by several GUIDs.
            let mut members: BTreeMap<Guid, Member> = BTreeMap::new();
            while let Some(member) = rows.next_if(|member| member.rid.pkey <= row.pkey) {
                if member.rid.pkey == row.pkey {
                    let PartitionMember { rid, full, limited, first, .. } = **member;
                    let port = port_of(rid.guid);
                    let none = Member { port, full: false, limited: false, first: false };
                    let known = members.entry(port).or_insert(none);
                    known.full |= full;
                    known.limited |= limited;
                    known.first |= first;
                }
            }
            (row.clone(), members.into_values().collect())
        };
        Self { partitions: plane.api_partitions.iter().map(members).collect() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Whether the rows that [`of`](Self::of) reads are the same in both planes.
    pub fn are_same(a: &RegistryPlane, b: &RegistryPlane) -> bool {
        a.api_partitions.is_same(&b.api_partitions)
            && a.partition_members.is_same(&b.partition_members)
            // Aliases matter to members only.
            && (a.partition_members.is_empty() || a.alias_guids.is_same(&b.alias_guids))
    }

    /// `config` with these partitions. `place_of` returns the kind of node that an end port belongs
    /// to, and whether it is the SM's own; `None` for a GUID that is not on the fabric.
    pub fn join(
        &self,
        config: &PartitionConfig,
        place_of: impl Fn(Guid) -> Option<(NodeType, bool)>,
    ) -> (PartitionConfig, Conflicts) {
        let file = FileRules::of(config);
        let mut conflicts = Conflicts::default();
        let (mut partitions, mut rules, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for (row, members) in &self.partitions {
            let pkey = row.pkey;
            match config.partition(pkey) {
                Some(defined) => conflicts.of_attributes(config, defined, row),
                None => {
                    partitions.push(Partition { pkey, name: name_of(row), sl: row.sl });
                    groups.extend(row.ipoib.then(|| broadcast_group(row)));
                }
            }
            for member in members {
                let (port, membership) = (member.port, member.membership());
                if let Some(in_file) = file.membership(pkey, port, &place_of)
                    && in_file != membership
                {
                    conflicts.push(Conflict::Membership { pkey, port, in_file, membership });
                }
                let ports = Ports::Guid(port);
                rules.push(Rule { pkey, ports, membership, first: member.first });
            }
        }
        (config.after(partitions, rules, groups), conflicts)
    }
}

/// The broadcast group of IP over InfiniBand in a partition.
fn broadcast_group(row: &ApiPartition) -> Group {
    Group {
        pkey: row.pkey,
        mgid: broadcast_mgid(row.pkey),
        mtu: Mtu::from_code(row.mtu).unwrap_or(MTU_DEFAULT),
        rate: Rate::from_code(row.rate).unwrap_or(RATE_DEFAULT),
        sl: GroupSl::Inherited(row.sl),
        qkey: IPOIB_QKEY,
        tclass: 0,
        flow_label: 0,
    }
}

/// Rules of the file, by partition and port; of two for the same port the later applies.
struct FileRules {
    of_guid: HashMap<(u16, Guid), (usize, Membership), RandomState>,
    /// Rules for kinds of ports, in the order of the file.
    of_kinds: HashMap<u16, Vec<(usize, Rule)>>,
}

impl FileRules {
    fn of(config: &PartitionConfig) -> Self {
        let mut rules = Self { of_guid: HashMap::default(), of_kinds: HashMap::new() };
        for (place, rule) in config.rules().iter().enumerate() {
            let pkey = rule.pkey.base();
            if let Ports::Guid(guid) = rule.ports {
                rules.of_guid.insert((pkey, guid), (place, rule.membership));
            } else {
                rules.of_kinds.entry(pkey).or_default().push((place, *rule));
            }
        }
        rules
    }

    /// The membership that the file gives a port in a partition.
    fn membership(
        &self,
        pkey: PKey,
        port: Guid,
        place_of: &impl Fn(Guid) -> Option<(NodeType, bool)>,
    ) -> Option<Membership> {
        let named = self.of_guid.get(&(pkey.base(), port)).copied();
        let of_kinds = self.of_kinds.get(&pkey.base()).map_or(&[][..], |rules| rules);
        let matches = |rule: &Rule| match (rule.ports, place_of(port)) {
            (Ports::All, _) => true,
            (Ports::Cas, Some((kind, _))) => kind == NodeType::Ca,
            (Ports::Switches, Some((kind, _))) => kind == NodeType::Switch,
            (Ports::Routers, Some((kind, _))) => kind == NodeType::Router,
            (Ports::Own, Some((_, own))) => own,
            _ => false,
        };
        let of_kind = of_kinds.iter().rev().find(|(_, rule)| matches(rule));
        let of_kind = of_kind.map(|(place, rule)| (*place, rule.membership));
        let later = [named, of_kind].into_iter().flatten().max_by_key(|(place, _)| *place);
        later.map(|(_, membership)| membership)
    }
}

/// Something that an operator's file and a program disagree about. The file applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The membership of a port.
    Membership {
        /// The partition.
        pkey: PKey,
        /// GUID of the port.
        port: Guid,
        /// Its membership by the file.
        in_file: Membership,
        /// Its membership by the program.
        membership: Membership,
    },
    /// An attribute of a partition that the file defines.
    Attribute {
        /// The partition.
        pkey: PKey,
        /// The attribute.
        attribute: &'static str,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |membership: &Membership| match membership {
            Membership::Limited => "limited",
            Membership::Full => "full",
            Membership::Both => "both",
        };
        match self {
            Self::Membership { pkey, port, in_file, membership } => write!(
                f,
                "partition {pkey}: the operator's file makes {port} a member ({}), a program ({}); \
                 the file applies",
                name(in_file),
                name(membership)
            ),
            Self::Attribute { pkey, attribute } => write!(
                f,
                "partition {pkey}: the operator's file defines it, so that {attribute} from a \
                 program has no effect"
            ),
        }
    }
}

/// Disagreements between files and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The first of them.
    pub first: Vec<Conflict>,
    /// Number of further ones.
    pub more: usize,
}

impl Conflicts {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.first.len() + self.more
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, conflict: Conflict) {
        if self.first.len() < CONFLICTS_MAX {
            self.first.push(conflict);
        } else {
            self.more += 1;
        }
    }

    /// Compares the attributes of a partition that the file defines. Those that the program left at
    /// their default do not disagree.
    fn of_attributes(&mut self, config: &PartitionConfig, defined: &Partition, row: &ApiPartition) {
        let pkey = row.pkey;
        let mgid = broadcast_mgid(pkey);
        let group = config.groups().iter().find(|group| group.mgid == mgid);
        let disagree = [
            ("the name", !row.name.is_empty() && row.name != defined.name),
            ("the SL", row.sl.get() != 0 && row.sl != defined.sl),
            ("IP over InfiniBand", row.ipoib && group.is_none()),
            ("the MTU", row.mtu != 0 && group.is_some_and(|group| group.mtu.code() != row.mtu)),
            ("the rate", row.rate != 0 && group.is_some_and(|group| group.rate.code() != row.rate)),
        ];
        for (attribute, _) in disagree.into_iter().filter(|(_, disagrees)| *disagrees) {
            self.push(Conflict::Attribute { pkey, attribute });
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Sl;
    use sa_proto::snapshot::{AliasGuid, PartitionMemberRid};

    use super::*;

    const PKEY: PKey = PKey(5);

    fn row(pkey: PKey) -> ApiPartition {
        let (name, sl) = (String::new(), Sl::default());
        ApiPartition { pkey, name, ipoib: false, mtu: 0, rate: 0, sl }
    }

    fn member(guid: u64, full: bool) -> PartitionMember {
        let rid = PartitionMemberRid { pkey: PKEY, guid: Guid(guid) };
        PartitionMember { rid, full, limited: !full, first: false, host: String::new() }
    }

    fn plane(row: ApiPartition, members: &[PartitionMember]) -> RegistryPlane {
        RegistryPlane {
            api_partitions: [Arc::new(row)].into_iter().collect(),
            partition_members: members.iter().cloned().map(Arc::new).collect(),
            ..RegistryPlane::default()
        }
    }

    fn file(text: &str) -> PartitionConfig {
        let mut remarks = sm_config::Remarks::default();
        sm_config::partitions::parse(std::path::Path::new("p"), text, &mut remarks).unwrap()
    }

    /// All GUIDs but 9 are ports of channel adapters.
    fn place(guid: Guid) -> Option<(NodeType, bool)> {
        (guid.0 != 9).then_some((NodeType::Ca, false))
    }

    fn joined(text: &str, plane: &RegistryPlane) -> (PartitionConfig, Vec<String>) {
        let (joined, conflicts) = ApiPartitions::of(plane).join(&file(text), place);
        assert_eq!(conflicts.len(), conflicts.first.len());
        (joined, conflicts.first.iter().map(ToString::to_string).collect())
    }

    const FILE: &str = "Default=0x7fff, ipoib: ALL=full;\n";

    #[test]
    fn what_the_file_does_not_mention_is_added_without_a_conflict() {
        let ipoib = ApiPartition { ipoib: true, ..row(PKEY) };
        let (config, conflicts) = joined(FILE, &plane(ipoib, &[member(1, true), member(2, false)]));
        assert_eq!(conflicts, [""; 0]);
        assert_eq!(config.partition(PKEY).unwrap().name, "api_pkey_0x5");
        let group = config.groups().iter().find(|group| group.pkey == PKEY).unwrap();
        assert_eq!((group.mtu, group.rate), (Mtu::B2048, Rate::Gbps10));
        let rules = config.rules().iter().filter(|rule| rule.pkey == PKEY);
        let rules: Vec<_> = rules.map(|rule| (rule.ports, rule.membership)).collect();
        let port = |guid| Ports::Guid(Guid(guid));
        assert_eq!(rules, [(port(1), Membership::Full), (port(2), Membership::Limited)]);
        assert_eq!(joined(FILE, &RegistryPlane::default()).0, file(FILE));
    }

    #[test]
    fn the_file_applies_to_ports_that_it_gives_another_membership() {
        let text = "p=0x5: 0x1=limited, 0x2=full;\n";
        let members = [member(1, true), member(2, true), member(3, false)];
        let (config, conflicts) = joined(text, &plane(row(PKEY), &members));
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert!(conflicts[0].contains("0x0000000000000001 a member (limited), a program (full)"));
        let last = |guid| {
            let mut rules = config.rules().iter();
            let of_port = |rule: &&Rule| rule.ports == Ports::Guid(Guid(guid));
            rules.rfind(of_port).unwrap().membership
        };
        assert_eq!(last(1), Membership::Limited);
        assert_eq!([last(2), last(3)], [Membership::Full, Membership::Limited]);
    }

    #[test]
    fn rules_for_kinds_of_ports_conflict_with_ports_of_that_kind() {
        let members = [member(1, true), member(9, true)];
        let conflicts = |text| joined(text, &plane(row(PKEY), &members)).1.len();
        assert_eq!(conflicts("p=0x5: ALL=limited;\n"), 2);
        assert_eq!(conflicts("p=0x5: ALL_CAS=limited;\n"), 1, "9 is not on the fabric");
        assert_eq!(conflicts("p=0x5: ALL_SWITCHES=limited;\n"), 0);
        assert_eq!(conflicts("p=0x5: ALL=limited, 0x1=full, 0x9=full;\n"), 0, "the later applies");
        assert_eq!(conflicts("p=0x5: 0x1=full, 0x9=full, ALL=limited;\n"), 2);
    }

    #[test]
    fn attributes_of_a_partition_in_the_file_are_the_files() {
        let mut asked = ApiPartition { ipoib: true, name: "other".to_owned(), ..row(PKEY) };
        let (config, conflicts) = joined("p=0x5: 0x1=full;\n", &plane(asked.clone(), &[]));
        assert_eq!(config.partition(PKEY).unwrap().name, "p");
        assert!(config.groups().iter().all(|group| group.pkey != PKEY));
        assert_eq!(conflicts.len(), 2, "{conflicts:?}");
        asked.mtu = Mtu::B4096.code();
        let (config, conflicts) = joined("p=0x5, ipoib: 0x1=full;\n", &plane(asked, &[]));
        assert_eq!(conflicts.len(), 2, "{conflicts:?}");
        let group = config.groups().iter().find(|group| group.pkey == PKEY).unwrap();
        assert_eq!(group.mtu, Mtu::B2048);
        assert_eq!(joined("p=0x5: 0x1=full;\n", &plane(row(PKEY), &[])).1, [""; 0]);
    }

    #[test]
    fn an_alias_stands_for_its_port() {
        let alias = AliasGuid { alias: Guid(0xA), port_guid: Guid(1), index: 1 };
        let members = [member(1, false), member(0xA, true)];
        let mut plane = plane(row(PKEY), &members);
        let without = plane.clone();
        plane.alias_guids = [Arc::new(alias)].into_iter().collect();
        assert!(!ApiPartitions::are_same(&plane, &without));
        let partitions = ApiPartitions::of(&plane).partitions;
        let both = Member { port: Guid(1), full: true, limited: true, first: false };
        assert_eq!(partitions[0].1, [both]);
    }
}

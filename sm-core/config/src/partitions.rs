//! Partitions as `partitions.conf` defines them (OpenSM manual, "PARTITION CONFIGURATION").
//!
//! [`PartitionConfig`] is the parsed file: numbered partitions, rules of membership, and multicast
//! groups to create in advance. It is checked, so that all of it can be put in force. `parse`
//! parses the text, `text` its words and numbers as C does.
//!
//! Not here: which ports a fabric has (`manage::partition`), and the file system (`site`).

mod parse;
#[cfg(test)]
mod tests;
pub(super) mod text;

use std::collections::BTreeMap;

use ib_mad::types::{Gid, Guid, Mtu, PKey, Rate, Sl};

pub use parse::{PartitionSyntax, faults, parse};

/// Q_Key of IPoIB groups without an explicit one, which all IPoIB drivers expect.
pub const IPOIB_QKEY: u32 = 0x0b1b;

/// The content of a partition file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionConfig {
    /// Partitions in the order of their first definition.
    partitions: Vec<Partition>,
    /// Rules in the order of the file, which matters: of two rules for a port and partition the
    /// later applies.
    rules: Vec<Rule>,
    /// Groups in the order of the file, each MGID once.
    groups: Vec<Group>,
    /// The line on which the file first names a GUID, from 1.
    guid_lines: BTreeMap<Guid, usize>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as the P_Key of limited members: 0x0001 to 0x7fff.
    pub pkey: PKey,
    /// Its name; its number in hexadecimal if the file has no name.
    pub name: String,
    /// SL of its traffic, used only with QoS.
    pub sl: Sl,
}

/// Makes ports members of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The partition, as the P_Key of limited members.
    pub pkey: PKey,
    /// The ports.
    pub ports: Ports,
    /// Their membership.
    pub membership: Membership,
    /// Whether the P_Key must be at index 0 of their tables (`indx0`).
    pub first: bool,
}

/// The end ports that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All end ports (`ALL`).
    All,
    /// Ports of channel adapters (`ALL_CAS`).
    Cas,
    /// Port 0 of switches (`ALL_SWITCHES`).
    Switches,
    /// Ports of routers (`ALL_ROUTERS`).
    Routers,
    /// The subnet manager's own port (`SELF`).
    Own,
    /// The port with this GUID, which is never 0.
    Guid(Guid),
}

/// Membership of a port in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// May communicate with full members.
    Limited,
    /// May communicate with all members.
    Full,
    /// Has both P_Keys with `allow_both_pkeys`, and full membership without.
    Both,
}

/// A multicast group that exists from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its partition, as the P_Key of limited members.
    pub pkey: PKey,
    /// The group's address, with its scope. MGIDs of IPoIB groups contain the P_Key.
    pub mgid: Gid,
    /// MTU.
    pub mtu: Mtu,
    /// Rate.
    pub rate: Rate,
    /// SL.
    pub sl: GroupSl,
    /// Q_Key.
    pub qkey: u32,
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// SL of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSl {
    /// The SL of the enclosing definition: used only with QoS, otherwise 0.
    Inherited(Sl),
    /// The SL of the group's own line, used with QoS and without.
    Own(Sl),
}

impl Group {
    /// Whether the group is for IP over InfiniBand, by the signature in its MGID.
    pub fn is_ip(&self) -> bool {
        is_ip(self.mgid)
    }

    /// Scope: the low 4 bits of the second byte of the MGID.
    pub fn scope(&self) -> u8 {
        self.mgid.0[1] & 0xF
    }
}

/// Whether an MGID has the signature of IPv4 or IPv6 over InfiniBand (RFC 4391, 4).
fn is_ip(mgid: Gid) -> bool {
    matches!(mgid.0[2..4], [0x40 | 0x60, 0x1B])
}

/// The MGID of the IPoIB broadcast group of a partition, with link-local scope (RFC 4391, 4).
pub fn broadcast_mgid(pkey: PKey) -> Gid {
    let [high, low] = (pkey.0 | 0x8000).to_be_bytes();
    Gid([0xFF, 0x12, 0x40, 0x1B, high, low, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF])
}

impl Default for PartitionConfig {
    /// The configuration without a file: the default partition, all ports full members of it, with
    /// IPoIB.
    fn default() -> Self {
        let mut config = Self::with_default(Membership::Full);
        config.groups.push(Group {
            pkey: PKey::DEFAULT_LIMITED,
            mgid: broadcast_mgid(PKey::DEFAULT_LIMITED),
            mtu: Mtu::B2048,
            rate: Rate::Gbps10,
            sl: GroupSl::Inherited(Sl::default()),
            qkey: IPOIB_QKEY,
            tclass: 0,
            flow_label: 0,
        });
        config
    }
}

impl PartitionConfig {
    /// The default partition with all ports as members, the subnet manager's port as a full one.
    /// Every file starts with this.
    fn with_default(membership: Membership) -> Self {
        let pkey = PKey::DEFAULT_LIMITED;
        let rule = |ports, membership| Rule { pkey, ports, membership, first: false };
        Self {
            partitions: vec![Partition { pkey, name: "Default".to_owned(), sl: Sl::default() }],
            rules: vec![rule(Ports::All, membership), rule(Ports::Own, Membership::Full)],
            groups: Vec::new(),
            guid_lines: BTreeMap::new(),
        }
    }

    /// The line of the file that first names this GUID, from 1; `None` if the file does not.
    pub fn line_of(&self, guid: Guid) -> Option<usize> {
        self.guid_lines.get(&guid).copied()
    }

    /// The partitions, in the order of their first definition; the default one comes first.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// The membership rules. Of two rules for the same port and partition the later applies.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Multicast groups to create in advance, in the order of the file.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns this configuration with additions: partitions that it already has keep their name
    /// and SL, `rules` are appended, and of two groups with one MGID its own stays.
    pub fn joined(&self, partitions: Vec<Partition>, rules: Vec<Rule>, groups: Vec<Group>) -> Self {
        let mut all = self.clone();
        for partition in partitions {
            if all.partition(partition.pkey).is_none() {
                all.partitions.push(partition);
            }
        }
        all.rules.extend(rules);
        for group in groups {
            if all.groups.iter().all(|known| known.mgid != group.mgid) {
                all.groups.push(group);
            }
        }
        all
    }

    /// Returns this configuration with additions that it prevails over: `rules` come before its
    /// own, partitions that it has keep their name and SL, and of two groups with one MGID its own
    /// stays.
    pub fn after(&self, partitions: Vec<Partition>, rules: Vec<Rule>, groups: Vec<Group>) -> Self {
        let mut all = self.joined(partitions, Vec::new(), groups);
        all.rules.splice(0..0, rules);
        all
    }

    /// Finds the partition with this number, ignoring the membership bit.
    pub fn partition(&self, pkey: PKey) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.pkey.base() == pkey.base())
    }
}

//! Partitions as `partitions.conf` defines them (OpenSM manual, "PARTITION CONFIGURATION").
//!
//! [`PartitionConfig`] is the file's meaning: numbered partitions, who is a member of which, and the
//! multicast groups to be made in advance. It is checked: whatever it holds can be put in force.
//! `parse` reads the text, `text` its words and numbers as C reads them.
//!
//! What is not here: which ports a fabric has (`manage::partition`), and the file system (`site`).

mod parse;
#[cfg(test)]
mod tests;
pub(super) mod text;

use ib_mad::types::{Gid, Guid, Mtu, PKey, Rate, Sl};

pub use parse::{PartitionSyntax, parse};

/// Q_Key of IPoIB groups where none is given, as all IPoIB drivers expect it.
pub const IPOIB_QKEY: u32 = 0x0b1b;

/// What a partition file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionConfig {
    /// In the order in which they were first named.
    partitions: Vec<Partition>,
    /// In the order of the file, which matters: of two about the same port the later holds.
    rules: Vec<Rule>,
    /// In the order of the file, each MGID once.
    groups: Vec<Group>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as the P_Key of limited members: 0x0001 to 0x7fff.
    pub pkey: PKey,
    /// Its name; its number in hexadecimal where the file has none.
    pub name: String,
    /// SL of its traffic, in force with QoS only.
    pub sl: Sl,
}

/// Makes ports members of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The partition, as the P_Key of limited members.
    pub pkey: PKey,
    /// Which ports.
    pub ports: Ports,
    /// As what.
    pub membership: Membership,
    /// Whether the P_Key is to stand first in their tables (`indx0`).
    pub first: bool,
}

/// End ports that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All (`ALL`).
    All,
    /// Those of channel adapters (`ALL_CAS`).
    Cas,
    /// Port 0 of switches (`ALL_SWITCHES`).
    Switches,
    /// Those of routers (`ALL_ROUTERS`).
    Routers,
    /// The subnet manager's own (`SELF`).
    Own,
    /// The one with this port GUID, never 0.
    Guid(Guid),
}

/// What a member of a partition may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Talk to full members.
    Limited,
    /// Talk to all members.
    Full,
    /// Both P_Keys with `allow_both_pkeys`, and full membership without.
    Both,
}

/// A multicast group that is there from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its partition, as the P_Key of limited members.
    pub pkey: PKey,
    /// The group's address; its scope is the group's, and IPoIB groups have their P_Key in it.
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
    /// That of the definition the group stands in: in force with QoS only, else it is 0.
    Inherited(Sl),
    /// That of the group's own line, with QoS and without.
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
    /// What holds without a file: the default partition, all ports full members of it, with IPoIB.
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
    /// The default partition with all ports as members, the subnet manager's as a full one: what a
    /// file begins with, whatever it says.
    fn with_default(membership: Membership) -> Self {
        let pkey = PKey::DEFAULT_LIMITED;
        let rule = |ports, membership| Rule { pkey, ports, membership, first: false };
        Self {
            partitions: vec![Partition { pkey, name: "Default".to_owned(), sl: Sl::default() }],
            rules: vec![rule(Ports::All, membership), rule(Ports::Own, Membership::Full)],
            groups: Vec::new(),
        }
    }

    /// The partitions, in the order in which they were first named; the default one comes first.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Who is a member of what. Of two rules about the same port and partition the later holds.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Multicast groups to be made in advance, in the order of the file.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// This with more: partitions that it has already keep their name and SL, `rules` come after
    /// its own, and of two groups with one MGID its own stays.
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

    /// The partition with this number; the membership bit does not count.
    pub fn partition(&self, pkey: PKey) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.pkey.base() == pkey.base())
    }
}

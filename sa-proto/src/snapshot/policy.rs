//! Policy rows of the fabric plane: partitions, QoS levels and rules, virtual fabrics.
//!
//! The SM reads the site's files, resolves names against the fabric, and puts what they come to
//! into these rows; responders compile them for matching and never see a file. The order of rules
//! is their precedence: the first that accepts a request decides.

use ib_mad::types::{Gid, Guid, Lifetime, Mtu, PKey, Rate, Sl};

use super::encoding::{Canonical, Malformed, Reader, canonical};
use super::row::{NoPatch, Row, Table};

/// A partition: what all ports that share its P_Key have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// P_Key without the membership bit, the key of this row.
    pub pkey: PKey,
    /// Name in `partitions.conf`, or that of the virtual fabric that it was made for.
    pub name: String,
    /// SL of paths and groups within it, unless a QoS level says otherwise.
    pub sl: Sl,
}

/// A set of end ports that QoS rules name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// Number of the group, the key of this row; rules refer to it.
    pub index: u32,
    /// Name in the policy file.
    pub name: String,
    /// All ports of these kinds of nodes belong to it, whatever their GUID; bits of
    /// [`NODE_CA`](Self::NODE_CA), [`NODE_SWITCH`](Self::NODE_SWITCH) and
    /// [`NODE_ROUTER`](Self::NODE_ROUTER).
    pub node_types: u8,
    /// Port GUIDs that belong to it besides, ascending, each once.
    pub ports: Vec<Guid>,
}

impl PortGroup {
    /// Bit of `node_types`: ports of channel adapters.
    pub const NODE_CA: u8 = 1;
    /// Bit of `node_types`: port 0 of switches.
    pub const NODE_SWITCH: u8 = 2;
    /// Bit of `node_types`: ports of routers.
    pub const NODE_ROUTER: u8 = 4;
}

/// What a rule grants: limits and values of the paths that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosLevel {
    /// Number of the level, the key of this row; rules refer to it.
    pub index: u32,
    /// Name in the policy file.
    pub name: String,
    /// SL of the path.
    pub sl: Option<Sl>,
    /// Greatest MTU.
    pub mtu_limit: Option<Mtu>,
    /// Greatest rate.
    pub rate_limit: Option<Rate>,
    /// Packet lifetime told.
    pub packet_life: Option<Lifetime>,
    /// P_Keys that the path may have, as ranges of their 15 bits; all if there are none.
    pub pkeys: Vec<(u16, u16)>,
}

/// Which numbers a criterion accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMatch {
    /// From the first to the last, both included.
    Range(u64, u64),
    /// Those that equal `value` in the bits of `mask`.
    Masked {
        /// What the bits must be.
        value: u64,
        /// Which bits count.
        mask: u64,
    },
}

impl IdMatch {
    /// Whether `id` is accepted.
    pub fn accepts(&self, id: u64) -> bool {
        match *self {
            Self::Range(first, last) => (first..=last).contains(&id),
            Self::Masked { value, mask } => (id ^ value) & mask == 0,
        }
    }
}

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RuleOrigin {
    /// `qos-match-rule` of a QoS policy.
    MatchRule = 0,
    /// A line of the policy's `qos-ulps` section.
    Ulp = 1,
    /// The level DEFAULT, or the default of `qos-ulps`: what no other rule of the policy matches.
    Default = 2,
    /// A virtual fabric.
    VirtualFabric = 3,
}

/// A rule: which requests get which level. All criteria that are there must hold; within one, one
/// of its values is enough. A criterion whose field the request leaves out does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosRule {
    /// Precedence, the key of this row: the lowest that matches decides.
    pub index: u32,
    /// What the operator calls it: text of `use`, ULP keyword, name of the virtual fabric; with
    /// file and line.
    pub name: String,
    /// Where it comes from.
    pub origin: RuleOrigin,
    /// Number of the level granted.
    pub level: u32,
    /// Numbers of groups that the source is in.
    pub sources: Option<Vec<u32>>,
    /// Numbers of groups that the destination is in.
    pub destinations: Option<Vec<u32>>,
    /// P_Keys asked for, as ranges of their 15 bits.
    pub pkeys: Option<Vec<(u16, u16)>>,
    /// QoS classes asked for, as ranges.
    pub qos_classes: Option<Vec<(u16, u16)>>,
    /// Service IDs asked for; an empty list wants the request to leave it out.
    pub service_ids: Option<Vec<IdMatch>>,
}

/// A virtual fabric: applications, device groups, and what paths within it get.
///
/// Its rules and levels are among the others; this row is what operators and job schedulers ask
/// for, and what multicast groups are created by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFabric {
    /// Position in the file, the key of this row: the lowest wins where several fit.
    pub index: u32,
    /// Name.
    pub name: String,
    /// P_Key without the membership bit.
    pub pkey: PKey,
    /// SL of its unicast paths.
    pub base_sl: Sl,
    /// SL of its multicast groups.
    pub multicast_sl: Sl,
    /// Greatest MTU.
    pub mtu_max: Option<Mtu>,
    /// Greatest rate.
    pub rate_max: Option<Rate>,
    /// Whether limited members cannot reach each other.
    pub security: bool,
    /// Whether a QOSGroup, or QOS, gives it an SL of its own.
    pub qos: bool,
    /// Whether it is defined but passes no traffic for now: it has no rules and no groups.
    pub standby: bool,
    /// Names of its applications.
    pub applications: Vec<String>,
    /// Service IDs of its applications.
    pub service_ids: Vec<IdMatch>,
    /// Whether it takes Service IDs that no virtual fabric with the same ends names.
    pub unmatched_service_ids: bool,
    /// MGIDs of its applications: those that equal the first in the bits of the second.
    pub mgids: Vec<(Gid, Gid)>,
    /// Whether it takes MGIDs that no virtual fabric of the port names.
    pub unmatched_mgids: bool,
    /// Full members: numbers of port groups.
    pub members: Vec<u32>,
    /// Limited members: numbers of port groups.
    pub limited_members: Vec<u32>,
}

/// Where packets to another subnet go (`prefix-routes.conf`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixRoute {
    /// The other subnet's prefix; `None` stands for all others.
    pub prefix: Option<u64>,
    /// GUID of the router's port; `None` stands for any router.
    pub router: Option<Guid>,
}

macro_rules! rows {
    ($($row:ident by $field:ident: $key:ty, $table:ident;)*) => {$(
        impl Row for $row {
            type Key = $key;
            type Patch = NoPatch;
            const TABLE: Table = Table::$table;
            fn key(&self) -> $key {
                self.$field
            }
        }
    )*};
}
rows! {
    Partition by pkey: PKey, Partitions;
    PortGroup by index: u32, PortGroups;
    QosLevel by index: u32, QosLevels;
    QosRule by index: u32, QosRules;
    VirtualFabric by index: u32, VirtualFabrics;
}

canonical!(Partition { pkey, name, sl });
canonical!(PortGroup { index, name, node_types, ports });
canonical!(QosLevel { index, name, sl, mtu_limit, rate_limit, packet_life, pkeys });
canonical!(QosRule {
    index,
    name,
    origin,
    level,
    sources,
    destinations,
    pkeys,
    qos_classes,
    service_ids
});
canonical!(VirtualFabric {
    index,
    name,
    pkey,
    base_sl,
    multicast_sl,
    mtu_max,
    rate_max,
    security,
    qos,
    standby,
    applications,
    service_ids,
    unmatched_service_ids,
    mgids,
    unmatched_mgids,
    members,
    limited_members
});
canonical!(PrefixRoute { prefix, router });

impl Canonical for RuleOrigin {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u8::take(input)? {
            0 => Self::MatchRule,
            1 => Self::Ulp,
            2 => Self::Default,
            3 => Self::VirtualFabric,
            _ => return Err(Malformed("an unknown origin of a rule")),
        })
    }
}

impl Canonical for IdMatch {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, first, second) = match *self {
            Self::Range(first, last) => (0, first, last),
            Self::Masked { value, mask } => (1, value, mask),
        };
        out.push(kind);
        (first, second).put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = u8::take(input)?;
        let (first, second) = Canonical::take(input)?;
        match kind {
            0 => Ok(Self::Range(first, second)),
            1 => Ok(Self::Masked { value: first, mask: second }),
            _ => Err(Malformed("an unknown way to match a number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::decode;
    use super::*;

    #[test]
    fn rules_read_back() {
        let rule = QosRule {
            index: 3,
            name: "storage".into(),
            origin: RuleOrigin::VirtualFabric,
            level: 9,
            sources: Some(vec![1, 2]),
            destinations: None,
            pkeys: Some(vec![(1, 0x7FFF)]),
            qos_classes: Some(vec![]),
            service_ids: Some(vec![
                IdMatch::Range(5, 9),
                IdMatch::Masked { value: 0x0100, mask: 0xFF00 },
            ]),
        };
        let mut bytes = Vec::new();
        rule.put(&mut bytes);
        assert_eq!(decode::<QosRule>(&bytes).unwrap(), rule);
    }

    #[test]
    fn masked_numbers_compare_in_the_bits_of_the_mask() {
        let masked = IdMatch::Masked { value: 0x0100, mask: 0xFF00 };
        assert!(masked.accepts(0x01AB) && !masked.accepts(0x02AB));
        let range = IdMatch::Range(5, 9);
        assert!(range.accepts(5) && range.accepts(9) && !range.accepts(10));
    }
}

//! Policy rows of the fabric plane: partitions, QoS levels and rules, virtual fabrics.
//!
//! The SM reads the site's files, resolves names against the fabric, and stores the result in these
//! rows; responders compile them for matching and never read a file. The order of rules is their
//! precedence: the first that matches a request applies.

use ib_mad::types::{Gid, Guid, Lifetime, Mtu, PKey, Rate, Sl};

use super::encoding::{Canonical, Malformed, Reader, canonical};
use super::row::{NoPatch, Row};
use super::tables::Table;

/// A partition: properties common to all ports with its P_Key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// P_Key without the membership bit, the key of this row.
    pub pkey: PKey,
    /// Name in `partitions.conf`, or of the virtual fabric that it was created for.
    pub name: String,
    /// SL of paths and groups in the partition, unless a QoS level overrides it.
    pub sl: Sl,
}

/// A set of end ports that QoS rules refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// Number of the group, the key of this row; rules refer to it.
    pub index: u32,
    /// Name in the policy file.
    pub name: String,
    /// Node types all of whose ports belong to the group; bits of [`NODE_CA`](Self::NODE_CA),
    /// [`NODE_SWITCH`](Self::NODE_SWITCH) and [`NODE_ROUTER`](Self::NODE_ROUTER).
    pub node_types: u8,
    /// Further port GUIDs in the group, ascending, without duplicates.
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

/// QoS level: limits and values for the paths that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosLevel {
    /// Number of the level, the key of this row; rules refer to it.
    pub index: u32,
    /// Name in the policy file.
    pub name: String,
    /// SL of the path.
    pub sl: Option<Sl>,
    /// Maximum MTU.
    pub mtu_limit: Option<Mtu>,
    /// Maximum rate.
    pub rate_limit: Option<Rate>,
    /// Packet lifetime in responses.
    pub packet_life: Option<Lifetime>,
    /// P_Keys allowed for the path, as ranges of their 15 bits; empty for all.
    pub pkeys: Vec<(u16, u16)>,
}

/// Numbers that a criterion accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMatch {
    /// From the first to the last, inclusive.
    Range(u64, u64),
    /// Numbers equal to `value` in the bits of `mask`.
    Masked {
        /// Required value of the bits.
        value: u64,
        /// Bits that are compared.
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

/// Source of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RuleOrigin {
    /// `qos-match-rule` of a QoS policy.
    MatchRule = 0,
    /// A line of the policy's `qos-ulps` section.
    Ulp = 1,
    /// The level DEFAULT, or the default of `qos-ulps`: applies if no other rule of the policy
    /// matches.
    Default = 2,
    /// A virtual fabric.
    VirtualFabric = 3,
}

/// A QoS rule: which requests get which level. All criteria present must match; of each criterion,
/// one value suffices. A criterion does not match if the request omits its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosRule {
    /// Precedence, the key of this row: the lowest that matches applies.
    pub index: u32,
    /// Name for operators: text of `use`, ULP keyword, or name of the virtual fabric; with file and
    /// line.
    pub name: String,
    /// Source of the rule.
    pub origin: RuleOrigin,
    /// Number of the level granted.
    pub level: u32,
    /// Numbers of groups, one of which must contain the source.
    pub sources: Option<Vec<u32>>,
    /// Numbers of groups, one of which must contain the destination.
    pub destinations: Option<Vec<u32>>,
    /// P_Keys in the request, as ranges of their 15 bits.
    pub pkeys: Option<Vec<(u16, u16)>>,
    /// QoS classes in the request, as ranges.
    pub qos_classes: Option<Vec<(u16, u16)>>,
    /// Service IDs in the request; an empty list matches requests without one.
    pub service_ids: Option<Vec<IdMatch>>,
}

/// A virtual fabric: applications, device groups, and the properties of paths in it.
///
/// Its rules and levels are among the others; this row serves queries of operators and job
/// schedulers, and the creation of multicast groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualFabric {
    /// Position in the file, the key of this row: the lowest applies where several match.
    pub index: u32,
    /// Name.
    pub name: String,
    /// P_Key without the membership bit.
    pub pkey: PKey,
    /// SL of its unicast paths.
    pub base_sl: Sl,
    /// SL of its multicast groups.
    pub multicast_sl: Sl,
    /// Maximum MTU.
    pub mtu_max: Option<Mtu>,
    /// Maximum rate.
    pub rate_max: Option<Rate>,
    /// Whether limited members cannot communicate with each other.
    pub security: bool,
    /// Whether it has its own SL, by a QOSGroup or QOS.
    pub qos: bool,
    /// Whether it is defined but carries no traffic for now: it has no rules and no groups.
    pub standby: bool,
    /// Names of its applications.
    pub applications: Vec<String>,
    /// Service IDs of its applications.
    pub service_ids: Vec<IdMatch>,
    /// Whether it accepts Service IDs that no virtual fabric with the same ends lists.
    pub unmatched_service_ids: bool,
    /// MGIDs of its applications: those equal to the first in the bits of the second.
    pub mgids: Vec<(Gid, Gid)>,
    /// Whether it accepts MGIDs that no virtual fabric of the port lists.
    pub unmatched_mgids: bool,
    /// Full members: numbers of port groups.
    pub members: Vec<u32>,
    /// Limited members: numbers of port groups.
    pub limited_members: Vec<u32>,
}

/// A route to another subnet (`prefix-routes.conf`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixRoute {
    /// Prefix of the other subnet; `None` for all others.
    pub prefix: Option<u64>,
    /// GUID of the router's port; `None` for any router.
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

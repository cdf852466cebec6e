//! What partitions leave out: GUIDs of rules that no port has, and hosts that reach no other host.
//!
//! A mistyped GUID is no mistake of syntax, since a host may be away; it shows here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ib_mad::types::{Guid, PKey};
use ib_mad::wire::attribute::NodeType;

use super::partition::{Memberships, PortKeys};
use crate::fabric::{Fabric, PortIndex};
use sm_config::PartitionConfig;
use sm_config::partitions::Ports;

/// Largest number of GUIDs and hosts that are named.
const NAMED_MAX: usize = 4;

/// GUIDs of rules that no port has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbsentGuids {
    /// Their number.
    pub count: usize,
    /// The first ones, with the line of the partition file that names each, if one does.
    pub first: Vec<(Guid, Option<usize>)>,
}

/// Hosts that reach no other host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Isolated {
    /// Their number.
    pub count: usize,
    /// How many of them are limited members of the default partition, and of no other.
    pub limited: usize,
    /// Port GUIDs and names of the first ones.
    pub first: Vec<(Guid, String)>,
}

/// Finds the GUIDs of rules that no end port of the fabric has.
pub fn absent_guids(fabric: &Fabric, config: &PartitionConfig) -> AbsentGuids {
    let named = config.rules().iter().filter_map(|rule| match rule.ports {
        Ports::Guid(guid) => Some(guid),
        _ => None,
    });
    let mut absent: HashSet<Guid> = named.collect();
    if absent.is_empty() {
        return AbsentGuids::default();
    }
    for port in fabric.end_ports() {
        absent.remove(&fabric.port(port).guid);
    }
    for (_, _, port) in fabric.usable_virtual_ports() {
        absent.remove(&port.guid());
    }
    let count = absent.len();
    let mut first: Vec<_> = absent.into_iter().map(|guid| (guid, config.line_of(guid))).collect();
    first.sort_unstable_by_key(|&(guid, line)| (line.unwrap_or(usize::MAX), guid));
    first.truncate(NAMED_MAX);
    AbsentGuids { count, first }
}

/// Members of a partition.
#[derive(Clone, Copy, Default)]
struct Members {
    full: usize,
    limited: usize,
}

/// Hosts with equal P_Keys.
struct Group {
    /// Their partitions, and whether they are full members.
    keys: BTreeMap<u16, bool>,
    count: usize,
    first: Vec<PortIndex>,
}

/// Finds hosts that share no partition with another host of which one is a full member. The SM's
/// own port, and those of responders, are full members of the default partition by rule: in that
/// they count as no hosts.
pub fn isolated(fabric: &Fabric, memberships: &Memberships, responders: &[Guid]) -> Isolated {
    let is_served = |port: PortIndex| {
        fabric.sm_port() == Some(port) || responders.binary_search(&fabric.port(port).guid).is_ok()
    };
    let (mut groups, mut served) = (Vec::<Group>::new(), Vec::new());
    // Most ports share one allocation.
    let mut by_keys: HashMap<*const PortKeys, usize> = HashMap::new();
    let hosts = fabric.end_ports().filter(|&port| fabric.node_of(port).kind == NodeType::Ca);
    for port in hosts {
        let Some(keys) = memberships.shared_keys(port) else { continue };
        if is_served(port) {
            served.push(of_keys(keys));
            continue;
        }
        let at = *by_keys.entry(Arc::as_ptr(keys)).or_insert_with(|| {
            groups.push(Group { keys: of_keys(keys), count: 0, first: Vec::new() });
            groups.len() - 1
        });
        groups[at].count += 1;
        if groups[at].first.len() < NAMED_MAX {
            groups[at].first.push(port);
        }
    }
    let mut members: HashMap<u16, Members> = HashMap::new();
    served.iter_mut().for_each(|keys| {
        keys.remove(&PKey::DEFAULT_LIMITED.base());
    });
    let of_groups = groups.iter().map(|group| (&group.keys, group.count));
    for (keys, count) in of_groups.chain(served.iter().map(|keys| (keys, 1))) {
        for (&base, &is_full) in keys {
            let members = members.entry(base).or_default();
            *(if is_full { &mut members.full } else { &mut members.limited }) += count;
        }
    }
    let reaches = |(base, is_full): (&u16, &bool)| {
        let Members { full, limited } = members.get(base).copied().unwrap_or_default();
        if *is_full { full + limited > 1 } else { full > 0 }
    };
    let mut found = Isolated::default();
    let hosts: usize = groups.iter().map(|group| group.count).sum();
    // One host alone has none to reach.
    if hosts < 2 {
        return found;
    }
    for group in groups.iter().filter(|group| !group.keys.iter().any(reaches)) {
        found.count += group.count;
        let is_default = group.keys.iter().eq([(&PKey::DEFAULT_LIMITED.base(), &false)]);
        found.limited += if is_default { group.count } else { 0 };
        let named = |&port: &PortIndex| {
            (fabric.port(port).guid, fabric.node_of(port).name().trim_end().to_owned())
        };
        found.first.extend(group.first.iter().map(named));
    }
    found.first.truncate(NAMED_MAX);
    found
}

/// The partitions of a port, and whether it is a full member.
fn of_keys(keys: &PortKeys) -> BTreeMap<u16, bool> {
    let mut found = BTreeMap::new();
    for key in &keys.keys {
        *found.entry(key.base()).or_default() |= key.is_full();
    }
    found
}

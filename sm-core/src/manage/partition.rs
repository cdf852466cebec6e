//! Partitions on a fabric: the members of each partition, and the multicast groups that exist
//! from the beginning.
//!
//! Not here: the positions of P_Keys in a port's table, and enforcement at switches (`pkey`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid, Lifetime, Mtu, PKey, Rate, Sl};
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::Partition;

use super::by_port::ByPort;
use crate::fabric::{Fabric, PortIndex};
use sm_config::partitions::{GroupSl, Membership, Ports, Rule};
use sm_config::{PartitionConfig, Settings};

/// Scope of groups that do not leave the subnet.
const LINK_LOCAL: u8 = 2;

/// P_Keys that an end port is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortKeys {
    /// All P_Keys, each once, in the order in which they get free places of the table.
    pub keys: Vec<PKey>,
    /// The P_Key for the first entry of the table.
    pub first: PKey,
}

/// Partition membership of all end ports.
#[derive(Clone, Debug, Default)]
pub struct Memberships {
    ports: ByPort<Arc<PortKeys>>,
    /// P_Keys of virtual ports, by the port that has them and their index.
    virtual_ports: BTreeMap<(PortIndex, u16), Arc<PortKeys>>,
    /// Partitions that have members, by the P_Key of limited ones.
    occupied: BTreeSet<PKey>,
}

impl Memberships {
    /// The members among the end ports of `fabric`. The SM's own port and `responders`, which
    /// are port GUIDs, are full members of the default partition regardless of the rules: all other
    /// ports must reach them. To a newcomer, and to what its adapter presents as virtual ports, no
    /// rule for a GUID applies.
    pub fn resolve(
        fabric: &Fabric,
        config: &PartitionConfig,
        allow_both: bool,
        responders: &[Guid],
    ) -> Self {
        let rules = Rules::sort(config.rules());
        let responders: HashSet<Guid> = responders.iter().copied().collect();
        let mut of_kind: HashMap<NodeType, Arc<PortKeys>> = HashMap::new();
        // Ports with equal P_Keys share them: what depends on them is computed once.
        let mut known: HashSet<Arc<PortKeys>, RandomState> = HashSet::default();
        let mut shared = |keys: PortKeys| match known.get(&keys) {
            Some(known) => known.clone(),
            None => {
                let keys = Arc::new(keys);
                known.insert(keys.clone());
                keys
            }
        };
        let mut found = Self::default();
        for port in fabric.end_ports() {
            let (kind, guid) = (fabric.node_of(port).kind, fabric.port(port).guid);
            let own = fabric.sm_port() == Some(port);
            let served = own || responders.contains(&guid);
            let guid = if fabric.port(port).is_newcomer { Guid(0) } else { guid };
            let keys = if served || rules.of_guid.contains_key(&guid) {
                shared(rules.keys(kind, guid, own, served, allow_both))
            } else {
                let keys = || Arc::new(rules.keys(kind, guid, false, false, allow_both));
                of_kind.entry(kind).or_insert_with(keys).clone()
            };
            found.ports.insert(port, keys);
        }
        for (host, index, port) in fabric.usable_virtual_ports() {
            let (kind, guid) = (NodeType::Ca, port.guid());
            let physical = found.ports.get(host).filter(|_| guid == fabric.port(host).guid);
            let is_newcomer = port.is_newcomer() || fabric.port(host).is_newcomer;
            let guid = if is_newcomer { Guid(0) } else { guid };
            let keys = if let Some(physical) = physical {
                physical.clone()
            } else if rules.of_guid.contains_key(&guid) {
                shared(rules.keys(kind, guid, false, false, allow_both))
            } else {
                let keys = || Arc::new(rules.keys(kind, guid, false, false, allow_both));
                of_kind.entry(kind).or_insert_with(keys).clone()
            };
            found.virtual_ports.insert((host, index), keys);
        }
        // Most ports share one wanted table.
        let mut seen = HashSet::new();
        let all = found.ports.values().chain(found.virtual_ports.values());
        for keys in all.filter(|keys| seen.insert(Arc::as_ptr(keys))) {
            found.occupied.extend(keys.keys.iter().map(|key| PKey(key.base())));
        }
        found
    }

    /// Ports other than newcomers keep P_Keys that their tables hold and `config` does not define:
    /// partitions that programs made are not known yet.
    pub fn keep_others(&mut self, fabric: &Fabric, config: &PartitionConfig) {
        let defined: HashSet<u16> =
            config.partitions().iter().map(|partition| partition.pkey.base()).collect();
        for (port, keys) in self.ports.iter_mut() {
            if fabric.port(port).is_newcomer {
                continue;
            }
            let held = fabric.port(port).pkeys.iter().copied();
            keep(keys, held.filter(|key| !defined.contains(&key.base())));
        }
        for (&(host, index), keys) in &mut self.virtual_ports {
            let port = fabric.virtual_ports(host).and_then(|ports| ports.get(index));
            if fabric.port(host).is_newcomer || port.is_some_and(|port| port.is_newcomer()) {
                continue;
            }
            let held = port.into_iter().flat_map(|port| port.pkeys.iter().copied());
            keep(keys, held.filter(|key| !defined.contains(&key.base())));
        }
    }

    /// Wanted P_Keys of a virtual port.
    pub fn virtual_keys(&self, host: PortIndex, index: u16) -> Option<&Arc<PortKeys>> {
        self.virtual_ports.get(&(host, index))
    }

    /// Wanted P_Keys of an end port.
    pub fn keys(&self, port: PortIndex) -> Option<&PortKeys> {
        self.shared_keys(port).map(|keys| &**keys)
    }

    /// The P_Keys of a port; ports with equal P_Keys mostly share the allocation.
    pub fn shared_keys(&self, port: PortIndex) -> Option<&Arc<PortKeys>> {
        self.ports.get(port)
    }

    /// Whether a partition has members; the membership bit does not count.
    pub fn is_occupied(&self, pkey: PKey) -> bool {
        self.occupied.contains(&PKey(pkey.base()))
    }

    /// The partitions that have members, as rows of a snapshot.
    pub fn rows(&self, config: &PartitionConfig, qos: bool) -> Vec<Partition> {
        let occupied = config.partitions().iter().filter(|p| self.is_occupied(p.pkey));
        occupied
            .map(|partition| Partition {
                pkey: partition.pkey,
                name: partition.name.clone(),
                sl: if qos { partition.sl } else { Sl::default() },
            })
            .collect()
    }
}

/// Adds the valid ones of `held` to the P_Keys of a port.
fn keep(keys: &mut Arc<PortKeys>, held: impl Iterator<Item = PKey>) {
    for key in held.filter(|key| key.is_valid()) {
        if !keys.keys.contains(&key) {
            Arc::make_mut(keys).keys.push(key);
        }
    }
}

/// Rules by the ports they apply to, as positions in the file.
struct Rules<'a> {
    all: &'a [Rule],
    of_kind: HashMap<NodeType, Vec<usize>>,
    of_guid: HashMap<Guid, Vec<usize>, RandomState>,
    of_own: Vec<usize>,
}

impl<'a> Rules<'a> {
    fn sort(all: &'a [Rule]) -> Self {
        let mut rules =
            Self { all, of_kind: HashMap::new(), of_guid: HashMap::default(), of_own: Vec::new() };
        for (place, rule) in all.iter().enumerate() {
            let kinds: &[NodeType] = match rule.ports {
                Ports::All => &[NodeType::Ca, NodeType::Switch, NodeType::Router],
                Ports::Cas => &[NodeType::Ca],
                Ports::Switches => &[NodeType::Switch],
                Ports::Routers => &[NodeType::Router],
                Ports::Own => {
                    rules.of_own.push(place);
                    &[]
                }
                Ports::Guid(guid) => {
                    rules.of_guid.entry(guid).or_default().push(place);
                    &[]
                }
            };
            for kind in kinds {
                rules.of_kind.entry(*kind).or_default().push(place);
            }
        }
        rules
    }

    /// Wanted P_Keys of a port: all rules that match it, in file order.
    fn keys(
        &self,
        kind: NodeType,
        guid: Guid,
        own: bool,
        served: bool,
        allow_both: bool,
    ) -> PortKeys {
        let mut places: Vec<usize> = self.of_kind.get(&kind).cloned().unwrap_or_default();
        places.extend(self.of_guid.get(&guid).into_iter().flatten());
        places.extend(self.of_own.iter().filter(|_| own));
        places.sort_unstable();
        let mut table = Wanted { allow_both, ..Wanted::default() };
        for place in places {
            table.apply(&self.all[place]);
        }
        if served {
            let default = table.members.entry(PKey::DEFAULT_LIMITED.0).or_default();
            *default = Member { full: true, limited: default.limited && allow_both };
        }
        table.into_keys()
    }
}

#[derive(Clone, Copy, Default)]
struct Member {
    limited: bool,
    full: bool,
}

/// P_Keys of a port while rules are applied.
#[derive(Default)]
struct Wanted {
    allow_both: bool,
    /// By base P_Key.
    members: BTreeMap<u16, Member>,
    first: Option<PKey>,
}

impl Wanted {
    fn apply(&mut self, rule: &Rule) {
        let base = rule.pkey.base();
        let member = self.members.entry(base).or_default();
        *member = match rule.membership {
            Membership::Both if self.allow_both => Member { limited: true, full: true },
            Membership::Both | Membership::Full => Member { limited: false, full: true },
            Membership::Limited => Member { limited: true, full: false },
        };
        // If both, the limited one: OpenSM adds it last.
        let key = if member.limited { PKey(base) } else { PKey(base | 0x8000) };
        if rule.first {
            self.first = Some(key);
        } else if self.first.is_some_and(|first| first.base() == base) {
            self.first = None;
        }
    }

    fn into_keys(self) -> PortKeys {
        let mut bases: Vec<(u16, Member)> = self.members.into_iter().collect();
        // As in OpenSM's tables, which are sorted by numbers in network order.
        bases.sort_unstable_by_key(|(base, _)| base.swap_bytes());
        let mut keys: Vec<PKey> = Vec::with_capacity(bases.len());
        for (base, member) in bases {
            keys.extend([PKey(base)].iter().filter(|_| member.limited));
            keys.extend([PKey(base | 0x8000)].iter().filter(|_| member.full));
        }
        let of_base = |base: u16| keys.iter().rev().find(|key| key.base() == base).copied();
        let first = match self.first {
            Some(first) if keys.contains(&first) => Some(first),
            Some(first) => of_base(first.base()),
            None => None,
        };
        let first = first.or_else(|| of_base(PKey::DEFAULT_LIMITED.0)).unwrap_or_default();
        PortKeys { keys, first }
    }
}

/// A predefined multicast group: an MCMemberRecord without MLID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredefinedGroup {
    /// Its address.
    pub mgid: Gid,
    /// Q_Key.
    pub qkey: u32,
    /// MTU, exactly.
    pub mtu: Mtu,
    /// Traffic class.
    pub tclass: u8,
    /// P_Key of full members.
    pub pkey: PKey,
    /// Rate, exactly.
    pub rate: Rate,
    /// Lifetime of packets, exactly.
    pub lifetime: Lifetime,
    /// SL.
    pub sl: Sl,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit: 0 if the group does not leave the subnet.
    pub hop_limit: u8,
    /// Scope, 4 bits.
    pub scope: u8,
}

/// The groups that partitions with members have from the beginning, in the order in which they get
/// their MLIDs.
pub fn groups(
    config: &PartitionConfig,
    memberships: &Memberships,
    settings: &Settings,
    qos: bool,
) -> Vec<PredefinedGroup> {
    let occupied = config.groups().iter().filter(|group| memberships.is_occupied(group.pkey));
    occupied
        .map(|group| PredefinedGroup {
            mgid: group.mgid,
            qkey: group.qkey,
            mtu: group.mtu,
            tclass: group.tclass,
            pkey: PKey(group.pkey.0 | 0x8000),
            rate: group.rate,
            lifetime: Lifetime::from_low_bits(settings.subnet_timeout),
            sl: match group.sl {
                GroupSl::Own(sl) => sl,
                GroupSl::Inherited(sl) if qos => sl,
                GroupSl::Inherited(_) => Sl::default(),
            },
            flow_label: group.flow_label,
            hop_limit: if group.scope() == LINK_LOCAL { 0 } else { u8::MAX },
            scope: group.scope(),
        })
        .collect()
}

#[cfg(test)]
mod tests;

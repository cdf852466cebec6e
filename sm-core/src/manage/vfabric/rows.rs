//! Rules for path queries.
//!
//! A request falls under a virtual fabric if both ends are members of it, one of them a full one,
//! and its Service ID is one of its applications'; a request that also has a P_Key matches one that
//! has it (responders see to that for rules of virtual fabrics). The rules, each kind in the order
//! of the file:
//!
//! 1. Service IDs that applications name;
//! 2. the same with a P_Key that only other virtual fabrics have: no path, because the application
//!    is not theirs;
//! 3. Service IDs that none of these matched, for those with `UnmatchedServiceID`;
//! 4. unmatched Service IDs with a P_Key that only virtual fabrics have: no path;
//! 5. requests without a Service ID.
//!
//! Requests that match none of them are decided by the QoS policy and the partitions.

use sa_proto::snapshot::{self, IdMatch, QosLevel, QosRule, RuleOrigin};

use super::{VirtualFabric, VirtualFabrics};
use crate::manage::qos::any;
use crate::manage::rules::RuleSet;
use ib_mad::types::{Lifetime, PKey};

/// All Service IDs.
const EVERY_ID: IdMatch = IdMatch::Range(0, u64::MAX);

/// Greatest lifetime code.
const LIFETIME_LAST: u8 = 63;

impl VirtualFabrics {
    /// Adds rules, and what they refer to. `file` is for their names; `lifetime` is the code of
    /// packet lifetimes in other answers; `partitions` are the P_Keys of `partitions.conf`.
    pub fn add_rules(&self, file: &str, lifetime: u8, partitions: &[PKey], rows: &mut RuleSet) {
        let mut builder = Builder::new(self, file, lifetime, rows);
        builder.virtual_fabrics();
        builder.explicit();
        builder.explicit_elsewhere(partitions);
        builder.unmatched();
        builder.without_partition(partitions);
        builder.without_service_id();
    }
}

/// Allowed traffic in a virtual fabric: numbers of groups of sources and of destinations.
type Pair = (Vec<u32>, Vec<u32>);

struct Builder<'a> {
    all: &'a VirtualFabrics,
    file: &'a str,
    rows: &'a mut RuleSet,
    /// Row number of every device group that is named.
    groups: Vec<Option<u32>>,
    /// Level of every virtual fabric.
    levels: Vec<u32>,
    /// The level that no path can have, once there is a rule for it.
    no_path: Option<u32>,
}

impl<'a> Builder<'a> {
    fn new(all: &'a VirtualFabrics, file: &'a str, lifetime: u8, rows: &'a mut RuleSet) -> Self {
        let level = |fabric: &VirtualFabric| QosLevel {
            index: 0,
            name: format!("virtual fabric {}", fabric.name),
            sl: fabric.qos.then_some(fabric.base_sl),
            mtu_limit: fabric.mtu_max,
            rate_limit: fabric.rate_max,
            packet_life: (fabric.lifetime_shift > 0).then(|| {
                let code = lifetime.saturating_add(fabric.lifetime_shift).min(LIFETIME_LAST);
                Lifetime::from_low_bits(code)
            }),
            pkeys: vec![(fabric.pkey.base(), fabric.pkey.base())],
        };
        let levels = all.fabrics.iter().map(|fabric| rows.level(level(fabric))).collect();
        Self { all, file, rows, groups: vec![None; all.members.len()], levels, no_path: None }
    }

    fn group(&mut self, at: usize) -> u32 {
        let Self { all, rows, groups, .. } = self;
        *groups[at].get_or_insert_with(|| {
            let members = &all.members[at];
            let ports = members.ports.iter().map(|&port| all.ports[port].0).collect();
            rows.group(&all.group_names[at], members.node_types, ports)
        })
    }

    fn numbers(&mut self, groups: &[usize]) -> Vec<u32> {
        let mut numbers: Vec<u32> = groups.iter().map(|&at| self.group(at)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The rows that operators ask for.
    fn virtual_fabrics(&mut self) {
        for (index, fabric) in self.all.fabrics.iter().enumerate() {
            let row = snapshot::VirtualFabric {
                index: index as u32,
                name: fabric.name.clone(),
                pkey: fabric.pkey,
                base_sl: fabric.base_sl,
                multicast_sl: fabric.multicast_sl,
                mtu_max: fabric.mtu_max,
                rate_max: fabric.rate_max,
                security: fabric.security,
                qos: fabric.qos,
                standby: fabric.standby,
                applications: fabric.applications.clone(),
                service_ids: fabric.traffic.service_ids.clone(),
                unmatched_service_ids: fabric.traffic.unmatched_service_ids,
                mgids: fabric.traffic.mgids.clone(),
                unmatched_mgids: fabric.traffic.unmatched_mgids,
                members: self.numbers(&fabric.full),
                limited_members: self.numbers(&fabric.limited),
            };
            self.rows.virtual_fabrics.push(row);
        }
    }

    /// Full members reach all members, limited ones only full ones.
    fn pairs(&mut self, fabric: &VirtualFabric) -> Vec<Pair> {
        let full = self.numbers(&fabric.full);
        let limited = self.numbers(&fabric.limited);
        if limited.is_empty() {
            return vec![(full.clone(), full)];
        }
        let mut all = [full.clone(), limited.clone()].concat();
        all.sort_unstable();
        all.dedup();
        match full.is_empty() {
            true => Vec::new(),
            false => vec![(full.clone(), all), (limited, full)],
        }
    }

    fn rules(
        &mut self,
        fabric: &VirtualFabric,
        what: &str,
        level: u32,
        pkeys: Option<Vec<(u16, u16)>>,
        service_ids: Vec<IdMatch>,
    ) {
        let name = format!("{}{what} ({}:{})", fabric.name, self.file, fabric.line);
        for (sources, destinations) in self.pairs(fabric) {
            self.rows.rule(QosRule {
                name: name.clone(),
                level,
                sources: Some(sources),
                destinations: Some(destinations),
                pkeys: pkeys.clone(),
                service_ids: Some(service_ids.clone()),
                ..any(RuleOrigin::VirtualFabric)
            });
        }
    }

    fn explicit(&mut self) {
        for (at, fabric) in self.all.active() {
            if !fabric.traffic.service_ids.is_empty() {
                let ids = fabric.traffic.service_ids.clone();
                self.rules(fabric, "", self.levels[at], None, ids);
            }
        }
    }

    fn explicit_elsewhere(&mut self, partitions: &[PKey]) {
        for (_, fabric) in self.all.active() {
            let others = self.all.active().map(|(_, other)| other.pkey.base());
            let is_other = |key: &u16| {
                *key != fabric.pkey.base() && partitions.iter().all(|own| own.base() != *key)
            };
            let mut others: Vec<u16> = others.filter(is_other).collect();
            others.sort_unstable();
            others.dedup();
            if !fabric.traffic.service_ids.is_empty() && !others.is_empty() {
                let level = self.no_path();
                let ids = fabric.traffic.service_ids.clone();
                let pkeys = others.into_iter().map(|pkey| (pkey, pkey)).collect();
                self.rules(fabric, ", asked for with another's P_Key", level, Some(pkeys), ids);
            }
        }
    }

    fn unmatched(&mut self) {
        for (at, fabric) in self.all.active() {
            if fabric.traffic.unmatched_service_ids {
                let level = self.levels[at];
                self.rules(fabric, ", unmatched Service ID", level, None, vec![EVERY_ID]);
            }
        }
    }

    fn without_partition(&mut self, partitions: &[PKey]) {
        for (_, fabric) in self.all.active() {
            let pkey = fabric.pkey.base();
            if partitions.iter().all(|partition| partition.base() != pkey) {
                let level = self.no_path();
                let pkeys = Some(vec![(pkey, pkey)]);
                self.rules(fabric, ", none of its Service IDs", level, pkeys, vec![EVERY_ID]);
            }
        }
    }

    fn without_service_id(&mut self) {
        for (at, fabric) in self.all.active() {
            let level = self.levels[at];
            self.rules(fabric, ", without Service ID", level, None, Vec::new());
        }
    }

    /// A level that no path satisfies: no port has P_Key 0.
    fn no_path(&mut self) -> u32 {
        let rows = &mut *self.rows;
        *self.no_path.get_or_insert_with(|| {
            rows.level(QosLevel {
                index: 0,
                name: "no path".to_owned(),
                sl: None,
                mtu_limit: None,
                rate_limit: None,
                packet_life: None,
                pkeys: vec![(0, 0)],
            })
        })
    }
}

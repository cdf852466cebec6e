//! The site's policy resolved against a fabric, as rows of a snapshot.

use std::collections::BTreeMap;
use std::path::Path;

use ib_mad::types::{Guid, Mtu, PKey};

use super::end_port::end_ports;
use super::partition::Memberships;
use super::port_qos;
use super::qos::{self, PartitionMembers};
use super::rules::RuleSet;
use super::vfabric::VirtualFabrics;
use crate::fabric::PolicyRows;
use crate::fabric::{Fabric, PortIndex};
use sm_config::partitions::PartitionConfig;
use sm_config::{QosTables, Settings, SitePolicy};

/// The policy in force on a fabric.
#[derive(Clone, Copy, Debug)]
pub struct InForce<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// Settings.
    pub settings: &'a Settings,
    /// The site's files.
    pub site: &'a SitePolicy,
    /// Partitions, those of virtual fabrics among them.
    pub partitions: &'a PartitionConfig,
    /// Their members.
    pub memberships: &'a Memberships,
    /// Virtual fabrics.
    pub virtual_fabrics: &'a VirtualFabrics,
}

/// The rows, and warnings for the log.
pub fn rows(what: &InForce<'_>) -> (PolicyRows, Vec<String>) {
    let InForce { settings, site, .. } = *what;
    let mut rules = RuleSet::default();
    let own: Vec<PKey> = site.partitions.partitions().iter().map(|each| each.pkey).collect();
    rules.warnings.extend_from_slice(what.virtual_fabrics.warnings());
    let file = settings.vfabric_config_file.as_deref().map_or("", file_name);
    what.virtual_fabrics.add_rules(file, settings.subnet_timeout, &own, &mut rules);
    rules.warnings.extend(own_tables(file, settings, what.virtual_fabrics));
    if let (true, Some(policy)) = (settings.qos, &site.qos) {
        add_qos(what, policy, &mut rules);
    }
    let mut warnings = std::mem::take(&mut rules.warnings);
    warnings.extend(groups_out_of_reach(what));
    let mut rows = PolicyRows {
        qos: settings.qos,
        allow_both_pkeys: settings.allow_both_pkeys,
        trusted_see_all: settings.sa_trusted_see_all,
        max_rate: settings.max_rate_enum,
        quirks: settings.enable_quirks,
        prefix_routes: site.prefix_routes.to_vec(),
        partitions: what.memberships.rows(what.partitions, settings.qos),
        ..PolicyRows::default()
    };
    rules.move_to(&mut rows);
    (rows, warnings)
}

/// Reports kinds of ports at which the tables of settings are in force in place of the bandwidth of
/// virtual fabrics.
fn own_tables(file: &str, settings: &Settings, fabrics: &VirtualFabrics) -> Option<String> {
    let arbitration = fabrics.arbitration()?;
    let QosTables { ca, sw0, swe, rtr } = QosTables::of(settings);
    let kinds = [
        (ca, "ports of channel adapters (ca)"),
        (sw0, "port 0 of switches (sw0)"),
        (swe, "external ports of switches (swe)"),
        (rtr, "ports of routers (rtr)"),
    ];
    let own = kinds.iter().filter(|(tables, _)| port_qos::is_own(tables, settings));
    let names: Vec<&str> = own.map(|&(_, name)| name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{file}:{}: Bandwidth and HighPriority have no effect at {}: the settings have VL \
             arbitration tables for them",
            arbitration.line(),
            names.join(", ")
        )
    })
}

/// Reports multicast groups of partitions whose MTU exceeds the link MTU of some members: these
/// ports are refused when they join, and the refusal does not say why.
fn groups_out_of_reach(what: &InForce<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    for group in what.partitions.groups() {
        let is_member = |port: &PortIndex| {
            let keys = what.memberships.keys(*port).map_or(&[][..], |keys| &keys.keys);
            what.fabric.port(*port).num.0 > 0
                && keys.iter().any(|key| key.base() == group.pkey.base())
        };
        let mtu = |port| Mtu::from_code(what.fabric.port(port).port_info().neighbor_mtu());
        let mtus: Vec<Mtu> = what.fabric.end_ports().filter(is_member).filter_map(mtu).collect();
        let below = mtus.iter().filter(|&&mtu| mtu.code() < group.mtu.code());
        let Some(least) = below.clone().min_by_key(|mtu| mtu.code()) else { continue };
        remarks.push(format!(
            "multicast group {} of partition {} has MTU {}, above the link MTU of {} of its {} \
             members, which cannot join; mtu={} ({} bytes) suits all members",
            group.mgid,
            PKey(group.pkey.base()),
            group.mtu.bytes(),
            below.count(),
            mtus.len(),
            least.code(),
            least.bytes(),
        ));
    }
    remarks
}

fn file_name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}

fn add_qos(what: &InForce<'_>, policy: &sm_config::qos_policy::QosPolicy, rules: &mut RuleSet) {
    let mut members: BTreeMap<u16, (Vec<Guid>, Vec<Guid>)> = BTreeMap::new();
    for port in what.fabric.end_ports() {
        let guid = what.fabric.port(port).guid;
        for key in what.memberships.keys(port).iter().flat_map(|keys| &keys.keys) {
            let (full, limited) = members.entry(key.base()).or_default();
            if key.is_full() { full.push(guid) } else { limited.push(guid) }
        }
    }
    let none = (Vec::new(), Vec::new());
    let partitions: Vec<PartitionMembers<'_>> = what
        .partitions
        .partitions()
        .iter()
        .map(|partition| {
            let (full, limited) = members.get(&partition.pkey.base()).unwrap_or(&none);
            PartitionMembers { pkey: partition.pkey, name: &partition.name, full, limited }
        })
        .collect();
    let path = what.settings.qos_policy_file.as_deref().unwrap_or("qos-policy.conf");
    qos::compile(policy, Path::new(path), &end_ports(what.fabric, &[]), &partitions, rules);
}

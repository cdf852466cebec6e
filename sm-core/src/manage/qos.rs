//! Resolves the QoS policy against the fabric: names become ports, the file becomes rules for
//! responders.
//!
//! Match rules come first, in the order of the file, then those of `qos-ulps`, wherever their
//! section stands, then the level DEFAULT, else the default of `qos-ulps`, as a rule without
//! criteria. A name that the fabric or the partitions lack does not invalidate the policy: it
//! causes a warning, and groups are resolved again in every sweep.

use std::path::Path;

use ib_mad::types::{Guid, PKey, Sl};
use sa_proto::snapshot::{IdMatch, PortGroup, QosLevel, QosRule, RuleOrigin};

use super::end_port::{Directory, EndPort};
use super::rules::{RuleSet, narrow};
use sm_config::qos_policy::{self as file, Criterion, PortName, QosPolicy, UlpRule};
use sm_config::ranges::Ranges;

/// A partition, as far as policies refer to it.
#[derive(Clone, Copy, Debug)]
pub struct PartitionMembers<'a> {
    /// P_Key; its membership bit means nothing.
    pub pkey: PKey,
    /// Name.
    pub name: &'a str,
    /// Port GUIDs of full members.
    pub full: &'a [Guid],
    /// Port GUIDs of limited members.
    pub limited: &'a [Guid],
}

impl PartitionMembers<'_> {
    fn all(&self) -> impl Iterator<Item = Guid> + '_ {
        self.full.iter().chain(self.limited).copied()
    }
}

/// Adds the rules and levels of `policy`, from the file at `path`, for these ports and partitions.
pub fn compile(
    policy: &QosPolicy,
    path: &Path,
    ports: &[EndPort],
    partitions: &[PartitionMembers<'_>],
    rows: &mut RuleSet,
) {
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let directory = Directory::new(ports);
    let mut guids: Vec<Guid> = ports.iter().map(|port| port.guid).collect();
    guids.sort_unstable();
    let mut compiler = Compiler { file, ports, guids, directory, partitions, rows };
    let groups: Vec<u32> = policy.port_groups.iter().map(|group| compiler.group(group)).collect();
    let levels: Vec<u32> = policy.levels.iter().map(|level| compiler.level(level)).collect();
    for (at, rule) in policy.rules.iter().enumerate() {
        compiler.match_rule(at, rule, &groups, &levels);
    }
    let mut simple = [None; 16];
    for rule in &policy.ulps {
        compiler.ulp_rule(rule, &mut simple);
    }
    compiler.default_rule(policy, &levels);
}

struct Compiler<'a> {
    /// Name of the file, for names of rules.
    file: String,
    ports: &'a [EndPort],
    /// Their GUIDs, ascending.
    guids: Vec<Guid>,
    directory: Directory<'a>,
    partitions: &'a [PartitionMembers<'a>],
    rows: &'a mut RuleSet,
}

impl Compiler<'_> {
    fn warn(&mut self, line: usize, text: std::fmt::Arguments<'_>) {
        self.rows.warnings.push(format!("{}:{line}: {text}", self.file));
    }

    fn group(&mut self, group: &file::PortGroup) -> u32 {
        let mut guids = self.among(&group.port_guids);
        for name in &group.port_names {
            guids.extend(self.named_port(name));
        }
        for partition in self.partitions {
            if group.pkeys.contains(partition.pkey.base().into()) {
                guids.extend(partition.all());
            }
        }
        for name in &group.partitions {
            match self.partitions.iter().find(|partition| partition.name == name.as_str()) {
                Some(partition) => guids.extend(partition.all()),
                None => self.warn(
                    group.line,
                    format_args!(
                        "port group '{}': partition '{}' does not exist",
                        group.name.written(),
                        name.as_str()
                    ),
                ),
            }
        }
        let types = group.node_types;
        if types.sm {
            guids.extend(self.ports.iter().filter(|port| port.is_self).map(|port| port.guid));
        }
        let kinds = [
            (types.ca, PortGroup::NODE_CA),
            (types.switch, PortGroup::NODE_SWITCH),
            (types.router, PortGroup::NODE_ROUTER),
        ];
        let node_types = kinds.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit);
        self.rows.group(group.name.written(), node_types, guids)
    }

    /// End ports whose GUIDs are among `guids`.
    fn among(&self, guids: &Ranges) -> Vec<Guid> {
        let at = |guid: u64| self.guids.partition_point(|known| known.0 < guid);
        let within = |(first, last): (u64, u64)| {
            let end = last.checked_add(1).map_or(self.guids.len(), at);
            &self.guids[at(first)..end]
        };
        guids.iter().flat_map(within).copied().collect()
    }

    fn named_port(&mut self, name: &PortName) -> Option<Guid> {
        let Some(node) = self.directory.node(name.node.as_str()) else {
            let written = name.node.written();
            if written != name.node.as_str() && self.directory.node(written).is_some() {
                self.warn(
                    name.line,
                    format_args!(
                        "port-name {written}/P{} matches no port: blanks count only in quotes; \
                         write \"{written}/P{}\"",
                        name.port, name.port
                    ),
                );
            }
            return None;
        };
        let first = &node[0];
        if name.port > first.port_count || (name.port == 0 && first.num.0 != 0) {
            let (written, port) = (name.node.written(), name.port);
            self.warn(name.line, format_args!("node '{written}' has no port {port}"));
            return None;
        }
        // A switch's ports have the GUID of its port 0.
        node.iter().find(|port| port.num.0 == name.port || port.num.0 == 0).map(|port| port.guid)
    }

    fn level(&mut self, level: &file::Level) -> u32 {
        self.rows.level(QosLevel {
            index: 0,
            name: level.name.written().to_owned(),
            sl: Some(level.sl),
            mtu_limit: level.mtu_limit,
            rate_limit: level.rate_limit,
            packet_life: level.packet_life,
            pkeys: narrow(&level.pkeys),
        })
    }

    /// A level that sets nothing but the SL.
    fn simple_level(&mut self, name: String, sl: Sl) -> u32 {
        self.rows.level(QosLevel {
            index: 0,
            name,
            sl: Some(sl),
            mtu_limit: None,
            rate_limit: None,
            packet_life: None,
            pkeys: Vec::new(),
        })
    }

    fn match_rule(&mut self, at: usize, rule: &file::MatchRule, groups: &[u32], levels: &[u32]) {
        let numbered = |names: &[usize]| -> Option<Vec<u32>> {
            (!names.is_empty()).then(|| names.iter().map(|&name| groups[name]).collect())
        };
        let what = match rule.usage.as_str() {
            "" => format!("qos-match-rule {}", at + 1),
            usage => usage.to_owned(),
        };
        self.check_pkeys(rule.line, &rule.pkeys);
        self.rows.rule(QosRule {
            name: format!("{what} ({}:{})", self.file, rule.line),
            level: levels[rule.level],
            sources: numbered(&rule.sources),
            destinations: numbered(&rule.destinations),
            pkeys: unless_empty(&rule.pkeys, narrow),
            qos_classes: unless_empty(&rule.qos_classes, narrow),
            service_ids: unless_empty(&rule.service_ids, service_ids),
            ..any(RuleOrigin::MatchRule)
        });
    }

    fn ulp_rule(&mut self, rule: &UlpRule, simple: &mut [Option<u32>; 16]) {
        let slot = usize::from(rule.sl.get());
        let level = simple[slot].unwrap_or_else(|| {
            let name = format!("SimpleQoSLevel_SL{}", rule.sl);
            self.simple_level(name, rule.sl)
        });
        simple[slot] = Some(level);
        let name = format!("{} ({}:{})", rule.text, self.file, rule.line);
        let mut row = QosRule { name, level, ..any(RuleOrigin::Ulp) };
        let mut guids = |guids: &Ranges| {
            let guids = self.among(guids);
            Some(vec![self.rows.group(&rule.text, 0, guids)])
        };
        match &rule.criterion {
            Criterion::ServiceIds(ids) => row.service_ids = Some(service_ids(ids)),
            Criterion::PKeys(pkeys) => {
                row.pkeys = Some(narrow(pkeys));
                self.check_pkeys(rule.line, pkeys);
            }
            Criterion::Targets(ports) => row.destinations = guids(ports),
            Criterion::Sources(ports) => row.sources = guids(ports),
            Criterion::SourcesAndTargets(ports) => {
                row.sources = guids(ports);
                row.destinations.clone_from(&row.sources);
            }
        }
        self.rows.rule(row);
    }

    /// Warns of P_Keys without a partition, where they are written one by one.
    fn check_pkeys(&mut self, line: usize, pkeys: &Ranges) {
        for (first, last) in pkeys.iter() {
            let exists = self
                .partitions
                .iter()
                .any(|partition| (first..=last).contains(&partition.pkey.base().into()));
            if !exists {
                self.warn(
                    line,
                    format_args!("no partition has a P_Key in {first:#06x}-{last:#06x}"),
                );
            }
        }
    }

    /// Requests that match no other rule get the level DEFAULT, else the default of `qos-ulps`.
    fn default_rule(&mut self, policy: &QosPolicy, levels: &[u32]) {
        let (name, level) = match (policy.default_level(), policy.default_sl) {
            (Some(at), _) => {
                let line = policy.levels[at].line;
                (format!("qos-level DEFAULT ({}:{line})", self.file), levels[at])
            }
            (None, Some(sl)) => {
                let level = self.simple_level("SimpleQoSLevel_DEFAULT".to_owned(), sl);
                (format!("default of qos-ulps ({})", self.file), level)
            }
            (None, None) => return,
        };
        self.rows.rule(QosRule { name, level, ..any(RuleOrigin::Default) });
    }
}

/// A rule without criteria.
pub(super) fn any(origin: RuleOrigin) -> QosRule {
    QosRule {
        index: 0,
        name: String::new(),
        origin,
        level: 0,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    }
}

fn unless_empty<T>(ranges: &Ranges, make: impl Fn(&Ranges) -> T) -> Option<T> {
    (!ranges.is_empty()).then(|| make(ranges))
}

fn service_ids(ranges: &Ranges) -> Vec<IdMatch> {
    ranges.iter().map(|(first, last)| IdMatch::Range(first, last)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::end_port::testing::{host, switch};
    use super::*;

    fn compiled(text: &str, ports: &[EndPort], partitions: &[PartitionMembers<'_>]) -> RuleSet {
        let path = Path::new("/etc/opensm/qos-policy.conf");
        let policy = file::parse(path, text).unwrap();
        let mut rows = RuleSet::default();
        compile(&policy, path, ports, partitions, &mut rows);
        rows
    }

    fn group(keys: &str, ports: &[EndPort], partitions: &[PartitionMembers<'_>]) -> RuleSet {
        let text =
            format!("port-groups\nport-group\nname: G\n{keys}\nend-port-group\nend-port-groups");
        compiled(&text, ports, partitions)
    }

    fn guids(rows: &RuleSet) -> Vec<u64> {
        rows.groups[0].ports.iter().map(|guid| guid.0).collect()
    }

    const LEVELS: &str = "qos-levels\nqos-level\nname: DEFAULT\nsl: 3\nend-qos-level\nqos-level\n\
                          name: Fast\nsl: 5\nmtu-limit: 4\nend-qos-level\nend-qos-levels\n";

    #[test]
    fn match_rules_come_first_then_ulps_then_the_default() {
        let ulps = "qos-ulps\ndefault: 1\nsdp: 2\nsrp, target-port-guid 7: 2\nend-qos-ulps\n";
        let rules = "qos-match-rules\nqos-match-rule\nqos-level-name: Fast\nqos-class: 3\n\
                     end-qos-match-rule\nend-qos-match-rules\n";
        let rows = compiled(&format!("{ulps}{rules}{LEVELS}"), &[host(7, "a")], &[]);
        let names: Vec<&str> = rows.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "qos-match-rule 1 (qos-policy.conf:7)",
                "sdp (qos-policy.conf:3)",
                "srp, target-port-guid 7 (qos-policy.conf:4)",
                "qos-level DEFAULT (qos-policy.conf:13)",
            ]
        );
        let sl = |rule: usize| rows.levels[rows.rules[rule].level as usize].sl.unwrap().get();
        assert_eq!([sl(0), sl(1), sl(2), sl(3)], [5, 2, 2, 3]);
        assert_eq!(rows.rules[1].level, rows.rules[2].level, "one level an SL");
        assert_eq!(rows.rules[0].qos_classes, Some(vec![(3, 3)]));
        let target = rows.rules[2].destinations.as_ref().unwrap()[0];
        assert_eq!(rows.groups[target as usize].ports, [Guid(7)]);
        assert!(rows.rules.iter().enumerate().all(|(at, rule)| rule.index == at as u32));
    }

    #[test]
    fn without_a_level_default_that_of_the_ulps_counts_and_there_may_be_none() {
        let rows = compiled("qos-ulps\nsdp: 2\ndefault: 1\nend-qos-ulps", &[], &[]);
        let last = rows.rules.last().unwrap();
        assert_eq!(last.origin, RuleOrigin::Default);
        assert_eq!(rows.levels[last.level as usize].sl.unwrap().get(), 1);
        let rows = compiled("qos-ulps\nsdp: 2\nend-qos-ulps", &[], &[]);
        assert_eq!(rows.rules.len(), 1);
    }

    #[test]
    fn groups_hold_ports_by_guid_name_and_kind_of_node() {
        let mut ports = [host(1, "vs1 HCA-1"), host(2, "vs2 HCA-1"), switch(9, "sw")];
        ports[1].is_self = true;
        assert_eq!(guids(&group("port-guid: 2-0xFFFFFFFFFFFFFFFF", &ports, &[])), [2, 9]);
        assert_eq!(guids(&group("port-name: \"vs1 HCA-1/P1\", sw/P12", &ports, &[])), [1, 9]);
        assert_eq!(guids(&group("node-type: SELF", &ports, &[])), [2]);
        let rows = group("node-type: SWITCH, CA", &ports, &[]);
        assert_eq!(rows.groups[0].node_types, PortGroup::NODE_SWITCH | PortGroup::NODE_CA);
    }

    /// OpenSM drops blanks outside of quotes, so that such a name matches no port: captures of it
    /// show that, and so do we, with a hint.
    #[test]
    fn a_port_name_with_bare_blanks_matches_nothing_and_is_warned_of() {
        let ports = [host(1, "vs1 HCA-1")];
        let rows = group("port-name: vs1 HCA-1/P1", &ports, &[]);
        assert!(guids(&rows).is_empty());
        assert_eq!(
            rows.warnings,
            ["qos-policy.conf:4: port-name vs1 HCA-1/P1 matches no port: blanks count only in \
             quotes; write \"vs1 HCA-1/P1\""]
        );
        let rows = group("port-name: \"vs1 HCA-1/P2\"", &ports, &[]);
        assert_eq!(rows.warnings, ["qos-policy.conf:4: node 'vs1 HCA-1' has no port 2"]);
    }

    #[test]
    fn groups_hold_members_of_partitions() {
        let (full, limited) = ([Guid(1)], [Guid(2)]);
        let part =
            PartitionMembers { pkey: PKey(0x8005), name: "P", full: &full, limited: &limited };
        assert_eq!(guids(&group("pkey: 4-6", &[], &[part])), [1, 2]);
        assert_eq!(guids(&group("partition: P", &[], &[part])), [1, 2]);
        let rows = group("partition: Q", &[], &[part]);
        let expected = "qos-policy.conf:2: port group 'G': partition 'Q' does not exist";
        assert_eq!(rows.warnings, [expected]);
    }

    /// The policy and the ports that a capture of OpenSM's answers was made with.
    #[test]
    fn the_policy_of_the_captures_compiles() {
        let mut ports: Vec<EndPort> = (0..9)
            .map(|n| host(0x0C42_A103_0000_0001 + 0x10 * n, &format!("node0000{} HCA-1", n + 1)))
            .collect();
        ports[0].is_self = true;
        ports.push(switch(0xB859_9F03_00A0_0000, "sw 0,0"));
        let compute = [ports[0].guid, ports[1].guid, ports[2].guid];
        let storage = [ports[1].guid, ports[8].guid];
        let partition =
            |pkey, name, full, limited| PartitionMembers { pkey: PKey(pkey), name, full, limited };
        let partitions =
            [partition(1, "Compute", &compute, &[]), partition(2, "Storage", &[], &storage)];
        let text = include_str!("../../tests/policy/mesh-qos-policy.conf");
        let rows = compiled(text, &ports, &partitions);
        let low = |name: &str| -> Vec<u64> {
            let group = rows.groups.iter().find(|group| group.name == name).unwrap();
            group.ports.iter().map(|guid| guid.0 & 0xFFF).collect()
        };
        assert_eq!(low("ByGuid"), [0x11, 0x21]);
        assert_eq!((low("ByPartition"), low("ByPkey")), (vec![0x01, 0x11, 0x21], vec![0x11, 0x81]));
        assert_eq!((low("Manager"), low("Switches")), (vec![0x01], vec![]));
        assert!(low("ByName").is_empty(), "OpenSM's answers show it so");
        let origins: Vec<RuleOrigin> = rows.rules.iter().map(|rule| rule.origin).collect();
        assert_eq!(origins[..9], [RuleOrigin::MatchRule; 9]);
        assert_eq!(origins[9..], [RuleOrigin::Default]);
        assert_eq!(rows.rules[0].service_ids.as_ref().unwrap().len(), 1);
    }

    /// OpenSM refuses the whole policy if an IPoIB rule's partition does not exist or has fewer
    /// than two full members.
    #[test]
    fn an_ipoib_rule_needs_no_partition() {
        let rows = compiled("qos-ulps\nipoib, pkey 5: 2\nend-qos-ulps", &[], &[]);
        assert_eq!(rows.rules[0].pkeys, Some(vec![(5, 5)]));
        assert_eq!(rows.warnings, ["qos-policy.conf:2: no partition has a P_Key in 0x0005-0x0005"]);
    }
}

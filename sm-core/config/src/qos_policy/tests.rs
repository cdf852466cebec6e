//! Tests the file's grammar, and messages on rejected lines.

use super::*;

fn policy(text: &str) -> QosPolicy {
    parse(Path::new("qos-policy.conf"), text).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(text: &str) -> String {
    parse(Path::new("qos-policy.conf"), text).expect_err("a bad line").to_string()
}

fn list(ranges: &Ranges) -> Vec<(u64, u64)> {
    ranges.iter().collect()
}

/// Every keyword of the full syntax, as OpenSM documents it.
const FULL: &str = "
# comment
port-groups
    port-group # by GUID
        name: Storage
        use: SRP Targets, all of them,
        port-guid: 0x10000000000001, 0x10000000000005-0x1000000000FFFA
        port-guid: 0x1000000000FFFF
    end-port-group
    port-group
        name: Virtual Servers
        port-name: vs1 HCA-1/P1, vs2 HCA-1/P1
    end-port-group
    port-group
        name: Partitions
        partition: Part1
        pkey: 0x1234
    end-port-group
    port-group
        name: CAs and SM
        node-type: CA, SELF
    end-port-group
end-port-groups

qos-setup
    vlarb-tables
        vlarb-scope
            group: Storage
            across: Storage
            vlarb-high: 0:255,1:127
            vlarb-low: 8:255,9:127
            vl-high-limit: 10
        end-vlarb-scope
    end-vlarb-tables
    sl2vl-tables
        sl2vl-scope
            group: Partitions
            from: *
            to: 1-4,7
            across-to: Storage
            across-from: Storage
            sl2vl-table: 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,7
        end-sl2vl-scope
    end-sl2vl-tables
end-qos-setup

qos-levels
    qos-level
        name: DEFAULT
        use: default QoS Level
        sl: 0
    end-qos-level
    qos-level
        name: WholeSet
        sl: 1
        mtu-limit: 4
        rate-limit: 5
        pkey: 0x1234
        packet-life: 8
        path-bits: 2,4,8-32
    end-qos-level
end-qos-levels

qos-match-rules
    qos-match-rule
        use: by QoS class
        qos-class: 7-9,11
        qos-level-name: WholeSet
    end-qos-match-rule
    qos-match-rule
        use: Storage targets
        destination: Storage
        service-id: 0x10000000000001, 0x10000000000008-0x10000000000FFF
        qos-level-name: wholeset
    end-qos-match-rule
    qos-match-rule
        use: match by all parameters
        qos-class: 7-9,11
        source: VirtualServers, cas and sm
        destination: storage
        service-id: 0x0000000000010000-0x000000000001FFFF
        pkey: 0x0F00-0x0FFF
        qos-level-name: default
    end-qos-match-rule
end-qos-match-rules
";

#[test]
fn every_keyword_of_the_full_syntax_is_taken() {
    let policy = policy(FULL);
    let names: Vec<&str> = policy.port_groups.iter().map(|group| group.name.written()).collect();
    assert_eq!(names, ["Storage", "Virtual Servers", "Partitions", "CAs and SM"]);
    let storage = &policy.port_groups[0];
    assert_eq!(storage.usage, "SRP Targets, all of them,");
    assert_eq!(
        list(&storage.port_guids),
        [
            (0x10_0000_0000_0001, 0x10_0000_0000_0001),
            (0x10_0000_0000_0005, 0x10_0000_0000_FFFA),
            (0x10_0000_0000_FFFF, 0x10_0000_0000_FFFF),
        ]
    );
    let servers = &policy.port_groups[1].port_names;
    assert_eq!(servers.iter().map(|name| name.port).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(servers[1].node.written(), "vs2 HCA-1");
    assert_eq!(policy.port_groups[2].partitions[0].as_str(), "Part1");
    assert_eq!(list(&policy.port_groups[2].pkeys), [(0x1234, 0x1234)]);
    let types = policy.port_groups[3].node_types;
    assert_eq!(types, NodeTypes { ca: true, sm: true, ..NodeTypes::default() });

    let whole = &policy.levels[1];
    assert_eq!((whole.sl.get(), whole.mtu_limit), (1, Some(Mtu::B2048)));
    assert_eq!(
        (whole.rate_limit, whole.packet_life.map(Lifetime::code)),
        (Some(Rate::Gbps5), Some(8))
    );
    assert_eq!(list(&whole.path_bits), [(2, 2), (4, 4), (8, 32)]);

    let levels: Vec<usize> = policy.rules.iter().map(|rule| rule.level).collect();
    assert_eq!(levels, [1, 1, 0], "names are compared without regard to case");
    let all = &policy.rules[2];
    assert_eq!((&all.sources[..], &all.destinations[..]), (&[1, 3][..], &[0][..]));
    assert_eq!(list(&all.qos_classes), [(7, 9), (11, 11)]);
    assert_eq!(list(&all.pkeys), [(0xF00, 0xFFF)]);
    assert_eq!(policy.default_level(), Some(0));
}

#[test]
fn the_shortest_files_of_the_documentation_are_whole_policies() {
    let level =
        policy("qos-levels\nqos-level\nname: DEFAULT\nsl: 3\nend-qos-level\nend-qos-levels");
    assert_eq!(level.levels[0].sl.get(), 3);
    let ulps = policy("qos-ulps\n default  : 2 #default SL\nend-qos-ulps\n");
    assert_eq!(ulps.default_sl.map(Sl::get), Some(2));
    assert_eq!(policy("# nothing\n"), QosPolicy::default());
}

/// OpenSM rejects a file without a default level; ibsm accepts it.
#[test]
fn a_policy_needs_no_default() {
    let policy = policy("qos-ulps\nsdp: 1\nend-qos-ulps");
    assert_eq!((policy.default_level(), policy.default_sl, policy.ulps.len()), (None, None, 1));
}

#[test]
fn every_ulp_matches_what_the_documentation_says() {
    use Criterion::*;
    let of = |first, last| Ranges::of(first, last);
    let table: &[(&str, Criterion)] = &[
        ("sdp : 1", ServiceIds(of(0x10000, 0x1FFFF))),
        ("sdp, port-num 30000 : 1", ServiceIds(of(0x10000 + 30000, 0x10000 + 30000))),
        ("sdp, port-num 10000-20000 : 1", ServiceIds(of(0x10000 + 10000, 0x10000 + 20000))),
        ("rds : 1", ServiceIds(of(0x106_48CA, 0x106_48CA))),
        ("rds, port-num 25000: 1", ServiceIds(of(0x106_0000 + 25000, 0x106_0000 + 25000))),
        ("iser : 1", ServiceIds(of(0x106_0CBC, 0x106_0CBC))),
        ("iser, port-num 900 : 1", ServiceIds(of(0x106_0000 + 900, 0x106_0000 + 900))),
        ("srp, target-port-guid 0x1234 : 1", Targets(of(0x1234, 0x1234))),
        ("ipoib : 1", PKeys(of(0x7FFF, 0x7FFF))),
        ("ipoib, pkey 0x8001 : 1", PKeys(of(1, 1))),
        ("any, service-id 0x6234 : 1", ServiceIds(of(0x6234, 0x6234))),
        ("any, pkey 0x0ABC : 1", PKeys(of(0xABC, 0xABC))),
        ("any, target-port-guid 0x0ABC-0xFFFFF : 1", Targets(of(0xABC, 0xF_FFFF))),
        ("any, source-port-guid 0x5678 : 1", Sources(of(0x5678, 0x5678))),
        ("any, source-target-port-guid 1,2 : 1", SourcesAndTargets(of(1, 2))),
        ("ANY ,\tservice-id 1,3 :1", ServiceIds([(1, 1), (3, 3)].into_iter().collect())),
        ("IPoIB: 1", PKeys(of(0x7FFF, 0x7FFF))),
    ];
    for (text, criterion) in table {
        let policy = policy(&format!("qos-ulps\n{text}\nend-qos-ulps"));
        let [rule] = &policy.ulps[..] else { panic!("{text}: {policy:?}") };
        assert_eq!((&rule.criterion, rule.sl.get(), rule.line), (criterion, 1, 2), "{text}");
    }
}

#[test]
fn an_invalid_ulp_rule_is_rejected_with_the_valid_forms() {
    for line in ["mpi : 1", "sdp, pkey 1 : 1", "srp : 1", "any : 1", "default, pkey 1 : 1", "sdp 1"]
    {
        let refusal = refusal(&format!("qos-ulps\n{line}\nend-qos-ulps"));
        assert!(
            refusal.starts_with(&format!("qos-policy.conf:2: '{line}' is not a rule")),
            "{refusal}"
        );
        assert!(refusal.contains("'srp, target-port-guid LIST: SL'"), "{refusal}");
    }
}

#[test]
fn rejections_state_the_line_and_the_expected_form() {
    let table: &[(&str, &str)] = &[
        (
            "port-groups\nport-group\nname: a\nguid: 1",
            "4: 'guid' is not valid in port-group, which takes name, use, port-guid, \
             port-name, pkey, partition, node-type",
        ),
        (
            "port-groups\nport-group\nname: a\nend-port-groups",
            "4: port-group of line 2 is still open here; 'end-port-group' is missing",
        ),
        (
            "port-groups\nport-group\nname: a\nport-group",
            "4: port-group of line 2 is still open here; 'end-port-group' is missing",
        ),
        (
            "qos-levels\n\n",
            "2: qos-levels of line 1 is still open here; 'end-qos-levels' is missing",
        ),
        (
            "port-groups\nport-group\nend-port-group",
            "2: this port-group has no 'name', which it needs",
        ),
        (
            "port-groups\nport-group\nname: a\nname: b",
            "4: a second 'name' in this port-group; it takes one",
        ),
        ("qos-levels\nqos-level\nname:", "3: 'name' has no value; it takes 'name: a name'"),
        (
            "qos-levels\nqos-level\nname: a\nsl: 16",
            "4: sl takes a service level of 0 to 15, not 16",
        ),
        (
            "qos-levels\nqos-level\nname: a\nsl: 08",
            "4: sl takes a service level of 0 to 15, not '08'",
        ),
        (
            "qos-levels\nqos-level\nmtu-limit: 6",
            "3: mtu-limit takes an MTU code: 1 is 256, 2 512, 3 1024, 4 2048, 5 4096 bytes, not 6",
        ),
        (
            "port-groups\nport-group\nport-name: vs1 HCA-1",
            "3: port-name takes node descriptions with port numbers, such as \"vs1 HCA-1/P1\", \
             not 'vs1 HCA-1'",
        ),
        (
            "port-groups\nport-group\nnode-type: HCA",
            "3: node-type takes CA, SWITCH, ROUTER, ALL, SELF, separated by commas, not 'HCA'",
        ),
        (
            "port-groups\nport-group\nport-guid: 0x1-",
            "3: port-guid takes numbers and ranges such as 7-9,0x10, not '0x1-'",
        ),
        (
            "qos-match-rules\nqos-match-rule\nqos-class: 4096",
            "3: qos-class takes QoS classes of 12 bits, such as 7-9,11, not 4096",
        ),
        ("qos-ulps\nsdp, port-num 65536: 1", "2: port-num takes ports of 0 to 65535, not 65536"),
        ("qos-ulps\nsdp: 16", "2: the SL takes a service level of 0 to 15, not 16"),
        (
            "qos-level",
            "1: 'qos-level' is not valid in the file, which takes port-groups, qos-setup, \
             qos-levels, qos-match-rules, qos-ulps",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(refusal(text), format!("qos-policy.conf:{expected}"), "{text}");
    }
}

#[test]
fn an_undefined_name_is_rejected_with_its_line() {
    let text = "qos-levels qos-level name: Fast\nsl: 1\nend-qos-level end-qos-levels\n\
                qos-match-rules qos-match-rule\nqos-level-name: Fasst\nend-qos-match-rule \
                end-qos-match-rules";
    assert_eq!(
        refusal(text),
        "qos-policy.conf:5: there is no qos-level 'Fasst' in this file; did you mean 'Fast'?"
    );
    let text = text.replace("Fasst", "Fast\nsource: Nobody");
    assert_eq!(refusal(&text), "qos-policy.conf:6: there is no port group 'Nobody' in this file");
}

/// Regression: only the first mistake was reported, so correcting a file
/// took as many attempts as it had mistakes.
#[test]
fn all_mistakes_of_a_file_are_reported_but_no_consequential_ones() {
    let text = "qos-levels\nqos-level\nname: Fast\nsl: 16\nend-qos-level\nqos-level\nsl: 1\nfoo: \
        2\n\
                end-qos-level\nend-qos-levels\nqos-ulps\nmpi: 3\nsdp: 17\nend-qos-ulps\n\
                qos-match-rules\nqos-match-rule\nqos-level-name: Fast\nsource: Nobody\n\
                end-qos-match-rule\nqos-match-rule\nuse: x\nend-qos-match-rule\n\
                end-qos-match-rules";
    let error = parse(Path::new("p"), text).unwrap_err();
    let lines: Vec<_> = error.others.listed.iter().map(|(line, _)| *line).collect();
    assert_eq!(
        (error.line, &lines[..], error.others.unlisted),
        (4, &[8, 12, 13, 18, 20][..], 0),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.starts_with("p:4: sl takes"), "{text}");
    assert!(text.contains("; line 18: there is no port group 'Nobody' in this file"), "{text}");
    let many = format!("qos-ulps\n{}end-qos-ulps", "sdp: 16\n".repeat(14));
    assert!(refusal(&many).ends_with("; and 4 more mistakes"), "{}", refusal(&many));
}

#[test]
fn of_levels_with_one_name_the_first_counts() {
    let level = |sl: u8| format!("qos-level\nname: DEFAULT\nsl: {sl}\nend-qos-level\n");
    let policy = policy(&format!("qos-levels\n{}{}end-qos-levels", level(1), level(2)));
    let chosen = policy.default_level().unwrap();
    assert_eq!(policy.levels[chosen].sl.get(), 1);
}

proptest::proptest! {
    /// The parser accepts or rejects any text, and never panics.
    #[test]
    fn no_text_breaks_the_parser(lines in proptest::collection::vec(
        "(qos-ulps|end-qos-ulps|port-groups|port-group|end-port-group|name: .{0,8}|use: .{0,8}|\
          port-guid: [0-9a-fx,-]{0,12}|port-name: [a\" /P1,]{0,12}|pkey: [0-9a-fx,-]{0,9}|\
          sdp[, a-z0-9-]{0,14}: ?[0-9]{0,3}|.{0,12})", 0..12)) {
        let _ = parse(Path::new("p"), &lines.join("\n"));
    }
}

/// The policy with which OpenSM's answers were captured.
#[test]
fn the_policy_of_the_captures_is_taken() {
    let policy = policy(include_str!("../../../tests/policy/mesh-qos-policy.conf"));
    let counts = (policy.port_groups.len(), policy.levels.len(), policy.rules.len());
    assert_eq!(counts, (6, 6, 9));
    assert_eq!(policy.rules[4].sources, [2], "ByPartition");
}

use std::fmt::Write as _;
use std::path::Path;

use ib_mad::types::{Guid, Mtu, PKey, Rate, Sl};
use proptest::prelude::*;

use super::*;
use crate::Remarks;

/// Returns the configuration and the remarks; an error as `line: reason`.
fn read(text: &str) -> Result<(PartitionConfig, Vec<String>), String> {
    let mut remarks = Remarks::default();
    parse(Path::new("p"), text, &mut remarks)
        .map(|config| (config, remarks.into_lines()))
        .map_err(|(line, reason)| format!("{line}: {reason}"))
}

/// Parses a text that causes no remarks.
fn config(text: &str) -> PartitionConfig {
    let (config, remarks) = read(text).unwrap();
    assert_eq!(remarks, [""; 0], "{text}");
    config
}

/// The rules of a file, without the two with which every file starts.
fn rules(config: &PartitionConfig) -> Vec<(u16, Ports, Membership, bool)> {
    let rules = config.rules()[2..].iter();
    rules.map(|rule| (rule.pkey.0, rule.ports, rule.membership, rule.first)).collect()
}

fn names(config: &PartitionConfig) -> Vec<(u16, &str)> {
    config.partitions().iter().map(|p| (p.pkey.0, p.name.as_str())).collect()
}

fn guid(guid: u64) -> Ports {
    Ports::Guid(Guid(guid))
}

use Membership::{Both, Full, Limited};

#[test]
fn without_a_rule_ports_are_limited_members_of_the_default_partition() {
    let config = config("A=0x10:ALL;");
    let first: Vec<_> =
        config.rules()[..2].iter().map(|r| (r.pkey, r.ports, r.membership)).collect();
    let pkey = PKey::DEFAULT_LIMITED;
    assert_eq!(first, [(pkey, Ports::All, Limited), (pkey, Ports::Own, Full)]);
    assert!(config.groups().is_empty());
}

/// All the examples of OpenSM's manual in one file.
#[test]
fn the_examples_of_the_manual_mean_what_it_says() {
    let (config, remarks) = read(
        "Default=0x7fff : ALL, SELF=full ;
         Default=0x7fff : ALL, ALL_SWITCHES=full, SELF=full ;
         NewPartition , ipoib : 0x123456=full, 0x3456789034=limi, 0x2134af2306 ;
         YetAnotherOne = 0x300 : SELF=full ;
         YetAnotherOne = 0x300 : ALL=limited ;
         ShareIO = 0x80 , defmember=full : 0x123451, 0x123452;
         # 0x123453, 0x123454 will be limited
         ShareIO = 0x80 : 0x123453, 0x123454, 0x123455=full;
         # 0x123456, 0x123457 will be limited
         ShareIO = 0x80 : defmember=limited : 0x123456, 0x123457, 0x123458=full;
         ShareIO = 0x80 , defmember=full : 0x123459, 0x12345a;
         ShareIO = 0x80 , defmember=full : 0x12345b, 0x12345c=limited, 0x12345d;
         # multicast groups added to default
         Default=0x7fff,ipoib:
             mgid=ff12:401b::0707,sl=1 # random IPv4 group
             mgid=ff12:601b::16    # MLDv2-capable routers
             mgid=ff12:401b::16    # IGMP
             mgid=ff12:601b::2     # All routers
             mgid=ff12::1,sl=1,Q_Key=0xDEADBEEF,rate=3,mtu=2 # random group
             ALL=full;
        ",
    )
    .unwrap();
    assert_eq!(remarks, [""; 0]);
    assert_eq!(
        names(&config),
        [(0x7fff, "Default"), (1, "NewPartition"), (0x300, "YetAnotherOne"), (0x80, "ShareIO")]
    );
    assert_eq!(
        rules(&config),
        [
            (0x7fff, Ports::All, Limited, false),
            (0x7fff, Ports::Own, Full, false),
            (0x7fff, Ports::All, Limited, false),
            (0x7fff, Ports::Switches, Full, false),
            (0x7fff, Ports::Own, Full, false),
            (1, guid(0x12_3456), Full, false),
            (1, guid(0x34_5678_9034), Limited, false),
            (1, guid(0x21_34af_2306), Limited, false),
            (0x300, Ports::Own, Full, false),
            (0x300, Ports::All, Limited, false),
            (0x80, guid(0x12_3451), Full, false),
            (0x80, guid(0x12_3452), Full, false),
            (0x80, guid(0x12_3453), Limited, false),
            (0x80, guid(0x12_3454), Limited, false),
            (0x80, guid(0x12_3455), Full, false),
            (0x80, guid(0x12_3456), Limited, false),
            (0x80, guid(0x12_3457), Limited, false),
            (0x80, guid(0x12_3458), Full, false),
            (0x80, guid(0x12_3459), Full, false),
            (0x80, guid(0x12_345a), Full, false),
            (0x80, guid(0x12_345b), Full, false),
            (0x80, guid(0x12_345c), Limited, false),
            (0x80, guid(0x12_345d), Full, false),
            (0x7fff, Ports::All, Full, false),
        ]
    );
    let groups: Vec<_> =
        config.groups().iter().map(|g| (g.mgid.to_string(), g.mtu, g.sl, g.qkey)).collect();
    let inherited = GroupSl::Inherited(Sl::default());
    let own = GroupSl::Own(Sl::from_low_bits(1));
    let group = |mgid: &str, mtu, sl, qkey| (mgid.to_owned(), mtu, sl, qkey);
    assert_eq!(
        groups,
        [
            group("ff12:401b:8001::ffff:ffff", Mtu::B2048, inherited, IPOIB_QKEY),
            group("ff12:401b:ffff::ffff:ffff", Mtu::B2048, inherited, IPOIB_QKEY),
            group("ff12:401b:ffff::707", Mtu::B2048, own, IPOIB_QKEY),
            group("ff12:601b:ffff::16", Mtu::B2048, inherited, IPOIB_QKEY),
            group("ff12:401b:ffff::16", Mtu::B2048, inherited, IPOIB_QKEY),
            group("ff12:601b:ffff::2", Mtu::B2048, inherited, IPOIB_QKEY),
            group("ff12::1", Mtu::B512, own, 0xDEAD_BEEF),
        ]
    );
}

/// "The following rule is equivalent to how OpenSM used to run prior to the partition manager."
#[test]
fn the_rule_for_no_partitions_is_the_default_but_for_its_first_rule() {
    let config = config("Default=0x7fff,ipoib:ALL=full;");
    let default = PartitionConfig::default();
    assert_eq!(config.groups(), default.groups());
    assert_eq!(config.partitions(), default.partitions());
    assert_eq!(config.rules().last(), Some(&default.rules()[0]));
}

#[test]
fn keywords_flags_and_numbers_of_all_sorts_are_read() {
    let config = config(
        "Io = 0x8012 , indx0 , defmember = both , sl=3, mtu = 5,rate=07 : 7
         0x0123456789abcdef = full, SELF=limited\r
         ,
         ALL_ROUTERS\t= full # not ALL_CAS
         NONE ; ; Empty=0x2: ;",
    );
    assert_eq!(
        rules(&config),
        [
            (0x12, guid(7), Both, true),
            (0x12, guid(0x0123_4567_89ab_cdef), Full, true),
            (0x12, Ports::Own, Limited, true),
            (0x12, Ports::Routers, Full, true),
        ]
    );
    assert_eq!(names(&config), [(0x7fff, "Default"), (0x12, "Io"), (2, "Empty")]);
    assert_eq!(config.partitions()[1].sl, Sl::from_low_bits(3));
}

#[test]
fn a_definition_without_a_number_gets_an_unused_one() {
    let config = config("A:ALL;B=1:ALL;C:ALL;A:SELF=full;:SELF;3:SELF;0x7:SELF;");
    let expected =
        [(0x7fff, "Default"), (2, "A"), (1, "B"), (4, "C"), (5, "0005"), (3, "0003"), (7, "0007")];
    assert_eq!(names(&config), expected);
    assert_eq!(
        rules(&config)[3],
        (2, Ports::Own, Full, false),
        "the same name, the same partition"
    );
}

#[test]
fn groups_have_the_values_of_their_definition_unless_they_name_their_own() {
    let (config, remarks) = read(
        "A=0x1, ipoib, mtu=5, rate=7, sl=3, Q_Key=0x77, TClass=8, FlowLabel=9 :
           mgid=ff15::1
           mgid=ff15::2, mtu=1, rate=2, sl=0, Q_Key=5, TClass=6, FlowLabel=7, scope=5, scope=0xe
           mgid=ff12:401b:8001::5 ;
         A=1, scope=8, scope=3: mgid=ff1f::1",
    )
    .unwrap();
    assert_eq!(remarks, ["p:5: SL of partition 'A' becomes 0; an earlier definition has 3"]);
    let groups: Vec<_> = config
        .groups()
        .iter()
        .map(|g| (g.mgid.to_string(), g.mtu, g.rate, g.qkey, (g.tclass, g.flow_label)))
        .collect();
    let group = |mgid: &str, mtu, rate, qkey, labels| (mgid.to_owned(), mtu, rate, qkey, labels);
    assert_eq!(
        groups,
        [
            group("ff12:401b:8001::ffff:ffff", Mtu::B4096, Rate::Gbps40, 0x77, (8, 9)),
            group("ff12::1", Mtu::B4096, Rate::Gbps40, 0x77, (0, 9)),
            group("ff15::2", Mtu::B256, Rate::Gbps2_5, 5, (6, 7)),
            group("ff1e::2", Mtu::B256, Rate::Gbps2_5, 5, (6, 7)),
            group("ff12:401b:8001::5", Mtu::B4096, Rate::Gbps40, 0x77, (0, 9)),
            group("ff13::1", Mtu::B2048, Rate::Gbps10, 0, (0, 0)),
            group("ff18::1", Mtu::B2048, Rate::Gbps10, 0, (0, 0)),
        ]
    );
    let sl = Sl::from_low_bits(3);
    assert_eq!(config.groups()[1].sl, GroupSl::Inherited(sl));
    assert_eq!(config.groups()[2].sl, GroupSl::Own(Sl::default()));
    assert_eq!(config.partitions()[1].sl, Sl::default(), "the last definition applies");
}

#[test]
fn input_that_opensm_rejects_is_an_error_with_its_line() {
    let no_definition = "does not begin a partition: expected '[name][=P_Key][,flags] :' on one \
        line, such as 'Default=0x7fff, ipoib : ALL=full ;'";
    let no_port = "is neither a port GUID nor ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS or SELF";
    let cases = [
        ("# a\n\nA=0x1, ipoib\n : ALL;", format!("3: 'A=0x1, ipoib' {no_definition}")),
        ("A=1:ALL;\n ALL=full;", format!("2: 'ALL=full' {no_definition}")),
        ("A=zz:ALL;", "1: P_Key 'zz' is not a number; write it like 0x7fff".into()),
        ("A=:ALL;", "1: P_Key '' is not a number; write it like 0x7fff".into()),
        ("A=0x1g:ALL;", "1: P_Key '0x1g' is not a number; write it like 0x7fff".into()),
        ("A=1:\n0x1,\n host7;", format!("3: 'host7' {no_port}")),
        ("A=1:0c42a103;", format!("1: '0c42a103' {no_port}; hexadecimal GUIDs begin with 0x")),
        ("A=1:0;", format!("1: '0' {no_port}; hexadecimal GUIDs begin with 0x")),
        ("A=1:ALL_VCAS=full;", format!("1: 'ALL_VCAS' {no_port}")),
        ("A=1:all;", format!("1: 'all' {no_port}")),
        (
            "A=1:ALL\nB=2:ALL;",
            "2: 'B=2' is not allowed among ports: is the ';' at the end of line 1 missing?".into(),
        ),
        ("A=1: mgid;", "1: mgid has no value; write it like mgid=ff12:401b::16".into()),
    ];
    for (text, reason) in cases {
        assert_eq!(read(text), Err(reason), "{text}");
    }
}

#[test]
fn input_that_opensm_ignores_is_reported() {
    let not_made = "the group is not created";
    let cases = [
        ("A=1, qos : ALL;", "p:1: unknown flag 'qos'; ignored".to_owned()),
        ("A=1,, ipoib : ALL;", "p:1: a flag is empty".into()),
        ("A=1,defmember=none:ALL;", "p:1: defmember must be full, limited or both; ignored".into()),
        ("A=1,sl=16:ALL;", "p:1: sl must be 0 to 15, not '16'; ignored".into()),
        ("A=1,scope=0:ALL;", "p:1: scope must be 1 to 15, not '0'; ignored".into()),
        ("A=1,mtu:ALL;", "p:1: mtu must be a code such as 4, not ''; ignored".into()),
        (
            "A=1,FlowLabel=0x100000:ALL;",
            "p:1: FlowLabel must be 0 to 0xfffff, not '0x100000'; ignored".into(),
        ),
        (
            "A=1,TClass=256:ALL;",
            "p:1: TClass '256' is not a valid number; it is read as 0x0".into(),
        ),
        ("A=1,mtu=4k:ALL;", "p:1: mtu=4k has 'k' after the number".into()),
        ("A=0x10001:ALL;", "p:1: P_Key 0x10001 has more than 16 bits; it is read as 0x0001".into()),
        ("A=0x8000:ALL;", "p:1: P_Key 0x8000 is invalid; another is generated".into()),
        (
            "A=1:ALL;B=1:ALL;",
            "p:1: partition 0x0001 already has the name 'A'; 'B' refers to the same partition"
                .into(),
        ),
        (
            "A=1,sl=2:ALL;\nA=1:ALL;",
            "p:2: SL of partition 'A' becomes 0; an earlier definition has 2".into(),
        ),
        (
            "A=1:0x5=ful1;",
            "p:1: membership 'ful1' is not full, limited or both; read as limited".into(),
        ),
        ("A=1:0x5=;", "p:1: '0x5=' has no membership; read as full".into()),
        ("A=1:AL;", "p:1: 'AL' is read as ALL".into()),
        (
            "A=1:mgid=fe80::1\nALL;",
            format!(
                "p:1: mgid 'fe80::1' is not a multicast GID, such as ff12:401b::16; {not_made}"
            ),
        ),
        (
            "A=1,ipoib:mgid=ff12:401b:8002::1\nALL;",
            format!(
                "p:1: mgid ff12:401b:8002::1 has P_Key \
            0x8002 in it, its partition 0x8001; {not_made}"
            ),
        ),
        (
            "A=1,ipoib:mgid=ff12:401b::1,mtu=5\nALL;",
            format!(
                "p:1: mtu of the IP group \
            ff12:401b::1 must be that of its partition, 4, not 5; {not_made}"
            ),
        ),
        (
            "A=1:mgid=ff12:401b::1\nALL;",
            "p:1: an IP group needs the broadcast group \
            ff12:401b:8001::ffff:ffff (flag ipoib); group ff12:401b:8001::1 is not created"
                .into(),
        ),
        (
            "A=1,ipoib,mtu=2048:ALL;",
            "p:1: mtu must be a code, 1 for 256 bytes, 2 for 512, 3 for \
            1024, 4 for 2048, 5 for 4096, not 2048; group ff12:401b:8001::ffff:ffff is not created"
                .into(),
        ),
        (
            "A=1:mgid=ff12::1,rate=1\nALL;",
            "p:1: rate must be a code such as 3 for 10 Gb/s or 7 \
            for 40 Gb/s, not 1; group ff12::1 is not created"
                .into(),
        ),
        (
            "A=1:mgid=ff12::1\nmgid=ff12::1;",
            "p:2: it is already defined; group ff12::1 is not created".into(),
        ),
        (
            "A=1:mgid=ff12::1,colour=2\nALL;",
            "p:1: unknown flag 'colour' of a group; ignored".into(),
        ),
        (
            "A=1:mgid=ff12:a01b::1\nALL;",
            "p:1: signature a01b is not for link-local scope; group ff12:a01b::1 is not created"
                .into(),
        ),
        ("A=1:mgid=ff32::1\nALL;", format!("p:1: mgid ff32::1 has reserved flags set; {not_made}")),
        (
            "\n# nothing\n",
            "p: defines no partition; the same as no file: all ports are full \
            members of the default partition"
                .into(),
        ),
    ];
    for (text, remark) in cases {
        assert_eq!(read(text).map(|(_, remarks)| remarks), Ok(vec![remark]), "{text}");
    }
}

/// Regression: such flags did not prevent a start with `--strict`.
#[test]
fn ignored_flags_are_mistakes_and_odd_ones_are_not() {
    for flags in ["qos", "defmember=none", "sl=16", "scope=0", "mtu"] {
        let mut remarks = Remarks::default();
        let text = format!("A=1,, ipoib:ALL;\nB=2,{flags}:mgid=ff12::1,colour=2\nALL;");
        parse(Path::new("p"), &text, &mut remarks).unwrap();
        let [flag, colour] = remarks.mistakes() else { panic!("{:?}", remarks.mistakes()) };
        assert!(flag.starts_with("p:2: ") && flag.ends_with("; ignored"), "{flag}");
        assert_eq!(colour, "p:2: unknown flag 'colour' of a group; ignored");
    }
}

#[test]
fn a_beginning_of_a_keyword_or_flag_is_enough() {
    let (config, _) = read("A=1,i,s=5,d=f:0x1,0x2=l,0x3=b,ALL_,NONE,S;").unwrap();
    let expected = [
        (1, guid(1), Full, false),
        (1, guid(2), Limited, false),
        (1, guid(3), Both, false),
        (1, Ports::Cas, Full, false),
        (1, Ports::Own, Full, false),
    ];
    assert_eq!(rules(&config), expected);
    assert_eq!(config.groups().len(), 1);
}

proptest! {
    /// Text in the manual's grammar, with white space wherever it permits some, parses to the
    /// intended configuration.
    #[test]
    fn printed_partitions_read_back(
        definitions in proptest::collection::vec(
            (
                1u16..0x7fff,
                any::<bool>(),
                proptest::collection::vec((0usize..6, 0usize..4, 1u64..), 1..6),
                0u8..16,
            ),
            1..8,
        ),
        space in "[ \t]{0,2}",
    ) {
        let members = [("", Limited), ("=limited", Limited), ("=full", Full), ("=both", Both)];
        let words = [
            ("ALL", Ports::All),
            ("ALL_CAS", Ports::Cas),
            ("ALL_SWITCHES", Ports::Switches),
            ("ALL_ROUTERS", Ports::Routers),
            ("SELF", Ports::Own),
        ];
        let (mut text, mut expected) = (String::new(), Vec::new());
        for (pkey, first, ports, sl) in &definitions {
            let index0 = if *first { ", indx0" } else { "" };
            let _ = write!(text, "N{pkey}{space}={space}{pkey:#x}{space},sl={sl}{index0}{space}:");
            for (i, (word, member, number)) in ports.iter().enumerate() {
                let (name, who) = match words.get(*word) {
                    Some((name, who)) => ((*name).to_owned(), *who),
                    None => (format!("{number:#x}"), guid(*number)),
                };
                let (suffix, membership) = members[*member];
                let separator = ["", ",\n", ", "][if i == 0 { 0 } else { 1 + i % 2 }];
                let _ = write!(text, "{separator}{space}{name}{suffix}{space}");
                expected.push((*pkey, who, membership, *first));
            }
            text.push_str("; # the end\n");
        }
        let (config, _) = read(&text).unwrap();
        prop_assert_eq!(rules(&config), expected);
        for (pkey, _, _, sl) in &definitions {
            let last = definitions.iter().rfind(|definition| definition.0 == *pkey).unwrap().3;
            let partition = config.partition(PKey(*pkey)).unwrap();
            prop_assert_eq!(&partition.name, &format!("N{pkey}"));
            prop_assert_eq!(partition.sl.get(), last, "{}", sl);
        }
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[A-Fa-f0-9xmgidLS_=,:;#\\n ]{0,200}") {
        if let Ok((config, _)) = read(&text) {
            for rule in config.rules() {
                prop_assert!(rule.pkey.is_valid() && config.partition(rule.pkey).is_some());
            }
            for group in config.groups() {
                prop_assert!(group.mgid.is_multicast() && config.partition(group.pkey).is_some());
            }
        }
    }
}

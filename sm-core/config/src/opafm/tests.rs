//! Tests parsing of whole files, and messages on rejected ones.

use super::*;

fn try_parse(text: &str) -> (Result<OpaFm, OpaFmError>, Vec<String>) {
    try_parse_for(text, &Instance::default())
}

fn try_parse_for(text: &str, instance: &Instance<'_>) -> (Result<OpaFm, OpaFmError>, Vec<String>) {
    let mut remarks = Vec::new();
    let parsed = parse(Path::new("opafm.xml"), text, instance, &mut |line, remark| {
        remarks.push(format!("{line}: {remark}"));
    });
    (parsed, remarks)
}

fn parsed(text: &str) -> OpaFm {
    try_parse(text).0.unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(text: &str) -> String {
    try_parse(text).0.expect_err("a bad file").to_string()
}

/// A file whose `Common` section is `content`, starting in line 2.
fn file(content: &str) -> String {
    format!("<Config><Common>\n{content}\n</Common></Config>")
}

fn fabric(content: &str) -> String {
    file(&format!(
        "<VirtualFabrics>\n<VirtualFabric>\n{content}\n</VirtualFabric>\n</VirtualFabrics>"
    ))
}

const MINIMAL: &str = "<Name>V</Name><Member>All</Member><Application>All</Application>";

#[test]
fn every_element_of_the_sections_is_taken() {
    let text = include_str!("../../../tests/policy/virtual-fabrics.xml");
    let (all, remarks) = try_parse(text);
    let all = all.unwrap_or_else(|error| panic!("{error}"));
    let without_effect = [
        "84: PmPortGroups has no effect; ibsm reads no such section",
        "86: settings of Sm other than MulticastGroups have no effect; the first is Start. Set \
         those of ibsm in opensm.conf",
        "88: settings of Multicast other than MulticastGroup have no effect; the first is \
         MLIDTableCap. Set those of ibsm in opensm.conf",
        "44: HoqLife of VirtualFabric 'Networking' applies to 'Default' too: an InfiniBand port has \
         one HOQLife, for which the longest HoqLife of its virtual fabrics is taken",
    ];
    assert_eq!(remarks, without_effect);
    let names: Vec<&str> = all.virtual_fabrics.iter().map(|each| each.name.as_str()).collect();
    assert_eq!(names, ["Networking", "Storage", "Default", "Admin"], "Common first, then Fm");

    let networking = &all.virtual_fabrics[0];
    assert_eq!(networking.pkey, Some(PKey(2)));
    let qos = networking.qos.as_ref().unwrap();
    assert_eq!((qos.base_sl.map(Sl::get), qos.multicast_sl.map(Sl::get)), (Some(1), Some(2)));
    assert_eq!(qos.lifetime_shift, 2, "a factor of 3 is rounded up");
    assert!(networking.traffic.mgids.len() >= 2 && !networking.traffic.unmatched_mgids);
    assert_eq!(
        networking.traffic.service_ids,
        [
            IdMatch::Masked { value: 0x1000_0000_0000_0000, mask: 0xFFFF_FFFF_FF00_0000 },
            IdMatch::Range(0x106_0000, 0x106_FFFF),
        ]
    );

    assert_eq!((qos.bandwidth, qos.hoq_life), (Bandwidth::High, Some(11)));

    let storage = &all.virtual_fabrics[1];
    let bulk = storage.qos.as_ref().unwrap();
    assert_eq!(bulk.bandwidth, Bandwidth::Percent { percent: 20, line: 35 });
    assert_eq!(bulk.hoq_life, Some(11));
    assert!(storage.security && storage.pkey.is_none());
    assert_eq!((storage.mtu_max, storage.rate_max), (Some(Mtu::B2048), Some(Rate::Gbps100)));
    assert_eq!(storage.qos.as_ref().unwrap().group.as_deref(), Some("Bulk"));
    assert_eq!(
        storage.traffic.service_ids,
        [IdMatch::Range(0x10604A7, 0x10604A7), IdMatch::Range(0x10603DB, 0x10603DB),]
    );
    assert_eq!(storage.applications, ["Scale", "Groups", "Lustre"], "what is included comes last");
    let group = &all.device_groups[storage.members[0]];
    assert_eq!((group.system_images.len(), group.nodes.len(), group.ports.len()), (1, 1, 1));
    assert_eq!(group.descriptions[0].as_str(), "oss[01-16]*");
    assert!(group.select.own && group.select.targets);

    let admin = &all.virtual_fabrics[3];
    assert!(admin.traffic.sa && admin.traffic.pm && admin.qos.is_none());
    let [first, second] = &all.multicast_groups[..] else { panic!("one is not created") };
    assert_eq!((first.pkey, first.mgids.len(), first.mtu), (Some(PKey(2)), 0, Mtu::B4096));
    assert_eq!((second.virtual_fabric, second.sl.map(Sl::get)), (Some(1), Some(3)));
    assert_eq!((second.qkey, second.flow_label, second.tclass), (0xB1B, 9, 5));
}

#[test]
fn predefined_entries_need_no_definition_and_can_be_redefined() {
    let plain = parsed(&fabric(MINIMAL));
    assert!(plain.virtual_fabrics[0].traffic.unmatched_service_ids);
    let own = "<Applications><Application><Name>All</Name><ServiceID>7</ServiceID></Application>\
               </Applications>";
    let vf = format!("<VirtualFabrics><VirtualFabric>{MINIMAL}</VirtualFabric></VirtualFabrics>");
    let other = parsed(&file(&format!("{own}{vf}")));
    assert_eq!(other.virtual_fabrics[0].traffic.service_ids, [IdMatch::Range(7, 7)]);
}

#[test]
fn disabled_entries_are_left_out_unchecked() {
    let vf = "<Enable>0</Enable><Name>V</Name><Application>Nothing</Application>";
    assert!(parsed(&fabric(vf)).virtual_fabrics.is_empty());
}

/// Instances as name, SubnetPrefix and virtual fabric, each in a line from 2 on.
fn instances(each: &[(&str, Option<u64>, &str)]) -> String {
    let instance = |&(name, prefix, fabric): &(&str, Option<u64>, &str)| {
        let prefix = prefix
            .map_or_else(String::new, |prefix| format!("<SubnetPrefix>{prefix:#x}</SubnetPrefix>"));
        let minimal = MINIMAL.replace(">V<", &format!(">{fabric}<"));
        format!(
            "<Fm><Shared><Name>{name}</Name>{prefix}</Shared><VirtualFabrics><VirtualFabric>\
             {minimal}</VirtualFabric></VirtualFabrics></Fm>\n"
        )
    };
    let common = "<Common><VirtualFabrics><VirtualFabric><Name>All</Name><PKey>9</PKey><Member>All\
                  </Member><Application>SA</Application></VirtualFabric></VirtualFabrics></Common>";
    let each: Vec<String> = each.iter().map(instance).collect();
    format!("<Config>{common}\n{}</Config>", each.concat())
}

#[test]
fn the_instance_of_the_subnet_is_added_to_common() {
    let text = instances(&[
        ("fm0", Some(0xFE80_0000_0000_1001), "A"),
        ("fm1", None, "B"),
        ("fm2", Some(0xFE80_0000_0000_1002), "C"),
    ]);
    let names = |instance: &Instance<'_>| -> (Vec<String>, Vec<String>) {
        let (parsed, remarks) = try_parse_for(&text, instance);
        let fabrics = parsed.unwrap_or_else(|error| panic!("{error}")).virtual_fabrics;
        (fabrics.into_iter().map(|fabric| fabric.name).collect(), remarks)
    };
    let silent = Vec::<String>::new;
    assert_eq!(names(&Instance::default()), (vec!["All".into(), "B".into()], silent()));
    let second = Instance { prefix: 0xFE80_0000_0000_1002, name: None };
    assert_eq!(names(&second), (vec!["All".into(), "C".into()], silent()));
    let named = Instance { name: Some("fm0"), ..Instance::default() };
    let (fabrics, remarks) = names(&named);
    assert_eq!(fabrics, ["All", "A"], "a name precedes the prefix");
    let expected =
        "2: SubnetPrefix is 0xfe80000000001001, but that of ibsm 0xfe80000000000000".to_owned();
    assert_eq!(remarks, [expected]);
}

#[test]
fn without_an_instance_of_the_subnet_all_are_listed() {
    let text = instances(&[("fm0", Some(0xFE80_0000_0000_1001), "A"), ("fm1", None, "B")]);
    let refusal = |text: &str, instance: Instance<'_>| {
        try_parse_for(text, &instance).0.expect_err("no instance").to_string()
    };
    let list = "; name one of them with --vfabric-instance. The file has fm0 (line 2, SubnetPrefix \
                0xfe80000000001001), fm1 (line 3, SubnetPrefix 0xfe80000000000000)";
    let expected = "opafm.xml:2: 0 Fm instances have SubnetPrefix 0x0000000000000007";
    assert_eq!(refusal(&text, Instance { prefix: 7, name: None }), format!("{expected}{list}"));
    let named = Instance { name: Some("fm9"), ..Instance::default() };
    let expected = "opafm.xml:2: 0 Fm instances have Name 'fm9'";
    assert_eq!(refusal(&text, named), format!("{expected}{list}"));
    let twice = instances(&[("fm0", None, "A"), ("fm0", None, "B")]);
    assert!(refusal(&twice, Instance::default()).contains("2 Fm instances have SubnetPrefix"));
    let without = refusal(&fabric(MINIMAL), named);
    assert!(
        without.ends_with(
            "0 Fm instances have Name 'fm9'; name one of them with \
        --vfabric-instance. The file has none"
        ),
        "{without}"
    );
}

#[test]
fn what_infiniband_does_not_have_is_remarked_on() {
    let quiet = "<QOS>1</QOS><FlowControlDisable>0</FlowControlDisable><PreemptRank>0\
                 </PreemptRank>";
    assert_eq!(try_parse(&fabric(&format!("{MINIMAL}{quiet}"))).1, [""; 0]);
    let text = fabric(&format!(
        "{MINIMAL}<QOS>1</QOS>\n<FlowControlDisable>1</FlowControlDisable>\n<PreemptRank>9\
         </PreemptRank>\n<RespSL>0</RespSL>\n<HoqLife>1h</HoqLife>\n<HighPriority>1\
         </HighPriority>\n<Bandwidth>10%</Bandwidth>"
    ));
    let (parsed, remarks) = try_parse(&text);
    assert_eq!(parsed.unwrap().virtual_fabrics[0].qos.as_ref().unwrap().hoq_life, Some(19));
    let expected = [
        "5: FlowControlDisable has no effect: all data VLs of an InfiniBand port have flow control",
        "6: PreemptRank has no effect: a packet on an InfiniBand link cannot be preempted",
        "7: RespSL has no effect: responses have the SL of the path that they are sent on",
        "8: HoqLife 1h is longer than InfiniBand's longest, 2.1 s, which is used",
        "10: Bandwidth has no effect beside HighPriority",
    ];
    assert_eq!(remarks, expected);
}

#[test]
fn sections_without_effect_are_remarked_on_once_each() {
    let text = "<Config>\n<XmlDebug/>\n<Common><Pm/><Fe/></Common>\n<Fm><Shared><Hfi>1</Hfi>\
                </Shared>\n<Fe/><Pm/></Fm></Config>";
    let (parsed, remarks) = try_parse(text);
    assert!(parsed.is_ok());
    let none = |name: &str| format!("{name} has no effect; ibsm reads no such section");
    let expected = [
        format!("2: {}", none("XmlDebug")),
        format!("3: {}", none("Pm")),
        format!("3: {}", none("Fe")),
        "4: settings of Shared other than Name and SubnetPrefix have no effect; the first is Hfi. \
         Set those of ibsm in opensm.conf"
            .to_owned(),
    ];
    assert_eq!(remarks, expected);
}

#[test]
fn a_hoq_life_that_not_all_have_is_remarked_on() {
    let other = MINIMAL.replace(">V<", ">W<");
    let text = |qos: &str| {
        fabric(&format!(
            "{MINIMAL}<QOS>1</QOS><HoqLife>8ms</HoqLife></VirtualFabric><VirtualFabric>{other}\
             <QOS>1</QOS>{qos}"
        ))
    };
    assert_eq!(try_parse(&text("<HoqLife_Int>11</HoqLife_Int>")).1, [""; 0]);
    let (_, remarks) = try_parse(&text(""));
    let [remark] = &remarks[..] else { panic!("{remarks:?}") };
    assert!(remark.starts_with("3: HoqLife of VirtualFabric 'V' applies to 'W' too"), "{remark}");
}

#[test]
fn unknown_elements_are_remarked_on_and_ignored() {
    let (parsed, remarks) = try_parse(&fabric(&format!("{MINIMAL}\n<MaxMtu>2048</MaxMtu>")));
    assert!(parsed.is_ok());
    assert_eq!(remarks, ["5: VirtualFabric has no MaxMtu and it is ignored; did you mean MaxMTU?"]);
}

/// The source file of the fabric manager's distribution has both; its build keeps one of them.
#[test]
fn a_qos_group_goes_before_settings_of_its_own() {
    let group = "<QOSGroups><QOSGroup><Name>Q</Name><Enable>1</Enable><BaseSL>4</BaseSL></QOSGroup>\
                 </QOSGroups><VirtualFabrics>\n<VirtualFabric>";
    let text = file(&format!(
        "{group}{MINIMAL}<QOSGroup>Q</QOSGroup><QOS>0</QOS></VirtualFabric></VirtualFabrics>"
    ));
    let (parsed, remarks) = try_parse(&text);
    assert_eq!(parsed.unwrap().virtual_fabrics[0].qos.as_ref().unwrap().base_sl.unwrap().get(), 4);
    let [remark] = &remarks[..] else { panic!("{remarks:?}") };
    assert!(remark.contains("VirtualFabric 'V' has a QOSGroup"), "{remark}");
}

#[test]
fn rejections_state_the_line_and_the_expected_form() {
    let app = |content: &str| {
        file(&format!("<Applications><Application>{content}"))
            .replace("\n</Common>", "</Application></Applications>\n</Common>")
    };
    let group = |content: &str| {
        file(&format!("<DeviceGroups><DeviceGroup>{content}"))
            .replace("\n</Common>", "</DeviceGroup></DeviceGroups>\n</Common>")
    };
    let table = [
        (
            "<Opafm/>".to_owned(),
            "1: the outermost element is 'Opafm'; that of an opafm.xml is 'Config'",
        ),
        (
            app("<ServiceID>x</ServiceID>"),
            "2: ServiceID takes a Service ID such as 0x00000000010603DB, not 'x'",
        ),
        (
            app("<ServiceIDRange>9-1</ServiceIDRange>"),
            "2: ServiceIDRange takes Service IDs as first-last, such as 0x1-0xf, not '9-1'",
        ),
        (
            app("<MGIDMasked>1:2</MGIDMasked>"),
            "2: MGIDMasked takes an MGID and a mask as high:low*high:low, not '1:2'",
        ),
        (
            app("<Select>All</Select>"),
            "2: Select takes SA, PM, UnmatchedServiceID or UnmatchedMGID, not 'All'",
        ),
        (app("<ServiceID>1</ServiceID>"), "2: this Application has no Name, which it needs"),
        (
            app("<Name>a</Name><IncludeApplication>b</IncludeApplication></Application>\
                 <Application><Name>b</Name><IncludeApplication>a</IncludeApplication>")
            .replace(
                "</Common>",
                "<VirtualFabrics><VirtualFabric><Name>V</Name><Member>All\
                 </Member><Application>a</Application></VirtualFabric></VirtualFabrics></Common>",
            ),
            "2: Application 'a' includes itself",
        ),
        (
            group("<Name>g</Name><IncludeGroup>AllSW</IncludeGroup>"),
            "2: there is no DeviceGroup 'AllSW'; did you mean 'AllSWs'?",
        ),
        (
            group("<Name>g</Name><IncludeGroup>g</IncludeGroup>"),
            "2: DeviceGroup 'g' includes itself",
        ),
        (
            group("<Name>g</Name><NodeDesc>a[3-1]</NodeDesc>"),
            "2: NodeDesc takes a description, with *, ? and ranges such as [01-16], not 'a[3-1]'",
        ),
        (group("<Name>g</Name><NodeType>HCA</NodeType>"), "2: NodeType takes FI or SW, not 'HCA'"),
        (fabric("<Name>V</Name>"), "3: VirtualFabric 'V' has no Member, which it needs"),
        (
            fabric("<Name>V</Name><Member>All</Member>"),
            "3: VirtualFabric 'V' has no Application, which it needs",
        ),
        (
            fabric(&format!("{MINIMAL}<PKey>0x8000</PKey>")),
            "4: PKey takes a P_Key in hexadecimal, 0x1 to 0x7fff, not '0x8000'",
        ),
        (
            fabric(&format!("{MINIMAL}\n<Name>W</Name>")),
            "5: a second Name in this VirtualFabric; it takes one",
        ),
        (
            fabric(&format!("{MINIMAL}\n<BaseSL>16</BaseSL>")),
            "5: BaseSL takes a service level of 0 to 15, not '16'",
        ),
        (
            fabric(&format!("{MINIMAL}\n<MaxMTU>9000</MaxMTU>")),
            "5: MaxMTU takes 256, 512, 1024, 2048, 4096, 8192, 10240 or Unlimited, not '9000'",
        ),
        (fabric(&format!("{MINIMAL}\n<QOSGroup>Q</QOSGroup>")), "5: there is no QOSGroup 'Q'"),
        (
            fabric(&format!("{MINIMAL}<QOS>1</QOS><MulticastSL>1</MulticastSL>")),
            "3: MulticastSL without BaseSL; set both or none",
        ),
        (
            fabric(&format!("{MINIMAL}<QOS>1</QOS>\n<Bandwidth>10</Bandwidth>")),
            "5: Bandwidth takes a share such as 10%, from 1% to 100%, not '10'",
        ),
        (
            fabric(&format!("{MINIMAL}<QOS>1</QOS>\n<HoqLife>8</HoqLife>")),
            "5: HoqLife takes a time such as 8ms, in ns, us, ms, s, m or h, or infinite, not '8'",
        ),
        (
            fabric(&format!(
                "{MINIMAL}<QOS>1</QOS>\n<Bandwidth>60%</Bandwidth></VirtualFabric>\n\
                 <VirtualFabric>{}<QOS>1</QOS>\n<Bandwidth>50%</Bandwidth>",
                MINIMAL.replace(">V<", ">W<")
            )),
            "7: Bandwidth adds up to 110%; QOSGroups and virtual fabrics that are in use can have \
             100% together",
        ),
        (
            fabric(&format!(
                "{MINIMAL}<QOS>1</QOS>\n<Bandwidth>96%</Bandwidth></VirtualFabric>\n\
                 <VirtualFabric>{}",
                MINIMAL.replace(">V<", ">W<")
            )),
            "5: Bandwidth is 96% in all, but virtual fabrics without it need 5%: 1% for each \
             QOSGroup or own QOS, and 5% for all without QoS",
        ),
        (
            fabric(&format!("{MINIMAL}</VirtualFabric>\n<VirtualFabric>{MINIMAL}")),
            "5: a second VirtualFabric 'V'; names are unique",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(refusal(&text), format!("opafm.xml:{expected}"), "{text}");
    }
}

proptest::proptest! {
    /// The parser accepts or rejects any text, and never panics.
    #[test]
    fn no_text_breaks_the_parser(pieces in proptest::collection::vec(
        "(<Config>|<Common>|<Applications>|<Application>|<Name>a</Name>|<MGIDRange>[0-9:a-fx-]{0,9}\
          </MGIDRange>|<NodeDesc>[a\\[\\]*?1-]{0,9}</NodeDesc>|</Common>|<DeviceGroups>|\
          <DeviceGroup>|<VirtualFabrics>|<VirtualFabric>|.{0,9})", 0..16)) {
        let _ = try_parse(&pieces.concat());
        let closed = format!("<Config><Common><DeviceGroups><DeviceGroup>{}</DeviceGroup>\
                              </DeviceGroups></Common></Config>", pieces.concat());
        let _ = try_parse(&closed);
    }
}

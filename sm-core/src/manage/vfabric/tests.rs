//! Virtual fabrics on a small fabric.

use std::path::Path;

use sa_proto::snapshot::QosRule;

use super::by_mgid::ByMgid;
use super::*;
use crate::manage::end_port::testing::{host, switch};
use crate::manage::rules::RuleSet;
use ib_mad::types::Gid;
use sm_config::opafm::{self, Instance};
use sm_config::partitions::{Membership, PartitionConfig, Ports};

/// Hosts 1 to 4 (4 runs the SM), switch 9 with an enhanced port 0.
fn ports() -> Vec<EndPort> {
    let mut ports: Vec<EndPort> = (1..=4).map(|n| host(n, &format!("node{n} HCA-1"))).collect();
    ports[3].is_self = true;
    ports.push(EndPort { is_enhanced_port0: true, ..switch(9, "sw") });
    ports
}

fn file(content: &str) -> OpaFm {
    let groups = "<DeviceGroups><DeviceGroup><Name>A</Name><PortGUID>1</PortGUID><PortGUID>2\
                  </PortGUID></DeviceGroup><DeviceGroup><Name>B</Name><NodeDesc>node[3-4] HCA-?\
                  </NodeDesc></DeviceGroup></DeviceGroups>";
    let text = format!("<Config><Common>{groups}{content}</Common></Config>");
    opafm::parse(Path::new("opafm.xml"), &text, &Instance::default(), &mut |line, remark| {
        panic!("{line}: {remark}")
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

fn fabrics(each: &[&str]) -> OpaFm {
    let each: Vec<String> =
        each.iter().map(|content| format!("<VirtualFabric>{content}</VirtualFabric>")).collect();
    file(&format!("<VirtualFabrics>{}</VirtualFabrics>", each.concat()))
}

fn resolved(file: &OpaFm) -> VirtualFabrics {
    VirtualFabrics::resolve(file, &ports(), &[])
}

fn rows(all: &VirtualFabrics, partitions: &[PKey]) -> RuleSet {
    let mut rows = RuleSet::default();
    all.add_rules("opafm.xml", 18, partitions, &mut rows);
    rows
}

/// The virtual fabric of a request, by a direct evaluation of the rules, or the reason why there is
/// no path.
fn find(rows: &RuleSet, ends: (u64, u64), id: Option<u64>, pkey: Option<u16>) -> Option<String> {
    let is_in = |groups: &Option<Vec<u32>>, guid: u64| {
        let port = ports().into_iter().find(|port| port.guid.0 == guid).unwrap();
        groups.as_ref().unwrap().iter().any(|&group| {
            let group = &rows.groups[group as usize];
            group.node_types & members::bit(port.kind) != 0 || group.ports.contains(&port.guid)
        })
    };
    let accepts = |rule: &&QosRule| {
        let own = &rows.levels[rule.level as usize].pkeys;
        let within = |ranges: &[(u16, u16)], key| ranges.iter().any(|r| r.0 <= key && key <= r.1);
        let ids = rule.service_ids.as_ref().unwrap();
        is_in(&rule.sources, ends.0)
            && is_in(&rule.destinations, ends.1)
            && id.map_or(ids.is_empty(), |id| ids.iter().any(|each| each.accepts(id)))
            && match &rule.pkeys {
                Some(asked) => pkey.is_some_and(|pkey| within(asked, pkey)),
                None => pkey.is_none_or(|pkey| within(own, pkey)),
            }
    };
    let rule = rows.rules.iter().find(accepts)?;
    Some(rows.levels[rule.level as usize].name.replace("virtual fabric ", ""))
}

const STORAGE: &str = "<Name>Storage</Name><PKey>5</PKey><Security>1</Security><QOS>1</QOS>\
                       <BaseSL>3</BaseSL><MaxMTU>2048</MaxMTU><MaxRate>50g</MaxRate>\
                       <PktLifeTimeMult>4</PktLifeTimeMult>\
                       <Member>B</Member><LimitedMember>A</LimitedMember>\
                       <Application>Storage</Application>";
const OTHERS: &str = "<Name>Others</Name><PKey>6</PKey><Member>All</Member>\
                      <Application>AllOthers</Application>";
const LUSTRE: u64 = 0x0106_03DB;

#[test]
fn a_service_id_selects_the_first_virtual_fabric_that_has_it_and_both_ends() {
    let rows = rows(&resolved(&fabrics(&[STORAGE, OTHERS])), &[]);
    let at = |ends, id, pkey| find(&rows, ends, id, pkey);
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(at((1, 3), Some(LUSTRE), None), some("Storage"), "limited to full");
    assert_eq!(at((3, 4), Some(LUSTRE), Some(5)), some("Storage"));
    assert_eq!(at((1, 2), Some(LUSTRE), None), some("Others"), "limited members cannot");
    assert_eq!(at((1, 9), Some(LUSTRE), None), some("Others"), "the switch is no member");
    assert_eq!(at((1, 3), Some(7), None), some("Others"), "an unassigned Service ID");
    assert_eq!(at((1, 3), Some(LUSTRE), Some(6)), some("no path"), "it is not Others' traffic");
    assert_eq!(at((1, 3), Some(7), Some(5)), some("no path"), "it is not Storage's traffic");
    assert_eq!(at((1, 3), Some(LUSTRE), Some(0x7FFF)), None, "the partitions' business");
    assert_eq!(at((1, 3), None, None), some("Storage"), "the first that has both");
    assert_eq!(at((1, 3), None, Some(6)), some("Others"));
    assert_eq!(at((1, 3), None, Some(8)), None);
}

#[test]
fn a_p_key_that_partitions_have_too_is_not_closed_to_other_traffic() {
    let rows = rows(&resolved(&fabrics(&[STORAGE])), &[PKey(5)]);
    assert_eq!(find(&rows, (1, 3), Some(7), Some(5)), None);
    assert_eq!(find(&rows, (1, 3), Some(LUSTRE), Some(5)).as_deref(), Some("Storage"));
}

#[test]
fn a_level_has_what_the_virtual_fabric_grants() {
    let rows = rows(&resolved(&fabrics(&[STORAGE, OTHERS])), &[]);
    let level = &rows.levels[0];
    assert_eq!((level.sl.map(Sl::get), level.mtu_limit), (Some(3), Some(Mtu::B2048)));
    assert_eq!(level.rate_limit, Some(Rate::Gbps50));
    assert_eq!(level.packet_life.unwrap().code(), 20, "four times 2^18");
    assert_eq!(level.pkeys, [(5, 5)]);
    assert_eq!(rows.levels[1].sl, None, "without QoS routing and partitions choose");
    assert_eq!(rows.virtual_fabrics[0].limited_members.len(), 1);
    assert!(rows.virtual_fabrics[1].unmatched_service_ids);
}

#[test]
fn in_standby_there_are_no_rules_members_or_groups() {
    let file = fabrics(&[&format!("{STORAGE}<Standby>1</Standby>")]);
    let all = resolved(&file);
    let rows = rows(&all, &[]);
    assert!(rows.rules.is_empty() && all.partitions().is_empty() && all.groups().is_empty());
    assert!(rows.virtual_fabrics[0].standby, "it is listed");
}

#[test]
fn p_keys_are_the_lowest_free_and_without_security_the_default() {
    let secure = |name: &str| {
        format!(
            "<Name>{name}</Name><Security>1</Security><Member>A</Member>\
                 <Application>SA</Application>"
        )
    };
    let open = "<Name>O</Name><Member>A</Member><Application>SA</Application>";
    let one = format!("{}<PKey>0x8001</PKey>", secure("C"));
    let file = fabrics(&[&secure("A"), &secure("B"), &one, open]);
    let all = VirtualFabrics::resolve(&file, &ports(), &[PKey(0x8002)]);
    let pkeys: Vec<u16> = all.fabrics().iter().map(|fabric| fabric.pkey.0).collect();
    assert_eq!(pkeys, [3, 4, 1, 0x7FFF]);
}

#[test]
fn sls_are_shared_within_a_qos_group_and_else_the_lowest_free() {
    let groups = "<QOSGroups><QOSGroup><Name>Q</Name><Enable>1</Enable></QOSGroup></QOSGroups>";
    let vf = |name: &str, qos: &str| {
        format!(
            "<VirtualFabric><Name>{name}</Name>{qos}<Member>A</Member>\
                 <Application>SA</Application></VirtualFabric>"
        )
    };
    let all = [
        vf("none", ""),
        vf("own", "<QOS>1</QOS>"),
        vf("fixed", "<QOS>1</QOS><BaseSL>1</BaseSL><MulticastSL>2</MulticastSL>"),
        vf("q1", "<QOSGroup>Q</QOSGroup>"),
        vf("q2", "<QOSGroup>Q</QOSGroup>"),
    ];
    let text = format!("{groups}<VirtualFabrics>{}</VirtualFabrics>", all.concat());
    let all = resolved(&file(&text));
    let sls: Vec<(u8, u8)> = all
        .fabrics()
        .iter()
        .map(|fabric| (fabric.base_sl.get(), fabric.multicast_sl.get()))
        .collect();
    assert_eq!(sls, [(0, 0), (3, 3), (1, 2), (4, 4), (4, 4)]);
}

#[test]
fn when_sls_run_out_it_is_reported_and_sl_0_is_shared() {
    let each: Vec<String> = (0..16)
        .map(|n| {
            format!("<Name>V{n}</Name><QOS>1</QOS><Member>A</Member><Application>SA</Application>")
        })
        .collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    let all = resolved(&fabrics(&each));
    assert_eq!(all.fabrics()[14].base_sl.get(), 15);
    assert_eq!(all.fabrics()[15].base_sl.get(), 0);
    assert_eq!(all.warnings(), ["virtual fabric V15: no free SL, using SL 0"]);
}

#[test]
fn device_groups_hold_what_they_include_and_select() {
    let member = |group: &str| {
        let vf = format!(
            "<Name>V</Name><PKey>1</PKey><Member>{group}</Member>\
                          <Application>SA</Application>"
        );
        let partitions = resolved(&fabrics(&[&vf])).partitions();
        partitions[0].full.iter().map(|guid| guid.0).collect::<Vec<_>>()
    };
    assert_eq!(member("A"), [1, 2]);
    assert_eq!(member("B"), [3, 4]);
    assert_eq!(member("Self"), [4]);
    assert_eq!(member("AllSWE0s"), [9]);
    assert_eq!(member("AllEndNodes"), [1, 2, 3, 4, 9]);
    assert_eq!(member("All"), [1, 2, 3, 4, 9]);
}

#[test]
fn a_port_that_is_a_full_member_once_is_one_in_the_partition() {
    let limited = "<Name>L</Name><PKey>5</PKey><Security>1</Security><Member>B</Member>\
                   <LimitedMember>All</LimitedMember><Application>SA</Application>";
    let full = "<Name>F</Name><PKey>5</PKey><Security>1</Security><Member>A</Member>\
                <Application>PM</Application>";
    let partitions = resolved(&fabrics(&[limited, full])).partitions();
    let [partition] = &partitions[..] else { panic!("{partitions:?}") };
    let guids = |guids: &[Guid]| guids.iter().map(|guid| guid.0).collect::<Vec<_>>();
    assert_eq!((partition.name.as_str(), guids(&partition.full)), ("L", vec![1, 2, 3, 4]));
    assert_eq!(guids(&partition.limited), [9]);
}

#[test]
fn virtual_fabrics_come_beside_the_partitions_of_the_file() {
    let before = PartitionConfig::default();
    let joined = resolved(&fabrics(&[STORAGE, OTHERS])).join(&before);
    let pkeys: Vec<u16> = joined.partitions().iter().map(|partition| partition.pkey.0).collect();
    assert_eq!(pkeys, [0x7FFF, 5, 6]);
    let of_1: Vec<_> = joined
        .rules()
        .iter()
        .filter(|rule| rule.ports == Ports::Guid(Guid(1)))
        .map(|rule| (rule.pkey.0, rule.membership))
        .collect();
    assert_eq!(of_1, [(5, Membership::Limited), (6, Membership::Full)]);
    assert_eq!(joined.groups(), before.groups());
}

#[test]
fn groups_are_made_for_the_virtual_fabrics_that_take_their_mgids() {
    let vfs = format!(
        "<VirtualFabrics><VirtualFabric><Name>Net</Name><PKey>2</PKey><QOS>1</QOS><BaseSL>4\
         </BaseSL><MaxMTU>1024</MaxMTU><Member>All</Member><Application>IPv4</Application>\
         </VirtualFabric><VirtualFabric>{STORAGE}</VirtualFabric></VirtualFabrics>"
    );
    let group = |content: &str| {
        format!(
            "<Sm><Multicast><MulticastGroup>{content}\
                                         </MulticastGroup></Multicast></Sm>"
        )
    };
    let of = |content: &str| resolved(&file(&format!("{vfs}{}", group(content)))).groups();

    let all = of("<QKey>0xb1b</QKey>");
    let mgids: Vec<String> = all.iter().map(|group| group.mgid.to_string()).collect();
    assert_eq!(mgids.len(), 4, "IPv4 only, and nothing for Storage: {mgids:?}");
    assert_eq!(all[0].mgid, sm_config::partitions::broadcast_mgid(PKey(2)));
    assert_eq!((all[0].qkey, all[0].mtu), (0xB1B, Mtu::B1024), "no more than the virtual fabric");
    assert_eq!(all[0].sl, sm_config::partitions::GroupSl::Own(Sl::from_low_bits(4)));

    assert_eq!(of("<PKey>2</PKey>").len(), 4);
    assert!(of("<PKey>9</PKey>").is_empty());
    let named = of("<VirtualFabric>Storage</VirtualFabric><MGID>0xff12401b00000000:0x7</MGID>");
    assert_eq!(named[0].mgid.0[4..6], [0x80, 5], "the P_Key is put in");
    assert_eq!(named[0].pkey, PKey(5));
}

#[test]
fn an_mgid_and_a_member_lead_to_one_virtual_fabric() {
    let net = "<Name>Net</Name><PKey>2</PKey><Security>1</Security><Member>B</Member>\
               <LimitedMember>A</LimitedMember><Application>IPv4</Application>";
    let second = "<Name>Second</Name><PKey>3</PKey><Member>All</Member>\
                  <Application>IPv4</Application>";
    let rows = rows(&resolved(&fabrics(&[net, second, OTHERS])), &[]);
    let by_mgid = ByMgid::new(&rows.virtual_fabrics, &rows.groups);
    let at = |mgid: u8, pkey, port| {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&[0xFF, 0x12, 0x40, mgid, 0x80, 2]);
        let found = by_mgid.for_mgid(Gid(bytes), pkey, Guid(port), NodeType::Ca);
        found.map(|row| row.name.as_str())
    };
    assert_eq!(at(0x1B, None, 3), Some("Net"), "the first in the file");
    assert_eq!(at(0x1B, None, 1), Some("Second"), "a limited member of Net");
    assert_eq!(at(0x1B, Some(PKey(0x8003)), 3), Some("Second"));
    assert_eq!(at(0x1B, Some(PKey(6)), 3), None, "named, though not for this P_Key");
    assert_eq!(at(0x77, None, 3), Some("Others"), "an unassigned MGID");
    assert_eq!(at(0x77, Some(PKey(2)), 3), None);
}

/// The fabric manager's distribution has its file in this form, in the default variant.
#[test]
fn the_distributions_virtual_fabrics_resolve() {
    let vfs = "<VirtualFabric><Name>Default</Name><Enable>1</Enable><PKey>0x0001</PKey>\
               <Security>0</Security><QOS>0</QOS><Member>All</Member>\
               <Application>AllOthers</Application><MaxMTU>Unlimited</MaxMTU>\
               <MaxRate>Unlimited</MaxRate></VirtualFabric>\
               <VirtualFabric><Name>Admin</Name><Enable>1</Enable><PKey>0x7fff</PKey>\
               <Security>1</Security><QOS>0</QOS><Member>HFIDirectConnect</Member>\
               <Member>AllMgmtAllowed</Member><Member>AllSWE0s</Member>\
               <LimitedMember>All</LimitedMember><Application>SA</Application>\
               <Application>PA</Application><Application>PM</Application></VirtualFabric>";
    let group = "<Sm><Multicast><MulticastGroup><Create>1</Create><PKey>0x0001</PKey>\
                 <MTU>2048</MTU><Rate>25g</Rate><QKey>0x0</QKey></MulticastGroup></Multicast></Sm>";
    let all = resolved(&file(&format!("<VirtualFabrics>{vfs}</VirtualFabrics>{group}")));
    let partitions = all.partitions();
    let admin = &partitions[1];
    let guids = |guids: &[Guid]| guids.iter().map(|guid| guid.0).collect::<Vec<_>>();
    assert_eq!((guids(&admin.full), guids(&admin.limited)), (vec![4, 9], vec![1, 2, 3]));
    assert_eq!(all.groups().len(), 8, "four of IPv4 and four of IPv6");
    let rows = rows(&all, &[PKey(0x7FFF)]);
    let at = |id, pkey| find(&rows, (1, 2), id, pkey);
    assert_eq!(at(Some(LUSTRE), None).as_deref(), Some("Default"));
    assert_eq!(at(Some(0x1100_D03C_3484_5555), None).as_deref(), Some("Default"), "both limited");
    assert_eq!(find(&rows, (1, 4), None, Some(0x7FFF)).as_deref(), Some("Admin"));
    assert_eq!(at(None, None).as_deref(), Some("Default"));
}

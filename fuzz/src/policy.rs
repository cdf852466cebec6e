//! Target for a site's configuration files, and for the dump that a registry can start from: any
//! text is either read, or rejected with the number of a line in it, and the result can be applied
//! to ports.

use std::path::Path;

use ib_mad::types::{Guid, Lid, PKey, PortNum};
use ib_mad::wire::attribute::NodeType;
use sm_config::opafm::Instance;
use sm_config::{Remarks, file, opafm, partitions, prefix_routes, qos_policy};
use sm_core::manage::end_port::EndPort;
use sm_core::manage::qos::{self, PartitionMembers};
use sm_core::manage::rules::RuleSet;
use sm_core::manage::vfabric::VirtualFabrics;
use sm_core::manage::vfabric::arbitration::{Arbitration, PortLanes};
use sm_core::registry::Registry;
use sm_core::registry::dump::{self, Surroundings};

/// The target: byte 0 selects the kind of file, the rest is its text.
pub fn run(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    let (path, text) = (Path::new("input"), &String::from_utf8_lossy(bytes)[..]);
    // In a file that ends in a newline, a missing part is reported on the line after it.
    let has_line = |line: usize| assert!(line <= text.lines().count() + 1, "line {line}");
    let mut remarks = Remarks::default();
    match kind % 6 {
        0 => match partitions::parse(path, text, &mut remarks) {
            Ok(config) => assert!(config.partition(PKey::DEFAULT_LIMITED).is_some()),
            Err((line, _)) => has_line(line),
        },
        1 => match qos_policy::parse(path, text) {
            Ok(policy) => {
                let members = [PartitionMembers {
                    pkey: PKey::DEFAULT_FULL,
                    name: "Default",
                    full: &[Guid(1)],
                    limited: &[Guid(2)],
                }];
                let mut rows = RuleSet::default();
                qos::compile(&policy, path, &ports(), &members, &mut rows);
                for rule in &rows.rules {
                    let known = |group: &u32| (*group as usize) < rows.groups.len();
                    let mut groups = rule.sources.iter().chain(&rule.destinations).flatten();
                    assert!(groups.all(known), "{rule:?}");
                    assert!((rule.level as usize) < rows.levels.len(), "{rule:?}");
                }
            }
            Err(error) => has_line(error.line),
        },
        2 => match opafm::parse(path, text, &Instance::default(), &mut |line, _| has_line(line)) {
            Ok(file) => {
                let all = VirtualFabrics::resolve(&file, &ports(), &[PKey::DEFAULT_LIMITED]);
                all.arbitration().iter().for_each(|arbitration| arbitrate(arbitration));
            }
            Err(error) => has_line(error.line),
        },
        3 => {
            let routes = prefix_routes::parse(path, text, &mut remarks);
            assert!(routes.len() <= text.lines().count());
        }
        4 => read_dump(bytes),
        _ => read_settings(path, text),
    }
}

/// Whatever the shares are, every data VL that is not of high priority may send, and no table is
/// beyond the port's.
fn arbitrate(arbitration: &Arbitration) {
    for (count, engine_sls) in [(2, 0), (4, 15), (8, 0), (8, 7), (15, 0)] {
        let vls = std::array::from_fn(|sl| 1 << (sl as u8 % count));
        let lanes = PortLanes { vls, engine_sls, count, capacity: (count, count) };
        let (low, high) = arbitration.entries(&lanes);
        let weighs = |entries: &[(u8, u8)], vl| entries.iter().any(|e| e.0 == vl && e.1 > 0);
        assert!((0..count).all(|vl| weighs(&low, vl) || weighs(&high, vl)), "{low:?} {high:?}");
        assert!(low[usize::from(count)..].iter().all(|entry| entry.1 == 0), "{low:?}");
    }
}

/// A parsed file must be written so that it reads the same, without errors.
fn read_settings(path: &Path, text: &str) {
    let at_hup = file::parse(path, text, true);
    let Ok(parsed) = file::parse(path, text, false) else { return assert!(at_hup.is_err()) };
    let kept = at_hup.expect("what is taken at a start is at a HUP").kept;
    assert!(kept.is_empty() || !parsed.mistakes.is_empty());
    let again =
        file::parse(path, &parsed.settings.render(), false).expect("what was written is read");
    assert_eq!(parsed.settings, again.settings);
    assert_eq!(again.mistakes, [""; 0]);
}

/// A parsed dump must be written so that it reads the same, and must form a registry.
fn read_dump(text: &[u8]) {
    let port = |guid: Guid| (guid != Guid(0)).then_some((Lid(guid.0 as u16), 32));
    let around = Surroundings {
        now_s: 1_000,
        wall_s: 1_000,
        pkeys: &[PKey::DEFAULT_FULL, PKey(0x8001)],
        port: &port,
    };
    let Ok(rows) = dump::read(text, &around) else { return };
    let written = dump::write(&rows, &around);
    let again = dump::read(&written, &around).expect("what was written is read");
    let lens = |plane: &sa_proto::snapshot::RegistryPlane| {
        [plane.groups.len(), plane.members.len(), plane.services.len(), plane.subscriptions.len()]
    };
    assert_eq!(lens(&rows), lens(&again), "{}", String::from_utf8_lossy(&written));
    let registry = Registry::restore(&rows, []);
    assert_eq!(registry.plane().members, rows.members);
}

fn ports() -> Vec<EndPort> {
    let port = |guid: u64, kind, description: &str| EndPort {
        guid: Guid(guid),
        node: Guid(guid),
        system_image: Guid(guid),
        kind,
        description: description.to_owned(),
        num: PortNum(1),
        port_count: 1,
        is_self: guid == 1,
        has_sm: guid == 1,
        has_device_management: guid == 2,
        is_enhanced_port0: false,
        is_direct: false,
    };
    vec![
        port(1, NodeType::Ca, "node1 HCA-1"),
        port(2, NodeType::Ca, "node2 HCA-1"),
        port(3, NodeType::Switch, "leaf1"),
        port(4, NodeType::Router, "way out"),
    ]
}

/// A file of each kind with every feature.
pub fn seeds() -> Vec<Vec<u8>> {
    let partitions = "Default=0x7fff,rate=3,mtu=4,scope=2,ipoib,defmember=full:ALL, SELF=full;\n\
        # more\nA=0x2, indx0, ipoib, sl=3 : 0x1=full, 0x2=limited, ALL_SWITCHES=both ;\n\
        B , mgid=ff12:401b::0707,sl=1,Q_Key=0x1,TClass=2,FlowLabel=3 : ALL_CAS;\n";
    let qos = "port-groups\n port-group\n name: Storage\n use: x\n port-guid: 0x1-0x3,0x9\n \
        port-name: node1 HCA-1/P1\n pkey: 0x0FFF-0x0FFF\n partition: Default\n \
        node-type: CA,SELF\n end-port-group\nend-port-groups\nqos-setup\n vlarb-tables\n \
        end-vlarb-tables\nend-qos-setup\nqos-levels\n qos-level\n name: DEFAULT\n sl: 0\n \
        end-qos-level\n qos-level\n name: L\n sl: 3\n \
        mtu-limit: 4\n rate-limit: 3\n packet-life: 16\n pkey: 0x7FFF\n end-qos-level\n\
        end-qos-levels\nqos-match-rules\n qos-match-rule\n use: y\n qos-class: 7-9,11\n \
        source: Storage\n destination: Storage\n service-id: 0x100-0x1FF\n pkey: 0xFFFF\n \
        qos-level-name: L\n end-qos-match-rule\nend-qos-match-rules\n";
    let ulps = "qos-ulps\n default : 0\n sdp, port-num 30000 : 1\n sdp : 2\n rds : 3\n \
        iser, port-num 900 : 4\n srp, target-port-guid 0x1 : 5\n ipoib, pkey 0x1 : 6\n ipoib : 7\n \
        any, service-id 0x1-0x2 : 8\n any, pkey 0x3 : 9\n any, target-port-guid 0x1-0x2 : 10\n\
        end-qos-ulps\n";
    let fabrics = "<?xml version=\"1.0\"?><Config><Common><Applications><Application>\
        <Name>App</Name><ServiceID>0x1</ServiceID><ServiceIDRange>0x2-0x9</ServiceIDRange>\
        <MGID>0xff12401bffff0000:0x1</MGID></Application></Applications><DeviceGroups><DeviceGroup>\
        <Name>All</Name><Select>All</Select><NodeDesc>node*</NodeDesc></DeviceGroup></DeviceGroups>\
        <QOSGroups><QOSGroup><Name>Q</Name><BaseSL>2</BaseSL></QOSGroup></QOSGroups>\
        <VirtualFabrics><VirtualFabric><Name>V</Name><Enable>1</Enable><PKey>0x5</PKey>\
        <Security>1</Security><QOSGroup>Q</QOSGroup><Member>All</Member>\
        <Application>App</Application><MaxMTU>2048</MaxMTU><MaxRate>100g</MaxRate></VirtualFabric>\
        </VirtualFabrics></Common></Config>";
    let routes = "# prefix router\nfe80:0:0:1::/64 0x2c9\n* *\n0x0000000000000001 0x2\n";
    let dump = "MC Group 0xC000 (well known): mgid=0xff12401bffff0000:0x00000000ffffffff \
        port_gid=0xfe80000000000000:0x1 qkey=0xb1b mlid=0xC000 mtu=0x84 tclass=0x0 pkey=0xffff \
        rate=0x83 pkt_life=0x92 sl_flow_hop=0x0 scope_state=0x21 proxy_join=0x0\n\
        mcm_port: port_gid=0xfe80000000000000:0x1 scope_state=0x21 proxy_join=0x0\n\
        Service Record: id=0x1 gid=0xfe80000000000000:0x1 pkey=0xffff lease=0xFFFFFFFF \
        key=0x0:0x0 name='a' data8=0x0:0x0 data16=0x0:0x0 data32=0x0:0x0 data64=0x0:0x0 \
        modified_time=0x1 lease_period=0xFFFFFFFF\n";
    let settings = "lmc 0x2 # two bits\nqos TRUE\nqos_sl2vl 0,1,2, 3;4\n\
        qos_ca_vlarb_high 0:4,15:1\nrouting_engine ftree, updn bogus\nlog_prefix \" a 'b' \"\n\
        sm_priority 16\npart_enforce x\n\
        cc_ca_cong_setting_ccti_timer 3 20\ncc_cct 1:2,3:4x\ncc_sw_cong_setting_victim_mask 0x1f\n\
        qos_high_limit 9 x\nm_key -1\nsweep_intervall 3\r\ndimn_ports_file /a\n";
    let files = [&[partitions][..], &[qos, ulps], &[fabrics], &[routes], &[dump], &[settings]];
    let with_kind = files.iter().zip(0u8..).flat_map(|(texts, kind)| {
        texts.iter().map(move |text| [&[kind], text.as_bytes()].concat())
    });
    with_kind.collect()
}

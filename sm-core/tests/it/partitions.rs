//! Partitions in force: P_Key tables of ports and of switch ports that check them, on a simulated
//! fabric in virtual time, compared with recordings of OpenSM.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use flate2::read::GzDecoder;
use ib_mad::netlist::Net;
use ib_mad::types::{Gid, Guid, PKey, PortNum};
use ib_mad::wire::attribute::{NodeType, PKeyTable, SmState};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::Smp;
use sm_config::opafm::{self, Instance};
use sm_config::{PartEnforce, PartitionConfig, Remarks, Settings, partitions};
use sm_core::manage::lid::LidTable;
use sm_core::manage::partition;
use sm_core::sweep::{Phase, Report};

fn config(text: &str) -> Arc<PartitionConfig> {
    let config = partitions::parse(Path::new("partitions.conf"), text, &mut Remarks::default());
    Arc::new(config.unwrap())
}

/// A fabric of 8 hosts that is up with these partitions.
fn bed(text: &str, settings: Settings) -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), settings);
    bed.managers[0].sweeper.set_partitions(config(text));
    bed.bring_up();
    bed
}

fn sweep_again(bed: &mut Bed) -> Report {
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up()
}

fn table(bed: &Bed, node: NodeIndex, num: u8) -> Vec<u16> {
    bed.fabric.pkeys(node, num).unwrap().iter().map(|key| key.0).collect()
}

/// The table of a host's port, and that of the switch port at the other end.
fn tables(bed: &Bed, host: usize) -> (Vec<u16>, Vec<u16>) {
    let host = bed.hosts()[host];
    let far = bed.fabric.port(host, 1).unwrap().link.unwrap();
    (table(bed, host, 1), table(bed, far.node, far.port))
}

/// Ports of switches: whether they lead to a host, and the P_Keys that they check.
fn checks(bed: &Bed) -> Vec<(NodeIndex, u8, bool, (bool, bool))> {
    let mut found = Vec::new();
    for switch in bed.switches() {
        for num in 1..=bed.fabric.node(switch).num_ports {
            let Some(link) = bed.fabric.port(switch, num).unwrap().link else { continue };
            let leaf = bed.fabric.node(link.node).node_type == NodeType::Ca;
            found.push((switch, num, leaf, bed.fabric.checks_pkeys(switch, num).unwrap()));
        }
    }
    found
}

fn guid(bed: &Bed, host: usize) -> Guid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().guid
}

#[test]
fn ports_get_their_tables_and_switches_check_them() {
    let mut bed = bed("Default=0x7fff:ALL;A=1:ALL_CAS=full;", Settings::default());
    assert_eq!(tables(&bed, 0).0, [0xffff, 0x8001], "the SM's");
    for host in 1..8 {
        let expected = vec![0x7fff, 0x8001];
        assert_eq!(tables(&bed, host), (expected.clone(), expected));
    }
    for switch in bed.switches() {
        assert_eq!(table(&bed, switch, 0), [0x7fff]);
    }
    for (switch, num, leaf, checks) in checks(&bed) {
        assert_eq!(checks, (leaf, leaf), "{} port {num}", bed.fabric.node(switch).name);
    }
    bed.assert_all_reachable();
    let report = sweep_again(&mut bed);
    assert_eq!((report.pkey_blocks_set, report.port_infos_set), (0, 0), "all is as it should be");
}

#[test]
fn switches_enforce_what_their_port_info_asks() {
    for (part_enforce, expected) in [
        (PartEnforce::In, (true, false)),
        (PartEnforce::Out, (false, true)),
        (PartEnforce::Off, (false, false)),
    ] {
        let settings = Settings { part_enforce, ..Settings::default() };
        let bed = bed("A=1:ALL=full;", settings);
        for (_, _, leaf, checks) in checks(&bed) {
            assert_eq!(checks, if leaf { expected } else { (false, false) }, "{part_enforce:?}");
        }
        let checked =
            if part_enforce == PartEnforce::Off { vec![0xffff] } else { vec![0x7fff, 0x8001] };
        assert_eq!(tables(&bed, 3).1, checked);
    }
}

#[test]
fn new_partitions_reach_the_ports_with_the_next_sweep_and_the_old_ones_keep_their_places() {
    let mut bed = bed("A=1:ALL=full;B=2:ALL=full;C=3:ALL=full;", Settings::default());
    let host = guid(&bed, 5);
    let text = format!("A=1:ALL;C=3:ALL=full;D=4:{host}=full;");
    bed.managers[0].sweeper.set_partitions(config(&text));
    let report = sweep_again(&mut bed);
    let table = vec![0x7fff, 1, 0, 0x8003, 0x8004];
    let checked = vec![0x7fff, 1, 0x8003, 0x8004];
    assert_eq!(tables(&bed, 5), (table, checked));
    assert_eq!(tables(&bed, 6), (vec![0x7fff, 1, 0, 0x8003], vec![0x7fff, 1, 0x8003]));
    // Eight hosts, their switch ports, and six switches; one block each.
    assert_eq!(report.pkey_blocks_set, 8 + 8 + 6);
    // A new key for one host is one block at either end.
    let text = format!("{text}E=5:{host};");
    bed.managers[0].sweeper.set_partitions(config(&text));
    assert_eq!(sweep_again(&mut bed).pkey_blocks_set, 2);
    let row = published(&bed, bed.hosts()[5], 1);
    assert_eq!(row, [0x7fff, 1, 0, 0x8003, 0x8004, 5]);
}

/// P_Keys of a port as published to responders.
fn published(bed: &Bed, node: NodeIndex, num: u8) -> Vec<u16> {
    let plane = bed.plane();
    let guid = bed.fabric.node(node).guid;
    let row = plane.nodes.iter().find(|row| row.guid == guid).unwrap();
    row.port(PortNum(num)).unwrap().pkeys.iter().map(|key| key.0).collect()
}

/// A switch that forgot its tables would drop the packets that it must check.
#[test]
fn a_rebooted_switch_gets_the_tables_that_it_checks_again() {
    let settings = Settings { sweep_on_trap: false, ..Settings::default() };
    let mut bed = bed("A=1:ALL=full;", settings);
    for switch in bed.switches() {
        let now = bed.clock.now();
        bed.fabric.reboot(now, switch).unwrap();
        bed.bring_up();
        for host in 1..8 {
            assert_eq!(tables(&bed, host).1, [0x7fff, 0x8001]);
        }
        for (_, _, leaf, checks) in checks(&bed) {
            assert_eq!(checks, (leaf, leaf));
        }
    }
}

#[test]
fn what_another_master_had_switches_check_is_replaced_when_we_rule_again() {
    let of_priority = |sm_priority| Settings { sm_priority, ..Settings::default() };
    let mut bed = bed("Default=0x7fff:ALL;A=1:ALL_CAS=full;", of_priority(3));
    let host = bed.hosts()[4];
    bed.manage(host, of_priority(4), LidTable::default());
    bed.managers[1].sweeper.set_partitions(config("Default=0x7fff:ALL;B=2:ALL_CAS=full;"));
    let rules = |bed: &Bed, at: usize| {
        let sweeper = &bed.managers[at].sweeper;
        sweeper.sm_state() == SmState::Master && sweeper.is_up() && sweeper.phase() == Phase::Idle
    };
    let minute = Duration::from_secs(60);
    bed.run_until(minute, "another master", |bed| rules(bed, 1));
    assert_eq!(tables(&bed, 1), (vec![0x7fff, 0x8002], vec![0x7fff, 0x8002]));
    bed.crash_manager();
    bed.run_until(minute * 2, "us again", |bed| rules(bed, 0));
    assert_eq!(tables(&bed, 1), (vec![0x7fff, 0x8001], vec![0x7fff, 0x8001]));
}

#[test]
fn a_responders_port_becomes_a_full_member_of_the_default_partition() {
    let mut bed = bed("A=1:ALL=full;", Settings::default());
    let responder = guid(&bed, 3);
    let sweeper = &mut bed.managers[0].sweeper;
    assert!(sweeper.set_responder_ports([responder]));
    assert!(!sweeper.set_responder_ports([responder]), "it is known");
    sweep_again(&mut bed);
    assert_eq!(tables(&bed, 3).0, [0xffff, 0x8001]);
    let home = guid(&bed, 0);
    assert!(!bed.managers[0].sweeper.set_responder_ports([responder, home]), "it is one already");
}

/// Every host and switch in 70 partitions has room for 64 keys.
#[test]
fn keys_beyond_the_capacity_are_counted_and_the_rest_is_set() {
    let text: String = (1..=70).map(|base| format!("P{base}={base}:ALL;")).collect();
    let mut bed = bed(&text, Settings::default());
    let report = sweep_again(&mut bed);
    let ports = bed.end_ports().len();
    assert_eq!((report.pkeys_left_out, report.unchecked_ports), (7 * ports, 0));
    assert!(bed.sweeper().pkey_warning().unwrap().contains("is full; not set"));
    let host = bed.hosts()[7];
    bed.manage(host, Settings { sm_priority: 9, ..Settings::default() }, LidTable::default());
    bed.run_until(Duration::from_secs(60), "a standby", |bed| {
        bed.managers[0].standing_by.is_some()
    });
    assert_eq!(bed.sweeper().pkey_warning(), None, "what the master sets is the master's");
    assert_eq!(report.pkey_blocks_set, 0);
    let (host, switch) = tables(&bed, 4);
    assert_eq!((host.len(), host[0], host[1]), (64, 0x7fff, 1), "in OpenSM's order");
    assert_eq!(switch, host);
}

#[test]
fn a_port_that_keeps_another_table_is_a_fault_and_is_not_checked_against() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    bed.managers[0].sweeper.set_partitions(config("A=1:ALL=full;"));
    // Switches claim to hold nothing in the tables of their external ports.
    bed.tamper = Some(Box::new(|packet| {
        let Ok(mut smp) = Smp::new(&mut packet.mad[..]) else { return };
        let external = smp.attribute_modifier() >> 16 != 0;
        if smp.method() == Method::GET_RESP
            && smp.attribute_id() == AttributeId::PKEY_TABLE
            && external
        {
            let mut table = PKeyTable::new(smp.data_bytes_mut()).unwrap();
            (0..32).for_each(|index| {
                table.set_pkey(index, PKey(0));
            });
        }
    }));
    let report = bed.bring_up();
    assert_eq!(report.errors, 8, "{:?}", report.faults);
    assert!(report.faults[0].contains("P_Key block 0"));
    assert!(checks(&bed).iter().all(|(.., checks)| *checks == (false, false)));
    bed.assert_all_reachable();
}

/// A recorded fabric, its partitions, and the tables that OpenSM programmed.
struct Golden {
    json: serde_json::Value,
}

impl Golden {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../sa-server/tests/golden/fattree-partitions.json.gz");
        let mut text = String::new();
        let file = std::fs::File::open(path).unwrap();
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
        Self { json: serde_json::from_str(&text).unwrap() }
    }

    /// The records of an answer, by column.
    fn records(&self, id: &str) -> Vec<BTreeMap<String, serde_json::Value>> {
        let cases = self.json["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["id"] == id).unwrap();
        let columns: Vec<&str> = case["records"]["columns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| column.as_str().unwrap())
            .collect();
        let rows = case["records"]["rows"].as_array().unwrap().iter();
        rows.map(|row| {
            let values = row.as_array().unwrap().iter().cloned();
            columns.iter().map(|column| (*column).to_owned()).zip(values).collect()
        })
        .collect()
    }
}

#[test]
fn tables_and_groups_are_those_of_opensm() {
    let golden = Golden::read();
    let net = Net::parse("golden", golden.json["net"].as_str().unwrap()).unwrap();
    let mut bed = Bed::new(&net);
    let home = bed.fabric.find_node("node00001 HCA-1").unwrap();
    bed.manage(home, Settings::default(), Default::default());
    let text = golden.json["files"]["partitions.conf"].as_str().unwrap();
    bed.managers[0].sweeper.set_partitions(config(text));
    bed.bring_up();

    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let ports = golden.json["facts"]["fabric"]["ports"].as_array().unwrap();
    // A LID is that of a node here: all hosts have one port.
    let nodes: BTreeMap<u64, NodeIndex> = ports
        .iter()
        .map(|port| {
            let guid = port["node_guid"].as_str().unwrap().parse::<Guid>().unwrap();
            let node = bed.fabric.nodes().find(|&node| bed.fabric.node(node).guid == guid);
            (number(&port["lid"]), node.unwrap())
        })
        .collect();
    let mut compared = 0;
    for record in golden.records("porttables/P_KeyTableRecord/all-trusted") {
        let (node, num) = (nodes[&number(&record["lid"])], number(&record["port"]) as u8);
        // OpenSM gives the block in host order.
        let block = (number(&record["block"]) as u16).swap_bytes();
        let expected: Vec<u16> =
            (0..32).map(|i| number(&record[&format!("pkey{i}")]) as u16).collect();
        let table = table(&bed, node, num);
        let start = usize::from(block) * 32;
        let found: Vec<u16> =
            (start..start + 32).map(|i| table.get(i).copied().unwrap_or(0)).collect();
        assert_eq!(found, expected, "{} port {num} block {block}", bed.fabric.node(node).name);
        compared += 1;
    }
    assert!(compared > 150, "{compared} blocks");

    let sweeper = bed.sweeper();
    let groups =
        partition::groups(sweeper.partitions(), sweeper.memberships(), sweeper.settings(), false);
    let mut records = golden.records("mcquery/start/dump");
    records.sort_by_key(|record| number(&record["mlid"]));
    assert_eq!(groups.len(), records.len());
    for (group, record) in groups.iter().zip(records) {
        let mgid = u128::from_str_radix(record["mgid"].as_str().unwrap(), 16).unwrap();
        assert_eq!(group.mgid, Gid(mgid.to_be_bytes()));
        let found = [
            ("qkey", u64::from(group.qkey)),
            ("mtu", group.mtu.code().into()),
            ("tclass", group.tclass.into()),
            ("pkey", group.pkey.0.into()),
            ("rate", group.rate.code().into()),
            ("life", group.lifetime.code().into()),
            ("sl", group.sl.get().into()),
            ("flow_label", group.flow_label.into()),
            ("hop_limit", group.hop_limit.into()),
            ("scope", group.scope.into()),
        ];
        for (column, value) in found {
            assert_eq!(value, number(&record[column]), "{column} of {}", group.mgid);
        }
    }
}

/// Regression: with one mistyped GUID, a host was cut off, and nothing said so.
#[test]
fn what_partitions_leave_out_is_found() {
    let mut bed = bed("Default=0x7fff:ALL=full;", Settings::default());
    let isolated = |bed: &Bed| bed.sweeper().isolated_hosts();
    assert_eq!((isolated(&bed).count, bed.sweeper().absent_guids().count), (0, 0));
    let (known, typo) = (guid(&bed, 3), Guid(0xABC));
    let mut put = |text: &str| {
        bed.managers[0].sweeper.set_partitions(config(text));
        sweep_again(&mut bed);
        (isolated(&bed), bed.sweeper().absent_guids())
    };
    let (hosts, absent) = put(&format!(
        "Default=0x7fff:ALL;\nA=1:\n{}=full,\n{}=full;",
        guid_text(known),
        guid_text(typo)
    ));
    assert_eq!((hosts.count, hosts.limited, hosts.first.len()), (7, 6, 4));
    assert_eq!((absent.count, &absent.first[..]), (1, &[(typo, Some(4))][..]));
    // The SM's port is a full member, but no host that others want to reach.
    let (hosts, _) = put("Default=0x7fff:ALL,SELF=full;");
    assert_eq!((hosts.count, hosts.limited), (7, 7));
    let (hosts, absent) = put(&format!("Default=0x7fff:ALL,{}=full;", guid_text(known)));
    assert_eq!((hosts.count, absent.count), (0, 0), "one full member is enough");
    let (hosts, _) = put("Default=0x7fff:ALL;A=1:ALL_CAS=full;");
    assert_eq!(hosts.count, 0);
}

fn guid_text(guid: Guid) -> String {
    format!("{:#018x}", guid.0)
}

/// Regression: a host got the P_Key of managers by setting IsSM, a bit that its administrator sets.
#[test]
fn a_host_that_only_claims_to_run_a_manager_is_none() {
    let common = "<VirtualFabrics><VirtualFabric><Name>Admin</Name><PKey>0x42</PKey><Security>1\
        </Security><Member>AllMgmtAllowed</Member><Application>SA</Application></VirtualFabric>\
        <VirtualFabric><Name>Default</Name><PKey>0x7fff</PKey><Member>All</Member><Application>\
        AllOthers</Application></VirtualFabric></VirtualFabrics>";
    let text = format!("<Config><Common>{common}</Common></Config>");
    let file = opafm::parse(Path::new("o.xml"), &text, &Instance::default(), &mut |_, _| {});
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    bed.managers[0].sweeper.set_virtual_fabrics(Some(Arc::new(file.unwrap())));
    let (standby, claims) = (bed.hosts()[4], bed.hosts()[6]);
    bed.manage(standby, Settings { sm_priority: 0, ..Settings::default() }, LidTable::default());
    let endpoint = bed.fabric.attach(claims, 0).unwrap();
    let now = bed.clock.now();
    bed.fabric.set_is_sm(now, endpoint, true);
    bed.bring_up();
    sweep_again(&mut bed);
    let has_key = |node: NodeIndex| table(&bed, node, 1).iter().any(|key| key & 0x7fff == 0x42);
    assert_eq!(bed.sweeper().sm_state(), SmState::Master);
    assert_eq!([bed.hosts()[0], standby, claims].map(has_key), [true, true, false]);
}

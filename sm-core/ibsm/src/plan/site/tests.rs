//! Tests of fabrics read from files, complete and after failures.

use super::*;
use sm_routing::Link;

/// Output of `ibnetdiscover -f` with difficult features: odd names, outer ports of a chassis, two
/// parallel cables, a router, an adapter without a switch, ports listed on one side only.
const DISCOVERED: &str = r##"#
# Topology file: generated on Sun Nov 22 18:27:23 2026
#
# Initiated from node 0000000000000100 port 0000000000000100

vendid=0x0
devid=0x1
sysimgguid=0x4000
caguid=0x4000
Ca	2 "H-0000000000004000"		# "host #4 [1] (x) lid 77"
[1](4001) 	"S-0000000000000300"[1]		# lid 16 lmc 2 "sw "three"" lid 3 4xSDR s=1 w=2 v=4
[2](4002) 	"H-0000000000006000"[1](6001) 		# lid 0 lmc 0 "lonely" lid 0 4xSDR

vendid=0x0
devid=0x1
sysimgguid=0x300
switchguid=0x300(301)
Switch	8 "S-0000000000000300"		# "sw "three"" enhanced port 0 lid 4 lmc 1
[1]	"H-0000000000004000"[1](4001) 		# "host #4 [1] (x) lid 77" lid 16 4xSDR s=1 w=2 v=4
[3][ext 7]	"R-0000000000005000"[1](5001) 		# "router" lid 20 4xSDR s=1 w=2 v=2
[7][ext 1]	"S-0000000000000200"[8][ext 2]		# "sw two" lid 2 4xSDR s=1 w=2 v=3
[8]	"S-0000000000000200"[7]		# "sw two" lid 2 4xSDR s=1 w=2 v=4

vendid=0x0
devid=0x1
sysimgguid=0x200
switchguid=0x200(200)
Switch	8 "S-0000000000000200"		# "sw two" base port 0 lid 2 lmc 0
[8][ext 2]	"S-0000000000000300"[7][ext 1]		# "sw "three"" lid 4 4xSDR s=1 w=2 v=4
[7]	"S-0000000000000300"[8]		# "sw "three"" lid 4 4xSDR s=1 w=2 v=5

vendid=0x0
caguid=0x6000
Ca	1 "H-0000000000006000"		# "lonely"

vendid=0x0
rtguid=0x5000
Rt	1 "R-0000000000005000"		# "router"
[1](5001) 	"S-0000000000000300"[3][ext 7]		# lid 20 lmc 2 "sw "three"" lid 4 4xSDR s=1 w=2 v=2
"##;

fn site(text: &str) -> Site {
    Site::new(&Net::parse("net", text).unwrap(), None).unwrap()
}

fn destination(base_lid: u16, lid_count: u16, egress_switch: u16, exit: u8) -> Destination {
    Destination { base_lid: Lid(base_lid), lid_count, egress_switch, exit }
}

#[test]
fn everything_that_ibnetdiscover_prints_is_used() {
    let site = site(DISCOVERED);
    // Switches are numbered by GUID: 0x200, then 0x300, unlike in the file.
    let names: Vec<_> = site.roster.switches.iter().map(|s| (s.guid.0, s.name.as_str())).collect();
    assert_eq!(names, [(0x200, "sw two"), (0x300, "sw \"three\"")]);
    let links = [(7, 8), (8, 7)].map(|(port, peer_port)| Link { peer: 1, port, peer_port });
    assert_eq!(site.topology.links(0), links);
    let there = [
        destination(2, 1, 0, 0),
        destination(4, 2, 1, 0),
        destination(16, 4, 1, 1),
        destination(20, 4, 1, 3),
    ];
    assert_eq!(site.topology.destinations(), there);
    let ends: Vec<_> = site.roster.ends.iter().map(|end| (end.guid.0, end.kind)).collect();
    let (switch, ca, router) = (NodeType::Switch, NodeType::Ca, NodeType::Router);
    assert_eq!(ends, [(0x200, switch), (0x301, switch), (0x4001, ca), (0x5001, router)]);
    assert_eq!(site.roster.ends[2].name, "host #4 [1] (x) lid 77");
    assert_eq!((site.hosts(), site.moved), (2, 0));
    // The smallest of links between switches; the router's link does not count.
    assert_eq!(site.data_lanes, Some(4));
}

#[test]
fn lanes_missing_at_one_port_are_unknown() {
    assert_eq!(site(&DISCOVERED.replace(" v=5", "")).data_lanes, None);
}

#[test]
fn assigned_lids_do_not_depend_on_the_order_of_the_file() {
    let line = |id: &str, peer: &str| format!("Ca 1 \"{id}\"\n[1] {peer}\n\n");
    let switch = "switchguid=0x900\nSwitch 4 \"s\"\n\n";
    let a = format!("caguid=0x100\n{}", line("a", "\"s\"[1]"));
    let b = format!("caguid=0x2\n{}", line("b", "\"s\"[2]"));
    let lids = |text: &str| -> Vec<(u64, u16)> {
        let site = Site::new(&Net::parse("net", text).unwrap(), Some(1)).unwrap();
        let ends = site.topology.destinations().iter().zip(&site.roster.ends);
        ends.map(|(to, end)| (end.guid.0, to.base_lid.0)).collect()
    };
    let expected = lids(&format!("{switch}{a}{b}"));
    // GUIDs are compared from their last byte, as in OpenSM: 0x900 comes first.
    assert_eq!(expected, [(0x900, 1), (0x101, 2), (0x3, 4)]);
    assert_eq!(lids(&format!("{b}{a}{switch}")), expected);
}

#[test]
fn lids_that_cannot_be_kept_are_counted() {
    let net = Net::parse("net", DISCOVERED).unwrap();
    // 20 is not a multiple of 8, 16 is.
    let moved = Site::new(&net, Some(3)).unwrap();
    assert_eq!(moved.moved, 1);
    let twice = DISCOVERED.replace("# lid 20 lmc 2", "# lid 16 lmc 2");
    assert_eq!(site(&twice).moved, 1);
}

#[test]
fn an_unroutable_fabric_is_rejected() {
    let refusal = |text: &str| Site::new(&Net::parse("net", text).unwrap(), None).unwrap_err();
    let error = refusal("Ca 1 \"a\"\n[1] \"b\"[1]\n\nCa 1 \"b\"\n");
    assert_eq!(error, SiteError::NoSwitch);
    let error =
        refusal("caguid=0x100\nCa 1 \"a\"\n[1] \"s\"[1]\n\nswitchguid=0x101\nSwitch 4 \"s\"\n");
    let expected = "duplicate port GUID 0x0000000000000101: \"a\" and \"s\"";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_failed_link_is_removed_at_both_ends_and_nothing_else_changes() {
    let site = site(DISCOVERED);
    let all = site.failures(false);
    assert_eq!(all, [Failure::Link(0, 7), Failure::Link(0, 8)]);
    let (rest, numbers) = site.without(all[0]).unwrap();
    assert_eq!(numbers, [Some(0), Some(1)]);
    assert_eq!(rest.topology.links(1), [Link { peer: 0, port: 7, peer_port: 8 }]);
    assert_eq!(rest.topology.destinations(), site.topology.destinations());
    assert_eq!(rest.roster, site.roster);
    assert_eq!(site.describe(all[0]), "'sw two' port 7 - 'sw \"three\"' port 8");
}

#[test]
fn a_failed_switch_removes_its_hosts_and_renumbers_others() {
    let site = site(DISCOVERED);
    assert_eq!(site.failures(true), [Failure::Switch(0), Failure::Switch(1)]);
    let (rest, numbers) = site.without(Failure::Switch(1)).unwrap();
    assert_eq!(numbers, [Some(0)]);
    assert_eq!(rest.topology.destinations(), [destination(2, 1, 0, 0)]);
    assert_eq!(rest.roster.switches[0].guid.0, 0x200);
    assert_eq!((rest.roster.ends.len(), rest.topology.link_count()), (1, 0));
    assert_eq!(site.describe(Failure::Switch(0)), "'sw two'");
}

#[test]
fn switches_are_shown_by_name_where_there_is_one() {
    let site = site(DISCOVERED);
    let labels = [1, 0, 12].map(|switch| site.switch_label(switch));
    assert_eq!(labels, ["switch 'sw \"three\"'", "switch 'sw two'", "switch 12"]);
}

#[test]
fn unconnected_nodes_are_known_by_name() {
    let site = site(DISCOVERED);
    assert_eq!(site.apart, (Vec::new(), vec!["lonely".to_owned()]));
    let island = "Switch\t4 \"S-0000000000000900\"\t\t# \"island\" base port 0 lid 0 lmc 0\n";
    let text = format!("{DISCOVERED}\nvendid=0x0\nswitchguid=0x900(900)\n{island}");
    let site = self::site(&text);
    assert_eq!(site.apart, (vec!["island".to_owned()], vec!["lonely".to_owned()]));
}

//! Tests of the reader, and of the writer with it.

#[path = "../../../tests/skip/mod.rs"]
mod skip;

use proptest::prelude::*;

use super::*;
use skip::skip;

/// A fabric as printed by `ibnetdiscover` on `ibsim`, with chassis headings.
const DISCOVERED: &str = r##"#
# Topology file: generated on Sun Nov 22 00:24:43 2026
#
# Initiated from node 0c42a10300000000 port 0c42a10300000001

Chassis 1 (guid 0xb8599f0300a00000)
Hostname: rack12

vendid=0x2c9
devid=0xcf08
sysimgguid=0xb8599f0300a00000		# Chassis 1 slot 2
switchguid=0xb8599f0300a00000(b8599f0300a00001)	# Spine 2 Chip 1
Switch	36 "S-b8599f0300a00000"		# "sw "core" 1" enhanced port 0 lid 17 lmc 1
[1][ext 5]	"H-0c42a10300000000"[1][ext 7](c42a10300000001) 		# "node # 1 lid 9" lid 4 4xHDR s=4 w=2 v=4
[36]	"R-0c42a10300000020"[2](c42a10300000022) 		# "router" lid 6 2xHDR (scp)

Non-Chassis Nodes

vendid=0x2c9
devid=0x101b
sysimgguid=0x0c42a10300000000
caguid=0xc42a10300000000 (scp)
Ca	2 "H-0c42a10300000000"		# "node # 1 lid 9"
[1](c42a10300000001) 	"S-b8599f0300a00000"[1][ext 5] 		# lid 4 lmc 2 "sw "core" 1" lid 17 4xHDR s=4 w=2 v=4

rtguid=0xc42a10300000020
Rt	2 "R-0c42a10300000020"		# "router"
[2](c42a10300000022) 	"S-b8599f0300a00000"[36] 		# lid 6 lmc 0 "sw "core" 1" lid 17 2xHDR
"##;

fn parse(text: &str) -> Net {
    Net::parse("net", text).unwrap_or_else(|error| panic!("{error}"))
}

fn refuse(text: &str) -> String {
    Net::parse("net", text).expect_err(text).to_string()
}

fn at(node: u32, port: u8) -> PortRef {
    PortRef { node, port }
}

#[test]
fn output_of_ibnetdiscover_is_read_in_full() {
    let net = parse(DISCOVERED);
    let [switch, host, router] = net.nodes() else { panic!("{net:?}") };
    assert_eq!(switch.description, "sw \"core\" 1");
    assert_eq!((switch.vendor_id, switch.device_id), (0x2c9, 0xcf08));
    assert!(switch.enhanced_port0);
    let port0 = switch.port(0).unwrap();
    assert_eq!((port0.guid, port0.lid, port0.lmc), (Guid(0xb859_9f03_00a0_0001), 17, 1));
    assert_eq!(host.description, "node # 1 lid 9");
    assert_eq!(host.system_image_guid, Guid(0x0c42_a103_0000_0000));
    let port = host.port(1).unwrap();
    assert_eq!((port.lid, port.lmc, port.peer), (4, 2, Some(at(0, 1))));
    assert_eq!((port.rate.to_string().as_str(), port.vl_cap), ("4xHDR", 4));
    assert_eq!(net.port(at(0, 36)).unwrap().vl_cap, 0);
    assert_eq!((router.kind, router.port_count()), (NodeKind::Router, 2));
    assert_eq!(net.port(at(0, 36)).unwrap().rate.to_string(), "2xHDR");
    assert_eq!(router.port(2).unwrap().peer, Some(at(0, 36)));
    // Ports without a cable have the rate of the best connected one.
    assert_eq!(net.port(at(0, 2)).unwrap().rate.to_string(), "4xHDR");
}

#[test]
fn hand_written_nets_get_the_guids_and_rates_that_ibsim_gives() {
    let net = parse(
        "Switch\t8 \"Switch1\"\n[1]\t\"Hca1\"[1]\n[3]\t\"Switch2\"[3]\tw=3 s=7 e=7\n\n\
         Switch 8 \"Switch2\" # leaf two base port 0 lid 3\n[3]\t\"Switch1\"[3]\n\n\
         Hca\t2 \"Hca1\"\n[1]\t\"Switch1\"\n\nHca 2 \"Hca2\"\n[1] \"Switch2\" [2]\n",
    );
    let guids: Vec<_> = net.nodes().iter().map(|node| node.guid.0).collect();
    assert_eq!(guids, [0x20_0000, 0x20_0001, 0x10_0000, 0x10_0003]);
    assert_eq!(net.nodes()[3].port(2).unwrap().guid, Guid(0x10_0005));
    assert_eq!(net.nodes()[0].description, "Switch1");
    assert_eq!(net.nodes()[1].description, "leaf two");
    assert_eq!(net.nodes()[1].port(0).unwrap().lid, 3);
    assert_eq!(net.port(at(0, 3)).unwrap().rate.to_string(), "4xHDR");
    assert_eq!(net.port(at(1, 3)).unwrap().rate.to_string(), "4xSDR");
    assert_eq!(net.port(at(2, 1)).unwrap().peer, Some(at(0, 1)));
    assert_eq!(net.links().count(), 3);
}

#[test]
fn the_example_nets_of_ibsim_are_accepted() {
    let directory = Path::new("/usr/share/doc/ibsim-utils/net-examples");
    let Ok(entries) = std::fs::read_dir(directory) else {
        let directory = directory.display();
        return skip(format_args!("{directory} is not there (Debian: ibsim-utils)"));
    };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("net")) {
            let net = Net::read(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(net.switches_connected() && net.links().count() >= 2, "{}", path.display());
        }
    }
}

#[test]
fn settings_hold_until_changed_but_vendor_and_system_image_only_for_one_node() {
    let net = parse(
        "vendid=0x2c9\ndevid=0x1017\nsysimgguid=0x77\ncaguid=0x1000\nwidth=3\nspeed=7\nextspeed=3\n\
         Ca 1 \"a\"\n\nCa 1 \"b\"\n\ncaguid+0x100\nCa 1 \"c\"\n",
    );
    let facts: Vec<_> = net
        .nodes()
        .iter()
        .map(|node| (node.guid.0, node.system_image_guid.0, node.vendor_id, node.device_id))
        .collect();
    let expected =
        [(0x1000, 0x77, 0x2c9, 0x1017), (0x1002, 0x1002, 0, 0x1017), (0x1100, 0x1100, 0, 0x1017)];
    assert_eq!(facts, expected);
    assert_eq!(net.nodes()[2].port(1).unwrap().rate.to_string(), "4xEDR");
}

#[test]
fn a_link_given_on_one_side_is_enough_and_brings_guid_and_rate() {
    let net = parse("Switch 8 \"s\"\n[2] \"h\"[1](abc) # \"\" lid 0 4xEDR\n\nCa 1 \"h\"\n");
    assert_eq!(net.port(at(1, 1)).unwrap().peer, Some(at(0, 2)));
    assert_eq!(net.port(at(1, 1)).unwrap().guid, Guid(0xabc));
    assert_eq!(net.port(at(1, 1)).unwrap().rate.to_string(), "4xEDR");
}

#[test]
fn modules_prefix_ids_and_their_aliases_name_ports() {
    let net = parse(
        "module = \"m1\"\nSwitch 8 \"s\"\n@[8] \"out\"\n[1] \"t\"[1]\n\nSwitch 8 \"t\"\n\n\
         module = \"\"\nCa 1 \"h\"\n[1] \"m1@out\"\n\ndo Link \"h\"[1]\n",
    );
    assert_eq!(net.nodes()[0].id, "m1#s");
    assert_eq!(net.port(at(0, 1)).unwrap().peer, Some(at(1, 1)));
    assert_eq!(net.port(at(0, 8)).unwrap().peer, Some(at(2, 1)));
    assert_eq!(net.commands, ["Link \"h\"[1]"]);
}

#[test]
fn errors_name_file_and_line_and_say_what_would_be_right() {
    let cases = [
        ("\nSwtich 8 \"s\"\n", "net:2: 'Swtich 8 \"s\"' is neither a node"),
        ("Switch \"s\"\n", "net:1: a node line has the form Switch 36 \"id\""),
        (
            "Switch 8\n",
            "net:1: a node line has the form Switch 36 \"id\" # \"description\"; the quoted",
        ),
        ("Switch 255 \"s\"\n", "net:1: a node has 1 to 254 ports, not 255"),
        ("Ca 1 \"a@b\"\n", "net:1: node id \"a@b\" may have"),
        ("Ca 1 \"a\"\n\nCa 1 \"a\"\n", "net:3: node \"a\" was already described in line 1"),
        ("caguid=1\nCa 1 \"a\"\n\ncaguid=1\nCa 1 \"b\"\n", "net:5: node GUID 0x0000000000000001"),
        ("[1] \"a\"[1]\n", "net:1: a port line must follow"),
        ("Ca 1 \"a\"\n[2] \"b\"[1]\n", "net:2: \"a\" has ports 1 to 1, not 2"),
        ("Ca 1 \"a\"\n[0] \"b\"[1]\n", "net:2: \"a\" has ports 1 to 1, not 0"),
        ("Ca 1 \"a\"\n[1] \"b\"[1]\n", "net:2: no node is called \"b\""),
        ("Ca 1 \"a\"\n[1] \"a\"[1]\n", "net:2: port 1 of \"a\" cannot be cabled to itself"),
        ("Ca 1 \"a\"\n[1] \"x@y\"\n", "net:2: no alias is called \"x@y\""),
        ("Ca 1 \"a\"\n[1] 7\n", "net:2: a port line has the form [1] \"peer\"[2]; the peer's id"),
        ("Ca 1 \"a\"\n[1] \"a\"[1] w=32\n", "net:2: '32' is not a width mask; widths: 1x 1"),
        ("Ca 1 \"a\"\n[1] \"a\"[1] # \"x\" lid 3 4xWARP\n", "net:2: '4xWARP' is not a link width"),
        (
            "vendid=0x1000000\n",
            "net:1: a setting has the form vendid=0x2c9; '0x1000000' is not a number",
        ),
        (
            "caguid=host\n",
            "net:1: 'host' is not a GUID: write hexadecimal digits, such as caguid=0x2c9",
        ),
        (
            "Switch 4 \"s\" # \"d\" base port 0 lid 49152\n",
            "net:1: '49152' is not a valid unicast LID: at most",
        ),
        (
            "Ca 1 \"a\"\n[1] \"b\"[1] # \"x\" lid 3 4xHDR v=6\n",
            "net:2: '6' is not a valid VLCap: at most 5",
        ),
        ("include \"more\"\n", "net:1: cannot include more: this net was not read from a file"),
    ];
    for (text, expected) in cases {
        let message = refuse(text);
        assert!(message.starts_with(expected), "{text:?}:\n{message}\nnot\n{expected}");
    }
}

#[test]
fn contradictory_links_are_refused_with_both_lines() {
    let message = refuse(
        "Switch 8 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n\nCa 1 \"a\"\n[1] \"s\"[2]\n\nCa 1 \"b\"\n",
    );
    assert_eq!(
        message,
        "net:6: this cables port 1 of \"a\" to port 2 of \"s\", but line 2 has port 1 of \"a\" \
         cabled to port 1 of \"s\"; a port takes one cable"
    );
}

#[test]
fn files_include_others_beside_them_but_not_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write("hosts", "Ca 1 \"h\"\n");
    let net =
        Net::read(&write("net", "include \"hosts\"\nSwitch 4 \"s\"\n[1] \"h\"[1]\n")).unwrap();
    assert_eq!(net.links().count(), 1);
    let error = Net::read(&write("loop", "include \"loop\"\n")).unwrap_err();
    assert!(matches!(error.problem, Problem::IncludeDepth { .. }), "{error}");
    let error = Net::read(&directory.path().join("absent")).unwrap_err();
    assert!(matches!(error.problem, Problem::Io { .. }), "{error}");
}

#[test]
fn discovered_nets_survive_writing_and_reading() {
    let net = parse(DISCOVERED);
    assert_eq!(parse(&net.to_string()), net);
}

fn rate() -> impl Strategy<Value = LinkRate> {
    let width = prop::sample::select(&LinkWidth::ALL[..]);
    let speed = prop::sample::select(&LinkSpeed::ALL[..]);
    (width, speed).prop_map(|(width, speed)| LinkRate { width, speed })
}

/// Any net that a file can represent completely.
fn net() -> impl Strategy<Value = Net> {
    let kind = prop::sample::select(&[NodeKind::Switch, NodeKind::Ca, NodeKind::Router][..]);
    // Other rates cannot be written for a node without a cable.
    let node_rate = rate().prop_filter("can be written", |rate| {
        rate.speed <= LinkSpeed::Hdr && rate.speed != LinkSpeed::Fdr10
    });
    let node = (kind, 1u8..10, node_rate, any::<[u16; 3]>(), "[ -~]{1,64}", any::<bool>());
    let nodes = prop::collection::vec(node, 1..12);
    let cable = (any::<[u8; 4]>(), rate(), rate(), 0u16..0xC000, 0u8..8, 0u8..6);
    (nodes, prop::collection::vec(cable, 0..40)).prop_map(|(nodes, cables)| {
        let mut net = Net::new();
        for (index, (kind, ports, rate, ids, description, flag)) in nodes.into_iter().enumerate() {
            let guid = Guid(0x0002_c903_0000_0000 | (index as u64) << 16 | u64::from(ids[0]));
            let mut node = Node::new(kind, guid, ports, rate);
            node.system_image_guid = Guid(u64::from(ids[0]) << 48);
            (node.vendor_id, node.device_id) = (u32::from(ids[1]) << 8, ids[2]);
            node.enhanced_port0 = flag && kind == NodeKind::Switch;
            node.description = description;
            if let Some(port0) = node.port_mut(0) {
                (port0.lid, port0.lmc) = (ids[1] % 0xC000, (ids[2] % 8) as u8);
            }
            net.add_node(node);
        }
        for ([a, a_port, b, b_port], a_rate, b_rate, lid, lmc, vl_cap) in cables {
            let end = |node: u8, port: u8| {
                let node = usize::from(node) % net.nodes.len();
                at(node as u32, 1 + port % net.nodes[node].port_count())
            };
            let (a, b) = (end(a, a_port), end(b, b_port));
            if net.port(a).unwrap().peer.is_some() || net.connect(a, b).is_err() {
                continue;
            }
            for (end, rate) in [(a, a_rate), (b, b_rate)] {
                let node = &mut net.nodes[end.node as usize];
                let kind = node.kind;
                let port = node.port_mut(end.port).unwrap();
                (port.rate, port.vl_cap) = (rate, vl_cap);
                if kind != NodeKind::Switch {
                    (port.lid, port.lmc) = (lid, lmc);
                    port.guid = Guid(u64::from(lid) << 32);
                }
            }
        }
        let mut reader = Reader { net, ..Reader::new(false) };
        links::rate_idle_ports(&mut reader);
        reader.net
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same(net in net()) {
        let text = net.to_string();
        let fails = |e| TestCaseError::fail(format!("{e}\n{text}"));
        let again = Net::parse("net", &text).map_err(fails)?;
        prop_assert_eq!(again, net, "{}", text);
    }

    #[test]
    fn no_text_makes_the_reader_panic(
        text in "(Switch|Ca|Rt|\\[|\\]|\\(|\"|@|#|=| |lid|[0-9x]|\n){0,60}",
    ) {
        let _ = Net::parse("net", &text);
    }
}

/// Regression: a command of control characters was written as a `do` line without a command, which
/// no reader accepts. Found by fuzzing.
#[test]
fn commands_of_nothing_printable_are_not_written() {
    let mut net = parse("Switch 2 \"a\"\ndo \0\n");
    assert_eq!(net.commands, ["\0"]);
    net.commands.push("unlink a[1]".to_owned());
    assert_eq!(parse(&net.to_string()).commands, ["unlink a[1]"]);
}

//! Formats of the console, as scripts read them.

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{LinkWidths, NodeInfo, NodeType, PortInfo};
use sa_proto::snapshot::{FabricPlane, Lft, RegistryPlane, Session as Epoch, Snapshot};
use sm_core::perf::{PerfManager, PerfSettings};
use sm_core::querier::Querier;

use std::time::Instant;

use super::*;
use crate::observe::problem::testing::plane;

/// A leaf with two hosts and two links to a spine.
const LINKS: [(u64, u8, u64, u8); 4] = [(1, 1, 100, 1), (1, 2, 101, 1), (1, 3, 2, 3), (1, 4, 2, 4)];

/// LIDs: hosts 100 and 101 have 10 and 11, in a range of two each.
fn fabric() -> FabricPlane {
    let mut fabric = FabricPlane::clone(&plane(&LINKS, 0, 0));
    for node in &mut fabric.nodes {
        let node = Arc::make_mut(node);
        let mut view = NodeInfo::new(&mut node.info[..]).unwrap();
        let is_host = node.guid.0 >= 100;
        view.set_node_type(if is_host { NodeType::Ca } else { NodeType::Switch });
        view.set_num_ports(if is_host { 1 } else { 4 });
        for port in &mut node.ports {
            let mut info = PortInfo::new(&mut port.info[..]).unwrap();
            let lid = if is_host { Lid((node.guid.0 as u16 - 100) * 2 + 10) } else { Lid::NONE };
            info.set_base_lid(lid);
            info.set_lmc(1);
        }
    }
    fabric
}

fn view_of(fabric: FabricPlane) -> View {
    let epoch = Epoch { epoch: 1, sm_guid: Guid(100) };
    let snapshot = Snapshot::build(epoch, 1, fabric, RegistryPlane::default()).unwrap();
    let sm = SmStatus {
        state: "master".into(),
        subnet_up: true,
        sweeping: true,
        priority: 7,
        routing_engine: "minhop".into(),
        guid: Some(Guid(0x64)),
        counters: vec![("smps_sent".into(), 40), ("smps_answered".into(), 39)],
        ..SmStatus::default()
    };
    View {
        fabric: FabricView {
            snapshot: Arc::new(snapshot),
            names: Arc::new([(Guid(101), "node two".into())].into()),
            unhealthy: Arc::new([(Guid(1), PortNum(4))].into()),
        },
        perf: Arc::default(),
        sm: Arc::new(sm),
        settings: Arc::new(Settings::default()),
        sa: SaTotals { received: 9, answered: 6, dropped: 1 },
    }
}

fn ask(line: &str, view: &View) -> Answer {
    Session::default().handle_line(line, view)
}

fn text(line: &str) -> String {
    ask(line, &view_of(fabric())).text
}

#[test]
fn the_status_has_opensms_lines() {
    let status = text("status");
    for line in [
        "   SM State             : Master     ",
        "   SM Priority          : 7",
        "   SA State             : Ready",
        "   Routing Engine       : minhop",
        "   Loaded event plugins : <none>",
        "   PerfMgr state/sweep state : Disabled/Sleeping",
        "   QP0 MADs sent                  : 40",
        "   QP0 MADs outstanding (on wire) : 0",
        "   SA MADs outstanding            : 2",
        "   SA MADs ignored                : 1",
        "   Sweeping enabled               : 1",
        "   Sweep interval (seconds)       : 10",
        "   0x64 Master      7        SELF",
    ] {
        assert!(status.lines().any(|known| known == line), "{line:?} is not in\n{status}");
    }
}

#[test]
fn a_lid_shows_its_port_by_the_operators_name() {
    assert_eq!(
        text("querylid 0xd"),
        "Query results for LID 13\n   GUID                : 0x0000000000000065\n   \
         Node Desc           : node two\n   Node Type           : Channel Adapter\n   \
         Num Ports           : 1\n   Port 1 health       : OK\n"
    );
    assert_eq!(text("querylid 99"), "Invalid lid 99\n");
    assert!(text("querylid").starts_with("no LID specified\nquerylid lid -- print "));
}

/// Regression: OpenSM does not pad the number of a port.
#[test]
fn the_health_of_ports_above_9_has_opensms_blanks() {
    let mut fabric = fabric();
    let host = fabric.nodes.iter_mut().find(|node| node.guid == Guid(100)).unwrap();
    NodeInfo::new(&mut Arc::make_mut(host).info[..]).unwrap().set_num_ports(10);
    let answer = ask("querylid 10", &view_of(fabric)).text;
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines[4], "   Num Ports           : 10", "{answer}");
    assert_eq!(lines[5], "   Port 1 health       : OK");
    assert_eq!(lines[14], "   Port 10 health       : OK");
}

/// As printed by OpenSM 3.3.23, the help of another word included.
#[test]
fn versions_and_help_have_the_form_of_opensms() {
    let version = text("version");
    let words: Vec<&str> = version.split_ascii_whitespace().collect();
    assert!(version.starts_with("ibsm ") && version.ends_with('\n'), "{version}");
    assert_eq!((words.len(), words[2]), (7, "build"), "{version}");
    let sweep = "sweep [on|off]\nenable or disable sweeping\n   [on] sweep normally\n   \
                 [off] inhibit all sweeping\n";
    for line in ["logflush x", "logflush"] {
        assert_eq!(text(line), format!("Invalid logflush command\n{sweep}"));
    }
    assert_eq!(text("help sweep"), sweep);
    assert_eq!(text("help logflush"), "logflush [on|off] -- toggle opensm.log file flushing\n");
    assert_eq!((text("logflush on"), text("logflush off")), (String::new(), String::new()));
}

#[test]
fn port_status_counts_states_widths_speeds_and_issues() {
    let mut fabric = fabric();
    let leaf = Arc::make_mut(&mut fabric.nodes[0]);
    // Regression: a 4X link of a port with 2X counted as reduced.
    let with_2x = LinkWidths(LinkWidths::X1.0 | LinkWidths::X2.0 | LinkWidths::X4.0);
    PortInfo::new(&mut leaf.ports[1].info[..]).unwrap().set_link_width_enabled(with_2x);
    let mut reduced = PortInfo::new(&mut leaf.ports[0].info[..]).unwrap();
    reduced.set_link_width_active(LinkWidths::X1);
    let answer = ask("portstatus switch", &view_of(fabric)).text;
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines[0], "\"Switch\" port status:");
    assert!(lines[1].starts_with("   6 port(s) scanned on 2 nodes in "), "{}", lines[1]);
    assert_eq!(
        lines[2..],
        [
            "   6 active",
            "   1 at 1X",
            "   5 at 4X",
            "   6 at 10.0 Gbps",
            "",
            "Possible issues:",
            "   1 with reduced width",
            "      0x0000000000000001 1 (n1)",
            "",
        ],
    );
    assert!(text("portstatus disk").starts_with("Node type not understood\nportstatus [ca|"));
}

/// All four LIDs leave the spine by port 3.
fn with_tables() -> View {
    let mut fabric = fabric();
    let mut ports = vec![255; 64];
    ports[10..14].fill(3);
    fabric.lfts = vec![Arc::new(Lft { switch: Guid(2), ports: ports.into() })];
    let mut view = view_of(fabric);
    view.fabric.unhealthy = Arc::default();
    view
}

#[test]
fn uneven_switches_are_listed() {
    let expected = "Unbalanced Switch: 0x0000000000000002 (n2)\nPort 3: 4\nPort 4: 0\n";
    assert_eq!(ask("switchbalance", &with_tables()).text, expected);
    assert_eq!(ask("switchbalance verbose 0x2", &with_tables()).text, expected);
    assert_eq!(ask("switchbalance 3", &with_tables()).text, "guid not found\n");
    assert!(ask("switchbalance x", &with_tables()).text.starts_with("Invalid guid specified\n"));
    let mut view = with_tables();
    view.fabric.unhealthy = Arc::new([(Guid(2), PortNum(4))].into());
    assert_eq!(ask("switchbalance", &view).text, "", "a port that fails does not count");
}

#[test]
fn uneven_ranges_of_lids_are_listed() {
    assert_eq!(
        ask("lidbalance", &with_tables()).text,
        "",
        "one neighbour and one port forward both LIDs"
    );
    let mut fabric = fabric();
    for node in &mut fabric.nodes {
        for port in &mut Arc::make_mut(node).ports {
            PortInfo::new(&mut port.info[..]).unwrap().set_lmc(2);
        }
    }
    let mut ports = vec![255; 64];
    ports[10..13].fill(3);
    ports[13] = 4;
    fabric.lfts = vec![Arc::new(Lft { switch: Guid(2), ports: ports.into() })];
    let mut view = view_of(fabric);
    view.fabric.unhealthy = Arc::default();
    let answer = ask("lidbalance", &view).text;
    let line = "Unbalanced Port Forwarding: Switch 0x0000000000000002 (n2): \
                CA 0x0000000000000064 (n100): Port 3 - 3: Port 4 - 1: ";
    assert!(answer.lines().any(|known| known == line), "{answer}");
}

#[test]
fn port_guids_are_listed_by_name() {
    assert_eq!(text("dump_portguid ^n1 two$"), "0x64\n0x65\n");
    assert_eq!(text("dump_portguid"), "No valid expression provided. Aborting\n");
    assert!(text("dump_portguid (").starts_with("Cannot parse regular expression '('. Skipping\n"));
    let answer = ask("dump_portguid file /x/y two$", &view_of(fabric()));
    assert_eq!(answer.effect, Some(Effect::WriteFile("/x/y".into(), "0x65\n".to_owned())));
    assert!(answer.is_operators());
}

#[test]
fn orders_are_for_operators_and_questions_for_viewers() {
    let view = view_of(fabric());
    for (line, effect) in [
        ("resweep heavy", Effect::HeavySweep),
        ("resweep light", Effect::LightSweep),
        ("reroute", Effect::Reroute),
        ("sweep off", Effect::Sweeping(false)),
        ("priority 9", Effect::Priority(9)),
        ("priority 0x9", Effect::Priority(9)),
        ("loglevel 0x83", Effect::LogFlags(0x83)),
        ("loglevel x7", Effect::LogFlags(7)),
        ("update_desc", Effect::HeavySweep),
        ("perfmgr sweep", Effect::ReadCounters),
        ("pm clear_counters", Effect::ClearCounters),
        ("pm enable", Effect::Perf(PerfOrder::Enable(true))),
        ("pm disable", Effect::Perf(PerfOrder::Enable(false))),
        ("pm sweep_time 30", Effect::Perf(PerfOrder::SweepTime(Duration::from_secs(30)))),
        ("pm set_rm_nodes", Effect::Perf(PerfOrder::RemoveNodes(true))),
        ("pm clear_rm_nodes", Effect::Perf(PerfOrder::RemoveNodes(false))),
        ("pm set_query_cpi", Effect::Perf(PerfOrder::QueryInfo(true))),
        ("pm clear_query_cpi", Effect::Perf(PerfOrder::QueryInfo(false))),
        ("pm clear_inactive", Effect::Perf(PerfOrder::ForgetInactive)),
        ("pm clear_redir a b", Effect::Perf(PerfOrder::ForgetRedirections("a b".into()))),
        ("pm dump_counters", Effect::DumpCounters { machine: false }),
        ("pm dump_counters mach", Effect::DumpCounters { machine: true }),
    ] {
        let answer = ask(line, &view);
        assert!(answer.is_operators(), "{line}");
        assert_eq!(answer.effect, Some(effect), "{line}");
    }
    let dump = ask("dump_conf", &view);
    assert!(dump.is_operators() && dump.text.contains("\nsm_key 0x0000000000000001\n"));
    for line in ["status", "priority", "loglevel", "quit", "help", "portstatus", "resweep"] {
        assert!(!ask(line, &view).is_operators(), "{line}");
    }
    assert_eq!(ask("priority", &view).text, "Current sm-priority is 7\n");
    assert_eq!(ask("loglevel", &view).text, "Current log level is 0x3\n");
    assert_eq!(ask("loglevel 300", &view).text, "Invalid log level 0x12c\n");
    assert_eq!(ask("loglevel off", &view).text, "Invalid log level off\n");
    assert_eq!(
        ask("priority 16", &view).text,
        "Invalid sm-priority 16; must be between 0 and 15\n"
    );
}

/// A manager that knows the ports, and has read nothing.
#[test]
fn the_performance_manager_has_its_words() {
    let view = view_of(fabric());
    assert_eq!(
        ask("perfmgr", &view).text,
        "Performance Manager status:\nstate                        : Disabled\n\
         sweep state                  : Sleeping\nsweep time                   : 180s\n\
         outstanding queries/max      : 0/500\nremove missing nodes from DB : TRUE\n\
         query ClassPortInfo          : TRUE\n"
    );
    let now = Instant::now();
    let mut manager = PerfManager::new(PerfSettings::of(&view.settings), now, 0, 1);
    manager.set_nodes(now, view.fabric.snapshot.fabric().nodes.clone());
    manager.handle_timeout(now);
    let do_it = |order| carry_out_perf(order, now, &view.perf);
    assert!(do_it(PerfOrder::Enable(true)).contains("set perfmgr TRUE"), "it was not started");
    view.perf.install(manager);
    assert!(ask("pm", &view).text.contains("state                        : Enabled\n"));
    assert_eq!(ask("pm print_counters nowhere", &view).text, "Node nowhere not found...\n");
    assert_eq!(ask("pm pc n100:x", &view).text, "Warning: \"x\" is not a valid port\n");
    assert_eq!(ask("pm print_errors", &view).text, "");
    assert_eq!(ask("pm frobnicate", &view).text, "\"frobnicate\" option not found\n");
    let table = "\nRedirection Table\n-----------------\n";
    assert_eq!(ask("pm dump_redir", &view).text, table);
    let nowhere = format!("{table}Node nowhere not found...\n");
    assert_eq!(ask("pm dump_redir nowhere", &view).text, nowhere);
    for (line, what) in [("sweep_time", "a time"), ("sweep_time 0", "a positive time")] {
        let expected = format!("sweep_time requires {what} period (in seconds) to be specified\n");
        assert_eq!(ask(&format!("perfmgr {line}"), &view).text, expected);
    }
    assert_eq!(do_it(PerfOrder::ForgetInactive), "Removed 0 nodes from Database\n");
    for order in [
        PerfOrder::Enable(false),
        PerfOrder::SweepTime(Duration::from_secs(30)),
        PerfOrder::RemoveNodes(false),
        PerfOrder::QueryInfo(false),
        PerfOrder::ForgetRedirections(String::new()),
    ] {
        assert_eq!(do_it(order), "");
    }
    let status = ask("pm", &view).text;
    for line in [
        "state                        : Disabled",
        "sweep time                   : 30s",
        "remove missing nodes from DB : FALSE",
        "query ClassPortInfo          : FALSE",
    ] {
        assert!(status.lines().any(|known| known == line), "{line:?} is not in\n{status}");
    }
}

#[test]
fn unknown_words_show_the_help() {
    let answer = text("frobnicate now");
    assert!(
        answer.starts_with("frobnicate : Command not found\n\nSupported commands and syntax:\n")
    );
    assert!(answer.ends_with(&text("help").split_once('\n').unwrap().1));
    assert_eq!(text("help reroute"), "reroute\n   recomputes all routes\n");
    assert_eq!(text(" \t\r"), "");
}

#[test]
fn a_loop_of_the_status_ends_with_q() {
    let (mut session, view) = (Session::default(), view_of(fabric()));
    let first = session.handle_line("status loop", &view).text;
    assert!(first.starts_with("Looping on status command...\n   OpenSM Version"));
    assert!(session.is_looping() && session.repeat(&view).contains("SM State"));
    assert_eq!(session.handle_line("status", &view).text, "use \"q<ret>\" to quit loop\n");
    assert_eq!(session.handle_line("q", &view).text, "");
    assert!(!session.is_looping());
}

//! Tests that dumps are parsed, and that routes from them deliver or are rejected.

use std::fmt::Write;

use ib_mad::types::{Guid, Lid};
use proptest::prelude::*;

use super::*;
use crate::{MinHop, UpDown, testing};

const LFTS: &str = "\
# a comment
Unicast lids [0x0-0x6] of switch Lid 5 guid 0x0002c90000000005 (spine 'a'):
  Lid  Out   Destination
       Port     Info
0x0001 000 : (Switch portguid 0x0002c90000000005: 'spine a')
0x0006 012 : (Channel Adapter portguid 0x0002c90000000101: 'host 1')
0x0007 013 : (Channel Adapter portguid 0x0: 'host 2')
2 valid lids dumped
";

const FDBS: &str = "\
dump_ucast_routes: Switch 0x0002c90000000005
LID    : Port : Hops : Optimal
0x0001 : 000  : 00   : yes
0x0002 : UNREACHABLE
0x0006 : 012  : 02   : No 1 hop path possible via port 3!
0x0007 : 013  : HOPS UNKNOWN
";

fn routes(text: &str) -> Vec<(u16, u8, Option<u64>)> {
    let dump = Dump::parse(text).unwrap();
    assert_eq!(dump.switches.len(), 1);
    assert_eq!(dump.switches[0].guid, Guid(0x0002_c900_0000_0005));
    let entries = dump.switches[0].entries.iter();
    entries.map(|entry| (entry.lid.0, entry.port, entry.port_guid.map(|guid| guid.0))).collect()
}

#[test]
fn both_forms_of_dumps_are_read() {
    let (switch, host) = (Some(0x0002_c900_0000_0005), Some(0x0002_c900_0000_0101));
    assert_eq!(routes(LFTS), [(1, 0, switch), (6, 12, host), (7, 13, None)]);
    assert_eq!(routes(FDBS), [(1, 0, None), (6, 12, None), (7, 13, None)]);
    assert_eq!(routes(&format!("{LFTS}{FDBS}")).len(), 3, "the later table");
    assert_eq!(Dump::parse("").unwrap(), Dump::default());
}

#[test]
fn errors_state_the_line_and_the_expected_form() {
    let header = "Unicast lids of switch guid 0x5\n";
    let cases = [
        ("\n0x0001 001 :", "line 2: `0x0001 001 :` belongs to no switch; a switch begins with"),
        ("Unicast lids of switch Lid 5", "line 1: no GUID in `Unicast lids of switch Lid 5`;"),
        ("Multicast mlids [0xc000]", "line 1: this is a dump of multicast tables; a switch"),
        (
            &format!("{header}0xC000 001 :"),
            "line 2: `0xC000` is not a unicast LID; a route is a LID",
        ),
        (&format!("{header}0x1x 001 :"), "line 2: `0x1x` is not a unicast LID; a route"),
        (&format!("{header}0x10000 001 :"), "line 2: `0x10000` is not a unicast LID; a route"),
        (&format!("{header}0x0001 300 :"), "line 2: `300` is not a port (0 to 254);"),
        (&format!("{header}0x0001"), "line 2: `` is not a port"),
    ];
    for (text, expected) in cases {
        let error = Dump::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

proptest! {
    #[test]
    fn with_computed_hops_it_routes_as_minhop_does(topology in testing::any_topology()) {
        let hops = HopMatrix::compute(&topology).map(std::sync::Arc::new);
        let steering = with(Options { hops, ..Options::default() });
        let ours = FromFile.route(&topology, &steering, None).unwrap();
        let minhop = MinHop.route(&topology, &Steering::default(), None).unwrap();
        prop_assert_eq!((ours.lfts, ours.hops), (minhop.lfts, minhop.hops));
    }
}

/// The GUID that tests assign to a switch, and to a port by its first LID.
fn switch_guid(switch: u16) -> Guid {
    Guid(0x1000 + u64::from(switch))
}

fn port_guid(lid: Lid) -> Guid {
    Guid(0x9000 + u64::from(lid.0))
}

fn dump(topology: &Topology, routing: &Routing, with_ports: bool) -> String {
    let mut text = String::new();
    for switch in topology.switches() {
        writeln!(text, "Unicast lids of switch guid {:#x} (x):", switch_guid(switch).0).unwrap();
        for destination in topology.destinations() {
            for lid in destination.lids() {
                let port = routing.port(switch, lid);
                if port == NO_ROUTE {
                    continue;
                }
                write!(text, "{:#06x} {port:03} : ", lid.0).unwrap();
                if with_ports {
                    let guid = port_guid(destination.base_lid);
                    write!(text, "(Node portguid {:#x}: 'y')", guid.0).unwrap();
                }
                text.push('\n');
            }
        }
    }
    text
}

fn with(file: Options) -> Steering {
    Steering { file, ..Steering::default() }
}

fn steering(topology: &Topology, text: &str) -> Steering {
    let switch = |guid: Guid| topology.switches().find(|&switch| switch_guid(switch) == guid);
    let lfts = Dump::parse(text).unwrap().resolve(topology, switch, |_| None).unwrap();
    with(Options { lfts, ..Options::default() })
}

proptest! {
    #[test]
    fn tables_of_other_engines_are_returned_unchanged(topology in testing::any_topology()) {
        let mut steered = Steering::default();
        for engine in [&MinHop as &dyn Engine, &UpDown::FromHosts] {
            let Ok(routing) = engine.route(&topology, &steered, None) else { continue };
            steered = steering(&topology, &dump(&topology, &routing, false));
            let again = FromFile.route(&topology, &steered, None).unwrap();
            prop_assert_eq!(&again.lfts, &routing.lfts);
            prop_assert_eq!(again.unreachable, routing.unreachable);
            let walk = verify::walk::deliveries(&topology, &again);
            prop_assert!(walk.is_sound(), "{:?}", walk.defects);
        }
    }

    /// Tables with some entries replaced at random are rejected unless all hosts are reached.
    #[test]
    fn broken_tables_are_declined(
        topology in testing::any_topology(),
        breakages in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut lfts = MinHop.route(&topology, &Steering::default(), None).unwrap().lfts;
        for (switch, lid, port) in breakages {
            let count = lfts.len();
            let lft = &mut lfts[usize::from(switch) % count];
            let len = lft.len();
            lft[usize::from(lid) % len] = if port > 250 { NO_ROUTE } else { port % 8 };
        }
        let steering = with(Options { lfts, ..Options::default() });
        match FromFile.route(&topology, &steering, None) {
            Ok(routing) => prop_assert!(verify::walk::deliveries(&topology, &routing).is_sound()),
            Err(RoutingError { reason: Reason::TooManySwitches { .. }, .. }) => {
                prop_assert!(false, "an unexpected limit was reported");
            }
            Err(_) => {}
        }
    }

    #[test]
    fn any_text_is_read_or_refused(
        text in "(Unicast lids guid |0x|[0-9a-f]{1,5}| |:|\n|-|é){0,30}",
    ) {
        let _ = Dump::parse(&text);
    }
}

#[test]
fn ports_that_are_named_may_have_other_lids_now() {
    let net = testing::fat_tree(2, 4, 8);
    let (then, now) = (testing::topology(&net, 0), testing::topology(&net, 1));
    let routing = MinHop.route(&then, &Steering::default(), None).unwrap();
    let text = dump(&then, &routing, true);
    // A port is the same if it is at the same place.
    let place = |guid: Guid| {
        let at = then.destinations().iter().position(|to| port_guid(to.base_lid) == guid)?;
        let place = then.destinations()[at];
        now.destinations()
            .iter()
            .find(|to| (to.egress_switch, to.exit) == (place.egress_switch, place.exit))
    };
    let switch = |guid: Guid| then.switches().find(|&switch| switch_guid(switch) == guid);
    let lfts = Dump::parse(&text).unwrap().resolve(&now, switch, place).unwrap();
    for (then, now) in then.destinations().iter().map(|to| (to, place(port_guid(to.base_lid)))) {
        let now = now.unwrap();
        for (switch, lft) in
            routing.lfts.iter().zip(&lfts).enumerate().map(|(s, l)| (s as u16, l.1))
        {
            let ports: Vec<u8> = now.lids().map(|lid| lft[lid.index()]).collect();
            assert!(ports.contains(&routing.port(switch, then.base_lid)), "{ports:?}");
        }
    }
}

#[test]
fn a_port_that_a_switch_does_not_have_is_an_error() {
    let topology = testing::line(2);
    let text = "Unicast lids guid 0x1000\n0x0002 003 :\n";
    let error = Dump::parse(text).unwrap().resolve(&topology, |_| Some(0), |_| None).unwrap_err();
    let expected = "has no port 3; its ports are 0 to 2";
    assert!(error.line == 2 && error.to_string().ends_with(expected), "{error}");
}

#[test]
fn tables_that_lose_packets_are_declined() {
    let topology = testing::topology(&testing::torus(&[4], 1), 0);
    let routing = MinHop.route(&topology, &Steering::default(), None).unwrap();
    let lid = topology
        .destinations()
        .iter()
        .find(|to| to.is_host() && to.egress_switch == 2)
        .unwrap()
        .base_lid;
    let port_to = |from, to| topology.links(from).iter().find(|link| link.peer == to).unwrap().port;
    let reason_after = |switch: u16, port: u8| {
        let mut lfts = routing.lfts.clone();
        lfts[usize::from(switch)][lid.index()] = port;
        let steering = with(Options { lfts, ..Options::default() });
        FromFile.route(&topology, &steering, None).map(|_| ()).map_err(|error| error.reason)
    };
    assert_eq!(reason_after(0, port_to(0, 1)), Ok(()));
    assert_eq!(reason_after(0, port_to(0, 3)), Ok(()), "both ways round are as good");
    let circle = reason_after(1, port_to(1, 0)).unwrap_err();
    let is_circle = |reason: &Reason| matches!(reason, Reason::Circular { egress: 2, .. });
    assert!(
        is_circle(&circle) || is_circle(&reason_after(3, port_to(3, 0)).unwrap_err()),
        "{circle}"
    );
    let dead_end = Reason::NoSwitchBehindPort { switch: 1, lid, port: 99 };
    assert_eq!(reason_after(1, 99), Err(dead_end));
    let no_route = reason_after(1, NO_ROUTE).unwrap_err();
    assert!(
        matches!(no_route, Reason::NoRouteOnward { .. } | Reason::DefectiveTables { .. }),
        "{no_route}"
    );
    let nothing = FromFile.route(&topology, &Steering::default(), None).unwrap_err();
    assert_eq!(nothing.reason, Reason::NoTables);
}

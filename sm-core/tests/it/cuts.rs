//! Cables that are cut and switches that die: routes lead around them within milliseconds, by
//! whichever route the manager reads the switches at their ends.

use std::time::Duration;

use crate::common::{Bed, Lie, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::netlist::Net;
use ib_mad::wire::attribute::{PortInfo, PortState};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{DATA, Smp};
use sm_config::Settings;
use sm_core::sweep::{Phase, Report};

/// Longest time from a cut to the end of the sweep that routes around it; the response time-out is
/// 200 ms.
const SOON: Duration = Duration::from_millis(20);
/// Time after which no trap is held down.
const QUIET: Duration = Duration::from_secs(11);

type Port = (NodeIndex, u8);

/// Three levels, 80 switches, so that routes to switches pass up to four others.
fn bed() -> Bed {
    // Without light sweeps, which a cut may have to wait for.
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(3, 8, 128), settings);
    bed.bring_up();
    bed.run_for(QUIET);
    bed
}

/// Cables between switches, by their ends.
fn cables(bed: &Bed) -> Vec<(Port, Port)> {
    let switches = bed.switches();
    let ports = switches.iter().flat_map(|&node| {
        let ports = 1..=bed.fabric.node(node).num_ports;
        ports.map(move |port| (node, port))
    });
    let far = |(node, port): Port| {
        let link = bed.fabric.port(node, port)?.link?;
        Some((link.node, link.port)).filter(|far| switches.contains(&far.0) && (node, port) < *far)
    };
    ports.filter_map(|near| Some((near, far(near)?))).collect()
}

/// Cuts cables, and returns the time until the manager has routed around them.
fn cut(bed: &mut Bed, cables: &[(Port, Port)]) -> Duration {
    let (begun, before) = (bed.clock.now(), bed.reports().len());
    for ((node, port), _) in cables {
        bed.fabric.link_down(begun, *node, *port).unwrap();
    }
    settle(bed, before);
    bed.clock.now() - begun
}

/// Runs until a sweep has ended after which packets reach everything.
fn settle(bed: &mut Bed, mut before: usize) {
    loop {
        bed.run_until(Duration::from_secs(5), "the end of a sweep", |bed| {
            bed.reports().len() > before && bed.sweeper().phase() == Phase::Idle
        });
        if bed.fabric.check_routes().is_whole() {
            return;
        }
        before = bed.reports().len();
    }
}

fn restore(bed: &mut Bed, cables: &[(Port, Port)]) {
    let now = bed.clock.now();
    for ((node, port), _) in cables {
        bed.fabric.link_up(now, *node, *port).unwrap();
    }
    bed.run_for(QUIET);
    assert!(bed.fabric.check_routes().is_whole());
}

/// Loses the traps of a switch.
fn lose_traps_of(bed: &mut Bed, switch: NodeIndex) {
    let lid = bed.fabric.port(switch, 0).unwrap().lid;
    bed.tamper = Some(Box::new(move |packet| {
        let is_trap = Smp::of(&packet.mad).method() == Method::TRAP;
        if is_trap && packet.address.lid == lid {
            packet.mad.fill(0);
        }
    }));
}

/// Regression: the switches at both ends report a cut. Where the directed route to one of them
/// leads over the dead cable, the discovery waited for the time-out of what had been sent over it.
#[test]
fn a_cut_cable_that_requests_were_sent_over_is_not_waited_for() {
    let mut bed = bed();
    for cable in cables(&bed).into_iter().step_by(5) {
        let took = cut(&mut bed, &[cable]);
        assert!(took < SOON, "{cable:?}: {took:?}");
        restore(&mut bed, &[cable]);
    }
}

/// Routes are published as soon as switches have them, and what the sweep finds later does not
/// change them. A cable that returns is configured first.
#[test]
fn routes_around_a_cut_are_there_before_the_sweep_has_ended() {
    let mut bed = bed();
    for cable in cables(&bed).into_iter().step_by(29) {
        let (before, routed) = (bed.reports().len(), bed.managers[0].routed);
        let ((node, port), now) = (cable.0, bed.clock.now());
        bed.fabric.link_down(now, node, port).unwrap();
        bed.run_until(SOON, "routes", |bed| bed.managers[0].routed > routed);
        assert_eq!(bed.reports().len(), before, "the sweep goes on");
        assert!(bed.fabric.check_routes().is_whole());
        let early = bed.plane();
        settle(&mut bed, before);
        assert_eq!(early, bed.plane(), "{cable:?}");
        let routed = bed.managers[0].routed;
        restore(&mut bed, &[cable]);
        assert_eq!(bed.managers[0].routed, routed);
    }
}

/// Regression: routes without a switch or a host that had gone were published before the registry
/// knew of it, although [`Event::Routed`](sm_core::sweep::Event::Routed) states that nodes are as
/// before.
#[test]
fn a_sweep_that_lost_a_node_does_not_report_its_routes_early() {
    let mut bed = bed();
    let hosts = bed.hosts();
    let home = bed.fabric.port(hosts[0], 1).unwrap().link.unwrap().node;
    let switches: Vec<NodeIndex> =
        bed.switches().into_iter().filter(|&node| node != home).step_by(19).collect();
    for node in switches.into_iter().chain([hosts[40]]) {
        let (now, before) = (bed.clock.now(), bed.reports().len());
        bed.fabric.node_down(now, node).unwrap();
        settle(&mut bed, before);
        let reports = &bed.reports()[before..];
        assert!(reports.iter().any(|report| report.vanished > 0), "{reports:?}");
        assert!(reports.iter().any(|report| report.lft_blocks_set > 0), "{reports:?}");
        assert_eq!(bed.managers[0].routed, 0, "{node:?}");
        bed.fabric.node_up(bed.clock.now(), node).unwrap();
        bed.run_for(QUIET);
    }
}

/// A ring of three switches. One of the hosts has two ports, each at a switch of its own.
const RING: &str = "
Switch 4 \"S1\"
[1] \"S2\"[2]
[3] \"H1\"[1]

Switch 4 \"S2\"
[1] \"S3\"[2]
[3] \"H2\"[1]

Switch 4 \"S3\"
[1] \"S1\"[2]
[3] \"H2\"[2]
[4] \"H3\"[1]

Hca 1 \"H1\"
Hca 2 \"H2\"
Hca 1 \"H3\"
";

/// An end port that loses its link goes out of service, although its adapter stays.
#[test]
fn a_sweep_that_lost_the_link_of_a_port_does_not_report_its_routes_early() {
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&Net::parse("ring", RING).unwrap(), settings);
    bed.bring_up();
    bed.run_for(QUIET);
    let trunk = |bed: &Bed| cables(bed).into_iter().find(|(a, b)| a.1 == 1 || b.1 == 1).unwrap();
    let of_host = bed.fabric.port(bed.hosts()[1], 1).unwrap().link.unwrap();
    for (and_of_host, early) in [(false, 1), (true, 0)] {
        let (now, before, routed) = (bed.clock.now(), bed.reports().len(), bed.managers[0].routed);
        let cable = trunk(&bed);
        if and_of_host {
            bed.fabric.link_down(now, of_host.node, of_host.port).unwrap();
        }
        bed.fabric.link_down(now, cable.0.0, cable.0.1).unwrap();
        settle(&mut bed, before);
        let reports = &bed.reports()[before..];
        let found = |of: fn(&Report) -> usize| reports.iter().map(of).sum::<usize>();
        assert_eq!(found(|report| report.vanished), 0, "{reports:?}");
        assert_eq!(found(|report| report.detached), usize::from(and_of_host), "{reports:?}");
        assert_eq!(bed.managers[0].routed - routed, early, "{reports:?}");
        restore(&mut bed, &[cable]);
    }
}

/// Only one end reports, and may be reached over the dead cable.
#[test]
fn a_cut_cable_is_found_by_the_report_of_either_end() {
    let mut bed = bed();
    let mut reported = 0;
    for cable in cables(&bed).into_iter().step_by(13) {
        for end in [cable.0, cable.1] {
            lose_traps_of(&mut bed, end.0);
            let (traps, reports) = (bed.managers[0].traps.len(), bed.reports().len());
            let ((node, port), now) = (cable.0, bed.clock.now());
            bed.fabric.link_down(now, node, port).unwrap();
            bed.run_for(SOON);
            // The other trap may have been sent over the dead cable.
            if bed.managers[0].traps.len() > traps {
                let is_whole = bed.fabric.check_routes().is_whole();
                assert!(bed.reports().len() > reports && is_whole, "{cable:?} without {end:?}");
                reported += 1;
            }
            bed.tamper = None;
            restore(&mut bed, &[cable]);
        }
    }
    assert!(reported > 10, "{reported}");
}

/// All routes but one to a switch are dead, and only that switch reports it.
#[test]
fn a_switch_whose_routes_are_dead_but_for_one_is_read_by_that() {
    let mut bed = bed();
    let all = cables(&bed);
    // Each switch is the lower end of cables to those of a higher level, and has four of them.
    let home = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    let of = |node: NodeIndex| -> Vec<(Port, Port)> {
        all.iter().copied().filter(|(a, b)| a.0 == node || b.0 == node).collect()
    };
    let switches = bed.switches().into_iter().filter(|&node| node != home);
    for switch in switches.step_by(9) {
        let mut dead = of(switch);
        let left = dead.pop().unwrap();
        // A host's switch keeps its hosts; others only need to be reached themselves.
        let took = cut(&mut bed, &dead);
        assert!(took < SOON * 2, "{switch:?}, all but {left:?}: {took:?}");
        restore(&mut bed, &dead);
    }
}

#[test]
fn a_switch_that_died_is_not_waited_for() {
    let mut bed = bed();
    let home = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    let switches = bed.switches().into_iter().filter(|&node| node != home);
    for switch in switches.step_by(7) {
        let (begun, before) = (bed.clock.now(), bed.reports().len());
        bed.fabric.node_down(begun, switch).unwrap();
        settle(&mut bed, before);
        let took = bed.clock.now() - begun;
        assert!(took < SOON, "{switch:?}: {took:?}");
        bed.fabric.node_up(bed.clock.now(), switch).unwrap();
        bed.run_for(QUIET);
        assert!(bed.fabric.check_routes().is_whole());
    }
}

/// Makes a switch report that state of a port.
fn lie_about((liar, num): Port, state: PortState) -> Lie {
    Box::new(move |node, packet| {
        let smp = Smp::of(&packet.mad);
        let is_answer = smp.method() == Method::GET_RESP;
        if node == liar
            && is_answer
            && smp.attribute_id() == AttributeId::PORT_INFO
            && smp.attribute_modifier() & 0xFF == u32::from(num)
        {
            PortInfo::new(&mut packet.mad[DATA]).unwrap().set_port_state(state);
        }
    })
}

/// A switch on the way to one that reports a change says that its port there is down. It loses that
/// link, as it does whenever it is read, and no other node loses anything.
#[test]
fn a_switch_on_the_way_that_lies_loses_its_own_link_only() {
    let mut bed = bed();
    for (low, high) in cables(&bed).into_iter().step_by(11) {
        for (liar, reporter) in [(low, high.0), (high, low.0)] {
            let others = cables(&bed).into_iter();
            let mut others = others.filter(|(a, b)| a.0 == reporter || b.0 == reporter);
            let dead = others.find(|(a, b)| ![a.0, b.0].contains(&liar.0)).unwrap();
            bed.lie = Some(lie_about(liar, PortState::Down));
            let counts = bed.sweeper().fabric().counts();
            let took = cut(&mut bed, &[dead]);
            assert!(took < SOON, "{liar:?}: {took:?}");
            assert_eq!(bed.sweeper().fabric().counts(), counts);
            bed.lie = None;
            restore(&mut bed, &[dead]);
            let now = bed.clock.now();
            bed.managers[0].sweeper.request_heavy_sweep(now);
            bed.run_for(QUIET);
        }
    }
}

/// A switch says that the port of a cut cable is still up: the other end is believed.
#[test]
fn a_switch_that_keeps_a_dead_link_up_delays_the_sweep_and_no_more() {
    let mut bed = bed();
    // The manager reads everything through its own switch.
    let home = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    for (low, high) in cables(&bed).into_iter().step_by(29) {
        for liar in [low, high].into_iter().filter(|liar| liar.0 != home) {
            bed.lie = Some(lie_about(liar, PortState::Active));
            // The trap of the other end may be sent over the dead cable.
            let now = bed.clock.now();
            bed.fabric.link_down(now, low.0, low.1).unwrap();
            bed.managers[0].sweeper.request_light_sweep(now);
            bed.run_for(QUIET);
            assert!(bed.fabric.check_routes().is_whole(), "{liar:?}");
            bed.lie = None;
            restore(&mut bed, &[(low, high)]);
        }
    }
}

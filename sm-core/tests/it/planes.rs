//! Planarized fabrics: several planes behind one port of each host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use fabric_sim::generate::{Common, FatTree, Grid, Shape, generate};
use ib_mad::netlist::Net;
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NodeType, PortState, SmState};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::sa::{ComponentMask, SaMad};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::Phase;
use sm_routing::multicast::{Audience, Membership};

const PLANES: u8 = 4;
const LIMIT: Duration = Duration::from_secs(20);

/// 20 hosts with a port in each of four fat trees of 5 leaves and 4 spines.
fn planarized() -> Net {
    let tree = FatTree { levels: 2, radix: 8, hosts: 20, oversubscription: (1, 1) };
    generate(&Shape::FatTree(tree), &Common { planes: PLANES, ..Common::default() }).unwrap()
}

fn bring_up(settings: Settings) -> Bed {
    let mut bed = Bed::with_manager(&planarized(), settings);
    bed.bring_up();
    bed
}

fn routed_by(engines: &str) -> Settings {
    let mut settings = Settings::default();
    settings.set("routing_engine", engines).unwrap();
    settings
}

/// The switches of each plane, by the port of hosts that leads there.
fn planes(bed: &Bed) -> BTreeMap<u8, BTreeSet<NodeIndex>> {
    let host = bed.hosts()[0];
    let of_port = |port: u8| {
        let mut found = BTreeSet::new();
        let mut left = vec![bed.fabric.port(host, port).unwrap().link.unwrap().node];
        while let Some(node) = left.pop() {
            if bed.fabric.node(node).node_type == NodeType::Switch && found.insert(node) {
                let ports = 1..=bed.fabric.node(node).num_ports;
                let links = ports.filter_map(|port| bed.fabric.port(node, port)?.link);
                left.extend(links.map(|link| link.node));
            }
        }
        (port, found)
    };
    (1..=PLANES).map(of_port).collect()
}

/// Base LIDs of a host's ports that are active.
fn lids(bed: &Bed, host: NodeIndex) -> Vec<Lid> {
    let ports = (1..=PLANES).map(|port| bed.fabric.port(host, port).unwrap());
    ports.filter(|port| port.state == PortState::Active).map(|port| port.lid).collect()
}

/// Fails unless each LID is delivered in each plane that it is in, and all ports are configured.
fn assert_whole(bed: &Bed) {
    let report = bed.fabric.check_routes();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(bed.fabric.counters().lid_routed_smps, 0);
}

fn lfts(bed: &Bed, of: &BTreeSet<NodeIndex>) -> Vec<Vec<u8>> {
    of.iter().map(|&switch| bed.fabric.node(switch).lft.to_vec()).collect()
}

#[test]
fn all_planes_come_up_and_deliver_one_lid_of_each_host() {
    let bed = bring_up(Settings::default());
    let report = bed.fabric.check_routes();
    assert!(report.is_whole(), "{report:?}");
    let (hosts, switches) = (bed.hosts().len(), bed.switches().len());
    assert_eq!((hosts, switches), (20, 36));
    assert_eq!(report.lids, hosts + switches);
    assert_eq!(report.sources, hosts * usize::from(PLANES) + switches);
    // From each port to the LIDs in its plane: those of hosts and of a plane's switches.
    let (in_plane, ports) = (hosts + switches / 4, report.sources);
    assert_eq!(report.delivered, (in_plane * ports) as u64);
    assert_eq!(report.hops_max, 4);
    let all: BTreeSet<Lid> = bed
        .hosts()
        .into_iter()
        .map(|host| {
            let lids = lids(&bed, host);
            assert!(lids.len() == 4 && lids.iter().all(|lid| *lid == lids[0]), "{lids:?}");
            lids[0]
        })
        .collect();
    assert_eq!(all.len(), hosts);
    assert_eq!(bed.fabric.counters().lid_routed_smps, 0);
    assert_eq!(bed.reports()[0].anomalies, 0);
    assert!(bed.sweeper().left_out().is_empty());
}

/// All planes have the same shape, and so the same tables but for their switches' own LIDs.
#[test]
fn planes_of_one_shape_are_balanced_alike() {
    for engine in ["minhop", "ftree"] {
        let bed = bring_up(routed_by(engine));
        assert_eq!(bed.sweeper().routing_engine(), engine);
        let host_lids: Vec<Lid> = bed.hosts().into_iter().map(|host| lids(&bed, host)[0]).collect();
        // ftree has no routes between spines, which need none.
        let lost = bed.fabric.check_routes().examples;
        assert!(lost.iter().all(|lost| !host_lids.contains(&lost.lid)), "{lost:?}");
        let planes = planes(&bed);
        let busiest = planes.values().map(|switches| {
            let mut most = 0;
            for lft in lfts(&bed, switches) {
                let mut loads = [0; 256];
                host_lids.iter().for_each(|lid| loads[usize::from(lft[lid.index()])] += 1);
                most = most.max(loads[5..].iter().copied().max().unwrap());
            }
            most
        });
        let busiest: Vec<i32> = busiest.collect();
        assert!(busiest.iter().all(|most| *most == busiest[0]), "{engine}: {busiest:?}");
    }
}

#[test]
fn a_cut_in_a_plane_reroutes_that_plane_only() {
    let mut bed = bring_up(Settings::default());
    let planes = planes(&bed);
    let before: Vec<_> = planes.values().map(|switches| lfts(&bed, switches)).collect();
    let leaf = bed.fabric.port(bed.hosts()[7], 3).unwrap().link.unwrap().node;
    let now = bed.clock.now();
    // Ports above those of hosts lead to spines.
    bed.fabric.link_down(now, leaf, 5).unwrap();
    bed.bring_up();
    assert_whole(&bed);
    for ((port, switches), before) in planes.iter().zip(before) {
        assert_eq!(lfts(&bed, switches) == before, *port != 3, "plane {port}");
    }
    // The trap came by plane 3, and its TrapRepress() returned there.
    bed.run_for(Duration::from_secs(5));
    let counters = bed.fabric.counters();
    assert!(counters.traps_repressed > 0);
    let sent = counters.traps;
    bed.run_for(Duration::from_secs(30));
    assert_eq!(bed.fabric.counters().traps, sent, "none is repeated");
}

/// Regression: only the neighbor in the first plane was asked, so that a cut there counted as a
/// lost fabric. Cuts each plane in turn.
#[test]
fn the_fabric_is_heard_by_any_plane() {
    for port in 1..=PLANES {
        let mut bed = bring_up(Settings::default());
        // Until the next sweep its neighbor there is believed to be present.
        let (now, host) = (bed.clock.now(), bed.hosts()[0]);
        bed.fabric.link_down(now, host, port).unwrap();
        bed.managers[0].sweeper.probe_fabric(now, Duration::ZERO);
        bed.run_for(Duration::from_millis(5));
        assert!(bed.sweeper().heard_fabric().unwrap() > now, "without plane {port}");
    }
}

#[test]
fn a_host_with_a_plane_down_is_still_there() {
    for port in [1, 2] {
        let mut bed = bring_up(Settings::default());
        let host = bed.hosts()[9];
        let (lid, guid) = (lids(&bed, host)[0], bed.fabric.port(host, 1).unwrap().guid);
        let before = bed.plane();
        let now = bed.clock.now();
        bed.fabric.link_down(now, host, port).unwrap();
        bed.bring_up();
        assert_whole(&bed);
        assert_eq!(lids(&bed, host), [lid; 3]);
        assert!(
            bed.managers[0]
                .changes
                .iter()
                .all(|changed| changed.went.iter().all(|(went, _)| *went != guid))
        );
        let ends = bed.sweeper().fabric().end_ports();
        let of_host = ends.filter(|&end| bed.sweeper().fabric().port(end).guid == guid);
        assert_eq!(of_host.count(), 1);

        let now = bed.clock.now();
        bed.fabric.link_up(now, host, port).unwrap();
        bed.bring_up();
        bed.settle_planes();
        assert_whole(&bed);
        assert_eq!(lids(&bed, host), [lid; 4]);
        assert_eq!(bed.plane().nodes.len(), before.nodes.len());
    }
}

#[test]
fn a_plane_that_the_manager_is_cut_off_from_is_given_up_and_comes_back() {
    for port in [1, 2] {
        let mut bed = bring_up(Settings::default());
        let sm = bed.hosts()[0];
        let now = bed.clock.now();
        bed.fabric.link_down(now, sm, port).unwrap();
        bed.run_until(Duration::from_secs(120), "three planes", |bed| {
            let sweeper = bed.sweeper();
            let is_idle = sweeper.is_up() && sweeper.phase() == Phase::Idle;
            is_idle && sweeper.fabric().counts() == (20, 27)
        });
        let now = bed.clock.now();
        bed.fabric.link_up(now, sm, port).unwrap();
        bed.run_until(Duration::from_secs(120), "four planes", |bed| {
            let sweeper = bed.sweeper();
            let is_idle = sweeper.is_up() && sweeper.phase() == Phase::Idle;
            is_idle && sweeper.fabric().counts() == (20, 36)
        });
        bed.settle_planes();
        assert_whole(&bed);
    }
}

#[test]
fn without_any_link_the_last_state_is_kept() {
    let mut bed = bring_up(Settings::default());
    let sm = bed.hosts()[0];
    for port in 1..=PLANES {
        let now = bed.clock.now();
        bed.fabric.link_down(now, sm, port).unwrap();
    }
    bed.run_for(Duration::from_secs(60));
    assert_eq!(bed.sweeper().fabric().counts(), (20, 36));
    assert!(bed.sweeper().cut_off().is_some());
    for port in 1..=PLANES {
        let now = bed.clock.now();
        bed.fabric.link_up(now, sm, port).unwrap();
    }
    bed.run_until(Duration::from_secs(120), "the fabric again", |bed| {
        bed.sweeper().cut_off().is_none() && bed.fabric.check_routes().is_whole()
    });
    assert_whole(&bed);
}

#[test]
fn a_group_has_a_tree_in_each_plane() {
    let mut bed = bring_up(Settings::default());
    let mlid = Lid(0xC007);
    let members = [1, 6, 12, 19];
    let hosts = bed.hosts();
    let mut guids: Vec<Guid> =
        members.iter().map(|&host| bed.fabric.port(hosts[host], 1).unwrap().guid).collect();
    guids.sort_unstable();
    let membership: Membership = [(mlid, Audience::new(guids, 0))].into();
    bed.managers[0].sweeper.put_members(membership);
    bed.run_for(Duration::from_millis(300));
    let listeners: Vec<_> = (1..hosts.len())
        .map(|host| {
            let endpoint = bed.fabric.attach(hosts[host], 0).unwrap();
            bed.fabric.set_takes_requests(endpoint, true);
            (host, endpoint)
        })
        .collect();
    let heard = |bed: &mut Bed, plane: u8| -> Vec<usize> {
        let mut packet = Packet::default();
        packet.address.lid = mlid;
        packet.carrier.plane = PortNum(plane);
        let mut mad = SaMad::new(&mut packet.mad);
        mad.write_request(Method::SEND, AttributeId::NOTICE, 1, ComponentMask::NONE);
        let mut now = bed.clock.now();
        bed.fabric.send(now, listeners[0].1, &packet);
        let mut deliveries = Vec::new();
        for _ in 0..1000 {
            bed.fabric.poll(now, &mut deliveries, usize::MAX);
            now += Duration::from_micros(1);
        }
        bed.clock.advance_to(now);
        let at = |endpoint| listeners.iter().find(|(_, at)| *at == endpoint).map(|(host, _)| *host);
        let mut heard: Vec<usize> = deliveries
            .iter()
            .filter(|delivery| delivery.packet.carrier.plane == PortNum(plane))
            .filter_map(|delivery| at(delivery.endpoint))
            .collect();
        heard.sort_unstable();
        heard
    };
    for plane in 1..=PLANES {
        assert_eq!(heard(&mut bed, plane), [6, 12, 19], "plane {plane}");
    }
    // A spine of plane 2 fails: its tree is repaired.
    let spine = *planes(&bed)[&2].iter().next_back().unwrap();
    let now = bed.clock.now();
    bed.fabric.node_down(now, spine).unwrap();
    bed.bring_up();
    bed.run_for(Duration::from_secs(3));
    for plane in 1..=PLANES {
        assert_eq!(heard(&mut bed, plane), [6, 12, 19], "plane {plane}");
    }
    assert!(bed.sweeper().is_loop_free());
}

/// A path has one SL, and with lanes another route in each plane would need another one.
#[test]
fn engines_that_select_lanes_are_refused() {
    let grid = Grid { dims: vec![4, 4], wraps: true, hosts_per_switch: 1, radix: None };
    let common = Common { planes: 2, ..Common::default() };
    let net = generate(&Shape::Grid(grid), &common).unwrap();
    let settings = Settings { qos: true, ..routed_by("lash,dor") };
    let mut bed = Bed::with_manager(&net, settings);
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dor");
    let rejected = bed.sweeper().rejected_engines();
    assert!(
        rejected.iter().any(|why| why.starts_with("lash") && why.contains("planes")),
        "{rejected:?}"
    );
    assert_whole(&bed);
}

#[test]
fn a_standby_takes_over_without_a_lid_routed_smp() {
    let mut bed = bring_up(Settings::default());
    let second = bed.hosts()[11];
    bed.manage(second, Settings::default(), LidTable::default());
    bed.run_for(Duration::from_secs(15));
    let states = |bed: &Bed| -> Vec<SmState> {
        bed.managers.iter().map(|manager| manager.sweeper.sm_state()).collect()
    };
    let states_before = states(&bed);
    assert!(states_before.contains(&SmState::Master) && states_before.contains(&SmState::Standby));
    let master = states_before.iter().position(|state| *state == SmState::Master).unwrap();
    let before: Vec<_> = bed.hosts().into_iter().map(|host| lids(&bed, host)).collect();
    bed.crash(master);
    bed.run_until(Duration::from_secs(120), "another master", |bed| {
        states(bed) == [SmState::Master] && bed.sweeper().is_up()
    });
    bed.settle_planes();
    assert_whole(&bed);
    let after: Vec<_> = bed.hosts().into_iter().map(|host| lids(&bed, host)).collect();
    assert_eq!(before, after, "LIDs stay");
}

/// The request for a handover is a trap, which follows a directed route here.
#[test]
fn a_manager_of_higher_priority_gets_the_planes_without_a_lid_routed_smp() {
    let mut bed = bring_up(Settings::default());
    let second = bed.hosts()[11];
    let settings = Settings { sm_priority: 10, ..Settings::default() };
    bed.manage(second, settings, LidTable::default());
    bed.run_until(Duration::from_secs(120), "a handover", |bed| {
        let states = bed.managers.iter().map(|manager| manager.sweeper.sm_state());
        states.eq([SmState::Standby, SmState::Master]) && bed.managers[1].sweeper.is_up()
    });
    bed.run_until(Duration::from_secs(20), "all planes deliver", |bed| {
        bed.fabric.check_routes().is_whole()
    });
    assert_whole(&bed);
}

/// With an LMC each port has 2^LMC LIDs, the same in each plane.
#[test]
fn ports_with_several_lids_have_them_in_each_plane() {
    let bed = bring_up(Settings { lmc: 2, ..Settings::default() });
    assert_whole(&bed);
    let report = bed.fabric.check_routes();
    assert_eq!(report.lids, 20 * 4 + 36);
}

/// A cable between two planes makes them one: both of a host's ports stay, and all LIDs arrive.
#[test]
fn planes_that_a_cable_joins_still_deliver() {
    let mut bed = bring_up(Settings::default());
    let planes = planes(&bed);
    // Spines have 5 leaves, and three ports free.
    let spine = |plane: u8| *planes[&plane].iter().next_back().unwrap();
    let now = bed.clock.now();
    bed.fabric.connect(now, (spine(1), 8), (spine(2), 8)).unwrap();
    bed.bring_up();
    bed.settle_planes();
    assert_eq!(bed.sweeper().fabric().counts(), (20, 36));
    let report = bed.fabric.check_routes();
    assert_eq!(report.unconfigured, 0);
    assert!(report.lost.is_empty(), "{report:?}");
}

/// An ordinary fabric is one plane, also with adapters of two ports.
#[test]
fn ordinary_fabrics_have_no_planes() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    bed.bring_up();
    assert!(!bed.sweeper().fabric().is_planarized());
    bed.settle(LIMIT, "an ordinary fabric");
}

/// The size at which it is to be up in 15 s. Run it alone, in release mode, with `--nocapture`.
#[test]
#[ignore = "takes half a minute"]
#[allow(clippy::print_stdout, reason = "it is run for what it prints")]
fn ten_thousand_hosts_with_four_planes_come_up() {
    let tree = FatTree { levels: 2, radix: 144, hosts: 10_368, oversubscription: (1, 1) };
    let common = Common { planes: PLANES, ..Common::default() };
    let net = generate(&Shape::FatTree(tree), &common).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    let begun = std::time::Instant::now();
    let report = bed.bring_up();
    let took = begun.elapsed();
    println!("up in {took:?}, simulator included; {} SMPs", report.smps);
    for (phase, took) in &report.phases {
        println!("{phase}: {took:?} of virtual time");
    }
    assert_eq!(bed.sweeper().fabric().counts(), (10_368, 864));
    assert_eq!(bed.fabric.counters().lid_routed_smps, 0);
    assert!(bed.fabric.check_routes().is_whole());
}

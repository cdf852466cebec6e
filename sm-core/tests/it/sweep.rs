//! Sweeps against a simulated fabric in virtual time: bring-up, changes, faults.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::Probability;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PKey, PortNum};
use ib_mad::wire::attribute::{PortInfo, PortState, SmState};
use sa_proto::snapshot;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::Phase;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_bare_fabric_comes_up_with_all_ports_active_and_reachable() {
    let mut bed = Bed::with_manager(&fat_tree(3, 8, 100), Settings::default());
    let report = bed.bring_up();
    bed.assert_all_reachable();
    assert_eq!((report.errors, report.first, report.full), (0, true, true));
    assert_eq!(report.hosts, 100);
    for (node, num, ..) in bed.end_ports() {
        let port = bed.fabric.port(node, num).unwrap();
        assert_eq!(port.master_sm_lid, bed.fabric.local_lid(bed.managers[0].endpoint).unwrap());
    }
}

/// Each stage looks at the whole fabric: those that have nothing to send end in calls of their own,
/// so that the caller attends to queries in between. They all ended with the last answer.
#[test]
fn a_call_ends_one_stage_of_a_sweep_at_most() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    let mut phases = Vec::new();
    bed.run_until(MINUTE, "a sweep that changes nothing", |bed| {
        let phase = bed.sweeper().phase();
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        bed.reports().len() == 2
    });
    for phase in [Phase::Addresses, Phase::Arm, Phase::Activate] {
        assert!(phases.contains(&phase), "{phase:?} is not among {phases:?}");
    }
}

#[test]
fn with_an_lmc_every_lid_of_a_port_is_reachable() {
    let settings = Settings { lmc: 2, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    bed.assert_all_reachable();
    for (node, num, lid, lmc) in bed.end_ports() {
        assert_eq!(lmc, if num == 0 { 0 } else { 2 }, "{}", bed.fabric.node(node).name);
        assert!(num == 0 || lid.0.is_multiple_of(4));
    }
}

#[test]
fn credit_loops_are_found_on_a_ring_and_not_on_a_tree() {
    let mut bed = Bed::with_manager(&fat_tree(3, 8, 100), Settings::default());
    bed.bring_up();
    bed.run_for(Duration::from_millis(1));
    assert!(bed.sweeper().is_loop_free());

    let switches = 5;
    let nodes = (0..switches)
        .map(|i| switch(0x100 + u64::from(i), 4))
        .chain((0..switches).map(|i| host(0x200 + 0x10 * u64::from(i))))
        .collect();
    let ring = (0..switches).map(|i| (i, 1, (i + 1) % switches, 2));
    let hosts = (0..switches).map(|i| (i, 3, switches + i, 1));
    let cables: Vec<_> = ring.chain(hosts).collect();
    let mut bed = Bed::with_manager(&net(nodes, &cables), Settings::default());
    bed.bring_up();
    bed.run_for(Duration::from_millis(1));
    assert!(!bed.sweeper().is_loop_free());
    bed.assert_all_reachable();
}

#[test]
fn a_second_heavy_sweep_sets_nothing() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    let report = bed.bring_up();
    assert!(report.full && !report.first);
    let sets = report.pkey_blocks_set
        + report.port_infos_set
        + report.switch_infos_set
        + report.lft_blocks_set;
    assert_eq!((sets, report.appeared, report.vanished), (0, 0, 0), "{report:?}");
}

#[test]
fn a_light_sweep_of_a_quiet_fabric_asks_each_switch_and_some_end_ports_once() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let before = bed.sweeper().counters().transmitted;
    let (switches, ends) = (bed.switches().len() as u64, bed.end_ports().len() as u64);
    bed.run_for(Duration::from_secs(25));
    let after = bed.sweeper().counters().transmitted;
    assert_eq!(after - before, 2 * (switches + ends), "two intervals of 10 s");
    assert_eq!(bed.reports().len(), 1, "nothing was configured");
}

#[test]
fn a_cut_link_is_routed_around_and_taken_back_by_partial_sweeps() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let spine = *bed.switches().last().unwrap();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    let report = bed.bring_up();
    assert!(!report.full && report.lft_blocks_set > 0, "{report:?}");
    assert!(report.smps < 100, "only what changed is read: {} SMPs", report.smps);
    bed.assert_all_reachable();
    assert!(bed.clock.now() - now < Duration::from_millis(100), "the trap was acted on at once");

    let now = bed.clock.now();
    bed.fabric.link_up(now, spine, 1).unwrap();
    bed.bring_up();
    bed.assert_all_reachable();
    assert_eq!(bed.fabric.port(spine, 1).unwrap().state, PortState::Active);
}

/// An agent repeats its trap until it is repressed; each would be another sweep (IBA 14.4.10).
#[test]
fn traps_are_repressed() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let spine = *bed.switches().last().unwrap();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    bed.bring_up();
    bed.run_for(Duration::from_secs(3));
    let before = bed.reports().len();
    bed.run_for(MINUTE);
    assert_eq!(bed.reports().len(), before);
}

#[test]
fn a_changed_description_is_read_after_its_trap() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let host = bed.hosts()[9];
    let now = bed.clock.now();
    bed.fabric.set_description(now, host, "renamed").unwrap();
    bed.bring_up();
    let fabric = bed.sweeper().fabric();
    let node = fabric.find(bed.fabric.node(host).guid).unwrap();
    assert_eq!(fabric.node(node).name(), "renamed");
    assert!(bed.reports().last().unwrap().smps < 20, "only that node is read");
}

/// Only rows that changed are rebuilt: the cost is proportional to the change.
#[test]
fn nodes_that_nothing_happened_to_are_published_as_they_were() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    bed.run_for(MINUTE);
    let before = bed.plane();
    let spine = *bed.switches().last().unwrap();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    let report = bed.bring_up();
    assert!(!report.full);
    let after = bed.plane();
    let rows = before.nodes.iter().zip(&after.nodes);
    let (kept, made): (Vec<_>, Vec<_>) = rows.partition(|(old, new)| Arc::ptr_eq(old, new));
    assert!(made.len() < 10, "{} of {} rows are new", made.len(), before.nodes.len());
    assert!(kept.iter().all(|(old, _)| old.guid != bed.fabric.node(spine).guid));
    let unlinked = made.iter().filter(|(old, new)| {
        let links = |node: &snapshot::Node| node.ports.iter().filter(|p| p.peer.is_some()).count();
        links(new) + 1 == links(old)
    });
    assert_eq!(unlinked.count(), 2, "both ends");
}

#[test]
fn the_published_plane_says_what_the_fabric_is() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let plane = bed.plane();
    assert_eq!(Some(plane.subnet.sm_lid), bed.fabric.local_lid(bed.managers[0].endpoint));
    let known: Vec<_> = bed.fabric.nodes().collect();
    assert_eq!((plane.nodes.len(), plane.lfts.len()), (known.len(), bed.switches().len()));
    assert!(plane.nodes.is_sorted_by_key(|node| node.guid));
    for index in known {
        let view = bed.fabric.node(index);
        let row = plane.nodes.iter().find(|node| node.guid == view.guid).unwrap();
        for port in &row.ports {
            let real = bed.fabric.port(index, port.num.0).unwrap();
            let info = PortInfo::new(&port.info).unwrap();
            assert_eq!((port.guid, info.port_state()), (real.guid, real.state.code()));
            assert_eq!(port.info[..8], [0; 8], "M_Keys stay here");
            let far = real.link.map(|link| (bed.fabric.node(link.node).guid, PortNum(link.port)));
            assert_eq!(port.peer, far, "{} port {}", view.name, port.num);
            let end_port = port.num.0 == 0 || view.lft.is_empty();
            if end_port {
                assert_eq!(*port.pkeys, [PKey::DEFAULT_FULL]);
                assert_eq!(info.base_lid(), real.lid);
            }
        }
        if let Some(lft) = plane.lfts.iter().find(|lft| lft.switch == view.guid) {
            assert_eq!(lft.ports[..view.lft.len().min(lft.ports.len())], *view.lft);
        }
    }
}

#[test]
fn without_traps_a_light_sweep_finds_the_change() {
    let settings = Settings { sweep_on_trap: false, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let spine = *bed.switches().last().unwrap();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    bed.bring_up();
    assert!(bed.clock.now() - now <= Duration::from_secs(11));
    bed.assert_all_reachable();
}

#[test]
fn a_switch_that_dies_is_dropped_and_returns_with_its_lid() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let spine = *bed.switches().last().unwrap();
    let lid = bed.fabric.port(spine, 0).unwrap().lid;
    let now = bed.clock.now();
    bed.fabric.node_down(now, spine).unwrap();
    let report = bed.bring_up();
    assert_eq!(report.vanished, 1);
    bed.assert_all_reachable();
    let now = bed.clock.now();
    bed.fabric.node_up(now, spine).unwrap();
    let report = bed.bring_up();
    assert_eq!(report.appeared, 1);
    bed.assert_all_reachable();
    assert_eq!(bed.fabric.port(spine, 0).unwrap().lid, lid);
}

/// A switch that reboots between two light sweeps loses its tables; only its own state shows that.
#[test]
fn a_rebooted_switch_gets_its_tables_again() {
    let settings = Settings { sweep_on_trap: false, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    for switch in bed.switches() {
        let now = bed.clock.now();
        bed.fabric.reboot(now, switch).unwrap();
        bed.bring_up();
        bed.assert_all_reachable();
    }
}

#[test]
fn a_rebooted_host_is_configured_again() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let host = bed.hosts()[7];
    let lid = bed.fabric.port(host, 1).unwrap().lid;
    let now = bed.clock.now();
    bed.fabric.reboot(now, host).unwrap();
    bed.bring_up();
    let port = bed.fabric.port(host, 1).unwrap();
    assert_eq!((port.lid, port.state), (lid, PortState::Active));
    bed.assert_all_reachable();
}

#[test]
fn five_percent_loss_delays_but_does_not_prevent() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.fabric.set_loss(None, Probability::new(0.05).unwrap()).unwrap();
    let all = (bed.hosts().len(), bed.switches().len());
    bed.run_until(MINUTE * 5, "all nodes up", |bed| {
        let sweeper = bed.sweeper();
        sweeper.is_up() && sweeper.phase() == Phase::Idle && sweeper.fabric().counts() == all
    });
    assert!(bed.sweeper().counters().retried > 0);
    bed.fabric.set_loss(None, Probability::NEVER).unwrap();
    bed.assert_all_reachable();
}

#[test]
fn a_node_that_disappears_in_the_middle_of_a_sweep_is_left_out() {
    let net = fat_tree(2, 8, 20);
    for smps in [20, 60, 150, 300, 450] {
        let mut bed = Bed::with_manager(&net, Settings::default());
        bed.run_until(MINUTE, "progress", |bed| bed.sweeper().counters().answered >= smps);
        let spine = *bed.switches().last().unwrap();
        let now = bed.clock.now();
        bed.fabric.node_down(now, spine).unwrap();
        bed.run_until(MINUTE, "subnet up without it", |bed| {
            let sweeper = bed.sweeper();
            let switches = sweeper.fabric().counts().1;
            sweeper.is_up() && sweeper.phase() == Phase::Idle && switches < bed.switches().len()
        });
        bed.assert_all_reachable();
    }
}

fn switch(guid: u64, ports: u8) -> Node {
    Node::new(NodeKind::Switch, Guid(guid), ports, LinkRate::default())
}

fn host(guid: u64) -> Node {
    Node::new(NodeKind::Ca, Guid(guid), 1, LinkRate::default())
}

/// Adds nodes and cables, each cable as two pairs of node and port.
fn net(nodes: Vec<Node>, cables: &[(u32, u8, u32, u8)]) -> Net {
    let mut net = Net::new();
    for (i, mut node) in nodes.into_iter().enumerate() {
        node.id = format!("node{i}");
        net.add_node(node);
    }
    for &(a, a_port, b, b_port) in cables {
        let (a, b) = (PortRef { node: a, port: a_port }, PortRef { node: b, port: b_port });
        net.connect(a, b).unwrap();
    }
    net
}

#[test]
fn two_hosts_with_one_guid_are_reported_and_the_rest_comes_up() {
    let nodes = vec![host(0x10), switch(0x20, 8), host(0x30), host(0x30), host(0x40)];
    let net = net(nodes, &[(0, 1, 1, 1), (2, 1, 1, 2), (3, 1, 1, 3), (4, 1, 1, 4)]);
    let mut bed = Bed::with_manager(&net, Settings::default());
    let report = bed.bring_up();
    assert_eq!((report.duplicate_guids, report.hosts), (1, 3));
}

/// Regression: a duplicate GUID was a problem until the next sweep of the whole fabric, which may
/// be never; that its link is left out was forgotten once the link was taken to Initialize.
#[test]
fn a_link_is_left_out_as_long_as_the_duplicate_behind_it_is_there() {
    let nodes = vec![
        host(0x10),
        switch(0x20, 8),
        host(0x30),
        host(0x30),
        host(0x40),
        switch(0x50, 8),
        host(0x60),
    ];
    let cables =
        [(0, 1, 1, 1), (2, 1, 1, 2), (3, 1, 1, 3), (4, 1, 1, 4), (5, 1, 1, 8), (6, 1, 5, 2)];
    let mut bed = Bed::with_manager(&net(nodes, &cables), Settings::default());
    let report = bed.bring_up();
    let place = report.duplicates[0].place.expect("a port of the switch");
    let left_out = |bed: &Bed| -> Vec<(Guid, PortNum)> {
        let fabric = bed.sweeper().fabric();
        let ports = bed.sweeper().left_out().iter();
        ports.map(|&port| (fabric.node_of(port).guid, fabric.port(port).num)).collect()
    };
    assert_eq!((place.0, left_out(&bed)), (Guid(0x20), vec![place]));
    let full = |bed: &Bed| bed.reports().iter().filter(|report| report.full).count();
    assert_eq!(full(&bed), 1);
    let [first, second] = bed.switches()[..] else { panic!() };
    let now = bed.clock.now();
    bed.fabric.link_down(now, second, 2).unwrap();
    bed.run_until(MINUTE, "the host is gone", |bed| {
        bed.sweeper().phase() == Phase::Idle && bed.sweeper().fabric().counts().0 == 3
    });
    assert_eq!(left_out(&bed), [place], "its switch was not read");
    let now = bed.clock.now();
    bed.fabric.link_down(now, first, place.1.0).unwrap();
    bed.run_until(MINUTE, "the duplicate is gone", |bed| bed.sweeper().left_out().is_empty());
    assert_eq!(full(&bed), 1, "without a sweep of the whole fabric");
}

#[test]
fn two_switches_with_one_guid_are_reported_though_their_ports_differ() {
    let nodes =
        vec![host(0x10), switch(0x20, 8), switch(0x50, 8), switch(0x50, 8), host(0x30), host(0x40)];
    let cables =
        [(0, 1, 1, 1), (2, 1, 1, 2), (3, 5, 1, 3), (4, 1, 2, 2), (5, 1, 3, 6), (2, 7, 3, 7)];
    let mut bed = Bed::with_manager(&net(nodes, &cables), Settings::default());
    bed.run_until(MINUTE, "a report", |bed| !bed.reports().is_empty());
    assert!(bed.reports()[0].duplicate_guids >= 1, "{:?}", bed.reports()[0]);
}

#[test]
fn cables_from_a_switch_to_itself_are_no_duplicates() {
    let nodes = vec![host(0x10), switch(0x20, 8), host(0x30)];
    let net = net(nodes, &[(0, 1, 1, 1), (2, 1, 1, 2), (1, 5, 1, 6)]);
    let mut bed = Bed::with_manager(&net, Settings::default());
    let report = bed.bring_up();
    assert_eq!((report.duplicate_guids, report.errors, report.links), (0, 0, 3));
    bed.assert_all_reachable();
}

#[test]
fn two_hosts_back_to_back_come_up_without_a_switch() {
    let net = net(vec![host(0x10), host(0x20)], &[(0, 1, 1, 1)]);
    let mut bed = Bed::with_manager(&net, Settings::default());
    let report = bed.bring_up();
    assert_eq!((report.hosts, report.switches, report.links), (2, 0, 1));
    bed.assert_all_reachable();
}

#[test]
fn lids_are_kept_over_a_restart_even_if_ports_lost_theirs() {
    let net = fat_tree(2, 8, 20);
    let mut bed = Bed::with_manager(&net, Settings::default());
    bed.bring_up();
    let before = bed.end_ports();
    let kept = LidTable::parse(&bed.sweeper().lids().render()).0;
    let mut bed = Bed::new(&net);
    let host = bed.hosts()[11];
    bed.manage(host, Settings::default(), kept);
    bed.bring_up();
    assert_eq!(bed.end_ports(), before);
    bed.assert_all_reachable();
}

/// MTU and VLs of a link can change only in Initialize, so that Active links must go down and come
/// up again.
#[test]
fn a_new_master_with_fewer_vls_takes_active_links_through_initialize() {
    let net = fat_tree(2, 8, 20);
    let mut bed = Bed::with_manager(&net, Settings::default());
    bed.bring_up();
    bed.crash_manager();
    let host = bed.hosts()[5];
    bed.manage(host, Settings { max_op_vls: 1, ..Settings::default() }, LidTable::default());
    bed.bring_up();
    assert_eq!(bed.reports()[0].errors, 0, "at the first try");
    bed.assert_all_reachable();
    for port in bed.sweeper().fabric().end_ports() {
        let port = bed.sweeper().fabric().port(port);
        assert!(port.num.0 == 0 || port.port_info().operational_vls() == 1);
    }
}

/// Regression: the fabric was published as the SM's own node alone, and the subnet reported as up.
#[test]
fn a_silent_fabric_is_neither_up_nor_forgotten() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let (home, known) = (bed.hosts()[0], bed.sweeper().fabric().counts());
    let link = bed.fabric.port(home, 1).unwrap().link.unwrap();
    let all = Probability::new(1.0).unwrap();
    for end in [(home, 1), (link.node, link.port)] {
        bed.fabric.set_loss(Some(end), all).unwrap();
    }
    let published = bed.reports().len();
    bed.run_until(MINUTE, "not up", |bed| !bed.sweeper().is_up());
    bed.run_for(MINUTE);
    assert!(!bed.sweeper().is_up() && bed.sweeper().sweeps_given_up() > 1);
    assert_eq!(bed.sweeper().fabric().counts(), known, "left as it was last seen");
    assert_eq!(bed.reports().len(), published, "and nothing is published");
    for end in [(home, 1), (link.node, link.port)] {
        bed.fabric.set_loss(Some(end), Probability::NEVER).unwrap();
    }
    bed.run_until(MINUTE, "up again", |bed| bed.sweeper().is_up());
    assert_eq!(bed.sweeper().sweeps_given_up(), 0);
    bed.assert_all_reachable();
}

#[test]
fn a_second_manager_stands_by_and_takes_over_when_the_first_is_gone() {
    let net = fat_tree(2, 8, 20);
    let mut bed = Bed::new(&net);
    let (first, second) = (bed.hosts()[3], bed.hosts()[14]);
    bed.manage(second, Settings { sm_priority: 15, ..Settings::default() }, LidTable::default());
    bed.bring_up();
    bed.manage(first, Settings::default(), LidTable::default());
    bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
    assert_eq!(bed.managers[1].sweeper.sm_state(), SmState::Standby);
    bed.run_for(Duration::from_secs(30));
    assert_eq!(bed.managers[1].sweeper.sm_state(), SmState::Standby, "the master answers polls");

    bed.managers.swap(0, 1);
    bed.crash_manager();
    bed.run_until(Duration::from_secs(120), "take-over", |bed| bed.sweeper().is_up());
    bed.assert_all_reachable();
    let lid = bed.fabric.local_lid(bed.managers[0].endpoint).unwrap();
    for (node, num, ..) in bed.end_ports() {
        assert_eq!(bed.fabric.port(node, num).unwrap().master_sm_lid, lid);
    }
}

/// No trap arrives when the switch next to the manager fails, and all other nodes stop answering.
#[test]
fn a_dead_switch_next_to_the_manager_is_noticed_soon_and_so_is_its_return() {
    let mut bed = Bed::with_manager(&fat_tree(3, 8, 128), Settings::default());
    bed.bring_up();
    let leaf = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    let now = bed.clock.now();
    bed.fabric.node_down(now, leaf).unwrap();
    bed.run_until(Duration::from_secs(15), "loss noticed", |bed| !bed.sweeper().is_up());
    let now = bed.clock.now();
    bed.fabric.node_up(now, leaf).unwrap();
    bed.run_until(Duration::from_secs(70), "all back", |bed| {
        let sweeper = bed.sweeper();
        let all = (bed.hosts().len(), bed.switches().len());
        sweeper.is_up() && sweeper.phase() == Phase::Idle && sweeper.fabric().counts() == all
    });
    bed.assert_all_reachable();
}

#[test]
fn many_changes_at_once_are_all_found() {
    let mut bed = Bed::with_manager(&fat_tree(3, 8, 128), Settings::default());
    bed.bring_up();
    let now = bed.clock.now();
    let home = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    for (i, switch) in bed.switches().into_iter().enumerate() {
        if switch == home {
            continue;
        }
        if i % 9 == 0 {
            bed.fabric.node_down(now, switch).unwrap();
        } else if i % 5 == 0 {
            bed.fabric.link_down(now, switch, 8).unwrap();
        }
    }
    bed.run_until(MINUTE, "settled", |bed| {
        let sweeper = bed.sweeper();
        let down = bed.switches().iter().filter(|&&switch| !bed.fabric.node(switch).up).count();
        let left = bed.switches().len() - down;
        sweeper.is_up() && sweeper.phase() == Phase::Idle && sweeper.fabric().counts().1 == left
    });
    bed.run_for(Duration::from_secs(25));
    bed.assert_sound();
}

/// A pulled cable of the SM's own port does not change the known fabric.
#[test]
fn while_its_own_port_is_down_the_manager_keeps_the_fabric_it_knows() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let (known, reports) = (bed.sweeper().fabric().counts(), bed.reports().len());
    let home = bed.hosts()[0];
    let now = bed.clock.now();
    bed.fabric.link_down(now, home, 1).unwrap();
    bed.run_until(MINUTE, "down", |bed| !bed.sweeper().is_up());
    bed.run_for(MINUTE);
    assert_eq!((bed.sweeper().fabric().counts(), bed.reports().len()), (known, reports));
    assert!(!bed.sweeper().is_up());

    let now = bed.clock.now();
    bed.fabric.link_up(now, home, 1).unwrap();
    let report = bed.bring_up();
    assert!(report.full && (report.appeared, report.vanished) == (0, 0), "{report:?}");
    assert!(bed.clock.now() - now < Duration::from_secs(10));
    bed.assert_all_reachable();
}

/// While a node changes its client, the simulator returns SMPs at once. Repeated as quickly, all
/// retries would be used up immediately.
#[test]
fn a_moment_in_which_smps_come_back_undelivered_costs_no_node() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let mut returned = 0;
    bed.tamper = Some(Box::new(move |packet| {
        returned += 1;
        if (10..30).contains(&returned) {
            packet.carrier.undelivered = 110;
        }
    }));
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    let report = bed.bring_up();
    assert_eq!((report.vanished, report.errors), (0, 0), "{report:?}");
    assert_eq!(bed.sweeper().counters().expired, 0);
    assert!(bed.clock.now() - now >= Duration::from_millis(200), "it waited");
}

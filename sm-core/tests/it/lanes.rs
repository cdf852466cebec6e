//! Engines that separate routes by SL: packets, on the SLs of a snapshot and by the programmed
//! tables, never wait for each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Bed, DISK, fat_tree};
use fabric_sim::generate::{Common, Dragonfly, Grid, HyperX, Shape, generate};
use ib_mad::netlist::Net;
use ib_mad::types::{Guid, Lid, PortNum, Sl};
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::Smp;
use sa_proto::snapshot::{FabricPlane, Node, find};
use sm_config::{Settings, SitePolicy};
use sm_routing::multicast::Audience;

/// A link by its sender, and a virtual lane.
type Channel = (Guid, u8, u8);

fn torus(sizes: &[u16], hosts_per_switch: u8) -> Net {
    let grid = Grid { dims: sizes.to_vec(), wraps: true, hosts_per_switch, radix: None };
    generate(&Shape::Grid(grid), &Common::default()).unwrap()
}

fn with_engine(names: &str) -> Settings {
    let mut settings = Settings::default();
    settings.set("routing_engine", names).unwrap();
    settings
}

fn plane(bed: &Bed) -> FabricPlane {
    bed.plane().checked().unwrap()
}

/// Follows packets by a snapshot alone.
struct Packets<'a> {
    plane: &'a FabricPlane,
    /// Dependencies between channels.
    next: BTreeMap<Channel, BTreeSet<Channel>>,
    lanes: BTreeSet<u8>,
}

impl<'a> Packets<'a> {
    fn new(plane: &'a FabricPlane) -> Self {
        Self { plane, next: BTreeMap::new(), lanes: BTreeSet::new() }
    }

    fn hosts(&self) -> Vec<(&'a Node, Lid)> {
        let hosts = self.plane.nodes.iter().filter(|node| node.switch_info.is_none());
        hosts
            .map(|node| {
                let lid = PortInfo::new(&node.ports[0].info[..]).unwrap().base_lid();
                (&**node, lid)
            })
            .collect()
    }

    fn sl(&self, source: &Node, lid: Lid) -> u8 {
        let (switch, _) = source.ports[0].peer.unwrap();
        let row = find(&self.plane.path_sls, switch).expect("every switch has a row");
        row.sls[lid.index()]
    }

    /// The VL that a node has for an SL.
    fn vl(&self, node: Guid, ports: (u8, u8), sl: u8) -> u8 {
        let row = find(&self.plane.port_tables, node).expect("every port has its tables");
        let at = row.sl_to_vl.binary_search_by_key(&ports, |&(ports, _)| ports);
        let at = at.unwrap_or_else(|_| panic!("{node} has no map for ports {ports:?}"));
        let map = row.sl_to_vl_maps[usize::from(row.sl_to_vl[at].1)];
        map[usize::from(sl / 2)] >> (4 * (1 - sl % 2)) & 0xF
    }

    /// Sends a packet of a group, and all copies of it; returns the receivers.
    fn send_group(&mut self, source: &Node, mlid: Lid, sl: u8) -> Vec<Guid> {
        let (first, in_port) = source.ports[0].peer.unwrap();
        let mut copies = vec![(first, in_port.0, None)];
        let mut heard = Vec::new();
        while let Some((at, in_port, before)) = copies.pop() {
            let node = find(&self.plane.nodes, at).unwrap();
            for out in self.group_ports(at, mlid).into_iter().filter(|&out| out != in_port) {
                let (peer, peer_port) = node.port(PortNum(out)).unwrap().peer.unwrap();
                let vl = self.vl(at, (in_port, out), sl);
                assert_ne!(vl, 15, "dropped on its way");
                let channel = (at, out, vl);
                if let Some(before) = before {
                    self.next.entry(before).or_default().insert(channel);
                }
                if find(&self.plane.nodes, peer).unwrap().switch_info.is_none() {
                    heard.push(peer);
                } else {
                    copies.push((peer, peer_port.0, Some(channel)));
                }
            }
            assert!(copies.len() < 1000, "{mlid} goes round in circles");
        }
        heard
    }

    /// The ports by which a switch forwards packets to a group.
    fn group_ports(&self, switch: Guid, mlid: Lid) -> Vec<u8> {
        let Some(mft) = find(&self.plane.mfts, switch) else { return Vec::new() };
        let number = usize::from(mlid.0 - 0xC000);
        let of_block = mft.blocks.iter().filter(|block| usize::from(block.block) == number / 32);
        let ports = of_block.flat_map(|block| {
            let mask = &block.masks[number % 32 * 2..][..2];
            let mask = u16::from_be_bytes([mask[0], mask[1]]);
            (0..16).filter(move |bit| mask >> bit & 1 == 1).map(|bit| block.position * 16 + bit)
        });
        ports.collect()
    }

    fn send(&mut self, source: &Node, lid: Lid, sl: u8) {
        assert_ne!(self.vl(source.guid, (0, 0), sl), 15, "dropped at its source");
        let (mut at, mut in_port) = source.ports[0].peer.unwrap();
        let mut before: Option<Channel> = None;
        for _ in 0..64 {
            let out = find(&self.plane.lfts, at).unwrap().ports[lid.index()];
            let node = find(&self.plane.nodes, at).unwrap();
            let (peer, peer_port) = node.port(PortNum(out)).unwrap().peer.unwrap();
            let vl = self.vl(at, (in_port.0, out), sl);
            assert_ne!(vl, 15, "dropped on its way");
            let channel = (at, out, vl);
            if let Some(before) = before.replace(channel) {
                self.next.entry(before).or_default().insert(channel);
            }
            if find(&self.plane.nodes, peer).unwrap().switch_info.is_none() {
                return;
            }
            self.lanes.insert(vl);
            (at, in_port) = (peer, peer_port);
        }
        panic!("LID {lid} goes round in circles");
    }

    /// Whether some wait for each other.
    fn has_loop(&self) -> bool {
        let mut waiting: BTreeMap<Channel, usize> = BTreeMap::new();
        for &to in self.next.values().flatten() {
            *waiting.entry(to).or_default() += 1;
        }
        let mut all: BTreeSet<Channel> = waiting.keys().copied().collect();
        all.extend(self.next.keys());
        let is_ready = |channel: &&Channel| !waiting.contains_key(channel);
        let mut ready: Vec<Channel> = all.iter().filter(is_ready).copied().collect();
        let mut gone = 0;
        while let Some(channel) = ready.pop() {
            gone += 1;
            for to in self.next.get(&channel).into_iter().flatten() {
                let left = waiting.get_mut(to).unwrap();
                *left -= 1;
                if *left == 0 {
                    ready.push(*to);
                }
            }
        }
        gone < all.len()
    }
}

/// Sends packets between all hosts; returns the lanes of links between switches that they used, and
/// whether packets can wait for each other in a cycle.
fn traffic(plane: &FabricPlane) -> (usize, bool) {
    let packets = unicast(plane);
    (packets.lanes.len(), packets.has_loop())
}

fn unicast(plane: &FabricPlane) -> Packets<'_> {
    let mut packets = Packets::new(plane);
    let hosts = packets.hosts();
    for &(source, own) in &hosts {
        for &(_, lid) in hosts.iter().filter(|(_, lid)| *lid != own) {
            let sl = packets.sl(source, lid);
            packets.send(source, lid, sl);
            // Where the upper bit is policy's, some packets have it set.
            if plane.subnet.engine_sls == 7 {
                packets.send(source, lid, sl | 8);
            }
        }
    }
    packets
}

/// Makes groups of every `step`-th host from the `first` on, with these SLs, and waits until their
/// trees are programmed.
fn join(bed: &mut Bed, groups: &[(Lid, usize, usize, u8)]) {
    let hosts = bed.hosts();
    let group = |&(mlid, first, step, sl): &(Lid, usize, usize, u8)| {
        let members = hosts.iter().skip(first).step_by(step);
        let mut guids: Vec<Guid> =
            members.map(|&host| bed.fabric.port(host, 1).unwrap().guid).collect();
        guids.sort_unstable();
        (mlid, Audience::new(guids, sl))
    };
    let membership = groups.iter().map(group).collect();
    bed.managers[0].sweeper.put_members(membership);
    bed.run_for(Duration::from_secs(1));
}

/// Sends packets between all hosts, and from each member of a group to the others; returns whether
/// they can wait for each other in a cycle.
fn loops_with_groups(bed: &Bed, plane: &FabricPlane, groups: &[(Lid, usize, usize, u8)]) -> bool {
    let mut packets = unicast(plane);
    let hosts: BTreeMap<Guid, &Node> =
        packets.hosts().into_iter().map(|(node, _)| (node.guid, node)).collect();
    for &(mlid, first, step, sl) in groups {
        let members = bed.hosts().into_iter().skip(first).step_by(step);
        let members: BTreeSet<Guid> = members.map(|host| bed.fabric.node(host).guid).collect();
        for &from in &members {
            let heard = packets.send_group(hosts[&from], mlid, sl);
            assert_eq!(heard.len(), members.len() - 1, "{mlid}: each hears once");
            let heard: BTreeSet<Guid> = heard.into_iter().chain([from]).collect();
            assert_eq!(heard, members, "{mlid}");
        }
    }
    packets.has_loop()
}

/// Regression: trees were chosen by hops alone, regardless of the dependencies of unicast.
#[test]
fn trees_of_groups_close_no_cycle_with_unicast() {
    let groups = [
        (Lid(0xC000), 0, 1, 0),
        (Lid(0xC001), 0, 2, 1),
        (Lid(0xC002), 1, 3, 0),
        (Lid(0xC003), 2, 5, 2),
        (Lid(0xC004), 0, 7, 0),
    ];
    for engine in ["lash", "dfsssp", "nue"] {
        let mut settings = with_engine(engine);
        settings.set("nue_max_num_vls", "4").unwrap();
        let mut bed = Bed::with_manager(&torus(&[4, 4], 2), settings);
        bed.bring_up();
        join(&mut bed, &groups);
        let plane = plane(&bed);
        // On a torus, unicast may leave a lane no room for any tree of all switches, which is
        // reported.
        let warnings = bed.sweeper().multicast_warnings();
        let is_reported =
            |mlid: Lid| warnings.iter().any(|line| line.contains(&format!("{:#06x}", mlid.0)));
        let free: Vec<_> = groups.into_iter().filter(|&(mlid, ..)| !is_reported(mlid)).collect();
        assert_eq!(groups.len() - free.len(), warnings.len(), "{engine}: {warnings:?}");
        assert!(!loops_with_groups(&bed, &plane, &free), "{engine}");
        let is_certain = warnings.iter().any(|line| line.contains("with unicast"));
        assert!(!is_certain || loops_with_groups(&bed, &plane, &groups), "{engine}: {warnings:?}");
        // Nue uses up its lanes.
        assert!(warnings.len() < 2 || engine == "nue", "{engine}: {warnings:?}");
    }
}

/// Regression: only `ibsm plan` reported that replies on the SL of their request can deadlock.
#[test]
fn loops_of_replies_are_reported() {
    let mut found = BTreeSet::new();
    for (engine, sizes) in
        [("lash", [4, 4]), ("dfsssp", [4, 4]), ("dfsssp", [6, 6]), ("nue", [4, 4])]
    {
        let mut settings = with_engine(engine);
        settings.set("nue_max_num_vls", "4").unwrap();
        let mut bed = Bed::with_manager(&torus(&sizes, 2), settings);
        bed.bring_up();
        bed.run_for(Duration::from_secs(1));
        let plane = plane(&bed);
        let mut packets = unicast(&plane);
        let hosts = packets.hosts();
        for &(source, own) in &hosts {
            for &(replying, lid) in hosts.iter().filter(|(_, lid)| *lid != own) {
                let sl = packets.sl(source, lid);
                packets.send(replying, own, sl);
            }
        }
        let has_loop = packets.has_loop();
        found.insert(has_loop);
        let is_reported = !bed.sweeper().are_replies_loop_free();
        assert_eq!(is_reported, has_loop, "{engine} {sizes:?}");
    }
    assert_eq!(found.len(), 2, "there are routings of both kinds");
}

/// The cycle is described by the names that operators know.
#[test]
fn a_tree_that_must_close_a_cycle_is_used_and_reported() {
    let mut bed = Bed::with_manager(&torus(&[9], 2), with_engine("lash"));
    bed.bring_up();
    let groups = [(Lid(0xC000), 0, 1, 0)];
    join(&mut bed, &groups);
    let plane = plane(&bed);
    let has_loop = loops_with_groups(&bed, &plane, &groups);
    let warnings = bed.sweeper().multicast_warnings();
    assert_eq!(has_loop, !warnings.is_empty(), "{warnings:?}");
    assert_eq!(bed.sweeper().multicast_loops(), warnings.len());
    for line in &warnings {
        assert!(line.contains("MLID 0xc000") && line.contains("' port "), "{line}");
    }
}

#[test]
fn layers_reach_paths_and_switches() {
    for engine in ["lash", "dfsssp", "nue"] {
        let mut settings = with_engine(engine);
        settings.set("nue_max_num_vls", "4").unwrap();
        let mut bed = Bed::with_manager(&torus(&[4, 4], 2), settings);
        let report = bed.bring_up();
        assert_eq!((report.errors, report.anomalies), (0, 0), "{report:?}");
        assert_eq!(bed.sweeper().routing_engine(), engine);
        bed.assert_all_reachable();
        let plane = plane(&bed);
        assert_eq!(plane.subnet.engine_sls, 0xF);
        let (lanes, has_loop) = traffic(&plane);
        assert!(lanes > 1, "{engine} needs lanes on a torus");
        assert!(!has_loop, "{engine}");
        assert!(bed.sweeper().is_loop_free());

        // On one SL all of it would wait for itself: the test detects that.
        let mut flat = plane.clone();
        for row in &mut flat.path_sls {
            Arc::make_mut(row).sls.fill(0);
        }
        assert!(traffic(&flat).1, "{engine} on one lane");
    }
}

/// With an LMC each LID of a host has other paths; the SL of each is that of its row, and a reply
/// to any LID of the source on that SL closes no cycle.
#[test]
fn detours_reach_paths_and_switches() {
    let shape = HyperX { dims: vec![4, 4], hosts_per_switch: 2, radix: None };
    let net = generate(&Shape::HyperX(shape), &Common::default()).unwrap();
    let mut settings = with_engine("layers");
    settings.set("lmc", "2").unwrap();
    let mut bed = Bed::with_manager(&net, settings);
    let report = bed.bring_up();
    assert_eq!((report.errors, report.anomalies), (0, 0), "{report:?}");
    assert_eq!(bed.sweeper().routing_engine(), "layers");
    assert!(bed.sweeper().is_loop_free() && bed.sweeper().are_replies_loop_free());
    let plane = plane(&bed);
    assert_eq!(plane.subnet.engine_sls, 0xF);
    let mut packets = Packets::new(&plane);
    let hosts = packets.hosts();
    let lids = |base: Lid| (0..4).map(move |offset| Lid(base.0 + offset));
    let mut sls = BTreeSet::new();
    for &(source, own) in &hosts {
        for &(replying, base) in hosts.iter().filter(|(_, lid)| *lid != own) {
            for lid in lids(base) {
                let sl = packets.sl(source, lid);
                packets.send(source, lid, sl);
                sls.insert(sl);
                lids(own).for_each(|own| packets.send(replying, own, sl));
            }
        }
    }
    assert!(!packets.has_loop());
    assert!(sls.len() > 1, "{sls:?}");
}

/// On a torus the VL of an SL depends on the switch and on the ports by which a packet arrives and
/// leaves.
#[test]
fn lanes_of_a_torus_reach_paths_and_switches() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("torus-2QoS.conf");
    let mut settings = with_engine("torus-2QoS");
    settings.partition_config_file = None;
    settings.torus_config = Some(config.to_string_lossy().into_owned());
    let mut bed = Bed::with_manager(&torus(&[5, 5], 1), settings.clone());
    let guids: Vec<Guid> = bed.switches().iter().map(|&at| bed.fabric.node(at).guid).collect();
    let (seed, along_y, along_x) = (guids[0], guids[1], guids[5]);
    let text = format!("torus 5 5 1\nxp_link {seed} {along_x}\nyp_link {seed} {along_y}\n");
    std::fs::write(&config, text).unwrap();
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
    bed.managers[0].sweeper.set_routing_files(policy.routing.clone());
    let report = bed.bring_up();
    assert_eq!((report.errors, report.anomalies), (0, 0), "{report:?}");
    assert_eq!(bed.sweeper().routing_engine(), "torus-2QoS");
    bed.assert_all_reachable();
    let groups = [(Lid(0xC000), 0, 1, 0), (Lid(0xC001), 1, 2, 8), (Lid(0xC002), 2, 3, 0)];
    join(&mut bed, &groups);
    let mut plane = plane(&bed);
    assert_eq!(plane.subnet.engine_sls, 7);
    // Regression: switches were addressed before they were routed, and asked on SL 0.
    let sm_lid = bed.fabric.local_lid(bed.managers[0].endpoint).unwrap();
    let asked_on = |guid: Guid| {
        let node = find(&plane.nodes, guid).unwrap();
        PortInfo::of(&node.ports[0].info).master_sm_sl().get()
    };
    let sls: Vec<u8> = guids.iter().map(|&guid| asked_on(guid)).collect();
    let row = |guid: &Guid| find(&plane.path_sls, *guid).unwrap().sls[sm_lid.index()];
    assert_eq!(sls, guids.iter().map(row).collect::<Vec<_>>());
    assert!(sls.iter().any(|&sl| sl != 0));
    assert_eq!(traffic(&plane), (4, false), "two lanes for each level");
    assert!(!loops_with_groups(&bed, &plane, &groups));
    assert!(bed.sweeper().multicast_warnings().is_empty());
    // On its own tree, as documented: a trunk along x, and branches along y from it. The switch at
    // its centre has neighbours both ways on both axes, none of the others has more than one on x
    // but those of the trunk.
    let switch_links = |&at: &usize| {
        let ports = Packets::new(&plane).group_ports(guids[at], Lid(0xC000));
        let node = find(&plane.nodes, guids[at]).unwrap();
        let peers = ports.iter().map(|&port| node.port(PortNum(port)).unwrap().peer.unwrap().0);
        peers.filter(|peer| guids.contains(peer)).count()
    };
    let mut by_links = [0; 5];
    (0..25).for_each(|at| by_links[switch_links(&at)] += 1);
    assert_eq!(by_links, [0, 10, 10, 2, 3], "{by_links:?}");
    for row in &mut plane.path_sls {
        Arc::make_mut(row).sls.fill(0);
    }
    assert!(traffic(&plane).1, "without the datelines' SLs");
}

/// In a dragonfly any SL may be used: ports alone decide on the VL, within the QoS level of the SL.
#[test]
fn lanes_of_a_dragonfly_reach_switches() {
    let shape =
        Dragonfly { groups: 5, routers: 4, hosts_per_router: 2, global_links: 1, radix: None };
    let net = generate(&Shape::Dragonfly(shape), &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, with_engine("dla"));
    let report = bed.bring_up();
    assert_eq!((report.errors, report.anomalies), (0, 0), "{report:?}");
    assert_eq!(bed.sweeper().routing_engine(), "dla");
    bed.assert_all_reachable();
    assert!(bed.sweeper().is_loop_free() && bed.sweeper().are_replies_loop_free());
    let groups = [(Lid(0xC000), 0, 1, 0), (Lid(0xC001), 1, 2, 1), (Lid(0xC002), 2, 3, 0)];
    join(&mut bed, &groups);
    let mut plane = plane(&bed);
    assert!(plane.path_sls.is_empty() && plane.subnet.engine_sls == 0);
    assert!(bed.sweeper().multicast_warnings().is_empty());
    let sent = |plane: &FabricPlane, with_groups: bool| {
        let mut packets = Packets::new(plane);
        let hosts = packets.hosts();
        for &(source, own) in &hosts {
            for &(_, lid) in hosts.iter().filter(|(_, lid)| *lid != own) {
                (0..2).for_each(|sl| packets.send(source, lid, sl));
            }
        }
        for &(mlid, first, step, sl) in groups.iter().filter(|_| with_groups) {
            for &(source, _) in hosts.iter().skip(first).step_by(step) {
                packets.send_group(source, mlid, sl);
            }
        }
        (packets.lanes.clone(), packets.has_loop())
    };
    let two_of_each_level = BTreeSet::from([0, 1, 2, 3]);
    assert_eq!(sent(&plane, false), (two_of_each_level, false));
    assert!(!sent(&plane, true).1, "with groups");
    // On one lane all of it would wait for itself.
    for row in &mut plane.port_tables {
        let row = Arc::make_mut(row);
        row.sl_to_vl_maps = row.sl_to_vl_maps.iter().map(|_| [0; 8]).collect();
    }
    assert!(sent(&plane, false).1);
}

/// Ports query the SM on the SL of their own path to it.
#[test]
fn ports_ask_the_sm_on_the_lane_of_their_path() {
    let mut bed = Bed::with_manager(&torus(&[5], 1), with_engine("lash"));
    bed.bring_up();
    let plane = plane(&bed);
    let packets = Packets::new(&plane);
    let mut sls = BTreeSet::new();
    for (node, own) in packets.hosts() {
        let info = PortInfo::new(&node.ports[0].info[..]).unwrap();
        let expected = if own == info.master_sm_lid() {
            info.master_sm_sl().get()
        } else {
            packets.sl(node, info.master_sm_lid())
        };
        assert_eq!(info.master_sm_sl().get(), expected, "{}", node.guid);
        sls.insert(info.master_sm_sl().get());
    }
    assert!(sls.len() > 1, "a ring has paths to one host on two lanes");
}

/// SLs that the front door gives redirected clients, between any two hosts.
#[test]
fn the_sl_between_two_hosts_follows_from_their_lids() {
    let mut bed = Bed::with_manager(&torus(&[5], 2), with_engine("lash"));
    bed.bring_up();
    let (plane, sls) = (plane(&bed), bed.sweeper().sls_of_paths());
    let packets = Packets::new(&plane);
    let mut warnings = BTreeSet::new();
    let chosen = Sl::from_low_bits(9);
    for (from, slid) in packets.hosts() {
        for (to, dlid) in packets.hosts() {
            let sl = sls.sl(slid, dlid, chosen);
            assert_eq!(sl.get(), packets.sl(from, dlid), "{} to {}", from.guid, to.guid);
            warnings.insert(sl.get());
        }
        assert_eq!(sls.sl(slid, Lid(0xBFFF), chosen), chosen, "no port has that LID");
    }
    assert!(warnings.len() > 1);
    // An engine that leaves SLs alone leaves policy's.
    let mut bed = Bed::with_manager(&torus(&[5], 1), with_engine("dnup"));
    bed.bring_up();
    assert_eq!(bed.sweeper().sls_of_paths().sl(Lid(1), Lid(2), chosen), chosen);
}

/// Ports with a single data VL cannot separate routes.
#[test]
fn an_engine_without_enough_lanes_is_passed_over() {
    let mut settings = with_engine("lash,dfsssp,dnup");
    settings.set("max_op_vls", "1").unwrap();
    let mut bed = Bed::with_manager(&torus(&[5], 1), settings);
    let report = bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dnup");
    assert_eq!(report.anomalies, 2, "both are reported");
    let plane = plane(&bed);
    assert!(plane.path_sls.is_empty() && plane.subnet.engine_sls == 0);
    bed.assert_all_reachable();
}

/// SLs that the operator maps to one VL do not separate routes either.
#[test]
fn lanes_are_those_that_sls_are_mapped_to() {
    let mut settings = with_engine("dfsssp,dnup");
    settings.set("qos_sl2vl", "0,0,0,0,0,0,0,0").unwrap();
    let mut bed = Bed::with_manager(&torus(&[5], 1), settings);
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dnup");
}

/// Of two engines the one without credit loops is used, in either order. If both have them, the
/// first one is used.
#[test]
fn an_engine_with_credit_loops_gives_way_to_one_without() {
    for (engines, used, free) in [
        ("sssp,dnup", "dnup", true),
        ("dnup,sssp", "dnup", true),
        ("sssp", "sssp", false),
        ("minhop", "minhop", false),
    ] {
        let mut bed = Bed::with_manager(&torus(&[5], 1), with_engine(engines));
        bed.bring_up();
        // Where there is no choice, loops are looked for afterwards.
        bed.run_for(Duration::from_millis(1));
        assert_eq!(bed.sweeper().routing_engine(), used, "{engines}");
        assert_eq!(bed.sweeper().is_loop_free(), free, "{engines}");
    }
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), with_engine("sssp,dnup"));
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "sssp");
}

/// Position of requests for forwarding tables or lanes, in the order sent.
fn recorded(bed: &mut Bed) -> Arc<Mutex<Vec<AttributeId>>> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = sent.clone();
    bed.lie = Some(Box::new(move |_, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        let id = smp.attribute_id();
        let counts = [AttributeId::LINEAR_FORWARDING_TABLE, AttributeId::SL_TO_VL_MAPPING_TABLE]
            .contains(&id);
        if smp.method() == Method::SET && counts {
            log.lock().unwrap().push(id);
        }
    }));
    sent
}

/// Regression: New routes used the old lanes until all ports were set, which takes as many requests
/// as the fabric has ports.
#[test]
fn ports_in_use_know_lanes_before_switches_know_routes() {
    let mut bed = Bed::with_manager(&torus(&[4, 4], 2), with_engine("minhop"));
    bed.bring_up();
    let sent = recorded(&mut bed);
    let now = bed.clock.now();
    let sweeper = &mut bed.managers[0].sweeper;
    sweeper.follow_settings(&with_engine("dfsssp"));
    sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dfsssp");
    let moved = std::mem::take(&mut *sent.lock().unwrap());
    let (lanes, routes) =
        (AttributeId::SL_TO_VL_MAPPING_TABLE, AttributeId::LINEAR_FORWARDING_TABLE);
    let first = moved.iter().position(|id| *id == routes).expect("routes differ");
    assert!(first > 0 && !moved[first..].contains(&lanes), "{moved:?}");
    // From nothing it takes the same number of them.
    let mut fresh = Bed::with_manager(&torus(&[4, 4], 2), with_engine("dfsssp"));
    let sent = recorded(&mut fresh);
    fresh.bring_up();
    let count = sent.lock().unwrap().iter().filter(|id| **id == lanes).count();
    assert_eq!(count, first);
}

//! Engines that keep routes apart by SL: whether packets, on the SLs that a snapshot tells and by
//! the tables that switches were given, can ever wait for each other in a circle.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::{Bed, fat_tree};
use fabric_sim::generate::{Common, Grid, Shape, generate};
use ib_mad::netlist::Net;
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::PortInfo;
use sa_proto::snapshot::{FabricPlane, Node, find};
use sm_core::config::{Settings, SitePolicy};
use sm_core::fabric::SubnetParameters;

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
    let sweeper = bed.sweeper();
    let plane = sweeper.fabric().plane(&SubnetParameters {
        prefix: 0,
        lifetime: 18,
        sa_key: 1,
        routing_engine: sweeper.routing_engine().to_owned(),
        engine_sls: sweeper.engine_sls(),
        path_sls: sweeper.path_sls(),
        managers: Vec::new(),
        policy: Default::default(),
    });
    plane.checked().unwrap()
}

/// Follows packets by a snapshot alone.
struct Packets<'a> {
    plane: &'a FabricPlane,
    /// What waits for what.
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

/// Sends packets between all hosts; yields the lanes between switches that they took, and whether
/// they can wait for each other in a circle.
fn traffic(plane: &FabricPlane) -> (usize, bool) {
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
    (packets.lanes.len(), packets.has_loop())
}

#[test]
fn layers_reach_paths_and_switches() {
    for engine in ["lash", "dfsssp", "nue"] {
        let mut settings = with_engine(engine);
        settings.set("nue_max_num_vls", "4").unwrap();
        let mut bed = Bed::with_manager(&torus(&[4, 4], 2), settings);
        let report = bed.bring_up();
        assert_eq!((report.errors, report.oddities), (0, 0), "{report:?}");
        assert_eq!(bed.sweeper().routing_engine(), engine);
        bed.assert_all_reachable();
        let plane = plane(&bed);
        assert_eq!(plane.subnet.engine_sls, 0xF);
        let (lanes, has_loop) = traffic(&plane);
        assert!(lanes > 1, "{engine} needs lanes on a torus");
        assert!(!has_loop, "{engine}");
        assert!(bed.sweeper().is_loop_free());

        // On one SL all of it would wait for itself: the test can tell.
        let mut flat = plane.clone();
        for row in &mut flat.path_sls {
            Arc::make_mut(row).sls.fill(0);
        }
        assert!(traffic(&flat).1, "{engine} on one lane");
    }
}

/// On a torus an SL has another VL at each switch, by the ports that a packet comes and goes by.
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
    let (policy, _) = SitePolicy::load(&settings).unwrap();
    bed.managers[0].sweeper.set_routing_files(policy.routing.clone());
    let report = bed.bring_up();
    assert_eq!((report.errors, report.oddities), (0, 0), "{report:?}");
    assert_eq!(bed.sweeper().routing_engine(), "torus-2QoS");
    bed.assert_all_reachable();
    let mut plane = plane(&bed);
    assert_eq!(plane.subnet.engine_sls, 7);
    assert_eq!(traffic(&plane), (4, false), "two lanes for each level");
    for row in &mut plane.path_sls {
        Arc::make_mut(row).sls.fill(0);
    }
    assert!(traffic(&plane).1, "without the datelines' SLs");
}

/// What asks the SM takes the SL of its own path to it.
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

/// Ports that have a single data VL keep nothing apart.
#[test]
fn an_engine_without_enough_lanes_is_passed_over() {
    let mut settings = with_engine("lash,dfsssp,dnup");
    settings.set("max_op_vls", "1").unwrap();
    let mut bed = Bed::with_manager(&torus(&[5], 1), settings);
    let report = bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dnup");
    assert_eq!(report.oddities, 2, "both are told of");
    let plane = plane(&bed);
    assert!(plane.path_sls.is_empty() && plane.subnet.engine_sls == 0);
    bed.assert_all_reachable();
}

/// SLs that the operator maps to one VL are no lanes either.
#[test]
fn lanes_are_those_that_sls_are_mapped_to() {
    let mut settings = with_engine("dfsssp,dnup");
    settings.set("qos_sl2vl", "0,0,0,0,0,0,0,0").unwrap();
    let mut bed = Bed::with_manager(&torus(&[5], 1), settings);
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dnup");
}

/// Of two engines the one without credit loops is taken, whichever is named first; if there is none,
/// the first.
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

//! Bandwidth, priority and queue lifetimes of virtual fabrics at simulated ports.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Bed, DISK, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::netlist::Net;
use ib_mad::types::Guid;
use sm_config::opafm::{self, Instance, OpaFm};
use sm_config::{Settings, SitePolicy};
use sm_core::manage::policy::{self, InForce};

/// Three virtual fabrics: one by its group with 20 %, one of high priority, one without QoS.
const QOS: &str = "<QOSGroups><QOSGroup><Name>Bulk</Name><Enable>1</Enable><BaseSL>1</BaseSL>\
    <Bandwidth>20%</Bandwidth></QOSGroup></QOSGroups><VirtualFabrics><VirtualFabric><Name>Storage\
    </Name><QOSGroup>Bulk</QOSGroup><Member>All</Member><Application>Storage</Application>\
    </VirtualFabric><VirtualFabric><Name>Control</Name><QOS>1</QOS><BaseSL>2</BaseSL>\
    <HighPriority>1</HighPriority><Member>All</Member><Application>SA</Application>\
    </VirtualFabric><VirtualFabric><Name>Rest</Name><Member>All</Member><Application>AllOthers\
    </Application></VirtualFabric></VirtualFabrics>";

fn file(common: &str) -> Arc<OpaFm> {
    let text = format!("<Config><Common>{common}</Common></Config>");
    let parsed = opafm::parse(Path::new("opafm.xml"), &text, &Instance::default(), &mut |_, _| {});
    Arc::new(parsed.unwrap_or_else(|error| panic!("{error}")))
}

/// A fabric under a manager with these settings and virtual fabrics.
fn under(settings: Settings, common: &str) -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), settings);
    bed.managers[0].sweeper.set_virtual_fabrics(Some(file(common)));
    assert_eq!(bed.bring_up().errors, 0);
    bed
}

fn sweep_with(bed: &mut Bed, file: Option<Arc<OpaFm>>) {
    bed.managers[0].sweeper.set_virtual_fabrics(file);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    assert_eq!(bed.bring_up().errors, 0);
}

/// Ports with a cable, hosts' or switches'.
fn linked(bed: &Bed, nodes: &[NodeIndex]) -> Vec<(NodeIndex, u8)> {
    let has_cable = |&(node, port): &(NodeIndex, u8)| {
        bed.fabric.port(node, port).is_some_and(|view| view.link.is_some())
    };
    nodes.iter().flat_map(|&node| (1..=4).map(move |port| (node, port))).filter(has_cable).collect()
}

/// Entries of low and of high priority, and VLHighLimit.
type Arbitration = (Vec<(u8, u8)>, Vec<(u8, u8)>, u8);

/// What all of these ports have alike: entries of low and high priority with their weights, as far
/// as these are not 0, and VLHighLimit.
fn arbitration(bed: &Bed, nodes: &[NodeIndex]) -> Arbitration {
    let of = |&(node, port): &(NodeIndex, u8)| {
        let [low, high] = bed.fabric.vl_arbitration(node, port).unwrap();
        let weighed = |entries: Vec<(u8, u8)>| -> Vec<(u8, u8)> {
            entries.into_iter().filter(|&(_, weight)| weight > 0).collect()
        };
        (weighed(low), weighed(high), bed.fabric.queueing(node, port).unwrap().1)
    };
    let mut all: Vec<_> = linked(bed, nodes).iter().map(of).collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The weights of `QOS` with eight VLs: a fifth for SL 1, the rest for SL 0, and the least for VLs
/// that no virtual fabric has.
fn of_file() -> Arbitration {
    let low = vec![(0, 128), (1, 64), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (0, 128)];
    (low, vec![(2, 64)], 10)
}

/// Proves IBA 7.6.9.
#[test]
fn bandwidth_is_in_the_arbitration_tables_with_and_without_qos() {
    for qos in [false, true] {
        let bed = under(Settings { qos, ..Settings::default() }, QOS);
        for nodes in [bed.hosts(), bed.switches()] {
            let (mut low, high, limit) = arbitration(&bed, &nodes);
            let mut expected = of_file();
            low.sort_unstable();
            expected.0.sort_unstable();
            assert_eq!((low, high, limit), expected, "qos {qos}");
        }
        // SLs have their own VLs: packets of virtual fabrics are kept apart.
        let host = bed.hosts()[0];
        assert_eq!(bed.fabric.sl_to_vl(host, 0, 1).unwrap()[..2], [0x01, 0x23], "qos {qos}");
    }
}

#[test]
fn a_changed_file_sets_the_tables_again_and_a_removed_one_leaves_those_of_settings() {
    let mut bed = under(Settings::default(), "");
    let untouched = arbitration(&bed, &bed.switches());
    assert_eq!(bed.fabric.vl_arbitration(bed.hosts()[0], 1).unwrap()[0][0].0, 0);
    sweep_with(&mut bed, Some(file(QOS)));
    let first = arbitration(&bed, &bed.switches());
    assert_ne!(first, untouched);
    sweep_with(&mut bed, Some(file(&QOS.replace("20%", "50%"))));
    let (low, ..) = arbitration(&bed, &bed.switches());
    assert_eq!(low[..2], [(0, 64), (1, 64)]);
    sweep_with(&mut bed, None);
    let expected =
        arbitration(&under(Settings { qos: true, ..Settings::default() }, ""), &bed.switches());
    assert_eq!(arbitration(&bed, &bed.switches()), expected);
}

fn warnings(bed: &Bed, settings: &Settings) -> Vec<String> {
    let sweeper = &bed.managers[0].sweeper;
    let (_, warnings) = policy::rows(&InForce {
        fabric: sweeper.fabric(),
        settings,
        site: &SitePolicy::default(),
        partitions: sweeper.partitions(),
        memberships: sweeper.memberships(),
        virtual_fabrics: sweeper.virtual_fabrics(),
    });
    warnings
}

#[test]
fn tables_in_the_settings_precede_those_of_the_file_while_qos_is_on() {
    let mut settings =
        Settings { vfabric_config_file: Some("/etc/opafm.xml".to_owned()), ..Settings::default() };
    settings.set("qos_swe_vlarb_low", "0:7,1:9").unwrap();
    let off = under(settings.clone(), QOS);
    assert_eq!(arbitration(&off, &off.switches()).1, of_file().1);
    assert_eq!(warnings(&off, &settings), [""; 0]);
    settings.qos = true;
    let on = under(settings.clone(), QOS);
    assert_eq!(arbitration(&on, &on.switches()), (vec![(0, 7), (1, 9)], vec![(0, 4)], 0));
    assert_eq!(arbitration(&on, &on.hosts()).1, of_file().1, "hosts have no tables in settings");
    let [warning] = &warnings(&on, &settings)[..] else { panic!("one warning") };
    let expected = "opafm.xml:1: Bandwidth and HighPriority have no effect at external ports of \
                    switches (swe): the settings have VL arbitration tables for them";
    assert_eq!(warning, expected);
}

/// On links of a torus the SL of a path selects one of four VLs of its QoS level, to hosts one VL.
#[test]
fn in_a_torus_a_share_is_that_of_all_vls_of_a_qos_level() {
    let mut settings = Settings { partition_config_file: None, ..Settings::default() };
    settings.set("routing_engine", "torus-2QoS").unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dump/golden/torus.torus-2QoS.conf");
    settings.torus_config = Some(config.to_owned());
    let net = Net::parse("net", include_str!("../../src/dump/golden/torus.net")).unwrap();
    let mut bed = Bed::with_manager(&net, settings.clone());
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
    bed.managers[0].sweeper.set_routing_files(policy.routing.clone());
    let upper = QOS.replace("<BaseSL>1<", "<BaseSL>8<").replace("20%", "80%");
    let only_shares = upper
        .replace("<HighPriority>1<", "<HighPriority>0<")
        .replace("<QOS>1</QOS><BaseSL>2</BaseSL>", "<QOS>0</QOS>");
    sweep_with(&mut bed, Some(file(&only_shares)));
    assert_eq!(bed.sweeper().routing_engine(), "torus-2QoS");
    let switches = bed.switches();
    let mut kinds = std::collections::BTreeSet::new();
    for node in bed.fabric.nodes() {
        for port in 1..=40 {
            let Some(link) = bed.fabric.port(node, port).and_then(|view| view.link) else {
                continue;
            };
            let [low, high] = bed.fabric.vl_arbitration(node, port).unwrap();
            let weight = |vls: std::ops::RangeInclusive<u8>| -> u32 {
                let of_level = low.iter().filter(|(vl, _)| vls.contains(vl));
                of_level.map(|&(_, weight)| u32::from(weight)).sum()
            };
            let between = switches.contains(&node) && switches.contains(&link.node);
            let levels = if between {
                (weight(0..=3), weight(4..=7))
            } else {
                (weight(0..=0), weight(1..=1))
            };
            // VLs that no turn leads to have the least weight.
            assert!(levels.1.abs_diff(4 * levels.0) <= 8, "{low:?}");
            assert!(high.iter().all(|&(_, weight)| weight == 0));
            kinds.insert(between);
        }
    }
    assert_eq!(kinds.len(), 2);
}

/// Host 1 is a member of a virtual fabric with 8 ms, host 2 of that and of one with 2 s.
fn with_lives(hosts: [Guid; 2]) -> String {
    let [one, two] = hosts.map(|guid| format!("<PortGUID>{:#x}</PortGUID>", guid.0));
    format!(
        "<DeviceGroups><DeviceGroup><Name>Both</Name>{one}{two}</DeviceGroup><DeviceGroup>\
         <Name>Two</Name>{two}</DeviceGroup></DeviceGroups><VirtualFabrics><VirtualFabric><Name>\
         Short</Name><QOS>1</QOS><HoqLife>8ms</HoqLife><Member>Both</Member><Application>SA\
         </Application></VirtualFabric><VirtualFabric><Name>Long</Name><QOS>1</QOS><HoqLife>2s\
         </HoqLife><Member>Two</Member><Application>PM</Application></VirtualFabric>\
         <VirtualFabric><Name>Asleep</Name><Standby>1</Standby><QOS>1</QOS><HoqLife>infinite\
         </HoqLife><Member>All</Member><Application>PA</Application></VirtualFabric>\
         </VirtualFabrics>"
    )
}

/// Proves IBA 14.2.5.6.
#[test]
fn a_port_has_the_longest_hoq_life_of_what_may_leave_by_it() {
    let mut bed = under(Settings::default(), "");
    let hosts = bed.hosts();
    let guid = |at: usize| bed.fabric.port(hosts[at], 1).unwrap().guid;
    let text = with_lives([guid(0), guid(1)]);
    sweep_with(&mut bed, Some(file(&text)));
    let life = |node, port| bed.fabric.queueing(node, port).unwrap().0;
    let at_host = |at: usize| {
        let link = bed.fabric.port(hosts[at], 1).unwrap().link.unwrap();
        life(link.node, link.port)
    };
    assert_eq!([at_host(0), at_host(1)], [11, 19]);
    assert_eq!(at_host(2), Settings::default().leaf_head_of_queue_lifetime);
    let switches = bed.switches();
    let between = linked(&bed, &switches).into_iter().filter(|&(node, port)| {
        switches.contains(&bed.fabric.port(node, port).unwrap().link.unwrap().node)
    });
    let mut lives: Vec<u8> = between.map(|(node, port)| life(node, port)).collect();
    lives.dedup();
    assert_eq!(lives, [19], "all virtual fabrics may pass, except those in standby");
}

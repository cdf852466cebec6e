//! Links that run below what both ends have enabled, and routes that avoid them.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_sim::NodeIndex;
use ib_mad::wire::attribute::{LinkWidths, PortInfo};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{DATA, Smp};
use sm_config::Settings;

use crate::common::{Bed, fat_tree};

/// Ports to spines of the leaf of the third host.
fn uplinks(bed: &Bed) -> (NodeIndex, Vec<u8>) {
    let leaf = bed.fabric.port(bed.hosts()[2], 1).unwrap().link.unwrap().node;
    let leads_up = |&num: &u8| {
        let link = bed.fabric.port(leaf, num).and_then(|port| port.link);
        link.is_some_and(|link| bed.switches().contains(&link.node))
    };
    (leaf, (1..=8).filter(leads_up).collect())
}

/// Makes these ports of a switch report links with one lane.
fn narrow(bed: &mut Bed, switch: NodeIndex, ports: &[u8]) {
    let ports = ports.to_vec();
    bed.lie = Some(Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        let is_reported =
            (smp.method(), smp.attribute_id()) == (Method::GET_RESP, AttributeId::PORT_INFO);
        if is_reported && node == switch && ports.contains(&(smp.attribute_modifier() as u8)) {
            let mut info = PortInfo::new(&mut packet.mad[DATA]).unwrap();
            let widths = LinkWidths::X1 | LinkWidths::X4;
            info.set_link_width_supported(widths);
            info.set_link_width_enabled(widths);
            info.set_link_width_active(LinkWidths::X1);
        }
    }));
}

/// Ports of a switch by which it sends anything to an end port.
fn used(bed: &Bed, switch: NodeIndex) -> BTreeSet<u8> {
    let lft = bed.fabric.node(switch).lft;
    bed.end_ports().iter().map(|(.., lid, _)| lft[lid.index()]).collect()
}

#[test]
fn a_throttled_link_is_avoided_if_the_operator_wants_that_and_another_way_leads_there() {
    for (avoids, engine) in [(false, "minhop"), (true, "minhop"), (true, "nue"), (true, "dfsssp")] {
        let mut settings = Settings { avoid_throttled_links: avoids, ..Settings::default() };
        assert_eq!(settings.set("routing_engine", engine), Ok(true));
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
        let (leaf, up) = uplinks(&bed);
        assert!(up.len() > 2);
        narrow(&mut bed, leaf, &up[..1]);
        bed.bring_up();
        bed.assert_all_reachable();
        let slow = bed.fabric.port(leaf, up[0]).unwrap().link.unwrap();
        let ends = [used(&bed, leaf).contains(&up[0]), used(&bed, slow.node).contains(&slow.port)];
        assert_eq!(ends, [!avoids; 2], "{engine}");
        assert_eq!(bed.sweeper().throttled_links(), usize::from(avoids));

        // After the cable is reseated, routes use the link again.
        bed.lie = None;
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(1));
        bed.assert_all_reachable();
        assert!(used(&bed, leaf).contains(&up[0]), "{engine}");
        assert_eq!(bed.sweeper().throttled_links(), 0);
    }
}

#[test]
fn throttled_links_without_which_the_fabric_falls_apart_stay_in_use() {
    let settings = Settings { avoid_throttled_links: true, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    let (leaf, up) = uplinks(&bed);
    narrow(&mut bed, leaf, &up);
    bed.bring_up();
    bed.assert_all_reachable();
    assert!(used(&bed, leaf).is_superset(&up.iter().copied().collect()), "all share the load");
    assert_eq!(bed.sweeper().throttled_links(), 0);
}

//! Links that are left out, because they lead back to their own node, stay known over sweeps.

use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use sm_config::Settings;

/// Two switches, each with a host and with a port 8 that leads to a switch with its own GUID, as a
/// loopback plug looks like.
fn bed() -> Bed {
    let mut net = Net::new();
    let switch = |guid| (NodeKind::Switch, guid, 8);
    let host = |guid| (NodeKind::Ca, guid, 1);
    let nodes = [switch(0x20), switch(0x21), host(0x10), host(0x30), switch(0x20), switch(0x21)];
    for (at, (kind, guid, ports)) in nodes.into_iter().enumerate() {
        let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
        node.id = format!("node{at}");
        net.add_node(node);
    }
    let links = [((0, 1), (2, 1)), ((1, 1), (3, 1)), ((0, 2), (1, 2)), ((0, 8), (4, 8))];
    for (a, b) in links.into_iter().chain([((1, 8), (5, 8))]) {
        let end = |(node, port)| PortRef { node, port };
        net.connect(end(a), end(b)).unwrap();
    }
    Bed::with_manager(&net, Settings::default())
}

/// The ports of links that are left out.
fn left_out(bed: &Bed) -> Vec<(Guid, PortNum)> {
    let (sweeper, fabric) = (bed.sweeper(), bed.sweeper().fabric());
    let end = |&port| (fabric.node_of(port).guid, fabric.port(port).num);
    sweeper.left_out().iter().map(end).collect()
}

fn set_link(bed: &mut Bed, node: NodeIndex, port: u8, up: bool) {
    let (now, before) = (bed.clock.now(), bed.reports().len());
    match up {
        true => bed.fabric.link_up(now, node, port).unwrap(),
        false => bed.fabric.link_down(now, node, port).unwrap(),
    };
    bed.run_for(Duration::from_secs(15));
    let new = &bed.reports()[before..];
    assert!(!new.is_empty() && new.iter().all(|report| !report.full), "{new:?}");
}

/// Regression: Each sweep emptied the list as it took these links down, and a sweep that had not
/// read them reported that no node answers behind them.
#[test]
fn links_that_lead_back_stay_listed_until_they_do_no_more() {
    let mut bed = bed();
    bed.bring_up();
    let [a, b] = [0x20, 0x21].map(|guid| (Guid(guid), PortNum(8)));
    assert_eq!(left_out(&bed), [a, b]);
    let (switch, host) = (NodeIndex(1), bed.hosts()[1]);
    for up in [false, true] {
        let before = bed.reports().len();
        set_link(&mut bed, host, 1, up);
        assert_eq!(left_out(&bed), [a, b], "the host's link is up: {up}");
        assert!(bed.sweeper().unanswered().is_empty());
        assert!(bed.reports()[before..].iter().all(|report| report.unanswered == 0));
    }
    set_link(&mut bed, switch, 8, false);
    assert_eq!(left_out(&bed), [a]);
    set_link(&mut bed, switch, 8, true);
    assert_eq!(left_out(&bed), [a, b]);
}

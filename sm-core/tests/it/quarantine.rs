//! What is not in a baseline is kept out, and nothing that belongs is cut off by that.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeType, PortState};
use sm_config::Settings;
use sm_core::manage::quarantine::{End, Expected};

/// Nodes and links of a net file, but for those that `is_left_out` names.
fn expected(net: &Net, is_left_out: impl Fn(End, End) -> bool) -> Expected {
    let end = |at: PortRef| (net.nodes()[at.node as usize].guid, PortNum(at.port));
    let links = net.links().map(|(a, b)| (end(a), end(b)));
    let links: Vec<_> = links.filter(|&(a, b)| !is_left_out(a, b)).collect();
    let is_in = |&(guid, _): &(Guid, bool)| !is_left_out((guid, PortNum(0)), (guid, PortNum(0)));
    Expected::new(nodes(net).filter(is_in), links)
}

/// All nodes, and whether they are switches.
fn nodes(net: &Net) -> impl Iterator<Item = (Guid, bool)> {
    net.nodes().iter().map(|node| (node.guid, node.kind == NodeKind::Switch))
}

fn bed(net: &Net, expected: Expected) -> Bed {
    let mut bed = Bed::with_manager(net, Settings::default());
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_quarantine(now, Some(Arc::new(expected)));
    bed.bring_up();
    bed
}

fn is_there(bed: &Bed, guid: Guid) -> bool {
    let fabric = bed.sweeper().fabric();
    fabric.find(guid).is_some_and(|node| fabric.node(node).present)
}

fn kept_out(bed: &Bed) -> Vec<(End, End, bool)> {
    bed.sweeper().kept_out().map(|(near, link)| (near, link.far, link.is_node)).collect()
}

/// The state of a port in the simulated fabric's own view.
fn state(bed: &Bed, (guid, port): End) -> Option<PortState> {
    let fabric = bed.sweeper().fabric();
    let node = fabric.find(guid)?;
    fabric.port(fabric.port_of(node, port)?).state()
}

/// Two spines, four leaves, eight hosts; the last host, its leaf's port, and its GUID.
fn last_host(net: &Net) -> (NodeIndex, Guid, End) {
    let at = net.nodes().iter().rposition(|node| node.kind == NodeKind::Ca).unwrap();
    let end = |at: PortRef| (net.nodes()[at.node as usize].guid, PortNum(at.port));
    let link = net.links().find(|(a, b)| a.node as usize == at || b.node as usize == at).unwrap();
    let leaf = if link.0.node as usize == at { link.1 } else { link.0 };
    (NodeIndex(at as u32), net.nodes()[at].guid, end(leaf))
}

#[test]
fn a_node_that_does_not_belong_stays_in_initialize_and_gets_nothing() {
    let net = fat_tree(2, 4, 8);
    let (_, stranger, leaf) = last_host(&net);
    let mut bed = bed(&net, expected(&net, |a, b| a.0 == stranger || b.0 == stranger));
    assert!(!is_there(&bed, stranger));
    assert_eq!(kept_out(&bed), [(leaf, (stranger, PortNum(1)), true)]);
    let kind = bed.sweeper().kept_out().next().unwrap().1.kind;
    assert_eq!(kind, NodeType::Ca);
    assert_eq!(state(&bed, leaf), Some(PortState::Initialize));
    assert_eq!(bed.sweeper().fabric().counts(), (7, 6), "all others are used");
    assert!(bed.sweeper().is_up() && bed.sweeper().unanswered().is_empty());
    // Baselines change while the fabric is up.
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_quarantine(now, None);
    bed.run_for(Duration::from_secs(15));
    assert!(is_there(&bed, stranger) && kept_out(&bed).is_empty());
    assert_eq!(state(&bed, leaf), Some(PortState::Active));
    let now = bed.clock.now();
    let without = expected(&net, |a, b| a.0 == stranger || b.0 == stranger);
    bed.managers[0].sweeper.set_quarantine(now, Some(Arc::new(without)));
    bed.run_for(Duration::from_secs(15));
    assert!(!is_there(&bed, stranger) && kept_out(&bed).len() == 1);
    assert_eq!(state(&bed, leaf), Some(PortState::Initialize), "it was Active");
}

/// Regression: a switch with the GUID of an adapter of the baseline was let in.
#[test]
fn a_node_of_another_kind_than_in_the_baseline_is_kept_out() {
    let net = fat_tree(2, 4, 8);
    let (_, host, leaf) = last_host(&net);
    let all = nodes(&net).map(|(guid, is_switch)| (guid, is_switch || guid == host));
    let end = |at: PortRef| (net.nodes()[at.node as usize].guid, PortNum(at.port));
    let bed = bed(&net, Expected::new(all, net.links().map(|(a, b)| (end(a), end(b)))));
    assert!(!is_there(&bed, host));
    assert_eq!(kept_out(&bed), [(leaf, (host, PortNum(1)), true)]);
}

/// Regression: who forged the GUID of an adapter with two ports was let in by the one that is free.
#[test]
fn a_free_port_of_an_adapter_that_belongs_is_kept_out() {
    let net = fat_tree(2, 4, 8);
    let (_, host, leaf) = last_host(&net);
    let other_port = |end: End| if end.0 == host { (host, PortNum(2)) } else { end };
    let end = |at: PortRef| (net.nodes()[at.node as usize].guid, PortNum(at.port));
    let links = net.links().map(|(a, b)| (other_port(end(a)), other_port(end(b))));
    let bed = bed(&net, Expected::new(nodes(&net), links));
    assert!(!is_there(&bed, host));
    assert_eq!(kept_out(&bed), [(leaf, (host, PortNum(1)), false)]);
}

#[test]
fn a_node_that_comes_later_is_kept_out_and_others_are_not() {
    let net = fat_tree(2, 4, 8);
    let (host, stranger, leaf) = last_host(&net);
    let mut bed = bed(&net, expected(&net, |a, b| a.0 == stranger || b.0 == stranger));
    let other = bed.hosts()[5];
    for (node, is_kept_out) in [(host, true), (other, false)] {
        let now = bed.clock.now();
        bed.fabric.link_down(now, node, 1).unwrap();
        bed.run_for(Duration::from_secs(15));
        assert_eq!(bed.sweeper().kept_out().count(), usize::from(!is_kept_out));
        let now = bed.clock.now();
        bed.fabric.link_up(now, node, 1).unwrap();
        bed.run_for(Duration::from_secs(15));
        assert_eq!(kept_out(&bed), [(leaf, (stranger, PortNum(1)), true)]);
    }
    assert_eq!(bed.sweeper().fabric().counts(), (7, 6));
}

#[test]
fn a_link_that_does_not_belong_is_used_only_if_no_other_leads_to_its_switch() {
    let net = fat_tree(2, 4, 8);
    let end = |at: PortRef| (net.nodes()[at.node as usize].guid, PortNum(at.port));
    let is_switch = |at: PortRef| net.nodes()[at.node as usize].kind == NodeKind::Switch;
    let links: Vec<_> = net.links().filter(|&(a, b)| is_switch(a) && is_switch(b)).collect();
    let (near, far) = links[links.len() - 1];
    // One link of a leaf with two spines.
    let one = bed(&net, expected(&net, |a, b| (a, b) == (end(near), end(far))));
    assert_eq!(one.sweeper().fabric().counts(), (8, 6));
    let mut both = [(end(near), end(far), false), (end(far), end(near), false)];
    both.sort();
    assert_eq!(kept_out(&one), both);
    assert_eq!(state(&one, end(near)), Some(PortState::Initialize));
    // None of the links between switches belong: all switches, and all hosts, are still there.
    let none = bed(
        &net,
        expected(&net, |a, b| {
            let ends = links.iter().map(|&(near, far)| (end(near), end(far)));
            ends.into_iter().any(|link| link == (a, b))
        }),
    );
    assert_eq!(none.sweeper().fabric().counts(), (8, 6));
    assert!(none.sweeper().is_up());
    let used = none.sweeper().fabric().links().len();
    assert!(used >= 8 + 5, "a tree of six switches needs five links");
}

#[test]
fn the_only_other_link_takes_over_when_those_that_belong_are_gone() {
    let net = fat_tree(2, 4, 8);
    let end = |at: PortRef| (net.nodes()[at.node as usize].guid, PortNum(at.port));
    let is_switch = |at: PortRef| net.nodes()[at.node as usize].kind == NodeKind::Switch;
    let links: Vec<_> = net.links().filter(|&(a, b)| is_switch(a) && is_switch(b)).collect();
    let (near, far) = links[links.len() - 1];
    // The end at the leaf, which has hosts.
    let leaf = match net.nodes()[near.node as usize].description.contains("leaf") {
        true => near,
        false => far,
    };
    let mut bed = bed(&net, expected(&net, |a, b| (a, b) == (end(near), end(far))));
    let others = links.iter().filter(|(a, b)| a.node == leaf.node || b.node == leaf.node);
    for &(a, b) in others.filter(|link| **link != (near, far)) {
        let at = if a.node == leaf.node { a } else { b };
        let now = bed.clock.now();
        bed.fabric.link_down(now, NodeIndex(at.node), at.port).unwrap();
        bed.run_for(Duration::from_secs(30));
    }
    assert_eq!(bed.sweeper().fabric().counts(), (8, 6), "nothing that belongs is cut off");
    assert_eq!(state(&bed, end(near)), Some(PortState::Active));
    assert!(kept_out(&bed).is_empty(), "{:?}", kept_out(&bed));
}

#[test]
fn a_host_that_belongs_is_used_wherever_its_cable_leads() {
    let net = fat_tree(2, 4, 8);
    let (_, host, leaf) = last_host(&net);
    // In the baseline its cable leads to another port.
    let belongs = expected(&net, |a, b| a != b && (a.0 == host || b.0 == host));
    assert!(belongs.has_node(host, false) && !belongs.has_link(leaf, (host, PortNum(1))));
    let bed = bed(&net, belongs);
    assert_eq!(bed.sweeper().fabric().counts(), (8, 6));
    assert_eq!(state(&bed, leaf), Some(PortState::Active));
}

#[test]
fn a_baseline_of_another_fabric_keeps_nothing_out() {
    let net = fat_tree(2, 4, 8);
    let bed = bed(&net, Expected::new([(Guid(0xDEAD), true)], []));
    assert_eq!(bed.sweeper().fabric().counts(), (8, 6));
    assert!(bed.sweeper().quarantine_is_foreign() && kept_out(&bed).is_empty());
}

/// A switch that does not belong is not read: what is behind it may be anything.
#[test]
fn nothing_behind_a_switch_that_does_not_belong_is_read() {
    let mut net = fat_tree(2, 4, 8);
    let before = net.clone();
    let free = net.nodes().iter().position(|node| node.description.contains("spine")).unwrap();
    let mut switch = Node::new(NodeKind::Switch, Guid(0x5_7A11), 4, LinkRate::default());
    switch.id = "stranger".to_owned();
    let switch = net.add_node(switch);
    let mut host = Node::new(NodeKind::Ca, Guid(0x5_7A12), 1, LinkRate::default());
    host.id = "behind".to_owned();
    let host = net.add_node(host);
    let at = |node, port| PortRef { node, port };
    let ports = net.nodes()[free].port_count();
    let used = |port: u8| {
        before.links().any(|(a, b)| [a, b].contains(&PortRef { node: free as u32, port }))
    };
    let port = (1..=ports).find(|&port| !used(port));
    let Some(port) = port else { return };
    net.connect(at(free as u32, port), at(switch, 1)).unwrap();
    net.connect(at(switch, 2), at(host, 1)).unwrap();
    let bed = bed(&net, expected(&before, |_, _| false));
    assert_eq!(bed.sweeper().fabric().counts(), (8, 6));
    assert!(!is_there(&bed, Guid(0x5_7A11)) && !is_there(&bed, Guid(0x5_7A12)));
}

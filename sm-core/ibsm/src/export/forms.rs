//! Texts made of the tree of hosts and switches.

use std::fmt::Write as _;

use serde_json::json;

use super::hostlist::hostlist;
use super::tiers::Tiers;

/// `topology.conf` for `topology/tree`.
pub(super) fn slurm(tiers: &Tiers) -> String {
    let mut text = String::new();
    for one in &tiers.0 {
        let _ = match one.below.is_empty() {
            true => {
                let hosts = hostlist(one.hosts.iter().map(String::as_str));
                writeln!(text, "SwitchName={} Nodes={hosts}", one.name)
            }
            false => {
                let below = hostlist(one.below.iter().map(|&at| &tiers.0[at].name[..]));
                writeln!(text, "SwitchName={} Switches={below}", one.name)
            }
        };
    }
    text
}

/// `topology.conf` for `topology/block`: a block per leaf. The base block has as many nodes as the
/// smallest leaf.
pub(super) fn slurm_block(tiers: &Tiers) -> String {
    let mut text = String::new();
    let leaves = || tiers.0.iter().filter(|one| one.below.is_empty());
    for leaf in leaves() {
        let hosts = hostlist(leaf.hosts.iter().map(String::as_str));
        let _ = writeln!(text, "BlockName={} Nodes={hosts}", leaf.name);
    }
    if let Some(least) = leaves().map(|leaf| leaf.hosts.len()).min() {
        let _ = writeln!(text, "BlockSizes={least}");
    }
    text
}

/// topograph's graph: each host with the switches above it, the nearest first.
pub(super) fn topograph(tiers: &Tiers) -> String {
    let hosts = tiers.0.iter().enumerate().flat_map(|(at, one)| {
        let layers = tiers.way_up(at);
        one.hosts
            .iter()
            .map(move |host| json!({ "id": host, "network_layers": layers, "labels": {} }))
    });
    let graph = json!({ "instances": hosts.collect::<Vec<_>>() });
    format!("{graph:#}\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::{Form, net_of, render};
    use crate::observe::problem::testing::plane;
    use crate::observe::topology::{Difference, Topology};
    use ib_mad::wire::attribute::SwitchInfo;

    const LINKS: [(u64, u8, u64, u8); 5] =
        [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1), (2, 10, 102, 1)];

    #[test]
    fn slurm_gets_leaves_with_their_nodes_and_spines_with_their_leaves() {
        let text = |form| render(&plane(&LINKS, 0, 0), form, &[]);
        assert_eq!(
            text(Form::Slurm),
            "SwitchName=n1 Nodes=n100\nSwitchName=n2 Nodes=n[101-102]\nSwitchName=n8 \
             Switches=n[1-2]\n"
        );
        assert_eq!(
            text(Form::SlurmBlock),
            "BlockName=n1 Nodes=n100\nBlockName=n2 Nodes=n[101-102]\nBlockSizes=1\n"
        );
        let graph: serde_json::Value = serde_json::from_str(&text(Form::Topograph)).unwrap();
        assert_eq!(graph["instances"][2]["id"], "n102");
        assert_eq!(graph["instances"][2]["network_layers"], json!(["n2", "n8"]));
    }

    #[test]
    fn the_net_file_reads_back_as_the_same_topology() {
        let mut plane = plane(&LINKS, 1, 0);
        let nodes = &mut Arc::make_mut(&mut plane).nodes;
        let enhanced = nodes.iter_mut().find(|node| node.switch_info.is_some()).unwrap();
        let guid = enhanced.guid;
        let switch = Arc::make_mut(enhanced).switch_info.as_mut().unwrap();
        SwitchInfo::of_mut(switch).set_enhanced_port0(true);
        let text = render(&plane, Form::Ibnetdiscover, &[]);
        let net = ib_mad::netlist::Net::parse("test", &text).unwrap();
        assert_eq!(net.nodes().len(), net_of(&plane).nodes().len());
        let difference = Difference::between(&Topology::of(&plane), &Topology::of_net(&net));
        assert!(difference.is_empty(), "{difference:?}\n{text}");
        let mut enhanced = net.nodes().iter().filter(|node| node.enhanced_port0);
        assert_eq!((enhanced.next().map(|node| node.guid), enhanced.count()), (Some(guid), 0));
    }
}

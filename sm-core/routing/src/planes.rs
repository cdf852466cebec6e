//! Joins the planes of a planarized fabric to one topology, after each was routed by itself.
//!
//! Planes have switches and links of their own, and LIDs in common: a LID has a destination in each
//! plane in which its port is. In the joined topology the switches of the planes follow one another
//! and so do their links; each LID has one destination, in the first plane that has it. Its tables
//! are those of the planes. It says what a single topology says, except for destinations: who needs
//! all of them asks the planes.

use std::collections::HashSet;

use super::multicast::{Place, Tree};
use super::verify::{Channels, CreditLoops, Traffic, Unicast};
use super::{Topology, TopologyBuilder, TopologyError};

/// Joins topologies. Their LIDs may be the same.
pub fn joined(planes: &[&Topology]) -> Result<Topology, TopologyError> {
    let mut builder = TopologyBuilder::new();
    let mut owned = HashSet::new();
    let mut first = 0;
    for plane in planes {
        for switch in plane.switches() {
            builder.add_switch(plane.port_count(switch))?;
        }
        for switch in plane.switches() {
            for link in plane.links(switch).iter().filter(|link| link.peer > switch) {
                builder
                    .add_link((first + switch, link.port), (first + link.peer, link.peer_port))?;
            }
        }
        for to in plane.destinations() {
            if owned.insert(to.base_lid) {
                let egress_switch = first + to.egress_switch;
                builder.add_destination(super::Destination { egress_switch, ..*to })?;
            }
        }
        builder.reserve_lids(plane.last_lid());
        // The builder refuses more switches than 16 bits can number.
        first += plane.switches().end;
    }
    builder.build()
}

/// Joins the results of searches for credit loops in planes, each with the number of the plane's
/// first switch. The example is that of the first plane that has one.
pub fn joined_loops<'a>(planes: impl IntoIterator<Item = (u16, &'a CreditLoops)>) -> CreditLoops {
    let mut all = CreditLoops {
        traffic: Traffic::All,
        links: 0,
        dependencies: 0,
        looping: 0,
        example: Vec::new(),
        lane: None,
        lanes: 0,
    };
    let rank = |traffic: Traffic| match traffic {
        Traffic::All => 0,
        Traffic::ToHosts => 1,
        Traffic::Hosts => 2,
    };
    for (first, loops) in planes {
        if rank(loops.traffic) > rank(all.traffic) {
            all.traffic = loops.traffic;
        }
        all.links += loops.links;
        all.dependencies += loops.dependencies;
        all.looping += loops.looping;
        all.lanes = all.lanes.max(loops.lanes);
        if all.example.is_empty() {
            let hops = loops.example.iter().map(|&(switch, port)| (first + switch, port));
            all.example = hops.collect();
            all.lane = loops.lane;
        }
    }
    all
}

/// Joins the dependencies of unicast traffic in planes, each with the number of the plane's first
/// switch. Routes of planarized fabrics do not select lanes, so that each has one layer.
pub fn joined_unicast(planes: &[(u16, &Unicast)]) -> Unicast {
    let loops = joined_loops(planes.iter().map(|(first, unicast)| (*first, &unicast.loops)));
    let layers = planes.iter().filter_map(|(_, unicast)| unicast.layers.first());
    Unicast { loops, layers: vec![Channels::joined(layers)] }
}

/// Cuts a tree and the members of its group into those of planes, whose first switches `starts`
/// are, ascending. The root stays in the plane that it is in.
pub fn parted(
    tree: Option<&Tree>,
    members: &[Place],
    starts: &[u16],
) -> Vec<(Option<Tree>, Vec<Place>)> {
    let ends = starts.iter().skip(1).copied().chain([u16::MAX]);
    let part = |(&start, end): (&u16, u16)| {
        let is_here = |switch: u16| (start..end).contains(&switch);
        let tree = tree.map(|tree| Tree {
            root: tree.root.filter(|&root| is_here(root)),
            masks: tree.masks.iter().filter(|(switch, _)| is_here(*switch)).copied().collect(),
            unreached: tree.unreached.iter().filter(|at| is_here(at.switch)).copied().collect(),
        });
        (tree, members.iter().filter(|place| is_here(place.switch)).copied().collect())
    };
    starts.iter().zip(ends).map(part).collect()
}

/// Joins the trees of a group in planes, in the order of their switches.
pub fn joined_trees(trees: impl IntoIterator<Item = impl std::ops::Deref<Target = Tree>>) -> Tree {
    let mut all = Tree::default();
    for tree in trees {
        all.root = all.root.or(tree.root);
        all.masks.extend(&tree.masks);
        all.unreached.extend(&tree.unreached);
    }
    all
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Lid;

    use super::*;
    use crate::{Destination, Engine, MinHop, PortMask, testing, verify};

    /// Two lines of three switches with the same hosts.
    fn planes() -> [Topology; 2] {
        [testing::line(3), testing::line(3)]
    }

    #[test]
    fn switches_and_links_follow_one_another_and_lids_are_those_of_the_first() {
        let [a, b] = planes();
        let all = joined(&[&a, &b]).unwrap();
        assert_eq!(all.switch_count(), 6);
        assert_eq!(all.link_count(), a.link_count() + b.link_count());
        assert_eq!(all.destinations(), a.destinations());
        assert_eq!(all.table_len(), a.table_len());
        for index in 0..b.link_count() {
            let (link, here) = (all.link(a.link_count() + index), b.link(index));
            assert_eq!((link.peer, link.port), (3 + here.peer, here.port));
        }
    }

    #[test]
    fn dependencies_of_planes_are_those_of_the_joined_tables() {
        let [a, b] = planes();
        let all = joined(&[&a, &b]).unwrap();
        let routing = MinHop.route(&a, &Default::default(), None).unwrap();
        let one = Unicast::find(&a, &routing.tables(), &routing.lanes);
        let both = joined_unicast(&[(0, &one), (3, &one)]);
        let tables = [routing.tables(), routing.tables()].concat();
        let expected = Unicast::find(&all, &tables, &routing.lanes);
        assert_eq!(both.layers, expected.layers);
        assert_eq!(both.loops.links, expected.loops.links);
        assert!(both.loops.is_free());
    }

    #[test]
    fn a_loop_is_named_by_the_switches_of_its_plane() {
        let free = joined_loops([]);
        let looping = CreditLoops {
            traffic: verify::Traffic::Hosts,
            looping: 4,
            example: vec![(1, 7), (2, 8)],
            ..free.clone()
        };
        let all = joined_loops([(0, &free), (10, &looping), (20, &looping)]);
        assert_eq!((all.looping, &all.example[..]), (8, &[(11, 7), (12, 8)][..]));
        assert_eq!(all.traffic, verify::Traffic::Hosts);
    }

    #[test]
    fn a_tree_is_cut_and_joined_again() {
        let mut mask = PortMask::default();
        mask.insert(1);
        let place = |switch| Place { switch, exit: 1 };
        let tree = Tree {
            root: Some(0),
            masks: vec![(0, mask), (2, mask), (3, mask)],
            unreached: vec![place(4)],
        };
        let members = [place(0), place(3), place(4)];
        let parts = parted(Some(&tree), &members, &[0, 3]);
        assert_eq!(parts[0].1, [place(0)]);
        assert_eq!(parts[1].1, [place(3), place(4)]);
        assert_eq!(parts[1].0.as_ref().unwrap().masks, [(3, mask)]);
        assert_eq!(joined_trees(parts.iter().filter_map(|(tree, _)| tree.as_ref())), tree);
    }

    /// Tables of all planes have the same length, whichever has the last LID.
    #[test]
    fn a_topology_has_room_for_lids_of_other_planes() {
        let mut builder = TopologyBuilder::new();
        builder.add_switch(2).unwrap();
        let to = Destination { base_lid: Lid(3), lid_count: 1, egress_switch: 0, exit: 1 };
        builder.add_destination(to).unwrap();
        builder.reserve_lids(Lid(200));
        let topology = builder.build().unwrap();
        assert_eq!((topology.last_lid(), topology.table_len()), (Lid(200), 256));
    }
}

//! Tests whether trees close cycles of channels, by sending packets one by one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::choice::{Chooser, ChosenTree, Orders, Wanted};
use super::{hosts, mlid};
use crate::multicast::Order;
use crate::multicast::{Place, Tree, check};
use crate::testing::{any_topology, fat_tree, topology, torus};
use crate::verify::{Channels, Traffic, Unicast};
use crate::{
    Destination, Dfsssp, Engine, HopMatrix, Lanes, Lash, MinHop, Nue, Routing, Sssp, Steering,
    Topology, UpDown, testing,
};

/// A link by its sender, and a virtual lane.
type Channel = (u16, u8, u8);

/// Dependencies: by channel, the channels that it waits for.
#[derive(Clone, Default)]
struct Waits(BTreeMap<Channel, BTreeSet<Channel>>);

impl Waits {
    fn add(&mut self, before: Option<Channel>, channel: Channel) {
        self.0.entry(channel).or_default();
        if let Some(before) = before {
            self.0.entry(before).or_default().insert(channel);
        }
    }

    /// Sends packets of that traffic from each switch to each LID.
    fn unicast(topology: &Topology, routing: &Routing, traffic: Traffic) -> Self {
        let mut waits = Self::default();
        let with_hosts = topology.hosts_on();
        let sends = |at: u16| traffic != Traffic::Hosts || with_hosts[usize::from(at)] > 0;
        let counts = |to: &&Destination| traffic == Traffic::All || to.is_host();
        for to in topology.destinations().iter().filter(counts) {
            let sources = topology.switches().filter(|&at| sends(at));
            for (source, lid) in sources.flat_map(|at| to.lids().map(move |lid| (at, lid))) {
                let lane = routing.lanes.sl(source, to.egress_switch, lid);
                let (mut at, mut before) = (source, None);
                while let Some(link) = topology.link_at(at, routing.port(at, lid)) {
                    let channel = (at, topology.link(link).port, lane);
                    waits.add(before, channel);
                    (at, before) = (topology.link(link).peer, Some(channel));
                }
            }
        }
        waits
    }

    /// Sends a packet from each member of a group.
    fn multicast(&mut self, topology: &Topology, tree: &Tree, members: &[Place], lane: u8) {
        for from in members {
            let mut copies = vec![(from.switch, from.exit, None)];
            while let Some((at, in_port, before)) = copies.pop() {
                let Some(mask) = tree.mask(at) else { continue };
                for port in mask.ports().filter(|&port| port != in_port) {
                    let Some(link) = topology.link_at(at, port) else { continue };
                    let link = topology.link(link);
                    self.add(before, (at, port, lane));
                    copies.push((link.peer, link.peer_port, Some((at, port, lane))));
                }
            }
        }
    }

    /// Channels that directly or indirectly wait for themselves.
    fn looping(&self) -> BTreeSet<Channel> {
        let is_looping = |&start: &Channel| {
            let (mut seen, mut stack) = (BTreeSet::new(), vec![start]);
            while let Some(at) = stack.pop() {
                for &next in &self.0[&at] {
                    if next == start {
                        return true;
                    }
                    if seen.insert(next) {
                        stack.push(next);
                    }
                }
            }
            false
        };
        self.0.keys().copied().filter(is_looping).collect()
    }
}

/// VLs by SL of links with 8 of them.
const VLS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];

fn steering() -> Steering {
    testing::on_lanes(8)
}

/// Groups, given by the numbers of their hosts.
fn groups(topology: &Topology, picks: &[Vec<u32>]) -> Vec<Vec<Place>> {
    let all = hosts(topology);
    let group = |picks: &Vec<u32>| -> Vec<Place> {
        let members: BTreeSet<_> =
            picks.iter().map(|&pick| all[pick as usize % all.len()]).collect();
        members.into_iter().collect()
    };
    picks.iter().map(group).collect()
}

fn chosen(topology: &Topology, routing: &Routing, groups: &[(Vec<Place>, u8)]) -> Vec<ChosenTree> {
    let hops = HopMatrix::compute(topology).unwrap();
    let unicast = Unicast::find(topology, &routing.tables(), &routing.lanes);
    let orders = Orders::find(topology, &hops, &unicast, &routing.lanes, &VLS);
    assert!(orders.are_right(topology));
    let mut chooser = Chooser::new(topology, &hops, &orders);
    let choose = |((members, sl), number): (&(Vec<Place>, u8), u16)| {
        let mlid = mlid(number);
        chooser.choose(&Wanted { mlid, members, sls: 1 << sl, before: None })
    };
    groups.iter().zip(0..).map(choose).collect()
}

/// Checks that trees deliver, and that trees without a reported fault bring no channel into a cycle
/// that was not on one before. Returns the number of trees with a fault.
fn judge(
    topology: &Topology,
    routing: &Routing,
    groups: &[(Vec<Place>, u8)],
) -> Result<usize, TestCaseError> {
    let is_free = matches!(routing.lanes, Lanes::Free);
    let of = |traffic| Waits::unicast(topology, routing, traffic);
    // The most extensive traffic that has no credit loop.
    let mut more = [Traffic::All, Traffic::ToHosts].into_iter().filter(|_| is_free).map(of);
    let mut waits =
        more.find(|waits| waits.looping().is_empty()).unwrap_or_else(|| of(Traffic::Hosts));
    let before = waits.looping();
    let chosen = chosen(topology, routing, groups);
    let mut faults = 0;
    for ((members, sl), chosen) in groups.iter().zip(&chosen) {
        prop_assert_eq!(check(topology, &chosen.tree, members), Ok(()));
        let lane = if is_free { 0 } else { VLS[usize::from(*sl)] };
        if let Some(fault) = &chosen.fault {
            faults += 1;
            let mut with = waits.clone();
            with.multicast(topology, &chosen.tree, members, lane);
            let on_lane = |&(switch, port)| (switch, port, lane);
            let cycle: Vec<Channel> = fault.cycle.iter().map(on_lane).collect();
            for (at, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
                prop_assert!(with.0[at].contains(next), "{:?} is not a cycle", cycle);
            }
            continue;
        }
        waits.multicast(topology, &chosen.tree, members, lane);
    }
    let looping = waits.looping();
    let new: Vec<_> = looping.difference(&before).collect();
    prop_assert!(new.is_empty(), "{new:?} wait for themselves, with multicast only");
    Ok(faults)
}

fn picks() -> impl Strategy<Value = Vec<(Vec<u32>, u8)>> {
    prop::collection::vec((prop::collection::vec(any::<u32>(), 2..9), 0u8..16), 1..8)
}

fn with_sls(topology: &Topology, picks: &[(Vec<u32>, u8)]) -> Vec<(Vec<Place>, u8)> {
    let members: Vec<_> = picks.iter().map(|(members, _)| members.clone()).collect();
    groups(topology, &members).into_iter().zip(picks).map(|(group, (_, sl))| (group, *sl)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn trees_without_a_fault_bring_nothing_into_a_cycle(
        topology in any_topology(), engine in 0usize..7, picks in picks(),
    ) {
        prop_assume!(!hosts(&topology).is_empty());
        let engines: [&dyn Engine; 7] =
            [&MinHop, &UpDown::FromRoots, &UpDown::FromHosts, &Sssp, &Dfsssp, &Lash, &Nue];
        let routing = engines[engine].route(&topology, &steering(), None);
        prop_assume!(routing.is_ok());
        judge(&topology, &routing.unwrap(), &with_sls(&topology, &picks))?;
    }

    /// Where unicast goes up and then down, so can a tree. This need not hold for a tree that joins
    /// switches without hosts: the path from one core switch to another goes down and up again, and
    /// the search for such a tree may fail (decision 38).
    #[test]
    fn beside_up_down_routes_every_group_has_a_tree(
        topology in any_topology(), picks in picks(),
    ) {
        prop_assume!(!hosts(&topology).is_empty());
        let routing = UpDown::FromRoots.route(&topology, &steering(), None);
        prop_assume!(routing.is_ok());
        let on = topology.hosts_on();
        let mut groups = with_sls(&topology, &picks);
        for (members, _) in &mut groups {
            members.retain(|member| on[usize::from(member.switch)] > 0);
        }
        groups.retain(|(members, _)| !members.is_empty());
        let faults = judge(&topology, &routing.unwrap(), &groups)?;
        prop_assert_eq!(faults, 0);
    }
}

/// Regression: most members on one leaf made that leaf the root; branches
/// came to it from two spines, down and up again, where unicast never turns.
#[test]
fn a_tree_rooted_at_a_leaf_of_a_fat_tree_does_not_come_down_and_go_up() {
    let tree = topology(&fat_tree(2, 8, 32), 0);
    let routing = MinHop.route(&tree, &steering(), None).unwrap();
    let on =
        |leaf: u16| hosts(&tree).into_iter().filter(move |at| at.switch == leaf && at.exit > 0);
    let leaves: Vec<u16> =
        tree.switches().filter(|&switch| tree.hosts_on()[usize::from(switch)] > 0).collect();
    let mut waits = Waits::unicast(&tree, &routing, Traffic::Hosts);
    let hops = HopMatrix::compute(&tree).unwrap();
    let groups: Vec<(Vec<Place>, u8)> = (0..leaves.len())
        .map(|most| {
            let some = (1..4).flat_map(|next| on(leaves[(most + next) % leaves.len()]).take(1));
            (on(leaves[most]).chain(some).collect(), 0)
        })
        .collect();
    for ((members, _), number) in groups.iter().zip(0..) {
        let nearest = super::TreeBuilder::new(&tree, &hops).tree(mlid(number), members, None);
        waits.multicast(&tree, &nearest, members, 0);
    }
    assert!(!waits.looping().is_empty(), "the fewest hops would do: the test shows nothing");
    assert_eq!(judge(&tree, &routing, &groups).unwrap(), 0);
}

/// Round a ring, packets continue at all switches but one in each direction, and these two are not
/// neighbours: any tree that joins all switches turns at one of them.
#[test]
fn a_group_without_a_tree_free_of_loops_is_reported_with_its_cycle() {
    let ring = topology(&torus(&[6], 1), 0);
    let routing = MinHop.route(&ring, &steering(), None).unwrap();
    let mut unicast = Unicast::find(&ring, &routing.tables(), &routing.lanes);
    let mut channels = Channels::none(&ring, 1);
    let neighbours = |at: u16| [(at + 1) % 6, (at + 5) % 6];
    for at in ring.switches() {
        let [after, before] = neighbours(at).map(|next| {
            let range = ring.link_range(at);
            range.clone().find(|&link| ring.link(link).peer == next).unwrap()
        });
        let back = |link: usize| ring.link_at(ring.link(link).peer, ring.link(link).peer_port);
        if at != 0 {
            channels.insert(back(before).unwrap(), ring.link(after).port, 0);
        }
        if at != 3 {
            channels.insert(back(after).unwrap(), ring.link(before).port, 0);
        }
    }
    unicast.layers = vec![channels.clone()];
    let hops = HopMatrix::compute(&ring).unwrap();
    let orders = Orders::find(&ring, &hops, &unicast, &Lanes::Free, &VLS);
    assert!(orders.are_right(&ring));
    let mut chooser = Chooser::new(&ring, &hops, &orders);
    let members: Vec<Place> = hosts(&ring).into_iter().filter(|place| place.exit > 0).collect();
    let mut choose = |members: &[Place]| {
        chooser.choose(&Wanted { mlid: mlid(1), members, sls: 1, before: None })
    };
    let tree_for_all = choose(&members);
    assert_eq!(check(&ring, &tree_for_all.tree, &members), Ok(()));
    let fault = tree_for_all.fault.expect("no tree is free");
    assert_eq!((fault.sl, fault.cycle.len()), (0, 6), "{fault:?}");
    // Members between these two switches have a tree without a fault.
    assert_eq!(choose(&members[..4]).fault, None);
    assert_eq!(choose(&members[3..]).fault, None);
}

/// An order that falls along a dependency, or is equal for channels that lie on no cycle, proves
/// nothing.
#[test]
fn a_wrong_order_is_found_out() {
    let tree = topology(&fat_tree(2, 8, 32), 0);
    let routing = MinHop.route(&tree, &steering(), None).unwrap();
    let unicast = Unicast::find(&tree, &routing.tables(), &routing.lanes);
    let hops = HopMatrix::compute(&tree).unwrap();
    let order = Order::find(&tree, &hops, unicast.layers[0].clone());
    let right = order.numbers().to_vec();
    let channels = order.channels();
    assert!(channels.is_order(&tree, &right));
    assert!(!channels.is_order(&tree, &vec![0; right.len()]));
    let first = (0..channels.count()).find(|&at| channels.after(&tree, at).next().is_some());
    let first = first.unwrap();
    let next = channels.after(&tree, first).next().unwrap();
    let mut wrong = right.clone();
    wrong.swap(first, next);
    assert!(!channels.is_order(&tree, &wrong));
    let mut equal = right;
    equal[first] = equal[next];
    assert!(!channels.is_order(&tree, &equal));
}

/// Routes round a ring depend on each other in a cycle; that is a fault of unicast, not of trees.
#[test]
fn where_unicast_loops_anyway_trees_are_not_blamed() {
    let ring = topology(&torus(&[6], 2), 0);
    let routing = MinHop.route(&ring, &steering(), None).unwrap();
    assert!(!Waits::unicast(&ring, &routing, Traffic::Hosts).looping().is_empty());
    let members: Vec<Place> = hosts(&ring).into_iter().filter(|place| place.exit > 0).collect();
    assert_eq!(judge(&ring, &routing, &[(members, 0)]).unwrap(), 0);
}

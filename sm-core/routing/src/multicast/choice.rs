//! Chooses the tree of a group from the possible ones.

use std::collections::HashMap;
use std::sync::Arc;

use ib_mad::types::Lid;

use super::grow::Spanning;
use super::order::Order;
use super::{Place, Tree, TreeBuilder, check, spread, unique};
use crate::lanes::HopLanes;
use crate::verify::{Channels, Hops, Unicast};
use crate::{HopMatrix, Lanes, PortMask, Topology};

/// Number of roots from which a tree is built for a group before the tree of all switches is used.
const ROOTS_MAX: usize = 4;
/// Number of orders in which neighbours are tried, so that trees of groups with the same root
/// differ.
const SEEDS: u64 = 4;
/// The VL of packets that are dropped.
const DROP_VL: u8 = 15;

/// The channel orders that trees must follow, by SL.
#[derive(Debug)]
pub struct Orders {
    orders: Vec<Order>,
    /// By SL: index of its order; `None` for packets that no switch forwards.
    of_sl: [Option<usize>; 16],
    /// If packets change lanes from hop to hop: the lanes.
    by_hop: Option<Arc<dyn HopLanes>>,
}

/// A request for a tree.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The MLID.
    pub mlid: Lid,
    /// The members' places.
    pub members: &'a [Place],
    /// SLs on which members send, one bit each.
    pub sls: u16,
    /// The previous tree, in the topology's numbers; its branches may no longer exist.
    pub before: Option<&'a Tree>,
}

/// A tree, and its fault if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenTree {
    /// The tree.
    pub tree: Arc<Tree>,
    /// `None` if the tree adds to no cycle of channels.
    pub fault: Option<Fault>,
}

/// Reports that packets of a tree can take part in a credit loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The SL of these packets.
    pub sl: u8,
    /// A cycle with unicast, as switches and the ports by which they send; empty if the tree closes
    /// a cycle only with trees of other groups, if at all.
    pub cycle: Vec<(u16, u8)>,
}

impl Orders {
    /// Orders the channels of a routing. `vls` is the VL by SL of links between switches, or the
    /// same VL for all if it is unknown; on a torus or dragonfly the engine's VLs are used.
    pub fn find(
        topology: &Topology,
        hops: &HopMatrix,
        unicast: &Unicast,
        lanes: &Lanes,
        vls: &[u8; 16],
    ) -> Self {
        let none = || Channels::none(topology, 1);
        match lanes {
            Lanes::Free => {
                // Unicast may use any lane, so all lanes have the same dependencies.
                let channels = unicast.layers.first().cloned().unwrap_or_else(none);
                let orders = vec![Order::find(topology, hops, channels)];
                Self { orders, of_sl: vls.map(|vl| (vl != DROP_VL).then_some(0)), by_hop: None }
            }
            Lanes::Layers(_) => {
                let mut used: Vec<u8> = vls.iter().copied().filter(|&vl| vl != DROP_VL).collect();
                used.sort_unstable();
                used.dedup();
                let order = |&vl: &u8| {
                    let mut channels = none();
                    // A layer is an SL.
                    let layers = unicast.layers.iter().zip(vls).filter(|&(_, &of)| of == vl);
                    layers.for_each(|(layer, _)| channels.join(layer));
                    Order::find(topology, hops, channels)
                };
                let orders = used.iter().map(order).collect();
                Self { orders, of_sl: vls.map(|vl| used.binary_search(&vl).ok()), by_hop: None }
            }
            Lanes::Torus(lanes) => Self::by_hop(topology, hops, unicast, lanes.clone()),
            Lanes::Dragonfly(lanes) => Self::by_hop(topology, hops, unicast, lanes.clone()),
        }
    }

    /// Orders the channels of lanes between which packets change, together with the tree of which
    /// those of groups are parts.
    fn by_hop(
        topology: &Topology,
        hops: &HopMatrix,
        unicast: &Unicast,
        by_hop: Arc<dyn HopLanes>,
    ) -> Self {
        let hops_of_tree = Hops::ByPorts(by_hop.clone(), 0);
        let lanes = hops_of_tree.lanes();
        let layer = unicast.layers.first().cloned();
        let alone = layer.unwrap_or_else(|| Channels::none(topology, lanes));
        let (master, hosts) = (by_hop.tree(), topology.hosts_on());
        let with_tree = |is_member: &dyn Fn(u16) -> bool| {
            let members = topology.switches().filter(|&switch| master.joins(switch));
            let members = members.filter(|&switch| is_member(switch));
            let members: Vec<Place> = members.map(|switch| Place { switch, exit: 0 }).collect();
            let mut channels = alone.clone();
            let tree = Tree::part_of(master, &members);
            channels.join_tree(topology, &tree.masks, &hops_of_tree);
            let is_free = !unicast.loops.is_free() || !channels.looping(topology).contains(&true);
            is_free.then_some(channels)
        };
        // The tree to all switches, or else to those with hosts, unless missing links let it close
        // a cycle.
        let channels =
            with_tree(&|_| true).or_else(|| with_tree(&|switch| hosts[usize::from(switch)] > 0));
        let channels = channels.unwrap_or_else(|| alone.clone());
        let orders = vec![Order::find(topology, hops, channels)];
        Self { orders, of_sl: [Some(0); 16], by_hop: Some(by_hop) }
    }

    /// Whether all orders are consistent with the dependencies: see [`Channels::is_order`].
    pub fn are_right(&self, topology: &Topology) -> bool {
        self.orders.iter().all(|order| order.channels().is_order(topology, order.numbers()))
    }

    /// Whether a tree follows the orders of these SLs.
    pub fn admits(&self, topology: &Topology, masks: &[(u16, PortMask)], sls: u16) -> bool {
        self.of(sls).all(|(order, hops, _)| order.admits(topology, masks, &hops))
    }

    /// The fault of a tree that is not admitted.
    fn fault(&self, topology: &Topology, masks: &[(u16, PortMask)], sls: u16) -> Option<Fault> {
        let mut refusing =
            self.of(sls).filter(|(order, hops, _)| !order.admits(topology, masks, hops));
        let (order, hops, sl) = refusing.next()?;
        Some(Fault { sl, cycle: order.cycle(topology, masks, &hops) })
    }

    /// The orders for packets of these SLs, each once.
    fn of(&self, sls: u16) -> impl Iterator<Item = (&Order, Hops, u8)> {
        let mut seen = 0u16;
        let sls = (0u8..16).filter(move |sl| sls >> sl & 1 == 1);
        sls.filter_map(move |sl| {
            let number = self.of_sl[usize::from(sl)]?;
            let Some(by_hop) = &self.by_hop else {
                let is_new = seen >> number & 1 == 0;
                seen |= 1 << number;
                return is_new.then(|| (&self.orders[number], Hops::OneLane, sl));
            };
            Some((&self.orders[number], Hops::ByPorts(by_hop.clone(), sl), sl))
        })
    }
}

/// Chooses trees that add to no cycle, where there are any.
#[derive(Debug)]
pub struct Chooser<'a> {
    topology: &'a Topology,
    builder: TreeBuilder<'a>,
    orders: &'a Orders,
    /// Trees built so far, by order, root and seed.
    grown: HashMap<(usize, u16, u64), Spanning>,
}

impl<'a> Chooser<'a> {
    /// Chooses trees over `topology`, whose hops are `hops`.
    pub fn new(topology: &'a Topology, hops: &'a HopMatrix, orders: &'a Orders) -> Self {
        Self::around(topology, hops, orders, Arc::default())
    }

    /// Chooses trees that avoid the `barred` switches, indexed by number; `hops` comes from
    /// [`hops_around`](super::hops_around) with the same switches.
    pub fn around(
        topology: &'a Topology,
        hops: &'a HopMatrix,
        orders: &'a Orders,
        barred: Arc<[bool]>,
    ) -> Self {
        let builder = TreeBuilder::around(topology, hops, barred);
        Self { topology, builder, orders, grown: HashMap::new() }
    }

    /// Returns the tree of a group: the previous one if it still serves, or the first of these that
    /// is admitted: on a torus or dragonfly, the group's part of the master tree; the tree of
    /// fewest hops; a tree built from the same root or from the next best; the group's part of the
    /// tree of all switches. If none is admitted, the tree of fewest hops.
    pub fn choose(&mut self, wanted: &Wanted<'_>) -> ChosenTree {
        let (topology, orders) = (self.topology, self.orders);
        let members = unique(wanted.members);
        let is_admitted = |tree: &Tree| orders.admits(topology, &tree.masks, wanted.sls);
        let serves =
            |tree: &&Tree| tree.unreached.is_empty() && check(topology, tree, &members).is_ok();
        let barred = self.builder.barred.clone();
        let is_open = |tree: &Tree| is_open(tree, &barred);
        let stands = wanted.before.filter(serves);
        let stands = stands.filter(|tree| is_open(tree) && is_admitted(tree));
        if let Some(tree) = stands.filter(|tree| self.builder.is_short(tree, &members)) {
            return ChosenTree { tree: Arc::new(tree.clone()), fault: None };
        }
        let master = orders.by_hop.as_ref().map(|lanes| lanes.tree());
        let master = master.filter(|tree| members.iter().all(|place| tree.joins(place.switch)));
        let own = master.map(|master| Tree::part_of(master, &members));
        if let Some(tree) = own.filter(|tree| is_open(tree) && is_admitted(tree)) {
            return ChosenTree { tree: Arc::new(tree), fault: None };
        }
        let nearest = self.builder.tree(wanted.mlid, &members, wanted.before);
        if is_admitted(&nearest) {
            return ChosenTree { tree: Arc::new(nearest), fault: None };
        }
        if let Some(tree) = self.other(wanted, &members, &nearest) {
            return ChosenTree { tree: Arc::new(tree), fault: None };
        }
        let fault = orders.fault(topology, &nearest.masks, wanted.sls);
        ChosenTree { tree: Arc::new(nearest), fault }
    }

    /// Finds an admitted tree where the tree of fewest hops is not admitted.
    fn other(&mut self, wanted: &Wanted<'_>, members: &[Place], nearest: &Tree) -> Option<Tree> {
        let reached: Vec<Place> =
            members.iter().copied().filter(|place| !nearest.unreached.contains(place)).collect();
        let (topology, orders) = (self.topology, self.orders);
        let barred = self.builder.barred.clone();
        let finish = |tree: Option<Tree>| {
            let tree = tree.filter(|tree| is_open(tree, &barred));
            let tree = tree.filter(|tree| orders.admits(topology, &tree.masks, wanted.sls))?;
            Some(Tree { unreached: nearest.unreached.clone(), ..tree })
        };
        if orders.by_hop.is_some() {
            return None;
        }
        let mut roots: Vec<u16> = nearest.root.into_iter().collect();
        roots.extend(self.builder.best_roots(&reached, ROOTS_MAX));
        let numbers: Vec<usize> = {
            let mut numbers: Vec<usize> = (0..16)
                .filter(|sl| wanted.sls >> sl & 1 == 1)
                .filter_map(|sl| orders.of_sl[sl])
                .collect();
            numbers.dedup();
            numbers
        };
        for &number in &numbers {
            for &root in &roots {
                let seed = spread(wanted.mlid, root) % SEEDS;
                let order = &orders.orders[number];
                let grow = || Spanning::grow(topology, order.numbers(), (root, seed), &barred);
                let grown = self.grown.entry((number, root, seed)).or_insert_with(grow);
                if let Some(tree) = finish(grown.tree(&reached)) {
                    return Some(tree);
                }
            }
        }
        let spanning = numbers.iter().filter_map(|&number| orders.orders[number].spanning());
        spanning.into_iter().find_map(|spanning| finish(spanning.tree(&reached)))
    }
}

/// Whether a tree has none of the barred switches.
fn is_open(tree: &Tree, barred: &[bool]) -> bool {
    let is_barred = |switch: u16| barred.get(usize::from(switch)).is_some_and(|&barred| barred);
    !tree.masks.iter().any(|(switch, _)| is_barred(*switch))
}

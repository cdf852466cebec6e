//! Nue: routes without credit loops on any fabric and with any number of virtual lanes, even one.
//!
//! After Domke, Hoefler, Matsuoka: "Routing on the Dependency Graph: A New Approach to
//! Deadlock-Free High-Performance Routing" (HPDC 2016). Other engines look for routes first and
//! then for lanes to put them in, of which there may be too few. Here destinations are dealt to the
//! lanes there are ([`partition`]), and each is routed by ways that only take turns which close no
//! cycle with those that routes of its lane took before ([`turns`]). What is allowed shrinks from
//! destination to destination, and ways become longer, but never none: a spanning tree whose turns
//! are allowed before all others ([`escape`]) joins whatever is left.
//!
//! The search goes wave by wave from the home switch outward ([`search`]), so that ways have few
//! hops; among ways with equal hops the least loaded is taken, as in `sssp`. A turn is only claimed
//! by the way that is chosen. Where no turn is left into any neighbour of the wave before, one of
//! them is given another way as short that can be turned into, if that suits all that send to it;
//! this is the paper's local backtracking. A switch that is still left out is tried again from the
//! next wave. After the last, the escape paths join those that are left: not the whole destination,
//! as in OpenSM, but they, the switches on their ways, and who cannot turn into these.
//!
//! What must not wait in circles is what goes between switches with hosts, whether to hosts or to
//! the switches themselves. A switch without hosts gets shortest ways to and from, by turns that
//! count for nothing, unless `nue_includes_switches` asks for all: a core switch of a tree can reach
//! another only by going down and up again, and each such turn would cost hosts some of theirs.
//!
//! The order of destinations decides which turns are left for the last ones, and so does the root
//! of the escape paths; none is the best for all fabrics. The first order is from the best root
//! outward. If turns were refused by that, others are tried, as many as the fabric's size allows:
//! that of numbers, which suits fabrics numbered by dimension, and such as follow no rule, with
//! other roots. What is taken has few routes on its worst link, and short ways
//! ([`Made::demerits`]).
//!
//! Ways of a home's LIDs differ, but all fall by the hops of the first one's. The layer depends on
//! the home alone; with one lane there are no layers, and any SL will do. The routing before is not
//! looked at, nor are `hop_weights`, as in OpenSM.

mod escape;
mod fabric;
mod further;
mod lane;
mod loads;
mod partition;
mod search;
mod tree;
mod turns;

use self::escape::Forest;
use self::fabric::Fabric;
use self::further::Further;
use self::lane::Lane;
use self::loads::Loads;
use self::search::Search;
use self::turns::Turns;
use ib_mad::types::Lid;
use rayon::prelude::*;

use super::deal::Dealt;
use super::dfsssp;
use super::lanes::Columns;
use super::layering::Pairs;
use super::sssp::{self, Distances};
use super::steering::mixed;
use super::tables::Tables;
use super::{
    Destination, Engine, HopMatrix, Lanes, Layers, Previous, Routing, RoutingError, Steering,
    Topology,
};

/// The engine `nue`. Costs LIDs times links on shortest ways; if turns were refused, again for each
/// of up to 60 variants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nue;

impl Engine for Nue {
    fn name(&self) -> &'static str {
        "nue"
    }

    fn keeps_routes(&self, _steering: &Steering) -> bool {
        false
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        _: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        if let Some(routing) = shortest(self.name(), topology, steering) {
            return Ok(routing);
        }
        let distances = HopMatrix::compute_for(self.name(), topology, None)?;
        let layers = partition::layers(&distances, homes(topology), lanes(steering));
        let fabric = Fabric::new(topology, steering);
        let attempt = |variant| attempt(&fabric, &distances, &layers, variant);
        let first = attempt(Variant::FIRST);
        let made = if first.is_refused {
            let others = Variant::others(topology).into_par_iter().map(attempt);
            // Of equals the first.
            let all = rayon::iter::once(first).chain(others);
            all.min_by_key(|made| made.demerits(&fabric)).expect("there is one")
        } else {
            first
        };
        let Made { tables, mut hops, unreachable, .. } = made;
        hops.transpose();
        let lanes = lanes_of(topology, &layers);
        Ok(Routing {
            engine: self.name(),
            lfts: tables.finish(),
            hops,
            lanes,
            unreachable,
            loads: Vec::new(),
        })
    }
}

/// Routes as of `dfsssp`, if these do with the lanes: there are none shorter, or better spread.
fn shortest(engine: &'static str, topology: &Topology, steering: &Steering) -> Option<Routing> {
    if steering.nue_includes_switches {
        return None;
    }
    let pairs = Pairs::BothWithHosts;
    let plain = Steering { data_lanes: lanes(steering), ..Steering::default() };
    let mut distances = Distances::new(engine, topology, &plain).ok()?;
    let Dealt { lfts, unreachable, loads } = sssp::walk(topology, &plain, &mut distances);
    let lanes = match dfsssp::layers(topology, &plain, &mut distances, &lfts, pairs)? {
        // Any SL will do.
        Lanes::Layers(layers) if layers.count < 2 => Lanes::Free,
        lanes => lanes,
    };
    Some(Routing { engine, lfts, hops: distances.finish(), lanes, unreachable, loads })
}

/// The order of homes within a layer.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Those near the roots of the escape paths first.
    FromRoots,
    /// These last.
    ToRoots,
    /// By the switches' numbers.
    ByNumber,
    /// By no rule: another order for each number.
    Scattered(u32),
}

/// What decides which turns are left for whom.
#[derive(Clone, Copy, Debug)]
struct Variant {
    order: Order,
    /// The root of the escape paths, by its place among the best.
    root: usize,
}

impl Variant {
    const FIRST: Self = Self { order: Order::FromRoots, root: 0 };
    /// Entries of tables times links that all variants may cost, and how many there are at most.
    const COST_MAX: usize = 30_000_000;
    const COUNT_MAX: usize = 60;

    /// What to try besides, as many as a fabric of this size can wait for, one at least.
    fn others(topology: &Topology) -> Vec<Self> {
        let cost = topology.table_len() * topology.link_count();
        let count = (Self::COST_MAX / cost.max(1)).clamp(1, Self::COUNT_MAX);
        let with_hosts = topology.hosts_on().into_iter().filter(|&hosts| hosts > 0).count();
        let each = (0..with_hosts.max(1)).flat_map(|root| {
            let scattered = Order::Scattered(root as u32);
            let orders = [Order::ByNumber, scattered, Order::FromRoots, Order::ToRoots];
            orders.map(|order| Self { order, root })
        });
        each.filter(|variant| !matches!(variant, Self { order: Order::FromRoots, root: 0 }))
            .take(count)
            .collect()
    }
}

/// What was made so far.
struct Made {
    tables: Tables,
    loads: Loads,
    /// Row a home.
    hops: HopMatrix,
    /// Pairs of a switch and a LID without a route.
    unreachable: u64,
    /// Whether a turn was refused.
    is_refused: bool,
}

impl Made {
    /// How bad it is: pairs without a route, then routes on the worst link, times the turns of the
    /// longest way between switches with hosts, then the hops of all these ways.
    fn demerits(&self, fabric: &Fabric<'_>) -> (u64, u64, u64) {
        let (mut longest, mut sum) = (0u8, 0u64);
        let ends = || fabric.topology.switches().filter(|&switch| fabric.is_end(switch));
        for home in ends() {
            let row = self.hops.row(home);
            let hops = ends().map(|source| row[usize::from(source)]);
            for hops in hops.filter(|&hops| hops != HopMatrix::UNREACHABLE) {
                longest = longest.max(hops);
                sum += u64::from(hops);
            }
        }
        let turns = longest.saturating_sub(1).max(1);
        (self.unreachable, u64::from(self.loads.most()) * u64::from(turns), sum)
    }
}

/// Routes everything.
fn attempt(
    fabric: &Fabric<'_>,
    distances: &HopMatrix,
    layers: &[Vec<Home>],
    variant: Variant,
) -> Made {
    let switches = fabric.switch_count();
    let mut made = Made {
        tables: Tables::new(switches, fabric.topology.table_len()),
        loads: Loads::new(fabric),
        hops: HopMatrix::unreachable(switches),
        unreachable: 0,
        is_refused: false,
    };
    layers.iter().for_each(|homes| route_layer(fabric, distances, homes, variant, &mut made));
    made
}

/// Routes all LIDs of some homes so that they can share a lane.
fn route_layer(
    fabric: &Fabric<'_>,
    distances: &HopMatrix,
    homes: &[Home],
    variant: Variant,
    made: &mut Made,
) {
    let Made { tables, loads, hops, unreachable, is_refused } = made;
    let mut turns = Turns::new(fabric.topology);
    let forest = Forest::new(fabric, distances, homes, variant.root);
    forest.mark(fabric, homes, &mut turns);
    let mut lane = Lane { fabric, loads, turns };
    let mut search = Search::new(fabric);
    let mut further = Further::new(fabric);
    for home in in_order(fabric, &forest, homes, variant.order) {
        search.run(&mut lane, &forest, distances.row(home.switch), home.switch);
        further.begin(fabric, &search);
        hops.row_mut(home.switch).copy_from_slice(&search.levels);
        let missed = fabric.switch_count() - 1 - search.order.len();
        for ((lid, destination), place) in home.lids().zip(0..) {
            if place > 0 {
                further.route(&mut lane, &search);
            }
            let choices = &further.tree.choices;
            if destination.is_host() {
                lane.loads.add(fabric, &search.order, choices);
            }
            tables.begin(&[lid]);
            tables.enter(home.switch, destination.exit);
            for &switch in &search.order {
                let link = fabric.topology.link(choices[usize::from(switch)] as usize);
                tables.enter(switch, link.port);
            }
            *unreachable += missed as u64;
        }
    }
    *is_refused |= lane.turns.is_refused;
}

/// Homes with hosts, then others: what is sent to these is little.
fn in_order<'a>(
    fabric: &Fabric<'_>,
    forest: &Forest,
    homes: &'a [Home],
    order: Order,
) -> Vec<&'a Home> {
    let mut places: Vec<u64> = fabric.topology.switches().map(u64::from).collect();
    let switches = forest.order().iter().zip(0..);
    match order {
        Order::FromRoots => {
            switches.for_each(|(&switch, place)| places[usize::from(switch)] = place);
        }
        Order::ToRoots => {
            switches.for_each(|(&switch, place)| places[usize::from(switch)] = u64::MAX - place);
        }
        Order::Scattered(seed) => {
            places.iter_mut().for_each(|place| *place = mixed(u64::from(seed) << 32 | *place));
        }
        Order::ByNumber => {}
    }
    let mut homes: Vec<&Home> = homes.iter().collect();
    homes.sort_by_key(|home| (!home.has_hosts(), places[usize::from(home.switch)], home.switch));
    homes
}

/// How many lanes may be used.
fn lanes(steering: &Steering) -> u8 {
    let all = steering.data_lanes.max(1);
    match steering.nue_lanes_max {
        0 => all,
        max => all.min(max),
    }
}

/// A switch that delivers, and what.
#[derive(Clone, Debug)]
struct Home {
    switch: u16,
    /// Hosts by port, then the switch itself.
    destinations: Vec<Destination>,
}

impl Home {
    fn lids(&self) -> impl Iterator<Item = (Lid, &Destination)> {
        self.destinations.iter().flat_map(|to| to.lids().map(move |lid| (lid, to)))
    }

    fn has_hosts(&self) -> bool {
        self.destinations.first().is_some_and(Destination::is_host)
    }
}

/// All homes by number.
fn homes(topology: &Topology) -> Vec<Home> {
    let mut destinations = topology.destinations().to_vec();
    destinations.sort_unstable_by_key(|to| (to.home, !to.is_host(), to.exit, to.base_lid));
    let of_home = |to: &[Destination]| Home { switch: to[0].home, destinations: to.to_vec() };
    destinations.chunk_by(|a, b| a.home == b.home).map(of_home).collect()
}

/// The layers of routes, if there is more than one.
fn lanes_of(topology: &Topology, layers: &[Vec<Home>]) -> Lanes {
    if layers.len() < 2 {
        return Lanes::Free;
    }
    let switches = topology.switch_count();
    let mut row = vec![0; switches];
    for (homes, layer) in layers.iter().zip(0u8..) {
        homes.iter().for_each(|home| row[usize::from(home.switch)] = layer);
    }
    let mut all = Layers::new(switches, Columns::HomeSwitch, switches);
    all.count = layers.len() as u8;
    for source in topology.switches() {
        all.row_mut(source).copy_from_slice(&row);
    }
    Lanes::Layers(all)
}

#[cfg(test)]
mod tests;

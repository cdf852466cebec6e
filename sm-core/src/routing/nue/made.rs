//! The routes of one variant.

use ib_mad::types::Lid;

use super::super::tables::{BATCH_MAX, Tables};
use super::super::{Entries, HopMatrix, NO_ROUTE};
use super::Home;
use super::escape::Forest;
use super::fabric::{Fabric, NO_LINK};
use super::further::Further;
use super::lane::Lane;
use super::loads::Loads;
use super::search::Search;
use super::turns::Turns;
use super::variant::{Variant, in_order};

/// Routes of all switches to all LIDs: a byte for each, besides the turns of each lane.
#[derive(Debug)]
pub(super) struct Made<'a> {
    fabric: &'a Fabric<'a>,
    /// Least hops.
    distances: &'a HopMatrix,
    layers: Vec<Layer<'a>>,
    /// By LID in the order of routing, layer by layer, and by switch: the egress port.
    ports: Vec<u8>,
    pub(super) loads: Loads,
    /// Row a home: hops of what is sent to it.
    hops: HopMatrix,
    /// Pairs of a switch and a LID without a route.
    unreachable: u64,
}

/// Homes that share a lane, and the turns their routes take.
#[derive(Debug)]
struct Layer<'a> {
    /// In the order of routing.
    homes: Vec<&'a Home>,
    forest: Forest,
    turns: Turns,
}

impl<'a> Made<'a> {
    /// Routes everything.
    pub(super) fn new(
        fabric: &'a Fabric<'a>,
        distances: &'a HopMatrix,
        layers: &'a [Vec<Home>],
        variant: Variant,
    ) -> Self {
        let switches = fabric.switch_count();
        let lids = layers.iter().flatten().flat_map(Home::lids).count();
        let layer = |homes: &'a Vec<Home>| {
            let mut turns = Turns::new(fabric.topology);
            let forest = Forest::new(fabric, distances, homes, variant.root);
            forest.mark(fabric, homes, &mut turns);
            Layer { homes: in_order(fabric, &forest, homes, variant.order), forest, turns }
        };
        let mut made = Self {
            fabric,
            distances,
            layers: layers.iter().map(layer).collect(),
            ports: vec![NO_ROUTE; lids * switches],
            loads: Loads::new(fabric),
            hops: HopMatrix::unreachable(switches),
            unreachable: 0,
        };
        made.route(Pass::First);
        made
    }

    /// Routes to one home after the other anew, beside the routes to all others, and by their
    /// turns. No home's longest way gets longer.
    pub(super) fn route_again(&mut self) {
        self.route(Pass::Again);
    }

    /// Routes to one home after the other.
    fn route(&mut self, pass: Pass) {
        let Self { fabric, distances, layers, ports, loads, hops, unreachable } = self;
        let (fabric, switches) = (*fabric, fabric.switch_count());
        let (mut search, mut further) = (Search::new(fabric), Further::new(fabric));
        let mut columns = ports.chunks_exact_mut(switches.max(1));
        *unreachable = 0;
        for Layer { homes, forest, turns } in layers {
            for home in homes {
                let mut columns: Vec<&mut [u8]> =
                    columns.by_ref().take(home.lids().count()).collect();
                let hops = hops.row_mut(home.switch);
                let before = (pass == Pass::Again).then(|| {
                    weigh(fabric, home, hops, &columns, loads, Loads::remove);
                    (hops.to_vec(), columns.concat())
                });
                let mut lane = Lane { fabric, loads, turns };
                search.run(&mut lane, forest, distances.row(home.switch), home.switch);
                further.begin(fabric, &search);
                hops.copy_from_slice(&search.levels);
                for (place, ((_, to), column)) in home.lids().zip(&mut columns).enumerate() {
                    if place > 0 {
                        further.route(&mut lane, &search);
                    }
                    let choices = &further.tree.choices;
                    if to.is_host() {
                        lane.loads.add(fabric, &search.order, choices);
                    }
                    column.fill(NO_ROUTE);
                    column[usize::from(home.switch)] = to.exit;
                    for &switch in &search.order {
                        let link = fabric.topology.link(choices[usize::from(switch)] as usize);
                        column[usize::from(switch)] = link.port;
                    }
                }
                if let Some((hops_before, columns_before)) = before
                    && farthest(fabric, hops) > farthest(fabric, &hops_before)
                {
                    // Its turns are still allowed.
                    weigh(fabric, home, hops, &columns, loads, Loads::remove);
                    hops.copy_from_slice(&hops_before);
                    let both = columns.iter_mut().zip(columns_before.chunks_exact(switches));
                    both.for_each(|(column, before)| column.copy_from_slice(before));
                    weigh(fabric, home, hops, &columns, loads, Loads::add);
                }
                *unreachable += (missed(hops) * columns.len()) as u64;
            }
        }
    }

    /// Whether a turn was ever refused.
    pub(super) fn is_refused(&self) -> bool {
        self.layers.iter().any(|layer| layer.turns.is_refused)
    }

    /// How bad it is: pairs without a route, then routes on the worst link, squared, times the
    /// turns of the longest way between switches with hosts, then the hops of all these ways.
    pub(super) fn demerits(&self) -> (u64, u128, u64) {
        let (mut longest, mut sum) = (0u8, 0u64);
        for home in self.fabric.ends() {
            for hops in hops_of_ends(self.fabric, self.hops.row(home)) {
                longest = longest.max(hops);
                sum += u64::from(hops);
            }
        }
        let turns = u128::from(longest.saturating_sub(1).max(1));
        (self.unreachable, u128::from(self.loads.most()).pow(2) * turns, sum)
    }

    /// Tables, hops to each home from everywhere, and how many pairs have no route.
    pub(super) fn finish(self) -> (Vec<Entries>, HopMatrix, u64) {
        let switches = self.fabric.switch_count();
        let mut tables = Tables::new(switches, self.fabric.topology.table_len());
        let homes = self.layers.iter().flat_map(|layer| &layer.homes);
        let lids: Vec<Lid> = homes.flat_map(|home| home.lids()).map(|(lid, _)| lid).collect();
        let batches = lids.chunks(BATCH_MAX);
        for (lids, columns) in batches.zip(self.ports.chunks((BATCH_MAX * switches).max(1))) {
            tables.begin(lids);
            tables.enter_columns(columns);
        }
        (tables.finish(), self.hops, self.unreachable)
    }
}

/// Which routes a pass makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    First,
    /// There are others already.
    Again,
}

/// How many switches have no way.
fn missed(hops: &[u8]) -> usize {
    hops.iter().filter(|&&hops| hops == HopMatrix::UNREACHABLE).count()
}

/// How many switches have no way to a home, and the hops of the longest one of an end.
fn farthest(fabric: &Fabric<'_>, hops: &[u8]) -> (usize, u8) {
    (missed(hops), hops_of_ends(fabric, hops).max().unwrap_or(0))
}

/// The hops of the ends that have a way.
fn hops_of_ends(fabric: &Fabric<'_>, hops: &[u8]) -> impl Iterator<Item = u8> {
    let hops = fabric.ends().map(|end| hops[usize::from(end)]);
    hops.filter(|&hops| hops != HopMatrix::UNREACHABLE)
}

/// Adds the routes to a home's hosts to loads, or takes them off: those of `columns`, which all
/// fall by `hops`.
fn weigh(
    fabric: &Fabric<'_>,
    home: &Home,
    hops: &[u8],
    columns: &[&mut [u8]],
    loads: &mut Loads,
    change: impl Fn(&mut Loads, &Fabric<'_>, &[u16], &[u32]),
) {
    if !home.has_hosts() {
        return;
    }
    let topology = fabric.topology;
    let has_way = |&switch: &u16| hops[usize::from(switch)] != HopMatrix::UNREACHABLE;
    let others = topology.switches().filter(|&switch| switch != home.switch);
    let mut order: Vec<u16> = others.filter(has_way).collect();
    order.sort_by_key(|&switch| hops[usize::from(switch)]);
    let mut choices = vec![NO_LINK; fabric.switch_count()];
    for ((_, to), column) in home.lids().zip(columns) {
        if !to.is_host() {
            continue;
        }
        for &switch in &order {
            let link = topology.link_at(switch, column[usize::from(switch)]);
            choices[usize::from(switch)] = link.expect("a route leads somewhere") as u32;
        }
        change(loads, fabric, &order, &choices);
    }
}

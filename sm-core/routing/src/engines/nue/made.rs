//! Computes the routes of one variant.

use ib_mad::types::Lid;

use super::EgressSwitch;
use super::escape::Forest;
use super::fabric::{Fabric, NO_LINK};
use super::further::Further;
use super::lane::Lane;
use super::loads::Loads;
use super::search::Search;
use super::turns::Turns;
use super::variant::{Variant, in_order};
use crate::tables::{BATCH_MAX, Tables};
use crate::{Entries, HopMatrix, NO_ROUTE};

/// Routes of all switches to all LIDs, one byte each, and the turns of each lane.
#[derive(Debug)]
pub(super) struct Made<'a> {
    fabric: &'a Fabric<'a>,
    /// Smallest hop counts.
    distances: &'a HopMatrix,
    layers: Vec<Layer<'a>>,
    /// Egress ports by LID in the order of routing, layer by layer, and then by switch.
    ports: Vec<u8>,
    pub(super) loads: Loads,
    /// Hops of the computed routes, one row per egress switch.
    hops: HopMatrix,
    /// Number of pairs of a switch and a LID without a route.
    unreachable: u64,
}

/// Egress switches that share a lane, and the turns of their routes.
#[derive(Debug)]
struct Layer<'a> {
    /// Egress switches in the order of routing.
    egress_switches: Vec<&'a EgressSwitch>,
    forest: Forest,
    turns: Turns,
}

impl<'a> Made<'a> {
    /// Routes everything.
    pub(super) fn new(
        fabric: &'a Fabric<'a>,
        distances: &'a HopMatrix,
        layers: &'a [Vec<EgressSwitch>],
        variant: Variant,
    ) -> Self {
        let switches = fabric.switch_count();
        let lids = layers.iter().flatten().flat_map(EgressSwitch::lids).count();
        let layer = |egress_switches: &'a Vec<EgressSwitch>| {
            let mut turns = Turns::new(fabric.topology);
            let forest = Forest::new(fabric, distances, egress_switches, variant.root);
            forest.mark(fabric, egress_switches, &mut turns);
            Layer {
                egress_switches: in_order(fabric, &forest, egress_switches, variant.order),
                forest,
                turns,
            }
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

    /// Routes to one egress switch after the other again, alongside the routes to all others and by
    /// their turns. The longest path to an egress switch never gets longer.
    pub(super) fn route_again(&mut self) {
        self.route(Pass::Again);
    }

    /// Routes to one egress switch after the other.
    fn route(&mut self, pass: Pass) {
        let Self { fabric, distances, layers, ports, loads, hops, unreachable } = self;
        let (fabric, switches) = (*fabric, fabric.switch_count());
        let (mut search, mut further) = (Search::new(fabric), Further::new(fabric));
        let mut columns = ports.chunks_exact_mut(switches.max(1));
        *unreachable = 0;
        for Layer { egress_switches, forest, turns } in layers {
            for egress_switch in egress_switches {
                let mut columns: Vec<&mut [u8]> =
                    columns.by_ref().take(egress_switch.lids().count()).collect();
                let hops = hops.row_mut(egress_switch.switch);
                let before = (pass == Pass::Again).then(|| {
                    weigh(fabric, egress_switch, hops, &columns, loads, Loads::remove);
                    (hops.to_vec(), columns.concat())
                });
                let mut lane = Lane { fabric, loads, turns };
                search.run(
                    &mut lane,
                    forest,
                    distances.row(egress_switch.switch),
                    egress_switch.switch,
                );
                further.begin(fabric, &search);
                hops.copy_from_slice(&search.levels);
                for (place, ((_, to), column)) in egress_switch.lids().zip(&mut columns).enumerate()
                {
                    if place > 0 {
                        further.route(&mut lane, &search);
                    }
                    let choices = &further.tree.choices;
                    if to.is_host() {
                        lane.loads.add(fabric, &search.order, choices);
                    }
                    column.fill(NO_ROUTE);
                    column[usize::from(egress_switch.switch)] = to.exit;
                    for &switch in &search.order {
                        let link = fabric.topology.link(choices[usize::from(switch)] as usize);
                        column[usize::from(switch)] = link.port;
                    }
                }
                if let Some((hops_before, columns_before)) = before
                    && farthest(fabric, hops) > farthest(fabric, &hops_before)
                {
                    // Its turns are still allowed.
                    weigh(fabric, egress_switch, hops, &columns, loads, Loads::remove);
                    hops.copy_from_slice(&hops_before);
                    let both = columns.iter_mut().zip(columns_before.chunks_exact(switches));
                    both.for_each(|(column, before)| column.copy_from_slice(before));
                    weigh(fabric, egress_switch, hops, &columns, loads, Loads::add);
                }
                *unreachable += (missed(hops) * columns.len()) as u64;
            }
        }
    }

    /// Whether a turn was ever refused.
    pub(super) fn is_refused(&self) -> bool {
        self.layers.iter().any(|layer| layer.turns.is_refused)
    }

    /// A rating in which lower is better: pairs without a route; then the squared number of routes
    /// on the worst link, times the turns of the longest path between switches with hosts; then the
    /// hops of all these paths.
    pub(super) fn demerits(&self) -> (u64, u128, u64) {
        let (mut longest, mut sum) = (0u8, 0u64);
        for egress_switch in self.fabric.ends() {
            for hops in hops_of_ends(self.fabric, self.hops.row(egress_switch)) {
                longest = longest.max(hops);
                sum += u64::from(hops);
            }
        }
        let turns = u128::from(longest.saturating_sub(1).max(1));
        (self.unreachable, u128::from(self.loads.most()).pow(2) * turns, sum)
    }

    /// Returns the tables, the hops to each egress switch from all switches, and the number of
    /// pairs without a route.
    pub(super) fn finish(self) -> (Vec<Entries>, HopMatrix, u64) {
        let switches = self.fabric.switch_count();
        let mut tables = Tables::new(switches, self.fabric.topology.table_len());
        let egress_switches = self.layers.iter().flat_map(|layer| &layer.egress_switches);
        let lids: Vec<Lid> = egress_switches
            .flat_map(|egress_switch| egress_switch.lids())
            .map(|(lid, _)| lid)
            .collect();
        let batches = lids.chunks(BATCH_MAX);
        for (lids, columns) in batches.zip(self.ports.chunks((BATCH_MAX * switches).max(1))) {
            tables.begin(lids);
            tables.enter_columns(columns);
        }
        (tables.finish(), self.hops, self.unreachable)
    }
}

/// A pass over all egress switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    First,
    /// All egress switches have routes already.
    Again,
}

/// Number of switches without a path.
fn missed(hops: &[u8]) -> usize {
    hops.iter().filter(|&&hops| hops == HopMatrix::UNREACHABLE).count()
}

/// Number of switches without a path to an egress switch, and the hops of the longest path from an
/// end.
fn farthest(fabric: &Fabric<'_>, hops: &[u8]) -> (usize, u8) {
    (missed(hops), hops_of_ends(fabric, hops).max().unwrap_or(0))
}

/// The hops of the ends that have a path.
fn hops_of_ends(fabric: &Fabric<'_>, hops: &[u8]) -> impl Iterator<Item = u8> {
    let hops = fabric.ends().map(|end| hops[usize::from(end)]);
    hops.filter(|&hops| hops != HopMatrix::UNREACHABLE)
}

/// Applies `change` (adding or removing) to the loads of routes to an egress switch's hosts. The
/// routes are given by `columns`, and all fall by `hops`.
fn weigh(
    fabric: &Fabric<'_>,
    egress_switch: &EgressSwitch,
    hops: &[u8],
    columns: &[&mut [u8]],
    loads: &mut Loads,
    change: impl Fn(&mut Loads, &Fabric<'_>, &[u16], &[u32]),
) {
    if !egress_switch.has_hosts() {
        return;
    }
    let topology = fabric.topology;
    let has_way = |&switch: &u16| hops[usize::from(switch)] != HopMatrix::UNREACHABLE;
    let others = topology.switches().filter(|&switch| switch != egress_switch.switch);
    let mut order: Vec<u16> = others.filter(has_way).collect();
    order.sort_by_key(|&switch| hops[usize::from(switch)]);
    let mut choices = vec![NO_LINK; fabric.switch_count()];
    for ((_, to), column) in egress_switch.lids().zip(columns) {
        if !to.is_host() {
            continue;
        }
        for &switch in &order {
            let link = topology.link_at(switch, column[usize::from(switch)]);
            choices[usize::from(switch)] =
                link.expect("a route leaves by a port with a link") as u32;
        }
        change(loads, fabric, &order, &choices);
    }
}

//! What is tried in turn, as nobody knows which suits a fabric best.

use super::super::Topology;
use super::super::steering::mixed;
use super::Home;
use super::escape::Forest;
use super::fabric::Fabric;

/// The order of homes within a layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
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
pub(super) struct Variant {
    pub(super) order: Order,
    /// The root of the escape paths, by its place among the best.
    pub(super) root: usize,
}

impl Variant {
    pub(super) const FIRST: Self = Self { order: Order::FromRoots, root: 0 };
    /// Entries of tables times links that all variants may cost, and how many there are at most.
    const COST_MAX: usize = 30_000_000;
    const COUNT_MAX: usize = 60;
    /// How many of them are routed a second time at most.
    pub(super) const AGAIN_MAX: usize = 8;

    /// What to try besides, as many as a fabric of this size can wait for, one at least.
    pub(super) fn others(topology: &Topology) -> Vec<Self> {
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

/// Homes with hosts, then others: what is sent to these is little.
pub(super) fn in_order<'a>(
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

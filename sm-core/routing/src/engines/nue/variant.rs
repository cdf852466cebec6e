//! Variants that are tried one after the other, since the best one for a fabric is not known in
//! advance.

use super::EgressSwitch;
use super::escape::Forest;
use super::fabric::Fabric;
use crate::Topology;
use crate::options::mixed;

/// The order of egress switches within a layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Egress switches near the roots of the escape paths first.
    FromRoots,
    /// Egress switches near the roots last.
    ToRoots,
    /// By the switches' numbers.
    ByNumber,
    /// In a pseudo-random order; each seed gives another one.
    Scattered(u32),
}

/// The choices that decide which turns remain for the last destinations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    pub(super) order: Order,
    /// The root of the escape paths, by its index in the ranking of roots.
    pub(super) root: usize,
}

impl Variant {
    /// The variant that is tried first.
    pub(super) const FIRST: Self = Self { order: Order::FromRoots, root: 0 };
    /// Limits of all variants: table entries times links, and number of variants.
    const COST_MAX: usize = 30_000_000;
    const COUNT_MAX: usize = 60;
    /// Largest number of variants that are routed a second time.
    pub(super) const AGAIN_MAX: usize = 8;

    /// The further variants to try: at least one, at most as many as the fabric's size allows.
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

/// Sorts egress switches by `order`, those with hosts before others, which receive little traffic.
pub(super) fn in_order<'a>(
    fabric: &Fabric<'_>,
    forest: &Forest,
    egress_switches: &'a [EgressSwitch],
    order: Order,
) -> Vec<&'a EgressSwitch> {
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
    let mut egress_switches: Vec<&EgressSwitch> = egress_switches.iter().collect();
    egress_switches.sort_by_key(|egress_switch| {
        (
            !egress_switch.has_hosts(),
            places[usize::from(egress_switch.switch)],
            egress_switch.switch,
        )
    });
    egress_switches
}

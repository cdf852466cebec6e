//! Up*/down* routing: routes go up, towards roots, and then down, and never up again. Such routes
//! have no credit loops, on any fabric and with one virtual lane (Schroeder et al., Autonet, 1991).
//!
//! [`UpDown`] comes in two kinds that differ in which direction is up. `updn` counts hops from root
//! switches, which the operator lists or the engine finds by their hops to hosts ([`roots`]).
//! `dnup` counts hops from the switches that have hosts, and up is away from them; it suits fabrics
//! with hosts near the roots. LIDs are distributed over ports as in `minhop`
//! ([`deal`](crate::deal)), and previous routes are kept likewise ([`repair`](crate::repair)).
//!
//! Switches without hosts, such as the roots themselves, cannot all reach each other by such
//! routes. Their pairs are left out, or with `connect_roots` connected by routes that break the
//! rule. OpenSM then connects pairs whose destination is a root, by shortest paths from everywhere;
//! here only pairs that have no other route break the rule, but all of them are connected. Where
//! hosts cannot reach each other, the engine refuses the fabric, while OpenSM leaves such routes
//! out.
//!
//! Takes time proportional to switches times links plus switches times LIDs.

mod keep;
mod labels;
mod order;
mod roots;

pub(crate) use self::keep::Ranked;
pub(crate) use self::labels::{Labels, phase};
pub(crate) use self::order::Order;
use crate::deal::{Dealt, deal};
use crate::engines::settings::settings;
use crate::relief::relieve_draft;
use crate::repair::settle;
use crate::tree;
use crate::{
    Engine, HopMatrix, Lanes, Previous, Reason, Routing, RoutingError, Steering, Topology,
};

settings! {
    /// Settings of engines that rank switches by their hops from roots.
    pub struct Settings {
        /// Whether updn and ftree route between root switches.
        connect_roots: bool = false, key "connect_roots", sweep, after "avoid_throttled_links";
    }
}

/// Files of engines that rank switches by their hops from roots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Root switches (`root_guid_file`); empty: the engine finds them.
    pub roots: Vec<u16>,
}

/// The engines `updn` and `dnup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpDown {
    /// `updn`: up is towards roots.
    FromRoots,
    /// `dnup`: up is away from hosts.
    FromHosts,
}

impl Engine for UpDown {
    fn name(&self) -> &'static str {
        match self {
            Self::FromRoots => "updn",
            Self::FromHosts => "dnup",
        }
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        super::hops::check_size(self.name(), topology)?;
        let rank = |topology: &Topology| {
            let order = self.order(topology, steering)?;
            let mut labels = Labels::compute(topology, &order);
            if steering.settings.updn.connect_roots {
                topology
                    .switches()
                    .for_each(|egress_switch| labels.connect(topology, egress_switch, u8::MAX));
            }
            Ok(Ranked { order, labels })
        };
        let now = rank(topology)?;
        if let Some((from, to)) = parted_hosts(topology, &now.order, &now.labels.hops) {
            let reason = Reason::NoUpDownRoute { from, to, takes_io_nodes: false };
            return Err(reason.of(self.name()));
        }
        let labels = &now.labels;
        let tree = labels.tree(topology, &steering.common);
        let path_rules = |egress_switch| labels.path_rules(egress_switch);
        let route_afresh = || {
            if let Some(tree) = &tree {
                return tree.route(topology, &labels.hops, None, path_rules);
            }
            let draft = deal(topology, &steering.common, &labels.hops, path_rules);
            relieve_draft(draft, topology, &steering.common, &labels.hops, path_rules)
        };
        let Dealt { lfts, unreachable, loads, tree } = match &tree {
            Some(tree) if !tree::is_found(previous) => {
                tree.route(topology, &labels.hops, previous, path_rules)
            }
            _ => {
                let repaired = previous.and_then(|previous| {
                    let then = Ranked::before(topology, previous, rank);
                    now.repair(topology, previous, then.as_ref())
                });
                settle(topology, previous, &labels.hops, path_rules, repaired, route_afresh)
            }
        };
        let mut hops = now.labels.hops;
        hops.transpose();
        let lanes = Lanes::Free;
        Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads, tree })
    }
}

impl UpDown {
    fn order(self, topology: &Topology, steering: &Steering) -> Result<Order, RoutingError> {
        match self {
            Self::FromRoots if !steering.updn.roots.is_empty() => {
                Ok(Order::below(topology, &steering.common, &steering.updn.roots))
            }
            Self::FromRoots => {
                let hops = super::hops::compute(self.name(), topology, None)?;
                let roots = roots::find(topology, &hops);
                if roots.is_empty() {
                    return Err(Reason::NoRoots.of(self.name()));
                }
                Ok(Order::below(topology, &steering.common, &roots))
            }
            Self::FromHosts => {
                let leaves = switches_with_hosts(topology);
                if leaves.is_empty() {
                    return Err(Reason::NoHosts.of(self.name()));
                }
                Ok(Order::above(topology, &steering.common, &leaves))
            }
        }
    }
}

/// The root switches that the engine uses; empty if it cannot route the fabric.
pub fn roots_of(topology: &Topology, steering: &Steering) -> Vec<u16> {
    let order = UpDown::FromRoots.order(topology, steering).ok();
    let is_root =
        |switch: &u16| order.as_ref().is_some_and(|order| order.ranks[usize::from(*switch)] == 0);
    topology.switches().filter(is_root).collect()
}

fn switches_with_hosts(topology: &Topology) -> Vec<u16> {
    let hosts = topology.hosts_on();
    topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0).collect()
}

/// Returns two switches with hosts in one part of the fabric, if there are any, such that the first
/// has no path to the second. `hops` is by egress switch.
pub(crate) fn parted_hosts(
    topology: &Topology,
    order: &Order,
    hops: &HopMatrix,
) -> Option<(u16, u16)> {
    let leaves = switches_with_hosts(topology);
    let part = |switch: u16| order.parts[usize::from(switch)];
    leaves.iter().find_map(|&egress_switch| {
        let row = hops.row(egress_switch);
        let is_lost = |&&switch: &&u16| {
            row[usize::from(switch)] == HopMatrix::UNREACHABLE
                && part(switch) == part(egress_switch)
        };
        leaves.iter().find(is_lost).map(|&lost| (lost, egress_switch))
    })
}

#[cfg(test)]
mod tests;

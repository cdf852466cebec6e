//! Up*/down* routing: routes go up, towards roots, and then down, and never up again. Nothing can
//! wait in a circle on such routes, on any fabric and with one virtual lane (Schroeder et al.,
//! Autonet, 1991).
//!
//! [`UpDown`] comes in two kinds that differ in what is up. `updn` counts hops from root switches:
//! the operator's, or found by their hops to hosts ([`roots`]). `dnup` counts hops from the switches
//! that have hosts, and up is away from them; it suits fabrics with hosts near the roots. LIDs are
//! dealt to ports as `minhop` does ([`deal`](super::deal)), and what was routed before is kept like
//! there ([`repair`](super::repair)).
//!
//! Switches without hosts, such as the roots themselves, cannot all reach each other like this; such
//! pairs are left out, or with `connect_roots` joined by routes that break the rule. OpenSM joins
//! pairs whose destination is a root then, by shortest ways from everywhere; here only pairs that
//! have no other route break the rule, but all of them are joined. Where hosts cannot reach
//! each other otherwise, the engine declines, while OpenSM leaves such routes out.
//!
//! Takes time in proportion to switches times links, and to switches times LIDs.

mod keep;
mod labels;
mod order;
mod roots;

pub(super) use self::keep::Ranked;
pub(super) use self::labels::{Labels, phase};
pub(super) use self::order::Order;
use super::deal::{Dealt, deal};
use super::repair::settle;
use super::{Engine, HopMatrix, Lanes, Previous, Routing, RoutingError, Steering, Topology};

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
        HopMatrix::check_size(self.name(), topology)?;
        let rank = |topology: &Topology| {
            let order = self.order(topology, steering)?;
            let mut labels = Labels::compute(topology, &order);
            if steering.connect_roots {
                topology.switches().for_each(|home| labels.connect(topology, home, u8::MAX));
            }
            Ok(Ranked { order, labels })
        };
        let (now, then) = Ranked::both(topology, previous, rank)?;
        if let Some((from, to)) = parted_hosts(topology, &now.order, &now.labels.hops) {
            let reason = format!(
                "switch {from} and switch {to} have hosts, but no route between them goes up and then \
                 down"
            );
            return Err(RoutingError::Unsuitable { engine: self.name(), reason });
        }
        let repaired = previous.and_then(|previous| now.repair(topology, previous, then.as_ref()));
        let labels = now.labels;
        let ways = |home| labels.ways(home);
        let anew = || {
            let draft = deal(topology, steering, &labels.hops, ways);
            draft.relieve(topology, steering, &labels.hops, ways)
        };
        let Dealt { lfts, unreachable, loads } =
            settle(topology, previous, &labels.hops, ways, repaired, anew);
        let mut hops = labels.hops;
        hops.transpose();
        Ok(Routing { engine: self.name(), lfts, hops, lanes: Lanes::Free, unreachable, loads })
    }
}

impl UpDown {
    fn order(self, topology: &Topology, steering: &Steering) -> Result<Order, RoutingError> {
        let unsuitable = |reason: &str| RoutingError::Unsuitable {
            engine: self.name(),
            reason: reason.to_owned(),
        };
        match self {
            Self::FromRoots if !steering.roots.is_empty() => {
                Ok(Order::below(topology, steering, &steering.roots))
            }
            Self::FromRoots => {
                let hops = HopMatrix::compute_for(self.name(), topology, None)?;
                let roots = roots::find(topology, &hops);
                if roots.is_empty() {
                    return Err(unsuitable(
                        "no switch has nearly all hosts at one distance, so none is taken for a \
                         root; root_guid_file can name roots",
                    ));
                }
                Ok(Order::below(topology, steering, &roots))
            }
            Self::FromHosts => {
                let leaves = switches_with_hosts(topology);
                if leaves.is_empty() {
                    return Err(unsuitable("no switch has hosts"));
                }
                Ok(Order::above(topology, steering, &leaves))
            }
        }
    }
}

/// The switches that the engine takes for roots; none if it cannot route the fabric.
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

/// Switches with hosts in one part of the fabric of which the first has no way to the second, if
/// there are such. `hops` are by home.
pub(super) fn parted_hosts(
    topology: &Topology,
    order: &Order,
    hops: &HopMatrix,
) -> Option<(u16, u16)> {
    let leaves = switches_with_hosts(topology);
    let part = |switch: u16| order.parts[usize::from(switch)];
    leaves.iter().find_map(|&home| {
        let row = hops.row(home);
        let is_lost = |&&switch: &&u16| {
            row[usize::from(switch)] == HopMatrix::UNREACHABLE && part(switch) == part(home)
        };
        leaves.iter().find(is_lost).map(|&lost| (lost, home))
    })
}

#[cfg(test)]
mod tests;

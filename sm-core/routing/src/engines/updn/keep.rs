//! Keeps previous routes of up*/down* routing.

use super::labels::Labels;
use super::order::Order;
use crate::repair::{Labelled, Repaired, Scope, repair};
use crate::{Previous, Topology};

/// The vertical order of switches, and the paths that it allows.
pub(crate) struct Ranked {
    pub(crate) order: Order,
    pub(crate) labels: Labels,
}

impl Ranked {
    /// Ranks the previous topology, if it has the same switches: operators' options refer to
    /// current switch numbers.
    pub(crate) fn before<E>(
        topology: &Topology,
        previous: &Previous<'_>,
        rank: impl Fn(&Topology) -> Result<Self, E>,
    ) -> Option<Self> {
        previous.is_of_same_switches(topology).then(|| rank(previous.topology).ok()).flatten()
    }

    /// Keeps the previous routes where possible. `then` is the ranking of the previous topology, if
    /// known.
    pub(crate) fn repair(
        &self,
        topology: &Topology,
        previous: &Previous<'_>,
        then: Option<&Self>,
    ) -> Option<Repaired> {
        let now = Labelled { hops: &self.labels.hops, phases: self.labels.all_phases() };
        let path_rules = |egress_switch| self.labels.path_rules(egress_switch);
        let Some(mut hops_then) = previous.hops.cloned() else {
            return repair(topology, now, previous, now, path_rules, Scope::All);
        };
        hops_then.transpose();
        // Otherwise the previous ranking differs from the one computed now, or links have changed
        // their direction: all routes have to be examined.
        match then.filter(|then| then.labels.hops == hops_then && self.turns_as(then, topology)) {
            Some(then) => {
                let then = Labelled { hops: &hops_then, phases: then.labels.all_phases() };
                repair(topology, now, previous, then, path_rules, Scope::Changed)
            }
            None => repair(
                topology,
                now,
                previous,
                Labelled::by_hops(&hops_then),
                path_rules,
                Scope::All,
            ),
        }
    }

    /// Whether every link still leads in the same direction, up or down. Both rankings number
    /// switches alike.
    fn turns_as(&self, before: &Self, topology: &Topology) -> bool {
        topology.switches().all(|switch| {
            topology.links(switch).iter().all(|link| {
                self.order.is_above(switch, link.peer) == before.order.is_above(switch, link.peer)
            })
        })
    }
}
